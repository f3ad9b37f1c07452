//! Choice of the fat-root switches that get index packets.
//!
//! ```text
//!   lost ──► gone ──read──► back at a version ──settled at that version──► ready
//!                                                                          │
//!   ready, up, reaching every end ──► used: has path numbers  ◄────────────┘
//! ```
//!
//! A switch that was away may hold an old plan, or nothing: it gets no packets until it holds the active plan. Its old entries do no
//! harm, because no packet is sent there. If no other fat root is ready, it is used as it is, as in a network with one fat root.

use std::collections::{BTreeMap, BTreeSet};

use fatbtree_topology::{Cluster, Outages, SwitchId};

/// The switches with the fat root.
#[derive(Debug)]
pub(super) struct Roots {
    all: Vec<SwitchId>,
    /// Those that were away: since they are back, the version that they have to hold first.
    away: BTreeMap<SwitchId, Option<u64>>,
    /// Fat roots that are not ready, as a set.
    unready: BTreeSet<SwitchId>,
    /// Those that have path numbers.
    used: Vec<SwitchId>,
}

impl Roots {
    /// All are trusted until something is known of them.
    pub(super) fn new(cluster: &Cluster) -> Self {
        let all = cluster.tree().roots().to_vec();
        let mut roots = Self { all, away: BTreeMap::new(), unready: BTreeSet::new(), used: Vec::new() };
        roots.use_ready(cluster, &Outages::none());
        roots
    }

    /// Takes note that a fat root does not answer.
    pub(super) fn lost(&mut self, switch: SwitchId) {
        if self.all.contains(&switch) {
            self.away.insert(switch, None);
        }
    }

    /// Takes note that a fat root answers and was read, and whether it sends packets where they are to be sent.
    pub(super) fn read(&mut self, root: SwitchId, holds_it: bool, version: u64) {
        if self.away.contains_key(&root) || !holds_it {
            self.away.insert(root, Some(version));
        }
    }

    /// Takes note that a fat root was down, and answered all the time, or answers again.
    pub(super) fn came_back(&mut self, switch: SwitchId, version: u64) {
        if self.all.contains(&switch) {
            self.away.insert(switch, Some(version));
        }
    }

    /// Takes note that a fat root holds what was desired at a version.
    pub(super) fn settled(&mut self, switch: SwitchId, version: u64) {
        if self.away.get(&switch).is_some_and(|since| since.is_some_and(|since| version >= since)) {
            self.away.remove(&switch);
        }
    }

    /// Those that do not hold yet what they should.
    pub(super) fn unready(&self) -> &BTreeSet<SwitchId> {
        &self.unready
    }

    /// Whether others are to have path numbers now.
    pub(super) fn have_changed(&mut self, cluster: &Cluster, outages: &Outages) -> bool {
        let unready: BTreeSet<SwitchId> = self.away.keys().copied().collect();
        if unready == self.unready {
            return false;
        }
        self.unready = unready;
        self.ready(cluster, outages) != self.used
    }

    /// Gives path numbers to those that are ready.
    pub(super) fn use_ready(&mut self, cluster: &Cluster, outages: &Outages) {
        self.unready = self.away.keys().copied().collect();
        self.used = self.ready(cluster, outages);
    }

    fn ready(&self, cluster: &Cluster, outages: &Outages) -> Vec<SwitchId> {
        cluster.tree().routing(outages, &cluster.ends(), &self.unready).roots().to_vec()
    }

    pub(super) fn is_used(&self, root: SwitchId) -> bool {
        self.used.contains(&root)
    }

    pub(super) fn all_are_used(&self) -> bool {
        self.used.len() == self.all.len()
    }
}

//! The target of all switches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fatbtree_topology::{Cluster, Outages, SwitchId};

use super::wanted::{Keep, Serving, Wanted};
use crate::base::{Base, cluster_base, cluster_base_during};
use crate::connection::Connections;
use crate::plan::{Plan, diff_switch};
use crate::tables::Entry;

/// A plan with its entries.
#[derive(Debug, PartialEq)]
pub struct Loaded {
    plan: Plan,
    fingerprint: String,
    entries: BTreeMap<SwitchId, Arc<Vec<Entry>>>,
}

impl Loaded {
    /// Makes the entries.
    pub fn new(plan: Plan) -> Arc<Self> {
        let entries = plan.entries().into_iter().map(|(switch, entries)| (switch, Arc::new(entries)));
        Arc::new(Self { entries: entries.collect(), fingerprint: plan.fingerprint(), plan })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// [`Plan::fingerprint`], made once.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Entries that are written or deleted on the way from another plan, or from none.
    pub fn changes_from(&self, old: Option<&Self>) -> usize {
        let none = Arc::new(Vec::new());
        let of = |loaded: &Self, switch| Arc::clone(loaded.entries.get(switch).unwrap_or(&none));
        let switches: BTreeSet<&SwitchId> =
            self.entries.keys().chain(old.into_iter().flat_map(|old| old.entries.keys())).collect();
        let changes = switches.into_iter().map(|switch| {
            let before = old.map_or_else(|| Arc::clone(&none), |old| of(old, switch));
            diff_switch(&before, &of(self, switch)).len()
        });
        changes.sum()
    }

    /// Entries in all switches together.
    pub fn len(&self) -> usize {
        self.entries.values().map(|entries| entries.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The active plan, which leads packets.
#[derive(Clone, Debug, PartialEq)]
pub enum Active {
    /// No fat root was read yet: whatever there is stays.
    Unread,
    /// Nothing: index reads end at the roots of their partitions.
    Nothing,
    /// An epoch whose plan is no longer known. It serves until there is another one.
    Unknown(Serving),
    /// This plan.
    Plan(Arc<Loaded>),
}

impl Active {
    /// Epoch and parity to which packets are sent.
    pub fn serving(&self) -> Option<Serving> {
        match self {
            Self::Unread | Self::Nothing => None,
            Self::Unknown(serving) => Some(*serving),
            Self::Plan(loaded) => Some(Serving { epoch: loaded.plan.epoch(), parity: loaded.plan.parity() }),
        }
    }

    /// Its epoch, if there is one.
    pub fn epoch(&self) -> Option<u8> {
        self.serving().map(|serving| serving.epoch)
    }

    /// The plan, if it is known.
    pub fn plan(&self) -> Option<&Arc<Loaded>> {
        match self {
            Self::Plan(loaded) => Some(loaded),
            _ => None,
        }
    }
}

/// The target of all switches, as a value. A reload is three of these, one after another: with the new plan beside the old one; the same
/// with the new one active; without the old one.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The switches that hold the fat root.
    roots: Vec<SwitchId>,
    base: Arc<BTreeMap<SwitchId, Base>>,
    /// Clients' connections.
    pub connections: Connections,
    /// The active plan, which leads packets.
    pub active: Active,
    /// The plan that was active, or is to be.
    pub staged: Option<Arc<Loaded>>,
}

impl Desired {
    /// Routes, and whatever plan there is.
    pub fn new(cluster: &Cluster) -> Self {
        Self {
            roots: cluster.tree().roots().to_vec(),
            base: Arc::new(cluster_base(cluster)),
            connections: Connections::of(cluster),
            active: Active::Unread,
            staged: None,
        }
    }

    /// Plans alone, in a network whose switches with the fat root are these.
    #[cfg(test)]
    pub(crate) fn of_plans(roots: &[SwitchId], active: Arc<Loaded>, staged: Option<Arc<Loaded>>) -> Self {
        let (base, connections) = (Arc::default(), Connections::new());
        Self { roots: roots.to_vec(), base, connections, active: Active::Plan(active), staged }
    }

    /// Other routes: what is down goes round, and switches that are `unready` get no index packets to look up in their fat root while
    /// others are there.
    pub(super) fn go_round(&mut self, cluster: &Cluster, outages: &Outages, unready: &BTreeSet<SwitchId>) {
        self.base = Arc::new(cluster_base_during(cluster, outages, unready));
    }

    /// The target of one switch.
    pub fn wanted(&self, switch: SwitchId) -> Wanted {
        let base = self.base.get(&switch);
        let mut fixed: Vec<Entry> = base.map(|base| base.entries.clone()).unwrap_or_default();
        fixed.extend(self.connections.of_switch(switch));
        fixed.sort();
        let plans = || self.active.plan().into_iter().chain(&self.staged);
        let epochs: Vec<u8> = plans().map(|loaded| loaded.plan.epoch()).collect();
        let is_difference = matches!(epochs[..], [one, other] if one == other);
        let plans = plans().filter_map(|loaded| loaded.entries.get(&switch).cloned()).collect();
        let keep = match self.active {
            Active::Unread => Keep::All,
            Active::Unknown(serving) => Keep::Of(serving),
            Active::Nothing | Active::Plan(_) => Keep::Nothing,
        };
        let base_route = base.map(|base| base.core_route);
        let core_route = match &self.active {
            _ if !self.roots.contains(&switch) => base_route,
            Active::Unread => None,
            Active::Nothing | Active::Unknown(_) => base_route,
            Active::Plan(loaded) => Some(loaded.plan.descend()),
        };
        // One that has another epoch, or none, leads nowhere until there is another plan.
        let core_route_stays = match self.active {
            Active::Unknown(serving) => Some(serving),
            _ => None,
        };
        let serving = self.active.serving();
        Wanted { fixed, plans, is_difference, keep, serving, core_route, core_route_stays }
    }
}

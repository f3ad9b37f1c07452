//! Changing from one epoch to the next while lookups go on (ARCHITECTURE.md "A reload").
//!
//! ```text
//!  Forget   first hops     delete hot keys that the new plan does not have, or has elsewhere: there is no room for both
//!  Write    every switch   insert the new epoch's entries beside the old ones; no packet has this epoch yet
//!  Flip     fat roots      core_route := descend(new epoch): one MODIFY in each moves all later packets that turn round there
//!  Retire   every switch   delete the old fat root and the old coarse entries: packets still under way with the old epoch
//!                          now find their node in no set, and stop descending early
//!  Delete   every switch   delete the other entries of the old epoch
//! ```
//!
//! Retire and Delete are apart because a node is *there* exactly when `coarse` hits: with its fine entries gone but the
//! coarse one still there, a switch would compare with nothing and might lead the packet to a wrong child.
//!
//! [`ReloadSteps`] is a value: [`Fleet::reload`](crate::Fleet::reload) pushes it phase by phase, and a simulator applies the
//! same value at moments of its own choosing. Within a phase, order does not matter, neither between nor inside switches.

use std::collections::{BTreeMap, BTreeSet};

use fatbtree_p4runtime::v1::{Update, WriteRequest};
use fatbtree_topology::SwitchId;

use crate::plan::Plan;
use crate::tables::{Change, Entry, TableError, Tables};

/// Two plans that cannot follow one another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// Epochs that share the last bit share sub-table ids.
    #[error(
        "epoch {new} cannot follow epoch {old}: their last bits are equal, so their sub-tables would mix; use next_epoch({old})"
    )]
    SameParity {
        /// The epoch in force.
        old: u8,
        /// The one that was to follow.
        new: u8,
    },
    /// The plans are for different networks.
    #[error(
        "the new plan's fat root is in the switches {new:?}, the old one's in {old:?}; a reload cannot move the fat root"
    )]
    OtherRoots {
        /// The switches of the plan in force.
        old: Vec<SwitchId>,
        /// The others.
        new: Vec<SwitchId>,
    },
}

/// What a phase is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseKind {
    /// Hot keys go that do not stay as they are.
    Forget,
    /// The new epoch beside the old.
    Write,
    /// The one change in each fat root that moves packets to it.
    Flip,
    /// Out of the old epoch's nodes.
    Retire,
    /// The rest of the old epoch.
    Delete,
}

/// Changes that may be applied in any order, but all before the next phase begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// What it is for.
    pub kind: PhaseKind,
    /// Changes per switch.
    pub changes: BTreeMap<SwitchId, Vec<Change>>,
}

impl Phase {
    /// Number of changes in all switches.
    pub fn len(&self) -> usize {
        self.changes.values().map(Vec::len).sum()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The phase as P4Runtime Write requests of at most `batch` updates, per switch. Device and election ids are left for
    /// whoever sends them.
    ///
    /// # Errors
    /// A switch's program lacks a table that the plan needs.
    pub fn write_requests(
        &self,
        tables: &Tables,
        batch: usize,
    ) -> Result<Vec<(SwitchId, WriteRequest)>, TableError> {
        let mut requests = Vec::new();
        for (switch, changes) in &self.changes {
            for chunk in changes.chunks(batch.max(1)) {
                let updates =
                    chunk.iter().map(|change| change.update(tables)).collect::<Result<Vec<Update>, _>>()?;
                requests.push((*switch, WriteRequest { updates, ..WriteRequest::default() }));
            }
        }
        Ok(requests)
    }
}

/// The way from one epoch to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadSteps {
    /// The epoch in force before, if any.
    pub from: Option<u8>,
    /// The epoch in force afterwards.
    pub to: u8,
    /// Phases in order; those without changes are left out.
    pub phases: Vec<Phase>,
}

impl ReloadSteps {
    /// From `old` (or from switches that hold no plan) to `new`.
    ///
    /// # Errors
    /// Epochs that may not follow each other; plans for different networks.
    pub fn new(old: Option<&Plan>, new: &Plan) -> Result<Self, ReloadError> {
        if let Some(old) = old {
            if old.roots() != new.roots() {
                return Err(ReloadError::OtherRoots { old: old.roots().to_vec(), new: new.roots().to_vec() });
            }
            if old.epoch() & 1 == new.epoch() & 1 {
                return Err(ReloadError::SameParity { old: old.epoch(), new: new.epoch() });
            }
        }
        let changes = |entries: BTreeMap<SwitchId, Vec<Entry>>, change: fn(Entry) -> Change| {
            entries
                .into_iter()
                .map(|(switch, entries)| (switch, entries.into_iter().map(change).collect()))
                .collect()
        };
        let (mut before, mut after) = (old.map(Plan::entries).unwrap_or_default(), new.entries());
        leave_what_stays(&mut before, &mut after);
        let forget = take_hot_keys(&mut before);
        let (retire, delete) = split(before);
        let flip = |root: &SwitchId| (*root, vec![Change::CoreRoute(new.descend())]);
        let flip = new.roots().iter().map(flip).collect();
        let mut phases = vec![
            Phase { kind: PhaseKind::Forget, changes: changes(forget, Change::Delete) },
            Phase { kind: PhaseKind::Write, changes: changes(after, Change::Insert) },
            Phase { kind: PhaseKind::Flip, changes: flip },
            Phase { kind: PhaseKind::Retire, changes: changes(retire, Change::Delete) },
            Phase { kind: PhaseKind::Delete, changes: changes(delete, Change::Delete) },
        ];
        for phase in &mut phases {
            phase.changes.retain(|_, changes| !changes.is_empty());
        }
        phases.retain(|phase| !phase.is_empty());
        Ok(Self { from: old.map(Plan::epoch), to: new.epoch(), phases })
    }

    /// Number of changes in all phases.
    pub fn len(&self) -> usize {
        self.phases.iter().map(Phase::len).sum()
    }

    /// Whether there is nothing to do (there always is: at least the flip).
    pub fn is_empty(&self) -> bool {
        self.phases.is_empty()
    }
}

type PerSwitch = BTreeMap<SwitchId, Vec<Entry>>;

/// Takes out what both have: entries that are the same for all epochs.
fn leave_what_stays(before: &mut PerSwitch, after: &mut PerSwitch) {
    for (switch, before) in before {
        let Some(after) = after.get_mut(switch) else { continue };
        let stay: BTreeSet<Entry> =
            before.iter().filter(|entry| after.binary_search(entry).is_ok()).copied().collect();
        before.retain(|entry| !stay.contains(entry));
        after.retain(|entry| !stay.contains(entry));
    }
}

/// Takes out the hot keys.
fn take_hot_keys(entries: &mut PerSwitch) -> PerSwitch {
    let is_hot = |entry: &mut Entry| matches!(entry, Entry::HotKey(..));
    entries.iter_mut().map(|(switch, entries)| (*switch, entries.extract_if(.., is_hot).collect())).collect()
}

/// What makes packets use an epoch, and the rest of it.
fn split(entries: PerSwitch) -> (PerSwitch, PerSwitch) {
    let leads_in = |entry: &Entry| matches!(entry, Entry::FatRoot(..) | Entry::Coarse(..));
    let (mut retire, mut delete) = (PerSwitch::new(), PerSwitch::new());
    for (switch, entries) in entries {
        let (first, rest) = entries.into_iter().partition(leads_in);
        retire.insert(switch, first);
        delete.insert(switch, rest);
    }
    (retire, delete)
}

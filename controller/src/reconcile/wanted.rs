//! What one switch should hold, and the way there.

use std::sync::Arc;

use super::Held;
use crate::tables::{Change, Entry, core_route, step};

/// Entries of plans that stay as they are, although nobody knows the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// None.
    Nothing,
    /// Those of the epoch in force: they were there when the controller started, and serve until there is another plan.
    Epoch(u8),
    /// All: the epoch in force was not read yet.
    All,
}

/// What one switch should hold.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Routes and connections, in key order.
    pub(super) fixed: Vec<Entry>,
    /// Its entries of each plan that is in force or beside it, in key order.
    pub(super) plans: Vec<Arc<Vec<Entry>>>,
    pub(super) keep: Keep,
    /// The epoch that packets are sent into.
    pub(super) serving: Option<u8>,
    /// None: it stays as it is.
    pub(super) core_route: Option<core_route::Action>,
}

impl Wanted {
    /// The next changes on the way from what the switch holds; none when it holds what it should. They may be made in any order, but all
    /// of them before those that come next.
    ///
    /// The way never lets a packet meet half of a node: what no packet can come to changes first; nodes that are added get the entry
    /// that leads into them last, nodes that go lose it first; pointers to nodes change in between, one entry each. So it does not
    /// matter whether a reload is under way, was interrupted, or the switch came back empty: what is missing is added, what is left over
    /// goes.
    pub fn next_changes(&self, held: &Held) -> Option<Vec<Change>> {
        let mut wanted = self.fixed.clone();
        self.plans.iter().for_each(|entries| wanted.extend_from_slice(entries));
        // A few sorted runs: merged in one pass.
        wanted.sort();
        let mut phases: [Vec<Change>; PHASES] = [const { Vec::new() }; PHASES];
        for change in held.changes_to(&wanted) {
            if let Some(phase) = self.phase(&change) {
                phases[phase].push(change);
            }
        }
        if let Some(action) = self.core_route.filter(|action| held.core_route() != Some(*action)) {
            let leads_nowhere = self.serving.is_none();
            phases[if leads_nowhere { STOP } else { POINTERS }].push(Change::CoreRoute(action));
        }
        phases.into_iter().find(|changes| !changes.is_empty())
    }

    /// When a change is made; none: it is not.
    fn phase(&self, change: &Change) -> Option<usize> {
        match change {
            Change::Delete(entry) => {
                let kept = match self.keep {
                    Keep::Nothing => false,
                    Keep::Epoch(epoch) => belongs(entry, epoch),
                    Keep::All => is_planned(entry),
                };
                let first = if self.is_unreachable(entry) { UNREACHABLE } else { REACHABLE };
                (!kept).then_some(if leads_in(entry) { first } else { first + 1 })
            }
            Change::Insert(entry) if leads_in(entry) => Some(LEAD_IN),
            Change::Insert(_) => Some(ADD),
            Change::Modify(entry) if self.is_unreachable(entry) => Some(ADD),
            Change::Modify(_) | Change::CoreRoute(_) => Some(POINTERS),
        }
    }

    /// Whether no packet comes to a planned entry, but those that are still under way with an epoch that was in force before.
    fn is_unreachable(&self, entry: &Entry) -> bool {
        is_planned(entry) && !self.serving.is_some_and(|epoch| belongs(entry, epoch))
    }
}

/// Packets are sent nowhere before anything else, if that is what is wanted.
const STOP: usize = 0;
/// What cannot be reached goes: what leads in, then the rest.
const UNREACHABLE: usize = 1;
const ADD: usize = 3;
const LEAD_IN: usize = 4;
const POINTERS: usize = 5;
/// What could be reached goes: what leads in, then the rest.
const REACHABLE: usize = 6;
const PHASES: usize = 8;

/// Whether a packet finds a node, or the fat root, by this entry: without it, the others of that node mean nothing.
fn leads_in(entry: &Entry) -> bool {
    matches!(entry, Entry::FatRoot(..) | Entry::Step(step::Key { quarter: None, .. }, _))
}

/// Whether it is of a plan.
pub(super) fn is_planned(entry: &Entry) -> bool {
    matches!(entry, Entry::FatRoot(..) | Entry::Step(..) | Entry::Child(..))
}

/// Whether it is of this epoch, or of another with the same last bit if it is of the fat root.
fn belongs(entry: &Entry, epoch: u8) -> bool {
    match entry {
        Entry::FatRoot(key, _) => key.sub_table & 1 == u16::from(epoch & 1),
        Entry::Step(key, _) => key.epoch == epoch,
        Entry::Child(key, _) => key.epoch == epoch,
        _ => false,
    }
}

//! The target of one switch, and the safe order of changes towards it.

use std::sync::Arc;

use super::Observed;
use crate::tables::{Change, Entry, core_route};

/// Entries of unknown plans that stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// None.
    Nothing,
    /// Those of the active epoch: they were there when the controller started, and serve until there is another plan.
    Of(Serving),
    /// All: the active epoch was not read yet.
    All,
}

/// The target of one switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Routes and connections, in key order.
    pub(super) fixed: Vec<Entry>,
    /// Its entries of the plan that is active, and of the one beside it; each in key order.
    pub(super) plans: Vec<Arc<Vec<Entry>>>,
    /// Whether these are plans of one epoch: packets are led only into nodes on which they agree.
    pub(super) is_difference: bool,
    pub(super) keep: Keep,
    /// Epoch and parity to which packets are to be sent.
    pub(super) serving: Option<Serving>,
    /// None: it stays as it is.
    pub(super) core_route: Option<core_route::Action>,
    /// Target under which `core_route` stays as it is.
    pub(super) core_route_stays: Option<Serving>,
}

impl Wanted {
    /// The next changes on the way from what the switch holds; none when it holds what it should. They may be made in any order, but all
    /// of them before those that come next.
    ///
    /// Routes come first, those that go after those that come: packets go round what is down while a large plan is being written.
    ///
    /// The way never lets a packet meet half of a node: what no packet can come to changes first; nodes that are added get the entry
    /// that leads into them last, nodes that go lose it first; pointers to nodes change in between, one entry each. So it does not
    /// matter whether a reload is under way, was interrupted, or the switch came back empty: what is missing is added, what is left over
    /// goes.
    pub fn next_changes(&self, held: &Observed) -> Option<Vec<Change>> {
        let mut wanted = self.fixed.clone();
        // Hot keys of the one plan only: their table has no room for those of two.
        for (at, entries) in self.plans.iter().enumerate() {
            let is_in_force = at == 0;
            let stays = |entry: &&Entry| is_in_force || !matches!(entry, Entry::HotKey(..));
            wanted.extend(entries.iter().filter(stays).copied());
        }
        // A few sorted runs: merged in one pass. Where plans differ about an entry, the active one is right, which comes first.
        wanted.sort_by(Entry::cmp_keys);
        if self.is_difference {
            wanted = agreed(&wanted);
        }
        wanted.dedup_by(|later, first| later.cmp_keys(first).is_eq());
        if let Some(stop) = self.stop(held) {
            return Some(vec![stop]);
        }
        let mut phases: [Vec<Change>; PHASES] = [const { Vec::new() }; PHASES];
        for change in held.changes_to(&wanted) {
            if let Some(phase) = self.phase(&change, held.serving()) {
                phases[phase].push(change);
            }
        }
        phases[STOP].extend(self.turn_round(held));
        let stays = self.core_route_stays.is_some() && held.serving() == self.core_route_stays;
        if let Some(action) = self.core_route.filter(|action| !stays && held.core_route() != Some(*action)) {
            let leads_nowhere = self.serving.is_none();
            phases[if leads_nowhere { STOP } else { POINTERS }].push(Change::CoreRoute(action));
        }
        phases.into_iter().find(|changes| !changes.is_empty())
    }

    /// A switch that was away may send packets into a fat root whose place is wanted for another one: it sends them nowhere first.
    fn stop(&self, held: &Observed) -> Option<Change> {
        let (now, wanted) = (held.serving()?, self.serving?);
        self.core_route?;
        let nowhere = core_route::Action::Descend { epoch: 0, sub_table: 0 };
        (now != wanted && now.parity == wanted.parity).then_some(Change::CoreRoute(nowhere))
    }

    /// A fat root that came back empty lets index packets climb on, for ever: they turn round before there are routes.
    fn turn_round(&self, held: &Observed) -> Option<Change> {
        let turns = |action| matches!(action, Some(core_route::Action::Descend { .. }));
        let nowhere = core_route::Action::Descend { epoch: 0, sub_table: 0 };
        let has_to = turns(self.core_route) && self.core_route != Some(nowhere) && !turns(held.core_route());
        has_to.then_some(Change::CoreRoute(nowhere))
    }

    /// Phase in which a change is made; `None` if it is not made.
    fn phase(&self, change: &Change, now: Option<Serving>) -> Option<usize> {
        match change {
            Change::Insert(entry) | Change::Modify(entry) if is_route(entry) => Some(ROUTES),
            Change::Delete(entry) if is_route(entry) => Some(ROUTES_GONE),
            Change::Delete(entry) => {
                let kept = match self.keep {
                    Keep::Nothing => false,
                    Keep::Of(serving) => serving.reaches(entry),
                    Keep::All => is_planned(entry),
                };
                let first = if self.is_unreachable(entry, now) { UNREACHABLE } else { REACHABLE };
                (!kept).then_some(if leads_in(entry) { first } else { first + 1 })
            }
            Change::Insert(entry) if leads_in(entry) => Some(LEAD_IN),
            Change::Insert(_) => Some(ADD),
            Change::Modify(entry) if self.is_unreachable(entry, now) => Some(ADD),
            Change::Modify(_) | Change::CoreRoute(_) => Some(POINTERS),
        }
    }

    /// Whether no packet comes to a planned entry, but those that are still under way with an epoch that was active before. `now` is where
    /// this switch sends packets so far, if it does.
    fn is_unreachable(&self, entry: &Entry, now: Option<Serving>) -> bool {
        // A fat root is come to by this switch alone.
        let wanted = self.serving.filter(|_| !matches!(entry, Entry::FatRoot(..)));
        let mut serving = wanted.into_iter().chain(now);
        is_planned(entry) && !serving.any(|serving| serving.reaches(entry))
    }
}

/// Without the nodes that are not the same in both of two plans. A packet may have been led by the one plan in another switch.
fn agreed(wanted: &[Entry]) -> Vec<Entry> {
    let alike = wanted.chunk_by(|a, b| a.cmp_keys(b).is_eq());
    let stay = alike
        .filter(|alike| !matches!(alike[0], Entry::Coarse(..)) || alike.len() == 2 && alike[0] == alike[1]);
    stay.flatten().copied().collect()
}

/// Packets are sent nowhere before anything else, if that is what is wanted.
const STOP: usize = 0;
/// Routes: what comes or changes, then what goes.
const ROUTES: usize = 1;
const ROUTES_GONE: usize = 2;
/// Deletion of entries that cannot be reached: what leads in, then the rest.
const UNREACHABLE: usize = 3;
const ADD: usize = 5;
const LEAD_IN: usize = 6;
const POINTERS: usize = 7;
/// Deletion of entries that could be reached: what leads in, then the rest.
const REACHABLE: usize = 8;
const PHASES: usize = 10;

impl Change {
    /// Whether it sends packets another way, perhaps round something that is down: it is made at once, others wait for their turn.
    pub fn is_route(&self) -> bool {
        match self {
            Self::Insert(entry) | Self::Modify(entry) | Self::Delete(entry) => is_route(entry),
            Self::CoreRoute(_) => true,
        }
    }
}

/// Whether a packet finds a node, or the fat root, by this entry: without it, the others of that node mean nothing.
fn leads_in(entry: &Entry) -> bool {
    matches!(entry, Entry::FatRoot(..) | Entry::Coarse(..))
}

/// Whether it says by which port packets leave.
fn is_route(entry: &Entry) -> bool {
    matches!(
        entry,
        Entry::PartitionRoute(..)
            | Entry::Ipv4Route(..)
            | Entry::CoreRoute(..)
            | Entry::LoopbackPort(..)
            | Entry::WayBack(..)
    )
}

/// Whether it is of a plan.
pub(super) fn is_planned(entry: &Entry) -> bool {
    match entry {
        Entry::HotKey(..)
        | Entry::FatRoot(..)
        | Entry::Coarse(..)
        | Entry::Fine(..)
        | Entry::Run(..)
        | Entry::Child(..) => true,
        Entry::RoceConnection(..)
        | Entry::PartitionRoute(..)
        | Entry::Ipv4Route(..)
        | Entry::LastHop(..)
        | Entry::CoreRoute(..)
        | Entry::HostPort(..)
        | Entry::TrunkPort(..)
        | Entry::Neighbor(..)
        | Entry::TrafficClass(..)
        | Entry::LoopbackPort(..)
        | Entry::WayBack(..) => false,
    }
}

/// Target of packets: the nodes of an epoch, and the fat root of a parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serving {
    /// The epoch.
    pub epoch: u8,
    /// The last bit of the fat root's sub-tables.
    pub parity: u8,
}

impl Serving {
    /// Whether packets may come to this entry.
    fn reaches(self, entry: &Entry) -> bool {
        match entry {
            Entry::FatRoot(key, _) => key.sub_table & 1 == u16::from(self.parity),
            Entry::Coarse(key, _) => key.epoch == self.epoch,
            Entry::Fine(key, _) => key.epoch == self.epoch,
            // Whatever the epoch.
            Entry::Run(..) => true,
            Entry::Child(key, _) => key.epoch == self.epoch,
            _ => false,
        }
    }
}

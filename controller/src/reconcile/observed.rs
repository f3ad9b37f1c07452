//! The content of one switch.

use super::wanted::{Serving, is_planned};
use crate::occupancy::Counts;
use crate::plan::diff_switch;
use crate::tables::{Change, Entry, core_route};

/// A switch's content that the controller writes: as read back, and kept up to date with every write that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Entries in key order; no two have the same key.
    entries: Vec<Entry>,
    core_route: Option<core_route::Action>,
}

impl Observed {
    /// The content as it was read back, in any order. `core_route` is none where the program has no such table, or no default action of its own.
    pub fn new(mut entries: Vec<Entry>, core_route: Option<core_route::Action>) -> Self {
        entries.sort_unstable();
        entries.dedup_by(|a, b| a.cmp_keys(b).is_eq());
        Self { entries, core_route }
    }

    /// All entries, in key order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The default action of `core_route`.
    pub fn core_route(&self) -> Option<core_route::Action> {
        self.core_route
    }

    /// Epoch and parity to which packets are sent from here; `None` in switches that send them nowhere.
    pub fn serving(&self) -> Option<Serving> {
        match self.core_route {
            Some(core_route::Action::Descend { epoch, sub_table }) if epoch != 0 => {
                Some(Serving { epoch, parity: u8::from(sub_table & 1 == 1) })
            }
            _ => None,
        }
    }

    /// Entries of plans, and the epoch that packets are sent into from here, or else the newest of them.
    pub fn planned(&self) -> (usize, Option<u8>) {
        let epoch = |entry: &Entry| match entry {
            Entry::Coarse(key, _) => Some(key.epoch),
            Entry::Fine(key, _) => Some(key.epoch),
            Entry::Child(key, _) => Some(key.epoch),
            _ => None,
        };
        let entries = self.entries.iter().filter(|entry| is_planned(entry)).count();
        let serving = self.serving().map(|serving| serving.epoch);
        (entries, serving.or_else(|| self.entries.iter().filter_map(epoch).max()))
    }

    /// Entries of each table.
    pub fn counts(&self) -> Counts {
        Counts::of(&self.entries)
    }

    /// Takes note of changes that the switch has made, in any order.
    pub fn apply(&mut self, changes: &[Change]) {
        let mut written: Vec<(Entry, bool)> = Vec::with_capacity(changes.len());
        for change in changes {
            match change {
                Change::Insert(entry) | Change::Modify(entry) => written.push((*entry, true)),
                Change::Delete(entry) => written.push((*entry, false)),
                Change::CoreRoute(action) => self.core_route = Some(*action),
            }
        }
        written.sort_unstable_by(|(a, _), (b, _)| a.cmp_keys(b));
        let mut old = std::mem::take(&mut self.entries).into_iter().peekable();
        let mut new = Vec::with_capacity(old.len() + written.len());
        for (entry, stays) in written {
            while let Some(before) = old.next_if(|old| old.cmp_keys(&entry).is_lt()) {
                new.push(before);
            }
            old.next_if(|old| old.cmp_keys(&entry).is_eq());
            if stays {
                new.push(entry);
            }
        }
        new.extend(old);
        self.entries = new;
    }

    /// Changes, in key order, after which exactly `wanted` is there, which is in key order.
    pub(super) fn changes_to(&self, wanted: &[Entry]) -> Vec<Change> {
        diff_switch(&self.entries, wanted)
    }
}

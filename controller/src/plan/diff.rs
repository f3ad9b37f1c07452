//! Changes in each switch between two sets of entries.

use std::collections::BTreeMap;

use fatbtree_topology::SwitchId;

use crate::tables::{Change, Entry};

/// Changes per switch, in key order; switches without changes are left out.
pub type Diff = BTreeMap<SwitchId, Vec<Change>>;

/// The difference between what switches hold and what they should hold. Both sides are in key order, as
/// [`Plan::entries`](super::Plan::entries) gives them; their keys are unique.
///
/// Between plans of different epochs everything differs, since the epoch is part of every key; within one epoch (a switch
/// that came back, a plan corrected) the difference is what really changed. Applying one to the epoch *active* is not
/// atomic: packets may meet half of it. For a change under load have a [`Controller`](crate::Controller) load the plan.
pub fn diff(old: &BTreeMap<SwitchId, Vec<Entry>>, new: &BTreeMap<SwitchId, Vec<Entry>>) -> Diff {
    let none = Vec::new();
    let switches: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).copied().collect();
    switches
        .into_iter()
        .map(|switch| {
            let side =
                |entries: &BTreeMap<SwitchId, Vec<Entry>>| entries.get(&switch).unwrap_or(&none).clone();
            (switch, diff_switch(&side(old), &side(new)))
        })
        .filter(|(_, changes)| !changes.is_empty())
        .collect()
}

/// [`diff`] of one switch: a merge of two sorted lists.
pub(crate) fn diff_switch(old: &[Entry], new: &[Entry]) -> Vec<Change> {
    debug_assert!(old.is_sorted() && new.is_sorted());
    let mut changes = Vec::new();
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let change = match (old.peek(), new.peek()) {
            (None, None) => return changes,
            (Some(gone), None) => Change::Delete(**gone),
            (None, Some(fresh)) => Change::Insert(**fresh),
            (Some(a), Some(b)) => match a.cmp_keys(b) {
                std::cmp::Ordering::Less => Change::Delete(**a),
                std::cmp::Ordering::Greater => Change::Insert(**b),
                std::cmp::Ordering::Equal if a == b => {
                    old.next();
                    new.next();
                    continue;
                }
                std::cmp::Ordering::Equal => Change::Modify(**b),
            },
        };
        if !matches!(change, Change::Insert(_)) {
            old.next();
        }
        if !matches!(change, Change::Delete(_)) {
            new.next();
        }
        changes.push(change);
    }
}

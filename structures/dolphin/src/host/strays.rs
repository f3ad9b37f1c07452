//! A check for simulations: leaves that answer, and to which nothing leads.

use std::collections::BTreeSet;

use fatbtree_remote_memory::GlobalAddress;

use crate::inner::{Node, NodeState};
use crate::layout::Shape;
use crate::leaf::{LOCK, LOCK_BYTES, LeafState, LockLine};

/// Those of `leaves` that clients may read and change, and to which nothing leads: no node, and no change that was begun. At no moment is there
/// one: a client that came there by an old pointer, or by a switch, would see keys that others do not see. `read` fills a buffer with the
/// bytes at an address of any server; it says whether they are there.
#[must_use]
pub fn strays(
    shape: &Shape,
    leaves: impl IntoIterator<Item = GlobalAddress>,
    mut read: impl FnMut(GlobalAddress, &mut [u8]) -> bool,
) -> Vec<GlobalAddress> {
    let (mut known, mut left) = (BTreeSet::new(), vec![shape.root()]);
    let lock_of = |leaf: GlobalAddress, read: &mut dyn FnMut(GlobalAddress, &mut [u8]) -> bool| {
        let mut line = [0; LOCK_BYTES];
        read(leaf.behind(LOCK), &mut line).then(|| LockLine::parse(&line))
    };
    while let Some(entry) = left.pop() {
        if entry.is_empty() || !known.insert(entry.at().raw()) {
            continue;
        }
        if !entry.is_inner() {
            let lock = lock_of(entry.at(), &mut read).filter(|lock| lock.is(LeafState::Changing));
            left.extend(lock.map(|lock| lock.partner));
            continue;
        }
        let mut bytes = vec![0; entry.size().bytes() as usize];
        let node = read(entry.at(), &mut bytes).then(|| Node::parse(&bytes, entry.at(), entry.size()));
        let Some(node) = node.flatten() else { continue };
        left.extend(node.entries.iter().map(|(_, entry)| *entry));
        left.extend(node.is(NodeState::Moved).then_some(node.successor));
    }
    let mut answers = |leaf: &GlobalAddress| {
        let lock = lock_of(*leaf, &mut read);
        lock.is_some_and(|lock| lock.is(LeafState::Open) || lock.is(LeafState::Frozen))
    };
    leaves.into_iter().filter(|leaf| !known.contains(&leaf.raw()) && answers(leaf)).collect()
}

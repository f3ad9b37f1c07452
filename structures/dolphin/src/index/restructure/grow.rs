//! Nodes that grow and shrink: written anew elsewhere, with the former one as a signpost.
//!
//! ```text
//!   node ──► former "moved" ──► successor        one chain, under the lock of the former
//!   node ─────────────────────► successor        under the lock of the node above; the former is free
//! ```
//!
//! Between the two a client that comes to the former node goes on to its successor. The next one that
//! has read the node above puts the entry right.

use fatbtree_remote_memory::{LockGuard, Part};
use fatbtree_verbs::Verbs;

use super::{Made, give_up, out_of_reach, upward};
use crate::checks::Check;
use crate::entry::{Entry, NodeSize};
use crate::error::Stop;
use crate::index::space::{Room, Wants};
use crate::index::{Index, Op};
use crate::inner::{self, Choice, HEAD_BYTES, Node, NodeState, STATE, moved_head, state_word, successor};

/// Nodes that a walk to a node reads, at most.
const MOST_NODES: usize = 24;

/// The size for a node with so many entries, and some more.
pub(super) fn fitting(entries: usize) -> NodeSize {
    NodeSize::least_for(entries + entries / 4 + 1)
}

impl<V: Verbs> Index<V> {
    /// Replaces a locked node by one that fits its entries.
    pub(super) async fn resize(
        &self,
        guard: LockGuard<'_, V>,
        node: Node,
        room: Option<&mut Room<'_, V>>,
        op: &mut Op,
    ) -> Result<Made<()>, Stop> {
        let size = fitting(node.entries.len());
        if size == node.size || node.prefix.depth() == 0 {
            guard.release(&op.lane).await?;
            return Ok(Made::Done(()));
        }
        let wants = Wants::node(node.at.server(), size);
        let room = room.filter(|room| room.wants() == wants);
        let Some((at, room)) = room.and_then(|room| Some((room.node()?, room))) else {
            guard.release(&op.lane).await?;
            return Ok(Made::Wants(wants));
        };
        let stamp = inner::stamp_of(self.draw_stamp(guard.writer().owner), node.prefix, size);
        let entries = node.entries.iter().map(|(_, entry)| *entry);
        let bytes = inner::build(node.prefix, size, stamp, NodeState::Unborn, entries);
        let successor = Entry::inner(0, size, at).ok_or_else(|| out_of_reach(at))?;
        let head = moved_head(&node, successor);
        let live = state_word(stamp, NodeState::Live).to_le_bytes();
        let parts = [
            Part { at, bytes: &bytes },
            Part { at: node.at, bytes: &head },
            Part { at: at.behind(STATE), bytes: &live },
        ];
        room.hold();
        room.linked(guard.restructure(&parts, &op.lane).await)?;
        if let Some(known) = Node::parse(&bytes, at, size) {
            self.cache.put(&known, successor);
        }
        match self.relink(upward(node.size, node.at)?, op).await {
            // The node above lies on a server that is away: the next client that passes by does it.
            Ok(()) | Err(Stop::Absent(_)) => Ok(Made::Done(())),
            Err(stop) => Err(stop),
        }
    }

    /// Replaces the entry of a node that has moved, on the operation's way, by that of its successor.
    pub(in crate::index) async fn relink(&self, former: Entry, op: &mut Op) -> Result<(), Stop> {
        let Some(above) = self.above(former, op).await? else { return Ok(()) };
        let (guard, node) = self.enter(above, op).await?;
        let Some((slot, entry)) = node.slot_of(former.at()) else {
            return Ok(guard.release(&op.lane).await?);
        };
        let head = match self.read_at_hand(former.at(), HEAD_BYTES as u32, op).await {
            Ok(head) => head,
            Err(stop) => return give_up(guard, stop, op).await,
        };
        let Some(successor) = successor(&head, entry.size()) else {
            return Ok(guard.release(&op.lane).await?);
        };
        // The successor of a node that has grown lies there, and so may records to which a leaf in the place of a node leads.
        if Check::RelinkSynced.on()
            && let Err(stop) = self.synced_before(former.at().server(), node.at.server()).await
        {
            return give_up(guard, stop, op).await;
        }
        let bytes = successor.under(entry.byte()).0.to_le_bytes();
        guard.restructure(&[Part { at: node.slot_at(slot), bytes: &bytes }], &op.lane).await?;
        self.cache.forget(node.prefix);
        // Nothing leads to the former node any more.
        if let Ok(writer) = self.memory.writer(former.at().server()) {
            self.free_node(node.at.server(), &writer, entry.size(), entry.at());
        }
        Ok(())
    }

    /// The node above another one, on the operation's way from the root.
    pub(super) async fn above(&self, below: Entry, op: &mut Op) -> Result<Option<Entry>, Stop> {
        let mut next = self.shape.root();
        for _ in 0..MOST_NODES {
            self.at_hand(next.at().server(), op)?;
            let Some(node) = self.read_node(next, op).await? else { break };
            match node.choose(op.key) {
                _ if node.is(NodeState::Moved) && node.successor.is_inner() => next = node.successor,
                Choice::Inner(entry) if entry.at() == below.at() => return Ok(Some(next)),
                Choice::Inner(entry) if node.is(NodeState::Live) && node.prefix.covers(op.key) => {
                    next = entry
                }
                _ => break,
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_room_for_some_more() {
        let fit = |entries| fitting(entries).entries();
        assert_eq!([1, 3, 4, 8, 16, 64, 200, 256].map(fit), [4, 4, 8, 16, 32, 128, 256, 256]);
    }
}

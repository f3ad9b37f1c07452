//! Splits, and completion of splits and merges that other clients left unfinished.
//!
//! ```text
//!                N            R
//!   before     [low, high)    free             N has all keys
//!   1st write  [low, high)→R  free             R has none: N has all keys still
//!   2nd write  [low, high)→R  [mid, high)      R has the upper keys; what N has of them does not count
//!   3rd write  [low, mid)     [mid, high)
//! ```
//!
//! The node that is split names its new neighbour as its *partner* first. A client that meets a node with a
//! partner reads the partner to learn which node has the upper keys: the partner, if it is a node whose range
//! begins within this one's; otherwise this node. So the keys move at one moment, with the second write, and
//! after each write the tree is right. A merge is the same backwards (see [`merge`](super::merge)).
//!
//! Any client can complete a split: a client that dies between two writes leaves a node with a partner. The
//! next client that locks that node *settles* it, by the same rule that readers follow. Memory that was a
//! node before is no danger either: it is a freed node until the second write, and from then on it says what
//! the tree says.
//!
//! Where the new node lies on [another server](crate::Allocation::RoundRobin), no chain has all three writes in it, and a client whose
//! session with the one server has ended may still write to the other. So the new node is written first, to
//! memory that was no node before: no client knows its address. The keys move with one write of the node that
//! is split. If that is not carried out, the new node's memory is lost, and that is all. Memory that was a
//! node would not do. A client that still knows its address would take the copy there for a node of the tree,
//! although the keys have not moved, and perhaps never will. For the same reason the new node is written in
//! the session in which its memory was given to this client, or not at all.

use fatbtree_remote_memory::{Check, GlobalAddress, KeyRange, LockGuard, Part};
use fatbtree_verbs::Verbs;

use super::leaf::Locked;
use super::whole::{Whole, first_line};
use crate::descent::{Child, Descent, Reason, Upper};
use crate::node::{Node, NodeHeader, NodeSpec, next_version, partnered};

/// A node as it is to be written again, in its place.
pub(super) fn again(header: &NodeHeader, bytes: &[u8]) -> NodeSpec {
    NodeSpec {
        address: header.address,
        level: header.level,
        range: header.range(),
        sibling: header.sibling,
        version: next_version(bytes),
    }
}

impl<'p, V: Verbs> Descent<'p, V> {
    /// Divides a full leaf.
    pub(super) async fn split_leaf(&mut self, locked: Locked<'p, V>) -> Result<Child, Reason> {
        let tree = *self.tree();
        let bytes = &locked.bytes[..tree.leaf_bytes() as usize];
        let read = Node::read(&tree, bytes).and_then(|node| Ok((*node.header(), Whole::of(&node)?)));
        match read {
            Ok((header, whole)) => {
                let spec = again(&header, bytes);
                self.split(locked.guard, spec, bytes, &whole).await
            }
            Err(fault) => self.without(locked.guard, Reason::Fault(fault)).await,
        }
    }

    /// Divides a locked node. `spec` is what it would be written as, `bytes` what it is, `whole` what the two are to
    /// hold.
    pub(super) async fn split(
        &mut self,
        guard: LockGuard<'p, V>,
        spec: NodeSpec,
        bytes: &[u8],
        whole: &Whole<'_>,
    ) -> Result<Child, Reason> {
        let tree = *self.tree();
        let (server, level) = (spec.address.server(), spec.level);
        let elsewhere = Some(self.pool().server_of_split(server)).filter(|other| *other != server);
        let is_fresh = elsewhere.is_some() && Check::FreshElsewhere.on();
        let mut new = match self.new_node(elsewhere.unwrap_or(server), level, is_fresh).await {
            Ok(new) => new,
            Err(reason) => {
                guard.release(self.lane()).await?;
                return Err(reason);
            }
        };
        let address = new.place.address();
        let KeyRange { low, high } = spec.range;
        let middle = whole.middle();
        let end = if Check::SplitFence.on() { Some(middle) } else { high };
        let lower = NodeSpec { range: KeyRange { low, high: end }, sibling: address, ..spec };
        let upper = NodeSpec { address, range: KeyRange { low: middle, high }, version: new.version, ..spec };
        let child = Child { low: middle, address, parent_level: level + 1 };
        let partnered = partnered(&tree, bytes, address);
        let (lower, upper) = (whole.write(&tree, &lower), whole.write(&tree, &upper));
        let parts = [
            Part { at: spec.address, bytes: &partnered },
            Part { at: address, bytes: &upper },
            Part { at: spec.address, bytes: &lower },
        ];
        new.place.set_held(true);
        if elsewhere.is_some() {
            let written = self.write_elsewhere(&parts[1], &new.place.taken.writer).await;
            if let Err(reason) = written {
                new.place.set_held(reason.may_be_done());
                return self.without(guard, reason).await;
            }
            guard.restructure(&parts[2..], self.lane()).await?;
            self.pool().count(|stats| {
                stats.splits += 1;
                stats.splits_elsewhere += 1;
            });
            return Ok(child);
        }
        let parts = if Check::PartnerFirst.on() { &parts[..] } else { &parts[1..] };
        let split = guard.restructure(parts, self.lane()).await.map_err(Reason::from);
        if let Err(reason) = &split {
            new.place.set_held(reason.may_be_done());
        }
        self.pool().count(|stats| stats.splits += u64::from(split.is_ok()));
        split.map(|()| child)
    }

    /// Completes an unfinished split or merge of a node and its partner.
    pub(super) async fn settle(&mut self, locked: Locked<'p, V>) -> Result<(), Reason> {
        let tree = *self.tree();
        let header = NodeHeader::parse(&first_line(&locked.bytes));
        let bytes = &locked.bytes[..tree.node_bytes(header.level) as usize];
        let mut torn = 0;
        let upper = loop {
            match self.upper(&header).await? {
                Ok(upper) => break upper,
                Err(fault) => self.pause_if_torn(fault, &mut torn).await?,
            }
        };
        let settled = match upper {
            Upper::From(middle) => {
                let whole = Node::read(&tree, bytes).and_then(|node| Whole::of(&node));
                let whole = whole.map_err(Reason::Fault)?;
                let (parent_level, address) = (header.level + 1, header.partner);
                self.note_untold(Child { low: middle, address, parent_level });
                let range = KeyRange { low: header.low, high: Some(middle) };
                whole.write(&tree, &NodeSpec { range, sibling: header.partner, ..again(&header, bytes) })
            }
            Upper::Nothing => partnered(&tree, bytes, GlobalAddress::NULL),
        };
        let part = Part { at: header.address, bytes: &settled };
        locked.guard.restructure(&[part], self.lane()).await?;
        self.pool().count(|stats| stats.settled += 1);
        Ok(())
    }
}

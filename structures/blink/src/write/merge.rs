//! Merges: two thin neighbours become one node, and a root with one child goes.
//!
//! ```text
//!                parent       L            R
//!   before       L, R         [a, b)       [b, c)
//!   1st write    L            [a, b)       [b, c)     R is found by its left neighbour only, as after a split
//!   2nd write    L            [a, c)→R     [b, c)     R has the upper keys still; what L has of them does not count
//!   3rd write    L            [a, c)→R     free       R has none: L has all keys
//!   4th write    L            [a, c)       free
//! ```
//!
//! It is a [`split`](super::split) backwards: the keys move at one moment, with the third write, and after each write the tree is
//! right. All four are posted with one doorbell where the parent is on the same server.
//!
//! The parent stays locked from before the first write until after the last. So no client can tell the parent
//! of R once more while R goes, and when R is free no parent points to it: its memory can be used again at
//! once. A switch or a sleeping client that still has its address meets a freed node or one of another range,
//! and begins at the root.
//!
//! Where the parent lies on [another server](crate::Allocation::RoundRobin), its lock is one of another session. That can end after
//! the first write, while the writes below still come: R would be told to its parent once more, and be freed then. So R first says that
//! it goes: it is *its own partner*, which means nothing to readers, and such a node is told to no parent.
//! The next holder of R's lock knows that the merge was abandoned, and settles it.
//!
//! ```text
//!                parent       L            R
//!   before       L, R         [a, b)       [b, c)
//!   1st write    L, R         [a, b)       [b, c)→R   R is told to no parent from here on
//!   2nd write    L            [a, b)       [b, c)→R   the parent's session may end
//!   the rest                  as above, in the session of L and R
//! ```
//!
//! A merge locks three nodes, and locks are shared by nodes. So that two merges never wait for each other, one that does not get its
//! second or third lock at once gives up: another delete tries again.

use fatbtree_remote_memory::{
    Block, Check, GlobalAddress, KeyRange, LockGuard, Part, Taken, Writer, restructure_all,
};
use fatbtree_verbs::Verbs;

use super::leaf::Locked;
use super::split::again;
use super::whole::{Whole, first_line};
use crate::config::TreeConfig;
use crate::descent::{Descent, Reason};
use crate::node::{Node, NodeHeader, NodeSpec, freed, partnered};
use crate::operation::Start;
use crate::root_block::RootBlock;
use crate::size_class::of_node;

/// Result of an attempt to merge a thin node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Merge {
    /// The node has taken a neighbour's entries or children, or was merged away.
    Done,
    /// The same, and its parent is thin now.
    Thin,
    /// The node is the only child of its parent.
    Alone,
    /// Its neighbours are too full, or another operation is changing them.
    None,
}

/// Union of two neighbours.
struct Merged {
    left: GlobalAddress,
    right: GlobalAddress,
    /// The left node with all that both have, and its partner.
    whole: Vec<u8>,
    /// What is written over the right node while it goes: it is its own partner.
    leaving: Vec<u8>,
    /// What is written over the right node to free it.
    freed: Vec<u8>,
    /// What is written over the left node at last: it has no partner.
    settled: Vec<u8>,
}

/// Merges that one delete tries, so that none goes on for as long as it finds thin nodes: other deletes find them, too.
const MERGES: u32 = 64;

/// Entries or children from which on downwards a node is thin: it looks for a neighbour to be merged with.
pub(super) fn is_thin(tree: &TreeConfig, level: u8, len: usize) -> bool {
    // Not each time: a node whose neighbours are full is asked twice on its way down, and then never again.
    len == capacity(tree, level) / 4 || len == 0
}

/// Most entries or children of a merged node: it has room for some more, so that it is not split at once.
fn most(tree: &TreeConfig, level: u8) -> usize {
    let capacity = capacity(tree, level);
    capacity - capacity / 4
}

fn capacity(tree: &TreeConfig, level: u8) -> usize {
    if level == 0 { tree.leaf_capacity() } else { tree.fan_out().into() }
}

impl<'p, V: Verbs> Descent<'p, V> {
    /// Merges the leaf that is responsible for the key with a neighbour, if the two fit into one, and so on upwards. What goes wrong
    /// here leaves the tree right, only larger.
    pub(crate) async fn merge_up(&mut self) {
        let (mut level, mut has_neighbours) = (0, false);
        for _ in 0..MERGES {
            let mut way = self.for_key(self.key());
            let merge = match way.begin(Start::Root).await {
                Ok(_) => way.merge(level).await,
                Err(reason) => Err(reason),
            };
            let (trips, _) = way.end();
            self.lane().add(trips.round_trips);
            // Nodes that were merged above a leaf have given it other neighbours.
            has_neighbours |= level > 0 && matches!(merge, Ok(Merge::Done | Merge::Thin));
            match merge {
                Ok(Merge::Thin | Merge::Alone) => level += 1,
                _ if has_neighbours => (level, has_neighbours) = (0, false),
                Ok(Merge::Done | Merge::None) | Err(_) => return,
            }
        }
    }

    /// One level.
    async fn merge(&mut self, level: u8) -> Result<Merge, Reason> {
        if self.partition().root_level <= level {
            return Ok(Merge::None);
        }
        let parent = self.locate(Start::Root, level + 1).await?;
        let parent = self.lock_node(parent, level + 1).await?;
        let tree = *self.tree();
        let bytes = &parent.bytes[..tree.internal_bytes() as usize];
        let read = Node::read(&tree, bytes).map(|node| (*node.header(), Whole::of(&node)));
        let (header, Whole::Internal(mut children)) = (match read {
            Ok((header, Ok(whole))) => (header, whole),
            Ok((_, Err(fault))) | Err(fault) => {
                return self.without(parent.guard, Reason::Fault(fault)).await;
            }
        }) else {
            unreachable!("its level was checked when it was locked")
        };
        if let [(_, child)] = children[..] {
            // A root that was split, and whose neighbour is not told of yet, is not the only node of its level.
            let is_root = self.partition().root == header.address && header.range() == self.partition().range;
            return if is_root {
                self.drop_root(parent, header.level, child).await
            } else {
                self.leave(parent, Merge::Alone).await
            };
        }
        let mut found = None;
        for right in pairs(&children, self.key()) {
            if found.is_none() {
                let pair = [children[right - 1], children[right]];
                found = self.lock_pair(level, pair).await?.map(|locked| (right, pair, locked));
            }
        }
        let Some((right, pair, (left_held, right_held, merged))) = found else {
            return self.leave(parent, Merge::None).await;
        };
        children.remove(right);
        let count = children.len();
        let spec = again(&header, bytes);
        let parent_again = Whole::Internal(children).write(&tree, &spec);
        let parent_part = Part { at: spec.address, bytes: &parent_again };
        let parts = [
            parent_part,
            Part { at: merged.left, bytes: &merged.whole },
            Part { at: merged.right, bytes: &merged.freed },
            Part { at: merged.left, bytes: &merged.settled },
        ];
        let writer = right_held.writer();
        let lane = self.lane();
        if header.address.server() == merged.left.server() {
            restructure_all([parent.guard, left_held, right_held], &parts, lane).await?;
        } else {
            right_held.write(&[Part { at: merged.right, bytes: &merged.leaving }], lane).await?;
            parent.guard.write(&[parent_part], lane).await?;
            restructure_all([left_held, right_held], &parts[1..], lane).await?;
            parent.guard.release(lane).await?;
            self.pool().count(|stats| stats.merges_below_others += 1);
        }
        if self.layer().is_none() {
            self.pool().tell_cache(|cache| cache.forget(level + 1, pair[1].0, merged.right));
        }
        self.put_back(merged.right, level, &writer);
        self.pool().count(|stats| stats.merges += 1);
        Ok(if count == 1 || is_thin(&tree, level + 1, count) { Merge::Thin } else { Merge::Done })
    }

    /// Lets a node's memory be used again that was freed in the session of `writer`.
    fn put_back(&self, node: GlobalAddress, level: u8, writer: &Writer) {
        let (class, bytes) = (of_node(self.tree(), level), self.tree().node_bytes(level));
        let block = Block { address: node, version: None };
        self.pool().put_back(&Taken { writer: *writer, class, bytes, block });
    }

    async fn leave(&mut self, locked: Locked<'p, V>, merge: Merge) -> Result<Merge, Reason> {
        locked.guard.release(self.lane()).await?;
        Ok(merge)
    }

    /// Locks two neighbours, if their locks are free and they fit into one node.
    async fn lock_pair(
        &mut self,
        level: u8,
        pair: [(u64, GlobalAddress); 2],
    ) -> Result<Option<(LockGuard<'p, V>, LockGuard<'p, V>, Merged)>, Reason> {
        let [(low, left), (_, right)] = pair;
        if left.server() != right.server() {
            return Ok(None);
        }
        let Some((left_held, left_bytes)) = self.try_lock(left, level).await? else { return Ok(None) };
        let Some((right_held, right_bytes)) = self.try_lock(right, level).await? else {
            left_held.release(self.lane()).await?;
            return Ok(None);
        };
        let tree = *self.tree();
        let size = tree.node_bytes(level) as usize;
        let bytes = [&left_bytes[..size], &right_bytes[..size]];
        match merged(&tree, level, (low, pair[1].0), [left, right], bytes) {
            Some(merged) => Ok(Some((left_held, right_held, merged))),
            None => {
                restructure_all([left_held, right_held], &[], self.lane()).await?;
                Ok(None)
            }
        }
    }

    async fn try_lock(
        &mut self,
        node: GlobalAddress,
        level: u8,
    ) -> Result<Option<(LockGuard<'p, V>, fatbtree_verbs::Buffer)>, Reason> {
        let (pool, len) = (self.pool(), self.tree().node_bytes(level));
        Ok(LockGuard::try_lock_and_read(pool, self.lane(), node, len).await?)
    }

    /// Makes the only child of the root, which is of this level, the root.
    async fn drop_root(
        &mut self,
        root: Locked<'p, V>,
        level: u8,
        child: GlobalAddress,
    ) -> Result<Merge, Reason> {
        let (pool, id) = (self.pool(), self.partition().id);
        let (place, len) = self.root_place();
        let locked = LockGuard::try_lock_and_read(pool, self.lane(), place, len).await?;
        let Some((guard, bytes)) = locked else { return self.leave(root, Merge::None).await };
        let is_root =
            |found: &RootBlock| found.root() == (root.address, level) && root.address.server() == id;
        let Some(found) = self.check_root_block(&bytes).ok().filter(is_root) else {
            guard.release(self.lane()).await?;
            return self.leave(root, Merge::None).await;
        };
        let below = level.saturating_sub(1);
        let announced = found.with_root(child, below);
        let freed = freed(self.tree(), &root.bytes);
        let parts =
            [Part { at: self.announced_at(), bytes: &announced }, Part { at: root.address, bytes: &freed }];
        let writer = root.guard.writer();
        restructure_all([guard, root.guard], &parts, self.lane()).await?;
        self.set_root(child, below);
        self.put_back(root.address, level, &writer);
        Ok(Merge::Done)
    }
}

/// The right ones of two children of which one is responsible for the key: its right neighbour, and it.
fn pairs(children: &[(u64, GlobalAddress)], key: u64) -> impl Iterator<Item = usize> {
    let behind = children.partition_point(|(pivot, _)| *pivot <= key);
    let last = children.len() - 1;
    [behind, behind.saturating_sub(1)].into_iter().filter(move |right| (1..=last).contains(right))
}

/// Union of two locked nodes, if they are the neighbours that their parent names, have no unfinished split or
/// merge, and fit into one.
fn merged(
    tree: &TreeConfig,
    level: u8,
    pivots: (u64, u64),
    addresses: [GlobalAddress; 2],
    bytes: [&[u8]; 2],
) -> Option<Merged> {
    let [left, right] = addresses;
    let nodes = bytes.map(|bytes| Node::read(tree, bytes).ok());
    let [Some(l), Some(r)] = nodes else { return None };
    let (lower, upper): (&NodeHeader, &NodeHeader) = (l.header(), r.header());
    let is_as_told = (lower.address, lower.level, lower.low) == (left, level, pivots.0)
        && (upper.address, upper.level, upper.low) == (right, level, pivots.1)
        && lower.range().high == Some(upper.low)
        && lower.sibling == right
        && lower.partner.is_null()
        && upper.partner.is_null();
    if !is_as_told {
        return None;
    }
    let (mut whole, more) = (Whole::of(&l).ok()?, Whole::of(&r).ok()?);
    let is_one_empty = whole.len() == 0 || more.len() == 0;
    if !is_one_empty && whole.len() + more.len() > most(tree, level) {
        return None;
    }
    whole.append(more);
    if !whole.fits(tree) {
        return None;
    }
    let range = KeyRange { low: lower.low, high: upper.range().high };
    let spec = NodeSpec { range, sibling: upper.sibling, ..again(lower, bytes[0]) };
    let mut whole = whole.write(tree, &spec);
    let settled = partnered(tree, &whole, GlobalAddress::NULL);
    let begun = partnered(tree, &whole, right);
    whole[..begun.len()].copy_from_slice(&begun);
    let leaving = partnered(tree, bytes[1], right);
    let freed = if Check::FreedMark.on() { freed(tree, bytes[1]) } else { first_line(bytes[1]).to_vec() };
    Some(Merged { left, right, whole, leaving, freed, settled })
}

//! Thin leaves: merged with a neighbour, or, where they are alone below a node, put in its place.
//!
//! ```text
//!   node  [10 leaf, 80 leaf]   ──►  node  [10 new]                one chain on one server
//!   node  [10 node] ─► [leaf]  ──►  node  [10 new]                the node below has moved
//! ```

use fatbtree_remote_memory::{Part, Writer};
use fatbtree_verbs::{Buffer, Verbs};

use super::grow::fitting;
use super::{Made, Swap, give_up, lock_part, out_of_reach, upward};
use crate::checks::Check;
use crate::entry::Entry;
use crate::error::Stop;
use crate::index::space::{Room, Wants};
use crate::index::{Index, Op};
use crate::inner::{Choice, HEAD_BYTES, Node, moved_head, parse_head};
use crate::leaf::{self, Leaf, LeafState, LockLine, SLOTS, Task};
use crate::word::Word;

/// Items that two leaves may have to be merged.
const TOGETHER: usize = SLOTS * 3 / 4;

/// Items with which a leaf may take the place of the node above it.
const ALONE: usize = SLOTS / 3;

impl<V: Verbs> Index<V> {
    /// Merges the leaf of the operation's key, below a node, if it and a neighbour are thin.
    pub(in crate::index) async fn thin(&self, parent: Entry, op: &mut Op) -> Result<(), Stop> {
        let leaf = Wants::leaf(parent.at().server());
        let merge = async |room: Option<&mut Room<'_, V>>, op: &mut Op| self.merge(parent, room, op).await;
        match self.with_room(Some(leaf), op, merge).await? {
            Merged::Alone => self.collapse(parent, op).await,
            Merged::Left(entries) if fitting(entries).entries() * 2 < parent.size().entries() => {
                let shrink = async |room: Option<&mut Room<'_, V>>, op: &mut Op| {
                    let (guard, node) = self.enter(parent, op).await?;
                    self.resize(guard, node, room, op).await
                };
                self.with_room(Some(Wants::node(leaf.server, fitting(entries))), op, shrink).await
            }
            Merged::Left(_) => Ok(()),
        }
    }

    async fn merge(
        &self,
        parent: Entry,
        room: Option<&mut Room<'_, V>>,
        op: &mut Op,
    ) -> Result<Made<Merged>, Stop> {
        let (guard, node) = self.enter(parent, op).await?;
        let wants = Wants::leaf(node.at.server());
        let room = room.filter(|room| room.wants() == wants);
        let Some((new, room)) = room.and_then(|room| Some((room.leaf(0)?, room))) else {
            guard.release(&op.lane).await?;
            return Ok(Made::Wants(wants));
        };
        let left = Merged::Left(node.entries.len());
        let pairs = match node.choose(op.key) {
            Choice::Leaf(entry) => pairs_of(&node, entry),
            _ => Vec::new(),
        };
        let Some((lower, upper)) = self.thinnest(&guard.writer(), &pairs, op).await? else {
            let is_alone = node.entries.len() == 1 && node.prefix.depth() > 0;
            guard.release(&op.lane).await?;
            return Ok(Made::Done(if is_alone { Merged::Alone } else { left }));
        };
        let leaves = [lower.1.at(), upper.1.at()];
        let (guard, bytes) = self.freeze(guard, node.clone(), &leaves, op).await?;
        let [Some(one), Some(other)] = [0, 1].map(|at| bytes.get(at).and_then(|bytes| Leaf::new(bytes)))
        else {
            return Err(Stop::Later);
        };
        let mut items: Vec<(u64, Word)> = one.items().chain(other.items()).collect();
        let is_pair = one.max().checked_add(1) == Some(other.min()) && (one.min() ^ other.max()) >> 63 == 0;
        if !is_pair || items.len() > most_of(one.count_items(), other.count_items()) {
            self.thaw_read((guard, bytes), &leaves, op).await?;
            return Ok(Made::Done(left));
        }
        items.sort_unstable_by_key(|(key, _)| *key);
        let stamp = self.draw_stamp(guard.writer().owner);
        let merged = leaf::build(new, upward(node.size, node.at)?, one.min(), other.max(), stamp, &items);
        let entry = Entry::leaf(lower.1.byte(), new).ok_or_else(|| out_of_reach(new))?;
        let begin =
            |leaf: Leaf<'_>| LockLine::changing(leaf.stamp(), Task::Merge, one.min(), entry).to_bytes();
        let begins = [begin(one), begin(other)];
        let ends = [one, other].map(|leaf| LockLine::plain(leaf.stamp(), LeafState::Retired).to_bytes());
        let open = LockLine::plain(stamp, LeafState::Open).to_bytes();
        let words = [entry.0.to_le_bytes(), Entry::EMPTY.0.to_le_bytes()];
        // The new leaf is linked last: once it is, others may split it, and nothing would say any more that the upper entry is a
        // part of it.
        let parts = [
            Part { at: new, bytes: &merged[..] },
            lock_part(leaves[0], &begins[0]),
            lock_part(leaves[1], &begins[1]),
            lock_part(new, &open),
            Part { at: node.slot_at(upper.0), bytes: &words[1] },
            Part { at: node.slot_at(lower.0), bytes: &words[0] },
            lock_part(leaves[0], &ends[0]),
            lock_part(leaves[1], &ends[1]),
        ];
        let mut parts = parts;
        if !Check::OpensLast.on() {
            parts[1..4].rotate_right(1);
        }
        if !Check::LinksLast.on() {
            parts.swap(4, 5);
        }
        let writer = guard.writer();
        room.hold();
        room.linked(self.retire(guard, &parts, &writer, &leaves, op).await)?;
        self.cache.forget(node.prefix);
        Ok(Made::Done(Merged::Left(node.entries.len() - 1)))
    }

    /// The pair with the fewest items of those that may be merged.
    async fn thinnest(&self, writer: &Writer, pairs: &[Pair], op: &mut Op) -> Result<Option<Pair>, Stop> {
        let leaves: Vec<_> = pairs.iter().flat_map(|(one, other)| [one.1.at(), other.1.at()]).collect();
        let read = self.read_leaves(writer, &leaves, op).await?;
        let count = |bytes: &Buffer| Leaf::new(bytes).map_or(SLOTS, |leaf| leaf.count_items());
        let sums = read.chunks_exact(2).map(|pair| (count(&pair[0]), count(&pair[1])));
        let fits = pairs.iter().zip(sums).filter(|(_, (one, other))| one + other <= most_of(*one, *other));
        Ok(fits.min_by_key(|(_, (one, other))| one + other).map(|(pair, _)| *pair))
    }

    /// Puts the only leaf below a node in the node's place.
    async fn collapse(&self, parent: Entry, op: &mut Op) -> Result<(), Stop> {
        let Some(above) = self.above(parent, op).await? else { return Ok(()) };
        let head = self.read_at_hand(above.at(), HEAD_BYTES as u32, op).await?;
        let Some((upper, _)) = parse_head(&head, above.size()) else { return Ok(()) };
        let room = &mut self.room(Wants::leaf(above.at().server()), op).await?;
        let Some(new) = room.leaf(0) else { return Ok(()) };
        let (guard, node) = self.enter(parent, op).await?;
        // Between a node and one of the next depth no other can come.
        let is_next = upper.depth() + 1 == node.prefix.depth();
        let only = match node.entries.as_slice() {
            [(_, only)] if !only.is_inner() && is_next => *only,
            _ => return Ok(guard.release(&op.lane).await?),
        };
        let (guard, bytes) = self.freeze(guard, node.clone(), &[only.at()], op).await?;
        let Some(leaf) = bytes.first().and_then(|bytes| Leaf::new(bytes)) else { return Err(Stop::Later) };
        let mut items: Vec<_> = leaf.items().collect();
        if items.len() > ALONE {
            return self.thaw_read((guard, bytes), &[only.at()], op).await;
        }
        items.sort_unstable_by_key(|(key, _)| *key);
        let stamp = self.draw_stamp(room.writer().owner);
        let (min, max) = (node.prefix.low(), node.prefix.high());
        let merged = leaf::build(new, upward(above.size(), above.at())?, min, max, stamp, &items);
        let entry = Entry::leaf(upper.byte_of(min), new).ok_or_else(|| out_of_reach(new))?;
        if let Err(stop) = self.write_new(room, &[Part { at: new, bytes: &merged[..] }], op).await {
            self.thaw_read((guard, bytes), &[only.at()], op).await?;
            return Err(stop);
        }
        if Check::CollapseSynced.on()
            && let Err(stop) = self.synced_before(new.server(), node.at.server()).await
        {
            self.thaw_read((guard, bytes), &[only.at()], op).await?;
            return Err(stop);
        }
        let begin = LockLine::changing(leaf.stamp(), Task::Collapse, min, entry).to_bytes();
        let moved = moved_head(&node, entry);
        let parts = [lock_part(only.at(), &begin), Part { at: node.at, bytes: &moved }];
        room.hold();
        if !Check::OpensLast.on() {
            self.begin_use(&[Swap::leaf(new, stamp)], op).await?;
        }
        room.linked(guard.write(&parts, &op.lane).await)?;
        if let Err(stop) = self.begin_use(&[Swap::leaf(new, stamp)], op).await {
            return give_up(guard, stop, op).await;
        }
        let end = LockLine::plain(leaf.stamp(), LeafState::Retired).to_bytes();
        let writer = guard.writer();
        self.retire(guard, &[lock_part(only.at(), &end)], &writer, &[only.at()], op).await?;
        self.cache.forget(node.prefix);
        self.relink(parent, op).await
    }
}

/// What is left below a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Merged {
    /// One leaf alone, which was not merged.
    Alone,
    /// So many entries.
    Left(usize),
}

type Slot = (u16, Entry);

type Pair = (Slot, Slot);

/// Items that two leaves may have to be merged: if one is empty, as many as there is room for.
const fn most_of(one: usize, other: usize) -> usize {
    if one == 0 || other == 0 { SLOTS } else { TOGETHER }
}

/// A leaf with the one after it, and with the one before.
fn pairs_of(node: &Node, entry: Entry) -> Vec<Pair> {
    let Some(at) = node.entries.iter().position(|(_, found)| *found == entry) else { return Vec::new() };
    let leaf = |at: usize| node.entries.get(at).copied().filter(|(_, entry)| !entry.is_inner());
    let behind = leaf(at).zip(leaf(at + 1));
    let before = at.checked_sub(1).and_then(leaf).zip(leaf(at));
    behind.into_iter().chain(before).collect()
}

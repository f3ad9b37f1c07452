//! Room in a full leaf: its dead slots become free, its range is split, or it bursts.
//!
//! ```text
//!   keys with several bytes at the node's depth      all with the same byte
//!   node  [10 leaf]           [10 leaf, 80 leaf]     node  [10 leaf]    [33 node]
//!           │                   │         │                  │            │
//!         10…ff      ──►      10…7f     80…ff              10…ff   ──►  [00 leaf, 90 leaf]
//! ```
//!
//! A leaf covers a range of bytes until it is full: so a leaf of sparse keys holds as many as one of
//! dense keys. It bursts when all of its keys have the same byte. Then a node of the keys' common
//! prefix takes its place, with two leaves.

use fatbtree_remote_memory::{LockGuard, Part};
use fatbtree_verbs::Verbs;

use super::{Frozen, Made, Swap, give_up, lock_part, out_of_reach, upward};
use crate::checks::Check;
use crate::entry::{Entry, NodeSize};
use crate::error::Stop;
use crate::index::descend::Held;
use crate::index::space::{Room, Wants};
use crate::index::{Index, Op};
use crate::inner::{self, Choice, Node, NodeState};
use crate::key::{Prefix, common};
use crate::leaf::{self, Leaf, LeafState, LockLine, SLOTS, Task};
use crate::word::Word;

/// Items with which a leaf is not split: dead slots are made free.
const FEW: usize = SLOTS * 3 / 4;

/// What makes room in a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plan {
    /// Slots of deleted keys become free.
    Clean,
    /// Keys from one on go to a new leaf.
    Split(u64),
    /// The leaf becomes a node of this prefix, with leaves on both sides of a key.
    Burst(Prefix, u64),
}

/// How to make room for a key in a leaf with these items, in ascending order, below a node.
fn plan(items: &[(u64, Word)], key: u64, below: Prefix) -> Plan {
    if items.len() <= FEW {
        return Plan::Clean;
    }
    if let Some(at) = boundary(items, key, below) {
        return Plan::Split(at);
    }
    let shared = items.iter().map(|(item, _)| common(*item, key)).min().unwrap_or(below.depth() + 1);
    let prefix = Prefix::of(key, shared);
    // Some key has another byte there, or all eight would be the same.
    let at = boundary(items, key, prefix).unwrap_or_else(|| prefix.first_of(prefix.byte_of(key)));
    Plan::Burst(prefix, at)
}

/// Items of a leaf in ascending order.
fn sorted(leaf: Leaf<'_>) -> Vec<(u64, Word)> {
    let mut items: Vec<_> = leaf.items().collect();
    items.sort_unstable_by_key(|(key, _)| *key);
    items
}

/// The key at which items are cut in two, at a border between bytes of a depth: as evenly as may be;
/// or after all items, if the key comes there. `None`: all have one byte.
fn boundary(items: &[(u64, Word)], key: u64, prefix: Prefix) -> Option<u64> {
    let (first, last) = (items.first()?.0, items.last()?.0);
    let byte = |key| prefix.byte_of(key);
    if byte(key) > byte(last) {
        return Some(prefix.first_of(byte(key)));
    }
    let cuts = items.iter().enumerate().filter(|(_, (item, _))| byte(*item) > byte(first.min(key)));
    let cut = cuts
        .filter(|(number, (item, _))| *number == 0 || byte(items[number - 1].0) != byte(*item))
        .min_by_key(|(number, _)| number.abs_diff(items.len() / 2));
    let ascends = key > last;
    let last_cut = || {
        let run = items.iter().find(|(item, _)| byte(*item) == byte(last));
        run.filter(|_| byte(last) > byte(first)).map(|(item, _)| prefix.first_of(byte(*item)))
    };
    // Keys that come in their order fill the leaves behind them.
    let ordered = if ascends { last_cut() } else { None };
    ordered.or_else(|| cut.map(|(_, (item, _))| prefix.first_of(byte(*item))))
}

impl<V: Verbs> Index<V> {
    /// What the making of room for a key in a full leaf will want, as far as its client knows without the lock.
    pub(in crate::index) fn foresee(&self, held: &Held<'_, V>, key: u64) -> Option<Wants> {
        let (items, server) = (sorted(held.leaf()), held.parent.at().server());
        match held.below {
            Some(below) => self.wants_of(plan(&items, key, below), server),
            None if items.len() <= FEW => None,
            None => Some(Wants::leaf(server)),
        }
    }

    /// What a plan for a leaf on a server wants.
    fn wants_of(&self, plan: Plan, server: u16) -> Option<Wants> {
        match plan {
            Plan::Clean => None,
            Plan::Split(_) => Some(Wants::leaf(server)),
            Plan::Burst(prefix, _) => {
                let server = self.shape.server_of(prefix);
                Some(Wants { leaves: 2, ..Wants::node(server, NodeSize::NEW) })
            }
        }
    }

    /// Makes room in the leaf of the operation's key, below a node.
    pub(in crate::index) async fn make_room(
        &self,
        parent: Entry,
        wants: Option<Wants>,
        op: &mut Op,
    ) -> Result<(), Stop> {
        let make =
            async |room: Option<&mut Room<'_, V>>, op: &mut Op| self.make_room_with(parent, room, op).await;
        self.with_room(wants, op, make).await
    }

    async fn make_room_with(
        &self,
        parent: Entry,
        room: Option<&mut Room<'_, V>>,
        op: &mut Op,
    ) -> Result<Made<()>, Stop> {
        let (guard, node) = self.enter(parent, op).await?;
        let Choice::Leaf(entry) = node.choose(op.key) else {
            guard.release(&op.lane).await?;
            return Ok(Made::Done(()));
        };
        if node.free.is_none() && node.size != NodeSize::LARGEST {
            return self.resize(guard, node, room, op).await;
        }
        let (guard, bytes) = self.freeze(guard, node.clone(), &[entry.at()], op).await?;
        let Some(leaf) = bytes.first().and_then(|bytes| Leaf::new(bytes)) else { return Err(Stop::Later) };
        let items = sorted(leaf);
        let plan = plan(&items, op.key, node.prefix);
        let wants = self.wants_of(plan, node.at.server());
        let room = room.filter(|room| Some(room.wants()) == wants);
        let made = match (plan, room) {
            // Another client let the leaf burst, merged what came of it into a leaf of fewer keys, and filled that, all since this operation has
            // read the leaf. A split at a key outside of the range would write a leaf that ends before it begins.
            _ if !leaf.covers(op.key) && Check::RoomInRange.on() => {
                self.thaw_read((guard, bytes), &[entry.at()], op).await
            }
            (Plan::Clean, _) => self.clean(guard, entry, leaf, op).await,
            (Plan::Split(at), Some(room)) => match node.free {
                Some(free) => self.split(guard, &node, free, entry, leaf, &items, (room, at), op).await,
                None => self.thaw_read((guard, bytes), &[entry.at()], op).await,
            },
            (Plan::Burst(prefix, at), Some(room)) => {
                self.burst((guard, bytes), &node, entry, &items, (room, prefix, at), op).await
            }
            (Plan::Split(_) | Plan::Burst(..), None) => {
                self.thaw_read((guard, bytes), &[entry.at()], op).await?;
                return wants.map(Made::Wants).ok_or(Stop::Later);
            }
        };
        made.map(Made::Done)
    }

    /// Makes the slots of deleted keys free.
    async fn clean(
        &self,
        guard: LockGuard<'_, V>,
        entry: Entry,
        leaf: Leaf<'_>,
        op: &mut Op,
    ) -> Result<(), Stop> {
        let stamp = self.draw_stamp(guard.writer().owner);
        let begin = LockLine::changing(leaf.stamp(), Task::Clean, 0, Entry::EMPTY).to_bytes();
        let lines = leaf::rewritten(leaf, leaf.max(), stamp);
        let end = LockLine::plain(stamp, LeafState::Open).to_bytes();
        let parts = [
            lock_part(entry.at(), &begin),
            Part { at: entry.at(), bytes: &lines },
            lock_part(entry.at(), &end),
        ];
        Ok(guard.restructure(&parts, &op.lane).await?)
    }

    /// Splits a leaf's range at a key: one chain, whose second WRITE makes it count.
    #[expect(clippy::too_many_arguments, reason = "all of it is known once, and used once")]
    async fn split(
        &self,
        guard: LockGuard<'_, V>,
        node: &Node,
        free: u16,
        entry: Entry,
        leaf: Leaf<'_>,
        items: &[(u64, Word)],
        (room, at): (&mut Room<'_, V>, u64),
        op: &mut Op,
    ) -> Result<(), Stop> {
        let Some(new) = room.leaf(0) else { return give_up(guard, Stop::Later, op).await };
        let owner = guard.writer().owner;
        let (upper_stamp, lower_stamp) = (self.draw_stamp(owner), self.draw_stamp(owner));
        let from = items.partition_point(|(key, _)| *key < at);
        let parent = upward(node.size, node.at)?;
        let upper = leaf::build(new, parent, at, leaf.max(), upper_stamp, &items[from..]);
        let new_entry = Entry::leaf(node.prefix.byte_of(at), new).ok_or_else(|| out_of_reach(new))?;
        let begin = LockLine::changing(leaf.stamp(), Task::Split, at, new_entry).to_bytes();
        let upper_open = LockLine::plain(upper_stamp, LeafState::Open).to_bytes();
        let lower = leaf::rewritten(leaf, at - 1, lower_stamp);
        let word = new_entry.0.to_le_bytes();
        let end = LockLine::plain(lower_stamp, LeafState::Open).to_bytes();
        let parts = [
            Part { at: new, bytes: &upper[..] },
            lock_part(entry.at(), &begin),
            lock_part(new, &upper_open),
            Part { at: entry.at(), bytes: &lower },
            Part { at: node.slot_at(free), bytes: &word },
            lock_part(entry.at(), &end),
        ];
        let mut parts = parts;
        if !Check::OpensLast.on() {
            parts.swap(1, 2);
        }
        if !Check::LinksFirst.on() {
            parts.swap(4, 5);
        }
        room.hold();
        room.linked(guard.restructure(&parts, &op.lane).await)?;
        let mut known = node.clone();
        known.entries.push((free, new_entry));
        known.entries.sort_unstable_by_key(|(_, entry)| entry.byte());
        self.cache.put(&known, parent);
        Ok(())
    }

    /// Replaces a leaf by a node with two leaves.
    async fn burst(
        &self,
        (guard, bytes): Frozen<'_, V>,
        node: &Node,
        entry: Entry,
        items: &[(u64, Word)],
        (room, prefix, at): (&mut Room<'_, V>, Prefix, u64),
        op: &mut Op,
    ) -> Result<(), Stop> {
        let Some(leaf) = bytes.first().and_then(|bytes| Leaf::new(bytes)) else { return Err(Stop::Later) };
        let Some((slot, _)) = node.slot_of(entry.at()) else { return Err(Stop::Later) };
        let new = self.write_burst(room, (prefix, at), items, node.prefix, op).await;
        let (child, swaps) = match new {
            Ok(new) => new,
            Err(stop) => {
                self.thaw_read((guard, bytes), &[entry.at()], op).await?;
                return Err(stop);
            }
        };
        if let Err(stop) = self.synced_before(child.at().server(), entry.at().server()).await {
            self.thaw_read((guard, bytes), &[entry.at()], op).await?;
            return Err(stop);
        }
        let begin = LockLine::changing(leaf.stamp(), Task::Burst, leaf.min(), child).to_bytes();
        room.hold();
        if !Check::OpensLast.on() {
            self.begin_use(&swaps, op).await?;
        }
        room.linked(guard.write(&[lock_part(entry.at(), &begin)], &op.lane).await)?;
        if let Err(stop) = self.begin_use(&swaps, op).await {
            return give_up(guard, stop, op).await;
        }
        let word = child.0.to_le_bytes();
        let end = LockLine::plain(leaf.stamp(), LeafState::Retired).to_bytes();
        let mut parts = [Part { at: node.slot_at(slot), bytes: &word }, lock_part(entry.at(), &end)];
        if !Check::LinksFirst.on() {
            parts.swap(0, 1);
        }
        let writer = guard.writer();
        self.retire(guard, &parts, &writer, &[entry.at()], op).await?;
        self.cache.forget(node.prefix);
        Ok(())
    }

    /// Writes a node with two leaves, all unborn, on the server of its prefix. Returns its entry, and
    /// what lets them be used: leaves first.
    async fn write_burst(
        &self,
        room: &mut Room<'_, V>,
        (prefix, at): (Prefix, u64),
        items: &[(u64, Word)],
        above: Prefix,
        op: &mut Op,
    ) -> Result<(Entry, Vec<Swap>), Stop> {
        let (Some(place), Some(one), Some(other)) = (room.node(), room.leaf(0), room.leaf(1)) else {
            return Err(Stop::Later);
        };
        let (leaves, owner) = ([one, other], room.writer().owner);
        let parent = upward(NodeSize::NEW, place)?;
        let mut stamps: [u64; 3] = std::array::from_fn(|_| self.draw_stamp(owner));
        stamps[2] = inner::stamp_of(stamps[2], prefix, NodeSize::NEW);
        let from = items.partition_point(|(key, _)| *key < at);
        let lower = leaf::build(leaves[0], parent, prefix.low(), at - 1, stamps[0], &items[..from]);
        let upper = leaf::build(leaves[1], parent, at, prefix.high(), stamps[1], &items[from..]);
        let entry = |byte, at| Entry::leaf(byte, at).ok_or_else(|| out_of_reach(at));
        let entries = [entry(0, leaves[0])?, entry(prefix.byte_of(at), leaves[1])?];
        let node = inner::build(prefix, NodeSize::NEW, stamps[2], NodeState::Unborn, entries);
        let parts = [
            Part { at: leaves[0], bytes: &lower[..] },
            Part { at: leaves[1], bytes: &upper[..] },
            Part { at: place, bytes: &node },
        ];
        self.write_new(room, &parts, op).await?;
        let swaps = vec![
            Swap::leaf(leaves[0], stamps[0]),
            Swap::leaf(leaves[1], stamps[1]),
            Swap::node(place, stamps[2]),
        ];
        Ok((parent.under(above.byte_of(prefix.low())), swaps))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn items(keys: &[u64]) -> Vec<(u64, Word)> {
        keys.iter().map(|&key| (key, Word(1))).collect()
    }

    #[test]
    fn plans() {
        let below = Prefix::of(0x0100, 6);
        let dense: Vec<u64> = (0..49).map(|at| 0x0100 + at * 2).collect();
        assert_eq!(plan(&items(&dense[..30]), 0x0101, below), Plan::Clean);
        // One byte at depth 6: a node of seven bytes.
        let burst = plan(&items(&dense), 0x0131, below);
        assert_eq!(burst, Plan::Burst(Prefix::of(0x0100, 7), 0x0130));
        // The key has another byte there.
        assert_eq!(plan(&items(&dense), 0x0300, below), Plan::Split(0x0300));
        let deep = Prefix::of(0x0100, 7);
        assert_eq!(plan(&items(&dense), 0x0131, deep), Plan::Split(0x0130));
        // In ascending order the lower leaf stays full.
        assert_eq!(plan(&items(&dense), 0x01f0, deep), Plan::Split(0x01f0));
    }

    proptest! {
        /// Whatever the keys are, a plan separates some of them, and each within what it is below.
        #[test]
        fn each_plan_separates_keys(
            keys in prop::collection::btree_set(0..3_000_u64, 49..=49),
            shift in 0..52_u32,
            key in 0..3_000_u64,
        ) {
            prop_assume!(!keys.contains(&key));
            let keys: Vec<u64> = keys.into_iter().map(|key| key << shift).collect();
            let key = key << shift;
            let all = || keys.iter().copied().chain([key]);
            let depth = all().map(|one| common(one, keys[0])).min().unwrap().min(7);
            for depth in depth.saturating_sub(1)..=depth {
                let below = Prefix::of(keys[0], depth);
                match plan(&items(&keys), key, below) {
                    Plan::Clean => prop_assert!(false, "no slot is dead"),
                    Plan::Split(at) => {
                        prop_assert!(all().any(|one| one < at) && all().any(|one| one >= at));
                        prop_assert_eq!(below.first_of(below.byte_of(at)), at);
                    }
                    Plan::Burst(prefix, at) => {
                        prop_assert!(prefix.depth() > depth && all().all(|one| prefix.covers(one)));
                        prop_assert!(all().any(|one| one < at) && all().any(|one| one >= at));
                        prop_assert_eq!(prefix.first_of(prefix.byte_of(at)), at);
                    }
                }
            }
        }
    }
}

//! Completion of what a dead client has left half done below a node.
//!
//! The next client that finds a leaf locked, and waits in vain, takes the lock of the node. If the leaf
//! is locked still, no other client is at work on it. What its lock line says is then done again from
//! the begin; what is only frozen is opened.

use fatbtree_remote_memory::{GlobalAddress, LockGuard, Part};
use fatbtree_verbs::Verbs;

use super::{Made, Swap, give_up, lock_part};
use crate::checks::Check;
use crate::entry::Entry;
use crate::error::Stop;
use crate::index::space::Room;
use crate::index::{Index, Op};
use crate::inner::{HEAD_BYTES, Node, NodeState, moved_head, parse_head};
use crate::leaf::{self, LOCK, LOCK_BYTES, Leaf, LeafState, LockLine, Task};

/// A leaf that is being changed.
struct Begun {
    entry: Entry,
    lock: LockLine,
}

impl<V: Verbs> Index<V> {
    /// Completes what was begun below a node, if its lock is free or its client is dead.
    pub(in crate::index) async fn settle(&self, parent: Entry, op: &mut Op) -> Result<(), Stop> {
        if !Check::Settles.on() {
            return Err(Stop::Later);
        }
        let settle = async |room: Option<&mut Room<'_, V>>, op: &mut Op| {
            let (guard, node) = self.enter(parent, op).await?;
            self.settle_locked(guard, node, room, op).await
        };
        self.with_room(None, op, settle).await
    }

    /// Completes one change that was begun below a locked node; if there is none, opens what is frozen or
    /// unborn.
    pub(super) async fn settle_locked(
        &self,
        guard: LockGuard<'_, V>,
        node: Node,
        room: Option<&mut Room<'_, V>>,
        op: &mut Op,
    ) -> Result<Made<()>, Stop> {
        // The leaf in question may be one that the node does not lead to any more.
        self.cache.forget(node.prefix);
        let writer = guard.writer();
        let leaves: Vec<Entry> =
            node.entries.iter().map(|(_, entry)| *entry).filter(|entry| !entry.is_inner()).collect();
        let at: Vec<GlobalAddress> = leaves.iter().map(|entry| entry.at().behind(LOCK)).collect();
        let lines = self.read_parts(&writer, &at, LOCK_BYTES as u32, op).await?;
        let locks: Vec<Begun> = leaves
            .iter()
            .zip(&lines)
            .map(|(&entry, line)| Begun { entry, lock: LockLine::parse(line) })
            .collect();
        if let Some(begun) = locks.iter().find(|begun| begun.lock.is(LeafState::Changing)) {
            return self.complete(guard, &node, begun, &locks, room, op).await;
        }
        let frozen = || locks.iter().filter(|begun| begun.lock.is(LeafState::Frozen));
        let opened: Vec<_> = frozen()
            .map(|begun| {
                let line = LockLine::plain(begun.lock.stamp(), LeafState::Open).to_bytes();
                (begun.entry.at(), line)
            })
            .collect();
        for some in opened.chunks(8) {
            let parts: Vec<_> = some.iter().map(|(at, line)| lock_part(*at, line)).collect();
            guard.write(&parts, &op.lane).await?;
        }
        let unborn = locks.iter().filter(|begun| begun.lock.is(LeafState::Unborn));
        let swaps: Vec<_> = unborn.map(|begun| Swap::leaf(begun.entry.at(), begun.lock.stamp())).collect();
        self.begin_use(&swaps, op).await?;
        for (_, entry) in node.entries.iter().filter(|(_, entry)| entry.is_inner()) {
            match self.begin_child(*entry, op).await {
                // Its keys wait for its server.
                Ok(()) | Err(Stop::Absent(_)) => {}
                Err(stop) => return give_up(guard, stop, op).await,
            }
        }
        guard.release(&op.lane).await?;
        Ok(Made::Done(()))
    }

    /// Lets a linked node and its leaves be used, if they are not yet.
    async fn begin_child(&self, entry: Entry, op: &mut Op) -> Result<(), Stop> {
        let head = self.read_at_hand(entry.at(), HEAD_BYTES as u32, op).await?;
        let is_unborn = |(_, state): (_, u64)| state & 7 == NodeState::Unborn as u64;
        if !parse_head(&head, entry.size()).is_some_and(is_unborn) {
            return Ok(());
        }
        self.at_hand(entry.at().server(), op)?;
        let Some(node) = self.read_node(entry, op).await? else { return Ok(()) };
        let mut swaps = Vec::new();
        for (_, leaf) in node.entries.iter().filter(|(_, entry)| !entry.is_inner()) {
            swaps.extend(self.unborn(leaf.at(), op).await?);
        }
        swaps.push(Swap::node(entry.at(), node.stamp()));
        self.begin_use(&swaps, op).await
    }

    /// What lets a leaf be used, if it is unborn.
    async fn unborn(&self, at: GlobalAddress, op: &mut Op) -> Result<Option<Swap>, Stop> {
        let line = self.read_at_hand(at.behind(LOCK), LOCK_BYTES as u32, op).await?;
        let lock = LockLine::parse(&line);
        Ok(lock.is(LeafState::Unborn).then(|| Swap::leaf(at, lock.stamp())))
    }

    /// Does again what a leaf's lock line says.
    async fn complete(
        &self,
        guard: LockGuard<'_, V>,
        node: &Node,
        begun: &Begun,
        all: &[Begun],
        room: Option<&mut Room<'_, V>>,
        op: &mut Op,
    ) -> Result<Made<()>, Stop> {
        let Begun { entry, lock } = begun;
        let (at, partner) = (entry.at(), lock.partner);
        let completed = match lock.task {
            Some(Task::Split) => {
                let byte = node.prefix.byte_of(lock.from);
                let is_linked = node.entries.iter().any(|(_, entry)| entry.byte() == byte);
                let link = match (is_linked, node.free) {
                    (true, _) => None,
                    (false, Some(free)) => Some((free, partner)),
                    (false, None) => return self.resize(guard, node.clone(), room, op).await,
                };
                // The partner may be unborn: the next client that comes to it lets it be used, as one that is linked.
                self.rewrite(guard, node, (at, lock.from.saturating_sub(1)), link, op).await
            }
            Some(Task::Clean) | None => self.rewrite(guard, node, (at, u64::MAX), None, op).await,
            Some(Task::Burst) => {
                if let Err(stop) = self.begin_child(partner, op).await {
                    return give_up(guard, stop, op).await;
                }
                let Some((slot, _)) = node.slot_of(at) else { return Err(Stop::Later) };
                self.replace(guard, node, &[(slot, partner)], &[begun], op).await
            }
            Some(Task::Merge) => self.complete_merge(guard, node, partner, all, op).await,
            Some(Task::Collapse) => {
                let moved = moved_head(node, partner);
                guard.write(&[Part { at: node.at, bytes: &moved }], &op.lane).await?;
                let begun_to_use = match self.unborn(partner.at(), op).await {
                    Ok(begin) => self.begin_use(begin.as_slice(), op).await,
                    Err(stop) => Err(stop),
                };
                if let Err(stop) = begun_to_use {
                    return give_up(guard, stop, op).await;
                }
                self.replace(guard, node, &[], &[begun], op).await?;
                self.relink(super::upward(node.size, node.at)?, op).await
            }
        };
        completed.map(Made::Done)
    }

    /// Rewrites the lines of a leaf, links its upper half, and opens it.
    async fn rewrite(
        &self,
        guard: LockGuard<'_, V>,
        node: &Node,
        (at, max): (GlobalAddress, u64),
        link: Option<(u16, Entry)>,
        op: &mut Op,
    ) -> Result<(), Stop> {
        let bytes = self.read_leaves(&guard.writer(), &[at], op).await?;
        let Some(leaf) = bytes.first().and_then(|bytes| Leaf::new(bytes)) else { return Err(Stop::Later) };
        let stamp = self.draw_stamp(guard.writer().owner);
        let lines = leaf::rewritten(leaf, max.min(leaf.max()), stamp);
        let end = LockLine::plain(stamp, LeafState::Open).to_bytes();
        let word = link.map_or(0, |(_, entry)| entry.0).to_le_bytes();
        let mut parts = vec![Part { at, bytes: &lines }];
        parts.extend(link.map(|(slot, _)| Part { at: node.slot_at(slot), bytes: &word }));
        parts.push(lock_part(at, &end));
        Ok(guard.restructure(&parts, &op.lane).await?)
    }

    /// Changes entries of a locked node, and retires leaves.
    async fn replace(
        &self,
        guard: LockGuard<'_, V>,
        node: &Node,
        entries: &[(u16, Entry)],
        retired: &[&Begun],
        op: &mut Op,
    ) -> Result<(), Stop> {
        let words: Vec<_> = entries.iter().map(|(slot, entry)| (*slot, entry.0.to_le_bytes())).collect();
        let lines: Vec<_> = retired
            .iter()
            .map(|begun| {
                (begun.entry.at(), LockLine::plain(begun.lock.stamp(), LeafState::Retired).to_bytes())
            })
            .collect();
        let slots = words.iter().map(|(slot, word)| Part { at: node.slot_at(*slot), bytes: word });
        let parts: Vec<_> = slots.chain(lines.iter().map(|(at, line)| lock_part(*at, line))).collect();
        let (writer, leaves) =
            (guard.writer(), retired.iter().map(|begun| begun.entry.at()).collect::<Vec<_>>());
        Ok(self.retire(guard, &parts, &writer, &leaves, op).await?)
    }

    /// Completes a merge: all leaves in the merged one's range are its own.
    async fn complete_merge(
        &self,
        guard: LockGuard<'_, V>,
        node: &Node,
        partner: Entry,
        all: &[Begun],
        op: &mut Op,
    ) -> Result<(), Stop> {
        let bytes = self.read_leaves(&guard.writer(), &[partner.at()], op).await?;
        let Some(merged) = bytes.first().and_then(|bytes| Leaf::new(bytes)) else { return Err(Stop::Later) };
        let range = node.prefix.byte_of(merged.min())..=node.prefix.byte_of(merged.max());
        // No partner is among them, for it is linked last: then no leaf of the merge is linked any more, and nothing leads here.
        let is_of = |begun: &&Begun| range.contains(&begun.entry.byte()) && begun.entry.at() != partner.at();
        let parts: Vec<&Begun> = all.iter().filter(is_of).collect();
        let begin = |begun: &&Begun| {
            let line = LockLine::changing(begun.lock.stamp(), Task::Merge, merged.min(), partner);
            (begun.entry.at(), line.to_bytes())
        };
        let lines: Vec<_> = parts.iter().map(begin).collect();
        let locked: Vec<_> = lines.iter().map(|(at, line)| lock_part(*at, line)).collect();
        if Check::LocksAll.on() {
            guard.write(&locked, &op.lane).await?;
        }
        let begin = merged.lock();
        if begin.is(LeafState::Unborn) {
            self.begin_use(&[Swap::leaf(partner.at(), begin.stamp())], op).await?;
        }
        let lowest = node.prefix.byte_of(merged.min());
        // By descending bytes: the partner is linked last, as the client that is dead would have done.
        let mut entries: Vec<_> = parts
            .iter()
            .rev()
            .filter_map(|begun| {
                let (slot, entry) = node.slot_of(begun.entry.at())?;
                Some((slot, if entry.byte() == lowest { partner } else { Entry::EMPTY }))
            })
            .collect();
        if !Check::LinksLast.on() {
            entries.reverse();
        }
        self.replace(guard, node, &entries, &parts, op).await
    }
}

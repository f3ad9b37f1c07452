//! Leaves where there are none: between a node's children, or beside a child's longer prefix.
//!
//! ```text
//!   node  [20 node]   key 3f…          node  [61 node]   key 61 63 …, the child stands for 61 62 63
//!   node  [20 node, 21 leaf]           node  [61 new]
//!                                      new   61  [62 node, 63 leaf]
//! ```

use fatbtree_remote_memory::{LockGuard, Part};
use fatbtree_verbs::Verbs;

use super::{Made, Swap, give_up, lock_part, out_of_reach, upward};
use crate::checks::Check;
use crate::entry::{Entry, NodeSize};
use crate::error::Stop;
use crate::index::descend::Gap;
use crate::index::space::{Room, Wants};
use crate::index::{Index, Op};
use crate::inner::{self, Choice, HEAD_BYTES, Node, NodeState, parse_head};
use crate::key::{Prefix, common};
use crate::leaf::{self, Leaf, LeafState, LockLine, Use};

impl<V: Verbs> Index<V> {
    /// Makes a leaf for the operation's key, where none is.
    pub(in crate::index) async fn fill_gap(&self, gap: Gap, op: &mut Op) -> Result<(), Stop> {
        match gap {
            Gap::In { node, .. } => {
                let fill =
                    async |room: Option<&mut Room<'_, V>>, op: &mut Op| self.fill_in(node, room, op).await;
                self.with_room(Some(Wants::leaf(node.at().server())), op, fill).await
            }
            Gap::Above { node, child, below, .. } => {
                let between = Prefix::of(op.key, common(op.key, below.low()));
                let wants = self.wants_between(between);
                let fill = async |room: Option<&mut Room<'_, V>>, op: &mut Op| {
                    self.fill_above(node, child, room, op).await
                };
                self.with_room(Some(wants), op, fill).await
            }
        }
    }

    /// What a node of a prefix with a leaf wants.
    fn wants_between(&self, prefix: Prefix) -> Wants {
        Wants { leaves: 1, ..Wants::node(self.shape.server_of(prefix), NodeSize::NEW) }
    }

    async fn fill_in(
        &self,
        parent: Entry,
        room: Option<&mut Room<'_, V>>,
        op: &mut Op,
    ) -> Result<Made<()>, Stop> {
        let (guard, node) = self.enter(parent, op).await?;
        let Some(range) = self.gap_of(&guard, &node, op).await? else {
            guard.release(&op.lane).await?;
            return Ok(Made::Done(()));
        };
        let Some(free) = node.free else {
            return self.resize(guard, node, room, op).await;
        };
        let wants = Wants::leaf(node.at.server());
        match room.filter(|room| room.wants() == wants) {
            Some(room) => self.link_leaf(guard, &node, free, room, range, op).await.map(Made::Done),
            None => {
                guard.release(&op.lane).await?;
                Ok(Made::Wants(wants))
            }
        }
    }

    /// One chain, whose second WRITE links the new leaf.
    async fn link_leaf(
        &self,
        guard: LockGuard<'_, V>,
        node: &Node,
        free: u16,
        room: &mut Room<'_, V>,
        (min, max): (u64, u64),
        op: &mut Op,
    ) -> Result<(), Stop> {
        let Some(new) = room.leaf(0) else { return give_up(guard, Stop::Later, op).await };
        let stamp = self.draw_stamp(guard.writer().owner);
        let bytes = leaf::build(new, upward(node.size, node.at)?, min, max, stamp, &[]);
        let entry = Entry::leaf(node.prefix.byte_of(min), new).ok_or_else(|| out_of_reach(new))?;
        let word = entry.0.to_le_bytes();
        let open = LockLine::plain(stamp, LeafState::Open).to_bytes();
        let parts = [
            Part { at: new, bytes: &bytes[..] },
            Part { at: node.slot_at(free), bytes: &word },
            lock_part(new, &open),
        ];
        room.hold();
        room.linked(guard.restructure(&parts, &op.lane).await)?;
        let mut known = node.clone();
        known.entries.push((free, entry));
        known.entries.sort_unstable_by_key(|(_, entry)| entry.byte());
        self.cache.put(&known, upward(node.size, node.at)?);
        Ok(())
    }

    /// The range without a leaf in which the operation's key lies, below a locked node. `None`: there is
    /// a leaf or a node by now.
    async fn gap_of(
        &self,
        guard: &LockGuard<'_, V>,
        node: &Node,
        op: &mut Op,
    ) -> Result<Option<(u64, u64)>, Stop> {
        let min = match node.choose(op.key) {
            Choice::Inner(_) => return Ok(None),
            Choice::Leaf(entry) => {
                let bytes = self.read_leaves(&guard.writer(), &[entry.at()], op).await?;
                let before = bytes.first().and_then(|bytes| Leaf::new(bytes));
                match before.filter(|leaf| {
                    (leaf.check(Use::Read).is_ok() || !Check::GapSettled.on()) && leaf.max() < op.key
                }) {
                    Some(leaf) => leaf.max() + 1,
                    None => return Ok(None),
                }
            }
            Choice::Gap => match node.before(node.prefix.byte_of(op.key)) {
                Some(before) => node.prefix.last_of(before.byte()) + 1,
                None => node.prefix.low(),
            },
        };
        let max = node.end_of(op.key);
        // No leaf has keys of both halves: its free slots are words of the other one.
        let upper = 1 << 63;
        let half = if op.key < upper { (0, upper - 1) } else { (upper, u64::MAX) };
        Ok(Some((min.max(half.0), max.min(half.1))))
    }

    async fn fill_above(
        &self,
        parent: Entry,
        child: Entry,
        room: Option<&mut Room<'_, V>>,
        op: &mut Op,
    ) -> Result<Made<()>, Stop> {
        let (guard, node) = self.enter(parent, op).await?;
        let slot = node.slot_of(child.at()).filter(|_| node.choose(op.key) == Choice::Inner(child));
        let Some((slot, _)) = slot else {
            guard.release(&op.lane).await?;
            return Ok(Made::Done(()));
        };
        let head = match self.read_at_hand(child.at(), HEAD_BYTES as u32, op).await {
            Ok(head) => head,
            Err(stop) => return give_up(guard, stop, op).await,
        };
        // The entry is the child's under this lock, whatever its state is: one that has moved, or is not in use yet, keeps its prefix.
        let found = parse_head(&head, child.size()).filter(|(prefix, _)| !prefix.covers(op.key));
        let Some((below, _)) = found else {
            op.state.anew = true;
            guard.release(&op.lane).await?;
            return Err(Stop::Later);
        };
        let prefix = Prefix::of(op.key, common(op.key, below.low()));
        // Only damage leads here: both keys share the node's prefix and its next byte.
        if prefix.depth() <= node.prefix.depth() || prefix.depth() >= below.depth() {
            guard.release(&op.lane).await?;
            return Err(Stop::Later);
        }
        let wants = self.wants_between(prefix);
        let Some(room) = room.filter(|room| room.wants() == wants) else {
            guard.release(&op.lane).await?;
            return Ok(Made::Wants(wants));
        };
        let (entry, swaps) = match self.write_between(&node, prefix, below, child, room, op).await {
            Ok(written) => written,
            Err(stop) => return give_up(guard, stop, op).await,
        };
        if Check::BetweenSynced.on()
            && let Err(stop) = self.synced_before(entry.at().server(), node.at.server()).await
        {
            return give_up(guard, stop, op).await;
        }
        let word = entry.0.to_le_bytes();
        let parts = [Part { at: node.slot_at(slot), bytes: &word }];
        room.hold();
        if !Check::OpensLast.on() {
            self.begin_use(&swaps, op).await?;
        }
        room.linked(guard.restructure(&parts, &op.lane).await)?;
        self.cache.forget(node.prefix);
        // It is linked: where this fails, the next client that comes by does it.
        self.begin_use(&swaps, op).await.map(Made::Done)
    }

    /// Writes a node over a child, with a leaf beside it on the key's side.
    async fn write_between(
        &self,
        node: &Node,
        prefix: Prefix,
        below: Prefix,
        child: Entry,
        room: &mut Room<'_, V>,
        op: &mut Op,
    ) -> Result<(Entry, [Swap; 2]), Stop> {
        let (Some(place), Some(new)) = (room.node(), room.leaf(0)) else { return Err(Stop::Later) };
        let owner = room.writer().owner;
        let byte = prefix.byte_of(below.low());
        let (min, max) = match op.key < below.low() {
            true => (prefix.low(), prefix.first_of(byte) - 1),
            false => (prefix.last_of(byte) + 1, prefix.high()),
        };
        let of_node = inner::stamp_of(self.draw_stamp(owner), prefix, NodeSize::NEW);
        let stamps = [self.draw_stamp(owner), of_node];
        let parent = upward(NodeSize::NEW, place)?;
        let leaf = leaf::build(new, parent, min, max, stamps[0], &[]);
        let entry = Entry::leaf(prefix.byte_of(min), new).ok_or_else(|| out_of_reach(new))?;
        let entries = [child.under(byte), entry];
        let bytes = inner::build(prefix, NodeSize::NEW, stamps[1], NodeState::Unborn, entries);
        let parts = [Part { at: new, bytes: &leaf[..] }, Part { at: place, bytes: &bytes }];
        self.write_new(room, &parts, op).await?;
        let swaps = [Swap::leaf(new, stamps[0]), Swap::node(place, stamps[1])];
        Ok((parent.under(node.prefix.byte_of(op.key)), swaps))
    }
}

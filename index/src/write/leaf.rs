//! One leaf under its lock: an entry, or a split.

use std::ops::RangeInclusive;

use fatbtree_verbs::{Buffer, Verbs};

use super::Wish;
use super::held::{Held, Part};
use super::parent::NewChild;
use crate::address::GlobalAddress;
use crate::descent::{Descent, Reason, Start};
use crate::keys::KeyRange;
use crate::node::{
    EntryValue, LeafBuilder, LeafEditor, LeafNode, LeafShape, NewValue, Node, NodeFault, NodeSpec,
    next_version,
};
use crate::record::{record_bytes, write_record};
use crate::separator::cut_keys;
use crate::space::ChunkKind;

/// A node that is locked, where it is, and what it held when it was locked.
pub(super) struct Locked<'p, V: Verbs> {
    pub(super) held: Held<'p, V>,
    pub(super) address: GlobalAddress,
    pub(super) bytes: Buffer,
}

/// Memory for a new node, and the version that the node begins with.
#[derive(Clone, Copy)]
pub(super) struct NewNode {
    pub(super) address: GlobalAddress,
    pub(super) version: u32,
}

/// A record that is written with the leaf that points to it.
struct NewRecord {
    address: GlobalAddress,
    bytes: Vec<u8>,
}

/// The two halves of a leaf that is split, and the lowest key of the right one.
struct Halves {
    left: Vec<u8>,
    right: Vec<u8>,
    separator: u64,
}

impl<'p, V: Verbs> Descent<'p, V> {
    /// One attempt at a change. Says whether it was carried out.
    pub(super) async fn change(&mut self, start: Start, wish: Wish<'_>) -> Result<bool, Reason> {
        let leaf = self.locate(start, 0).await?;
        let Locked { held, address, bytes: mut leaf } = self.lock_node(leaf, 0).await?;
        let shape = *self.pool().config().tree.leaf_shape();
        let mut editor = LeafEditor::new(&mut leaf.as_mut_slice()[..shape.bytes() as usize], &shape);
        let slot = editor.slot_of(self.key());
        if !wish.applies(slot.is_some()) {
            held.let_go(&mut self.trips_mut().round_trips).await?;
            return Ok(false);
        }
        let (Some(value), slot) = (wish.value(), slot) else {
            let slot = slot.expect("only what is there is deleted");
            let changed = editor.remove(slot);
            let part = Part { at: behind(address, changed.start), bytes: &leaf[changed] };
            held.write_back(&[part], &mut self.trips_mut().round_trips).await?;
            return Ok(true);
        };
        let record = match self.new_record(address.server(), value) {
            Ok(record) => record,
            Err(reason) => return self.without(held, reason).await,
        };
        let new = match &record {
            Some(record) => NewValue::Record { address: record.address, length: value.len() as u32 },
            None => NewValue::Inline(value),
        };
        let record = record.as_ref().map(|record| Part { at: record.address, bytes: &record.bytes });
        if let Some(slot) = slot.or_else(|| editor.free_slot()) {
            let changed = editor.put(slot, self.key(), new);
            let entry = Part { at: behind(address, changed.start), bytes: &leaf[changed] };
            let parts = [record.unwrap_or(entry), entry];
            let parts = if record.is_some() { &parts } else { &parts[1..] };
            held.write_back(parts, &mut self.trips_mut().round_trips).await?;
            return Ok(true);
        }
        let right = match self.new_node(address.server(), 0).await {
            Ok(right) => right,
            Err(reason) => return self.without(held, reason).await,
        };
        let halves = match split(
            &self.pool().config().tree,
            &leaf[..shape.bytes() as usize],
            right,
            self.key(),
            new,
        ) {
            Ok(halves) => halves,
            Err(fault) => {
                self.pool().with_space(|space| space.put_back(right.address, ChunkKind::Leaves));
                return self.without(held, Reason::Fault(fault)).await;
            }
        };
        let right = Part { at: right.address, bytes: &halves.right };
        let parts = [record.unwrap_or(right), right, Part { at: address, bytes: &halves.left }];
        let parts = if record.is_some() { &parts } else { &parts[1..] };
        held.write_back(parts, &mut self.trips_mut().round_trips).await?;
        // The key is in the tree now. That the parent learns of the new node makes ways shorter, nothing else.
        self.tell_parents(NewChild { separator: halves.separator, address: right.at, level: 1 }).await;
        Ok(true)
    }

    /// Locks the node of `level` that is responsible for the key, wherever it has moved since `node` was found, and reads it.
    pub(super) async fn lock_node(
        &mut self,
        mut node: GlobalAddress,
        level: u8,
    ) -> Result<Locked<'p, V>, Reason> {
        let (pool, lane, len) = (self.pool(), self.lane(), self.pool().config().tree.node_bytes(level));
        loop {
            let trips = &mut self.trips_mut().round_trips;
            let (held, bytes) = Held::lock_and_read(pool, lane, node, len, trips).await?;
            match self.moved_to(node, level, &bytes) {
                Ok(None) => return Ok(Locked { held, address: node, bytes }),
                Ok(Some(sibling)) => {
                    held.let_go(&mut self.trips_mut().round_trips).await?;
                    node = sibling;
                }
                Err(fault) => return self.without(held, Reason::Fault(fault)).await,
            }
        }
    }

    /// Gives up an attempt: the lock goes back, nothing was changed.
    pub(super) async fn without<T>(&mut self, held: Held<'p, V>, reason: Reason) -> Result<T, Reason> {
        held.let_go(&mut self.trips_mut().round_trips).await?;
        Err(reason)
    }

    /// Memory for a node beside those of `server`.
    pub(super) async fn new_node(&mut self, server: u16, level: u8) -> Result<NewNode, Reason> {
        let (kind, bytes) = (ChunkKind::of_nodes(level), self.pool().config().tree.node_bytes(level));
        let address = self.pool().with_space(|space| space.take(server, kind, bytes));
        let address = address.ok_or(Reason::Memory(server, kind, bytes))?;
        // Versions go on from what is there.
        match self.pool().read(self.lane(), address, bytes).await {
            Ok(found) => {
                self.trips_mut().round_trips += 1;
                Ok(NewNode { address, version: next_version(&found) })
            }
            Err(trouble) => {
                self.pool().with_space(|space| space.put_back(address, kind));
                Err(trouble.into())
            }
        }
    }

    /// The record of a value, where values are out of line. It lies in memory that was none before: records are not used again yet.
    fn new_record(&self, server: u16, value: &[u8]) -> Result<Option<NewRecord>, Reason> {
        if self.pool().config().tree.leaf_shape().is_inline() {
            return Ok(None);
        }
        let (kind, len) = (ChunkKind::Records, record_bytes(value.len() as u32));
        let address = self.pool().with_space(|space| space.take(server, kind, len));
        let address = address.ok_or(Reason::Memory(server, kind, len))?;
        let mut bytes = vec![0; len as usize];
        write_record(&mut bytes, self.key(), 1, |room| room.copy_from_slice(value));
        Ok(Some(NewRecord { address, bytes }))
    }
}

fn behind(node: GlobalAddress, bytes: usize) -> GlobalAddress {
    GlobalAddress(node.raw() + bytes as u64)
}

/// Divides a full leaf and one more key into two.
fn split(
    config: &crate::TreeConfig,
    bytes: &[u8],
    right: NewNode,
    key: u64,
    value: NewValue<'_>,
) -> Result<Halves, NodeFault> {
    let Node::Leaf(leaf) = Node::read(config, bytes)? else {
        return Err(NodeFault::Level { found: 1, expected: 0 });
    };
    let mut entries = entries_of(&leaf)?;
    entries.push((key, value));
    entries.sort_unstable_by_key(|(key, _)| *key);
    let keys: Vec<u64> = entries.iter().map(|(key, _)| *key).collect();
    let (cut, separator) = cut_keys(&keys, around_the_middle(keys.len()));
    let header = leaf.header();
    let KeyRange { low, high } = header.range();
    let shape = config.leaf_shape();
    let left = NodeSpec {
        address: header.address,
        level: 0,
        range: KeyRange { low, high: Some(separator) },
        sibling: right.address,
        version: next_version(bytes),
    };
    let right = NodeSpec {
        address: right.address,
        range: KeyRange { low: separator, high },
        sibling: header.sibling,
        version: right.version,
        ..left
    };
    let [left, right] = [(left, &entries[..cut]), (right, &entries[cut..])]
        .map(|(spec, entries)| build(shape, spec, entries));
    Ok(Halves { left, right, separator })
}

/// Where a node of so many things may be cut in two: a sixth to each side of the middle, for a shorter separator.
pub(super) fn around_the_middle(things: usize) -> RangeInclusive<usize> {
    let (middle, reach) = (things / 2, things / 6);
    middle - reach..=middle + reach
}

fn entries_of<'a>(leaf: &LeafNode<'a>) -> Result<Vec<(u64, NewValue<'a>)>, NodeFault> {
    let copy = |entry| match entry {
        EntryValue::Inline(value) => NewValue::Inline(value),
        EntryValue::Record { address, length } => NewValue::Record { address, length },
    };
    leaf.entries().map(|entry| entry.map(|(key, value)| (key, copy(value)))).collect()
}

fn build(shape: &LeafShape, spec: NodeSpec, entries: &[(u64, NewValue<'_>)]) -> Vec<u8> {
    let mut bytes = vec![0; shape.bytes() as usize];
    let mut leaf = LeafBuilder::new(&mut bytes, shape, spec);
    for &(key, value) in entries {
        match value {
            NewValue::Inline(value) => leaf.push_inline(key).copy_from_slice(value),
            NewValue::Record { address, length } => leaf.push_record(key, address, length),
        }
    }
    leaf.finish();
    bytes
}

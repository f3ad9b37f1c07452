//! Litter: memory in a region beside the tree that nearly is a node of it.
//!
//! Each piece would give a wrong answer, or none ever, if one check were not made. Index reads land on it (switches that are out
//! of date), or litter leads to it.

use std::ops::RangeInclusive;

use fatbtree_blink::node::{LINE, LeafBuilder, NodeSpec, offsets, write_internal};
use fatbtree_blink::record::{RecordPointer, UNPUBLISHED, record_bytes, write_record};
use fatbtree_blink::{GlobalAddress, Integrity, KeyRange, TreeConfig, ValueLayout};
use fatbtree_verbs::Memory;
use rand::RngExt as _;

use super::values;
use crate::world::Random;

/// Offset of the litter in its region.
pub(crate) const FROM: u64 = 64 * 1024;
/// Bytes for the litter of one region.
pub(crate) const BYTES: u64 = 32 * 1024;
/// Bytes of the values in litter, where they are out of line.
const LENGTH: u32 = 24;

/// Keys that stale switches lead to a piece of litter.
pub(crate) type Resolved = (RangeInclusive<u64>, GlobalAddress);

struct Builder<'a> {
    config: TreeConfig,
    memory: &'a Memory,
    server: u16,
    next: u64,
    end: u64,
    landings: Vec<Resolved>,
    random: &'a mut Random,
}

/// Litters the [bytes](BYTES) from `place` on: some pieces for each of the keys.
pub(crate) fn scatter(
    config: &TreeConfig,
    memory: &Memory,
    place: GlobalAddress,
    keys: impl Iterator<Item = u64>,
    random: &mut Random,
) -> Vec<Resolved> {
    let mut builder = Builder {
        config: *config,
        memory,
        server: place.server(),
        next: place.offset(),
        end: place.offset() + BYTES,
        landings: Vec::new(),
        random,
    };
    for key in keys {
        // Some keys have a right neighbour that is a key, and a left one.
        if (4..u64::MAX - 4).contains(&key) && builder.pieces(key).is_none() {
            break;
        }
    }
    builder.landings
}

impl Builder<'_> {
    /// All pieces for one key; none when there is no room.
    fn pieces(&mut self, key: u64) -> Option<()> {
        let here = KeyRange { low: key - self.random.random_range(0..4), high: Some(key + 1) };
        let left = KeyRange { low: key - 3, high: Some(key - 1) };
        let sums = self.config.integrity() == Integrity::Checksums;
        let keys = key..=key;
        let bucket = self.config.leaf_shape().bucket_offset(key).map(u64::from);
        // Another memory server's leaf.
        let at = self.room()?;
        let other = GlobalAddress::new(self.server ^ 1, at.offset());
        self.leaf(at, self.spec(other, 0, here, GlobalAddress::NULL), key)?;
        self.resolve(&keys, at);
        // Another tree's.
        let at = self.room()?;
        self.foreign_leaf(at, self.spec(at, 0, here, GlobalAddress::NULL), key)?;
        self.resolve(&keys, at);
        // A node of a level above, whose child says that it is somewhere else.
        let (at, child) = (self.room()?, self.room()?);
        // A bucket says nothing of its leaf's address, and need not.
        let elsewhere = match bucket {
            None => GlobalAddress::new(self.server, child.offset() + 64),
            Some(_) => GlobalAddress::new(self.server ^ 1, child.offset()),
        };
        self.leaf(child, self.spec(elsewhere, 0, here, GlobalAddress::NULL), key)?;
        self.internal(at, 1, here, child);
        self.resolve(&keys, at);
        // Two nodes that are each other's children.
        let (one, two) = (self.room()?, self.room()?);
        self.internal(one, 2, here, two);
        self.internal(two, 2, here, one);
        self.resolve(&keys, one);
        // A child nowhere.
        let at = self.room()?;
        self.internal(at, 1, here, GlobalAddress::NULL);
        self.resolve(&keys, at);
        // Left of the key, and nothing on the right of it.
        let at = self.room()?;
        self.leaf(at, self.spec(at, 0, left, GlobalAddress::NULL), key)?;
        self.resolve(&keys, at);
        // Left of the key, and each other's siblings.
        let (one, two) = (self.room()?, self.room()?);
        self.leaf(one, self.spec(one, 0, left, two), key)?;
        self.leaf(two, self.spec(two, 0, left, one), key)?;
        self.resolve(&keys, one);
        // Right of the key.
        let at = self.room()?;
        let right = KeyRange { low: key + 1, high: None };
        self.leaf(at, self.spec(at, 0, right, GlobalAddress::NULL), key)?;
        self.resolve(&keys, at);
        // Two halves.
        let at = self.room()?;
        self.leaf(at, self.spec(at, 0, here, GlobalAddress::NULL), key)?;
        let last =
            bucket.map_or(u64::from(self.config.leaf_bytes()) - LINE as u64, |bucket| bucket + LINE as u64);
        self.flip(at, last, 0);
        if bucket.is_none() {
            self.flip(at, last + LINE as u64 - 1, 0);
        }
        self.resolve(&keys, at);
        // A word that is changed here has a checksum that can only be written with the whole line.
        if !sums {
            let at = self.room()?;
            self.leaf(at, self.spec(at, 0, here, GlobalAddress::NULL), key)?;
            self.flip(at, offsets::MAGIC as u64, 1);
            if let Some(bucket) = bucket {
                // Of its two lines the one with an even number has a magic in each arrangement.
                self.flip(at, bucket.next_multiple_of(2 * LINE as u64) + offsets::MAGIC as u64, 1);
            }
            self.resolve(&keys, at);
            for count in [0u16, u16::MAX] {
                let (at, child) = (self.room()?, self.room()?);
                self.leaf(child, self.spec(child, 0, left, GlobalAddress::NULL), key)?;
                self.internal(at, 1, here, child);
                self.memory.write(at.offset() + offsets::COUNT as u64, &count.to_le_bytes()).ok()?;
                self.resolve(&keys, at);
            }
        }
        Some(())
    }

    /// Room for any node or record.
    fn room(&mut self) -> Option<GlobalAddress> {
        let record = u64::from(record_bytes(LENGTH));
        let size = u64::from(self.config.max_node_bytes()).max(record.next_multiple_of(LINE as u64));
        let at = self.next.next_multiple_of(LINE as u64);
        self.next = at + size;
        (self.next <= self.end).then(|| GlobalAddress::new(self.server, at))
    }

    fn resolve(&mut self, keys: &RangeInclusive<u64>, at: GlobalAddress) {
        self.landings.push((keys.clone(), at));
    }

    fn spec(&self, address: GlobalAddress, level: u8, range: KeyRange, sibling: GlobalAddress) -> NodeSpec {
        NodeSpec { address, level, range, sibling, version: 3 }
    }

    /// A leaf with a value for `key` that no client wrote.
    fn leaf(&mut self, at: GlobalAddress, spec: NodeSpec, key: u64) -> Option<()> {
        let mut bytes = vec![0; self.config.leaf_bytes() as usize];
        let word = self.poison();
        let shape = *self.config.leaf_shape();
        let record = if shape.has_records() { Some(self.record(key, word)?) } else { None };
        let mut leaf = LeafBuilder::new(&mut bytes, &shape, spec);
        match record {
            Some(record) => leaf.push_record(key, record),
            None => values::fill(key, word, leaf.push_inline(key)),
        }
        leaf.finish();
        self.memory.write(at.offset(), &bytes).ok()
    }

    /// A leaf of a tree with other values, whose first entry lies as one of this tree's.
    fn foreign_leaf(&mut self, at: GlobalAddress, spec: NodeSpec, key: u64) -> Option<()> {
        let mut bytes = vec![0; self.config.leaf_bytes() as usize];
        let word = self.poison();
        let mut value = [0; 64];
        let size = match self.config.values() {
            ValueLayout::OutOfLine | ValueLayout::ByLength(_) => {
                let record = self.record(key, word)?;
                value[..RecordPointer::BYTES].copy_from_slice(&record.to_bytes());
                RecordPointer::BYTES as u8
            }
            ValueLayout::Inline(size) => {
                values::fill(key, word, &mut value[..usize::from(size)]);
                // As many lines an entry, and no fewer entries.
                if size == 8 || size == 55 { size + 1 } else { size - 1 }
            }
        };
        let foreign = TreeConfig::with_integrity(
            self.config.fan_out(),
            self.config.leaf_bytes(),
            ValueLayout::Inline(size),
            self.config.integrity(),
        );
        let foreign = foreign.and_then(|foreign| foreign.with_leaves(self.config.leaves())).ok()?;
        let mut leaf = LeafBuilder::new(&mut bytes, foreign.leaf_shape(), spec);
        leaf.push_inline(key).copy_from_slice(&value[..usize::from(size)]);
        leaf.finish();
        self.memory.write(at.offset(), &bytes).ok()
    }

    fn internal(&mut self, at: GlobalAddress, level: u8, range: KeyRange, child: GlobalAddress) {
        let mut bytes = vec![0; self.config.internal_bytes() as usize];
        let spec = self.spec(at, level, range, GlobalAddress::NULL);
        write_internal(&mut bytes, &spec, &[(range.low, child)], self.config.integrity());
        // There is room: it was asked for.
        let _ = self.memory.write(at.offset(), &bytes);
    }

    fn record(&mut self, key: u64, word: u64) -> Option<RecordPointer> {
        let at = self.room()?;
        let mut bytes = vec![0; record_bytes(LENGTH) as usize];
        write_record(&mut bytes, key, 1, UNPUBLISHED, |value| values::fill(key, word, value));
        self.memory.write(at.offset(), &bytes).ok()?;
        Some(RecordPointer { address: at, length: LENGTH, version: 1 })
    }

    /// Changes a byte.
    fn flip(&mut self, at: GlobalAddress, offset: u64, bit: u32) {
        let mut byte = [0];
        let offset = at.offset() + offset;
        if self.memory.read(offset, &mut byte).is_ok() {
            let _ = self.memory.write(offset, &[byte[0] ^ 1 << bit]);
        }
    }

    /// The word of no write.
    fn poison(&mut self) -> u64 {
        values::word(u64::MAX / 2 + self.random.random_range(0..u64::MAX / 4))
    }
}

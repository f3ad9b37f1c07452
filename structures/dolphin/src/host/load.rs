//! Bulk load: an index from sorted keys, written into the memory of all of its servers, or [laid out](lay) for servers elsewhere.
//!
//! ```text
//!   keys below a node, by their byte at its depth          children
//!   00 00 01 01 01 │ 02 02 02 … more than a leaf holds │ 03 05 07
//!   └─ leaf, 00…01 ┘ └─ node of their common prefix ───┘ └─ leaf, 03…ff
//! ```
//!
//! Leaves cover all bytes between inner nodes, and are filled as evenly as borders between bytes allow. The load
//! walks over the keys twice: once to count the chunks of each server, once to write. It reads back
//! nothing, and takes no memory but the servers'.
//!
//! Where the loader is another process than the servers, `fatbtree_memserver::grpc` carries the bytes, and each server
//! [checks](HybridIndex::check) its part before it serves it.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use fatbtree_memserver::grpc::LoadData;
use fatbtree_memserver::{
    LaidOut, LayError, Laying, Loaded, OutOfOrder, Rooms, Writes, check_order, chunk_classes_bytes,
    note_chunk_class,
};
use fatbtree_remote_memory::{GlobalAddress, ServerSet, SizeClass, mix};
use fatbtree_verbs::Memory;

use super::part::spare_from;
use super::{HybridIndex, MakeError, MakeOptions};
use crate::entry::{Entry, NodeSize, UNIT};
use crate::error::IndexError;
use crate::inner::{self, NodeState};
use crate::key::{Prefix, common};
use crate::layout::{LEAVES, NODES, RECORDS, Shape, members_offset, root_offset};
use crate::leaf::{self, LEAF_BYTES, LOCK, LOCK_BYTES, LeafState, LockLine, SLOTS};
use crate::word::{self, Pointer, Word, place_bytes};

/// Number of size classes.
const CLASSES: usize = [LEAVES, NODES, RECORDS].len();

/// Version of a record in memory that had none before.
const FIRST_VERSION: u32 = 1;

/// Options of a bulk load. Start from [`new`](Self::new) and change what you need.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoadOptions {
    /// Shape of the index.
    pub shape: Shape,
    /// Share of a leaf's slots that are used, above 0 and at most 1.
    pub fill: f64,
    /// Bytes on each server for what clients write later. They cost nothing until they are used.
    pub spare_bytes: u64,
    /// Bytes of a chunk: as [`ServerOptions::chunk_bytes`](fatbtree_memserver::ServerOptions::chunk_bytes) of the
    /// servers.
    pub chunk_bytes: u64,
    /// Number of the regions' filling.
    pub generation: u64,
}

impl LoadOptions {
    /// Leaves three quarters full, no spare memory, chunks of 8 MiB, generation 1.
    #[must_use]
    pub const fn new(shape: Shape) -> Self {
        Self { shape, fill: 0.75, spare_bytes: 0, chunk_bytes: 8 << 20, generation: 1 }
    }
}

/// A loaded index.
#[derive(Clone, Debug)]
pub struct LoadedIndex {
    /// The parts, in the order of their servers.
    pub parts: Vec<Loaded<HybridIndex>>,
    /// Size of the index.
    pub counts: LoadCounts,
}

/// Size of a loaded index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadCounts {
    /// Keys.
    pub keys: u64,
    /// Leaves.
    pub leaves: u64,
    /// Inner nodes, the root included.
    pub nodes: u64,
    /// Entries of inner nodes.
    pub entries: u64,
    /// Bytes of leaves and inner nodes.
    pub bytes: u64,
    /// Bytes of records.
    pub record_bytes: u64,
}

/// Errors from a bulk load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A part cannot be made.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// The keys are not ascending.
    #[error(transparent)]
    Order(#[from] OutOfOrder),
    /// Fill factor.
    #[error("fill factor {found}: expected a number above 0 and at most 1")]
    Fill {
        /// The requested value.
        found: f64,
    },
    /// Chunks that blocks of the index do not fit into.
    #[error("chunks of {found} bytes: expected a multiple of {UNIT}, at least {least}")]
    Chunks {
        /// The requested value.
        found: u64,
        /// Bytes of the largest block.
        least: u64,
    },
    /// A value that the index does not take.
    #[error("value of key {key:#x}: {why}")]
    Value {
        /// The key.
        key: u64,
        /// The reason.
        why: IndexError,
    },
    /// More memory than entries or words reach.
    #[error("the index needs memory at {at}, which its entries do not reach: use more memory servers")]
    Reach {
        /// Address of the block.
        at: GlobalAddress,
    },
    /// The receiver of the bytes has ended.
    #[error("the load was given up")]
    Stopped,
}

/// Loads strictly ascending keys. `value` appends the value of a key to an empty vector. It is called twice for a
/// key where values may be long, and must give the same value.
///
/// ```
/// use fatbtree_dolphin::Shape;
/// use fatbtree_dolphin::host::{LoadOptions, load};
///
/// let keys: Vec<u64> = (0..1000).collect();
/// let options = LoadOptions::new(Shape { servers: 0b11, max_value: 8 });
/// let loaded = load(&options, &keys, |key, value| value.extend(key.to_le_bytes()))?;
/// assert_eq!((loaded.parts.len(), loaded.counts.keys), (2, 1000));
/// # Ok::<(), fatbtree_dolphin::host::LoadError>(())
/// ```
///
/// # Errors
/// See [`LoadError`].
pub fn load(
    options: &LoadOptions,
    keys: &[u64],
    value: impl FnMut(u64, &mut Vec<u8>),
) -> Result<LoadedIndex, LoadError> {
    let &LoadOptions { shape, spare_bytes, chunk_bytes, generation, .. } = options;
    check(options, keys)?;
    let mut value = value;
    let mut value = |at: usize, to: &mut Vec<u8>| value(keys[at], to);
    let counted = Walk::over(options, keys, &mut value, None)?;
    let mut parts = Vec::new();
    for (server, chunks) in counted.rooms.into_laid_out().chunks {
        let spare_bytes = (chunks.len() as u64 * chunk_bytes).saturating_add(spare_bytes);
        let options = MakeOptions { spare_bytes, generation, chunk_bytes, ..MakeOptions::new(server, shape) };
        let made = fatbtree_memserver::make::<HybridIndex>(&options)?;
        let bytes = chunk_classes_bytes(spare_bytes, chunk_bytes);
        let table = Memory::shared(bytes)
            .map_err(|_| MakeError::Memory { bytes, why: std::io::ErrorKind::OutOfMemory.into() })?;
        for (chunk, class) in (0..).zip(chunks) {
            note_chunk_class(&table, generation, chunk, class);
        }
        parts.push(Loaded { chunk_classes: Some(table), ..made });
    }
    let regions: Vec<_> = (0..32)
        .map(|server| parts.iter().find(|part| part.server == server).map(|part| Arc::clone(&part.region)))
        .collect();
    let mut write = |at: GlobalAddress, bytes: &[u8]| {
        if let Some(region) = &regions[usize::from(at.server())] {
            region.write(at.offset(), bytes).expect("the first walk has counted the same chunks");
        }
        Ok(())
    };
    let counts = Walk::over(options, keys, &mut value, Some(&mut write))?.counts;
    Ok(LoadedIndex { counts, parts })
}

/// Lays out an index for [`Part::lay`](fatbtree_memserver::Part::lay).
pub(super) fn lay(
    of: &Laying<Shape>,
    data: &dyn LoadData,
    write: &mut Writes<'_>,
) -> Result<LaidOut, LayError> {
    let &Laying { shape, chunk_bytes, ref generations } = of;
    // A stamp never comes twice where it was.
    let generation = generations.iter().fold(0, |all, (_, generation)| mix(all ^ generation));
    let options = LoadOptions { chunk_bytes, generation, ..LoadOptions::new(shape) };
    let refused = |error: LoadError| match error {
        LoadError::Stopped => LayError::Stopped,
        other => LayError::Refused(other.into()),
    };
    check(&options, data.keys()).map_err(refused)?;
    let mut value = |at: usize, to: &mut Vec<u8>| data.append(at, to);
    let walk = Walk::over(&options, data.keys(), &mut value, Some(&mut *write)).map_err(refused)?;
    let rooms = walk.rooms;
    of.write_members(members_offset(), write)?;
    Ok(rooms.into_laid_out())
}

fn check(options: &LoadOptions, keys: &[u64]) -> Result<(), LoadError> {
    let &LoadOptions { shape, fill, chunk_bytes, .. } = options;
    shape.check().map_err(MakeError::from)?;
    if !(fill > 0.0 && fill <= 1.0) {
        return Err(LoadError::Fill { found: fill });
    }
    let least = if shape.fixed() { 0 } else { u64::from(place_bytes(shape.max_value)) };
    let least = least.max(NodeSize::LARGEST.place_bytes().into());
    if chunk_bytes < least || !chunk_bytes.is_multiple_of(UNIT) {
        return Err(LoadError::Chunks { found: chunk_bytes, least });
    }
    Ok(check_order(keys)?)
}

/// A child of a node that is made.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Child {
    /// First byte.
    byte: u8,
    /// Its keys among those of the node.
    keys: Range<usize>,
    is_inner: bool,
}

/// Children of a node: inner nodes for bytes with more keys than a leaf has slots, leaves for the others.
/// `full` keys are enough for a leaf.
fn divide(prefix: Prefix, keys: &[u64], full: usize) -> Vec<Child> {
    let groups = by_byte(prefix, keys);
    let is_inner = |keys: &Range<usize>| keys.len() > SLOTS;
    // No leaf has keys of both halves of the key space.
    let half = |byte: u8| prefix.depth() == 0 && byte >= 0x80;
    let of_leaves = |one: &(u8, Range<usize>), other: &(u8, Range<usize>)| {
        !is_inner(&one.1) && !is_inner(&other.1) && half(one.0) == half(other.0)
    };
    let (mut children, mut next) = (Vec::new(), 0);
    for run in groups.chunk_by(of_leaves) {
        let [(first, of_first), .., (last, of_last)] = run else {
            let (byte, keys) = run[0].clone();
            let from = if half(byte) { 0x80.max(next) } else { next };
            children.push(match is_inner(&keys) {
                true => Child { byte, keys, is_inner: true },
                false => Child { byte: from, keys, is_inner: false },
            });
            next = byte.saturating_add(1);
            continue;
        };
        let all = of_last.end - of_first.start;
        let enough = all.div_ceil(all.div_ceil(full));
        let mut byte = if half(*first) { 0x80.max(next) } else { next };
        let mut open = of_first.start..of_first.start;
        for (at, group) in run {
            let is_full = open.len() >= enough || open.len() + group.len() > full;
            if !open.is_empty() && is_full {
                children.push(Child { byte, keys: open, is_inner: false });
                (byte, open) = (*at, group.start..group.start);
            }
            open.end = group.end;
        }
        children.push(Child { byte, keys: open, is_inner: false });
        next = last.saturating_add(1);
    }
    children
}

/// Keys below a node by their byte at its depth.
fn by_byte(prefix: Prefix, keys: &[u64]) -> Vec<(u8, Range<usize>)> {
    let (mut groups, mut from) = (Vec::new(), 0);
    while let Some(key) = keys.get(from) {
        let byte = prefix.byte_of(*key);
        let (rest, last) = (&keys[from..], prefix.last_of(byte));
        // Groups are short near the leaves: a search from the begin on is the fastest there.
        let mut far = 1;
        while far < rest.len() && rest[far] <= last {
            far *= 2;
        }
        let near = far / 2;
        let count = near + rest[near..far.min(rest.len())].partition_point(|key| *key <= last);
        groups.push((byte, from..from + count));
        from += count;
    }
    groups
}

/// A walk over the keys.
struct Walk<'w> {
    shape: Shape,
    /// Keys with which a leaf is full.
    full: usize,
    rooms: Rooms,
    /// Receiver of what is made. `None`: chunks are counted.
    write: Option<&'w mut Writes<'w>>,
    /// Appends the value of the key at a position.
    value: &'w mut dyn FnMut(usize, &mut Vec<u8>),
    bytes: Vec<u8>,
    items: Vec<(u64, Word)>,
    stamps: u64,
    counts: LoadCounts,
}

impl<'w> Walk<'w> {
    /// Walks over all keys.
    fn over(
        options: &LoadOptions,
        keys: &[u64],
        value: &'w mut dyn FnMut(usize, &mut Vec<u8>),
        write: Option<&'w mut Writes<'w>>,
    ) -> Result<Self, LoadError> {
        let &LoadOptions { shape, fill, chunk_bytes, generation, .. } = options;
        let froms = ServerSet(shape.servers).numbers().map(|server| (server, spare_from(&shape, server)));
        let mut walk = Self {
            shape,
            full: ((SLOTS as f64 * fill) as usize).max(1),
            rooms: Rooms::new(chunk_bytes, CLASSES, froms),
            write,
            value,
            bytes: Vec::new(),
            items: Vec::new(),
            stamps: mix(generation),
            counts: LoadCounts::default(),
        };
        walk.node(Prefix::ROOT, keys, 0)?;
        Ok(walk)
    }

    fn take(&mut self, server: u16, class: SizeClass, bytes: u32) -> GlobalAddress {
        self.rooms.take(server, class, bytes)
    }

    fn write(&mut self, at: GlobalAddress, bytes: &[u8]) -> Result<(), LoadError> {
        self.write.as_mut().map_or(Ok(()), |write| write(at, bytes)).map_err(|_| LoadError::Stopped)
    }

    fn draw_stamp(&mut self) -> u64 {
        self.stamps = self.stamps.wrapping_add(1);
        mix(self.stamps) & !7
    }

    /// Makes a node of these keys, and what is below it. `from` is the position of the first key.
    fn node(&mut self, prefix: Prefix, keys: &[u64], from: usize) -> Result<Entry, LoadError> {
        let children = divide(prefix, keys, self.full);
        let server = self.shape.server_of(prefix);
        let (size, at) = if prefix == Prefix::ROOT {
            (NodeSize::LARGEST, GlobalAddress::new(server, root_offset()))
        } else {
            let size = NodeSize::least_for(children.len()).max(NodeSize::NEW);
            (size, self.take(server, NODES, size.place_bytes()))
        };
        let own = Entry::inner(0, size, at).ok_or(LoadError::Reach { at })?;
        let mut entries = Vec::with_capacity(children.len());
        for (number, Child { byte, keys: of_child, is_inner }) in children.iter().enumerate() {
            let at_child = from + of_child.start;
            let of_child = &keys[of_child.clone()];
            if *is_inner {
                let (first, last) = (of_child[0], of_child[of_child.len() - 1]);
                let entry = self.node(Prefix::of(first, common(first, last)), of_child, at_child)?;
                entries.push(entry.under(*byte));
                continue;
            }
            let low = prefix.first_of(*byte);
            let high = children.get(number + 1).map_or(prefix.high(), |next| prefix.first_of(next.byte) - 1);
            let half = if low >> 63 == 0 { u64::MAX >> 1 } else { u64::MAX };
            let leaf = self.leaf((own, server), low..=high.min(half), of_child, at_child)?;
            entries.push(Entry::leaf(*byte, leaf).ok_or(LoadError::Reach { at: leaf })?);
        }
        let counts = &mut self.counts;
        counts.nodes += 1;
        counts.entries += entries.len() as u64;
        counts.bytes += u64::from(size.place_bytes());
        let stamp = self.draw_stamp();
        self.write(at, &inner::build(prefix, size, stamp, NodeState::Live, entries))?;
        Ok(own)
    }

    fn leaf(
        &mut self,
        (parent, server): (Entry, u16),
        range: RangeInclusive<u64>,
        keys: &[u64],
        from: usize,
    ) -> Result<GlobalAddress, LoadError> {
        let at = self.take(server, LEAVES, LEAF_BYTES as u32);
        let mut items = std::mem::take(&mut self.items);
        items.clear();
        for (position, key) in (from..).zip(keys) {
            let word = self.item(server, *key, position)?;
            items.push((*key, word));
        }
        if self.write.is_some() {
            let (min, max) = range.into_inner();
            let stamp = self.draw_stamp();
            let mut leaf = leaf::build(at, parent, min, max, stamp, &items);
            let open = LockLine::plain(stamp, LeafState::Open).to_bytes();
            leaf[LOCK as usize..][..LOCK_BYTES].copy_from_slice(&open);
            self.write(at, &leaf[..])?;
        }
        self.items = items;
        let counts = &mut self.counts;
        counts.keys += keys.len() as u64;
        counts.leaves += 1;
        counts.bytes += LEAF_BYTES as u64;
        Ok(at)
    }

    /// Word of a key's value, whose record is written if it needs one.
    fn item(&mut self, server: u16, key: u64, position: usize) -> Result<Word, LoadError> {
        // Where no value needs a record the first walk has nothing to count.
        if self.shape.fixed() && self.write.is_none() {
            return Ok(Word::NONE);
        }
        let mut value = std::mem::take(&mut self.bytes);
        value.clear();
        (self.value)(position, &mut value);
        let word = Word::of_value(&value, &self.shape).map_err(|why| LoadError::Value { key, why })?;
        let word = match word {
            Some(word) => word,
            None => {
                let bytes = place_bytes(value.len() as u32);
                let at = self.take(server, RECORDS, bytes);
                self.counts.record_bytes += u64::from(bytes);
                let mut record = Vec::new();
                word::write(&mut record, key, FIRST_VERSION, &value);
                self.write(at, &record)?;
                let pointer = Pointer { at, bytes, version: FIRST_VERSION };
                Word::of_record(pointer).ok_or(LoadError::Reach { at })?
            }
        };
        self.bytes = value;
        Ok(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(prefix: Prefix, keys: &[u64], full: usize) -> Vec<(u8, usize, bool)> {
        let children = divide(prefix, keys, full);
        children.into_iter().map(|child| (child.byte, child.keys.len(), child.is_inner)).collect()
    }

    #[test]
    fn leaves_are_even_and_stay_in_their_half() {
        let below = Prefix::of(0x0100, 7);
        let dense: Vec<u64> = (0x0100..0x0200).collect();
        let even = children(below, &dense, 36);
        assert_eq!(even.iter().map(|child| child.1).collect::<Vec<_>>(), [32; 8]);
        assert_eq!(even[1], (32, 32, false));
        let at = |byte: u64| byte << 56;
        assert_eq!(children(Prefix::ROOT, &[at(1), at(0x90)], 36), [(0, 1, false), (0x80, 1, false)]);
        // A byte with more keys than a leaf holds is a node's, and leaves begin behind it.
        let many = (0..50).map(|low| at(3) | low);
        let keys: Vec<u64> = [at(1)].into_iter().chain(many).chain([at(9)]).collect();
        assert_eq!(children(Prefix::ROOT, &keys, 36), [(0, 1, false), (3, 50, true), (4, 1, false)]);
        assert_eq!(children(Prefix::ROOT, &[], 36), []);
    }

    #[test]
    fn what_cannot_be_loaded_is_refused() {
        let eight = |key: u64, value: &mut Vec<u8>| value.extend(key.to_le_bytes());
        let options = LoadOptions::new(Shape::default());
        let order = load(&options, &[1, 2, 2], eight).unwrap_err();
        assert!(matches!(order, LoadError::Order(OutOfOrder { key: 2, position: 2 })), "{order}");
        let fill = load(&LoadOptions { fill: 0.0, ..options }, &[1], eight).unwrap_err();
        assert!(matches!(fill, LoadError::Fill { .. }), "{fill}");
        let chunks = load(&LoadOptions { chunk_bytes: 1024, ..options }, &[1], eight).unwrap_err();
        assert!(matches!(chunks, LoadError::Chunks { least: 2112, .. }), "{chunks}");
        let value = load(&options, &[1], |_, value| value.extend([1; 9])).unwrap_err();
        assert_eq!(value.to_string(), "value of key 0x1: a value of 9 bytes: this index takes exactly 8");
        let none = Shape { servers: 0, ..Shape::default() };
        assert!(matches!(load(&LoadOptions::new(none), &[], eight), Err(LoadError::Make(_))));
    }
}

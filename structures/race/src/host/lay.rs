//! Bulk load: a table laid out from keys, over all of its servers.
//!
//! ```text
//!   keys by their suffix, lowest bit first       subtables
//!   …00 …00 …00 …10 …10 │ …01 …01 …11            root, frozen ─► lower half of suffix 0, frozen ─► two in use
//!   └─ suffix 0 ────────┴─ suffix 1               └──────────► upper half of suffix 1, in use
//! ```
//!
//! A subtable whose keys fit is in use. One whose keys do not fit has two successors, as after a split by clients: it is frozen, without a key.
//! So each subtable is as deep as its own keys demand, and directory, subtables and blocks are where a walk from the first subtable expects
//! them. Keys go to their buckets by the rule of insertions: the combined bucket with more room, its main bucket first.

use fatbtree_memserver::grpc::LoadData;
use fatbtree_memserver::{LaidOut, LayError, Laying, Rooms, Writes};
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, ServerSet, SizeClass};

use super::make::{classes, spare_from};
use crate::block::{self, block_bytes};
use crate::error::TableError;
use crate::hash::Hash;
use crate::layout::{
    BLOCKS, BUCKET_BYTES, BadShape, BucketHeader, HEAD_BYTES, Leaf, MAX_DIRECTORY_BITS, MEMBERS, PAIRS,
    SLOTS, SUCCESSORS, Shape, entry_offset, write_subtable,
};
use crate::slot::{BlockPointer, Place, Slot, UNIT};

/// Version of a record in memory that had none before.
const FIRST_VERSION: u32 = 1;

/// Share of a subtable's slots that are used at most, in quarters: room for insertions before the first split.
const FILL_QUARTERS: usize = 3;

/// Errors from a bulk load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Such a table cannot be.
    #[error(transparent)]
    Shape(#[from] BadShape),
    /// Chunks that blocks of the table do not fit into.
    #[error("chunks of {found} bytes: expected a multiple of {UNIT}, at least {least}")]
    Chunks {
        /// The requested value.
        found: u64,
        /// Bytes of the largest block.
        least: u64,
    },
    /// A value that the table does not take.
    #[error("value of key {key:#x}: {found} bytes, and the table takes up to {most}")]
    Value {
        /// The key.
        key: u64,
        /// Bytes of the value.
        found: u32,
        /// The bound.
        most: u32,
    },
    /// The keys do not fit, or not into the memory that pointers reach.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl From<LoadError> for LayError {
    fn from(error: LoadError) -> Self {
        Self::Refused(error.into())
    }
}

/// Lays out a table for [`Part::lay`](fatbtree_memserver::Part::lay).
pub(super) fn lay(
    of: &Laying<Shape>,
    data: &dyn LoadData,
    write: &mut Writes<'_>,
) -> Result<LaidOut, LayError> {
    let &Laying { shape, chunk_bytes, .. } = of;
    check(&shape, chunk_bytes, data)?;
    let servers = ServerSet(shape.servers).numbers();
    let home = GlobalAddress::new(shape.server(0), HEADER_BYTES as u64);
    let froms = servers.map(|server| (server, spare_from(&shape, server == home.server())));
    let mut layout = Layout {
        shape,
        data,
        rooms: Rooms::new(chunk_bytes, classes(&shape).len(), froms),
        write,
        leaves: Vec::new(),
        subtable: vec![0; shape.subtable_bytes() as usize],
        record: Vec::new(),
    };
    // Halves of each subtable are side by side, at every depth.
    let suffix = |key: u64| (Hash::of(key).suffix(MAX_DIRECTORY_BITS) as u16).reverse_bits();
    let mut keys: Vec<(u16, usize)> =
        data.keys().iter().enumerate().map(|(at, &key)| (suffix(key), at)).collect();
    keys.sort_unstable();
    let root = home.behind(shape.directory_bytes());
    layout.subtable(root, BucketHeader { depth: 0, suffix: 0 }, &keys)?;
    layout.directory(home)?;
    let rooms = layout.rooms;
    of.write_members(home.offset() + MEMBERS, write)?;
    Ok(rooms.into_laid_out())
}

fn check(shape: &Shape, chunk_bytes: u64, data: &dyn LoadData) -> Result<(), LoadError> {
    shape.check()?;
    let least = u64::from(block_bytes(shape.longest_record())).max(2 * shape.subtable_bytes());
    if chunk_bytes < least || !chunk_bytes.is_multiple_of(UNIT) {
        return Err(LoadError::Chunks { found: chunk_bytes, least });
    }
    let keys = data.keys();
    let most = shape.longest_record();
    match (0..keys.len()).find(|&at| data.length(at) > most) {
        Some(at) => Err(LoadError::Value { key: keys[at], found: data.length(at), most }),
        None => Ok(()),
    }
}

/// A table that is laid out.
struct Layout<'l, 'w> {
    shape: Shape,
    data: &'l dyn LoadData,
    rooms: Rooms,
    write: &'l mut Writes<'w>,
    /// Subtables in use.
    leaves: Vec<(BucketHeader, Leaf)>,
    subtable: Vec<u8>,
    record: Vec<u8>,
}

impl Layout<'_, '_> {
    /// Lays out a subtable of these keys, each with its position, and what is below it.
    fn subtable(
        &mut self,
        at: GlobalAddress,
        header: BucketHeader,
        keys: &[(u16, usize)],
    ) -> Result<(), LayError> {
        let shape = self.shape;
        let hashes: Vec<Hash> = match keys.len() <= shape.slots() * FILL_QUARTERS / 4 {
            true => keys.iter().map(|&(_, position)| Hash::of(self.data.keys()[position])).collect(),
            false => Vec::new(),
        };
        let placed = if hashes.len() == keys.len() { place(&shape, &hashes) } else { None };
        if let Some(offsets) = placed {
            return self.in_use(at, header, keys, &offsets);
        }
        if header.depth >= shape.directory_bits {
            return Err(LoadError::from(TableError::Full { bits: shape.directory_bits }).into());
        }
        let half = shape.subtable_bytes();
        // Where clients that split it would look first for room.
        let server = shape.server(header.suffix.wrapping_add(header.depth.into()));
        let pair = self.take(server, PAIRS, 2 * half as u32)?;
        write_subtable(&mut self.subtable, header, |_| Slot::EMPTY.frozen());
        self.subtable[SUCCESSORS as usize..][..8].copy_from_slice(&pair.link().to_le_bytes());
        (self.write)(at, &self.subtable)?;
        let upper = |&(suffix, _): &(u16, usize)| suffix.reverse_bits() >> header.depth & 1 == 1;
        let (lower_keys, upper_keys) = keys.split_at(keys.partition_point(|key| !upper(key)));
        let [lower, upper] = header.halves();
        self.subtable(pair.address(), lower, lower_keys)?;
        self.subtable(pair.address().behind(half), upper, upper_keys)
    }

    /// Writes a subtable in use, and the blocks of its keys, on one server.
    fn in_use(
        &mut self,
        at: GlobalAddress,
        header: BucketHeader,
        keys: &[(u16, usize)],
        offsets: &[u64],
    ) -> Result<(), LayError> {
        let mut slots = vec![Slot::EMPTY; self.shape.subtable_bytes() as usize / 8];
        let mut value = Vec::new();
        for (&(_, position), &offset) in keys.iter().zip(offsets) {
            let (key, length) = (self.data.keys()[position], self.data.length(position));
            let place = self.take(at.server(), BLOCKS, block_bytes(length))?;
            value.clear();
            self.data.append(position, &mut value);
            block::write_whole(&mut self.record, key, FIRST_VERSION, &value);
            (self.write)(place.address(), &self.record)?;
            let fingerprint = Hash::of(key).fingerprint();
            let units = block::slot_units(length);
            slots[offset as usize / 8] =
                Slot::new(BlockPointer { fingerprint, units, version: FIRST_VERSION, place });
        }
        write_subtable(&mut self.subtable, header, |offset| slots[offset as usize / 8]);
        (self.write)(at, &self.subtable)?;
        let place = Place::of(at).ok_or(LoadError::from(TableError::OutOfReach { at }))?;
        self.leaves.push((header, Leaf { place, depth: header.depth }));
        Ok(())
    }

    /// Writes the directory over all subtables in use.
    fn directory(&mut self, home: GlobalAddress) -> Result<(), LayError> {
        let depth = self.leaves.iter().map(|(header, _)| header.depth).max().unwrap_or(0);
        let mut entries = vec![0; 8 << depth];
        for (BucketHeader { suffix, depth: of }, leaf) in &self.leaves {
            for number in (*suffix..1 << depth).step_by(1 << of) {
                entries[number as usize * 8..][..8].copy_from_slice(&leaf.word().to_le_bytes());
            }
        }
        (self.write)(home, &u64::from(depth).to_le_bytes())?;
        (self.write)(home.behind(entry_offset(0)), &entries)
    }

    fn take(&mut self, server: u16, class: SizeClass, bytes: u32) -> Result<Place, LayError> {
        let at = self.rooms.take(server, class, bytes);
        let place = Place::of(at).ok_or(LoadError::from(TableError::OutOfReach { at }))?;
        Ok(place)
    }
}

/// Offsets of the slots of these keys in one subtable. `None`: both buckets of a key are full.
fn place(shape: &Shape, hashes: &[Hash]) -> Option<Vec<u64>> {
    // Main, overflow and main bucket of each group: used slots.
    let mut used = vec![0_usize; shape.groups as usize * 3];
    // Main and overflow bucket of a combined one.
    let buckets = |combined: u32| {
        let group = combined as usize / 2 * 3;
        [group + combined as usize % 2 * 2, group + 1]
    };
    let mut offsets = Vec::with_capacity(hashes.len());
    for hash in hashes {
        let [one, other] = hash.buckets(shape).map(buckets);
        let free = |[main, overflow]: [usize; 2]| 2 * SLOTS - used[main] - used[overflow];
        let chosen = if free(other) > free(one) { other } else { one };
        let bucket = chosen.into_iter().find(|&bucket| used[bucket] < SLOTS)?;
        used[bucket] += 1;
        offsets.push(HEAD_BYTES + bucket as u64 * BUCKET_BYTES + used[bucket] as u64 * 8);
    }
    Some(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{is_slot, may_be_at};

    #[test]
    fn keys_are_placed_where_their_buckets_are() {
        for groups in [1, 2, 64] {
            let shape = Shape { groups, ..Shape::default() };
            let hashes: Vec<Hash> = (0..shape.slots() as u64 / 2).map(Hash::of).collect();
            let offsets = place(&shape, &hashes).expect("half of the slots are free");
            let is_right =
                |(hash, offset): (&Hash, &u64)| is_slot(*offset) && may_be_at(&shape, *hash, *offset);
            assert!(hashes.iter().zip(&offsets).all(is_right));
            let mut once = offsets.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), offsets.len());
            assert_eq!(place(&shape, &vec![hashes[0]; 29]), None, "two buckets of 14 slots each");
        }
    }
}

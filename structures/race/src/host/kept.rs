//! Parts of tables that outlive their servers: in files, and found there again.
//!
//! Before a part from a [folder](fatbtree_memserver::Folder) is served, all of it is read that can be told from memory that clients have left:
//!
//! * its header, and on the first server the directory;
//! * each subtable to which the first one leads, as far as that goes on this server: headers of all buckets, check bits of all slots, where
//!   slots and successors may lead, and that no two slots hold one key;
//! * each block on this server to which a slot of such a subtable leads, if the subtable is in use: whole, of the slot's version, and of a key
//!   that belongs there;
//! * on other servers, where it is not at hand which pairs of subtables are in use, the check bits of all slots in whole pairs.
//!
//! A dead client leaves pairs that are half written, or that no subtable leads to, and blocks that no slot leads to: what lies there is not
//! judged. What a start cannot see, readers do: they check headers and slots, and blocks have checksums.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use fatbtree_memserver::grpc::{Describe as _, LoadData};
use fatbtree_memserver::{
    Counts, FolderError, FoundRegion, LaidOut, LayError, Laying, Layout, Loaded, Part, Writes,
};
use fatbtree_remote_memory::{GlobalAddress, Keys, RegionHeader};
use fatbtree_verbs::Memory;

use super::make::{MakeError, MakeOptions, classes, make, served_as, spare_from};
use super::{HashTable, lay};
use crate::block;
use crate::hash::Hash;
use crate::key::Key;
use crate::layout::{
    BLOCKS, BUCKET_BYTES, BucketHeader, Leaf, PAIRS, STRUCTURE, SUCCESSORS, Shape, TableInfo, entry_offset,
    may_be_at, slot_offsets, word_at,
};
use crate::slot::{Place, Slot, State, UNIT};

/// A folder's `state.json` has the shape as it is.
impl Counts for Shape {
    const STRUCTURE: &'static str = TableInfo::STRUCTURE;
}

/// A part of a table is one of a structure over several servers.
impl Part for HashTable {
    type Shape = Shape;
    type Counts = Shape;
    type MakeError = MakeError;

    fn shape(&self) -> Shape {
        self.info().shape
    }

    /// The kind of the keys is a choice of each load.
    fn shape_of_load(shape: &Shape, announced: &str) -> Option<Shape> {
        let of_kind = |keys| Shape { keys, ..*shape };
        [Keys::Numbers, Keys::Bytes].map(of_kind).into_iter().find(|shape| shape.to_string() == announced)
    }

    /// Keys of bytes are loaded by their [words](crate::word_of).
    fn may_repeat_numbers(shape: &Shape) -> bool {
        shape.keys == Keys::Bytes
    }

    fn begin(info: &TableInfo) -> GlobalAddress {
        info.directory
    }

    fn make_with<E: From<MakeError>>(
        options: &MakeOptions,
        region: impl FnOnce(u64) -> Result<Memory, E>,
    ) -> Result<Loaded<Self>, E> {
        make(options, region)
    }

    fn no_memory(bytes: u64, why: io::Error) -> MakeError {
        MakeError::Memory { bytes, why }
    }

    fn found(server: u16, found: FoundRegion<Shape>, _chunk_bytes: u64) -> Result<Loaded<Self>, FolderError> {
        let line = found.first_line()?;
        let header = RegionHeader::parse(&line, &STRUCTURE);
        let (Some(header), Some((shape, directory))) = (header, Shape::of_header(&line)) else {
            return Err(found.damaged("it does not begin with the header of a hash table"));
        };
        let is_first = directory.server() == server;
        found.check_header(&header, spare_from(&shape, is_first), &shape)?;
        let layout = found.layout(classes(&shape));
        let info = TableInfo { shape, directory };
        let region = Arc::clone(&found.region);
        let tenant = HashTable { server, info, region, marks: Default::default() };
        tenant.check(layout).map_err(|reason| found.damaged(reason))?;
        Ok(found.into_loaded(server, served_as(&shape), tenant))
    }

    fn lay(of: &Laying<Shape>, data: &dyn LoadData, write: &mut Writes<'_>) -> Result<LaidOut, LayError> {
        lay::lay(of, data, write)
    }
}

impl HashTable {
    /// Checks the part while nothing changes it, whatever clients have left of it that are dead by now: before it is served.
    ///
    /// # Errors
    /// What is damaged, in words.
    pub fn check(&self, layout: Layout) -> Result<(), String> {
        let TableInfo { shape, directory } = self.info;
        let mut part =
            Walk { region: &self.region, server: self.server, shape, layout, keys: BTreeSet::new() };
        match self.is_first() {
            true => part.check(directory.offset()),
            false => part.check_pairs(),
        }
    }
}

/// A server's part, before it is served.
struct Walk<'r> {
    region: &'r Memory,
    server: u16,
    shape: Shape,
    layout: Layout,
    /// Keys whose blocks were read.
    keys: BTreeSet<Key>,
}

impl Walk<'_> {
    /// Walks from the first subtable and from the directory as far as that leads on this server.
    fn check(&mut self, directory: u64) -> Result<(), String> {
        let region = self.region;
        let word = |offset: u64| Ok::<_, String>(word_at(&read(region, offset, 8)?, 0));
        let depth = word(directory)?;
        let depth = u8::try_from(depth).ok().filter(|&depth| depth <= self.shape.directory_bits);
        let depth = depth.ok_or_else(|| format!("offset {directory}: no depth of a directory"))?;
        let first = directory + self.shape.directory_bytes();
        let mut left = vec![(first, BucketHeader { depth: 0, suffix: 0 })];
        for number in 0..1_u32 << depth {
            let at = directory + entry_offset(number);
            let entry = Leaf::from_word(word(at)?).filter(|entry| entry.depth <= depth);
            let entry =
                entry.ok_or_else(|| format!("offset {at}: entry {number} of the directory leads nowhere"))?;
            let suffix = number & ((1 << entry.depth) - 1);
            left.extend(self.here(entry.place).map(|at| (at, BucketHeader { depth: entry.depth, suffix })));
        }
        let mut seen = BTreeSet::new();
        while let Some((at, header)) = left.pop() {
            if seen.insert(at) {
                let is_placed = at == first || self.is_of_pair(at);
                if !is_placed {
                    return Err(format!("offset {at}: no subtable of {header:?}"));
                }
                left.extend(self.subtable(at, header)?.into_iter().flatten());
            }
        }
        Ok(())
    }

    /// Checks a subtable. Returns its successors on this server.
    fn subtable(
        &mut self,
        at: u64,
        header: BucketHeader,
    ) -> Result<Option<[(u64, BucketHeader); 2]>, String> {
        let bytes = read(self.region, at, self.shape.subtable_bytes())?;
        if !self.is_whole(&bytes, header) {
            return Err(format!("offset {at}: no subtable of {header:?}"));
        }
        let successors = word_at(&bytes, SUCCESSORS);
        let pair =
            Place::of_link(successors).ok().filter(|pair| pair.is_none_or(|pair| self.is_server(pair)));
        let pair = pair.ok_or_else(|| format!("offset {at}: the successors {successors:#x} lead nowhere"))?;
        let shape = self.shape;
        for offset in slot_offsets(&shape) {
            let slot = Slot(word_at(&bytes, offset));
            self.slot(slot, offset, header, pair.is_none())
                .map_err(|reason| format!("offset {}: the slot {:#018x} {reason}", at + offset, slot.0))?;
        }
        let Some(pair) = pair else { return Ok(None) };
        if header.depth >= self.shape.directory_bits {
            return Err(format!("offset {at}: a subtable of depth {} cannot have successors", header.depth));
        }
        let [lower, upper] = header.halves();
        let half = self.shape.subtable_bytes();
        Ok(self.here(pair).map(|at| [(at, lower), (at + half, upper)]))
    }

    /// Whether all buckets of a subtable have one header.
    fn is_whole(&self, bytes: &[u8], header: BucketHeader) -> bool {
        let mut headers = (0..self.shape.subtable_bytes()).step_by(BUCKET_BYTES as usize);
        headers.all(|offset| word_at(bytes, offset) == header.word())
    }

    /// Checks a slot of a subtable that is linked, and the block to which it leads, if that counts. Blocks of a subtable that was split may
    /// have been freed.
    fn slot(
        &mut self,
        slot: Slot,
        offset: u64,
        header: BucketHeader,
        is_present: bool,
    ) -> Result<(), &'static str> {
        if !slot.is_sound() {
            return Err("does not match its check bits");
        }
        if !is_present && !slot.is_frozen() {
            return Err("is not frozen, and the subtable was split");
        }
        let Some(pointer) = slot.pointer() else { return Ok(()) };
        let bytes = u64::from(pointer.units) * UNIT;
        if !self.is_server(pointer.place) {
            return Err("leads nowhere");
        }
        let Some(at) = self.here(pointer.place) else { return Ok(()) };
        if !self.layout.may_lie(BLOCKS, at, bytes) {
            return Err("leads nowhere");
        }
        if !is_present || slot.state() == State::Tentative {
            return Ok(());
        }
        const NO_BLOCK: &str = "leads to no whole block of its version";
        let mut block = read(self.region, at, bytes).map_err(|_| NO_BLOCK)?;
        if let Some(rest) = block::rest_bytes(pointer, &block) {
            let most = block::block_bytes(self.shape.longest_record()).into();
            let all = (bytes + u64::from(rest)).min(most).max(bytes);
            block = read(self.region, at, all).map_err(|_| NO_BLOCK)?;
        }
        let found = block::find(&block, pointer, self.shape.keys).ok_or(NO_BLOCK)?;
        let (hash, key) = (Hash::of(found.word), Key::of(self.shape.keys, &found, &block));
        let belongs = key.is_sound()
            && header.covers(hash)
            && hash.fingerprint() == pointer.fingerprint
            && may_be_at(&self.shape, hash, offset);
        if !belongs {
            return Err("leads to the block of a key that belongs elsewhere");
        }
        if !self.keys.insert(key) {
            return Err("leads to the block of a key that is there twice");
        }
        Ok(())
    }

    /// Checks slots in pairs of subtables, where it is not known which are linked.
    fn check_pairs(&self) -> Result<(), String> {
        let half = self.shape.subtable_bytes();
        let pairs = self.layout.chunks(PAIRS).flat_map(|chunk| chunk.step_by(2 * half as usize));
        for at in pairs.filter(|&at| self.layout.may_lie(PAIRS, at, 2 * half)) {
            for at in [at, at + half] {
                let bytes = read(self.region, at, half)?;
                let header = BucketHeader::from_word(word_at(&bytes, 0));
                if !header.is_some_and(|header| self.is_whole(&bytes, header)) {
                    continue;
                }
                let mut slots = slot_offsets(&self.shape).map(|offset| (offset, word_at(&bytes, offset)));
                if let Some((offset, slot)) = slots.find(|(_, slot)| !Slot(*slot).is_sound()) {
                    let offset = at + offset;
                    return Err(format!(
                        "offset {offset}: the slot {slot:#018x} does not match its check bits"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether a place lies on one of the table's servers.
    fn is_server(&self, place: Place) -> bool {
        self.shape.servers >> place.address().server() & 1 == 1
    }

    /// Whether one of a pair of subtables may lie there.
    fn is_of_pair(&self, at: u64) -> bool {
        let half = self.shape.subtable_bytes();
        self.layout.may_lie(PAIRS, at, 2 * half)
            || at.checked_sub(half).is_some_and(|lower| self.layout.may_lie(PAIRS, lower, 2 * half))
    }

    /// Offset of a place on this server.
    fn here(&self, place: Place) -> Option<u64> {
        Some(place.address()).filter(|at| at.server() == self.server).map(|at| at.offset())
    }
}

fn read(region: &Memory, at: u64, bytes: u64) -> Result<Vec<u8>, String> {
    let mut all = vec![0; bytes as usize];
    region.read(at, &mut all).map_err(|out| out.to_string())?;
    Ok(all)
}

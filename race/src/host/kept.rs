//! Parts of tables that outlive their servers: in files, and found there again.
//!
//! Before a part from a [folder](fatbtree_memserver::Folder) is served, its header is read, and on the first server the directory and every subtable that
//! leads to another one there: the headers of all buckets, and where slots and successors may lead. Subtables of other servers are
//! not at hand; the servers' clients check the header of each bucket that they read. Blocks are not read: each has a checksum,
//! which its readers check. A slot has none. After a machine that died, slots may be older than the blocks that they lead to: readers see
//! that by the blocks' versions, and give up.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use fatbtree_memserver::{Counts, FolderError, FoundRegion, Layout, Loaded, Part};
use fatbtree_remote::{GlobalAddress, RegionHeader};
use fatbtree_verbs::Memory;
use serde::{Deserialize, Serialize};

use super::make::{MakeError, MakeOptions, classes, make, served_as, spare_from};
use super::{HashTable, TableInfo};
use crate::layout::{
    BLOCKS, BUCKET_BYTES, BucketHeader, Leaf, PAIRS, STRUCTURE, SUCCESSORS, Shape, entry_offset,
    slot_offsets, word_at,
};
use crate::slot::{Place, Slot, UNIT};

/// Shape of a table, as a folder's `state.json` says it for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TableCounts {
    /// Groups of a subtable.
    pub groups: u32,
    /// Bits of the directory.
    pub directory_bits: u8,
    /// The table's servers, a bit for each number.
    pub servers: u32,
    /// Bytes of the longest value.
    pub max_value: u32,
}

impl Counts for TableCounts {
    const STRUCTURE: &'static str = "hash";
}

impl From<&Shape> for TableCounts {
    fn from(shape: &Shape) -> Self {
        let Shape { groups, directory_bits, servers, max_value } = *shape;
        Self { groups, directory_bits, servers, max_value }
    }
}

/// A part of a table is one of a structure over several servers.
impl Part for HashTable {
    type Shape = Shape;
    type Counts = TableCounts;
    type MakeError = MakeError;

    fn shape(&self) -> Shape {
        self.info().shape
    }

    fn counts(&self) -> TableCounts {
        TableCounts::from(&self.info().shape)
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

    fn found(
        server: u16,
        found: FoundRegion<TableCounts>,
        _chunk_bytes: u64,
    ) -> Result<Loaded<Self>, FolderError> {
        let line = found.first_line()?;
        let header = RegionHeader::parse(&line, &STRUCTURE);
        let (Some(header), Some((shape, directory))) = (header, Shape::of_header(&line)) else {
            return Err(found.damaged("it does not begin with the header of a hash table"));
        };
        let is_first = directory.server() == server;
        found.check_header(&header, spare_from(&shape, is_first), &TableCounts::from(&shape))?;
        let layout = found.layout(classes(&shape));
        if is_first {
            let part = Walk { region: &found.region, server, shape, layout };
            part.check(directory.offset()).map_err(|reason| found.damaged(reason))?;
        }
        let info = TableInfo { shape, directory };
        let region = Arc::clone(&found.region);
        let tenant = HashTable { server, info, region, marks: Default::default() };
        Ok(found.into_loaded(server, served_as(&shape), tenant))
    }
}

/// The first server's part, before it is served.
struct Walk<'r> {
    region: &'r Memory,
    server: u16,
    shape: Shape,
    layout: Layout,
}

impl Walk<'_> {
    /// Walks from the first subtable and from the directory as far as that leads on this server.
    fn check(&self, directory: u64) -> Result<(), String> {
        let word = |offset: u64| Ok::<_, String>(word_at(&self.read(offset, 8)?, 0));
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
                let pair = self.subtable(at, header).filter(|_| is_placed);
                let pair = pair.ok_or_else(|| format!("offset {at}: no subtable of {header:?}"))?;
                left.extend(pair.into_iter().flatten());
            }
        }
        Ok(())
    }

    /// Checks a subtable. Returns its successors on this server; `None` if it cannot be.
    fn subtable(&self, at: u64, header: BucketHeader) -> Option<Option<[(u64, BucketHeader); 2]>> {
        let bytes = self.read(at, self.shape.subtable_bytes()).ok()?;
        let mut headers = (0..self.shape.subtable_bytes()).step_by(BUCKET_BYTES as usize);
        if headers.any(|offset| word_at(&bytes, offset) != header.word()) {
            return None;
        }
        for pointer in slot_offsets(&self.shape).filter_map(|at| Slot(word_at(&bytes, at)).pointer()) {
            let bytes = u64::from(pointer.units) * UNIT;
            let may_lie = |at| self.layout.may_lie(BLOCKS, at, bytes);
            if self.shape.servers >> pointer.place.address().server() & 1 == 0
                || !self.here(pointer.place).is_none_or(may_lie)
            {
                return None;
            }
        }
        let Some(pair) = Place::from_word(word_at(&bytes, SUCCESSORS)) else { return Some(None) };
        if header.depth >= self.shape.directory_bits {
            return None;
        }
        let [lower, upper] = header.halves();
        let half = self.shape.subtable_bytes();
        Some(self.here(pair).map(|at| [(at, lower), (at + half, upper)]))
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

    fn read(&self, at: u64, bytes: u64) -> Result<Vec<u8>, String> {
        let mut all = vec![0; bytes as usize];
        self.region.read(at, &mut all).map_err(|out| out.to_string())?;
        Ok(all)
    }
}

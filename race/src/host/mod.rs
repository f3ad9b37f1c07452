//! What a memory server does for a table: it makes an empty one, and knows which memory is used.
//!
//! It reads no table. What clients have used of a chunk is seen in the chunk: a pair of subtables is never all zeros, and neither is a
//! record. So a restarted server finds the same, also where no slot leads to a block.
//!
//! [`HashTable`] is one server's part of a table, as a [tenant](fatbtree_memserver::Tenant), and as a [part](fatbtree_memserver::Part) of a
//! structure over several servers: in memory or in a folder.
//!
//! Clients need [`Access::ALL`](fatbtree_verbs::Access::ALL) in
//! [`ServerOptions::access`](fatbtree_memserver::ServerOptions::access): slots are changed by atomics.

mod describe;
mod kept;
mod make;
mod marks;

use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use fatbtree_memserver::{Loaded, Seen, Tenant, Used, last_byte};
use fatbtree_remote::record::{RECORD_HEAD, RecordHead, is_record};
use fatbtree_remote::{GlobalAddress, HEADER_BYTES, SizeClass};
use fatbtree_verbs::Memory;

use crate::block::block_bytes;
use crate::layout::{BLOCKS, PAIRS, SUCCESSORS, Shape, slot_offsets};
use crate::slot::UNIT;

pub use kept::TableCounts;
pub use make::{MakeError, MakeOptions};

/// Units that are looked at for a written block in one step.
const LINES: usize = 8;

/// Words of a record's head whose upper halves change with each writing: version, and checksum.
const VERSION: u64 = 0;
const SUM: u64 = 16;

/// A memory server's description of its part of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableInfo {
    /// Shape of the table.
    pub shape: Shape,
    /// Address of the directory, on the table's first server.
    pub directory: GlobalAddress,
}

/// Words for people: `table directory=64 groups=64`.
impl fmt::Display for TableInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, directory } = self;
        write!(f, "table directory={} groups={}", directory.raw(), shape.groups)
    }
}

/// One server's part of a table.
#[derive(Clone, Debug)]
pub struct HashTable {
    server: u16,
    info: TableInfo,
    region: Arc<Memory>,
    /// Offsets of the chunks.
    spare: Range<u64>,
    /// Bytes of a chunk.
    chunk_bytes: u64,
    marks: marks::Marks,
}

impl HashTable {
    /// A region in memory with an empty table, or with memory for a part of one: the first of the table's servers has directory and first
    /// subtable. For other memory see
    /// [`make_in`](fatbtree_memserver::make_in).
    ///
    /// # Errors
    /// When such a table cannot be, or there is no memory.
    pub fn make(server: u16, shape: Shape, spare_bytes: u64) -> Result<Loaded<Self>, MakeError> {
        let options = MakeOptions { spare_bytes, ..MakeOptions::new(server, shape) };
        fatbtree_memserver::make(&options)
    }

    /// Description of the part.
    #[must_use]
    pub fn info(&self) -> &TableInfo {
        &self.info
    }

    /// Whether the server has the directory.
    fn is_first(&self) -> bool {
        self.server == self.info.directory.server()
    }

    /// Offset of the first subtable, behind the directory.
    fn first_subtable(&self) -> u64 {
        self.info.directory.offset() + self.info.shape.directory_bytes()
    }

    fn word(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        match self.region.read(offset, &mut word) {
            Ok(()) => u64::from_le_bytes(word),
            Err(_) => 0,
        }
    }
}

impl Tenant for HashTable {
    type Description = TableInfo;
    type Request = Infallible;

    fn description(&self) -> TableInfo {
        self.info
    }

    fn root(&self) -> GlobalAddress {
        self.info.directory
    }

    /// No client changes the header.
    fn see(&mut self, header: &[u8; HEADER_BYTES]) -> Seen {
        let TableInfo { shape, directory } = self.info;
        if Shape::of_header(header) == Some((shape, directory)) { Seen::Same } else { Seen::Refused }
    }

    fn used(&self, class: SizeClass, chunk: Range<u64>, budget: &mut usize) -> Used {
        let last = match last_byte(&self.region, &chunk, budget) {
            Ok(Some(last)) => last,
            Ok(None) => return Used::To(chunk.start),
            Err(below) => return Used::Below(below),
        };
        if class == PAIRS {
            let pair = 2 * self.info.shape.subtable_bytes();
            let number = (last - chunk.start) / pair;
            return Used::To((chunk.start + (number + 1) * pair).min(chunk.end));
        }
        // A value may end in zeros: the block reaches as far as its head says. Bytes of a value that look like a head only move the end
        // away.
        let farthest = u64::from(block_bytes(self.info.shape.max_value));
        let from = last.saturating_sub(farthest).max(chunk.start);
        let first = chunk.start + (from - chunk.start) / UNIT * UNIT;
        let ends = (first..=last).step_by(UNIT as usize).filter_map(|at| self.block_end(at));
        Used::To(
            ends.chain([last + 1]).max().map_or(chunk.end, |end| end.next_multiple_of(UNIT)).min(chunk.end),
        )
    }

    fn is_free(&self, class: SizeClass, block: Range<u64>) -> bool {
        class == BLOCKS && block.start.is_multiple_of(UNIT) && self.block_end(block.start) == Some(block.end)
    }

    /// Slots on other servers lead here, too, where there are any: then nothing can be told.
    fn swept(&self) -> Option<SizeClass> {
        (self.info.shape.servers.count_ones() == 1).then_some(BLOCKS)
    }

    fn begin_marks(&mut self) {
        self.begin_walk();
    }

    fn mark(&mut self, budget: usize) -> bool {
        self.walk(budget)
    }

    fn is_marked(&self, block: Range<u64>) -> bool {
        self.marks.is_marked(block)
    }

    /// A record's version and checksum are its stamp.
    fn written(&self, within: Range<u64>) -> (u64, Option<(Range<u64>, u64)>) {
        let from = within.start.next_multiple_of(UNIT);
        for at in (from..within.end).step_by(UNIT as usize).take(LINES) {
            if let Some(end) = self.block_end(at).filter(|&end| end <= within.end) {
                let upper = |offset| self.word(at + offset) >> 32;
                return (end, Some((at..end, upper(VERSION) << 32 | upper(SUM))));
            }
        }
        (from.saturating_add(LINES as u64 * UNIT).min(within.end), None)
    }

    /// The first server's part is empty if its first subtable has neither slot nor successors; another part if no chunk of it was written.
    /// Clients use a chunk from its start.
    fn is_empty(&self) -> bool {
        if self.is_first() {
            let first = self.first_subtable();
            return self.word(first + SUCCESSORS) == 0
                && slot_offsets(&self.info.shape).all(|offset| self.word(first + offset) == 0);
        }
        let mut chunks = self.spare.clone().step_by(self.chunk_bytes.max(UNIT) as usize);
        chunks.all(|chunk| (0..UNIT).step_by(8).all(|offset| self.word(chunk + offset) == 0))
    }

    fn handle(&mut self, request: Infallible) {
        match request {}
    }

    /// A table of the same shape in the same place.
    fn may_follow(&self, former: &Self) -> bool {
        self.info == former.info
    }
}

impl HashTable {
    /// End of the block of which a record begins at an offset.
    fn block_end(&self, at: u64) -> Option<u64> {
        let mut head = [0; RECORD_HEAD];
        self.region.read(at, &mut head).ok()?;
        let length = RecordHead::parse(&head).length();
        (is_record(&head) && length <= self.info.shape.max_value).then(|| at + u64::from(block_bytes(length)))
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_remote::HEADER_BYTES;

    use super::*;
    use crate::layout::BadShape;

    const SHAPE: Shape = Shape { groups: 1, directory_bits: 4, servers: 0b101, max_value: 1_000 };

    fn used(table: &HashTable, class: SizeClass, chunk: &Range<u64>) -> u64 {
        match table.used(class, chunk.clone(), &mut 64) {
            Used::To(end) => end - chunk.start,
            Used::Below(_) => panic!("the budget is large"),
        }
    }

    #[test]
    fn the_used_part_of_a_chunk_ends_behind_the_last_block() {
        let Loaded { region, spare, tenant, .. } = HashTable::make(0, SHAPE, 16 << 10).unwrap();
        let chunk = spare.start..spare.start + (8 << 10);
        assert_eq!(used(&tenant, BLOCKS, &chunk), 0);
        let mut record = Vec::new();
        // A value of zeros: the last bytes of the block say nothing.
        crate::block::write(&mut record, 7, 1, &[0; 500]);
        region.write(chunk.start + 128, &record).unwrap();
        assert_eq!(used(&tenant, BLOCKS, &chunk), 128 + u64::from(block_bytes(500)));
        let place = chunk.start + 128..chunk.start + 128 + u64::from(block_bytes(500));
        assert!(tenant.is_free(BLOCKS, place.clone()) && !tenant.is_free(PAIRS, place.clone()));
        assert!(!tenant.is_free(BLOCKS, place.start..place.end + 64));
        // A WRITE that was cut short.
        region.write(chunk.start + 4_000, &[1]).unwrap();
        assert_eq!(used(&tenant, BLOCKS, &chunk), 4_032);
        assert_eq!(tenant.used(BLOCKS, chunk.clone(), &mut 1), Used::Below(chunk.start + 4_096));
    }

    #[test]
    fn pairs_of_subtables_are_used_as_a_whole() {
        let Loaded { region, spare, tenant, .. } = HashTable::make(0, SHAPE, 16 << 10).unwrap();
        let pair = 2 * SHAPE.subtable_bytes();
        let chunk = spare.start..spare.start + 4 * pair;
        region.write(chunk.start + pair + 8, &[1]).unwrap();
        assert_eq!(used(&tenant, PAIRS, &chunk), 2 * pair);
    }

    #[test]
    fn the_first_server_has_the_directory() {
        let first = HashTable::make(0, SHAPE, 4 << 10).unwrap();
        let other = HashTable::make(2, SHAPE, 4 << 10).unwrap();
        assert!(first.spare.start > other.spare.start);
        for loaded in [first, other] {
            let mut line = [0; HEADER_BYTES];
            loaded.region.read(0, &mut line).unwrap();
            assert_eq!(Shape::of_header(&line), Some((SHAPE, GlobalAddress::new(0, 64))));
            let mut tenant = loaded.tenant;
            assert_eq!((tenant.see(&line), tenant.see(&[0; HEADER_BYTES])), (Seen::Same, Seen::Refused));
        }
        assert!(matches!(HashTable::make(1, SHAPE, 0), Err(MakeError::Server(1))));
        let no_groups = Shape { groups: 0, ..SHAPE };
        assert!(matches!(HashTable::make(0, no_groups, 0), Err(MakeError::Shape(BadShape::Groups(0)))));
    }
}

//! What a memory server does for a table: it makes an empty one, takes one that was laid out from keys, and knows which memory is used.
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
mod lay;
mod make;
mod marks;

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use fatbtree_memserver::{Fellows, Found, Loaded, Marked, Seen, Tenant, find_block, find_slot, first_byte};
use fatbtree_remote_memory::record::{RECORD_HEAD, RecordHead, is_record};
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, SizeClass};
use fatbtree_verbs::Memory;

use crate::block::block_bytes;
use crate::layout::{BLOCKS, MEMBERS, PAIRS, SUCCESSORS, Shape, TableInfo, slot_offsets};
use crate::slot::{Place, UNIT};

pub use lay::LoadError;
pub use make::{MakeError, MakeOptions};

/// One server's part of a table.
#[derive(Clone, Debug)]
pub struct HashTable {
    server: u16,
    info: TableInfo,
    region: Arc<Memory>,
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

    /// Whether no other server has a part of the table.
    fn is_only(&self) -> bool {
        self.info.shape.servers.count_ones() == 1
    }

    /// Offset of the first subtable, after the directory.
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

    fn find(&self, class: SizeClass, within: Range<u64>) -> Found {
        if class == PAIRS {
            let pair = 2 * self.info.shape.subtable_bytes();
            return find_slot(within, pair, |at| first_byte(&self.region, at..at + pair).map(|_| 0));
        }
        let longest = block_bytes(self.info.shape.longest_record()).into();
        find_block(&self.region, within, (UNIT, longest), |at| {
            let head = self.head(at)?;
            Some((at + u64::from(block_bytes(head.length())), head.stamp()))
        })
    }

    fn is_free(&self, class: SizeClass, block: Range<u64>) -> bool {
        class == BLOCKS && block.start.is_multiple_of(UNIT) && self.block_end(block.start) == Some(block.end)
    }

    fn swept(&self) -> &[SizeClass] {
        &[BLOCKS]
    }

    /// Slots on other servers lead here, too.
    fn fellows(&self) -> Fellows {
        let members = self.word(self.info.directory.offset() + MEMBERS);
        Fellows::of(self.server, self.info.shape.servers, members)
    }

    fn begin_marks(&mut self, of: u16, bytes: u64, parts: &dyn Fn(SizeClass) -> Vec<Range<u64>>) {
        self.begin_walk(of, bytes, || parts(PAIRS));
    }

    fn mark(&mut self, budget: usize) -> bool {
        self.walk(budget)
    }

    fn take_marks(&mut self) -> Marked {
        self.take_walk()
    }

    /// The first server's part is empty if its first subtable has neither slot nor successors; another part if no client has written there.
    fn is_empty(&self, mut in_use: &mut dyn Iterator<Item = Range<u64>>) -> bool {
        if self.is_first() {
            let first = self.first_subtable();
            return Place::from_word(self.word(first + SUCCESSORS)).is_none()
                && slot_offsets(&self.info.shape).all(|offset| self.word(first + offset) == 0);
        }
        Iterator::all(&mut in_use, |part| first_byte(&self.region, part).is_none())
    }

    fn handle(&mut self, request: Infallible) {
        match request {}
    }

    /// A table of the same shape in the same place; its keys may be of another kind.
    fn may_follow(&self, former: &Self) -> bool {
        let TableInfo { shape, directory } = former.info;
        self.info == TableInfo { shape: Shape { keys: self.info.shape.keys, ..shape }, directory }
    }
}

impl HashTable {
    /// Head of the record that begins at an offset, if one does.
    fn head(&self, at: u64) -> Option<RecordHead> {
        let mut head = [0; RECORD_HEAD];
        self.region.read(at, &mut head).ok().filter(|()| is_record(&head))?;
        Some(RecordHead::parse(&head)).filter(|head| head.length() <= self.info.shape.longest_record())
    }

    /// End of the block of which a record begins at an offset.
    fn block_end(&self, at: u64) -> Option<u64> {
        self.head(at).map(|head| at + u64::from(block_bytes(head.length())))
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_remote_memory::{HEADER_BYTES, Keys};

    use super::*;
    use crate::key::Asked;
    use crate::layout::BadShape;

    const SHAPE: Shape =
        Shape { groups: 1, directory_bits: 4, servers: 0b101, max_value: 1_000, keys: Keys::Numbers };

    #[test]
    fn blocks_are_met_one_behind_another() {
        let Loaded { region, spare, tenant, .. } = HashTable::make(0, SHAPE, 16 << 10).unwrap();
        let chunk = spare.start..spare.start + (8 << 10);
        assert_eq!(tenant.find(BLOCKS, chunk.clone()), Found::Nothing(chunk.start + 4_096));
        let mut record = Vec::new();
        // A value of zeros: the last bytes of the block say nothing.
        crate::block::write(&mut record, Asked::number(7), 1, &[0; 500]);
        region.write(chunk.start + 128, &record).unwrap();
        assert_eq!(tenant.find(BLOCKS, chunk.clone()), Found::Nothing(chunk.start + 128));
        let place = chunk.start + 128..chunk.start + 128 + u64::from(block_bytes(500));
        let found = tenant.find(BLOCKS, place.start..chunk.end);
        assert!(matches!(found, Found::Block { end, .. } if end == place.end), "{found:?}");
        assert!(tenant.is_free(BLOCKS, place.clone()) && !tenant.is_free(PAIRS, place.clone()));
        assert!(!tenant.is_free(BLOCKS, place.start..place.end + 64));
        // The stamp is another one of another record.
        crate::block::write(&mut record, Asked::number(7), 2, &[0; 500]);
        region.write(place.start, &record).unwrap();
        assert_ne!(tenant.find(BLOCKS, place.start..chunk.end), found);
        // A WRITE without its begin: nothing is told of what may be the longest block there.
        region.write(chunk.start + 4_032, &[1]).unwrap();
        let end = chunk.start + 4_033 + u64::from(block_bytes(1_000));
        assert_eq!(tenant.find(BLOCKS, chunk.start + 4_032..chunk.end), Found::Unclear(end));
    }

    #[test]
    fn pairs_of_subtables_are_used_as_a_whole() {
        let Loaded { region, spare, tenant, .. } = HashTable::make(0, SHAPE, 16 << 10).unwrap();
        let pair = 2 * SHAPE.subtable_bytes();
        let chunk = spare.start..spare.start + 4 * pair;
        region.write(chunk.start + pair + 8, &[1]).unwrap();
        let next = chunk.start + pair;
        assert_eq!(tenant.find(PAIRS, chunk.clone()), Found::Nothing(next));
        assert_eq!(tenant.find(PAIRS, next..chunk.end), Found::Block { end: next + pair, stamp: 0 });
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

//! What a memory server does for an index: it makes an empty one, or [loads](load()) one, and knows which memory is used.
//!
//! What clients have used of a chunk is seen in the chunk: leaves, nodes and records are never all zeros.
//! So a restarted server finds the same. When a server is started with memory that was served before, it
//! clears the lines of clients: their sessions have ended.
//!
//! [`HybridIndex`] is one server's part of an index, as a [tenant](fatbtree_memserver::Tenant), and as a
//! [part](fatbtree_memserver::Part) of a structure over several servers: in memory or in a folder.
//!
//! Clients need [`Access::ALL`](fatbtree_verbs::Access::ALL) in
//! [`ServerOptions::access`](fatbtree_memserver::ServerOptions::access): keys are put by atomics.

mod describe;
mod load;
mod marks;
mod part;
mod strays;

use std::convert::Infallible;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fatbtree_memserver::{
    Fellows, Found, Loaded, Marked, PartOptions, Seen, Tenant, find_block, find_slot, first_byte,
};
use fatbtree_remote_memory::record::{RECORD_HEAD, RecordHead, is_record};
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, SizeClass};
use fatbtree_verbs::Memory;

use crate::entry::{Entry, NodeSize, UNIT};
use crate::inner::{self, HEAD_BYTES, Node, NodeState};
use crate::key::Prefix;
use crate::layout::{BadShape, LEAVES, LINES_BYTES, NODES, RECORDS, Shape, line_offset, members_offset};
use crate::leaf::{Header, LEAF_BYTES, LOCK, LeafState, LockLine};
use crate::word::place_bytes;

pub use load::{LoadCounts, LoadError, LoadOptions, LoadedIndex, load};
pub use strays::strays;

/// Bytes of a step over the lines of clients.
const BLOCK: u64 = 4096;

/// Options of a part of an index.
pub type MakeOptions = PartOptions<Shape>;

/// Errors from making an index.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// Such an index cannot be.
    #[error(transparent)]
    Shape(#[from] BadShape),
    /// The server is not one of the index's.
    #[error("memory server {0} is not in the index's list of servers; those are numbered below 32")]
    Server(u16),
    /// The region is larger than entries or words reach.
    #[error("a region of {found} bytes: an index reaches {most}")]
    Region {
        /// Bytes of the region.
        found: u64,
        /// The bound.
        most: u64,
    },
    /// The system gives no memory.
    #[error("no memory for a region of {bytes} bytes: {why}")]
    Memory {
        /// Bytes of the region.
        bytes: u64,
        /// The system's reason.
        why: io::Error,
    },
}

/// One server's part of an index.
#[derive(Clone, Debug)]
pub struct HybridIndex {
    server: u16,
    shape: Shape,
    region: Arc<Memory>,
    /// Whether the region was served before.
    served: Arc<AtomicBool>,
    is_seen: bool,
    marks: marks::Marks,
}

impl HybridIndex {
    /// A region with an empty index, or with memory for a part of one: the first of the index's servers
    /// has the root.
    ///
    /// # Errors
    /// When such an index cannot be, or there is no memory.
    pub fn make(server: u16, shape: Shape, spare_bytes: u64) -> Result<Loaded<Self>, MakeError> {
        let options = MakeOptions { spare_bytes, ..MakeOptions::new(server, shape) };
        fatbtree_memserver::make(&options)
    }

    /// Whether the server has the root.
    fn is_first(&self) -> bool {
        self.server == self.shape.home()
    }

    /// Clears what former sessions have left in their lines.
    fn clear_lines(&self) {
        let zeros = [0; BLOCK as usize];
        let mut block = [0; BLOCK as usize];
        for at in (line_offset(0)..line_offset(0) + LINES_BYTES).step_by(BLOCK as usize) {
            let found = self.region.read(at, &mut block);
            if found.is_ok() && block != zeros {
                self.region.write(at, &zeros).expect("it was read there");
            }
        }
    }
}

impl Tenant for HybridIndex {
    type Description = Shape;
    type Request = Infallible;

    fn description(&self) -> Shape {
        self.shape
    }

    fn root(&self) -> GlobalAddress {
        self.shape.root().at()
    }

    /// No client changes the header. At the first look nothing is connected yet.
    fn see(&mut self, header: &[u8; HEADER_BYTES]) -> Seen {
        if !std::mem::replace(&mut self.is_seen, true) && self.served.swap(true, Ordering::Relaxed) {
            self.clear_lines();
        }
        if Shape::of_header(header) == Some(self.shape) { Seen::Same } else { Seen::Refused }
    }

    fn find(&self, class: SizeClass, within: Range<u64>) -> Found {
        if class == LEAVES {
            let leaf = LEAF_BYTES as u64;
            return find_slot(within, leaf, |at| first_byte(&self.region, at..at + leaf).map(|_| 0));
        }
        let longest = match class {
            NODES => NodeSize::LARGEST.place_bytes(),
            _ => place_bytes(self.shape.max_value),
        };
        find_block(&self.region, within, (UNIT, longest.into()), |at| {
            self.block_end(class, at).map(|end| (end, 0))
        })
    }

    fn is_free(&self, class: SizeClass, block: Range<u64>) -> bool {
        if !block.start.is_multiple_of(UNIT) {
            return false;
        }
        match class {
            LEAVES => {
                let lock = self.bytes::<32>(block.start + LOCK).map(|line| LockLine::parse(&line));
                let is_free = |lock: LockLine| lock.is(LeafState::Retired) || lock.is(LeafState::Unborn);
                block.end - block.start == LEAF_BYTES as u64 && lock.is_some_and(is_free)
            }
            NODES => {
                let is_other = |(size, state): (NodeSize, u64)| {
                    let end = block.start + u64::from(size.place_bytes());
                    state & 7 != NodeState::Live as u64 && end == block.end
                };
                let head = self.bytes::<{ HEAD_BYTES as usize }>(block.start);
                head.and_then(|head| inner::size_in(&head)).is_some_and(is_other)
            }
            _ => self.block_end(class, block.start) == Some(block.end),
        }
    }

    fn swept(&self) -> &[SizeClass] {
        if self.shape.fixed() { &[] } else { &[RECORDS] }
    }

    fn sweeps_alone(&self) -> bool {
        true
    }

    fn fellows(&self) -> Fellows {
        let members = self.bytes(members_offset()).map_or(0, u64::from_le_bytes);
        Fellows::of(self.server, self.shape.servers, members)
    }

    fn begin_marks(&mut self, of: u16, bytes: u64, parts: &dyn Fn(SizeClass) -> Vec<Range<u64>>) {
        self.begin_walk(of, bytes, parts(LEAVES));
    }

    fn mark(&mut self, budget: usize) -> bool {
        self.walk(budget)
    }

    fn take_marks(&mut self) -> Marked {
        self.take_walk()
    }

    /// The first server's part is empty if the root has no child; another part if no client has written there.
    fn is_empty(&self, mut in_use: &mut dyn Iterator<Item = Range<u64>>) -> bool {
        if self.is_first() {
            return self.node(self.shape.root()).is_some_and(|root| root.entries.is_empty());
        }
        Iterator::all(&mut in_use, |part| first_byte(&self.region, part).is_none())
    }

    fn handle(&mut self, request: Infallible) {
        match request {}
    }

    /// An index of the same shape.
    fn may_follow(&self, former: &Self) -> bool {
        self.shape == former.shape
    }
}

impl HybridIndex {
    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.region.read(at, &mut bytes).ok().map(|()| bytes)
    }

    /// The node on this server that an entry leads to, if one of its size lies there.
    fn node(&self, entry: Entry) -> Option<Node> {
        let (at, size) = (entry.at(), entry.size());
        let mut bytes = vec![0; size.bytes() as usize];
        self.region.read(at.offset(), &mut bytes).ok()?;
        Node::parse(&bytes, at, size)
    }

    /// End of the node or record that begins at an offset.
    fn block_end(&self, class: SizeClass, at: u64) -> Option<u64> {
        let head = self.bytes::<RECORD_HEAD>(at)?;
        if class == NODES {
            return inner::size_in(&head).map(|(size, _)| at + u64::from(size.place_bytes()));
        }
        let length = RecordHead::parse(&head).length();
        let is_one = class == RECORDS && is_record(&head) && length <= self.shape.max_value;
        is_one.then(|| at + u64::from(place_bytes(length)))
    }
}

/// A leaf, as switches may lead to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// First key that a node sends to the leaf.
    pub low: u64,
    /// Last one.
    pub high: u64,
    /// Its address.
    pub leaf: GlobalAddress,
    /// The node above it.
    pub node: GlobalAddress,
}

/// Leaves of an index in the order of their keys. `read` fills a buffer with the bytes at an address of any
/// server; it says whether they are there.
///
/// Clients may change the index meanwhile: what is not in use at that moment is left out.
pub fn places(shape: &Shape, mut read: impl FnMut(GlobalAddress, &mut [u8]) -> bool) -> Vec<Place> {
    let mut places = Vec::new();
    let mut left = vec![(shape.root(), Prefix::ROOT)];
    // A torn copy may lead back: no path is longer than a key.
    while let Some((entry, above)) = left.pop() {
        let mut bytes = vec![0; entry.size().bytes() as usize];
        if !read(entry.at(), &mut bytes) {
            continue;
        }
        let node = Node::parse(&bytes, entry.at(), entry.size()).filter(|node| node.is(NodeState::Live));
        let Some(node) = node.filter(|node| entry == shape.root() || node.prefix.depth() > above.depth())
        else {
            continue;
        };
        let mut ends =
            node.entries.iter().skip(1).map(|(_, next)| node.prefix.first_of(next.byte()).saturating_sub(1));
        for (_, entry) in &node.entries {
            let high = ends.next().unwrap_or_else(|| node.prefix.high());
            let low = node.prefix.first_of(entry.byte());
            match entry.is_inner() {
                true => left.push((*entry, node.prefix)),
                false if low <= high => {
                    places.push(Place { low, high, leaf: entry.at(), node: node.at });
                }
                false => {}
            }
        }
    }
    places.sort_unstable_by_key(|place| place.low);
    places
}

/// Keys of the leaf that lies at an address, by its first line: whatever its state is, and whether a node leads to it or not.
/// `None` if no leaf lies there.
#[must_use]
pub fn keys_of_leaf(at: GlobalAddress, line: &[u8]) -> Option<RangeInclusive<u64>> {
    let header = Header::parse(line).filter(|header| header.own == at)?;
    (header.min <= header.max).then_some(header.min..=header.max)
}

const _: () = assert!(HEAD_BYTES as usize == RECORD_HEAD);

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { servers: 0b101, max_value: 1_000 };

    #[test]
    fn blocks_are_met_one_behind_another() {
        let Loaded { region, spare, tenant, .. } = HybridIndex::make(0, SHAPE, 16 << 10).unwrap();
        let chunk = spare.start..spare.start + (8 << 10);
        let nothing = |to| Found::Nothing(chunk.start + to);
        let block = |to| Found::Block { end: chunk.start + to, stamp: 0 };
        let find = |class, from| tenant.find(class, chunk.start + from..chunk.end);
        assert_eq!(
            [LEAVES, NODES, RECORDS].map(|class| find(class, 0)),
            [nothing(1024), nothing(4096), nothing(4096)]
        );
        // What was never written comes back with its part, so it must not be on a list as well.
        assert!(!tenant.is_free(LEAVES, chunk.start..chunk.start + 1024));
        assert!(!tenant.is_free(NODES, chunk.start..chunk.start + 192));
        assert!(!tenant.is_free(RECORDS, chunk.start..chunk.start + 192));
        let node = inner::build(Prefix::ROOT, NodeSize::NEW, 64, NodeState::Moved, []);
        region.write(chunk.start + 192, &node).unwrap();
        assert_eq!(
            [find(NODES, 0), find(NODES, 192), find(LEAVES, 0)],
            [nothing(192), block(384), block(1024)]
        );
        let place = chunk.start + 192..chunk.start + 384;
        assert!(tenant.is_free(NODES, place.clone()) && !tenant.is_free(LEAVES, place.clone()));
        assert!(!tenant.is_free(NODES, place.start..place.end + 64));
        let mut record = Vec::new();
        // A value of zeros: the last bytes of the block say nothing.
        crate::word::write(&mut record, 7, 1, &[0; 500]);
        region.write(chunk.start + 1024, &record).unwrap();
        assert_eq!(find(RECORDS, 1024), block(1024 + u64::from(place_bytes(500))));
        // What lies before it is no record.
        let longest = 1024 + 24 + u64::from(place_bytes(1_000)) + 1;
        assert!(matches!(find(RECORDS, 192), Found::Unclear(end) if end <= chunk.start + longest));
    }

    #[test]
    fn the_first_server_has_the_root_and_a_restart_clears_lines() {
        let first = HybridIndex::make(0, SHAPE, 4 << 10).unwrap();
        let other = HybridIndex::make(2, SHAPE, 4 << 10).unwrap();
        assert!(first.spare.start > other.spare.start);
        for loaded in [first, other] {
            let mut line = [0; HEADER_BYTES];
            loaded.region.read(0, &mut line).unwrap();
            let mut tenant = loaded.tenant.clone();
            assert_eq!((tenant.see(&line), tenant.see(&[0; HEADER_BYTES])), (Seen::Same, Seen::Refused));
            loaded.region.write(line_offset(9), &[1; 8]).unwrap();
            tenant.see(&line);
            assert_eq!(tenant.bytes(line_offset(9)), Some([1; 8]), "it is served");
            let mut again = loaded.tenant;
            again.see(&line);
            assert_eq!(again.bytes(line_offset(9)), Some([0; 8]));
        }
        assert!(matches!(HybridIndex::make(1, SHAPE, 0), Err(MakeError::Server(1))));
        let no_servers = Shape { servers: 0, ..SHAPE };
        assert!(matches!(HybridIndex::make(0, no_servers, 0), Err(MakeError::Shape(BadShape::Servers))));
    }
}

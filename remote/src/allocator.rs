//! Memory for what is new: what each server has given the client, and the operations that wait for more.

use std::collections::BTreeMap;
use std::fmt;
use std::task::Waker;

use crate::address::GlobalAddress;
use crate::checks::Check;
use crate::locks::SessionId;
use crate::record::{RECORD_ALIGN, RecordPointer, place_bytes};

/// What lies in a chunk of memory. It is used for nothing else, ever: a stale pointer to a node must meet a node. Kinds are what
/// servers account for; they are named after the index that there is, and another one takes those whose sizes are like its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum ChunkKind {
    /// Leaf nodes.
    Leaves,
    /// Internal nodes.
    InternalNodes,
    /// Records: values out of line.
    Records,
}

impl ChunkKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Leaves, Self::InternalNodes, Self::Records];
}

impl fmt::Display for ChunkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leaves => "leaves",
            Self::InternalNodes => "internal nodes",
            Self::Records => "records",
        })
    }
}

/// Reasons for which a server gives no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shortage {
    /// All chunks of its region were given out.
    Region,
    /// Its disk is full.
    Disk,
    /// The client has as much as it may.
    Bound,
    /// The server has lost its tree.
    TreeLost,
    /// The server has not said so, or has not answered.
    #[default]
    Unknown,
}

impl Shortage {
    /// All of them, by a word for each.
    pub const WORDS: [(&str, Self); 5] = [
        ("region", Self::Region),
        ("disk", Self::Disk),
        ("bound", Self::Bound),
        ("tree-lost", Self::TreeLost),
        ("unknown", Self::Unknown),
    ];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, of)| *of == self).map_or("unknown", |(word, _)| word)
    }

    /// The one of a word; of another word, [`Unknown`](Self::Unknown).
    #[must_use]
    pub fn of_word(word: &str) -> Self {
        Self::WORDS.iter().find(|(of, _)| *of == word).map_or(Self::Unknown, |(_, shortage)| *shortage)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Region => "its region is full; delete keys, or load it with more spare memory",
            Self::Disk => "its disk is full; make room there",
            Self::Bound => "this client has as much as it may; raise the bound of chunks per client",
            Self::TreeLost => "it has lost its tree; load it again",
            Self::Unknown => "it refuses, or does not answer; the log of the client says how",
        })
    }
}

/// Places of freed nodes of a kind, or of freed records of a size, on one server that a client keeps for itself.
pub const SURPLUS: usize = 64;

/// The rest of a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    next: u64,
    end: u64,
}

/// Memory of one kind on one server.
#[derive(Debug, Default)]
struct ClassPool {
    rest: Rest,
    /// Nodes that were taken and not used, or merged away.
    returned: Vec<GlobalAddress>,
    /// The owner was asked for more and has not brought it.
    asked: bool,
    /// Number of refusals so far.
    refusals: u32,
    /// Reason for the last refusal.
    shortage: Shortage,
    waiting: Vec<Waker>,
}

impl ClassPool {
    /// Memory that has not been used yet.
    fn take(&mut self, want: Want) -> Option<GlobalAddress> {
        let Rest { next, end } = self.rest;
        let behind = next.checked_add(u64::from(want.bytes).next_multiple_of(RECORD_ALIGN))?;
        if behind > end {
            return None;
        }
        self.rest.next = behind;
        Some(GlobalAddress::new(want.server, next))
    }
}

/// Places of nodes or records that a client has freed and does not need, for its server's lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReturnedBlocks {
    /// Server of the blocks.
    pub server: u16,
    /// Session in which they were the client's: in another one they must not be given back.
    pub session: SessionId,
    /// Kind of memory.
    pub kind: ChunkKind,
    /// Bytes of each, if they are records'; 0 for nodes, which have their own size.
    pub bytes: u32,
    /// Start addresses.
    pub addresses: Vec<GlobalAddress>,
}

/// A place for a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordBlock {
    /// Start address.
    pub address: GlobalAddress,
    /// The version that the next record there has; none if it follows from what is there, which must be read.
    pub version: Option<u32>,
}

/// Memory for one node or record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// Where.
    pub server: u16,
    /// For what.
    pub kind: ChunkKind,
    /// Bytes of the node, or of the record's place.
    pub bytes: u32,
    /// Whether the memory must not have been used before.
    pub is_fresh: bool,
}

impl Want {
    /// A place for the record of a value with `length` bytes.
    pub const fn record(server: u16, length: u32) -> Self {
        Self { server, kind: ChunkKind::Records, bytes: place_bytes(length), is_fresh: false }
    }
}

/// Unused memory that a client has of one server, and the places that it has freed there.
#[derive(Debug)]
pub struct Allocator {
    server: u16,
    /// Pools by kind.
    pools: [ClassPool; ChunkKind::ALL.len()],
    /// Places of freed records, by their bytes.
    places: BTreeMap<u32, Vec<RecordBlock>>,
}

impl Allocator {
    /// Allocator of a server, without memory.
    #[must_use]
    pub fn new(server: u16) -> Self {
        Self { server, pools: Default::default(), places: BTreeMap::new() }
    }

    fn pool(&mut self, kind: ChunkKind) -> &mut ClassPool {
        &mut self.pools[kind as usize]
    }

    /// Takes up a chunk. What was left of the one before is given up: it is less than what was wanted.
    pub fn grant(&mut self, address: GlobalAddress, bytes: u64, kind: ChunkKind) -> Vec<Waker> {
        let pool = self.pool(kind);
        pool.rest = Rest { next: address.offset(), end: address.offset() + bytes };
        pool.asked = false;
        std::mem::take(&mut pool.waiting)
    }

    /// Takes up places that others have freed: of nodes, or of records of `bytes` each.
    pub fn grant_blocks(&mut self, kind: ChunkKind, bytes: u32, addresses: &[GlobalAddress]) -> Vec<Waker> {
        let pool = self.pool(kind);
        pool.asked = false;
        let waiting = std::mem::take(&mut pool.waiting);
        if kind == ChunkKind::Records {
            let places = addresses.iter().map(|&address| RecordBlock { address, version: None });
            self.places.entry(bytes).or_default().extend(places);
        } else {
            pool.returned.extend_from_slice(addresses);
        }
        waiting
    }

    /// Notes that there is no memory. Waiting operations give up.
    pub fn refuse(&mut self, kind: ChunkKind, why: Shortage) -> Vec<Waker> {
        let pool = self.pool(kind);
        pool.asked = false;
        pool.shortage = why;
        pool.refusals = pool.refusals.wrapping_add(1);
        std::mem::take(&mut pool.waiting)
    }

    /// Number of refusals, and the reason for the last one.
    pub fn refusals(&self, kind: ChunkKind) -> (u32, Shortage) {
        let pool = &self.pools[kind as usize];
        (pool.refusals, pool.shortage)
    }

    /// All operations that wait for memory.
    pub fn take_waiting(&mut self) -> Vec<Waker> {
        self.pools.iter_mut().flat_map(|pool| std::mem::take(&mut pool.waiting)).collect()
    }

    /// Keeps the rests of chunks and the nodes of a session that has ended, as must not be.
    pub fn keep_chunks(&mut self, former: &mut Self) {
        for (pool, former) in self.pools.iter_mut().zip(&mut former.pools) {
            (pool.rest, pool.returned) = (former.rest, std::mem::take(&mut former.returned));
        }
    }

    /// Keeps the places of records of a session that has ended, as must not be.
    pub fn keep_blocks(&mut self, former: &mut Self) {
        self.places = std::mem::take(&mut former.places);
    }

    /// Takes out places that were freed, of each kind and size as many as there are above `keep`: the oldest. They are of `session`.
    pub fn take_returned(&mut self, session: SessionId, keep: usize) -> Vec<ReturnedBlocks> {
        let (server, above) = (self.server, |len: usize| len.saturating_sub(keep));
        let nodes = ChunkKind::ALL.into_iter().zip(&mut self.pools).map(|(kind, pool)| {
            let addresses = pool.returned.drain(..above(pool.returned.len())).collect();
            ReturnedBlocks { server, session, kind, bytes: 0, addresses }
        });
        let records = self.places.iter_mut().map(|(&bytes, places)| {
            let addresses = places.drain(..above(places.len())).map(|place| place.address).collect();
            ReturnedBlocks { server, session, kind: ChunkKind::Records, bytes, addresses }
        });
        nodes.chain(records).filter(|returned| !returned.addresses.is_empty()).collect()
    }

    /// Memory for a node; none when the chunk is used up.
    pub fn take(&mut self, want: Want) -> Option<GlobalAddress> {
        let pool = self.pool(want.kind);
        let used = if want.is_fresh { None } else { pool.returned.pop() };
        used.or_else(|| pool.take(want))
    }

    /// A place for the record of a value; none when there is none and the chunk is used up.
    pub fn take_record(&mut self, length: u32) -> Option<RecordBlock> {
        let freed = self.places.get_mut(&place_bytes(length)).and_then(Vec::pop);
        freed.or_else(|| {
            let want = Want::record(self.server, length);
            let address = self.pool(want.kind).take(want)?;
            Some(RecordBlock { address, version: Some(1) })
        })
    }

    /// Takes back the place of a record to which no entry leads any more.
    pub fn free_record(&mut self, record: RecordPointer) {
        let RecordPointer { address, length, version } = record;
        let next = if Check::RecordVersionGoesOn.on() { version.wrapping_add(1) } else { version };
        let place = RecordBlock { address, version: Some(next) };
        self.put_back_record(place, place_bytes(length));
    }

    /// Takes back the place of a record that was never linked.
    pub fn put_back_record(&mut self, place: RecordBlock, bytes: u32) {
        self.places.entry(bytes).or_default().push(place);
    }

    /// Takes back a node that was never linked.
    pub fn put_back(&mut self, node: GlobalAddress, kind: ChunkKind) {
        self.pool(kind).returned.push(node);
    }

    /// Waits for the next chunk. Says whether the owner has to be asked for it.
    pub fn wait(&mut self, kind: ChunkKind, waker: &Waker) -> bool {
        let pool = self.pool(kind);
        if !pool.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            pool.waiting.push(waker.clone());
        }
        !std::mem::replace(&mut pool.asked, true)
    }

    /// Whether there is room for so much.
    pub fn has(&self, want: Want) -> bool {
        let Want { kind, bytes, is_fresh, .. } = want;
        if kind == ChunkKind::Records && self.places.get(&bytes).is_some_and(|places| !places.is_empty()) {
            return true;
        }
        let pool = &self.pools[kind as usize];
        !pool.returned.is_empty() && !is_fresh
            || pool.rest.end - pool.rest.next >= u64::from(bytes).next_multiple_of(RECORD_ALIGN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(server: u16, kind: ChunkKind, bytes: u32) -> Want {
        Want { server, kind, bytes, is_fresh: false }
    }

    #[test]
    fn a_chunk_is_used_up_and_the_owner_is_asked_once() {
        let mut allocator = Allocator::new(2);
        let leaves = ChunkKind::Leaves;
        assert_eq!(allocator.take(node(2, leaves, 128)), None);
        assert!(allocator.wait(leaves, Waker::noop()) && !allocator.wait(leaves, Waker::noop()));
        assert_eq!(allocator.grant(GlobalAddress::new(2, 1024), 256, leaves).len(), 1);
        let nodes: Vec<_> = std::iter::from_fn(|| allocator.take(node(2, leaves, 128))).collect();
        assert_eq!(nodes, [GlobalAddress::new(2, 1024), GlobalAddress::new(2, 1152)]);
        assert!(!allocator.has(node(2, leaves, 128)));
        allocator.put_back(nodes[0], leaves);
        assert!(allocator.has(node(2, leaves, 128)));
        assert_eq!(allocator.take(node(2, leaves, 128)), Some(nodes[0]));
        assert!(allocator.wait(leaves, Waker::noop()), "it has come once: the next is asked for again");
        assert_eq!(allocator.take_record(8), None, "kinds do not mix");
    }

    #[test]
    fn what_is_returned_goes_to_others_above_a_bound() {
        let (mut allocator, session) = (Allocator::new(2), SessionId(7));
        let (leaves, inner) = (ChunkKind::Leaves, ChunkKind::InternalNodes);
        let nodes = [1, 2, 3].map(|at| GlobalAddress::new(2, at * 128));
        nodes.iter().for_each(|&node| allocator.put_back(node, leaves));
        allocator.put_back(GlobalAddress::new(2, 64), inner);
        let first =
            ReturnedBlocks { server: 2, session, kind: leaves, bytes: 0, addresses: nodes[..1].to_vec() };
        assert_eq!(allocator.take_returned(session, 2), [first]);
        assert_eq!(allocator.take_returned(session, 2), []);
        let rest = allocator.take_returned(session, 0);
        assert_eq!(rest.iter().map(|found| found.addresses.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(allocator.take(node(2, leaves, 128)), None);

        assert!(allocator.wait(leaves, Waker::noop()));
        assert_eq!(allocator.grant_blocks(leaves, 0, &nodes).len(), 1);
        assert_eq!(allocator.take(node(2, leaves, 128)), Some(nodes[2]));
        assert!(allocator.wait(inner, Waker::noop()) && allocator.wait(leaves, Waker::noop()));
        assert_eq!(allocator.take_waiting().len(), 2);
    }

    #[test]
    fn places_of_records_go_to_others_and_their_versions_stay_with_them() {
        let (mut allocator, session) = (Allocator::new(1), SessionId(7));
        let at = GlobalAddress::new(1, 4096);
        let freed = RecordPointer { address: at, length: 100, version: 7 };
        allocator.free_record(freed);
        assert_eq!(allocator.take_record(200), None);
        assert_eq!(allocator.take_record(100), Some(RecordBlock { address: at, version: Some(8) }));
        allocator.free_record(freed);
        let bytes = place_bytes(100);
        let returned =
            ReturnedBlocks { server: 1, session, kind: ChunkKind::Records, bytes, addresses: vec![at] };
        assert_eq!(allocator.take_returned(session, 0), [returned]);
        assert!(!allocator.has(Want::record(1, 100)));
        allocator.grant_blocks(ChunkKind::Records, bytes, &[at]);
        assert!(allocator.has(Want::record(1, 100)));
        assert_eq!(allocator.take_record(100), Some(RecordBlock { address: at, version: None }));
    }

    #[test]
    fn records_begin_at_multiples_of_eight() {
        let mut allocator = Allocator::new(0);
        allocator.grant(GlobalAddress::new(0, 64), 120, ChunkKind::Records);
        let records = [13, 8, 21, 8].map(|length| allocator.take_record(length).map(|place| place.address));
        let at = |offset| Some(GlobalAddress::new(0, offset));
        assert_eq!(records, [at(64), at(104), at(136), None]);
    }
}

//! Memory for what is new: what each server has given the client, and the operations that wait for more.

use std::collections::BTreeMap;
use std::fmt;
use std::task::Waker;

use crate::address::GlobalAddress;
use crate::checks::Check;
use crate::locks::SessionId;
use crate::record::{RECORD_ALIGN, RecordPointer, place_bytes};

/// Number of a size class: blocks of one size, or of several sizes that share chunks. A structure numbers its classes from 0 and registers
/// them with its memory servers.
///
/// A chunk keeps its first class for ever: a stale pointer to a block must meet a block of the same class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SizeClass(pub u8);

impl fmt::Display for SizeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "size class {}", self.0)
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
    /// The server has lost what it held.
    Lost,
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
        ("lost", Self::Lost),
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
            Self::Lost => "it has lost what it held; load it again",
            Self::Unknown => "it refuses, or does not answer; the log of the client says how",
        })
    }
}

/// Freed blocks of one class and size, on one server, that a client keeps for itself.
pub const SURPLUS: usize = 64;

/// The rest of a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    next: u64,
    end: u64,
}

/// Memory of one class on one server.
#[derive(Debug, Default)]
struct ClassPool {
    rest: Rest,
    /// The owner was asked for more and has not brought it.
    asked: bool,
    /// Number of refusals so far.
    refusals: u32,
    /// Reason for the last refusal.
    shortage: Shortage,
    waiting: Vec<Waker>,
}

/// Freed blocks that a client does not need, for their server's lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReturnedBlocks {
    /// Server of the blocks.
    pub server: u16,
    /// Session in which they were the client's: in another one they must not be given back.
    pub session: SessionId,
    /// Their class.
    pub class: SizeClass,
    /// Bytes of each.
    pub bytes: u32,
    /// Start addresses.
    pub addresses: Vec<GlobalAddress>,
}

/// A block that is free, or has just been taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Start address.
    pub address: GlobalAddress,
    /// The version that the next record there has; none if it follows from what is there, which must be read.
    pub version: Option<u32>,
}

/// Memory for one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// Where.
    pub server: u16,
    /// For what.
    pub class: SizeClass,
    /// Bytes of the block.
    pub bytes: u32,
    /// Whether the memory must not have been used before.
    pub is_fresh: bool,
}

impl Want {
    /// A block for the record of a value with `length` bytes.
    #[must_use]
    pub const fn record(server: u16, class: SizeClass, length: u32) -> Self {
        Self { server, class, bytes: place_bytes(length), is_fresh: false }
    }
}

/// Unused memory that a client has of one server, and the blocks that it has freed there.
#[derive(Debug)]
pub struct Allocator {
    server: u16,
    /// Pools by class.
    pools: Vec<ClassPool>,
    /// Freed blocks, by class and bytes. The last one is used first.
    free: BTreeMap<(SizeClass, u32), Vec<Block>>,
    /// Freed blocks that this client uses no more, while it settles.
    aside: Option<Vec<(SizeClass, u32, GlobalAddress)>>,
}

impl Allocator {
    /// Allocator of a server, without memory.
    #[must_use]
    pub const fn new(server: u16) -> Self {
        Self { server, pools: Vec::new(), free: BTreeMap::new(), aside: None }
    }

    fn pool(&mut self, class: SizeClass) -> &mut ClassPool {
        let at = usize::from(class.0);
        if self.pools.len() <= at {
            self.pools.resize_with(at + 1, ClassPool::default);
        }
        &mut self.pools[at]
    }

    /// Takes up a chunk. What was left of the one before is given up: it is less than what was wanted.
    pub fn grant(&mut self, address: GlobalAddress, bytes: u64, class: SizeClass) -> Vec<Waker> {
        let pool = self.pool(class);
        pool.rest = Rest { next: address.offset(), end: address.offset() + bytes };
        pool.asked = false;
        std::mem::take(&mut pool.waiting)
    }

    /// Takes up blocks of `bytes` each that others have freed.
    pub fn grant_blocks(&mut self, class: SizeClass, bytes: u32, addresses: &[GlobalAddress]) -> Vec<Waker> {
        let blocks = addresses.iter().map(|&address| Block { address, version: None });
        self.free.entry((class, bytes)).or_default().extend(blocks);
        let pool = self.pool(class);
        pool.asked = false;
        std::mem::take(&mut pool.waiting)
    }

    /// Notes that there is no memory. Waiting operations give up.
    pub fn refuse(&mut self, class: SizeClass, why: Shortage) -> Vec<Waker> {
        let pool = self.pool(class);
        pool.asked = false;
        pool.shortage = why;
        pool.refusals = pool.refusals.wrapping_add(1);
        std::mem::take(&mut pool.waiting)
    }

    /// Number of refusals, and the reason for the last one.
    pub fn refusals(&mut self, class: SizeClass) -> (u32, Shortage) {
        let pool = self.pool(class);
        (pool.refusals, pool.shortage)
    }

    /// All operations that wait for memory.
    pub fn take_waiting(&mut self) -> Vec<Waker> {
        self.pools.iter_mut().flat_map(|pool| std::mem::take(&mut pool.waiting)).collect()
    }

    /// Keeps the rests of chunks of a session that has ended, as must not be.
    pub fn keep_chunks(&mut self, former: &Self) {
        let rests = former.pools.iter().map(|pool| ClassPool { rest: pool.rest, ..ClassPool::default() });
        self.pools = rests.collect();
    }

    /// Keeps the freed blocks of a session that has ended, as must not be.
    pub fn keep_blocks(&mut self, former: &mut Self) {
        self.free = std::mem::take(&mut former.free);
    }

    /// Takes out freed blocks, of each class and size as many as there are above `keep`: the oldest. They are of `session`.
    pub fn take_returned(&mut self, session: SessionId, keep: usize) -> Vec<ReturnedBlocks> {
        let server = self.server;
        let returned = self.free.iter_mut().map(|(&(class, bytes), blocks)| {
            let above = blocks.len().saturating_sub(keep);
            let addresses = blocks.drain(..above).map(|block| block.address).collect();
            ReturnedBlocks { server, session, class, bytes, addresses }
        });
        returned.filter(|returned| !returned.addresses.is_empty()).collect()
    }

    /// A block; none when there is no free one and the chunk is used up.
    pub fn take(&mut self, want: Want) -> Option<Block> {
        let Want { server, class, bytes, is_fresh } = want;
        if !is_fresh && let Some(block) = self.free.get_mut(&(class, bytes)).and_then(Vec::pop) {
            return Some(block);
        }
        let rest = &mut self.pool(class).rest;
        let behind = rest.next.checked_add(u64::from(bytes).next_multiple_of(RECORD_ALIGN))?;
        if behind > rest.end {
            return None;
        }
        let address = GlobalAddress::new(server, std::mem::replace(&mut rest.next, behind));
        Some(Block { address, version: Some(1) })
    }

    /// Takes back the block of a record to which no entry leads any more.
    pub fn free_record(&mut self, class: SizeClass, record: RecordPointer) {
        let RecordPointer { address, length, version } = record;
        let next = if Check::RecordVersionGoesOn.on() { version.wrapping_add(1) } else { version };
        self.put_back(class, place_bytes(length), Block { address, version: Some(next) });
    }

    /// Takes back a block that was never linked, or to which nothing leads any more.
    pub fn put_back(&mut self, class: SizeClass, bytes: u32, block: Block) {
        if let Some(aside) = &mut self.aside {
            aside.push((class, bytes, block.address));
            return;
        }
        self.free.entry((class, bytes)).or_default().push(block);
    }

    /// Bytes of all freed blocks, set aside or not.
    pub fn kept_bytes(&self) -> u64 {
        let free = self.free.iter().map(|(&(_, bytes), blocks)| u64::from(bytes) * blocks.len() as u64);
        let aside = self.aside.iter().flatten().map(|&(_, bytes, _)| u64::from(bytes));
        free.chain(aside).sum()
    }

    /// Sets all freed blocks aside, and all that are freed from now on.
    pub fn set_aside(&mut self) {
        let aside = self.aside.get_or_insert_default();
        for ((class, bytes), blocks) in std::mem::take(&mut self.free) {
            aside.extend(blocks.into_iter().map(|block| (class, bytes, block.address)));
        }
    }

    /// Takes out what was set aside, and sets nothing aside any more. It is of `session`.
    pub fn take_set_aside(&mut self, session: SessionId) -> Vec<ReturnedBlocks> {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        for (class, bytes, address) in self.aside.take().unwrap_or_default() {
            all.entry((class, bytes)).or_default().push(address);
        }
        let server = self.server;
        let of_one =
            |((class, bytes), addresses)| ReturnedBlocks { server, session, class, bytes, addresses };
        all.into_iter().map(of_one).collect()
    }

    /// Waits for the next chunk. Says whether the owner has to be asked for it.
    pub fn wait(&mut self, class: SizeClass, waker: &Waker) -> bool {
        let pool = self.pool(class);
        if !pool.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            pool.waiting.push(waker.clone());
        }
        !std::mem::replace(&mut pool.asked, true)
    }

    /// Whether there is room for so much.
    pub fn has(&mut self, want: Want) -> bool {
        let Want { class, bytes, is_fresh, .. } = want;
        let is_free = !is_fresh && self.free.get(&(class, bytes)).is_some_and(|blocks| !blocks.is_empty());
        let rest = self.pool(class).rest;
        is_free || rest.end - rest.next >= u64::from(bytes).next_multiple_of(RECORD_ALIGN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: SizeClass = SizeClass(0);
    const RECORDS: SizeClass = SizeClass(2);

    fn node(server: u16, class: SizeClass, bytes: u32) -> Want {
        Want { server, class, bytes, is_fresh: false }
    }

    fn freed(address: GlobalAddress) -> Block {
        Block { address, version: None }
    }

    #[test]
    fn a_chunk_is_used_up_and_the_owner_is_asked_once() {
        let mut allocator = Allocator::new(2);
        let want = node(2, NODES, 128);
        assert_eq!(allocator.take(want), None);
        assert!(allocator.wait(NODES, Waker::noop()) && !allocator.wait(NODES, Waker::noop()));
        assert_eq!(allocator.grant(GlobalAddress::new(2, 1024), 256, NODES).len(), 1);
        let nodes: Vec<_> = std::iter::from_fn(|| allocator.take(want)).map(|block| block.address).collect();
        assert_eq!(nodes, [GlobalAddress::new(2, 1024), GlobalAddress::new(2, 1152)]);
        assert!(!allocator.has(want));
        allocator.put_back(NODES, 128, freed(nodes[0]));
        assert!(allocator.has(want) && !allocator.has(Want { is_fresh: true, ..want }));
        assert_eq!(allocator.take(Want { is_fresh: true, ..want }), None, "it has been used");
        assert_eq!(allocator.take(want), Some(freed(nodes[0])));
        assert!(allocator.wait(NODES, Waker::noop()), "it has come once: the next is asked for again");
        assert_eq!(allocator.take(Want::record(2, RECORDS, 8)), None, "classes do not mix");
    }

    #[test]
    fn what_is_returned_goes_to_others_above_a_bound() {
        let (mut allocator, session) = (Allocator::new(2), SessionId(7));
        let nodes = [1, 2, 3].map(|at| GlobalAddress::new(2, at * 128));
        nodes.iter().for_each(|&node| allocator.put_back(NODES, 128, freed(node)));
        allocator.put_back(SizeClass(1), 64, freed(GlobalAddress::new(2, 64)));
        let addresses = nodes[..1].to_vec();
        let first = ReturnedBlocks { server: 2, session, class: NODES, bytes: 128, addresses };
        assert_eq!(allocator.take_returned(session, 2), [first]);
        assert_eq!(allocator.take_returned(session, 2), []);
        let rest = allocator.take_returned(session, 0);
        assert_eq!(rest.iter().map(|found| found.addresses.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(allocator.take(node(2, NODES, 128)), None);

        assert!(allocator.wait(NODES, Waker::noop()));
        assert_eq!(allocator.grant_blocks(NODES, 128, &nodes).len(), 1);
        assert_eq!(allocator.take(node(2, NODES, 128)), Some(freed(nodes[2])));
        assert!(allocator.wait(SizeClass(1), Waker::noop()) && allocator.wait(NODES, Waker::noop()));
        assert_eq!(allocator.take_waiting().len(), 2);
    }

    #[test]
    fn a_client_that_settles_uses_no_block_again() {
        let (mut allocator, session) = (Allocator::new(2), SessionId(7));
        let [one, other, later] = [1, 2, 3].map(|at| GlobalAddress::new(2, at * 128));
        allocator.put_back(NODES, 128, freed(one));
        allocator.set_aside();
        allocator.put_back(NODES, 128, freed(other));
        assert_eq!(allocator.take(node(2, NODES, 128)), None);
        // What the server gives meanwhile is used.
        allocator.grant_blocks(NODES, 128, &[later]);
        assert_eq!(allocator.take(node(2, NODES, 128)), Some(freed(later)));
        let addresses = vec![one, other];
        let aside = ReturnedBlocks { server: 2, session, class: NODES, bytes: 128, addresses };
        assert_eq!(
            (allocator.take_set_aside(session), allocator.take_set_aside(session)),
            (vec![aside], vec![])
        );
        allocator.put_back(NODES, 128, freed(one));
        assert_eq!(allocator.take(node(2, NODES, 128)), Some(freed(one)));
    }

    #[test]
    fn blocks_of_records_go_to_others_and_their_versions_stay_with_them() {
        let (mut allocator, session) = (Allocator::new(1), SessionId(7));
        let at = GlobalAddress::new(1, 4096);
        let record = RecordPointer { address: at, length: 100, version: 7 };
        let want = Want::record(1, RECORDS, 100);
        allocator.free_record(RECORDS, record);
        assert_eq!(allocator.take(Want::record(1, RECORDS, 200)), None);
        assert_eq!(allocator.take(want), Some(Block { address: at, version: Some(8) }));
        allocator.free_record(RECORDS, record);
        let bytes = place_bytes(100);
        let returned = ReturnedBlocks { server: 1, session, class: RECORDS, bytes, addresses: vec![at] };
        assert_eq!(allocator.take_returned(session, 0), [returned]);
        assert!(!allocator.has(want));
        allocator.grant_blocks(RECORDS, bytes, &[at]);
        assert!(allocator.has(want));
        assert_eq!(allocator.take(want), Some(freed(at)));
    }

    #[test]
    fn records_begin_at_multiples_of_eight() {
        let mut allocator = Allocator::new(0);
        allocator.grant(GlobalAddress::new(0, 64), 120, RECORDS);
        let records = [13, 8, 21, 8].map(|length| allocator.take(Want::record(0, RECORDS, length)));
        let at = |offset| Some(Block { address: GlobalAddress::new(0, offset), version: Some(1) });
        assert_eq!(records, [at(64), at(104), at(136), None]);
    }
}

//! What sessions cost: no more than what they write, and a stated share.

use fatbtree_memserver::{
    Bounds, ClientId, Grant, Limits, MemoryServer, ServerOptions, SessionKey, SizeClass,
};
use fatbtree_race::block::block_bytes;
use fatbtree_race::host::HashTable;
use fatbtree_race::{BLOCKS, PAIRS, Shape};
use fatbtree_remote_memory::record::{UNPUBLISHED, record_bytes, write_record};
use fatbtree_verbs::Access;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Instant;

const NOW: Instant = Instant::ZERO;

struct Lab(MemoryServer<PlainDevice, HashTable>);

impl Lab {
    fn new(spare_bytes: u64) -> Self {
        let shape = Shape { servers: 1, ..Shape::default() };
        let content = HashTable::make(0, shape, spare_bytes).expect("nothing is in the way");
        let bounds = Bounds { sessions: 4096, queue_pairs: 1, chunks: 1024, attempts: 1 << 20 };
        let limits = Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() };
        let options = ServerOptions { access: Access::ALL, limits, ..ServerOptions::writable() };
        Self(MemoryServer::new(PlainNetwork::new().device(), content, &options, 1).expect("it can be served"))
    }

    fn open(&mut self) -> SessionKey {
        let client = ClientId { host: [127, 0, 0, 1].into(), roce: [10, 0, 0, 1].into() };
        self.0.open_session(NOW, client).expect("there is room").session
    }

    fn close(&mut self, session: SessionKey) {
        self.0.close_session(NOW, session).expect("it is open");
        while self.0.work(NOW, 64) {}
    }

    fn part(&mut self, session: SessionKey, class: SizeClass, bytes: u32) -> (u64, u64) {
        let Grant::Chunk(part) = self.0.allocate(NOW, session, class, bytes).expect("there is room") else {
            panic!("no block was given back")
        };
        (part.address.offset(), part.bytes)
    }

    fn insert(&mut self, session: SessionKey, length: u32, count: u64) {
        let block = u64::from(block_bytes(length));
        let mut record = vec![0; record_bytes(length) as usize];
        write_record(&mut record, 2, 1, UNPUBLISHED, |_| {});
        let (mut next, mut left) = (0, 0);
        for _ in 0..count {
            if left < block {
                (next, left) = self.part(session, BLOCKS, block as u32);
            }
            self.0.memory().write(next, &record).expect("inside of the region");
            (next, left) = (next + block, left - block);
        }
    }
}

/// What `sessions` leave that write `each` one block.
fn leaves(length: u32, sessions: u64, each: u64) -> u64 {
    let mut lab = Lab::new(256 << 20);
    let before = lab.0.region_bytes().free;
    for _ in 0..sessions {
        let session = lab.open();
        lab.insert(session, length, each);
        lab.close(session);
    }
    before - lab.0.region_bytes().free
}

#[test]
fn many_short_sessions_leave_what_one_long_one_leaves() {
    for length in [8, 100, 1000, 60_000, 1 << 20] {
        let count = if length > 10_000 { 60 } else { 1000 };
        let (one, many) = (leaves(length, 1, count), leaves(length, count, 1));
        let data = count * u64::from(block_bytes(length));
        assert!(one <= data + data / 8 && many <= data + data / 8, "{length}: {one}, {many} for {data}");
    }
}

#[test]
fn a_thousand_writers_fit_a_server_of_four_gibibytes() {
    let mut lab = Lab::new(4 << 30);
    let sessions: Vec<_> = (0..1000).map(|_| lab.open()).collect();
    for &session in &sessions {
        lab.part(session, BLOCKS, block_bytes(100));
        lab.part(session, PAIRS, 0);
    }
    for session in sessions {
        lab.close(session);
    }
    let all = lab.0.region_bytes();
    assert!(all.held == 0 && all.free >= (4 << 30) - (8 << 20), "{all:?}");
}

//! A server finds what no block names and no client has: after a start, and beside clients.
use crate::common;

use common::blocks::{self, Block, Blocks, LARGE, LARGE_BYTES, LoadedBlocks, RECORDS, Shape};
use common::lab::SERVER;
use fatbtree_memserver::{ClientId, Grant, MemoryServer, PartOptions, ServerOptions, SessionKey, SizeClass};
use fatbtree_remote_memory::GlobalAddress;
use fatbtree_remote_memory::record::{RecordPointer, place_bytes, published, record_bytes, write_record};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};

const CHUNK: u64 = 64 << 10;
const VALUE: u32 = 100;
const PLACE: u32 = place_bytes(VALUE);

/// A server, to which clients are played: they write its memory.
struct Lab {
    part: LoadedBlocks,
    server: MemoryServer<PlainDevice, Blocks>,
    now: Instant,
}

fn serve(part: &LoadedBlocks) -> MemoryServer<PlainDevice, Blocks> {
    let reclaim_every = Duration::from_nanos(1);
    let options = ServerOptions { chunk_bytes: CHUNK, reclaim_every, ..ServerOptions::writable() };
    MemoryServer::new(PlainNetwork::new().device(), part.clone(), &options, 1).unwrap()
}

impl Lab {
    fn new() -> Self {
        let spare_bytes = 10 * CHUNK;
        let part = PartOptions { spare_bytes, ..PartOptions::new(SERVER, Shape { loaded: 30 }) };
        let part = blocks::part(&part).with_chunk_classes(CHUNK).unwrap();
        Self { server: serve(&part), part, now: Instant::ZERO }
    }

    fn restart(&mut self) {
        self.server = serve(&self.part);
    }

    fn work(&mut self) {
        for _ in 0..2_000 {
            self.now += Duration::from_micros(1);
            self.server.work(self.now, 1);
        }
    }

    fn open(&mut self) -> SessionKey {
        let client = ClientId { host: [127, 0, 0, 1].into(), roce: [10, 0, 0, 1].into() };
        self.server.open_session(self.now, client).unwrap().session
    }

    fn take(&mut self, session: SessionKey, class: SizeClass, bytes: u32) -> Grant {
        self.server.allocate(self.now, session, class, bytes).unwrap()
    }

    fn chunk(&mut self, session: SessionKey, class: SizeClass, bytes: u32) -> GlobalAddress {
        match self.take(session, class, bytes) {
            Grant::Chunk(chunk) => chunk.address,
            Grant::Blocks(blocks) => panic!("no block should be free: {blocks:?}"),
        }
    }

    fn put(&self, at: GlobalAddress, bytes: &[u8]) {
        self.server.memory().write(at.offset(), bytes).unwrap();
    }

    fn record(&self, at: GlobalAddress, key: u64) -> RecordPointer {
        let mut record = vec![0; record_bytes(VALUE) as usize];
        write_record(&mut record, key, 1, published(1), |value| value.fill(0));
        self.put(at, &record);
        RecordPointer { address: at, length: VALUE, version: 1 }
    }

    fn count(&self, name: &str) -> u64 {
        let all = self.server.statistics();
        all.into_iter().find(|(found, _)| found == name).unwrap().1
    }
}

/// Two records that no block names, one that a block names, and a freed block: what a client leaves that dies. Returns the addresses of the
/// first record, and of the freed block.
fn left() -> (Lab, SessionKey, [GlobalAddress; 2]) {
    let mut lab = Lab::new();
    let session = lab.open();
    let records = lab.chunk(session, RECORDS, PLACE);
    let large = lab.chunk(session, LARGE, 0);
    let [_, _, named] = [0, 1, 2].map(|at| lab.record(records.behind(at * u64::from(PLACE)), at));
    let block = Block { address: large, class: LARGE, version: 1, is_free: false };
    lab.put(large, &block.naming(&[named]));
    let freed = large.behind(LARGE_BYTES);
    lab.put(freed, &Block { address: freed, is_free: true, ..block }.zeros());
    (lab, session, [records, freed])
}

/// However the process has ended: the blocks are found in the region.
#[test]
fn what_nothing_leads_to_is_free_again_after_a_start() {
    let (mut lab, _, [records, freed]) = left();
    lab.restart();
    assert_eq!((lab.count("free_blocks"), lab.count("chunks_published")), (3, 2));
    let session = lab.open();
    let Grant::Blocks(found) = lab.take(session, RECORDS, PLACE) else { panic!("two records are free") };
    assert_eq!(found.addresses, [records, records.behind(PLACE.into())]);
    let Grant::Blocks(found) = lab.take(session, LARGE, 0) else { panic!("a block is free") };
    assert_eq!(found.addresses, [freed]);
    // What was never written to is free, too.
    assert_eq!(lab.chunk(session, RECORDS, PLACE), records.behind(3 * u64::from(PLACE)));
    assert_eq!(lab.chunk(session, LARGE, 0), freed.behind(LARGE_BYTES));
}

#[test]
fn what_a_client_leaves_that_dies_is_found_beside_one_that_settles() {
    let (mut lab, session, _) = left();
    let other = lab.open();
    lab.server.close_session(lab.now, session).unwrap();
    lab.work();
    assert_eq!(lab.count("blocks_reclaimed"), 0, "the other one may have them");
    for _ in 0..2 {
        let wait = lab.server.renew_session(lab.now, other).unwrap().wait;
        assert!(wait > 0);
        lab.server.renew_settled(lab.now, other, wait).unwrap();
        lab.work();
    }
    assert_eq!((lab.count("blocks_reclaimed"), lab.count("region_bytes_lost")), (3, 0));
}

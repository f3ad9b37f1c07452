//! What sessions cost: no more than what they write, and a stated share.

use std::collections::BTreeSet;
use std::path::Path;

use fatbtree_dolphin::host::HybridIndex;
use fatbtree_dolphin::{LEAF_BYTES, LEAVES, MAX_VALUE, NODES, RECORDS, Shape, place_bytes};
use fatbtree_memserver::{
    Bounds, ClientId, Folder, FolderOwner, Grant, Limits, Loaded, MemoryServer, PartOptions, ServerOptions,
    SessionKey, SizeClass, Storage, kept, make_in, part_in,
};
use fatbtree_remote_memory::record::{UNPUBLISHED, record_bytes, write_record};
use fatbtree_verbs::Access;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};

const NOW: Instant = Instant::ZERO;

struct Lab(MemoryServer<PlainDevice, HybridIndex>);

const SHAPE: Shape = Shape { servers: 1, max_value: MAX_VALUE };

impl Lab {
    /// A server without sweeps: they would find records that nothing leads to.
    fn new(spare_bytes: u64) -> Self {
        Self::of(HybridIndex::make(0, SHAPE, spare_bytes).expect("nothing is in the way"), Duration::ZERO)
    }

    fn of(content: Loaded<HybridIndex>, reclaim_every: Duration) -> Self {
        let bounds = Bounds { sessions: 4096, queue_pairs: 1, chunks: 1024, attempts: 1 << 20 };
        let limits = Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() };
        let options =
            ServerOptions { access: Access::ALL, limits, reclaim_every, ..ServerOptions::writable() };
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

    /// Writes a leaf, and records of values with `length` bytes.
    fn insert(&mut self, session: SessionKey, length: u32, count: u64) {
        let place = u64::from(place_bytes(length));
        let mut record = vec![0; record_bytes(length) as usize];
        write_record(&mut record, 2, 1, UNPUBLISHED, |_| {});
        let (mut next, mut left) = (0, 0);
        for _ in 0..count {
            if left < place {
                (next, left) = self.part(session, RECORDS, place as u32);
            }
            self.0.memory().write(next, &record).expect("inside of the region");
            (next, left) = (next + place, left - place);
        }
        let (leaf, _) = self.part(session, LEAVES, 0);
        self.0.memory().write(leaf + 8, &[1]).expect("inside of the region");
    }
}

/// What `sessions` leave that write `each` one record.
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
        let data = count * u64::from(place_bytes(length));
        let leaf = LEAF_BYTES as u64;
        assert!(one <= data + data / 8 + leaf, "{length}: {one} for {data}");
        assert!(many <= data + data / 8 + count * leaf, "{length}: {many} for {data}");
    }
}

#[test]
fn a_thousand_writers_fit_a_server_of_four_gibibytes() {
    let mut lab = Lab::new(4 << 30);
    let sessions: Vec<_> = (0..1000).map(|_| lab.open()).collect();
    for &session in &sessions {
        for (class, bytes) in [(LEAVES, 0), (NODES, 64), (RECORDS, place_bytes(100))] {
            lab.part(session, class, bytes);
        }
    }
    for session in sessions {
        lab.close(session);
    }
    let all = lab.0.region_bytes();
    assert!(all.held == 0 && all.free >= (4 << 30) - (8 << 20), "{all:?}");
}

const CHUNK: u64 = 8 << 20;

fn folder(path: &Path) -> Folder<Shape> {
    let owner = FolderOwner { server: "left".to_owned(), partition: 0, address: [127, 0, 0, 1].into() };
    Folder::open(path, owner, CHUNK).expect("no other process has it")
}

/// A client dies, and so does its server: records to which no leaf leads are given out again, and no others.
#[test]
fn a_server_that_starts_anew_finds_lost_records() {
    const LENGTH: u32 = 100;
    let (path, place) = (tempfile::tempdir().expect("a temporary folder"), u64::from(place_bytes(LENGTH)));
    let mut storage = Storage::Folder(folder(path.path()).into());
    let options = PartOptions { spare_bytes: 4 * CHUNK, chunk_bytes: CHUNK, ..PartOptions::new(0, SHAPE) };
    let made = make_in::<HybridIndex>(&mut storage, &options).expect("there is room");
    storage.keep(kept(&made)).expect("there is room");
    let mut lab = Lab::of(made, Duration::from_nanos(1));
    let session = lab.open();
    let (first, bytes) = lab.part(session, RECORDS, place as u32);
    assert!(bytes >= 10 * place, "{bytes}");
    let mut record = vec![0; record_bytes(LENGTH) as usize];
    write_record(&mut record, 2, 1, UNPUBLISHED, |_| {});
    let records: BTreeSet<u64> = (0..10).map(|number| first + number * place).collect();
    for &at in &records {
        lab.0.memory().write(at, &record).expect("inside of the region");
    }
    // A word that leads to the fourth one, in the class of two units of 64 bytes, somewhere in memory of leaves.
    assert_eq!(place, 128);
    let linked = first + 3 * place;
    let word = 0xda1_u64 << 52 | 1 << 46 | 1 << 35 | (linked / 64);
    let (leaf, _) = lab.part(session, LEAVES, 0);
    lab.0.memory().write(leaf + 512, &word.to_le_bytes()).expect("inside of the region");
    lab.0.commit().expect("the disk does not fail");
    drop((lab, storage));

    let found = part_in::<HybridIndex>(&folder(path.path()), CHUNK).expect("it is whole");
    let mut lab = Lab::of(found.expect("it was kept"), Duration::from_nanos(1));
    let session = lab.open();
    let mut given = BTreeSet::new();
    while let Grant::Blocks(blocks) =
        lab.0.allocate(NOW, session, RECORDS, place as u32).expect("there is room")
    {
        given.extend(blocks.addresses.iter().map(|address| address.offset()));
    }
    let lost: BTreeSet<u64> = records.into_iter().filter(|&at| at != linked).collect();
    assert_eq!(given, lost);
}

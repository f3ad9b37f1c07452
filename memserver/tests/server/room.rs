//! What sessions cost: no more than what they write, and a stated share.
use crate::common;

use common::blocks::{self, Blocks, CLASSES, LARGE, RECORDS, Shape};
use common::lab::SERVER;
use fatbtree_memserver::{
    Bounds, ClientId, Grant, Limits, MemoryServer, PartOptions, ServerOptions, SessionKey, SizeClass,
};
use fatbtree_remote_memory::record::{MAX_VALUE, UNPUBLISHED, place_bytes, record_bytes, write_record};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Instant;

const NOW: Instant = Instant::ZERO;

/// Bytes of a session that are lost to the border of a line, for each class.
const SHARE: u64 = 64;

struct Lab(MemoryServer<PlainDevice, Blocks>);

impl Lab {
    fn new(spare_bytes: u64) -> Self {
        let part = PartOptions { spare_bytes, ..PartOptions::new(SERVER, Shape { loaded: 1 }) };
        let bounds = Bounds { sessions: 4096, queue_pairs: 1, chunks: 1024, attempts: 1 << 20 };
        let limits = Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() };
        let options = ServerOptions { limits, ..ServerOptions::writable() };
        Self(MemoryServer::new(PlainNetwork::new().device(), blocks::part(&part), &options, 1).unwrap())
    }

    fn open(&mut self) -> SessionKey {
        let client = ClientId { host: [127, 0, 0, 1].into(), roce: [10, 0, 0, 1].into() };
        self.0.open_session(NOW, client).unwrap().session
    }

    fn close(&mut self, session: SessionKey) {
        self.0.close_session(NOW, session).unwrap();
        while self.0.work(NOW, 64) {}
    }

    fn part(&mut self, session: SessionKey, class: SizeClass, bytes: u32) -> (u64, u64) {
        let Grant::Chunk(part) = self.0.allocate(NOW, session, class, bytes).unwrap() else {
            panic!("no block was given back")
        };
        (part.address.offset(), part.bytes)
    }

    /// Writes records of values with `length` bytes, as a client does. Each value is zeros.
    fn insert(&mut self, session: SessionKey, length: u32, count: u64) {
        let place = u64::from(place_bytes(length));
        let mut record = vec![0; record_bytes(length) as usize];
        write_record(&mut record, 2, 1, UNPUBLISHED, |_| {});
        let (mut next, mut left) = (0, 0);
        for _ in 0..count {
            if left < place {
                (next, left) = self.part(session, RECORDS, place as u32);
            }
            self.0.memory().write(next, &record).unwrap();
            (next, left) = (next + place, left - place);
        }
    }

    fn free(&self) -> u64 {
        self.0.region_bytes().free
    }
}

/// What `sessions` leave that write `each` one record.
fn leaves(length: u32, sessions: u64, each: u64) -> u64 {
    let mut lab = Lab::new(256 << 20);
    let before = lab.free();
    for _ in 0..sessions {
        let session = lab.open();
        lab.insert(session, length, each);
        lab.close(session);
    }
    before - lab.free()
}

#[test]
fn many_short_sessions_leave_what_one_long_one_leaves() {
    for length in [0, 8, 9, 100, 1000, 4072, 60_000, 300_000, MAX_VALUE] {
        let count = if length > 10_000 { 60 } else { 1000 };
        let one = leaves(length, 1, count);
        let data = count * u64::from(place_bytes(length));
        // The end of a part in which no further record has fitted comes back when the session ends.
        assert!(one <= data + data / 8 + SHARE, "{length}: {one} for {data}");
        let many = leaves(length, count, 1);
        assert!(many <= data + data / 8 + count * SHARE, "{length}: {many}, one session {one}");
    }
}

/// Each client has memory of each class, and all of them together fit.
#[test]
fn a_thousand_writers_fit_a_server_of_four_gibibytes() {
    let mut lab = Lab::new(4 << 30);
    let sessions: Vec<_> = (0..1000).map(|_| lab.open()).collect();
    for &session in &sessions {
        for class in CLASSES {
            lab.part(session, class, if class == RECORDS { place_bytes(100) } else { 0 });
        }
    }
    let held = lab.0.region_bytes().held;
    assert!(held <= 1000 * 3 * (65 << 10), "{held}");
    for session in sessions {
        lab.close(session);
    }
    let all = lab.0.region_bytes();
    assert_eq!((all.held, all.lost), (0, 0));
    assert!(all.free >= 4 << 30, "{all:?}");
}

#[test]
fn parts_grow_with_use_up_to_a_chunk() {
    let mut lab = Lab::new(256 << 20);
    let session = lab.open();
    let parts: Vec<_> = (0..10).map(|_| lab.part(session, LARGE, 0).1 >> 10).collect();
    assert_eq!(parts, [64, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 8192]);
}

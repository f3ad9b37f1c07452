//! Chunks keep their class for ever; what was written to stays the structure's, the rest comes back.
use crate::common;

use common::blocks::{CLASSES, LARGE, LARGE_BYTES, RECORDS, SMALL, SMALL_BYTES};
use common::lab::{Lab, SERVER, options};
use fatbtree_memserver::{
    Bounds, Chunk, Grant, Limits, NoChunk, OverBound, Payer, Refusal, Resource, ServerOptions,
};
use fatbtree_remote_memory::GlobalAddress;
use fatbtree_remote_memory::record::{MAX_VALUE, UNPUBLISHED, place_bytes, record_bytes, write_record};
use fatbtree_verbs::time::Duration;

/// A region of ten chunks, and limits above ten for all clients.
fn lab() -> Lab {
    Lab::new(options())
}

#[test]
fn chunks_lie_side_by_side_in_the_spare_memory_and_not_in_the_padding() {
    let mut lab = lab();
    let client = lab.client();
    let session = lab.open(&client).unwrap();
    let mut chunks: Vec<Chunk> = vec![];
    let refusal = loop {
        let class = CLASSES[chunks.len() % 3];
        match lab.allocate(session, class) {
            Ok(chunk) => chunks.push(chunk),
            Err(refusal) => break refusal,
        }
    };
    let full = NoChunk { class: "small blocks", chunks: 10, used: 10 };
    assert_eq!((chunks.len(), refusal), (10, Refusal::NoChunk(full)));
    // A chunk that is not to be had costs nothing, however often it is asked for.
    for _ in 0..2000 {
        let refused = lab.allocate(session, SMALL);
        assert_eq!(refused, Err(Refusal::NoChunk(full)));
    }
    lab.server.close_session(lab.now, session).unwrap();
    lab.pass(Duration::ZERO);
    let session = lab.open(&client).unwrap();
    assert_eq!(lab.allocate(session, LARGE), Ok(chunks[0]));
    let end = lab.server.memory().len() - LARGE_BYTES;
    for (at, chunk) in chunks.iter().enumerate() {
        let address = chunk.address;
        assert_eq!((chunk.bytes, address.server(), address.offset() % 64), (4096, SERVER, 0));
        assert_eq!(address.offset(), chunks[0].address.offset() + at as u64 * 4096);
        assert!(address.offset() + chunk.bytes <= end);
    }
}

/// A stale pointer to a block must meet a block of the same size for ever.
#[test]
fn a_chunk_never_changes_its_kind() {
    let mut lab = lab();
    let mut kinds = std::collections::BTreeMap::new();
    let mut random = 1_u64;
    for round in 0..200 {
        let client = lab.client();
        let session = lab.open(&client).unwrap();
        for _ in 0..8 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
            let class = CLASSES[(random >> 60) as usize % 3];
            if let Ok(chunk) = lab.allocate(session, class) {
                assert_eq!(
                    *kinds.entry(chunk.address).or_insert(class),
                    class,
                    "{} in round {round}",
                    chunk.address
                );
            }
        }
        lab.pass(Duration::from_secs(10));
        assert_eq!(lab.counter("chunks_held"), 0);
    }
    assert_eq!(kinds.len(), 10);
}

#[test]
fn chunks_that_were_written_to_stay_the_structures() {
    let mut lab = lab();
    let client = lab.client();
    let session = lab.open(&client).unwrap();
    let [written, kept, last] = [(); 3].map(|()| lab.allocate(session, LARGE).unwrap().address);
    lab.fill(written, LARGE);
    lab.server.close_session(lab.now, session).unwrap();
    lab.pass(Duration::ZERO);

    let other = lab.client();
    let session = lab.open(&other).unwrap();
    let again: Vec<_> = (0..2).map(|_| lab.allocate(session, LARGE).unwrap().address).collect();
    assert_eq!(again, [kept, last], "chunks that were not written to are given out again");
    let fresh = lab.allocate(session, LARGE).unwrap().address;
    assert!(fresh > last && fresh != written);
}

/// Chunks that were written to stay charged to the client that took them, session or not: no client takes the whole
/// region that way.
#[test]
fn who_takes_chunks_without_end_is_refused() {
    let bounds = |chunks| Bounds { sessions: 100, queue_pairs: 1, chunks, attempts: 1000 };
    let limits = Limits { client: bounds(3), host: bounds(5), server: bounds(8), ..Limits::default() };
    let mut lab = Lab::new(ServerOptions { limits, ..options() });
    let hostile = lab.client().on_host(1);
    let over = |payer, limit| Refusal::OverBound(OverBound { payer, what: Resource::Chunks, limit });
    for _ in 0..3 {
        let session = lab.open(&hostile).unwrap();
        let chunk = lab.allocate(session, LARGE).unwrap();
        (0..4).for_each(|at| lab.put(GlobalAddress(chunk.address.raw() + at * 1024), LARGE, true));
        lab.server.close_session(lab.now, session).unwrap();
    }
    let session = lab.open(&hostile).unwrap();
    let refused = lab.allocate(session, LARGE);
    assert_eq!(refused, Err(over(Payer::Client(hostile.id()), 3)));
    // Under another address it gets what its host may have, and no more.
    let second = lab.client().on_host(1);
    let session = lab.open(&second).unwrap();
    for _ in 0..2 {
        lab.allocate(session, LARGE).unwrap();
    }
    let refused = lab.allocate(session, LARGE);
    assert_eq!(refused, Err(over(Payer::Host(hostile.id().host), 5)));
    let other = lab.client().on_host(2);
    let session = lab.open(&other).unwrap();
    for _ in 0..3 {
        lab.allocate(session, RECORDS).unwrap();
    }
    // A chunk that comes back is not charged any more.
    lab.pass(Duration::from_secs(10));
    assert_eq!((lab.counter("chunks_published"), lab.counter("chunks_held")), (3, 0));
    let session = lab.open(&second).unwrap();
    for _ in 0..2 {
        lab.allocate(session, LARGE).unwrap();
    }
    let other = lab.client().on_host(3);
    let session = lab.open(&other).unwrap();
    let mut taken = vec![];
    while let Ok(chunk) = lab.allocate(session, RECORDS) {
        taken.push(chunk.address);
    }
    assert_eq!(taken.len(), 3);
}

fn at(chunk: Chunk, bytes: u64) -> GlobalAddress {
    GlobalAddress(chunk.address.raw() + bytes)
}

#[test]
fn what_nobody_has_written_to_comes_back_when_the_session_ends() {
    for ends_by_itself in [false, true] {
        let mut lab = lab();
        let client = lab.client();
        let session = lab.open(&client).unwrap();
        let mut take = |class| lab.allocate(session, class).unwrap();
        let [large, small, fresh, records] = [LARGE, SMALL, SMALL, RECORDS].map(&mut take);
        // A gap comes back, too: what was taken and never written to is known to no client.
        lab.put(large.address, LARGE, false);
        lab.put(at(large, 2048), LARGE, true);
        lab.put(small.address, SMALL, false);
        let mut record = vec![0; record_bytes(13) as usize];
        write_record(&mut record, 7, 1, UNPUBLISHED, |value| value.fill(1));
        lab.server.memory().write(records.address.offset(), &record).unwrap();
        if ends_by_itself {
            lab.pass(Duration::from_secs(10));
        } else {
            lab.server.close_session(lab.now, session).unwrap();
            // A little at a time.
            let mut turns = 0;
            while lab.server.work(lab.now, 1) {
                turns += 1;
            }
            assert!(turns > 10, "{turns}");
        }
        assert_eq!((lab.counter("chunk_tails_came_back"), lab.counter("chunks_published")), (5, 4));
        let other = lab.client();
        let session = lab.open(&other).unwrap();
        let mut take = |class| lab.allocate(session, class).unwrap();
        let gap = Chunk { address: at(large, 1024), bytes: 1024, ..large };
        let rest = Chunk { address: at(large, 3072), bytes: 1024, ..large };
        assert_eq!([take(LARGE), take(LARGE)], [gap, rest]);
        let rest = Chunk { address: at(small, SMALL_BYTES), bytes: 4096 - SMALL_BYTES, ..small };
        assert_eq!([take(SMALL), take(SMALL)], [rest, fresh]);
        let next = take(RECORDS);
        assert_eq!((next.address, next.bytes), (at(records, 64), 4096 - 64));
        // A part that is not written to goes back as it is; another one is cut once more.
        lab.put(rest.address, SMALL, false);
        lab.server.close_session(lab.now, session).unwrap();
        lab.server.work(lab.now, 1000);
        let session = lab.open(&other).unwrap();
        let mut take = |class| lab.allocate(session, class).unwrap();
        assert_eq!(take(LARGE), gap);
        assert_eq!(take(SMALL).address, at(small, 2 * SMALL_BYTES));
        assert_eq!(take(SMALL), fresh);
    }
}

/// The head of a record says how long its place is, whatever bytes its value ends with. Where bytes are no record, the longest one may lie.
#[test]
fn what_is_left_of_a_chunk_of_records_begins_behind_the_last_one() {
    const CHUNK: u64 = 4 << 20;
    for is_clear in [true, false] {
        let options = ServerOptions { chunk_bytes: CHUNK, ..options() };
        let mut lab = Lab::with_spare(options, u64::MAX, CHUNK + 64);
        let client = lab.client();
        let session = lab.open(&client).unwrap();
        let place = place_bytes(MAX_VALUE);
        let grant = lab.server.allocate(lab.now, session, RECORDS, place).unwrap();
        let Grant::Chunk(chunk) = grant else { panic!("nothing was given back") };
        assert_eq!(chunk.bytes, u64::from(place).next_multiple_of(64), "as much as it needs");
        let mut record = vec![0; record_bytes(1000) as usize];
        write_record(&mut record, 7, 1, UNPUBLISHED, |value| value.fill(0));
        let from = chunk.address.offset();
        lab.server.memory().write(from + 64, &record).unwrap();
        if !is_clear {
            lab.server.memory().write(from + 2048, &[1]).unwrap();
        }
        lab.server.close_session(lab.now, session).unwrap();
        while lab.server.work(lab.now, 100) {}
        let session = lab.open(&client).unwrap();
        let rest = lab.allocate(session, RECORDS).unwrap();
        let used =
            if is_clear { 64 + u64::from(place_bytes(1000)) } else { u64::from(place).next_multiple_of(64) };
        assert_eq!(rest.address, at(chunk, used), "{is_clear}");
    }
}

/// A client is charged for each chunk once, however often it comes back for the rest.
#[test]
fn a_client_that_crashes_again_and_again_uses_up_what_it_uses() {
    let bounds = Bounds { sessions: 10, queue_pairs: 1, chunks: 3, attempts: 1000 };
    let limits = Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() };
    let mut lab = Lab::new(ServerOptions { limits, ..options() });
    let client = lab.client();
    let mut places = vec![];
    for _ in 0..8 {
        let session = lab.open(&client).unwrap();
        let chunk = lab.allocate(session, LARGE).unwrap();
        lab.put(chunk.address, LARGE, false);
        places.push(chunk.address);
        lab.pass(Duration::from_secs(10));
    }
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[1].raw() == pair[0].raw() + 1024), "{places:?}");
    let session = lab.open(&client).unwrap();
    lab.allocate(session, LARGE).unwrap();
    let refused = lab.allocate(session, LARGE);
    assert!(
        matches!(refused, Err(Refusal::OverBound(_))),
        "eight blocks are two chunks, and this was the third"
    );
}

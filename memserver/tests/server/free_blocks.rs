//! Memory of freed blocks goes from client to client by way of the server, and never to two of them.
use crate::common;

use std::collections::BTreeSet;

use common::blocks::{LARGE, RECORDS, SMALL};
use common::lab::{Lab, SERVER, options};
use fatbtree_memserver::{
    BLOCKS_AT_ONCE, Chunk, GivenBack, Grant, Limits, Refusal, Request, ServerOptions, SessionKey, SizeClass,
    TooManyBlocks,
};
use fatbtree_remote_memory::GlobalAddress;
use fatbtree_remote_memory::record::{RECORD_HEAD, UNPUBLISHED, write_record};
use fatbtree_remote_memory::session_keeper::Call;
use fatbtree_verbs::time::Duration;
use proptest::prelude::*;

/// A lab with a session that has a chunk full of freed blocks.
fn lab(places: usize) -> (Lab, SessionKey, Chunk) {
    let limits = Limits { places, ..Limits::default() };
    let mut lab = Lab::new(ServerOptions { limits, ..options() });
    let client = lab.client();
    let session = lab.open(&client).unwrap();
    let chunk = lab.allocate(session, LARGE).unwrap();
    (0..4).for_each(|at| lab.put(block(chunk, at), LARGE, true));
    (lab, session, chunk)
}

fn block(chunk: Chunk, at: u64) -> GlobalAddress {
    GlobalAddress(chunk.address.raw() + at * 1024)
}

fn back(
    lab: &mut Lab,
    session: SessionKey,
    class: SizeClass,
    bytes: u32,
    places: &[GlobalAddress],
) -> GivenBack {
    lab.server.give_back(lab.now, session, class, bytes, places).unwrap()
}

fn refused(count: u32) -> GivenBack {
    GivenBack { refused: count, ..GivenBack::default() }
}

#[test]
fn what_a_client_gives_back_another_gets_and_gets_once() {
    let (mut lab, session, chunk) = lab(100);
    let [first, second, third] = [0, 1, 2].map(|at| block(chunk, at));
    let kept = GivenBack { kept: 2, ..GivenBack::default() };
    assert_eq!(back(&mut lab, session, LARGE, 0, &[third, first]), kept);
    let known = GivenBack { kept: 1, known: 2, ..GivenBack::default() };
    assert_eq!(back(&mut lab, session, LARGE, 0, &[first, second, third]), known);
    // The client ends, its list does not.
    lab.server.close_session(lab.now, session).unwrap();
    let other = lab.client();
    let session = lab.open(&other).unwrap();
    let (reply, _) = tokio::sync::oneshot::channel();
    let call = Call::Allocate { session: session.id, class: LARGE, bytes: 0 };
    lab.server.handle(lab.now, Request::Call { client: other.id(), call, reply });
    assert_eq!(lab.counter("free_blocks"), 3, "no client waited for the answer");
    // In use again, by whatever client.
    lab.put(first, LARGE, false);
    match lab.server.allocate(lab.now, session, LARGE, 0).unwrap() {
        Grant::Blocks(places) => {
            assert_eq!(
                (places.class, places.bytes, &places.addresses[..]),
                (LARGE, 1024, &[third, second][..])
            );
        }
        Grant::Chunk(chunk) => panic!("{chunk:?}"),
    }
    let next = lab.allocate(session, LARGE).unwrap();
    assert!(next.address > chunk.address, "then a chunk");
    let counters = [
        "free_blocks",
        "free_blocks_returned",
        "free_blocks_granted",
        "free_blocks_refused",
        "free_blocks_dropped",
    ];
    assert_eq!(counters.map(|name| lab.counter(name)), [0, 3, 2, 1, 0]);
}

#[test]
fn what_cannot_be_a_free_block_is_refused() {
    let (mut lab, session, chunk) = lab(100);
    let small = lab.allocate(session, SMALL).unwrap();
    lab.put(small.address, SMALL, true);
    lab.put(block(chunk, 3), LARGE, false);
    // Its own address is another.
    let mut line = [0; 64];
    lab.server.memory().read(chunk.address.offset(), &mut line).unwrap();
    lab.server.memory().write(block(chunk, 2).offset(), &line).unwrap();
    let end = lab.server.memory().len();
    let wrong = [
        GlobalAddress::NULL,
        GlobalAddress(u64::MAX),
        GlobalAddress::new(SERVER, 0),
        GlobalAddress::new(SERVER, 64),
        GlobalAddress::new(SERVER, end - 64),
        GlobalAddress::new(SERVER, end),
        GlobalAddress::new(SERVER + 1, chunk.address.offset()),
        GlobalAddress(chunk.address.raw() + 64),
        block(chunk, 2),
        block(chunk, 3),
        small.address,
    ];
    let all = wrong.len() as u32;
    assert_eq!(back(&mut lab, session, LARGE, 0, &wrong), refused(all));
    let one = GivenBack { kept: 1, ..refused(all - 1) };
    assert_eq!(back(&mut lab, session, SMALL, 7, &wrong), one);
    // A loaded block that was freed.
    let loaded = GlobalAddress::new(SERVER, 64 + 1024);
    lab.put(loaded, LARGE, true);
    assert_eq!(back(&mut lab, session, LARGE, 0, &[loaded]).kept, 1);

    let many = vec![chunk.address; BLOCKS_AT_ONCE + 1];
    let found = many.len();
    let answer = lab.server.give_back(lab.now, session, LARGE, 0, &many);
    assert_eq!(answer, Err(Refusal::TooManyBlocks(TooManyBlocks { found })));
    lab.server.close_session(lab.now, session).unwrap();
    let answer = lab.server.give_back(lab.now, session, LARGE, 0, &[chunk.address]);
    assert_eq!(answer, Err(Refusal::UnknownSession(session)));
}

#[test]
fn a_list_is_bounded_and_keeps_its_oldest() {
    let (mut lab, session, chunk) = lab(2);
    let places: Vec<_> = (0..4).map(|at| block(chunk, at)).collect();
    let expected = GivenBack { kept: 2, dropped: 2, ..GivenBack::default() };
    assert_eq!(back(&mut lab, session, LARGE, 0, &places), expected);
    assert_eq!((lab.counter("free_blocks"), lab.counter("free_blocks_dropped")), (2, 2));
    let Ok(Grant::Blocks(found)) = lab.server.allocate(lab.now, session, LARGE, 0) else {
        panic!("two places")
    };
    assert_eq!(found.addresses, places[..2]);
}

#[test]
fn records_have_a_list_for_each_size_of_place() {
    let (mut lab, session, _) = lab(100);
    let chunk = lab.allocate(session, RECORDS).unwrap();
    let at = |offset| GlobalAddress(chunk.address.raw() + offset);
    let write = |lab: &Lab, offset: u64, bytes: usize| {
        let mut record = vec![0; bytes];
        write_record(&mut record, 1, 1, UNPUBLISHED, |_| {});
        lab.server.memory().write(at(offset).offset(), &record[..RECORD_HEAD]).unwrap();
    };
    [(0, 64), (128, 64), (2048, 1024)].into_iter().for_each(|(offset, bytes)| write(&lab, offset, bytes));
    for (bytes, offset) in
        [(0, 0), (16, 0), (65, 0), (64, 4), (64, 1024), (4096, 128), (1 << 30, 0), (u32::MAX, 0)]
    {
        assert_eq!(back(&mut lab, session, RECORDS, bytes, &[at(offset)]), refused(1), "{bytes} at {offset}");
    }
    assert_eq!(back(&mut lab, session, RECORDS, 64, &[at(0), at(128)]).kept, 2);
    assert_eq!(back(&mut lab, session, RECORDS, 1024, &[at(2048)]).kept, 1);
    // A part of what is on a list.
    write(&lab, 2048 + 512, 32);
    assert_eq!(back(&mut lab, session, RECORDS, 32, &[at(2048 + 512)]).known, 1);
    write(&lab, 1536, 512);
    assert_eq!(back(&mut lab, session, RECORDS, 1024, &[at(1536)]), refused(1), "its head says another size");
    write(&lab, 1536, 1024);
    assert_eq!(back(&mut lab, session, RECORDS, 1024, &[at(1536)]).known, 1);
    let mut take = |bytes| match lab.server.allocate(lab.now, session, RECORDS, bytes).unwrap() {
        Grant::Blocks(places) => (places.bytes, places.addresses),
        Grant::Chunk(_) => (0, vec![]),
    };
    assert_eq!(take(0), (0, vec![]));
    assert_eq!(take(128), (0, vec![]));
    assert_eq!(take(64), (64, vec![at(0), at(128)]));
    assert_eq!(take(1024), (1024, vec![at(2048)]));
    assert_eq!(take(64), (0, vec![]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Clients come and go, free and use blocks, and give back what they have, sometimes twice, sometimes in use.
    #[test]
    fn no_block_is_given_to_two(
        ops in prop::collection::vec((0..6_u8, 0..3_usize, any::<u16>()), 1..150),
    ) {
        let limits = Limits { places: 6, ..Limits::default() };
        let mut lab = Lab::new(ServerOptions { limits, ..options() });
        let clients = [lab.client(), lab.client(), lab.client()];
        let mut sessions: Vec<_> = clients.iter().map(|client| lab.open(client).unwrap()).collect();
        // Free blocks that each client has for itself, blocks in use, and what is left of chunks.
        let mut own = [const { vec![] }; 3];
        let mut rests = [const { vec![] }; 3];
        let mut used: Vec<GlobalAddress> = vec![];
        for (op, who, random) in ops {
            let random = usize::from(random);
            match op {
                // Wants memory.
                0 | 1 => match lab.server.allocate(lab.now, sessions[who], LARGE, 0) {
                    Ok(Grant::Chunk(chunk)) => {
                        rests[who].extend((0..chunk.bytes / 1024).rev().map(|at| block(chunk, at)));
                    }
                    Ok(Grant::Blocks(places)) => own[who].extend(places.addresses),
                    Err(refusal) => prop_assert!(matches!(refusal, Refusal::NoChunk(_)), "{}", refusal),
                },
                // Uses a block.
                2 => if let Some(block) = own[who].pop().or_else(|| rests[who].pop()) {
                    lab.put(block, LARGE, false);
                    used.push(block);
                },
                // Frees one.
                3 => if !used.is_empty() {
                    let block = used.swap_remove(random % used.len());
                    lab.put(block, LARGE, true);
                    own[who].push(block);
                },
                // Gives back all it has, and some that are in use.
                4 => {
                    let mut places = std::mem::take(&mut own[who]);
                    places.extend(places.first().copied());
                    places.extend(used.iter().take(random % 4).copied());
                    let wrong = (random % 4).min(used.len()) as u32;
                    prop_assert_eq!(back(&mut lab, sessions[who], LARGE, 0, &places).refused, wrong);
                }
                // Crashes: what it had for itself is lost, but not what it has not touched.
                _ => {
                    lab.server.close_session(lab.now, sessions[who]).unwrap();
                    sessions[who] = lab.open(&clients[who]).unwrap();
                    (own[who], rests[who]) = (vec![], vec![]);
                    lab.pass(Duration::ZERO);
                }
            }
            let all = own.iter().chain(&rests).flatten().chain(&used);
            let different: BTreeSet<_> = all.clone().collect();
            prop_assert_eq!(different.len(), all.count(), "somebody's block was given to another");
            prop_assert!(lab.counter("free_blocks") <= 6);
        }
    }
}

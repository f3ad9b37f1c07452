//! SEND, RECEIVE and WRITE with immediate: each message arrives once, in order, whatever the network does; and what refuses them.
use crate::common;

use std::collections::VecDeque;

use common::{Pair, client_config, read, server_config, write};
use fatbtree_soft_nic::faults::FaultRates;
use fatbtree_soft_nic::{DropReason, Nic, NicConfig, QueuePairOptions};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Access, Device, Failure, Message, Messages, Mtu, Output, PostError, QueuePairState, Received, Remote,
    Verbs, WorkRequest,
};
use fatbtree_wire::{Extension, Opcode};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

fn send(data: &[u8]) -> Message<'_> {
    Message::Send { data, immediate: None }
}

/// Tag, bytes and word of a message that came.
fn taken(received: Option<Received>) -> (u64, Vec<u8>, Option<u32>) {
    let received = received.expect("a message came");
    let message = received.result.expect("a message");
    (received.tag, message.data.to_vec(), message.immediate)
}

#[test]
fn a_message_lies_in_the_place_that_was_posted_for_it() {
    let mut pair = Pair::new(1);
    let (peer, queue_pair) = (pair.peer, pair.queue_pair);
    for (tag, len) in [(7, 100), (8, 3000), (9, 0)] {
        pair.server.receive(peer, tag, len).unwrap();
    }
    let long: Vec<u8> = (0..3000_u32).map(|byte| byte as u8).collect();
    pair.client.send(queue_pair, 1, send(b"hello")).unwrap();
    pair.client.send(queue_pair, 2, Message::Send { data: &long, immediate: Some(0xfb7a_0001) }).unwrap();
    pair.client.send(queue_pair, 3, send(b"")).unwrap();
    pair.drive();
    assert_eq!(taken(pair.server.poll_received()), (7, b"hello".to_vec(), None));
    assert_eq!(taken(pair.server.poll_received()), (8, long, Some(0xfb7a_0001)));
    assert_eq!(taken(pair.server.poll_received()), (9, vec![], None));
    assert!(pair.server.poll_received().is_none());
    assert_eq!(pair.outcomes(), [(1, None), (2, None), (3, None)]);
}

#[test]
fn a_write_with_immediate_is_there_when_the_other_side_hears_of_it() {
    for len in [8, 5000] {
        let mut pair = Pair::new(1);
        let (memory, region) = pair.register(&[0; 8192], 1 << 40, Access::ALL);
        pair.server.receive(pair.peer, 7, 0).unwrap();
        let data = vec![9; len];
        let to = Remote { address: region.iova + 64, rkey: region.rkey };
        let message = Message::Write { to, data: &data, immediate: 42 };
        pair.client.send(pair.queue_pair, 1, message).unwrap();
        pair.drive();
        let received = pair.server.poll_received().unwrap();
        let message = received.result.unwrap();
        assert_eq!((message.len as usize, message.immediate, message.data.len()), (len, Some(42), 0));
        let mut found = vec![0; len];
        memory.read(64, &mut found).unwrap();
        assert_eq!(found, data);
        assert_eq!(pair.outcomes(), [(1, None)]);
    }
}

#[test]
fn a_side_that_is_not_ready_is_asked_again_after_the_time_it_names() {
    let mut pair = Pair::new(1);
    let (memory, region) = pair.register(&[0; 64], 0, Access::ALL);
    pair.client.send(pair.queue_pair, 1, send(b"early")).unwrap();
    // What is posted after it waits as well.
    pair.post(2, write(0, region.rkey, &[7; 8])).unwrap();
    for _ in 0..200 {
        pair.step();
    }
    assert!(pair.now > Instant::ZERO + Duration::from_millis(5), "{:?}", pair.now);
    let asked = pair.server.stats().dropped(DropReason::NoReceive);
    let most =
        pair.now.saturating_since(Instant::ZERO).as_nanos() / Duration::from_micros(640).as_nanos() + 1;
    assert!(asked > 3 && asked <= most, "{asked} of {most}");
    assert_eq!((pair.client.stats().timeouts, memory.update(0, |x| x).unwrap()), (0, 0));
    pair.server.receive(pair.peer, 7, 64).unwrap();
    pair.drive();
    assert_eq!(taken(pair.server.poll_received()), (7, b"early".to_vec(), None));
    assert_eq!(pair.outcomes(), [(1, None), (2, None)]);
}

#[test]
fn nothing_is_sent_to_a_side_that_is_not_ready_before_its_time() {
    let mut pair = Pair::new(1);
    let (_, region) = pair.register(&[0; 64], 0, Access::ALL);
    pair.client.send(pair.queue_pair, 1, send(b"early")).unwrap();
    while pair.client.stats().naks_received == 0 {
        pair.step();
    }
    pair.post(2, write(0, region.rkey, &[7; 8])).unwrap();
    assert!(!pair.client.poll_transmit(pair.now, &mut Vec::new()));
    assert_eq!(pair.client.poll_timeout(), Some(pair.now + Duration::from_micros(640)));
}

/// Each message has its own retries.
#[test]
fn a_side_that_became_ready_may_be_late_again() {
    let client = NicConfig { rnr_retry_count: 2, ..client_config() };
    let mut pair = Pair::with(1, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    for round in 1..4 {
        pair.client.send(pair.queue_pair, round, send(b"early")).unwrap();
        while pair.server.stats().dropped(DropReason::NoReceive) < 2 * round {
            pair.step();
        }
        pair.server.receive(pair.peer, round, 64).unwrap();
        pair.drive();
        assert_eq!(pair.outcomes(), [(round, None)]);
        assert_eq!(taken(pair.server.poll_received()).0, round);
    }
}

#[test]
fn a_side_that_is_never_ready_is_given_up_where_that_is_asked_for() {
    let client = NicConfig { rnr_retry_count: 3, ..client_config() };
    let mut pair = Pair::with(1, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    pair.client.send(pair.queue_pair, 1, send(b"early")).unwrap();
    pair.drive();
    assert_eq!(pair.outcomes(), [(1, Some(Failure::ReceiverNotReady))]);
    assert_eq!(pair.server.stats().dropped(DropReason::NoReceive), 4);
    assert_eq!(pair.client.state(pair.queue_pair), Some(QueuePairState::Error));
}

#[test]
fn a_message_that_is_too_long_ends_both_sides() {
    for len in [101, 3000] {
        let mut pair = Pair::new(1);
        pair.server.receive(pair.peer, 7, 100).unwrap();
        pair.server.receive(pair.peer, 8, 100).unwrap();
        pair.client.send(pair.queue_pair, 1, send(&vec![1; len])).unwrap();
        pair.drive();
        assert_eq!(pair.outcomes(), [(1, Some(Failure::RemoteInvalidRequest))]);
        let failures: Vec<_> = std::iter::from_fn(|| pair.server.poll_received())
            .map(|received| (received.tag, received.result.unwrap_err()))
            .collect();
        assert_eq!(failures, [(7, Failure::MessageLength), (8, Failure::Flushed)]);
        assert_eq!(pair.server.state(pair.peer), Some(QueuePairState::Error));
        let refused = pair.server.receive(pair.peer, 9, 100);
        assert!(matches!(refused, Err(PostError::NotConnected { .. })), "{refused:?}");
    }
}

#[test]
fn places_are_bounded_and_come_back() {
    let mut nic = Nic::new(NicConfig { receive_queue: 3, ..client_config() }, 1).unwrap();
    let free = nic.buffers().free();
    let queue_pair = nic.create().unwrap();
    for tag in 0..3 {
        nic.receive(queue_pair, tag, 4096).unwrap();
    }
    let full = nic.receive(queue_pair, 3, 4096).unwrap_err();
    assert!(matches!(full, PostError::Full { what: "receives", found: 4, limit: 3, .. }), "{full}");
    nic.destroy(queue_pair);
    let flushed = std::iter::from_fn(|| nic.poll_received()).map(|received| received.result.unwrap_err());
    assert_eq!(flushed.collect::<Vec<_>>(), [Failure::Flushed; 3]);
    assert_eq!(nic.buffers().free(), free);
}

/// What a peer sends that breaks the rules of messages.
#[test]
fn pieces_of_messages_that_do_not_fit_are_refused() {
    let first = |pair: &Pair| pair.first_psn();
    type Packets = &'static [(Opcode, Extension, usize)];
    const MTU: usize = 1024;
    let cases: [(&str, Packets); 7] = [
        ("no message goes on", &[(Opcode::RC_SEND_MIDDLE, Extension::None, MTU)]),
        ("no message ends", &[(Opcode::RC_SEND_LAST_IMMEDIATE, Extension::Immediate(1), 1)]),
        ("a first packet is full", &[(Opcode::RC_SEND_FIRST, Extension::None, MTU - 4)]),
        (
            "a WRITE within a message",
            &[
                (Opcode::RC_SEND_FIRST, Extension::None, MTU),
                (Opcode::RC_RDMA_WRITE_LAST, Extension::None, 4),
            ],
        ),
        (
            "a message within a message",
            &[(Opcode::RC_SEND_FIRST, Extension::None, MTU), (Opcode::RC_SEND_ONLY, Extension::None, 4)],
        ),
        ("no WRITE ends", &[(Opcode::RC_RDMA_WRITE_LAST_IMMEDIATE, Extension::Immediate(1), 4)]),
        (
            "rkeys are not taken back by messages",
            &[(Opcode::RC_SEND_ONLY_INVALIDATE, Extension::Invalidate(7), 4)],
        ),
    ];
    for (why, packets) in cases {
        let mut pair = Pair::new(1);
        pair.server.receive(pair.peer, 7, 8192).unwrap();
        let psn = first(&pair);
        for (at, (opcode, extension, len)) in packets.iter().enumerate() {
            pair.request(*opcode, psn + at as u32, *extension, &vec![1; *len]);
        }
        assert_eq!(pair.server.state(pair.peer), Some(QueuePairState::Error), "{why}");
        let received = pair.server.poll_received().unwrap();
        assert_eq!(received.result.unwrap_err(), Failure::Flushed, "{why}");
    }
}

/// A message of a seed.
fn drawn(below: &mut impl FnMut(u32) -> u32, most: u32) -> (Vec<u8>, Option<u32>) {
    let len = if below(3) == 0 { below(9) } else { below(most + 1) };
    let data = (0..len).map(|_| below(256) as u8).collect();
    (data, (below(2) == 0).then(|| below(u32::MAX)))
}

/// Messages, WRITEs and READs in any order, over a link that loses, doubles, damages and delays frames, to a side that posts places late.
fn run(seed: u64) -> u64 {
    const MOST: u32 = 5000;
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ 0x5e4d);
    let mut below = |n: u32| random.next_u32() % n;
    let mtus = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    let is_bad = below(4) != 0;
    let mut rate = |most: u32| if is_bad { below(most) as u16 } else { 0 };
    let rates = FaultRates {
        drop: rate(6000),
        duplicate: rate(6000),
        delay: rate(6000),
        corrupt: rate(2000),
        longest_delay: Duration::from_micros(200),
    };
    let client = NicConfig { mtu: mtus[below(5) as usize], retry_count: 100, ..client_config() };
    let server = NicConfig { rnr_timer: Duration::from_micros(10 << below(8)), ..server_config() };
    let psn = (below(2) == 0).then(|| 0xff_ffff - below(200));
    let mut pair = Pair::with(seed, client, server, QueuePairOptions { psn, ..Default::default() }, rates);
    let (memory, region) = pair.register(&[0; MOST as usize], 3 << 40, Access::ALL);
    let (mut expected, mut done) = (VecDeque::new(), Vec::new());
    let (mut places, mut tag, mut messages, mut turns) = (0_u64, 0_u64, 0, 0);
    while messages < 40 || !expected.is_empty() {
        turns += 1;
        assert!(
            turns < 400_000,
            "{seed}: messages are stuck: {}, {}",
            pair.client.stats(),
            pair.server.stats()
        );
        if messages < 40 && below(8) == 0 {
            tag += 1;
            let (data, immediate) = drawn(&mut below, MOST);
            let to = Remote { address: region.iova, rkey: region.rkey };
            let posted = match below(4) {
                0 => pair.post(tag, read(region.iova, region.rkey, below(MOST))),
                1 => {
                    let word = immediate.unwrap_or(7);
                    let message = Message::Write { to, data: &data, immediate: word };
                    let posted = pair.client.send(pair.queue_pair, tag, message);
                    if posted.is_ok() {
                        expected.push_back((data, Some(word), true));
                    }
                    posted
                }
                _ => {
                    let message = Message::Send { data: &data, immediate };
                    let posted = pair.client.send(pair.queue_pair, tag, message);
                    if posted.is_ok() {
                        expected.push_back((data, immediate, false));
                    }
                    posted
                }
            };
            match posted {
                Ok(()) => {
                    messages += 1;
                    done.push(tag);
                }
                Err(error) => assert!(error.is_temporary(), "{seed}: {error}"),
            }
        }
        if below(12) == 0 && places < 8 {
            pair.server.receive(pair.peer, places, MOST).unwrap();
            places += 1;
        }
        pair.step();
        while let Some(received) = pair.server.poll_received() {
            places -= 1;
            let message = received.result.expect("no message fails");
            let (data, immediate, is_write) = expected.pop_front().expect("as many came as were sent");
            assert_eq!(message.immediate, immediate, "{seed}");
            assert_eq!(message.len as usize, data.len(), "{seed}");
            if is_write {
                let mut found = vec![0; data.len()];
                memory.read(0, &mut found).unwrap();
                assert!(found == data, "{seed}: it hears of a WRITE that is not there");
            } else {
                assert!(*message.data == *data, "{seed}: another message");
            }
        }
        let ended = pair.completions();
        for completion in ended {
            assert!(!done.is_empty() && done.remove(0) == completion.tag, "{seed}: out of order");
            assert!(matches!(completion.result, Ok(Output::Written | Output::Read(_))), "{seed}");
        }
    }
    pair.drive();
    messages
}

#[test]
fn messages_arrive_once_and_in_order_over_bad_links() {
    let seeds = common::seeds(800);
    let messages: u64 = seeds.clone().map(run).sum();
    assert_eq!(messages, seeds.end * 40);
}

/// SENDs and WRITEs that follow one another: one acknowledgement says that all were carried out.
#[test]
fn messages_and_writes_take_turns_in_order() {
    let mut pair = Pair::new(1);
    let (_, region) = pair.register(&[0; 64], 0, Access::ALL);
    for tag in 0..3 {
        pair.server.receive(pair.peer, tag, 8).unwrap();
    }
    for tag in 0..3 {
        let operation = write(8 * tag, region.rkey, &[1; 8]);
        let quiet = WorkRequest { tag, signalled: false, operation };
        pair.client.post(pair.queue_pair, &[quiet]).unwrap();
        pair.client.send(pair.queue_pair, 10 + tag, send(&[tag as u8])).unwrap();
    }
    pair.drive();
    assert_eq!(pair.outcomes(), [(10, None), (11, None), (12, None)]);
    let found: Vec<_> =
        std::iter::from_fn(|| pair.server.poll_received()).map(|received| received.tag).collect();
    assert_eq!(found, [0, 1, 2]);
}

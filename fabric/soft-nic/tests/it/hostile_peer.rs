//! A peer that holds a queue pair and breaks the rules: the result of each breach.
use crate::common;

use common::{LATENCY, Pair, client_config, connect, drain, fetch_add, read, server_config, write};
use fatbtree_soft_nic::faults::FaultRates;
use fatbtree_soft_nic::{DropReason, NicConfig, QueuePairOptions};
use fatbtree_verbs::{Access, Device, Failure, Memory, Mtu, QueuePairState, Remote, Verbs, WorkRequest};
use fatbtree_wire::{Aeth, AtomicAckEth, AtomicEth, Extension, Frame, NakCode, Opcode, Reth, Syndrome};
use std::sync::Arc;

fn options_with_psn(psn: u32) -> QueuePairOptions {
    QueuePairOptions { psn: Some(psn), ..Default::default() }
}

/// A pair whose client begins at PSN 1000, and a region of the server with this many bytes of 7.
fn pair_and_rkey(len: usize) -> (Pair, u32, Arc<Memory>) {
    let mut pair = Pair::with(1, client_config(), server_config(), options_with_psn(1000), FaultRates::NONE);
    let (memory, region) = pair.register(&vec![7; len], 0, Access::ALL);
    (pair, region.rkey, memory)
}

fn word(memory: &Memory, offset: u64) -> u64 {
    memory.update(offset, |x| x).unwrap()
}

fn atomic(va: u64, rkey: u32) -> Extension {
    Extension::Atomic(AtomicEth { va, rkey, swap_or_add: 1, compare: 0 })
}

fn reth(va: u64, rkey: u32, length: u32) -> Extension {
    Extension::Reth(Reth { va, rkey, length })
}

/// Delivers the client's packets; the server's answers are lost.
fn carry_to_server(pair: &mut Pair) {
    for frame in drain(&mut pair.client, pair.now) {
        pair.server.handle_frame(pair.now, &frame);
    }
    drain(&mut pair.server, pair.now);
}

const ACK: Extension = Extension::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 });

#[test]
fn a_duplicate_read_longer_than_the_original_is_dropped() {
    let (mut pair, rkey, _) = pair_and_rkey(8192);
    pair.request_read(1000, 0, rkey, 2048);
    assert_eq!(pair.answers(), ["1000: 1024 bytes", "1001: 1024 bytes"]);
    pair.request_read(1000, 0, rkey, 2049);
    pair.request_read(1001, 0, rkey, 1025);
    assert_eq!(pair.server.stats().dropped(DropReason::StaleRequest), 2);
    pair.request_read(1000, 512, rkey, 2000);
    pair.request_read(1001, 512, rkey, 1024);
    assert_eq!(pair.answers(), ["1000: 1024 bytes", "1001: 976 bytes", "1001: 1024 bytes"]);
    pair.request_read(1002, 0, rkey, 8);
    assert_eq!(pair.answers(), ["1002: 8 bytes"], "the duplicates have taken no PSNs");
}

/// The rkey is guessed anew in a duplicate: that is a refusal like any other, and the queue pair fails.
#[test]
fn a_duplicate_read_is_checked_like_the_first() {
    for (va, rkey_xor, refusal) in [(0, 1, "remote access error"), (8192 - 7, 0, "remote access error")] {
        let (mut pair, rkey, _) = pair_and_rkey(8192);
        pair.request_read(1000, 0, rkey, 8);
        assert_eq!(pair.answers(), ["1000: 8 bytes"]);
        pair.request_read(1000, va, rkey ^ rkey_xor, 8);
        assert_eq!(pair.answers(), [format!("1000: NAK, {refusal}")]);
        assert_eq!(pair.server.poll_broken(), Some(pair.peer));
    }
}

#[test]
fn more_reads_and_atomics_than_agreed_are_an_invalid_request() {
    let server = NicConfig { responder_reads: 4, ..server_config() };
    // Whichever side allows less.
    for client_reads in [3, 200] {
        let limit = client_reads.min(4);
        let client = NicConfig { initiator_reads: client_reads, ..client_config() };
        let mut pair = Pair::with(1, client, server.clone(), options_with_psn(1000), FaultRates::NONE);
        let (memory, region) = pair.register(&[0; 4096], 0, Access::ALL);
        let mut psn = 1000;
        let ask = |pair: &mut Pair, psn: &mut u32| {
            match *psn % 2 {
                0 => pair.request_read(*psn, 0, region.rkey, 1024),
                _ => pair.request(Opcode::RC_FETCH_ADD, *psn, atomic(0, region.rkey), &[]),
            }
            *psn += 1;
        };
        // As many as agreed, answered, and again: all are accepted.
        for _ in 0..3 {
            for _ in 0..limit {
                ask(&mut pair, &mut psn);
            }
            assert_eq!(pair.answers().len(), usize::from(limit));
        }
        for _ in 0..limit {
            ask(&mut pair, &mut psn);
        }
        // Duplicates of them take no more resources; WRITEs take none.
        pair.request_read(psn - 2, 0, region.rkey, 8);
        pair.request(Opcode::RC_RDMA_WRITE_ONLY, psn, reth(8, region.rkey, 1), &[1]);
        psn += 1;
        let added = word(&memory, 0);
        ask(&mut pair, &mut psn);
        assert_eq!(word(&memory, 0), added, "one atomic too many was carried out");
        assert_eq!(pair.server.poll_broken(), Some(pair.peer));
        assert_eq!(pair.answers().last(), Some(&format!("{}: NAK, invalid request", psn - 1)));
    }
}

/// Two may be outstanding: a READ or atomic that comes twice is still one.
#[test]
fn a_duplicate_takes_no_more_of_what_was_agreed() {
    let server = NicConfig { responder_reads: 2, ..server_config() };
    for reads in [true, false] {
        let mut pair =
            Pair::with(1, client_config(), server.clone(), options_with_psn(1000), FaultRates::NONE);
        let (_, region) = pair.register(&[0; 64], 0, Access::ALL);
        for psn in [1000, 1000, 1001] {
            match reads {
                true => pair.request_read(psn, 0, region.rkey, 8),
                false => pair.request(Opcode::RC_FETCH_ADD, psn, atomic(0, region.rkey), &[]),
            }
        }
        assert_eq!(pair.answers().len(), 3);
        assert_eq!(pair.server.poll_broken(), None);
    }
}

/// A message may have 2^31 bytes (IBTA volume 1, section 9.7.1), and no more.
#[test]
fn the_longest_message_is_taken() {
    let mut pair = Pair::with(1, client_config(), server_config(), options_with_psn(1000), FaultRates::NONE);
    // Mapped, and hardly touched.
    let memory = Memory::shared(1 << 31).unwrap();
    let rkey = pair.server.register(&memory, 0, Access::ALL).unwrap().rkey;
    pair.request_read(1000, 0, rkey, 1 << 31);
    pair.request(Opcode::RC_RDMA_WRITE_FIRST, 1000 + (1 << 21), reth(0, rkey, 1 << 31), &[1; 1024]);
    assert_eq!(pair.server.stats().requests_executed, 2);
    assert_eq!(pair.server.poll_broken(), None);
}

/// A READ counts until the last packet of its answer has left, and what has left makes room.
#[test]
fn an_answer_under_way_is_outstanding() {
    let server = NicConfig { responder_reads: 1, ..server_config() };
    let mut pair = Pair::with(1, client_config(), server, options_with_psn(1000), FaultRates::NONE);
    let (_, region) = pair.register(&[0; 4096], 0, Access::ALL);
    let mut frame = Vec::new();
    for psn in [1000, 1002] {
        pair.request_read(psn, 0, region.rkey, 2048);
        assert!(pair.server.poll_transmit(pair.now, &mut frame));
        assert!(pair.server.poll_transmit(pair.now, &mut frame));
    }
    pair.request_read(1004, 0, region.rkey, 2048);
    assert!(pair.server.poll_transmit(pair.now, &mut frame));
    pair.request_read(1006, 0, region.rkey, 8);
    assert_eq!(pair.answers(), ["1005: 1024 bytes", "1006: NAK, invalid request"]);
}

/// While the link is full, duplicates, acknowledgements and NAKs take a bounded place; what is over is as if lost.
#[test]
fn answers_that_wait_are_bounded() {
    let (mut pair, rkey, _) = pair_and_rkey(8192);
    pair.request_read(1000, 0, rkey, 8192);
    pair.request(Opcode::RC_FETCH_ADD, 1008, atomic(0, rkey), &[]);
    for _ in 0..1000 {
        pair.request_read(1000, 0, rkey, 8192);
        pair.request(Opcode::RC_RDMA_WRITE_ONLY, 1007, reth(0, rkey, 0), &[]);
        pair.request(Opcode::RC_FETCH_ADD, 1008, atomic(0, rkey), &[]);
        pair.request_read(1100, 0, rkey, 8);
    }
    let dropped = pair.server.stats().dropped(DropReason::ReplyQueueFull);
    assert!(dropped > 3900, "{dropped}");
    // A request that was dropped was not carried out, and is when it comes again.
    pair.request(Opcode::RC_RDMA_WRITE_ONLY, 1009, reth(64, rkey, 1), &[1]);
    let answers = pair.answers();
    let (packets, others): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.ends_with("bytes"));
    assert!(packets.len() / 8 + others.len() <= 2 * 16 + 32, "{}, {}", packets.len(), others.len());
    assert!(!answers.contains(&"1009: ACK".to_string()));
    pair.request(Opcode::RC_RDMA_WRITE_ONLY, 1009, reth(64, rkey, 1), &[1]);
    assert_eq!(pair.answers(), ["1009: ACK"]);
    assert_eq!(pair.server.state(pair.peer), Some(QueuePairState::ReadyToSend));
}

/// One acknowledgement says as much as several.
#[test]
fn acknowledgements_that_wait_together_are_one() {
    let (mut pair, rkey, _) = pair_and_rkey(64);
    for psn in 1000..1100 {
        pair.request(Opcode::RC_RDMA_WRITE_ONLY, psn, reth(0, rkey, 1), &[1]);
    }
    assert_eq!(pair.answers(), ["1099: ACK"]);
    assert_eq!(pair.server.stats().dropped_total(), 0);
}

/// As many results of atomics are kept as requests may be outstanding, and no more.
#[test]
fn results_of_atomics_are_kept_as_long_as_they_can_be_asked_for() {
    let (mut pair, rkey, memory) = pair_and_rkey(64);
    memory.write(0, &[0; 8]).unwrap();
    for psn in 1000..1020 {
        pair.request(Opcode::RC_FETCH_ADD, psn, atomic(0, rkey), &[]);
        assert_eq!(pair.answers(), [format!("{psn}: atomic, {}", psn - 1000)]);
    }
    for psn in 1000..1020 {
        pair.request(Opcode::RC_FETCH_ADD, psn, atomic(0, rkey), &[]);
        let expected = (psn >= 1004).then(|| format!("{psn}: atomic, {}", psn - 1000));
        assert_eq!(pair.answers(), Vec::from_iter(expected));
    }
    assert_eq!(pair.server.stats().dropped(DropReason::StaleRequest), 4);
    assert_eq!(word(&memory, 0), 20);
}

/// PSNs are 24 bits. After all of them were used, an atomic of the last round looks like a duplicate of this one.
#[test]
fn a_result_of_the_last_round_is_not_given_again() {
    let server = NicConfig { mtu: Mtu::B256, ..server_config() };
    let mut pair = Pair::with(1, client_config(), server, options_with_psn(1000), FaultRates::NONE);
    // Mapped, and never touched.
    let memory = Memory::shared(1 << 30).unwrap();
    let rkey = pair.server.register(&memory, 0, Access::ALL).unwrap().rkey;
    pair.request(Opcode::RC_FETCH_ADD, 1000, atomic(0, rkey), &[]);
    assert_eq!(pair.answers(), ["1000: atomic, 0"]);
    memory.write(0, &[9; 8]).unwrap();
    // Four READs of 2^22 packets each, less one byte of the last: 2^24 - 1 PSNs with the WRITE below.
    let mut psn = 1001;
    for length in [1 << 30, 1 << 30, 1 << 30, (1 << 30) - 256] {
        pair.request_read(psn & 0xff_ffff, 0, rkey, length);
        psn += length / 256;
    }
    assert_eq!(psn & 0xff_ffff, 1000);
    pair.request(Opcode::RC_RDMA_WRITE_ONLY, 1000, reth(8, rkey, 1), &[1]);
    assert_eq!(word(&memory, 8), 1, "PSN 1000 came round, and was a WRITE");
    let duplicates = pair.server.stats().duplicate_requests;
    pair.request(Opcode::RC_FETCH_ADD, 1000, atomic(0, rkey), &[]);
    assert_eq!(pair.server.stats().duplicate_requests, duplicates + 1);
    assert_eq!(pair.server.stats().dropped(DropReason::StaleRequest), 1);
    // The oldest answer that waits is that of the first READ: nothing was answered out of turn.
    let mut frame = Vec::new();
    assert!(pair.server.poll_transmit(pair.now, &mut frame));
    assert_eq!(common::describe(&frame), "1001: 256 bytes");
}

/// Each is one request, refused before anything is changed.
#[test]
fn requests_that_make_no_sense_are_refused() {
    use Opcode as O;
    let mask = fatbtree_wire::AtomicMaskEth { swap_mask_or_boundary: 0, compare_mask: 0 };
    let masked = |va, rkey| Extension::MaskedAtomic(AtomicEth { va, rkey, swap_or_add: 1, compare: 0 }, mask);
    let (_, rkey, _) = pair_and_rkey(4096);
    let cases: [(&str, O, Extension, usize); 15] = [
        ("an atomic that is not aligned", O::RC_FETCH_ADD, atomic(4, rkey), 0),
        ("a masked one", O::RC_MASKED_FETCH_ADD, masked(4, rkey), 0),
        ("another", O::RC_MASKED_COMPARE_SWAP, masked(12, rkey), 0),
        ("an atomic with a payload", O::RC_FETCH_ADD, atomic(8, rkey), 4),
        ("a READ with a payload", O::RC_RDMA_READ_REQUEST, reth(0, rkey, 8), 4),
        ("a READ that is too long", O::RC_RDMA_READ_REQUEST, reth(0, rkey, (1 << 31) + 1), 0),
        ("a WRITE that says less than it has", O::RC_RDMA_WRITE_ONLY, reth(0, rkey, 3), 4),
        ("a WRITE that says more", O::RC_RDMA_WRITE_ONLY, reth(0, rkey, 5), 4),
        ("a WRITE of one packet longer than that", O::RC_RDMA_WRITE_ONLY, reth(0, rkey, 1028), 1028),
        ("a first packet that is the only one", O::RC_RDMA_WRITE_FIRST, reth(0, rkey, 1024), 1024),
        ("a short first packet", O::RC_RDMA_WRITE_FIRST, reth(0, rkey, 2048), 1020),
        ("a WRITE that is too long", O::RC_RDMA_WRITE_FIRST, reth(0, rkey, (1 << 31) + 1), 1024),
        ("a middle without a beginning", O::RC_RDMA_WRITE_MIDDLE, Extension::None, 1024),
        ("an end without a beginning", O::RC_RDMA_WRITE_LAST, Extension::None, 4),
        ("a SEND that takes an rkey back", O::RC_SEND_ONLY_INVALIDATE, Extension::Invalidate(rkey), 4),
    ];
    for (name, opcode, extension, payload) in cases {
        let (mut pair, same_rkey, memory) = pair_and_rkey(4096);
        assert_eq!(same_rkey, rkey, "one seed, one rkey");
        pair.request(opcode, 1000, extension, &vec![1; payload]);
        assert_eq!(pair.answers(), ["1000: NAK, invalid request"], "{name}");
        assert_eq!(pair.server.poll_broken(), Some(pair.peer), "{name}");
        let mut found = vec![0; 4096];
        memory.read(0, &mut found).unwrap();
        assert_eq!(found, [7; 4096], "{name}");
    }
}

/// A WRITE of several packets that does not go on as it began.
#[test]
fn a_write_goes_on_as_it_began_or_is_refused() {
    use Opcode as O;
    let (_, rkey, _) = pair_and_rkey(4096);
    let cases: [(&str, O, Extension, usize); 8] = [
        ("a READ between", O::RC_RDMA_READ_REQUEST, reth(0, rkey, 8), 0),
        ("an atomic between", O::RC_FETCH_ADD, atomic(0, rkey), 0),
        ("a WRITE between", O::RC_RDMA_WRITE_ONLY, reth(0, rkey, 4), 4),
        ("a beginning after a beginning", O::RC_RDMA_WRITE_FIRST, reth(0, rkey, 3000), 1024),
        ("a short middle", O::RC_RDMA_WRITE_MIDDLE, Extension::None, 1020),
        ("a middle that should be the end", O::RC_RDMA_WRITE_MIDDLE, Extension::None, 976),
        ("an end too early", O::RC_RDMA_WRITE_LAST, Extension::None, 1024),
        ("an end too short", O::RC_RDMA_WRITE_LAST, Extension::None, 976),
    ];
    for (name, opcode, extension, payload) in cases {
        let (mut pair, _, memory) = pair_and_rkey(4096);
        pair.request(O::RC_RDMA_WRITE_FIRST, 1000, reth(0, rkey, 3024), &[1; 1024]);
        pair.request(opcode, 1001, extension, &vec![2; payload]);
        assert_eq!(pair.answers(), ["1000: ACK", "1001: NAK, invalid request"], "{name}");
        assert_eq!(word(&memory, 1024), 0x0707_0707_0707_0707, "{name}");
    }
    // As long as a middle packet, and it should have been the end.
    for (length, name) in [(2048, "nothing would be left"), (2000, "less than that is left")] {
        let (mut pair, _, memory) = pair_and_rkey(4096);
        pair.request(O::RC_RDMA_WRITE_FIRST, 1000, reth(0, rkey, length), &[1; 1024]);
        pair.request(O::RC_RDMA_WRITE_MIDDLE, 1001, Extension::None, &[2; 1024]);
        assert_eq!(pair.answers(), ["1000: ACK", "1001: NAK, invalid request"], "{name}");
        assert_eq!(word(&memory, 1024), 0x0707_0707_0707_0707, "{name}");
    }
    for (len, name) in [(900, "an end that is short"), (1000, "one that is long")] {
        let (mut pair, _, memory) = pair_and_rkey(4096);
        pair.request(O::RC_RDMA_WRITE_FIRST, 1000, reth(0, rkey, 2000), &[1; 1024]);
        pair.request(O::RC_RDMA_WRITE_LAST, 1001, Extension::None, &vec![2; len]);
        assert_eq!(pair.answers(), ["1000: ACK", "1001: NAK, invalid request"], "{name}");
        assert_eq!(word(&memory, 1024), 0x0707_0707_0707_0707, "{name}");
    }
    // All that is left, in one packet longer than the path MTU.
    let (mut pair, _, memory) = pair_and_rkey(4096);
    pair.request(O::RC_RDMA_WRITE_FIRST, 1000, reth(0, rkey, 3000), &[1; 1024]);
    pair.request(O::RC_RDMA_WRITE_LAST, 1001, Extension::None, &[2; 1976]);
    assert_eq!(pair.answers(), ["1000: ACK", "1001: NAK, invalid request"]);
    assert_eq!(word(&memory, 1024), 0x0707_0707_0707_0707);
    // The right to write goes between two packets; the rkey stays.
    let (mut pair, _, memory) = pair_and_rkey(4096);
    pair.request(O::RC_RDMA_WRITE_FIRST, 1000, reth(0, rkey, 2000), &[1; 1024]);
    pair.server.deregister(rkey);
    pair.server.register_with_rkey(rkey, &memory, 0, Access::READ).unwrap();
    pair.request(O::RC_RDMA_WRITE_LAST, 1001, Extension::None, &[2; 976]);
    assert_eq!(pair.answers(), ["1000: ACK", "1001: NAK, remote access error"]);
    assert_eq!(word(&memory, 1024), 0x0707_0707_0707_0707);
    // One that does go on, and one whose region goes.
    for deregisters in [false, true] {
        let (mut pair, rkey, memory) = pair_and_rkey(4096);
        pair.request(O::RC_RDMA_WRITE_FIRST, 1000, reth(0, rkey, 3024), &[1; 1024]);
        pair.request(O::RC_RDMA_WRITE_MIDDLE, 1001, Extension::None, &[2; 1024]);
        if deregisters {
            pair.server.deregister(rkey);
        }
        pair.request(O::RC_RDMA_WRITE_LAST, 1002, Extension::None, &[3; 976]);
        let last = if deregisters { "1002: NAK, remote access error" } else { "1002: ACK" };
        assert_eq!(pair.answers().last().unwrap(), last);
        assert_eq!(
            word(&memory, 3016),
            if deregisters { 0x0707_0707_0707_0707 } else { 0x0303_0303_0303_0303 }
        );
    }
}

/// A region whose first address is no multiple of 8: atomics in it are refused, not torn.
#[test]
fn an_atomic_in_a_crooked_region_is_refused() {
    let mut pair = Pair::with(1, client_config(), server_config(), options_with_psn(1000), FaultRates::NONE);
    let (memory, region) = pair.register(&[7; 64], 4, Access::ALL);
    pair.request(Opcode::RC_FETCH_ADD, 1000, atomic(8, region.rkey), &[]);
    assert_eq!(pair.answers(), ["1000: NAK, remote access error"]);
    assert_eq!(word(&memory, 0), 0x0707_0707_0707_0707);
}

/// One READ of a gigabyte takes one place: its frames are made when they are asked for, from what memory holds then, and other queue
/// pairs have their turn between them.
#[test]
fn a_read_of_a_gigabyte_is_answered_packet_by_packet() {
    let mut pair = Pair::with(1, client_config(), server_config(), options_with_psn(1000), FaultRates::NONE);
    let memory = Memory::shared(1 << 30).unwrap();
    let rkey = pair.server.register(&memory, 0, Access::ALL).unwrap().rkey;
    pair.request_read(1000, 0, rkey, 1 << 30);
    assert_eq!(pair.server.stats().frames_sent, 0);
    let mut frame = Vec::new();
    for packet in 0..10u64 {
        memory.write(packet * 1024, &[packet as u8 + 1; 1024]).unwrap();
        assert!(pair.server.poll_transmit(pair.now, &mut frame));
        assert_eq!(
            Frame::parse(&frame).unwrap().payload,
            [packet as u8 + 1; 1024],
            "taken before it was sent"
        );
    }
    // Another client is not kept waiting for the other million frames.
    let (other, _) = connect(&mut pair.client, &mut pair.server, QueuePairOptions::default());
    let operation = read(4096, rkey, 8);
    pair.client.post(other, &[WorkRequest { tag: 5, signalled: true, operation }]).unwrap();
    assert!(pair.client.poll_transmit(pair.now, &mut frame));
    pair.server.handle_frame(pair.now, &frame);
    for _ in 0..2 {
        assert!(pair.server.poll_transmit(pair.now, &mut frame));
        pair.client.handle_frame(pair.now, &frame);
    }
    assert_eq!(pair.bytes(), [5; 8]);
}

/// Acknowledges what was never sent.
#[test]
fn a_response_to_nothing_sent_is_dropped() {
    let mut pair = Pair::with(1, client_config(), server_config(), options_with_psn(1000), FaultRates::NONE);
    let (_, region) = pair.register(&[7; 64], 0, Access::ALL);
    pair.respond(Opcode::RC_ACKNOWLEDGE, 1000, ACK, &[]);
    pair.post(1, write(0, region.rkey, &[1; 8])).unwrap();
    pair.respond(Opcode::RC_ACKNOWLEDGE, 1000, ACK, &[]);
    assert!(pair.completions().is_empty(), "it has not even been sent");
    carry_to_server(&mut pair);
    pair.post(2, read(0, region.rkey, 8)).unwrap();
    pair.respond(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 1001, ACK, &[0; 8]);
    pair.respond(Opcode::RC_ACKNOWLEDGE, 1001, ACK, &[]);
    assert!(pair.completions().is_empty());
    assert_eq!(pair.client.stats().dropped(DropReason::GhostResponse), 4);
    pair.respond(Opcode::RC_ACKNOWLEDGE, 1000, ACK, &[]);
    pair.drive();
    assert_eq!(pair.outcomes(), [(1, None), (2, None)]);
}

/// A READ of two packets and a half, and everything that can be wrong with its response.
#[test]
fn a_read_response_that_does_not_fit_is_dropped() {
    use Opcode as O;
    let (first, middle, last, only) = (
        O::RC_RDMA_READ_RESPONSE_FIRST,
        O::RC_RDMA_READ_RESPONSE_MIDDLE,
        O::RC_RDMA_READ_RESPONSE_LAST,
        O::RC_RDMA_READ_RESPONSE_ONLY,
    );
    let atomic_ack =
        Extension::AethAtomicAck(Aeth { syndrome: Syndrome::ACK, msn: 0 }, AtomicAckEth { original: 5 });
    let refusal = Extension::Aeth(Aeth { syndrome: Syndrome::nak(NakCode::INVALID_REQUEST), msn: 0 });
    let cases: [(&str, O, u32, Extension, usize); 12] = [
        ("first is a refusal", first, 1000, refusal, 1024),
        ("short first", first, 1000, ACK, 1020),
        ("long first", first, 1000, ACK, 1028),
        ("first says last", last, 1000, ACK, 1024),
        ("first says only", only, 1000, ACK, 1024),
        ("an atomic's answer", O::RC_ATOMIC_ACKNOWLEDGE, 1000, atomic_ack, 0),
        ("empty middle", middle, 1001, Extension::None, 0),
        ("middle says last", last, 1001, ACK, 1024),
        ("short last", last, 1002, ACK, 508),
        ("long last", last, 1002, ACK, 516),
        ("last as long as any", last, 1002, ACK, 1024),
        ("last says middle", middle, 1002, Extension::None, 512),
    ];
    let mut pair = Pair::with(1, client_config(), server_config(), options_with_psn(1000), FaultRates::NONE);
    let (_, region) = pair.register(&[7; 4096], 0, Access::ALL);
    pair.post(1, read(0, region.rkey, 2560)).unwrap();
    carry_to_server(&mut pair);
    let good = [(first, ACK, 1024), (middle, Extension::None, 1024), (last, ACK, 512)];
    for (psn, (opcode, extension, len)) in (1000..).zip(good) {
        for (name, wrong, at, extension, len) in cases {
            if at == psn {
                let before = pair.client.stats().dropped(DropReason::BadResponse);
                pair.respond(wrong, psn, extension, &vec![9; len]);
                assert_eq!(pair.client.stats().dropped(DropReason::BadResponse), before + 1, "{name}");
                assert!(pair.completions().is_empty(), "{name}");
            }
        }
        pair.respond(opcode, psn, extension, &vec![8; len]);
    }
    assert_eq!(pair.bytes(), [8; 2560]);

    // Answers of another kind than the question.
    pair.post(2, fetch_add(0, region.rkey, 1)).unwrap();
    pair.post(3, write(0, region.rkey, &[1; 8])).unwrap();
    carry_to_server(&mut pair);
    pair.respond(only, 1003, ACK, &[0; 8]);
    pair.respond(only, 1004, ACK, &[0; 8]);
    pair.respond(O::RC_ATOMIC_ACKNOWLEDGE, 1004, atomic_ack, &[]);
    assert!(pair.completions().is_empty());
    pair.drive();
    assert_eq!(pair.outcomes(), [(2, None), (3, None)]);
}

/// A peer that guesses rkeys has one guess a connection: a failed queue pair answers only with the reason of
/// its failure.
#[test]
fn a_failed_queue_pair_answers_no_more_requests() {
    let (mut pair, rkey, memory) = pair_and_rkey(64);
    pair.request_read(1000, 0, rkey, 8);
    pair.request_read(1001, 0, rkey ^ 1, 8);
    assert_eq!(pair.answers(), ["1000: 8 bytes", "1001: NAK, remote access error"]);
    for psn in [1000, 1001, 1002, 999] {
        pair.request_read(psn, 0, rkey, 8);
        pair.request(Opcode::RC_RDMA_WRITE_ONLY, psn, reth(0, rkey, 1), &[1]);
        pair.request(Opcode::RC_FETCH_ADD, psn, atomic(0, rkey), &[]);
        assert_eq!(pair.answers(), ["1001: NAK, remote access error"], "{psn}");
    }
    // To answers it has nothing to say: two ends that have both failed would go on for ever.
    pair.request(Opcode::RC_ACKNOWLEDGE, 1000, ACK, &[]);
    assert!(pair.answers().is_empty());
    assert_eq!(word(&memory, 0), 0x0707_0707_0707_0707);
    // Nor does it ask.
    let at = Remote { address: 0, rkey };
    let operation = fatbtree_verbs::Operation::Read { from: at, len: 8 };
    let refused = pair.server.post(pair.peer, &[WorkRequest { tag: 1, signalled: true, operation }]);
    assert!(!refused.unwrap_err().queue_pair_survived());
}

/// The peer breaks the rules while we have asked it for something: that is flushed.
#[test]
fn a_queue_pair_that_fails_by_its_peers_fault_flushes_its_own_requests() {
    let (mut pair, rkey, _) = pair_and_rkey(64);
    let request = WorkRequest { tag: 9, signalled: true, operation: read(0, 1, 8) };
    pair.server.post(pair.peer, &[request]).unwrap();
    pair.request_read(1000, 0, rkey ^ 1, 8);
    let done = pair.server.poll().unwrap();
    assert_eq!((done.tag, done.result.unwrap_err()), (9, Failure::Flushed));
    assert_eq!(pair.server.poll_timeout(), None);
}

/// A READ whose answer still waits cannot be answered any more when the queue pair has failed already: that is no other failure.
#[test]
fn a_queue_pair_fails_once() {
    let (mut pair, rkey, _) = pair_and_rkey(64);
    pair.request_read(1000, 0, rkey, 8);
    pair.request_read(1001, 0, rkey ^ 1, 8);
    pair.server.deregister(rkey);
    assert_eq!(pair.answers(), ["1000: NAK, remote operational error"]);
    assert_eq!(pair.server.poll_broken(), Some(pair.peer));
    assert_eq!(pair.server.poll_broken(), None);
    assert_eq!(pair.server.stats().queue_pairs_failed, 1);
}

/// "Not ready" is no acknowledgement and no progress, and only messages wait for a place: others are sent again when they would have been.
#[test]
fn a_peer_that_says_not_ready_is_asked_again() {
    let (mut pair, rkey, _) = pair_and_rkey(64);
    pair.post(1, write(0, rkey, &[1; 8])).unwrap();
    drain(&mut pair.client, pair.now);
    let deadline = pair.client.poll_timeout().unwrap();
    pair.now += LATENCY;
    let not_ready = Extension::Aeth(Aeth { syndrome: Syndrome(0x20), msn: 0 });
    pair.respond(Opcode::RC_ACKNOWLEDGE, 1000, not_ready, &[]);
    assert!(pair.completions().is_empty());
    assert_eq!(pair.client.poll_timeout(), Some(deadline));
    pair.drive();
    assert_eq!(pair.outcomes(), [(1, None)]);
}

/// A message counts when it ends, and the peer is told how many have.
#[test]
fn messages_are_counted_where_they_end() {
    let (mut pair, rkey, _) = pair_and_rkey(4096);
    let mut count = |opcode, psn, extension, len| {
        pair.request(opcode, psn, extension, &vec![1; len]);
        let answers = drain(&mut pair.server, pair.now);
        match Frame::parse(&answers[0]).unwrap().extension {
            Extension::Aeth(aeth) => aeth.msn,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(count(Opcode::RC_RDMA_WRITE_ONLY, 1000, reth(0, rkey, 8), 8), 1);
    assert_eq!(count(Opcode::RC_RDMA_WRITE_FIRST, 1001, reth(0, rkey, 2056), 1024), 1);
    assert_eq!(count(Opcode::RC_RDMA_WRITE_MIDDLE, 1002, Extension::None, 1024), 1);
    assert_eq!(count(Opcode::RC_RDMA_WRITE_LAST, 1003, Extension::None, 8), 2);
    assert_eq!(count(Opcode::RC_RDMA_READ_REQUEST, 1004, reth(0, rkey, 8), 0), 3);
}

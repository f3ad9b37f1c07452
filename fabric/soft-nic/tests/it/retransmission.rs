//! Retransmissions: the exact packets and their times.
use crate::common;

use common::{LATENCY, Pair, client_config, drain, fetch_add, read, server_config, write};
use fatbtree_soft_nic::faults::FaultRates;
use fatbtree_soft_nic::{NicConfig, QueuePairOptions};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Access, Device, Failure, IndexTarget, Operation, Output, QueuePairState, Verbs, WorkRequest,
};
use fatbtree_wire::{Extension, Frame, IndexHeader, Opcode, Reth, hops};

fn reth(frame: &[u8]) -> (u32, Reth) {
    let frame = Frame::parse(frame).unwrap();
    match frame.extension {
        Extension::Reth(reth) => (frame.bth.psn, reth),
        other => panic!("{other:?}"),
    }
}

/// Hands over all of the client's frames, then returns all of the server's.
fn exchange(pair: &mut Pair) -> Vec<Vec<u8>> {
    for frame in drain(&mut pair.client, pair.now) {
        pair.server.handle_frame(pair.now, &frame);
    }
    drain(&mut pair.server, pair.now)
}

fn give_back(pair: &mut Pair, frames: &[Vec<u8>]) {
    for frame in frames {
        pair.client.handle_frame(pair.now, frame);
    }
}

fn time_out(pair: &mut Pair) {
    pair.now = pair.client.poll_timeout().expect("something is outstanding");
    pair.client.handle_timeout(pair.now);
}

fn opcodes(frames: &[Vec<u8>]) -> Vec<Opcode> {
    frames.iter().map(|frame| Frame::parse(frame).unwrap().bth.opcode).collect()
}

#[test]
fn a_partly_received_read_resumes_where_it_stopped() {
    let mut pair = Pair::new(3);
    let bytes: Vec<u8> = (0..5000).map(|i| (i / 7) as u8).collect();
    let (_, region) = pair.register(&bytes, 1 << 48, Access::READ);
    let first = pair.first_psn();
    pair.post(1, read(region.iova, region.rkey, 5000)).unwrap();
    let responses = exchange(&mut pair);
    use Opcode as O;
    let (begin, middle, end) =
        (O::RC_RDMA_READ_RESPONSE_FIRST, O::RC_RDMA_READ_RESPONSE_MIDDLE, O::RC_RDMA_READ_RESPONSE_LAST);
    assert_eq!(opcodes(&responses), [begin, middle, middle, middle, end]);

    // The third response is lost: the fourth says so, and the fifth says nothing new, although the READ has been sent again meanwhile.
    give_back(&mut pair, &[responses[0].clone(), responses[1].clone(), responses[3].clone()]);
    let again = drain(&mut pair.client, pair.now);
    give_back(&mut pair, &responses[4..]);
    assert_eq!(again.len(), 1);
    assert!(drain(&mut pair.client, pair.now).is_empty(), "asked again for each packet after the gap");
    let (psn, resumed) = reth(&again[0]);
    assert_eq!(psn, (first + 2) & 0xff_ffff);
    assert_eq!(resumed, Reth { va: region.iova + 2048, rkey: region.rkey, length: 5000 - 2048 });
    pair.server.handle_frame(pair.now, &again[0]);
    let rest = drain(&mut pair.server, pair.now);
    give_back(&mut pair, &rest);
    assert_eq!(pair.bytes(), bytes);
    assert_eq!(pair.client.poll_timeout(), None);
}

/// A gap is answered again when something has come since: the second gap is another.
#[test]
fn after_progress_a_gap_is_another_gap() {
    let mut pair = Pair::new(13);
    let (_, region) = pair.register(&[1; 8192], 0, Access::READ);
    pair.post(1, read(0, region.rkey, 8192)).unwrap();
    let responses = exchange(&mut pair);
    give_back(&mut pair, &responses[1..2]);
    assert_eq!(drain(&mut pair.client, pair.now).len(), 1);
    give_back(&mut pair, &responses[2..3]);
    assert!(drain(&mut pair.client, pair.now).is_empty());
    give_back(&mut pair, &responses[0..1]);
    give_back(&mut pair, &responses[4..5]);
    assert_eq!(drain(&mut pair.client, pair.now).len(), 1);
}

/// A retransmission is lost as well: after the timeout, a sign of the gap is answered once more.
#[test]
fn after_a_timeout_a_gap_is_another_gap() {
    let mut pair = Pair::new(14);
    let (_, region) = pair.register(&[1; 8192], 0, Access::READ);
    pair.post(1, read(0, region.rkey, 8192)).unwrap();
    let responses = exchange(&mut pair);
    give_back(&mut pair, &responses[1..2]);
    assert_eq!(drain(&mut pair.client, pair.now).len(), 1);
    time_out(&mut pair);
    assert_eq!(drain(&mut pair.client, pair.now).len(), 1);
    give_back(&mut pair, &responses[2..3]);
    assert_eq!(drain(&mut pair.client, pair.now).len(), 1);
    give_back(&mut pair, &responses[3..4]);
    assert!(drain(&mut pair.client, pair.now).is_empty());
}

/// A WRITE after a READ is acknowledged: the READ was carried out, and its response is lost.
#[test]
fn an_acknowledgement_behind_a_read_asks_for_the_read_again() {
    let mut pair = Pair::new(15);
    let (_, region) = pair.register(&[1; 64], 0, Access::ALL);
    pair.post(1, read(0, region.rkey, 8)).unwrap();
    pair.post(2, write(32, region.rkey, &[2; 8])).unwrap();
    let answers = exchange(&mut pair);
    assert_eq!(opcodes(&answers), [Opcode::RC_RDMA_READ_RESPONSE_ONLY, Opcode::RC_ACKNOWLEDGE]);
    give_back(&mut pair, &answers[1..]);
    let again = drain(&mut pair.client, pair.now);
    assert_eq!(opcodes(&again), [Opcode::RC_RDMA_READ_REQUEST, Opcode::RC_RDMA_WRITE_ONLY]);
    for frame in &again {
        pair.server.handle_frame(pair.now, frame);
    }
    pair.drive();
    assert_eq!(pair.outcomes(), [(1, None), (2, None)]);
    assert_eq!(pair.now, Instant::ZERO + LATENCY, "no timeout was needed");
}

/// A switch between the two that writes the address into index reads; a duplicate gets another address, as after a reload.
#[test]
fn an_index_read_is_sent_again_as_it_was_posted() {
    let mut pair = Pair::new(4);
    let mut bytes = vec![1; 1024];
    bytes[512..].fill(2);
    let (_, region) = pair.register(&bytes, 1 << 48, Access::READ);
    let key = 0xfeed_face_cafe_beef;
    let walk = |frame: &[u8], address| {
        let mut frame = frame.to_vec();
        let header = IndexHeader { key, ..Default::default() };
        assert!(hops::admit(&mut frame, &header, address, region.rkey));
        assert!(hops::strip(&mut frame));
        frame
    };
    pair.post(1, Operation::IndexRead { key, len: 512, target: IndexTarget::NodeOrRecord }).unwrap();
    let sent = drain(&mut pair.client, pair.now);
    assert_eq!(reth(&sent[0]).1, Reth { va: key, rkey: 0, length: 512 });
    pair.server.handle_frame(pair.now, &walk(&sent[0], region.iova));
    assert_eq!(drain(&mut pair.server, pair.now).len(), 1, "this response is lost");

    time_out(&mut pair);
    let again = drain(&mut pair.client, pair.now);
    assert_eq!(reth(&again[0]), reth(&sent[0]), "the key and rkey 0, under the same PSN");
    pair.server.handle_frame(pair.now, &walk(&again[0], region.iova + 512));
    let responses = drain(&mut pair.server, pair.now);
    give_back(&mut pair, &responses);
    assert_eq!(pair.bytes(), vec![2; 512]);
}

/// No switch on the way: the server refuses the rkeys of index reads, and both queue pairs fail.
#[test]
fn an_index_read_nobody_rewrote_is_refused() {
    for target in IndexTarget::ALL {
        let mut pair = Pair::new(5);
        pair.register(&[0; 1024], 1 << 48, Access::READ);
        pair.post(1, Operation::IndexRead { key: 77, len: 512, target }).unwrap();
        let sent = drain(&mut pair.client, pair.now);
        assert_eq!(reth(&sent[0]).1, Reth { va: 77, rkey: target.rkey(), length: 512 });
        pair.server.handle_frame(pair.now, &sent[0]);
        pair.drive();
        assert_eq!(pair.outcomes(), [(1, Some(Failure::RemoteAccess))]);
        assert_eq!(pair.server.state(pair.peer), Some(QueuePairState::Error));
    }
}

#[test]
fn an_atomic_whose_answer_is_lost_is_not_carried_out_again() {
    let mut pair = Pair::new(6);
    let (memory, region) = pair.register(&[0; 64], 0, Access::ALL);
    let at = fatbtree_verbs::Remote { address: 8, rkey: region.rkey };
    let atomics = [
        Operation::FetchAdd { at, add: 5 },
        Operation::CompareSwap { at, compare: 5, swap: 6 },
        Operation::MaskedFetchAdd { at, add: 1, boundary: 1 << 63 },
        Operation::MaskedCompareSwap { at, compare: 7, compare_mask: 0xff, swap: 9, swap_mask: 0xff },
    ];
    for (operation, (before, after)) in atomics.into_iter().zip([(0, 5), (5, 6), (6, 7), (7, 9)]) {
        pair.post(1, operation).unwrap();
        assert_eq!(exchange(&mut pair).len(), 1, "lost");
        time_out(&mut pair);
        let answers = exchange(&mut pair);
        give_back(&mut pair, &answers);
        let done = pair.client.poll().unwrap();
        assert!(matches!(done.result, Ok(Output::Atomic(found)) if found == before), "{done:?}");
        assert_eq!(memory.update(8, |x| x), Ok(after), "{operation:?}");
    }
    assert_eq!(pair.server.stats().duplicate_requests, 4);
}

#[test]
fn a_lost_request_is_asked_for_once() {
    let mut pair = Pair::new(7);
    let (memory, region) = pair.register(&[0; 64], 0, Access::ALL);
    for tag in 0..4 {
        pair.post(tag, write(tag, region.rkey, &[tag as u8 + 1])).unwrap();
    }
    let sent = drain(&mut pair.client, pair.now);
    for frame in [&sent[0], &sent[2], &sent[3]] {
        pair.server.handle_frame(pair.now, frame);
    }
    let answers = drain(&mut pair.server, pair.now);
    assert_eq!(answers.len(), 2, "an acknowledgement and one NAK");
    assert_eq!(pair.server.stats().naks_sent, 1);
    give_back(&mut pair, &answers);
    let again = drain(&mut pair.client, pair.now);
    assert_eq!(again.len(), 3, "from the lost one on, without waiting");
    for frame in &again {
        pair.server.handle_frame(pair.now, frame);
    }
    let answers = drain(&mut pair.server, pair.now);
    give_back(&mut pair, &answers);
    assert_eq!(pair.completions().len(), 4);
    let mut found = [0; 4];
    memory.read(0, &mut found).unwrap();
    assert_eq!(found, [1, 2, 3, 4]);
    assert_eq!(pair.client.poll_timeout(), None);

    // Another gap is asked for as the first was.
    for tag in 0..2 {
        pair.post(tag, write(tag, region.rkey, &[9])).unwrap();
    }
    let sent = drain(&mut pair.client, pair.now);
    pair.server.handle_frame(pair.now, &sent[1]);
    assert_eq!(drain(&mut pair.server, pair.now).len(), 1);
    assert_eq!(pair.server.stats().naks_sent, 2);
}

/// Data of a long WRITE is sent again as it was posted, whatever its owner has done with it since.
#[test]
fn a_long_write_is_sent_again_from_what_was_not_acknowledged() {
    let mut pair = Pair::new(12);
    let (memory, region) = pair.register(&[0; 100_000], 0, Access::ALL);
    let mut data: Vec<u8> = (0..100_000).map(|i| (i / 11) as u8).collect();
    pair.post(1, write(0, region.rkey, &data)).unwrap();
    let expected = data.clone();
    data.fill(0);
    let sent = drain(&mut pair.client, pair.now);
    assert_eq!(sent.len(), 98);
    for frame in &sent[..70] {
        pair.server.handle_frame(pair.now, frame);
    }
    let answers = drain(&mut pair.server, pair.now);
    give_back(&mut pair, &answers);
    time_out(&mut pair);
    // Every 32 packets are acknowledged; those from 64 on are sent again.
    let again = drain(&mut pair.client, pair.now);
    assert_eq!(again.len(), 98 - 64);
    for frame in &again[..33] {
        pair.server.handle_frame(pair.now, frame);
    }
    // The acknowledgement comes when it is about to be sent once more: what it covers is left out.
    time_out(&mut pair);
    let answers = drain(&mut pair.server, pair.now);
    give_back(&mut pair, &answers);
    let rest = drain(&mut pair.client, pair.now);
    assert_eq!(rest.len(), 98 - 96);
    for frame in &rest {
        pair.server.handle_frame(pair.now, frame);
    }
    let answers = drain(&mut pair.server, pair.now);
    give_back(&mut pair, &answers);
    assert_eq!(pair.outcomes(), [(1, None)]);
    let mut found = vec![0; 100_000];
    memory.read(0, &mut found).unwrap();
    assert!(found == expected);
}

/// A WRITE is half sent again when its acknowledgement comes: the next one begins at its beginning.
#[test]
fn a_write_that_is_done_while_it_is_sent_again_leaves_the_next_one_whole() {
    let mut pair = Pair::new(16);
    let (memory, region) = pair.register(&[0; 8192], 0, Access::ALL);
    pair.post(1, write(0, region.rkey, &[1; 4096])).unwrap();
    let answers = exchange(&mut pair);
    time_out(&mut pair);
    let mut frame = Vec::new();
    for _ in 0..2 {
        assert!(pair.client.poll_transmit(pair.now, &mut frame));
    }
    pair.post(2, write(4096, region.rkey, &[2; 4096])).unwrap();
    give_back(&mut pair, &answers);
    pair.drive();
    assert_eq!(pair.outcomes(), [(1, None), (2, None)]);
    assert_eq!(memory.update(4096, |x| x), Ok(0x0202_0202_0202_0202));
    assert_eq!(pair.server.stats().requests_executed, 8);
    assert_eq!(pair.server.stats().naks_sent, 0);
}

/// With a timeout of zero every call is one retry, and not all of them at once.
#[test]
fn a_timeout_of_zero_is_one_retry_a_call() {
    let client = NicConfig { ack_timeout: Duration::ZERO, ..client_config() };
    let mut pair = Pair::with(17, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    pair.post(1, read(0, 1, 8)).unwrap();
    for retry in 0..7 {
        assert_eq!(drain(&mut pair.client, pair.now).len(), 1);
        pair.client.handle_timeout(pair.now);
        assert_eq!(pair.client.stats().timeouts, retry + 1);
        assert_eq!(pair.client.poll_timeout(), Some(pair.now));
    }
}

/// Progress puts the deadline off; the deadline reported is exact.
#[test]
fn the_deadline_moves_with_progress() {
    let mut pair = Pair::new(8);
    let (_, region) = pair.register(&[0; 64], 0, Access::ALL);
    assert_eq!(pair.client.poll_timeout(), None);
    for tag in 0..2 {
        pair.post(tag, read(0, region.rkey, 8)).unwrap();
    }
    assert_eq!(pair.client.poll_timeout(), None, "nothing sent yet");
    let responses = exchange(&mut pair);
    let timeout = pair.client.config().ack_timeout;
    assert_eq!(pair.client.poll_timeout(), Some(pair.now + timeout));
    pair.now += Duration::from_micros(60);
    give_back(&mut pair, &responses[..1]);
    assert_eq!(pair.client.poll_timeout(), Some(pair.now + timeout));
    give_back(&mut pair, &responses[1..]);
    assert_eq!(pair.client.poll_timeout(), None);
}

/// Sending more is no progress: a client that goes on posting learns of a dead link as soon as others.
#[test]
fn the_deadline_does_not_move_with_what_is_sent() {
    let mut pair = Pair::new(24);
    let timeout = pair.client.config().ack_timeout;
    for tag in 0..2 {
        pair.post(tag, read(0, 1, 8)).unwrap();
        drain(&mut pair.client, pair.now);
        pair.now += Duration::from_micros(30);
    }
    pair.now = Instant::ZERO + timeout;
    pair.client.handle_timeout(pair.now);
    assert_eq!(pair.client.stats().timeouts, 1);
}

/// One retry is allowed, and each packet of a READ is lost once: every one that comes makes the retries begin anew.
#[test]
fn retries_count_since_the_last_progress() {
    let client = NicConfig { retry_count: 1, ..client_config() };
    let mut pair = Pair::with(10, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    let (_, region) = pair.register(&[5; 4096], 0, Access::READ);
    pair.post(1, read(0, region.rkey, 4096)).unwrap();
    for _ in 0..4 {
        exchange(&mut pair); // lost
        time_out(&mut pair);
        let responses = exchange(&mut pair);
        give_back(&mut pair, &responses[..1]);
    }
    assert_eq!(pair.client.stats().timeouts, 4);
    assert_eq!(pair.bytes(), vec![5; 4096]);

    // And twice in a row is once too often.
    pair.post(2, read(0, region.rkey, 8)).unwrap();
    drain(&mut pair.client, pair.now);
    time_out(&mut pair);
    drain(&mut pair.client, pair.now);
    time_out(&mut pair);
    assert_eq!(pair.outcomes(), [(2, Some(Failure::RetryExceeded))]);
}

/// No more READs are outstanding than both sides agreed on.
#[test]
fn outstanding_reads_are_limited_by_both_sides() {
    for (ours, theirs, limit) in [(16, 16, 16), (5, 16, 5), (16, 3, 3), (200, 255, 200)] {
        let client = NicConfig { initiator_reads: ours, responder_reads: 1, ..client_config() };
        let server = NicConfig { initiator_reads: 1, responder_reads: theirs, ..server_config() };
        let mut pair = Pair::with(9, client, server, QueuePairOptions::default(), FaultRates::NONE);
        let (_, region) = pair.register(&[0; 64], 0, Access::ALL);
        for tag in 0..220 {
            let operation = if tag % 3 == 0 { fetch_add(0, region.rkey, 1) } else { read(0, region.rkey, 8) };
            pair.post(tag, operation).unwrap();
        }
        assert_eq!(drain(&mut pair.client, pair.now).len(), limit);
        assert!(drain(&mut pair.client, pair.now).is_empty());
        pair.drive();
        assert!(pair.outcomes().iter().all(|(_, failure)| failure.is_none()));
    }
}

/// A refusal of the same gap again and again is no progress.
#[test]
fn a_gap_that_is_told_twice_is_answered_once() {
    let mut pair = Pair::new(18);
    let (_, region) = pair.register(&[0; 50_000], 0, Access::ALL);
    pair.post(1, write(0, region.rkey, &[1; 50_000])).unwrap();
    let sent = drain(&mut pair.client, pair.now);
    for frame in &sent[..32] {
        pair.server.handle_frame(pair.now, frame);
    }
    let answers = drain(&mut pair.server, pair.now);
    give_back(&mut pair, &answers);
    pair.server.handle_frame(pair.now, &sent[33]);
    let refusal = drain(&mut pair.server, pair.now);
    give_back(&mut pair, &refusal);
    assert_eq!(drain(&mut pair.client, pair.now).len(), 49 - 32);
    give_back(&mut pair, &refusal);
    assert!(drain(&mut pair.client, pair.now).is_empty());
}

/// One retry is allowed, and a part of a long WRITE arrives with each: that is progress.
#[test]
fn a_part_of_a_write_is_progress() {
    let client = NicConfig { retry_count: 1, ..client_config() };
    let mut pair = Pair::with(19, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    let (_, region) = pair.register(&[0; 130_000], 0, Access::ALL);
    pair.post(1, write(0, region.rkey, &[1; 130_000])).unwrap();
    for _ in 0..3 {
        for frame in drain(&mut pair.client, pair.now).iter().take(32) {
            pair.server.handle_frame(pair.now, frame);
        }
        let answers = drain(&mut pair.server, pair.now);
        pair.now += LATENCY;
        give_back(&mut pair, &answers);
        assert_eq!(pair.client.poll_timeout(), Some(pair.now + pair.client.config().ack_timeout));
        time_out(&mut pair);
    }
    pair.drive();
    assert_eq!(pair.outcomes(), [(1, None)]);
}

/// Only the last request of a chain is awaited: an unlock proves that the writes under the lock have arrived.
#[test]
fn an_unsignalled_write_is_acknowledged_only_where_nothing_behind_it_is_answered() {
    let mut pair = Pair::new(20);
    let (_, region) = pair.register(&[0; 64], 0, Access::ALL);
    let unsignalled = |operation| WorkRequest { tag: 1, signalled: false, operation };
    let unlock = WorkRequest { tag: 2, signalled: true, operation: fetch_add(0, region.rkey, 1) };
    let entry = unsignalled(write(32, region.rkey, &[2; 8]));
    pair.client.post(pair.queue_pair, &[entry, unlock]).unwrap();
    let answers = exchange(&mut pair);
    assert_eq!(opcodes(&answers), [Opcode::RC_ATOMIC_ACKNOWLEDGE]);
    give_back(&mut pair, &answers);
    assert_eq!(pair.outcomes(), [(2, None)]);
    assert_eq!(pair.client.poll_timeout(), None);

    // By itself no acknowledgement would report that it was carried out, and it would be sent again for ever.
    pair.client.post(pair.queue_pair, &[unsignalled(write(32, region.rkey, &[3; 8]))]).unwrap();
    let answers = exchange(&mut pair);
    assert_eq!(opcodes(&answers), [Opcode::RC_ACKNOWLEDGE]);
    give_back(&mut pair, &answers);
    assert_eq!(pair.client.poll_timeout(), None);
}

/// An answer to a READ or atomic says that the WRITEs before it were carried out.
#[test]
fn an_answer_stands_for_the_writes_before_it() {
    for adds in [false, true] {
        let mut pair = Pair::new(20);
        let (_, region) = pair.register(&[0; 64], 0, Access::ALL);
        pair.post(1, write(32, region.rkey, &[2; 8])).unwrap();
        let operation = if adds { fetch_add(0, region.rkey, 1) } else { read(0, region.rkey, 8) };
        pair.post(2, operation).unwrap();
        let answers = exchange(&mut pair);
        assert_eq!(answers.len(), 2);
        give_back(&mut pair, &answers[1..]);
        assert_eq!(pair.outcomes(), [(1, None), (2, None)]);
        assert_eq!(pair.client.poll_timeout(), None);
    }
}

/// The answer to the first of two READs is lost: that of the second asks for it again at once.
#[test]
fn an_answer_behind_a_read_asks_for_the_read_again() {
    let mut pair = Pair::new(21);
    let (_, region) = pair.register(&[1; 64], 0, Access::ALL);
    for tag in 1..3 {
        pair.post(tag, read(0, region.rkey, 8)).unwrap();
    }
    let answers = exchange(&mut pair);
    give_back(&mut pair, &answers[1..]);
    pair.drive();
    assert_eq!(pair.outcomes(), [(1, None), (2, None)]);
    assert_eq!(pair.client.stats().timeouts, 0);
}

/// Only the first of two READs has been sent again when both are answered.
#[test]
fn an_answer_to_the_first_sending_counts_while_it_is_sent_again() {
    let mut pair = Pair::new(22);
    let (_, region) = pair.register(&[1; 64], 0, Access::ALL);
    for tag in 1..3 {
        pair.post(tag, read(0, region.rkey, 8)).unwrap();
    }
    let answers = exchange(&mut pair);
    time_out(&mut pair);
    assert!(pair.client.poll_transmit(pair.now, &mut Vec::new()));
    give_back(&mut pair, &answers);
    assert_eq!(pair.outcomes(), [(1, None), (2, None)]);
    assert_eq!(pair.client.stats().dropped_total(), 0);
}

/// WRITEs take none of the peer's resources: one passes where a READ would have to wait.
#[test]
fn a_write_does_not_wait_for_reads() {
    let client = NicConfig { initiator_reads: 1, ..client_config() };
    let mut pair = Pair::with(23, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    pair.post(1, read(0, 1, 8)).unwrap();
    pair.post(2, write(0, 1, &[1])).unwrap();
    pair.post(3, read(0, 1, 8)).unwrap();
    let sent = drain(&mut pair.client, pair.now);
    assert_eq!(opcodes(&sent), [Opcode::RC_RDMA_READ_REQUEST, Opcode::RC_RDMA_WRITE_ONLY]);
}

//! What exactly is sent again.
#![allow(clippy::unwrap_used)] // a test that unwraps nothing fails, as it should

mod common;

use common::{Pair, endpoint};
use fatbtree_nic::time::Duration;
use fatbtree_nic::{Access, CompletionStatus, Nic, QueuePairState};
use fatbtree_wire::{Extension, Frame, IndexHeader, Opcode, Reth, hops};

/// Everything the NIC wants to send now.
fn drain(nic: &mut Nic, now: fatbtree_nic::time::Instant) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut frame = Vec::new();
    while nic.poll_transmit(now, &mut frame) {
        frames.push(frame.clone());
    }
    frames
}

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

fn time_out(pair: &mut Pair) {
    pair.now = pair.client.poll_timeout().expect("something is outstanding");
    pair.client.handle_timeout(pair.now);
}

#[test]
fn a_partly_received_read_resumes_where_it_stopped() {
    let mut pair = Pair::new(3);
    let memory: Vec<u8> = (0..5000).map(|i| (i / 7) as u8).collect();
    let region = pair.server.register_memory(1 << 48, memory.clone(), Access::READ);
    let first = endpoint(&pair.client, pair.qpn).psn;
    pair.client.post_read(pair.now, pair.qpn, 1, region.iova, region.rkey, 5000).unwrap();
    let responses = exchange(&mut pair);
    let opcodes: Vec<_> = responses.iter().map(|frame| Frame::parse(frame).unwrap().bth.opcode).collect();
    use Opcode as O;
    let (begin, middle, end) =
        (O::RC_RDMA_READ_RESPONSE_FIRST, O::RC_RDMA_READ_RESPONSE_MIDDLE, O::RC_RDMA_READ_RESPONSE_LAST);
    assert_eq!(opcodes, [begin, middle, middle, middle, end]);

    // The third response is lost: the fourth says so.
    pair.client.handle_frame(pair.now, &responses[0]);
    pair.client.handle_frame(pair.now, &responses[1]);
    pair.client.handle_frame(pair.now, &responses[3]);
    pair.client.handle_frame(pair.now, &responses[4]);
    let again = drain(&mut pair.client, pair.now);
    assert_eq!(again.len(), 1, "asked again once, not for each packet behind the gap");
    let (psn, resumed) = reth(&again[0]);
    assert_eq!(psn, (first + 2) & 0xff_ffff);
    assert_eq!(resumed, Reth { va: region.iova + 2048, rkey: region.rkey, length: 5000 - 2048 });
    pair.server.handle_frame(pair.now, &again[0]);
    for frame in drain(&mut pair.server, pair.now) {
        pair.client.handle_frame(pair.now, &frame);
    }
    let done = pair.client.poll_completion().unwrap();
    assert_eq!((done.status, done.data), (CompletionStatus::Success, memory));
    assert_eq!(pair.client.poll_timeout(), None);
}

/// A switch between the two that writes the address into index reads; a duplicate gets another address, as after a reload.
#[test]
fn an_index_read_is_sent_again_as_it_was_posted() {
    let mut pair = Pair::new(4);
    let mut memory = vec![1; 1024];
    memory[512..].fill(2);
    let region = pair.server.register_memory(1 << 48, memory, Access::READ);
    let key = 0xfeed_face_cafe_beef;
    let walk = |frame: &[u8], address| {
        let mut frame = frame.to_vec();
        let header = IndexHeader { key, ..Default::default() };
        assert!(hops::admit(&mut frame, &header, address, region.rkey));
        assert!(hops::strip(&mut frame));
        frame
    };
    pair.client.post_read(pair.now, pair.qpn, 1, key, 0, 512).unwrap();
    let sent = drain(&mut pair.client, pair.now);
    assert_eq!(reth(&sent[0]).1, Reth { va: key, rkey: 0, length: 512 });
    pair.server.handle_frame(pair.now, &walk(&sent[0], region.iova));
    assert_eq!(drain(&mut pair.server, pair.now).len(), 1, "this response is lost");

    time_out(&mut pair);
    let again = drain(&mut pair.client, pair.now);
    assert_eq!(reth(&again[0]), reth(&sent[0]), "the key and rkey 0, under the same PSN");
    pair.server.handle_frame(pair.now, &walk(&again[0], region.iova + 512));
    for frame in drain(&mut pair.server, pair.now) {
        pair.client.handle_frame(pair.now, &frame);
    }
    let done = pair.client.poll_completion().unwrap();
    assert_eq!((done.status, done.data), (CompletionStatus::Success, vec![2; 512]));
}

/// No switch on the way: the server refuses rkey 0 and both queue pairs fail.
#[test]
fn an_index_read_nobody_rewrote_is_refused() {
    let mut pair = Pair::new(5);
    pair.server.register_memory(1 << 48, vec![0; 1024], Access::READ);
    pair.client.post_read(pair.now, pair.qpn, 1, 77, 0, 512).unwrap();
    pair.drive();
    assert_eq!(pair.completions()[0].status, CompletionStatus::RemoteAccessError);
    assert_eq!(pair.server.state(pair.peer), Some(QueuePairState::Error));
}

#[test]
fn an_atomic_whose_answer_is_lost_is_not_carried_out_again() {
    let mut pair = Pair::new(6);
    let region = pair.server.register_memory(0, vec![0; 64], Access::ALL);
    pair.client.post_fetch_add(pair.now, pair.qpn, 1, 8, region.rkey, 5).unwrap();
    assert_eq!(exchange(&mut pair).len(), 1, "lost");
    time_out(&mut pair);
    for frame in exchange(&mut pair) {
        pair.client.handle_frame(pair.now, &frame);
    }
    let done = pair.client.poll_completion().unwrap();
    assert_eq!((done.status, done.original), (CompletionStatus::Success, 0));
    assert_eq!(pair.server.memory(region.rkey).unwrap()[8], 5);
    assert_eq!(pair.server.stats().duplicate_requests, 1);
}

#[test]
fn a_lost_request_is_asked_for_once() {
    let mut pair = Pair::new(7);
    let region = pair.server.register_memory(0, vec![0; 64], Access::ALL);
    for id in 0..4 {
        pair.client.post_write(pair.now, pair.qpn, id, id, region.rkey, &[id as u8 + 1]).unwrap();
    }
    let sent = drain(&mut pair.client, pair.now);
    for frame in [&sent[0], &sent[2], &sent[3]] {
        pair.server.handle_frame(pair.now, frame);
    }
    let answers = drain(&mut pair.server, pair.now);
    assert_eq!(answers.len(), 2, "an acknowledgement and one NAK");
    assert_eq!(pair.server.stats().naks_sent, 1);
    for frame in answers {
        pair.client.handle_frame(pair.now, &frame);
    }
    let again = drain(&mut pair.client, pair.now);
    assert_eq!(again.len(), 3, "from the lost one on, without waiting");
    for frame in &again {
        pair.server.handle_frame(pair.now, frame);
    }
    for frame in drain(&mut pair.server, pair.now) {
        pair.client.handle_frame(pair.now, &frame);
    }
    assert_eq!(pair.completions().len(), 4);
    assert_eq!(pair.server.memory(region.rkey).unwrap()[..4], [1, 2, 3, 4]);
    assert_eq!(pair.client.poll_timeout(), None);
}

/// Progress puts the deadline off; the deadline reported is exact.
#[test]
fn the_deadline_moves_with_progress() {
    let mut pair = Pair::new(8);
    let region = pair.server.register_memory(0, vec![0; 64], Access::ALL);
    assert_eq!(pair.client.poll_timeout(), None);
    for id in 0..2 {
        pair.client.post_read(pair.now, pair.qpn, id, 0, region.rkey, 8).unwrap();
    }
    assert_eq!(pair.client.poll_timeout(), None, "nothing sent yet");
    let responses = exchange(&mut pair);
    let timeout = pair.client.config().ack_timeout;
    assert_eq!(pair.client.poll_timeout(), Some(pair.now + timeout));
    pair.now += Duration::from_micros(60);
    pair.client.handle_frame(pair.now, &responses[0]);
    assert_eq!(pair.client.poll_timeout(), Some(pair.now + timeout));
    pair.client.handle_frame(pair.now, &responses[1]);
    assert_eq!(pair.client.poll_timeout(), None);
}

/// No more READs are outstanding than the responder takes.
#[test]
fn outstanding_reads_are_limited() {
    let mut pair = Pair::new(9);
    let region = pair.server.register_memory(0, vec![0; 64], Access::ALL);
    for id in 0..40 {
        pair.client.post_read(pair.now, pair.qpn, id, 0, region.rkey, 8).unwrap();
    }
    assert_eq!(drain(&mut pair.client, pair.now).len(), 16);
    assert!(drain(&mut pair.client, pair.now).is_empty());
    pair.drive();
    assert_eq!(pair.completions().len(), 40);
}

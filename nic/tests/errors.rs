//! What is refused, by whom, and how everybody learns of it.
#![allow(clippy::unwrap_used)] // a test that unwraps nothing fails, as it should

mod common;

use common::{CLIENT, Faults, Pair, SERVER, client_config, endpoint, server_config};
use fatbtree_nic::time::{Duration, Instant};
use fatbtree_nic::{
    Access, Completion, CompletionStatus, DropReason, Endpoint, MemoryRegion, Mtu, Nic, NicConfig, PostError,
    QpError, QueuePairNumber, QueuePairOptions, QueuePairState,
};
use fatbtree_wire::{Bth, Extension, Flow, Frame, HeaderTemplate, Opcode, Reth};

fn statuses(completions: &[Completion]) -> Vec<(u64, CompletionStatus)> {
    completions.iter().map(|completion| (completion.wr_id, completion.status)).collect()
}

fn pair_and_region(access: Access) -> (Pair, MemoryRegion) {
    let mut pair = Pair::new(1);
    let region = pair.server.register_memory(1 << 48, vec![7; 4096], access);
    (pair, region)
}

#[test]
fn a_remote_access_error_fails_both_queue_pairs_and_flushes_the_rest() {
    type Post = fn(&mut Nic, QueuePairNumber, &MemoryRegion) -> Result<(), PostError>;
    const T: Instant = Instant::ZERO;
    let cases: [(&str, Access, Post); 9] = [
        ("rkey 0", Access::ALL, |nic, qp, r| nic.post_read(T, qp, 2, r.iova, 0, 8)),
        ("unknown rkey", Access::ALL, |nic, qp, r| nic.post_read(T, qp, 2, r.iova, r.rkey ^ 1, 8)),
        ("before the region", Access::ALL, |nic, qp, r| nic.post_read(T, qp, 2, r.iova - 1, r.rkey, 8)),
        ("beyond the region", Access::ALL, |nic, qp, r| nic.post_read(T, qp, 2, r.iova + 4089, r.rkey, 8)),
        ("no right to read", Access::WRITE, |nic, qp, r| nic.post_read(T, qp, 2, r.iova, r.rkey, 8)),
        ("no right to write", Access::READ, |nic, qp, r| nic.post_write(T, qp, 2, r.iova, r.rkey, &[1])),
        ("a long WRITE beyond", Access::ALL, |nic, qp, r| {
            nic.post_write(T, qp, 2, r.iova, r.rkey, &[1; 4097])
        }),
        ("no right to add", Access::READ, |nic, qp, r| nic.post_fetch_add(T, qp, 2, r.iova, r.rkey, 1)),
        ("CAS beyond", Access::ALL, |nic, qp, r| {
            nic.post_compare_swap(T, qp, 2, r.iova + 4096, r.rkey, 0, 1)
        }),
    ];
    for (name, access, post) in cases {
        let (mut pair, region) = pair_and_region(access);
        let (qpn, peer) = (pair.qpn, pair.peer);
        if access.contains(Access::WRITE) {
            pair.client.post_write(T, qpn, 1, region.iova, region.rkey, &[9; 4]).unwrap();
        } else {
            pair.client.post_read(T, qpn, 1, region.iova, region.rkey, 4).unwrap();
        }
        post(&mut pair.client, qpn, &region).unwrap();
        pair.client.post_read(T, qpn, 3, region.iova, region.rkey, 8).unwrap();
        pair.drive();
        let expected = [
            (1, CompletionStatus::Success),
            (2, CompletionStatus::RemoteAccessError),
            (3, CompletionStatus::WorkRequestFlushed),
        ];
        assert_eq!(statuses(&pair.completions()), expected, "{name}");
        assert_eq!(pair.client.state(qpn), Some(QueuePairState::Error), "{name}");
        assert_eq!(pair.server.state(peer), Some(QueuePairState::Error), "{name}");
        assert_eq!(pair.client.poll_timeout(), None, "{name}");
        let again = pair.client.post_read(T, qpn, 4, region.iova, region.rkey, 8);
        assert_eq!(again, Err(PostError::State { qpn, state: QueuePairState::Error }), "{name}");
        // A WRITE that reaches too far leaves no trace.
        let memory = pair.server.memory(region.rkey).unwrap();
        let first = if access.contains(Access::WRITE) { 9 } else { 7 };
        assert_eq!((memory[0], memory[4]), (first, 7), "{name}");
    }
}

#[test]
fn a_read_of_no_bytes_needs_no_right() {
    let (mut pair, _) = pair_and_region(Access::NONE);
    pair.client.post_read(pair.now, pair.qpn, 1, 0, 0, 0).unwrap();
    pair.client.post_write(pair.now, pair.qpn, 2, 0, 0, &[]).unwrap();
    pair.drive();
    let expected = [(1, CompletionStatus::Success), (2, CompletionStatus::Success)];
    assert_eq!(statuses(&pair.completions()), expected);
}

#[test]
fn a_dead_link_exhausts_the_retries_in_the_time_promised() {
    let client = NicConfig { retry_count: 3, ..client_config() };
    let dead = Faults { drop: 1024, ..Faults::default() };
    let mut pair = Pair::with(1, client, server_config(), QueuePairOptions::default(), dead);
    pair.client.post_read(pair.now, pair.qpn, 1, 0x1000, 7, 64).unwrap();
    pair.client.post_write(pair.now, pair.qpn, 2, 0x1000, 7, &[1; 64]).unwrap();
    pair.drive();
    let expected = [(1, CompletionStatus::RetryExceeded), (2, CompletionStatus::WorkRequestFlushed)];
    assert_eq!(statuses(&pair.completions()), expected);
    assert_eq!(pair.now, Instant::ZERO + Duration::from_micros(400));
    assert_eq!(pair.client.stats().frames_sent, 8, "each request once and three times again");
    assert_eq!(pair.client.state(pair.qpn), Some(QueuePairState::Error));
}

#[test]
fn a_region_taken_back_is_refused_later() {
    let (mut pair, region) = pair_and_region(Access::ALL);
    assert_eq!(pair.server.deregister_memory(region.rkey).map(|memory| memory.len()), Some(4096));
    pair.client.post_read(pair.now, pair.qpn, 1, region.iova, region.rkey, 64).unwrap();
    pair.drive();
    assert_eq!(statuses(&pair.completions()), [(1, CompletionStatus::RemoteAccessError)]);
}

#[test]
fn posts_that_cannot_be_are_refused_at_once() {
    let (mut pair, region) = pair_and_region(Access::ALL);
    let (qpn, now) = (pair.qpn, pair.now);
    let client = &mut pair.client;
    let misaligned = client.post_fetch_add(now, qpn, 1, 9, region.rkey, 1);
    assert_eq!(misaligned, Err(PostError::Misaligned { va: 9 }));
    let too_long = client.post_read(now, qpn, 1, 0, 1, u32::MAX);
    assert_eq!(too_long, Err(PostError::TooLong { found: u64::from(u32::MAX), limit: 1 << 31 }));
    let nobody = QueuePairNumber(0x123456);
    assert_eq!(client.post_read(now, nobody, 1, 0, 1, 1), Err(PostError::Unknown { qpn: nobody }));
    let limit = client.config().max_send_queue;
    for id in 0..limit as u64 {
        client.post_read(now, qpn, id, 0, 1, 1).unwrap();
    }
    let full = client.post_read(now, qpn, 1, 0, 1, 1).unwrap_err();
    assert_eq!(full, PostError::Full { qpn, what: "requests", found: limit, limit });
    assert!(full.to_string().ends_with("found 256 of 256 requests; poll completions first"), "{full}");
}

#[test]
fn connecting_says_what_is_wrong() {
    let mut nic = Nic::new(client_config(), 1);
    let qpn = nic.create_queue_pair();
    let good = endpoint(&nic, qpn);
    let error = nic.connect(qpn, Endpoint { qpn: QueuePairNumber(1), ..good }).unwrap_err();
    assert!(
        error.to_string().contains("remote queue pair number: expected 2 to 2^24 - 1, found 1"),
        "{error}"
    );
    assert_eq!(nic.state(qpn), Some(QueuePairState::Reset));
    assert!(matches!(
        nic.post_read(Instant::ZERO, qpn, 1, 0, 1, 1),
        Err(PostError::State { state: QueuePairState::Reset, .. })
    ));
    nic.connect(qpn, good).unwrap();
    let error = nic.connect(qpn, good).unwrap_err();
    assert!(error.to_string().contains("from RTS to INIT: only a queue pair in RESET"), "{error}");
    nic.destroy_queue_pair(qpn).unwrap();
    assert_eq!(nic.connect(qpn, good), Err(QpError::Unknown { qpn }));
    for qpn in [0, 1, 1 << 24, 0x01_0001] {
        let options = QueuePairOptions { qpn: Some(QueuePairNumber(qpn)), ..Default::default() };
        assert!(matches!(nic.create_queue_pair_with(options), Err(QpError::Number { .. })), "{qpn:#x}");
    }
}

#[test]
fn numbers_are_unique_and_reused_slots_get_other_numbers() {
    let mut nic = Nic::new(client_config(), 1);
    let options = |qpn| QueuePairOptions { qpn: Some(QueuePairNumber(qpn)), ..Default::default() };
    nic.create_queue_pair_with(options(0x11)).unwrap();
    assert!(nic.create_queue_pair_with(options(0x11)).is_err());
    assert!(nic.create_queue_pair_with(options(0x05_0011)).is_err());
    let mut numbers: Vec<_> = (0..1000).map(|_| nic.create_queue_pair()).collect();
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 1000);
    assert!(numbers.iter().all(|number| (2..1 << 24).contains(&number.0)));
    for &number in &numbers {
        nic.destroy_queue_pair(number).unwrap();
        assert_eq!(nic.state(number), None);
    }
}

/// The MTU of a connection is the smaller one.
#[test]
fn the_smaller_mtu_wins() {
    let server = NicConfig { mtu: Mtu::B256, ..server_config() };
    let mut pair = Pair::with(1, client_config(), server, QueuePairOptions::default(), Faults::default());
    let region = pair.server.register_memory(0, vec![3; 1000], Access::ALL);
    pair.client.post_read(pair.now, pair.qpn, 1, 0, region.rkey, 1000).unwrap();
    pair.drive();
    assert_eq!(pair.completions()[0].data, [3; 1000]);
    assert_eq!(pair.server.stats().frames_sent, 4);
}

/// A READ request as `client` would send it, damaged by `damage` before the ICRC is computed.
fn request(pair: &Pair, damage: impl FnOnce(&mut Flow, &mut Bth)) -> Vec<u8> {
    let mut flow = Flow {
        source_mac: CLIENT.0,
        destination_mac: SERVER.0,
        source_ip: CLIENT.1,
        destination_ip: SERVER.1,
        ..Flow::default()
    };
    let psn = endpoint(&pair.client, pair.qpn).psn;
    let mut bth = Bth::new(Opcode::RC_RDMA_READ_REQUEST, pair.peer.0, psn);
    damage(&mut flow, &mut bth);
    let extension = match bth.opcode {
        Opcode::RC_RDMA_READ_REQUEST => Extension::Reth(Reth { va: 0, rkey: 1, length: 0 }),
        _ => Extension::None,
    };
    let mut out = Vec::new();
    HeaderTemplate::new(&flow).emit(&mut out, 1, &bth, &extension, &[]);
    out
}

#[test]
fn foreign_and_damaged_frames_are_counted_by_reason() {
    let mut pair = Pair::new(1);
    let mut frames: Vec<(DropReason, Vec<u8>)> = Vec::new();
    let mut arp = vec![0; 42];
    arp[12..14].copy_from_slice(&[8, 6]);
    frames.push((DropReason::Foreign, arp));
    frames.push((DropReason::Malformed, vec![0; 5]));
    let good = request(&pair, |_, _| ());
    let index = {
        let mut out = Vec::new();
        let bth = Bth::new(Opcode::RC_RDMA_READ_REQUEST, pair.peer.0, 0);
        let reth = Extension::Reth(Reth { va: 5, rkey: 0, length: 0 });
        HeaderTemplate::new(&Flow::default()).emit(&mut out, 1, &bth, &reth, &[]);
        assert!(fatbtree_wire::hops::admit(&mut out, &Default::default(), 1, 2));
        out
    };
    frames.push((DropReason::IndexHeader, index));
    frames.push((DropReason::WrongMac, request(&pair, |flow, _| flow.destination_mac[5] = 9)));
    frames.push((DropReason::WrongIp, request(&pair, |flow, _| flow.destination_ip = [10, 0, 0, 9].into())));
    let mut damaged = good.clone();
    damaged[60] ^= 1;
    frames.push((DropReason::BadIcrc, damaged));
    frames.push((DropReason::UnknownQueuePair, request(&pair, |_, bth| bth.destination_qp ^= 1 << 20)));
    frames.push((DropReason::UnknownQueuePair, request(&pair, |_, bth| bth.destination_qp = 0xffff)));
    frames.push((DropReason::WrongPkey, request(&pair, |_, bth| bth.pkey = 0x8001)));
    frames.push((DropReason::WrongPeer, request(&pair, |flow, _| flow.source_ip = [10, 0, 0, 3].into())));
    frames.push((DropReason::UnknownOpcode, request(&pair, |_, bth| bth.opcode = Opcode::UC_SEND_ONLY)));
    frames.push((DropReason::RequestGap, request(&pair, |_, bth| bth.psn += 5)));

    let mut expected = std::collections::BTreeMap::new();
    for (reason, frame) in frames {
        pair.server.handle_frame(pair.now, &frame);
        *expected.entry(reason).or_insert(0) += 1;
        assert_eq!(pair.server.stats().dropped(reason), expected[&reason], "{reason}");
    }
    let drops: std::collections::BTreeMap<_, _> = pair.server.stats().drops().collect();
    assert_eq!(drops, expected);
    // And the queue pair still works.
    pair.server.handle_frame(pair.now, &good);
    assert_eq!(pair.server.stats().requests_executed, 1);
    pair.link.faults.drop = 1024; // those answers concern nobody
    pair.drive();
    let unconnected = pair.server.create_queue_pair();
    let frame = request(&pair, |_, bth| bth.destination_qp = unconnected.0);
    pair.server.handle_frame(pair.now, &frame);
    assert_eq!(pair.server.stats().dropped(DropReason::NotReady), 1);
}

/// A SEND, which this NIC does not take, is refused and says so.
#[test]
fn an_unsupported_request_is_an_invalid_request() {
    let mut pair = Pair::new(1);
    let frame = request(&pair, |_, bth| bth.opcode = Opcode::RC_SEND_ONLY);
    pair.server.handle_frame(pair.now, &frame);
    let mut out = Vec::new();
    assert!(pair.server.poll_transmit(pair.now, &mut out));
    let answer = Frame::parse(&out).unwrap();
    let Extension::Aeth(aeth) = answer.extension else { panic!("{answer:?}") };
    assert_eq!(aeth.syndrome.to_string(), "NAK, invalid request");
    assert_eq!(pair.server.state(pair.peer), Some(QueuePairState::Error));
}

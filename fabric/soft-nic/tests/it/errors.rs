//! Refused requests, the side that refuses them, and the reports to both sides.
use crate::common;

use common::{
    CLIENT, End, LATENCY, Pair, SERVER, client_config, describe, drain, fetch_add, read, server_config, write,
};
use fatbtree_soft_nic::faults::FaultRates;
use fatbtree_soft_nic::{DropReason, Nic, NicConfig, QueuePairOptions};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Access, ConnectError, Device, Endpoint, Failure, IndexTarget, Memory, Mtu, Operation, PostError,
    QueuePair, QueuePairNumber, QueuePairState, Region, RegisterError, Remote, Verbs, WorkRequest,
};
use fatbtree_wire::{Bth, Extension, Flow, HeaderTemplate, Opcode, Reth};
use std::sync::Arc;

fn pair_and_region(access: Access) -> (Pair, Arc<Memory>, Region) {
    let mut pair = Pair::new(1);
    let (memory, region) = pair.register(&[7; 4096], 1 << 48, access);
    (pair, memory, region)
}

fn bytes(memory: &Memory, offset: u64, len: usize) -> Vec<u8> {
    let mut found = vec![0; len];
    memory.read(offset, &mut found).unwrap();
    found
}

#[test]
fn a_remote_access_error_fails_both_queue_pairs_and_flushes_the_rest() {
    static LONG: [u8; 4097] = [1; 4097];
    type Ask = fn(&Region) -> Operation<'static>;
    let cases: [(&str, Access, Ask); 9] = [
        ("rkey 0", Access::ALL, |r| read(r.iova, 0, 8)),
        ("unknown rkey", Access::ALL, |r| read(r.iova, r.rkey ^ 1, 8)),
        ("before the region", Access::ALL, |r| read(r.iova - 1, r.rkey, 8)),
        ("beyond the region", Access::ALL, |r| read(r.iova + 4089, r.rkey, 8)),
        ("no right to read", Access::WRITE, |r| read(r.iova, r.rkey, 8)),
        ("no right to write", Access::READ, |r| write(r.iova, r.rkey, &[1])),
        ("a long WRITE beyond", Access::ALL, |r| write(r.iova, r.rkey, &LONG)),
        ("no right to add", Access::READ, |r| fetch_add(r.iova, r.rkey, 1)),
        ("an atomic beyond", Access::ALL, |r| fetch_add(r.iova + 4096, r.rkey, 1)),
    ];
    for (name, access, ask) in cases {
        let (mut pair, memory, region) = pair_and_region(access);
        let good = if access.contains(Access::WRITE) {
            write(region.iova, region.rkey, &[9; 4])
        } else {
            read(region.iova, region.rkey, 4)
        };
        pair.post(1, good).unwrap();
        pair.post(2, ask(&region)).unwrap();
        pair.post(3, read(region.iova, region.rkey, 8)).unwrap();
        pair.drive();
        let expected = [(1, None), (2, Some(Failure::RemoteAccess)), (3, Some(Failure::Flushed))];
        assert_eq!(pair.outcomes(), expected, "{name}");
        let queue_pair = pair.queue_pair;
        assert_eq!(pair.client.state(queue_pair), Some(QueuePairState::Error), "{name}");
        assert_eq!(pair.client.poll_broken(), Some(queue_pair), "{name}");
        assert_eq!(pair.client.poll_broken(), None, "{name}");
        assert_eq!(pair.server.poll_broken(), Some(pair.peer), "{name}");
        assert_eq!(pair.client.poll_timeout(), None, "{name}");
        let again = pair.post(4, read(region.iova, region.rkey, 8));
        let state = QueuePairState::Error;
        assert_eq!(again, Err(PostError::NotConnected { queue_pair, state }), "{name}");
        // A WRITE that reaches too far leaves no trace.
        let first = if access.contains(Access::WRITE) { 9 } else { 7 };
        assert_eq!(bytes(&memory, 0, 5), [first, first, first, first, 7], "{name}");
    }
}

#[test]
fn a_dead_link_exhausts_the_retries_in_the_time_promised() {
    let client = NicConfig { retry_count: 3, ..client_config() };
    let dead = FaultRates { drop: 10_000, ..FaultRates::NONE };
    let mut pair = Pair::with(1, client, server_config(), QueuePairOptions::default(), dead);
    pair.post(1, read(0x1000, 7, 64)).unwrap();
    pair.post(2, write(0x1000, 7, &[1; 64])).unwrap();
    pair.drive();
    assert_eq!(pair.outcomes(), [(1, Some(Failure::RetryExceeded)), (2, Some(Failure::Flushed))]);
    assert_eq!(pair.now, Instant::ZERO + Duration::from_micros(400));
    assert_eq!(pair.client.stats().frames_sent, 8, "each request once and three times again");
    assert_eq!(pair.client.state(pair.queue_pair), Some(QueuePairState::Error));
}

/// A region that goes while a READ is being answered: what is left of the READ is refused, again if the refusal is lost.
#[test]
fn a_region_taken_back_is_refused_from_then_on() {
    for loses_refusal in [false, true] {
        let (mut pair, _, region) = pair_and_region(Access::ALL);
        pair.post(1, read(region.iova, region.rkey, 64)).unwrap();
        pair.post(2, read(region.iova, region.rkey, 4096)).unwrap();
        for frame in drain(&mut pair.client, pair.now) {
            pair.server.handle_frame(pair.now, &frame);
        }
        let mut frame = Vec::new();
        for _ in 0..3 {
            assert!(pair.server.poll_transmit(pair.now, &mut frame));
            pair.client.handle_frame(pair.now, &frame);
        }
        pair.server.deregister(region.rkey);
        if loses_refusal {
            assert_eq!(pair.answers().len(), 1);
        }
        pair.drive();
        assert_eq!(pair.outcomes(), [(1, None), (2, Some(Failure::RemoteOperational))]);
        assert_eq!(pair.server.state(pair.peer), Some(QueuePairState::Error));
    }

    let (mut pair, _, region) = pair_and_region(Access::ALL);
    pair.server.deregister(region.rkey);
    pair.post(1, read(region.iova, region.rkey, 64)).unwrap();
    pair.drive();
    assert_eq!(pair.outcomes(), [(1, Some(Failure::RemoteAccess))]);
}

/// The NAK is lost: the requester, which asks again, learns the reason all the same, and long before its retries are used up.
#[test]
fn a_lost_refusal_is_repeated() {
    let (mut pair, _, region) = pair_and_region(Access::ALL);
    pair.post(1, write(region.iova, region.rkey, &[1; 8])).unwrap();
    pair.post(2, read(region.iova, region.rkey ^ 1, 8)).unwrap();
    for frame in drain(&mut pair.client, pair.now) {
        pair.server.handle_frame(pair.now, &frame);
    }
    assert_eq!(drain(&mut pair.server, pair.now).len(), 2, "both answers are lost");
    pair.drive();
    assert_eq!(pair.outcomes(), [(1, None), (2, Some(Failure::RemoteAccess))]);
    assert_eq!(pair.now, Instant::ZERO + client_config().ack_timeout + LATENCY * 2);
    // However many frames come, there is one such answer at a time.
    let psn = pair.first_psn() + 1;
    for _ in 0..10 {
        pair.request_read(psn, region.iova, region.rkey ^ 1, 8);
    }
    assert_eq!(pair.answers(), [format!("{psn}: NAK, remote access error")]);
    assert_eq!(pair.server.poll_broken(), Some(pair.peer));
    assert_eq!(pair.server.poll_broken(), None, "it is broken once");
}

#[test]
fn posts_that_cannot_be_are_refused_at_once_and_change_nothing() {
    let (mut pair, _, region) = pair_and_region(Access::ALL);
    let (queue_pair, rkey) = (pair.queue_pair, region.rkey);
    let largest = pair.client.buffers().largest();
    let free = pair.client.buffers().free();
    let request = |operation| WorkRequest { tag: 9, signalled: true, operation };
    let good = request(read(region.iova, rkey, 8));
    let long = vec![0; largest as usize + 1];
    let limit = pair.client.capabilities().send_queue;
    let found = limit + 1;
    let cases: [(&[WorkRequest<'_>], PostError); 7] = [
        (&[good, request(fetch_add(9, rkey, 1))], PostError::Misaligned { address: 9 }),
        (
            &[good, request(read(0, 777, u32::MAX))],
            PostError::TooLong { found: u32::MAX.into(), limit: largest },
        ),
        (&[good, request(write(0, 1, &long))], PostError::TooLong { found: largest + 1, limit: largest }),
        (
            &[good, request(Operation::IndexRead { key: 5, len: 1025, target: IndexTarget::NodeOrRecord })],
            PostError::IndexReadTooLong { found: 1025, limit: 1024 },
        ),
        (&[good, request(read(5, 0, 1025))], PostError::IndexReadTooLong { found: 1025, limit: 1024 }),
        (&[], PostError::ChainLength { found: 0, limit }),
        (&vec![good; found], PostError::ChainLength { found, limit }),
    ];
    for (chain, error) in cases {
        assert_eq!(pair.client.post(queue_pair, chain), Err(error));
        assert!(drain(&mut pair.client, pair.now).is_empty(), "{error}: a part was posted");
        assert_eq!(pair.client.buffers().free(), free, "{error}: a buffer is lost");
    }
    let nobody = QueuePair(queue_pair.0 ^ 1 << 40);
    let error = PostError::NotConnected { queue_pair: nobody, state: QueuePairState::Reset };
    assert_eq!(pair.client.post(nobody, &[good]), Err(error));

    for tag in 0..limit as u64 {
        pair.post(tag, read(region.iova, rkey, 1)).unwrap();
    }
    let full = pair.post(1, read(region.iova, rkey, 1)).unwrap_err();
    assert_eq!(full, PostError::Full { queue_pair, what: "requests", found, limit });
    pair.drive();
    assert_eq!(pair.outcomes(), (0..limit as u64).map(|tag| (tag, None)).collect::<Vec<_>>());
}

/// A configuration that would let a queue pair ask or answer nothing.
#[test]
fn at_least_one_read_is_offered() {
    let none = NicConfig { responder_reads: 0, initiator_reads: 0, ..server_config() };
    let mut pair = Pair::with(1, client_config(), none, QueuePairOptions::default(), FaultRates::NONE);
    let there = pair.server.endpoint(pair.peer).unwrap();
    assert_eq!((there.responder_reads, there.initiator_reads), (1, 1));
    let can = pair.server.capabilities();
    assert_eq!((can.responder_reads, can.initiator_reads), (1, 1));
    let (_, region) = pair.register(&[7; 64], 0, Access::ALL);
    pair.post(1, read(0, region.rkey, 8)).unwrap();
    pair.drive();
    assert_eq!(pair.bytes(), [7; 8]);
}

/// The path MTU is the smaller one of both, and the single-packet rule follows it.
#[test]
fn the_agreed_path_mtu_bounds_packets_and_index_reads() {
    let configs = [(Mtu::B1024, Mtu::B256), (Mtu::B256, Mtu::B4096)];
    for (ours, theirs) in configs {
        let client = NicConfig { mtu: ours, ..client_config() };
        let server = NicConfig { mtu: theirs, ..server_config() };
        let mut pair = Pair::with(1, client, server, QueuePairOptions::default(), FaultRates::NONE);
        let (_, region) = pair.register(&[3; 1000], 0, Access::ALL);
        let fresh = pair.client.create().unwrap();
        let agreed = pair.client.connect(fresh, &pair.server.endpoint(pair.peer).unwrap()).unwrap();
        assert_eq!(agreed.mtu, Mtu::B256);

        pair.post(1, read(0, region.rkey, 1000)).unwrap();
        pair.drive();
        assert_eq!(pair.bytes(), [3; 1000]);
        assert_eq!(pair.server.stats().frames_sent, 4);

        for target in IndexTarget::ALL {
            for operation in [Operation::IndexRead { key: 7, len: 257, target }, read(7, target.rkey(), 257)]
            {
                let refused = pair.post(2, operation);
                assert_eq!(refused, Err(PostError::IndexReadTooLong { found: 257, limit: 256 }));
            }
            pair.post(3, Operation::IndexRead { key: 7, len: 256, target }).unwrap();
        }
    }
}

#[test]
fn connecting_says_what_is_wrong() {
    let mut nic = Nic::new(client_config(), 1).unwrap();
    let queue_pair = nic.create().unwrap();
    let good = nic.endpoint(queue_pair).unwrap();
    let bad = Endpoint { queue_pair: QueuePairNumber(1), ..good };
    let error = nic.connect(queue_pair, &bad).unwrap_err();
    assert!(
        error.to_string().contains("remote queue pair number: expected 2 to 2^24 - 1, found 1"),
        "{error}"
    );
    let bad = [
        (Endpoint { psn: 1 << 24, ..good }, "remote PSN: expected 24 bits"),
        (Endpoint { responder_reads: 0, ..good }, "remote READs it answers at once: expected at least 1"),
        (Endpoint { initiator_reads: 0, ..good }, "remote READs it has outstanding: expected at least 1"),
    ];
    for (bad, expected) in bad {
        let error = nic.connect(queue_pair, &bad).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(nic.state(queue_pair), Some(QueuePairState::Reset));
    nic.connect(queue_pair, &good).unwrap();
    let error = nic.connect(queue_pair, &good).unwrap_err();
    assert_eq!(error, ConnectError::State { queue_pair, state: QueuePairState::ReadyToSend });
    nic.destroy(queue_pair);
    assert_eq!(nic.connect(queue_pair, &good), Err(ConnectError::Unknown { queue_pair }));
    for number in [0, 1, 1 << 24, 1 << 24 | 5, 0x01_0001] {
        let options = QueuePairOptions { number: Some(QueuePairNumber(number)), ..Default::default() };
        let error = nic.create_with(options).unwrap_err();
        assert!(error.to_string().ends_with("outside of the range"), "{number:#x}: {error}");
    }
}

#[test]
fn an_rkey_of_ones_choice_is_given_once_and_never_one_of_index_reads() {
    let mut nic = Nic::new(client_config(), 1).unwrap();
    let memory = Memory::shared(64).unwrap();
    let region = nic.register_with_rkey(777, &memory, 4096, Access::ALL).unwrap();
    assert_eq!(region, Region { rkey: 777, iova: 4096, len: 64 });
    for rkey in [0, 1, 255, 777] {
        let error = nic.register_with_rkey(rkey, &memory, 4096, Access::ALL).unwrap_err();
        assert!(matches!(error, RegisterError::Driver { .. }), "{error}");
    }
    let beyond = nic.register(&memory, u64::MAX - 10, Access::ALL);
    assert_eq!(beyond, Err(RegisterError::Range { iova: u64::MAX - 10, len: 64 }));
}

/// Device memory is as much as the configuration says: with the default as many locks of 16 bits as Sherman has.
#[test]
fn device_memory_is_bounded() {
    let mut nic = Nic::new(server_config(), 1).unwrap();
    assert_eq!(nic.capabilities().device_memory, 131_072 * 2);
    let first = nic.register_device_memory(200_000, 0, Access::ALL).unwrap();
    let second = nic.register_device_memory(62_145, 0, Access::ALL);
    assert_eq!(second, Err(RegisterError::DeviceMemory { wanted: 62_145, available: 62_144 }));
    nic.register_device_memory(62_144, 0, Access::ALL).unwrap();
    nic.deregister(first.rkey);
    nic.register_device_memory(200_000, 0, Access::ALL).unwrap();
    // Other memory that goes makes no room there.
    let other = nic.register(&Memory::shared(64).unwrap(), 0, Access::ALL).unwrap();
    nic.deregister(other.rkey);
    assert!(nic.register_device_memory(1, 0, Access::ALL).is_err());
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
    let number = pair.server.endpoint(pair.peer).unwrap().queue_pair;
    let mut bth = Bth::new(Opcode::RC_RDMA_READ_REQUEST, number.0, pair.first_psn());
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
        let bth = Bth::new(Opcode::RC_RDMA_READ_REQUEST, 0x11, 0);
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
    frames.push((DropReason::UnknownOpcode, request(&pair, |_, bth| bth.opcode = Opcode(0xc0))));
    frames.push((DropReason::RequestGap, request(&pair, |_, bth| bth.psn += 5)));
    frames.push((DropReason::StaleRequest, request(&pair, |_, bth| bth.psn = bth.psn.wrapping_sub(1))));

    let mut expected = std::collections::BTreeMap::new();
    for (reason, frame) in frames {
        pair.server.handle_frame(pair.now, &frame);
        *expected.entry(reason).or_insert(0) += 1;
        assert_eq!(pair.server.stats().dropped(reason), expected[&reason], "{reason}");
    }
    let drops: std::collections::BTreeMap<_, _> = pair.server.stats().drops().collect();
    assert_eq!(drops, expected);
    // And the queue pair still works, for limited members of the partition too.
    pair.server.handle_frame(pair.now, &good);
    let limited = request(&pair, |_, bth| (bth.pkey, bth.psn) = (0x7fff, (bth.psn + 1) & 0xff_ffff));
    pair.server.handle_frame(pair.now, &limited);
    assert_eq!(pair.server.stats().requests_executed, 2);
    drain(&mut pair.server, pair.now); // those answers are discarded
    let unconnected = pair.server.create().unwrap();
    let number = pair.server.endpoint(unconnected).unwrap().queue_pair;
    let frame = request(&pair, |_, bth| bth.destination_qp = number.0);
    pair.server.handle_frame(pair.now, &frame);
    assert_eq!(pair.server.stats().dropped(DropReason::NotReady), 1);
}

/// A SEND that takes an rkey back, which this NIC does not do, is refused and says so.
#[test]
fn an_unsupported_request_is_an_invalid_request() {
    let mut pair = Pair::new(1);
    let psn = pair.first_psn();
    let frame = pair.forge(End::Server, Opcode::RC_SEND_ONLY_INVALIDATE, psn, Extension::Invalidate(7), &[]);
    pair.server.handle_frame(pair.now, &frame);
    let answers: Vec<_> = drain(&mut pair.server, pair.now).iter().map(|frame| describe(frame)).collect();
    assert_eq!(answers, [format!("{psn}: NAK, invalid request")]);
    assert_eq!(pair.server.state(pair.peer), Some(QueuePairState::Error));
}

/// A responder that refuses for an unknown reason.
#[test]
fn an_unknown_refusal_is_still_a_refusal() {
    use fatbtree_wire::{Aeth, NakCode, Syndrome};
    let mut pair = Pair::new(1);
    pair.post(1, Operation::Read { from: Remote { address: 0, rkey: 1 }, len: 8 }).unwrap();
    drain(&mut pair.client, pair.now);
    let aeth = Aeth { syndrome: Syndrome::nak(NakCode(17)), msn: 0 };
    pair.respond(Opcode::RC_ACKNOWLEDGE, pair.first_psn(), Extension::Aeth(aeth), &[]);
    assert_eq!(pair.outcomes(), [(1, Some(Failure::Other))]);
}

//! Resources of a NIC are bounded, whatever its owner and its driver do or leave undone; and they are
//! returned.
use crate::common;

use common::{End, Pair, client_config, connect, drain, read, server_config, write};
use fatbtree_soft_nic::faults::FaultRates;
use fatbtree_soft_nic::{Nic, NicConfig, QueuePairOptions};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Access, BufferClass, BufferPool, ConnectError, Device, Failure, Mtu, PostError, QueuePair,
    QueuePairNumber, QueuePairState, Verbs, WorkRequest,
};
use std::collections::BTreeSet;

fn with_number(number: u32) -> QueuePairOptions {
    QueuePairOptions { number: Some(QueuePairNumber(number)), ..Default::default() }
}

/// A NIC may be driven by another thread than the one that made it.
const _: () = {
    const fn goes_to_another_thread<T: Send>() {}
    goes_to_another_thread::<Nic>();
};

#[test]
fn the_65_535th_queue_pair_is_an_error() {
    let mut nic = Nic::new(NicConfig { queue_pairs: 1 << 20, ..server_config() }, 1).unwrap();
    let all: BTreeSet<QueuePair> = (0..65_534).map(|_| nic.create().unwrap()).collect();
    let numbers: BTreeSet<_> = all.iter().map(|&one| nic.endpoint(one).unwrap().queue_pair).collect();
    assert_eq!((all.len(), numbers.len()), (65_534, 65_534));
    let limit = 65_534;
    assert_eq!(nic.create(), Err(ConnectError::NoQueuePair { limit }));
    assert_eq!(nic.create_with(with_number(0x11)), Err(ConnectError::NoQueuePair { limit }));
    let gone = *all.first().unwrap();
    nic.destroy(gone);
    let new = nic.create().unwrap();
    assert!(!all.contains(&new), "{new} was there before");
    assert_eq!(nic.create(), Err(ConnectError::NoQueuePair { limit }));
}

#[test]
fn the_configuration_bounds_queue_pairs() {
    let mut nic = Nic::new(NicConfig { queue_pairs: 3, ..server_config() }, 1).unwrap();
    let mut live: Vec<QueuePair> = (0..3).map(|_| nic.create().unwrap()).collect();
    let mut seen: BTreeSet<QueuePair> = live.iter().copied().collect();
    for round in 0..2000 {
        assert_eq!(nic.create(), Err(ConnectError::NoQueuePair { limit: 3 }));
        let gone = live.remove(round % 3);
        nic.destroy(gone);
        nic.destroy(gone);
        assert_eq!((nic.state(gone), nic.endpoint(gone).is_err()), (None, true));
        live.push(nic.create().unwrap());
        let peer = nic.endpoint(live[0]).unwrap();
        assert_eq!(nic.connect(gone, &peer), Err(ConnectError::Unknown { queue_pair: gone }));
        assert!(seen.insert(live[2]), "round {round}: {} was given out before", live[2]);
    }
    for one in live {
        assert_eq!(nic.state(one), Some(QueuePairState::Reset));
    }
}

/// Frames for a queue pair that is gone hardly ever meet another by its number.
#[test]
fn a_number_comes_again_as_late_as_possible() {
    let mut nic = Nic::new(server_config(), 1).unwrap();
    let mut seen = BTreeSet::new();
    let room = [(); 2].map(|()| nic.create().unwrap());
    for one in room {
        nic.destroy(one);
    }
    for round in 0..510 {
        let one = nic.create().unwrap();
        let number = nic.endpoint(one).unwrap().queue_pair;
        assert!((2..1 << 24).contains(&number.0));
        assert!(seen.insert(number), "number {number} came again after {round} others");
        nic.destroy(one);
    }
    // Numbers of one's choice, beside those.
    let chosen = nic.create_with(with_number(0x11)).unwrap();
    for taken in [0x11, 0x05_0011] {
        let error = nic.create_with(with_number(taken)).unwrap_err().to_string();
        assert!(error.contains("taken"), "{error}");
    }
    let others: Vec<_> = (0..1000).map(|_| nic.create().unwrap()).collect();
    let numbers: BTreeSet<_> =
        others.iter().map(|&one| nic.endpoint(one).unwrap().queue_pair.0 & 0xffff).collect();
    assert!(numbers.len() == 1000 && !numbers.contains(&0x11));
    nic.destroy(chosen);
    nic.create_with(with_number(0x05_0011)).unwrap();
}

#[test]
fn completions_that_nobody_takes_stop_the_posting() {
    let client = NicConfig { completion_queue: 10, ..client_config() };
    let mut pair = Pair::with(1, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    let (_, region) = pair.register(&[7; 64], 0, Access::ALL);
    assert_eq!(pair.client.capabilities().longest_chain, 10);
    let (second, _) = connect(&mut pair.client, &mut pair.server, QueuePairOptions::default());
    let request = |signalled| WorkRequest { tag: 1, signalled, operation: write(0, region.rkey, b"x") };
    pair.client.post(second, &[request(true); 4]).unwrap();
    pair.client.post(pair.queue_pair, &[request(false); 6]).unwrap();
    let full = |pair: &mut Pair| {
        let refused = pair.client.post(pair.queue_pair, &[request(true)]).unwrap_err();
        matches!(refused, PostError::Full { found: 11, limit: 10, .. })
    };
    assert!(full(&mut pair), "all might fail, and each makes a completion then");
    pair.drive();
    // Six were not signalled, and are done; four completions wait.
    pair.client.post(pair.queue_pair, &[request(true); 6]).unwrap();
    pair.drive();
    assert!(full(&mut pair));
    // Destroying makes no room either: the completions still wait.
    pair.client.destroy(second);
    assert!(full(&mut pair));
    assert_eq!(pair.outcomes(), [(1, None); 10]);
    pair.client.post(pair.queue_pair, &[request(true); 10]).unwrap();
    assert!(full(&mut pair));
}

/// Destroying a queue pair completes each signalled request under way once, returns buffers and drops
/// deadlines.
#[test]
fn destroying_flushes_signalled_requests_once() {
    // Room for the chain below and nothing else: whatever is not given back is missed the next time.
    let client = NicConfig { completion_queue: 4, ..client_config() };
    let mut pair = Pair::with(1, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    let (memory, region) = pair.register(&[7; 8192], 0, Access::ALL);
    let free = pair.client.buffers().free();
    let request = |tag, signalled, operation| WorkRequest { tag, signalled, operation };
    let chain = [
        request(1, true, read(0, region.rkey, 4096)),
        request(2, false, write(0, region.rkey, &[1; 100])),
        request(3, true, write(0, region.rkey, b"x")),
        request(4, false, read(0, region.rkey, 8)),
    ];
    pair.client.post(pair.queue_pair, &chain).unwrap();
    assert_eq!(pair.client.buffers().free(), free - 3);
    for frame in drain(&mut pair.client, pair.now) {
        pair.server.handle_frame(pair.now, &frame);
    }
    assert!(pair.client.poll_timeout().is_some());
    let (gone, answers) = (pair.queue_pair, drain(&mut pair.server, pair.now));
    pair.client.destroy(gone);
    pair.client.destroy(gone);
    assert_eq!(pair.client.buffers().free(), free);
    assert_eq!(pair.client.poll_timeout(), None);
    for frame in answers {
        pair.client.handle_frame(pair.now, &frame);
    }
    let flushed = Some(Failure::Flushed);
    assert_eq!(pair.outcomes(), [(1, flushed), (3, flushed)]);
    assert_eq!(pair.client.poll_broken(), None, "the caller destroyed it");
    assert_eq!(memory.update(0, |x| x), Ok(0x0101_0101_0101_0178), "it was carried out all the same");
    // As often as one likes: nothing is used up.
    for _ in 0..300 {
        let (new, peer) = connect(&mut pair.client, &mut pair.server, QueuePairOptions::default());
        pair.client.post(new, &chain).unwrap();
        pair.client.destroy(new);
        pair.server.destroy(peer);
        assert_eq!(pair.outcomes(), [(1, flushed), (3, flushed)]);
    }
    assert_eq!(pair.client.buffers().free(), free);
}

/// Half of a chain has been sent when its queue pair is destroyed.
#[test]
fn destroying_in_the_middle_of_a_chain() {
    let mut pair = Pair::new(1);
    let silent = WorkRequest { tag: 0, signalled: false, operation: write(0, 1, b"x") };
    let asked = |tag| WorkRequest { tag, signalled: true, operation: read(0, 1, 8) };
    let chain = [silent, silent, silent, asked(1), asked(2), asked(3)];
    pair.client.post(pair.queue_pair, &chain).unwrap();
    let mut frame = Vec::new();
    for _ in 0..3 {
        assert!(pair.client.poll_transmit(pair.now, &mut frame));
    }
    pair.client.destroy(pair.queue_pair);
    assert_eq!(pair.outcomes(), [1, 2, 3].map(|tag| (tag, Some(Failure::Flushed))));
}

/// The same when queue pairs fail and are then destroyed, before or after their completions are taken.
#[test]
fn failing_gives_back_what_was_held() {
    let client = NicConfig { completion_queue: 3, ..client_config() };
    let mut pair = Pair::with(1, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    let (_, region) = pair.register(&[7; 64], 0, Access::ALL);
    let free = pair.client.buffers().free();
    let request = |tag, rkey| WorkRequest { tag, signalled: tag == 3, operation: read(0, rkey, 8) };
    for round in 0..20 {
        let (one, peer) = connect(&mut pair.client, &mut pair.server, QueuePairOptions::default());
        let chain = [request(1, region.rkey), request(2, region.rkey ^ 1), request(3, region.rkey)];
        pair.client.post(one, &chain).unwrap();
        pair.drive();
        if round % 2 == 0 {
            pair.client.destroy(one);
        }
        let expected = [(2, Some(Failure::RemoteAccess)), (3, Some(Failure::Flushed))];
        assert_eq!(pair.outcomes(), expected, "round {round}");
        assert_eq!(pair.client.poll_broken(), (round % 2 != 0).then_some(one));
        pair.client.destroy(one);
        pair.server.destroy(peer);
        assert_eq!(pair.client.buffers().free(), free);
    }
}

/// Each failure is told once, and only of queue pairs that are still there.
#[test]
fn broken_queue_pairs_are_named_once() {
    let mut pair = Pair::new(1);
    let mut all = vec![pair.queue_pair];
    all.extend((0..3).map(|_| connect(&mut pair.client, &mut pair.server, QueuePairOptions::default()).0));
    for &one in &all[..3] {
        let operation = read(0, 1, 8);
        pair.client.post(one, &[WorkRequest { tag: 1, signalled: false, operation }]).unwrap();
    }
    pair.drive();
    assert_eq!(
        pair.outcomes(),
        [(1, Some(Failure::RemoteAccess)); 3],
        "not signalled, and told all the same"
    );
    pair.client.destroy(all[1]);
    let broken: Vec<_> = std::iter::from_fn(|| pair.client.poll_broken()).collect();
    assert_eq!(broken, [all[0], all[2]]);
    assert_eq!(pair.client.state(all[3]), Some(QueuePairState::ReadyToSend));
    assert_eq!(pair.client.stats().queue_pairs_failed, 3);
}

/// A chain that finds no buffers for its last request leaves those of the others.
#[test]
fn a_chain_takes_all_its_buffers_or_none() {
    let buffers = vec![BufferClass { count: 3, bytes: 128 }, BufferClass { count: 1, bytes: 1024 }];
    let client = NicConfig { buffers, ..client_config() };
    let mut pair = Pair::with(1, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    let (_, region) = pair.register(&[7; 4096], 0, Access::ALL);
    let request = |operation| WorkRequest { tag: 1, signalled: true, operation };
    let small = request(read(0, region.rkey, 8));
    let long = [5; 65];
    let chain = [small, request(write(0, region.rkey, &long)), small, small, small];
    assert_eq!(pair.client.post(pair.queue_pair, &chain), Err(PostError::NoBuffer { len: 8 }));
    assert_eq!(pair.client.buffers().free(), 4);
    assert!(drain(&mut pair.client, pair.now).is_empty());
    // Small WRITEs need none.
    let inline = [request(write(0, region.rkey, &long[..64])); 100];
    pair.client.post(pair.queue_pair, &chain[..4]).unwrap();
    pair.client.post(pair.queue_pair, &inline).unwrap();
    let error = pair.post(2, read(0, region.rkey, 1025)).unwrap_err();
    assert_eq!(error, PostError::TooLong { found: 1025, limit: 1024 });
    assert_eq!(pair.client.capabilities().longest_message, 1024);
    pair.drive();
    let completions = pair.completions();
    assert_eq!(completions.len(), 104);
    assert_eq!(pair.client.buffers().free(), 1, "those of the READs are still held");
    drop(completions);
    assert_eq!(pair.client.buffers().free(), 4);
}

/// PSNs are compared by their distance: no more of them are given out than can be told apart.
#[test]
fn requests_on_their_way_span_a_quarter_of_the_psns() {
    let client = NicConfig {
        mtu: Mtu::B256,
        buffers: vec![BufferClass { count: 3, bytes: 512 << 20 }], // mapped, and never touched
        ..client_config()
    };
    let mut pair = Pair::with(1, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    let long = read(0, 777, 512 << 20);
    let tag = WorkRequest { tag: 1, signalled: true, operation: long };
    let queue_pair = pair.queue_pair;
    let (limit, what) = (1 << 22, "packets");
    let found = 3 * (1 << 21);
    let error = PostError::Full { queue_pair, what, found, limit };
    assert_eq!(pair.client.post(queue_pair, &[tag; 3]), Err(error));
    assert_eq!(pair.client.buffers().free(), 3);
    pair.client.post(queue_pair, &[tag; 2]).unwrap();
    let found = limit + 1;
    assert_eq!(pair.post(2, write(0, 7, b"x")), Err(PostError::Full { queue_pair, what, found, limit }));
}

/// NICs may share buffers; a NIC that only answers needs none.
#[test]
fn buffers_may_be_shared() {
    let pool = BufferPool::new(&[BufferClass { count: 1, bytes: 64 }]).unwrap();
    let mut nics = [1, 2].map(|seed| Nic::with_buffers(client_config(), seed, pool.clone()));
    let mut server = Nic::with_buffers(server_config(), 3, BufferPool::new(&[]).unwrap());
    let post = |nic: &mut Nic, one| {
        let operation = read(0, 1, 8);
        nic.post(one, &[WorkRequest { tag: 1, signalled: true, operation }])
    };
    let first = connect(&mut nics[0], &mut server, QueuePairOptions::default()).0;
    let second = connect(&mut nics[1], &mut server, QueuePairOptions::default()).0;
    post(&mut nics[0], first).unwrap();
    assert_eq!(post(&mut nics[1], second), Err(PostError::NoBuffer { len: 8 }));
    nics[0].destroy(first);
    post(&mut nics[1], second).unwrap();
}

/// A link that is full most of the time: the driver stops polling, and nothing is lost.
#[test]
fn a_driver_may_stop_polling_while_its_link_is_full() {
    // No timeouts: every frame that is lost would stop the test.
    let patient = Duration::from_secs(1000);
    let client = NicConfig { ack_timeout: patient, ..client_config() };
    let mut pair = Pair::with(1, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    let bytes: Vec<u8> = (0..200_000u32).map(|i| (i / 7) as u8).collect();
    let (memory, region) = pair.register(&bytes, 0, Access::ALL);
    pair.link =
        fatbtree_soft_nic::faults::LossyLink::new(Duration::from_micros(5), FaultRates::NONE, 1).with_room(3);
    let long = vec![3; 50_000];
    pair.post(1, read(0, region.rkey, 200_000)).unwrap();
    pair.post(2, write(1000, region.rkey, &long)).unwrap();
    for tag in 3..40 {
        pair.post(tag, read(tag, region.rkey, 900)).unwrap();
    }
    let mut frame = Vec::new();
    loop {
        let mut idle = true;
        for to in [End::Client, End::Server] {
            let nic = if to == End::Client { &mut pair.server } else { &mut pair.client };
            while pair.link.has_room() && nic.poll_transmit(pair.now, &mut frame) {
                pair.link.send(pair.now, to, &frame);
                idle = false;
            }
        }
        if let Some(at) = pair.link.next_arrival() {
            pair.now = at;
            match pair.link.receive(at, &mut frame).unwrap() {
                End::Client => pair.client.handle_frame(at, &frame),
                End::Server => pair.server.handle_frame(at, &frame),
            }
            idle = false;
        }
        if idle {
            break;
        }
    }
    assert_eq!(pair.link.overflowed(), 0);
    assert!(pair.now < Instant::ZERO + patient);
    assert_eq!(pair.outcomes(), (1..40).map(|tag| (tag, None)).collect::<Vec<_>>());
    let mut found = vec![0; 50_000];
    memory.read(1000, &mut found).unwrap();
    assert!(found == long);
    for nic in [&pair.client, &pair.server] {
        assert_eq!((nic.stats().dropped_total(), nic.stats().retransmissions), (0, 0), "{}", nic.stats());
    }
}

/// The queue pair at the head of the send order has gone: the next one has its turn.
#[test]
fn a_queue_pair_that_has_gone_leaves_its_turn_to_the_next() {
    let mut pair = Pair::new(1);
    let (second, _) = connect(&mut pair.client, &mut pair.server, QueuePairOptions::default());
    for one in [pair.queue_pair, second] {
        let operation = read(0, 1, 8);
        pair.client.post(one, &[WorkRequest { tag: 1, signalled: true, operation }]).unwrap();
    }
    pair.client.destroy(pair.queue_pair);
    let mut frame = Vec::new();
    assert!(pair.client.poll_transmit(pair.now, &mut frame));
    assert!(!pair.client.poll_transmit(pair.now, &mut frame));
    assert!(frame.is_empty(), "no frame, and not the last one either");
}

/// A queue pair lives where another lived, which was due at the same time: it is due itself.
#[test]
fn a_deadline_is_of_one_queue_pair() {
    let client = NicConfig { queue_pairs: 2, ..client_config() };
    let mut pair = Pair::with(1, client, server_config(), QueuePairOptions::default(), FaultRates::NONE);
    let operation = read(0, 1, 8);
    let request = [WorkRequest { tag: 1, signalled: true, operation }];
    let timeout = pair.client.config().ack_timeout;
    // An earlier deadline, after which that of the one that goes is still noted.
    pair.client.post(pair.queue_pair, &request).unwrap();
    drain(&mut pair.client, pair.now);
    pair.now += Duration::from_micros(1);
    for goes in [true, false] {
        let (one, peer) = connect(&mut pair.client, &mut pair.server, QueuePairOptions::default());
        pair.client.post(one, &request).unwrap();
        assert_eq!(drain(&mut pair.client, pair.now).len(), 1);
        if goes {
            pair.client.destroy(one);
            pair.server.destroy(peer);
        }
    }
    pair.client.destroy(pair.queue_pair);
    pair.now += timeout;
    pair.client.handle_timeout(pair.now);
    assert_eq!(pair.client.stats().timeouts, 1);
    assert_eq!(pair.client.poll_timeout(), Some(pair.now + timeout));
}

/// However large its buffers are, a message is no longer than its packets can be numbered.
#[test]
fn a_message_is_no_longer_than_can_be_numbered() {
    let buffers = vec![BufferClass { count: 1, bytes: 1 << 31 }]; // mapped, and never touched
    let nic = Nic::new(NicConfig { buffers, ..client_config() }, 1).unwrap();
    assert_eq!(nic.capabilities().longest_message, 1 << 30);
}

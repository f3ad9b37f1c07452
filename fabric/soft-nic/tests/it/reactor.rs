//! Operations as futures over two NICs and a bad link.
use crate::common;

use common::{End, LATENCY, client_config, connect, drain, fetch_add, read, server_config, write};
use fatbtree_soft_nic::faults::{FaultRates, LossyLink};
use fatbtree_soft_nic::{Nic, NicConfig, QueuePairOptions};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Access, Broken, Device, Error, Failure, Memory, Operation, Output, Reactor, Remote};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

/// A lock by masked compare and swap, a change under it, and its release, again and again; with chains longer than the queues.
#[test]
fn chains_complete_in_spite_of_the_link() {
    let rates = FaultRates {
        drop: 500,
        duplicate: 300,
        delay: 500,
        corrupt: 200,
        longest_delay: Duration::from_micros(200),
    };
    let mut client = Nic::new(NicConfig { retry_count: 50, send_queue: 8, ..client_config() }, 1).unwrap();
    let mut server = Nic::new(server_config(), 2).unwrap();
    let memory = Memory::shared(4096).unwrap();
    let region = server.register(&memory, 1 << 40, Access::ALL).unwrap();
    let locks = server.register_device_memory(4096, 0, Access::ALL).unwrap();
    let (queue_pair, _) = connect(&mut client, &mut server, QueuePairOptions::default());

    let mut link = LossyLink::new(LATENCY, rates, 3);
    let (mut now, mut frame) = (Instant::ZERO, Vec::new());
    let drive = |client: &mut Nic| {
        while client.poll_transmit(now, &mut frame) {
            link.send(now, End::Server, &frame);
        }
        while server.poll_transmit(now, &mut frame) {
            link.send(now, End::Client, &frame);
        }
        let due = [link.next_arrival(), client.poll_timeout(), server.poll_timeout()];
        now = due.into_iter().flatten().min().unwrap_or(now).max(now);
        while let Some(to) = link.receive(now, &mut frame) {
            match to {
                End::Server => server.handle_frame(now, &frame),
                End::Client => client.handle_frame(now, &frame),
            }
        }
        client.handle_timeout(now);
        now
    };

    let reactor = Reactor::new(client);
    let at = region.iova + 64;
    let lock = Remote { address: 8, rkey: locks.rkey };
    let swap = |compare: u64, swap: u64| Operation::MaskedCompareSwap {
        at: lock,
        compare: compare << 16,
        compare_mask: 0xffff << 16,
        swap: swap << 16,
        swap_mask: 0xffff << 16,
    };
    let work = async {
        for round in 0..200u64 {
            let [taken, found] = reactor.chain(queue_pair, [swap(0, 7), read(at, region.rkey, 8)]).await?;
            assert!(matches!(taken, Output::Atomic(0)), "round {round}: {taken:?}");
            let Output::Read(found) = found else { panic!("{found:?}") };
            assert_eq!(*found, round.to_le_bytes());
            let next = (round + 1).to_le_bytes();
            let release = [write(at, region.rkey, &next), swap(7, 0), fetch_add(at + 8, region.rkey, 1)];
            reactor.chain(queue_pair, release).await?;
        }
        let refused = reactor.chain(queue_pair, [read(at, region.rkey ^ 1, 8)]).await;
        Ok::<_, Error>(refused.unwrap_err())
    };
    let refused = reactor.run(work, drive).unwrap();
    assert_eq!(refused, Error::Failed(Failure::RemoteAccess));
    assert_eq!((memory.update(64, |x| x), memory.update(72, |x| x)), (Ok(200), Ok(200)));
    assert!(reactor.with(|client| client.stats().retransmissions) > 50);
    let broken = Broken { queue_pair, failure: Failure::RemoteAccess, index_read: false };
    assert_eq!((reactor.poll_broken(), reactor.poll_broken()), (Some(broken), None));
}

/// A READ is lost, and the one after it refused: the queue pair broke because of the second, not of the first.
#[test]
fn the_reason_is_the_failure_that_is_no_consequence() {
    let (mut client, mut server) =
        (Nic::new(client_config(), 1).unwrap(), Nic::new(server_config(), 2).unwrap());
    let (queue_pair, _) = connect(&mut client, &mut server, QueuePairOptions::default());
    let rkey = server.register(&Memory::shared(64).unwrap(), 0, Access::ALL).unwrap().rkey;
    let reactor = Reactor::new(client);
    let lost = reactor.chain(queue_pair, [read(0, rkey, 8), read(0, rkey ^ 1, 8)]);
    let mut now = Instant::ZERO;
    let error = reactor.run(lost, |client| {
        now += LATENCY;
        for frame in drain(client, now) {
            server.handle_frame(now, &frame);
        }
        for frame in drain(&mut server, now).iter().skip(1) {
            client.handle_frame(now, frame);
        }
        now
    });
    assert_eq!(error.unwrap_err(), Error::Failed(Failure::Flushed), "of a chain it is the first failure");
    let broken = Broken { queue_pair, failure: Failure::RemoteAccess, index_read: false };
    assert_eq!((reactor.poll_broken(), reactor.poll_broken()), (Some(broken), None));
}

/// A task that found the send queue full is woken by the first place that is free, not by the last.
#[test]
fn a_place_that_is_free_wakes_who_waits_for_it() {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let config = NicConfig { send_queue: 2, ..client_config() };
    let (mut client, mut server) = (Nic::new(config, 1).unwrap(), Nic::new(server_config(), 2).unwrap());
    let (queue_pair, _) = connect(&mut client, &mut server, QueuePairOptions::default());
    let rkey = server.register(&Memory::shared(64).unwrap(), 0, Access::ALL).unwrap().rkey;
    let reactor = Reactor::new(client);
    let mut chains = [(); 3].map(|()| reactor.chain(queue_pair, [read(0, rkey, 8)]));
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let (noop, waker) = (Waker::noop().clone(), Waker::from(Arc::clone(&woken)));
    for (chain, waker) in chains.iter_mut().zip([&noop, &noop, &waker]) {
        assert!(Pin::new(chain).poll(&mut Context::from_waker(waker)).is_pending());
    }
    let now = Instant::ZERO;
    for frame in reactor.with(|client| drain(client, now)) {
        server.handle_frame(now, &frame);
    }
    let answers = drain(&mut server, now);
    reactor.with(|client| client.handle_frame(now, &answers[0]));
    reactor.turn(now);
    assert!(woken.0.load(Ordering::Relaxed));
    assert!(Pin::new(&mut chains[2]).poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(reactor.with(|client| drain(client, now)).len(), 1, "it is posted");
}

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;
use crate::access::Access;
use crate::completion::Failure;
use crate::device::{Device as _, Region};
use crate::error::PostError;
use crate::memory::Memory;
use crate::plain::{PlainDevice, PlainNetwork};
use crate::request::Remote;

struct Lab {
    reactor: Reactor<PlainDevice>,
    queue_pair: QueuePair,
    region: Region,
    memory: Arc<Memory>,
    /// Its queue pairs go when it goes.
    _server: PlainDevice,
}

impl Lab {
    fn new() -> Self {
        let network = PlainNetwork::new();
        let (mut server, mut client) = (network.device(), network.device());
        let memory = Memory::shared(4096).unwrap();
        let region = server.register(&memory, 0, Access::ALL).unwrap();
        let (queue_pair, peer) = (client.create().unwrap(), server.create().unwrap());
        server.connect(peer, &client.endpoint(queue_pair).unwrap()).unwrap();
        client.connect(queue_pair, &server.endpoint(peer).unwrap()).unwrap();
        Lab { reactor: Reactor::new(client), queue_pair, region, memory, _server: server }
    }

    fn at(&self, address: u64) -> Remote {
        Remote { address, rkey: self.region.rkey }
    }

    fn read(&self, len: u32) -> Chain<'_, 'static, PlainDevice, 1> {
        self.reactor.chain(self.queue_pair, [Operation::Read { from: self.at(0), len }])
    }

    fn free_buffers(&self) -> usize {
        self.reactor.with(|client| client.buffers().free())
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(woken));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

#[test]
fn a_chain_wakes_once_when_all_of_it_is_done() {
    let lab = Lab::new();
    let woken = Arc::new(Woken::default());
    let at = lab.at(8);
    let mut chain = lab.reactor.chain(
        lab.queue_pair,
        [
            Operation::FetchAdd { at, add: 2 },
            Operation::Write { to: lab.at(0), data: b"x" },
            Operation::Read { from: at, len: 8 },
        ],
    );
    assert!(poll_once(&mut chain, &woken).is_pending());
    assert!(poll_once(&mut chain, &woken).is_pending(), "polling again posts nothing again");
    assert!(lab.reactor.turn(Instant::ZERO));
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    let Poll::Ready(Ok([Output::Atomic(0), Output::Written, Output::Read(bytes)])) =
        poll_once(&mut chain, &woken)
    else {
        panic!("the chain is done")
    };
    assert_eq!(*bytes, 2u64.to_le_bytes());
    assert!(!lab.reactor.turn(Instant::ZERO), "nothing is left");
}

#[test]
fn the_first_failure_is_the_chains() {
    let lab = Lab::new();
    let nowhere = Remote { address: 0, rkey: 99 };
    // The WRITE is not signalled, and the flush of the READ behind it is not the reason.
    let chain = [Operation::Write { to: nowhere, data: b"x" }, Operation::Read { from: lab.at(0), len: 8 }];
    let result = lab.reactor.run(lab.reactor.chain(lab.queue_pair, chain), |_| Instant::ZERO);
    let error = result.unwrap_err();
    assert_eq!(error, Error::Failed(Failure::RemoteAccess));
    assert!(!error.queue_pair_survived());
    let error = lab.reactor.run(lab.read(8), |_| Instant::ZERO).unwrap_err();
    assert!(matches!(error, Error::Post(PostError::NotConnected { .. })), "{error}");
}

#[test]
fn a_chain_that_is_dropped_gives_its_slots_and_buffers_back() {
    let lab = Lab::new();
    let (woken, all) = (Arc::new(Woken::default()), lab.free_buffers());
    for _ in 0..1000 {
        let mut chain = lab.read(8);
        assert!(poll_once(&mut chain, &woken).is_pending());
        drop(chain);
        // The result comes to nobody; the slot is not given to another before.
        let mut other = lab.read(16);
        assert!(poll_once(&mut other, &woken).is_pending());
        lab.reactor.turn(Instant::ZERO);
        let Poll::Ready(Ok([Output::Read(bytes)])) = poll_once(&mut other, &woken) else { panic!("done") };
        assert_eq!(bytes.len(), 16);
    }
    assert_eq!(lab.free_buffers(), all);
    assert!(lab.reactor.inner.borrow().slots.len() <= 2);
    // Dropped when it is done.
    let mut chain = lab.read(8);
    assert!(poll_once(&mut chain, &woken).is_pending());
    lab.reactor.turn(Instant::ZERO);
    drop(chain);
    assert_eq!(lab.free_buffers(), all);
}

#[test]
fn who_finds_the_queue_full_waits_for_a_completion() {
    let lab = Lab::new();
    let woken = Arc::new(Woken::default());
    let data = [7; 16];
    let write = || lab.reactor.chain(lab.queue_pair, [Operation::Write { to: lab.at(0), data: &data }]);
    let mut chains: Vec<_> = (0..1000).map(|_| write()).collect();
    let mut done = 0;
    while !chains.is_empty() {
        chains.retain_mut(|chain| match poll_once(chain, &woken) {
            Poll::Pending => true,
            Poll::Ready(result) => {
                result.unwrap();
                done += 1;
                false
            }
        });
        let before = woken.0.load(Ordering::Relaxed);
        assert_eq!(lab.reactor.turn(Instant::ZERO), !chains.is_empty());
        assert!(
            chains.is_empty() || woken.0.load(Ordering::Relaxed) > before,
            "somebody is woken, or all would stand still"
        );
    }
    assert_eq!(done, 1000);
    assert_eq!(lab.memory.update(0, |x| x), Ok(0x0707_0707_0707_0707));
}

#[test]
fn buffers_that_the_caller_holds_are_an_error_and_no_deadlock() {
    let lab = Lab::new();
    let all = lab.free_buffers();
    let held: Vec<_> = (0..all).map(|_| lab.reactor.run(lab.read(8), |_| Instant::ZERO).unwrap()).collect();
    let error = lab.reactor.run(lab.read(8), |_| Instant::ZERO).unwrap_err();
    assert!(matches!(error, Error::Post(PostError::NoBuffer { len: 8 })), "{error}");
    assert!(error.queue_pair_survived());
    drop(held);
    lab.reactor.run(lab.read(8), |_| Instant::ZERO).unwrap();
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    let lab = Lab::new();
    let order = Cell::new(0);
    let nap = |micros, place| {
        let (reactor, order) = (&lab.reactor, &order);
        async move {
            reactor.sleep(Duration::from_micros(micros)).await;
            assert_eq!(order.replace(order.get() + 1), place);
        }
    };
    let mut naps =
        vec![Box::pin(nap(30, 2)), Box::pin(nap(10, 0)), Box::pin(nap(20, 1)), Box::pin(nap(30, 3))];
    let woken = Arc::new(Woken::default());
    let mut poll_all = || naps.retain_mut(|nap| poll_once(nap, &woken).is_pending());
    poll_all();
    let mut gone = lab.reactor.sleep(Duration::from_micros(1));
    assert!(poll_once(&mut gone, &woken).is_pending());
    assert_eq!(lab.reactor.next_deadline(), Some(Instant::from_nanos(1_000)));
    drop(gone);
    let mut deadlines = Vec::new();
    while let Some(deadline) = lab.reactor.next_deadline() {
        deadlines.push(deadline.as_nanos());
        lab.reactor.turn(deadline);
        poll_all();
    }
    assert_eq!(deadlines, [10_000, 20_000, 30_000], "the one that was dropped is forgotten");
    assert_eq!(order.get(), 4);
}

#[test]
fn time_does_not_go_back() {
    let lab = Lab::new();
    lab.reactor.turn(Instant::from_nanos(100));
    lab.reactor.turn(Instant::from_nanos(50));
    assert_eq!(lab.reactor.now(), Instant::from_nanos(100));
    let mut turns = 0u64;
    lab.reactor.run(lab.reactor.sleep(Duration::from_nanos(10)), |_| {
        turns += 1;
        Instant::from_nanos(100 + turns)
    });
    assert_eq!(turns, 10);
}

/// A waker that uses the reactor at once, as an executor that polls in `wake` does.
#[test]
fn wakers_may_use_the_reactor() {
    thread_local!(static LAB: Lab = Lab::new());
    struct Uses;
    impl Wake for Uses {
        fn wake(self: Arc<Self>) {
            LAB.with(|lab| _ = lab.reactor.with(|client| client.poll()));
        }
    }
    LAB.with(|lab| {
        let mut chain = lab.read(8);
        let waker = Waker::from(Arc::new(Uses));
        assert!(Pin::new(&mut chain).poll(&mut Context::from_waker(&waker)).is_pending());
        lab.reactor.turn(Instant::ZERO);
        let done = lab.reactor.run(poll_fn(|context| Pin::new(&mut chain).poll(context)), |_| Instant::ZERO);
        assert!(done.is_ok());
    });
}

#[test]
#[should_panic(expected = "waits for completions or for time")]
fn waiting_for_what_never_comes_ends_though_a_queue_pair_is_broken() {
    let lab = Lab::new();
    let refused = lab.reactor.chain(
        lab.queue_pair,
        [Operation::Read { from: Remote { address: 0, rkey: lab.region.rkey ^ 1 }, len: 8 }],
    );
    assert!(lab.reactor.block_on(refused).is_err());
    // Nobody asks which queue pair broke.
    lab.reactor.block_on(std::future::pending::<()>());
}

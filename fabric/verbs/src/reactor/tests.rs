mod throttling;

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
    server: PlainDevice,
}

impl Lab {
    fn new() -> Self {
        let network = PlainNetwork::new();
        let (mut server, mut client) = (network.device(), network.device());
        let memory = Memory::shared(4096).unwrap();
        let region = server.register(&memory, 0, Access::ALL).unwrap();
        let (queue_pair, _) = join(&mut client, &mut server);
        Lab { reactor: Reactor::new(client), queue_pair, region, memory, server }
    }

    /// Another queue pair, and its peer.
    fn connect(&mut self) -> (QueuePair, QueuePair) {
        self.reactor.with(|client| join(client, &mut self.server))
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

fn join(client: &mut PlainDevice, server: &mut PlainDevice) -> (QueuePair, QueuePair) {
    let (queue_pair, peer) = (client.create().unwrap(), server.create().unwrap());
    server.connect(peer, &client.endpoint(queue_pair).unwrap()).unwrap();
    client.connect(queue_pair, &server.endpoint(peer).unwrap()).unwrap();
    (queue_pair, peer)
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
    // The second time the slots still have the wakers of the first.
    for round in 0..2 {
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
        assert_eq!(woken.0.load(Ordering::Relaxed), round + 1);
        let Poll::Ready(Ok([Output::Atomic(before), Output::Written, Output::Read(bytes)])) =
            poll_once(&mut chain, &woken)
        else {
            panic!("the chain is done")
        };
        assert_eq!(*bytes, (before + 2).to_le_bytes());
        assert!(!lab.reactor.turn(Instant::ZERO), "nothing is left");
    }
}

#[test]
fn the_first_failure_is_the_chains() {
    let nowhere = Remote { address: 0, rkey: 99 };
    let write = Operation::Write { to: nowhere, data: b"x" };
    // A WRITE before others is not signalled, and the flush of what is after it is not the reason.
    for bad in [[write; 2], [Operation::Read { from: nowhere, len: 8 }; 2]] {
        let lab = Lab::new();
        let chain = [bad[0], bad[1], Operation::Read { from: lab.at(0), len: 8 }];
        let result = lab.reactor.run(lab.reactor.chain(lab.queue_pair, chain), |_| Instant::ZERO);
        assert_eq!(result.unwrap_err(), Error::Failed(Failure::RemoteAccess));
    }
    let lab = Lab::new();
    let error = lab.reactor.run(lab.reactor.chain(lab.queue_pair, [write]), |_| Instant::ZERO).unwrap_err();
    assert_eq!(error, Error::Failed(Failure::RemoteAccess), "a WRITE alone is waited for");
    assert!(!error.queue_pair_survived());
    let error = lab.reactor.run(lab.read(8), |_| Instant::ZERO).unwrap_err();
    assert!(matches!(error, Error::Post(PostError::NotConnected { .. })), "{error}");
}

/// Two of three operations say how many came before them, so that outputs in a wrong order or of another operation are noticed.
fn counting(lab: &Lab, number: usize) -> Operation<'static> {
    match number % 3 {
        1 => Operation::Write { to: lab.at(64), data: b"x" },
        _ => Operation::FetchAdd { at: lab.at(8), add: 1 },
    }
}

#[test]
fn a_batch_has_any_length_up_to_the_most() {
    let lab = Lab::new();
    let mut before = lab.memory.update(8, |x| x).unwrap();
    for count in 1..=MAX_BATCH {
        let batch = lab.reactor.batch(lab.queue_pair, (0..count).map(|number| counting(&lab, number)));
        let outputs = lab.reactor.run(batch, |_| Instant::ZERO).unwrap();
        assert_eq!(outputs.len(), count);
        for (number, output) in outputs.into_iter().enumerate() {
            match (number % 3, output) {
                (1, Output::Written) => {}
                (0 | 2, Output::Atomic(found)) if found == before => before += 1,
                (_, output) => panic!("operation {number} of {count}, before it {before}: {output:?}"),
            }
        }
    }
    for found in [0, MAX_BATCH + 1, 100] {
        let batch = lab.reactor.batch(lab.queue_pair, (0..found).map(|number| counting(&lab, number)));
        let error = lab.reactor.run(batch, |_| Instant::ZERO).unwrap_err();
        let limit = MAX_BATCH;
        assert_eq!(error, Error::Post(PostError::ChainLength { found, limit }));
        assert!(error.queue_pair_survived());
    }
    assert_eq!(lab.memory.update(8, |x| x), Ok(before), "a batch that is too long is not posted in part");
}

#[test]
fn batches_and_chains_allocate_nothing_when_slots_and_queues_have_grown() {
    let lab = Lab::new();
    let work = || {
        for count in 1..=MAX_BATCH {
            let batch = lab.reactor.batch(lab.queue_pair, (0..count).map(|number| counting(&lab, number)));
            lab.reactor.run(batch, |_| Instant::ZERO).unwrap();
            let chain = [Operation::FetchAdd { at: lab.at(8), add: 1 }, counting(&lab, count)];
            lab.reactor.run(lab.reactor.chain(lab.queue_pair, chain), |_| Instant::ZERO).unwrap();
        }
    };
    work();
    assert_eq!(allocation_counter::measure(work).count_total, 0);
}

#[test]
fn a_chain_that_is_dropped_gives_its_slots_and_buffers_back() {
    let lab = Lab::new();
    let (woken, all) = (Arc::new(Woken::default()), lab.free_buffers());
    for _ in 0..1000 {
        let mut chain = lab.read(8);
        assert!(poll_once(&mut chain, &woken).is_pending());
        assert!(!lab.reactor.has_abandoned());
        drop(chain);
        assert!(lab.reactor.has_abandoned());
        // The result of the dropped chain is discarded; its slot is not reused before.
        let mut other = lab.read(16);
        assert!(poll_once(&mut other, &woken).is_pending());
        lab.reactor.turn(Instant::ZERO);
        let Poll::Ready(Ok([Output::Read(bytes)])) = poll_once(&mut other, &woken) else { panic!("done") };
        assert_eq!(bytes.len(), 16);
        assert!(!lab.reactor.has_abandoned());
    }
    assert_eq!(lab.free_buffers(), all);
    assert!(lab.reactor.inner.borrow().slots.len() <= 2);
    assert_eq!(lab.reactor.inner.borrow().slots.posted(), 0, "nothing is under way");
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
            "a chain is woken, or all would stand still"
        );
    }
    assert_eq!(done, 1000);
    // As many slots as chains can be under way; a refused chain keeps none.
    assert!(lab.reactor.inner.borrow().slots.len() <= 129);
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
    assert_eq!(lab.reactor.poll_timeout(), Some(Instant::from_nanos(1_000)));
    drop(gone);
    let mut deadlines = Vec::new();
    while let Some(deadline) = lab.reactor.poll_timeout() {
        deadlines.push(deadline.as_nanos());
        lab.reactor.turn(deadline);
        poll_all();
    }
    assert_eq!(deadlines, [10_000, 20_000, 30_000], "the one that was dropped is forgotten");
    assert_eq!(order.get(), 4);
}

/// A nap that is over leaves one place, and one that was broken off does too.
#[test]
fn sleepers_give_their_slots_back() {
    let lab = Lab::new();
    let woken = Arc::new(Woken::default());
    let mut none = lab.reactor.sleep(Duration::ZERO);
    assert!(poll_once(&mut none, &woken).is_ready());
    for round in 1..100 {
        let mut nap = lab.reactor.sleep(Duration::from_nanos(1));
        assert!(poll_once(&mut nap, &woken).is_pending());
        lab.reactor.turn(Instant::from_nanos(round));
        assert!(poll_once(&mut nap, &woken).is_ready());
        drop(nap);
        let mut broken_off = lab.reactor.sleep(Duration::from_nanos(1));
        assert!(poll_once(&mut broken_off, &woken).is_pending());
        drop(broken_off);
        assert_eq!(lab.reactor.poll_timeout(), None);
    }
    assert!(lab.reactor.inner.borrow().slots.len() <= 2);
    // Each slot was given back once: two chains have two.
    let (mut one, mut other) = (lab.read(8), lab.read(16));
    assert!(poll_once(&mut one, &woken).is_pending() && poll_once(&mut other, &woken).is_pending());
    lab.reactor.turn(lab.reactor.now());
    let Poll::Ready(Ok([Output::Read(bytes)])) = poll_once(&mut one, &woken) else { panic!("done") };
    assert_eq!(bytes.len(), 8);
    let Poll::Ready(Ok([Output::Read(bytes)])) = poll_once(&mut other, &woken) else { panic!("done") };
    assert_eq!(bytes.len(), 16);
}

/// A completion is dropped if its tag has another generation than the slot that the tag names.
#[test]
fn a_completion_of_an_earlier_generation_is_nobodys() {
    let lab = Lab::new();
    for generation in [0, 1] {
        lab.reactor.with(|client| {
            let operation = Operation::Read { from: lab.at(0), len: 32 };
            let foreign = WorkRequest { tag: generation << 32, signalled: true, operation };
            client.post(lab.queue_pair, &[foreign]).unwrap();
        });
        let [found] = lab.reactor.run(lab.read(8), |_| Instant::ZERO).unwrap();
        assert!(matches!(found, Output::Read(bytes) if bytes.len() == 8));
    }
    let mut sleeper = lab.reactor.sleep(Duration::from_nanos(1));
    assert!(poll_once(&mut sleeper, &Arc::default()).is_pending());
    assert_eq!(lab.reactor.poll_timeout(), Some(Instant::from_nanos(1)));
}

/// Why a chain failed does not explain the failure of another that has its slot.
#[test]
fn a_reason_goes_with_its_chain() {
    let mut lab = Lab::new();
    let nowhere = Remote { address: 0, rkey: 99 };
    let chain = [Operation::Write { to: nowhere, data: b"x" }, Operation::Read { from: lab.at(0), len: 8 }];
    lab.reactor.run(lab.reactor.chain(lab.queue_pair, chain), |_| Instant::ZERO).unwrap_err();
    let mut first = lab.queue_pair;
    let peer;
    (lab.queue_pair, peer) = lab.connect();
    lab.server.destroy(peer);
    let error = lab.reactor.run(lab.read(8), |_| Instant::ZERO).unwrap_err();
    assert_eq!(error, Error::Failed(Failure::RetryExceeded));
    // Each queue pair is named, with its own reason.
    for failure in [Failure::RemoteAccess, Failure::RetryExceeded] {
        let broken = Broken { queue_pair: first, failure, index_read: false };
        assert_eq!(lab.reactor.poll_broken(), Some(broken));
        first = lab.queue_pair;
    }
}

/// Errors that waiting cannot mend are returned at once. A chain that waits for a place is woken when no operation will free one.
#[test]
fn only_what_may_pass_is_waited_for() {
    let lab = Lab::new();
    let woken = Arc::new(Woken::default());
    let held: Vec<_> =
        (1..lab.free_buffers()).map(|_| lab.reactor.run(lab.read(8), |_| Instant::ZERO).unwrap()).collect();
    let mut last = lab.read(8);
    assert!(poll_once(&mut last, &woken).is_pending());
    let mut too_long = lab.read(u32::MAX);
    let Poll::Ready(Err(Error::Post(PostError::TooLong { .. }))) = poll_once(&mut too_long, &woken) else {
        panic!("it is too long now and later")
    };
    let waiting = [(); 3].map(|()| Arc::new(Woken::default()));
    let mut chains = [(); 3].map(|()| lab.read(8));
    for (chain, woken) in chains.iter_mut().zip(&waiting) {
        assert!(poll_once(chain, woken).is_pending());
    }
    lab.reactor.turn(Instant::ZERO);
    for woken in &waiting {
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "or it would wait for ever");
    }
    drop(held);
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

/// An executor that polls in `wake`: a future that has ended there leaves its slot to another, whose waker must not be lost.
#[test]
fn a_slot_that_changes_hands_in_a_wake_keeps_the_new_waker() {
    type Read = Chain<'static, 'static, PlainDevice, 1>;
    thread_local! {
        static LAB: &'static Lab = Box::leak(Box::new(Lab::new()));
        static CHAINS: Cell<Option<(Read, Read)>> = const { Cell::new(None) };
        static WOKEN: Arc<Woken> = Arc::default();
    }
    struct Runs;
    impl Wake for Runs {
        fn wake(self: Arc<Self>) {
            let Some((mut first, mut second)) = CHAINS.take() else { return };
            assert!(poll_once(&mut first, &Arc::default()).is_ready());
            WOKEN.with(|woken| assert!(poll_once(&mut second, woken).is_pending()));
            CHAINS.set(Some((first, second)));
        }
    }
    let lab = LAB.with(|lab| *lab);
    let mut first = lab.read(8);
    let waker = Waker::from(Arc::new(Runs));
    assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
    CHAINS.set(Some((first, lab.read(8))));
    // The second is posted while the first is taken, and its completion is there at once.
    lab.reactor.turn(Instant::ZERO);
    assert_eq!(WOKEN.with(|woken| woken.0.load(Ordering::Relaxed)), 1);
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
    // The caller does not poll for the broken queue pair.
    lab.reactor.block_on(std::future::pending::<()>());
}

//! The load generator on a server that is a queue with a constant service time, in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use fatbtree_blink::value;
use fatbtree_remote_memory::{Answer, KeyRange, Order, Pairs, Portion};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
use fatbtree_workload::{Change, LoadGenerator, Pace, Structure, Values};

/// Serves one request after the other.
#[derive(Default)]
struct Queue {
    now: Cell<u64>,
    free_at: Cell<u64>,
    service: u64,
    /// From when to when it does nothing.
    stall: (u64, u64),
    sleeping: RefCell<BTreeMap<(u64, u64), Waker>>,
    number: Cell<u64>,
}

impl Queue {
    fn new(service: Duration) -> Self {
        Self { service: service.as_nanos(), ..Self::default() }
    }

    /// Sets the clock to when the next sleeper wakes.
    fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return output;
            }
            let Some(((at, _), waker)) = self.sleeping.borrow_mut().pop_first() else {
                panic!("no task sleeps, and it has not ended");
            };
            self.now.set(at);
            waker.wake();
        }
    }
}

impl Structure for Queue {
    type Value = Vec<u8>;
    type Error = Infallible;
    type Cursor = u64;

    const NAME: &'static str = "queue";

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now.get())
    }

    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> {
        self.number.set(self.number.get() + 1);
        let name = (at.as_nanos(), self.number.get());
        poll_fn(move |context| {
            if self.now.get() >= name.0 {
                return Poll::Ready(());
            }
            self.sleeping.borrow_mut().insert(name, context.waker().clone());
            Poll::Pending
        })
    }

    async fn get(&self, key: u64) -> Answer<Option<Vec<u8>>, Infallible> {
        let mut start = self.free_at.get().max(self.now.get());
        if (self.stall.0..self.stall.1).contains(&start) {
            start = self.stall.1;
        }
        self.free_at.set(start + self.service);
        self.sleep_until(Instant::from_nanos(start + self.service)).await;
        let mut found = vec![0; 8];
        value::fill(key, 1, &mut found);
        Answer { result: Ok(Some(found)), round_trips: 1 }
    }

    async fn change(&self, _: u64, _: Change<'_>) -> Answer<bool, Infallible> {
        unreachable!("it is read only")
    }

    async fn scan(&self, _: KeyRange, _: Order, _: usize) -> Answer<Pairs, Infallible> {
        unreachable!("it is not scanned")
    }

    async fn export(&self, _: u64, _: usize) -> Answer<Portion<Bytes, u64>, Infallible> {
        unreachable!("it is not scanned")
    }

    fn is_unknown(error: &Infallible) -> bool {
        match *error {}
    }
}

const SERVICE: Duration = Duration::from_micros(10);

fn run(queue: &Queue, operations: u64, pace: Pace) -> LoadGenerator {
    let mut properties = builtin("c").expect("it is built in");
    properties.set("recordcount", "1000");
    let spec = WorkloadSpec::from_properties(&properties).expect("they are right");
    let mut workload = Workload::new(&spec, KeyMap::Ordered, 1).expect("it has records");
    let (values, mut done) = (Values::new(1, 8), LoadGenerator::new());
    queue
        .run(done.run_on(queue, &mut workload, operations, pace, &values, |_| {}))
        .expect("operations are drawn");
    assert_eq!(done.first_wrong(), None);
    assert_eq!(done.recorder().operations(), operations);
    done
}

fn open(per_second: f64) -> Pace {
    Pace::Open { per_second, seed: 3, most: 1000 }
}

/// What queueing theory says of random arrivals at a server with a constant service time s that is busy for a share p of the time: they
/// take s + s p / (2 (1 - p)).
#[test]
fn half_a_load_waits_as_long_as_theory_says() {
    let done = run(&Queue::new(SERVICE), 200_000, open(50_000.0));
    let punctuality = done.punctuality().unwrap();
    assert!(punctuality.kept_up());
    assert!((punctuality.begun_per_s / 50_000.0 - 1.0).abs() < 0.001, "{punctuality:?}");
    let mean = done.recorder().latency().mean_ns();
    assert!((mean / 15_000.0 - 1.0).abs() < 0.03, "{mean} ns");
}

#[test]
fn more_than_it_can_do_is_said() {
    let done = run(&Queue::new(SERVICE), 100_000, open(120_000.0));
    let punctuality = done.punctuality().unwrap();
    assert!(!punctuality.kept_up());
    assert!((punctuality.begun_per_s / 100_000.0 - 1.0).abs() < 0.02, "{punctuality:?}");
    // The last ones wait for a sixth of the run, though only 1000 are under way at a time.
    assert!(done.recorder().latency().max_ns() > 150_000_000);
}

/// Everything may begin in time and still be too much: then it ends late.
#[test]
fn a_queue_that_grows_is_said() {
    let done = run(&Queue::new(SERVICE), 5000, open(120_000.0));
    let punctuality = done.punctuality().expect("it is an open loop");
    assert!(punctuality.begun_per_s > 119_000.0, "{punctuality:?}");
    assert!((punctuality.ended_per_s / 100_000.0 - 1.0).abs() < 0.02, "{punctuality:?}");
    assert!(!punctuality.kept_up());
}

/// A server that stands still for 10 ms delays all requests that are due meanwhile. A closed loop has two of them.
#[test]
fn nobody_who_should_have_come_during_a_stall_is_left_out() {
    let slow = |pace| {
        let queue = Queue { stall: (50_000_000, 60_000_000), ..Queue::new(SERVICE) };
        let done = run(&queue, 10_000, pace);
        done.recorder().latency().quantile_ns(0.999)
    };
    let closed = slow(Pace::Closed { depth: 2 });
    assert!(closed < 30_000, "{closed} ns");
    let open = slow(open(50_000.0));
    assert!(open > 9_000_000, "{open} ns");
}

#[test]
fn a_closed_loop_has_no_times() {
    let done = run(&Queue::new(SERVICE), 1000, Pace::Closed { depth: 4 });
    assert_eq!(done.punctuality(), None);
    assert_eq!(done.elapsed(), SERVICE * 1000);
    assert_eq!(done.recorder().latency().max_ns() / 1000, 40);
}

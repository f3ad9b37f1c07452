//! The interface of time has room for stations where requests wait for each other.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fatbtree_verbs::Operation;
use fatbtree_verbs::time::{Duration, Instant};

use super::{Lab, Wire};
use crate::world::{MachineId, Options, Posting, Random, Sending, ServiceTimes, Serving, Task, Timing, Work};

/// Each server carries out one request after the other.
struct OneAtATime {
    table: ServiceTimes,
    each: Duration,
    /// Time that a thread takes for a chain, and for the completion of a request.
    thread: Duration,
    free: BTreeMap<MachineId, Instant>,
    /// The last time that `serve` was asked, by server.
    asked: BTreeMap<MachineId, Instant>,
}

impl Timing for OneAtATime {
    fn post(&mut self, now: Instant, _: &Posting, _: &mut Random) -> Instant {
        now + self.thread
    }

    fn complete(&mut self, now: Instant, _: &Work) -> Instant {
        now + self.thread
    }

    fn send(&mut self, now: Instant, work: &Work, random: &mut Random) -> Sending {
        self.table.send(now, work, random)
    }

    fn serve(&mut self, earliest: Instant, work: &Work, random: &mut Random) -> Serving {
        let asked = self.asked.insert(work.to, earliest);
        assert!(asked <= Some(earliest), "a station is asked in the order of time");
        let free = self.free.entry(work.to).or_default();
        let begins = earliest.max(*free);
        *free = begins + self.each;
        self.table.serve(*free, work, random)
    }

    fn answer(&mut self, now: Instant, work: &Work, random: &mut Random) -> Instant {
        self.table.answer(now, work, random)
    }
}

/// Reads so many times by each connection. The tasks tell when they have ended.
fn read_all(wires: impl IntoIterator<Item = Wire>, times: u32) -> Vec<Task<Instant>> {
    let reads = |wire: Wire| {
        wire.machine.clone().spawn(async move {
            for _ in 0..times {
                wire.read(0, 8).await.unwrap();
            }
            wire.machine.now()
        })
    };
    wires.into_iter().map(reads).collect()
}

#[test]
fn requests_wait_for_each_other() {
    let lab = Lab::new(1, Options::default(), 8);
    let each = Duration::from_micros(1);
    let table = ServiceTimes::default();
    let (free, asked) = (BTreeMap::new(), BTreeMap::new());
    lab.world.set_timing(OneAtATime { table, each, thread: Duration::ZERO, free, asked });
    let wires: Vec<_> = (0..8).map(|client| lab.connect(client)).collect();
    let took = lab.run_all(&read_all(wires, 100));
    let span = |requests: u64| each * requests;
    assert!(span(800) <= took && took < span(820), "800 requests took {took}");
}

/// A thread hands one chain after the other to its card, and takes what has come when it has handed over all.
#[test]
fn a_thread_posts_one_chain_after_the_other() {
    let lab = Lab::new(1, Options::default(), 1);
    let (each, thread) = (Duration::ZERO, Duration::from_micros(10));
    let (free, asked) = (BTreeMap::new(), BTreeMap::new());
    let wire = lab.connect(0);
    lab.world.set_timing(OneAtATime { table: ServiceTimes::default(), each, thread, free, asked });
    let started = lab.world.now();
    let tasks = read_all(std::iter::repeat_n(wire, 8), 1);
    lab.run_all(&tasks);
    let ends: Vec<_> = tasks.iter().map(|task| task.take().unwrap() - started).collect();
    // The first answer is there after some 12 µs, but the thread posts for 80.
    assert!(ends.iter().all(|&end| thread * 8 <= end && end < thread * 10), "{ends:?}");
}

/// Threads that are busy for some time before each chain.
struct Busy {
    table: ServiceTimes,
    first: MachineId,
    /// Times at which chains were begun, and the last one.
    posted: Rc<Cell<(u32, Instant)>>,
}

const BUSY: Duration = Duration::from_micros(50);

impl Timing for Busy {
    fn begin(&mut self, now: Instant, posting: &Posting) -> Instant {
        if posting.from == self.first { now + BUSY } else { now }
    }

    fn post(&mut self, now: Instant, _: &Posting, _: &mut Random) -> Instant {
        let (number, last) = self.posted.get();
        assert!(last <= now, "what threads share is asked for in the order of time");
        self.posted.set((number + 1, now));
        now + Duration::from_nanos(200)
    }

    fn send(&mut self, now: Instant, work: &Work, random: &mut Random) -> Sending {
        self.table.send(now, work, random)
    }

    fn serve(&mut self, earliest: Instant, work: &Work, random: &mut Random) -> Serving {
        self.table.serve(earliest, work, random)
    }

    fn answer(&mut self, now: Instant, work: &Work, random: &mut Random) -> Instant {
        self.table.answer(now, work, random)
    }
}

/// A thread that is busy posts when it has time: until then it holds up no other one.
#[test]
fn a_busy_thread_begins_later_and_holds_up_no_other() {
    let lab = Lab::new(1, Options::default(), 2);
    let wires: Vec<_> = (0..2).map(|client| lab.connect(client)).collect();
    let posted = Rc::new(Cell::new((0, Instant::ZERO)));
    let (table, first) = (ServiceTimes::default(), wires[0].machine.id());
    lab.world.set_timing(Busy { table, first, posted: Rc::clone(&posted) });
    let started = lab.world.now();
    let tasks = read_all(wires, 4);
    lab.run_all(&tasks);
    let [busy, other] = [0, 1].map(|number: usize| tasks[number].take().unwrap() - started);
    assert_eq!(posted.get().0, 8);
    assert!(busy >= BUSY * 4 && other < BUSY, "{busy} {other}");
}

/// Requests whose places are taken.
struct Places(Rc<Cell<i64>>, ServiceTimes);

impl Timing for Places {
    fn post(&mut self, now: Instant, posting: &Posting, _: &mut Random) -> Instant {
        self.0.set(self.0.get() + i64::from(posting.requests));
        now
    }

    fn send(&mut self, now: Instant, work: &Work, random: &mut Random) -> Sending {
        self.1.send(now, work, random)
    }

    fn serve(&mut self, earliest: Instant, work: &Work, random: &mut Random) -> Serving {
        self.1.serve(earliest, work, random)
    }

    fn answer(&mut self, now: Instant, work: &Work, random: &mut Random) -> Instant {
        self.1.answer(now, work, random)
    }

    fn freed(&mut self, _: MachineId, requests: u32) {
        self.0.set(self.0.get() - i64::from(requests));
    }
}

/// Chains end in a request that is signalled; the WRITEs before it are not. When all are done, every place is free again.
#[test]
fn each_place_is_given_back_once() {
    let lab = Lab::new(1, Options::default(), 1);
    let wire = lab.connect(0);
    let taken = Rc::new(Cell::new(0));
    lab.world.set_timing(Places(Rc::clone(&taken), ServiceTimes::default()));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let wire = wire.clone();
            wire.machine.clone().spawn(async move {
                for _ in 0..50 {
                    let write = Operation::Write { to: wire.at(64), data: &[7; 8] };
                    let read = Operation::Read { from: wire.at(0), len: 8 };
                    wire.post([write, write, read]).await.unwrap();
                    wire.post([write, write]).await.unwrap();
                }
            })
        })
        .collect();
    lab.run_all(&tasks);
    assert_eq!(taken.get(), 0);
}

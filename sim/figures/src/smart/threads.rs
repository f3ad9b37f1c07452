//! Threads of one client that read or write a server's memory as fast as they can: SMART's benchmark tool (section 3.1).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{
    Access, BufferClass, Device as _, Memory, Operation, Output, QueuePair, Reactor, Remote, Throttling,
};
use rand::RngExt as _;

use crate::card::{Calibration, Resources};
use crate::meter::{Measured, Meter};
use crate::rig::Rig;
use fatbtree_sim::world::{Kind, Machine, MachineOptions, Random, random};

/// Bytes of the server's memory. The model's times do not depend on addresses of READs and WRITEs; SMART has 1 GB.
const MEMORY: u64 = 1 << 20;
/// Time within which all threads are connected: a call of 40 µs each, all at once.
const CONNECTING: Duration = Duration::from_millis(1);
/// Time within which all threads begin.
const STAGGER: Duration = Duration::from_micros(20);
/// Threads at work where their number changes (SMART section 6.3).
const CHANGING: std::ops::RangeInclusive<u32> = 36..=95;

/// A measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) calibration: Calibration,
    pub(super) resources: Resources,
    /// READ or WRITE, of 8 bytes.
    pub(super) kind: Kind,
    pub(super) threads: u32,
    /// Requests that a thread posts, each with a doorbell of its own, before it waits for all of them.
    pub(super) batch: u32,
    pub(super) throttling: Throttling,
    /// Interval after which another number of threads is at work.
    pub(super) changes: Option<Duration>,
    pub(super) warm_up: Duration,
    pub(super) window: Duration,
    pub(super) seed: u64,
}

/// Runs a measurement. Every word that is read is checked. Batches are tallied, and the card counts requests.
///
/// # Errors
/// A wrong answer, or a request that failed.
pub(super) fn run(setup: &Setup) -> Result<Measured, String> {
    let mut rig = Rig::new(setup.seed, setup.calibration, 1);
    let server = rig.world.machine(MachineOptions::named("server"));
    rig.servers.push(server.clone());
    let memory = Memory::shared(MEMORY).map_err(|error| error.to_string())?;
    for address in (0..MEMORY).step_by(8) {
        memory.write(address, &address.to_ne_bytes()).map_err(|error| error.to_string())?;
    }
    let region = server.reactor().with(|card| card.register(&memory, 0, Access::ALL));
    let region = region.map_err(|error| error.to_string())?;
    let mut rounds = Vec::new();
    for number in 0..setup.threads {
        let buffers = vec![BufferClass { count: setup.batch, bytes: 64 }];
        let options = MachineOptions { buffers, ..MachineOptions::named(format!("thread {number}")) };
        let machine = rig.world.machine(options);
        machine.set_driven(Rc::new(Reactor::throttled(machine.device(), setup.throttling)));
        rig.clients.push(machine);
        rounds.push(Rc::new(Round::new(setup.batch)));
    }
    rig.cards.threads(rig.clients.iter().map(Machine::id), setup.resources);
    for (number, (machine, round)) in (0..).zip(rig.clients.iter().zip(&rounds)) {
        let (server, round, meter) = (server.clone(), Rc::clone(round), Rc::clone(&rig.meter));
        let (machine, Setup { kind, seed, batch, .. }) = (machine.clone(), *setup);
        drop(machine.clone().spawn(async move {
            match machine.dial(&server).await {
                Ok(queue_pair) => {
                    // Threads do not begin all at once.
                    let begin = random(seed, 1_000 + number).random_range(0..STAGGER.as_nanos());
                    machine.sleep(Duration::from_nanos(begin)).await;
                    for task in 0..batch {
                        let draw = random(seed, 10_000 + number * 1_000 + u64::from(task));
                        let task = Task { machine: machine.clone(), queue_pair, rkey: region.rkey, kind };
                        drop(machine.spawn(task.run(Rc::clone(&round), draw, Rc::clone(&meter))));
                    }
                }
                Err(error) => meter.fail(error.to_string()),
            }
        }));
    }
    if let Some(interval) = setup.changes {
        let (operator, cards, client) =
            (rig.world.operator().clone(), rig.cards.clone(), rig.clients[0].id());
        let (rounds, mut draw) = (rounds.clone(), random(setup.seed, 7));
        drop(rig.world.operator().spawn(async move {
            loop {
                let working = draw.random_range(CHANGING);
                cards.set_working(client, working);
                (0..).zip(&rounds).for_each(|(number, round)| round.set_working(number < working));
                operator.sleep(interval).await;
            }
        }));
    }
    rig.world.run_for(CONNECTING + setup.warm_up);
    let batches = || rounds.iter().map(|round| round.number.get());
    let begun: Vec<_> = batches().collect();
    let mut measured = rig.measure(setup.window, [])?;
    measured.tally.done = batches().zip(begun).map(|(now, begun)| now - begun).collect();
    Ok(measured)
}

/// A batch of a thread: all of its requests are done before the next ones are posted.
struct Round {
    size: u32,
    done: Cell<u32>,
    number: Cell<u64>,
    works: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Round {
    fn new(size: u32) -> Self {
        let waiting = RefCell::default();
        Self { size, done: Cell::new(0), number: Cell::new(0), works: Cell::new(true), waiting }
    }

    fn set_working(&self, works: bool) {
        self.works.set(works);
        self.go_on();
    }

    fn go_on(&self) {
        if self.done.get() == self.size && self.works.get() {
            self.done.set(0);
            self.number.set(self.number.get() + 1);
            self.waiting.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Waits for all requests of the batch.
    async fn end(&self) {
        let number = self.number.get();
        self.done.set(self.done.get() + 1);
        self.go_on();
        poll_fn(|context| {
            if self.number.get() != number {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// One of the requests of a thread's batches.
struct Task {
    machine: Machine,
    queue_pair: QueuePair,
    rkey: u32,
    kind: Kind,
}

impl Task {
    async fn run(self, round: Rc<Round>, mut draw: Random, meter: Rc<Meter>) {
        let reactor = self.machine.reactor();
        loop {
            let address = draw.random_range(0..MEMORY / 8) * 8;
            let (at, word) = (Remote { address, rkey: self.rkey }, address.to_ne_bytes());
            let operation = match self.kind {
                Kind::Write => Operation::Write { to: at, data: &word },
                _ => Operation::Read { from: at, len: 8 },
            };
            let why = match reactor.chain(self.queue_pair, [operation]).await {
                Ok([Output::Read(found)]) if found[..] != word => {
                    format!("{address:#x} reads as {:?}", &found[..])
                }
                Ok(_) => {
                    round.end().await;
                    continue;
                }
                Err(error) => error.to_string(),
            };
            return meter.fail(why);
        }
    }
}

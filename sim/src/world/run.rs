//! A world as its owner sees it: making machines, letting time pass.

use std::fmt;
use std::future::Future;
use std::rc::Rc;

use fatbtree_verbs::time::{Duration, Instant};

use super::fabric::Fabric;
use super::machine::Machine;
use super::options::{MachineOptions, Options};
use super::random;
use super::shared::Shared;
use super::switches::Switches;
use super::timing::Timing;

/// A simulated network of machines, and the virtual time. When it is dropped, all its tasks are.
///
/// **Driving.** Make [`machine`](Self::machine)s, [spawn](Machine::spawn) tasks on them, and let time pass by one of the `run`
/// functions. What must happen meanwhile (deaths, reloads) is a task on the [`operator`](Self::operator).
pub struct World {
    shared: Rc<Shared>,
    operator: Machine,
    seed: u64,
}

/// Counters of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// READs posted, index reads included.
    pub reads: u64,
    /// Index reads posted.
    pub index_reads: u64,
    /// WRITEs posted.
    pub writes: u64,
    /// Atomics posted.
    pub atomics: u64,
    /// Accesses that met another one in the same bytes at the same time, one of the two writing.
    pub overlapped: u64,
    /// Requests and answers lost.
    pub lost: u64,
    /// Times that a queue pair sent everything again.
    pub retries: u64,
    /// Requests that came to a responder before an earlier one.
    pub out_of_order: u64,
    /// Requests that came to a responder again.
    pub duplicates: u64,
    /// Duplicate index reads that a strict responder dropped.
    pub strict_drops: u64,
    /// Requests refused.
    pub refused: u64,
    /// Times that a task ran.
    pub polls: u64,
    /// Events.
    pub events: u64,
}

/// Something did not come about in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not done within {within} of virtual time, at {at}: {tasks} tasks wait, {reason}")]
pub struct Stuck {
    /// The time that was given.
    pub within: Duration,
    /// Time at which it stopped.
    pub at: Instant,
    /// Tasks that have not ended.
    pub tasks: usize,
    /// Whether something was still going on.
    pub reason: &'static str,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World of seed {} at {}", self.seed, self.now())
    }
}

impl World {
    /// A world without machines, at time zero.
    #[must_use]
    pub fn new(seed: u64, options: Options) -> Self {
        let fabric = Fabric::new(options, random(seed, 1));
        let shared = Rc::new(Shared::new(fabric, random(seed, 2)));
        let none = MachineOptions { buffers: Vec::new(), ..MachineOptions::named("operator") };
        let id = shared.add_machine(none, true);
        let operator = Machine { shared: Rc::clone(&shared), id };
        Self { shared, operator, seed }
    }

    /// Takes other switches.
    pub fn set_switches(&self, switches: impl Switches + 'static) {
        self.shared.fabric.borrow_mut().switches = Box::new(switches);
    }

    /// Takes another model of time instead of the table of [`Options`].
    pub fn set_timing(&self, timing: impl Timing + 'static) {
        self.shared.fabric.borrow_mut().timing = Box::new(timing);
    }

    /// Adds a machine.
    ///
    /// # Panics
    /// When the operating system gives no memory for its buffers.
    #[must_use]
    pub fn machine(&self, options: MachineOptions) -> Machine {
        let id = self.shared.add_machine(options, false);
        Machine { shared: Rc::clone(&self.shared), id }
    }

    /// A machine that is no part of the network and never dies: for tasks that play fate, or look into memory.
    #[must_use]
    pub fn operator(&self) -> &Machine {
        &self.operator
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared.now()
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let fabric = self.shared.fabric.borrow();
        Counts { overlapped: fabric.accesses.overlapped, ..fabric.counts }
    }

    /// A number that two runs share if the same things happened at the same times.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.shared.fabric.borrow().fingerprint()
    }

    /// Brings all memory to its present state, for a caller that reads it between two runs. Tasks of machines that
    /// own memory, and tasks of the operator, see it so anyway.
    pub fn settle(&self) {
        self.shared.settle();
    }

    /// Ends all faults: no link loses anything, nothing stands still, no machine is going to die. Dead
    /// machines stay dead until they are [booted](Machine::boot); switches are their owner's.
    pub fn heal(&self) {
        self.shared.heal();
    }

    /// Messages and accesses under way.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> (usize, usize) {
        let fabric = self.shared.fabric.borrow();
        (fabric.packets.used(), fabric.accesses.list.used())
    }

    /// Lets one event happen, and runs the tasks that it wakes. `false` if there is none.
    pub fn step(&self) -> bool {
        self.shared.step(Instant::from_nanos(u64::MAX))
    }

    /// Runs until nothing happens any more.
    pub fn run(&self) {
        while self.step() {}
    }

    /// Runs for a span of time.
    pub fn run_for(&self, span: Duration) {
        let limit = self.now() + span;
        while self.shared.step(limit) {}
        self.shared.fabric.borrow_mut().advance_to(limit);
    }

    /// Runs until `done`, and returns how long that took.
    ///
    /// # Errors
    /// When it was not done in time, or nothing happens any more.
    pub fn run_until(&self, mut done: impl FnMut() -> bool, within: Duration) -> Result<Duration, Stuck> {
        let started = self.now();
        let limit = started + within;
        while !done() {
            if !self.shared.step(limit) && !done() {
                let idle = self.shared.fabric.borrow().events.next_at().is_none();
                let reason = if idle { "and nothing is going on" } else { "and something is still going on" };
                let (at, tasks) = (self.now(), self.shared.tasks());
                return Err(Stuck { within, at, tasks, reason });
            }
        }
        Ok(self.now() - started)
    }

    /// Runs a future on the operator until it is done.
    ///
    /// # Errors
    /// When it was not done in time, or nothing happens any more.
    pub fn block_on<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
        within: Duration,
    ) -> Result<T, Stuck> {
        let task = self.operator.spawn(future);
        let mut value = None;
        let done = || {
            value = value.take().or_else(|| task.take());
            value.is_some()
        };
        match self.run_until(done, within) {
            Ok(_) => Ok(value.expect("it is done when it has a value")),
            Err(stuck) => {
                task.cancel();
                Err(stuck)
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Tasks hold machines, and machines hold the tasks.
        self.shared.clear();
    }
}

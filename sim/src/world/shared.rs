//! State that a world and its machines share: the fabric, the tasks, and the loop that moves both on.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use fatbtree_verbs::Reactor;
use fatbtree_verbs::time::Instant;

use super::device::SimDevice;
use super::driven::{Driven, MachineReactor};
use super::executor::{Executor, Job, Running, TaskKey};
use super::fabric::Fabric;
use super::options::MachineOptions;
use super::{MachineId, Random};

/// Fabric, tasks and reactors. Nothing of it is borrowed while a task is polled or dropped.
pub(super) struct Shared {
    pub(super) fabric: Rc<RefCell<Fabric>>,
    executor: RefCell<Executor>,
    desks: RefCell<Vec<Desk>>,
    /// Machines whose tasks have run since their sleepers were last looked at.
    stirred: RefCell<Vec<MachineId>>,
}

/// The processor side of a machine.
struct Desk {
    /// Reactor, made when it is first asked for; another one in each life.
    reactor: Option<Rc<dyn Driven>>,
    /// Whether the machine stands still.
    still: bool,
    /// Something has come for its reactor while it stood still.
    late_news: bool,
    /// Polls until the machine dies.
    fuse: Option<u64>,
    /// Whether the machine may look into any memory past the network.
    looks: bool,
    stirred: bool,
}

impl Shared {
    pub(super) fn new(fabric: Fabric, random: Random) -> Self {
        Self {
            fabric: Rc::new(RefCell::new(fabric)),
            executor: RefCell::new(Executor::new(random)),
            desks: RefCell::default(),
            stirred: RefCell::default(),
        }
    }

    pub(super) fn add_machine(&self, options: MachineOptions, looks: bool) -> MachineId {
        let desk = Desk { reactor: None, still: false, late_news: false, fuse: None, looks, stirred: false };
        self.desks.borrow_mut().push(desk);
        self.fabric.borrow_mut().add_host(options)
    }

    pub(super) fn now(&self) -> Instant {
        self.fabric.borrow().now.at
    }

    pub(super) fn reactor(&self, machine: MachineId) -> MachineReactor {
        let make =
            || -> Rc<dyn Driven> { Rc::new(Reactor::new(SimDevice::new(Rc::clone(&self.fabric), machine))) };
        MachineReactor(self.desk(machine, |desk| Rc::clone(desk.reactor.get_or_insert_with(make))))
    }

    /// Gives a machine the reactor of its present life; false if it has one.
    pub(super) fn set_reactor(&self, machine: MachineId, driven: Rc<dyn Driven>) -> bool {
        self.desk(machine, |desk| {
            let is_first = desk.reactor.is_none();
            desk.reactor.get_or_insert(driven);
            is_first
        })
    }

    pub(super) fn spawn(&self, machine: MachineId, job: Job) -> TaskKey {
        let key = self.executor.borrow_mut().spawn(machine, job);
        if !self.fabric.borrow().host(machine).up {
            self.cancel(key);
        }
        key
    }

    pub(super) fn cancel(&self, key: TaskKey) {
        let job = self.executor.borrow_mut().remove(key);
        drop(job);
    }

    pub(super) fn kill(&self, machine: MachineId) {
        // Power goes first, so that requests from the tasks' destructors have no effect.
        self.fabric.borrow_mut().kill(machine);
        self.desk(machine, |desk| (desk.still, desk.late_news, desk.fuse) = (false, false, None));
        let jobs = self.executor.borrow_mut().remove_all(Some(machine));
        drop(jobs);
    }

    pub(super) fn boot(&self, machine: MachineId) {
        self.fabric.borrow_mut().boot(machine);
        self.desk(machine, |desk| desk.reactor = None);
    }

    pub(super) fn set_fuse(&self, machine: MachineId, polls: Option<u64>) {
        self.desk(machine, |desk| desk.fuse = polls);
    }

    pub(super) fn set_still(&self, machine: MachineId, still: bool) {
        let late = self.desk(machine, |desk| {
            desk.still = still;
            !still && std::mem::take(&mut desk.late_news)
        });
        self.executor.borrow_mut().unpark();
        if late {
            self.fabric.borrow_mut().news_for(machine);
        }
    }

    /// Runs `work` on a machine's processor side; nothing foreign runs meanwhile.
    fn desk<T>(&self, machine: MachineId, work: impl FnOnce(&mut Desk) -> T) -> T {
        work(&mut self.desks.borrow_mut()[machine.0 as usize])
    }

    /// Ends all faults: machines that are up run, links are good. Dead machines stay dead.
    pub(super) fn heal(&self) {
        let machines = self.desks.borrow().len() as u32;
        for machine in (0..machines).map(MachineId) {
            self.set_still(machine, false);
            let mut fabric = self.fabric.borrow_mut();
            fabric.host_mut(machine).link = super::fabric::Link::default();
            fabric.host_mut(machine).writes_left = fabric.host(machine).writes_left.filter(|&left| left == 0);
            fabric.set_frozen(machine, false);
        }
        for desk in self.desks.borrow_mut().iter_mut() {
            desk.fuse = None;
        }
    }

    /// Whether a call from one machine to another gets through now.
    pub(super) fn can_call(&self, caller: MachineId, callee: MachineId) -> bool {
        let fabric = self.fabric.borrow();
        let (from, to) = (fabric.host(caller), fabric.host(callee));
        let still = self.desks.borrow()[callee.0 as usize].still;
        to.up && !still && !to.frozen && !from.frozen && !from.link.down && !to.link.down
    }

    pub(super) fn settle(&self) {
        let mut fabric = self.fabric.borrow_mut();
        let now = fabric.now;
        fabric.accesses.settle(now);
    }

    /// Tasks that have not ended.
    pub(super) fn tasks(&self) -> usize {
        self.executor.borrow().len()
    }

    /// Drops all tasks, and with them whatever they hold of this.
    pub(super) fn clear(&self) {
        let jobs = self.executor.borrow_mut().remove_all(None);
        drop(jobs);
        self.desks.borrow_mut().iter_mut().for_each(|desk| desk.reactor = None);
    }

    /// Lets the next event happen, unless it is later than `limit`, and runs the tasks that it wakes. `false`
    /// if nothing happened.
    pub(super) fn step(&self, limit: Instant) -> bool {
        self.run_ready();
        let mut fabric = self.fabric.borrow_mut();
        if fabric.events.next_at().is_none_or(|at| at > limit) {
            return false;
        }
        fabric.step();
        drop(fabric);
        self.tell_news();
        self.run_ready();
        true
    }

    /// Lets reactors take what has come for them.
    fn tell_news(&self) {
        loop {
            let (machine, now) = {
                let mut fabric = self.fabric.borrow_mut();
                let Some(machine) = fabric.take_news() else { return };
                (machine, fabric.now.at)
            };
            let reactor = self.desk(machine, |desk| {
                desk.late_news |= desk.still;
                if desk.still { None } else { desk.reactor.clone() }
            });
            if let Some(reactor) = reactor {
                self.stir(machine);
                reactor.turn(now);
            }
        }
    }

    /// A machine's sleepers may have changed.
    pub(super) fn stir(&self, machine: MachineId) {
        if !self.desk(machine, |desk| std::mem::replace(&mut desk.stirred, true)) {
            self.stirred.borrow_mut().push(machine);
        }
    }

    /// Runs tasks until none is ready, then notes when sleepers are due.
    fn run_ready(&self) {
        self.tell_news();
        while let Some(running) = self.take_ready() {
            self.poll(running);
            self.tell_news();
        }
        loop {
            let Some(machine) = self.stirred.borrow_mut().pop() else { return };
            let reactor = self.desk(machine, |desk| {
                desk.stirred = false;
                desk.reactor.clone()
            });
            if let Some(deadline) = reactor.and_then(|driven| driven.reactor().poll_timeout()) {
                self.fabric.borrow_mut().wake_at(machine, deadline);
            }
        }
    }

    fn take_ready(&self) -> Option<Running> {
        let desks = self.desks.borrow();
        self.executor.borrow_mut().take(|machine| desks[machine.0 as usize].still)
    }

    fn poll(&self, Running { key, machine, mut job, waker }: Running) {
        let (dies, looks, reactor) = self.desk(machine, |desk| {
            let dies = desk.fuse == Some(0);
            desk.fuse = desk.fuse.map(|polls| polls.saturating_sub(1));
            (dies, desk.looks, desk.reactor.clone())
        });
        if dies {
            // The task goes with its machine.
            let orphan = self.executor.borrow_mut().put_back(key, job);
            drop(orphan);
            return self.kill(machine);
        }
        let now = {
            let mut fabric = self.fabric.borrow_mut();
            fabric.counts.polls += 1;
            let now = fabric.now;
            if looks || fabric.host(machine).owns_memory {
                fabric.accesses.settle(now);
            }
            now.at
        };
        self.stir(machine);
        // The task was perhaps not woken by its own reactor, which then does not know the time.
        if let Some(reactor) = reactor.filter(|driven| driven.reactor().now() < now) {
            reactor.turn(now);
        }
        match job.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => {
                self.executor.borrow_mut().remove(key);
            }
            Poll::Pending => {
                let orphan = self.executor.borrow_mut().put_back(key, job);
                drop(orphan);
            }
        }
    }
}

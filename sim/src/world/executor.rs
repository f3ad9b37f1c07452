//! Tasks: the ready ones run in an order that the seed decides, and a machine's tasks can be removed.
//!
//! Reasons for an executor of our own: a simulated machine must be able to lose all its tasks at one moment between
//! two polls. It must stand still with its wakers kept, and die before its n-th poll. The seed must decide which of
//! two ready tasks goes first. `LocalPool` and `FuturesUnordered` of the `futures` crate can neither stop some of
//! their tasks nor drop one at once (aborting drops at the next poll). Nor can their order be
//! chosen. `madsim` can do all this, but takes over the whole process by a compiler flag. The executor itself is small.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use rand::RngExt as _;

use super::{MachineId, Random};

/// A task, until it has ended. The number of one that has ended is used again, under another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskKey {
    index: u32,
    generation: u32,
}

pub(super) type Job = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    generation: u32,
    machine: MachineId,
    /// The task; `None` while it is polled, and when it has ended.
    job: Option<Job>,
    waker: Option<Arc<Alarm>>,
}

/// Wakes one task. Wakers must be fit for threads, although here there is only one.
struct Alarm {
    key: TaskKey,
    rung: AtomicBool,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue(Mutex<Vec<TaskKey>>);

impl Queue {
    fn with<T>(&self, work: impl FnOnce(&mut Vec<TaskKey>) -> T) -> T {
        // Nothing panics while it is locked; and if something did, the list would still be a list.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::Relaxed) {
            self.queue.with(|queue| queue.push(self.key));
        }
    }
}

/// All tasks of a world.
pub(super) struct Executor {
    tasks: Vec<Task>,
    free: Vec<u32>,
    woken: Arc<Queue>,
    ready: Vec<TaskKey>,
    /// Woken tasks of machines that stand still.
    parked: Vec<TaskKey>,
    random: Random,
}

/// A task taken out to be polled.
pub(super) struct Running {
    pub(super) key: TaskKey,
    pub(super) machine: MachineId,
    pub(super) job: Job,
    pub(super) waker: Waker,
}

impl Executor {
    pub(super) fn new(random: Random) -> Self {
        Self {
            tasks: Vec::new(),
            free: Vec::new(),
            woken: Arc::default(),
            ready: Vec::new(),
            parked: Vec::new(),
            random,
        }
    }

    /// Adds a task; it is ready.
    pub(super) fn spawn(&mut self, machine: MachineId, job: Job) -> TaskKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(Task { generation: 0, machine, job: None, waker: None });
            self.tasks.len() as u32 - 1
        });
        let task = &mut self.tasks[index as usize];
        let key = TaskKey { index, generation: task.generation };
        let alarm = Alarm { key, rung: AtomicBool::new(true), queue: Arc::clone(&self.woken) };
        (task.machine, task.job, task.waker) = (machine, Some(job), Some(Arc::new(alarm)));
        self.ready.push(key);
        key
    }

    /// Takes one of the ready tasks out, any of them. Tasks of machines that `stands_still` holds for are kept for later.
    pub(super) fn take(&mut self, stands_still: impl Fn(MachineId) -> bool) -> Option<Running> {
        loop {
            self.woken.with(|woken| self.ready.append(woken));
            if self.ready.is_empty() {
                return None;
            }
            let at = if self.ready.len() == 1 { 0 } else { self.random.random_range(0..self.ready.len()) };
            let key = self.ready.swap_remove(at);
            let Some(task) =
                self.tasks.get_mut(key.index as usize).filter(|t| t.generation == key.generation)
            else {
                continue;
            };
            if stands_still(task.machine) {
                self.parked.push(key);
                continue;
            }
            if let (Some(job), Some(alarm)) = (task.job.take(), &task.waker) {
                alarm.rung.store(false, Ordering::Relaxed);
                return Some(Running {
                    key,
                    machine: task.machine,
                    job,
                    waker: Waker::from(Arc::clone(alarm)),
                });
            }
        }
    }

    /// Puts a task back that waits for something. Gives it back where it was taken away meanwhile.
    pub(super) fn put_back(&mut self, key: TaskKey, job: Job) -> Option<Job> {
        match self.tasks.get_mut(key.index as usize) {
            Some(task) if task.generation == key.generation => {
                task.job = Some(job);
                None
            }
            _ => Some(job),
        }
    }

    /// Takes a task away for good. The caller drops it when nothing is borrowed.
    pub(super) fn remove(&mut self, key: TaskKey) -> Option<Job> {
        let task = self.tasks.get_mut(key.index as usize).filter(|task| task.generation == key.generation)?;
        task.generation = task.generation.wrapping_add(1);
        task.waker = None;
        self.free.push(key.index);
        task.job.take()
    }

    /// Takes all tasks of a machine away.
    pub(super) fn remove_all(&mut self, machine: Option<MachineId>) -> Vec<Job> {
        let mut jobs = Vec::new();
        for index in 0..self.tasks.len() {
            let task = &self.tasks[index];
            if task.waker.is_some() && machine.is_none_or(|machine| machine == task.machine) {
                let key = TaskKey { index: index as u32, generation: task.generation };
                jobs.extend(self.remove(key));
            }
        }
        jobs
    }

    /// Woken tasks of machines that stood still are ready.
    pub(super) fn unpark(&mut self) {
        self.ready.append(&mut self.parked);
    }

    /// Tasks that have not ended.
    pub(super) fn len(&self) -> usize {
        self.tasks.len() - self.free.len()
    }
}

//! Machines: what runs on them, what they are connected to, and what befalls them.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{ConnectError, Device as _, QueuePair, Reactor};

use super::MachineId;
use super::device::SimDevice;
use super::driven::{Driven, MachineReactor};
use super::executor::TaskKey;
use super::options::LinkFaults;
use super::shared::Shared;

/// A machine of a world: client, memory server or the hand that plays fate. Clones are the same machine.
#[derive(Clone)]
pub struct Machine {
    pub(super) shared: Rc<Shared>,
    pub(super) id: MachineId,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Machine {} ({})", self.id.0, self.name())
    }
}

/// A call that was not answered. Whether it was carried out is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{callee:?} did not answer a call within {waited}; it may be down, frozen, or cut off")]
pub struct Unreachable {
    /// The called machine.
    pub callee: MachineId,
    /// Time that the caller waited.
    pub waited: Duration,
}

/// Errors from connecting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The other side did not answer.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// One of the two cards refused.
    #[error(transparent)]
    Refused(#[from] ConnectError),
}

impl Machine {
    /// Number of the machine, unique in its world.
    #[must_use]
    pub fn id(&self) -> MachineId {
        self.id
    }

    /// Name of the machine.
    #[must_use]
    pub fn name(&self) -> String {
        self.shared.fabric.borrow().host(self.id).options.name.clone()
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared.now()
    }

    /// The reactor of the machine's present life; of its last one when it is dead. All its tasks share it.
    #[must_use]
    pub fn reactor(&self) -> MachineReactor {
        self.shared.reactor(self.id)
    }

    /// Makes another reactor that of the machine's present life, such as the one inside of a client. That reactor is
    /// told of completions and of the time, and [`sleep`](Self::sleep) and calls use it.
    ///
    /// # Panics
    /// When the machine has one already: two would take each other's completions.
    pub fn set_driven(&self, driven: Rc<dyn Driven>) {
        let is_first = self.shared.set_reactor(self.id, driven);
        assert!(is_first, "{self:?} has a reactor: give it another one before anything asks for it");
    }

    /// Network card of the machine without a reactor, for code that posts and polls by itself. Do not use both.
    #[must_use]
    pub fn device(&self) -> SimDevice {
        SimDevice::new(Rc::clone(&self.shared.fabric), self.id)
    }

    /// Waits for a span of virtual time.
    pub async fn sleep(&self, span: Duration) {
        let reactor = self.reactor();
        // A reactor learns the time when something happens on its machine; this one may have been idle.
        let ahead = self.now() - reactor.now();
        self.shared.stir(self.id);
        reactor.sleep(ahead + span).await;
    }

    /// Starts a task on this machine. On a dead machine it never runs.
    ///
    /// The task may hold clones of machines: they are dropped with the world at the latest.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        let state = Rc::new(RefCell::new(TaskState { value: None, ended: false, waker: None }));
        let end = End(Rc::clone(&state));
        let job = Box::pin(async move {
            let value = future.await;
            end.0.borrow_mut().value = Some(value);
            drop(end);
        });
        let key = self.shared.spawn(self.id, job);
        Task { shared: Rc::clone(&self.shared), key, state }
    }

    /// Whether the machine is alive.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.fabric.borrow().host(self.id).up
    }

    /// Takes the machine's power away, now.
    ///
    /// Its card goes first: messages that have left it go on, the rest is lost, also the rest of a long WRITE. Only then its tasks
    /// are dropped, so that nothing their destructors do reaches another machine. Other machines see a queue
    /// pair that does not answer. Its registrations are gone; the memory itself remains with its holder, torn
    /// as it is.
    pub fn kill(&self) {
        self.shared.kill(self.id);
    }

    /// Kills the machine before its tasks are polled for the `polls`th time from now: a way to die at each await in
    /// turn.
    pub fn kill_after_polls(&self, polls: u64) {
        self.shared.set_fuse(self.id, Some(polls));
    }

    /// Lets this many more WRITEs leave its card, and then nothing: a way to die between two writes of a chain. The machine itself
    /// goes on until it is killed.
    pub fn mute_after_writes(&self, writes: u64) {
        self.mute_after(writes, false);
    }

    /// The same after this many WRITEs and atomics: a way to die between any two changes of a doorbell.
    pub fn mute_after_changes(&self, changes: u64) {
        self.mute_after(changes, true);
    }

    fn mute_after(&self, requests: u64, counts_atomics: bool) {
        let mut fabric = self.shared.fabric.borrow_mut();
        let host = fabric.host_mut(self.id);
        (host.writes_left, host.counts_atomics) = (Some(requests), counts_atomics);
    }

    /// Whether the limit of [`mute_after_writes`](Self::mute_after_writes) is reached.
    #[must_use]
    pub fn is_mute(&self) -> bool {
        self.shared.fabric.borrow().host(self.id).writes_left == Some(0)
    }

    /// Starts a dead machine anew, with a new card and no tasks.
    ///
    /// # Panics
    /// When it is alive.
    pub fn boot(&self) {
        assert!(!self.is_up(), "{self:?} is alive and cannot be booted");
        self.shared.boot(self.id);
    }

    /// Freezes the processors: no task runs, while the card goes on. (A virtual machine that is paused, a long
    /// garbage collection: a lease then runs out under a client that does not know.)
    pub fn freeze(&self) {
        self.shared.set_still(self.id, true);
    }

    /// Lets the processors go on.
    pub fn thaw(&self) {
        self.shared.set_still(self.id, false);
    }

    /// Freezes the card: messages to it wait, and nothing leaves it. Accesses that it has begun are finished.
    pub fn freeze_card(&self) {
        self.shared.fabric.borrow_mut().set_frozen(self.id, true);
    }

    /// Lets the card go on with the messages that have come meanwhile.
    pub fn thaw_card(&self) {
        self.shared.fabric.borrow_mut().set_frozen(self.id, false);
    }

    /// Cuts the machine's cable, or mends it. Messages on their way are lost if the cable is cut when they arrive.
    pub fn set_link_down(&self, down: bool) {
        self.shared.fabric.borrow_mut().host_mut(self.id).link.down = down;
    }

    /// Sets the faults of the machine's link from now on.
    pub fn set_link_faults(&self, faults: LinkFaults) {
        self.shared.fabric.borrow_mut().host_mut(self.id).link.faults = faults;
    }

    /// Runs something on another machine, by other means than verbs: two trips of [`Calls`](super::Calls).
    ///
    /// # Errors
    /// When it did not answer in time. It may have done the work nevertheless.
    pub async fn call<T>(
        &self,
        callee: &Machine,
        work: impl FnOnce(&Reactor<SimDevice>) -> T,
    ) -> Result<T, Unreachable> {
        let calls = self.shared.fabric.borrow().options.calls;
        let started = self.now();
        self.sleep(calls.trip).await;
        self.until_reachable(callee, started + calls.timeout).await?;
        // Memory that it reads past the network must be in its present state.
        self.shared.settle();
        let answer = work(&callee.reactor());
        self.sleep(calls.trip).await;
        self.until_reachable(callee, started + calls.timeout).await?;
        Ok(answer)
    }

    async fn until_reachable(&self, callee: &Machine, deadline: Instant) -> Result<(), Unreachable> {
        const LOOK: Duration = Duration::from_micros(10);
        let waited = self.shared.fabric.borrow().options.calls.timeout;
        while !self.shared.can_call(self.id, callee.id) {
            if self.now() >= deadline {
                return Err(Unreachable { callee: callee.id, waited });
            }
            self.sleep(LOOK).await;
        }
        Ok(())
    }

    /// Connects a new queue pair to a new one of `server`, by a call.
    ///
    /// # Errors
    /// When the server does not answer (it may then have an unused queue pair), or a card refuses.
    pub async fn dial(&self, server: &Machine) -> Result<QueuePair, DialError> {
        self.connect(server, false).await
    }

    /// Connects like [`dial`](Self::dial), but before that the server takes back all queue pairs that this machine
    /// has with it, also in earlier lives. Requests on them that have not been carried out never will be.
    ///
    /// After a queue pair broke this matters. An unanswered WRITE may still wait before a frozen card, and
    /// would overwrite anything written meanwhile.
    ///
    /// # Errors
    /// As [`dial`](Self::dial).
    pub async fn dial_anew(&self, server: &Machine) -> Result<QueuePair, DialError> {
        self.connect(server, true).await
    }

    async fn connect(&self, server: &Machine, anew: bool) -> Result<QueuePair, DialError> {
        let reactor = self.reactor();
        let queue_pair = reactor.with(|card| card.create())?;
        let here = reactor.with(|card| card.endpoint(queue_pair))?;
        let accept = |card: &mut SimDevice| {
            if anew {
                card.take_back_from(self.id);
            }
            let peer = card.create()?;
            let there = card.endpoint(peer)?;
            card.connect(peer, &here)?;
            Ok::<_, ConnectError>(there)
        };
        let there = self.call(server, |theirs| theirs.with(accept)).await;
        let connected = match there {
            Ok(Ok(there)) => reactor.with(|card| card.connect(queue_pair, &there)).map_err(DialError::from),
            Ok(Err(refused)) => Err(refused.into()),
            Err(unreachable) => Err(unreachable.into()),
        };
        match connected {
            Ok(_) => Ok(queue_pair),
            Err(error) => {
                reactor.with(|card| card.destroy(queue_pair));
                Err(error)
            }
        }
    }
}

/// A task that was started. Dropping this does not stop it. As a future it gives the task's result, or `None` if the task was
/// taken away before it had one.
pub struct Task<T> {
    shared: Rc<Shared>,
    key: TaskKey,
    state: Rc<RefCell<TaskState<T>>>,
}

struct TaskState<T> {
    value: Option<T>,
    ended: bool,
    waker: Option<Waker>,
}

/// Says that a task has ended, whether by itself or not.
struct End<T>(Rc<RefCell<TaskState<T>>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.ended = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task, {}", if self.has_ended() { "ended" } else { "running" })
    }
}

impl<T> Task<T> {
    /// Drops the task's future, now, on a machine that is alive: destructors run and may post. A task that cancels itself runs on
    /// to its next await.
    pub fn cancel(&self) {
        self.shared.cancel(self.key);
    }

    /// Whether it has come to its end or was taken away.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state.borrow().ended
    }

    /// Takes the result, once.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        self.state.borrow_mut().value.take()
    }
}

impl<T> Future for Task<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.state.borrow_mut();
        if state.ended {
            return Poll::Ready(state.value.take());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

//! Operations as futures: posts chains, takes completions, keeps time, wakes waiting futures.

mod alarm;
mod slots;
mod throttle;

use std::cell::{RefCell, RefMut};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use arrayvec::ArrayVec;

use crate::completion::{Failure, Output};
use crate::device::{QueuePair, Verbs};
use crate::error::{Error, PostError};
use crate::request::{Operation, WorkRequest};
use crate::time::{Duration, Instant};
use crate::wait_queue::{Place, Step, WaitQueue};

pub use alarm::Alarm;
use slots::{Slot, Slots};
use throttle::Throttle;
pub use throttle::Throttling;

/// Turns the operations of one device into futures, any number of them at a time, for one thread.
///
/// The reactor starts nothing and reads no clock. Its owner runs the futures in an executor of its choice. It calls
/// [`turn`](Self::turn) whenever completions may have come or [`poll_timeout`](Self::poll_timeout) is reached.
///
/// In steady state nothing is allocated: each waiting future has a slot, and slots are used again.
///
/// A future that is dropped leaves its posted requests under way. Their results are discarded when they arrive, and
/// their buffers go back to the pool.
pub struct Reactor<V> {
    inner: RefCell<Inner<V>>,
}

struct Inner<V> {
    verbs: V,
    now: Instant,
    slots: Slots,
    /// Deadlines of sleeping futures, with the tags of their slots; some may have gone.
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Futures that found a send queue full or no buffer free.
    starved: VecDeque<Waker>,
    throttle: Throttle,
    /// Chains that wait for credits.
    throttled: WaitQueue,
    /// Broken queue pairs that the owner has not taken yet.
    broken: VecDeque<Broken>,
}

/// A broken queue pair, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The queue pair.
    pub queue_pair: QueuePair,
    /// Failure of the first request that failed; [`Failure::Flushed`] if nothing was under way.
    pub failure: Failure,
    /// Whether that request was an index read.
    pub index_read: bool,
}

impl<V> std::fmt::Debug for Reactor<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactor").finish_non_exhaustive()
    }
}

impl<V: Verbs> Reactor<V> {
    /// Creates a reactor for `verbs`; its time is zero until the first [`turn`](Self::turn).
    pub fn new(verbs: V) -> Self {
        Self::throttled(verbs, Throttling::Off)
    }

    /// Creates a reactor that has no more requests under way than `throttling` says. A chain waits until it fits, in the order in which they
    /// come; one that is longer than the limit goes alone.
    pub fn throttled(verbs: V, throttling: Throttling) -> Self {
        Self {
            inner: RefCell::new(Inner {
                verbs,
                now: Instant::ZERO,
                slots: Slots::default(),
                timers: BinaryHeap::new(),
                starved: VecDeque::new(),
                throttle: Throttle::new(throttling),
                throttled: WaitQueue::default(),
                broken: VecDeque::new(),
            }),
        }
    }

    /// Calls `work` with the device, to connect it or to hand it frames.
    ///
    /// # Panics
    /// When `work` uses the reactor itself.
    pub fn with<T>(&self, work: impl FnOnce(&mut V) -> T) -> T {
        work(&mut self.inner.borrow_mut().verbs)
    }

    /// The time of the last [`turn`](Self::turn).
    #[inline]
    pub fn now(&self) -> Instant {
        self.inner.borrow().now
    }

    /// Posts operations on one queue pair with one doorbell, and waits until all of them are done. If the send queue
    /// is full or no buffer is free it waits for one, as long as anything is under way that could free it.
    ///
    /// READs, atomics and the last operation are signalled.
    ///
    /// # Errors
    /// When the chain is not accepted, or the first operation that failed.
    #[inline]
    pub fn chain<'r, 'd, const N: usize>(
        &'r self,
        queue_pair: QueuePair,
        operations: [Operation<'d>; N],
    ) -> Chain<'r, 'd, V, N> {
        Chain(self.batch_of(queue_pair, operations))
    }

    /// Posts a number of operations that is known only at run time, from 1 to [`MAX_BATCH`].
    ///
    /// The future keeps `operations`, not what it yields: it is cloned for each attempt to post. Nothing is allocated.
    ///
    /// # Errors
    /// When the chain is not accepted, or the first operation that failed.
    #[inline]
    pub fn batch<'d, O>(&self, queue_pair: QueuePair, operations: O) -> Batch<'_, V, O>
    where
        O: IntoIterator<Item = Operation<'d>> + Clone + Unpin,
    {
        self.batch_of(queue_pair, operations)
    }

    #[inline]
    fn batch_of<O, const MOST: usize>(&self, queue_pair: QueuePair, operations: O) -> Batch<'_, V, O, MOST> {
        Batch { reactor: self, queue_pair, operations, place: Place::default(), slots: ArrayVec::new() }
    }

    /// Waits for a span of time.
    pub fn sleep(&self, span: Duration) -> Sleep<'_, V> {
        Sleep { reactor: self, deadline: self.now() + span, slot: None }
    }

    /// Takes completions and deadlines that have come by `now`, and wakes the futures that wait for them. Returns
    /// whether there were any. If `now` would go back, time stands still.
    pub fn turn(&self, now: Instant) -> bool {
        let mut inner = self.inner.borrow_mut();
        inner.now = inner.now.max(now);
        let known = inner.broken.len();
        let mut any = false;
        while let Some(completion) = inner.verbs.poll() {
            any = true;
            if let Err(failure) = completion.result {
                let (queue_pair, index_read) = (completion.queue_pair, slots::is_index_read(completion.tag));
                inner.broke(Broken { queue_pair, failure, index_read });
            }
            if inner.throttle.is_on() {
                let requests = inner.slots.take_requests(completion.tag);
                inner.throttle.done(requests);
            }
            let woken = inner.slots.complete(completion.tag, completion.result);
            let starved = inner.starved.pop_front();
            inner = self.wake(inner, woken);
            if let Some(starved) = starved {
                drop(inner);
                starved.wake();
                inner = self.inner.borrow_mut();
            }
        }
        while let Some(queue_pair) = inner.verbs.poll_broken() {
            inner.broke(Broken { queue_pair, failure: Failure::Flushed, index_read: false });
        }
        any |= inner.broken.len() > known;
        while let Some(&Reverse((at, tag))) = inner.timers.peek()
            && at <= inner.now
        {
            any = true;
            inner.timers.pop();
            let woken = inner.slots.complete(tag, Ok(Output::Written));
            inner = self.wake(inner, woken);
        }
        let now = inner.now;
        inner.throttle.handle_timeout(now);
        inner = self.call(inner);
        // With nothing in flight they would never be woken again: they end with an error.
        while inner.slots.posted() == 0
            && let Some(waker) = inner.starved.pop_front()
        {
            drop(inner);
            waker.wake();
            inner = self.inner.borrow_mut();
        }
        any
    }

    /// Wakes the future of a slot. Wakers are foreign code: they run, and are dropped, without the reactor being
    /// borrowed.
    #[inline]
    fn wake<'r>(&'r self, inner: RefMut<'r, Inner<V>>, woken: Option<(Slot, Waker)>) -> RefMut<'r, Inner<V>> {
        let Some((slot, waker)) = woken else { return inner };
        drop(inner);
        waker.wake_by_ref();
        let mut inner = self.inner.borrow_mut();
        if let Some(unwanted) = inner.slots.put_back(slot, waker) {
            drop(inner);
            drop(unwanted);
            inner = self.inner.borrow_mut();
        }
        inner
    }

    /// Calls the chains for which there is room, in their order.
    #[inline]
    fn call<'r>(&'r self, mut inner: RefMut<'r, Inner<V>>) -> RefMut<'r, Inner<V>> {
        while let Inner { throttle, throttled, .. } = &mut *inner
            && let Some(waker) = throttled.call(|requests| throttle.admits(requests))
        {
            drop(inner);
            waker.wake();
            inner = self.inner.borrow_mut();
        }
        inner
    }

    /// Whether requests are under way whose future was dropped: they may still take effect.
    pub fn has_abandoned(&self) -> bool {
        self.inner.borrow().slots.abandoned() > 0
    }

    /// The next queue pair that broke, with the reason; each is named until it is destroyed, and then no more. The owner
    /// destroys it.
    pub fn poll_broken(&self) -> Option<Broken> {
        self.inner.borrow_mut().broken.pop_front()
    }

    /// Time at which [`turn`](Self::turn) is due for a sleeping future; `None` if none sleeps.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let mut inner = self.inner.borrow_mut();
        while let Some(&Reverse((at, tag))) = inner.timers.peek() {
            if inner.slots.is_waiting(tag) {
                return Some(at);
            }
            inner.timers.pop();
            inner.slots.complete(tag, Ok(Output::Written));
        }
        None
    }

    /// Runs one future to its end, with [`turn`](Self::turn) in between; `clock` drives the device and returns the
    /// time.
    pub fn run<F: Future>(&self, future: F, mut clock: impl FnMut(&mut V) -> Instant) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            let now = self.with(&mut clock);
            self.turn(now);
        }
    }

    /// Runs one future to its end over a device that needs no driver, such as a plain one. If only time is missing,
    /// it jumps to the next deadline.
    ///
    /// # Panics
    /// When the future waits for something that will never come.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            if !self.turn(self.now()) {
                let deadline = self.poll_timeout();
                self.turn(deadline.expect("a future over a plain device waits for completions or for time"));
            }
        }
    }
}

impl<V> Inner<V> {
    /// Notes a broken queue pair. The first failure that is not a consequence is the reason.
    fn broke(&mut self, news: Broken) {
        match self.broken.iter_mut().find(|known| known.queue_pair == news.queue_pair) {
            Some(known) if known.failure == Failure::Flushed => *known = news,
            Some(_) => {}
            None => self.broken.push_back(news),
        }
    }
}

/// Maximum number of operations of one [`Reactor::batch`].
pub const MAX_BATCH: usize = 16;

/// Future of the operations that `operations` gives; see [`Reactor::batch`].
#[must_use = "nothing is posted before it is awaited"]
pub struct Batch<'r, V: Verbs, O, const MOST: usize = MAX_BATCH> {
    reactor: &'r Reactor<V>,
    queue_pair: QueuePair,
    operations: O,
    /// Place among the chains that wait for credits.
    place: Place,
    /// Once posted: a slot for each operation that is signalled. Empty before and afterwards.
    slots: ArrayVec<Option<Slot>, MOST>,
}

impl<V: Verbs, O, const MOST: usize> std::fmt::Debug for Batch<'_, V, O, MOST> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let posted = if self.slots.is_empty() { "not posted" } else { "posted" };
        write!(f, "Batch of at most {MOST} on {}, {posted}", self.queue_pair)
    }
}

impl<'d, V, O, const MOST: usize> Future for Batch<'_, V, O, MOST>
where
    V: Verbs,
    O: IntoIterator<Item = Operation<'d>> + Clone + Unpin,
{
    type Output = Result<ArrayVec<Output, MOST>, Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut borrowed = this.reactor.inner.borrow_mut();
        let inner = &mut *borrowed;
        if this.slots.is_empty() {
            let mut requests = 0;
            if inner.throttle.is_on() {
                requests = this.operations.clone().into_iter().count() as u32;
                let has_room = inner.throttle.admits(requests);
                match inner.throttled.poll(&mut this.place, requests, has_room, context.waker()) {
                    Step::Go => {}
                    Step::Wait => return Poll::Pending,
                    Step::Yield => {
                        drop(borrowed);
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
            match inner.post(this.queue_pair, this.operations.clone()) {
                Ok(slots) => {
                    this.slots = slots;
                    inner.throttle.take(requests);
                }
                Err(Error::Post(error)) if error.is_temporary() && inner.slots.posted() > 0 => {
                    inner.starved.push_back(context.waker().clone());
                    return Poll::Pending;
                }
                Err(error) => {
                    drop(borrowed);
                    this.forgo();
                    return Poll::Ready(Err(error));
                }
            }
        }
        // Per queue pair completions come in order: when the last is there, all are.
        if let Some(Some(last)) = this.slots.last()
            && !inner.slots.is_done(*last)
        {
            let other = inner.slots.keep(*last, context.waker());
            drop(borrowed);
            drop(other);
            return Poll::Pending;
        }
        let mut first_failure = None;
        let outputs = this.slots.drain(..).map(|slot| {
            let result = slot.map_or(Ok(Output::Written), |slot| inner.slots.take(slot));
            result.unwrap_or_else(|failure| {
                first_failure.get_or_insert(failure);
                Output::Written
            })
        });
        let outputs = outputs.collect();
        Poll::Ready(first_failure.map_or(Ok(outputs), |failure| Err(failure.into())))
    }
}

impl<V: Verbs, O, const MOST: usize> Batch<'_, V, O, MOST> {
    /// Gives up its place among the chains that wait for credits, and lets those after it pass.
    #[inline]
    fn forgo(&mut self) {
        if self.place.is_taken() {
            let mut inner = self.reactor.inner.borrow_mut();
            inner.throttled.leave(&mut self.place);
            drop(self.reactor.call(inner));
        }
    }
}

impl<V: Verbs, O, const MOST: usize> Drop for Batch<'_, V, O, MOST> {
    fn drop(&mut self) {
        self.forgo();
        if !self.slots.is_empty() {
            let mut inner = self.reactor.inner.borrow_mut();
            self.slots.drain(..).flatten().for_each(|slot| inner.slots.abandon(slot));
        }
    }
}

/// Future of a chain whose type gives the number of operations, so that a pattern tells their outputs apart; see
/// [`Reactor::chain`].
#[must_use = "nothing is posted before it is awaited"]
pub struct Chain<'r, 'd, V: Verbs, const N: usize>(Batch<'r, V, [Operation<'d>; N], N>);

impl<V: Verbs, const N: usize> std::fmt::Debug for Chain<'_, '_, V, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let posted = if self.0.slots.is_empty() { "not posted" } else { "posted" };
        write!(f, "Chain of {N} on {}, {posted}", self.0.queue_pair)
    }
}

impl<V: Verbs, const N: usize> Future for Chain<'_, '_, V, N> {
    type Output = Result<[Output; N], Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let all = |outputs: ArrayVec<_, N>| outputs.into_inner().expect("each operation has an output");
        Pin::new(&mut self.0).poll(context).map_ok(all)
    }
}

impl<V: Verbs> Inner<V> {
    #[inline]
    fn post<'d, const MOST: usize>(
        &mut self,
        queue_pair: QueuePair,
        operations: impl IntoIterator<Item = Operation<'d>>,
    ) -> Result<ArrayVec<Option<Slot>, MOST>, Error> {
        let mut requests = ArrayVec::<WorkRequest<'d>, MOST>::new();
        let mut operations = operations.into_iter();
        for operation in operations.by_ref() {
            let request = WorkRequest { tag: 0, signalled: operation.has_result(), operation };
            if requests.try_push(request).is_err() {
                let found = MOST + 1 + operations.count();
                return Err(PostError::ChainLength { found, limit: MOST }.into());
            }
        }
        if let Some(last) = requests.last_mut() {
            last.signalled = true;
        }
        let claim = |request: &WorkRequest<'_>| request.signalled.then(|| self.slots.claim());
        let slots: ArrayVec<Option<Slot>, MOST> = requests.iter().map(claim).collect();
        let last = slots.last().copied().flatten();
        for (request, slot) in requests.iter_mut().zip(&slots) {
            // An operation that is not signalled speaks up only to say why the last one fails.
            request.tag = match (slot, &request.operation) {
                (Some(slot), Operation::IndexRead { .. }) => slot.tag_of_index_read(),
                (Some(slot), _) => slot.tag(),
                (None, _) => last.map(Slot::tag_of_cause).unwrap_or_default(),
            };
        }
        match self.verbs.post(queue_pair, &requests) {
            Ok(()) => {
                let mut requests = 0;
                for slot in &slots {
                    requests += 1;
                    if let Some(slot) = slot {
                        self.slots.posted_now(*slot, std::mem::take(&mut requests));
                    }
                }
                Ok(slots)
            }
            Err(error) => {
                slots.iter().flatten().for_each(|&slot| self.slots.release(slot));
                Err(error.into())
            }
        }
    }
}

/// Future that waits for a point in time; see [`Reactor::sleep`].
#[must_use = "a sleep does nothing until it is awaited"]
pub struct Sleep<'r, V: Verbs> {
    reactor: &'r Reactor<V>,
    deadline: Instant,
    slot: Option<Slot>,
}

impl<V: Verbs> std::fmt::Debug for Sleep<'_, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sleep until {}", self.deadline)
    }
}

impl<V: Verbs> Future for Sleep<'_, V> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let reactor = self.reactor;
        let mut borrowed = reactor.inner.borrow_mut();
        let inner = &mut *borrowed;
        let slot = match self.slot {
            Some(slot) => slot,
            None if inner.now >= self.deadline => return Poll::Ready(()),
            None => {
                let slot = inner.slots.claim();
                inner.timers.push(Reverse((self.deadline, slot.tag())));
                slot
            }
        };
        if inner.slots.is_done(slot) {
            let _ = inner.slots.take(slot);
            self.slot = None;
            return Poll::Ready(());
        }
        self.slot = Some(slot);
        let other = inner.slots.keep(slot, context.waker());
        drop(borrowed);
        drop(other);
        Poll::Pending
    }
}

impl<V: Verbs> Drop for Sleep<'_, V> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.reactor.inner.borrow_mut().slots.abandon(slot);
        }
    }
}

#[cfg(test)]
mod tests;

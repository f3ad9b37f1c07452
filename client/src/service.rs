//! The client's thread: takes requests from a bounded queue, and carries many out at once.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fatbtree_port::Waker;
use fatbtree_remote_memory::BytesRange;
use fatbtree_verbs::time;
use futures_buffered::FuturesUnorderedBounded;
use futures_core::Stream as _;
use tokio::sync::{mpsc, oneshot, watch};

use crate::engine::{BytesPart, Change, Engine, Left, Part, Process, Store};
use crate::stats::Counters;
use crate::transaction::Asked;
use crate::{Client, Error, Options};

/// Requests that are carried out at once. A batch counts as one.
pub(crate) const AT_ONCE: usize = 256;

/// Requests under way up to which the thread polls before it sleeps.
const FEW: usize = 4;

/// Requests that wait for the thread. Further callers wait for room in the queue.
const QUEUE: usize = 1024;

/// Operations of one batch that are carried out at once.
const BATCH_AT_ONCE: usize = 32;

/// Request of a caller, with the sender of its answer.
#[derive(Debug)]
pub(crate) enum Ask {
    Get(u64, Answer<Option<Bytes>>),
    Change(u64, Change, Answer<bool>),
    Scan(Left, usize, Answer<Part>),
    GetBytes(Bytes, Answer<Option<Bytes>>),
    ChangeBytes(Bytes, Change, Answer<bool>),
    ScanBytes(Left<BytesRange>, usize, Answer<BytesPart>),
    GetMany(Vec<u64>, Answer<Vec<Option<Bytes>>>),
    PutMany(Vec<(u64, Bytes)>, Answer<Vec<Result<(), Error>>>),
    GetManyBytes(Vec<Bytes>, Answer<Vec<Option<Bytes>>>),
    PutManyBytes(Vec<(Bytes, Bytes)>, Answer<Vec<Result<(), Error>>>),
    /// A transaction, whose steps come by a queue of their own.
    Transact {
        attempt: u32,
        steps: mpsc::Receiver<Asked>,
        begun: Answer<()>,
    },
    Pause(time::Duration, Answer<()>),
}

pub(crate) type Answer<T> = oneshot::Sender<Result<T, Error>>;

#[derive(Debug)]
pub(crate) enum Request {
    Do {
        ask: Ask,
        since: Instant,
        limit: Duration,
    },
    /// Take no further requests.
    Close,
}

/// The clones' way to the thread.
#[derive(Debug)]
pub(crate) struct Shared {
    /// `None` while this is dropped.
    requests: Option<mpsc::Sender<Request>>,
    waker: Waker,
    pub(crate) counters: Arc<Counters>,
    ended: watch::Receiver<()>,
    /// The process that has the thread: a fork of it has not.
    process: u32,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The thread may sleep, and must see that the last clone is gone.
        self.requests = None;
        self.wake();
    }
}

impl Shared {
    /// A fork of a process has its memory, and none of its threads: a request would wait for ever.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(Error::Forked { process: self.process }),
        }
    }

    /// Sends a request to the thread, and waits for the answer. `is_change`: without an answer, it may have been carried out.
    pub(crate) async fn ask<T>(
        &self,
        limit: Duration,
        is_change: bool,
        ask: impl FnOnce(Answer<T>) -> Ask,
    ) -> Result<T, Error> {
        self.check_process()?;
        let closed = |may_have_happened| Error::Closed { may_have_happened };
        let requests = self.requests.as_ref().ok_or(closed(false))?;
        let place = requests.reserve().await.map_err(|_| closed(false))?;
        let (answer, answered) = oneshot::channel();
        place.send(Request::Do { ask: ask(answer), since: Instant::now(), limit });
        self.waker.wake();
        answered.await.unwrap_or_else(|_| Err(closed(is_change)))
    }

    /// Wakes the thread, which a fork does not have.
    pub(crate) fn wake(&self) {
        if self.check_process().is_ok() {
            self.waker.wake();
        }
    }

    /// Makes the thread end, and waits until it has.
    pub(crate) async fn close(&self) {
        if self.check_process().is_err() {
            return;
        }
        if let Some(requests) = &self.requests {
            // A thread that has ended needs not be told.
            let _ = requests.send(Request::Close).await;
            self.waker.wake();
        }
        let mut ended = self.ended.clone();
        // Nothing is ever sent: this waits for the sender's end.
        let _ = ended.changed().await;
    }
}

/// Starts the thread, and connects there by `open`.
pub(crate) async fn start(
    options: Options,
    open: fn(&Options) -> Result<Engine, Error>,
) -> Result<Client, Error> {
    let (ready, is_ready) = oneshot::channel();
    let limit = options.time_limit;
    let serve = move || {
        let engine = match open(&options) {
            Ok(engine) => engine,
            // The future of the connection may have been dropped.
            Err(error) => return drop(ready.send(Err(error))),
        };
        let (requests, asked) = mpsc::channel(QUEUE);
        let (end, ended) = watch::channel(());
        let counters = Arc::<Counters>::default();
        let shared = Shared {
            requests: Some(requests),
            waker: engine.waker.clone(),
            counters: Arc::clone(&counters),
            ended,
            process: std::process::id(),
        };
        // If the future of the connection was dropped, nothing is asked: the service ends at once.
        drop(ready.send(Ok(shared)));
        (engine.serve)(asked, &counters);
        drop(end);
    };
    let thread = std::thread::Builder::new().name("fatbtree-client".to_owned()).stack_size(STACK);
    thread.spawn(serve).map_err(|source| Error::Thread { source })?;
    let shared = is_ready.await.unwrap_or(Err(Error::Closed { may_have_happened: false }))?;
    Ok(Client::new(Arc::new(shared), limit))
}

/// Stack of a connection's thread. A program that is not optimised moves whole operations over it, and the usual 2 MiB are too few.
const STACK: usize = 16 << 20;

/// Serves requests by a connected process to their end.
pub(crate) fn run<P: Process>(
    mut process: P,
    few: &Cell<bool>,
    requests: mpsc::Receiver<Request>,
    counters: &Counters,
) {
    tracing::debug!("the client is connected");
    let store = Store::<P>(process.structure());
    if let Err(error) = process.run(serve(&store, few, requests, counters)) {
        tracing::warn!(%error, "the client has ended");
    }
    drop(store);
    process.close();
    tracing::debug!("the client is closed");
}

/// Carries out requests until no client is left, or one was closed.
async fn serve<P: Process>(
    store: &Store<P>,
    few: &Cell<bool>,
    mut requests: mpsc::Receiver<Request>,
    counters: &Counters,
) {
    let mut under_way = FuturesUnorderedBounded::new(AT_ONCE);
    let (mut replies, mut open) = (Vec::with_capacity(AT_ONCE), true);
    poll_fn(|context| {
        loop {
            while let Poll::Ready(Some(reply)) = Pin::new(&mut under_way).poll_next(context) {
                replies.push(reply);
            }
            if !open || under_way.len() == under_way.capacity() {
                break;
            }
            match requests.poll_recv(context) {
                Poll::Ready(Some(Request::Do { ask, since, limit })) => {
                    under_way.push(carry_out(Limited { store, counters, since, limit }, ask));
                }
                // What is in the queue already is carried out.
                Poll::Ready(Some(Request::Close)) => requests.close(),
                Poll::Ready(None) => open = false,
                Poll::Pending => break,
            }
        }
        // All at once: a caller that the first one wakes finds the others, too, and asks for as many more.
        replies.drain(..).for_each(Reply::send);
        few.set(under_way.len() <= FEW);
        if open || !under_way.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

/// Carries out the operations of one request within its time limit, and counts them.
struct Limited<'a, P: Process> {
    store: &'a Store<P>,
    counters: &'a Counters,
    since: Instant,
    limit: Duration,
}

impl<P: Process> Limited<'_, P> {
    async fn read<T>(&self, operation: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let result = self.run(false, operation).await;
        self.counters.read(self.since, &result);
        result
    }

    async fn change<T>(&self, operation: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let result = self.run(true, operation).await;
        self.counters.change(self.since, &result);
        result
    }

    async fn scan<T>(&self, operation: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let result = self.run(false, operation).await;
        self.counters.scan(self.since, &result);
        result
    }

    /// Runs an operation until its time is over. The client process finishes what a change leaves unfinished.
    async fn run<T>(
        &self,
        is_change: bool,
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let timed_out = |may_have_happened| Error::TimedOut { limit: self.limit, may_have_happened };
        let left = self.limit.saturating_sub(self.since.elapsed());
        if left.is_zero() {
            return Err(timed_out(false));
        }
        let (mut operation, mut end) = (pin!(operation), pin!(self.store.sleep(left.into())));
        poll_fn(|context| match operation.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => end.as_mut().poll(context).map(|()| Err(timed_out(is_change))),
        })
        .await
    }
}

/// Result of a request, on its way to the caller.
enum Reply {
    Value(Answer<Option<Bytes>>, Result<Option<Bytes>, Error>),
    Change(Answer<bool>, Result<bool, Error>),
    Pairs(Answer<Part>, Result<Part, Error>),
    BytesPairs(Answer<BytesPart>, Result<BytesPart, Error>),
    Values(Answer<Vec<Option<Bytes>>>, Result<Vec<Option<Bytes>>, Error>),
    Changes(Answer<Vec<Result<(), Error>>>, Vec<Result<(), Error>>),
    Paused(Answer<()>),
    /// Each step of a transaction has had its own.
    Sent,
}

impl Reply {
    fn send(self) {
        match self {
            Self::Value(answer, result) => tell(answer, result),
            Self::Change(answer, result) => tell(answer, result),
            Self::Pairs(answer, result) => tell(answer, result),
            Self::BytesPairs(answer, result) => tell(answer, result),
            Self::Values(answer, result) => tell(answer, result),
            Self::Changes(answer, results) => tell(answer, Ok(results)),
            Self::Paused(answer) => tell(answer, Ok(())),
            Self::Sent => {}
        }
    }
}

async fn carry_out<P: Process>(limited: Limited<'_, P>, ask: Ask) -> Reply {
    let store = limited.store;
    match ask {
        Ask::Get(key, answer) => Reply::Value(answer, limited.read(store.get(key)).await),
        Ask::GetBytes(key, answer) => Reply::Value(answer, limited.read(store.get_bytes(&key)).await),
        Ask::Change(key, change, answer) => {
            Reply::Change(answer, limited.change(store.mutate(key, &change)).await)
        }
        Ask::ChangeBytes(key, change, answer) => {
            Reply::Change(answer, limited.change(store.mutate_bytes(&key, &change)).await)
        }
        Ask::Scan(left, most, answer) => Reply::Pairs(answer, limited.scan(store.scan(left, most)).await),
        Ask::ScanBytes(left, most, answer) => {
            Reply::BytesPairs(answer, limited.scan(store.scan_bytes(left, most)).await)
        }
        Ask::GetMany(keys, answer) => {
            let get = async |at: usize| limited.read(store.get(keys[at])).await;
            Reply::Values(answer, all(keys.len(), get).await.into_iter().collect())
        }
        Ask::GetManyBytes(keys, answer) => {
            let get = async |at: usize| limited.read(store.get_bytes(&keys[at])).await;
            Reply::Values(answer, all(keys.len(), get).await.into_iter().collect())
        }
        Ask::PutMany(pairs, answer) => {
            let put = async |at: usize| {
                let (key, value): &(u64, Bytes) = &pairs[at];
                limited.change(store.mutate(*key, &Change::Put(value.clone()))).await.map(drop)
            };
            Reply::Changes(answer, all(pairs.len(), put).await)
        }
        Ask::PutManyBytes(pairs, answer) => {
            let put = async |at: usize| {
                let (key, value): &(Bytes, Bytes) = &pairs[at];
                limited.change(store.mutate_bytes(key, &Change::Put(value.clone()))).await.map(drop)
            };
            Reply::Changes(answer, all(pairs.len(), put).await)
        }
        Ask::Transact { attempt, steps, begun } => {
            let transact = async {
                store.transact(attempt, steps, begun).await;
                Ok(())
            };
            // What its end finds unfinished the client process finishes. Its handle sees that nothing answers.
            let _ = limited.change(transact).await;
            Reply::Sent
        }
        Ask::Pause(time, answer) => {
            store.sleep(time).await;
            Reply::Paused(answer)
        }
    }
}

/// Runs the operations of a batch, some at a time. What they have ended with, in their order.
async fn all<T, F: Future<Output = T>>(count: usize, begin: impl Fn(usize) -> F) -> Vec<T> {
    let mut ended: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let begin = |at| {
        let operation = begin(at);
        async move { (at, operation.await) }
    };
    let mut under_way = FuturesUnorderedBounded::new(BATCH_AT_ONCE.min(count.max(1)));
    let mut left = 0..count;
    poll_fn(|context| {
        loop {
            while under_way.len() < under_way.capacity()
                && let Some(at) = left.next()
            {
                under_way.push(begin(at));
            }
            match Pin::new(&mut under_way).poll_next(context) {
                Poll::Ready(Some((at, output))) => ended[at] = Some(output),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
    ended.into_iter().flatten().collect()
}

fn tell<T>(answer: Answer<T>, result: Result<T, Error>) {
    if let Err(error) = &result {
        tracing::debug!(%error, "an operation has failed");
    }
    // The caller may have dropped the future.
    let _ = answer.send(result);
}

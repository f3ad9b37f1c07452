//! The client process of either protocol and any structure, and the operations that they have.

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use fatbtree_blink_client::QueryClient;
use fatbtree_port::Waker;
use fatbtree_processes::{NodeError, QueryClientProcess, Reached, StructureProcess};
use fatbtree_remote_memory::{Answer, BytesRange, KeyRange, Order, Portion, Stepped, Structure};
use fatbtree_verbs::time::Duration;
use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::service::{Request, run};
use crate::stats::Counters;
use crate::transaction::Asked;

/// A client process that is connected, and the service of requests by it to their end.
pub(crate) struct Engine {
    pub(crate) waker: Waker,
    pub(crate) serve: Serve,
}

/// Service of requests to their end.
type Serve = Box<dyn FnOnce(mpsc::Receiver<Request>, &Counters)>;

impl Engine {
    /// `few`: flag that the service sets while few operations are under way.
    pub(crate) fn new<P: Process>(process: P, few: Rc<Cell<bool>>) -> Self {
        let waker = process.waker();
        Self { waker, serve: Box::new(move |requests, counters| run(process, &few, requests, counters)) }
    }
}

/// A client process of either protocol. It runs one future: the service of all requests.
pub(crate) trait Process: 'static {
    type Structure: Structure;

    fn waker(&self) -> Waker;
    fn structure(&self) -> Self::Structure;
    fn run<F: Future>(&mut self, future: F) -> Result<F::Output, NodeError>;
    fn close(self);

    /// Error of an operation that the structure does not have.
    fn lacks(operation: &'static str) -> Error;
}

impl<C: Reached> Process for StructureProcess<C> {
    type Structure = C;

    fn waker(&self) -> Waker {
        self.waker()
    }

    fn structure(&self) -> C {
        self.client().clone()
    }

    fn run<F: Future>(&mut self, future: F) -> Result<F::Output, NodeError> {
        self.run(future)
    }

    fn close(self) {
        self.close();
    }

    fn lacks(operation: &'static str) -> Error {
        Error::NotInStructure { structure: C::NAME, operation }
    }
}

impl Process for QueryClientProcess {
    type Structure = QueryClient;

    fn waker(&self) -> Waker {
        self.waker()
    }

    fn structure(&self) -> QueryClient {
        self.client().clone()
    }

    fn run<F: Future>(&mut self, future: F) -> Result<F::Output, NodeError> {
        self.run(future)
    }

    fn close(self) {}

    fn lacks(operation: &'static str) -> Error {
        Error::Unsupported { operation }
    }
}

/// A change of one key, with its own copy of the values.
#[derive(Debug)]
pub(crate) enum Change {
    Put(Bytes),
    Insert(Bytes),
    Update(Bytes),
    CompareAndSwap { expected: Bytes, value: Bytes },
    Delete,
}

impl Change {
    fn wanted(&self) -> fatbtree_remote_memory::Change<'_> {
        use fatbtree_remote_memory::Change as Wanted;
        match self {
            Self::Put(value) => Wanted::Upsert(value),
            Self::Insert(value) => Wanted::Insert(value),
            Self::Update(value) => Wanted::Update(value),
            Self::CompareAndSwap { expected, value } => Wanted::CompareAndSwap { expected, value },
            Self::Delete => Wanted::Delete,
        }
    }
}

/// What is left of a scan.
#[derive(Debug)]
pub(crate) enum Left<R = KeyRange> {
    /// Keys of a range.
    Keys(R, Order),
    /// All pairs, in the structure's order.
    All,
    /// What an export has left: the structure's cursor.
    Rest(Box<dyn Any + Send>),
}

/// Pairs, and what follows.
pub(crate) type Part = Portion<Bytes, Left>;

/// Pairs of keys of bytes, and what follows.
pub(crate) type BytesPart = Portion<Bytes, Left<BytesRange>, Bytes>;

/// Operations of a process.
pub(crate) struct Store<P: Process>(pub(crate) P::Structure);

impl<P: Process> Store<P> {
    /// Fails if the structure does not have an operation.
    fn check(operation: &'static str) -> Result<(), Error> {
        if P::Structure::LACKS.contains(&operation) { Err(P::lacks(operation)) } else { Ok(()) }
    }

    fn result<T>(answer: Answer<T, <P::Structure as Structure>::Error>) -> Result<T, Error> {
        answer.result.map_err(|error| match P::Structure::is_unknown(&error) {
            true => Error::Unknown { source: error.into() },
            false => Error::Failed { source: error.into() },
        })
    }

    /// Carries out a transaction, whose steps come by a queue. It ends with a step that ends it, or when no other can come.
    pub(crate) async fn transact(
        &self,
        attempt: u32,
        mut steps: mpsc::Receiver<Asked>,
        begun: oneshot::Sender<Result<(), Error>>,
    ) {
        if !P::Structure::TRANSACTS {
            // The caller may have dropped the future.
            let _ = begun.send(Err(P::lacks("begin")));
            return;
        }
        let (mut begun, mut asked) = (Some(begun), None::<oneshot::Sender<_>>);
        let next = async |result: Result<Stepped, <P::Structure as Structure>::Error>| {
            let result = result.map_err(|error| match P::Structure::is_conflict(&error) {
                true => Error::Conflict { source: error.into() },
                false => {
                    let failed: Result<(), Error> =
                        Self::result(Answer { result: Err(error), round_trips: 0 });
                    failed.expect_err("it was given an error")
                }
            });
            // The caller may have dropped the future, and with it the transaction.
            if let Some(begun) = begun.take() {
                let _ = begun.send(result.map(drop));
            } else if let Some(asked) = asked.take() {
                let _ = asked.send(result);
            }
            let (step, answer) = steps.recv().await?;
            asked = Some(answer);
            Some(step)
        };
        self.0.transact(attempt, next).await;
    }

    /// The answer of an operation on keys of bytes, which other structures do not have.
    fn of_bytes<T>(answer: Option<Answer<T, <P::Structure as Structure>::Error>>) -> Result<T, Error> {
        Self::result(answer.ok_or_else(|| P::lacks("bytes"))?)
    }

    pub(crate) async fn get_bytes(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let found = Self::of_bytes(self.0.get_bytes(key).await)?;
        Ok(found.as_ref().map(copy))
    }

    pub(crate) async fn mutate_bytes(&self, key: &[u8], change: &Change) -> Result<bool, Error> {
        Self::check_change(change)?;
        Self::of_bytes(self.0.change_bytes(key, change.wanted()).await)
    }

    /// The next pairs of a scan of keys of bytes, about `most`.
    pub(crate) async fn scan_bytes(&self, left: Left<BytesRange>, most: usize) -> Result<BytesPart, Error> {
        let (range, order) = match left {
            Left::Keys(range, order) => (range, order),
            Left::All if Self::check("scan").is_ok() => (BytesRange::all(), Order::Forward),
            Left::All => return self.export_bytes(Default::default(), most).await,
            Left::Rest(cursor) => {
                let cursor = cursor.downcast().map(|cursor| *cursor).unwrap_or_default();
                return self.export_bytes(cursor, most).await;
            }
        };
        let scanned = self.0.scan_bytes(range.clone(), order, most).await;
        // A structure without such keys says so, whether it has an order or not.
        if scanned.is_some() {
            Self::check(order.operation())?;
        }
        let Portion { pairs, rest } = Portion::of_bytes(Self::of_bytes(scanned)?, most, range, order);
        Ok(Portion { pairs, rest: rest.map(|range| Left::Keys(range, order)) })
    }

    /// The next of all pairs of keys of bytes, which have no order.
    async fn export_bytes(
        &self,
        from: <P::Structure as Structure>::Cursor,
        most: usize,
    ) -> Result<BytesPart, Error> {
        let Portion { pairs, rest } = Self::of_bytes(self.0.export_bytes(from, most).await)?;
        Ok(Portion { pairs, rest: rest.map(|cursor| Left::Rest(Box::new(cursor))) })
    }

    pub(crate) async fn get(&self, key: u64) -> Result<Option<Bytes>, Error> {
        // The value may lie in a buffer of the device, of which there are few: it is copied.
        let copied = |value: Option<_>| value.as_ref().map(copy);
        Self::result(self.0.get(key).await.map(copied))
    }

    /// Fails if the structure does not have a change.
    fn check_change(change: &Change) -> Result<(), Error> {
        match change {
            Change::Put(_) | Change::Update(_) => Ok(()),
            Change::Insert(_) => Self::check("insert"),
            Change::CompareAndSwap { .. } => Self::check("compare_and_swap"),
            Change::Delete => Self::check("delete"),
        }
    }

    /// Carries out a change. Returns whether the key was as the change wants it.
    pub(crate) async fn mutate(&self, key: u64, change: &Change) -> Result<bool, Error> {
        Self::check_change(change)?;
        Self::result(self.0.change(key, change.wanted()).await)
    }

    /// The next pairs of a scan, about `most`.
    pub(crate) async fn scan(&self, left: Left, most: usize) -> Result<Part, Error> {
        let cursor = match left {
            Left::All => None,
            Left::Rest(cursor) => cursor.downcast().ok(),
            Left::Keys(keys, order) => {
                Self::check(order.operation())?;
                let pairs = Self::result(self.0.scan(keys, order, most).await)?;
                let Portion { pairs, rest } = Portion::of(pairs, most, keys, order);
                return Ok(Part { pairs, rest: rest.map(|rest| Left::Keys(rest, order)) });
            }
        };
        let exported = self.0.export(cursor.map_or_else(Default::default, |cursor| *cursor), most).await;
        let Portion { pairs, rest } = Self::result(exported)?;
        Ok(Part { pairs, rest: rest.map(|cursor| Left::Rest(Box::new(cursor))) })
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        self.0.sleep_until(self.0.now() + time).await;
    }
}

fn copy(value: &impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(value.as_ref())
}

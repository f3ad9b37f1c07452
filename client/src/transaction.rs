//! Transactions: reads and changes of several keys that take effect at one moment, or not at all.
//!
//! ```no_run
#![doc = include_str!("../examples/bank/program.rs")]
//! ```

use std::time::{Duration, Instant};

use bytes::Bytes;
use fatbtree_remote_memory::{Backoff, Pauses, Step, Stepped, Wanted};
use tokio::sync::{mpsc, oneshot};

use crate::service::Ask;
use crate::{Client, Error};

/// Place of a value that transactions see: a key, which is one of table 0, or `(table, key)`. [`Client::get`] and [`Client::put`] see table 0.
pub use fatbtree_remote_memory::Item;

/// Number of an attempt that is not one of many: a lock in its way is asked after at once.
const ALONE: u32 = u32::MAX;

/// A step of a transaction, with the sender of its result.
pub(crate) type Asked = (Step, oneshot::Sender<Result<Stepped, Error>>);

/// A transaction of a client: [`Client::begin`] and [`Client::transact`] give one.
///
/// Transactions are strictly serializable: they take effect one after the other, each between its begin and the answer of its commit. What a
/// transaction has read is certain when it is committed. After an error it can only be aborted.
///
/// Dropping one aborts it. One that is open for longer than the client's time limit is aborted, too: it holds locks. Up to 256 requests of a
/// client are under way at once, and an open transaction is one of them: with as many open, its other requests wait.
#[derive(Debug)]
pub struct Transaction {
    /// Its time limit is the transaction's.
    client: Client,
    /// `None` while this is dropped.
    steps: Option<mpsc::Sender<Asked>>,
    since: Instant,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // The thread may sleep, and must see that no step follows.
        self.steps = None;
        self.client.wake();
    }
}

impl Transaction {
    pub(crate) async fn begin(client: &Client, limit: Duration, attempt: u32) -> Result<Self, Error> {
        let (steps, asked) = mpsc::channel(1);
        let tx = Self { client: client.with_time_limit(limit), steps: Some(steps), since: Instant::now() };
        let begun = tx.client.ask(false, |begun| Ask::Transact { attempt, steps: asked, begun }).await;
        match begun {
            Ok(()) => Ok(tx),
            Err(Error::Closed { .. }) => Err(tx.unanswered(false)),
            Err(error) => Err(error),
        }
    }

    /// Why the client's thread gives no answer: it has ended, or the transaction's time.
    fn unanswered(&self, may_have_happened: bool) -> Error {
        let limit = self.client.limit();
        match self.since.elapsed() < limit {
            true => Error::Closed { may_have_happened },
            false => Error::TimedOut { limit, may_have_happened },
        }
    }

    /// Sends a step to the client's thread, and waits for its result.
    async fn step(&mut self, step: Step) -> Result<Stepped, Error> {
        self.client.check_process()?;
        let may_have_happened = matches!(step, Step::Commit);
        let (answer, answered) = oneshot::channel();
        let is_sent = match &self.steps {
            Some(steps) => steps.send((step, answer)).await.is_ok(),
            None => false,
        };
        self.client.wake();
        match answered.await {
            Ok(result) => result,
            Err(_unanswered) => Err(self.unanswered(may_have_happened && is_sent)),
        }
    }

    async fn values(
        &mut self,
        items: impl IntoIterator<Item = impl Into<Item>>,
        for_update: bool,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        let wanted = items.into_iter().map(|item| Wanted { item: item.into(), for_update });
        match self.step(Step::Get(wanted.collect())).await? {
            Stepped::Values(values) => Ok(values),
            Stepped::Done | Stepped::Applied(_) => Ok(Vec::new()),
        }
    }

    async fn applied(&mut self, step: Step) -> Result<bool, Error> {
        Ok(self.step(step).await? == Stepped::Applied(true))
    }

    /// The value of an item, with the transaction's own changes; `None` if it is not there.
    ///
    /// # Errors
    /// [`Error::Conflict`] when another transaction changes it; and when there is no answer.
    pub async fn get(&mut self, item: impl Into<Item>) -> Result<Option<Bytes>, Error> {
        Ok(self.values([item], false).await?.pop().flatten())
    }

    /// The values of items, in their order, read at once: as many round trips as of one.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn get_many(
        &mut self,
        items: impl IntoIterator<Item = impl Into<Item>>,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        self.values(items, false).await
    }

    /// The same of an item that is to be changed: it is locked. That saves a round trip, and a conflict later.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn get_for_update(&mut self, item: impl Into<Item>) -> Result<Option<Bytes>, Error> {
        Ok(self.values([item], true).await?.pop().flatten())
    }

    /// The same of several items at once.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn get_many_for_update(
        &mut self,
        items: impl IntoIterator<Item = impl Into<Item>>,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        self.values(items, true).await
    }

    /// Puts a value, whether one is there or not. It is seen by others after the commit.
    ///
    /// # Errors
    /// As for [`get`](Self::get); and when the value is too long.
    pub async fn put(&mut self, item: impl Into<Item>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        self.step(Step::Put(item.into(), Bytes::copy_from_slice(value.as_ref()))).await.map(drop)
    }

    /// Puts a value if none is there, and returns whether it was put.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn insert(&mut self, item: impl Into<Item>, value: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.applied(Step::Insert(item.into(), Bytes::copy_from_slice(value.as_ref()))).await
    }

    /// Takes a value away, and returns whether it was there.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn delete(&mut self, item: impl Into<Item>) -> Result<bool, Error> {
        self.applied(Step::Delete(item.into())).await
    }

    /// Commits: all changes take effect at one moment, with all items as they were read.
    ///
    /// # Errors
    /// [`Error::Conflict`]: nothing has changed. Otherwise the error says [whether it may have been
    /// committed](Error::may_have_happened).
    pub async fn commit(mut self) -> Result<(), Error> {
        self.step(Step::Commit).await.map(drop)
    }

    /// Ends the transaction without a change. What it has read may be of several moments.
    ///
    /// # Errors
    /// When the client is closed, or the time limit is over: nothing has changed then, too.
    pub async fn abort(mut self) -> Result<(), Error> {
        self.step(Step::Abort).await.map(drop)
    }
}

impl Client {
    /// Begins a transaction. Of [tables of transactions](crate::Structure::Dtx) only.
    ///
    /// # Errors
    /// [`Error::NotInStructure`]; and when there is no answer.
    pub async fn begin(&self) -> Result<Transaction, Error> {
        Transaction::begin(self, self.limit(), ALONE).await
    }

    /// Runs a transaction and commits it, again and again while it ends with a [conflict](Error::Conflict) and the time limit lasts. `work` may
    /// be called several times: what it does besides must bear that. When it fails, the transaction is aborted, and the error returned.
    ///
    /// ```no_run
    /// # async fn run(db: &fatbtree::Client) -> Result<(), fatbtree::Error> {
    /// /// Moves a cent from account 1 to account 2.
    /// let cents = |value: Option<fatbtree::Bytes>| value.map_or(0, |value| value[0]);
    /// db.transact(async |tx| {
    ///     let (from, to) = (cents(tx.get_for_update(1).await?), cents(tx.get_for_update(2).await?));
    ///     if from > 0 {
    ///         tx.put(1, [from - 1]).await?;
    ///         tx.put(2, [to + 1]).await?;
    ///     }
    ///     Ok(())
    /// })
    /// .await
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `work`, and of [`Transaction::commit`].
    pub async fn transact<T>(
        &self,
        mut work: impl AsyncFnMut(&mut Transaction) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut attempts = Attempts::new(self);
        loop {
            let mut tx = attempts.begin().await?;
            let result = work(&mut tx).await;
            if let Some(result) = attempts.end(tx, result).await {
                return result;
            }
        }
    }
}

/// Attempts at one transaction, for callers that run its steps themselves: the loop of [`Client::transact`].
#[derive(Debug)]
pub struct Attempts {
    client: Client,
    since: Instant,
    /// Number of attempts that have begun.
    begun: u32,
    pauses: Pauses,
}

impl Attempts {
    /// Attempts until the client's time limit.
    #[must_use]
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), since: Instant::now(), begun: 0, pauses: Pauses::new(rand::random()) }
    }

    /// What is left of the time limit.
    fn left(&self) -> Duration {
        self.client.limit().saturating_sub(self.since.elapsed())
    }

    /// Begins the next one.
    ///
    /// # Errors
    /// As of [`Client::begin`].
    pub async fn begin(&mut self) -> Result<Transaction, Error> {
        let attempt = self.begun;
        self.begun += 1;
        Transaction::begin(&self.client, self.left(), attempt).await
    }

    /// Ends one: commits it, or aborts it after an error. `None` after a conflict that leaves time for another one, which may begin when this
    /// returns.
    pub(crate) async fn end<T>(
        &mut self,
        tx: Transaction,
        result: Result<T, Error>,
    ) -> Option<Result<T, Error>> {
        let result = match result {
            Ok(value) => tx.commit().await.map(|()| value),
            Err(error) => {
                // It holds no lock when this returns, unless its connection broke.
                let _aborted = tx.abort().await;
                Err(error)
            }
        };
        if !matches!(result, Err(Error::Conflict { .. })) {
            return Some(result);
        }
        match self.pause().await {
            Ok(true) => None,
            Ok(false) => Some(result),
            Err(error) => Some(Err(error)),
        }
    }

    /// Waits after a conflict, before the next one begins. Says whether there is time for one.
    ///
    /// # Errors
    /// When the client is closed.
    pub async fn pause(&mut self) -> Result<bool, Error> {
        let pause = self.pauses.draw(&Backoff::TRANSACTIONS, self.begun.saturating_sub(1), 0);
        if Duration::from(pause) >= self.left() {
            tracing::debug!(attempts = self.begun, "a transaction is given up");
            return Ok(false);
        }
        self.client.ask(false, |answer| Ask::Pause(pause, answer)).await?;
        Ok(true)
    }
}

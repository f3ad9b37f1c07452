//! The client's handle.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fatbtree_remote_memory::{KeyRange, Order};

use crate::bytes_client::BytesClient;
use crate::engine::Change;
use crate::scan::Scan;
use crate::service::{Answer, Ask, Shared};
use crate::{Error, Stats};

/// A connection to a cluster. Clones share it, its thread and its place in the network: give each task or thread a clone.
///
/// Futures work under any executor, and do nothing until they are polled. **Dropping a future is safe at any `await`.** An operation that
/// still waited for room in the queue is not carried out then; one that was queued is carried out to its end, without telling its result.
///
/// Dropping the last clone ends the connection in the background; [`close`](Self::close) waits for the end.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    limit: Duration,
}

impl Client {
    pub(crate) fn new(shared: Arc<Shared>, limit: Duration) -> Self {
        Self { shared, limit }
    }

    /// A clone whose operations have another time limit.
    #[must_use]
    pub fn with_time_limit(&self, limit: Duration) -> Self {
        Self { shared: Arc::clone(&self.shared), limit }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Fails in a fork of the process that has the client's thread.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        self.shared.check_process()
    }

    /// Wakes the client's thread.
    pub(crate) fn wake(&self) {
        self.shared.wake();
    }

    pub(crate) async fn ask<T>(
        &self,
        is_change: bool,
        ask: impl FnOnce(Answer<T>) -> Ask,
    ) -> Result<T, Error> {
        self.shared.ask(self.limit, is_change, ask).await
    }

    async fn change(&self, key: u64, change: Change) -> Result<bool, Error> {
        self.ask(true, |answer| Ask::Change(key, change, answer)).await
    }

    /// The value of a key; `None` if the key is not there.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, key: u64) -> Result<Option<Bytes>, Error> {
        self.ask(false, |answer| Ask::Get(key, answer)).await
    }

    /// The values of keys, in their order. Cheaper than a [`get`](Self::get) each.
    ///
    /// # Errors
    /// When one of them has no answer.
    pub async fn get_many(&self, keys: impl IntoIterator<Item = u64>) -> Result<Vec<Option<Bytes>>, Error> {
        let keys = keys.into_iter().collect();
        self.ask(false, |answer| Ask::GetMany(keys, answer)).await
    }

    /// Puts a value, whether the key exists or not.
    ///
    /// # Errors
    /// When the value was not put, or [may have been](Error::may_have_happened).
    pub async fn put(&self, key: u64, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let value = Bytes::copy_from_slice(value.as_ref());
        self.change(key, Change::Put(value)).await.map(drop)
    }

    /// Puts many values, in no certain order, and returns the result of each. Cheaper than a [`put`](Self::put) each.
    ///
    /// # Errors
    /// When the client is closed; the result of each pair is in the vector.
    pub async fn put_many<V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (u64, V)>,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let pairs = pairs.into_iter().map(|(key, value)| (key, Bytes::copy_from_slice(value.as_ref())));
        let pairs = pairs.collect();
        self.ask(true, |answer| Ask::PutMany(pairs, answer)).await
    }

    /// Puts a value if the key does not exist, and returns whether it was put. Not over [`Protocol::Query`](crate::Protocol::Query).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn insert(&self, key: u64, value: impl AsRef<[u8]>) -> Result<bool, Error> {
        let value = Bytes::copy_from_slice(value.as_ref());
        self.change(key, Change::Insert(value)).await
    }

    /// Replaces the value if the key exists, and returns whether it did.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn update(&self, key: u64, value: impl AsRef<[u8]>) -> Result<bool, Error> {
        let value = Bytes::copy_from_slice(value.as_ref());
        self.change(key, Change::Update(value)).await
    }

    /// Replaces the value if it is `expected`, and returns whether it was. Not over [`Protocol::Query`](crate::Protocol::Query).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn compare_and_swap(
        &self,
        key: u64,
        expected: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        let [expected, value] = [expected.as_ref(), value.as_ref()].map(Bytes::copy_from_slice);
        self.change(key, Change::CompareAndSwap { expected, value }).await
    }

    /// Deletes a key, and returns whether it existed.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn delete(&self, key: u64) -> Result<bool, Error> {
        self.change(key, Change::Delete).await
    }

    /// The pairs of a range of keys in ascending order, as a stream. Not of a hash table, which has no order of keys: see
    /// [`pairs`](Self::pairs).
    pub fn scan(&self, range: impl RangeBounds<u64>) -> Scan {
        Scan::of(self.clone(), KeyRange::of(range), Order::Forward)
    }

    /// The pairs of a range of keys in descending order, as a stream: the last ones first. Not of a hash table, and not over
    /// [`Protocol::Query`](crate::Protocol::Query).
    pub fn scan_backward(&self, range: impl RangeBounds<u64>) -> Scan {
        Scan::of(self.clone(), KeyRange::of(range), Order::Backward)
    }

    /// All pairs, as a stream: in ascending order of keys, or in no order where the structure has none, as a hash table.
    pub fn pairs(&self) -> Scan {
        Scan::all(self.clone())
    }

    /// The same connection to trees or a hash table whose keys are bytes.
    #[must_use]
    pub fn bytes(&self) -> BytesClient {
        BytesClient(self.clone())
    }

    /// A snapshot of the counters of all clones.
    pub fn stats(&self) -> Stats {
        self.shared.counters.snapshot()
    }

    /// Carries out the operations begun before, closes the sessions, and waits for the end. Other clones then fail with [`Error::Closed`].
    pub async fn close(self) {
        self.shared.close().await;
    }
}

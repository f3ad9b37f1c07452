//! The client that a database embeds.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::ops::RangeBounds;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use fatbtree_blink::{
    CacheStats, Change, EntryCache, EntryCacheStats, Event, IndexCache, KeyRange, Lookup, MutationResult,
    OperationError, Order, Pool, PoolConfig, Scan, ScanOptions, Start, SuperRoot, Value, Verified,
    VerifyError,
};
use fatbtree_remote_memory::{
    Answer, BytesPairs, BytesRange, LatencyBuckets, OperationLatencies, Pairs, Portion, Report, Structure,
    export_in_order,
};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::{Duration, Instant};
use futures_buffered::FuturesUnorderedBounded;
use futures_core::Stream;

use crate::sample::{KeySample, Sampling};

/// A database client: reads and writes the records of a memory pool, many at a time.
///
/// It belongs to one thread and is cheap to clone: give each task a clone. Lookups are futures for any executor.
///
/// The thread's driver calls [`turn`](Self::turn) when frames or completions may have come. It answers
/// [`poll_event`](Self::poll_event) by connecting what broke; see [`Pool`] for the whole contract.
///
/// A value lies in a registered buffer of the device, which is freed when the value is dropped. There are as many buffers as the
/// device was made with: copy what you keep. A lookup fails, and says so, when values hold all buffers.
pub struct Client<V> {
    pool: Rc<Pool<V>>,
    /// Samples of all clones together.
    sampling: Rc<RefCell<Sampling>>,
    /// Latencies of all clones together.
    latencies: Rc<RefCell<OperationLatencies>>,
    /// Start of this clone's operations.
    start: Start,
}

impl<V> Clone for Client<V> {
    fn clone(&self) -> Self {
        let (pool, sampling, latencies) = (&self.pool, &self.sampling, &self.latencies);
        let (pool, sampling, latencies) = (Rc::clone(pool), Rc::clone(sampling), Rc::clone(latencies));
        Self { pool, sampling, latencies, start: self.start }
    }
}

impl<V> std::fmt::Debug for Client<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("pool", &self.pool).finish()
    }
}

impl<V: Verbs> Client<V> {
    /// Creates a client over `verbs` without connections. `seed` randomizes the pauses before a read is repeated.
    ///
    /// # Errors
    /// When the configuration cannot work.
    pub fn new(
        verbs: V,
        config: PoolConfig,
        roots: SuperRoot,
        seed: u64,
    ) -> Result<Self, fatbtree_blink::PoolError> {
        let pool = Rc::new(Pool::new(verbs, config, roots, seed)?);
        let start = Start::CachedOrIndexRead;
        Ok(Self { pool, sampling: Rc::default(), latencies: Rc::default(), start })
    }

    /// The same client with another start of its operations. Default: [`Start::CachedOrIndexRead`].
    #[must_use]
    pub fn starting(&self, start: Start) -> Self {
        Self { start, ..self.clone() }
    }

    /// Sets or removes the sample of the keys that operations ask for. Sampling costs a random number for each key, and the sample's memory.
    pub fn set_sample(&self, sample: Option<KeySample>) {
        self.sampling.borrow_mut().set(sample);
    }

    /// Observations for planners of switch caches since the last report: the [sample](Self::set_sample) of keys, index reads, and how many
    /// had a stale hint because the tree has changed since the switches were loaded.
    pub fn report(&self) -> Report {
        self.sampling.borrow_mut().report(&self.pool.stats())
    }

    /// Gives the client a cache of inner nodes, or takes it away. Clients of other threads can share it: make one for each process,
    /// with a limit in bytes.
    pub fn set_cache(&self, cache: Option<Arc<IndexCache>>) {
        self.pool.set_cache(cache);
    }

    /// Counters of this client's use of the cache, and the size of its content, which all clients share.
    pub fn cache_stats(&self) -> CacheStats {
        self.pool.cache_stats()
    }

    /// Gives the client a cache of places of single keys, or takes it away. A lookup of such a key reads its entry or record in one round
    /// trip, and verifies it. Clients of other threads can share it: make one for each process, with a limit in bytes.
    pub fn set_entry_cache(&self, entries: Option<Arc<EntryCache>>) {
        self.pool.set_entry_cache(entries);
    }

    /// Counters of this client's use of the entry cache, and the size of its content, which all clients share.
    pub fn entry_cache_stats(&self) -> EntryCacheStats {
        self.pool.entry_cache_stats()
    }

    /// Returns the value of `key`; `None` if there is no such key. Reads first where the client's [entry
    /// cache](Self::set_entry_cache) says, if it knows the key. Begins at the leaf if the client's [cache](Self::set_cache) knows it,
    /// otherwise with an index read if the connection is registered.
    ///
    /// # Errors
    /// When there is no answer; the error says why, and what to do.
    pub async fn get(&self, key: u64) -> Result<Option<Value>, OperationError> {
        self.lookup(key, self.start).await.result
    }

    /// Looks up a key as [`get`](Self::get) does, from another start, and returns the cost too.
    pub async fn lookup(&self, key: u64, start: Start) -> Lookup {
        self.sampling.borrow_mut().see(key);
        let lookup = self.pool.lookup(key, start).await;
        self.took(|latencies| &mut latencies.reads, lookup.latency);
        lookup
    }

    /// Latencies of the client's operations so far.
    pub fn latencies(&self) -> OperationLatencies {
        *self.latencies.borrow()
    }

    fn took(&self, which: impl FnOnce(&mut OperationLatencies) -> &mut LatencyBuckets, latency: Duration) {
        which(&mut self.latencies.borrow_mut()).record(latency.as_nanos());
    }

    /// Looks up many keys, up to `at_once` of them at a time. Returns each lookup as it ends, not in the order of the keys. Nothing is
    /// allocated per key.
    ///
    /// # Panics
    /// When `at_once` is 0.
    pub fn get_many<I>(&self, keys: I, at_once: usize) -> impl Stream<Item = Lookup> + use<'_, V, I>
    where
        I: IntoIterator<Item = u64>,
    {
        self.lookup_many(keys, self.start, at_once)
    }

    /// Looks up keys as [`get_many`](Self::get_many) does, from another start.
    ///
    /// # Panics
    /// When `at_once` is 0.
    pub fn lookup_many<I>(
        &self,
        keys: I,
        start: Start,
        at_once: usize,
    ) -> impl Stream<Item = Lookup> + use<'_, V, I>
    where
        I: IntoIterator<Item = u64>,
    {
        Lookups::new(keys.into_iter(), move |key| self.lookup(key, start), at_once)
    }

    /// The values of `keys`, in their order, copied.
    ///
    /// # Errors
    /// When one of them has no answer.
    pub async fn get_batch(&self, keys: &[u64]) -> Result<Vec<Option<Vec<u8>>>, OperationError> {
        const AT_ONCE: usize = 16;
        let mut values = vec![None; keys.len()];
        let lookup = |at: usize| async move { (at, self.get(keys[at]).await) };
        let mut batch = Lookups::new(0..keys.len(), lookup, AT_ONCE);
        while let Some((at, value)) = batch.next().await {
            values[at] = value?.map(|value| value.to_vec());
        }
        Ok(values)
    }

    /// Puts a value, whether the key exists or not. Writing needs locks: see [`Pool::set_writer`].
    ///
    /// # Errors
    /// When it was not put, or [may have been](OperationError::Unknown).
    pub async fn upsert(&self, key: u64, value: &[u8]) -> Result<(), OperationError> {
        self.mutate(key, Change::Upsert(value)).await.result.map(drop)
    }

    /// Puts a value if the key does not exist. Returns whether it was put.
    ///
    /// # Errors
    /// As [`upsert`](Self::upsert).
    pub async fn insert(&self, key: u64, value: &[u8]) -> Result<bool, OperationError> {
        self.mutate(key, Change::Insert(value)).await.result
    }

    /// Replaces the value if the key exists. Returns whether it did.
    ///
    /// # Errors
    /// As [`upsert`](Self::upsert).
    pub async fn update(&self, key: u64, value: &[u8]) -> Result<bool, OperationError> {
        self.mutate(key, Change::Update(value)).await.result
    }

    /// Replaces the value if the key exists and has the value `expected`. Returns whether it was replaced.
    ///
    /// # Errors
    /// As [`upsert`](Self::upsert).
    pub async fn compare_and_set(
        &self,
        key: u64,
        expected: &[u8],
        value: &[u8],
    ) -> Result<bool, OperationError> {
        self.mutate(key, Change::CompareAndSwap { expected, value }).await.result
    }

    /// Deletes a key. Returns whether it existed.
    ///
    /// # Errors
    /// As [`upsert`](Self::upsert).
    pub async fn delete(&self, key: u64) -> Result<bool, OperationError> {
        self.mutate(key, Change::Delete).await.result
    }

    /// The pairs of a range in ascending order, as a stream; leaves are read ahead while it is polled. The first one is found by a
    /// cached node, or by an index read where the connection is registered. Other ways: [`scan_with`](Self::scan_with).
    ///
    /// No pair is missed that is there throughout, whatever others change meanwhile; but it is not a snapshot of one moment.
    pub fn scan(&self, range: impl RangeBounds<u64>) -> Scan<'_, V> {
        self.scan_from(KeyRange::of(range), Order::Forward, usize::MAX)
    }

    /// Scans as [`scan`](Self::scan) does, in descending order.
    pub fn scan_backward(&self, range: impl RangeBounds<u64>) -> Scan<'_, V> {
        self.scan_from(KeyRange::of(range), Order::Backward, usize::MAX)
    }

    fn scan_from(&self, range: KeyRange, order: Order, wanted: usize) -> Scan<'_, V> {
        self.scan_with(range, ScanOptions { order, start: self.start, wanted, ..ScanOptions::default() })
    }

    /// Scans as [`scan`](Self::scan) does, with options.
    pub fn scan_with(&self, range: KeyRange, options: ScanOptions) -> Scan<'_, V> {
        let first = match options.order {
            Order::Forward => range.low,
            Order::Backward => range.high.map_or(u64::MAX, |high| high.saturating_sub(1)),
        };
        self.sampling.borrow_mut().see(first);
        self.pool.scan(range, options)
    }

    /// Number of keys. Reads all leaves.
    ///
    /// # Errors
    /// When one of them cannot be read.
    #[expect(clippy::len_without_is_empty, reason = "that would be a scan which stops at the first pair")]
    pub async fn len(&self) -> Result<u64, OperationError> {
        self.pool.len(KeyRange::ALL).await
    }

    /// Walks over all trees, to which no client may write meanwhile, and checks every invariant; see [`Pool::verify`].
    ///
    /// # Errors
    /// The first damage.
    pub async fn verify(&self) -> Result<Verified, VerifyError> {
        self.pool.verify().await
    }

    /// Carries out any change. Returns the cost too.
    pub async fn mutate(&self, key: u64, change: Change<'_>) -> MutationResult {
        self.sampling.borrow_mut().see(key);
        let changed = self.pool.mutate(key, change, self.start).await;
        self.took(|latencies| &mut latencies.writes, changed.latency);
        changed
    }

    /// Takes what has come by `now`, and wakes the operations that wait for it. Returns whether there was anything.
    pub fn turn(&self, now: Instant) -> bool {
        self.pool.turn(now)
    }

    /// Time at which [`turn`](Self::turn) is due for a lookup that pauses.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.pool.poll_timeout()
    }

    /// The next connection that broke.
    pub fn poll_event(&self) -> Option<Event> {
        self.pool.poll_event()
    }

    /// Connections, roots, counters; and the device, through its reactor.
    pub fn pool(&self) -> &Pool<V> {
        &self.pool
    }
}

impl<V: Verbs> Client<V> {
    /// The first pairs of a scan. Round trips that were under way at once count once.
    async fn first_of(&self, mut scan: Scan<'_, V>, most: usize) -> Answer<Pairs, OperationError> {
        let since = self.now();
        let mut found = Vec::with_capacity(most);
        let mut result = Ok(());
        while found.len() < most
            && let Some(pair) = scan.next().await
        {
            match pair {
                Ok(pair) => found.push(pair),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let round_trips = u32::try_from(scan.trips().sequential).unwrap_or(u32::MAX);
        self.took(|latencies| &mut latencies.scans, self.now() - since);
        Answer { result: result.map(|()| found), round_trips }
    }
}

impl<V: Verbs> Structure for Client<V> {
    type Value = Value;
    type Error = OperationError;
    /// The next key.
    type Cursor = u64;

    const NAME: &'static str = "tree";

    fn now(&self) -> Instant {
        self.pool.reactor().now()
    }

    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> {
        self.pool.reactor().sleep(at - self.now())
    }

    async fn get(&self, key: u64) -> Answer<Option<Value>, OperationError> {
        let Lookup { result, trips, .. } = self.lookup(key, self.start).await;
        Answer { result, round_trips: trips.round_trips }
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Answer<bool, OperationError> {
        let MutationResult { result, trips, .. } = self.mutate(key, change).await;
        Answer { result, round_trips: trips.round_trips }
    }

    async fn scan(&self, range: KeyRange, order: Order, most: usize) -> Answer<Pairs, OperationError> {
        self.first_of(self.scan_from(range, order, most), most).await
    }

    fn export(
        &self,
        from: u64,
        most: usize,
    ) -> impl Future<Output = Answer<Portion<Bytes, u64>, OperationError>> {
        export_in_order(self, from, most)
    }

    async fn get_bytes(&self, key: &[u8]) -> Option<Answer<Option<Value>, OperationError>> {
        let Lookup { key, result, trips, latency } = self.pool.lookup_bytes(key, self.start).await;
        self.sampling.borrow_mut().see(key);
        self.took(|latencies| &mut latencies.reads, latency);
        Some(Answer { result, round_trips: trips.round_trips })
    }

    async fn change_bytes(&self, key: &[u8], change: Change<'_>) -> Option<Answer<bool, OperationError>> {
        let changed = self.pool.mutate_bytes(key, change, self.start).await;
        self.sampling.borrow_mut().see(changed.key);
        self.took(|latencies| &mut latencies.writes, changed.latency);
        Some(Answer { result: changed.result, round_trips: changed.trips.round_trips })
    }

    async fn scan_bytes(
        &self,
        range: BytesRange,
        order: Order,
        most: usize,
    ) -> Option<Answer<BytesPairs, OperationError>> {
        let since = self.now();
        let options = ScanOptions { order, start: self.start, wanted: most, ..ScanOptions::default() };
        let mut scan = self.pool.scan_bytes(range, options);
        let mut found = Vec::with_capacity(most);
        let result = loop {
            if found.len() == most {
                break Ok(found);
            }
            match scan.next().await {
                Some(Ok(pair)) => found.push(pair),
                Some(Err(error)) => break Err(error),
                None => break Ok(found),
            }
        };
        let round_trips = u32::try_from(scan.trips().sequential).unwrap_or(u32::MAX);
        self.took(|latencies| &mut latencies.scans, self.now() - since);
        Some(Answer { result, round_trips })
    }

    fn is_unknown(error: &OperationError) -> bool {
        matches!(error, OperationError::Unknown { .. })
    }
}

/// Stream of the results of the futures that `start` makes of `keys`, some of them at a time.
pub(crate) struct Lookups<I, S, F> {
    keys: I,
    start: S,
    under_way: FuturesUnorderedBounded<F>,
}

// Only the futures are pinned, and they lie in a place of their own.
impl<I, S, F> Unpin for Lookups<I, S, F> {}

impl<I, S, F> Lookups<I, S, F>
where
    I: Iterator,
    S: FnMut(I::Item) -> F,
    F: Future,
{
    pub(crate) fn new(keys: I, start: S, at_once: usize) -> Self {
        assert!(at_once > 0, "with 0 lookups at a time none is ever made");
        Self { keys, start, under_way: FuturesUnorderedBounded::new(at_once) }
    }

    /// Result of the next future that ends; `None` when all have ended.
    pub(crate) async fn next(&mut self) -> Option<F::Output> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl<I, S, F> Stream for Lookups<I, S, F>
where
    I: Iterator,
    S: FnMut(I::Item) -> F,
    F: Future,
{
    type Item = F::Output;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let this = self.get_mut();
        while this.under_way.len() < this.under_way.capacity()
            && let Some(key) = this.keys.next()
        {
            this.under_way.push((this.start)(key));
        }
        Pin::new(&mut this.under_way).poll_next(context)
    }
}

#[cfg(test)]
mod tests;

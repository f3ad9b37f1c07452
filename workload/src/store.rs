//! Stores that operations run on: a tree by RDMA, or servers that are queried.

use std::future::Future;

use bytes::Bytes;
use fatbtree_blink::{KeyRange, Mutation, MutationResult, Start, Value};
use fatbtree_blink_client::{Answered, Client, NoAnswer, QueryClient};
use fatbtree_remote_memory::Change;
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::Instant;

/// Something that records can be read from and written to, for a [load generator](crate::LoadGenerator).
pub trait Store {
    /// A value that was read.
    type Value: AsRef<[u8]>;

    /// Current time of the store's clock.
    fn now(&self) -> Instant;

    /// Waits until a point in time.
    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()>;

    /// Reads the value of a key.
    fn read(&self, key: u64) -> impl Future<Output = Answered<Option<Self::Value>>>;

    /// Carries out a change. Returns `false` if it was refused.
    fn change(&self, key: u64, change: Change<'_>) -> impl Future<Output = Answered<bool>>;

    /// Reads the first `most` pairs with keys from `from` to `last`.
    fn scan(&self, from: u64, last: u64, most: usize) -> impl Future<Output = Answered<Vec<(u64, Bytes)>>>;
}

/// A client's tree, each operation of which begins in the same way.
#[derive(Clone, Copy, Debug)]
pub struct Direct<'c, V> {
    /// Client that performs the operations.
    pub client: &'c Client<V>,
    /// Start of each operation.
    pub start: Start,
}

impl<V: Verbs> Store for Direct<'_, V> {
    type Value = Value;

    fn now(&self) -> Instant {
        self.client.pool().reactor().now()
    }

    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> {
        self.client.pool().reactor().sleep(at - self.now())
    }

    async fn read(&self, key: u64) -> Answered<Option<Value>> {
        let lookup = self.client.lookup(key, self.start).await;
        let result = lookup.result.map_err(NoAnswer::from);
        Answered { result, round_trips: lookup.trips.round_trips, latency: lookup.latency }
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Answered<bool> {
        let mutation = match change {
            Change::Insert(value) => Mutation::Insert(value),
            Change::Update(value) => Mutation::Update(value),
            Change::Upsert(value) => Mutation::Upsert(value),
            Change::Delete => Mutation::Delete,
        };
        let MutationResult { result, trips, latency, .. } =
            self.client.mutate_from(key, mutation, self.start).await;
        Answered { result: result.map_err(NoAnswer::from), round_trips: trips.round_trips, latency }
    }

    async fn scan(&self, from: u64, last: u64, most: usize) -> Answered<Vec<(u64, Bytes)>> {
        let range = KeyRange { low: from, high: last.checked_add(1) };
        self.client.scan_first(range, most, self.start).await
    }
}

impl Store for QueryClient {
    type Value = Vec<u8>;

    fn now(&self) -> Instant {
        QueryClient::now(self)
    }

    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> {
        QueryClient::sleep_until(self, at)
    }

    async fn read(&self, key: u64) -> Answered<Option<Vec<u8>>> {
        QueryClient::read(self, key).await
    }

    /// The query protocol has no insert: one overwrites a key that is there.
    async fn change(&self, key: u64, change: Change<'_>) -> Answered<bool> {
        match change {
            Change::Insert(value) | Change::Upsert(value) => self.write(key, value, true).await,
            Change::Update(value) => self.write(key, value, false).await,
            Change::Delete => self.delete(key).await,
        }
    }

    async fn scan(&self, from: u64, last: u64, most: usize) -> Answered<Vec<(u64, Bytes)>> {
        QueryClient::scan(self, from, last, most).await
    }
}

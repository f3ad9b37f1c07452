//! What operations are done on: a tree by RDMA, or servers that are asked.

use std::future::Future;

use bytes::Bytes;
use fatbtree_index::{Change, KeyRange, OperationError, ScanOptions, Start, Value, Wish};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::{Duration, Instant};

use crate::client::Client;

/// Something that records can be read from and written to, for a [load generator](crate::LoadGenerator).
pub trait Store {
    /// A value that was read.
    type Value: AsRef<[u8]>;

    /// The time.
    fn now(&self) -> Instant;

    /// Waits until then.
    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()>;

    /// The value of a key.
    fn read(&self, key: u64) -> impl Future<Output = Answered<Option<Self::Value>>>;

    /// Writes a value. `is_new`: the key is not there; otherwise it is. Says whether it was so.
    fn write(&self, key: u64, value: &[u8], is_new: bool) -> impl Future<Output = Answered<bool>>;

    /// The first pairs from a key on to a last one.
    fn scan(&self, from: u64, last: u64, most: usize) -> impl Future<Output = Answered<Vec<(u64, Bytes)>>>;
}

/// What an operation came to, and what it cost.
#[derive(Debug)]
pub struct Answered<T> {
    /// What it came to.
    pub result: Result<T, NoAnswer>,
    /// Round trips, one after another.
    pub round_trips: u32,
    /// From its first step to its end.
    pub latency: Duration,
}

/// Why an operation has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoAnswer {
    /// In a tree.
    #[error(transparent)]
    Tree(#[from] OperationError),
    /// By a server: a read that nobody has answered, or something that it does not do.
    #[error("{0}")]
    Server(&'static str),
    /// A write by a server of which nobody can tell whether it was carried out.
    #[error("no answer came, or the server was started anew: it may have been carried out or not")]
    Unknown,
}

impl NoAnswer {
    /// Whether a write may have been carried out all the same.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown | Self::Tree(OperationError::Unknown { .. }))
    }
}

/// A client's tree, each operation of which begins in the same way.
#[derive(Clone, Copy, Debug)]
pub struct Direct<'c, V> {
    /// Whose.
    pub client: &'c Client<V>,
    /// How.
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

    async fn write(&self, key: u64, value: &[u8], is_new: bool) -> Answered<bool> {
        let wish = if is_new { Wish::Insert(value) } else { Wish::Update(value) };
        let Change { result, trips, latency, .. } = self.client.change_from(key, wish, self.start).await;
        Answered { result: result.map_err(NoAnswer::from), round_trips: trips.round_trips, latency }
    }

    async fn scan(&self, from: u64, last: u64, most: usize) -> Answered<Vec<(u64, Bytes)>> {
        let since = self.now();
        let options = ScanOptions { start: self.start, ..ScanOptions::default() };
        let mut scan = self.client.scan_with(KeyRange { low: from, high: last.checked_add(1) }, options);
        let mut found = Vec::with_capacity(most);
        let mut result = Ok(());
        while found.len() < most
            && let Some(pair) = scan.next().await
        {
            match pair {
                Ok(pair) => found.push(pair),
                Err(error) => {
                    result = Err(error.into());
                    break;
                }
            }
        }
        let round_trips = u32::try_from(scan.trips().sequential).unwrap_or(u32::MAX);
        let latency = self.now() - since;
        self.client.took(|latencies| &mut latencies.scans, latency);
        Answered { result: result.map(|()| found), round_trips, latency }
    }
}

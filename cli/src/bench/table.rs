//! A hash table under the load generator.

use std::rc::Rc;

use anyhow::{Result, bail};
use bytes::Bytes;
use fatbtree_client::{Answered, NoAnswer};
use fatbtree_node::{Adapter, HashProcess};
use fatbtree_race::{Answer, Table, TableError, Value};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::{Change, Store};

use super::keys::Keys;
use super::{Arguments, Protocol};
use crate::structure::refuse_with_hash;

/// Refuses what only trees have.
pub(super) fn check(arguments: &Arguments) -> Result<()> {
    let Arguments { protocol, scan_parts, .. } = arguments;
    refuse_with_hash(*protocol == Protocol::Query, "--protocol query", "its clients use RDMA alone")?;
    refuse_with_hash(*scan_parts > 1, "--scan-parts", "a hash table has no ranges")
}

/// A table as a store of records.
pub(super) struct Records(Rc<Table<Adapter>>);

impl Records {
    /// The table of a process.
    pub(super) fn of(process: &mut HashProcess) -> Result<Self> {
        let client = process.client().clone();
        Ok(Self(process.run(async move { client.table().await })??))
    }

    fn answered<T>(&self, began: Instant, answer: Answer<T>) -> Answered<T> {
        let result = answer.result.map_err(|error| {
            tracing::info!(%error, "no answer");
            match error {
                TableError::Unknown(_) => NoAnswer::Unknown,
                _ => NoAnswer::Server("the table did not answer; the log says why"),
            }
        });
        Answered { result, round_trips: answer.round_trips, latency: self.now() - began }
    }
}

impl Store for Records {
    type Value = Value;

    fn now(&self) -> Instant {
        self.0.memory().reactor().now()
    }

    async fn sleep_until(&self, at: Instant) {
        self.0.memory().reactor().sleep(at - self.now()).await;
    }

    async fn read(&self, key: u64) -> Answered<Option<Value>> {
        let began = self.now();
        self.answered(began, self.0.search(key).await)
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Answered<bool> {
        let began = self.now();
        let answer = match change {
            Change::Insert(value) => self.0.insert(key, value).await,
            Change::Update(value) => self.0.update(key, value).await,
            Change::Put(value) => self.0.upsert(key, value).await,
            Change::Delete => self.0.delete(key).await,
        };
        self.answered(began, answer)
    }

    async fn scan(&self, _: u64, _: u64, _: usize) -> Answered<Vec<(u64, Bytes)>> {
        let result = Err(NoAnswer::Server("a hash table has no ranges"));
        Answered { result, round_trips: 0, latency: Duration::ZERO }
    }
}

/// Number of keys that the table was loaded with. Of a file, all of them; of YCSB, as many as are there from the first one on: they
/// are looked for in halves, because a load inserts all of them, and workloads insert others far behind.
pub(super) async fn records(store: &Records, keys: &Keys) -> Result<u64> {
    if let Keys::Of { file, .. } = keys {
        return Ok(file.keys().len() as u64);
    }
    let map = keys.map();
    let is_there = async |record: u64| {
        let Some(key) = map.key(record) else { return Ok(false) };
        match store.0.search(key).await.result {
            Ok(value) => Ok(value.is_some()),
            Err(error) => bail!(error),
        }
    };
    let (mut least, mut above) = (0, 1_u64);
    while is_there(above - 1).await? {
        least = above;
        above = above.saturating_mul(2);
    }
    while above - least > 1 {
        let middle = least + (above - least) / 2;
        match is_there(middle - 1).await? {
            true => least = middle,
            false => above = middle,
        }
    }
    Ok(least)
}

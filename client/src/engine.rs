//! The client process of either protocol and structure, and the operations that they have.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use fatbtree_blink::{KeyRange, Mutation, Start};
use fatbtree_blink_client::{Client, QueryClient};
use fatbtree_port::Waker;
use fatbtree_processes::{
    Adapter, ClientProcess, DolphinClient, DolphinProcess, HashClient, HashProcess, HashTable, NodeError,
    QueryClientProcess, Spread, SpreadClient,
};
use fatbtree_remote_memory::{KeyValue, Portion};

use crate::Error;

/// A client process. It runs one future: the service of all requests.
pub(crate) enum Engine {
    /// With a flag: whether few operations are under way.
    Rdma(ClientProcess, Rc<Cell<bool>>),
    Hash(HashProcess),
    Dolphin(DolphinProcess),
    Query(QueryClientProcess),
}

impl Engine {
    pub(crate) fn waker(&self) -> Waker {
        match self {
            Self::Rdma(process, _) => process.waker(),
            Self::Hash(process) => process.waker(),
            Self::Dolphin(process) => process.waker(),
            Self::Query(process) => process.waker(),
        }
    }

    pub(crate) fn store(&self) -> Store {
        match self {
            Self::Rdma(process, _) => Store::Rdma(process.client().clone()),
            Self::Hash(process) => Store::Hash(process.client().clone()),
            Self::Dolphin(process) => Store::Dolphin(process.client().clone()),
            Self::Query(process) => Store::Query(process.client().clone()),
        }
    }

    /// Flag that the service sets while few operations are under way.
    pub(crate) fn few(&self) -> Rc<Cell<bool>> {
        match self {
            Self::Rdma(_, few) => Rc::clone(few),
            Self::Hash(_) | Self::Dolphin(_) | Self::Query(_) => Rc::default(),
        }
    }

    pub(crate) fn run<F: Future>(&mut self, future: F) -> Result<F::Output, NodeError> {
        match self {
            Self::Rdma(process, _) => process.run(future),
            Self::Hash(process) => process.run(future),
            Self::Dolphin(process) => process.run(future),
            Self::Query(process) => process.run(future),
        }
    }

    pub(crate) fn close(self) {
        match self {
            Self::Rdma(process, _) => process.close(),
            Self::Hash(process) => process.close(),
            Self::Dolphin(process) => process.close(),
            Self::Query(process) => drop(process),
        }
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

/// What is left of a scan.
#[derive(Debug)]
pub(crate) enum Left {
    /// Keys in ascending order.
    Keys(RangeInclusive<u64>),
    /// All pairs, in the structure's order.
    All,
    /// What an export of a hash table has left.
    Hash(Cursor),
}

/// Where an export of a hash table goes on.
type Cursor = <HashTable as KeyValue>::Cursor;

/// Pairs, and what follows.
pub(crate) type Part = Portion<Bytes, Left>;

/// Operations by either protocol, on either structure.
#[derive(Clone)]
pub(crate) enum Store {
    Rdma(Client<Adapter>),
    Hash(HashClient),
    Dolphin(DolphinClient),
    Query(QueryClient),
}

impl Store {
    pub(crate) async fn get(&self, key: u64) -> Result<Option<Bytes>, Error> {
        match self {
            // The value lies in a buffer of the device, of which there are few: it is copied.
            Self::Rdma(client) => Ok(client.get(key).await?.map(|value| Bytes::copy_from_slice(&value))),
            Self::Hash(client) => get_spread(client, key).await,
            Self::Dolphin(client) => get_spread(client, key).await,
            Self::Query(client) => Ok(client.read(key).await.result?.map(Bytes::from)),
        }
    }

    /// Carries out a change. Returns whether the key was as the change wants it.
    pub(crate) async fn mutate(&self, key: u64, change: &Change) -> Result<bool, Error> {
        match self {
            Self::Rdma(client) => {
                let mutation = match change {
                    Change::Put(value) => Mutation::Upsert(value),
                    Change::Insert(value) => Mutation::Insert(value),
                    Change::Update(value) => Mutation::Update(value),
                    Change::CompareAndSwap { expected, value } => Mutation::CompareAndSet { expected, value },
                    Change::Delete => Mutation::Delete,
                };
                Ok(client.mutate(key, mutation).await.result?)
            }
            Self::Hash(client) => mutate_spread(client, key, change).await,
            Self::Dolphin(client) => mutate_spread(client, key, change).await,
            Self::Query(client) => Ok(match change {
                Change::Put(value) => client.write(key, value, true).await.result?,
                Change::Update(value) => client.write(key, value, false).await.result?,
                Change::Delete => client.delete(key).await.result?,
                Change::Insert(_) => return Err(Error::Unsupported { operation: "insert" }),
                Change::CompareAndSwap { .. } => {
                    return Err(Error::Unsupported { operation: "compare_and_swap" });
                }
            }),
        }
    }

    /// The next pairs of a scan, about `most`.
    pub(crate) async fn scan(&self, left: Left, most: usize) -> Result<Part, Error> {
        let keys = match (self, left) {
            (Self::Hash(client), Left::All) => return export(client, Cursor::default(), most).await,
            (Self::Hash(client), Left::Hash(cursor)) => return export(client, cursor, most).await,
            (_, Left::Keys(keys)) => keys,
            (_, Left::All | Left::Hash(_)) => 0..=u64::MAX,
        };
        let last = *keys.end();
        let Portion { pairs, rest } = Portion::in_order(self.scan_keys(keys, most).await?, most);
        let rest = rest.map(|next| next..=last).filter(|keys| !keys.is_empty()).map(Left::Keys);
        Ok(Part { pairs, rest })
    }

    /// The first `most` pairs of a range.
    async fn scan_keys(&self, keys: RangeInclusive<u64>, most: usize) -> Result<Vec<(u64, Bytes)>, Error> {
        let answered = match self {
            Self::Rdma(client) => client.scan_first(KeyRange::of(keys), most, Start::CachedOrIndexRead).await,
            Self::Hash(client) => return scan_spread(client, keys, most).await,
            Self::Dolphin(client) => return scan_spread(client, keys, most).await,
            Self::Query(client) => client.scan(*keys.start(), *keys.end(), most).await,
        };
        Ok(answered.result?)
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let time = fatbtree_verbs::time::Duration::from_nanos(nanos);
        match self {
            Self::Rdma(client) => client.pool().reactor().sleep(time).await,
            Self::Hash(client) => client.memory().reactor().sleep(time).await,
            Self::Dolphin(client) => client.memory().reactor().sleep(time).await,
            Self::Query(client) => client.sleep_until(client.now() + time).await,
        }
    }
}

/// The value of a key in a structure over all memory servers.
async fn get_spread<S: Spread>(client: &SpreadClient<S>, key: u64) -> Result<Option<Bytes>, Error> {
    let structure = client.structure().await.map_err(Error::of_spread::<S>)?;
    let found = structure.get(key).await.result.map_err(Error::of_spread::<S>)?;
    Ok(found.map(|value| Bytes::copy_from_slice(&value)))
}

/// Carries out a change in a structure over all memory servers.
async fn mutate_spread<S: Spread>(
    client: &SpreadClient<S>,
    key: u64,
    change: &Change,
) -> Result<bool, Error> {
    let change = match change {
        Change::Put(value) => fatbtree_remote_memory::Change::Upsert(value),
        Change::Insert(value) => fatbtree_remote_memory::Change::Insert(value),
        Change::Update(value) => fatbtree_remote_memory::Change::Update(value),
        Change::Delete => fatbtree_remote_memory::Change::Delete,
        Change::CompareAndSwap { .. } => return Err(Error::only_in_trees::<S>("compare_and_swap")),
    };
    let structure = client.structure().await.map_err(Error::of_spread::<S>)?;
    structure.change(key, change).await.result.map_err(Error::of_spread::<S>)
}

/// The first `most` pairs of a range in a structure over all memory servers.
async fn scan_spread<S: Spread>(
    client: &SpreadClient<S>,
    keys: RangeInclusive<u64>,
    most: usize,
) -> Result<Vec<(u64, Bytes)>, Error> {
    let structure = client.structure().await.map_err(Error::of_spread::<S>)?;
    let scan = structure.scan(KeyRange::of(keys), most).ok_or_else(|| Error::only_in_trees::<S>("scan"))?;
    let pairs = scan.await.result.map_err(Error::of_spread::<S>)?;
    Ok(pairs.into_iter().map(|(key, value)| (key, Bytes::copy_from_slice(&value))).collect())
}

/// The next pairs of all that a hash table holds.
async fn export(client: &HashClient, from: Cursor, most: usize) -> Result<Part, Error> {
    let table = client.structure().await.map_err(Error::of_spread::<HashTable>)?;
    let Portion { pairs, rest } =
        table.export(from, most).await.result.map_err(Error::of_spread::<HashTable>)?;
    let pairs = pairs.into_iter().map(|(key, value)| (key, Bytes::copy_from_slice(&value))).collect();
    Ok(Part { pairs, rest: rest.map(Left::Hash) })
}

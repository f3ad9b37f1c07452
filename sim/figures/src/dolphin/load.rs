//! A loaded index.

use std::rc::Rc;

use fatbtree_dolphin::host::{self, HybridIndex, Place};
use fatbtree_dolphin::{Index, NodeCache, Shape, Verified};
use fatbtree_memserver::Loaded;
use fatbtree_remote_memory::{
    ConnectError, ConnectionId, GlobalAddress, Kept, KeyRange, RemoteConfig, RemoteMemory, RemoteSide, mix,
};
use fatbtree_verbs::time::Duration;

use super::SERVERS;
use crate::bench::value_of;
use crate::meter::Meter;
use crate::rig::{Client, Loading, Servers, client, for_each, keep, serve};
use fatbtree_sim::world::{Machine, SimDevice};

/// The index: values of eight bytes on all servers.
pub(super) const SHAPE: Shape = Shape { servers: (1 << SERVERS) - 1, max_value: 8 };
/// Memory of a server beside root and lines.
const SPARE: u64 = 1 << 30;
/// Bytes of a chunk.
const CHUNK: u64 = 256 << 10;
/// Longest time for loading.
const LOADING: Duration = Duration::from_secs(600);
/// Tasks that load at once.
const LOADERS: u32 = 6;

/// Indexes with a range of the keys each, in the order of their keys: one on all servers, or one on each.
#[derive(Clone)]
pub(super) struct Parts(Rc<[(u64, Shape)]>);

impl Parts {
    /// One index on all servers.
    pub(super) fn one() -> Self {
        Self([(0, SHAPE)].into())
    }

    /// An index on each server, with as many of these keys. Switches want a server to be chosen by the key alone.
    pub(super) fn by_range(keys: &[u64]) -> Self {
        let low =
            |server: usize| if server == 0 { 0 } else { keys[server * keys.len() / usize::from(SERVERS)] };
        let shape = |server: usize| Shape { servers: 1 << server, ..SHAPE };
        Self((0..usize::from(SERVERS)).map(|server| (low(server), shape(server))).collect())
    }

    /// Number of a key's index.
    fn number(&self, key: u64) -> usize {
        self.0.partition_point(|(low, _)| *low <= key) - 1
    }

    fn shape_of(&self, server: u16) -> Shape {
        let of = self.0.iter().find(|(_, shape)| shape.servers >> server & 1 == 1);
        of.expect("each server has a part").1
    }

    /// First keys and shapes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Shape)> + '_ {
        self.0.iter().copied()
    }

    /// Opens all of them on a client's memory, whose caches have `limit` bytes together.
    pub(super) async fn open(&self, memory: &Client, limit: u64) -> Result<Opened, String> {
        let mut indexes = Vec::new();
        for (_, shape) in self.iter() {
            let cache = Rc::new(NodeCache::new(limit / self.0.len() as u64));
            let index = Index::open(Rc::clone(memory), shape.home(), cache).await;
            indexes.push(index.map_err(|error| error.to_string())?);
        }
        Ok(Opened { parts: self.clone(), indexes })
    }
}

/// Indexes as a client has opened them.
pub(super) struct Opened {
    parts: Parts,
    pub(super) indexes: Vec<Index<SimDevice>>,
}

impl Opened {
    /// The index of a key.
    pub(super) fn of(&self, key: u64) -> &Index<SimDevice> {
        &self.indexes[self.parts.number(key)]
    }

    /// Reads all nodes.
    pub(super) async fn warm(&self) -> Result<(), String> {
        for index in &self.indexes {
            index.scan(KeyRange::ALL, usize::MAX).await.result.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Bytes of the caches.
    pub(super) fn cache_bytes(&self) -> u64 {
        self.indexes.iter().map(|index| index.cache().stats().bytes).sum()
    }
}

/// A client's memory, all of whose queue pairs are registered with the switches.
struct Registered(Client);

impl Kept for Registered {
    type Verbs = SimDevice;
    type Refusal = ConnectError;

    fn remote(&self) -> &RemoteMemory<SimDevice> {
        &self.0
    }

    fn join(&self, id: ConnectionId, remote: RemoteSide) -> Result<(), ConnectError> {
        self.0.connected(id, RemoteSide { registered: true, ..remote }).map(drop)
    }
}

/// Memory of an index's servers, and what was found in it.
pub(super) struct Image {
    pub(super) parts: Parts,
    contents: Vec<Loaded<HybridIndex>>,
    pub(super) verified: Verified,
    /// Bytes of a cache of unlimited size that has seen each leaf.
    pub(super) cache_bytes: u64,
}

impl Image {
    /// Loads keys, with values of 8 bytes, by insertions in no order.
    ///
    /// # Errors
    /// When one fails.
    pub(super) fn load_keys(parts: Parts, mut keys: Vec<u64>) -> Result<Self, String> {
        let contents = (0..SERVERS).map(|id| make(id, parts.shape_of(id))).collect::<Result<Vec<_>, _>>()?;
        let loading = Loading::begin(contents.clone(), CHUNK)?;
        let (memory, of) = (Rc::clone(&loading.memory), loading.machine.clone());
        // In no order, whatever the keys are.
        keys.sort_unstable_by_key(|key| (mix(*key), *key));
        keys.dedup();
        let (keys, own) = (Rc::from(keys), parts.clone());
        let load = async move {
            let index = Rc::new(own.open(&memory, 1 << 40).await?);
            let into = Rc::clone(&index);
            let insert = async move |key| {
                let done = into.of(key).upsert(key, &value_of(key)).await.result;
                done.map(drop).map_err(|error| error.to_string())
            };
            for_each(&of, &keys, LOADERS, insert).await?;
            // A scan has read each node.
            index.warm().await?;
            let mut sum = Verified::default();
            for index in &index.indexes {
                let verified = index.verify().await.map_err(|fault| fault.to_string())?;
                sum.keys += verified.keys;
                sum.leaves += verified.leaves;
                sum.bytes += verified.bytes;
            }
            Ok((sum, index.cache_bytes()))
        };
        let (verified, cache_bytes) = loading.run(load, LOADING)?;
        Ok(Self { parts, contents, verified, cache_bytes })
    }

    /// Leaves of all parts, in the order of their keys.
    pub(super) fn places(&self) -> Vec<Vec<Place>> {
        let read = |at: GlobalAddress, bytes: &mut [u8]| {
            let content = self.contents.get(usize::from(at.server()));
            content.is_some_and(|content| content.region.read(at.offset(), bytes).is_ok())
        };
        self.parts.iter().map(|(_, shape)| host::places(&shape, read)).collect()
    }

    /// Starts memory servers with the index.
    pub(super) fn serve(&self, machines: &[Machine]) -> Result<Servers<HybridIndex>, String> {
        serve(machines, self.contents.iter().cloned().map(Ok), CHUNK)
    }
}

/// Starts a client on its machine.
pub(super) fn begin(
    machine: &Machine,
    servers: &Servers<HybridIndex>,
    config: RemoteConfig,
    seed: u64,
    meter: &Rc<Meter>,
) -> Result<Client, String> {
    let memory = client(machine, servers, config, seed)?;
    keep(machine, Rc::new(Registered(Rc::clone(&memory))), servers, meter);
    Ok(memory)
}

fn make(id: u16, shape: Shape) -> Result<Loaded<HybridIndex>, String> {
    let content = HybridIndex::make(id, shape, SPARE).map_err(|error| error.to_string())?;
    content.with_chunk_classes(CHUNK).map_err(|error| error.to_string())
}

//! A loaded index.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_dolphin::host::HybridIndex;
use fatbtree_dolphin::{CacheStats, Index, NodeCache, Shape, Verified};
use fatbtree_memserver::{Loaded, MemoryServer, ServerOptions, chunk_classes_bytes};
use fatbtree_remote::{KeyRange, RemoteConfig, RemoteMemory, mix};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Access, Memory};

use super::SERVERS;
use crate::figures::bench::{CONNECTING, KeyOrder, LEASE, keep, value_of};
use crate::world::{Machine, MachineOptions, Options, SimDevice, World};

/// The index: values of eight bytes on all servers.
pub(super) const SHAPE: Shape = Shape { servers: (1 << SERVERS) - 1, max_value: 8 };
/// Memory of a server beside root and lines.
const SPARE: u64 = 1 << 30;
/// Bytes of a chunk.
const CHUNK: u64 = 256 << 10;
/// Longest time for loading.
const LOADING: Duration = Duration::from_secs(600);
/// Tasks that load at once.
const LOADERS: u64 = 6;

/// Memory servers of an index, by number.
pub(super) type Servers = Rc<[RefCell<MemoryServer<SimDevice, HybridIndex>>]>;

/// A client's memory.
pub(super) type Client = Rc<RemoteMemory<SimDevice>>;

/// Memory of an index's servers, and what was found in it.
pub(super) struct Image {
    contents: Vec<Loaded<HybridIndex>>,
    pub(super) verified: Verified,
    /// A cache of unlimited size that has seen each leaf.
    pub(super) cache: CacheStats,
}

impl Image {
    /// Loads the keys of ranks, with values of 8 bytes, by insertions in no order.
    ///
    /// # Errors
    /// When one fails.
    pub(super) fn load(order: KeyOrder, ranks: impl Iterator<Item = u64>) -> Result<Self, String> {
        let world = World::new(1, Options::default());
        let contents = (0..SERVERS).map(make).collect::<Result<Vec<_>, _>>()?;
        let servers = serve(&machines(&world), &contents)?;
        let machine = world.machine(MachineOptions::named("loader"));
        let memory = begin(&machine, &servers, RemoteConfig::default(), 1, |why| panic!("{why}"))?;
        world.run_for(CONNECTING);
        let mut keys: Vec<u64> = ranks.map(|rank| order.key(rank)).collect();
        // In no order, whatever the keys are.
        keys.sort_unstable_by_key(|key| (mix(*key), *key));
        keys.dedup();
        let (keys, of) = (Rc::new(keys), machine.clone());
        let cache = Rc::new(NodeCache::new(1 << 40));
        let loading = machine.spawn(async move {
            let index = Index::open(memory, SHAPE.home(), cache).await.map_err(|error| error.to_string())?;
            let index = Rc::new(index);
            let tasks: Vec<_> = (0..LOADERS)
                .map(|task| {
                    let (index, keys) = (Rc::clone(&index), Rc::clone(&keys));
                    of.spawn(async move {
                        for &key in keys.iter().skip(task as usize).step_by(LOADERS as usize) {
                            let done = index.upsert(key, &value_of(key)).await.result;
                            done.map_err(|error| error.to_string())?;
                        }
                        Ok::<(), String>(())
                    })
                })
                .collect();
            for task in tasks {
                while !task.has_ended() {
                    of.sleep(Duration::from_micros(50)).await;
                }
                task.take().unwrap_or(Ok(()))?;
            }
            // A scan has read each node.
            let all = index.scan(KeyRange::ALL, usize::MAX).await.result;
            all.map_err(|error| error.to_string())?;
            let verified = index.verify().await.map_err(|fault| fault.to_string())?;
            Ok::<_, String>((verified, index.cache().stats()))
        });
        world.run_until(|| loading.has_ended(), LOADING).map_err(|_| "loading takes too long".to_owned())?;
        let (verified, cache) = loading.take().ok_or("the loader died")??;
        world.settle();
        Ok(Self { contents, verified, cache })
    }

    /// Starts memory servers with the index.
    pub(super) fn serve(&self, machines: &[Machine]) -> Result<Servers, String> {
        serve(machines, &self.contents)
    }
}

/// Machines for the servers of an index.
pub(super) fn machines(world: &World) -> Vec<Machine> {
    (0..SERVERS).map(|id| world.machine(MachineOptions::named(format!("server {id}")))).collect()
}

/// Starts a client on its machine. `fail` is told of what never happens here.
pub(super) fn begin(
    machine: &Machine,
    servers: &Servers,
    config: RemoteConfig,
    seed: u64,
    fail: impl Fn(String) + 'static,
) -> Result<Client, String> {
    let memory = RemoteMemory::new(machine.device(), 0..SERVERS, config, seed);
    let memory = Rc::new(memory.map_err(|error| error.to_string())?);
    machine.set_driven(Rc::clone(&memory) as _);
    keep(machine, Rc::clone(&memory), servers, fail);
    Ok(memory)
}

fn make(id: u16) -> Result<Loaded<HybridIndex>, String> {
    let mut content = HybridIndex::make(id, SHAPE, SPARE).map_err(|error| error.to_string())?;
    let classes = Memory::shared(chunk_classes_bytes(SPARE, CHUNK)).map_err(|error| error.to_string())?;
    content.chunk_classes = Some(classes);
    Ok(content)
}

fn serve(machines: &[Machine], contents: &[Loaded<HybridIndex>]) -> Result<Servers, String> {
    let options =
        ServerOptions { access: Access::ALL, chunk_bytes: CHUNK, lease: LEASE, ..ServerOptions::writable() };
    let servers = machines.iter().zip(contents).map(|(machine, content)| {
        let server = MemoryServer::new(machine.device(), content.clone(), &options, 1);
        server.map(RefCell::new).map_err(|error| error.to_string())
    });
    servers.collect()
}

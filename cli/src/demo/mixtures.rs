//! Comparison of mixtures at several sizes of cache: a client's cache alone, or with the switches' entries beside it.
//!
//! Round trips only: the client runs over plain memory, the memory servers' own, and index reads land where the active plan says.
//! So one lookup costs microseconds, and many sizes can be tried.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use fatbtree_blink::{GlobalAddress, IndexCache, PoolConfig, RemoteSide, Start, SuperRoot};
use fatbtree_blink_client::Client;
use fatbtree_controller::Plan;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::{Access, Device as _, Memory, Region, Remote};
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec};
use fatbtree_workload::{OperationKind, Operations as _};
use serde::Serialize;

/// Shares of what all inner nodes take in a client's cache, in parts of ten thousand.
const SHARES: [u64; 5] = [0, 10, 100, 1_000, 10_000];

/// Seeds, so that a cache is not filled by the lookups that are counted.
const WARM_UP: u64 = 0xcac4e;

/// Round trips of a lookup with so much cache in the client, once it is warm; counted.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct MixtureResult {
    /// Bytes of the client's cache.
    pub client_cache_bytes: u64,
    /// Share of the bytes that all inner nodes would take.
    pub share: f64,
    /// Round trips per lookup without switches.
    pub alone: f64,
    /// Round trips per lookup where the switches are asked for nodes that the client does not hold.
    pub with_switches: f64,
    /// Round trips per lookup in the Dolphin index, whose client remembers its nodes in as many bytes.
    pub dolphin: f64,
}

/// A tree in memory, and a plan for it.
pub(super) struct Mixtures<'a> {
    pub(super) pool: PoolConfig,
    pub(super) roots: SuperRoot,
    /// The memory of the servers, in their order.
    pub(super) memories: &'a [Arc<Memory>],
    pub(super) plan: &'a Plan,
    pub(super) keys: KeyMap,
    /// Workload of which only the reads are done.
    pub(super) workload: &'a WorkloadSpec,
    /// Bytes that all inner nodes take in a client's cache.
    pub(super) inner_bytes: u64,
    /// Lookups that fill a cache, and lookups that are counted.
    pub(super) warm_up: u64,
    pub(super) counted: u64,
    pub(super) seed: u64,
}

impl Mixtures<'_> {
    /// Tries each size.
    ///
    /// # Errors
    /// When a lookup fails.
    pub(super) fn run(self) -> Result<Vec<MixtureResult>> {
        let plan = Rc::new(self.plan.clone());
        let of_share = |share: u64| {
            let bytes = self.inner_bytes * share / 10_000;
            Ok(MixtureResult {
                client_cache_bytes: bytes,
                share: share as f64 / 10_000.0,
                alone: self.count(&plan, Start::Cached, bytes)?,
                with_switches: self.count(&plan, Start::CachedOrIndexRead, bytes)?,
                // Counted when the trees are gone.
                dolphin: 0.0,
            })
        };
        SHARES.into_iter().map(of_share).collect()
    }

    fn count(&self, plan: &Rc<Plan>, start: Start, cache_bytes: u64) -> Result<f64> {
        let client = self.client(plan)?;
        client.set_cache(Some(Arc::new(IndexCache::new(cache_bytes))));
        self.look_up(&client, start, self.warm_up, self.seed ^ WARM_UP)?;
        self.look_up(&client, start, self.counted, self.seed)
    }

    /// Mean round trips of so many lookups.
    fn look_up(&self, client: &Client<PlainDevice>, start: Start, lookups: u64, seed: u64) -> Result<f64> {
        let mut workload = Workload::new(self.workload, self.keys.clone(), seed)?;
        let (mut done, mut trips) = (0u64, 0u64);
        for _ in 0..lookups {
            let operation = workload.next_operation()?;
            if operation.kind != OperationKind::Read {
                continue;
            }
            let lookup = client.pool().reactor().block_on(client.lookup(operation.key, start));
            lookup.result.with_context(|| format!("looking up {:#x}", operation.key))?;
            (done, trips) = (done + 1, trips + u64::from(lookup.trips.round_trips));
        }
        Ok(trips as f64 / done.max(1) as f64)
    }

    /// A client whose index reads land where the plan says.
    fn client(&self, plan: &Rc<Plan>) -> Result<Client<PlainDevice>> {
        let network = PlainNetwork::new();
        let mut servers: Vec<(PlainDevice, Region)> = Vec::new();
        for (memory, partition) in self.memories.iter().zip(self.roots.partitions()) {
            let mut device = network.device();
            let region = device.register(memory, GlobalAddress::new(partition.id, 0).raw(), Access::READ)?;
            servers.push((device, region));
        }
        let mut device = network.device();
        let rkeys: Vec<u32> = servers.iter().map(|(_, region)| region.rkey).collect();
        let plan = Rc::clone(plan);
        device.set_landing(move |key, target| {
            let address = plan.read_at(key, target.or_record(), target.offset_in_leaf());
            Some(Remote { address, rkey: rkeys[usize::from(GlobalAddress(address).server())] })
        });
        let client = Client::new(device, self.pool, self.roots.clone(), self.seed)?;
        let pool = client.pool();
        for id in pool.connections() {
            let (device, region) = &mut servers[usize::from(id.server)];
            let local = pool.open(id)?;
            let queue_pair = device.create()?;
            device.connect(queue_pair, &local)?;
            let endpoint = device.endpoint(queue_pair).context("it was made a moment ago")?;
            pool.connected(id, RemoteSide { endpoint, rkey: region.rkey, registered: true })?;
        }
        Ok(client)
    }
}

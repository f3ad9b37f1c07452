//! The client of trees in its process.

use std::error::Error;
use std::future::{Future, ready};

use fatbtree_blink::{OperationError, Pool, PoolConfig, SuperRoot, SuperRootError};
use fatbtree_blink_client::{Client, KeySample, Report};
use fatbtree_blink_host::TreeInfo;
use fatbtree_controller::grpc::ClientReport;
use fatbtree_memserver::ServerInfo;
use fatbtree_remote_memory::ConnectionId;
use fatbtree_topology::MemoryServer;
use fatbtree_verbs::time::Instant;

use super::structure::{DoubtOthers, Infos, StructureClient};
use super::{ClientOptions, limits};
use crate::NodeError;
use crate::adapter::Adapter;
use crate::metrics::Metrics;

/// The super-root over all these partitions. Servers without a description have what the others leave.
fn roots(all: impl Iterator<Item = u16>, infos: &Infos<TreeInfo>) -> Result<SuperRoot, SuperRootError> {
    let absent: Vec<u16> = all.filter(|partition| !infos.contains_key(partition)).collect();
    SuperRoot::with_absent(infos.values().map(|info| info.partition).collect(), &absent)
}

impl StructureClient for Client<Adapter> {
    type Info = TreeInfo;
    type Kept = Pool<Adapter>;

    fn open(
        adapter: Adapter,
        infos: &Infos<TreeInfo>,
        servers: &[MemoryServer],
        options: &ClientOptions,
        seed: u64,
    ) -> Result<Self, NodeError> {
        let name = |partition: &u16| {
            let known = servers.iter().find(|known| known.partition == *partition);
            known.map_or_else(String::new, |known| known.name.clone())
        };
        let mut all = infos.iter();
        let first = all.next();
        if let Some((one, of_one)) = first
            && let Some((other, _)) = all.find(|(_, info)| info.config != of_one.config)
        {
            return Err(NodeError::Shapes(name(one), name(other)));
        }
        let config = PoolConfig {
            tree: first.map(|(_, info)| info.config).unwrap_or_default(),
            lanes: options.lanes,
            limits: limits(options.patience),
            contention: options.contention,
            ..PoolConfig::default()
        };
        let all = servers.iter().map(|server| server.partition);
        Ok(Self::new(adapter, config, roots(all, infos)?, seed)?)
    }

    fn admit(&self, info: &ServerInfo<TreeInfo>) -> Result<(), NodeError> {
        let roots = self.pool().roots();
        let other = roots.partitions().iter().find(|partition| partition.id != info.server);
        if info.config == self.pool().config().tree {
            return Ok(());
        }
        let name = |id: u16| format!("of partition {id}");
        Err(NodeError::Shapes(name(info.server), name(other.map_or(info.server, |other| other.id))))
    }

    fn kept(&self) -> &Pool<Adapter> {
        self.pool()
    }

    fn turn(&self, now: Instant) {
        Self::turn(self, now);
    }

    /// A new session may be one with another tree.
    fn believe(&self, server: u16, infos: &Infos<TreeInfo>) -> Result<(), DoubtOthers> {
        let all = self.pool().roots();
        match roots(all.partitions().iter().map(|partition| partition.id), infos) {
            Ok(roots) => {
                if let Err(error) = self.pool().set_roots(roots) {
                    tracing::warn!(server, %error, "another tree");
                }
                Ok(())
            }
            // Ranges have moved. The others have new ones, too, or will soon: their sessions end then.
            Err(error) => {
                tracing::info!(server, %error, "the other servers are asked for their ranges");
                Err(DoubtOthers)
            }
        }
    }

    fn ready(&self) -> impl Future<Output = Result<(), OperationError>> {
        ready(Ok(()))
    }

    fn finish(&self) -> impl Future<Output = ()> + 'static {
        let client = self.clone();
        async move { client.pool().finish().await }
    }

    async fn verify(&self) -> Result<String, Box<dyn Error + Send + Sync>> {
        Ok(self.pool().verify().await?.to_string())
    }

    fn begin_reports(&self, keys: usize, seed: u64) -> bool {
        self.set_sample(Some(KeySample::new(keys, seed)));
        true
    }

    fn report(&self) -> ClientReport {
        let Report { keys, index_reads, stale_hints, hot_keys } = Self::report(self);
        ClientReport { keys, index_reads, stale_hints, hot_keys }
    }

    fn set_registered(&self, id: ConnectionId) {
        // A connection that is down is registered anew with its next queue pair.
        let _ = self.pool().set_registered(id, true);
    }

    fn is_registered(&self) -> bool {
        self.pool().connections().into_iter().all(|id| self.pool().is_registered(id))
    }

    fn metrics(&self, metrics: &mut Metrics) {
        let stats = self.pool().stats();
        metrics.operations(&self.latencies());
        for (name, help, value) in [
            ("client_lookups", "Lookups that have begun", stats.lookups),
            ("client_index_reads", "Index reads posted", stats.index_reads),
            ("client_stale_hints", "Index reads that led to another key's node", stats.stale_hints),
            (
                "client_hot_keys",
                "Index reads that the entry of a hot key led to the record of their key",
                stats.records,
            ),
            (
                "client_unregistered",
                "Lookups that walked for want of a registered connection",
                stats.unregistered,
            ),
            ("client_retries", "Reads of something torn", stats.retries),
            ("client_fallbacks", "Walks begun again at the root", stats.fallbacks),
            ("client_splits", "Nodes split", stats.splits),
            ("client_merges", "Nodes merged", stats.merges),
        ] {
            metrics.counter(name, help, value);
        }
    }
}

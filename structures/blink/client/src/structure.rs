//! The client of trees as one of several structures, kept connected.

use std::error::Error;
use std::future::{Future, ready};
use std::sync::Arc;

use fatbtree_blink::{
    CacheStats, EntryCache, EntryCacheStats, IndexCache, Keys, Limits, OperationError, PoolConfig, PoolError,
    Start, SuperRoot, SuperRootError,
};
use fatbtree_blink_host::TreeInfo;
use fatbtree_remote_memory::{
    Believed, CacheUse, ClientConfig, ConnectionId, Counted, Infos, Kept, OpenError, OperationLatencies,
    Remembered, RemoteMemory, RemoteSide, Report, ServerInfo, StructureClient, Troubles, Writer,
};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::Instant;

use crate::client::Client;
use crate::sample::KeySample;

/// The super-root over all these partitions. Servers without a description have what the others leave.
fn roots(all: impl Iterator<Item = u16>, infos: &Infos<TreeInfo>) -> Result<SuperRoot, SuperRootError> {
    let absent: Vec<u16> = all.filter(|partition| !infos.contains_key(partition)).collect();
    SuperRoot::with_absent(infos.values().map(|info| info.partition).collect(), &absent)
}

/// Limits of an operation: it may reconnect once more for each unanswered queue pair's life that fits into its patience.
///
/// For example, a server accepts each new queue pair, but a frozen switch on the way to it lets the queue pair fail again.
fn limits(config: &ClientConfig) -> Limits {
    let least = Limits::default();
    let breaks = config.patience.as_nanos() / config.silence.as_nanos().max(1);
    let reconnects = least.reconnects.saturating_add(u32::try_from(breaks).unwrap_or(u32::MAX));
    Limits { reconnects, ..least }
}

impl<V: Verbs> Kept for Client<V> {
    type Verbs = V;
    type Refusal = PoolError;

    fn remote(&self) -> &RemoteMemory<V> {
        self.pool()
    }

    fn let_write(&self, server: u16, writer: Writer) -> Result<(), PoolError> {
        self.pool().let_write(server, writer)
    }

    fn join(&self, id: ConnectionId, remote: RemoteSide) -> Result<(), PoolError> {
        self.pool().join(id, remote)
    }
}

impl<V: Verbs + 'static> StructureClient for Client<V> {
    type Info = TreeInfo;

    const REMEMBERS: &'static [Remembered] = &[Remembered::Places, Remembered::Nodes];
    const IS_LED: bool = true;

    fn open(
        verbs: V,
        infos: &Infos<TreeInfo>,
        servers: &[u16],
        config: &ClientConfig,
        seed: u64,
    ) -> Result<Self, OpenError> {
        let mut all = infos.iter();
        let first = all.next();
        if let Some((one, of_one)) = first
            && let Some((other, _)) = all.find(|(_, info)| info.config != of_one.config)
        {
            return Err(OpenError::Shapes(*one, *other));
        }
        let start = if config.is_led { Start::CachedOrIndexRead } else { Start::Cached };
        let config = PoolConfig {
            tree: first.map(|(_, info)| info.config).unwrap_or_default(),
            lanes: config.lanes,
            limits: limits(config),
            contention: config.contention,
            ..PoolConfig::default()
        };
        let roots = roots(servers.iter().copied(), infos).map_err(|error| OpenError::Apart(error.into()))?;
        let client = Self::new(verbs, config, roots, seed).map_err(|error| match error {
            PoolError::Connect(error) => error.into(),
            error => OpenError::Structure(error.into()),
        })?;
        Ok(client.starting(start))
    }

    fn admit(&self, info: &ServerInfo<TreeInfo>) -> Result<(), OpenError> {
        match info.config == self.pool().config().tree {
            true => Ok(()),
            false => Err(OpenError::Layout(info.server)),
        }
    }

    fn turn(&self, now: Instant) {
        Self::turn(self, now);
    }

    /// A new session may be one with another tree.
    fn believe(&self, _: u16, infos: &Infos<TreeInfo>) -> Believed {
        let all = self.pool().roots();
        match roots(all.partitions().iter().map(|partition| partition.id), infos) {
            Ok(roots) => match self.pool().set_roots(roots) {
                Ok(()) => Believed::Fits,
                Err(error) => Believed::Another(format!("another tree: {error}")),
            },
            // Ranges have moved. The others have new ones, too, or will soon: their sessions end then.
            Err(error) => Believed::DoubtOthers(error.to_string()),
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

    fn remember(&self, kind: Remembered, bytes: u64) {
        match kind {
            Remembered::Places => self.set_entry_cache(Some(Arc::new(EntryCache::new(bytes)))),
            Remembered::Nodes => self.set_cache(Some(Arc::new(IndexCache::new(bytes)))),
        }
    }

    fn cache_use(&self, kind: Remembered) -> CacheUse {
        match kind {
            Remembered::Places => {
                let EntryCacheStats { hits, misses, stale, bytes, entries, .. } = self.entry_cache_stats();
                CacheUse { hits, misses, stale, bytes, entries }
            }
            Remembered::Nodes => {
                let CacheStats { hits, misses, stale, bytes, entries, .. } = self.cache_stats();
                CacheUse { hits, misses, stale, bytes, entries }
            }
        }
    }

    fn loaded(info: &TreeInfo) -> Option<u64> {
        Some(info.counts.keys)
    }

    fn has_byte_keys(info: &TreeInfo) -> bool {
        info.config.keys() == Keys::Bytes
    }

    fn begin_reports(&self, keys: usize, seed: u64) {
        self.set_sample(Some(KeySample::new(keys, seed)));
    }

    fn report(&self) -> Report {
        Self::report(self)
    }

    fn set_registered(&self, id: ConnectionId) {
        // A connection that is down is registered anew with its next queue pair.
        let _ = self.pool().set_registered(id, true);
    }

    fn is_registered(&self) -> bool {
        self.pool().connections().into_iter().all(|id| self.pool().is_registered(id))
    }

    fn troubles(&self) -> Troubles {
        self.pool().stats().into()
    }

    fn latencies(&self) -> OperationLatencies {
        Self::latencies(self)
    }

    fn counted(&self) -> Vec<Counted> {
        let stats = self.pool().stats();
        vec![
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
        ]
    }
}

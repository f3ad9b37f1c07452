//! The memory pool as one client of trees reaches it: remote memory, the roots in it, a cache, and index reads.

mod stats;

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

use fatbtree_remote_memory::{
    ConnectError, ConnectionId, Contention, GlobalAddress, Kept, KeyRange, Locking, Path, RemoteConfig,
    RemoteMemory, RemoteSide, Trouble, Writer,
};
use fatbtree_verbs::{Agreed, Buffer, IndexTarget, Operation, Verbs};

use crate::allocation::Allocation;
use crate::cache::{CacheStats, IndexCache};
use crate::config::{ConfigError, Keys, TreeConfig};
use crate::descent::Child;
use crate::limits::Limits;
use crate::moved::MovedKeys;
use crate::needs::Needs;
use crate::operation::OperationError;
use crate::scan::Spacing;
use crate::speculation::{EntryCache, EntryCacheStats};
use crate::super_root::{Partition, SuperRoot};
use crate::techniques::Techniques;

pub use stats::PoolStats;

/// A client's figures; what the servers say comes with [`RemoteSide`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolConfig {
    /// Shape of the tree: the same as the loader's.
    pub tree: TreeConfig,
    /// Queue pairs per memory server, at least 1: operations are spread over them evenly, and one that fails takes only its
    /// own operations along.
    pub lanes: u8,
    /// Time limit and retry limits of operations.
    pub limits: Limits,
    /// Write techniques of the client.
    pub techniques: Techniques,
    /// Choice of the memory server for new nodes.
    pub allocation: Allocation,
    /// Treatment of contention.
    pub contention: Contention,
}

impl Default for PoolConfig {
    /// The default tree, one queue pair per server.
    fn default() -> Self {
        PoolConfig {
            tree: TreeConfig::default(),
            lanes: 1,
            limits: Limits::default(),
            techniques: Techniques::default(),
            allocation: Allocation::default(),
            contention: Contention::default(),
        }
    }
}

impl PoolConfig {
    /// The part of the configuration that concerns remote memory only.
    fn remote(&self) -> RemoteConfig {
        let Techniques { combine, on_chip, hierarchical, two_level_versions: _ } = self.techniques;
        let Limits { patience, reconnects, .. } = self.limits;
        let (locking, contention) = (Locking { combine, on_chip, hierarchical }, self.contention);
        RemoteConfig {
            lanes: self.lanes,
            patience,
            reconnects,
            locking,
            contention,
            ..RemoteConfig::default()
        }
    }
}

/// The memory pool as one client reaches it, for the operations of trees. It belongs to one thread.
///
/// It is a [`RemoteMemory`] in which there are trees, and is driven as that is. Two of its steps can be refused here, for the trees'
/// sake: [`connected`](Self::connected) and [`set_writer`](Self::set_writer).
///
/// An operation whose connection breaks waits for the next one and begins again at the root; see [`Limits::reconnects`].
pub struct Pool<V> {
    remote: RemoteMemory<V>,
    config: PoolConfig,
    state: RefCell<State>,
}

struct State {
    roots: SuperRoot,
    /// Counters of the trees: all but `remote`.
    stats: PoolStats,
    /// None: it has none, or one of no bytes.
    cache: Option<Arc<IndexCache>>,
    cache_stats: CacheStats,
    /// None: it has none, or one without room.
    entries: Option<Arc<EntryCache>>,
    entry_stats: EntryCacheStats,
    /// The server that got the last new node.
    last_allocated: u16,
    moved: MovedKeys,
    /// Leaves that scans have taken.
    spacing: Spacing,
    /// What index reads of buckets needed.
    needs: Needs,
}

impl<V> std::fmt::Debug for Pool<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.borrow();
        f.debug_struct("Pool")
            .field("remote", &self.remote)
            .field("stats", &state.stats)
            .finish_non_exhaustive()
    }
}

/// All of [`RemoteMemory`] holds for a pool.
impl<V> Deref for Pool<V> {
    type Target = RemoteMemory<V>;

    fn deref(&self) -> &Self::Target {
        &self.remote
    }
}

/// Reasons for which a pool refuses news of the trees.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// A tree that cannot be written to.
    #[error(
        "a tree with a fan-out of {fan_out} can only be read: a node that is split would leave one child; load it with at least 3"
    )]
    Narrow {
        /// Most children of an internal node.
        fan_out: u16,
    },
    /// A super-root for another cluster.
    #[error(
        "a new super-root must have the partitions {old:?}, found {new:?}; make a new client for another cluster"
    )]
    OtherPartitions {
        /// Partitions active.
        old: Vec<u16>,
        /// Partitions of the new one.
        new: Vec<u16>,
    },
    /// The single-packet rule (docs/src/invariants.md "Single-packet rule").
    #[error(transparent)]
    Tree(#[from] ConfigError),
    /// The connection cannot be.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl<V: Verbs> Kept for Pool<V> {
    type Verbs = V;
    type Refusal = PoolError;

    fn remote(&self) -> &RemoteMemory<V> {
        self
    }

    fn let_write(&self, server: u16, writer: Writer) -> Result<(), PoolError> {
        self.set_writer(server, writer)
    }

    fn join(&self, id: ConnectionId, remote: RemoteSide) -> Result<(), PoolError> {
        self.connected(id, remote).map(drop)
    }
}

impl<V: Verbs> Pool<V> {
    /// A client without connections. `seed` decides how long it pauses before it reads something again.
    ///
    /// # Errors
    /// When the configuration cannot work.
    pub fn new(verbs: V, config: PoolConfig, roots: SuperRoot, seed: u64) -> Result<Self, PoolError> {
        let servers = roots.partitions().iter().map(|partition| partition.id);
        let remote = RemoteMemory::new(verbs, servers, config.remote(), seed)?;
        let state = RefCell::new(State {
            roots,
            stats: PoolStats::default(),
            cache: None,
            cache_stats: CacheStats::default(),
            entries: None,
            entry_stats: EntryCacheStats::default(),
            last_allocated: u16::MAX,
            moved: MovedKeys::new(),
            spacing: Spacing::default(),
            needs: Needs::new(),
        });
        Ok(Self { remote, config, state })
    }

    /// Completes a connection, as [`RemoteMemory::connected`] does.
    ///
    /// # Errors
    /// Also when the nodes are larger than the path MTU of both sides.
    pub fn connected(&self, id: ConnectionId, remote: RemoteSide) -> Result<Agreed, PoolError> {
        if let Some(queue_pair) = self.queue_pair(id) {
            let local =
                self.reactor().with(|verbs| verbs.endpoint(queue_pair)).map_err(ConnectError::from)?;
            // Before the queue pair is connected: an index read brings a node in one packet.
            let mtu = Agreed::between(&local, &remote.endpoint).mtu;
            self.config.tree.check_path_mtu(mtu.bytes() as u32)?;
        }
        Ok(self.remote.connected(id, remote)?)
    }

    /// Lets operations write to the tree of a server, as [`RemoteMemory::set_writer`] does.
    ///
    /// # Errors
    /// Also when nodes of this tree have at most two children.
    pub fn set_writer(&self, server: u16, writer: Writer) -> Result<(), PoolError> {
        let fan_out = self.config.tree.fan_out();
        if fan_out < 3 {
            return Err(PoolError::Narrow { fan_out });
        }
        Ok(self.remote.set_writer(server, writer)?)
    }

    /// Gives the client a cache of inner nodes, or takes it away. All its threads can share one. It fills by what operations read;
    /// [`Start::Cached`](crate::Start::Cached) and [`Start::CachedOrIndexRead`](crate::Start::CachedOrIndexRead) begin with it.
    pub fn set_cache(&self, cache: Option<Arc<IndexCache>>) {
        self.state.borrow_mut().cache = cache.filter(|cache| cache.limit() > 0);
    }

    /// Gives the client a cache of places of single keys, or takes it away. All threads of its process can share one. Operations fill it;
    /// lookups with [`Start::Cached`](crate::Start::Cached) and [`Start::CachedOrIndexRead`](crate::Start::CachedOrIndexRead) read
    /// first where it says.
    pub fn set_entry_cache(&self, entries: Option<Arc<EntryCache>>) {
        self.state.borrow_mut().entries = entries.filter(|entries| entries.capacity() > 0);
    }

    /// Replaces the super-root, as when a root was split or a server came back with another. Operations under way finish
    /// on the old one. The caches begin anew.
    ///
    /// # Errors
    /// When it names other partitions than the one before.
    pub fn set_roots(&self, roots: SuperRoot) -> Result<(), PoolError> {
        let ids = |roots: &SuperRoot| {
            let mut ids: Vec<u16> = roots.partitions().iter().map(|partition| partition.id).collect();
            ids.sort_unstable();
            ids
        };
        let mut state = self.state.borrow_mut();
        let (old, new) = (ids(&state.roots), ids(&roots));
        if old != new {
            return Err(PoolError::OtherPartitions { old, new });
        }
        state.roots = roots;
        if let Some(cache) = &state.cache {
            cache.clear();
        }
        if let Some(entries) = &state.entries {
            entries.clear();
        }
        Ok(())
    }

    // ---- getters ----

    /// The configuration as given.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The super-root active.
    pub fn roots(&self) -> SuperRoot {
        self.state.borrow().roots.clone()
    }

    /// Counters since the beginning.
    pub fn stats(&self) -> PoolStats {
        PoolStats { remote: self.counters(), ..self.state.borrow().stats }
    }

    /// Counters of this pool's use of the cache, and the cache's content for all pools.
    pub fn cache_stats(&self) -> CacheStats {
        let state = self.state.borrow();
        let CacheStats { hits, misses, stale, .. } = state.cache_stats;
        let all = state.cache.as_ref().map(|cache| cache.stats()).unwrap_or_default();
        CacheStats { hits, misses, stale, ..all }
    }

    /// Counters of this pool's use of the entry cache, and the cache's content for all pools, which are counted one by one.
    pub fn entry_cache_stats(&self) -> EntryCacheStats {
        let state = self.state.borrow();
        let EntryCacheStats { hits, misses, stale, starts, .. } = state.entry_stats;
        let all = state.entries.as_ref().map(|entries| entries.stats()).unwrap_or_default();
        EntryCacheStats { hits, misses, stale, starts, ..all }
    }

    // ---- for operations ----

    /// Whether the tree has keys of this kind.
    #[inline]
    pub(crate) fn check_keys(&self, keys: Keys) -> Result<(), OperationError> {
        let tree = self.config.tree.keys();
        if tree == keys { Ok(()) } else { Err(OperationError::Keys { tree }) }
    }

    pub(crate) fn count(&self, work: impl FnOnce(&mut PoolStats)) {
        work(&mut self.state.borrow_mut().stats);
    }

    pub(crate) fn partition_of(&self, key: u64) -> Partition {
        *self.state.borrow().roots.partition_of(key)
    }

    /// Notes a root that a superblock has announced.
    pub(crate) fn set_root(&self, partition: u16, root: GlobalAddress, level: u8) {
        let mut state = self.state.borrow_mut();
        state.roots.set_root(partition, root, level);
        if let (Some(cache), Some(partition)) = (&state.cache, state.roots.partition(partition)) {
            cache.root_moved(partition);
        }
    }

    /// Asks the cache where an operation can begin.
    #[inline]
    pub(crate) fn cached<T>(&self, ask: impl FnOnce(&IndexCache) -> Option<T>) -> Option<T> {
        ask(self.state.borrow().cache.as_ref()?)
    }

    /// Tells the cache something, if there is one.
    #[inline]
    pub(crate) fn tell_cache(&self, tell: impl FnOnce(&IndexCache)) {
        if let Some(cache) = &self.state.borrow().cache {
            tell(cache);
        }
    }

    /// Asks the entry cache something, if there is one.
    #[inline]
    pub(crate) fn entries<T>(&self, ask: impl FnOnce(&EntryCache) -> T) -> Option<T> {
        self.state.borrow().entries.as_deref().map(ask)
    }

    pub(crate) fn count_entries(&self, work: impl FnOnce(&mut EntryCacheStats)) {
        work(&mut self.state.borrow_mut().entry_stats);
    }

    /// Tells the cache of a node that its copy of the parent may not know.
    pub(crate) fn teach_cache(&self, child: Child) {
        let most = usize::from(self.config.tree.fan_out());
        self.tell_cache(|cache| cache.learn(child.parent_level, child.low, child.address, most));
    }

    pub(crate) fn count_cache(&self, work: impl FnOnce(&mut CacheStats)) {
        work(&mut self.state.borrow_mut().cache_stats);
    }

    /// Server of the new node when a node on `server` is split.
    pub(crate) fn server_of_split(&self, server: u16) -> u16 {
        if self.config.allocation == Allocation::Partitioned {
            return server;
        }
        let mut state = self.state.borrow_mut();
        state.last_allocated = self.next_writable(state.last_allocated).unwrap_or(server);
        state.last_allocated
    }

    /// Lets the switches choose what is read.
    #[inline]
    pub(crate) async fn index_read(
        &self,
        path: Path<'_>,
        key: u64,
        len: u32,
        target: IndexTarget,
    ) -> Result<Buffer, Trouble> {
        let (queue_pair, _) = self.link(path.id)?;
        self.count(|stats| stats.index_reads += 1);
        let [bytes] = self.fetch(path, queue_pair, [Operation::IndexRead { key, len, target }]).await?;
        Ok(bytes)
    }

    /// How far apart leaves are, as scans have found them.
    pub(crate) fn spacing(&self) -> Spacing {
        self.state.borrow().spacing
    }

    /// Notes a leaf that a scan has taken, with its pairs.
    pub(crate) fn note_leaf(&self, range: &KeyRange, pairs: usize) {
        self.state.borrow_mut().spacing.note(range, pairs);
    }

    /// Asks or tells how many bytes index reads need.
    #[inline]
    pub(crate) fn needs<T>(&self, work: impl FnOnce(&mut Needs) -> T) -> T {
        work(&mut self.state.borrow_mut().needs)
    }

    /// Whether the switches are asked for a node rather than for the record of a key, which has moved.
    #[inline]
    pub(crate) fn avoids_record(&self, key: u64) -> bool {
        self.state.borrow_mut().moved.avoids(key)
    }

    /// The record of a key is not where the switches think it is.
    pub(crate) fn note_moved(&self, key: u64) {
        self.state.borrow_mut().moved.note(key);
    }
}

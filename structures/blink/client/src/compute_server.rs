//! State that the threads of one process share.

use std::sync::Arc;

use fatbtree_blink::{EntryCache, IndexCache, PoolConfig, PoolError, SuperRoot};
use fatbtree_verbs::Verbs;

use crate::client::Client;

/// A compute server (Sherman section 4.1): one process with several threads, each of which has a [`Client`] of its own and many
/// operations under way on it (section 5.4).
///
/// ```text
///   thread 1: Client ─ device, queue pairs, session ─┐
///   thread 2: Client ─ device, queue pairs, session ─┼─► memory servers
///   thread 3: Client ─ device, queue pairs, session ─┘
///        └──────┴──────┴── one IndexCache, one EntryCache
/// ```
///
/// A compute server is given to threads by reference or as a clone. Each thread makes its own client, which stays there.
///
/// **What is shared** is the index cache, as in Sherman: what one thread has read saves all of them a walk. So is the entry cache, as in
/// SMART.
///
/// **What is not shared** are the queues for locks, which are each client's own. Sherman has one table of them for all threads
/// of a compute server, so that these do not compete for the same lock over the network. Here the operations of a thread are those
/// that queue up, and threads compete as other machines do. So each thread's session ends by itself: what it held is taken over by
/// the others like that of any client that died. Sharing would save little throughput: a lock is taken in the doorbell that reads the
/// node, so one that is handed over saves no round trip here. Tried in virtual time (8 servers, 300,000 keys, Zipf 0.99, 128 operations
/// in flight, two seeds), with 8 clients of 16 operations for queues that four threads share, and 32 clients of 4 for queues of each
/// thread: half writes, 8.7 and 9.1 million operations a second against 8.4 and 8.8, p99 440 and 387 µs against 484 and 479; only
/// writes, 4.55 and 4.63 million against 4.42 and 4.61, p99 578 and 566 µs against 737 and 817. So the slowest writes pay for it, by
/// up to 44 %, and failed attempts to take a lock become 3.4 a write instead of 0.9. Each of the 32 has a card of its own there.
/// For the same reason few threads with many operations each do better than many with few.
///
/// # Example
///
/// Two threads, and memory that both reach; in life each would have a NIC.
///
/// ```
/// use fatbtree_blink_client::ComputeServer;
/// use fatbtree_blink::{PoolConfig, RemoteSide, TreeConfig, value};
/// use fatbtree_blink_host::{LoadOptions, load_cluster, seeded};
/// use fatbtree_verbs::plain::PlainNetwork;
/// use fatbtree_verbs::{Access, Device};
///
/// let keys: Vec<u64> = (0..10_000).collect();
/// let tree = TreeConfig::default();
/// let cluster = load_cluster(&LoadOptions::new(tree, 0), 1, &keys, &mut seeded(42, 8))?;
/// let config = PoolConfig { tree, ..PoolConfig::default() };
/// let here = ComputeServer::new(config, cluster.roots.clone(), 1 << 20);
/// let region = &cluster.trees[0].region;
///
/// let look_up = |key: u64, seed: u64| {
///     // A network of each thread's own, with the same memory behind it.
///     let network = PlainNetwork::new();
///     let mut server = network.device();
///     let rkey = server.register(region, 0, Access::READ).unwrap().rkey;
///     let client = here.client(network.device(), seed).unwrap();
///     for id in client.pool().connections() {
///         let (local, queue_pair) = (client.pool().open(id).unwrap(), server.create().unwrap());
///         server.connect(queue_pair, &local).unwrap();
///         let endpoint = server.endpoint(queue_pair).unwrap();
///         client.pool().connected(id, RemoteSide { endpoint, rkey, registered: false }).unwrap();
///     }
///     let found = client.pool().reactor().block_on(client.get(key)).unwrap().expect("it was loaded");
///     assert!(value::check(key, 42, &found));
///     client.pool().stats().remote.reads
/// };
/// let reads = |key, seed| std::thread::scope(|scope| scope.spawn(|| look_up(key, seed)).join().unwrap());
/// assert_eq!(reads(7, 1), 5, "three internal nodes, the leaf, the record");
/// assert_eq!(reads(8, 2), 2, "the other thread has read the internal nodes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ComputeServer {
    config: PoolConfig,
    roots: SuperRoot,
    cache: Arc<IndexCache>,
    entries: Arc<EntryCache>,
}

impl ComputeServer {
    /// Compute server whose clients have this configuration, and together a cache of up to `cache_bytes` (0: no cache).
    pub fn new(config: PoolConfig, roots: SuperRoot, cache_bytes: u64) -> Self {
        let (cache, entries) = (Arc::new(IndexCache::new(cache_bytes)), Arc::new(EntryCache::new(0)));
        Self { config, roots, cache, entries }
    }

    /// The same with a cache of single keys' places of up to `bytes` beside it, for speculative lookups (0: none).
    #[must_use]
    pub fn with_entry_cache(self, bytes: u64) -> Self {
        Self { entries: Arc::new(EntryCache::new(bytes)), ..self }
    }

    /// Creates a client for the calling thread, over its own device or its own handle to one. Give each thread another seed, so that two
    /// threads that met at a lock do not meet again.
    ///
    /// The client opens a session of its own with each server: allow a client address as many sessions as it has threads.
    ///
    /// # Errors
    /// When the configuration cannot work.
    pub fn client<V: Verbs>(&self, verbs: V, seed: u64) -> Result<Client<V>, PoolError> {
        let client = Client::new(verbs, self.config, self.roots.clone(), seed)?;
        client.set_cache(Some(Arc::clone(&self.cache)));
        client.set_entry_cache(Some(Arc::clone(&self.entries)));
        Ok(client)
    }

    /// The index cache that all clients share.
    pub fn cache(&self) -> &Arc<IndexCache> {
        &self.cache
    }

    /// The entry cache that all clients share.
    pub fn entries(&self) -> &Arc<EntryCache> {
        &self.entries
    }
}

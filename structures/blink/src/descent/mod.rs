//! The way down a tree, shared by all operations: reads nodes, checks them, follows siblings, begins again.

mod bucket;
mod decide;
mod partner;
mod recover;
mod steps;

use fatbtree_remote_memory::{GlobalAddress, Lane, Path, Suspicion};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::{Duration, Instant};

use crate::config::TreeConfig;
use crate::layers::Layer;
use crate::operation::{Start, Trips};
use crate::pool::Pool;
use crate::speculation::EntryCache;
use crate::super_root::Partition;

pub(crate) use decide::LockedPlace;
pub(crate) use partner::Upper;
pub(crate) use recover::Reason;
pub(crate) use steps::HintResult;

/// The node to read next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Index,
    Node { address: GlobalAddress, level: u8 },
}

/// A node as its parent should know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Child {
    /// Its lowest key.
    pub(crate) low: u64,
    pub(crate) address: GlobalAddress,
    /// The parent's level.
    pub(crate) parent_level: u8,
}

/// One operation's way through the tree.
///
/// Every node is checked before a step is taken from it: magic, format, free bit, the version of every line, own address,
/// level, fences. A torn node is read again after a pause; a key right of the node's high fence moved to a sibling in a split;
/// anything else was reached by a stale pointer, and the walk begins again at the partition's own root, without the
/// switches. So a stale cache, in a switch or in a client, costs round trips, never a wrong answer.
///
/// ```text
///            begin                    torn: same read again
///              │                      ┌──────────┐
///   Root ──► ┌─▼──────────────────────▼─┐        │
///   Index ─► │ read node, check         ├────────┘      arrived at the level wanted
///   Node ──► │                          ├─────────────────────────────────────────►
///            └─▲───────────┬────────────┘
///              └───────────┘            │ stale: recover, begin at the root
///           child, right sibling        ▼
/// ```
pub(crate) struct Descent<'p, V: Verbs> {
    pool: &'p Pool<V>,
    /// The key, in the layer where the descent is.
    key: u64,
    /// That layer; none: the first one.
    layer: Option<Box<Layer>>,
    lane: Lane,
    partition: Partition,
    /// Number of the tree, by the entry cache, when the descent began.
    entry_tree: u32,
    started: Instant,
    /// Time of the first node that was refused, or of the first request that the device refused.
    lost_since: Option<Instant>,
    /// Requests that the device refused for now.
    refusals: u32,
    /// The layer where the descent is has no keys any more, or is not there.
    is_gone: bool,
    /// No more index reads: one was a stale hint, or its connection broke.
    walks: bool,
    /// Siblings followed and partners asked since the last start.
    siblings: u32,
    /// The node that the cache has led this attempt to, and its level.
    cached: Option<(GlobalAddress, u8)>,
    /// The switches have led this attempt to the node that is read, and nothing says yet whether it is the key's.
    by_switches: bool,
    /// The level of the node that pointed to the one that is read: its parent or, after a sibling step, none.
    pointed_from: Option<u8>,
    /// A node on the way that its parent has no pointer to.
    untold: Option<Child>,
    /// End of the keys of the node that the descent arrived at.
    high: Option<u64>,
    /// Records that were found to be wrong, and one among them that is damaged for sure.
    suspicion: Suspicion,
    damaged: Option<GlobalAddress>,
    trips: Trips,
}

impl<'p, V: Verbs> Descent<'p, V> {
    pub(crate) fn new(pool: &'p Pool<V>, key: u64) -> Self {
        Self::on_lane(pool, key, pool.take_lane())
    }

    /// One for another key of an operation that goes on: on the same lane, whose order it relies on.
    pub(crate) fn for_key(&self, key: u64) -> Self {
        let mut other = Self::on_lane(self.pool, key, self.lane.apart());
        if self.layer.is_some() {
            (other.layer, other.partition) = (self.layer.clone(), self.partition);
        }
        other
    }

    /// One for a key of a layer.
    pub(crate) fn within(pool: &'p Pool<V>, layer: Option<&Layer>, key: u64) -> Self {
        let mut descent = Self::new(pool, key);
        if let Some(layer) = layer {
            descent.enter(layer.clone(), key);
        }
        descent
    }

    /// Goes on in a layer, where the key is another one.
    pub(crate) fn enter(&mut self, layer: Layer, key: u64) {
        self.partition = layer.partition();
        self.set_layer(Some(Box::new(layer)), key);
    }

    /// Goes back to a layer above; none: the first one.
    pub(crate) fn go_back(&mut self, layer: Option<Box<Layer>>, key: u64) {
        self.partition = match &layer {
            Some(layer) => layer.partition(),
            None => self.pool.partition_of(key),
        };
        self.is_gone = false;
        self.set_layer(layer, key);
    }

    fn set_layer(&mut self, layer: Option<Box<Layer>>, key: u64) {
        (self.key, self.layer) = (key, layer);
        // What is known of the way is of the layer that was left.
        (self.cached, self.by_switches, self.pointed_from, self.untold) = (None, false, None, None);
    }

    /// The layer where the descent is; none: the first one.
    pub(crate) fn layer(&self) -> Option<&Layer> {
        self.layer.as_deref()
    }

    /// Shape of the nodes of this layer.
    #[inline]
    pub(crate) fn tree(&self) -> &TreeConfig {
        match &self.layer {
            None => &self.pool.config().tree,
            Some(layer) => layer.tree(),
        }
    }

    /// The key that the records of this key have: that of the first layer.
    #[inline]
    pub(crate) fn record_key(&self) -> u64 {
        match &self.layer {
            None => self.key,
            Some(layer) => layer.first(),
        }
    }

    /// Tells the cache of a node that its copy of the parent may not know.
    pub(crate) fn teach_parent(&self, child: Child) {
        if self.layer.is_none() {
            self.pool.teach_cache(child);
        }
    }

    /// Notes a root that was announced.
    pub(crate) fn set_root(&mut self, root: GlobalAddress, level: u8) {
        match &mut self.layer {
            None => self.pool.set_root(self.partition.id, root, level),
            Some(layer) => {
                layer.set_root(root, level);
                self.partition = layer.partition();
            }
        }
    }

    fn on_lane(pool: &'p Pool<V>, key: u64, lane: Lane) -> Self {
        Self {
            pool,
            key,
            layer: None,
            lane,
            partition: pool.partition_of(key),
            entry_tree: pool.entries(EntryCache::tree).unwrap_or_default(),
            started: pool.reactor().now(),
            lost_since: None,
            refusals: 0,
            is_gone: false,
            walks: false,
            siblings: 0,
            cached: None,
            by_switches: false,
            pointed_from: None,
            untold: None,
            high: None,
            suspicion: Suspicion::default(),
            damaged: None,
            trips: Trips::default(),
        }
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn pool(&self) -> &'p Pool<V> {
        self.pool
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }

    pub(crate) fn entry_tree(&self) -> u32 {
        self.entry_tree
    }

    pub(crate) fn partition(&self) -> &Partition {
        &self.partition
    }

    pub(crate) fn trips_mut(&mut self) -> &mut Trips {
        &mut self.trips
    }

    /// Notes that a record to which a leaf's entry leads is wrong. While it is written anew, the entry changes; what stays so is damaged.
    pub(crate) fn doubt(&mut self, at: GlobalAddress, link: u64, bytes: u32) {
        if self.suspicion.is_sure(at, link, &bytes.to_le_bytes()) {
            self.damaged = Some(at);
        }
    }

    /// Ends the descent: its round trips and its duration.
    pub(crate) fn end(self) -> (Trips, Duration) {
        let trips = Trips { round_trips: self.lane.round_trips(), ..self.trips };
        (trips, self.pool.reactor().now() - self.started)
    }

    /// The way to the server of its partition.
    fn path(&self) -> Path<'_> {
        self.lane.to(self.partition.root.server())
    }

    /// Prepares an attempt: waits for the connection, and says where the walk really begins.
    pub(crate) async fn begin(&mut self, start: Start) -> Result<Start, Reason> {
        let registered = loop {
            if self.layer.is_some() {
                break self.pool.until_up(self.path().id).await?;
            }
            self.partition = self.pool.partition_of(self.key);
            let registered = self.pool.until_up(self.path().id).await?;
            // A server that was away has told its root, and perhaps other keys than were taken for its own.
            let now = self.pool.partition_of(self.key);
            let same = now.id == self.partition.id;
            self.partition = now;
            if same {
                break registered;
            }
        };
        self.cached = None;
        let start = match start {
            _ if self.walks => Start::Root,
            Start::Cached | Start::CachedOrIndexRead => self.ask_cache(start, registered),
            start => start,
        };
        Ok(match start {
            Start::IndexRead if !registered => {
                self.walks = true;
                self.pool.count(|stats| stats.unregistered += 1);
                Start::Root
            }
            start => start,
        })
    }

    #[inline]
    fn ask_cache(&mut self, start: Start, registered: bool) -> Start {
        if let Some(leaf) = self.pool.cached(|cache| cache.leaf_of(self.key)) {
            self.pool.count_cache(|stats| stats.hits += 1);
            self.cached = Some((leaf, 0));
            return Start::Node { address: leaf, level: 0 };
        }
        self.pool.count_cache(|stats| stats.misses += 1);
        if start == Start::CachedOrIndexRead && registered {
            return Start::IndexRead;
        }
        self.cached = self.pool.cached(|cache| cache.below_top(self.key, self.partition.root_level));
        match (self.cached, start) {
            (Some((address, level)), _) => Start::Node { address, level },
            (None, Start::CachedOrIndexRead) => Start::IndexRead,
            (None, _) => Start::Root,
        }
    }

    /// End of the keys for which the node is responsible that the descent arrived at: its high fence or, if
    /// its partner has its upper keys, the partner's low fence.
    pub(crate) fn high(&self) -> Option<u64> {
        self.high
    }

    /// A node that was met on the way although its parent has no pointer to it. It is told once.
    pub(crate) fn take_untold(&mut self) -> Option<Child> {
        self.untold.take()
    }

    /// Notes such a node.
    pub(crate) fn note_untold(&mut self, child: Child) {
        self.untold = Some(child);
    }
}

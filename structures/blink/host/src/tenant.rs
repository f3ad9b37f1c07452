//! The B-link tree as a tenant of a memory server.
//!
//! **What was written.** A slot for a node holds one, alive or freed, or was never used. Records lie one after another. The head of each says
//! how long it is, and a client that dies leaves a prefix of what it was writing, so the head before all else.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use fatbtree_blink::layers::block_bytes;
use fatbtree_blink::node::{LINE, MAGIC, NodeHeader};
use fatbtree_blink::record::{RECORD_ALIGN, RECORD_HEAD, RecordHead, is_record, place_bytes};
use fatbtree_blink::size_class::{
    self, INTERNAL_NODES, LAYER_INTERNAL_NODES, LAYER_LEAVES, LAYERS, LEAVES, RECORDS,
};
use fatbtree_blink::{
    GlobalAddress, HEADER_BYTES, Integrity, MAX_VALUE, Partition, Regions, SizeClass, Superblock, Tree,
    TreeConfig, TreeTop, nodes_from,
};
use fatbtree_memserver::{
    Class, Counter, Found, Loaded, Marked, Reply, Seen, ServerGone, Shape, Tenant, find_block, find_slot,
};
use fatbtree_verbs::{Device, Memory};

use crate::finder::{Finder, KeyPlaces, LocateError};
use crate::load::{LayerCounts, Layout, LoadCounts, LoadedTree};
use crate::marks::Marks;
use crate::snapshots::{SnapshotError, Snapshots};
use crate::{TreeHandle, TreeServer};

/// Bytes of the longest place for a record.
const LONGEST_RECORD: u64 = place_bytes(MAX_VALUE) as u64;

/// A memory server's description of its tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeInfo {
    /// Number, key range, root.
    pub partition: Partition,
    /// The tree's shape.
    pub config: TreeConfig,
    /// Keys, nodes, records, as they were loaded.
    pub counts: LoadCounts,
}

/// Words for people: `partition=0 low=0 root=64`.
impl fmt::Display for TreeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Partition { id, root, range, .. } = self.partition;
        write!(f, "partition={id} low={} root={}", range.low, root.raw())
    }
}

/// Bounds of walks over the tree on behalf of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkLimits {
    /// Requests for a snapshot that wait at once; they share its reading.
    pub snapshot_requests: usize,
    /// Nodes of the largest snapshot. One takes about 300 bytes in memory.
    pub snapshot_nodes: usize,
    /// Requests to locate keys that wait at once. One takes up to 50 KB.
    pub locate_requests: usize,
}

impl Default for WalkLimits {
    /// 16 requests for a snapshot of up to 2^24 nodes, 64 to locate keys.
    fn default() -> Self {
        Self { snapshot_requests: 16, snapshot_nodes: 1 << 24, locate_requests: 64 }
    }
}

/// Requests that only a tree answers.
#[derive(Debug)]
pub enum TreeRequest {
    /// The top of the tree: answered when it has been read.
    Snapshot(Reply<Result<Arc<TreeTop>, SnapshotError>>),
    /// Places of keys: answered when they have been found.
    Locate {
        /// The keys.
        keys: Vec<u64>,
        /// The way back.
        reply: Reply<Result<KeyPlaces, LocateError>>,
    },
}

/// The tree of one partition.
#[derive(Debug)]
pub struct Blink {
    pub(super) info: TreeInfo,
    generation: u64,
    pub(super) region: Arc<Memory>,
    /// The same, as walks want it.
    pub(super) memory: Regions,
    /// Records that leaves lead to.
    pub(super) marks: Marks,
    snapshots: Snapshots,
    finder: Finder,
}

impl From<LoadedTree> for Loaded<Blink> {
    fn from(tree: LoadedTree) -> Self {
        let LoadedTree { region, spare, config, partition, counts, generation, origin, chunk_classes, walks } =
            tree;
        let tenant = Blink {
            info: TreeInfo { partition, config, counts },
            generation,
            memory: Regions::new([(partition.id, Arc::clone(&region))]),
            region: Arc::clone(&region),
            marks: Marks::default(),
            snapshots: Snapshots::new(walks.snapshot_nodes, walks.snapshot_requests),
            finder: Finder::new(walks.locate_requests),
        };
        let shape = Shape {
            classes: classes(&config, &counts),
            reach: config.max_node_bytes(),
            whole_lines: config.integrity() == Integrity::LineVersions,
        };
        Loaded { server: partition.id, region, spare, generation, origin, chunk_classes, shape, tenant }
    }
}

/// The size classes of a tree, by [number](size_class), and where it lies that was loaded: leaves, inner nodes, layers, records.
pub(crate) fn classes(config: &TreeConfig, counts: &LoadCounts) -> Vec<Class> {
    let behind = |from: u64, count: u64, bytes: u64| from.saturating_add(count.saturating_mul(bytes));
    let (leaf_bytes, internal_bytes) = (config.leaf_bytes(), config.internal_bytes());
    let LayerCounts { layers, leaf_nodes, internal_nodes } = counts.below;
    let leaves_from = nodes_from(config);
    let internal_from = behind(leaves_from, counts.leaf_nodes, leaf_bytes.into());
    let layers_from = behind(internal_from, counts.internal_nodes, internal_bytes.into());
    let layer_leaves_from = behind(layers_from, layers, block_bytes(config).into());
    let layer_internal_from = behind(layer_leaves_from, leaf_nodes, leaf_bytes.into());
    let records_from = behind(layer_internal_from, internal_nodes, internal_bytes.into());
    let places = [
        (leaf_bytes, leaves_from..internal_from),
        (internal_bytes, internal_from..layers_from),
        (0, records_from..records_from.saturating_add(counts.record_bytes)),
        (block_bytes(config), layers_from..layer_leaves_from),
        (leaf_bytes, layer_leaves_from..layer_internal_from),
        (internal_bytes, layer_internal_from..records_from),
    ];
    let named = size_class::NAMES.into_iter().zip(places);
    named.map(|(name, (bytes, loaded))| Class { name, bytes, loaded }).collect()
}

impl Blink {
    /// Whether this is a superblock of this region, with a root in it.
    pub(super) fn may_be_root(&self, found: &Superblock) -> bool {
        let TreeInfo { partition: known, config, .. } = &self.info;
        let partition = &found.partition;
        let offset = partition.root.offset();
        let node = u64::from(config.node_bytes(partition.root_level));
        let end = self.region.len().saturating_sub(u64::from(config.max_node_bytes()));
        found.check(known, config).is_ok()
            && (found.generation, found.region_bytes) == (self.generation, self.region.len())
            && offset >= nodes_from(config)
            && offset.is_multiple_of(LINE as u64)
            && offset + node <= end
    }
}

impl Tenant for Blink {
    type Description = TreeInfo;
    type Request = TreeRequest;

    fn description(&self) -> TreeInfo {
        self.info
    }

    fn root(&self) -> GlobalAddress {
        self.info.partition.root
    }

    /// Takes over the root that a client has written into the superblock. A superblock that is being written, or is damaged, changes nothing.
    fn see(&mut self, header: &[u8; HEADER_BYTES]) -> Seen {
        match Superblock::parse(header) {
            Ok(found) if self.may_be_root(&found) => {
                let before = std::mem::replace(&mut self.info.partition, found.partition);
                if before == found.partition { Seen::Same } else { Seen::Changed }
            }
            _ => Seen::Refused,
        }
    }

    fn find(&self, class: SizeClass, within: Range<u64>) -> Found {
        // A node's version is another one after each whole write.
        let node = |at| {
            node_at(&self.region, at).map(|header| u64::from(header.version) << 8 | u64::from(header.flags))
        };
        match class {
            LAYERS => find_slot(within, block_bytes(&self.info.config).into(), node),
            LEAVES | LAYER_LEAVES => find_slot(within, self.info.config.leaf_bytes().into(), node),
            INTERNAL_NODES | LAYER_INTERNAL_NODES => {
                find_slot(within, self.info.config.internal_bytes().into(), node)
            }
            _ => find_block(&self.region, within, (RECORD_ALIGN, LONGEST_RECORD), |at| {
                let head = record_at(&self.region, at)?;
                Some((at + u64::from(place_bytes(head.length())), head.stamp()))
            }),
        }
    }

    fn is_free(&self, class: SizeClass, block: Range<u64>) -> bool {
        if class != RECORDS {
            return self.is_free_node(class, block.start);
        }
        let record = record_at(&self.region, block.start);
        record.is_some_and(|head| block.start + u64::from(place_bytes(head.length())) == block.end)
    }

    /// Keys that were loaded need no chunks, nor do short values in a leaf that has room.
    fn is_used(&self, chunks: u64) -> bool {
        chunks > 0 || !self.is_empty(&mut std::iter::empty())
    }

    /// Freed nodes, and records: see `marks`.
    fn swept(&self) -> &[SizeClass] {
        &size_class::CLASSES
    }

    fn begin_marks(&mut self, _of: u16, _bytes: u64, _parts: &dyn Fn(SizeClass) -> Vec<Range<u64>>) {
        self.begin_walk();
    }

    fn mark(&mut self, budget: usize) -> bool {
        self.walk(budget)
    }

    fn take_marks(&mut self) -> Marked {
        self.take_walk()
    }

    fn is_marked(&self, marks: &Marked, class: SizeClass, block: Range<u64>) -> bool {
        match class {
            RECORDS => self.is_record_marked(marks, &block),
            LAYERS => self.is_layer_marked(marks, &block),
            _ => !self.is_free_node(class, block.start),
        }
    }

    fn is_empty(&self, _in_use: &mut dyn Iterator<Item = Range<u64>>) -> bool {
        let TreeInfo { partition, config, .. } = &self.info;
        let mut keys = 0;
        let tree = Tree::new(&self.memory, config, partition);
        let read =
            partition.root_level == 0 && tree.for_each_leaf(|leaf| keys += leaf.entries().count()).is_ok();
        read && keys == 0
    }

    fn handle(&mut self, request: TreeRequest) {
        match request {
            TreeRequest::Snapshot(reply) => self.snapshots.ask(reply),
            TreeRequest::Locate { keys, reply } => self.finder.ask(keys, reply),
        }
    }

    /// Reads up to `budget` nodes for snapshots, and as many to locate keys, and those that one key takes more.
    fn work(&mut self, budget: usize) -> bool {
        let TreeInfo { partition, config, .. } = &self.info;
        self.snapshots.work(&self.memory, config, partition, budget)
            | self.finder.work(&self.memory, config, partition, budget)
    }

    fn statistics(&self) -> Vec<Counter> {
        let (snapshots, finder, counts) = (&self.snapshots, &self.finder, &self.info.counts);
        [
            ("keys_located", finder.looked_for),
            ("keys_located_nodes", finder.nodes),
            ("loaded_keys", counts.keys),
            ("loaded_record_bytes", counts.record_bytes),
            ("snapshots", snapshots.finished),
            ("snapshots_failed", snapshots.failed),
            ("snapshots_waiting", snapshots.waiting() as u64),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into()
    }

    /// A tree of the same partition. Its leaves may be others: clients learn that when they connect anew, and clients that are at work are told.
    fn may_follow(&self, former: &Self) -> bool {
        let (own, former) = (&self.info, &former.info);
        Layout::of(&own.config).after(&former.config) == Ok(own.config)
            && own.partition.id == former.partition.id
    }

    fn succeed(&mut self, former: Self) {
        (self.snapshots, self.finder) = (former.snapshots, former.finder);
        self.snapshots.begin_anew();
        self.finder.begin_anew();
    }
}

/// Requests to the thread that has a memory server of a tree.
pub trait TreeRequests {
    /// The top of the tree, when it has been read.
    ///
    /// # Errors
    /// When the server is gone; inside, when too many ask or the tree cannot be read.
    fn snapshot(
        &self,
    ) -> impl Future<Output = Result<Result<Arc<TreeTop>, SnapshotError>, ServerGone>> + Send;

    /// Places of keys, when they have been found.
    ///
    /// # Errors
    /// When the server is gone; inside, when too many ask or there are too many keys.
    fn locate(
        &self,
        keys: Vec<u64>,
    ) -> impl Future<Output = Result<Result<KeyPlaces, LocateError>, ServerGone>> + Send;
}

impl TreeRequests for TreeHandle {
    async fn snapshot(&self) -> Result<Result<Arc<TreeTop>, SnapshotError>, ServerGone> {
        self.ask_tenant(TreeRequest::Snapshot).await
    }

    async fn locate(&self, keys: Vec<u64>) -> Result<Result<KeyPlaces, LocateError>, ServerGone> {
        self.ask_tenant(|reply| TreeRequest::Locate { keys, reply }).await
    }
}

/// Announces another root: writes the superblock. Clients that split a root do the same over the network.
///
/// # Errors
/// When no node of this tree can lie there.
pub fn set_root<D: Device>(server: &mut TreeServer<D>, root: GlobalAddress, level: u8) -> Result<(), NoRoot> {
    let none = NoRoot { root, level };
    let mut line = [0; HEADER_BYTES];
    server.memory().read(0, &mut line).map_err(|_| none)?;
    let new = Superblock::parse(&line).map_err(|_| none)?.with_root(root, level);
    if !server.tenant().may_be_root(&new) {
        return Err(none);
    }
    server.memory().write(0, &new.to_bytes()).map_err(|_| none)?;
    server.watch_header();
    Ok(())
}

/// A root that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no root of level {level} can lie at {root}, or the superblock is damaged: expected a whole line inside of the region"
)]
pub struct NoRoot {
    /// Stated address of the root.
    pub root: GlobalAddress,
    /// Its level.
    pub level: u8,
}

/// The header of the node at an offset, if one lies there, alive or freed.
pub(super) fn node_at(memory: &Memory, offset: u64) -> Option<NodeHeader> {
    let mut line = [0; LINE];
    memory.read(offset, &mut line).ok()?;
    let header = NodeHeader::parse(&line);
    (header.magic == MAGIC).then_some(header)
}

/// The head of the record at an offset, if one begins there.
pub(super) fn record_at(memory: &Memory, offset: u64) -> Option<RecordHead> {
    let mut head = [0; RECORD_HEAD];
    memory.read(offset, &mut head).ok().filter(|()| is_record(&head))?;
    Some(RecordHead::parse(&head)).filter(|head| head.length() <= MAX_VALUE)
}

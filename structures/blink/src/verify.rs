//! A walk over whole trees that checks every invariant.
//!
//! ```text
//!   parents' children   A      B      C            each is on the way, and begins at its pivot
//!                       │      │      │
//!   level l             A ───► B ──►x──► C ───►∅   the way by siblings: fences tile the partition without a gap
//!                                   │
//!                                   untold: no parent knows it yet; a split stopped there, and readers pass by B
//! ```
//!
//! Meant for trees without writers: a node that is written meanwhile may be taken for a damaged one. The
//! nodes that parents know are read some at a time, as are records. Where the memory is at hand, records are
//! not read, but it is checked where they lie.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::ops::AddAssign;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use fatbtree_remote_memory::record::{RecordHead, RecordPointer, read_record, record_bytes};
use fatbtree_remote_memory::{GlobalAddress, KeyRange, RemoteMemory, SizeClass};
use fatbtree_verbs::Verbs;
use futures_buffered::FuturesOrderedBounded;
use futures_core::Stream;

use crate::config::{Keys, TreeConfig};
use crate::descent::Descent;
use crate::layers::{Layer, LayerEntry, LayerState};
use crate::node::{EntryValue, InternalNode, LeafNode, Node, NodeFault, NodeHeader, revive};
use crate::operation::OperationError;
use crate::pool::Pool;
use crate::size_class::{self, RECORDS};
use crate::super_root::Partition;
use crate::superblock::{SUPERBLOCK_BYTES, Superblock, SuperblockError};
use crate::walk::Regions;

/// Nodes or records that are read at the same time.
const AT_ONCE: usize = 16;

/// Parts of the trees, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Partitions.
    pub partitions: u64,
    /// Nodes above the leaves.
    pub internal_nodes: u64,
    /// Children of them, all together.
    pub children: u64,
    /// Leaves.
    pub leaves: u64,
    /// Keys.
    pub keys: u64,
    /// Records, each checked; none where values lie in leaves.
    pub records: u64,
    /// Records among them that are not marked as the ones that count, although they do: their writers died. Switches that lead to
    /// them cost a round trip.
    pub unpublished: u64,
    /// Level of the highest root.
    pub height: u8,
    /// Layers below the first one, of keys of bytes that begin alike.
    pub layers: u64,
    /// Nodes that no parent knows, found by their left neighbours.
    pub untold: u64,
    /// Nodes with a partner: a split or merge stopped half-way. Layers that are coming or going.
    pub unsettled: u64,
    /// Entries that the leaves have room for.
    pub room: u64,
    /// Children that the other nodes have room for.
    pub room_for_children: u64,
}

/// Words for people: `whole: 2000 keys in 180 leaves, …`.
impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, leaves, internal_nodes, height, .. } = self;
        let full = self.leaf_fill() * 100.0;
        write!(
            f,
            "whole: {keys} keys in {leaves} leaves, {full:.0} % full, under {internal_nodes} internal nodes; root at level {height}"
        )
    }
}

impl Verified {
    /// The share of the leaves' entries that is used.
    #[must_use]
    pub fn leaf_fill(&self) -> f64 {
        self.keys as f64 / self.room.max(1) as f64
    }

    /// The share of the other nodes' room that is used.
    #[must_use]
    pub fn internal_fill(&self) -> f64 {
        self.children as f64 / self.room_for_children.max(1) as f64
    }
}

impl AddAssign for Verified {
    fn add_assign(&mut self, other: Self) {
        self.partitions += other.partitions;
        self.internal_nodes += other.internal_nodes;
        self.children += other.children;
        self.leaves += other.leaves;
        self.keys += other.keys;
        self.records += other.records;
        self.unpublished += other.unpublished;
        self.height = self.height.max(other.height);
        self.layers += other.layers;
        self.untold += other.untold;
        self.unsettled += other.unsettled;
        self.room += other.room;
        self.room_for_children += other.room_for_children;
    }
}

/// Errors from verifying a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerifyError {
    /// A node is damaged, or not where or what its neighbours say.
    #[error("node {address} at level {level}: {damage}")]
    Node {
        /// Its address.
        address: GlobalAddress,
        /// Its level, as its parent or left neighbour implies.
        level: u8,
        /// The problem.
        damage: Damage,
    },
    /// The superblock is none, or another tree's.
    #[error("superblock of partition {partition}: {error}")]
    Superblock {
        /// The partition.
        partition: u16,
        /// The problem.
        error: SuperblockError,
    },
    /// A pointer leads where nothing of its class lies.
    #[error("the tree leads to {address} for {}, where none of them can lie", size_class::name(*class))]
    Elsewhere {
        /// The address that it leads to.
        address: GlobalAddress,
        /// The expected class.
        class: SizeClass,
    },
    /// A part of the tree lies outside of the memory.
    #[error("{len} bytes at {address} lie outside of the memory")]
    Outside {
        /// The address.
        address: GlobalAddress,
        /// Bytes.
        len: u32,
    },
    /// Something could not be read.
    #[error("{address} cannot be read: {error}")]
    Unreadable {
        /// The address that was to be read.
        address: GlobalAddress,
        /// Reason for which the read failed.
        error: OperationError,
    },
}

/// Damage of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damage {
    /// It is none, was freed, is torn, or says that it is elsewhere or of another level.
    #[error(transparent)]
    Fault(#[from] NodeFault),
    /// Its keys do not begin where those of its left neighbour, or the partition's keys below it, end.
    #[error("its low fence is {found:#x}, {expected:#x} was expected")]
    Low {
        /// Its low fence.
        found: u64,
        /// End of its left neighbour.
        expected: u64,
    },
    /// Its keys do not end where they should.
    #[error("its high fence is {found:x?}, {expected:x?} was expected (None: no end)")]
    High {
        /// Its high fence.
        found: Option<u64>,
        /// The expected value.
        expected: Option<u64>,
    },
    /// It is the last of its level, and there is another one after it.
    #[error("it is the last of its level, but has a sibling, {0}")]
    Sibling(GlobalAddress),
    /// Its parent says that it begins at another key.
    #[error("its low fence is {found:#x}, its parent's pivot is {pivot:#x}")]
    Pivot {
        /// Its low fence.
        found: u64,
        /// The pivot.
        pivot: u64,
    },
    /// Its left neighbours lead past it.
    #[error("its parent knows it by the pivot {pivot:#x}, but siblings do not lead there")]
    NotASibling {
        /// The pivot.
        pivot: u64,
    },
    /// Another entry leads to the same layer.
    #[error("another entry leads to the same layer, {0}")]
    LayerTwice(GlobalAddress),
    /// A record that is none, or another key's.
    #[error("the record {record} of key {key:#x}: {fault}")]
    Record {
        /// The key.
        key: u64,
        /// Address of the record.
        record: GlobalAddress,
        /// The problem.
        fault: NodeFault,
    },
}

impl<V: Verbs> Pool<V> {
    /// Walks over every node and record of all partitions, over verbs, and checks all that must be true of a
    /// tree without writers: superblocks, own addresses, levels, fences that tile each level, pivots,
    /// siblings, keys, records. Unfinished work of stopped writers is counted, not refused: see
    /// [`Verified::untold`] and [`Verified::unsettled`].
    ///
    /// # Errors
    /// The first damage, by address, level and reason.
    pub async fn verify(&self) -> Result<Verified, VerifyError> {
        let mut all = Verified::default();
        for partition in self.roots().partitions() {
            all += Walk::new(self, *partition).run().await?;
        }
        Ok(all)
    }
}

/// Checks all that must be true of the tree of `partition` in memory at hand, as [`Pool::verify`] does, but
/// for the records: of those only their place. Its `may_lie` says whether an object of a class may begin at an
/// offset and reach over a number of bytes. Nodes must pass the same check.
///
/// # Errors
/// The first damage, by address, level and reason.
pub fn verify_at_hand(
    memory: &Regions,
    config: &TreeConfig,
    partition: Partition,
    may_lie: impl Fn(SizeClass, u64, u64) -> bool,
) -> Result<Verified, VerifyError> {
    let source = AtHand { memory, config, server: partition.id, may_lie };
    let mut walk = pin!(Walk::new(&source, partition).run());
    let mut context = Context::from_waker(Waker::noop());
    loop {
        // Nothing in it waits for anything.
        if let Poll::Ready(result) = walk.as_mut().poll(&mut context) {
            return result;
        }
    }
}

/// Source of a walk's nodes.
trait Source {
    fn tree(&self) -> &TreeConfig;

    /// Reads a node, or another part of the tree. `key` is one of the partition, for messages.
    async fn read(&self, key: u64, address: GlobalAddress, len: u32) -> Result<Vec<u8>, VerifyError>;

    /// Checks that a node or record of `len` bytes may begin there.
    fn check_place(&self, class: SizeClass, address: GlobalAddress, len: u32) -> Result<(), VerifyError>;

    /// Whether records are read.
    const RECORDS: bool;
}

impl<V: Verbs> Source for Pool<V> {
    fn tree(&self) -> &TreeConfig {
        &self.config().tree
    }

    async fn read(&self, key: u64, address: GlobalAddress, len: u32) -> Result<Vec<u8>, VerifyError> {
        read(self, key, address, len).await
    }

    /// The checks of what is read suffice here: only servers know more.
    fn check_place(&self, _: SizeClass, _: GlobalAddress, _: u32) -> Result<(), VerifyError> {
        Ok(())
    }

    const RECORDS: bool = true;
}

/// One server's memory.
struct AtHand<'m, F> {
    memory: &'m Regions,
    config: &'m TreeConfig,
    server: u16,
    may_lie: F,
}

impl<F: Fn(SizeClass, u64, u64) -> bool> Source for AtHand<'_, F> {
    fn tree(&self) -> &TreeConfig {
        self.config
    }

    async fn read(&self, _: u64, address: GlobalAddress, len: u32) -> Result<Vec<u8>, VerifyError> {
        let mut bytes = vec![0; len as usize];
        let read = self.memory.read(address, &mut bytes);
        read.map_err(|_| VerifyError::Outside { address, len }).map(|()| bytes)
    }

    fn check_place(&self, class: SizeClass, address: GlobalAddress, len: u32) -> Result<(), VerifyError> {
        let is_here = address.server() == self.server;
        match is_here && (self.may_lie)(class, address.offset(), len.into()) {
            true => Ok(()),
            false => Err(VerifyError::Elsewhere { address, class }),
        }
    }

    const RECORDS: bool = false;
}

/// The walk over one partition's tree.
struct Walk<'p, S> {
    source: &'p S,
    partition: Partition,
    /// The layer that is walked over, where keys are bytes; none: the first one.
    layer: Option<Layer>,
    tree: TreeConfig,
    found: Verified,
    /// Entries that lead to layers.
    layers: Vec<LayerEntry>,
    /// Layers that entries lead to.
    led_to: HashSet<GlobalAddress>,
}

/// A node that was read, and where its level goes on.
struct Passed {
    bytes: Vec<u8>,
    /// Without what its partner has.
    range: KeyRange,
    next: GlobalAddress,
}

type Children = Vec<(u64, GlobalAddress)>;

impl<'p, S: Source> Walk<'p, S> {
    fn new(source: &'p S, partition: Partition) -> Self {
        let found = Verified { partitions: 1, ..Verified::default() };
        let (tree, layers, led_to) = (*source.tree(), Vec::new(), HashSet::new());
        Self { source, partition, layer: None, tree, found, layers, led_to }
    }

    async fn run(mut self) -> Result<Verified, VerifyError> {
        let Partition { root, root_level, range, .. } = self.superblock().await?;
        self.found.height = root_level;
        self.levels(range, (root, root_level)).await?;
        while let Some(entry) = self.layers.pop() {
            self.layer(&entry).await?;
        }
        Ok(self.found)
    }

    async fn levels(
        &mut self,
        range: KeyRange,
        (root, level): (GlobalAddress, u8),
    ) -> Result<(), VerifyError> {
        let mut told = vec![(range.low, root)];
        for level in (0..=level).rev() {
            told = self.level(level, told).await?;
        }
        Ok(())
    }

    /// Walks over a layer of keys of bytes.
    async fn layer(&mut self, entry: &LayerEntry) -> Result<(), VerifyError> {
        let (address, len) = entry.block();
        self.source.check_place(size_class::LAYERS, address, len)?;
        let mut block = self.source.read(self.partition.range.low, address, len).await?;
        let wrong = |damage| VerifyError::Node { address, level: 0, damage };
        let (layer, state) = entry.read(&block).map_err(|fault| wrong(Damage::Fault(fault)))?;
        self.found.layers += 1;
        let root = layer.partition();
        (self.partition, self.tree) = (root, *layer.tree());
        self.layer = Some(layer);
        match state {
            LayerState::Here => self.levels(root.range, (root.root, root.root_level)).await,
            LayerState::Gone => {
                self.found.unsettled += 1;
                Ok(())
            }
            LayerState::Coming => {
                self.found.unsettled += 1;
                revive(block.first_chunk_mut().expect("a block has many lines"));
                let tree = self.tree;
                let node = Node::read(&tree, &block).map_err(|fault| wrong(Damage::Fault(fault)))?;
                let Node::Leaf(leaf) = node else { return Ok(()) };
                let records = self.leaf(&leaf, &root.range).map_err(wrong)?;
                self.records(address, records).await
            }
        }
    }

    async fn superblock(&mut self) -> Result<Partition, VerifyError> {
        let partition = self.partition.id;
        let at = GlobalAddress::new(partition, 0);
        let bytes = self.source.read(self.partition.range.low, at, SUPERBLOCK_BYTES).await?;
        let wrong = |error| VerifyError::Superblock { partition, error };
        let found = Superblock::parse(&bytes).map_err(wrong)?;
        let check = found.check(&self.partition, self.source.tree());
        check.map_err(|fault| wrong(fault.into()))?;
        Ok(found.partition)
    }

    /// Walks over one level by its siblings. `told` are the nodes that the level above knows; returns those that this one knows.
    async fn level(&mut self, level: u8, told: Children) -> Result<Children, VerifyError> {
        let (source, tree) = (self.source, self.tree);
        let len = tree.node_bytes(level);
        let mut children = Children::new();
        let mut ahead = FuturesOrderedBounded::new(AT_ONCE);
        let mut coming = told.iter();
        let mut told: VecDeque<_> = told.iter().copied().collect();
        let mut next = told[0].1;
        let mut low = self.partition.range.low;
        loop {
            while ahead.len() < AT_ONCE
                && let Some(&(pivot, address)) = coming.next()
            {
                ahead.push_back(source.read(pivot, address, len));
            }
            let (at, bytes) = match told.front() {
                Some(&(pivot, address)) if address == next => {
                    told.pop_front();
                    let bytes = poll_fn(|context| Pin::new(&mut ahead).poll_next(context)).await;
                    (Some(pivot), bytes.expect("as many are read as are told")?)
                }
                _ => (None, source.read(low, next, len).await?),
            };
            self.found.untold += u64::from(at.is_none());
            let wrong = |damage| VerifyError::Node { address: next, level, damage };
            let passed = self.pass(next, level, low, bytes).await?;
            if let Some(pivot) = at.filter(|pivot| *pivot != low) {
                return Err(wrong(Damage::Pivot { found: low, pivot }));
            }
            // The next one that is told must not be left of where the way goes on.
            let end = passed.range.high.filter(|high| Some(*high) != self.partition.range.high);
            if let Some(&(pivot, address)) = told.front()
                && address != passed.next
                && end.is_none_or(|end| pivot < end)
            {
                let damage = Damage::NotASibling { pivot };
                return Err(VerifyError::Node { address, level, damage });
            }
            match Node::of_checked(&tree, &passed.bytes) {
                Node::Internal(node) => self.internal(&node, &passed.range, &mut children),
                Node::Leaf(leaf) => {
                    let records = self.leaf(&leaf, &passed.range).map_err(wrong)?;
                    self.records(next, records).await?;
                }
            }
            match end {
                Some(end) => (low, next) = (end, passed.next),
                None => return Ok(children),
            }
        }
    }

    /// Checks what a node says of its place.
    async fn pass(
        &mut self,
        address: GlobalAddress,
        level: u8,
        low: u64,
        bytes: Vec<u8>,
    ) -> Result<Passed, VerifyError> {
        let tree = self.tree;
        let wrong = |damage| VerifyError::Node { address, level, damage };
        let fault = |fault| wrong(Damage::Fault(fault));
        // The first leaf of a layer has its head behind it.
        let is_first = self.layer.as_ref().is_some_and(|layer| layer.block().0 == address);
        let class = if is_first { size_class::LAYERS } else { size_class::of_node(&tree, level) };
        self.source.check_place(class, address, tree.node_bytes(level))?;
        let header = *Node::read(&tree, &bytes).map_err(fault)?.header();
        if header.address != address {
            return Err(fault(NodeFault::Address { found: header.address, expected: address }));
        }
        if header.level != level {
            return Err(fault(NodeFault::Level { found: header.level, expected: level }));
        }
        let (mut range, mut next) = (header.range(), header.sibling);
        if range.low != low {
            return Err(wrong(Damage::Low { found: range.low, expected: low }));
        }
        let end = self.partition.range.high;
        let is_last = range.high == end;
        if !is_last && range.high.is_none_or(|high| end.is_some_and(|end| high > end)) {
            return Err(wrong(Damage::High { found: range.high, expected: end }));
        }
        if !header.partner.is_null() {
            self.found.unsettled += 1;
            if let Some(middle) = self.half_of(&header).await? {
                // The partner is the next node then; what is after it, it says itself.
                (range.high, next) = (Some(middle), header.partner);
                return Ok(Passed { bytes, range, next });
            }
        }
        match (is_last, next.is_null()) {
            // While it splits it names its next sibling, and still has all keys.
            (true, false) if header.partner.is_null() => Err(wrong(Damage::Sibling(next))),
            (false, true) => Err(fault(NodeFault::NoSibling { high: range.high.unwrap_or(u64::MAX) })),
            _ => Ok(Passed { bytes, range, next }),
        }
    }

    /// First key of a node that its partner has, if any.
    async fn half_of(&self, header: &NodeHeader) -> Result<Option<u64>, VerifyError> {
        let tree = &self.tree;
        let bytes = self.source.read(header.low, header.partner, tree.node_bytes(header.level)).await?;
        let Ok(node) = Node::read(tree, &bytes) else { return Ok(None) };
        let found = node.header();
        let is_half = (found.address, found.level) == (header.partner, header.level)
            && found.low > header.low
            && header.range().contains(found.low);
        Ok(is_half.then_some(found.low))
    }

    fn internal(&mut self, node: &InternalNode<'_>, range: &KeyRange, children: &mut Children) {
        self.found.internal_nodes += 1;
        self.found.room_for_children += u64::from(self.tree.fan_out());
        let before = children.len();
        children.extend(node.children().filter(|(pivot, _)| range.contains(*pivot)));
        self.found.children += (children.len() - before) as u64;
    }

    /// Returns the records that the leaf leads to.
    fn leaf(&mut self, leaf: &LeafNode<'_>, range: &KeyRange) -> Result<Records, Damage> {
        self.found.leaves += 1;
        self.found.room += self.tree.leaf_capacity() as u64;
        let mut records = Records::new();
        for (key, value) in leaf.sorted()?.into_iter().filter(|(key, _)| range.contains(*key)) {
            match value {
                EntryValue::Inline(_) => self.found.keys += 1,
                EntryValue::Record(record) => {
                    self.found.keys += 1;
                    records.push((key, record));
                }
                EntryValue::Layer(layer) if self.tree.keys() == Keys::Bytes => {
                    if !self.led_to.insert(layer) {
                        return Err(Damage::LayerTwice(layer));
                    }
                    self.layers.push(LayerEntry::new(self.source.tree(), self.layer.as_ref(), key, layer));
                }
                EntryValue::Layer(layer) => return Err(NodeFault::NoLayers { layer }.into()),
            }
        }
        Ok(records)
    }

    async fn records(&mut self, leaf: GlobalAddress, records: Records) -> Result<(), VerifyError> {
        for (_, record) in &records {
            let len = record_bytes(record.length);
            self.source.check_place(RECORDS, record.address, len)?;
        }
        if !S::RECORDS {
            return Ok(());
        }
        let mut ahead = FuturesOrderedBounded::new(AT_ONCE);
        let mut coming = records.iter();
        for &(key, record) in &records {
            while ahead.len() < AT_ONCE
                && let Some(&(key, record)) = coming.next()
            {
                ahead.push_back(self.source.read(key, record.address, record_bytes(record.length)));
            }
            let bytes = poll_fn(|context| Pin::new(&mut ahead).poll_next(context)).await;
            let bytes = bytes.expect("each is read")?;
            let wrong = |fault| {
                let damage = Damage::Record { key, record: record.address, fault };
                VerifyError::Node { address: leaf, level: 0, damage }
            };
            let record_key = self.layer.as_ref().map_or(key, Layer::first);
            let value = read_record(&bytes, record_key, record).map_err(|fault| wrong(fault.into()))?;
            if self.layer.as_ref().is_some_and(|layer| !layer.may_have(key, value)) {
                return Err(wrong(NodeFault::OtherKey { entry: key }));
            }
            self.found.records += 1;
            let head = bytes.first_chunk().map(RecordHead::parse);
            let is_published = head.is_some_and(|head| head.is_published(record_key, record));
            self.found.unpublished += u64::from(!is_published);
        }
        Ok(())
    }
}

/// Keys, and where their records lie.
type Records = Vec<(u64, RecordPointer)>;

/// Reads bytes, over as many connections as it takes. `key` is one of the partition, for messages.
async fn read<V: Verbs>(
    pool: &Pool<V>,
    key: u64,
    address: GlobalAddress,
    len: u32,
) -> Result<Vec<u8>, VerifyError> {
    let mut descent = Descent::new(pool, key);
    loop {
        match RemoteMemory::read_long(pool, descent.lane(), address, len.into()).await {
            // A copy: what was read ahead must not hold the buffers that the rest needs.
            Ok(bytes) => return Ok(bytes.to_vec()),
            Err(trouble) => {
                let recovered = descent.recover(trouble.into()).await;
                recovered.map_err(|error| VerifyError::Unreadable { address, error })?;
            }
        }
    }
}

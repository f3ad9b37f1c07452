//! Bulk load: a tree built bottom-up from sorted keys, in one region of exactly the size it needs.
//!
//! ```text
//! offset 0      64                                                                  region end
//!        ┌──────┬────────┬────────┬─────┬─────────┬─────┬──────┬─────────┬─────────┬───────┐
//!        │ null │ leaf 0 │ leaf 1 │ ... │ level 1 │ ... │ root │ padding │ records │ spare │
//!        └──────┴────────┴────────┴─────┴─────────┴─────┴──────┴─────────┴─────────┴───────┘
//! ```
//!
//! The size is computed first, so nothing is copied and nothing grows. An index read asks for as many bytes as the
//! larger kind of node has, wherever it lands, so the region reaches that far behind every node.

use fatbtree_index::node::{LINE, LeafBuilder, NodeSpec, write_internal};
use fatbtree_index::record::{RECORD_ALIGN, record_bytes, write_record};
use fatbtree_index::{GlobalAddress, KeyRange, MAX_OFFSET, Partition, TreeConfig, ValueLayout};

use crate::chunk::ChunkAllocator;
use crate::values::ValueSource;

/// What a tree is loaded with beside its keys.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoadOptions {
    /// The tree's shape.
    pub config: TreeConfig,
    /// Memory server and partition.
    pub server: u16,
    /// The keys the partition is responsible for, present or not: the fences of the outermost nodes.
    pub range: KeyRange,
    /// How full nodes are made, of leaves and of internal nodes alike: above 0, at most 1. The default, 0.75, leaves
    /// room for insertions and is what a B+Tree settles at under random insertions, a little above ln 2.
    pub fill: f64,
    /// Bytes of the region that the load leaves free, for chunks.
    pub spare_bytes: u64,
}

impl LoadOptions {
    /// All keys on `server`, nodes three quarters full, nothing spare.
    #[must_use]
    pub fn new(config: TreeConfig, server: u16) -> Self {
        Self { config, server, range: KeyRange::ALL, fill: 0.75, spare_bytes: 0 }
    }
}

/// What was built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadCounts {
    /// Keys in the tree.
    pub keys: u64,
    /// Leaf nodes.
    pub leaf_nodes: u64,
    /// Internal nodes.
    pub internal_nodes: u64,
    /// Bytes of all records, alignment included.
    pub record_bytes: u64,
}

/// A region with a tree in it, ready to be registered with `iova = server << 48`.
#[derive(Clone, PartialEq, Eq)]
pub struct LoadedTree {
    /// The region, from offset 0.
    pub region: Vec<u8>,
    /// What is left of the region.
    pub chunks: ChunkAllocator,
    /// The tree's shape.
    pub config: TreeConfig,
    /// Key range and root.
    pub partition: Partition,
    /// What was built.
    pub counts: LoadCounts,
}

impl std::fmt::Debug for LoadedTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedTree")
            .field("region_bytes", &self.region.len())
            .field("partition", &self.partition)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

/// Why a tree cannot be loaded.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum LoadError {
    /// One key twice.
    #[error("key {key:#x} occurs twice: each key has one value; remove one of the two")]
    DuplicateKey {
        /// The key.
        key: u64,
    },
    /// Keys out of order.
    #[error(
        "key {key:#x} at position {position} is smaller than the key before it: sort the keys first (`sort_keys`)"
    )]
    Unsorted {
        /// The key.
        key: u64,
        /// Its place among the keys.
        position: usize,
    },
    /// A key that belongs to another server.
    #[error("key {key:#x} lies outside of the partition's range {range}")]
    OutOfRange {
        /// The key.
        key: u64,
        /// The partition's keys.
        range: KeyRange,
    },
    /// Fill factor.
    #[error("fill factor {found}: expected a number above 0 and at most 1")]
    Fill {
        /// What was asked for.
        found: f64,
    },
    /// A value that does not have the size of all in-line values.
    #[error(
        "value of key {key:#x} has {found} bytes, but values in leaves have {expected}: keep values out of line"
    )]
    InlineLength {
        /// The key.
        key: u64,
        /// Bytes of its value.
        found: u32,
        /// Bytes of every value.
        expected: u8,
    },
    /// More bytes than an offset can name, or than this machine can address.
    #[error("the tree needs {bytes} bytes, a region has at most {max}: split the keys over more servers")]
    TooLarge {
        /// Bytes needed; saturated.
        bytes: u64,
        /// Bytes of the largest region.
        max: u64,
    },
    /// A range without keys.
    #[error("partition range {range} is empty: expected the low key below the high key")]
    EmptyRange {
        /// The range.
        range: KeyRange,
    },
    /// Fewer keys than servers.
    #[error(
        "{keys} keys cannot be split over {servers} memory servers: each needs at least one, and there must be one server"
    )]
    TooFewKeys {
        /// Keys given.
        keys: usize,
        /// Servers asked for.
        servers: u16,
    },
    /// More memory than the machine gives.
    #[error(
        "cannot get {bytes} bytes of memory for the region: use fewer keys, shorter values or more machines"
    )]
    OutOfMemory {
        /// Bytes needed.
        bytes: u64,
    },
}

/// Sorts keys in place.
///
/// # Errors
/// When a key occurs twice.
pub fn sort_keys(keys: &mut [u64]) -> Result<(), LoadError> {
    // One pass finds out that there is nothing to do; sorted keys are the common case.
    if !keys.is_sorted() {
        keys.sort_unstable();
    }
    match keys.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(LoadError::DuplicateKey { key: pair[0] }),
        None => Ok(()),
    }
}

/// Builds the tree of one partition from strictly ascending keys.
///
/// # Errors
/// See [`LoadError`]; nothing is allocated then.
pub fn bulk_load<S: ValueSource>(
    options: &LoadOptions,
    keys: &[u64],
    values: &mut S,
) -> Result<LoadedTree, LoadError> {
    check(options, keys)?;
    let LoadOptions { config, server, range, .. } = *options;
    let plan = Plan::new(options, keys, values)?;
    let mut region = zeroed(plan.region_bytes)?;
    let (nodes, records) = region.split_at_mut(plan.records_from as usize);

    let mut builder = Builder { nodes, server, range, config };
    let mut below = builder.leaves(&plan, keys, values, records);
    let mut from = LINE as u64 + plan.leaves * u64::from(config.leaf_bytes());
    let mut level = 0;
    for &count in &plan.internal {
        level += 1;
        below = builder.internal_level(level, from, count, &below);
        from += count * u64::from(config.internal_bytes());
    }
    debug_assert_eq!(below.len(), 1, "the last level has one node, the root");
    let root = below.first().map_or(GlobalAddress::NULL, |(_, root)| *root);

    Ok(LoadedTree {
        chunks: ChunkAllocator::new(plan.used_bytes, plan.region_bytes),
        region,
        config,
        partition: Partition { id: server, range, root, root_level: level },
        counts: LoadCounts {
            keys: keys.len() as u64,
            leaf_nodes: plan.leaves,
            internal_nodes: plan.internal.iter().sum(),
            record_bytes: plan.record_bytes,
        },
    })
}

/// Sorts keys in place and builds their tree.
///
/// # Errors
/// See [`LoadError`].
pub fn bulk_load_unsorted<S: ValueSource>(
    options: &LoadOptions,
    keys: &mut [u64],
    values: &mut S,
) -> Result<LoadedTree, LoadError> {
    sort_keys(keys)?;
    bulk_load(options, keys, values)
}

fn check(options: &LoadOptions, keys: &[u64]) -> Result<(), LoadError> {
    let range = options.range;
    if !(options.fill > 0.0 && options.fill <= 1.0) {
        return Err(LoadError::Fill { found: options.fill });
    }
    if range.is_below(range.low) {
        return Err(LoadError::EmptyRange { range });
    }
    if let Some(before) = keys.windows(2).position(|pair| pair[0] >= pair[1]) {
        let (key, position) = (keys[before + 1], before + 1);
        return Err(if keys[before] == key {
            LoadError::DuplicateKey { key }
        } else {
            LoadError::Unsorted { key, position }
        });
    }
    match [keys.first(), keys.last()].into_iter().flatten().find(|&&key| !range.contains(key)) {
        Some(&key) => Err(LoadError::OutOfRange { key, range }),
        None => Ok(()),
    }
}

/// Zero pages straight from the operating system, or an error instead of an abort.
fn zeroed(bytes: u64) -> Result<Vec<u8>, LoadError> {
    let mut probe = Vec::<u8>::new();
    probe.try_reserve_exact(bytes as usize).map_err(|_| LoadError::OutOfMemory { bytes })?;
    drop(probe);
    Ok(vec![0; bytes as usize])
}

/// Sizes and places, computed before anything is written.
struct Plan {
    leaves: u64,
    /// Nodes of level 1, 2, ... up to the root.
    internal: Vec<u64>,
    records_from: u64,
    record_bytes: u64,
    used_bytes: u64,
    region_bytes: u64,
}

impl Plan {
    fn new<S: ValueSource>(options: &LoadOptions, keys: &[u64], values: &mut S) -> Result<Self, LoadError> {
        let config = &options.config;
        let filled = |capacity: usize, least: u64| ((capacity as f64 * options.fill) as u64).max(least);
        let per_leaf = filled(config.leaf_capacity(), 1);
        let per_internal = filled(usize::from(config.fan_out()), 2);
        let leaves = (keys.len() as u64).div_ceil(per_leaf).max(1);
        let mut internal = vec![];
        let mut nodes = leaves;
        while nodes > 1 {
            nodes = nodes.div_ceil(per_internal);
            internal.push(nodes);
        }
        let record_bytes = Self::record_bytes(config, keys, values)?;

        let last_node = if internal.is_empty() { config.leaf_bytes() } else { config.internal_bytes() };
        let nodes_end = LINE as u64
            + leaves * u64::from(config.leaf_bytes())
            + internal.iter().sum::<u64>() * u64::from(config.internal_bytes());
        let records_from = nodes_end + u64::from(config.max_node_bytes() - last_node);
        let used_bytes = records_from.saturating_add(record_bytes);
        let region_bytes = used_bytes.saturating_add(options.spare_bytes);
        let max = MAX_OFFSET.min(isize::MAX as u64);
        if region_bytes > max {
            return Err(LoadError::TooLarge { bytes: region_bytes, max });
        }
        Ok(Self { leaves, internal, records_from, record_bytes, used_bytes, region_bytes })
    }

    fn record_bytes<S: ValueSource>(
        config: &TreeConfig,
        keys: &[u64],
        values: &mut S,
    ) -> Result<u64, LoadError> {
        match config.values() {
            ValueLayout::Inline(expected) => {
                for &key in keys {
                    let found = values.length(key);
                    if found != u32::from(expected) {
                        return Err(LoadError::InlineLength { key, found, expected });
                    }
                }
                Ok(0)
            }
            ValueLayout::OutOfLine => {
                Ok(keys.iter().fold(0, |sum: u64, &key| sum.saturating_add(stride(values.length(key)))))
            }
        }
    }
}

/// Bytes from one record to the next.
fn stride(length: u32) -> u64 {
    u64::from(record_bytes(length)).next_multiple_of(RECORD_ALIGN)
}

/// Where part `index` of `parts` begins when `whole` things are shared out evenly.
fn share(whole: usize, index: u64, parts: u64) -> usize {
    (whole as u128 * u128::from(index) / u128::from(parts)) as usize
}

struct Builder<'r> {
    nodes: &'r mut [u8],
    server: u16,
    range: KeyRange,
    config: TreeConfig,
}

impl Builder<'_> {
    /// The first version of every node and record.
    const VERSION: u32 = 1;

    fn spec(&self, level: u8, offset: u64, low: u64, next_low: Option<u64>) -> NodeSpec {
        let size = u64::from(self.config.node_bytes(level));
        NodeSpec {
            address: GlobalAddress::new(self.server, offset),
            level,
            range: KeyRange { low, high: next_low.or(self.range.high) },
            sibling: next_low.map_or(GlobalAddress::NULL, |_| GlobalAddress::new(self.server, offset + size)),
            version: Self::VERSION,
        }
    }

    /// Writes all leaves and records, in key order; returns low key and address of each leaf.
    fn leaves<S: ValueSource>(
        &mut self,
        plan: &Plan,
        keys: &[u64],
        values: &mut S,
        records: &mut [u8],
    ) -> Vec<(u64, GlobalAddress)> {
        let size = self.config.leaf_bytes() as usize;
        let shape = *self.config.leaf_shape();
        let mut built = Vec::with_capacity(plan.leaves as usize);
        let mut record_at = 0_u64;
        let mut low = self.range.low;
        for index in 0..plan.leaves {
            let (from, to) =
                (share(keys.len(), index, plan.leaves), share(keys.len(), index + 1, plan.leaves));
            // There are fewer leaves than keys, so `to` is a key unless this is the last leaf.
            let next_low = keys.get(to).copied();
            let offset = LINE as u64 + index * size as u64;
            let spec = self.spec(0, offset, low, next_low);
            let mut leaf = LeafBuilder::new(&mut self.nodes[offset as usize..][..size], &shape, spec);
            for &key in &keys[from..to] {
                if shape.is_inline() {
                    values.fill(key, leaf.push_inline(key));
                } else {
                    let length = values.length(key);
                    let address = GlobalAddress::new(self.server, plan.records_from + record_at);
                    leaf.push_record(key, address, length);
                    let record = &mut records[record_at as usize..][..record_bytes(length) as usize];
                    values.fill(key, write_record(record, key, Self::VERSION));
                    record_at += stride(length);
                }
            }
            leaf.finish();
            built.push((low, spec.address));
            low = next_low.unwrap_or(low);
        }
        debug_assert_eq!(record_at, plan.record_bytes, "lengths are the same every time they are asked for");
        built
    }

    /// Writes one level of internal nodes over the nodes `below`.
    fn internal_level(
        &mut self,
        level: u8,
        from: u64,
        count: u64,
        below: &[(u64, GlobalAddress)],
    ) -> Vec<(u64, GlobalAddress)> {
        let size = self.config.internal_bytes() as usize;
        (0..count)
            .map(|index| {
                let (first, end) = (share(below.len(), index, count), share(below.len(), index + 1, count));
                let children = &below[first..end];
                let low = children[0].0;
                let offset = from + index * size as u64;
                let spec = self.spec(level, offset, low, below.get(end).map(|(low, _)| *low));
                write_internal(&mut self.nodes[offset as usize..][..size], &spec, children);
                (low, spec.address)
            })
            .collect()
    }
}

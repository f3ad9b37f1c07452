//! Bulk load: a tree built bottom-up from sorted keys, in one region of exactly the size it needs.
//!
//! ```text
//! offset 0     64                                                              region end
//!        ┌─────┬────────┬────────┬─────┬─────────┬─────┬──────┬─────────┬───────┬─────────┐
//!        │super│ leaf 0 │ leaf 1 │ ... │ level 1 │ ... │ root │ records │ spare │ padding │
//!        └─────┴────────┴────────┴─────┴─────────┴─────┴──────┴─────────┴───────┴─────────┘
//! ```
//!
//! Where keys are bytes, their [code](fatbtree_blink::layers::KeyCode) lies behind the superblock, and the
//! [layers](fatbtree_blink::layers) below the first one between its root and the records: all their blocks, then their other leaves, then their
//! internal nodes.
//!
//! Nodes end at short [separators](fatbtree_blink::separator), not at the first key of the next one, and
//! their ends move by up to a sixth of a node to reach a shorter one. The fewer bits of a fence are set, the
//! less room it takes in a switch. A fence is seldom a key.
//!
//! The size is computed first, so nothing is copied and nothing grows. The first line is the region's
//! [`Superblock`]. An index read asks for as many bytes as the larger kind of node has, wherever it lands. So
//! the region ends in padding of that size, after the spare bytes, in which nodes will lie later, too.
//! Nothing is ever allocated in the padding.
//!
//! # A region filled anew
//!
//! [`bulk_load_over`] builds a tree in memory that held one before. Versions go on from what is found, the superblock's
//! generation goes up, and whatever the new tree does not cover is forgotten, so that no old node is left to be found. But nodes and
//! records lie elsewhere now: before connections to the new generation are registered, the switches must have forgotten
//! what they cached of the old one.

mod builder;
mod bytes;
mod cuts;
mod error;
mod pairs;
mod plan;

use std::ops::Range;
use std::sync::Arc;

use fatbtree_blink::layers::KeyCode;
use fatbtree_blink::node::LINE;
use fatbtree_blink::{
    ConfigError, GlobalAddress, KeyRange, Keys, LeafKind, Partition, Superblock, TreeConfig, ValueLayout,
};
use fatbtree_memserver::{Counts, Origin};
use fatbtree_verbs::Memory;
use serde::{Deserialize, Serialize};

use crate::tenant::WalkLimits;
use crate::values::ValueSource;
use builder::{Builder, Records, forget};
use bytes::ByteKeys;
use pairs::{Numbers, Pairs};
use plan::Plan;

pub use bytes::BytePairs;
pub use error::LoadError;

/// Options of loading a tree.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoadOptions {
    /// The tree's shape.
    pub config: TreeConfig,
    /// Memory server and partition.
    pub server: u16,
    /// The keys the partition is responsible for, present or not: the fences of the outermost nodes.
    pub range: KeyRange,
    /// Average fill of nodes, leaves and internal nodes alike: above 0, at most 1. Single nodes hold up to a
    /// third more or less, for the sake of short separators, where they have room. The default, 0.75, leaves
    /// room for insertions and is what a B+Tree settles at under random insertions, a little above ln 2.
    pub fill: f64,
    /// Bytes of the region that the load leaves free, for [chunks](fatbtree_memserver::Chunk).
    pub spare_bytes: u64,
    /// The [generation](LoadedTree::generation) of new memory: 1 where there was no tree before.
    pub generation: u64,
}

impl LoadOptions {
    /// All keys on `server`, nodes three quarters full, nothing spare.
    #[must_use]
    pub fn new(config: TreeConfig, server: u16) -> Self {
        Self { config, server, range: KeyRange::ALL, fill: 0.75, spare_bytes: 0, generation: 1 }
    }
}

/// Counts of the built tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LoadCounts {
    /// Keys in the tree.
    pub keys: u64,
    /// Leaf nodes.
    pub leaf_nodes: u64,
    /// Internal nodes.
    pub internal_nodes: u64,
    /// Bytes of all records, alignment included.
    pub record_bytes: u64,
    /// Where keys are bytes, what lies below the first layer. It is left out where there is nothing, as in folders of older releases.
    #[serde(default, skip_serializing_if = "LayerCounts::is_none")]
    pub below: LayerCounts,
}

/// Counts of the layers below the first one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LayerCounts {
    /// Layers, each of which has a leaf.
    pub layers: u64,
    /// Further leaves.
    pub leaf_nodes: u64,
    /// Internal nodes.
    pub internal_nodes: u64,
}

impl LayerCounts {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl Counts for LoadCounts {
    const STRUCTURE: &'static str = "tree";
}

/// What a load changes in the layout of the tree that it replaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Place of values; as it was where none is given.
    pub values: Option<ValueLayout>,
    /// Kind of leaves, likewise.
    pub leaves: Option<LeafKind>,
    /// Kind of keys, likewise.
    pub keys: Option<Keys>,
    /// Code of keys of bytes, likewise.
    pub code: Option<KeyCode>,
}

impl Layout {
    /// The layout of such a tree.
    #[must_use]
    pub const fn of(config: &TreeConfig) -> Self {
        Self {
            values: Some(config.values()),
            leaves: Some(config.leaves()),
            keys: Some(config.keys()),
            code: Some(config.code()),
        }
    }

    /// The shape of the next tree after one of this shape.
    ///
    /// # Errors
    /// When these leaves have no room for such values, or keys of bytes are to have values of one size.
    pub fn after(self, former: &TreeConfig) -> Result<TreeConfig, ConfigError> {
        let keys = self.keys.unwrap_or(former.keys());
        let values = self.values.unwrap_or(match (keys, former.values()) {
            (Keys::Bytes, ValueLayout::Inline(_) | ValueLayout::OutOfLine) => ValueLayout::SHORT,
            (_, values) => values,
        });
        let leaves = self.leaves.unwrap_or(former.leaves());
        let code = self.code.unwrap_or(former.code());
        let config = former.with_keys(Keys::Numbers)?.with_values(values)?.with_leaves(leaves)?;
        Ok(config.with_keys(keys)?.with_code(code))
    }
}

/// A region with a tree in it, ready to be registered with `iova = server << 48`. A clone is the same region.
#[derive(Clone)]
pub struct LoadedTree {
    /// The region, from offset 0. It is shared with the device that serves it.
    pub region: Arc<Memory>,
    /// Offsets that nothing lies in yet: for chunks.
    pub spare: Range<u64>,
    /// The tree's shape.
    pub config: TreeConfig,
    /// Key range and root.
    pub partition: Partition,
    /// Counts of the built tree.
    pub counts: LoadCounts,
    /// Number of times that the region has been filled: 1 the first time.
    pub generation: u64,
    /// Whether it is the one that is meant. One with keys is; an empty one may be the successor of one that was lost, but where an operator
    /// has loaded it.
    pub origin: Origin,
    /// A word for each chunk that was ever given out, which says its class, where the region outlives its server: see
    /// [`TreeFolder`](crate::TreeFolder). [`chunk_classes_bytes`](fatbtree_memserver::chunk_classes_bytes) long, zeros in the beginning.
    pub chunk_classes: Option<Arc<Memory>>,
    /// Bounds of walks on behalf of clients.
    pub walks: WalkLimits,
}

impl std::fmt::Debug for LoadedTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedTree")
            .field("region_bytes", &self.region.len())
            .field("partition", &self.partition)
            .field("counts", &self.counts)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
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

/// Builds the tree of one partition from strictly ascending keys, in new memory.
///
/// # Errors
/// See [`LoadError`].
pub fn bulk_load<S: ValueSource>(
    options: &LoadOptions,
    keys: &[u64],
    values: &mut S,
) -> Result<LoadedTree, LoadError> {
    bulk_load_in(options, Load::Numbers(keys, values), anonymous)
}

/// Builds the tree of one partition from strictly ascending keys of bytes, in new memory.
///
/// # Errors
/// See [`LoadError`].
pub fn bulk_load_bytes(options: &LoadOptions, pairs: &BytePairs) -> Result<LoadedTree, LoadError> {
    check::<()>(options, &Load::Bytes(pairs))?;
    build_in_new(options, &mut ByteKeys::new(&options.config, pairs)?, anonymous)
}

fn anonymous(bytes: u64) -> Result<Memory, LoadError> {
    Memory::anonymous(bytes).map_err(|_| LoadError::OutOfMemory { bytes })
}

/// What is loaded: keys with their values.
pub enum Load<'p, S> {
    /// Keys that are numbers, strictly ascending, and values by them.
    Numbers(&'p [u64], &'p mut S),
    /// Keys of bytes, strictly ascending, with their values.
    Bytes(&'p BytePairs),
}

/// The same in memory that `memory` returns for a number of bytes: zeros, used by no other owner.
pub(crate) fn bulk_load_in<S: ValueSource>(
    options: &LoadOptions,
    load: Load<'_, S>,
    memory: impl FnOnce(u64) -> Result<Memory, LoadError>,
) -> Result<LoadedTree, LoadError> {
    check(options, &load)?;
    match load {
        Load::Numbers(keys, values) => build_in_new(options, &mut Numbers { keys, values }, memory),
        Load::Bytes(pairs) => build_in_new(options, &mut ByteKeys::new(&options.config, pairs)?, memory),
    }
}

fn build_in_new<P: Pairs>(
    options: &LoadOptions,
    pairs: &mut P,
    memory: impl FnOnce(u64) -> Result<Memory, LoadError>,
) -> Result<LoadedTree, LoadError> {
    pairs.check(options.range, &options.config)?;
    let plan = Plan::new(options, pairs)?;
    let mut region = Arc::new(memory(plan.region_bytes)?);
    fill(options, &plan, pairs, &mut region, None)
}

/// The same in a region that holds a tree of a former generation, or nothing: all of its bytes are used, `spare_bytes` is the
/// least that must be left. See the module about what must be forgotten elsewhere.
///
/// # Errors
/// See [`LoadError`]; the region is as it was then.
pub fn bulk_load_over<S: ValueSource>(
    region: &mut Arc<Memory>,
    options: &LoadOptions,
    load: Load<'_, S>,
) -> Result<LoadedTree, LoadError> {
    check(options, &load)?;
    match load {
        Load::Numbers(keys, values) => build_over(region, options, &mut Numbers { keys, values }),
        Load::Bytes(pairs) => build_over(region, options, &mut ByteKeys::new(&options.config, pairs)?),
    }
}

fn build_over<P: Pairs>(
    region: &mut Arc<Memory>,
    options: &LoadOptions,
    pairs: &mut P,
) -> Result<LoadedTree, LoadError> {
    pairs.check(options.range, &options.config)?;
    let plan = Plan::new(options, pairs)?.fit(&options.config, region.len())?;
    let mut line = [0; LINE];
    let read = region.read(0, &mut line);
    let former = match Superblock::parse(&line) {
        Ok(former) => Some(former),
        Err(_) if read.is_ok() && line == [0; LINE] => None,
        Err(_) => {
            let found = line.first_chunk().map_or(0, |magic| u64::from_le_bytes(*magic));
            return Err(LoadError::Foreign { found });
        }
    };
    fill(options, &plan, pairs, region, former.as_ref())
}

/// Fills a region. `former` is the superblock it had.
fn fill<P: Pairs>(
    options: &LoadOptions,
    plan: &Plan,
    pairs: &mut P,
    region: &mut Arc<Memory>,
    former: Option<&Superblock>,
) -> Result<LoadedTree, LoadError> {
    let LoadOptions { config, server, range, .. } = *options;
    let bytes = Arc::get_mut(region).ok_or(LoadError::Shared)?.as_mut_slice();
    let (bytes, spare) = bytes.split_at_mut(plan.spare_from as usize);
    let (nodes, records) = bytes.split_at_mut(plan.records_from as usize);
    // First a superblock without a root: a load that stops here leaves a region that is not served, but can
    // be filled anew.
    let mut superblock = Superblock {
        partition: Partition { id: server, range, root: GlobalAddress::NULL, root_level: 0 },
        config,
        generation: former.map_or(options.generation, |former| former.generation.wrapping_add(1)),
        region_bytes: plan.region_bytes,
        version: former.map_or(0, |former| former.version).wrapping_add(1),
    };
    nodes[..LINE].copy_from_slice(&superblock.to_bytes());
    if config.keys() == Keys::Bytes {
        nodes[LINE..][..KeyCode::AREA].copy_from_slice(&config.code().to_area());
    }
    let refill = former.is_some();
    let placed = Records { bytes: &mut *records, from: plan.records_from, used: 0, server, refill };
    let (root, root_level) =
        Builder { nodes: &mut *nodes, records: placed, config }.build(plan, range, pairs);
    if refill {
        records[plan.record_bytes as usize..].fill(0);
        forget(spare);
    }
    superblock.partition = Partition { root, root_level, ..superblock.partition };
    superblock.version = superblock.version.wrapping_add(1);
    nodes[..LINE].copy_from_slice(&superblock.to_bytes());

    Ok(LoadedTree {
        region: Arc::clone(region),
        spare: plan.spare_from..plan.padding_from,
        config,
        partition: superblock.partition,
        counts: LoadCounts {
            keys: pairs.len() as u64,
            leaf_nodes: plan.layers[0].leaves,
            internal_nodes: plan.layers[0].internal_nodes(),
            record_bytes: plan.record_bytes,
            below: plan.below,
        },
        generation: superblock.generation,
        origin: if pairs.is_empty() { Origin::Begun } else { Origin::Meant },
        chunk_classes: None,
        walks: WalkLimits::default(),
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

fn check<S>(options: &LoadOptions, load: &Load<'_, S>) -> Result<(), LoadError> {
    let range = options.range;
    if !(options.fill > 0.0 && options.fill <= 1.0) {
        return Err(LoadError::Fill { found: options.fill });
    }
    if range.is_below(range.low) {
        return Err(LoadError::EmptyRange { range });
    }
    match (load, options.config.keys()) {
        // A tree without keys is of either kind.
        (Load::Numbers([], _), _) | (Load::Numbers(..), Keys::Numbers) | (Load::Bytes(_), Keys::Bytes) => {
            Ok(())
        }
        (_, expected) => Err(LoadError::OtherKeys { expected }),
    }
}

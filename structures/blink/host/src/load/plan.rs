//! Sizes and places, computed before anything is written.

use fatbtree_blink::layers::block_bytes;
use fatbtree_blink::node::LINE;
use fatbtree_blink::record::place_bytes;
use fatbtree_blink::{MAX_OFFSET, TreeConfig, nodes_from};

use super::cuts::BucketCuts;
use super::pairs::{Held, Pairs};
use super::{LayerCounts, LoadError, LoadOptions};

/// The nodes of the first layer, or of one below.
pub(super) struct Nodes {
    pub(super) leaves: u64,
    /// Ends of all leaves of buckets but the last: where they lie takes long to find.
    pub(super) bucket_cuts: Vec<(usize, u64)>,
    /// Nodes of level 1, 2, ... up to the root.
    pub(super) internal: Vec<u64>,
}

impl Nodes {
    fn new(config: &TreeConfig, fill: f64, words: &[u64]) -> Self {
        let filled = |capacity: usize, least: u64| ((capacity as f64 * fill) as u64).max(least);
        let per_leaf = filled(config.leaf_capacity(), 1);
        let per_internal = filled(usize::from(config.fan_out()), 2);
        let (mut bucket_cuts, mut leaves) = (Vec::new(), (words.len() as u64).div_ceil(per_leaf).max(1));
        if config.leaf_shape().has_buckets() {
            bucket_cuts.extend(BucketCuts::new(words, config.leaf_shape(), per_leaf));
            leaves = 1 + bucket_cuts.len() as u64;
        }
        let mut internal = vec![];
        let mut nodes = leaves;
        while nodes > 1 {
            nodes = nodes.div_ceil(per_internal);
            internal.push(nodes);
        }
        Self { leaves, bucket_cuts, internal }
    }

    pub(super) fn internal_nodes(&self) -> u64 {
        self.internal.iter().sum()
    }
}

/// Places of everything; see the picture in the module above.
pub(super) struct Plan {
    /// Of all layers, the first one first.
    pub(super) layers: Vec<Nodes>,
    pub(super) below: LayerCounts,
    pub(super) layers_from: u64,
    pub(super) layer_leaves_from: u64,
    pub(super) layer_internal_from: u64,
    pub(super) records_from: u64,
    pub(super) record_bytes: u64,
    /// End of the records, a whole line.
    pub(super) spare_from: u64,
    /// End of everything that can ever be a node.
    pub(super) padding_from: u64,
    pub(super) region_bytes: u64,
}

impl Plan {
    pub(super) fn new<P: Pairs>(options: &LoadOptions, pairs: &mut P) -> Result<Self, LoadError> {
        let config = &options.config;
        let (mut layers, mut below) = (Vec::with_capacity(pairs.layers()), LayerCounts::default());
        for layer in 0..pairs.layers() {
            let nodes = Nodes::new(&pairs.tree(layer, config), options.fill, pairs.words(layer));
            if layer > 0 {
                below.layers += 1;
                below.leaf_nodes += nodes.leaves - 1;
                below.internal_nodes += nodes.internal_nodes();
            }
            layers.push(nodes);
        }
        let (leaf_bytes, internal_bytes) =
            (u64::from(config.leaf_bytes()), u64::from(config.internal_bytes()));
        let layers_from =
            nodes_from(config) + layers[0].leaves * leaf_bytes + layers[0].internal_nodes() * internal_bytes;
        let layer_leaves_from = layers_from + below.layers * u64::from(block_bytes(config));
        let layer_internal_from = layer_leaves_from + below.leaf_nodes * leaf_bytes;
        let records_from = layer_internal_from + below.internal_nodes * internal_bytes;
        let record_bytes = bytes_of_records(config, pairs);
        let max = MAX_OFFSET.min(isize::MAX as u64);
        let used = records_from.saturating_add(record_bytes);
        let spare_from = used.checked_next_multiple_of(LINE as u64).unwrap_or(u64::MAX);
        let padding_from = spare_from.saturating_add(options.spare_bytes);
        let region_bytes = padding_from.saturating_add(u64::from(config.max_node_bytes()));
        if region_bytes > max {
            return Err(LoadError::TooLarge { bytes: region_bytes, max });
        }
        Ok(Self {
            layers,
            below,
            layers_from,
            layer_leaves_from,
            layer_internal_from,
            records_from,
            record_bytes,
            spare_from,
            padding_from,
            region_bytes,
        })
    }

    /// The same in a region that is there already: what is left of it is spare.
    pub(super) fn fit(self, config: &TreeConfig, found: u64) -> Result<Self, LoadError> {
        if found < self.region_bytes {
            return Err(LoadError::RegionTooSmall { needed: self.region_bytes, found });
        }
        let padding_from = found.min(MAX_OFFSET) - u64::from(config.max_node_bytes());
        Ok(Self { padding_from, region_bytes: found, ..self })
    }
}

fn bytes_of_records<P: Pairs>(config: &TreeConfig, pairs: &mut P) -> u64 {
    if !config.leaf_shape().has_records() {
        return 0;
    }
    let mut sum: u64 = 0;
    for layer in 0..pairs.layers() {
        let shape = *pairs.tree(layer, config).leaf_shape();
        for at in 0..pairs.words(layer).len() {
            if let Held::Record(length) = pairs.held(layer, at, &shape) {
                sum = sum.saturating_add(stride(length));
            }
        }
    }
    sum
}

/// Bytes from one record to the next.
pub(super) fn stride(length: u32) -> u64 {
    u64::from(place_bytes(length))
}

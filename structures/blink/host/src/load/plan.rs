//! Sizes and places, computed before anything is written.

use fatbtree_blink::node::LINE;
use fatbtree_blink::record::place_bytes;
use fatbtree_blink::{MAX_OFFSET, SUPERBLOCK_BYTES, TreeConfig, ValueLayout};

use super::cuts::BucketCuts;
use super::{LoadError, LoadOptions};
use crate::values::ValueSource;

/// Places of everything; see the picture in the module above.
pub(super) struct Plan {
    pub(super) leaves: u64,
    /// Ends of all leaves of buckets but the last: where they lie takes long to find.
    pub(super) bucket_cuts: Vec<(usize, u64)>,
    /// Nodes of level 1, 2, ... up to the root.
    pub(super) internal: Vec<u64>,
    pub(super) records_from: u64,
    pub(super) record_bytes: u64,
    /// End of the records, a whole line.
    pub(super) spare_from: u64,
    /// End of everything that can ever be a node.
    pub(super) padding_from: u64,
    pub(super) region_bytes: u64,
}

impl Plan {
    pub(super) fn new<S: ValueSource>(
        options: &LoadOptions,
        keys: &[u64],
        values: &mut S,
    ) -> Result<Self, LoadError> {
        let config = &options.config;
        let filled = |capacity: usize, least: u64| ((capacity as f64 * options.fill) as u64).max(least);
        let per_leaf = filled(config.leaf_capacity(), 1);
        let per_internal = filled(usize::from(config.fan_out()), 2);
        let (mut bucket_cuts, mut leaves) = (Vec::new(), (keys.len() as u64).div_ceil(per_leaf).max(1));
        if config.leaf_shape().has_buckets() {
            bucket_cuts.extend(BucketCuts::new(keys, config.leaf_shape(), per_leaf));
            leaves = 1 + bucket_cuts.len() as u64;
        }
        let mut internal = vec![];
        let mut nodes = leaves;
        while nodes > 1 {
            nodes = nodes.div_ceil(per_internal);
            internal.push(nodes);
        }
        let record_bytes = bytes_of_records(config, keys, values)?;
        let records_from = u64::from(SUPERBLOCK_BYTES)
            + leaves * u64::from(config.leaf_bytes())
            + internal.iter().sum::<u64>() * u64::from(config.internal_bytes());
        let max = MAX_OFFSET.min(isize::MAX as u64);
        let used = records_from.saturating_add(record_bytes);
        let spare_from = used.checked_next_multiple_of(LINE as u64).unwrap_or(u64::MAX);
        let padding_from = spare_from.saturating_add(options.spare_bytes);
        let region_bytes = padding_from.saturating_add(u64::from(config.max_node_bytes()));
        if region_bytes > max {
            return Err(LoadError::TooLarge { bytes: region_bytes, max });
        }
        Ok(Self {
            leaves,
            bucket_cuts,
            internal,
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

fn bytes_of_records<S: ValueSource>(
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
        ValueLayout::OutOfLine | ValueLayout::ByLength(_) => {
            let lengths = keys.iter().map(|&key| values.length(key));
            let longer = lengths.filter(|&length| !config.leaf_shape().holds(length as usize));
            Ok(longer.fold(0, |sum: u64, length| sum.saturating_add(stride(length))))
        }
    }
}

/// Bytes from one record to the next.
pub(super) fn stride(length: u32) -> u64 {
    u64::from(place_bytes(length))
}

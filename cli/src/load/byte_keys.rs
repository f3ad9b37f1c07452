//! Keys of bytes with their values.

use std::path::Path;

use anyhow::{Context as _, Result};
use fatbtree_blink::value;
use fatbtree_blink_host::BytePairs;
use fatbtree_workload::byte_keys::value_number;

use crate::memserver::MadeValues;
use crate::records::byte_keys_of;

/// The keys of a file with their values, or with values that are made, in the order of the keys.
pub(super) fn pairs_of(path: &Path, values: MadeValues) -> Result<BytePairs> {
    let (found, has_values) = byte_keys_of(path)?;
    let MadeValues { seed, value_bytes } = values;
    let mut made = vec![0; value_bytes as usize];
    let mut pairs = BytePairs::default();
    for at in 0..found.len() {
        let key = found.key(at);
        let value = match has_values {
            true => found.value(at),
            false => {
                value::fill(value_number(key), seed, &mut made);
                &made
            }
        };
        pairs.push(key, value).with_context(|| path.display().to_string())?;
    }
    Ok(pairs.sorted())
}

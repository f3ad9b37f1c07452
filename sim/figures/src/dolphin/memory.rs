//! Table II: bytes of a client's cache and of all memory servers, counted in an index of fewer keys and scaled by keys.

use serde::Serialize;

use super::load::{Image, Parts};
use super::{FILL, PAPER_KEYS, SERVERS};
use crate::Size;
use crate::bench::{KeyOrder, inner_bytes, load_keys};
use crate::replay::trace_keys;
use crate::writes::sherman_tree;

/// Bytes that an index takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemoryRow {
    /// Name of index and keys.
    pub name: String,
    /// Keys that were counted.
    pub keys: u64,
    /// Bytes of a client's cache that knows every leaf, a key.
    pub cache_bytes: f64,
    /// Bytes of leaves and inner nodes, a key.
    pub server_bytes: f64,
    /// Keys of a leaf.
    pub keys_a_leaf: f64,
    /// The cache for the paper's 512 million keys, in MB.
    pub cache_mb: f64,
    /// The same in the paper; 0: it does not say.
    pub paper_cache_mb: f64,
    /// All servers for the paper's 512 million keys, in GB.
    pub server_gb: f64,
    /// The same in the paper.
    pub paper_server_gb: f64,
}

/// Counts bytes for dense keys, random ones and those of a made trace, of both indexes.
///
/// # Errors
/// When loading fails.
pub(crate) fn memory(size: &Size) -> Result<Vec<MemoryRow>, String> {
    let mut rows = Vec::new();
    let of = |order: KeyOrder| (0..size.keys).map(|rank| order.key(rank)).collect::<Vec<u64>>();
    for (name, keys) in [
        ("dense", of(KeyOrder::Dense)),
        ("random 64-bit", of(KeyOrder::Scrambled)),
        ("trace", trace_keys(size.keys, size.seed)?),
    ] {
        let in_paper = name == "dense";
        let tree = sherman_tree()?;
        let cluster = load_keys(SERVERS, tree, FILL, keys.iter().copied())?;
        let leaves: u64 = cluster.trees.iter().map(|tree| tree.counts.leaf_nodes).sum();
        let inner: u64 = cluster.trees.iter().map(|tree| tree.counts.internal_nodes).sum();
        let bytes = leaves * tree.leaf_bytes() as u64 + inner * tree.internal_bytes() as u64;
        let cache = inner_bytes(&cluster)?;
        rows.push(row(
            format!("Sherman, {name}"),
            keys.len() as u64,
            cache,
            bytes,
            leaves,
            in_paper.then_some((460.0, 12.0)),
        ));
        let Image { verified, cache_bytes, .. } = Image::load_keys(Parts::one(), keys)?;
        let paper = in_paper.then_some((320.0, 14.0));
        let name = format!("Dolphin, {name}");
        rows.push(row(name, verified.keys, cache_bytes, verified.bytes, verified.leaves, paper));
    }
    Ok(rows)
}

fn row(
    name: String,
    keys: u64,
    cache: u64,
    server: u64,
    leaves: u64,
    paper: Option<(f64, f64)>,
) -> MemoryRow {
    let each = |bytes: u64| bytes as f64 / keys as f64;
    let scaled = |bytes: u64, unit: f64| each(bytes) * PAPER_KEYS as f64 / unit;
    let (paper_cache_mb, paper_server_gb) = paper.unwrap_or_default();
    MemoryRow {
        name,
        keys,
        cache_bytes: each(cache),
        server_bytes: each(server),
        keys_a_leaf: keys as f64 / leaves as f64,
        cache_mb: scaled(cache, 1e6),
        paper_cache_mb,
        server_gb: scaled(server, 1e9),
        paper_server_gb,
    }
}

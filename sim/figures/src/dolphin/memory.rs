//! Table II: bytes of a client's cache and of all memory servers, counted in an index of fewer keys and scaled by keys.

use super::load::{Image, Parts};
use super::{FILL, PAPER_KEYS, SERVERS};
use crate::Size;
use crate::bench::{KeyOrder, inner_bytes, load_keys};
use crate::column::{
    CACHE_EACH, CACHE_MB, KEYS, KEYS_A_LEAF, NAME, PAPER_CACHE_MB, PAPER_SERVER_GB, SERVER_EACH, SERVER_GB,
};
use crate::replay::trace_keys;
use crate::table::Row;
use crate::writes::sherman_tree;

/// Counts bytes for dense keys, random ones and those of a made trace, of both indexes.
///
/// # Errors
/// When loading fails.
pub(crate) fn memory(size: &Size) -> Result<Vec<Row>, String> {
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

/// Bytes of the cache of a client that knows every leaf, and of all servers; the paper's in MB and GB.
fn row(name: String, keys: u64, cache: u64, server: u64, leaves: u64, paper: Option<(f64, f64)>) -> Row {
    let each = |bytes: u64| bytes as f64 / keys as f64;
    let scaled = |bytes: u64, unit: f64| each(bytes) * PAPER_KEYS as f64 / unit;
    let (paper_cache_mb, paper_server_gb) = paper.unwrap_or_default();
    Row::default().saying(NAME, name).with([
        (KEYS, keys as f64),
        (CACHE_EACH, each(cache)),
        (SERVER_EACH, each(server)),
        (KEYS_A_LEAF, keys as f64 / leaves as f64),
        (CACHE_MB, scaled(cache, 1e6)),
        (PAPER_CACHE_MB, paper_cache_mb),
        (SERVER_GB, scaled(server, 1e9)),
        (PAPER_SERVER_GB, paper_server_gb),
    ])
}

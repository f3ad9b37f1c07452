//! Options that a structure does not have.

use anyhow::{Result, bail};
use fatbtree_registry::{Kind as _, Remembered, with_kind};
use fatbtree_topology::Structure;

use super::{Arguments, Protocol};
use crate::structure::refuse_without_tree;

/// Refuses what only trees have.
pub(super) fn check(structure: Structure, arguments: &Arguments) -> Result<()> {
    let Arguments { protocol, scan_parts, entry_cache, cache, .. } = arguments;
    let refuse = |is_given, option, instead| refuse_without_tree(structure, is_given, option, instead);
    refuse(*protocol == Protocol::Query, "--protocol query", "its clients use RDMA alone")?;
    refuse(*scan_parts > 1, "--scan-parts", "a scan of it has one part, if it has ranges at all")?;
    match with_kind!(structure, K => (K::REMEMBERS, K::NAME)) {
        Some((Remembered::Nodes, name)) if entry_cache.is_some() => bail!(
            "--entry-cache is for trees and hash tables: a client of a {name} remembers inner nodes, in as many bytes as --cache says"
        ),
        Some((Remembered::Places, name)) if cache.is_some() => {
            bail!("--cache is for trees and Dolphin indexes: a {name} has no inner nodes; see --entry-cache")
        }
        None if *protocol == Protocol::Roce => entry_cache.map_or(Ok(()), super::entry_cache::check),
        _ => Ok(()),
    }
}

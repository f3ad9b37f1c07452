//! Options that a structure does not have.

use anyhow::{Result, bail};
use fatbtree_processes::Adapter;
use fatbtree_registry::{Kind, with_kind};
use fatbtree_remote_memory::{Remembered, StructureClient as _};
use fatbtree_topology::Structure;

use super::{Arguments, Protocol};
use crate::structure::refuse_without_tree;

/// Refuses what only trees have.
pub(super) fn check(structure: Structure, arguments: &Arguments) -> Result<()> {
    let Arguments { protocol, scan_parts, entry_cache, cache, .. } = arguments;
    let refuse = |is_given, option, instead| refuse_without_tree(structure, is_given, option, instead);
    refuse(*protocol == Protocol::Query, "--protocol query", "its clients use RDMA alone")?;
    refuse(*scan_parts > 1, "--scan-parts", "a scan of it has one part, if it has ranges at all")?;
    let (name, remembers) = with_kind!(structure, K => (K::NAME, <K as Kind>::Client::<Adapter>::REMEMBERS));
    if entry_cache.is_some() && !remembers.contains(&Remembered::Places) {
        bail!(
            "--entry-cache is for trees and hash tables: a client of a {name} remembers inner nodes, in as many bytes as --cache says"
        );
    }
    if cache.is_some() && !remembers.contains(&Remembered::Nodes) {
        bail!("--cache is for trees and Dolphin indexes: a {name} has no inner nodes; see --entry-cache");
    }
    match entry_cache {
        Some(bytes) if structure == Structure::Tree && *protocol == Protocol::Roce => {
            super::entry_cache::check(*bytes)
        }
        _ => Ok(()),
    }
}

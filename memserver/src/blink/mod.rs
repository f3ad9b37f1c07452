//! What a memory server does for a B-link tree: bulk load, snapshots of its top, the places of keys, queries.

pub(crate) mod cluster;
pub(crate) mod finder;
pub(crate) mod load;
pub mod query;
pub(crate) mod snapshots;
pub(crate) mod values;

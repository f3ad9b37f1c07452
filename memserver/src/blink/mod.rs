//! The B-link tree in a memory server's region: the [tenant](tenant), bulk load, snapshots of its top, the places of keys, queries.

pub(crate) mod cluster;
mod event;
pub(crate) mod finder;
pub(crate) mod load;
pub mod query;
pub(crate) mod snapshots;
pub(crate) mod tenant;
pub(crate) mod values;

pub use tenant::{Blink, NoRoot, TreeInfo, TreeRequest};

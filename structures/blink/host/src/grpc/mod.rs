//! The services that only a memory server of a tree has, and their client.
//!
//! ```text
//!   fatbtree_memserver::grpc    description, sessions, queue pairs, memory, counters; Loader: content of any structure
//!   this module                 Tree: snapshots of the top, places of keys, keys for queries
//!                               content of a load: keys and values, which become another tree
//! ```
//!
//! Everything that a peer sends is checked when its message is read ([`proto`] to types of this crate). What a peer can make the other side
//! hold is bounded: snapshots and requests for places on their way ([`TreeServiceOptions`]), bytes of a load ([`Loading`]).

mod client;
mod convert;
mod load;
mod loading;
mod service;
mod stream;

pub use client::TreeCalls;
pub use load::{LoadTreesError, load_empty, load_servers, load_servers_bytes};
pub use loading::Loading;
pub use service::{TreeServiceOptions, serve, serve_with};

use fatbtree_blink::{SuperRoot, SuperRootError};

use crate::TreeServerInfo;

/// Messages and stubs as the proto compiler makes them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod proto {
    tonic::include_proto!("fatbtree.blink.v1");
}

/// The super-root over the partitions of several servers.
///
/// # Errors
/// When they do not cover all keys exactly once.
pub fn super_root<'a>(
    servers: impl IntoIterator<Item = &'a TreeServerInfo>,
) -> Result<SuperRoot, SuperRootError> {
    SuperRoot::new(servers.into_iter().map(|info| info.partition).collect())
}

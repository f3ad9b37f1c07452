//! The gRPC service and its client: thin drivers that turn calls into requests and answers into messages.
//!
//! Everything that a peer sends is checked when its message is read ([`proto`] to types of this crate); what cannot be is
//! refused with its field, what was expected and what was found. What a peer can make the other side hold is bounded:
//! connections and requests per connection, bytes of a message, snapshots on their way ([`ServiceOptions`]). Every call of
//! the [`Client`] has a deadline.

mod client;
mod convert;
mod load;
mod loading;
mod service;
mod stream;

pub use client::{Client, ClientError, Deadlines, Session};
pub use convert::MessageError;
pub use load::{LoadData, LoadProgress, LoadServersError, load_empty, load_servers};
pub use loading::Loading;
pub use service::{ServiceOptions, serve, serve_with};

use fatbtree_blink::{SuperRoot, SuperRootError};

use crate::info::ServerInfo;

/// Metadata of a refusal of memory: the word of its [`Shortage`](fatbtree_blink::Shortage).
const SHORTAGE: &str = "shortage";

/// Messages and stubs as the proto compiler makes them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod proto {
    tonic::include_proto!("fatbtree.memserver.v1");
}

/// The super-root over the partitions of several servers.
///
/// # Errors
/// When they do not cover all keys exactly once.
pub fn super_root<'a>(
    servers: impl IntoIterator<Item = &'a ServerInfo>,
) -> Result<SuperRoot, SuperRootError> {
    SuperRoot::new(servers.into_iter().map(|info| info.partition).collect())
}

//! Client library of Fat-B+Tree: an ordered index of 64-bit keys, or of [keys of bytes](BytesClient), in the memory of other machines.
//!
//! ```no_run
#![doc = include_str!("../examples/twelve_lines/program.rs")]
//! ```
//!
//! [`connect`] takes the cluster file that `fatbtree up` and the other roles use. [`Options`] has everything else: the client's name in the
//! file, time limits, RDMA devices, [queries](Protocol::Query) instead of RDMA. [`blocking`] is the twin for threads that wait.
//!
//! ```text
//!  Client ─┐  clones, any thread, any executor
//!  Client ─┼─► bounded queue ─► one thread: sessions, NIC, up to 256 operations at once ─► memory servers
//!  Client ─┘ ◄── answers ◄────┘
//! ```
//!
//! * **Threads.** A connection has a thread of its own, and one for its control channels. It needs no runtime, and works within any.
//! * **Signals** keep their meaning: the library installs no handler.
//! * **Hosts.** A connection is one client of the cluster file, with its address and its wire. Clones share it, so a process usually connects
//!   once. Many connections, of one process or of many on the host, need a range of UDP ports in the cluster file, of which each takes a free
//!   one (a *seat*): `[[host]] name = "host-0-2", wire = "udp:127.0.0.1:20000-20999"`. Otherwise a second connection as the same client is
//!   refused while the first one lasts. An RDMA device is shared without a range.
//! * **Structure.** With `structure = "hash"` or `structure = "dolphin"` in the cluster file, or [`Options::structure`], the operations are
//!   on a hash table or a Dolphin index: `get`, `put`, `insert`, `update`, `compare_and_swap`, `delete` and `pairs`, and
//!   scans of an index.
//! * **Keys of bytes**: [`Client::bytes`], with [typed keys](mod@tuple) of several elements.
//! * **Transactions.** With `structure = "dtx"`, [`Client::transact`] changes several keys at one moment, or none.
//! * **Cancellation.** Every future may be dropped at any `await`; see [`Client`].
//! * **Errors** say what to do, and [whether a change may have been carried out](Error::may_have_happened).
//! * **Metrics**: [`Client::stats`]; `[metrics]` in the cluster file for Prometheus; events by `tracing`.
//!
//! Before a program ends, [`Client::close`] lets the memory servers end the sessions at once. Otherwise they end when their time is up.

pub mod blocking;
mod bytes_client;
mod client;
mod engine;
mod error;
mod options;
mod scan;
mod service;
mod stats;
pub mod transaction;
pub mod tuple;

use std::path::PathBuf;

pub use bytes::Bytes;
pub use bytes_client::BytesClient;
pub use client::Client;
pub use error::Error;
pub use fatbtree_blink::layers::MAX_KEY_BYTES;
pub use fatbtree_remote_memory::{BytesRange, Order};
pub use fatbtree_topology::Structure;
pub use options::{Options, Protocol};
pub use scan::{Scan, ScanKey};
pub use stats::Stats;
pub use transaction::Transaction;

/// Connects to a cluster as the first client of its cluster file (TOML). [`Options`] has other ways.
///
/// # Errors
/// As for [`Options::connect`].
pub async fn connect(cluster_file: impl Into<PathBuf>) -> Result<Client, Error> {
    Options::new(cluster_file).connect().await
}

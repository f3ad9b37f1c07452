//! The stage of a structure over all memory servers: a structure's campaign brings its scenario, its clients and its own properties.
//!
//! ```text
//!   campaign        aims, shapes, draws of operations │ properties of its own
//!   ────────────────────────────────────────────────────────────────────────────────────────────────
//!   Scene           clients that work, die and begin anew; servers that die; the last client
//!   Recorder        operations of any Structure, their history: linearizable
//!   Server          a memory server of any Part in all its lives: killed, lost, found again
//!   begin           a client's memory, and the keeper of its sessions
//!   ────────────────────────────────────────────────────────────────────────────────────────────────
//!   world::trial    mishaps one after the other, everything healed, last operations, properties
//! ```

mod client;
mod parts;
mod recorder;
mod scene;
mod server;

use fatbtree_verbs::time::Duration;

pub use client::{Client, begin, config};
pub(crate) use client::{any_contention, client, keep, keeper};
pub use parts::with_parts;
pub(crate) use recorder::{Act, InCommon, Recorder};
pub(crate) use scene::{Clients, Restarts, SHARES, SOON, Scene, add, nothing_wrong};
pub use server::{Server, options, serve};

/// Interval in which a client and a server look for something to be done.
const LOOK: Duration = Duration::from_micros(10);

//! A memory server: one partition's tree in one region of memory, read by clients with one-sided RDMA.
//!
//! On the data path a memory server does nothing: its NIC answers READs. What is left is to build the tree, to hand the
//! region to the NIC, to show the tree's top to the planner of switch caches, and to exchange queue pairs.
//!
//! ```text
//!  keys, values ──► bulk_load ──► LoadedTree ──► MemoryServer ──region──► NIC (the owner has it)
//!                                    │                ▲  │
//!                                    ▼        drain() │  │ OwnerRequest: connect, counters
//!                              TreeSnapshot       Mailbox▼       (data-path thread)
//!  ───────────────────────────────────────────────────▲─────────────────────────────────
//!                                                   Handle       (control plane, tokio)
//!                                                     │
//!                                               grpc::serve ◄──── grpc::Client
//! ```
//!
//! * [`bulk_load`], [`load_cluster`]: trees from sorted keys, in exactly the memory they need.
//! * [`MemoryServer`]: the sans-IO value that the data-path thread owns; [`Mailbox`] brings it requests.
//! * [`TreeSnapshot`]: all internal nodes.
//! * [`grpc`]: the service and its client.
//!
//! # Example
//!
//! ```
//! use fatbtree_index::{plain, value, Outcome, Start, TreeConfig};
//! use fatbtree_memserver::{fixed, load_cluster, LoadOptions};
//!
//! let keys: Vec<u64> = (0..10_000).map(|i| i * 3).collect();
//! let options = LoadOptions::new(TreeConfig::default(), 0);
//! let mut values = fixed(100, |key, out: &mut [u8]| value::fill(key, 42, out));
//! let cluster = load_cluster(&options, 4, &keys, &mut values)?;
//!
//! let memory = cluster.memory();
//! let get = |key| plain::lookup(&memory, &options.config, &cluster.roots, key, Start::Root, |_, _| unreachable!());
//! let (outcome, trips) = get(2_997);
//! assert!(matches!(outcome, Outcome::Found(bytes) if value::check(2_997, 42, bytes)));
//! assert_eq!(trips.round_trips, 4, "two internal nodes, the leaf, the record");
//! assert_eq!(get(2_998).0, Outcome::NotFound);
//! # Ok::<(), fatbtree_memserver::LoadError>(())
//! ```

mod chunk;
mod cluster;
pub mod grpc;
mod load;
mod mailbox;
mod server;
mod snapshot;
mod values;

pub use chunk::{CHUNK_ALIGN, ChunkAllocator, RegionFull};
pub use cluster::{Cluster, load_cluster};
pub use load::{LoadCounts, LoadError, LoadOptions, LoadedTree, bulk_load, bulk_load_unsorted, sort_keys};
pub use mailbox::{Handle, Mailbox, ServerGone, mailbox};
pub use server::{
    ConnectCall, ConnectError, Counter, Endpoint, MemoryServer, OwnerRequest, Request, ServerError,
    ServerInfo, StatisticsCall,
};
pub use snapshot::{SnapshotNode, TreeSnapshot};
pub use values::{FromClosures, ValueSource, fixed, varying};

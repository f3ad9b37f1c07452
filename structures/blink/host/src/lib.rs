//! What a memory server does for a B-link tree: it builds one partition's tree in a region, and answers what only a tree can be asked.
//!
//! The memory server itself is [`fatbtree_memserver`]: sessions, memory, queue pairs. The tree is its [tenant](Blink). So trees and
//! other structures share all of it.
//!
//! ```text
//!  keys, values ──► bulk_load ──► LoadedTree ──┐       one region, mapped, shared with the device:
//!                                              │       [superblock│nodes│records│chunks ...│padding]
//!   ┌────────── MemoryServer<D, Blink> ────────▼──────────────────────────────────────┐
//!   │ sessions, memory: fatbtree_memserver   │   Blink: snapshots of the living tree, │ ◄─ frames ─► device
//!   │                                        │          places of keys                │   (data-path thread)
//!   └──▲───────────────────────────────────────────────────────────▲──────────────────┘
//!   Mailbox                                         query::Worker ──┘ (reads the region, threads beside it)
//!  ────▲─────────────────────────────────────────────────────────────────────────────────
//!   TreeHandle ◄── grpc::serve ◄──── grpc::TreeCalls, grpc::load_servers               (control plane, tokio)
//! ```
//!
//! * [`bulk_load`], [`load_cluster`], [`load_ranges`]: trees from sorted keys, in exactly the memory they need.
//! * [`Blink`]: the tree as a tenant. [`TreeServer`], [`TreeHandle`] and the like are the memory server's types with it.
//! * [`TreeFolder`], [`tree_in`], [`build_in`]: trees that outlive the server, in mapped files.
//! * [`query`]: the server's end of the query protocol, for clients without RDMA.
//! * [`grpc`]: services of the tree; [`grpc::load_servers`] fills servers that run.
//!
//! `examples/udp_memserver` is a server as a process: a software NIC behind a UDP port, and the service.
//!
//! # Example
//!
//! Two servers, a client that opens a session with each, and a lookup.
//!
//! ```
//! use fatbtree_blink::{Pool, PoolConfig, RemoteSide, Start, TreeConfig, value};
//! use fatbtree_blink_host::{LoadOptions, load_cluster, seeded};
//! use fatbtree_memserver::{ClientId, ServerOptions};
//! use fatbtree_verbs::plain::PlainNetwork;
//! use fatbtree_verbs::time::Instant;
//!
//! let keys: Vec<u64> = (0..10_000).map(|i| i * 3).collect();
//! let options = LoadOptions::new(TreeConfig::default(), 0);
//! let cluster = load_cluster(&options, 2, &keys, &mut seeded(42, 100))?;
//! let roots = cluster.roots.clone();
//!
//! let network = PlainNetwork::new();
//! let mut servers = cluster.serve(&ServerOptions::default(), 1, |_server| network.device())?;
//! let pool = Pool::new(network.device(), PoolConfig::default(), roots, 1)?;
//!
//! // Out of band, in life by gRPC: a session, and the endpoints of a queue pair.
//! let now = Instant::ZERO;
//! for id in pool.connections() {
//!     let server = &mut servers[usize::from(id.server)];
//!     let local = pool.open(id)?;
//!     let client = ClientId { host: [127, 0, 0, 1].into(), roce: local.ip };
//!     let lease = server.open_session(now, client)?;
//!     let endpoint = server.connect(now, lease.session, &local, None)?;
//!     let rkey = server.info().region.rkey;
//!     pool.connected(id, RemoteSide { endpoint, rkey, registered: false })?;
//! }
//! let found = pool.reactor().block_on(pool.lookup(2_997, Start::Root));
//! assert!(value::check(2_997, 42, &found.result?.expect("it was loaded")));
//! assert_eq!(found.trips.round_trips, 5, "three internal nodes, the leaf, the record");
//!
//! // A client that is silent loses what it has.
//! let end = servers[0].poll_timeout().expect("the end of its lease");
//! servers[0].handle_timeout(end);
//! assert!(servers[0].statistics().contains(&("queue_pairs".to_owned(), 0)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cluster;
mod finder;
pub mod grpc;
mod kept;
mod load;
mod marks;
pub mod query;
mod snapshots;
mod tenant;
mod values;

use fatbtree_memserver::{Event, Handle, Mailbox, MemoryServer, ServerInfo};

pub use cluster::{
    Cluster, divide, divide_pairs, divide_words, load_cluster, load_cluster_bytes, load_ranges,
};
pub use finder::{KeyPlaces, LocateError, MAX_LOCATE_KEYS};
pub use kept::{BuildError, TreeFolder, TreeStorage, build_in, tree_in};
pub use load::{
    BytePairs, LayerCounts, Layout, Load, LoadCounts, LoadError, LoadOptions, LoadedTree, bulk_load,
    bulk_load_bytes, bulk_load_over, bulk_load_unsorted, sort_keys,
};
pub use snapshots::SnapshotError;
pub use tenant::{Blink, NoRoot, TreeInfo, TreeRequest, TreeRequests, WalkLimits, set_root};
pub use values::{FromClosures, ValueSource, fixed, seeded, varying};

/// A memory server of a tree.
pub type TreeServer<D> = MemoryServer<D, Blink>;

/// Description of a memory server of a tree.
pub type TreeServerInfo = ServerInfo<TreeInfo>;

/// The control plane's end of the mailbox of a [`TreeServer`].
pub type TreeHandle = Handle<Blink>;

/// The data-path thread's end of the mailbox of a [`TreeServer`].
pub type TreeMailbox = Mailbox<Blink>;

/// An event of a [`TreeServer`].
pub type TreeEvent = Event<TreeInfo>;

//! A memory server: one partition's tree in one region of memory, read by clients with one-sided RDMA.
//!
//! On the data path a memory server does nothing: its device answers READs. Otherwise it builds the tree,
//! shares its memory with the device, and shows the tree's top to the planner of switch caches. It gives
//! queue pairs and memory to clients, and takes them back.
//!
//! ```text
//!  keys, values ──► bulk_load ──► LoadedTree ──┐       one region, mapped, shared with the device:
//!                                              │       [superblock│nodes│records│chunks ...│padding]
//!   ┌───────────────── MemoryServer<D> ────────▼──────────────────────────────────────┐
//!   │ sessions: queue pairs, chunks, leases, bounds │ snapshots of the living tree    │ ◄─ frames ─► device
//!   └──▲──────────────────────────────────────────────────────────┬───────────────────┘   (data-path thread)
//!      │ answer(), handle_timeout(), work()                       ▼ Event: first-hop entries come and go
//!   Mailbox
//!  ────▲─────────────────────────────────────────────────────────────────────────────────
//!   Handle ◄── grpc::serve ◄──── grpc::Client                                          (control plane, tokio)
//! ```
//!
//! * [`bulk_load`], [`load_cluster`], [`load_ranges`]: trees from sorted keys, in exactly the memory they need.
//! * [`MemoryServer`]: the sans-IO value that the data-path thread owns, over any [`Device`](fatbtree_verbs::Device);
//!   [`Mailbox`] brings it requests.
//! * [`ClientId`], [`Lease`], [`Limits`]: what a client may hold, and for how long. [`Chunk`]: memory for new nodes and records.
//! * [`ServerOptions::writable`], [`ServerInfo::writer`], [`Lease::owner`]: what clients need to write. [`Grant`], [`FreeBlocks`],
//!   [`MemoryServer::give_back`]: memory that was freed, and used again by others.
//! * [`Storage`], [`Folder`]: memory that outlives the server, in mapped files.
//! * [`query`]: the server's end of the query protocol, for clients without RDMA.
//! * [`session_keeper`]: a client's sessions with its servers, kept without I/O.
//! * [`Event`]: what the first-hop switches must know.
//! * [`grpc`]: the service and its client; [`grpc::load_servers`] fills servers that run.
//!
//! `examples/udp_memserver` is a server as a process: a software NIC behind a UDP port, and the service.
//!
//! # Example
//!
//! Two servers, a client that opens a session with each, and a lookup.
//!
//! ```
//! use fatbtree_blink::{Pool, PoolConfig, RemoteSide, Start, TreeConfig, value};
//! use fatbtree_memserver::{ClientId, LoadOptions, MemoryServer, ServerOptions, load_cluster, seeded};
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
//!     let rkey = server.info().tree.rkey;
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

mod blink;
mod chunk;
mod event;
mod folder;
mod free_blocks;
pub mod grpc;
mod info;
mod kinds;
mod layout;
mod limits;
mod mailbox;
mod owners;
mod refusal;
mod server;
mod session;
pub mod session_keeper;
mod storage;
mod tenant;

pub use blink::cluster::{Cluster, divide, load_cluster, load_ranges};
pub use blink::finder::{KeyPlaces, LocateError, MAX_LOCATE_KEYS};
pub use blink::load::{
    LoadCounts, LoadError, LoadOptions, LoadedTree, bulk_load, bulk_load_over, bulk_load_unsorted, sort_keys,
};
pub use blink::query;
pub use blink::snapshots::SnapshotError;
pub use blink::values::{FromClosures, ValueSource, fixed, seeded, varying};
pub use blink::{Blink, NoRoot, TreeInfo, TreeRequest};
pub use chunk::{Chunk, ChunkSize, NoChunk, chunk_kinds_bytes};
pub use event::{Event, FirstHop};
pub use fatbtree_remote::ChunkKind;
pub use folder::{Folder, FolderError, FolderOwner};
pub use free_blocks::{BLOCKS_AT_ONCE, FreeBlocks, GivenBack, Grant, TooManyBlocks};
pub use info::{LockTable, Origin, ServerInfo};
pub use kinds::DamagedKinds;
pub use layout::{Class, Layout};
pub use limits::{Bounds, ClientId, Limits, OverBound, Payer, Resource};
pub use mailbox::{Handle, InstallPlace, Installing, Mailbox, ServerGone, mailbox, mailbox_with_waker};
pub use owners::NoOwner;
pub use refusal::{PathMtu, Refusal};
pub use server::{Attached, Counter, MemoryServer, Reply, Request, ServerError, ServerOptions};
pub use session::{Lease, SessionKey};
pub use storage::{BuildError, Storage};
pub use tenant::{HEADER_BYTES, Load, Loaded, Seen, Shape, Tenant, Used};

//! Trees over one-sided verbs.
//!
//! Clients find and change records in a pool of memory servers by one-sided RDMA alone; no server CPU takes part. This crate has the
//! layout of the tree's nodes and the operations on it, as futures over any [`Verbs`](fatbtree_verbs::Verbs). It opens nothing,
//! starts nothing and reads no clock.
//!
//! ```text
//!              ┌──────────── SuperRoot: key -> partition ─────────────┐
//!              ▼                                                      ▼
//!        partition 0 (server 0)                                 partition 1 (server 1)
//!        [superblock: root, level, generation]                  [superblock]
//!  level 3    [root]                                               [root]
//!            ╱      ╲               internal: 16 children, 384 bytes
//!  level 2  [ ]──────►[ ]           siblings linked left to right (B-link)
//!         ╱  │  ╲    ╱  │ ╲
//!  level 0 [leaf]►[leaf]► ...       unsorted entries, 1 KB; a version byte per 64-byte line
//!            │
//!          [record]                 key, length, version, checksum, value; or values in the leaf
//!
//!     pool.lookup(key).await        ┌───────┐     RDMA READ     ┌───────────────┐
//!     Descent ── read, index read ─►│ Verbs │ ◄───────────────► │ memory server │
//!         ▲                         └───┬───┘                   └───────────────┘
//!         └──── bytes, in a registered buffer
//! ```
//!
//! A *read* names an address. An *index read* names a key, and the switches on the way choose the node; which one is
//! told by the node itself. Operations take both through the same [`Check`]s, so a switch that is behind the times costs
//! a round trip and never a wrong answer.
//!
//! * [`TreeConfig`], [`node`], [`record`], [`Superblock`]: what lies in memory, byte by byte.
//!   Addresses, locks, sessions, space and records are [`fatbtree_remote_memory`]'s, which knows no tree.
//! * [`Pool`]: a client's queue pairs to the memory servers, and its operations: [`Pool::lookup`], [`Pool::mutate`].
//! * [`Pool::scan`]: ranges of pairs, as a stream. [`Pool::len`], [`Pool::verify`]: the whole tree, counted and checked.
//! * [`Writer`]: what a client needs to lock nodes. [`Change`], [`MutationResult`]: what it wants changed, and what came of it.
//! * [`IndexCache`]: what a client remembers of the inner nodes. [`EntryCache`]: places of single keys, for speculative lookups.
//! * [`layers`]: keys of bytes: [`Pool::lookup_bytes`], [`Pool::mutate_bytes`], [`Pool::scan_bytes`].
//! * [`SuperRoot`]: where they begin. [`separator()`], [`cut_keys`], [`cut_nodes`]: where nodes end.
//! * [`Tree`], [`TreeTop`]: the same where the memory is at hand, for snapshots and tests.
//! * [`plain`]: a client without a network. [`value`]: values that can be checked.
//!
//! # Example
//!
//! A tree of one leaf with one key, found by an index read.
//!
//! ```
//! use fatbtree_blink::node::{LeafBuilder, NodeSpec};
//! use fatbtree_blink::plain::PlainClient;
//! use fatbtree_blink::{GlobalAddress, KeyRange, Partition, Regions, Start, SuperRoot, TreeConfig, ValueLayout};
//! use fatbtree_verbs::Memory;
//!
//! let config = TreeConfig::new(16, 1024, ValueLayout::Inline(5))?;
//! let address = GlobalAddress::new(0, 64);
//! let mut memory = Memory::anonymous(64 + 1024)?;
//! let spec = NodeSpec { address, level: 0, range: KeyRange::ALL, sibling: GlobalAddress::NULL, version: 1 };
//! let mut leaf = LeafBuilder::new(&mut memory.as_mut_slice()[64..], config.leaf_shape(), spec);
//! leaf.push_inline(u64::MAX).copy_from_slice(b"hello");
//! leaf.finish();
//!
//! let roots = SuperRoot::new(vec![Partition { id: 0, range: KeyRange::ALL, root: address, root_level: 0 }])?;
//! let mut client = PlainClient::new(&Regions::new([(0, memory.into())]), &config, &roots);
//! client.set_landing(move |_key, _target| address); // where the switches let the index read land
//! let found = client.lookup(u64::MAX, Start::IndexRead);
//! assert_eq!(found.result?.as_deref(), Some(&b"hello"[..]));
//! assert_eq!((found.trips.round_trips, found.trips.landed), (1, Some(0)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod allocation;
mod cache;
mod config;
mod descent;
pub mod layers;
mod limits;
mod lookup;
mod moved;
mod needs;
pub mod node;
mod operation;
pub mod plain;
mod pool;
mod root_block;
mod scan;
mod separator;
pub mod size_class;
mod speculation;
mod super_root;
mod superblock;
mod techniques;
mod top;
pub mod value;
mod verify;
mod walk;
mod write;

pub use allocation::Allocation;
pub use cache::{CacheStats, IndexCache};
pub use config::{
    ConfigError, Integrity, Keys, LeafKind, MAX_INLINE_VALUE, MAX_PATH_MTU, MAX_VALUE, POINTER_ROOM,
    TreeConfig, ValueLayout,
};
pub use fatbtree_remote_memory::{
    Attempts, BreakReason, BytesRange, Change, Check, Combine, CommonError, ConnectError, ConnectionId,
    Contention, Event, GlobalAddress, HAND_OVERS, HEADER_BYTES, KeyRange, MAX_OFFSET, OFFSET_BITS, Order,
    Owner, RemoteMemory, RemoteSide, RemoteStats, ReturnedBlocks, SURPLUS, SessionId, Shortage, SizeClass,
    Writer, record,
};
pub use limits::Limits;
pub use lookup::{Lookup, Value};
pub use operation::{OperationError, Start, Trips, ValueBytes};
pub use pool::{Pool, PoolConfig, PoolError, PoolStats};
pub use scan::{Scan, ScanOptions, ScanTrips};
pub use separator::{cut_keys, cut_nodes, separator};
pub use speculation::{EntryCache, EntryCacheStats, EntryPart, EntryPlace};
pub use super_root::{Partition, SuperRoot, SuperRootError};
pub use superblock::{SUPERBLOCK_BYTES, Superblock, SuperblockError, nodes_from};
pub use techniques::Techniques;
pub use top::{LookupBytes, TopNode, TopReader, TreeTop};
pub use verify::{Damage, Verified, VerifyError, verify_at_hand};
pub use walk::{NodeBytes, PathStep, Regions, Tree, WalkError};
pub use write::MutationResult;

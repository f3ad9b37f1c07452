//! Trees over one-sided verbs.
//!
//! Clients find records in a pool of memory servers by RDMA READs alone; no server CPU takes part. This crate has the
//! layout of the tree's nodes and the lookup as a state machine that posts reads and is fed their bytes. It knows
//! neither which NIC carries the reads, nor time, nor threads.
//!
//! ```text
//!              ┌──────────── SuperRoot: key -> partition ─────────────┐
//!              ▼                                                      ▼
//!        partition 0 (server 0)                                 partition 1 (server 1)
//!  level 3    [root]                                               [root]
//!            ╱      ╲               internal: 16 children, 384 bytes
//!  level 2  [ ]──────►[ ]           siblings linked left to right (B-link)
//!         ╱  │  ╲    ╱  │ ╲
//!  level 0 [leaf]►[leaf]► ...       unsorted entries, 1 KB; a version byte per 64-byte line
//!            │
//!          [record]                 key, length, version, value, version; or values in the leaf
//!
//!          ┌────────┐  read / index_read   ┌───────┐     RDMA READ     ┌───────────────┐
//!          │ Lookup │ ───────────────────► │ Verbs │ ◄───────────────► │ memory server │
//!          └───▲────┘                      └───┬───┘                   └───────────────┘
//!              └──────── bytes read ───────────┘
//! ```
//!
//! A *read* names an address. An *index read* names a key, and the switches on the way choose the node; which one is
//! told by the node itself. [`Lookup`] takes both through the same checks, so a switch that is behind the times costs
//! a round trip and never a wrong answer.
//!
//! * [`TreeConfig`], [`node`], [`record`]: what lies in memory, byte by byte.
//! * [`Verbs`], [`Lookup`]: how a client finds a key.
//! * [`SuperRoot`]: where it begins.
//! * [`Tree`], [`plain`]: the same in plain memory, for snapshots and tests.
//! * [`value`]: values that can be checked.
//!
//! # Example
//!
//! A tree of one leaf with one key, found by an index read.
//!
//! ```
//! use fatbtree_index::node::{LeafBuilder, NodeSpec};
//! use fatbtree_index::plain::{self, Regions};
//! use fatbtree_index::{GlobalAddress, KeyRange, Outcome, Partition, Start, SuperRoot, TreeConfig, ValueLayout};
//!
//! let config = TreeConfig::new(16, 1024, ValueLayout::Inline(5))?;
//! let address = GlobalAddress::new(0, 64);
//! let mut memory = vec![0; 64 + 1024];
//! let spec = NodeSpec { address, level: 0, range: KeyRange::ALL, sibling: GlobalAddress::NULL, version: 1 };
//! let mut leaf = LeafBuilder::new(&mut memory[64..], config.leaf_shape(), spec);
//! leaf.push_inline(u64::MAX).copy_from_slice(b"hello");
//! leaf.finish();
//!
//! let roots = SuperRoot::new(vec![Partition { id: 0, range: KeyRange::ALL, root: address, root_level: 0 }])?;
//! let memory = Regions::new([(0, &memory[..])]);
//! let switches = |_partition, _key| address; // where they let the index read land
//! let (outcome, trips) = plain::lookup(&memory, &config, &roots, u64::MAX, Start::IndexRead, switches);
//! assert_eq!(outcome, Outcome::Found(b"hello"));
//! assert_eq!((trips.round_trips, trips.landed), (1, Some(0)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod config;
mod keys;
mod lookup;
pub mod node;
pub mod plain;
pub mod record;
mod super_root;
pub mod value;
mod verbs;
mod walk;

pub use address::{GlobalAddress, MAX_OFFSET, OFFSET_BITS};
pub use config::{ConfigError, MAX_INLINE_VALUE, MAX_PATH_MTU, TreeConfig, ValueLayout};
pub use keys::KeyRange;
pub use lookup::{Limits, Lookup, LookupError, Outcome, Progress, Start, Trips};
pub use super_root::{Partition, SuperRoot, SuperRootError};
pub use verbs::{OpId, PostError, ReadFailure, Verbs};
pub use walk::{PathStep, Tree, WalkError};

//! The controller: plans what the switches cache, and drives them.
//!
//! ```text
//!  memory servers ──TreeTop───▶ Tree ──┐
//!  clients ─sampled keys─▶ Frequencies ├─▶ Plan ──▶ Controller ──Desired──▶ a task for each switch ──Fleet──▶ P4Runtime
//!  cluster file ─Network, Placement───┘     │           ▲                            ▲
//!       Budget (table sizes, TCAM) ─────────┘      connections              Observed: read back
//! ```
//!
//! * **Planning** is pure: [`Tree`], [`Frequencies`], [`Budget`] in, [`Plan`] out. The same inputs give the same plan.
//!   - fat root: greedy by visits for what a node takes, until nothing fits K ranges and the entries and TCAM rows of
//!     each stage any more (paper §III-B, there by visits alone);
//!   - ranges: Algorithm 1, from the boundaries (§III-B);
//!   - layers: the most visited nodes per node set and group of switches that hold the same (§III-C).
//! * **[`Plan::resolve`]** executes a plan in software: the answer of the switches must be the same.
//! * **[`tables`]**: one file per P4 table, typed key and action, lowered by name.
//! * **[`Controller`]** knows and decides, without I/O: it is told of switches, memory servers and operators, and says what all switches
//!   should hold ([`Desired`]). What one of them holds ([`Observed`]) is led there change by change ([`Wanted::next_changes`]), whether a
//!   reload is under way, was interrupted, or the switch came back empty; a [`Keeper`] is the protocol for this. A reload writes a new epoch beside the old one, or, where most
//!   nodes stay, only the difference ([`Plan::difference_to`]).
//! * **[`Primary`]** decides for a term, without I/O: when a plan is made and loaded, and what clients, operators and people are told.
//! * **[`Follower`]** decides when a tree has grown so far from the active plan, or other keys have become so hot, that the next plan is
//!   worth its entries (§IV-B).
//! * **[`Fleet`]** (P4Runtime) and **[`grpc`]** (memory servers, clients, operators) are the parts with I/O. The process that drives a
//!   controller is in the crate `node`. [`operator`] has what operators ask and are told.
//! * **[`election`]** decides which of several controllers leads, and **[`Ballot`]** asks a switch which one does.
//! * **[`links`]** finds out which cables and switches are dead.
//! * **[`base`]** and **[`Connections`]**: routes and first-hop entries.
//!
//! ```
//! use fatbtree_controller::{Budget, Frequencies, Placement, Plan, Tree};
//! use fatbtree_blink::{GlobalAddress, KeyRange, Partition, TopNode, TreeTop};
//! use fatbtree_topology::Cluster;
//!
//! // Four memory servers, each with a root over two leaves.
//! let cluster = Cluster::example();
//! let tops = cluster.servers().iter().map(|server| {
//!     let (id, range) = (server.partition, KeyRange { low: server.low, high: None });
//!     let at = |offset| GlobalAddress::new(id, offset).raw();
//!     let children = vec![(server.low, at(0x400)), (server.low + 100, at(0x800))];
//!     let root = TopNode { address: at(0xc00), level: 1, children };
//!     let partition = Partition { id, range, root: GlobalAddress(root.address), root_level: 1 };
//!     TreeTop { partition, nodes: vec![root], reads: Default::default() }
//! });
//! let tree = Tree::new(&tops.collect::<Vec<_>>())?;
//! let frequencies = Frequencies::from_keys(&tree, &[7, 7, 250, 3]);
//! // Room for five ranges: one root of the four can be merged into the fat root, and it is the most visited one.
//! let budget = Budget { fat_root_ranges: 5, ..Budget::bmv2() };
//! let plan = Plan::new(cluster.tree(), &Placement::of(&cluster), &tree, &frequencies, &budget, 1)?;
//! assert_eq!(plan.resolve(99).address, 0x400);
//! assert_eq!((plan.resolve(99).levels, plan.resolve(u64::MAX).levels), (1, 2), "the other roots are cached in core-0");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod base;
mod connection;
mod cost;
mod device_config;
pub mod election;
mod follow;
mod frequency;
pub mod grpc;
pub mod links;
mod occupancy;
pub mod operator;
mod packets;
mod plan;
mod primary;
mod program;
mod push;
mod reasons;
mod reconcile;
pub mod tables;
#[cfg(test)]
mod test_support;
mod tree;

pub use base::{Base, base, cluster_base, cluster_base_during};
pub use connection::{Connection, ConnectionError, Connections};
pub use cost::Cost;
pub use device_config::{DeviceConfigFormat, TofinoOutput};
pub use follow::{FollowError, FollowOptions, Follower, Replanned};
pub use frequency::Frequencies;
pub use occupancy::{Counts, Memory, Room, TableUse};
pub use packets::{Packet, PacketReceiver, PacketSender, packets};
pub use plan::{
    Budget, CachedChild, CachedNode, Diff, FatRootRange, HotKey, HotKeys, LayerSummary, Located,
    MAX_SET_NODES, NextBlock, Pivots, Placement, Plan, PlanError, PlannedPartition, ROLE_SETS, RangeMatch,
    Resolved, SETS, STAGES, SramBytes, Summary, SwitchNodes, WayPoint, by_partition, diff, in_leaves,
    next_epoch, probe,
};
pub use primary::{Answer, Client, ControllerNews, Made, Order, Outdated, Primary, Ticket};
pub use program::{Program, ProgramError, Programs, Target};
pub use push::{Ballot, Fleet, FleetOptions, OnProgress, Progress, PushError, PushReport};
pub use reasons::drop_reason;
pub use reconcile::{
    Active, Controller, Desired, Generation, Generations, Keeper, KeeperAnswer, KeeperNotice, KeeperRequest,
    Loaded, Notice, Observed, Pace, Refused, Registration, Serving, Stage, SwitchState, Wanted,
};
pub use tables::{Change, Entry, NodeKind, NodeSet, TableError, Tables};
pub use tree::{MAX_BRANCHES, SnapshotError, Tree};

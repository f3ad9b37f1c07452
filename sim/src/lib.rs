//! The whole path as one value, under any clock.
//!
//! ```text
//!            ┌──────────────── Cluster ─────────────────┐
//!            │  clients ─┐                 ┌─ servers   │        Wires            Clock
//!            │           ├─ edge ─ agg ─ core ...       │   InstantWires      the wall's
//!            │           └─ switches ──────┘            │   FaultyWires       VirtualClock
//!            └──────────────────────────────────────────┘
//! ```
//!
//! The nodes are the real ones: the software switch with the compiled P4 program, the RoCEv2 NIC, the tree, the
//! client. In real time (the demo) the wires deliver at once. In the simulator they delay, lose, duplicate, reorder
//! and damage frames as a seed decides, and time is a number. The same seed replays a bug: except where stated,
//! nothing here reads a clock, a thread or a random generator that the seed does not drive.
//!
//! * [`Cluster`]: nodes and wires. [`InstantWires`], [`FaultyWires`]: the two kinds of wires.
//! * [`Scenario`]: a random cluster with a random tree, plan and mishaps, checked lookup by lookup.
//! * [`failover`]: a cable or a switch dies, and lookups go round it: with the controller and its channels in virtual time.
//!
//! Beside it, without frames and a thousand times faster, for trees that are written to:
//!
//! * [`world`]: machines at the level of verbs, whose memory tears and which die, freeze and come back.
//! * [`history`]: clients' calls and answers, checked for linearizability.
//! * [`stage`]: servers, clients and recorded operations of any structure that lies over all servers.
//! * [`writers`]: scenarios with many writers of trees. [`trees`]: the same with many readers, which are led
//!   by stale hints.
//! * [`queries`]: clients of both kinds on one tree, RDMA and query workers, frame by frame and datagram by datagram.
//! * [`power`]: servers with data folders, on disks that lose what was not synced.
//! * [`campaigns`]: all simulations that take a seed, by name.
//! * [`rivals`]: several controllers over the same switches; they are started, killed, frozen and cut off.
//! * [`damage`]: plain WRITEs of a hostile writer to a tree.
//! * [`threads`]: real threads in real time, whose clients are killed. It asks a clock.
//! * [`seeds`]: many seeds over all processors, and the command that replays a failed one. A clock limits the time of
//!   a seed.
//!
//! # Example
//!
//! One seed, as the tests run a thousand of:
//!
//! ```
//! let outcome = fatbtree_sim::Scenario::from_seed(7).run().expect("every lookup is answered");
//! assert_eq!(outcome.wrong, 0);
//! assert_eq!(outcome.found + outcome.not_found + outcome.failed, outcome.lookups);
//! ```

#[macro_use]
mod counters;

pub mod campaigns;
mod cluster;
mod control;
pub mod damage;
pub mod dolphin;
pub mod failover;
pub mod hash;
pub mod history;
mod network;
pub mod power;
pub mod queries;
pub mod rivals;
mod scenario;
pub mod seeds;
pub mod stage;
pub mod threads;
pub mod transactions;
pub mod trees;
mod virtual_time;
mod wires;
pub mod world;
pub mod writers;

pub use cluster::{Client, Clock, Cluster, MemoryServer};
pub use control::{Control, described, registration};
pub use network::{Network, WriteRefused};
pub use scenario::{Outcome, Scenario, ScenarioError};
pub use virtual_time::VirtualClock;
pub use wires::{Attachment, Delivery, FaultyWires, InstantWires, Wires};

//! A software RoCEv2 NIC: the reliable connection (RC) transport of the InfiniBand Architecture Specification, volume 1,
//! chapter 9, in a library that is handed frames, time and a seed, and hands back frames, completions and deadlines.
//!
//! ```text
//!            owner: Device and Verbs                                    driver: frames and time
//!  ┌───────────────────────────────────────────┐               ┌──────────────────────────────────────┐
//!   post ──▶ send queue ──▶ requester ─────────┬──────────────▶ poll_transmit ──▶ wire ──▶ handle_frame
//!   poll ◀── completions ◀──────┘ ▲            │                                               │
//!              │                  └────────────┼───────── responses ◀──────────────────────────┤
//!           buffers                            │                                               │
//!   register ──▶ regions ◀──▶ responder ───────┘◀──────── requests ◀───────────────────────────┘
//!                   │
//!            Arc<Memory>: shared with its owner
//! ```
//!
//! The NIC never opens a socket, spawns a thread or reads a clock: see [`Nic`] for how it is driven. For its owner it is a
//! [`Device`](fatbtree_verbs::Device) and [`Verbs`](fatbtree_verbs::Verbs): RDMA READ, index read, RDMA WRITE, compare and swap, fetch and
//! add, both also masked; chains of them posted whole or not at all; device memory. Below that: segmentation to the path MTU;
//! acknowledgements, NAKs, retransmission; duplicate requests answered again; the ICRC checked on every frame. A READ keeps the
//! address and the rkey it was posted with (index reads: the key, and one below 256) and is retransmitted as such; an index read that
//! would need a second packet is refused, since one that is resumed would ask for another key.
//!
//! Peers are not trusted: whatever frames arrive, nothing panics, and everything kept is bounded.
//!
//! [`faults`] has what tests, simulators and drivers need to make a network worse: a seeded judge over frames, and a link that
//! obeys it.
//!
//! Queue pairs are connected by endpoints that their owners exchange, or by the Communication Manager, as programs of librdmacm do: see
//! [`Connector`](fatbtree_verbs::Connector).
//! [`Messages`](fatbtree_verbs::Messages): SEND and WRITE with immediate.
//!
//! # Example
//!
//! Two NICs and a wire between them that loses nothing:
//!
//! ```
//! use fatbtree_soft_nic::{Nic, NicConfig};
//! use fatbtree_verbs::time::Instant;
//! use fatbtree_verbs::{Access, Device, Memory, Operation, Output, Remote, Verbs, WorkRequest};
//! use std::net::Ipv4Addr;
//!
//! let mut client = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1)), 1)?;
//! let mut server = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2)), 2)?;
//!
//! let memory = Memory::shared(4096)?;
//! memory.write(64, b"hello")?;
//! let region = server.register(&memory, 1 << 48, Access::READ)?;
//!
//! // What two processes exchange out of band.
//! let (here, there) = (client.create()?, server.create()?);
//! client.connect(here, &server.endpoint(there)?)?;
//! server.connect(there, &client.endpoint(here)?)?;
//!
//! let from = Remote { address: region.iova + 64, rkey: region.rkey };
//! let operation = Operation::Read { from, len: 5 };
//! client.post(here, &[WorkRequest { tag: 42, signalled: true, operation }])?;
//!
//! let now = Instant::ZERO;
//! let mut frame = Vec::new();
//! let completion = loop {
//!     while client.poll_transmit(now, &mut frame) {
//!         server.handle_frame(now, &frame);
//!     }
//!     while server.poll_transmit(now, &mut frame) {
//!         client.handle_frame(now, &frame);
//!     }
//!     if let Some(completion) = client.poll() {
//!         break completion;
//!     }
//! };
//! assert_eq!(completion.tag, 42);
//! assert!(matches!(completion.result, Ok(Output::Read(bytes)) if *bytes == *b"hello"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod atomic;
mod config;
mod connections;
mod connector;
mod device;
pub mod faults;
mod memory;
mod nic;
mod psn;
mod queue_pair;
mod stats;
mod table;
mod timers;

pub use config::{NicConfig, QueuePairOptions};
pub use nic::Nic;
pub use psn::Psn;
pub use stats::{DropReason, NicStats};

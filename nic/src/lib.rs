//! A software RoCEv2 NIC: the reliable connection (RC) transport of the InfiniBand Architecture Specification, volume 1,
//! chapter 9, in a library that is handed frames, time and a seed, and hands back frames, completions and deadlines.
//!
//! ```text
//!   post_read ─┐                                                    ┌─▶ poll_completion
//!   post_write ┼─▶ requester ─┐                     ┌─▶ requester ──┘
//!   post_…     ┘              ├─▶ poll_transmit     │
//!                 responder ──┘        │       handle_frame ─▶ responder ─▶ memory regions
//!                     ▲                ▼            │             │
//!                     │              wire ──────────┘             │
//!                     └───────────────────────────────────────────┘
//! ```
//!
//! It never opens a socket, spawns a thread or reads a clock: see [`Nic`] for how it is driven. RDMA READ, RDMA WRITE, compare
//! and swap, fetch and add; segmentation to the path MTU; acknowledgements, NAKs, retransmission; duplicate requests answered again;
//! the ICRC checked on every frame. A READ keeps the address and the rkey it was posted with (index reads: the key and 0) and is
//! retransmitted as such.
//!
//! What is not here yet: SEND and RECEIVE, masked atomics, RDMA CM.
//!
//! # Example
//!
//! Two NICs and a wire between them that loses nothing:
//!
//! ```
//! use fatbtree_nic::time::Instant;
//! use fatbtree_nic::{Access, CompletionStatus, Nic, NicConfig};
//! use std::net::Ipv4Addr;
//!
//! let mut client = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1)), 1);
//! let mut server = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2)), 2);
//!
//! let mut memory = vec![0; 4096];
//! memory[64..69].copy_from_slice(b"hello");
//! let region = server.register_memory(1 << 48, memory, Access::READ);
//!
//! // What two processes exchange out of band.
//! let (c, s) = (client.create_queue_pair(), server.create_queue_pair());
//! client.connect(c, server.local_endpoint(s).unwrap())?;
//! server.connect(s, client.local_endpoint(c).unwrap())?;
//!
//! let now = Instant::ZERO;
//! client.post_read(now, c, 42, region.iova + 64, region.rkey, 5)?;
//! let mut frame = Vec::new();
//! let completion = loop {
//!     while client.poll_transmit(now, &mut frame) {
//!         server.handle_frame(now, &frame);
//!     }
//!     while server.poll_transmit(now, &mut frame) {
//!         client.handle_frame(now, &frame);
//!     }
//!     if let Some(completion) = client.poll_completion() {
//!         break completion;
//!     }
//! };
//! assert_eq!((completion.wr_id, completion.status), (42, CompletionStatus::Success));
//! assert_eq!(completion.data, b"hello");
//! client.recycle(completion.data);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod completion;
mod config;
mod error;
mod memory;
mod nic;
mod psn;
mod queue_pair;
mod stats;
pub mod time;
mod timers;

pub use completion::{Completion, CompletionStatus, Operation};
pub use config::{Mtu, NicConfig};
pub use error::{PostError, QpError};
pub use memory::{Access, MemoryRegion};
pub use nic::Nic;
pub use psn::Psn;
pub use queue_pair::{Endpoint, QueuePairNumber, QueuePairOptions, QueuePairState};
pub use stats::{DropReason, NicStats};

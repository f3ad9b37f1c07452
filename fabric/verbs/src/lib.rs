//! The seam between trees and networks: one-sided operations on remote memory, whatever device executes them.
//!
//! ```text
//!   trees (index), clients                       memory servers
//!        │ chain(queue pair, [Write, Write])          │ register, create, connect
//!   ┌────▼─────┐   a future per chain                 │
//!   │ Reactor  │                                      │
//!   └────┬─────┘                                      │
//!        │ post ▼       ▲ poll                        │
//!   ┌────┴────────── Verbs ──────────┐     ┌──────────▼──────────┐
//!   │ requests, chains, completions  │ ◄─► │ Device              │     the same device can be both
//!   └────────────────────────────────┘     └─────────────────────┘
//!     software NIC (frames)   libibverbs   simulated memory   plain memory
//! ```
//!
//! * [`Device`]: memory regions and queue pairs, their connecting, breaking and reconnecting. [`Verbs`]: posting chains
//!   of [`WorkRequest`]s with one doorbell, and taking [`Completion`]s.
//! * [`Connector`]: connections by RDMA's Communication Manager. [`Messages`]: SEND, RECEIVE and WRITE with immediate.
//! * [`Memory`]: mapped memory that its owner and a device share, in a file if it shall outlive the process. [`BufferPool`]: registered
//!   buffers for what is read.
//! * [`Reactor`]: the same as futures, many at a time, without an allocation per operation.
//! * [`plain`]: devices whose network is a function call, for unit tests.
//! * [`local`]: the same for the threads of a memory server's own process, beside its NIC.
//! * [`conformance`]: what every implementation must do, as a suite that runs against any.
//! * [`time`]: integers of nanoseconds. Nothing here reads a clock.
//!
//! # Example
//!
//! One device with memory, one that reads it, and a chain of two WRITEs of which only the last is signalled.
//!
//! ```
//! use fatbtree_verbs::plain::PlainNetwork;
//! use fatbtree_verbs::{Access, Device, Memory, Operation, Output, Reactor, Remote};
//!
//! let network = PlainNetwork::new();
//! let (mut server, client) = (network.device(), network.device());
//! let memory = Memory::shared(4096)?;
//! let region = server.register(&memory, 0x1000, Access::ALL)?;
//!
//! let reactor = Reactor::new(client);
//! let queue_pair = reactor.with(|client| client.create())?;
//! let peer = server.create()?;
//! let here = reactor.with(|client| client.endpoint(queue_pair))?;
//! reactor.with(|client| client.connect(queue_pair, &server.endpoint(peer).unwrap()))?;
//! server.connect(peer, &here)?;
//!
//! let at = |offset| Remote { address: region.iova + offset, rkey: region.rkey };
//! let bytes = reactor.block_on(async {
//!     let chain = [Operation::Write { to: at(64), data: b"hello" }, Operation::Write { to: at(64), data: b"J" }];
//!     reactor.chain(queue_pair, chain).await?;
//!     let [Output::Read(bytes)] = reactor.chain(queue_pair, [Operation::Read { from: at(64), len: 5 }]).await? else {
//!         unreachable!("a READ reads")
//!     };
//!     Ok::<_, fatbtree_verbs::Error>(bytes)
//! })?;
//! assert_eq!(&*bytes, b"Jello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod access;
mod buffer;
mod capabilities;
mod chain;
mod completion;
pub mod conformance;
mod connector;
mod device;
mod endpoint;
mod error;
pub mod journal;
pub mod local;
mod memory;
mod messages;
pub mod plain;
mod reactor;
mod request;
mod room;
mod stack;
pub mod time;
mod wait_queue;

pub use access::Access;
pub use buffer::{Buffer, BufferClass, BufferPool, LARGEST_BUFFER};
pub use capabilities::Capabilities;
pub use completion::{Completion, Failure, Output};
pub use connector::{Connection, ConnectionEvent, Connector, Service};
pub use device::{Device, QueuePair, QueuePairState, Region, Verbs};
pub use endpoint::{Agreed, Endpoint, EndpointError, Mtu, QueuePairNumber};
pub use error::{ConnectError, DeviceMemoryError, Error, PostError, RegisterError};
pub use memory::{Memory, OutOfBounds};
pub use messages::{Message, Messages, Received, ReceivedMessage};
pub use reactor::{Alarm, Batch, Broken, Chain, MAX_BATCH, Reactor, Sleep, Throttling};
pub use request::{INDEX_RKEYS, IndexTarget, Operation, RKEY_NODE, RKEY_NODE_OR_RECORD, Remote, WorkRequest};
pub use room::{NoRoom, ReserveError};
pub use wait_queue::{Place, Step, WaitQueue};

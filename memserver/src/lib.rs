//! A memory server: one region of memory with a structure in it, read and written by clients with one-sided RDMA.
//!
//! On the data path a memory server does nothing: its device carries out what clients post. Beside it the server shares its memory with
//! the device, gives queue pairs and memory to clients, and takes them back. Only its [`Tenant`], the structure in the region, knows what
//! the bytes mean.
//!
//! ```text
//!                                                        one region, mapped, shared with the device:
//!   Tenant: the structure ──┐                            [header│blocks that were loaded│chunks ...│padding]
//!   ┌───────────────── MemoryServer<D, T> ────────────────────────────────────────────┐
//!   │ sessions: queue pairs, chunks, leases, bounds │ requests to the structure       │ ◄─ frames ─► device
//!   └──▲──────────────────────────────────────────────────────────┬───────────────────┘   (data-path thread)
//!      │ answer(), handle_timeout(), work()                       ▼ Event: first-hop entries come and go
//!   Mailbox
//!  ────▲─────────────────────────────────────────────────────────────────────────────────
//!   Handle ◄── grpc::serve ◄──── grpc::Client                                          (control plane, tokio)
//! ```
//!
//! * [`MemoryServer`]: the sans-IO value that the data-path thread owns, over any [`Device`](fatbtree_verbs::Device);
//!   [`Mailbox`] brings it requests.
//! * [`Tenant`]: the seam to the structure. Its size classes are [`Class`]es, and [`Layout`] says where a block may lie.
//! * [`ClientId`], [`Lease`], [`Limits`]: what a client may hold, and for how long. [`Chunk`]: memory for new blocks.
//! * [`ServerOptions::writable`], [`ServerInfo::writer`], [`Lease::owner`]: what clients need to write. [`Grant`], [`FreeBlocks`],
//!   [`MemoryServer::give_back`]: memory that was freed, and used again by others.
//! * [`Storage`], [`Folder`]: memory that outlives the server, in mapped files.
//! * [`Part`]: one server's part of a structure that lies over several, made empty, and filled by clients or [laid out](Part::lay) from keys.
//! * [`Event`]: what the first-hop switches must know. [`Fellows`], [`Ask`]: what servers of one structure ask each other.
//! * [`grpc`]: the service and its client.
//!
//! # Example
//!
//! A server of a single counter, and a client's session with it.
//!
//! ```
//! use std::convert::Infallible;
//! use std::ops::Range;
//!
//! use fatbtree_memserver::{ClientId, Found, Loaded, MemoryServer, Origin, Seen, ServerOptions, Shape, Tenant};
//! use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, SizeClass};
//! use fatbtree_verbs::plain::PlainNetwork;
//! use fatbtree_verbs::time::Instant;
//! use fatbtree_verbs::{Memory, Verbs};
//!
//! /// A counter after the header. It never moves and needs no chunk.
//! #[derive(Debug)]
//! struct Counter;
//!
//! impl Tenant for Counter {
//!     type Description = GlobalAddress;
//!     type Request = Infallible;
//!
//!     fn description(&self) -> GlobalAddress {
//!         self.root()
//!     }
//!
//!     fn root(&self) -> GlobalAddress {
//!         GlobalAddress::new(0, HEADER_BYTES as u64)
//!     }
//!
//!     fn see(&mut self, _header: &[u8; HEADER_BYTES]) -> Seen {
//!         Seen::Same
//!     }
//!
//!     fn find(&self, _class: SizeClass, within: Range<u64>) -> Found {
//!         Found::Nothing(within.end)
//!     }
//!
//!     fn handle(&mut self, request: Infallible) {
//!         match request {}
//!     }
//! }
//!
//! let region = Memory::shared(1 << 20)?;
//! let spare = 128..1 << 20;
//! let shape = Shape::default();
//! let (generation, origin, chunk_classes) = (1, Origin::Meant, None);
//! let loaded = Loaded { server: 0, region, spare, generation, origin, chunk_classes, shape, tenant: Counter };
//!
//! let network = PlainNetwork::new();
//! let options = ServerOptions { chunk_bytes: 4096, ..ServerOptions::writable() };
//! let mut server = MemoryServer::new(network.device(), loaded, &options, 1)?;
//!
//! // Out of band, in life by gRPC: a session, and the endpoints of a queue pair.
//! let client = ClientId { host: [127, 0, 0, 1].into(), roce: [127, 0, 0, 1].into() };
//! let lease = server.open_session(Instant::ZERO, client)?;
//! assert!(server.info().writer(lease.owner, true).is_some(), "it may take locks");
//! assert_eq!(server.info().structure, GlobalAddress::new(0, 64));
//!
//! // A client that is silent loses what it has.
//! let end = server.poll_timeout().expect("the end of its lease");
//! server.handle_timeout(end);
//! assert!(server.statistics().contains(&("sessions".to_owned(), 0)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checks;
mod chunk;
mod chunk_classes;
mod event;
mod fellows;
mod find;
mod folder;
mod free_blocks;
pub mod grpc;
mod lay;
mod layout;
mod limits;
mod mailbox;
mod marked;
mod moments;
mod owners;
mod part;
mod refusal;
mod server;
mod session;
mod storage;
mod tenant;

pub use checks::Check;
pub use chunk::{ChunkSize, NoChunk, NoClass, chunk_classes_bytes};
pub use chunk_classes::{DamagedClasses, note_chunk_class};
pub use event::{Event, FirstHop};
pub use fatbtree_remote_memory::session_keeper::{Attached, BLOCKS_AT_ONCE, Chunk, FreeBlocks, Grant};
pub use fatbtree_remote_memory::{LockTable, Origin, ServerInfo, SizeClass};
pub use fellows::{Answer, Ask, Fellows, Question, Unanswered};
pub use find::{find_block, find_slot, first_byte};
pub use folder::{
    Counts, Folder, FolderError, FolderOwner, FoundRegion, Keeping, KeptRegion, MomentsFile, Seal,
};
pub use free_blocks::{GivenBack, TooManyBlocks};
pub use lay::{LaidOut, LayError, Laying, OutOfOrder, Rooms, Writes, check_order, lay_in_memory};
pub use layout::{Class, Layout};
pub use limits::{Bounds, ClientId, Limits, OverBound, Payer, Resource};
pub use mailbox::{Handle, InstallPlace, Installing, Mailbox, ServerGone, mailbox, mailbox_with_waker};
pub use marked::Marked;
pub use moments::{HearError, Heard, Moment, Moments, OlderCopy, Statement};
pub use owners::NoOwner;
pub use part::{MakeInError, Part, PartOptions, found_again, kept, make, make_in, part_in};
pub use refusal::{PathMtu, Refusal};
pub use server::{Counter, MemoryServer, RegionBytes, Reply, Request, ServerError, ServerOptions};
pub use session::{Lease, SessionKey, Told};
pub use storage::Storage;
pub use tenant::{Found, Loaded, Seen, Shape, Tenant};

//! One thread's access to pooled memory over one-sided verbs, for indexes of any kind.
//!
//! A client reads and writes memory of other machines, and no CPU there takes part. What that needs besides the index is here:
//! addresses, sessions, locks, memory for what is new, records that a reader can check. No part of this crate reads
//! a tree. One list still names parts of one: [`Check`], because tests leave out one check of all.
//!
//! ```text
//!     an index: which bytes mean what, and in which order they change
//!   ────────────────────────────────────────────────────────────────────────────
//!     RemoteMemory: connections and lanes, reads, chains, pauses, events
//!     Session with server 0                          Session with server 1 …
//!      ├─ Writer      the owner of locks that are taken
//!      ├─ LocalLocks  operations that wait for a lock        GlobalAddress = server, offset
//!      └─ Allocator   chunks and free blocks, by size class  record = key, version, checksum, value
//!   ────────────────────────────────────────────────────────────────────────────
//!     Verbs: READ, WRITE, compare-and-swap
//! ```
//!
//! * [`RemoteMemory`]: queue pairs to all servers, and what operations do by them.
//! * [`Kept`]: the same for a keeper of sessions, which an index may put itself in front of.
//! * [`session_keeper`]: a client's sessions with its servers, kept without I/O.
//! * [`GlobalAddress`]: where a byte lies. [`KeyRange`]: keys that belong together.
//! * [`Writer`]: the owner under which a client takes locks, of one session. [`LockGuard`]: a lock while an operation has it.
//! * [`Allocator`]: memory for what is new, by size class.
//! * [`RegionHeader`]: a region's first line, which says what lies in it.
//! * [`record`]: values out of line, with key, version and checksum.
//! * [`Op`]: an operation, attempted until it has an answer; its round trips, pauses and blocks.
//! * [`Structure`]: what structures of keys and values have in common.
//! * [`structures`]: a counter, a spin lock and a ring buffer in some 40 lines each.
//! * [`Check`]: the comparisons that keep stale or torn data from becoming an answer.
//!
//! # Example
//!
//! A record gets a place, is written there, and is read by the entry that leads to it.
//!
//! ```
//! use fatbtree_remote_memory::record::{RecordFault, RecordPointer, published, read_record, record_bytes, write_record};
//! use fatbtree_remote_memory::{Allocator, GlobalAddress, SizeClass, Want};
//!
//! let mut allocator = Allocator::new(3);
//! let class = SizeClass(0);
//! let want = Want::record(3, class, 5);
//! assert!(allocator.take(want).is_none(), "the server has given nothing");
//! allocator.grant(GlobalAddress::new(3, 4096), 1024, class);
//! let place = allocator.take(want).expect("a chunk has room");
//! assert_eq!(place.address, GlobalAddress::new(3, 4096));
//!
//! let version = place.version.expect("nothing has been there");
//! let mut bytes = vec![0; record_bytes(5) as usize];
//! write_record(&mut bytes, 7, version, published(version), |value| value.copy_from_slice(b"hello"));
//! let entry = RecordPointer { address: place.address, length: 5, version };
//! assert_eq!(read_record(&bytes, 7, entry), Ok(&b"hello"[..]));
//! assert_eq!(read_record(&bytes, 8, entry), Err(RecordFault::Key { found: 7, expected: 8 }));
//! ```

mod address;
mod allocator;
pub mod byte_keys;
mod chain;
mod checks;
mod client;
mod config;
mod conflict;
mod connection;
mod header;
mod info;
mod kept;
mod keys;
mod latencies;
mod locks;
mod members;
mod memory;
mod mix;
mod operation;
pub mod record;
mod session;
pub mod session_keeper;
mod spread_client;
mod structure;
pub mod structures;
mod troubles;

pub use address::{GlobalAddress, MAX_OFFSET, OFFSET_BITS};
pub use allocator::{Allocator, Block, ReturnedBlocks, SURPLUS, Shortage, SizeClass, Want};
pub use byte_keys::Keys;
pub use chain::Part;
pub use checks::Check;
pub use client::{
    Believed, CacheUse, ClientConfig, Counted, Infos, OpenError, Remembered, Report, StructureClient,
};
pub use config::{Combine, Contention, Locking, RemoteConfig};
pub use connection::{BreakReason, ConnectError, ConnectionId, Event, RemoteSide, RemoteStats};
pub use header::{CONFIGURATION_BYTES, HEADER_BYTES, RegionHeader};
pub use info::{LockTable, Origin, ServerInfo};
pub use kept::Kept;
pub use keys::{BytesRange, KeyRange};
pub use latencies::{LatencyBuckets, OperationLatencies};
pub use locks::{HAND_OVERS, LockError, LockGuard, OWNER_NAMES, Owner, SessionId, Writer, restructure_all};
pub use members::{Awaited, Members, ServerSet, members, name_of};
pub use memory::{
    Era, MAX_SHARES, NotReserved, Ongoing, PIECE, RESTING, ReadBytes, RemoteMemory, Share, Trouble, Turn,
    bytes_of, word_at, word_of,
};
pub use mix::mix;
pub use operation::{
    Attempts, Backoff, CommonError, Growth, Lane, Op, Path, Pauses, Spare, Stop, Suspicion, Taken,
};
pub use spread_client::SpreadClient;
pub use structure::{
    Answer, BytesExported, BytesPairs, Change, Item, Order, Pairs, Portion, Spread, Step, Stepped, Structure,
    Wanted, copied, export_in_order,
};
pub use troubles::Troubles;

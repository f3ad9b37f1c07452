//! RACE hashing: a lock-free extendible hash table in pooled memory. Its clients use one-sided verbs only, and no CPU of a memory server
//! takes part.
//!
//! ```text
//!   client's copy of the directory        subtables, on any server          blocks, on any server
//!
//!   suffix 00 ─┐                          ┌ header ─ successors ┐
//!   suffix 10 ─┴────────────────────────► │ main   │ 7 slots    │ ─────────► key, version, CRC, value
//!   suffix 01 ───────────► …              │ overfl │ 7 slots    │
//!   suffix 11 ───────────► …              │ main   │ 7 slots    │
//!                                         └ …                   ┘
//! ```
//!
//! A key has two combined buckets of 128 bytes in one subtable, and so 28 slots. A slot names a block by fingerprint, length and address.
//!
//! Keys are numbers, or [strings of bytes](fatbtree_remote_memory::byte_keys) with the same operations: [`search_bytes`](Table::search_bytes),
//! [`change_bytes`](Table::change_bytes). The table's [shape](Shape::keys) says which. The block of a key of bytes has a hash of it where a
//! number would be, the [word](word_of), and the whole key before the value. So what follows from a hash, as splits do, reads the block's head
//! alone, for either kind. Several keys of bytes may have one word; each is found by its bytes.
//!
//! | operation | round trips | verbs |
//! |---|---|---|
//! | [search](Table::search) | 2 | [READ 128 × 2]; READ block |
//! | search of a key whose [place is remembered](Table::remember_places) | 1 | [READ slot, READ block] |
//! | [update](Table::update), [upsert](Table::upsert) | 3 | [WRITE block, READ 128 × 2]; READ old block; CAS |
//! | [compare-and-swap](Table::compare_and_swap) | 3 | [WRITE block, READ 128 × 2]; READ old block; CAS |
//! | [insert](Table::insert) | 3 | [WRITE block, READ 128 × 2]; [CAS, READ 128 × 2]; CAS |
//! | [delete](Table::delete) | 3 | [READ 128 × 2]; READ block; CAS |
//! | [export](Table::export) of all pairs | 2 for up to 16 pairs of each server | READ slots; [READ block × 16] |
//!
//! An operation takes a round trip more for another key of its fingerprint in its buckets, which all keys of its word have, for a block that another client has freed (its
//! version must be read), and for a split that the client did not know. Each [`Answer`] says how many there were.
//!
//! Sources: RACE (Zuo et al., USENIX ATC 2021, sections 3 and 4); SMART-HT (SMART, ASPLOS 2024, section 5.2). Both leave holes that are
//! closed here. Pauses and bounds under contention are SMART's, in [`Contention`](fatbtree_remote_memory::Contention).
//!
//! # Changes take effect with one CAS
//!
//! Every slot is changed by compare-and-swap alone. An update or a deletion takes effect when its CAS replaces the pointer that it has read.
//! An insertion puts a *tentative* pointer, looks for others of its key, and takes effect when a second CAS makes its pointer *committed*.
//! Of several insertions of one key, one comes so far; RACE's duplicates are never seen.
//!
//! A search takes effect when it reads the slot, although it reads the block later. What it finds there belongs to the slot:
//!
//! * The block's version is the slot's. A block that was freed and written anew has another one, and the search begins anew.
//! * Key and checksum are right. So the block is not a mixture, and not another key's of the same fingerprint.
//! * A block that was freed, and not yet written anew, still has the value. It was the key's when the slot was read, within the operation.
//!
//! # Blocks are used again, without ABA
//!
//! A client frees the block that its own CAS has unlinked, and uses it for any other key. Another client may still hold the slot's old word
//! in hand, and CAS it. If the same word had come back meanwhile, for another key, that CAS would replace the wrong key.
//!
//! The same word does not come back, because it has the *version* of the block: 11 bits. Each record that is written to a place has the
//! version after the one before, whichever client writes it: one that got the block from the server reads the version in memory first. So a
//! word returns after 2048 uses of one place, all of them within one operation of another client, from its READ to its CAS. Each use takes
//! at least three round trips, and the operation two. This bound is the same as for the product's other index, whose entries have 11 bits of
//! version for the same reason.
//!
//! An empty slot has no version. An insertion that finds a slot empty, filled and empty again has missed nothing: it looks after its CAS.
//!
//! # Splits need no lock
//!
//! A subtable whose buckets are full is frozen slot by slot, copied into two new ones, and names them as its successors. Every client can do
//! each of these steps, again or at the same time. A client that finds an unfinished split waits a moment, and then does all of it. So a
//! dead client leaves no lock behind. The memory of a subtable is never used again: an old pointer to one, in a client's copy or in the
//! directory, leads on to its successors. Old subtables cost as much memory as the present ones.
//!
//! A client freezes nothing before it has memory for the pair, and connections with all servers that the split needs. A pair that belongs on a
//! server that is away, or is full, is put on another one of the table's. Where no server has room insertions into full buckets fail, and all
//! keys can still be changed and deleted. A split that was begun and cannot be completed, because its client died and memory has an end or a
//! server is gone, is taken back by those that wait for it. This alone takes a lock, whose owner has a lease.
//!
//! A client's copy of the directory may be read while the directory grows. The suffix in each bucket's header then says that a subtable is
//! not the key's.
//!
//! # Bounds
//!
//! 32 servers with numbers below 32, each with 64 GiB at most; 2^16 subtables of up to 65,536 groups; values of up to 1 MiB, with a key of bytes before
//! them, and no longer than a chunk of the server. A block takes a multiple of 64 bytes; of more than 512, up to a fifth is empty. A client that dies
//! leaves the block of each operation under way, and up to [`SURPLUS`](fatbtree_remote_memory::SURPLUS) freed blocks of each size. An operation
//! that ends as [`Unknown`](fatbtree_remote_memory::CommonError::Unknown) leaves its block, too. The memory server of a table on one server finds such blocks (`Tenant::swept` of
//! `fatbtree-memserver`), while other clients work; on several servers they are not used again. Neither are pairs of subtables of a
//! client that died before it announced them.
//!
//! # Example
//!
//! A memory server, a client and the network between them in one process. In production the server is another process.
//!
//! ```
//! use std::pin::pin;
//! use std::rc::Rc;
//! use std::task::{Context, Poll, Waker};
//!
//! use fatbtree_remote_memory::session_keeper::{KeeperOptions, SessionKeeper};
//! use fatbtree_memserver::{ClientId, MemoryServer, ServerOptions};
//! use fatbtree_race::host::HashTable;
//! use fatbtree_race::{Shape, Table};
//! use fatbtree_remote_memory::{RemoteConfig, RemoteMemory};
//! use fatbtree_verbs::Access;
//! use fatbtree_verbs::plain::PlainNetwork;
//! use fatbtree_verbs::time::{Duration, Instant};
//!
//! let network = PlainNetwork::new();
//! let content = HashTable::make(0, Shape::default(), 32 << 20)?;
//! let options = ServerOptions { access: Access::ALL, ..ServerOptions::writable() };
//! let mut server = MemoryServer::new(network.device(), content, &options, 1)?;
//! let memory = RemoteMemory::new(network.device(), [0].into_iter(), RemoteConfig::default(), 1)?;
//! let memory = Rc::new(memory);
//! let mut keeper = SessionKeeper::new(memory.connections(), KeeperOptions::default());
//!
//! let mut work = pin!(async {
//!     let table = Table::open(Rc::clone(&memory), 0).await?;
//!     let inserted = table.insert(7, b"seven").await;
//!     assert!(inserted.result? && inserted.round_trips == 3);
//!     let found = table.search(7).await;
//!     assert_eq!(found.round_trips, 2);
//!     assert_eq!(found.result?.as_deref(), Some(&b"seven"[..]));
//!     assert!(table.delete(7).await.result?);
//!     table.search(7).await.result.map(|value| value.is_none())
//! });
//! let (mut now, host) = (Instant::ZERO, [127, 0, 0, 1].into());
//! let is_gone = loop {
//!     memory.turn(now);
//!     let client = ClientId { host, roce: [0, 0, 0, 1].into() };
//!     keeper.pump(now, &*memory, |_, call| server.carry_out(now, client, call));
//!     if let Poll::Ready(result) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
//!         break result?;
//!     }
//!     now = now + Duration::from_micros(1);
//! };
//! assert!(is_gone);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod block;
mod checks;
mod directory;
mod error;
mod hash;
mod key;
mod layout;
mod slot;
mod table;
mod verify;

#[cfg(feature = "host")]
pub mod host;

pub use checks::Check;
pub use error::TableError;
pub use hash::Hash;
pub use key::{Key, twin_of, word_of};
pub use layout::{
    BLOCKS, BUCKET_BYTES, BadShape, BucketHeader, COMBINED_BYTES, Leaf, MAX_DIRECTORY_BITS, PAIRS, SLOTS,
    STRUCTURE, Shape, TableInfo,
};
pub use slot::{BlockPointer, MAX_REGION, MAX_SERVERS, Place, Slot, State, UNIT};
pub use table::{Answer, Change, Cursor, PlaceStats, Table, Value};
pub use verify::{Fault, Verified};

//! Dolphin: a hybrid index in pooled memory, a radix tree above B+ leaves. Clients read and change it by
//! one-sided verbs alone.
//!
//! ```text
//!   client                      pooled memory
//!   NodeCache                   inner nodes                 leaves of 1 KB
//!   prefix ─► leaf, leaf, … ──► ┌──────────────────┐       ┌───────────────────────────────┐
//!             8 bytes each      │ 00 ─► leaf       │ ────► │ range, parent                 │
//!                               │ 40 ─► node ──► … │       │ 49 keys                       │
//!   my line on the server ──┐   │ 41 ─► leaf       │       │ 49 values, or words of records│ ─► record
//!   "I change leaf L"       │   └──────────────────┘       │ lock                          │
//!                           └─► 4 to 256 entries           └───────────────────────────────┘
//! ```
//!
//! An inner node tells keys apart by one byte. Its *nodes* are for one byte each, its *leaves* for ranges
//! of bytes. A leaf that is full is split within its range; it becomes a node when its keys have but one
//! byte. So leaves are as full with sparse keys as with dense ones, and a client that knows the inner
//! nodes reads a key's leaf at once.
//!
//! | operation | round trips | verbs |
//! |---|---|---|
//! | [get](Index::get) | 1 | READ leaf |
//! | [update](Index::update) | 2 | [WRITE announcement, READ leaf]; [WRITE value, WRITE end] |
//! | [insert](Index::insert) | 3 | [WRITE announcement, READ leaf]; CAS key; [CAS value, WRITE end] |
//! | [delete](Index::delete) | 2 | [WRITE announcement, READ leaf]; [CAS key, WRITE end] |
//! | [scan](Index::scan) | 1 for the leaves of a node | READs, up to 16 |
//! | get, [led by switches](Index::set_led) | 1 | index READ |
//! | update, led by switches | 3 | index READ, and as above |
//!
//! More, where the client does not know the leaf, where it is full or thin, and where others change the
//! same. Each [`Answer`] says how many there were.
//!
//! Source: Dolphin, a Resource-efficient Hybrid Index on Disaggregated Memory (An, Wang, Feng, Liu), and the code that came
//! with it, for behaviour only.
//!
//! # What is different, and why
//!
//! Each is a hole of the published index. A test leaves the [`Check`] out, and a seed finds the wrong answer.
//!
//! | published | here | check |
//! |---|---|---|
//! | a split's WRITE of 1 KB is torn for readers | a stamp in every line | `Stamps` |
//! | an insertion puts key, then value; readers see the key with 0 | "no value" reads as absent, the value is put by CAS | `NoValue` |
//! | a deletion writes 0 over the key; another key's insertion or update meets the slot | a tombstone; slots are free again after a structure change | `Tombstone` |
//! | insertions look for any free slot | always the first one | `FirstFree` |
//! | readers stop at the first free slot | look at all | `AllSlots` |
//! | the walk by READs wants the exact byte at the last level | leaves by range everywhere | `RangeMatch` |
//! | values over a line are overwritten in place | records, whose word is swapped | `NewRecord` |
//! | an operation does not wait for its last WRITE | it does | `AwaitsLast` |
//! | all operations add to one word of the leaf, also those of clients that died since | a line for each client | `OwnCounts` |
//! | READs without end of a locked leaf | pauses | `Pauses` |
//! | two atomics at one word for each update of a hot leaf | none | `OwnCounts` |
//!
//! Published are no delete that works, no merge, no scan that scans and no values over 64 bytes. A leaf has
//! keys of one prefix of seven bytes there, so sparse keys have a leaf each.
//!
//! # Why an answer is right
//!
//! *The leaf decides.* What the cache or a node says leads to a leaf. A leaf answers if the key is in its
//! range, its state allows it, and all of its lines have one stamp. A structure change first waits until no
//! change is announced; then it makes the leaf "changing" with one WRITE of a line, and everything after that
//! WRITE gives new stamps. So a reader that finds one stamp, and not "changing", has read words that were the
//! leaf's when it looked at the lock line.
//!
//! *A get* takes effect when it reads the value. *An update* takes effect with its WRITE, or, if a deletion came
//! before, just before that deletion. *An insertion* takes effect when "no value" is swapped for its value, *a
//! deletion* when the key is swapped for a tombstone.
//!
//! *One key, one slot.* All insertions try the slots in one order, and a slot is not free twice between two
//! structure changes. If two insertions of a key took different slots, the later slot's client would have seen
//! the earlier slot taken, and by which key.
//!
//! *An announcement and a structure change see each other.* Both write first and read then; requests of a queue
//! pair are carried out in order.
//!
//! *A gap* has no leaf, so its keys are absent. That counts only if this operation has read the node.
//!
//! # Clients that die
//!
//! Updates and insertions that are half done change nothing that is seen. What a dead client has announced does
//! not count: its server says that it is dead. A structure change says in one line what it will do before it does
//! it, and any client can do it again. A dead client leaves the memory of what it had begun and not linked, and
//! up to [`SURPLUS`](fatbtree_remote_memory::SURPLUS) freed blocks of each size. These are not used again.
//!
//! # Servers that are away
//!
//! A node and its leaves lie on one server, the nodes above and below on any. So a structure change has its memory
//! before it locks anything, and under a lock it waits for no connection: it opens what is frozen, and gives the lock back.
//! Only a leaf that is *changing* already waits for the server of its new part. A living client whose connection breaks
//! in a change of unknown outcome leaves the memory of one record, or of what is new of one structure change.
//!
//! # Memory
//!
//! Counted after insertions in no order, values of eight bytes, 300,000 keys; the B-link tree (`blink`) with nodes filled to 70 %, 1 KB each.
//! `fatbtree figures --of dolphin` prints the table, and the same for the paper's 512 million keys.
//!
//! | keys | client's cache, bytes a key | servers, bytes a key | keys a leaf |
//! |---|---|---|---|
//! | dense | 0.56 | 32.3 | 32.5 |
//! | random, 64 bits | 0.28 | 30.9 | 33.6 |
//! | names of a made trace | 0.33 | 32.2 | 32.3 |
//! | B-link tree, either | 0.67 | 34.1 | 31.0 |
//!
//! Where it loses: an insertion takes a round trip more than the B-link tree's here, and a load is slower by 1.5 to 1.64; and
//! clients that are led by switches gain less from them, and with uniform keys lose until switches hold most leaves
//! (`sim/figures/FIGURES.md`).
//!
//! # Bounds
//!
//! 32 servers with numbers below 32; values of up to [`MAX_VALUE`] bytes, and no longer than a chunk of the server. In an index
//! of eight-byte values one word of 2^64 is no value. A client changes up to [`ANNOUNCEMENTS`] leaves of a server
//! at once; further operations wait. Each server has 4 MiB of address space for the lines of clients, of which it
//! uses what clients have touched. After 65,535 sessions numbers of owners come again: what a dead owner had
//! announced under such a number holds structure changes of that leaf up until the new owner changes something.
//!
//! # Example
//!
//! A memory server, a client and the network between them in one process. In production the server is another
//! process.
//!
//! ```
//! use std::pin::pin;
//! use std::rc::Rc;
//! use std::task::{Context, Poll, Waker};
//!
//! use fatbtree_dolphin::host::HybridIndex;
//! use fatbtree_dolphin::{Index, NodeCache, Shape};
//! use fatbtree_remote_memory::session_keeper::{KeeperOptions, SessionKeeper};
//! use fatbtree_memserver::{ClientId, MemoryServer, ServerOptions};
//! use fatbtree_remote_memory::{KeyRange, RemoteConfig, RemoteMemory};
//! use fatbtree_verbs::Access;
//! use fatbtree_verbs::plain::PlainNetwork;
//! use fatbtree_verbs::time::{Duration, Instant};
//!
//! let network = PlainNetwork::new();
//! let content = HybridIndex::make(0, Shape::default(), 32 << 20)?;
//! let options = ServerOptions { access: Access::ALL, ..ServerOptions::writable() };
//! let mut server = MemoryServer::new(network.device(), content, &options, 1)?;
//! let memory = RemoteMemory::new(network.device(), [0].into_iter(), RemoteConfig::default(), 1)?;
//! let memory = Rc::new(memory);
//! let mut keeper = SessionKeeper::new(memory.connections(), KeeperOptions::default());
//!
//! let mut work = pin!(async {
//!     let index = Index::open(Rc::clone(&memory), 0, Rc::new(NodeCache::new(1 << 20))).await?;
//!     for key in 0..100 {
//!         assert!(index.insert(key, b"a value.").await.result?);
//!     }
//!     let updated = index.update(7, b"another.").await;
//!     assert!(updated.result? && updated.round_trips == 2);
//!     let found = index.get(7).await;
//!     assert_eq!(found.round_trips, 1);
//!     assert_eq!(found.result?.as_deref(), Some(&b"another."[..]));
//!     assert!(index.delete(7).await.result?);
//!     let scanned = index.scan(KeyRange::of(5..10), 100).await.result?;
//!     Ok::<_, fatbtree_dolphin::IndexError>(scanned.iter().map(|(key, _)| *key).collect::<Vec<_>>())
//! });
//! let (mut now, host) = (Instant::ZERO, [127, 0, 0, 1].into());
//! let scanned = loop {
//!     memory.turn(now);
//!     let client = ClientId { host, roce: [0, 0, 0, 1].into() };
//!     keeper.pump(now, &*memory, |_, call| server.carry_out(now, client, call));
//!     if let Poll::Ready(result) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
//!         break result?;
//!     }
//!     now = now + Duration::from_micros(1);
//! };
//! assert_eq!(scanned, [5, 6, 8, 9]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cache;
mod checks;
mod entry;
mod error;
mod index;
mod inner;
mod key;
mod layout;
mod leaf;
mod verify;
mod word;

#[cfg(feature = "host")]
pub mod host;

pub use cache::{CacheStats, NodeCache};
pub use checks::Check;
pub use entry::{Entry, MAX_REGION, NodeSize, UNIT};
pub use error::IndexError;
pub use index::{Answer, Change, Index, Value};
pub use layout::{ANNOUNCEMENTS, BadShape, LEAVES, MAX_VALUE, NODES, RECORDS, STRUCTURE, Shape};
pub use leaf::{LEAF_BYTES, SLOTS};
pub use verify::{Fault, Verified};
pub use word::{MAX_RECORD_REGION, MAX_RECORD_SERVERS, place_bytes};

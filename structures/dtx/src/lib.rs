//! Distributed transactions on records in pooled memory. Clients use one-sided verbs only, and no CPU of a memory server takes part.
//!
//! ```text
//!   client: Tables                     server A                    server B                    server C
//!    Transaction                       ┌─────────────────────┐     ┌─────────────────────┐     ┌──────────
//!     1  CAS lock, READ ─────────────► │ item: primary       │     │ item: backup        │
//!     2  WRITE log, READ era ────────► │ seat: undo log      │ ──► │ seat: undo log      │
//!        READ again what stays as it is│                     │     │                     │
//!     3  WRITE item ─────────────────► │ item                │ ──► │ item                │
//!     4  WRITE lock 0, log closed ───► │ lock, log           │ ──► │ log                 │
//!                                      └─────────────────────┘     └─────────────────────┘     └──────────
//! ```
//!
//! [`Tables`] of fixed [`Shape`] lie on several memory servers. Each item has a primary, and `f` backups on other servers. A transaction
//! reads and locks items, and then changes all of them, or none. Transactions are *strictly serializable*: they take effect one after the
//! other, each between its begin and its answer.
//!
//! | transaction, addresses known | round trips | verbs |
//! |---|---|---|
//! | reads one item | 1 | READ |
//! | reads several items | 2 | READs; READs of lock and version |
//! | changes items | 4 | the four above, at all servers together |
//!
//! The fourth round trip only releases: the transaction is committed after the third. A key whose address is not known costs a round trip
//! more, and a new key two. Numbers and steps are FORD's (Zhang et al., FAST 2022), as SMART-DTX has them (SMART, ASPLOS 2024, section
//! 5.3); so are items with lock and version in place. Pauses and bounds under contention are SMART's, in
//! [`Contention`](fatbtree_remote_memory::Contention).
//!
//! # Committed is what lies on all replicas
//!
//! A transaction writes items in place, after an undo log on every server with a replica. It is committed when all replicas are written. An
//! undo log shares its round trip with the validation; a redo log could not, because a complete redo log is a decision.
//!
//! Four rules make this strict. A lock excludes readers, not only writers: a reader that passed by a lock would see the state before a
//! transaction that must come before others, which have ended. What does not change is read again when all locks are held: it must be
//! unchanged, and unlocked, or locked by this transaction still. A key has one entry in a transaction, however often it is fetched, and what
//! was read before it was locked must be what is locked. An absent key is read as the head of its node, whose version an insertion changes.
//!
//! What an aborted [run](Tables::run) has read is validated, too. A transaction that fails, or is given up by
//! [`abort`](Transaction::abort), promises less: each item was so at some moment, and not all at one.
//!
//! # What a client is told
//!
//! [`DtxError::Broke`] and [`DtxError::Conflict`] say that nothing was changed, and that is proved: all replicas were seen as they were, with
//! the locks of the transaction, or one of them as it was after its end. Where no such proof is left, the client is told
//! [`DtxError::Unknown`].
//!
//! A transaction may be dropped at any await, by a time limit for example. Its locks, seats and log are settled by the client's next
//! transaction, or by [`Tables::finish`], which the owner runs when the memory raises
//! [`Event::Unfinished`](fatbtree_remote_memory::Event::Unfinished).
//!
//! # A coordinator that dies
//!
//! A lock names its coordinator: session, owner number and *seat*. Other clients ask the server whether that session lasts
//! ([`session_of`](fatbtree_remote_memory::RemoteMemory::session_of)). A server that ends a session destroys its queue pairs first, so nothing of
//! a dead coordinator is written late. Its seat leads to its log, and the log to all items and servers. When the coordinator is dead at all
//! of these, another client claims its seats and finishes it: if all replicas are new it is committed, otherwise what is new is written
//! back. That client may die, too. A living client whose session has ended finishes its own transaction in the same way. A dead
//! coordinator whose items no client wants is recovered when its seats are wanted.
//!
//! # A server that dies
//!
//! A server whose memory is kept goes on. One that has lost it is made anew, as [`Content::Lost`](host::Content::Lost), or as
//! [`Content::Begun`](host::Content::Begun) where its process does not know whether it had any. Before their next transaction clients fill it
//! from the others; where no server has items they make new tables. Before that they begin a new *era* on these: a transaction whose log comes later there
//! reads the era after it, and writes no data. Nothing that was committed is lost while one replica of each item remains. Until the server
//! is back, transactions on its items wait: there is no change of primaries.
//!
//! # Bounds
//!
//! [`MAX_TABLES`] tables of fixed-length values on up to [`MAX_SERVERS`] servers with numbers below that, up to [`MAX_BACKUPS`] backups.
//! A node's slots are all it has: where they are full, an insertion is refused ([`DtxError::Full`]). A transaction changes as many items as
//! the shape's `writes`. Each transaction under way has a seat on each server, and each server has [`SPARE_SEATS`] more for recoveries. A
//! version has 24 bits of its transaction's number, and a counter above them. A word in a lock has 33 bits of its session's name; an owner
//! number is compared together with them. A READ of a node must take less time than three round trips.
//!
//! # Example
//!
//! A bank on two memory servers, in one process. In production each server is a process of its own.
//!
//! ```
//! # use std::pin::pin;
//! # use std::task::{Context, Poll, Waker};
//! # use fatbtree_remote_memory::session_keeper::{KeeperOptions, SessionKeeper};
//! # use fatbtree_memserver::{ClientId, MemoryServer, ServerOptions};
//! # use fatbtree_dtx::host::{Content, HostTables};
//! # use fatbtree_remote_memory::{RemoteConfig, RemoteMemory};
//! # use fatbtree_verbs::Access;
//! # use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
//! # use fatbtree_verbs::time::{Duration, Instant};
//! use std::rc::Rc;
//!
//! use fatbtree_dtx::{DtxError, Shape, TableShape, Tables, Verdict, Want};
//! use fatbtree_verbs::Verbs;
//!
//! const ACCOUNTS: u8 = 0;
//!
//! fn cents(value: Option<&[u8]>) -> Option<u64> {
//!     Some(u64::from_le_bytes(value?.try_into().ok()?))
//! }
//!
//! /// Moves money, if both accounts are there and the first one has enough. Says whether it did.
//! async fn transfer<V: Verbs>(bank: &Tables<V>, from: u64, to: u64, sum: u64) -> Result<bool, DtxError> {
//!     let moved = bank.run(async |tx| {
//!         let [a, b] = tx.fetch([Want::write(ACCOUNTS, from), Want::write(ACCOUNTS, to)]).await?;
//!         let (Some(has), Some(had)) = (cents(tx.value(a)), cents(tx.value(b))) else {
//!             return Ok(Verdict::Abort(false));
//!         };
//!         let Some(rest) = has.checked_sub(sum) else { return Ok(Verdict::Abort(false)) };
//!         tx.put(a, &rest.to_le_bytes())?;
//!         tx.put(b, &(had + sum).to_le_bytes())?;
//!         Ok(Verdict::Commit(true))
//!     });
//!     moved.await.result
//! }
//!
//! # async fn bank_of(memory: Rc<RemoteMemory<PlainDevice>>) -> Result<(), Box<dyn std::error::Error>> {
//! let bank = Tables::open(memory, 0).await?;
//! for account in 1..=2_u64 {
//!     let mut tx = bank.begin().await?;
//!     tx.insert(ACCOUNTS, account, &100_u64.to_le_bytes()).await?;
//!     tx.commit().await?;
//! }
//! assert!(transfer(&bank, 1, 2, 70).await?);
//! assert!(!transfer(&bank, 1, 2, 70).await?, "there are 30 left");
//! let mut tx = bank.begin().await?;
//! assert_eq!(cents(tx.read(ACCOUNTS, 2).await?), Some(170));
//! tx.commit().await?;
//! # Ok(())
//! # }
//! # let shape = Shape::new(&[TableShape::for_items(100, 8)], 0b11, 1)?;
//! # let network = PlainNetwork::new();
//! # let serve = |number: u16| {
//! #     let content = HostTables::make(number, shape, Content::Empty, 1).expect("the shape is possible");
//! #     let options = ServerOptions { access: Access::ALL, ..ServerOptions::writable() };
//! #     MemoryServer::new(network.device(), content, &options, number.into()).expect("there is memory")
//! # };
//! # let mut servers = [serve(0), serve(1)];
//! # let memory = RemoteMemory::new(network.device(), [0, 1].into_iter(), RemoteConfig::default(), 1)?;
//! # let memory = Rc::new(memory);
//! # let mut keeper = SessionKeeper::new(memory.connections(), KeeperOptions::default());
//! # let mut work = pin!(bank_of(Rc::clone(&memory)));
//! # let (mut now, host) = (Instant::ZERO, [127, 0, 0, 1].into());
//! # loop {
//! #     memory.turn(now);
//! #     let client = ClientId { host, roce: [0, 0, 0, 2].into() };
//! #     keeper.pump(now, &*memory, |server, call| servers[usize::from(server)].carry_out(now, client, call));
//! #     if let Poll::Ready(result) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
//! #         break result?;
//! #     }
//! #     now = now + Duration::from_micros(1);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checks;
mod error;
mod item;
mod layout;
mod seat;
mod tables;
mod value;
mod word;
pub mod workloads;

#[cfg(feature = "host")]
pub mod host;

pub use checks::Check;
pub use error::DtxError;
pub use item::{ITEM_HEAD, Presence};
pub use layout::{
    BadShape, ITEMS, MAX_BACKUPS, MAX_NODE_BYTES, MAX_SERVERS, MAX_SLOTS, MAX_TABLES, MAX_VALUE, MAX_WRITES,
    MOST_SEATS, Place, SPARE_SEATS, STRUCTURE, Shape, TABLES_OF_SERVERS, TableShape,
};
pub use tables::{
    AddressStats, Addresses, Answer, Fault, Item, Tables, Transaction, Verdict, Verified, Want,
};
pub use value::{LENGTH, pack, unpack};
pub use word::{MAX_SEATS, Word};

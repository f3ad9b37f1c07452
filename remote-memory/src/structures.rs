//! Structures of your own: a counter, a spin lock and a ring buffer over [`RemoteMemory`](crate::RemoteMemory).
//!
//! A structure needs addresses and the verbs, as SMART's interface has them (section 5.1):
//!
//! | SMART | here |
//! |---|---|
//! | connect | [`RemoteMemory::new`](crate::RemoteMemory::new), [`open`](crate::RemoteMemory::open), [`connected`](crate::RemoteMemory::connected); in a process, a [`SessionKeeper`](crate::session_keeper::SessionKeeper) |
//! | append READ, WRITE, CAS, FAA | an array of [`Operation`](fatbtree_verbs::Operation)s |
//! | post, wait | [`post`](crate::RemoteMemory::post), and `.await` |
//! | CAS with back-off | [`update`](crate::RemoteMemory::update); or [`compare_swap`](crate::RemoteMemory::compare_swap) and [`pause_after_conflict`](crate::RemoteMemory::pause_after_conflict) |
//!
//! Throttling and conflict avoidance lie below all of them: see [`Contention`](crate::Contention). Any number of operations of a thread run
//! at once, as futures. The examples run on a network in this process:
//!
//! ```
//! use fatbtree_remote_memory::{Contention, GlobalAddress, RemoteConfig, RemoteMemory, RemoteSide};
//! use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
//! use fatbtree_verbs::{Access, Device, Memory};
//!
//! /// A client with SMART's techniques, connected to a server with 4096 bytes. The server's device must be kept.
//! fn lab() -> Result<(RemoteMemory<PlainDevice>, PlainDevice), Box<dyn std::error::Error>> {
//!     let network = PlainNetwork::new();
//!     let mut server = network.device();
//!     let region = server.register(&Memory::shared(4096)?, GlobalAddress::new(0, 0).raw(), Access::ALL)?;
//!     let config = RemoteConfig { contention: Contention::SMART, ..RemoteConfig::default() };
//!     let memory = RemoteMemory::new(network.device(), [0].into_iter(), config, 1)?;
//!     let id = memory.connections()[0];
//!     let local = memory.open(id)?;
//!     let queue_pair = server.create()?;
//!     server.connect(queue_pair, &local)?;
//!     let endpoint = server.endpoint(queue_pair)?;
//!     memory.connected(id, RemoteSide { endpoint, rkey: region.rkey, registered: false })?;
//!     Ok((memory, server))
//! }
//! # let (memory, _server) = lab()?;
//! # assert_eq!(memory.reactor().block_on(memory.fetch_add(&memory.take_lane(), GlobalAddress::new(0, 64), 5)).unwrap(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A shared counter
//!
//! One fetch-and-add: a round trip. Other clients cannot make it fail. A counter with a bound compares and swaps.
//!
//! ```
//! use fatbtree_remote_memory::{GlobalAddress, RemoteMemory, Trouble};
//! use fatbtree_verbs::Verbs;
//! # fn lab() -> Result<(RemoteMemory<fatbtree_verbs::plain::PlainDevice>, fatbtree_verbs::plain::PlainDevice), Box<dyn std::error::Error>> {
//! #     use fatbtree_verbs::Device as _;
//! #     let network = fatbtree_verbs::plain::PlainNetwork::new();
//! #     let mut server = network.device();
//! #     let shared = fatbtree_verbs::Memory::shared(4096)?;
//! #     let region = server.register(&shared, GlobalAddress::new(0, 0).raw(), fatbtree_verbs::Access::ALL)?;
//! #     let contention = fatbtree_remote_memory::Contention::SMART;
//! #     let config = fatbtree_remote_memory::RemoteConfig { contention, ..fatbtree_remote_memory::RemoteConfig::default() };
//! #     let memory = RemoteMemory::new(network.device(), [0].into_iter(), config, 1)?;
//! #     let id = memory.connections()[0];
//! #     let local = memory.open(id)?;
//! #     let queue_pair = server.create()?;
//! #     server.connect(queue_pair, &local)?;
//! #     let endpoint = server.endpoint(queue_pair)?;
//! #     memory.connected(id, fatbtree_remote_memory::RemoteSide { endpoint, rkey: region.rkey, registered: false })?;
//! #     Ok((memory, server))
//! # }
//!
//! struct Counter<'m, V> {
//!     memory: &'m RemoteMemory<V>,
//!     at: GlobalAddress,
//! }
//!
//! impl<V: Verbs> Counter<'_, V> {
//!     /// Returns the sum.
//!     async fn add(&self, what: u64) -> Result<u64, Trouble> {
//!         Ok(self.memory.fetch_add(&self.memory.take_lane(), self.at, what).await? + what)
//!     }
//!
//!     /// Adds one unless the sum is `bound`. Says whether it did.
//!     async fn add_below(&self, bound: u64) -> Result<bool, Trouble> {
//!         let more = |sum| (sum < bound).then(|| sum + 1);
//!         let (before, after) = self.memory.update(&self.memory.take_lane(), self.at, more).await?;
//!         Ok(after != before)
//!     }
//! }
//!
//! let (memory, _server) = lab()?;
//! let counter = Counter { memory: &memory, at: GlobalAddress::new(0, 64) };
//! memory.reactor().block_on(async {
//!     assert_eq!(counter.add(3).await.unwrap(), 3);
//!     assert!(counter.add_below(4).await.unwrap());
//!     assert!(!counter.add_below(4).await.unwrap());
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A spin lock
//!
//! A word is 0, or the number of its holder; after it lies what it protects. Lock and read share a doorbell, and so do write and release. A
//! holder that dies keeps such a lock for ever. Where clients may die, take a [`LockGuard`](crate::LockGuard): its owner has a lease.
//!
//! ```
//! use fatbtree_remote_memory::{GlobalAddress, RemoteMemory, Trouble};
//! use fatbtree_verbs::{Operation, Output, Remote, Verbs};
//! # fn lab() -> Result<(RemoteMemory<fatbtree_verbs::plain::PlainDevice>, fatbtree_verbs::plain::PlainDevice), Box<dyn std::error::Error>> {
//! #     use fatbtree_verbs::Device as _;
//! #     let network = fatbtree_verbs::plain::PlainNetwork::new();
//! #     let mut server = network.device();
//! #     let shared = fatbtree_verbs::Memory::shared(4096)?;
//! #     let region = server.register(&shared, GlobalAddress::new(0, 0).raw(), fatbtree_verbs::Access::ALL)?;
//! #     let contention = fatbtree_remote_memory::Contention::SMART;
//! #     let config = fatbtree_remote_memory::RemoteConfig { contention, ..fatbtree_remote_memory::RemoteConfig::default() };
//! #     let memory = RemoteMemory::new(network.device(), [0].into_iter(), config, 1)?;
//! #     let id = memory.connections()[0];
//! #     let local = memory.open(id)?;
//! #     let queue_pair = server.create()?;
//! #     server.connect(queue_pair, &local)?;
//! #     let endpoint = server.endpoint(queue_pair)?;
//! #     memory.connected(id, fatbtree_remote_memory::RemoteSide { endpoint, rkey: region.rkey, registered: false })?;
//! #     Ok((memory, server))
//! # }
//!
//! /// Changes the word after the lock. Two round trips, if no other client has it.
//! async fn locked<V: Verbs>(
//!     memory: &RemoteMemory<V>,
//!     lock: GlobalAddress,
//!     me: u64,
//!     change: impl Fn(u64) -> u64,
//! ) -> Result<u64, Trouble> {
//!     let (lane, server) = (memory.take_lane(), lock.server());
//!     let (lock, data) = (lock.raw(), lock.raw() + 8);
//!     let _turn = memory.compete().await;
//!     for attempt in 0.. {
//!         let lock_and_read = |rkey| {
//!             let take = Operation::CompareSwap { at: Remote { address: lock, rkey }, compare: 0, swap: me };
//!             [take, Operation::Read { from: Remote { address: data, rkey }, len: 8 }]
//!         };
//!         let [Output::Atomic(holder), Output::Read(found)] = memory.post(lane.to(server), lock_and_read).await? else { continue };
//!         memory.note_attempt(holder != 0);
//!         if holder != 0 {
//!             memory.pause_after_conflict(attempt, None).await;
//!             continue;
//!         }
//!         let new = change(u64::from_le_bytes(found[..].try_into().expect("eight bytes were asked for")));
//!         let (word, free) = (new.to_le_bytes(), [0; 8]);
//!         let write_and_release = |rkey| {
//!             let write = |address, data| Operation::Write { to: Remote { address, rkey }, data };
//!             [write(data, &word), write(lock, &free)]
//!         };
//!         memory.post(lane.to(server), write_and_release).await?;
//!         return Ok(new);
//!     }
//!     unreachable!("it ends when it has the lock")
//! }
//!
//! let (memory, _server) = lab()?;
//! let add = |me| locked(&memory, GlobalAddress::new(0, 64), me, |old| old + 10);
//! memory.reactor().block_on(async {
//!     assert_eq!(add(1).await.unwrap(), 10);
//!     assert_eq!(add(2).await.unwrap(), 20);
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A ring buffer
//!
//! Many producers and one consumer. A producer takes a ticket by fetch-and-add, waits until the ticket's slot is free, and writes value and
//! sequence number, in this order. The consumer reads the next slot until it has the number of its turn.
//!
//! ```
//! use fatbtree_remote_memory::{GlobalAddress, Lane, RemoteMemory, Trouble};
//! use fatbtree_verbs::{Operation, Remote, Verbs};
//! # fn lab() -> Result<(RemoteMemory<fatbtree_verbs::plain::PlainDevice>, fatbtree_verbs::plain::PlainDevice), Box<dyn std::error::Error>> {
//! #     use fatbtree_verbs::Device as _;
//! #     let network = fatbtree_verbs::plain::PlainNetwork::new();
//! #     let mut server = network.device();
//! #     let shared = fatbtree_verbs::Memory::shared(4096)?;
//! #     let region = server.register(&shared, GlobalAddress::new(0, 0).raw(), fatbtree_verbs::Access::ALL)?;
//! #     let contention = fatbtree_remote_memory::Contention::SMART;
//! #     let config = fatbtree_remote_memory::RemoteConfig { contention, ..fatbtree_remote_memory::RemoteConfig::default() };
//! #     let memory = RemoteMemory::new(network.device(), [0].into_iter(), config, 1)?;
//! #     let id = memory.connections()[0];
//! #     let local = memory.open(id)?;
//! #     let queue_pair = server.create()?;
//! #     server.connect(queue_pair, &local)?;
//! #     let endpoint = server.endpoint(queue_pair)?;
//! #     memory.connected(id, fatbtree_remote_memory::RemoteSide { endpoint, rkey: region.rkey, registered: false })?;
//! #     Ok((memory, server))
//! # }
//!
//! const SLOTS: u64 = 4;
//!
//! /// Tickets given out at `at`; after it slots of a sequence number and a value. A slot is free for ticket t if its number is t / SLOTS * 2,
//! /// and full if it is one more.
//! struct Ring<'m, V> {
//!     memory: &'m RemoteMemory<V>,
//!     lane: Lane,
//!     at: GlobalAddress,
//! }
//!
//! impl<V: Verbs> Ring<'_, V> {
//!     fn slot(&self, ticket: u64) -> (GlobalAddress, u64) {
//!         let offset = self.at.offset() + 8 + ticket % SLOTS * 16;
//!         (GlobalAddress::new(self.at.server(), offset), ticket / SLOTS * 2)
//!     }
//!
//!     /// Waits until the number of a slot is `number`.
//!     async fn until(&self, slot: GlobalAddress, number: u64) -> Result<(), Trouble> {
//!         for attempt in 0.. {
//!             if self.memory.read_word(&self.lane, slot).await? == number {
//!                 break;
//!             }
//!             self.memory.pause(attempt).await;
//!         }
//!         Ok(())
//!     }
//!
//!     async fn push(&self, value: u64) -> Result<(), Trouble> {
//!         let (slot, free) = self.slot(self.memory.fetch_add(&self.lane, self.at, 1).await?);
//!         self.until(slot, free).await?;
//!         let (value, full) = (value.to_le_bytes(), (free + 1).to_le_bytes());
//!         let to = |rkey, offset| Remote { address: slot.raw() + offset, rkey };
//!         let fill = |rkey| {
//!             [Operation::Write { to: to(rkey, 8), data: &value }, Operation::Write { to: to(rkey, 0), data: &full }]
//!         };
//!         self.memory.post(self.lane.to(slot.server()), fill).await.map(drop)
//!     }
//!
//!     /// The value of the turn, which the consumer counts.
//!     async fn pop(&self, turn: u64) -> Result<u64, Trouble> {
//!         let (slot, free) = self.slot(turn);
//!         self.until(slot, free + 1).await?;
//!         let value = self.memory.read_word(&self.lane, slot.behind(8)).await?;
//!         self.memory.write(&self.lane, slot, &(free + 2).to_le_bytes()).await?;
//!         Ok(value)
//!     }
//! }
//!
//! let (memory, _server) = lab()?;
//! let ring = Ring { memory: &memory, lane: memory.take_lane(), at: GlobalAddress::new(0, 64) };
//! memory.reactor().block_on(async {
//!     for turn in 0..10 {
//!         ring.push(turn * 7).await.unwrap();
//!         assert_eq!(ring.pop(turn).await.unwrap(), turn * 7);
//!     }
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

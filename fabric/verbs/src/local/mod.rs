//! Verbs for the threads of a memory server's own process: the same memory that its NIC serves, and no network.
//!
//! ```text
//!   RDMA clients ── frames ──► NIC ────────────┐            one thread
//!                                              ▼
//!                              regions: tree, locks, owners
//!                                              ▲
//!   LocalVerbs ── chains, carried out at once ─┘            any number of threads, each with its own LocalVerbs
//!        │ link                                 ▲
//!        └──────────────► LocalHost ────────────┘ owner of each link, and its end
//! ```
//!
//! A [`LocalHost`] belongs to the server's owner, shares the regions that a device has registered, and makes links. A
//! [`LocalVerbs`] is a client's device: its queue pairs are connected to links, and what is posted is carried out before
//! [`post`](crate::Verbs::post) returns.
//!
//! **What both kinds of clients may rely on.** Atomics of local clients and of the NIC are atomic with each other: both are the same
//! instructions on the same words ([`Memory::update`](crate::Memory::update)). READs and WRITEs are not whole lines to each other: a
//! tree to which both come needs checksums, and a local client says so
//! ([`line_atomicity`](crate::Capabilities::line_atomicity)).
//!
//! **The end of a link.** A chain is carried out while its link is held. So when [`disconnect`](LocalHost::disconnect) has
//! returned, nothing more of that link is carried out, however long its thread has slept in between: as with a queue pair that the
//! server destroys, and for the same reason, a lease.
//!
//! ```
//! use fatbtree_verbs::local::{LocalHost, LocalVerbs};
//! use fatbtree_verbs::plain::PlainNetwork;
//! use fatbtree_verbs::{Access, Device, Memory, Operation, Output, Reactor, Remote};
//!
//! let mut nic = PlainNetwork::new().device();
//! let memory = Memory::shared(4096)?;
//! let region = nic.register(&memory, 0x1000, Access::ALL)?;
//! let host = LocalHost::new();
//! host.share(region, &memory, Access::ALL);
//!
//! let reactor = Reactor::new(LocalVerbs::new(&host, &LocalVerbs::BUFFERS)?);
//! let queue_pair = reactor.with(|client| client.create())?;
//! let link = host.accept(&reactor.with(|client| client.endpoint(queue_pair))?)?;
//! reactor.with(|client| client.connect(queue_pair, &link))?;
//! let at = Remote { address: 0x1008, rkey: region.rkey };
//! let [Output::Atomic(before)] = reactor.block_on(reactor.chain(queue_pair, [Operation::FetchAdd { at, add: 5 }]))? else {
//!     unreachable!("an atomic says what it found")
//! };
//! assert_eq!((before, memory.update(8, |found| found)?), (0, 5));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::access::Access;
use crate::device::Region;
use crate::endpoint::{Endpoint, Mtu, QueuePairNumber};
use crate::error::ConnectError;
use crate::journal::JournalError;
use crate::memory::Memory;

pub use client::LocalVerbs;

/// Memory that local clients may use, and their links to it. Clones share one state.
#[derive(Clone, Default)]
pub struct LocalHost {
    host: Arc<Mutex<Host>>,
}

#[derive(Default)]
struct Host {
    regions: Regions,
    links: BTreeMap<QueuePairNumber, Arc<Link>>,
    last: u32,
    broken: VecDeque<QueuePairNumber>,
}

/// Regions by rkey. Each link has a copy, so that no two threads wait for the same one.
type Regions = BTreeMap<u32, Shared>;

#[derive(Clone)]
struct Shared {
    memory: Arc<Memory>,
    iova: u64,
    access: Access,
}

/// Peer of a client's queue pair.
#[derive(Debug)]
struct Link {
    state: Mutex<State>,
}

enum State {
    Open(Regions),
    /// The link has refused a request.
    Error,
    /// The link is gone.
    Gone,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Open(_) => "Open",
            State::Error => "Error",
            State::Gone => "Gone",
        })
    }
}

impl fmt::Debug for LocalHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.lock();
        f.debug_struct("LocalHost")
            .field("regions", &host.regions.len())
            .field("links", &host.links)
            .finish_non_exhaustive()
    }
}

/// Locks a mutex, also after a panic: a thread that panicked has left memory as a client leaves it that dies.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Largest number of a queue pair: numbers have 24 bits, and 0 and 1 belong to management.
const LAST: u32 = (1 << 24) - 1;
const FIRST: u32 = 2;

impl LocalHost {
    /// Creates a host without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Host> {
        lock(&self.host)
    }

    /// Lets links use memory that a device has registered as `region`, under the same rkey and addresses.
    pub fn share(&self, region: Region, memory: &Arc<Memory>, access: Access) {
        let shared = Shared { memory: Arc::clone(memory), iova: region.iova, access };
        self.lock().change(|regions| _ = regions.insert(region.rkey, shared.clone()));
    }

    /// Withdraws memory: when this has returned, nothing more is executed there.
    pub fn withdraw(&self, rkey: u32) {
        self.lock().change(|regions| _ = regions.remove(&rkey));
    }

    /// Creates a link for a client's queue pair, and returns its endpoint.
    ///
    /// # Errors
    /// When the client's endpoint is impossible.
    pub fn accept(&self, client: &Endpoint) -> Result<Endpoint, ConnectError> {
        client.check()?;
        let mut host = self.lock();
        let mut number = host.last;
        // There are far fewer links than numbers.
        loop {
            number = if (FIRST..LAST).contains(&number) { number + 1 } else { FIRST };
            if !host.links.contains_key(&QueuePairNumber(number)) {
                break;
            }
        }
        host.last = number;
        let number = QueuePairNumber(number);
        let state = Mutex::new(State::Open(host.regions.clone()));
        host.links.insert(number, Arc::new(Link { state }));
        Ok(endpoint(number))
    }

    /// Ends a link: when this has returned, nothing more of it is executed. Returns whether there was such a link.
    pub fn disconnect(&self, link: QueuePairNumber) -> bool {
        let removed = self.lock().links.remove(&link);
        removed.is_some_and(|link| {
            *lock(&link.state) = State::Gone;
            true
        })
    }

    /// The next link that has refused something since the last call; each is reported once.
    pub fn poll_broken(&self) -> Option<QueuePairNumber> {
        self.lock().broken.pop_front()
    }

    /// Commits all memory that links use: what was written there may be acknowledged then. See [`Memory::commit`].
    ///
    /// # Errors
    /// When the disk has failed: nothing may be acknowledged any more.
    pub fn commit(&self) -> Result<(), JournalError> {
        // Not under the lock: a disk may be slow.
        let memories: Vec<_> =
            self.lock().regions.values().map(|shared| Arc::clone(&shared.memory)).collect();
        memories.iter().try_for_each(|memory| memory.commit())
    }

    fn link(&self, number: QueuePairNumber) -> Option<Arc<Link>> {
        self.lock().links.get(&number).cloned()
    }

    fn broke(&self, number: QueuePairNumber) {
        let mut host = self.lock();
        // One that was disconnected meanwhile has no owner any more.
        if host.links.contains_key(&number) {
            host.broken.push_back(number);
        }
    }
}

impl Host {
    fn change(&mut self, change: impl Fn(&mut Regions)) {
        change(&mut self.regions);
        for link in self.links.values() {
            if let State::Open(regions) = &mut *lock(&link.state) {
                change(regions);
            }
        }
    }
}

/// Endpoint of a link. It needs no addresses, because no network has to find it.
fn endpoint(queue_pair: QueuePairNumber) -> Endpoint {
    Endpoint {
        mac: [0; 6],
        ip: Ipv4Addr::UNSPECIFIED,
        queue_pair,
        psn: 0,
        mtu: Mtu::B4096,
        responder_reads: u8::MAX,
        initiator_reads: u8::MAX,
    }
}

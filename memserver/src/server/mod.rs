//! A memory server as a value: its device, its memory, and what clients hold of both.

mod calls;
mod clients;
mod fellows;
mod local;
mod reclaim;
mod request;
mod root;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, LockTable, Origin, ServerInfo};
use fatbtree_verbs::journal::{JournalError, Pace};
use fatbtree_verbs::local::LocalHost;
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Access, ConnectError, Device, Endpoint, Memory, Mtu, QueuePair, Region, RegisterError};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::chunk::{ChunkSize, ChunkTable, chunk_classes_bytes};
use crate::chunk_classes::DamagedClasses;
use crate::event::{Event, Events, FirstHop};
use crate::free_blocks::FreeLists;
use crate::limits::{Accounts, Limits, Resource};
use crate::moments::OlderCopy;
use crate::owners::{Locks, Owners};
use crate::refusal::PathMtu;
use crate::session::{SessionKey, Sessions};
use crate::tenant::{Loaded, Seen, Tenant};

use fellows::{Answering, Asking};
use reclaim::Reclaim;

pub use request::{Reply, Request};

/// A counter by name.
pub type Counter = (String, u64);

/// Use of a region, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RegionBytes {
    /// Never given out, or come back, as memory or as single blocks.
    pub free: u64,
    /// Held by sessions that are open: parts of chunks, with what their clients have put there, and freed blocks that clients keep.
    pub held: u64,
    /// Lost, as far as is known: blocks that clients kept when their sessions lapsed, and such as found no room on a list. A sweep finds
    /// them where the [structure](Tenant::swept) can tell what leads to a block.
    pub lost: u64,
    /// All others: the structure's, its header, and the region's padding.
    pub live: u64,
}

/// Options of a server. Start from the default and change what you need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Rights of clients in the region.
    pub access: Access,
    /// Bytes of the lock table, 2 for each lock; 0: none.
    pub lock_table_bytes: u64,
    /// Bytes of a chunk: a multiple of 64, no less than an index read, or than a block of any class with one size.
    pub chunk_bytes: u64,
    /// Time for which a session lasts without renewal.
    pub lease: Duration,
    /// Limits of clients.
    pub limits: Limits,
    /// Whether other threads of this process are clients, too ([`MemoryServer::attach`]). They and the device tear lines between them: a
    /// structure that needs whole lines is refused.
    pub local_clients: bool,
    /// Shortest time between two sweeps for blocks that clients have lost, where the [structure](Tenant::swept) can tell; zero: none.
    pub reclaim_every: Duration,
    /// Time for which a server that begins with an empty structure opens no session while no controller has said
    /// whether there was another one before ([`MemoryServer::heard`]): from [`Instant::ZERO`] on. Zero where
    /// no controller will say so.
    pub undecided_for: Duration,
}

impl ServerOptions {
    /// The default where clients may write: they read and write the region, under 131,072 locks of 2 bytes as Sherman has them.
    #[must_use]
    pub fn writable() -> Self {
        Self { access: Access::READ | Access::WRITE, lock_table_bytes: 2 << 17, ..Self::default() }
    }
}

impl Default for ServerOptions {
    /// Clients may read; no locks; chunks of 8 MiB; leases of 10 seconds; sessions are opened at once.
    fn default() -> Self {
        Self {
            access: Access::READ,
            lock_table_bytes: 0,
            chunk_bytes: 8 << 20,
            lease: Duration::from_secs(10),
            limits: Limits::default(),
            local_clients: false,
            reclaim_every: Duration::ZERO,
            undecided_for: Duration::ZERO,
        }
    }
}

/// A memory server: one structure on one device. It knows no socket, clock or thread.
///
/// # What clients hold
///
/// A client opens a *session* and renews it before its lease ends. Queue pairs and chunks are taken in a session, and are
/// taken back when it ends: when its lease ends, or it is closed. They are bounded per client, per host and in all
/// ([`Limits`]). Queue pairs go first: when a chunk is free again, nothing that its holder has posted can be written there
/// any more (a client uses one session for both). A queue pair that breaks is destroyed at once. First-hop entries
/// follow the queue pairs, by [events](Event).
///
/// # Driving it
///
/// One thread owns the server. It hands frames to the [device](Self::device_mut), and between frames
///
/// * answers what was asked, by [`Mailbox::answer`](crate::Mailbox::answer) or the methods below;
/// * calls [`handle_timeout`](Self::handle_timeout) when [`poll_timeout`](Self::poll_timeout) has come;
/// * calls [`work`](Self::work): it notices queue pairs that broke and headers that have changed, and lets the tenant work on its
///   requests, some blocks at a time;
/// * takes all [events](Self::poll_event).
///
/// Time never goes back. With one seed and one sequence of calls the server does the same.
///
/// ```
/// use fatbtree_memserver::{Event, Mailbox, MemoryServer, Tenant};
/// use fatbtree_verbs::Device;
/// use fatbtree_verbs::time::Instant;
///
/// /// One turn of a driver's loop. Returns when to come back at the latest; `None`: when there is a frame or a request.
/// fn turn<D: Device, T: Tenant>(
///     server: &mut MemoryServer<D, T>,
///     mailbox: &mut Mailbox<T>,
///     now: Instant,
///     mut tell_the_controller: impl FnMut(Event<T::Description>),
/// ) -> Option<Instant> {
///     // ... frames to and from server.device_mut() ...
///     mailbox.answer(now, server);
///     if server.poll_timeout().is_some_and(|at| at <= now) {
///         server.handle_timeout(now);
///     }
///     let more = server.work(now, 64);
///     while let Some(event) = server.poll_event() {
///         tell_the_controller(event);
///     }
///     if more { Some(now) } else { server.poll_timeout() }
/// }
/// ```
pub struct MemoryServer<D, T: Tenant> {
    device: D,
    region: Arc<Memory>,
    /// The structure in the region.
    tenant: T,
    /// Bytes of an index read.
    reach: u32,
    options: ServerOptions,
    info: ServerInfo<T::Description>,
    /// Until when no session is opened because the empty structure may be in the place of another one; `None` if that is decided.
    undecided_until: Option<Instant>,
    /// Whether its folder is an older copy, as another server knows.
    older: Option<OlderCopy>,
    /// The server's address on the data path.
    address: Ipv4Addr,
    /// The region's header as it was last seen.
    header: [u8; HEADER_BYTES],
    random: ChaCha8Rng,
    now: Instant,
    sessions: Sessions,
    /// Owners of locks; `None` without locks.
    owners: Option<Owners>,
    /// All connected queue pairs.
    connections: BTreeMap<QueuePair, Connection>,
    chunks: ChunkTable,
    places: FreeLists,
    /// Sweeps for blocks that clients have lost.
    reclaim: Reclaim,
    asking: Asking,
    answering: Answering,
    accounts: Accounts,
    events: Events<T::Description>,
    counters: Counters,
    device_counters: Option<DeviceCounters<D>>,
    /// Access for local clients; `None` if they are not allowed.
    local: Option<LocalHost>,
}

type DeviceCounters<D> = Box<dyn Fn(&D) -> Vec<Counter> + Send>;

/// A connected queue pair.
#[derive(Debug)]
struct Connection {
    session: SessionKey,
    hop: FirstHop,
    /// The number of the event that told of it.
    opening: u64,
}

/// Counters of a server, beside its content.
#[derive(Debug, Default)]
struct Counters {
    requests: u64,
    refused: u64,
    sessions_opened: u64,
    sessions_lapsed: u64,
    queue_pairs_opened: u64,
    queue_pairs_broken: u64,
    queue_pairs_replaced: u64,
    roots_seen: u64,
    superblocks_refused: u64,
    reloads: u64,
}

impl<D, T: Tenant> fmt::Debug for MemoryServer<D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServer").field("info", &self.info).finish_non_exhaustive()
    }
}

impl<D: Device, T: Tenant> MemoryServer<D, T> {
    /// A server of the structure in `content` on `device`, which has nothing else to do. `seed` decides the names of sessions: where clients
    /// may be hostile it comes from the system's random generator.
    ///
    /// # Errors
    /// When the structure does not go with the device, or the device refuses.
    pub fn new(
        mut device: D,
        content: impl Into<Loaded<T>>,
        options: &ServerOptions,
        seed: u64,
    ) -> Result<Self, ServerError> {
        let mut loaded: Loaded<T> = content.into();
        let capabilities = device.capabilities();
        let local = probe(&mut device)?;
        let (header, chunks) = fit(&device, &mut loaded, options, local.mtu)?;
        let Loaded { server, region, generation, origin, shape, tenant, .. } = loaded;
        let iova = GlobalAddress::new(server, 0).raw();
        let registered = device.register(&region, iova, options.access)?;
        let (locks, owners) = match options.lock_table_bytes {
            0 => (None, None),
            bytes => {
                let (region, locks) = register_locks(&mut device, bytes)?;
                let on_device = matches!(locks, Locks::OnDevice(_));
                let owners = Owners::new(&mut device, locks)?;
                (Some(LockTable { region, on_device, owners: owners.region }), Some(owners))
            }
        };
        let info = ServerInfo {
            server,
            structure: tenant.description(),
            generation,
            region: registered,
            locks,
            masked_atomics: capabilities.masked_atomics,
            syncs: syncs(&region),
            line_atomicity: capabilities.line_atomicity && !options.local_clients,
            path_mtu: local.mtu,
            chunk_bytes: options.chunk_bytes,
            origin,
        };
        let shared = options.local_clients.then(|| share(&device, &info, options.access)).transpose()?;
        let mut server = Self {
            device,
            local: shared,
            region,
            tenant,
            reach: shape.reach,
            info,
            undecided_until: None,
            older: None,
            address: local.ip,
            header,
            random: ChaCha8Rng::seed_from_u64(seed),
            now: Instant::ZERO,
            sessions: Sessions::default(),
            owners,
            connections: BTreeMap::new(),
            chunks,
            places: FreeLists::new(server, options.limits.places),
            reclaim: Reclaim::default(),
            asking: Asking::default(),
            answering: Answering::default(),
            accounts: Accounts::new(&options.limits, options.chunk_bytes),
            events: Events::default(),
            counters: Counters::default(),
            device_counters: None,
            options: options.clone(),
        };
        // The lists of a former process are forgotten, and so are the rests of its sessions' parts.
        server.find_former();
        server.begin_undecided();
        Ok(server)
    }

    /// Has [statistics](Self::statistics) tell what the device counts, too.
    #[must_use]
    pub fn with_device_counters(self, counters: impl Fn(&D) -> Vec<Counter> + Send + 'static) -> Self {
        Self { device_counters: Some(Box::new(counters)), ..self }
    }

    // ---- getters ----

    /// Content of the server; the root as [`work`](Self::work) has last seen it.
    #[must_use]
    pub fn info(&self) -> &ServerInfo<T::Description> {
        &self.info
    }

    /// The structure in the region.
    #[must_use]
    pub fn tenant(&self) -> &T {
        &self.tenant
    }

    /// The region.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.region
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, to hand frames to.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// All counters, by name.
    #[must_use]
    pub fn statistics(&self) -> Vec<Counter> {
        let chunks = self.chunks.counts();
        let (owners, owner_rounds) = self.owners.as_ref().map_or((0, 0), Owners::counts);
        let total = |what| self.accounts.total(what);
        let (counters, places) = (&self.counters, self.places.counts);
        let bytes = self.region_bytes();
        let mut all: Vec<Counter> = [
            ("chunks", chunks.all.into()),
            ("chunks_free_again", chunks.free.into()),
            ("chunks_held", chunks.held.into()),
            ("chunk_tails_came_back", self.chunks.tails),
            ("chunks_published", chunks.given.into()),
            ("blocks_reclaimed", self.reclaim.blocks),
            ("sweeps", self.reclaim.sweeps),
            ("sweeps_void", self.reclaim.void),
            ("events_not_taken", self.events.len() as u64),
            ("generation", self.info.generation),
            ("owners", owners.into()),
            ("owners_went_round", owner_rounds),
            ("free_blocks", self.places.len() as u64),
            ("free_blocks_dropped", places.dropped),
            ("free_blocks_returned", places.given_back),
            ("free_blocks_granted", places.given_out),
            ("free_blocks_refused", places.refused),
            ("queue_pairs", total(Resource::QueuePairs)),
            ("queue_pairs_broken", counters.queue_pairs_broken),
            ("queue_pairs_opened", counters.queue_pairs_opened),
            ("queue_pairs_replaced", counters.queue_pairs_replaced),
            ("region_bytes", self.info.region.len),
            ("region_bytes_used", chunks.used_bytes),
            ("region_bytes_free", bytes.free),
            ("region_bytes_held", bytes.held),
            ("region_bytes_live", bytes.live),
            ("region_bytes_lost", bytes.lost),
            ("refused", counters.refused),
            ("requests", counters.requests),
            ("roots_seen", counters.roots_seen),
            ("sessions", total(Resource::Sessions)),
            ("sessions_lapsed", counters.sessions_lapsed),
            ("sessions_opened", counters.sessions_opened),
            ("superblocks_refused", counters.superblocks_refused),
            ("region_lost", u64::from(self.info.origin == Origin::Lost)),
            ("region_older", u64::from(self.older.is_some())),
            ("reloads", counters.reloads),
            ("undecided", u64::from(self.is_undecided())),
            ("used", u64::from(self.tenant.is_used(chunks.given.into()))),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into();
        if let Some(journal) = self.region.journal() {
            let journal = journal.counts();
            let counts = [
                ("journal_bytes", journal.bytes),
                ("journal_batches", journal.batches),
                ("journal_applied", journal.applied),
                ("journal_syncs", journal.syncs),
                ("journal_sync_microseconds", journal.sync_micros),
                ("journal_unsynced_microseconds", journal.unsynced_micros),
                ("journal_waits", journal.waits),
            ];
            all.extend(counts.map(|(name, count)| (name.to_owned(), count)));
        }
        all.extend(self.tenant.statistics());
        if let Some(counters) = &self.device_counters {
            all.extend(counters(&self.device));
        }
        all
    }

    /// Use of the region. Each byte is counted once.
    #[must_use]
    pub fn region_bytes(&self) -> RegionBytes {
        let (chunks, len) = (self.chunks.counts(), self.info.region.len);
        let free = chunks.free_bytes.saturating_add(self.places.bytes()).min(len);
        let held = chunks.held_bytes.saturating_add(self.sessions.kept_bytes()).min(len - free);
        let lost = self.reclaim.lost.min(len - free - held);
        RegionBytes { free, held, lost, live: len - free - held - lost }
    }

    // ---- driving ----

    /// Time at which [`handle_timeout`](Self::handle_timeout) is due: the end of the first lease; or [`work`](Self::work), for a sweep. The device
    /// has its own timers.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.sessions.first_end().into_iter().chain(self.sweep_due()).min()
    }

    /// Takes back what sessions hold whose leases have ended by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    /// Does what is to be done between frames. The tenant reads up to `budget` blocks for requests, and as many to find out what ended
    /// sessions have left of their chunks, whatever clients have written there. Returns whether there is more to read.
    pub fn work(&mut self, now: Instant, budget: usize) -> bool {
        self.advance(now);
        self.take_broken();
        self.watch_header();
        let (relieved, more) = self.chunks.look(&self.tenant, budget);
        for (client, bytes) in relieved {
            self.accounts.subtract(client, Resource::Chunks, bytes);
        }
        more | self.reclaim(budget) | self.answer_others(budget) | self.tenant.work(budget)
    }

    /// Serves another structure in another region instead, if it [may follow](Tenant::may_follow). All sessions end, and the former
    /// region's memory is given back. Clients find another generation when they connect anew.
    ///
    /// # Errors
    /// When the structure does not go with the device or may not follow, or the device refuses; then nothing has changed.
    pub fn install(&mut self, now: Instant, content: impl Into<Loaded<T>>) -> Result<(), ServerError> {
        self.advance(now);
        let mut loaded: Loaded<T> = content.into();
        let id = self.info.server;
        if loaded.server != id || !loaded.tenant.may_follow(&self.tenant) {
            return Err(ServerError::OtherRegion { expected: id, found: loaded.server });
        }
        let (header, chunks) = fit(&self.device, &mut loaded, &self.options, self.info.path_mtu)?;
        let Loaded { region, generation, shape, tenant, .. } = loaded;
        let iova = GlobalAddress::new(id, 0).raw();
        let registered = self.device.register(&region, iova, self.options.access)?;
        // Queue pairs first: nothing that was posted for the former structure reaches the new one.
        self.end_all();
        if let Some(local) = &self.local {
            local.withdraw(self.info.region.rkey);
            local.share(registered, &region, self.options.access);
        }
        self.device.deregister(self.info.region.rkey);
        (self.region, self.header, self.chunks, self.reach) = (region, header, chunks, shape.reach);
        let former = std::mem::replace(&mut self.tenant, tenant);
        self.tenant.succeed(former);
        self.places = FreeLists::new(id, self.options.limits.places);
        (self.reclaim, self.asking, self.answering) = Default::default();
        // Chunks that were charged to clients lay in the former region.
        self.accounts = Accounts::new(&self.options.limits, self.options.chunk_bytes);
        // A structure that is installed is meant, empty or not.
        let origin = Origin::Meant;
        (self.undecided_until, self.older) = (None, None);
        let structure = self.tenant.description();
        let syncs = syncs(&self.region);
        self.info = ServerInfo { structure, generation, region: registered, syncs, origin, ..self.info };
        self.counters.reloads += 1;
        self.events.push(Event::Reloaded { structure, generation });
        Ok(())
    }

    /// The next thing the owner must know.
    pub fn poll_event(&mut self) -> Option<Event<T::Description>> {
        self.events.pop().or_else(|| self.asking.next().map(Event::Ask))
    }

    /// Hands everything that was written to the operating system, and waits for the disk, as the pace of the region's journal demands. The
    /// driver calls this before it sends anything that acknowledges a write.
    ///
    /// # Errors
    /// When the disk has failed: nothing may be sent then, and the server must stop.
    pub fn commit(&self) -> Result<(), JournalError> {
        self.region.commit()
    }

    /// Brings the region and the classes of its chunks to the disk, where they lie in files, and waits until they are there: for a server
    /// that stops.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn sync(&self) -> io::Result<()> {
        // A block in a chunk without a class is damage; a class without blocks is not.
        let classes = self.chunks.sync();
        self.region.sync().and(classes)
    }

    /// Ends all sessions and takes the memory back from the device, to be filled anew by
    /// another structure. The memory is given back unless the caller has another handle to it.
    #[must_use]
    pub fn stop(mut self) -> (D, Arc<Memory>) {
        self.end_all();
        self.device.deregister(self.info.region.rkey);
        if let Some(locks) = &self.info.locks {
            self.device.deregister(locks.region.rkey);
            self.device.deregister(locks.owners.rkey);
        }
        (self.device, self.region)
    }
}

/// Whether what is written to a region reaches a disk some time after it is acknowledged.
fn syncs(region: &Memory) -> bool {
    region.journal().is_some_and(|journal| matches!(journal.pace(), Pace::Every(_)))
}

/// Whether a structure goes with a device: its region's header, and the table of its chunks.
fn fit<D: Device, T: Tenant>(
    device: &D,
    loaded: &mut Loaded<T>,
    options: &ServerOptions,
    mtu: Mtu,
) -> Result<([u8; HEADER_BYTES], ChunkTable), ServerError> {
    let Loaded { server, region, spare, generation, chunk_classes, shape, tenant, .. } = loaded;
    let tears = options.local_clients || !device.capabilities().line_atomicity;
    if shape.whole_lines && tears {
        return Err(ServerError::Integrity);
    }
    PathMtu::check(shape.reach, mtu)?;
    let chunks = ChunkTable::new(*server, spare, options.chunk_bytes, shape)?;
    let chunk_classes = match chunk_classes {
        // Local clients look there what may be a block.
        None if options.local_clients => {
            let bytes = chunk_classes_bytes(spare.end - spare.start, options.chunk_bytes);
            Some(Memory::shared(bytes).map_err(|_| ServerError::OutOfMemory { bytes })?)
        }
        classes => classes.clone(),
    };
    let chunks = match &chunk_classes {
        Some(classes) => chunks.restored(Arc::clone(classes), *generation)?,
        None => chunks,
    };
    let mut header = [0; HEADER_BYTES];
    if region.read(0, &mut header).is_err() || tenant.see(&header) != Seen::Same {
        return Err(ServerError::Header);
    }
    let padding = u64::from(shape.reach);
    if region.len().saturating_sub(spare.end) < padding {
        return Err(ServerError::Padding { expected: padding });
    }
    Ok((header, chunks))
}

/// Registers memory for local clients: the same memory, with the same rights.
fn share<D: Device, S>(device: &D, info: &ServerInfo<S>, access: Access) -> Result<LocalHost, ServerError> {
    let host = LocalHost::new();
    let locks =
        info.locks.iter().flat_map(|locks| [(locks.region, Access::ALL), (locks.owners, Access::READ)]);
    for (region, access) in locks.chain([(info.region, access)]) {
        let memory = device.shared_memory(region.rkey).ok_or(ServerError::NotShared)?;
        host.share(region, &memory, access);
    }
    Ok(host)
}

/// The device's description of itself; reading it takes a queue pair.
fn probe<D: Device>(device: &mut D) -> Result<Endpoint, ConnectError> {
    let queue_pair = device.create()?;
    let local = device.endpoint(queue_pair);
    device.destroy(queue_pair);
    local
}

/// Memory for locks, on the device if it has so much.
fn register_locks<D: Device>(device: &mut D, bytes: u64) -> Result<(Region, Locks), ServerError> {
    const IOVA: u64 = 0;
    if device.capabilities().device_memory >= bytes
        && let Ok(region) = device.register_device_memory(bytes, IOVA, Access::ALL)
    {
        return Ok((region, Locks::OnDevice(region)));
    }
    let memory = Memory::shared(bytes).map_err(|_| ServerError::OutOfMemory { bytes })?;
    let region = device.register(&memory, IOVA, Access::ALL)?;
    Ok((region, Locks::Here(memory)))
}

/// Errors from creating a memory server.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServerError {
    /// An index read does not fit in a packet.
    #[error(transparent)]
    PathMtu(#[from] PathMtu),
    /// A structure that needs whole lines, on a device that tears them.
    #[error(
        "memory server cannot serve this region: it has line versions, but its device does not read and write lines of 64 bytes \
         whole, or threads of the server beside it do not (--serve queries); load it with checksums (Integrity::for_device)"
    )]
    Integrity,
    /// The region does not begin with the structure's header.
    #[error(
        "memory server cannot serve this region: it does not begin with the header of its structure; load it anew"
    )]
    Header,
    /// Index reads would run over the region's end.
    #[error(
        "memory server cannot serve this region: after everything that may be a block it has less than {expected} bytes, \
         which an index read may reach for; load it anew"
    )]
    Padding {
        /// Bytes of an index read.
        expected: u64,
    },
    /// Chunks that cannot be.
    #[error(transparent)]
    Chunks(#[from] ChunkSize),
    /// The table of chunk classes is damaged.
    #[error(transparent)]
    ChunkClasses(#[from] DamagedClasses),
    /// A structure for another server, or one that may not follow the present one.
    #[error(
        "expected a region of partition {expected} and of this server's shape, found one of partition {found}, or of another shape"
    )]
    OtherRegion {
        /// The server's number.
        expected: u16,
        /// The server of the structure.
        found: u16,
    },
    /// The device has no queue pair.
    #[error(transparent)]
    Device(#[from] ConnectError),
    /// The device does not take the memory.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Local clients beside a card.
    #[error(
        "local clients need a device whose memory and atomics this process shares, as those of a software NIC; an RDMA card's are its own"
    )]
    NotShared,
    /// No memory for locks.
    #[error("cannot get {bytes} bytes of memory for locks and chunks: use fewer locks")]
    OutOfMemory {
        /// Bytes wanted.
        bytes: u64,
    },
}

//! A memory server: an empty tree, locks, chunks, and sessions whose leases end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use fatbtree_index::node::{LINE, LeafBuilder, MAGIC, NodeHeader, NodeSpec};
use fatbtree_index::{
    ChunkKind, ConnectionId, GlobalAddress, Partition, ReturnedPlaces, Superblock, TreeConfig, Writer,
};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{
    Access, ConnectError, Device as _, Endpoint, Memory, QueuePair, Reactor, Region, Remote,
};
use rand::RngExt as _;

use super::Scenario;
use crate::world::{Machine, Random, SimDevice};

const REGION: u64 = 4 << 20;
const CHUNK: u64 = 2 << 10;
/// The table of owners: a bit for each of the 65,536.
const OWNERS: u64 = 8192;

/// A chunk, or what is left of one.
#[derive(Clone, Copy)]
struct Chunk {
    at: u64,
    bytes: u64,
    kind: ChunkKind,
}

/// A client's session.
struct Session {
    ends: Instant,
    queue_pairs: BTreeMap<u8, QueuePair>,
    chunks: Vec<Chunk>,
}

/// A memory server, and what it knows.
pub(super) struct Server {
    pub(super) machine: Machine,
    pub(super) memory: Arc<Memory>,
    alive: Arc<Memory>,
    pub(super) tree: Region,
    locks: Region,
    owners: Region,
    /// In the beginning.
    pub(super) partition: Partition,
    scenario: Scenario,
    next_chunk: Cell<u64>,
    /// What sessions that have ended have left of their chunks.
    tails: RefCell<Vec<Chunk>>,
    /// Places that clients have given back, of each kind and size.
    places: RefCell<BTreeMap<(ChunkKind, u32), Vec<GlobalAddress>>>,
    sessions: RefCell<BTreeMap<u16, Session>>,
    last_owner: Cell<u16>,
}

impl Server {
    /// An empty tree for a partition.
    pub(super) fn new(machine: Machine, scenario: &Scenario, partition: Partition) -> Self {
        let (config, root) = (scenario.config, partition.root);
        let mut memory = Memory::anonymous(REGION).expect("there is memory for a small region");
        let superblock = Superblock { partition, config, generation: 1, region_bytes: REGION, version: 1 };
        memory.as_mut_slice()[..64].copy_from_slice(&superblock.to_bytes());
        let sibling = GlobalAddress::NULL;
        let spec = NodeSpec { address: root, level: 0, range: partition.range, sibling, version: 1 };
        let leaf = &mut memory.as_mut_slice()[64..64 + config.leaf_bytes() as usize];
        LeafBuilder::new(leaf, config.leaf_shape(), spec).finish();
        let memory: Arc<Memory> = memory.into();
        let alive = Memory::shared(OWNERS).expect("there is memory for a table");
        let (tree, locks, owners) = machine.reactor().with(|card| {
            let iova = GlobalAddress::new(partition.id, 0).raw();
            let tree = card.register(&memory, iova, Access::ALL).expect("a machine registers its memory");
            let bytes = u64::from(scenario.locks) * 2;
            let locks = if scenario.techniques.on_chip {
                card.register_device_memory(bytes, 0, Access::ALL)
            } else {
                let table = Memory::shared(bytes).expect("there is memory for a table");
                card.register(&table, 0, Access::ALL)
            };
            let owners = card.register(&alive, 0, Access::READ).expect("a machine registers its memory");
            (tree, locks.expect("there is room for some locks"), owners)
        });
        Self {
            machine,
            memory,
            alive,
            tree,
            locks,
            owners,
            partition,
            scenario: scenario.clone(),
            next_chunk: Cell::new(8192),
            tails: RefCell::default(),
            places: RefCell::default(),
            sessions: RefCell::default(),
            last_owner: Cell::new(0),
        }
    }

    // ---- what the server does when it is asked ----

    /// Opens a session.
    pub(super) fn open(&self) -> Writer {
        let owner = self.last_owner.get() + 1;
        self.last_owner.set(owner);
        self.set_alive(owner, true);
        let session = Session {
            ends: self.machine.now() + self.scenario.lease,
            queue_pairs: BTreeMap::new(),
            chunks: Vec::new(),
        };
        self.sessions.borrow_mut().insert(owner, session);
        let remote = |region: &Region| Remote { address: region.iova, rkey: region.rkey };
        let (locks, owners) = (remote(&self.locks), remote(&self.owners));
        let (count, masked_atomics) = (self.scenario.locks, self.scenario.masked);
        Writer { locks, owners, count, owner, masked_atomics }
    }

    /// Makes a session last longer; says whether there is one.
    pub(super) fn renew(&self, owner: u16) -> bool {
        let mut sessions = self.sessions.borrow_mut();
        let Some(session) = sessions.get_mut(&owner) else { return false };
        session.ends = self.machine.now() + self.scenario.lease;
        true
    }

    /// Connects a queue pair of a session, instead of the one it had before. None: the session has ended.
    pub(super) fn connect(
        &self,
        card: &Reactor<SimDevice>,
        owner: u16,
        id: ConnectionId,
        client: &Endpoint,
    ) -> Option<Result<Endpoint, ConnectError>> {
        let mut sessions = self.sessions.borrow_mut();
        let session = sessions.get_mut(&owner)?;
        Some(card.with(|card| {
            // Nothing that was sent before may be carried out after it was asked what became of it.
            if let Some(old) = session.queue_pairs.remove(&id.lane) {
                card.destroy(old);
            }
            let queue_pair = card.create()?;
            session.queue_pairs.insert(id.lane, queue_pair);
            card.connect(queue_pair, client)?;
            card.endpoint(queue_pair)
        }))
    }

    /// Takes places of freed nodes or records.
    pub(super) fn give_back(&self, returned: ReturnedPlaces) {
        let ReturnedPlaces { kind, bytes, mut addresses, .. } = returned;
        if self.scenario.tails && kind != ChunkKind::Records {
            // One that was never used may lie in what is left of a chunk.
            addresses.retain(|at| self.node_at(at.offset()).is_some_and(|found| found.is_free()));
        }
        self.places.borrow_mut().entry((kind, bytes)).or_default().extend(addresses);
    }

    /// Gives out places that others have given back.
    pub(super) fn reuse(&self, kind: ChunkKind, bytes: u32) -> Option<Vec<GlobalAddress>> {
        let bytes = if kind == ChunkKind::Records { bytes } else { 0 };
        self.places.borrow_mut().remove(&(kind, bytes))
    }

    /// Gives out a chunk, or what is left of one. None: the session has ended.
    pub(super) fn allocate(&self, owner: u16, kind: ChunkKind) -> Option<(GlobalAddress, u64)> {
        let mut sessions = self.sessions.borrow_mut();
        let session = sessions.get_mut(&owner);
        if session.is_none() && self.scenario.tails {
            return None;
        }
        let mut tails = self.tails.borrow_mut();
        let chunk = match tails.iter().position(|tail| tail.kind == kind) {
            Some(found) => tails.swap_remove(found),
            None => {
                let at = self.next_chunk.get();
                assert!(at + 2 * CHUNK < REGION, "the region is full");
                self.next_chunk.set(at + CHUNK);
                Chunk { at, bytes: CHUNK, kind }
            }
        };
        session.into_iter().for_each(|session| session.chunks.push(chunk));
        Some((GlobalAddress::new(self.partition.id, chunk.at), chunk.bytes))
    }

    /// Ends a session soon, although its client is well.
    pub(super) fn end_one(&self, random: &mut Random) {
        let mut sessions = self.sessions.borrow_mut();
        let number = random.random_range(0..sessions.len().max(1));
        if let Some(session) = sessions.values_mut().nth(number) {
            session.ends = self.machine.now();
        }
    }

    /// Ends sessions that were not renewed, and says how many. Their queue pairs go first.
    pub(super) fn end_lapsed(&self) -> u64 {
        let now = self.machine.now();
        let mut sessions = self.sessions.borrow_mut();
        let lapsed = sessions.iter().filter(|(_, session)| session.ends <= now).map(|(owner, _)| *owner);
        let lapsed: Vec<_> = lapsed.collect();
        for &owner in &lapsed {
            let session = sessions.remove(&owner).expect("it was found a moment ago");
            self.machine.reactor().with(|card| {
                session.queue_pairs.into_values().for_each(|queue_pair| card.destroy(queue_pair));
            });
            self.set_alive(owner, false);
            if self.scenario.tails {
                self.tails
                    .borrow_mut()
                    .extend(session.chunks.into_iter().filter_map(|chunk| self.tail(chunk)));
            }
        }
        lapsed.len() as u64
    }

    /// What lies behind the last node of a chunk.
    fn tail(&self, chunk: Chunk) -> Option<Chunk> {
        let Chunk { at, bytes, kind } = chunk;
        let tree: &TreeConfig = &self.scenario.config;
        let size = match kind {
            ChunkKind::Leaves => tree.leaf_bytes(),
            ChunkKind::InternalNodes => tree.internal_bytes(),
            ChunkKind::Records => return None,
        };
        let size = u64::from(size);
        let is_used = |slot: &u64| self.node_at(at + slot * size).is_some_and(|found| found.magic == MAGIC);
        let used = (0..bytes / size).rev().find(is_used).map_or(0, |last| (last + 1) * size);
        (used + size <= bytes).then_some(Chunk { at: at + used, bytes: bytes - used, kind })
    }

    fn node_at(&self, offset: u64) -> Option<NodeHeader> {
        let mut line = [0; LINE];
        self.memory.read(offset, &mut line).ok()?;
        Some(NodeHeader::parse(&line))
    }

    fn set_alive(&self, owner: u16, alive: bool) {
        let change = |word: u64| if alive { word | 1 << (owner % 64) } else { word & !(1 << (owner % 64)) };
        self.alive.update(u64::from(owner / 64) * 8, change).expect("it is in the table");
    }

    /// The partition as its superblock tells it now.
    pub(super) fn superblock(&self) -> Result<Partition, String> {
        let mut line = [0; 64];
        self.memory.read(0, &mut line).map_err(|error| error.to_string())?;
        Ok(Superblock::parse(&line).map_err(|error| error.to_string())?.partition)
    }
}

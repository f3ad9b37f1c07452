//! The memory server: an empty tree, locks, chunks, and sessions whose leases end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_index::node::{LeafBuilder, NodeSpec};
use fatbtree_index::{
    ChunkKind, ConnectionId, GlobalAddress, KeyRange, Partition, Regions, ReturnedPlaces, Superblock, Tree,
    Writer,
};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{
    Access, ConnectError, Device as _, Endpoint, Memory, QueuePair, Reactor, Region, Remote,
};

use super::{Outcome, Scenario};
use crate::history::History;
use crate::trees::switches::TreeSwitches;
use crate::trees::values;
use crate::world::{Machine, MachineOptions, SimDevice, Task, World};

const REGION: u64 = 4 << 20;
const CHUNK: u64 = 2 << 10;
/// The table of owners: a bit for each of the 65,536.
const OWNERS: u64 = 8192;

/// A client's session.
struct Session {
    ends: Instant,
    queue_pairs: BTreeMap<u8, QueuePair>,
}

/// What all tasks of a scenario know: the memory server, the switches, and what was seen.
pub(super) struct Setting {
    pub(super) scenario: Scenario,
    pub(super) server: Machine,
    pub(super) clients: Vec<Machine>,
    memory: Arc<Memory>,
    alive: Arc<Memory>,
    pub(super) tree: Region,
    locks: Region,
    owners: Region,
    pub(super) partition: Partition,
    next_chunk: Cell<u64>,
    /// Places that clients have given back, of each kind and size.
    places: RefCell<BTreeMap<(ChunkKind, u32), Vec<GlobalAddress>>>,
    sessions: RefCell<BTreeMap<u16, Session>>,
    last_owner: Cell<u16>,
    pub(super) switches: TreeSwitches,
    /// Where nodes are and were: ranges, addresses, levels.
    pub(super) seen: RefCell<Vec<(KeyRange, GlobalAddress, u8)>>,
    pub(super) history: History,
    words: Cell<u64>,
    pub(super) outcome: RefCell<Outcome>,
    /// What clients do in all their lives.
    pub(super) lives: RefCell<Vec<Task<()>>>,
}

impl Setting {
    /// An empty tree on a server, and clients that are not alive yet.
    pub(super) fn new(
        scenario: &Scenario,
        world: &World,
        mut options: impl FnMut(String) -> MachineOptions,
    ) -> Rc<Self> {
        let server = world.machine(options("server".to_owned()));
        let clients =
            (0..super::run::CLIENTS).map(|number| world.machine(options(format!("client {number}"))));
        let clients = clients.collect();
        let mut memory = Memory::anonymous(REGION).expect("there is memory for a small region");
        let root = GlobalAddress::new(0, 64);
        let partition = Partition { id: 0, range: KeyRange::ALL, root, root_level: 0 };
        let config = scenario.config;
        let superblock = Superblock { partition, config, generation: 1, region_bytes: REGION, version: 1 };
        memory.as_mut_slice()[..64].copy_from_slice(&superblock.to_bytes());
        let (range, sibling) = (KeyRange::ALL, GlobalAddress::NULL);
        let spec = NodeSpec { address: root, level: 0, range, sibling, version: 1 };
        let leaf = &mut memory.as_mut_slice()[64..64 + config.leaf_bytes() as usize];
        LeafBuilder::new(leaf, config.leaf_shape(), spec).finish();
        let memory: Arc<Memory> = memory.into();
        let alive = Memory::shared(OWNERS).expect("there is memory for a table");
        let (tree, locks, owners) = server.reactor().with(|card| {
            let tree = card.register(&memory, 0, Access::ALL).expect("a machine registers its memory");
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
        let switches = TreeSwitches::default();
        world.set_switches(switches.clone());
        Rc::new(Self {
            scenario: scenario.clone(),
            server,
            clients,
            memory,
            alive,
            tree,
            locks,
            owners,
            partition,
            next_chunk: Cell::new(8192),
            places: RefCell::default(),
            sessions: RefCell::default(),
            last_owner: Cell::new(0),
            switches,
            seen: RefCell::new(vec![(KeyRange::ALL, root, 0)]),
            history: History::default(),
            words: Cell::new(0),
            outcome: RefCell::default(),
            lives: RefCell::default(),
        })
    }

    pub(super) fn next_word(&self) -> u64 {
        self.words.set(self.words.get() + 1);
        values::word(self.words.get())
    }

    pub(super) fn count(&self, work: impl FnOnce(&mut Outcome)) {
        work(&mut self.outcome.borrow_mut());
    }

    // ---- what the server does when it is asked ----

    /// Opens a session.
    pub(super) fn open(&self) -> Writer {
        let owner = self.last_owner.get() + 1;
        self.last_owner.set(owner);
        self.set_alive(owner, true);
        let session = Session { ends: self.server.now() + self.scenario.lease, queue_pairs: BTreeMap::new() };
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
        session.ends = self.server.now() + self.scenario.lease;
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
        let ReturnedPlaces { kind, bytes, addresses, .. } = returned;
        self.places.borrow_mut().entry((kind, bytes)).or_default().extend(addresses);
    }

    /// Gives out places that others have given back.
    pub(super) fn reuse(&self, kind: ChunkKind, bytes: u32) -> Option<Vec<GlobalAddress>> {
        let bytes = if kind == ChunkKind::Records { bytes } else { 0 };
        self.places.borrow_mut().remove(&(kind, bytes))
    }

    /// Gives out a chunk.
    pub(super) fn allocate(&self) -> (GlobalAddress, u64) {
        let at = self.next_chunk.get();
        assert!(at + 2 * CHUNK < REGION, "the region is full");
        self.next_chunk.set(at + CHUNK);
        (GlobalAddress::new(0, at), CHUNK)
    }

    /// Ends sessions that were not renewed. Their queue pairs go first.
    pub(super) fn end_lapsed(&self) {
        let now = self.server.now();
        let mut sessions = self.sessions.borrow_mut();
        let lapsed = sessions.iter().filter(|(_, session)| session.ends <= now).map(|(owner, _)| *owner);
        for owner in lapsed.collect::<Vec<_>>() {
            let session = sessions.remove(&owner).expect("it was found a moment ago");
            self.server.reactor().with(|card| {
                session.queue_pairs.into_values().for_each(|queue_pair| card.destroy(queue_pair));
            });
            self.set_alive(owner, false);
            self.count(|outcome| outcome.lapsed += 1);
        }
    }

    fn set_alive(&self, owner: u16, alive: bool) {
        let change = |word: u64| if alive { word | 1 << (owner % 64) } else { word & !(1 << (owner % 64)) };
        self.alive.update(u64::from(owner / 64) * 8, change).expect("it is in the table");
    }

    // ---- the tree as it lies in memory ----

    fn superblock(&self) -> Result<Partition, String> {
        let mut line = [0; 64];
        self.memory.read(0, &mut line).map_err(|error| error.to_string())?;
        Ok(Superblock::parse(&line).map_err(|error| error.to_string())?.partition)
    }

    /// Looks where nodes are, for the switches and for clients that remember. In the middle of changes it sees what it can.
    pub(super) fn look_around(&self) {
        const MOST: usize = 64;
        let Ok(partition) = self.superblock() else { return };
        let regions = Regions::new([(0, Arc::clone(&self.memory))]);
        let tree = Tree::new(&regions, &self.scenario.config, &partition);
        let mut seen = self.seen.borrow_mut();
        let mut note = |range, address, level| {
            seen.push((range, address, level));
        };
        let _ = tree.for_each_internal(|node| {
            note(node.header().range(), node.header().address, node.header().level);
        });
        let _ = tree.for_each_leaf(|leaf| note(leaf.header().range(), leaf.header().address, 0));
        let many = seen.len().saturating_sub(MOST);
        seen.drain(..many);
    }
}

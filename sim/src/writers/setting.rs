//! State that all tasks of a scenario share: the memory servers, the switches, and observations.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_blink::node::EntryValue;
use fatbtree_blink::{
    EntryCache, GlobalAddress, KeyRange, Partition, Regions, SuperRoot, Tree, TreeConfig, nodes_from,
};
use rand::RngExt as _;

use super::server::Server;
use super::{Outcome, Scenario};
use crate::history::{Answer, Call, History};
use crate::trees::switches::TreeSwitches;
use crate::trees::values;
use crate::world::{Machine, MachineOptions, Random, Task, World};

/// State that all tasks of a scenario share.
pub(super) struct Setting {
    pub(super) scenario: Scenario,
    /// Servers by the numbers of their partitions.
    pub(super) servers: Vec<Server>,
    pub(super) clients: Vec<Machine>,
    pub(super) switches: TreeSwitches,
    /// Present and former nodes: ranges, addresses, levels.
    pub(super) seen: RefCell<Vec<(KeyRange, GlobalAddress, u8)>>,
    /// Present and former places of keys' records; where values are in line, their leaves. Last: whether it is a leaf.
    pub(super) seen_keys: RefCell<Vec<(u64, GlobalAddress, bool)>>,
    /// Entry cache of all clients, where they are threads of one process.
    pub(super) shared_entries: Option<Arc<EntryCache>>,
    pub(super) history: History,
    words: Cell<u64>,
    pub(super) outcome: RefCell<Outcome>,
    /// Tasks of clients, in all their lives.
    pub(super) lives: RefCell<Vec<Task<()>>>,
    /// The faults are over.
    pub(super) calm: Cell<bool>,
    /// Violations of what must always hold.
    wrong: RefCell<Vec<String>>,
    /// A server that is to die once more as soon as it is back.
    pub(super) once_more: Cell<Option<u16>>,
}

impl Setting {
    /// Servers and clients that are not alive yet.
    pub(super) fn new(
        scenario: &Scenario,
        world: &World,
        mut options: impl FnMut(String) -> MachineOptions,
    ) -> Rc<Self> {
        let mut machines = vec![world.machine(options("server".to_owned()))];
        let clients =
            (0..super::run::CLIENTS).map(|number| world.machine(options(format!("client {number}"))));
        let clients = clients.collect();
        machines.extend((1..scenario.servers).map(|id| world.machine(options(format!("server {id}")))));
        let servers = scenario.ids().zip(machines).map(|(id, machine)| Server::new(machine, scenario, id));
        let servers: Vec<Server> = servers.collect();
        let seen =
            servers.iter().map(|server| (server.range, first_root(&scenario.config, server.id), 0)).collect();
        let switches = TreeSwitches::default();
        world.set_switches(switches.clone());
        Rc::new(Self {
            scenario: scenario.clone(),
            servers,
            clients,
            switches,
            seen: RefCell::new(seen),
            seen_keys: RefCell::default(),
            shared_entries: scenario
                .entries
                .filter(|_| scenario.shares_entries)
                .map(|bytes| Arc::new(EntryCache::new(bytes))),
            history: History::default(),
            words: Cell::new(0),
            outcome: RefCell::default(),
            lives: RefCell::default(),
            calm: Cell::new(false),
            wrong: RefCell::default(),
            once_more: Cell::new(None),
        })
    }

    /// The super-root before the first change. A client learns of others when it opens its sessions.
    pub(super) fn roots(&self) -> SuperRoot {
        let first = |server: &Server| {
            let (id, range) = (server.id, server.range);
            Partition { id, range, root: first_root(&self.scenario.config, id), root_level: 0 }
        };
        SuperRoot::new(self.servers.iter().map(first).collect()).expect("the partitions cover all keys")
    }

    /// New words for all keys of a server, which another tree of it begins with.
    pub(super) fn draw_pairs(&self, server: &Server) -> Vec<(u64, u64)> {
        let numbers = self.scenario.keys_of(server.id);
        numbers.map(|number| (self.scenario.key(number), self.next_word())).collect()
    }

    /// Notes that another tree with these pairs has taken the place of a server's, in one moment.
    pub(super) fn note_load(&self, server: &Server, pairs: &[(u64, u64)]) {
        let (name, now) = (server.machine.name(), server.machine.now());
        for &(key, word) in pairs {
            let asked = self.history.ask(&name, now, key, Call::Upsert(word));
            self.history.answer(asked, now, Answer::Applied);
        }
    }

    pub(super) fn server(&self, id: u16) -> &Server {
        &self.servers[self.scenario.place_of(id)]
    }

    pub(super) fn any_server(&self, random: &mut Random) -> &Server {
        // With one server nothing is drawn.
        let last = self.servers.len() - 1;
        &self.servers[if last == 0 { 0 } else { random.random_range(0..=last) }]
    }

    pub(super) fn next_word(&self) -> u64 {
        self.words.set(self.words.get() + 1);
        values::word(self.words.get())
    }

    /// Notes what must never be, except under a hostile writer.
    pub(super) fn wrong(&self, what: String) {
        if self.scenario.hostile.is_none() {
            self.wrong.borrow_mut().push(what);
        }
    }

    /// The first thing that must never be.
    pub(super) fn first_wrong(&self) -> Option<String> {
        self.wrong.borrow().first().cloned()
    }

    pub(super) fn count(&self, work: impl FnOnce(&mut Outcome)) {
        work(&mut self.outcome.borrow_mut());
    }

    /// Looks where nodes are, for the switches and for clients that remember. In the middle of changes it sees what it can.
    pub(super) fn look_around(&self) {
        const MOST: usize = 64;
        let memories = self.servers.iter().filter_map(|server| Some((server.id, server.memory()?)));
        let regions = Regions::new(memories);
        let mut seen = self.seen.borrow_mut();
        let mut keys = self.seen_keys.borrow_mut();
        for server in &self.servers {
            let Some(partition) = server.superblock() else { continue };
            let tree = Tree::new(&regions, &self.scenario.config, &partition);
            let mut note = |range, address, level| {
                seen.push((range, address, level));
            };
            let _ = tree.for_each_internal(|node| {
                note(node.header().range(), node.header().address, node.header().level);
            });
            let _ = tree.for_each_leaf(|leaf| {
                let address = leaf.header().address;
                note(leaf.header().range(), address, 0);
                keys.extend(leaf.entries().flatten().map(|(key, value)| match value {
                    EntryValue::Inline(_) => (key, address, true),
                    EntryValue::Record(record) => (key, record.address, false),
                    EntryValue::Layer(layer) => (key, layer, false),
                }));
            });
        }
        let many = seen.len().saturating_sub(MOST * self.servers.len());
        seen.drain(..many);
        let many = keys.len().saturating_sub(4 * MOST * self.servers.len());
        keys.drain(..many);
    }
}

/// Address of the root of an empty tree that was loaded.
fn first_root(tree: &TreeConfig, server: u16) -> GlobalAddress {
    GlobalAddress::new(server, nodes_from(tree))
}

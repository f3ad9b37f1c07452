//! What all tasks of a scenario share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_blink::{GlobalAddress, Integrity, KeyRange, Partition, SuperRoot};
use fatbtree_verbs::{Access, Device as _, Memory, Region, Remote};
use rand::RngExt as _;

use super::clients::Living;
use super::litter::{Litter, scatter};
use super::model::{Change, Model};
use super::scenario::{Outcome, Scenario};
use super::space::Space;
use super::switches::TreeSwitches;
use super::values;
use super::writer::Tended;
use crate::history::History;
use crate::world::{Machine, Random, Task, World, random};

/// A memory server.
pub(super) struct Server {
    pub(super) id: u16,
    pub(super) machine: Machine,
    memory: Arc<Memory>,
    /// Of its present life.
    pub(super) region: Cell<Region>,
}

impl Server {
    /// Registers its memory in a new life.
    pub(super) fn register(&self) {
        self.region.set(register(&self.machine, &self.memory, self.id));
    }
}

fn register(machine: &Machine, memory: &Arc<Memory>, id: u16) -> Region {
    let iova = GlobalAddress::new(id, 0).raw();
    machine
        .reactor()
        .with(|card| card.register(memory, iova, Access::ALL))
        .expect("a machine registers its memory")
}

/// What all tasks of a scenario know.
pub(super) struct Setting {
    pub(super) scenario: Scenario,
    pub(super) servers: Vec<Server>,
    pub(super) writers: Vec<Machine>,
    pub(super) clients: Vec<Machine>,
    /// By server.
    pub(super) trees: Vec<RefCell<Tended>>,
    pub(super) litter: Vec<Litter>,
    pub(super) keys: Vec<Vec<u64>>,
    /// The roots before the first change: a client may come with them at any time.
    first_roots: Vec<Partition>,
    pub(super) switches: TreeSwitches,
    pub(super) history: History,
    words: Cell<u64>,
    /// What must never be.
    wrong: RefCell<Vec<String>>,
    pub(super) outcome: RefCell<Outcome>,
    /// Lookups and writers of all lives.
    pub(super) lives: RefCell<Vec<Task<()>>>,
    /// The clients in their present lives, or their last ones.
    pub(super) living: RefCell<Vec<Option<Living>>>,
    /// The faults are over.
    pub(super) calm: Cell<bool>,
}

impl Setting {
    /// Makes the machines, and a tree on each server.
    pub(super) fn new(scenario: &Scenario, world: &World, draw: &mut Random) -> Rc<Self> {
        let ranges = scenario.ranges();
        let keys = scenario.keys(&ranges, draw);
        let (mut servers, mut trees, mut litter) = (Vec::new(), Vec::new(), Vec::new());
        let words = Cell::new(0);
        let history = History::default();
        for (number, &range) in ranges.iter().enumerate() {
            let id = scenario.first_id + number as u16;
            let machine = world.machine(scenario.server_options(number, draw));
            let integrity = Integrity::for_device(machine.device().capabilities().line_atomicity);
            assert_eq!(scenario.config.integrity(), integrity, "the format follows from the card");
            let space = Space::new(id, &scenario.config, scenario.nodes, scenario.records, scenario.broken);
            let memory = Memory::shared(space.region_bytes).expect("there is memory for a small region");
            litter.push(scatter(&scenario.config, &space, &memory, &keys[number], scenario.lengths[0], draw));
            let (mut model, change) = Model::new(id, range, scenario.config, space, scenario.broken, draw);
            do_now(&mut model, change, &memory, draw);
            grow(&mut model, &keys[number], scenario, &words, &memory, draw);
            history.begin_with(model.pairs());
            trees.push(RefCell::new(Tended::new(model)));
            let region = Cell::new(register(&machine, &memory, id));
            servers.push(Server { id, machine, memory, region });
        }
        let clients = (0..scenario.clients)
            .map(|number| world.machine(scenario.client_options(&format!("client {number}"), draw)));
        let clients = clients.collect();
        let writers = (0..servers.len())
            .map(|number| world.machine(scenario.client_options(&format!("writer {number}"), draw)));
        let writers = writers.collect();
        let first_roots =
            trees.iter().map(|tree: &RefCell<Tended>| tree.borrow().model.partition()).collect();
        let switches = TreeSwitches::default();
        world.set_switches(switches.clone());
        Rc::new(Self {
            scenario: scenario.clone(),
            servers,
            writers,
            clients,
            trees,
            litter,
            keys,
            first_roots,
            switches,
            history,
            words,
            wrong: RefCell::default(),
            outcome: RefCell::default(),
            lives: RefCell::default(),
            living: RefCell::new(vec![None; scenario.clients as usize]),
            calm: Cell::new(false),
        })
    }

    pub(super) fn next_word(&self) -> u64 {
        next_word(&self.words)
    }

    /// A key that a tree may have.
    pub(super) fn draw_key(&self, tree: usize, random: &mut Random) -> u64 {
        let keys = &self.keys[tree];
        let among = if random.random_bool(self.scenario.hot) { 2 } else { keys.len() };
        keys[random.random_range(0..among)]
    }

    /// A key to be looked up: mostly one that a tree may have, sometimes one beside it.
    pub(super) fn draw_any_key(&self, random: &mut Random) -> u64 {
        let tree = random.random_range(0..self.keys.len());
        let key = self.draw_key(tree, random);
        match random.random_range(0..20) {
            0 => key.wrapping_add(1),
            1 => key.wrapping_sub(1),
            2 => [0, u64::MAX][random.random_range(0..2)],
            _ => key,
        }
    }

    /// The roots as somebody knows them who has just started, or who was told before the first change.
    pub(super) fn roots(&self, old: bool) -> SuperRoot {
        let now = self.trees.iter().map(|tree| tree.borrow().model.partition());
        let partitions = if old { self.first_roots.clone() } else { now.collect() };
        SuperRoot::new(partitions).expect("the partitions cover all keys")
    }

    /// Where an index read lands at least.
    pub(super) fn root_of(&self, tree: usize) -> Remote {
        let root = self.trees[tree].borrow().model.partition().root;
        Remote { address: root.raw(), rkey: self.servers[tree].region.get().rkey }
    }

    pub(super) fn count(&self, work: impl FnOnce(&mut Outcome)) {
        work(&mut self.outcome.borrow_mut());
    }

    /// Notes what must never be.
    pub(super) fn wrong(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }

    /// The first thing that must never be.
    pub(super) fn first_wrong(&self) -> Option<String> {
        self.wrong.borrow().first().cloned()
    }
}

/// The word of the next write.
pub(super) fn next_word(words: &Cell<u64>) -> u64 {
    words.set(words.get() + 1);
    values::word(words.get())
}

/// Does all steps of a change in memory at hand.
pub(super) fn do_now(model: &mut Model, change: Change, memory: &Memory, random: &mut Random) {
    const INSIDE: &str = "steps are inside of the region";
    for &step in &change.steps {
        let (place, len) = model.place(step);
        let mut found = vec![0; len as usize];
        memory.read(place.offset(), &mut found).expect(INSIDE);
        if let Some((to, bytes)) = model.bytes(step, found, random) {
            memory.write(to.offset(), &bytes).expect(INSIDE);
        }
    }
    model.done(change);
}

/// Puts about half of the keys into a tree.
fn grow(
    model: &mut Model,
    keys: &[u64],
    scenario: &Scenario,
    words: &Cell<u64>,
    memory: &Memory,
    random: &mut Random,
) {
    for &key in keys {
        if random.random_bool(0.4) {
            continue;
        }
        for _ in 0..8 {
            if !model.has_no_room(key) {
                break;
            }
            let Some(change) = model.split_leaf(key, random) else { break };
            do_now(model, change, memory, random);
        }
        let length = scenario.lengths[random.random_range(0..scenario.lengths.len())];
        if let Some(change) = model.upsert(key, next_word(words), length, random) {
            do_now(model, change, memory, random);
        }
    }
}

/// Both ends of a range, inclusive.
pub(super) fn inclusive(range: KeyRange) -> std::ops::RangeInclusive<u64> {
    range.low..=range.high.map_or(u64::MAX, |high| high - 1)
}

/// The generator of one life of one machine.
pub(super) fn life_random(seed: u64, machine: u64, life: u64) -> Random {
    random(seed, 1000 + machine * 64 + life)
}

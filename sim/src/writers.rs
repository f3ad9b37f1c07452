//! Scenarios with clients that change one tree at a time: locks, splits and new roots under lost messages, cut links and frozen
//! cards, every answer explained.
//!
//! ```text
//!   4 clients × some tasks: get, insert, update, upsert, delete       fate: cuts links, freezes clients and the server's card
//!        │ lock + READ, WRITE + unlock
//!        ▼
//!   memory server: lock table on its card │ superblock, one empty leaf, chunks
//! ```
//!
//! ```
//! let outcome = fatbtree_sim::writers::Scenario::from_seed(7).run().expect("every answer is explained");
//! assert!(outcome.applied > 0);
//! ```

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_client::Client;
use fatbtree_index::node::{LeafBuilder, NodeSpec};
use fatbtree_index::{
    ConnectionId, Event, GlobalAddress, IndexCache, Integrity, KeyRange, Partition, PoolConfig, Regions,
    RemoteSide, Start, SuperRoot, Superblock, Tree, TreeConfig, ValueLayout, Wish, Writer,
};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Access, ConnectError, Device as _, Memory, Reactor, Region, Remote};
use rand::RngExt as _;
use serde::Serialize;

use crate::history::{Answer, Call, History};
use crate::trees::values;
use crate::world::{
    Driven, FinalOperation, Machine, MachineOptions, Options, Random, SimDevice, Task, World, random,
};

const CLIENTS: u64 = 4;
const REGION: u64 = 1 << 20;
const CHUNK: u64 = 2 << 10;
const FAULTS: Duration = Duration::from_millis(6);
const SOON: Duration = Duration::from_millis(200);
/// How often a client looks whether a connection broke or memory is wanted.
const LOOK: Duration = Duration::from_micros(10);

/// A scenario: everything follows from the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    seed: u64,
    config: TreeConfig,
    keys: u64,
    tasks: u32,
    operations: u32,
    locks: u32,
    masked: bool,
    calm: Duration,
    /// Bytes of each client's cache; none: they begin at the root.
    cache: Option<u64>,
    world: Options,
}

/// What a scenario came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Operations that were answered.
    pub answered: u64,
    /// Operations that ended with an error, or not at all.
    pub unknown: u64,
    /// Changes that were carried out.
    pub applied: u64,
    /// Levels above the leaves, in the end.
    pub levels: u64,
    /// Queue pairs that broke.
    pub broken_connections: u64,
    /// Round trips of all operations.
    pub round_trips: u64,
    /// Operations that began at a leaf that a client's cache knew.
    pub cache_hits: u64,
    /// Those among them that the cache led to a wrong leaf, or to one that had been split.
    pub stale_hits: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.answered += other.answered;
        self.unknown += other.unknown;
        self.applied += other.applied;
        self.levels += other.levels;
        self.broken_connections += other.broken_connections;
        self.round_trips += other.round_trips;
        self.cache_hits += other.cache_hits;
        self.stale_hits += other.stale_hits;
    }
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let draw = &mut random(seed, 97);
        let integrity = if draw.random_bool(0.5) { Integrity::LineVersions } else { Integrity::Checksums };
        let values = match draw.random_range(0..3) {
            0 => ValueLayout::Inline(8),
            1 => ValueLayout::Inline(60),
            _ => ValueLayout::OutOfLine,
        };
        let lines = if values == ValueLayout::Inline(60) { 7 } else { draw.random_range(2..=4) };
        let config = TreeConfig::with_integrity(draw.random_range(3..=6), 64 * lines, values, integrity)
            .expect("there is room for two entries");
        Self {
            seed,
            config,
            keys: draw.random_range(4..=60),
            tasks: draw.random_range(1..=6),
            operations: draw.random_range(10..=40),
            locks: 1 << draw.random_range(2..=8),
            masked: draw.random_bool(0.5),
            calm: Duration::from_micros(draw.random_range(50..=2_000)),
            world: Options::rough(draw),
            cache: draw.random_bool(0.5).then(|| draw.random_range(0..4_000)),
        }
    }

    fn start(&self) -> Start {
        if self.cache.is_some() { Start::Cached } else { Start::Root }
    }

    /// Runs it to the end.
    ///
    /// # Errors
    /// An answer that nothing explains, a tree that is none, an operation that fails although everything works.
    pub fn run(&self) -> Result<Outcome, String> {
        run(self).map_err(|why| format!("{why}\n  in {self:?}"))
    }
}

/// What all tasks of a scenario know.
struct Setting {
    scenario: Scenario,
    server: Machine,
    memory: Arc<Memory>,
    tree: Region,
    locks: Region,
    owners: Region,
    partition: Partition,
    next_chunk: Cell<u64>,
    history: History,
    words: Cell<u64>,
    outcome: RefCell<Outcome>,
}

/// A client's reactor, which its machine uses.
struct Driver(Client<SimDevice>);

impl Driven for Driver {
    fn reactor(&self) -> &Reactor<SimDevice> {
        self.0.pool().reactor()
    }

    fn turn(&self, now: Instant) {
        self.0.turn(now);
    }
}

#[derive(Clone)]
struct Living {
    machine: Machine,
    client: Client<SimDevice>,
    setting: Rc<Setting>,
}

impl Living {
    fn begin(machine: &Machine, owner: u16, setting: &Rc<Setting>) -> Self {
        let config = PoolConfig { tree: setting.scenario.config, ..PoolConfig::default() };
        let roots = SuperRoot::new(vec![setting.partition]).expect("one partition covers all keys");
        let client = Client::new(machine.device(), config, roots, u64::from(owner)).expect("one lane");
        client.set_cache(setting.scenario.cache.map(|bytes| Arc::new(IndexCache::new(bytes))));
        machine.set_driven(Rc::new(Driver(client.clone())));
        let remote = |region: Region| Remote { address: region.iova, rkey: region.rkey };
        let (locks, owners) = (remote(setting.locks), remote(setting.owners));
        let (count, masked_atomics) = (setting.scenario.locks, setting.scenario.masked);
        let writer = Writer { locks, owners, count, owner, masked_atomics };
        client.pool().set_writer(0, writer).expect("there is one server");
        let living = Self { machine: machine.clone(), client, setting: Rc::clone(setting) };
        drop(machine.spawn(living.clone().attend()));
        living
    }

    /// Connects what is not connected, and brings memory.
    async fn attend(self) {
        self.connect(ConnectionId { server: 0, lane: 0 }).await;
        loop {
            while let Some(event) = self.client.poll_event() {
                match event {
                    Event::ConnectionBroken { id, .. } => {
                        self.setting.outcome.borrow_mut().broken_connections += 1;
                        self.connect(id).await;
                    }
                    Event::MemoryWanted { kind, .. } => {
                        let at = self.setting.next_chunk.get();
                        assert!(at + 2 * CHUNK < REGION, "the region is full");
                        self.setting.next_chunk.set(at + CHUNK);
                        self.machine.sleep(LOOK).await;
                        self.client.pool().supply(GlobalAddress::new(0, at), CHUNK, kind);
                    }
                }
            }
            self.machine.sleep(LOOK).await;
        }
    }

    async fn connect(&self, id: ConnectionId) {
        let pool = self.client.pool();
        loop {
            let local = pool.open(id).expect("it is not up");
            let accept = |theirs: &Reactor<SimDevice>| {
                theirs.with(|card| {
                    // Nothing that was sent before may be carried out after it was asked what became of it.
                    card.take_back_from(self.machine.id());
                    let peer = card.create()?;
                    card.connect(peer, &local)?;
                    card.endpoint(peer)
                })
            };
            let answer: Result<Result<_, ConnectError>, _> =
                self.machine.call(&self.setting.server, accept).await;
            if let Ok(endpoint) = answer {
                let endpoint = endpoint.expect("the card has queue pairs enough");
                let side = RemoteSide { endpoint, rkey: self.setting.tree.rkey, registered: false };
                pool.connected(id, side).expect("nodes fit into a packet");
                return;
            }
            self.machine.sleep(LOOK).await;
        }
    }

    async fn work(self, operations: u32, mut random: Random) {
        for _ in 0..operations {
            let key = random.random_range(0..self.setting.scenario.keys) * 0x0400_0000_0000_0003;
            // An error says why, and is no answer.
            let _ = self.operate(key, random.random_range(0..9), &mut random).await;
        }
    }

    async fn operate(&self, key: u64, what: u32, random: &mut Random) -> Result<(), String> {
        let Setting { history, words, scenario, outcome, .. } = &*self.setting;
        let (name, now) = (self.machine.name(), self.machine.now());
        if what < 3 {
            let asked = history.ask(&name, now, key, Call::Get);
            let found = self.client.lookup(key, scenario.start()).await;
            outcome.borrow_mut().round_trips += u64::from(found.trips.round_trips);
            let value = found.result.map_err(|error| error.to_string())?;
            let word = match value {
                None => None,
                Some(value) => Some(values::open(key, &value).ok_or("a value that nobody wrote")?),
            };
            history.answer(asked, self.machine.now(), Answer::Found(word));
            return Ok(());
        }
        words.set(words.get() + 1);
        let word = values::word(words.get());
        let len = match scenario.config.values() {
            ValueLayout::Inline(len) => usize::from(len),
            ValueLayout::OutOfLine => random.random_range(8..200),
        };
        let mut value = vec![0; len];
        values::fill(key, word, &mut value);
        let (call, wish) = match what {
            3 | 4 => (Call::Upsert(word), Wish::Upsert(&value)),
            5 | 6 => (Call::Insert(word), Wish::Insert(&value)),
            7 => (Call::Update(word), Wish::Update(&value)),
            _ => (Call::Delete, Wish::Delete),
        };
        let asked = history.ask(&name, now, key, call);
        let change = self.client.pool().change(key, wish, scenario.start()).await;
        outcome.borrow_mut().round_trips += u64::from(change.trips.round_trips);
        let applied = change.result.map_err(|error| error.to_string())?;
        outcome.borrow_mut().applied += u64::from(applied);
        history.answer(asked, self.machine.now(), Answer::of(applied));
        Ok(())
    }
}

fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let world = World::new(scenario.seed, scenario.world.clone());
    let draw = &mut random(scenario.seed, 96);
    let integrity = scenario.config.integrity();
    let options = |name: String, draw: &mut Random| MachineOptions {
        line_atomicity: integrity == Integrity::LineVersions,
        masked_atomics: scenario.masked,
        send_queue: 64,
        ..MachineOptions::rough(name, draw)
    };
    let setting = setting(scenario, &world, options("server".to_owned(), draw));
    let clients: Vec<Machine> =
        (0..CLIENTS).map(|number| world.machine(options(format!("client {number}"), draw))).collect();
    let living: Vec<Living> =
        (1..).zip(&clients).map(|(owner, machine)| Living::begin(machine, owner, &setting)).collect();
    let mut tasks = Vec::new();
    for living in &living {
        for _ in 0..scenario.tasks {
            let random = random(draw.random_range(0..=u64::MAX), 2);
            tasks.push(living.machine.spawn(living.clone().work(scenario.operations, random)));
        }
    }
    let operator = world.operator().clone();
    let fate = operator.clone().spawn(play(
        operator,
        clients.clone(),
        Rc::clone(&setting),
        random(scenario.seed, 95),
    ));
    world.run_for(FAULTS);

    let alive = world.final_phase(SOON, || {
        fate.cancel();
        tasks.iter().for_each(Task::cancel);
        living.iter().flat_map(|living| begin_last(living, draw)).collect()
    });
    let checked = setting.history.check().map_err(|violation| violation.to_string())?;
    alive.map_err(|error| error.to_string())?;
    world.settle();
    let levels = verify(&setting)?;
    let mut outcome = *setting.outcome.borrow();
    outcome.levels = levels;
    for living in &living {
        let stats = living.client.cache_stats();
        outcome.cache_hits += stats.hits;
        outcome.stale_hits += stats.stale;
    }
    outcome.answered += checked.answered as u64;
    outcome.unknown += checked.unknown as u64;
    Ok(outcome)
}

/// What must succeed in the end.
fn begin_last(living: &Living, draw: &mut Random) -> Vec<FinalOperation<String>> {
    let keys: Vec<u64> = (0..8).map(|_| draw.random_range(0..living.setting.scenario.keys)).collect();
    let mut random = random(draw.random_range(0..=u64::MAX), 3);
    let (name, living) = (living.machine.name(), living.clone());
    let task = living.machine.clone().spawn(async move {
        for key in keys {
            for what in [3, 0] {
                living.operate(key * 0x0400_0000_0000_0003, what, &mut random).await?;
            }
        }
        Ok(())
    });
    vec![(name, task)]
}

/// An empty tree on a server.
fn setting(scenario: &Scenario, world: &World, options: MachineOptions) -> Rc<Setting> {
    let server = world.machine(options);
    let mut memory = Memory::anonymous(REGION).expect("there is memory for a small region");
    let root = GlobalAddress::new(0, 64);
    let partition = Partition { id: 0, range: KeyRange::ALL, root, root_level: 0 };
    let config = scenario.config;
    let superblock = Superblock { partition, config, generation: 1, region_bytes: REGION, version: 1 };
    memory.as_mut_slice()[..64].copy_from_slice(&superblock.to_bytes());
    let spec =
        NodeSpec { address: root, level: 0, range: KeyRange::ALL, sibling: GlobalAddress::NULL, version: 1 };
    let leaf = &mut memory.as_mut_slice()[64..64 + config.leaf_bytes() as usize];
    LeafBuilder::new(leaf, config.leaf_shape(), spec).finish();
    let memory: Arc<Memory> = memory.into();
    let alive = Memory::shared(8192).expect("there is memory for a table");
    (0..1024).for_each(|word| alive.write(word * 8, &[0xff; 8]).expect("it is in the table"));
    let (tree, locks, owners) = server.reactor().with(|card| {
        let tree = card.register(&memory, 0, Access::ALL).expect("a machine registers its memory");
        let locks = card.register_device_memory(u64::from(scenario.locks) * 2, 0, Access::ALL);
        let owners = card.register(&alive, 0, Access::READ).expect("a machine registers its memory");
        (tree, locks.expect("a card has memory for some locks"), owners)
    });
    Rc::new(Setting {
        scenario: scenario.clone(),
        server,
        memory,
        tree,
        locks,
        owners,
        partition,
        next_chunk: Cell::new(8192),
        history: History::default(),
        words: Cell::new(0),
        outcome: RefCell::default(),
    })
}

/// Lets things happen until it is cancelled. Nobody dies: what a dead client has locked is freed by a part that is still to come.
async fn play(operator: Machine, clients: Vec<Machine>, setting: Rc<Setting>, mut random: Random) {
    loop {
        let longest = setting.scenario.calm.as_nanos();
        operator.sleep(Duration::from_nanos(random.random_range(1..=longest))).await;
        let client = &clients[random.random_range(0..clients.len())];
        match random.random_range(0..8) {
            0..3 => client.set_link_down(random.random_bool(0.5)),
            3 => client.freeze(),
            4 | 5 => client.thaw(),
            6 => setting.server.freeze_card(),
            _ => setting.server.thaw_card(),
        }
    }
}

/// Whether the tree is one; how many levels are above its leaves.
fn verify(setting: &Setting) -> Result<u64, String> {
    let mut line = [0; 64];
    setting.memory.read(0, &mut line).map_err(|error| error.to_string())?;
    let partition = Superblock::parse(&line).map_err(|error| error.to_string())?.partition;
    let regions = Regions::new([(0, Arc::clone(&setting.memory))]);
    let (mut next, mut gap) = (Some(0), None);
    let tree = Tree::new(&regions, &setting.scenario.config, &partition);
    tree.for_each_leaf(|leaf| {
        if Some(leaf.header().low) != next {
            gap = gap.or(Some(leaf.header().low));
        }
        next = leaf.header().range().high;
    })
    .map_err(|error| error.to_string())?;
    match (gap, next) {
        (None, None) => Ok(partition.root_level.into()),
        _ => Err(format!("the leaves do not cover all keys: gap before {gap:?}, end {next:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::{Campaign, Seeds};

    #[test]
    fn every_answer_is_explained_and_all_succeed_in_the_end() {
        let campaign = Campaign {
            command: "fatbtree simulate --writers --seed",
            most_failures: 3,
            ..Campaign::default()
        };
        let report = campaign.run(Seeds::fixed(2_000), |seed| Scenario::from_seed(seed).run());
        let total = report.into_result().unwrap_or_else(|failures| panic!("{failures}"));
        eprintln!("{total:#?}");
        assert!(total.applied > 100_000 && total.broken_connections > 1_000 && total.levels > 3_000);
        assert!(total.unknown * 4 < total.answered, "{total:?}");
        assert!(total.cache_hits > 10_000 && total.stale_hits > 500, "{total:?}");
    }

    #[test]
    fn a_seed_replays_itself() {
        for seed in 0..10 {
            assert_eq!(Scenario::from_seed(seed).run(), Scenario::from_seed(seed).run());
        }
    }
}

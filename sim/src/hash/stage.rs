//! Clients and servers of a table as a stage: they work, die, and are asked for every key in the end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_race::{Change, Cursor, Shape, Table, TableError, Value};
use fatbtree_remote_memory::{CommonError, Contention, Portion};
use fatbtree_verbs::BufferClass;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::lab::{Client, Server, begin, serve_in_chunks};
use super::{Aim, Outcome, Scenario};
use crate::history::{Answer, Call, History};
use crate::world::trial::{Alive, Deaths, Disturbances, Ended, Fault, Stage, Trial};
use crate::world::{FinalOperation, Machine, MachineOptions, Options, Random, SimDevice, World, random};

/// Time with faults.
const FAULTS: Duration = Duration::from_millis(6);
/// Time for the last operations: far more than they take.
const SOON: Duration = Duration::from_millis(200);
const CLIENTS: usize = 3;

/// Keys from 0 on that come and go most.
const HOT: u64 = 3;

/// Number of an operation that swaps what it has read.
const SWAP: u32 = 6;

/// Everything that tasks of a seed share.
struct Setting {
    history: History,
    words: Cell<u64>,
    wrong: RefCell<Option<String>>,
    refused: Cell<u64>,
    /// Changes for which there was no memory.
    short: Cell<u64>,
    /// Searches in one round trip.
    hits: Cell<u64>,
    /// Exports of all pairs.
    exports: Cell<u64>,
    swaps: Cell<u64>,
    scenario: Scenario,
}

impl Setting {
    fn wrong(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }

    fn note<T>(&self, answer: &fatbtree_race::Answer<T>) {
        let hits = self.hits.get();
        self.hits.set(hits + u64::from(answer.round_trips == 1 && answer.result.is_ok()));
    }

    /// A value of its own: its word, and as many bytes more as the word says.
    fn draw_value(&self) -> (u64, Vec<u8>) {
        let word = self.words.get() + 1;
        self.words.set(word);
        let length = if self.scenario.longest == 8 {
            8
        } else {
            8 + (word * 7_919) as usize % (self.scenario.longest - 8)
        };
        (word, word.to_le_bytes().iter().copied().cycle().take(length).collect())
    }

    /// The word of a value that was read.
    fn open(&self, key: u64, value: &[u8]) -> Option<u64> {
        let word = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))?;
        let is_whole = value.chunks(8).all(|chunk| *chunk == word.to_le_bytes()[..chunk.len()]);
        if !is_whole {
            self.wrong(format!("key {key}: a value of {} bytes that no client wrote", value.len()));
        }
        Some(word)
    }
}

/// A client in one life.
#[derive(Clone)]
struct Living {
    machine: Machine,
    memory: Client,
    setting: Rc<Setting>,
    home: u16,
}

impl Living {
    async fn work(self, mut random: Random) {
        let Ok(table) = Table::open(Rc::clone(&self.memory), self.home).await else { return };
        table.remember_places(self.setting.scenario.places * 32);
        loop {
            let keys = match self.setting.scenario.aim {
                Aim::Crowded | Aim::Scarce if random.random_bool(0.5) => HOT,
                _ => self.setting.scenario.keys,
            };
            let key = random.random_range(0..keys);
            let what = match self.setting.scenario.aim {
                Aim::Insertions => *pick(&mut random, &[0, 1, 1, 1, 1, 4, 4]),
                Aim::Splits => *pick(&mut random, &[0, 0, 1, 1, 3, 2]),
                Aim::Crowded if key < HOT => *pick(&mut random, &[0, 1, 1, 1, 4, 4]),
                Aim::Crowded => 1,
                Aim::Scarce => *pick(&mut random, &[0, 1, 1, 3, 3, 2, 4]),
                Aim::Blocks | Aim::Lines | Aim::Long => *pick(&mut random, &[0, 0, 1, 2, 3, 4, 4]),
                Aim::Exports => *pick(&mut random, &[0, 1, 1, 2, 3, 4, 4, 5]),
                Aim::Swaps => *pick(&mut random, &[0, 1, 2, 4, SWAP, SWAP, SWAP, SWAP]),
                Aim::All => random.random_range(0..5),
            };
            if what == 5 {
                let most = random.random_range(1..40);
                drop(self.export(&table, most).await);
                continue;
            }
            drop(self.operate(&table, key, what).await);
        }
    }

    /// Exports all pairs, `most` at a time. It is explained as a scan of all keys: each is found, or not, as at some moment of it.
    async fn export(&self, table: &Table<SimDevice>, most: usize) -> Result<(), TableError> {
        let Setting { history, exports, refused, .. } = &*self.setting;
        let scan = history.ask_scan(&self.machine.name(), self.machine.now(), 0..=u64::MAX);
        let (mut found, mut next) = (Vec::new(), Some(Cursor::default()));
        while let Some(cursor) = next {
            let Portion { pairs, rest } = table.export(cursor, most).await.result.inspect_err(|error| {
                refused.set(refused.get() + 1);
                if !matches!(error, TableError::Common(CommonError::GaveUp { .. })) {
                    self.setting.wrong(format!("export: {error}"));
                }
            })?;
            let open = |(key, value): &(u64, Value)| Some((*key, self.setting.open(*key, value)?));
            found.extend(pairs.iter().filter_map(open));
            next = rest;
        }
        found.sort_unstable();
        history.answer_scan(scan, self.machine.now(), 0..=u64::MAX, found);
        exports.set(exports.get() + 1);
        Ok(())
    }

    /// Returns why there is no answer.
    async fn operate(&self, table: &Table<SimDevice>, key: u64, what: u32) -> Result<(), TableError> {
        let Setting { history, .. } = &*self.setting;
        let (name, now) = (self.machine.name(), || self.machine.now());
        let mut read = None;
        if what == 0 || what == SWAP {
            let asked = history.ask(&name, now(), key, Call::Get);
            let found = table.search(key).await;
            self.setting.note(&found);
            read = found.result?.and_then(|value| Some((self.setting.open(key, &value)?, value.to_vec())));
            history.answer(asked, now(), Answer::Found(read.as_ref().map(|(word, _)| *word)));
            if what == 0 || read.is_none() {
                return Ok(());
            }
        }
        let (word, value) = self.setting.draw_value();
        let (call, change) = match what {
            SWAP if let Some((seen, expected)) = &read => (
                Call::CompareAndSet { expected: *seen, new: word },
                Change::CompareAndSwap { expected, value: &value },
            ),
            1 => (Call::Insert(word), Change::Insert(&value)),
            2 => (Call::Update(word), Change::Update(&value)),
            3 => (Call::Upsert(word), Change::Upsert(&value)),
            _ => (Call::Delete, Change::Delete),
        };
        let asked = history.ask(&name, now(), key, call);
        match table.change(key, change).await.result {
            Ok(applied) => {
                self.setting.swaps.set(self.setting.swaps.get() + u64::from(applied && what == SWAP));
                history.answer(asked, now(), Answer::of(applied));
            }
            Err(error @ TableError::Common(CommonError::Unknown(_))) => return Err(error),
            Err(error @ TableError::Common(CommonError::NoMemory { .. }))
                if self.setting.scenario.aim == Aim::Scarce =>
            {
                history.withdraw(asked);
                self.setting.short.set(self.setting.short.get() + 1);
                return Err(error);
            }
            Err(error) => {
                history.withdraw(asked);
                self.setting.refused.set(self.setting.refused.get() + 1);
                if !matches!(error, TableError::Common(CommonError::GaveUp { .. })) {
                    self.setting.wrong(format!("key {key}: {error}"));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Last operations: each must succeed. A connection may break once more, because a session has just ended.
    async fn end(self, keys: Vec<u64>) -> Result<(), String> {
        let table =
            Table::open(Rc::clone(&self.memory), self.home).await.map_err(|error| error.to_string())?;
        // Where memory has an end, nothing may be put; but everything can be taken away.
        let steps: &[u32] =
            if self.setting.scenario.aim == Aim::Scarce { &[0, 3, 0, 4, 0] } else { &[0, 3, 0] };
        for key in keys {
            for &what in steps {
                let first = self.operate(&table, key, what).await;
                if what == 3 && matches!(first, Err(TableError::Common(CommonError::NoMemory { .. }))) {
                    continue;
                }
                if let Err(TableError::Common(CommonError::Unknown(_))) = first {
                    self.operate(&table, key, what).await.map_err(|error| error.to_string())?;
                } else {
                    first.map_err(|error| format!("key {key}: {error}"))?;
                }
            }
        }
        Ok(())
    }
}

fn pick<'a, T>(random: &mut Random, from: &'a [T]) -> &'a T {
    &from[random.random_range(0..from.len())]
}

/// Clients and servers of a table.
struct Scene {
    machines: Vec<Machine>,
    servers: Vec<Rc<Server>>,
    setting: Rc<Setting>,
    home: u16,
    /// Machine of the client that lives in the end.
    last: Machine,
    memory: RefCell<Option<Client>>,
    outcome: RefCell<Outcome>,
    /// Decides about what is begun in the end.
    draw: RefCell<Random>,
}

impl Scene {
    fn living(&self, machine: &Machine, contention: Contention, draw: &mut Random) -> Living {
        let memory = begin(machine, &self.servers, contention, draw);
        Living { machine: machine.clone(), memory, setting: Rc::clone(&self.setting), home: self.home }
    }

    fn live(&self, machine: &Machine, draw: &mut Random) {
        let contention = if draw.random_bool(0.5) { Contention::SMART } else { Contention::SHERMAN };
        let living = self.living(machine, contention, draw);
        for _ in 0..2 {
            let random = random(draw.random_range(0..=u64::MAX), 2);
            drop(machine.spawn(living.clone().work(random)));
        }
    }

    fn revive(&self, draw: &mut Random) {
        for server in self.servers.iter().filter(|server| !server.machine.is_up()) {
            server.revive(draw.random_range(0..=u64::MAX));
        }
    }
}

impl Stage for Scene {
    fn clients(&self) -> &[Machine] {
        &self.machines
    }

    fn any_server(&self, draw: &mut Random) -> &Machine {
        &pick(draw, &self.servers).machine
    }

    fn begin_mishap(self: &Rc<Self>, draw: &mut Random) -> bool {
        // The others work on without a server that is away.
        if self.setting.scenario.aim != Aim::Scarce || draw.random_bool(0.4) {
            self.revive(draw);
        }
        self.machines.iter().filter(|machine| machine.is_mute()).for_each(Machine::kill);
        for machine in self.machines.iter().filter(|machine| !machine.is_up()) {
            machine.boot();
            self.outcome.borrow_mut().deaths += 1;
            self.live(machine, draw);
        }
        false
    }

    /// One client that lives asks for every key.
    fn begin_last(self: &Rc<Self>) -> Vec<FinalOperation<String>> {
        let draw = &mut *self.draw.borrow_mut();
        self.revive(draw);
        self.machines.iter().filter(|machine| machine.is_up()).for_each(Machine::kill);
        let living = self.living(&self.last, Contention::SMART, draw);
        self.memory.replace(Some(Rc::clone(&living.memory)));
        let share =
            |number: u64| (0..self.setting.scenario.keys).filter(|key| key % 4 == number).collect::<Vec<_>>();
        (0..4)
            .map(|number| (format!("keys {number}"), self.last.spawn(living.clone().end(share(number)))))
            .collect()
    }
}

/// Servers' processes that die; their memory is kept.
struct Restarts;

impl Fault<Scene> for Restarts {
    fn percent(&self) -> u32 {
        11
    }

    fn strike(&self, scene: &Rc<Scene>, _: &Machine, draw: &mut Random) {
        let server = pick(draw, &scene.servers);
        if server.machine.is_up() {
            server.die();
            scene.outcome.borrow_mut().restarts += 1;
        }
    }
}

/// No task has seen what must never be.
fn nothing_wrong(ended: &Ended<'_, Scene>) -> Result<(), String> {
    if let Some(damage) = ended.stage.servers.iter().find_map(|server| server.damage()) {
        return Err(format!("a start takes what clients have left for damage: {damage}"));
    }
    ended.stage.setting.wrong.take().map_or(Ok(()), Err)
}

/// The history of all clients has an order.
fn linearizable(ended: &Ended<'_, Scene>) -> Result<(), String> {
    let checked = ended.stage.setting.history.check().map_err(|violation| violation.to_string())?;
    let outcome = &mut *ended.stage.outcome.borrow_mut();
    (outcome.answered, outcome.unknown) = (checked.answered as u64, checked.unknown as u64);
    Ok(())
}

/// The table is whole, and has each key once.
fn verified(ended: &Ended<'_, Scene>) -> Result<(), String> {
    let Scene { last, memory, home, setting, outcome, .. } = &**ended.stage;
    let (memory, home) = (memory.take().ok_or("the last client was not begun")?, *home);
    let task = last.spawn(async move {
        let table = Table::open(memory, home).await.map_err(|error| error.to_string())?;
        let verified = table.verify().await.map_err(|fault| fault.to_string())?;
        let (mut exported, mut next) = (0, Some(Cursor::default()));
        while let Some(cursor) = next {
            let portion =
                table.export(cursor, 10).await.result.map_err(|error| format!("export: {error}"))?;
            (exported, next) = (exported + portion.pairs.len() as u64, portion.rest);
        }
        match exported == verified.keys {
            true => Ok(verified),
            false => Err(format!("an export has found {exported} keys of {}", verified.keys)),
        }
    });
    let walked = ended.world.run_until(|| task.has_ended(), SOON);
    walked.map_err(|_| "the walk over the table does not end".to_owned())?;
    let verified = task.take().ok_or("the machine that walks over the table died")??;
    let expected = if setting.scenario.aim == Aim::Scarce { 0 } else { setting.scenario.keys };
    if verified.keys != expected {
        return Err(format!("{expected} keys were put last, {} are there", verified.keys));
    }
    outcome.borrow_mut().add(verified);
    Ok(())
}

/// A machine that can write the longest value: with few buffers for so much, so that READs of it wait for each other's.
fn with_buffers(mut options: MachineOptions, scenario: &Scenario) -> MachineOptions {
    if scenario.aim == Aim::Long {
        options.buffers.push(BufferClass { count: 4, bytes: 160 << 10 });
    }
    options
}

/// Runs a scenario.
pub(super) fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let Scenario { seed, groups, servers, spare, chunk, longest, .. } = *scenario;
    let draw = &mut random(seed, 70);
    let mut options = Options::rough(draw);
    if scenario.aim == Aim::Long {
        // A long WRITE whose lines are written slowly takes longer than a retry of short ones waits.
        options.retry.timeout = options.retry.timeout * 16;
    }
    let world = World::new(seed, options);
    let shape = Shape { groups, directory_bits: 8, servers, max_value: longest.max(400) as u32 };
    let setting = Setting {
        history: History::default(),
        words: Cell::new(0),
        wrong: RefCell::default(),
        refused: Cell::new(0),
        short: Cell::new(0),
        hits: Cell::new(0),
        exports: Cell::new(0),
        swaps: Cell::new(0),
        scenario: *scenario,
    };
    let scene = Rc::new(Scene {
        servers: serve_in_chunks(&world, shape, (spare, chunk), Duration::from_micros(1_500)),
        machines: (0..CLIENTS)
            .map(|number| {
                let options = MachineOptions::rough(format!("client {number}"), draw);
                world.machine(with_buffers(options, scenario))
            })
            .collect(),
        setting: Rc::new(setting),
        home: shape.server(0),
        last: world.machine(with_buffers(MachineOptions::named("last client"), scenario)),
        memory: RefCell::default(),
        outcome: RefCell::default(),
        draw: RefCell::new(random(seed, 71)),
    });
    scene.machines.iter().for_each(|machine| scene.live(machine, draw));
    let trial = Trial {
        faults: vec![Box::new(Deaths { percent: 44 }), Box::new(Restarts), Box::new(Disturbances)],
        calm: Duration::from_micros(800),
        lasts: FAULTS,
        soon: SOON,
        properties: vec![
            Box::new(nothing_wrong),
            Box::new(linearizable),
            Box::new(Alive),
            Box::new(verified),
        ],
    };
    trial.run(&world, &scene)?;
    let mut outcome = scene.outcome.borrow().clone();
    (outcome.refused, outcome.short) = (scene.setting.refused.get(), scene.setting.short.get());
    (outcome.hits, outcome.exports) = (scene.setting.hits.get(), scene.setting.exports.get());
    outcome.swaps = scene.setting.swaps.get();
    let count = |name: &str| scene.servers.iter().map(|server| server.count(name)).sum();
    (outcome.lapsed, outcome.reclaimed) = (count("sessions_lapsed"), count("blocks_reclaimed"));
    Ok(outcome)
}

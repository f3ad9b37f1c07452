//! Clients of a table: what they do, what is asked for in the end, and what holds then.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_race::host::HashTable;
use fatbtree_race::{Cursor, Shape, Table, TableError, Verified};
use fatbtree_remote_memory::{CommonError, Contention, Structure as _};
use fatbtree_verbs::BufferClass;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::keyed::Keyed;
use super::lab::{begin, serve_in_chunks};
use super::{Aim, Outcome, Scenario};
use crate::stage::{
    Act, Client, Clients, InCommon, Recorder, Restarts, SHARES, SOON, Scene, any_contention, nothing_wrong,
};
use crate::world::trial::{Alive, Deaths, Disturbances, Ended, Trial};
use crate::world::{FinalOperation, Machine, MachineOptions, Options, Random, World, random};

/// Time with faults.
const FAULTS: Duration = Duration::from_millis(6);
/// Lease of a session: a run sees many end.
const LEASE: Duration = Duration::from_micros(1_500);
const TASKS: usize = 2;

/// Keys from 0 on that come and go most.
const HOT: u64 = 3;

impl InCommon for TableError {
    fn in_common(&self) -> Option<&CommonError> {
        match self {
            Self::Common(error) => Some(error),
            _ => None,
        }
    }
}

impl Scenario {
    /// The next key of a task, and what it does with it.
    fn draw(&self, random: &mut Random) -> (u64, Act) {
        use Act::{Delete, Get, Insert, Scan, Swap, Update, Upsert};
        let keys = match self.aim {
            Aim::Crowded | Aim::Scarce if random.random_bool(0.5) => HOT,
            _ => self.keys,
        };
        let key = random.random_range(0..keys);
        let act = match self.aim {
            Aim::Insertions => *pick(random, &[Get, Insert, Insert, Insert, Insert, Delete, Delete]),
            Aim::Splits => *pick(random, &[Get, Get, Insert, Insert, Upsert, Update]),
            Aim::Crowded if key < HOT => *pick(random, &[Get, Insert, Insert, Insert, Delete, Delete]),
            Aim::Crowded => Insert,
            Aim::Scarce => *pick(random, &[Get, Insert, Insert, Upsert, Upsert, Update, Delete]),
            Aim::Blocks | Aim::Lines | Aim::Long => {
                *pick(random, &[Get, Get, Insert, Update, Upsert, Delete, Delete])
            }
            Aim::Exports => *pick(random, &[Get, Insert, Insert, Update, Upsert, Delete, Delete, Scan]),
            Aim::Swaps => *pick(random, &[Get, Insert, Update, Delete, Swap, Swap, Swap, Swap]),
            Aim::All => [Get, Insert, Update, Upsert, Delete][random.random_range(0..5_u32) as usize],
        };
        (key, act)
    }
}

fn pick<'a, T>(random: &mut Random, from: &'a [T]) -> &'a T {
    &from[random.random_range(0..from.len())]
}

/// What all tasks of a seed share.
struct Setting {
    recorder: Recorder,
    scenario: Scenario,
    home: u16,
}

/// A client in one life.
#[derive(Clone)]
struct Living {
    machine: Machine,
    memory: Client,
    setting: Rc<Setting>,
}

impl Living {
    async fn open(&self) -> Result<Keyed, TableError> {
        let table = Table::open(Rc::clone(&self.memory), self.setting.home).await?;
        Ok(Keyed { table, keys: self.setting.scenario.kind })
    }

    async fn work(self, mut random: Random) {
        let Setting { recorder, scenario, .. } = &*self.setting;
        let Ok(table) = self.open().await else { return };
        table.table.remember_places(scenario.places * 32);
        loop {
            let (key, act) = scenario.draw(&mut random);
            drop(match act {
                Act::Scan => recorder.export(&self.machine, &table, random.random_range(1..40)).await,
                act => recorder.operate(&self.machine, &table, key, act).await,
            });
        }
    }

    /// Asks for some of the keys.
    async fn end(self, number: usize) -> Result<(), String> {
        use Act::{Delete, Get, Upsert};
        let Setting { recorder, scenario, .. } = &*self.setting;
        let table = self.open().await.map_err(|error| error.to_string())?;
        // Where memory has an end, nothing may be put; but everything can be taken away.
        let steps: &[Act] =
            if scenario.aim == Aim::Scarce { &[Get, Upsert, Get, Delete, Get] } else { &[Get, Upsert, Get] };
        for key in (0..scenario.keys).skip(number).step_by(SHARES) {
            for &act in steps {
                recorder.must(&self.machine, &table, key, act).await?;
            }
        }
        Ok(())
    }

    /// Walks over the table, which is whole and has each key once.
    async fn verify(self) -> Result<Verified, String> {
        let table = self.open().await.map_err(|error| error.to_string())?;
        let verified = table.table.verify().await.map_err(|fault| fault.to_string())?;
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
    }
}

/// The clients of a table.
struct Users {
    setting: Rc<Setting>,
    /// The last client, and what it has found.
    last: RefCell<Option<Living>>,
    verified: RefCell<Option<Verified>>,
}

impl Users {
    fn live(
        &self,
        scene: &Scene<Self>,
        machine: &Machine,
        contention: Contention,
        draw: &mut Random,
    ) -> Living {
        let memory = begin(machine, &scene.servers, contention, draw);
        Living { machine: machine.clone(), memory, setting: Rc::clone(&self.setting) }
    }
}

impl Clients for Users {
    type Part = HashTable;

    fn work(&self, scene: &Scene<Self>, machine: &Machine, draw: &mut Random) {
        let contention = any_contention(draw);
        let living = self.live(scene, machine, contention, draw);
        for _ in 0..TASKS {
            let random = random(draw.random_range(0..=u64::MAX), 2);
            drop(machine.spawn(living.clone().work(random)));
        }
    }

    fn end(&self, scene: &Scene<Self>, draw: &mut Random) -> Vec<FinalOperation<String>> {
        let living = self.live(scene, &scene.last, Contention::SMART, draw);
        self.last.replace(Some(living.clone()));
        let share = |number| (format!("keys {number}"), scene.last.spawn(living.clone().end(number)));
        (0..SHARES).map(share).collect()
    }

    /// Where memory is scarce, the others work on without a server that is away.
    fn are_back(&self, draw: &mut Random) -> bool {
        self.setting.scenario.aim != Aim::Scarce || draw.random_bool(0.4)
    }

    fn nothing_wrong(&self) -> Result<(), String> {
        self.setting.recorder.nothing_wrong()
    }
}

/// The table is whole, and has the keys that were put last.
fn verified(ended: &Ended<'_, Scene<Users>>) -> Result<(), String> {
    let Users { setting, last, verified } = &ended.stage.clients;
    let living = last.take().ok_or("the last client was not begun")?;
    let found = ended.stage.walk(ended.world, living.verify())?;
    let expected = if setting.scenario.aim == Aim::Scarce { 0 } else { setting.scenario.keys };
    if found.keys != expected {
        return Err(format!("{expected} keys were put last, {} are there", found.keys));
    }
    verified.replace(Some(found));
    Ok(())
}

/// Where the table lies over several servers, they sweep when no client is left: no block is free that a key needs. What is written then lies in
/// blocks that were lost.
fn swept(ended: &Ended<'_, Scene<Users>>) -> Result<(), String> {
    let (scene, users) = (ended.stage, &ended.stage.clients);
    if scene.servers.len() == 1 {
        return Ok(());
    }
    scene.sweep(ended.world, &mut random(users.setting.scenario.seed, 73))?;
    verified(ended)?;
    users.setting.recorder.linearizable()
}

/// A machine that can write the longest value: with few buffers for so much, so that READs of it wait for each other's.
fn with_buffers(mut options: MachineOptions, aim: Aim) -> MachineOptions {
    if aim == Aim::Long {
        options.buffers.push(BufferClass { count: 4, bytes: 160 << 10 });
    }
    options
}

/// Runs a scenario.
pub(super) fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let Scenario { seed, aim, groups, servers, spare, chunk, longest, kind, .. } = *scenario;
    let draw = &mut random(seed, 70);
    let mut options = Options::rough(draw);
    if aim == Aim::Long {
        // A long WRITE whose lines are written slowly takes longer than a retry of short ones waits.
        options.retry.timeout = options.retry.timeout * 16;
    }
    let world = World::new(seed, options);
    let shape = Shape { groups, directory_bits: 8, servers, max_value: longest.max(400) as u32, keys: kind };
    let length = move |word: u64| 8 + (word as usize * 7_919).checked_rem(longest - 8).unwrap_or(0);
    let setting = Setting {
        recorder: Recorder::new(aim == Aim::Scarce, length),
        scenario: *scenario,
        home: shape.server(0),
    };
    let users = Users { setting: Rc::new(setting), last: RefCell::default(), verified: RefCell::default() };
    let servers = serve_in_chunks(&world, shape, (spare, chunk), LEASE);
    let fit = |options| with_buffers(options, aim);
    let scene = Scene::new(&world, servers, users, fit, draw, random(seed, 71));
    scene.begin(draw);
    let trial = Trial {
        faults: vec![
            Box::new(Deaths { percent: 44 }),
            Box::new(Restarts { percent: 11 }),
            Box::new(Disturbances),
        ],
        calm: Duration::from_micros(800),
        lasts: FAULTS,
        soon: SOON,
        properties: vec![
            Box::new(nothing_wrong),
            Box::new(|ended: &Ended<'_, Scene<Users>>| ended.stage.clients.setting.recorder.linearizable()),
            Box::new(Alive),
            Box::new(verified),
            Box::new(swept),
        ],
    };
    trial.run(&world, &scene)?;
    let counts = scene.clients.setting.recorder.counts();
    let mut outcome = Outcome {
        answered: counts.answered,
        unknown: counts.unknown,
        refused: counts.refused,
        short: counts.short,
        hits: counts.hits,
        exports: counts.scans,
        swaps: counts.swaps,
        deaths: scene.deaths.get(),
        restarts: scene.restarts.get(),
        lapsed: scene.count("sessions_lapsed"),
        reclaimed: scene.count("blocks_reclaimed"),
        ..Outcome::default()
    };
    outcome.add(scene.clients.verified.take().ok_or("nothing was verified")?);
    Ok(outcome)
}

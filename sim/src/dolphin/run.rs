//! The course of a scenario: work under faults, last operations, the walk over the structure.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_dolphin::{NodeCache, Shape};
use fatbtree_remote_memory::{Contention, RemoteConfig};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::clients::{Living, Setting};
use super::lab::{CHUNK, Server, begin_led, lead, serve, strays};
use super::{Outcome, Scenario, pick};
use crate::history::History;
use crate::world::trial::{Alive, Deaths, Disturbances, Ended, Fault, Stage, Trial};
use crate::world::{CachedSwitches, FinalOperation, Machine, MachineOptions, Random, World, random};

/// Time with faults.
const FAULTS: Duration = Duration::from_millis(6);
/// Time for the last operations: far more than they take.
const SOON: Duration = Duration::from_millis(200);
/// Lease of a session: a run sees many end.
const LEASE: Duration = Duration::from_micros(1_500);
/// Patience of the last operations: far more than they take when nothing is in the way.
const PATIENCE: Duration = Duration::from_millis(30);
const CLIENTS: usize = 3;
const TASKS: usize = 3;

/// Clients and servers of an index.
struct Scene {
    machines: Vec<Machine>,
    servers: Vec<Rc<Server>>,
    setting: Rc<Setting>,
    switches: Option<CachedSwitches>,
    home: u16,
    shape: Shape,
    /// Machine of the client that lives in the end.
    last: Machine,
    living: RefCell<Option<Living>>,
    outcome: RefCell<Outcome>,
    /// Mishaps for which dead servers stay away.
    away: Cell<u32>,
    longest_away: u32,
    /// Time for which operations try while there are mishaps.
    patience: Duration,
    /// Decides about what is begun in the end.
    draw: RefCell<Random>,
}

impl Scene {
    fn living(
        &self,
        machine: &Machine,
        contention: Contention,
        draw: &mut Random,
        switches: Option<CachedSwitches>,
        patience: Duration,
    ) -> Living {
        let lanes = draw.random_range(1..=2);
        let config = RemoteConfig { lanes, contention, patience, ..RemoteConfig::default() };
        let memory = begin_led(machine, &self.servers, config, draw, switches);
        let cache = Rc::new(NodeCache::new(self.setting.cache));
        let (setting, home, index) = (Rc::clone(&self.setting), self.home, Rc::default());
        Living { machine: machine.clone(), memory, setting, home, cache, index }
    }

    fn live(&self, machine: &Machine, draw: &mut Random) {
        let contention = if draw.random_bool(0.5) { Contention::SMART } else { Contention::SHERMAN };
        let living = self.living(machine, contention, draw, self.switches.clone(), self.patience);
        let seeds: [u64; TASKS] = std::array::from_fn(|_| draw.random_range(0..=u64::MAX));
        let of = machine.clone();
        drop(machine.spawn(async move {
            let Ok(index) = living.open().await else { return };
            for seed in seeds {
                drop(of.spawn(living.clone().work(Rc::clone(&index), random(seed, 2))));
            }
        }));
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
        match self.away.get() {
            0 => self.revive(draw),
            away => self.away.set(away - 1),
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
        // Wrong switches are a fault, too: where they lead to memory that is none, they break a connection.
        let living = self.living(&self.last, Contention::SMART, draw, None, PATIENCE);
        self.living.replace(Some(living.clone()));
        let keys = &self.setting.keys;
        let share = |number: usize| keys.iter().skip(number).step_by(4).copied().collect::<Vec<_>>();
        (0..4)
            .map(|number| {
                let (living, keys) = (living.clone(), share(number));
                let end = async move {
                    let index = living.open().await.map_err(|error| error.to_string())?;
                    living.end(index, keys).await
                };
                (format!("keys {number}"), self.last.spawn(end))
            })
            .collect()
    }
}

/// Servers' processes that die; their memory is kept.
struct Restarts;

impl Fault<Scene> for Restarts {
    fn percent(&self) -> u32 {
        8
    }

    fn strike(&self, scene: &Rc<Scene>, _: &Machine, draw: &mut Random) {
        let server = pick(draw, &scene.servers);
        if server.machine.is_up() {
            server.die();
            if scene.longest_away > 0 {
                scene.away.set(draw.random_range(0..=scene.longest_away));
            }
            scene.outcome.borrow_mut().restarts += 1;
        }
    }
}

/// No task has seen what must never be.
fn nothing_wrong(ended: &Ended<'_, Scene>) -> Result<(), String> {
    ended.stage.setting.wrong.take().map_or(Ok(()), Err)
}

/// The history of all clients has an order.
fn linearizable(ended: &Ended<'_, Scene>) -> Result<(), String> {
    let checked = ended.stage.setting.history.check().map_err(|violation| violation.to_string())?;
    let outcome = &mut *ended.stage.outcome.borrow_mut();
    (outcome.answered, outcome.unknown) = (checked.answered as u64, checked.unknown as u64);
    Ok(())
}

/// Nothing answers that is no part of the index.
fn no_strays(ended: &Ended<'_, Scene>) -> Result<(), String> {
    let strays = strays(&ended.stage.servers, &ended.stage.shape);
    match strays.first() {
        None => Ok(()),
        Some(leaf) => Err(format!("the leaf at {leaf} answers, and nothing leads to it")),
    }
}

/// The index is whole, has each key once, and a scan finds as many. The history explains which: what dead
/// clients have posted may come until their sessions have lapsed, and take away what was put last.
fn verified(ended: &Ended<'_, Scene>) -> Result<(), String> {
    let Scene { last, living, outcome, .. } = &**ended.stage;
    ended.world.run_for(LEASE * 2);
    let living = living.take().ok_or("the last client was not begun")?;
    let task = last.spawn(async move {
        let index = living.open().await.map_err(|error| error.to_string())?;
        let verified = index.verify().await.map_err(|fault| fault.to_string())?;
        let found = living.scan_all(&index).await.map_err(|error| error.to_string())?;
        Ok::<_, String>((verified, found))
    });
    let walked = ended.world.run_until(|| task.has_ended(), SOON);
    walked.map_err(|_| "the walk over the index does not end".to_owned())?;
    let (verified, found) = task.take().ok_or("the machine that walks over the index died")??;
    if verified.keys != found {
        return Err(format!("{} keys are there, a scan finds {found}", verified.keys));
    }
    outcome.borrow_mut().found(&verified);
    Ok(())
}

/// Runs a scenario.
pub(super) fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let draw = &mut random(scenario.seed, 81);
    let world = World::new(scenario.seed, scenario.world.clone());
    let setting = Setting {
        history: History::default(),
        words: Cell::new(0),
        wrong: RefCell::default(),
        refused: Cell::new(0),
        scans: Cell::new(0),
        swaps: Cell::new(0),
        keys: scenario.keys.clone(),
        longest: scenario.longest,
        cache: scenario.cache,
        led: scenario.led,
        aim: scenario.aim,
    };
    let servers = serve(&world, scenario.shape, scenario.chunks * CHUNK, LEASE);
    let switches = scenario
        .led
        .map(|_| lead(&world, &servers, scenario.shape, scenario.unlinked, random(scenario.seed, 84)));
    let scene = Rc::new(Scene {
        servers,
        switches,
        machines: (0..CLIENTS)
            .map(|number| world.machine(MachineOptions::rough(format!("client {number}"), draw)))
            .collect(),
        setting: Rc::new(setting),
        home: scenario.shape.home(),
        shape: scenario.shape,
        last: world.machine(MachineOptions::named("last client")),
        living: RefCell::default(),
        outcome: RefCell::default(),
        away: Cell::default(),
        longest_away: scenario.away,
        patience: scenario.patience,
        draw: RefCell::new(random(scenario.seed, 82)),
    });
    scene.machines.iter().for_each(|machine| scene.live(machine, draw));
    let trial = Trial {
        faults: vec![Box::new(Deaths { percent: 40 }), Box::new(Restarts), Box::new(Disturbances)],
        calm: Duration::from_micros(800),
        lasts: FAULTS,
        soon: SOON,
        properties: vec![
            Box::new(Alive),
            Box::new(no_strays),
            Box::new(verified),
            Box::new(nothing_wrong),
            Box::new(linearizable),
        ],
    };
    trial.run(&world, &scene)?;
    let mut outcome = *scene.outcome.borrow();
    outcome.refused = scene.setting.refused.get();
    outcome.scans = scene.setting.scans.get();
    outcome.swaps = scene.setting.swaps.get();
    outcome.lapsed = scene.servers.iter().map(|server| server.count("sessions_lapsed")).sum();
    outcome.chunks = scene.servers.iter().map(|server| server.count("chunks_published")).sum();
    Ok(outcome)
}

//! Runs a scenario: faults, then the final phase, then the history is checked and the tree is looked at.

use std::rc::Rc;

use fatbtree_blink::{Integrity, Verified, VerifyError};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::clients::Living;
use super::fate::{self, Lives};
use super::server::Server;
use super::setting::Setting;
use super::{Outcome, Scenario, hostile};
use crate::history::Checked;
use crate::world::{FinalOperation, MachineOptions, Random, Task, World, random};

pub(super) const CLIENTS: usize = 4;
const FAULTS: Duration = Duration::from_millis(6);
/// Time for the final phase: far more than it takes.
const SOON: Duration = Duration::from_millis(200);
/// Time for the final phase where trees are damaged. Each operation may last as long as a client's patience, once for
/// each leaf of a scan.
const LATER: Duration = Duration::from_secs(4);

pub(super) fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let world = World::new(scenario.seed, scenario.world.clone());
    let draw = &mut random(scenario.seed, 96);
    let on_chip = MachineOptions::default().device_memory;
    let setting = Setting::new(scenario, &world, |name| MachineOptions {
        line_atomicity: scenario.config.integrity() == Integrity::LineVersions,
        masked_atomics: scenario.masked,
        device_memory: if scenario.techniques.on_chip { on_chip } else { 0 },
        rkeys: scenario.rkeys,
        send_queue: 64,
        ..MachineOptions::rough(name, draw)
    });
    let begins = &mut random(scenario.seed, 99);
    setting.servers.iter().for_each(|server| fate::serve(&setting, server, begins));
    let lives = Lives::default();
    (0..CLIENTS).for_each(|number| fate::live(&setting, &lives, number, draw));
    let operator = world.operator().clone();
    let play = fate::play(operator.clone(), Rc::clone(&setting), Rc::clone(&lives), scenario.seed);
    let fate = operator.spawn(play);
    let hostile = begin_hostile(scenario, &world, &setting);
    world.run_for(FAULTS);

    let is_damaged = scenario.hostile.is_some();
    let soon = if is_damaged { LATER } else { SOON };
    let alive = world.final_phase(soon, || {
        fate.cancel();
        setting.calm.set(true);
        hostile.iter().for_each(Task::cancel);
        setting.lives.take().iter().for_each(Task::cancel);
        setting.switches.cached.heal();
        // Also those that were about to die.
        fate::bring_back(&setting, &lives, draw);
        setting.lives.take().iter().for_each(Task::cancel);
        lives.borrow().iter().map(|living| begin_last(living, is_damaged, draw)).collect()
    });
    if let Some(wrong) = setting.first_wrong() {
        return Err(wrong);
    }
    // Answers about damaged trees need not be right.
    let checked = match scenario.hostile {
        Some(_) => Checked::default(),
        None => setting.history.check().map_err(|violation| violation.to_string())?,
    };
    alive.map_err(|error| error.to_string())?;
    world.settle();
    setting.servers.iter().for_each(Server::mend_superblock);
    let levels = match verify(&world, &lives.borrow()[0], soon)? {
        Ok(verified) => verified.height.into(),
        Err(_) if is_damaged => 0,
        Err(error) => return Err(error.to_string()),
    };
    lives.take().iter().for_each(Living::count);
    let mut outcome = *setting.outcome.borrow();
    outcome.levels = levels;
    outcome.lapsed = setting.servers.iter().map(Server::lapsed).sum();
    outcome.answered += checked.answered as u64;
    outcome.unknown += checked.unknown as u64;
    outcome.overlapped = world.counts().overlapped;
    Ok(outcome)
}

/// Starts a hostile writer, and tasks that ask servers for what only damaged trees make hard.
fn begin_hostile(scenario: &Scenario, world: &World, setting: &Rc<Setting>) -> Vec<Task<()>> {
    let Some(pause) = scenario.hostile else { return Vec::new() };
    let draw = &mut random(scenario.seed, 92);
    let machine = world.machine(MachineOptions::named("hostile client"));
    let mut next = || random(draw.random_range(0..=u64::MAX), 5);
    let strikes = hostile::strike(machine.clone(), Rc::clone(setting), pause, next());
    let mut tasks = vec![machine.spawn(strikes)];
    for id in scenario.ids().filter(|_| scenario.asked) {
        let operator = world.operator().clone();
        tasks.push(operator.spawn(hostile::ask(operator.clone(), Rc::clone(setting), id, next())));
    }
    tasks
}

/// Walks the whole tree. The walk must end within `soon`, even in a damaged tree.
fn verify(world: &World, living: &Living, soon: Duration) -> Result<Result<Verified, VerifyError>, String> {
    let client = living.client.clone();
    let task = living.machine.spawn(async move { client.pool().verify().await });
    world
        .run_until(|| task.has_ended(), soon)
        .map_err(|_| "the walk over all nodes does not end".to_owned())?;
    Ok(task.take().ok_or("the machine that walks over all nodes died")?)
}

/// Starts the operations that must succeed in the end.
fn begin_last(living: &Living, is_damaged: bool, draw: &mut Random) -> FinalOperation<String> {
    let keys: Vec<u64> = (0..8).map(|_| living.draw_key(draw)).collect();
    let random = random(draw.random_range(0..=u64::MAX), 3);
    let (name, machine, living) = (living.machine.name(), &living.machine, living.clone());
    match is_damaged {
        true => (name, machine.spawn(living.end_damaged(keys, random))),
        false => (name, machine.spawn(living.end(keys, random))),
    }
}

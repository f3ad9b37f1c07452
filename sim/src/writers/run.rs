//! Runs a scenario: faults, then the final phase, then the history is checked and the tree is looked at.

use std::rc::Rc;

use fatbtree_index::Integrity;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::clients::Living;
use super::fate::{self, Lives};
use super::server::Server;
use super::setting::Setting;
use super::{Outcome, Scenario};
use crate::world::{FinalOperation, MachineOptions, Random, Task, World, random};

pub(super) const CLIENTS: usize = 4;
const FAULTS: Duration = Duration::from_millis(6);
/// Time for the final phase: far more than it takes.
const SOON: Duration = Duration::from_millis(200);

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
    world.run_for(FAULTS);

    let alive = world.final_phase(SOON, || {
        fate.cancel();
        setting.lives.take().iter().for_each(Task::cancel);
        setting.switches.cached.heal();
        // Also those who were about to die.
        fate::bring_back(&setting, &lives, draw);
        setting.lives.take().iter().for_each(Task::cancel);
        lives.borrow().iter().map(|living| begin_last(living, draw)).collect()
    });
    let checked = setting.history.check().map_err(|violation| violation.to_string())?;
    alive.map_err(|error| error.to_string())?;
    world.settle();
    let levels = verify(&world, &lives.borrow()[0])?;
    lives.take().iter().for_each(Living::count);
    let mut outcome = *setting.outcome.borrow();
    outcome.levels = levels;
    outcome.lapsed = setting.servers.iter().map(Server::lapsed).sum();
    outcome.answered += checked.answered as u64;
    outcome.unknown += checked.unknown as u64;
    Ok(outcome)
}

/// Walks the whole tree; says how many levels are above the leaves.
fn verify(world: &World, living: &Living) -> Result<u64, String> {
    let client = living.client.clone();
    let task = living.machine.spawn(async move { client.pool().verify().await });
    world
        .run_until(|| task.has_ended(), SOON)
        .map_err(|_| "the walk over all nodes does not end".to_owned())?;
    let verified = task.take().ok_or("the machine that walks over all nodes died")?;
    verified.map(|found| found.height.into()).map_err(|error| error.to_string())
}

/// What must succeed in the end.
fn begin_last(living: &Living, draw: &mut Random) -> FinalOperation<String> {
    let keys: Vec<u64> = (0..8).map(|_| living.draw_key(draw)).collect();
    let random = random(draw.random_range(0..=u64::MAX), 3);
    (living.machine.name(), living.machine.spawn(living.clone().end(keys, random)))
}

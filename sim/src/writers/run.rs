//! Runs a scenario: faults, then the final phase, then the history is checked and the tree is looked at.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_blink::Integrity;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::clients::Living;
use super::fate::{self, Scene};
use super::server::Server;
use super::setting::Setting;
use super::{Outcome, Scenario, hostile};
use crate::world::trial::{Alive, Ended, Property, Trial};
use crate::world::{MachineOptions, Task, World, random};

pub(super) const CLIENTS: usize = 4;
const FAULTS: Duration = Duration::from_millis(6);
/// Time for the final phase: far more than it takes.
const SOON: Duration = Duration::from_millis(200);
/// Time for the final phase where trees are damaged. Each operation may last as long as a client's patience, once for
/// each leaf of a scan.
const LATER: Duration = Duration::from_secs(4);

pub(super) fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let world = World::new(scenario.seed, scenario.world.clone());
    let mut draw = random(scenario.seed, 96);
    let on_chip = MachineOptions::default().device_memory;
    let setting = Setting::new(scenario, &world, |name| MachineOptions {
        line_atomicity: scenario.config.integrity() == Integrity::LineVersions,
        masked_atomics: scenario.masked,
        device_memory: if scenario.techniques.on_chip { on_chip } else { 0 },
        rkeys: scenario.rkeys,
        send_queue: 64,
        ..MachineOptions::rough(name, &mut draw)
    });
    let begins = &mut random(scenario.seed, 99);
    setting.servers.iter().for_each(|server| fate::serve(&setting, server, begins));
    let hostile = begin_hostile(scenario, &world, &setting);
    let scene = Scene { setting, lives: RefCell::default(), hostile, draw: RefCell::new(draw) };
    (0..CLIENTS).for_each(|number| scene.live(number, &mut scene.draw.borrow_mut()));
    let scene = Rc::new(scene);
    let trial = Trial {
        faults: fate::faults(scenario),
        calm: scenario.calm,
        lasts: FAULTS,
        soon: soon(scenario),
        properties: properties(scenario),
    };
    trial.run(&world, &scene)?;

    scene.lives.take().iter().for_each(Living::count);
    let setting = &scene.setting;
    let mut outcome = *setting.outcome.borrow();
    outcome.lapsed = setting.servers.iter().map(Server::lapsed).sum();
    outcome.overlapped = world.counts().overlapped;
    Ok(outcome)
}

fn soon(scenario: &Scenario) -> Duration {
    if scenario.hostile.is_some() { LATER } else { SOON }
}

/// Conditions that hold in the end. Answers about damaged trees need not be right.
fn properties(scenario: &Scenario) -> Vec<Box<dyn Property<Scene>>> {
    match scenario.hostile {
        Some(_) => vec![Box::new(Alive), Box::new(verify)],
        None => vec![Box::new(nothing_wrong), Box::new(linearizable), Box::new(Alive), Box::new(verify)],
    }
}

/// No task has seen what must never be.
fn nothing_wrong(ended: &Ended<'_, Scene>) -> Result<(), String> {
    ended.stage.setting.first_wrong().map_or(Ok(()), Err)
}

/// The history of all clients has an order.
fn linearizable(ended: &Ended<'_, Scene>) -> Result<(), String> {
    let setting = &ended.stage.setting;
    let checked = setting.history.check().map_err(|violation| violation.to_string())?;
    setting.count(|outcome| {
        outcome.answered += checked.answered as u64;
        outcome.unknown += checked.unknown as u64;
    });
    Ok(())
}

/// The trees are whole. A walk over a damaged tree ends.
fn verify(ended: &Ended<'_, Scene>) -> Result<(), String> {
    let (world, Scene { setting, lives, .. }) = (ended.world, &**ended.stage);
    world.settle();
    setting.servers.iter().for_each(Server::mend_superblock);
    let Living { client, machine, .. } = lives.borrow()[0].clone();
    let task = machine.spawn(async move { client.pool().verify().await });
    world
        .run_until(|| task.has_ended(), soon(&setting.scenario))
        .map_err(|_| "the walk over all nodes does not end".to_owned())?;
    match task.take().ok_or("the machine that walks over all nodes died")? {
        Ok(verified) => setting.count(|outcome| outcome.levels = verified.height.into()),
        Err(_) if setting.scenario.hostile.is_some() => {}
        Err(error) => return Err(error.to_string()),
    }
    Ok(())
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

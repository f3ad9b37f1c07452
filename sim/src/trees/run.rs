//! Runs a scenario: faults, then the final phase, then the history is checked.

use std::rc::Rc;

use super::clients::Living;
use super::fate;
use super::scenario::{Outcome, Scenario};
use super::setting::Setting;
use crate::world::{FinalOperation, Random, Task, World, random};
use fatbtree_verbs::time::Duration;

/// Time for the final phase: far more than it takes.
const SOON: Duration = Duration::from_millis(100);
/// Keys that each client looks up in the end.
const FINAL_KEYS: usize = 30;

pub(super) fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let seed = scenario.seed();
    let world = World::new(seed, scenario.world.clone());
    let mut draw = random(seed, 96);
    let setting = Setting::new(scenario, &world, &mut draw);
    for _ in 0..20 {
        fate::reload(&setting, &mut draw);
    }
    for number in 0..setting.clients.len() {
        fate::live(&setting, number, 0);
    }
    for tree in 0..setting.trees.len() {
        fate::write(&setting, tree, 0);
    }
    let operator = world.operator().clone();
    let fate = operator.clone().spawn(fate::play(operator, Rc::clone(&setting), random(seed, 95)));
    world.run_for(scenario.faults);

    let alive = world.final_phase(SOON, || {
        fate.cancel();
        setting.lives.take().iter().for_each(Task::cancel);
        setting.calm.set(true);
        setting.switches.cached.heal();
        for server in &setting.servers {
            if !server.machine.is_up() {
                server.machine.boot();
                server.register();
            }
        }
        begin(&setting, &mut draw)
    });
    // Clients hold the setting.
    setting.living.borrow_mut().clear();
    if let Some(wrong) = setting.first_wrong() {
        return Err(wrong);
    }
    let checked = setting.history.check().map_err(|violation| violation.to_string())?;
    alive.map_err(|error| error.to_string())?;
    let mut outcome = *setting.outcome.borrow();
    outcome.answered += checked.answered as u64;
    outcome.unknown += checked.unknown as u64;
    outcome.overlapped += world.counts().overlapped;
    Ok(outcome)
}

/// Starts what must succeed: each writer finishes what was begun and writes some keys anew, each client looks keys up.
fn begin(setting: &Rc<Setting>, draw: &mut Random) -> Vec<FinalOperation<String>> {
    let mut operations = Vec::new();
    for (tree, machine) in setting.writers.iter().enumerate() {
        if !machine.is_up() {
            machine.boot();
        }
        let writer = fate::writer(setting, tree, 63);
        let keys: Vec<u64> = (0..5).map(|_| setting.draw_key(tree, draw)).collect();
        let task = machine.spawn(async move {
            writer.refresh(&keys).await;
            Ok(())
        });
        operations.push((machine.name(), task));
    }
    for (number, machine) in setting.clients.iter().enumerate() {
        let living = match setting.living.borrow_mut()[number].take().filter(|_| machine.is_up()) {
            Some(living) => living,
            None => {
                if !machine.is_up() {
                    machine.boot();
                }
                Living::begin(machine, setting, draw)
            }
        };
        for _ in 0..2 {
            let keys = (0..FINAL_KEYS / 2).map(|_| setting.draw_any_key(draw)).collect();
            operations.push((machine.name(), living.look_up_all(keys)));
        }
        setting.living.borrow_mut()[number] = Some(living);
    }
    operations
}

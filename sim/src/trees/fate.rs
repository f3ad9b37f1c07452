//! What befalls the machines, and what becomes of the switches' caches.

use std::rc::Rc;

use fatbtree_blink::KeyRange;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::clients::Living;
use super::setting::{Setting, inclusive, life_random};
use super::writer::Writer;
use crate::world::{Machine, Random};

/// Starts a client's life.
pub(super) fn live(setting: &Rc<Setting>, number: usize, life: u64) {
    let scenario = &setting.scenario;
    let mut random = life_random(scenario.seed(), number as u64, life);
    let living = Living::begin(&setting.clients[number], setting, &mut random);
    living.look_up(scenario.tasks, scenario.lookups, &mut random);
    setting.living.borrow_mut()[number] = Some(living);
}

/// A writer's life, on a machine that is up.
pub(super) fn writer(setting: &Rc<Setting>, tree: usize, life: u64) -> Writer {
    let random = life_random(setting.scenario.seed(), 20 + tree as u64, life);
    Writer::new(&setting.writers[tree], tree, setting, random)
}

/// Starts it.
pub(super) fn write(setting: &Rc<Setting>, tree: usize, life: u64) {
    let writer = writer(setting, tree, life);
    let task = setting.writers[tree].spawn(writer.run(setting.scenario.changes));
    setting.lives.borrow_mut().push(task);
}

/// Lets things happen until it is cancelled.
pub(super) async fn play(operator: Machine, setting: Rc<Setting>, mut random: Random) {
    let longest = setting.scenario.calm.as_nanos();
    let within = |random: &mut Random| Duration::from_nanos(random.random_range(1..=longest));
    for life in 1..64 {
        operator.sleep(within(&mut random)).await;
        for _ in 0..random.random_range(0..4) {
            reload(&setting, &mut random);
        }
        bring_back(&setting, life);
        let number = random.random_range(0..setting.clients.len());
        let tree = random.random_range(0..setting.servers.len());
        let (client, server) = (&setting.clients[number], &setting.servers[tree].machine);
        match random.random_range(0..16) {
            0 => client.set_link_down(random.random_bool(0.5)),
            1 => client.freeze(),
            2..4 => client.thaw(),
            4 => server.freeze_card(),
            5..7 => server.thaw_card(),
            7 => setting.switches.cached.set_dark(random.random_bool(0.5)),
            8 => setting.switches.cached.freeze(operator.now() + within(&mut random)),
            9 => {
                client.kill();
                client.boot();
                setting.count(|outcome| outcome.deaths += 1);
                live(&setting, number, life);
            }
            10 => client.kill_after_polls(random.random_range(0..200)),
            11 => setting.writers[tree].kill_after_polls(random.random_range(0..20)),
            12 => {
                // Its memory survives, as half-written as it is.
                server.kill();
                setting.count(|outcome| outcome.deaths += 1);
                operator.sleep(within(&mut random)).await;
                server.boot();
                setting.servers[tree].register();
            }
            _ => {}
        }
    }
}

/// Boots clients and writers that died by themselves.
fn bring_back(setting: &Rc<Setting>, life: u64) {
    for number in 0..setting.clients.len() {
        if !setting.clients[number].is_up() {
            setting.count(|outcome| outcome.deaths += 1);
            setting.clients[number].boot();
            live(setting, number, life);
        }
    }
    for tree in 0..setting.writers.len() {
        if !setting.writers[tree].is_up() {
            setting.count(|outcome| outcome.deaths += 1);
            setting.writers[tree].boot();
            write(setting, tree, life);
        }
    }
}

/// Tells the switches where the record of a key lies, or its leaf where values are in line: what is right now, or was right once.
fn heat(setting: &Setting, random: &mut Random) {
    let tree = random.random_range(0..setting.trees.len());
    let server = setting.servers[tree].machine.id();
    let key = setting.draw_key(tree, random);
    let model = &setting.trees[tree].borrow().model;
    let is_right = random.random_range(0..4) > 0;
    let at = if model.config.leaf_shape().is_inline() {
        let all = &model.space.all_nodes;
        Some(if is_right { model.node_of(0, key) } else { all[random.random_range(0..all.len())] })
    } else if is_right {
        model.get(key).and_then(|payload| payload.record).map(|record| record.address)
    } else {
        model.space.any_record(random)
    };
    if let Some(at) = at {
        setting.switches.cache_key(server, key, at);
    }
}

/// Writes one range of a cache: what is right now, what was right once, or litter.
pub(super) fn reload(setting: &Setting, random: &mut Random) {
    for _ in 0..random.random_range(1..=3) {
        heat(setting, random);
    }
    let tree = random.random_range(0..setting.trees.len());
    let server = setting.servers[tree].machine.id();
    let model = &setting.trees[tree].borrow().model;
    let landings = &setting.litter[tree].landings;
    if !landings.is_empty() && random.random_range(0..100) < setting.scenario.littered {
        let (keys, at) = landings[random.random_range(0..landings.len())].clone();
        return setting.switches.cache(server, keys, at);
    }
    let nodes: Vec<_> = model.nodes().collect();
    let (address, _, range) = nodes[random.random_range(0..nodes.len())];
    match random.random_range(0..10) {
        // As a controller caches what it knows.
        0..6 => setting.switches.cache(server, inclusive(range), address),
        // What somebody knew once, wherever it was: each place for nodes was a node of some range.
        6..9 => {
            let all = &model.space.all_nodes;
            let address = all[random.random_range(0..all.len())];
            setting.switches.cache(server, inclusive(range), address);
        }
        _ => setting.switches.cached.forget(server, inclusive(KeyRange::ALL)),
    }
}

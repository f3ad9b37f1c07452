//! What befalls the machines, and what the switches know.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::clients::Living;
use super::server::Setting;
use crate::world::{Machine, Random, random};

/// The clients in their present lives.
pub(super) type Lives = Rc<RefCell<Vec<Living>>>;

/// Starts a client's life.
pub(super) fn live(setting: &Rc<Setting>, lives: &Lives, number: usize, random: &mut Random) {
    let living = Living::begin(&setting.clients[number], setting, random);
    for _ in 0..setting.scenario.tasks {
        let draw = crate::world::random(random.random_range(0..=u64::MAX), 2);
        let task = living.machine.spawn(living.clone().work(setting.scenario.operations, draw));
        setting.lives.borrow_mut().push(task);
    }
    let mut lives = lives.borrow_mut();
    if number == lives.len() {
        lives.push(living);
    } else {
        std::mem::replace(&mut lives[number], living).count();
    }
}

/// Lets things happen until it is cancelled.
pub(super) async fn play(operator: Machine, setting: Rc<Setting>, lives: Lives, seed: u64) {
    let random = &mut random(seed, 95);
    let longest = setting.scenario.calm.as_nanos();
    loop {
        operator.sleep(Duration::from_nanos(random.random_range(1..=longest))).await;
        setting.look_around();
        for _ in 0..random.random_range(0..4) {
            reload(&setting, random);
        }
        bring_back(&setting, &lives, random);
        let client = &setting.clients[random.random_range(0..setting.clients.len())];
        if random.random_range(0..100) < setting.scenario.deadly {
            if random.random_bool(0.5) {
                client.kill_after_polls(random.random_range(0..100));
            } else {
                client.mute_after_writes(random.random_range(1..12));
            }
            continue;
        }
        match random.random_range(0..9) {
            0..3 => client.set_link_down(random.random_bool(0.5)),
            3 => client.freeze(),
            4 | 5 => client.thaw(),
            6 => setting.server.freeze_card(),
            7 => setting.server.thaw_card(),
            _ => setting.switches.cached.set_dark(random.random_bool(0.5)),
        }
    }
}

/// Boots clients that died, or whose card did.
pub(super) fn bring_back(setting: &Rc<Setting>, lives: &Lives, random: &mut Random) {
    for number in 0..setting.clients.len() {
        if setting.clients[number].is_mute() {
            setting.clients[number].kill();
        }
        if !setting.clients[number].is_up() {
            setting.count(|outcome| outcome.deaths += 1);
            setting.clients[number].boot();
            live(setting, lives, number, random);
        }
    }
}

/// Caches a node that is or was there, or forgets all.
fn reload(setting: &Setting, random: &mut Random) {
    let server = setting.server.id();
    let seen = setting.seen.borrow();
    let (range, address, _) = seen[random.random_range(0..seen.len())];
    let last = range.high.map_or(u64::MAX, |high| high - 1);
    match random.random_range(0..8) {
        0 => setting.switches.cached.forget(server, 0..=u64::MAX),
        _ => setting.switches.cache(server, range.low..=last, address),
    }
}

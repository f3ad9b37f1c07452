//! Faults of the machines, and knowledge of the switches.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_verbs::time::Duration;
use rand::RngExt as _;
use rand::seq::{IndexedRandom as _, IteratorRandom as _};

use super::clients::Living;
use super::server::Server;
use super::setting::Setting;
use crate::world::{Machine, Random, random};

/// Interval at which a server looks for sessions that have ended, and for what they have left.
const LOOK: Duration = Duration::from_micros(20);

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
        if setting.scenario.torn_superblocks && random.random_bool(0.05) {
            tear(&setting, random);
        }
        bring_back(&setting, &lives, random);
        if let Some(again) = setting.once_more.take() {
            restart(setting.server(again), &setting, random);
            setting.count(|outcome| outcome.second_restarts += 1);
            continue;
        }
        let client = &setting.clients[random.random_range(0..setting.clients.len())];
        if random.random_range(0..100) < setting.scenario.deadly {
            if random.random_bool(0.5) {
                client.kill_after_polls(random.random_range(0..100));
            } else {
                client.mute_after_writes(random.random_range(1..12));
            }
            continue;
        }
        let (restarting, loading) = (setting.scenario.restarting, setting.scenario.loading);
        if restarting > 0 && random.random_range(0..100) < restarting {
            let server = setting.any_server(random);
            restart(server, &setting, random);
            // Clients may not have noticed the first time, or be about to connect.
            setting.once_more.set(random.random_bool(0.3).then_some(server.id));
            continue;
        }
        if loading > 0 && random.random_range(0..100) < loading {
            load(setting.any_server(random), &setting);
            continue;
        }
        let ending = setting.scenario.ending;
        if ending > 0 && random.random_range(0..100) < ending {
            setting.any_server(random).end_one(random);
            continue;
        }
        match random.random_range(0..9) {
            0..3 => client.set_link_down(random.random_bool(0.5)),
            3 => client.freeze(),
            4 | 5 => client.thaw(),
            6 => freeze(setting.any_server(random), &setting, random),
            7 => {
                let server = &setting.any_server(random).machine;
                server.thaw_card();
                server.thaw();
            }
            _ => setting.switches.cached.set_dark(random.random_bool(0.5)),
        }
    }
}

/// Kills a server's process, whose memory is kept or lost. It is started anew a moment later.
fn restart(server: &Server, setting: &Setting, random: &mut Random) {
    if server.machine.is_up() {
        let keeps_memory = random.random_range(0..100) >= setting.scenario.forgetful;
        server.die(keeps_memory);
        setting.count(|outcome| {
            outcome.restarts += 1;
            outcome.lost_trees += u64::from(!keeps_memory);
        });
    }
}

/// Replaces a server's tree by another one.
fn load(server: &Server, setting: &Setting) {
    if server.machine.is_up() {
        let pairs = setting.draw_pairs(server);
        server.replace(&pairs);
        setting.note_load(server, &pairs);
        setting.count(|outcome| outcome.loads += 1);
    }
}

/// Starts a server's process. One that has lost its tree is loaded anew.
pub(super) fn serve(setting: &Rc<Setting>, server: &Server, random: &mut Random) {
    if !server.machine.is_up() {
        server.machine.boot();
    }
    if server.memory().is_some() && !server.is_whole() {
        server.forget();
        setting.count(|outcome| outcome.refused_trees += 1);
    }
    let pairs = match server.memory() {
        None if setting.outcome.borrow().restarts > 0 => setting.draw_pairs(server),
        _ => Vec::new(),
    };
    server.begin(&pairs, random);
    setting.note_load(server, &pairs);
    let (all, id) = (Rc::clone(setting), server.id);
    drop(server.machine.spawn(async move {
        let server = all.server(id);
        loop {
            server.work();
            server.machine.sleep(LOOK).await;
        }
    }));
}

/// Boots servers and clients that died, or whose card did.
pub(super) fn bring_back(setting: &Rc<Setting>, lives: &Lives, random: &mut Random) {
    for server in setting.servers.iter().filter(|server| !server.machine.is_up()) {
        serve(setting, server, random);
    }
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

/// Freezes a server's card or, where there are others, its processor, which renews and ends sessions.
fn freeze(server: &Server, setting: &Setting, random: &mut Random) {
    if setting.servers.len() > 1 && random.random_bool(0.5) {
        server.machine.freeze();
    } else {
        server.machine.freeze_card();
    }
}

/// Tells the switches where the record of a key is or was, sometimes of another key; where values are in line, its leaf.
fn heat(setting: &Setting, random: &mut Random) {
    let seen = setting.seen_keys.borrow();
    if seen.is_empty() {
        return;
    }
    for _ in 0..random.random_range(1..=4) {
        let (mut key, address) = seen[random.random_range(0..seen.len())];
        if random.random_range(0..10) == 0 {
            (key, _) = seen[random.random_range(0..seen.len())];
        }
        // A damaged entry leads anywhere.
        if let Some(server) = setting.servers.get(setting.scenario.place_of(address.server())) {
            setting.switches.cache_key(server.machine.id(), key, address);
        }
    }
}

/// Tears a superblock: what it announces is only a help.
fn tear(setting: &Setting, random: &mut Random) {
    let server = setting.any_server(random);
    let seen = setting.seen.borrow();
    let here = seen.iter().filter(|(_, address, _)| address.server() == server.id).choose(random);
    if let Some((_, address, _)) = here {
        server.tear_superblock(*address);
        setting.count(|outcome| outcome.torn_superblocks += 1);
    }
}

/// Caches a node that is or was there, litter, or forgets all.
fn reload(setting: &Setting, random: &mut Random) {
    heat(setting, random);
    if setting.scenario.littered > 0 && random.random_range(0..100) < setting.scenario.littered {
        let server = setting.any_server(random);
        if let Some((keys, at)) = server.landings.borrow().choose(random) {
            return setting.switches.cache(server.machine.id(), keys.clone(), *at);
        }
    }
    let seen = setting.seen.borrow();
    let (range, address, _) = seen[random.random_range(0..seen.len())];
    let server = setting.server(address.server());
    let is_own = server.range.contains(range.low);
    let is_one = setting.servers.len() == 1;
    let range = if is_own && (is_one || random.random_bool(0.8)) {
        range
    } else {
        // A node of another partition that lies on this server, or just the wrong one.
        let (other, ..) = seen[random.random_range(0..seen.len())];
        let is_here = server.range.contains(other.low);
        if is_here { other } else { server.range }
    };
    let last = range.high.map_or(u64::MAX, |high| high - 1);
    let id = server.machine.id();
    match random.random_range(0..8) {
        0 => setting.switches.cached.forget(id, 0..=u64::MAX),
        _ => setting.switches.cache(id, range.low..=last, address),
    }
}

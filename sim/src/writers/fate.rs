//! Faults of the machines, and knowledge of the switches.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_blink::LeafKind;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;
use rand::seq::{IndexedRandom as _, IteratorRandom as _};

use super::Scenario;
use super::clients::Living;
use super::server::Server;
use super::setting::Setting;
use crate::world::trial::{Deaths, Disturbances, Fault, Stage};
use crate::world::{FinalOperation, Machine, Random, Task, random};

/// Interval at which a server looks for sessions that have ended, and for what they have left.
const LOOK: Duration = Duration::from_micros(20);

/// The clients in their present lives, on the stage of their servers.
pub(super) struct Scene {
    pub(super) setting: Rc<Setting>,
    pub(super) lives: RefCell<Vec<Living>>,
    /// Tasks of a hostile client.
    pub(super) hostile: Vec<Task<()>>,
    /// Decides about the last lives.
    pub(super) draw: RefCell<Random>,
}

impl Scene {
    /// Starts a client's life.
    pub(super) fn live(&self, number: usize, random: &mut Random) {
        let setting = &self.setting;
        let living = Living::begin(&setting.clients[number], setting, random);
        for _ in 0..setting.scenario.tasks {
            let draw = crate::world::random(random.random_range(0..=u64::MAX), 2);
            let task = living.machine.spawn(living.clone().work(setting.scenario.operations, draw));
            setting.lives.borrow_mut().push(task);
        }
        let mut lives = self.lives.borrow_mut();
        if number == lives.len() {
            lives.push(living);
        } else {
            std::mem::replace(&mut lives[number], living).count();
        }
    }

    /// Boots servers and clients that died, or whose card did.
    fn bring_back(&self, random: &mut Random) {
        let setting = &self.setting;
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
                self.live(number, random);
            }
        }
    }
}

impl Stage for Scene {
    fn clients(&self) -> &[Machine] {
        &self.setting.clients
    }

    fn any_server(&self, random: &mut Random) -> &Machine {
        &self.setting.any_server(random).machine
    }

    fn begin_mishap(self: &Rc<Self>, random: &mut Random) -> bool {
        let setting = &self.setting;
        setting.look_around();
        for _ in 0..random.random_range(0..4) {
            reload(setting, random);
        }
        if setting.scenario.torn_superblocks && random.random_bool(0.05) {
            tear(setting, random);
        }
        self.bring_back(random);
        let Some(again) = setting.once_more.take() else { return false };
        restart(setting.server(again), setting, random);
        setting.count(|outcome| outcome.second_restarts += 1);
        true
    }

    fn freeze_server(&self, random: &mut Random) {
        let server = &self.setting.any_server(random).machine;
        // A processor renews and ends sessions: without others, nothing goes on.
        if self.setting.servers.len() > 1 && random.random_bool(0.5) {
            server.freeze();
        } else {
            server.freeze_card();
        }
    }

    fn disturb(&self, random: &mut Random) {
        self.setting.switches.cached.set_dark(random.random_bool(0.5));
    }

    fn begin_last(self: &Rc<Self>) -> Vec<FinalOperation<String>> {
        let (setting, draw) = (&self.setting, &mut *self.draw.borrow_mut());
        setting.calm.set(true);
        self.hostile.iter().for_each(Task::cancel);
        setting.lives.take().iter().for_each(Task::cancel);
        setting.switches.cached.heal();
        // Also those that were about to die.
        self.bring_back(draw);
        setting.lives.take().iter().for_each(Task::cancel);
        let is_damaged = setting.scenario.hostile.is_some();
        self.lives.borrow().iter().map(|living| begin_last(living, is_damaged, draw)).collect()
    }
}

/// Starts the operations of a client that must succeed in the end.
fn begin_last(living: &Living, is_damaged: bool, draw: &mut Random) -> FinalOperation<String> {
    let keys: Vec<u64> = (0..8).map(|_| living.draw_key(draw)).collect();
    let random = random(draw.random_range(0..=u64::MAX), 3);
    let (name, machine, living) = (living.machine.name(), &living.machine, living.clone());
    match is_damaged {
        true => (name, machine.spawn(living.end_damaged(keys, random))),
        false => (name, machine.spawn(living.end(keys, random))),
    }
}

/// Kinds of mishaps of a scenario.
pub(super) fn faults(scenario: &Scenario) -> Vec<Box<dyn Fault<Scene>>> {
    vec![
        Box::new(Deaths { percent: scenario.deadly }),
        Box::new(Restarts { percent: scenario.restarting }),
        Box::new(Loads { percent: scenario.loading }),
        Box::new(EndedSessions { percent: scenario.ending }),
        Box::new(Disturbances),
    ]
}

/// Servers' processes that die.
struct Restarts {
    percent: u32,
}

impl Fault<Scene> for Restarts {
    fn percent(&self) -> u32 {
        self.percent
    }

    fn strike(&self, scene: &Rc<Scene>, _: &Machine, random: &mut Random) {
        let server = scene.setting.any_server(random);
        restart(server, &scene.setting, random);
        // Clients may not have noticed the first time, or be about to connect.
        scene.setting.once_more.set(random.random_bool(0.3).then_some(server.id));
    }
}

/// Trees that take the place of others.
struct Loads {
    percent: u32,
}

impl Fault<Scene> for Loads {
    fn percent(&self) -> u32 {
        self.percent
    }

    fn strike(&self, scene: &Rc<Scene>, _: &Machine, random: &mut Random) {
        load(scene.setting.any_server(random), &scene.setting);
    }
}

/// Sessions that end, each with one server.
struct EndedSessions {
    percent: u32,
}

impl Fault<Scene> for EndedSessions {
    fn percent(&self) -> u32 {
        self.percent
    }

    fn strike(&self, scene: &Rc<Scene>, _: &Machine, random: &mut Random) {
        scene.setting.any_server(random).end_one(random);
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

/// Tells the switches where the record of a key is or was, sometimes of another key; where values are in line, its leaf.
fn heat(setting: &Setting, random: &mut Random) {
    let seen = setting.seen_keys.borrow();
    if seen.is_empty() {
        return;
    }
    for _ in 0..random.random_range(1..=4) {
        let (mut key, address, is_leaf) = seen[random.random_range(0..seen.len())];
        if random.random_range(0..10) == 0 {
            (key, ..) = seen[random.random_range(0..seen.len())];
        }
        // A damaged entry leads anywhere.
        if let Some(server) = setting.servers.get(setting.scenario.place_of(address.server())) {
            setting.switches.cache_key(server.machine.id(), key, address, is_leaf);
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
            let is_leaf = setting.scenario.config.leaves() == LeafKind::Buckets && random.random_bool(0.5);
            return setting.switches.cache(server.machine.id(), keys.clone(), *at, is_leaf);
        }
    }
    let seen = setting.seen.borrow();
    let (range, address, level) = seen[random.random_range(0..seen.len())];
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
        _ => setting.switches.cache(id, range.low..=last, address, level == 0),
    }
}

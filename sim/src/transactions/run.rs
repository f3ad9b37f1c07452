//! A seed: its clients and servers, their faults, and what must hold afterwards.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_dtx::workloads::smallbank::{Account, INITIAL};
use fatbtree_dtx::{Addresses, Tables};
use fatbtree_remote_memory::Contention;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::lab::{Client, Server, begin, serve};
use super::work::{Living, NOTES, Setting, shape};
use super::{Aim, Outcome};
use crate::history::{Ending, Stamp};
use crate::world::trial::{Alive, Deaths, Disturbances, Ended, Fault, Stage, Trial};
use crate::world::{FinalOperation, LinkFaults, Machine, MachineOptions, Options, Random, World, random};

/// Time with faults.
const FAULTS: Duration = Duration::from_millis(5);
/// Time for the last operations: far more than they take.
const SOON: Duration = Duration::from_millis(200);
const CLIENTS: usize = 3;

/// Clients and servers of the tables.
struct Scene {
    machines: Vec<Machine>,
    servers: Vec<Rc<Server>>,
    setting: Rc<Setting>,
    /// Machine of the client that lives in the end.
    last: Machine,
    memory: RefCell<Option<Client>>,
    outcome: RefCell<Outcome>,
    /// Decides about what is begun in the end.
    draw: RefCell<Random>,
}

impl Scene {
    /// A client that has opened the tables, as a task of its machine.
    fn live(&self, machine: &Machine, draw: &mut Random, tasks: impl FnOnce(Living) + 'static) -> Client {
        let contention = if draw.random_bool(0.5) { Contention::SMART } else { Contention::SHERMAN };
        let memory = begin(machine, &self.servers, contention, draw);
        let (of, on) = (Rc::clone(&memory), machine.clone());
        let (setting, home) = (Rc::clone(&self.setting), self.servers[0].number);
        drop(machine.spawn(async move {
            if let Ok(tables) = Tables::open_knowing(of, home, Rc::new(Addresses::new(64))).await {
                tasks(Living { machine: on, tables: Rc::new(tables), setting });
            }
        }));
        memory
    }

    fn work(&self, machine: &Machine, draw: &mut Random) {
        let seeds = [(); 2].map(|()| draw.random_range(0..=u64::MAX));
        self.live(machine, draw, move |living| {
            for seed in seeds {
                drop(living.machine.clone().spawn(living.clone().work(random(seed, 2))));
            }
        });
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
        &self.servers[draw.random_range(0..self.servers.len())].machine
    }

    fn begin_mishap(self: &Rc<Self>, draw: &mut Random) -> bool {
        self.revive(draw);
        self.machines.iter().filter(|machine| machine.is_mute()).for_each(Machine::kill);
        for machine in self.machines.iter().filter(|machine| !machine.is_up()) {
            machine.boot();
            self.outcome.borrow_mut().deaths += 1;
            self.work(machine, draw);
        }
        false
    }

    /// What comes to or from a server is late, until the next time.
    fn disturb(&self, draw: &mut Random) {
        let late = LinkFaults { lost: 0, late: 400_000, latest: Duration::from_micros(400) };
        let faults = if draw.random_bool(0.6) { late } else { LinkFaults::default() };
        self.servers[draw.random_range(0..self.servers.len())].machine.set_link_faults(faults);
    }

    /// One client that lives changes every account, and looks for every note.
    fn begin_last(self: &Rc<Self>) -> Vec<FinalOperation<String>> {
        let draw = &mut *self.draw.borrow_mut();
        self.revive(draw);
        self.machines.iter().filter(|machine| machine.is_up()).for_each(Machine::kill);
        let contention = Contention::SMART;
        let memory = begin(&self.last, &self.servers, contention, draw);
        self.memory.replace(Some(Rc::clone(&memory)));
        let opened = Rc::new(RefCell::new(None));
        (0..4)
            .map(|number| {
                let (memory, home, opened) = (Rc::clone(&memory), self.servers[0].number, Rc::clone(&opened));
                let (machine, setting) = (self.last.clone(), Rc::clone(&self.setting));
                let task = self.last.spawn(async move {
                    let tables = Tables::open_knowing(memory, home, Rc::new(Addresses::new(64))).await;
                    let tables = Rc::new(tables.map_err(|error| error.to_string())?);
                    let tables = Rc::clone(opened.borrow_mut().get_or_insert(tables));
                    Living { machine, tables, setting }.end(number).await
                });
                (format!("share {number}"), task)
            })
            .collect()
    }
}

/// Servers' processes that die; their memory is kept.
struct Restarts;

impl Fault<Scene> for Restarts {
    fn percent(&self) -> u32 {
        10
    }

    fn strike(&self, scene: &Rc<Scene>, _: &Machine, draw: &mut Random) {
        let server = &scene.servers[draw.random_range(0..scene.servers.len())];
        if server.machine.is_up() {
            server.die();
            scene.outcome.borrow_mut().restarts += 1;
        }
    }
}

/// A server that dies and loses its memory, while all others have theirs.
struct Losses;

impl Fault<Scene> for Losses {
    fn percent(&self) -> u32 {
        14
    }

    fn strike(&self, scene: &Rc<Scene>, _: &Machine, draw: &mut Random) {
        let server = &scene.servers[draw.random_range(0..scene.servers.len())];
        if scene.servers.iter().all(|server| server.machine.is_up() && server.is_whole()) {
            server.lose();
            scene.outcome.borrow_mut().losses += 1;
        }
    }
}

/// No task has seen what must never be.
fn nothing_wrong(ended: &Ended<'_, Scene>) -> Result<(), String> {
    ended.stage.setting.take_wrong().map_or(Ok(()), Err)
}

/// The tables are whole, their content is what the history says, and so is the money.
fn verified(ended: &Ended<'_, Scene>) -> Result<(), String> {
    let Scene { last, memory, servers, setting, outcome, .. } = &**ended.stage;
    let (memory, home) = (memory.take().ok_or("the last client was not begun")?, servers[0].number);
    let of = Rc::clone(setting);
    let walk = last.spawn(async move {
        let tables = Tables::open(memory, home).await.map_err(|error| error.to_string())?;
        let (mut money, mut found) = (0, std::collections::BTreeMap::new());
        let see = |table: u8, key: u64, value: &[u8]| {
            let stamp = if table == NOTES {
                of.open_note(key, value)
            } else {
                let account = Account::from_bytes(value).unwrap_or(Account { money: 0, stamp: u64::MAX });
                money += account.money;
                Stamp(account.stamp)
            };
            found.insert((table, key), stamp);
        };
        let verified = tables.verify(see).await.map_err(|fault| fault.to_string())?;
        Ok::<_, String>((verified, money, found))
    });
    let walked = ended.world.run_until(|| walk.has_ended(), SOON);
    walked.map_err(|_| "the walk over the tables does not end".to_owned())?;
    let (verified, money, found) = walk.take().ok_or("the machine that walks over the tables died")??;
    // What lies there is what one more transaction would read.
    let now = last.now();
    let reader = setting.history.begin("the walk", now);
    for customer in 0..setting.customers.count {
        for table in [0, 1] {
            setting.history.read(reader, (table, customer), found.get(&(table, customer)).copied());
        }
    }
    for note in 1..=setting.notes.get() {
        setting.history.read(reader, (NOTES, note), found.get(&(NOTES, note)).copied());
    }
    setting.history.end(reader, now, Ending::Committed);
    let checked = setting.history.check().map_err(|why| why.to_string())?;
    let made = setting.made.borrow();
    let made = made.iter().filter(|(stamp, _)| checked.has_taken_effect(*stamp)).map(|(_, sum)| sum);
    let expected = INITIAL * 2 * setting.customers.count as i64 + made.sum::<i64>();
    if money != expected {
        return Err(format!("{money} is in the bank, and {expected} should be"));
    }
    nothing_wrong(ended)?;
    let outcome = &mut *outcome.borrow_mut();
    (outcome.locks_left, outcome.logs_left) = (verified.locks, verified.logs);
    outcome.keys = verified.keys;
    outcome.committed = checked.committed as u64;
    (outcome.without_answer, outcome.aborted) = (checked.without_answer as u64, checked.aborted as u64);
    Ok(())
}

/// Runs a seed.
pub(super) fn run(seed: u64, aim: Aim) -> Result<Outcome, String> {
    let draw = &mut random(seed, 75);
    let world = World::new(seed, Options::rough(draw));
    let customers = if matches!(aim, Aim::Accounts | Aim::Steps) { 2 } else { draw.random_range(2..8) };
    let (servers, backups) = match draw.random_range(0..4) {
        0 => (0b10_0110, 2),
        1 => (0b11, 1),
        _ => (0b1011, 1),
    };
    let shape = shape(customers, servers, backups).expect("there are servers for the backups");
    let scene = Rc::new(Scene {
        servers: serve(&world, shape, Duration::from_micros(900)),
        machines: (0..CLIENTS)
            .map(|number| world.machine(MachineOptions::rough(format!("client {number}"), draw)))
            .collect(),
        setting: Rc::new(Setting::new(customers.into(), aim)),
        last: world.machine(MachineOptions::named("last client")),
        memory: RefCell::default(),
        outcome: RefCell::default(),
        draw: RefCell::new(random(seed, 76)),
    });
    let opened = Rc::new(RefCell::new(None));
    let first = world.machine(MachineOptions::named("first client"));
    let done = Rc::clone(&opened);
    scene.live(&first, draw, move |living| {
        let machine = living.machine.clone();
        drop(machine.spawn(async move {
            let result = living.open_bank().await;
            done.replace(Some(result));
        }));
    });
    let began = world.run_until(|| opened.borrow().is_some(), SOON);
    began.map_err(|_| "the accounts are not opened".to_owned())?;
    opened.take().ok_or("just seen")?.map_err(|error| error.to_string())?;
    first.kill();
    scene.machines.iter().for_each(|machine| scene.work(machine, draw));
    let trial = Trial {
        faults: vec![
            Box::new(Deaths { percent: 40 }),
            Box::new(Restarts),
            Box::new(Losses),
            Box::new(Disturbances),
        ],
        calm: Duration::from_micros(700),
        lasts: FAULTS,
        soon: SOON,
        properties: vec![Box::new(nothing_wrong), Box::new(Alive), Box::new(verified)],
    };
    trial.run(&world, &scene)?;
    let mut outcome = *scene.outcome.borrow();
    (outcome.refused, outcome.unknown) = (scene.setting.refused.get(), scene.setting.unknown.get());
    Ok(outcome)
}

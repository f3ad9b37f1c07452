//! A seed: its clients and servers, their faults, and what must hold afterwards.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_dtx::host::HostTables;
use fatbtree_dtx::workloads::smallbank::{Account, INITIAL};
use fatbtree_dtx::{Addresses, Tables};
use fatbtree_remote_memory::{Contention, Origin};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::lab::{Server, begin, is_whole, serve};
use super::work::{Living, NOTES, Setting, shape};
use super::{Aim, Outcome};
use crate::history::{Ending, Stamp};
use crate::stage::{Client, Clients, Restarts, SHARES, SOON, Scene, add, any_contention, nothing_wrong};
use crate::world::trial::{Alive, Deaths, Disturbances, Ended, Fault, Trial};
use crate::world::{FinalOperation, LinkFaults, Machine, MachineOptions, Options, Random, World, random};

/// Time with faults.
const FAULTS: Duration = Duration::from_millis(5);

/// The clients of the tables.
struct Users {
    setting: Rc<Setting>,
    losses: Cell<u64>,
    /// Memory of the last client.
    last: RefCell<Option<Client>>,
    /// What was found in the end.
    found: RefCell<Outcome>,
}

/// Lets a client open the tables, and a task of its machine begin.
fn live(
    servers: &[Rc<Server>],
    setting: &Rc<Setting>,
    machine: &Machine,
    draw: &mut Random,
    tasks: impl FnOnce(Living) + 'static,
) {
    let contention = any_contention(draw);
    let memory = begin(machine, servers, contention, draw);
    let (of, setting, home) = (machine.clone(), Rc::clone(setting), servers[0].number);
    drop(machine.spawn(async move {
        if let Ok(tables) = Tables::open_knowing(memory, home, Rc::new(Addresses::new(64))).await {
            tasks(Living { machine: of, tables: Rc::new(tables), setting });
        }
    }));
}

impl Clients for Users {
    type Part = HostTables;

    fn work(&self, scene: &Scene<Self>, machine: &Machine, draw: &mut Random) {
        let seeds = [(); 2].map(|()| draw.random_range(0..=u64::MAX));
        live(&scene.servers, &self.setting, machine, draw, move |living| {
            for seed in seeds {
                drop(living.machine.clone().spawn(living.clone().work(random(seed, 2))));
            }
        });
    }

    /// One client that lives changes every account, and looks for every note.
    fn end(&self, scene: &Scene<Self>, draw: &mut Random) -> Vec<FinalOperation<String>> {
        let memory = begin(&scene.last, &scene.servers, Contention::SMART, draw);
        self.last.replace(Some(Rc::clone(&memory)));
        let (opened, home) = (Rc::new(RefCell::new(None)), scene.servers[0].number);
        let share = |number| {
            let (memory, opened) = (Rc::clone(&memory), Rc::clone(&opened));
            let (machine, setting) = (scene.last.clone(), Rc::clone(&self.setting));
            let task = scene.last.spawn(async move {
                let tables = Tables::open_knowing(memory, home, Rc::new(Addresses::new(64))).await;
                let tables = Rc::new(tables.map_err(|error| error.to_string())?);
                let tables = Rc::clone(opened.borrow_mut().get_or_insert(tables));
                Living { machine, tables, setting }.end(number).await
            });
            (format!("share {number}"), task)
        };
        (0..SHARES as u64).map(share).collect()
    }

    /// What comes to or from a server is late, until the next time.
    fn disturb(&self, servers: &[Rc<Server>], draw: &mut Random) {
        let late = LinkFaults { lost: 0, late: 400_000, latest: Duration::from_micros(400) };
        let faults = if draw.random_bool(0.6) { late } else { LinkFaults::default() };
        servers[draw.random_range(0..servers.len())].machine.set_link_faults(faults);
    }

    fn nothing_wrong(&self) -> Result<(), String> {
        self.setting.take_wrong().map_or(Ok(()), Err)
    }
}

/// A server that dies and loses its memory, while all others have theirs.
struct Losses;

impl Fault<Scene<Users>> for Losses {
    fn percent(&self) -> u32 {
        14
    }

    fn strike(&self, scene: &Rc<Scene<Users>>, _: &Machine, draw: &mut Random) {
        let server = scene.server(draw);
        if scene.servers.iter().all(|server| server.machine.is_up() && is_whole(server)) {
            server.lose(Origin::Lost);
            add(&scene.clients.losses);
        }
    }
}

/// The tables are whole, their content is what the history says, and so is the money.
fn verified(ended: &Ended<'_, Scene<Users>>) -> Result<(), String> {
    let (Users { setting, last, found: outcome, .. }, scene) = (&ended.stage.clients, ended.stage);
    let (memory, home) = (last.take().ok_or("the last client was not begun")?, scene.servers[0].number);
    let of = Rc::clone(setting);
    let (verified, money, found) = scene.walk(ended.world, async move {
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
        Ok((verified, money, found))
    })?;
    // What lies there is what one more transaction would read.
    let now = scene.last.now();
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
    let users = Users {
        setting: Rc::new(Setting::new(customers.into(), aim)),
        losses: Cell::default(),
        last: RefCell::default(),
        found: RefCell::default(),
    };
    let servers = serve(&world, shape, Duration::from_micros(900));
    let scene = Scene::new(&world, servers, users, |options| options, draw, random(seed, 76));
    let opened = Rc::new(RefCell::new(None));
    let first = world.machine(MachineOptions::named("first client"));
    let done = Rc::clone(&opened);
    live(&scene.servers, &scene.clients.setting, &first, draw, move |living| {
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
    scene.begin(draw);
    let trial = Trial {
        faults: vec![
            Box::new(Deaths { percent: 40 }),
            Box::new(Restarts { percent: 10 }),
            Box::new(Losses),
            Box::new(Disturbances),
        ],
        calm: Duration::from_micros(700),
        lasts: FAULTS,
        soon: SOON,
        properties: vec![Box::new(nothing_wrong), Box::new(Alive), Box::new(verified)],
    };
    trial.run(&world, &scene)?;
    let Users { setting, losses, found, .. } = &scene.clients;
    Ok(Outcome {
        refused: setting.refused.get(),
        unknown: setting.unknown.get(),
        deaths: scene.deaths.get(),
        restarts: scene.restarts.get(),
        losses: losses.get(),
        ..found.take()
    })
}

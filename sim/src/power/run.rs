//! A run: clients write, disks fail, and servers are started from what is left.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_memserver::{ClientId, Keeping, Loaded, MemoryServer, ServerOptions};
use fatbtree_remote_memory::session_keeper::{Call, Denied};
use fatbtree_remote_memory::{Change, ClientConfig, Kept as _, StructureClient};
use fatbtree_verbs::Memory;
use fatbtree_verbs::journal::{Cut, Disk, Journal, LossyDisk, Pace};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;
use tempfile::TempDir;

use super::kinds::{self, CHUNK, GROUP, LONGEST, Structure, get, text};
use super::{Outcome, Scenario};
use crate::stage::{keeper, options};
use crate::world::{Machine, MachineOptions, Options, Random, SimDevice, Task, Tearing, World, random};

/// Interval in which a client and a server look for something to be done.
const LOOK: Duration = Duration::from_micros(10);
const CLIENTS: u64 = 3;
/// Groups of keys. Each has keys of all clients.
const GROUPS: u64 = 3;
/// Keys of a client in a group.
const IN_GROUP: u64 = 27;
/// Keys of a client.
const KEYS: u64 = GROUPS * IN_GROUP;
/// Number in its group from which on a key is not used before the group has grown.
const LATE: u64 = 24;
/// Changes of a client in a phase. Most changes of a phase are of keys of one group.
const PHASE: u64 = 40;
/// Changes of a client.
const CHANGES: u64 = 8 * PHASE;
/// Time within which everything ends that nothing is in the way of.
const SOON: Duration = Duration::from_secs(20);

/// Key of a client by its number. Keys of the first group differ in their second byte. Those of the second one share two bytes, but for the late
/// ones: a radix tree then needs a node above the node that it has. Those of the third one are dense.
const fn key_of(client: u64, number: u64) -> u64 {
    let in_group = number / GROUPS;
    let at = in_group * CLIENTS + client;
    match number % GROUPS {
        0 => at << 48 | at,
        1 => GROUP | (if in_group < LATE { 7 } else { 9 }) << 48 | at << 40 | at,
        _ => (2 * GROUP) | at,
    }
}

/// A world whose memory servers have software NICs: only these have journals, and no commit comes in the middle of a packet.
pub(super) fn world(seed: u64) -> World {
    let tearing = Tearing { at_once: true, ..Tearing::default() };
    World::new(seed, Options { tearing, ..Options::default() })
}

/// Keys of all clients.
pub(super) fn keys() -> Vec<u64> {
    (0..KEYS).flat_map(|number| (0..CLIENTS).map(move |client| key_of(client, number))).collect()
}

/// A memory server's process on a simulated machine.
pub(super) struct Server<S: Structure> {
    machine: Machine,
    region: Arc<Memory>,
    process: RefCell<MemoryServer<SimDevice, S::Tenant>>,
}

impl<S: Structure> Server<S> {
    fn journal(&self) -> &Arc<Journal> {
        self.region.journal().expect("it lies in a folder")
    }

    pub(super) fn start(world: &World, content: Loaded<S::Tenant>) -> Result<Rc<Self>, String> {
        let ServerOptions { lock_table_bytes, lease, .. } = ServerOptions::writable();
        let options = ServerOptions { lock_table_bytes, ..options(CHUNK, lease) };
        let machine = world.machine(MachineOptions::named(format!("server {}", content.server)));
        let region = Arc::clone(&content.region);
        let process = MemoryServer::new(machine.device(), content, &options, 1);
        let process = RefCell::new(process.map_err(|error| error.to_string())?);
        let server = Rc::new(Self { machine, region, process });
        let (worked, operator) = (Rc::clone(&server), world.operator().clone());
        drop(world.operator().spawn(async move {
            loop {
                {
                    let mut process = worked.process.borrow_mut();
                    process.work(worked.machine.now(), 64);
                    while process.poll_event().is_some() {}
                    process.commit().expect("the disk does not fail for the process");
                }
                operator.sleep(LOOK).await;
            }
        }));
        Ok(server)
    }
}

/// Starts a client on a machine of its own. `asked` is told of a server that is to sync, before it does.
pub(super) fn client<S: Structure>(
    world: &World,
    servers: &[Rc<Server<S>>],
    seed: u64,
    asked: impl Fn(u16) + 'static,
) -> (Machine, S::Client) {
    let machine = world.machine(MachineOptions::named(format!("client {seed}")));
    let infos: Vec<_> = servers.iter().map(|server| *server.process.borrow().info()).collect();
    let numbers: Vec<u16> = infos.iter().map(|info| info.server).collect();
    let infos = infos.into_iter().map(|info| (info.server, info)).collect();
    let client = S::Client::open(machine.device(), &infos, &numbers, &ClientConfig::default(), seed);
    let client = client.expect("they were made together");
    machine.set_driven(Rc::new(client.clone()));
    let (servers, caller) = (servers.to_vec(), machine.clone());
    let roce = machine.reactor().with(|card| card.address());
    let id = ClientId { host: roce.into(), roce };
    let carry = async move |server: u16, call| {
        caller.sync(&call).await;
        if let Call::Sync { .. } = call {
            asked(server);
        }
        let server =
            servers.iter().find(|of| of.process.borrow().info().server == server).expect("it is one of them");
        server.process.borrow_mut().carry_out(caller.now(), id, call).map_err(Denied::from)
    };
    machine.keep_sessions(Rc::new(client.clone()), keeper(client.remote()), carry, drop);
    (machine, client)
}

/// Values of all keys in their order, as numbers of changes; `None`: deleted. The first one: never there.
#[derive(Default)]
struct History {
    values: BTreeMap<u64, Vec<Option<u64>>>,
    /// Number of the last value of each key that is acknowledged.
    acknowledged: BTreeMap<u64, usize>,
    changes: u64,
}

/// Value of a change: some are so short that trees keep them in their entries. None has eight bytes, which Dolphin keeps in a leaf's word, without
/// a checksum.
pub(super) fn value(change: u64) -> Vec<u8> {
    let mut word = change.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let span = if word >> 62 == 0 { 8 } else { LONGEST - 8 };
    let len = (8 + (word >> 13) % span).max(9);
    let mut bytes = change.to_le_bytes().to_vec();
    while (bytes.len() as u64) < len {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.push(word as u8);
    }
    bytes
}

type Acknowledged = BTreeMap<u64, usize>;

/// Servers whose power was cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    All,
    One(usize),
}

/// Content of a folder whose server has ended.
pub(super) struct Left {
    history: History,
    /// What was acknowledged at the last sync.
    least: Acknowledged,
}

impl Left {
    /// Checks the value of a key. Returns whether acknowledged changes of it are lost.
    pub(super) fn check(&self, key: u64, now: Option<&[u8]>) -> Result<bool, String> {
        is_right(&self.history, &self.least, key, now)
    }
}

/// Has clients write to a new folder until they are done, and ends the server's process without a stop.
pub(super) fn write_for_a_while<S: Structure>(scenario: &Scenario, folder: &Path) -> Result<Left, String> {
    let seed = scenario.seed;
    let mut draw = random(seed, 170);
    let world = world(seed);
    let content = S::make(folder, 0, 1, Keeping::default());
    let servers = [Server::<S>::start(&world, content)?];
    let (journal, history) = (Arc::clone(servers[0].journal()), Rc::default());
    let begin = |number| begin_client(&world, &servers, seed, number, &history, |_| ());
    let clients: Vec<_> = (0..CLIENTS).map(begin).collect();
    let mut least = Acknowledged::default();
    while !clients.iter().all(|task| task.has_ended()) {
        let pause = Duration::from_micros(draw.random_range(100..4000));
        let until = world.now() + pause;
        let ended =
            world.run_until(|| world.now() >= until || clients.iter().all(|task| task.has_ended()), SOON);
        ended.map_err(|stuck| format!("clients do not end: {stuck}"))?;
        let failed = |error: fatbtree_verbs::journal::JournalError| error.to_string();
        journal.commit().map_err(failed)?;
        // What is acknowledged was committed.
        least = history.borrow().acknowledged.clone();
        match draw.random_range(0..3) {
            0 => journal.checkpoint().map_err(failed)?,
            _ => journal.sync().map_err(failed)?,
        }
    }
    for task in &clients {
        task.take().expect("the machine lives")?;
    }
    drop((clients, servers, world));
    Ok(Left { history: history.take(), least })
}

/// A moment at which the power was cut on some of the servers. The others' files are as they were then.
struct Moment {
    of: Of,
    cuts: Vec<Cut>,
    /// Number of the snapshot of what had reached the disks.
    mark: u64,
    is_within: bool,
}

/// What the tasks of a run share.
struct Shared {
    history: Rc<RefCell<History>>,
    /// What was acknowledged before each sync.
    marks: RefCell<Vec<Acknowledged>>,
    moments: RefCell<Vec<Moment>>,
    is_over: Cell<bool>,
    /// Cuts that are still to be made before syncs, and what decides about them.
    before_syncs: RefCell<(u64, Random)>,
}

/// Servers on disks that fail, and their clients.
struct Run<'s, S: Structure> {
    scenario: &'s Scenario,
    world: World,
    folders: Vec<PathBuf>,
    servers: Vec<Kept<S>>,
    shared: Rc<Shared>,
}

/// Runs a scenario.
pub(super) fn run<S: Structure>(scenario: &Scenario) -> Result<Outcome, String> {
    let mut draw = random(scenario.seed, 120);
    let home = TempDir::new().map_err(|error| error.to_string())?;
    let run = Run::<S>::begin(scenario, home.path(), &mut draw)?;
    let clients = run.work();
    run.fail(&mut draw);
    let ended = run.world.run_until(|| clients.iter().all(|task| task.has_ended()), SOON);
    ended.map_err(|stuck| format!("clients do not end: {stuck}"))?;
    run.shared.is_over.set(true);
    for task in &clients {
        task.take().expect("the machine lives")?;
    }
    run.end()
}

impl<'s, S: Structure> Run<'s, S> {
    /// Starts servers with new folders.
    fn begin(scenario: &'s Scenario, home: &Path, draw: &mut Random) -> Result<Self, String> {
        let world = world(scenario.seed);
        let folders: Vec<_> = (0..scenario.servers).map(|server| home.join(server.to_string())).collect();
        let disks: Vec<_> =
            folders.iter().map(|_| Arc::new(LossyDisk::new(draw.random_range(0..=u64::MAX)))).collect();
        let mut servers = Vec::new();
        for ((number, folder), of) in (0..).zip(&folders).zip(disks) {
            let disk = Arc::clone(&of) as Arc<dyn Disk>;
            // The disk's clock stands still: of itself the journal never syncs, and clients are told that it does some time.
            let pace = Pace::Every(Duration::from_secs(1));
            let keeping = Keeping { pace, disk, ..Keeping::default() };
            let content = S::make(folder, number, scenario.servers, keeping);
            servers.push((Server::<S>::start(&world, content)?, of));
        }
        let shared = Rc::new(Shared {
            history: Rc::default(),
            marks: RefCell::new(vec![Acknowledged::default()]),
            moments: RefCell::default(),
            is_over: Cell::default(),
            before_syncs: RefCell::new((scenario.cuts / 2, random(scenario.seed, 160))),
        });
        Ok(Self { scenario, world, folders, servers, shared })
    }

    /// Starts clients that change their keys.
    fn work(&self) -> Vec<Task<Result<(), String>>> {
        let servers: Vec<_> = self.servers.iter().map(|(server, _)| Rc::clone(server)).collect();
        let client = |number| {
            let (kept, shared) = (self.servers.clone(), Rc::clone(&self.shared));
            // A server fails just before it does what a client waits for.
            let asked = move |server: u16| {
                let (left, draw) = &mut *shared.before_syncs.borrow_mut();
                if *left > 0 && draw.random_range(0..4) == 0 {
                    *left -= 1;
                    shared.moments.borrow_mut().push(cut_now(&kept, Of::One(server.into())));
                }
            };
            begin_client(&self.world, &servers, self.scenario.seed, number, &self.shared.history, asked)
        };
        (0..CLIENTS).map(client).collect()
    }

    /// Lets disks fail while clients work: in operations of the disk of one server, and at moments in between.
    fn fail(&self, draw: &mut Random) {
        let Scenario { seed, cuts, servers, .. } = *self.scenario;
        if servers == 1 {
            // Somewhere in what the disk will be asked for.
            let (_, disk) = &self.servers[0];
            let from = disk.operations();
            disk.cut_in((0..cuts / 2).map(|_| from + draw.random_range(0..600)));
        }
        let operator = self.world.operator();
        for (number, server) in (0..).zip(&self.servers) {
            let draw = random(seed, 140 + number);
            drop(operator.spawn(sync(operator.clone(), server.clone(), draw, Rc::clone(&self.shared))));
        }
        let (kept, draw) = (self.servers.clone(), random(seed, 150));
        drop(operator.spawn(cut(operator.clone(), kept, cuts, draw, Rc::clone(&self.shared))));
    }

    /// Starts servers from what each cut has left.
    fn end(self) -> Result<Outcome, String> {
        let Self { scenario, world, folders, servers, shared } = self;
        let mut outcome = Outcome::default();
        let mut moments = shared.moments.take();
        for (server, disk) in &servers {
            outcome.disk_operations += disk.operations();
            outcome.applied += server.journal().counts().applied;
            moments.extend(disk.cuts().into_iter().map(|cut| Moment {
                of: Of::All,
                mark: cut.mark,
                cuts: vec![cut],
                is_within: true,
            }));
        }
        drop((servers, world));
        let (history, marks) = (shared.history.take(), shared.marks.take());
        outcome.changes = history.changes;
        for (number, moment) in (0..).zip(&moments) {
            let least = &marks[moment.mark as usize];
            let lost = moment.start_again::<S>(&folders, scenario, &history, least, number)?;
            outcome.cuts += 1;
            outcome.cuts_within += u64::from(moment.is_within);
            if scenario.servers > 1 {
                outcome.cuts_of_all += u64::from(moment.of == Of::All);
                outcome.cuts_of_one += u64::from(moment.of != Of::All);
            }
            outcome.cuts_with_losses += u64::from(lost > 0);
            outcome.reads += CLIENTS * KEYS;
        }
        Ok(outcome)
    }
}

impl Moment {
    /// Brings back the files as they were, and starts servers from them. Returns how many keys have lost acknowledged changes.
    fn start_again<S: Structure>(
        &self,
        folders: &[PathBuf],
        scenario: &Scenario,
        history: &History,
        least: &Acknowledged,
        number: u64,
    ) -> Result<u64, String> {
        let left = TempDir::new().map_err(|error| error.to_string())?;
        for (folder, cut) in folders.iter().zip(&self.cuts) {
            let name = folder.file_name().expect("it has a name");
            cut.restore(folder, &left.path().join(name)).map_err(|error| error.to_string())?;
        }
        start_again::<S>(left.path(), scenario, history, least, number).map_err(|error| {
            let places: Vec<_> = self.cuts.iter().map(|cut| (cut.operation, cut.kind)).collect();
            format!("power cut of {:?}, in operations {places:?} of the disks: {error}", self.of)
        })
    }
}

/// Starts a client that changes its keys.
fn begin_client<S: Structure>(
    world: &World,
    servers: &[Rc<Server<S>>],
    seed: u64,
    number: u64,
    history: &Rc<RefCell<History>>,
    asked: impl Fn(u16) + 'static,
) -> Task<Result<(), String>> {
    let (machine, client) = client(world, servers, seed ^ number, asked);
    let (draw, first) = (random(seed, 130 + number), seed / 9 % GROUPS);
    machine.spawn(change_keys::<S>(client, (number, first), draw, Rc::clone(history)))
}

/// A client: changes its keys.
async fn change_keys<S: Structure>(
    client: S::Client,
    (number, first): (u64, u64),
    mut draw: Random,
    history: Rc<RefCell<History>>,
) -> Result<(), String> {
    client.ready().await.map_err(text)?;
    for count in 0..CHANGES {
        let phase = count / PHASE;
        // A part of the structure grows in two phases, and shrinks in two.
        let group = (first + phase / 4) % GROUPS;
        let in_eight = if phase % 4 < 2 { 1 } else { 7 };
        let is_other = draw.random_range(0..8) == 0;
        let group = if is_other { draw.random_range(0..GROUPS) } else { group };
        let in_group =
            draw.random_range(0..if phase.is_multiple_of(4) || is_other { LATE } else { IN_GROUP });
        let key = key_of(number, in_group * GROUPS + group);
        let deletes = draw.random_range(0..8) < in_eight;
        let (change, index) = {
            let mut history = history.borrow_mut();
            history.changes += 1;
            let change = history.changes;
            let values = history.values.entry(key).or_insert_with(|| vec![None]);
            values.push((!deletes).then_some(change));
            (change, values.len() - 1)
        };
        match deletes {
            true => kinds::change::<S>(&client, key, Change::Delete).await?,
            false => kinds::change::<S>(&client, key, Change::Upsert(&value(change))).await?,
        }
        history.borrow_mut().acknowledged.insert(key, index);
    }
    Ok(())
}

/// Syncs a server's journal, and now and then applies it.
async fn sync<S: Structure>(
    operator: Machine,
    (server, disk): Kept<S>,
    mut draw: Random,
    shared: Rc<Shared>,
) {
    let journal = server.journal();
    loop {
        operator.sleep(Duration::from_micros(draw.random_range(20..400))).await;
        // What is acknowledged was committed: the sync has it.
        journal.commit().expect("the disk does not fail for the process");
        let acknowledged = shared.history.borrow().acknowledged.clone();
        match draw.random_range(0..8) {
            0 => journal.checkpoint(),
            1 => journal.sync().and_then(|()| journal.apply().map(drop)),
            _ => journal.sync(),
        }
        .expect("the disk does not fail for the process");
        let mut marks = shared.marks.borrow_mut();
        disk.mark(marks.len() as u64);
        marks.push(acknowledged);
    }
}

/// A server with its disk.
type Kept<S> = (Rc<Server<S>>, Arc<LossyDisk>);

/// Cuts the power of some servers.
fn cut_now<S: Structure>(servers: &[Kept<S>], of: Of) -> Moment {
    let mut mark = u64::MAX;
    let cuts = servers.iter().enumerate().map(|(number, (server, disk))| {
        if of == Of::All || of == Of::One(number) {
            let cut = disk.cut();
            mark = mark.min(cut.mark);
            return cut;
        }
        // It goes on with all that it has.
        server.journal().commit().expect("the disk does not fail for the process");
        disk.whole()
    });
    let cuts = cuts.collect();
    Moment { of, cuts, mark, is_within: false }
}

/// Cuts the power at some moments.
async fn cut<S: Structure>(
    operator: Machine,
    servers: Vec<Kept<S>>,
    cuts: u64,
    mut draw: Random,
    shared: Rc<Shared>,
) {
    for _ in 0..cuts {
        operator.sleep(Duration::from_micros(draw.random_range(10..600))).await;
        if shared.is_over.get() {
            return;
        }
        let of = match draw.random_range(0..servers.len() * 2) {
            one if one < servers.len() => Of::One(one),
            _ => Of::All,
        };
        shared.moments.borrow_mut().push(cut_now(&servers, of));
    }
}

/// Starts servers from what is left, and checks it. Returns how many keys have lost acknowledged changes.
fn start_again<S: Structure>(
    left: &Path,
    scenario: &Scenario,
    history: &History,
    least: &Acknowledged,
    number: u64,
) -> Result<u64, String> {
    let world = world(scenario.seed ^ number << 32);
    let mut servers = Vec::new();
    for server in 0..scenario.servers {
        let found = S::found(&left.join(server.to_string()), server).map_err(|error| error.to_string())?;
        let found = found.ok_or("a server was kept, and its folder is empty")?;
        servers.push(Server::<S>::start(&world, found)?);
    }
    let (machine, client) = client(&world, &servers, number, |_| ());
    let asked = keys();
    let task = machine.spawn(async move {
        client.verify().await.map_err(text)?;
        let mut found = BTreeMap::new();
        for &key in &asked {
            found.insert(key, get::<S>(&client, key).await.map_err(|error| format!("key {key}: {error}"))?);
        }
        for &key in &asked {
            let written = kinds::change::<S>(&client, key, Change::Upsert(&value(key))).await;
            written.map_err(|error| format!("writing {key}: {error}"))?;
        }
        for &key in &asked {
            let is = get::<S>(&client, key).await.map_err(|error| format!("key {key}: {error}"))?;
            if is != Some(value(key)) {
                return Err(format!("key {key} was written, and has another value"));
            }
        }
        client.verify().await.map_err(text)?;
        Ok(found)
    });
    let ended = world.run_until(|| task.has_ended(), SOON);
    ended.map_err(|stuck| format!("a client of what is left does not end: {stuck}"))?;
    let found = task.take().expect("the machine lives")?;
    let mut lost = 0;
    for key in keys() {
        lost += u64::from(is_right(history, least, key, found[&key].as_deref())?);
    }
    Ok(lost)
}

/// Checks the value of a key: one that it has had since `least`. Returns whether acknowledged changes are lost.
fn is_right(history: &History, least: &Acknowledged, key: u64, now: Option<&[u8]>) -> Result<bool, String> {
    let nothing = vec![None];
    let values = history.values.get(&key).unwrap_or(&nothing);
    let from = least.get(&key).copied().unwrap_or(0);
    let is = |change: &Option<u64>| change.map(value).as_deref() == now;
    if !values[from..].iter().any(is) {
        let old = values.iter().position(is);
        return Err(format!(
            "key {key} has {}, expected one of its values {from} to {}, which are on the disk or later",
            old.map_or("a value that it never had".to_owned(), |old| format!("its value {old}")),
            values.len() - 1
        ));
    }
    let acknowledged = history.acknowledged.get(&key).copied().unwrap_or(0);
    Ok(!values[acknowledged..].iter().any(is))
}

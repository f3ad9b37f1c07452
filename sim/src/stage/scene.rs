//! Clients and servers of a structure in a trial: they work, die and begin anew, and one client that lives asks for everything in the end.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use fatbtree_memserver::Part;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::Server;
use crate::world::trial::{Ended, Fault, Stage};
use crate::world::{FinalOperation, Machine, MachineOptions, Random, World};

/// Time for the last operations, and for a walk over a structure: far more than they take.
pub(crate) const SOON: Duration = Duration::from_millis(200);
const CLIENTS: usize = 3;
/// Tasks of the last client, each with a share of the keys.
pub(crate) const SHARES: usize = 4;

/// The clients of a structure.
pub(crate) trait Clients: Sized + 'static {
    /// A server's part of the structure.
    type Part: Part + Clone;

    /// Lets a client work on a machine that has just booted.
    fn work(&self, scene: &Scene<Self>, machine: &Machine, draw: &mut Random);

    /// Starts the last operations, on the machine that does not die: each must succeed.
    fn end(&self, scene: &Scene<Self>, draw: &mut Random) -> Vec<FinalOperation<String>>;

    /// Decides, after a server has died, for how many mishaps it stays away.
    fn died(&self, _: &mut Random) {}

    /// Whether servers that died begin anew before this mishap.
    fn are_back(&self, _: &mut Random) -> bool {
        true
    }

    /// A disturbance of servers.
    fn disturb(&self, _: &[Rc<Server<Self::Part>>], _: &mut Random) {}

    /// What a client has seen that must never be.
    fn nothing_wrong(&self) -> Result<(), String>;
}

/// Clients and servers of a structure.
pub(crate) struct Scene<C: Clients> {
    pub(crate) clients: C,
    pub(crate) servers: Vec<Rc<Server<C::Part>>>,
    machines: Vec<Machine>,
    /// Machine of the client that lives in the end.
    pub(crate) last: Machine,
    pub(crate) deaths: Cell<u64>,
    pub(crate) restarts: Cell<u64>,
    /// Decides about what is begun in the end.
    draw: RefCell<Random>,
}

impl<C: Clients> Scene<C> {
    /// A scene with servers that have just started. `fit` gives a client's machine what it needs.
    pub(crate) fn new(
        world: &World,
        servers: Vec<Rc<Server<C::Part>>>,
        clients: C,
        fit: impl Fn(MachineOptions) -> MachineOptions,
        draw: &mut Random,
        of_end: Random,
    ) -> Rc<Self> {
        let machine = |options| world.machine(fit(options));
        let machines = (0..CLIENTS)
            .map(|number| machine(MachineOptions::rough(format!("client {number}"), draw)))
            .collect();
        Rc::new(Self {
            clients,
            servers,
            machines,
            last: machine(MachineOptions::named("last client")),
            deaths: Cell::default(),
            restarts: Cell::default(),
            draw: RefCell::new(of_end),
        })
    }

    /// Lets all clients work.
    pub(crate) fn begin(&self, draw: &mut Random) {
        self.machines.iter().for_each(|machine| self.clients.work(self, machine, draw));
    }

    /// One of the servers.
    pub(crate) fn server(&self, draw: &mut Random) -> &Server<C::Part> {
        &self.servers[draw.random_range(0..self.servers.len())]
    }

    /// Sum of a counter of the servers' processes.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.servers.iter().map(|server| server.count(name)).sum()
    }

    /// Runs something on the last client's machine to its end.
    pub(crate) fn walk<T: 'static>(
        &self,
        world: &World,
        walk: impl Future<Output = Result<T, String>> + 'static,
    ) -> Result<T, String> {
        let task = self.last.spawn(walk);
        let walked = world.run_until(|| task.has_ended(), SOON);
        walked.map_err(|_| "the walk over the structure does not end".to_owned())?;
        task.take().ok_or("the machine that walks over the structure died")?
    }

    /// Lets the last client die, waits until all servers have swept without any, and has it begin its last operations again: what they write
    /// lies in blocks that were lost.
    pub(crate) fn sweep(&self, world: &World, draw: &mut Random) -> Result<(), String> {
        self.last.kill();
        let sweeps = || self.servers.iter().map(|server| server.count("sweeps"));
        let before: Vec<u64> = sweeps().collect();
        let have_swept = || sweeps().zip(&before).all(|(now, before)| now > *before);
        world.run_until(have_swept, SOON).map_err(|stuck| format!("servers do not sweep: {stuck}"))?;
        self.last.boot();
        let tasks = self.clients.end(self, draw);
        let has_ended = || tasks.iter().all(|(_, task)| task.has_ended());
        world.run_until(has_ended, SOON).map_err(|stuck| format!("after a sweep: {stuck}"))?;
        tasks.iter().try_for_each(|(what, task)| {
            let ended = task.take().ok_or("the last client died")?;
            ended.map_err(|error| format!("after a sweep, {what}: {error}"))
        })
    }

    fn revive(&self, draw: &mut Random) {
        for server in self.servers.iter().filter(|server| !server.machine.is_up()) {
            server.revive(draw.random_range(0..=u64::MAX));
        }
    }
}

impl<C: Clients> Stage for Scene<C> {
    fn clients(&self) -> &[Machine] {
        &self.machines
    }

    fn any_server(&self, draw: &mut Random) -> &Machine {
        &self.server(draw).machine
    }

    fn begin_mishap(self: &Rc<Self>, draw: &mut Random) -> bool {
        if self.clients.are_back(draw) {
            self.revive(draw);
        }
        self.machines.iter().filter(|machine| machine.is_mute()).for_each(Machine::kill);
        for machine in self.machines.iter().filter(|machine| !machine.is_up()) {
            machine.boot();
            add(&self.deaths);
            self.clients.work(self, machine, draw);
        }
        false
    }

    fn disturb(&self, draw: &mut Random) {
        self.clients.disturb(&self.servers, draw);
    }

    fn begin_last(self: &Rc<Self>) -> Vec<FinalOperation<String>> {
        let draw = &mut *self.draw.borrow_mut();
        self.revive(draw);
        self.machines.iter().filter(|machine| machine.is_up()).for_each(Machine::kill);
        self.clients.end(self, draw)
    }
}

/// Servers' processes that die; their memory is kept.
pub(crate) struct Restarts {
    /// Percentage of mishaps.
    pub(crate) percent: u32,
}

impl<C: Clients> Fault<Scene<C>> for Restarts {
    fn percent(&self) -> u32 {
        self.percent
    }

    fn strike(&self, scene: &Rc<Scene<C>>, _: &Machine, draw: &mut Random) {
        let server = scene.server(draw);
        if server.machine.is_up() {
            server.die();
            add(&scene.restarts);
            scene.clients.died(draw);
        }
    }
}

/// No task has seen what must never be, and no start has taken for damage what clients have left.
pub(crate) fn nothing_wrong<C: Clients>(ended: &Ended<'_, Scene<C>>) -> Result<(), String> {
    match ended.stage.servers.iter().find_map(|server| server.damage()) {
        Some(damage) => Err(format!("a start takes what clients have left for damage: {damage}")),
        None => ended.stage.clients.nothing_wrong(),
    }
}

/// Counts one more.
pub(crate) fn add(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

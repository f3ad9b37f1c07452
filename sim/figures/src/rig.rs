//! The rig of all figures: a world on modelled cards, its servers and clients, and the window in which they are measured.
//!
//! ```text
//!   a figure's setup ──► Rig: servers, clients ──► slots: one operation after the other ──► warm-up ──► window: Measured ──► row
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fatbtree_memserver::{ClientId, Loaded, MemoryServer, ServerOptions, Tenant};
use fatbtree_remote_memory::session_keeper::{Denied, KeeperOptions, Notice, SessionKeeper};
use fatbtree_remote_memory::{Attempts, Kept, RemoteConfig, RemoteMemory};
use fatbtree_sim::world::{Machine, MachineOptions, Options, Retry, SimDevice, World};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Access, QueuePair};

use crate::card::{self, Calibration};
use crate::meter::{Measured, Meter};

/// Time for which sessions last without renewal: longer than a run, so that no renewal falls into one run and not into another.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// Time within which all clients are connected. They look for calls every 10 µs, and each call is answered at once.
pub(crate) const CONNECTING: Duration = Duration::from_millis(10);

/// Memory servers of a structure, by number. Calls reach them at once.
pub(crate) type Servers<T> = Rc<[RefCell<MemoryServer<SimDevice, T>>]>;

/// Server and rkey of each queue pair.
pub(crate) type Links = BTreeMap<QueuePair, (u16, u32)>;

/// A client's memory.
pub(crate) type Client = Rc<RemoteMemory<SimDevice>>;

/// A world without faults whose times are a modelled cluster's.
pub(crate) struct Rig {
    pub(crate) world: World,
    pub(crate) cards: card::Cluster,
    /// Machines of the servers, by number.
    pub(crate) servers: Vec<Machine>,
    /// Machines of the clients.
    pub(crate) clients: Vec<Machine>,
    pub(crate) meter: Rc<Meter>,
}

impl Rig {
    /// A rig with so many switches between a client and a server, and no machine.
    pub(crate) fn new(seed: u64, calibration: Calibration, switches: u32) -> Self {
        // Nothing is lost here, and under FG+ an atomic can wait for long.
        let retry = Retry { timeout: Duration::from_millis(50), limit: 7 };
        let world = World::new(seed, Options { retry, ..Options::default() });
        let cards = card::Cluster::new(calibration, switches);
        world.set_timing(cards.clone());
        Self { world, cards, servers: Vec::new(), clients: Vec::new(), meter: Rc::default() }
    }

    /// Adds a client's machine.
    pub(crate) fn client(&mut self, name: String) -> Machine {
        let machine = self.world.machine(MachineOptions::named(name));
        self.clients.push(machine.clone());
        machine
    }

    /// Adds a client that keeps its sessions with all servers.
    pub(crate) fn begin<T: Tenant + 'static>(
        &mut self,
        name: String,
        servers: &Servers<T>,
        config: RemoteConfig,
        seed: u64,
    ) -> Result<Client, String> {
        let machine = self.client(name);
        let memory = client(&machine, servers, config, seed)?;
        keep(&machine, Rc::clone(&memory), servers, &self.meter);
        Ok(memory)
    }

    /// Waits until all clients are connected.
    ///
    /// # Errors
    /// When one is not.
    pub(crate) fn connect<'m>(
        &self,
        memories: impl IntoIterator<Item = &'m RemoteMemory<SimDevice>>,
    ) -> Result<Links, String> {
        self.world.run_for(CONNECTING);
        let mut links = BTreeMap::new();
        for memory in memories {
            for id in memory.connections() {
                let (pair, rkey) = memory.link(id).map_err(|error| format!("{id} is not up: {error:?}"))?;
                links.insert(pair, (id.server, rkey));
            }
        }
        Ok(links)
    }

    /// Measures all clients, which have these memories, for a window.
    ///
    /// # Errors
    /// What was wrong since they have begun.
    pub(crate) fn measure<'m>(
        &self,
        window: Duration,
        memories: impl IntoIterator<Item = &'m RemoteMemory<SimDevice>>,
    ) -> Result<Measured, String> {
        let usages = |of: &[Machine]| of.iter().map(|of| self.cards.usage(of.id())).collect::<Vec<_>>();
        let (first, servers) = (self.cards.usage(self.clients[0].id()), usages(&self.servers));
        self.meter.begin_window();
        self.world.run_for(window);
        let tally = self.meter.end_window(self.clients.len(), self.world.now())?;
        let busy =
            usages(&self.servers).into_iter().zip(&servers).map(|(now, then)| now.since(then).busiest_bucket);
        let mut attempts = Attempts::default();
        memories.into_iter().for_each(|memory| attempts.merge(&memory.attempts()));
        Ok(Measured {
            tally,
            window,
            usage: self.cards.usage(self.clients[0].id()).since(&first),
            busiest_bucket: busy.max().unwrap_or_default(),
            attempts,
        })
    }
}

/// Machines for so many servers.
pub(crate) fn machines(world: &World, servers: u16) -> Vec<Machine> {
    (0..servers).map(|id| world.machine(MachineOptions::named(format!("server {id}")))).collect()
}

/// Starts a server on each machine, with chunks of so many bytes.
pub(crate) fn serve<T: Tenant>(
    machines: &[Machine],
    contents: impl IntoIterator<Item = Result<Loaded<T>, String>>,
    chunk_bytes: u64,
) -> Result<Servers<T>, String> {
    let options =
        ServerOptions { access: Access::ALL, chunk_bytes, lease: LEASE, ..ServerOptions::writable() };
    let servers = machines.iter().zip(contents).map(|(machine, content)| {
        let server = MemoryServer::new(machine.device(), content?, &options, 1);
        server.map(RefCell::new).map_err(|error| error.to_string())
    });
    servers.collect()
}

/// Memory of a client on its machine, which moves with the world. Its sessions are still to be [kept](keep).
pub(crate) fn client<T: Tenant>(
    machine: &Machine,
    servers: &Servers<T>,
    config: RemoteConfig,
    seed: u64,
) -> Result<Client, String> {
    let memory = RemoteMemory::new(machine.device(), 0..servers.len() as u16, config, seed);
    let memory = Rc::new(memory.map_err(|error| error.to_string())?);
    machine.set_driven(Rc::clone(&memory) as _);
    Ok(memory)
}

/// Keeps a client's sessions with servers, which calls reach at once. Nothing fails here: the meter is told of what does, and ends the run.
pub(crate) fn keep<K, T>(machine: &Machine, memory: Rc<K>, servers: &Servers<T>, meter: &Rc<Meter>)
where
    K: Kept<Verbs = SimDevice> + 'static,
    T: Tenant + 'static,
{
    let roce = machine.reactor().with(|card| card.address());
    let id = ClientId { host: roce.into(), roce };
    let keeper = SessionKeeper::new(memory.remote().connections(), KeeperOptions::default());
    let (servers, caller, meter) = (Rc::clone(servers), machine.clone(), Rc::clone(meter));
    let carry = async move |server, call| {
        servers[usize::from(server)].borrow_mut().carry_out(caller.now(), id, call).map_err(Denied::from)
    };
    let told = move |notice| match notice {
        Notice::Opened { .. } | Notice::Connected { .. } => {}
        other => meter.fail(format!("nothing fails here, but: {other:?}")),
    };
    machine.keep_sessions(memory, Rc::new(RefCell::new(keeper)), carry, told);
}

/// A world without faults in which a structure is loaded: its servers, and one client that the meter watches.
pub(crate) struct Loading {
    pub(crate) world: World,
    pub(crate) machine: Machine,
    pub(crate) memory: Client,
    meter: Rc<Meter>,
}

impl Loading {
    /// Starts servers with empty parts, and a client that is connected.
    pub(crate) fn begin<T: Tenant + 'static>(
        contents: Vec<Loaded<T>>,
        chunk_bytes: u64,
    ) -> Result<Self, String> {
        let (world, meter) = (World::new(1, Options::default()), Rc::default());
        let machines = machines(&world, contents.len() as u16);
        let servers = serve(&machines, contents.into_iter().map(Ok), chunk_bytes)?;
        let machine = world.machine(MachineOptions::named("loader"));
        let memory = client(&machine, &servers, RemoteConfig::default(), 1)?;
        keep(&machine, Rc::clone(&memory), &servers, &meter);
        world.run_for(CONNECTING);
        Ok(Self { world, machine, memory, meter })
    }

    /// Runs the client's work to its end, and everything that is under way.
    pub(crate) fn run<L: 'static>(
        &self,
        work: impl Future<Output = Result<L, String>> + 'static,
        within: Duration,
    ) -> Result<L, String> {
        let loading = self.machine.spawn(work);
        let ended = self.world.run_until(|| loading.has_ended(), within);
        ended.map_err(|_| "loading takes too long".to_owned())?;
        let loaded = loading.take().ok_or("the loader died")??;
        self.world.settle();
        self.meter.nothing_wrong().map(|()| loaded)
    }
}

/// Does something for each key, some of them at once.
///
/// # Errors
/// The first one of them.
pub(crate) async fn for_each(
    machine: &Machine,
    keys: &Rc<[u64]>,
    at_once: u32,
    each: impl AsyncFn(u64) -> Result<(), String> + 'static,
) -> Result<(), String> {
    let each = Rc::new(each);
    let begin = |task| {
        let (keys, each) = (Rc::clone(keys), Rc::clone(&each));
        machine.spawn(async move {
            for &key in keys.iter().skip(task as usize).step_by(at_once as usize) {
                each(key).await?;
            }
            Ok::<_, String>(())
        })
    };
    let tasks: Vec<_> = (0..at_once).map(begin).collect();
    for task in tasks {
        while !task.has_ended() {
            machine.sleep(Duration::from_micros(50)).await;
        }
        task.take().unwrap_or(Ok(()))?;
    }
    Ok(())
}

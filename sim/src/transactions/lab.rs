//! Memory servers of production on simulated machines, with their parts of tables, and clients with a session with each.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::rc::Rc;

use fatbtree_dtx::host::{Content, HostTables};
use fatbtree_dtx::{Shape, Tables};
use fatbtree_memserver::{Bounds, ClientId, Limits, Loaded, MemoryServer, ServerOptions};
use fatbtree_remote_memory::session_keeper::{Denied, KeeperOptions, NoAnswer, Notice, SessionKeeper};
use fatbtree_remote_memory::{Contention, RemoteConfig, RemoteMemory};
use fatbtree_verbs::Access;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use crate::world::{Machine, MachineOptions, Random, SimDevice, World};

/// Interval in which a client and a server look for something to be done.
const LOOK: Duration = Duration::from_micros(10);

/// Time for which an operation tries: far more than one takes when nothing is in the way.
pub const PATIENCE: Duration = Duration::from_millis(20);

/// The memory as a client reaches it.
pub type Client = Rc<RemoteMemory<SimDevice>>;

/// A memory server in all its lives. Its process is asked directly, as if the network for calls were perfect; verbs go through the
/// simulated one.
pub struct Server {
    /// Its machine.
    pub machine: Machine,
    /// Its number.
    pub number: u16,
    shape: Shape,
    options: ServerOptions,
    content: RefCell<Loaded<HostTables>>,
    process: RefCell<Option<MemoryServer<SimDevice, HostTables>>>,
    lives: Cell<u64>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("number", &self.number).finish_non_exhaustive()
    }
}

fn make(number: u16, shape: Shape, content: Content, generation: u64) -> Loaded<HostTables> {
    HostTables::make(number, shape, content, generation).expect("the shape is possible")
}

impl Server {
    /// Starts a server with its part of empty tables. A task of the operator works for its process.
    #[must_use]
    pub fn new(world: &World, number: u16, shape: Shape, lease: Duration) -> Rc<Self> {
        let bounds = Bounds { sessions: 1 << 20, queue_pairs: 1 << 20, chunks: 1 << 20, attempts: u32::MAX };
        let limits = Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() };
        let options = ServerOptions {
            access: Access::ALL,
            lock_table_bytes: 64,
            lease,
            limits,
            ..ServerOptions::writable()
        };
        let server = Rc::new(Self {
            machine: world.machine(MachineOptions::named(format!("server {number}"))),
            number,
            shape,
            options,
            content: RefCell::new(make(number, shape, Content::Empty, 1)),
            process: RefCell::default(),
            lives: Cell::new(0),
        });
        server.begin(u64::from(number) + 1);
        let (worked, operator) = (Rc::clone(&server), world.operator().clone());
        drop(world.operator().spawn(async move {
            loop {
                worked.work();
                operator.sleep(LOOK).await;
            }
        }));
        server
    }

    /// Starts the process, with the memory that there is.
    fn begin(&self, seed: u64) {
        let content = self.content.borrow().clone();
        let process = MemoryServer::new(self.machine.device(), content, &self.options, seed);
        *self.process.borrow_mut() = Some(process.expect("the tables fit the card"));
    }

    fn work(&self) {
        if let Some(process) = &mut *self.process.borrow_mut() {
            process.work(self.machine.now(), 64);
            while process.poll_event().is_some() {}
        }
    }

    /// The process dies with its machine. The memory is kept, torn as it is.
    pub fn die(&self) {
        self.process.borrow_mut().take();
        self.machine.kill();
    }

    /// The process dies with its machine, and the memory is lost.
    pub fn lose(&self) {
        self.lose_for(Content::Lost);
    }

    /// The same; the next process begins with this content.
    pub fn lose_for(&self, content: Content) {
        self.die();
        let generation = self.content.borrow().generation + 1;
        *self.content.borrow_mut() = make(self.number, self.shape, content, generation);
    }

    /// Starts the machine and the process anew.
    pub fn revive(&self, seed: u64) {
        self.machine.boot();
        self.lives.set(self.lives.get() + 1);
        self.begin(seed);
    }

    /// Whether the memory has all items.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        HostTables::is_whole(&self.content.borrow())
    }
}

/// Starts servers with empty tables.
#[must_use]
pub fn serve(world: &World, shape: Shape, lease: Duration) -> Vec<Rc<Server>> {
    let numbers = (0..32_u16).filter(|&number| shape.position(number).is_some());
    numbers.map(|number| Server::new(world, number, shape, lease)).collect()
}

/// Makes a client on a machine that has just booted, and a task that keeps its sessions and connections. What is left is settled when the
/// memory tells of it, as owners do it.
pub fn begin(machine: &Machine, servers: &[Rc<Server>], contention: Contention, draw: &mut Random) -> Client {
    let lanes = draw.random_range(1..=2);
    let config = RemoteConfig { lanes, contention, patience: PATIENCE, ..RemoteConfig::default() };
    let seed = draw.random_range(0..=u64::MAX);
    let numbers: Vec<u16> = servers.iter().map(|server| server.number).collect();
    let memory = RemoteMemory::new(machine.device(), numbers.iter().copied(), config, seed);
    let memory = Rc::new(memory.expect("there are lanes"));
    machine.set_driven(Rc::clone(&memory) as _);
    let pauses = KeeperOptions { first_pause: LOOK, longest_pause: LOOK, ..KeeperOptions::default() };
    let keeper = Rc::new(RefCell::new(SessionKeeper::new(memory.connections(), pauses)));
    let (servers, caller) = (servers.to_vec(), machine.clone());
    let host = Ipv4Addr::from_bits(0x0a00_0000 | machine.id().0);
    let client = ClientId { host: host.into(), roce: host };
    let carry = async move |server: u16, call| {
        let server = servers.iter().find(|of| of.number == server).expect("it is one of them");
        match &mut *server.process.borrow_mut() {
            Some(process) => process.carry_out(caller.now(), client, call).map_err(Denied::from),
            None => Err(NoAnswer.into()),
        }
    };
    let (of, on, home) = (Rc::downgrade(&memory), machine.clone(), numbers[0]);
    let told = move |notice| {
        if let (Notice::Unfinished { .. }, Some(memory)) = (notice, of.upgrade()) {
            drop(on.spawn(async move {
                if let Ok(tables) = Tables::open(memory, home).await {
                    // What cannot be settled now is told of again.
                    tables.finish().await.ok();
                }
            }));
        }
    };
    drop(machine.spawn(machine.clone().keep_sessions(Rc::clone(&memory), keeper, carry, told)));
    memory
}

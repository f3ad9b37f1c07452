//! Memory servers of production on simulated machines, and clients with a session with each.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_memserver::{
    Bounds, ClientId, Limits, Loaded, MemoryServer, ServerOptions, chunk_classes_bytes, make,
};
use fatbtree_race::Shape;
use fatbtree_race::host::{HashTable, MakeOptions};
use fatbtree_remote_memory::session_keeper::{Denied, KeeperOptions, NoAnswer, SessionKeeper};
use fatbtree_remote_memory::{Contention, RemoteConfig, RemoteMemory};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Access, Memory};
use rand::RngExt as _;

use crate::world::{Machine, MachineOptions, Random, SimDevice, World, with_syncs};

/// Interval in which a client and a server look for something to be done.
const LOOK: Duration = Duration::from_micros(10);

/// The memory as a client reaches it.
pub type Client = Rc<RemoteMemory<SimDevice>>;

/// A memory server in all its lives. Its process is asked directly, as if the network for calls were perfect; verbs go through the
/// simulated one.
#[expect(missing_debug_implementations, reason = "a part of simulations")]
pub struct Server {
    /// Its machine.
    pub machine: Machine,
    options: ServerOptions,
    content: RefCell<Loaded<HashTable>>,
    process: RefCell<Option<MemoryServer<SimDevice, HashTable>>>,
    syncs: Cell<bool>,
    /// What a start has taken for damage.
    damage: RefCell<Option<String>>,
}

impl Server {
    /// Starts a server with its part of an empty table.
    fn new(
        world: &World,
        number: u16,
        shape: Shape,
        (spare, chunk_bytes): (u64, u64),
        lease: Duration,
    ) -> Rc<Self> {
        let content = RefCell::new(empty(number, shape, spare, chunk_bytes));
        let bounds = Bounds { sessions: 1 << 20, queue_pairs: 1 << 20, chunks: 1 << 20, attempts: u32::MAX };
        let limits = Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() };
        let options = ServerOptions {
            access: Access::ALL,
            lock_table_bytes: 64,
            reclaim_every: Duration::from_micros(200),
            chunk_bytes,
            lease,
            limits,
            ..ServerOptions::writable()
        };
        let machine = world.machine(MachineOptions::named(format!("server {number}")));
        let server = Rc::new(Self {
            machine,
            options,
            content,
            process: RefCell::default(),
            syncs: Cell::default(),
            damage: RefCell::default(),
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

    /// Starts the process, with the memory that was kept.
    fn begin(&self, seed: u64) {
        let process =
            MemoryServer::new(self.machine.device(), self.content.borrow().clone(), &self.options, seed);
        *self.process.borrow_mut() = Some(process.expect("the table fits the card"));
    }

    fn work(&self) {
        if let Some(process) = &mut *self.process.borrow_mut() {
            process.work(self.machine.now(), 64);
            while process.poll_event().is_some() {}
        }
    }

    /// Says to the clients of sessions that begin from now on that a sync of the server's disk has to be asked for.
    pub fn keep_on_disk(&self) {
        self.syncs.set(true);
    }

    /// The process dies with its machine. The memory is kept, torn as it is.
    pub fn die(&self) {
        self.process.borrow_mut().take();
        self.machine.kill();
    }

    /// Starts the machine and the process anew. Before, the part is checked as a folder's is.
    pub fn revive(&self, seed: u64) {
        {
            let content = self.content.borrow();
            if let Err(damage) = content.tenant.check(content.layout(self.options.chunk_bytes)) {
                *self.damage.borrow_mut() = Some(format!("server {}: {damage}", content.server));
            }
        }
        self.machine.boot();
        self.begin(seed);
    }

    /// Starts the machine and the process anew, with an empty part of the table in place of the one that was there.
    pub fn lose(&self, generation: u64) {
        let (shape, spare) = {
            let content = self.content.borrow();
            (content.tenant.info().shape, content.spare.end - content.spare.start)
        };
        let mut content = empty(self.number(), shape, spare, self.options.chunk_bytes);
        content.generation = generation;
        let header = shape.header(content.tenant.info().directory, generation, content.region.len());
        content.region.write(0, &header.to_bytes()).expect("a region begins with its header");
        *self.content.borrow_mut() = content;
        self.revive(generation);
    }

    /// Its region, for what damages it.
    pub fn region(&self) -> Arc<Memory> {
        Arc::clone(&self.content.borrow().region)
    }

    fn number(&self) -> u16 {
        self.content.borrow().server
    }

    /// What a start has taken for damage: what dead clients leave never is.
    pub fn damage(&self) -> Option<String> {
        self.damage.borrow().clone()
    }

    /// A counter of the process.
    pub fn count(&self, name: &str) -> u64 {
        let process = self.process.borrow();
        let all = process.as_ref().map(MemoryServer::statistics).unwrap_or_default();
        all.into_iter().find(|(found, _)| found == name).map_or(0, |(_, count)| count)
    }
}

/// A server's part of an empty table.
fn empty(number: u16, shape: Shape, spare: u64, chunk_bytes: u64) -> Loaded<HashTable> {
    let options = MakeOptions { spare_bytes: spare, chunk_bytes, ..MakeOptions::new(number, shape) };
    let mut content = make::<HashTable>(&options).expect("the shape is possible");
    let classes = Memory::shared(chunk_classes_bytes(spare, chunk_bytes));
    content.chunk_classes = Some(classes.expect("there is memory for a table"));
    content
}

/// Starts servers with an empty table, and so many bytes of chunks each.
pub fn serve(world: &World, shape: Shape, spare: u64, lease: Duration) -> Vec<Rc<Server>> {
    serve_in_chunks(world, shape, (spare, 64 << 10), lease)
}

/// The same with chunks of so many bytes.
pub fn serve_in_chunks(world: &World, shape: Shape, room: (u64, u64), lease: Duration) -> Vec<Rc<Server>> {
    let numbers = (0..32_u16).filter(|number| shape.servers >> number & 1 == 1);
    numbers.map(|number| Server::new(world, number, shape, room, lease)).collect()
}

/// Makes a client on a machine that has just booted, and a task that keeps its sessions and connections.
pub fn begin(machine: &Machine, servers: &[Rc<Server>], contention: Contention, draw: &mut Random) -> Client {
    // Far more than an operation takes when nothing is in the way.
    let patience = Duration::from_millis(30);
    let lanes = draw.random_range(1..=2);
    let config = RemoteConfig { lanes, contention, patience, ..RemoteConfig::default() };
    let seed = draw.random_range(0..=u64::MAX);
    let numbers: Vec<u16> = servers.iter().map(|server| server.number()).collect();
    let memory = RemoteMemory::new(machine.device(), numbers.iter().copied(), config, seed);
    let memory = Rc::new(memory.expect("there are lanes"));
    machine.set_driven(Rc::clone(&memory) as _);
    let pauses = KeeperOptions { first_pause: LOOK, longest_pause: LOOK, ..KeeperOptions::default() };
    let keeper = Rc::new(RefCell::new(SessionKeeper::new(memory.connections(), pauses)));
    let (servers, caller) = (servers.to_vec(), machine.clone());
    let host = Ipv4Addr::from_bits(0x0a00_0000 | machine.id().0);
    let client = ClientId { host: host.into(), roce: host };
    let carry = async move |server: u16, call| {
        let server = servers.iter().find(|of| of.number() == server).expect("it is one of them");
        let syncs = server.syncs.get();
        if syncs {
            caller.sync(&call).await;
        }
        match &mut *server.process.borrow_mut() {
            Some(process) => {
                let granted = process.carry_out(caller.now(), client, call);
                granted.map(|granted| with_syncs(granted, syncs)).map_err(Denied::from)
            }
            None => Err(NoAnswer.into()),
        }
    };
    drop(machine.spawn(machine.clone().keep_sessions(Rc::clone(&memory), keeper, carry, drop)));
    memory
}

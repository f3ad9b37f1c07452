//! Memory servers of production on simulated machines, and clients with a session with each.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;

use fatbtree_memserver::session_keeper::{Denied, KeeperOptions, NoAnswer, SessionKeeper};
use fatbtree_memserver::{
    Bounds, ClientId, Limits, Loaded, MemoryServer, ServerOptions, chunk_classes_bytes,
};
use fatbtree_race::Shape;
use fatbtree_race::host::HashTable;
use fatbtree_remote::{Contention, RemoteConfig, RemoteMemory};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Access, Memory};
use rand::RngExt as _;

use crate::world::{Machine, MachineOptions, Random, SimDevice, World};

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
    content: Loaded<HashTable>,
    process: RefCell<Option<MemoryServer<SimDevice, HashTable>>>,
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
        let mut content = HashTable::make(number, shape, spare).expect("the shape is possible");
        let classes = Memory::shared(chunk_classes_bytes(spare, chunk_bytes));
        content.chunk_classes = Some(classes.expect("there is memory for a table"));
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
        let server = Rc::new(Self { machine, options, content, process: RefCell::default() });
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
        let process = MemoryServer::new(self.machine.device(), self.content.clone(), &self.options, seed);
        *self.process.borrow_mut() = Some(process.expect("the table fits the card"));
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

    /// Starts the machine and the process anew.
    pub fn revive(&self, seed: u64) {
        self.machine.boot();
        self.begin(seed);
    }

    /// A counter of the process.
    pub fn count(&self, name: &str) -> u64 {
        let process = self.process.borrow();
        let all = process.as_ref().map(MemoryServer::statistics).unwrap_or_default();
        all.into_iter().find(|(found, _)| found == name).map_or(0, |(_, count)| count)
    }
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
    let numbers: Vec<u16> = servers.iter().map(|server| server.content.server).collect();
    let memory = RemoteMemory::new(machine.device(), numbers.iter().copied(), config, seed);
    let memory = Rc::new(memory.expect("there are lanes"));
    machine.set_driven(Rc::clone(&memory) as _);
    let pauses = KeeperOptions { first_pause: LOOK, longest_pause: LOOK, ..KeeperOptions::default() };
    let keeper = Rc::new(RefCell::new(SessionKeeper::new(memory.connections(), pauses)));
    let (servers, caller) = (servers.to_vec(), machine.clone());
    let host = Ipv4Addr::from_bits(0x0a00_0000 | machine.id().0);
    let client = ClientId { host: host.into(), roce: host };
    let carry = async move |server: u16, call| {
        let server = servers.iter().find(|of| of.content.server == server).expect("it is one of them");
        match &mut *server.process.borrow_mut() {
            Some(process) => process.carry_out(caller.now(), client, call).map_err(Denied::from),
            None => Err(NoAnswer.into()),
        }
    };
    drop(machine.spawn(machine.clone().keep_sessions(Rc::clone(&memory), keeper, carry, drop)));
    memory
}

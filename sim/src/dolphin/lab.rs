//! Memory servers of production on simulated machines, and clients with a session with each.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_dolphin::host::{self, HybridIndex, MakeOptions};
use fatbtree_dolphin::{LEAF_BYTES, Shape};
use fatbtree_memserver::{
    Bounds, ClientId, Limits, Loaded, MemoryServer, ServerOptions, Tenant as _, chunk_classes_bytes, make,
};
use fatbtree_remote_memory::session_keeper::{Denied, KeeperOptions, NoAnswer, SessionKeeper};
use fatbtree_remote_memory::{
    ConnectError, ConnectionId, GlobalAddress, Kept, RemoteConfig, RemoteMemory, RemoteSide,
};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Access, Memory, Remote};
use rand::RngExt as _;

use crate::world::{CachedSwitches, Machine, MachineOptions, Random, SimDevice, World, with_syncs};

/// Interval in which a client and a server look for something to be done.
const LOOK: Duration = Duration::from_micros(10);

/// Bytes of a server's chunks.
pub(super) const CHUNK: u64 = 32 << 10;

/// The memory as a client reaches it.
pub type Client = Rc<RemoteMemory<SimDevice>>;

/// A memory server in all its lives. Its process is asked directly, as if the network for calls were
/// perfect; verbs go through the simulated one.
pub struct Server {
    /// Its machine.
    pub machine: Machine,
    options: ServerOptions,
    content: RefCell<Loaded<HybridIndex>>,
    process: RefCell<Option<MemoryServer<SimDevice, HybridIndex>>>,
    syncs: Cell<bool>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl Server {
    fn new(world: &World, number: u16, shape: Shape, spare: u64, lease: Duration) -> Rc<Self> {
        let chunk_bytes = CHUNK;
        let content = RefCell::new(empty(number, shape, spare));
        let bounds = Bounds { sessions: 1 << 20, queue_pairs: 1 << 20, chunks: 1 << 20, attempts: u32::MAX };
        let limits = Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() };
        let options = ServerOptions {
            access: Access::ALL,
            lock_table_bytes: 64,
            chunk_bytes,
            lease,
            limits,
            ..ServerOptions::writable()
        };
        let machine = world.machine(MachineOptions::named(format!("server {number}")));
        let server =
            Rc::new(Self { machine, options, content, process: RefCell::default(), syncs: Cell::default() });
        server.start(u64::from(number) + 1);
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
    fn start(&self, seed: u64) {
        let process =
            MemoryServer::new(self.machine.device(), self.content.borrow().clone(), &self.options, seed);
        *self.process.borrow_mut() = Some(process.expect("the index fits the card"));
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

    /// Starts the machine and the process anew. What dead clients have left is never taken for damage.
    pub fn revive(&self, seed: u64) {
        {
            let content = self.content.borrow();
            let checked = content.tenant.check(&content.layout(CHUNK));
            assert_eq!(checked, Ok(()), "server {}", content.server);
        }
        self.machine.boot();
        self.start(seed);
    }

    /// Starts the machine and the process anew, with an empty part of the index in place of the one that was there.
    pub fn lose(&self, generation: u64) {
        let (shape, spare) = {
            let content = self.content.borrow();
            (content.tenant.description(), content.spare.end - content.spare.start)
        };
        let mut content = empty(self.number(), shape, spare);
        content.generation = generation;
        let header = shape.header(generation, content.region.len());
        content.region.write(0, &header.to_bytes()).expect("a region begins with its header");
        *self.content.borrow_mut() = content;
        self.revive(generation);
    }

    /// Its region, for what damages it.
    #[must_use]
    pub fn region(&self) -> Arc<Memory> {
        Arc::clone(&self.content.borrow().region)
    }

    fn number(&self) -> u16 {
        self.content.borrow().server
    }

    /// Key of its memory, while the process lives.
    fn rkey(&self) -> Option<u32> {
        self.process.borrow().as_ref().map(|process| process.info().region.rkey)
    }

    /// Leaves in its memory with their keys, whatever their state is.
    #[must_use]
    pub fn leaves(&self) -> Vec<(GlobalAddress, RangeInclusive<u64>)> {
        let Loaded { server, region, spare, chunk_classes, .. } = &*self.content.borrow();
        let mut word = [0; 8];
        let mut is_given_out = |chunk: u64| {
            let table = chunk_classes.iter().any(|table| table.read(chunk * 8, &mut word).is_ok());
            table && word != [0; 8]
        };
        let chunks = (0..).take_while(|chunk| is_given_out(*chunk));
        let offsets = chunks.flat_map(|chunk| {
            let begin = spare.start + chunk * CHUNK;
            (begin..begin + CHUNK).step_by(LEAF_BYTES)
        });
        let leaf = |offset| {
            let (at, mut line) = (GlobalAddress::new(*server, offset), [0; 64]);
            region.read(offset, &mut line).ok()?;
            Some((at, host::keys_of_leaf(at, &line)?))
        };
        offsets.filter_map(leaf).collect::<Vec<_>>()
    }

    /// A counter of the process.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        let process = self.process.borrow();
        let all = process.as_ref().map(MemoryServer::statistics).unwrap_or_default();
        all.into_iter().find(|(found, _)| found == name).map_or(0, |(_, count)| count)
    }
}

/// Leaves in the servers' memory that answer, and to which nothing leads.
#[must_use]
pub fn strays(servers: &[Rc<Server>], shape: &Shape) -> Vec<GlobalAddress> {
    let leaves = servers.iter().flat_map(|server| server.leaves()).map(|(leaf, _)| leaf);
    host::strays(shape, leaves, |at, bytes| {
        let server = servers.iter().find(|server| server.number() == at.server());
        server.is_some_and(|server| server.region().read(at.offset(), bytes).is_ok())
    })
}

/// A server's part of an empty index.
fn empty(number: u16, shape: Shape, spare: u64) -> Loaded<HybridIndex> {
    let options = MakeOptions { spare_bytes: spare, chunk_bytes: CHUNK, ..MakeOptions::new(number, shape) };
    let mut content = make::<HybridIndex>(&options).expect("the shape is possible");
    let classes = Memory::shared(chunk_classes_bytes(spare, CHUNK));
    content.chunk_classes = Some(classes.expect("there is memory for a table"));
    content
}

/// Starts servers with an empty index.
#[must_use]
pub fn serve(world: &World, shape: Shape, spare: u64, lease: Duration) -> Vec<Rc<Server>> {
    let numbers = (0..32_u16).filter(|number| shape.servers >> number & 1 == 1);
    numbers.map(|number| Server::new(world, number, shape, spare, lease)).collect()
}

/// A client's memory under its keeper, with the switches that its queue pairs are registered with.
struct Registered {
    memory: Client,
    switches: Option<CachedSwitches>,
}

impl Kept for Registered {
    type Verbs = SimDevice;
    type Error = ConnectError;

    fn remote(&self) -> &RemoteMemory<SimDevice> {
        &self.memory
    }

    fn join(&self, id: ConnectionId, remote: RemoteSide) -> Result<(), ConnectError> {
        let rkey = remote.rkey;
        self.memory.connected(id, RemoteSide { registered: self.switches.is_some(), ..remote })?;
        if let (Some(switches), Some(pair)) = (&self.switches, self.memory.queue_pair(id)) {
            let begin = GlobalAddress::new(id.server, 0).raw();
            switches.register(pair, Remote { address: begin, rkey });
        }
        Ok(())
    }
}

/// Switches that learn the leaves of an index every now and then, some of them wrong. `unlinked`: also leaves to which no node
/// leads, because they are not linked yet, or not any more.
pub(super) fn lead(
    world: &World,
    servers: &[Rc<Server>],
    shape: Shape,
    unlinked: bool,
    mut draw: Random,
) -> CachedSwitches {
    let switches = CachedSwitches::default();
    world.set_switches(switches.clone());
    let (told, servers, operator) = (switches.clone(), servers.to_vec(), world.operator().clone());
    drop(world.operator().spawn(async move {
        loop {
            operator.sleep(Duration::from_micros(draw.random_range(50..600))).await;
            let of = |number: u16| servers.iter().find(|server| server.number() == number);
            let places = host::places(&shape, |at, bytes| {
                of(at.server()).is_some_and(|server| server.region().read(at.offset(), bytes).is_ok())
            });
            for (number, place) in places.iter().enumerate() {
                let Some(server) = of(place.leaf.server()) else { continue };
                let Some(rkey) = server.rkey() else { continue };
                let at = match draw.random_range(0..10) {
                    // What was there before stays.
                    0..3 => continue,
                    3 => place.leaf.raw() + 64 * draw.random_range(0..4),
                    4 => {
                        let other = &places[(number + 1) % places.len()].leaf;
                        if other.server() == place.leaf.server() { other.raw() } else { place.leaf.raw() }
                    }
                    _ => place.leaf.raw(),
                };
                told.cache(server.machine.id(), place.low..=place.high, Remote { address: at, rkey });
            }
            for server in servers.iter().filter(|_| unlinked) {
                let Some(rkey) = server.rkey() else { continue };
                for (leaf, keys) in server.leaves() {
                    if draw.random_bool(0.5) && places.iter().all(|place| place.leaf != leaf) {
                        told.cache(server.machine.id(), keys, Remote { address: leaf.raw(), rkey });
                    }
                }
            }
        }
    }));
    switches
}

/// Makes a client on a machine that has just booted, and a task that keeps its sessions and connections.
pub fn begin(machine: &Machine, servers: &[Rc<Server>], config: RemoteConfig, draw: &mut Random) -> Client {
    begin_led(machine, servers, config, draw, None)
}

/// The same with connections that are registered with switches.
pub(super) fn begin_led(
    machine: &Machine,
    servers: &[Rc<Server>],
    config: RemoteConfig,
    draw: &mut Random,
    switches: Option<CachedSwitches>,
) -> Client {
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
    let kept = Rc::new(Registered { memory: Rc::clone(&memory), switches });
    drop(machine.spawn(machine.clone().keep_sessions(kept, keeper, carry, drop)));
    memory
}

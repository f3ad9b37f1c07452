//! A memory server of production on a simulated machine, and clients with a session each.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::rc::Rc;

use fatbtree_memserver::{ClientId, Lease, MemoryServer, ServerOptions};
use fatbtree_remote::{ConnectionId, Event, GlobalAddress, RemoteConfig, RemoteMemory, RemoteSide};
use fatbtree_sim::world::{Driven, Machine, SimDevice};
use fatbtree_verbs::Reactor;
use fatbtree_verbs::time::{Duration, Instant};

use crate::tenant::Array;

/// How often a client and the server look whether something is to be done.
const LOOK: Duration = Duration::from_micros(10);
/// How long a session lasts without being renewed: so short that a run sees many end.
const LEASE: Duration = Duration::from_micros(1_500);
/// Bytes of a chunk, and how many the server has.
const CHUNK: u64 = 16 << 10;
const CHUNKS: u64 = 8;

/// The process of a memory server. It is asked directly, as if its network for calls were perfect; verbs go through the simulated one.
pub(crate) struct Server {
    process: RefCell<MemoryServer<SimDevice, Array>>,
}

impl Server {
    pub(crate) const ID: u16 = 0;

    /// Starts it, without an array and with memory to give, and a task of `operator` that lets it work.
    pub(crate) fn start(machine: &Machine, operator: &Machine) -> Rc<Self> {
        let options = ServerOptions {
            lock_table_bytes: 64,
            chunk_bytes: CHUNK,
            lease: LEASE,
            ..ServerOptions::writable()
        };
        let process =
            MemoryServer::new(machine.device(), Array::region(Self::ID, CHUNK * CHUNKS), &options, 1);
        let process = process.expect("the array goes with the card");
        let server = Rc::new(Self { process: RefCell::new(process) });
        let (operator, working) = (operator.clone(), Rc::clone(&server));
        drop(operator.clone().spawn(async move {
            loop {
                working.work(operator.now());
                operator.sleep(LOOK).await;
            }
        }));
        server
    }

    fn work(&self, now: Instant) {
        let process = &mut *self.process.borrow_mut();
        process.work(now, 64);
        while process.poll_event().is_some() {}
    }

    /// One of the server's counters.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let counters = self.process.borrow().statistics();
        counters.into_iter().find(|(found, _)| found == name).map_or(0, |(_, count)| count)
    }

    /// Where the array lies, as the server says.
    pub(crate) fn base(&self) -> GlobalAddress {
        self.process.borrow().info().structure
    }
}

/// A client in one life of its machine.
#[derive(Clone)]
pub(crate) struct Client {
    machine: Machine,
    server: Rc<Server>,
    pub(crate) memory: Rc<RemoteMemory<SimDevice>>,
    session: Rc<Cell<Option<Lease>>>,
}

/// Hands what comes for the machine to its client.
struct Bound(Rc<RemoteMemory<SimDevice>>);

impl Driven for Bound {
    fn reactor(&self) -> &Reactor<SimDevice> {
        self.0.reactor()
    }

    fn turn(&self, now: Instant) {
        self.0.turn(now);
    }
}

impl Client {
    /// Makes one on a machine that has just booted, and a task that keeps its session and connections.
    pub(crate) fn begin(machine: &Machine, server: &Rc<Server>, lanes: u8, seed: u64) -> Self {
        let config = RemoteConfig { lanes, ..RemoteConfig::default() };
        let memory = RemoteMemory::new(machine.device(), [Server::ID].into_iter(), config, seed)
            .expect("there are lanes");
        let memory = Rc::new(memory);
        machine.set_driven(Rc::new(Bound(Rc::clone(&memory))));
        let client =
            Self { machine: machine.clone(), server: Rc::clone(server), memory, session: Rc::default() };
        drop(machine.spawn(client.clone().attend()));
        client
    }

    /// Waits until the client has its first session.
    pub(crate) async fn until_session(&self) {
        while self.memory.writer(Server::ID).is_err() {
            self.machine.sleep(LOOK).await;
        }
    }

    async fn attend(self) {
        let mut down = self.memory.connections();
        let mut renewed = self.machine.now();
        loop {
            if self.machine.now() - renewed > LEASE / 3 || self.session.get().is_none() {
                self.renew();
                renewed = self.machine.now();
            }
            while let Some(event) = self.memory.poll_event() {
                match event {
                    Event::ConnectionBroken { id, .. } => down.push(id),
                    Event::MemoryWanted { kind, bytes, .. } => {
                        let Some(lease) = self.session.get() else { continue };
                        let process = &mut *self.server.process.borrow_mut();
                        let now = self.machine.now();
                        let Ok(supply) = process.allocate(now, lease.session, kind, bytes) else { continue };
                        let fatbtree_memserver::Supply::Chunk(chunk) = supply else { continue };
                        process
                            .publish(now, lease.session, chunk.address)
                            .expect("it was given in this session");
                        self.memory.supply(lease.session.id, chunk.address, chunk.bytes, chunk.kind);
                    }
                    Event::Unfinished { .. } => {
                        let memory = Rc::clone(&self.memory);
                        drop(self.machine.spawn(async move { memory.finish().await }));
                    }
                }
            }
            down.retain(|&id| !self.connect(id));
            self.machine.sleep(LOOK).await;
        }
    }

    /// Renews the session, or opens another one.
    fn renew(&self) {
        let (process, now) = (&mut *self.server.process.borrow_mut(), self.machine.now());
        let renewed = self.session.get().and_then(|lease| process.renew_session(now, lease.session).ok());
        let lease = renewed.or_else(|| {
            let host = Ipv4Addr::from_bits(0x0a00_0000 | self.machine.id().0);
            let lease = process.open_session(now, ClientId { host: host.into(), roce: host }).ok()?;
            process.work(now, 0);
            let writer = process.info().writer(lease.owner, true).expect("there are locks");
            self.memory.set_writer(Server::ID, writer).expect("there is such a server");
            Some(lease)
        });
        self.session.set(lease);
    }

    /// Connects a queue pair in the present session. Says whether that worked.
    fn connect(&self, id: ConnectionId) -> bool {
        let Some(lease) = self.session.get() else { return false };
        let local = self.memory.open(id).expect("it is not up");
        let (process, now) = (&mut *self.server.process.borrow_mut(), self.machine.now());
        let Ok(endpoint) = process.connect(now, lease.session, &local, self.memory.replaces(id)) else {
            return false;
        };
        let rkey = process.info().tree.rkey;
        self.memory.connected(id, RemoteSide { endpoint, rkey, registered: false }).expect("it was opened");
        true
    }
}

//! A memory server of production on a simulated machine, and clients with a session each.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;

use fatbtree_memserver::{ClientId, MemoryServer, PartOptions, ServerOptions, make};
use fatbtree_remote_memory::session_keeper::{Denied, KeeperOptions, SessionKeeper};
use fatbtree_remote_memory::{Contention, RemoteConfig, RemoteMemory};
use fatbtree_sim::world::{Machine, Random, SimDevice};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use crate::structure::{Array, Shape};

/// Interval in which a client and the server look for something to be done.
const LOOK: Duration = Duration::from_micros(10);

/// The number of the server.
pub(crate) const SERVER: u16 = 0;

/// The process of a memory server. It is asked directly, as if its network for calls were perfect; verbs go through the simulated one.
pub(crate) type Server = Rc<RefCell<MemoryServer<SimDevice, Array>>>;

/// The memory as a client reaches it.
pub(crate) type Client = Rc<RemoteMemory<SimDevice>>;

/// Starts a server of so many counters without an array and with memory to give, and a task of `operator` that lets it work. Sessions are so short that a run
/// sees many end.
pub(crate) fn serve(counters: u32, machine: &Machine, operator: &Machine) -> Server {
    let (lease, chunk_bytes) = (Duration::from_micros(1_500), 16 << 10);
    let options = ServerOptions { lock_table_bytes: 64, chunk_bytes, lease, ..ServerOptions::writable() };
    let shape = Shape { servers: 1 << SERVER, counters };
    let part = PartOptions { spare_bytes: 128 << 10, chunk_bytes, ..PartOptions::new(SERVER, shape) };
    let part = make::<Array>(&part).expect("a small region finds memory");
    let process = MemoryServer::new(machine.device(), part, &options, 1).expect("the array fits the card");
    let server = Rc::new(RefCell::new(process));
    let (worked, now) = (Rc::clone(&server), operator.clone());
    drop(operator.spawn(async move {
        loop {
            worked.borrow_mut().work(now.now(), 64);
            while worked.borrow_mut().poll_event().is_some() {}
            now.sleep(LOOK).await;
        }
    }));
    server
}

/// Makes a client on a machine that has just booted, and a task that keeps its session and connections.
pub(crate) fn begin(machine: &Machine, server: &Server, contention: Contention, draw: &mut Random) -> Client {
    let config = RemoteConfig { lanes: draw.random_range(1..=2), contention, ..RemoteConfig::default() };
    let seed = draw.random_range(0..=u64::MAX);
    let memory = RemoteMemory::new(machine.device(), [SERVER].into_iter(), config, seed);
    let memory = Rc::new(memory.expect("there are lanes"));
    machine.set_driven(Rc::clone(&memory) as _);
    let pauses = KeeperOptions { first_pause: LOOK, longest_pause: LOOK, ..KeeperOptions::default() };
    let keeper = Rc::new(RefCell::new(SessionKeeper::new(memory.connections(), pauses)));
    let (server, caller) = (Rc::clone(server), machine.clone());
    let host = Ipv4Addr::from_bits(0x0a00_0000 | machine.id().0);
    let client = ClientId { host: host.into(), roce: host };
    let carry =
        async move |_, call| server.borrow_mut().carry_out(caller.now(), client, call).map_err(Denied::from);
    machine.keep_sessions(Rc::clone(&memory), keeper, carry, drop);
    memory
}

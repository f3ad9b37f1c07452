//! A client's memory, and its sessions with the servers of the stage.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_memserver::Part;
use fatbtree_remote_memory::session_keeper::{KeeperOptions, Notice, SessionKeeper};
use fatbtree_remote_memory::{Contention, Kept, RemoteConfig, RemoteMemory};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::{LOOK, Server};
use crate::world::{Machine, Random, SimDevice};

/// The memory as a client reaches it.
pub type Client = Rc<RemoteMemory<SimDevice>>;

/// Configuration of a client whose operations try for so long: with one lane or two.
pub fn config(contention: Contention, patience: Duration, draw: &mut Random) -> RemoteConfig {
    RemoteConfig { lanes: draw.random_range(1..=2), contention, patience, ..RemoteConfig::default() }
}

/// A way in which clients avoid conflicts.
pub(crate) fn any_contention(draw: &mut Random) -> Contention {
    if draw.random_bool(0.5) { Contention::SMART } else { Contention::SHERMAN }
}

/// A keeper of sessions that calls again at once.
pub(crate) fn keeper<S>(memory: &RemoteMemory<SimDevice>) -> Rc<RefCell<SessionKeeper<S>>> {
    let pauses = KeeperOptions { first_pause: LOOK, longest_pause: LOOK, ..KeeperOptions::default() };
    Rc::new(RefCell::new(SessionKeeper::new(memory.connections(), pauses)))
}

/// Makes a client on a machine that has just booted, and a task that keeps its sessions and connections.
pub fn begin<P: Part + Clone>(
    machine: &Machine,
    servers: &[Rc<Server<P>>],
    config: RemoteConfig,
    draw: &mut Random,
) -> Client {
    let memory = client(machine, servers, config, draw);
    keep(machine, Rc::clone(&memory), servers, drop);
    memory
}

/// Makes a client's memory on a machine that has just booted. Its sessions are still to be [kept](keep).
pub(crate) fn client<P: Part + Clone>(
    machine: &Machine,
    servers: &[Rc<Server<P>>],
    config: RemoteConfig,
    draw: &mut Random,
) -> Client {
    let numbers = servers.iter().map(|server| server.number);
    let memory = RemoteMemory::new(machine.device(), numbers, config, draw.random_range(0..=u64::MAX));
    let memory = Rc::new(memory.expect("there are lanes"));
    machine.set_driven(Rc::clone(&memory) as _);
    memory
}

/// Keeps a client's sessions and connections as long as its machine lives. `told` receives every notice of the keeper.
pub(crate) fn keep<P: Part + Clone>(
    machine: &Machine,
    memory: Rc<impl Kept<Verbs = SimDevice> + 'static>,
    servers: &[Rc<Server<P>>],
    told: impl FnMut(Notice) + 'static,
) {
    let (servers, caller) = (servers.to_vec(), machine.clone());
    let carry = async move |number: u16, call| {
        caller.sync(&call).await;
        let server = servers.iter().find(|server| server.number == number).expect("it is one of them");
        server.carry_out(&caller, call)
    };
    let keeper = keeper(memory.remote());
    machine.keep_sessions(memory, keeper, carry, told);
}

//! Memory servers of a structure over all of them, and their clients, on machines of a world.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_memserver::{Loaded, MemoryServer, ServerOptions, Tenant};
use fatbtree_remote_memory::{RemoteConfig, RemoteMemory};
use fatbtree_sim::world::{Machine, MachineOptions, SimDevice, World};
use fatbtree_verbs::Access;

use crate::bench::{LEASE, keep};

/// Memory servers of a structure, by number.
pub(crate) type Servers<T> = Rc<[RefCell<MemoryServer<SimDevice, T>>]>;

/// A client's memory.
pub(crate) type Client = Rc<RemoteMemory<SimDevice>>;

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

/// Memory of a client on its machine, which moves with the world. Its sessions are still to be kept.
pub(crate) fn client(
    machine: &Machine,
    servers: u16,
    config: RemoteConfig,
    seed: u64,
) -> Result<Client, String> {
    let memory = RemoteMemory::new(machine.device(), 0..servers, config, seed);
    let memory = Rc::new(memory.map_err(|error| error.to_string())?);
    machine.set_driven(Rc::clone(&memory) as _);
    Ok(memory)
}

/// Starts a client on its machine. `fail` is told of what never happens here.
pub(crate) fn begin<T: Tenant + 'static>(
    machine: &Machine,
    servers: &Servers<T>,
    config: RemoteConfig,
    seed: u64,
    fail: impl Fn(String) + 'static,
) -> Result<Client, String> {
    let memory = client(machine, servers.len() as u16, config, seed)?;
    keep(machine, Rc::clone(&memory), servers, fail);
    Ok(memory)
}

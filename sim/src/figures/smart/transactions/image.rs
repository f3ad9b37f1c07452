//! Loaded tables, of which each measurement has a copy.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_dtx::host::{Content, HostTables};
use fatbtree_dtx::workloads::{smallbank, tatp};
use fatbtree_dtx::{Addresses, Shape};
use fatbtree_memserver::{Loaded, MemoryServer, ServerOptions};
use fatbtree_remote::{RemoteConfig, RemoteMemory};
use fatbtree_verbs::Access;

use super::Bench;
use crate::figures::bench::{LEASE, keep};
use crate::world::{Machine, MachineOptions, SimDevice, World};

/// The paper's two memory blades.
const SERVERS: u16 = 2;
/// Addresses that the threads remember: those of all items.
const ADDRESSES: usize = 1 << 22;

/// Memory servers of tables, by number.
pub(super) type Servers = Rc<[RefCell<MemoryServer<SimDevice, HostTables>>]>;

/// A client's memory.
pub(super) type Client = Rc<RemoteMemory<SimDevice>>;

/// Memory of the tables' servers.
pub(super) struct Image {
    shape: Shape,
    regions: Vec<Vec<u8>>,
    /// Address of each item: table, key and slot.
    slots: Vec<(u8, u64, u8)>,
}

impl Image {
    /// The tables of a benchmark with so many customers or subscribers, on two servers, each with the backups of the other one.
    ///
    /// # Errors
    /// When they cannot be made.
    pub(super) fn load(bench: Bench, count: u64) -> Result<Self, String> {
        let items = u32::try_from(count).map_err(|error| error.to_string())?;
        let shape = match bench {
            Bench::SmallBank => smallbank::shape(items, 0b11, 1),
            Bench::Tatp => tatp::shape(items, 0b11, 1),
        };
        let mut shape = shape.map_err(|error| error.to_string())?;
        // A seat for each transaction of 96 threads.
        shape.seats = 2048;
        let (mut regions, mut slots) = (Vec::new(), Vec::new());
        for id in 0..SERVERS {
            let content = make(id, shape)?;
            let put = |table, key, value: &[u8]| HostTables::put(&content, table, key, value);
            slots.clear();
            for number in 0..count {
                let mut add = |table, key, value: &[u8]| {
                    put(table, key, value)
                        .map(|slot| slots.extend(slot.map(|slot| (table, key, slot))))
                        .map_err(|error| error.to_string())
                };
                match bench {
                    Bench::SmallBank => {
                        let account = smallbank::Account { money: smallbank::INITIAL, stamp: 0 }.to_bytes();
                        add(smallbank::SAVINGS, number, &account)?;
                        add(smallbank::CHECKING, number, &account)?;
                    }
                    Bench::Tatp => {
                        for (table, key, value) in tatp::records(number) {
                            add(table, key, &value)?;
                        }
                    }
                }
            }
            let mut bytes = Vec::new();
            let length = content.region.len() as usize;
            content.region.append(0, length, &mut bytes).map_err(|error| error.to_string())?;
            regions.push(bytes);
        }
        Ok(Self { shape, regions, slots })
    }

    /// Starts memory servers with a copy of the tables.
    pub(super) fn serve(&self, machines: &[Machine]) -> Result<Servers, String> {
        let options = ServerOptions { access: Access::ALL, lease: LEASE, ..ServerOptions::writable() };
        let servers = (0..).zip(machines).zip(&self.regions).map(|((id, machine), bytes)| {
            let content = make(id, self.shape)?;
            content.region.write(0, bytes).map_err(|error| error.to_string())?;
            let server = MemoryServer::new(machine.device(), content, &options, 1);
            server.map(RefCell::new).map_err(|error| error.to_string())
        });
        servers.collect()
    }

    /// Addresses of all items, as threads know them that have run for long.
    pub(super) fn addresses(&self) -> Rc<Addresses> {
        let addresses = Addresses::new(ADDRESSES.min(self.slots.len() * 4));
        self.slots.iter().for_each(|&(table, key, slot)| addresses.note(table, key, slot));
        Rc::new(addresses)
    }
}

/// Machines for the servers.
pub(super) fn servers(world: &World) -> Vec<Machine> {
    (0..SERVERS).map(|id| world.machine(MachineOptions::named(format!("server {id}")))).collect()
}

/// Starts a client on its machine. `fail` is told of what never happens here.
pub(super) fn begin(
    machine: &Machine,
    servers: &Servers,
    config: RemoteConfig,
    seed: u64,
    fail: impl Fn(String) + 'static,
) -> Result<Client, String> {
    let memory = RemoteMemory::new(machine.device(), 0..SERVERS, config, seed);
    let memory = Rc::new(memory.map_err(|error| error.to_string())?);
    machine.set_driven(Rc::clone(&memory) as _);
    keep(machine, Rc::clone(&memory), servers, fail);
    Ok(memory)
}

fn make(id: u16, shape: Shape) -> Result<Loaded<HostTables>, String> {
    HostTables::make(id, shape, Content::Empty, 1).map_err(|error| error.to_string())
}

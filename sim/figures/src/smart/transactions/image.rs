//! Loaded tables, of which each measurement has a copy.

use std::rc::Rc;

use fatbtree_dtx::host::{Content, HostTables};
use fatbtree_dtx::workloads::{smallbank, tatp};
use fatbtree_dtx::{Addresses, Shape};
use fatbtree_memserver::{Loaded, ServerOptions};

use super::{Bench, Protocol, bank, ford};
use crate::rig::{Servers, serve};
use crate::smart::clients::SERVERS;
use fatbtree_sim::world::Machine;

/// Addresses that the threads remember: those of all items.
const ADDRESSES: usize = 1 << 22;

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
    pub(super) fn load(protocol: Protocol, bench: Bench, count: u64) -> Result<Self, String> {
        match protocol {
            Protocol::Ours => Self::load_ours(bench, count),
            Protocol::Ford => Self::load_fords(bench, count),
        }
    }

    fn load_fords(bench: Bench, count: u64) -> Result<Self, String> {
        let items = u32::try_from(count).map_err(|error| error.to_string())?;
        let shape = ford::shape(bench, items).map_err(|error| error.to_string())?;
        let contents = (0..SERVERS).map(|id| make(id, shape)).collect::<Result<Vec<_>, _>>()?;
        if bench == Bench::SmallBank {
            for (customer, accounts) in (0..).zip(bank::balances(count)) {
                for ((table, money), backup) in (0..).zip(accounts).flat_map(|of| [(of, false), (of, true)]) {
                    let at = ford::address(&shape, table, customer, backup);
                    let region = &contents[usize::from(at.server())].region;
                    let written = region.write(at.offset() + ford::MONEY as u64, &money.to_le_bytes());
                    written.map_err(|error| error.to_string())?;
                }
            }
        }
        let regions = contents.iter().map(bytes_of).collect::<Result<_, _>>()?;
        Ok(Self { shape, regions, slots: Vec::new() })
    }

    fn load_ours(bench: Bench, count: u64) -> Result<Self, String> {
        let items = u32::try_from(count).map_err(|error| error.to_string())?;
        let balances = bank::balances(count);
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
            for (number, balances) in (0..).zip(&balances) {
                let mut add = |table, key, value: &[u8]| {
                    put(table, key, value)
                        .map(|slot| slots.extend(slot.map(|slot| (table, key, slot))))
                        .map_err(|error| error.to_string())
                };
                match bench {
                    Bench::SmallBank => {
                        let account = |money| smallbank::Account { money, stamp: 0 }.to_bytes();
                        add(smallbank::SAVINGS, number, &account(balances[0]))?;
                        add(smallbank::CHECKING, number, &account(balances[1]))?;
                    }
                    Bench::Tatp => {
                        for (table, key, value) in tatp::records(number) {
                            add(table, key, &value)?;
                        }
                    }
                }
            }
            regions.push(bytes_of(&content)?);
        }
        Ok(Self { shape, regions, slots })
    }

    /// Starts memory servers with a copy of the tables.
    pub(super) fn serve(&self, machines: &[Machine]) -> Result<Servers<HostTables>, String> {
        let contents = (0..).zip(&self.regions).map(|(id, bytes)| {
            let content = make(id, self.shape)?;
            content.region.write(0, bytes).map_err(|error| error.to_string())?;
            Ok(content)
        });
        // Tables have no chunks.
        serve(machines, contents, ServerOptions::writable().chunk_bytes)
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// Addresses of all items, as threads know them that have run for long.
    pub(super) fn addresses(&self) -> Rc<Addresses> {
        let addresses = Addresses::new(ADDRESSES.min(self.slots.len() * 4 + 1));
        self.slots.iter().for_each(|&(table, key, slot)| addresses.note(table, key, slot));
        Rc::new(addresses)
    }
}

fn bytes_of(content: &Loaded<HostTables>) -> Result<Vec<u8>, String> {
    let (mut bytes, length) = (Vec::new(), content.region.len() as usize);
    content.region.append(0, length, &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn make(id: u16, shape: Shape) -> Result<Loaded<HostTables>, String> {
    HostTables::make(id, shape, Content::Empty, 1).map_err(|error| error.to_string())
}

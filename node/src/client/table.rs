//! The client of a hash table in its process.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use fatbtree_controller::grpc::ClientReport;
use fatbtree_race::host::TableInfo;
use fatbtree_race::{PlaceStats, Table, TableError};
use fatbtree_remote::{ConnectionId, RemoteConfig, RemoteMemory};
use fatbtree_topology::MemoryServer;
use fatbtree_verbs::time::Instant;

use super::structure::{DoubtOthers, Infos, StructureClient};
use super::{ClientOptions, in_nanos};
use crate::NodeError;
use crate::adapter::Adapter;
use crate::metrics::Metrics;

/// A client of a hash table, with memory that its process keeps connected.
#[derive(Clone)]
pub struct HashClient(Rc<Inner>);

struct Inner {
    memory: Rc<RemoteMemory<Adapter>>,
    /// Server of the directory.
    home: u16,
    /// Generation of each server's region when the table was opened.
    generations: RefCell<Vec<(u16, u64)>>,
    table: RefCell<Option<Rc<Table<Adapter>>>>,
    /// Bytes for places of keys.
    places: Cell<u64>,
}

impl std::fmt::Debug for HashClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashClient").field("memory", &self.0.memory).finish_non_exhaustive()
    }
}

impl HashClient {
    /// The table, opened when it is first asked for, and again after a server has begun anew.
    ///
    /// # Errors
    /// See [`Table::open`].
    pub async fn table(&self) -> Result<Rc<Table<Adapter>>, TableError> {
        if let Some(table) = &*self.0.table.borrow() {
            return Ok(Rc::clone(table));
        }
        let table = Rc::new(Table::open(Rc::clone(&self.0.memory), self.0.home).await?);
        table.remember_places(self.0.places.get());
        *self.0.table.borrow_mut() = Some(Rc::clone(&table));
        Ok(table)
    }

    /// Remembers where keys were found, in up to `bytes` of memory: see [`Table::remember_places`].
    pub fn remember_places(&self, bytes: u64) {
        self.0.places.set(bytes);
        if let Some(table) = &*self.0.table.borrow() {
            table.remember_places(bytes);
        }
    }

    /// Use of the remembered places by the table that is open.
    pub fn place_stats(&self) -> Option<PlaceStats> {
        self.0.table.borrow().as_ref().map(|table| table.place_stats())
    }

    /// The memory that the table lies in.
    pub fn memory(&self) -> &Rc<RemoteMemory<Adapter>> {
        &self.0.memory
    }
}

impl StructureClient for HashClient {
    type Info = TableInfo;
    type Kept = RemoteMemory<Adapter>;

    fn open(
        adapter: Adapter,
        infos: &Infos<TableInfo>,
        servers: &[MemoryServer],
        options: &ClientOptions,
        seed: u64,
    ) -> Result<Self, NodeError> {
        let mut all = infos.iter();
        let (_, first) = all.next().ok_or(NodeError::Table(TableError::NoTable { server: 0 }))?;
        let numbers =
            infos.keys().fold(0_u32, |all, server| all | 1_u32.checked_shl((*server).into()).unwrap_or(0));
        let other = all.find(|(_, info)| info.structure != first.structure).map(|(server, _)| *server);
        if first.shape.servers != numbers || other.is_some() {
            let server = other.unwrap_or(first.server);
            let name = servers.iter().find(|known| known.partition == server).map(|known| known.name.clone());
            return Err(NodeError::Parts(name.unwrap_or_default()));
        }
        let config = RemoteConfig {
            lanes: options.lanes,
            contention: options.contention,
            patience: in_nanos(options.patience),
            ..RemoteConfig::default()
        };
        let memory = RemoteMemory::new(adapter, infos.keys().copied(), config, seed)?;
        let generations = infos.iter().map(|(server, info)| (*server, info.generation)).collect();
        Ok(Self(Rc::new(Inner {
            memory: Rc::new(memory),
            home: first.directory.server(),
            generations: RefCell::new(generations),
            table: RefCell::default(),
            places: Cell::new(0),
        })))
    }

    fn kept(&self) -> &RemoteMemory<Adapter> {
        &self.0.memory
    }

    fn turn(&self, now: Instant) {
        self.0.memory.turn(now);
    }

    /// A server that has begun anew, as an operator had it do, ends the table that is open.
    fn believe(&self, server: u16, infos: &Infos<TableInfo>) -> Result<(), DoubtOthers> {
        let Some(info) = infos.get(&server) else { return Ok(()) };
        let mut generations = self.0.generations.borrow_mut();
        let known = generations.iter_mut().find(|(known, _)| *known == server);
        if let Some((_, known)) = known
            && std::mem::replace(known, info.generation) != info.generation
            && let Some(table) = self.0.table.borrow_mut().take()
        {
            tracing::warn!(server, "the memory server has begun anew: the table is opened again");
            table.leave(server);
        }
        Ok(())
    }

    /// A table has no locks.
    fn finish(&self) -> impl Future<Output = ()> + 'static {
        std::future::ready(())
    }

    /// Switches have nothing to lead.
    fn begin_reports(&self, _: usize, _: u64) -> bool {
        false
    }

    fn report(&self) -> ClientReport {
        ClientReport::default()
    }

    fn set_registered(&self, _: ConnectionId) {}

    fn metrics(&self, _: &mut Metrics) {}
}

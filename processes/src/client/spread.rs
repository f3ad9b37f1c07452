//! The client of a structure that lies over all memory servers, in its process: a hash table, a Dolphin index.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use fatbtree_controller::grpc::ClientReport;
use fatbtree_dolphin::Index;
use fatbtree_memserver::ServerInfo;
use fatbtree_memserver::grpc::Describe;
use fatbtree_race::Table;
use fatbtree_race::host::TableInfo;
use fatbtree_remote_memory::{Awaited, ConnectionId, KeyValue, RemoteConfig, RemoteMemory, ServerSet};
use fatbtree_topology::MemoryServer;
use fatbtree_verbs::time::Instant;

use super::structure::{DoubtOthers, Infos, StructureClient};
use super::{ClientOptions, in_nanos};
use crate::NodeError;
use crate::adapter::Adapter;
use crate::metrics::Metrics;

/// A structure over all memory servers, as a client process uses it.
pub trait Spread: KeyValue<Verbs = Adapter> {
    /// A server's description of its part.
    type Info: Describe + Copy + Eq + Send + 'static;

    /// Name of the structure, for people: `hash table`.
    const NAME: &'static str;

    /// Servers of the structure, a bit for each number.
    fn servers(info: &Self::Info) -> u32;

    /// Server on which the structure begins.
    fn home(info: &Self::Info) -> u16;
}

impl Spread for Table<Adapter> {
    type Info = TableInfo;

    const NAME: &'static str = "hash table";

    fn servers(info: &TableInfo) -> u32 {
        info.shape.servers
    }

    fn home(info: &TableInfo) -> u16 {
        info.directory.server()
    }
}

impl Spread for Index<Adapter> {
    type Info = fatbtree_dolphin::Shape;

    const NAME: &'static str = "Dolphin index";

    fn servers(shape: &fatbtree_dolphin::Shape) -> u32 {
        shape.servers
    }

    fn home(shape: &fatbtree_dolphin::Shape) -> u16 {
        shape.home()
    }
}

/// A client of a structure over all memory servers, with memory that its process keeps connected. A clone is the same client.
pub struct SpreadClient<S: Spread>(Rc<Inner<S>>);

struct Inner<S> {
    memory: Rc<RemoteMemory<Adapter>>,
    /// Server on which the structure begins.
    home: u16,
    /// Generation of each server's region when its last session was opened.
    generations: RefCell<BTreeMap<u16, u64>>,
    open: RefCell<Option<Rc<S>>>,
    /// Bytes for what the client remembers of the structure.
    remembered: Cell<u64>,
}

impl<S: Spread> Clone for SpreadClient<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S: Spread> std::fmt::Debug for SpreadClient<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpreadClient").field("memory", &self.0.memory).finish_non_exhaustive()
    }
}

impl<S: Spread> SpreadClient<S> {
    /// The structure, opened when it is first asked for, and again after a server has begun anew.
    ///
    /// # Errors
    /// See [`KeyValue::open`].
    pub async fn structure(&self) -> Result<Rc<S>, S::Error> {
        if let Some(open) = &*self.0.open.borrow() {
            return Ok(Rc::clone(open));
        }
        let awaited = self.0.memory.shared::<Awaited>();
        let opened = loop {
            let (memory, remembered) = (Rc::clone(&self.0.memory), self.0.remembered.get());
            let before = awaited.servers();
            let opened = S::open(memory, self.0.home, remembered).await?;
            // A server that has come meanwhile was not compared with the others.
            if awaited.servers() == before {
                break Rc::new(opened);
            }
        };
        // Another operation may have opened it meanwhile: all use one.
        Ok(Rc::clone(self.0.open.borrow_mut().get_or_insert(opened)))
    }

    /// The structure, if it is open.
    pub fn opened(&self) -> Option<Rc<S>> {
        self.0.open.borrow().clone()
    }

    /// Remembers so many bytes of the structure from its next opening on, which this call brings about. By default
    /// [`KeyValue::REMEMBERED`].
    pub fn remember(&self, bytes: u64) {
        if self.0.remembered.replace(bytes) != bytes {
            self.0.open.take();
        }
    }

    /// The memory that the structure lies in.
    pub fn memory(&self) -> &Rc<RemoteMemory<Adapter>> {
        &self.0.memory
    }
}

impl<S: Spread> StructureClient for SpreadClient<S> {
    type Info = S::Info;
    type Kept = RemoteMemory<Adapter>;

    fn open(
        adapter: Adapter,
        infos: &Infos<S::Info>,
        servers: &[MemoryServer],
        options: &ClientOptions,
        seed: u64,
    ) -> Result<Self, NodeError> {
        let mut known = infos.iter();
        let parts = |server: String| NodeError::Parts { structure: S::NAME, server };
        let (_, first) = known.next().ok_or_else(|| parts(String::new()))?;
        let all = servers.iter().map(|server| server.partition);
        let ServerSet(numbers) = all.clone().collect();
        let other = known.find(|(_, info)| info.structure != first.structure).map(|(server, _)| *server);
        if S::servers(&first.structure) != numbers || other.is_some() {
            let server = other.unwrap_or(first.server);
            let name = servers.iter().find(|known| known.partition == server).map(|known| known.name.clone());
            return Err(parts(name.unwrap_or_default()));
        }
        let config = RemoteConfig {
            lanes: options.lanes,
            contention: options.contention,
            patience: in_nanos(options.patience),
            ..RemoteConfig::default()
        };
        let memory = RemoteMemory::new(adapter, all.clone(), config, seed)?;
        let awaited = memory.shared::<Awaited>();
        all.filter(|server| !infos.contains_key(server)).for_each(|server| awaited.wait_for(server));
        let generations = infos.iter().map(|(server, info)| (*server, info.generation)).collect();
        Ok(Self(Rc::new(Inner {
            memory: Rc::new(memory),
            home: S::home(&first.structure),
            generations: RefCell::new(generations),
            open: RefCell::default(),
            remembered: Cell::new(S::REMEMBERED),
        })))
    }

    fn kept(&self) -> &RemoteMemory<Adapter> {
        &self.0.memory
    }

    fn turn(&self, now: Instant) {
        self.0.memory.turn(now);
    }

    /// Its part is compared with the others' when it is believed.
    fn admit(&self, _: &ServerInfo<S::Info>) -> Result<(), NodeError> {
        Ok(())
    }

    /// A server that has begun anew, as an operator had it do, ends the structure that is open.
    fn believe(&self, server: u16, infos: &Infos<S::Info>) -> Result<(), DoubtOthers> {
        let Some(info) = infos.get(&server) else { return Ok(()) };
        let known = self.0.generations.borrow_mut().insert(server, info.generation);
        let is_same = match known {
            Some(known) => known == info.generation,
            None => {
                let generations = infos.iter().map(|(server, info)| (*server, info.generation));
                self.0.memory.shared::<Awaited>().came(server, generations)
            }
        };
        if !is_same && let Some(open) = self.0.open.borrow_mut().take() {
            tracing::warn!(server, "the memory server may have begun anew: the {} is opened again", S::NAME);
            open.leave(server);
        }
        Ok(())
    }

    fn finish(&self) -> impl Future<Output = ()> + 'static {
        let open = self.opened();
        async move {
            if let Some(open) = open {
                open.finish().await;
            }
        }
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

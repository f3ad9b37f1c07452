//! The client of a structure that lies over all memory servers, in its process: a hash table, a Dolphin index.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use fatbtree_memserver::grpc::Describe;
use fatbtree_remote_memory::{
    Answer, Awaited, Change, KeyRange, Pairs, Portion, RemoteConfig, RemoteMemory, ServerSet, Spread, Step,
    Stepped, Structure,
};
use fatbtree_topology::MemoryServer;
use fatbtree_verbs::time::Instant;

use super::ClientOptions;
use super::structure::{DoubtOthers, Infos, StructureClient};
use crate::NodeError;
use crate::adapter::Adapter;

/// A client of a structure over all memory servers, with memory that its process keeps connected. A clone is the same client.
pub struct SpreadClient<S: Spread<Verbs = Adapter>>(Rc<Inner<S>>);

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

impl<S: Spread<Verbs = Adapter>> Clone for SpreadClient<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S: Spread<Verbs = Adapter>> std::fmt::Debug for SpreadClient<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpreadClient").field("memory", &self.0.memory).finish_non_exhaustive()
    }
}

impl<S: Spread<Verbs = Adapter>> SpreadClient<S> {
    /// The structure, opened when it is first asked for, and again after a server has begun anew.
    ///
    /// # Errors
    /// See [`Spread::open`].
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
    /// [`Spread::REMEMBERED`].
    pub fn remember(&self, bytes: u64) {
        if self.0.remembered.replace(bytes) != bytes {
            self.0.open.take();
        }
    }

    /// Works on the structure, opened if it was not.
    async fn on<T>(&self, work: impl AsyncFnOnce(&S) -> Answer<T, S::Error>) -> Answer<T, S::Error> {
        match self.structure().await {
            Ok(structure) => work(&structure).await,
            Err(error) => Answer { result: Err(error), round_trips: 0 },
        }
    }
}

impl<S: Spread<Verbs = Adapter>> Structure for SpreadClient<S> {
    type Value = S::Value;
    type Error = S::Error;
    type Cursor = S::Cursor;

    const NAME: &'static str = S::NAME;
    const LACKS: &'static [&'static str] = S::LACKS;

    fn now(&self) -> Instant {
        self.0.memory.reactor().now()
    }

    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> {
        self.0.memory.reactor().sleep(at - self.now())
    }

    async fn get(&self, key: u64) -> Answer<Option<S::Value>, S::Error> {
        self.on(async |structure| structure.get(key).await).await
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Answer<bool, S::Error> {
        self.on(async |structure| structure.change(key, change).await).await
    }

    async fn scan(&self, range: KeyRange, most: usize) -> Answer<Pairs, S::Error> {
        self.on(async |structure| structure.scan(range, most).await).await
    }

    async fn scan_backward(&self, range: KeyRange, most: usize) -> Answer<Pairs, S::Error> {
        self.on(async |structure| structure.scan_backward(range, most).await).await
    }

    async fn export(&self, from: S::Cursor, most: usize) -> Answer<Portion<Bytes, S::Cursor>, S::Error> {
        self.on(async |structure| structure.export(from, most).await).await
    }

    fn is_unknown(error: &S::Error) -> bool {
        S::is_unknown(error)
    }

    const TRANSACTS: bool = S::TRANSACTS;

    async fn transact(
        &self,
        attempt: u32,
        mut next: impl AsyncFnMut(Result<Stepped, S::Error>) -> Option<Step>,
    ) -> u32 {
        match self.structure().await {
            Ok(structure) => structure.transact(attempt, next).await,
            Err(error) => {
                let _no_step = next(Err(error)).await;
                0
            }
        }
    }

    fn is_conflict(error: &S::Error) -> bool {
        S::is_conflict(error)
    }
}

impl<S: Spread<Verbs = Adapter, Info: Describe>> StructureClient for SpreadClient<S> {
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
            patience: options.patience.into(),
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

    async fn ready(&self) -> Result<(), S::Error> {
        self.structure().await.map(drop)
    }

    fn finish(&self) -> impl Future<Output = ()> + 'static {
        let open = self.opened();
        async move {
            if let Some(open) = open {
                open.finish().await;
            }
        }
    }

    async fn verify(&self) -> Result<String, Box<dyn Error + Send + Sync>> {
        Ok(self.structure().await?.verify().await?.to_string())
    }
}

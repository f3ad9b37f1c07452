//! The client of a structure that lies over all memory servers: a hash table, a Dolphin index. It opens the structure when it is first
//! asked, and anew after a server has begun anew.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use fatbtree_verbs::time::Instant;

use crate::client::{Believed, CacheUse, ClientConfig, Infos, OpenError, Remembered, StructureClient};
use crate::config::RemoteConfig;
use crate::connection::ConnectError;
use crate::kept::Kept;
use crate::keys::{BytesRange, KeyRange};
use crate::latencies::{LatencyBuckets, OperationLatencies};
use crate::members::{Awaited, ServerSet};
use crate::memory::RemoteMemory;
use crate::structure::{
    Answer, BytesExported, BytesPairs, Change, Order, Pairs, Portion, Spread, Step, Stepped, Structure,
};

/// A client of a structure over all memory servers, whose memory is kept connected. A clone is the same client.
pub struct SpreadClient<S: Spread>(Rc<Inner<S>>);

struct Inner<S: Spread> {
    memory: Rc<RemoteMemory<S::Verbs>>,
    /// Server on which the structure begins.
    home: u16,
    /// Generation of each server's region when its last session was opened.
    generations: RefCell<BTreeMap<u16, u64>>,
    open: RefCell<Option<Rc<S>>>,
    /// Bytes for what the client remembers of the structure.
    remembered: Cell<u64>,
    latencies: RefCell<OperationLatencies>,
}

impl<S: Spread> Clone for SpreadClient<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S: Spread> fmt::Debug for SpreadClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpreadClient").field("memory", &self.0.memory).finish_non_exhaustive()
    }
}

impl<S: Spread> SpreadClient<S> {
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

    /// Works on the structure, opened if it was not.
    async fn on<T>(
        &self,
        kind: impl FnOnce(&mut OperationLatencies) -> &mut LatencyBuckets,
        work: impl AsyncFnOnce(&S) -> Answer<T, S::Error>,
    ) -> Answer<T, S::Error> {
        let since = self.now();
        let answer = match self.structure().await {
            Ok(structure) => work(&structure).await,
            Err(error) => Answer { result: Err(error), round_trips: 0 },
        };
        kind(&mut self.0.latencies.borrow_mut()).record((self.now() - since).as_nanos());
        answer
    }
}

impl<S: Spread> SpreadClient<S> {
    /// The same of keys of bytes, which the structure may not have.
    async fn on_bytes<T>(
        &self,
        kind: impl FnOnce(&mut OperationLatencies) -> &mut LatencyBuckets,
        work: impl AsyncFnOnce(&S) -> Option<Answer<T, S::Error>>,
    ) -> Option<Answer<T, S::Error>> {
        let since = self.now();
        let answer = match self.structure().await {
            Ok(structure) => work(&structure).await?,
            Err(error) => Answer { result: Err(error), round_trips: 0 },
        };
        kind(&mut self.0.latencies.borrow_mut()).record((self.now() - since).as_nanos());
        Some(answer)
    }
}

impl<S: Spread> Structure for SpreadClient<S> {
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
        self.on(|all| &mut all.reads, async |structure| structure.get(key).await).await
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Answer<bool, S::Error> {
        self.on(|all| &mut all.writes, async |structure| structure.change(key, change).await).await
    }

    async fn scan(&self, range: KeyRange, order: Order, most: usize) -> Answer<Pairs, S::Error> {
        self.on(|all| &mut all.scans, async |structure| structure.scan(range, order, most).await).await
    }

    async fn export(&self, from: S::Cursor, most: usize) -> Answer<Portion<Bytes, S::Cursor>, S::Error> {
        self.on(|all| &mut all.scans, async |structure| structure.export(from, most).await).await
    }

    async fn get_bytes(&self, key: &[u8]) -> Option<Answer<Option<S::Value>, S::Error>> {
        self.on_bytes(|all| &mut all.reads, async |structure| structure.get_bytes(key).await).await
    }

    async fn change_bytes(&self, key: &[u8], change: Change<'_>) -> Option<Answer<bool, S::Error>> {
        self.on_bytes(|all| &mut all.writes, async |structure| structure.change_bytes(key, change).await)
            .await
    }

    async fn scan_bytes(
        &self,
        range: BytesRange,
        order: Order,
        most: usize,
    ) -> Option<Answer<BytesPairs, S::Error>> {
        let scan = async |structure: &S| structure.scan_bytes(range, order, most).await;
        self.on_bytes(|all| &mut all.scans, scan).await
    }

    async fn export_bytes(&self, from: S::Cursor, most: usize) -> Option<BytesExported<S::Cursor, S::Error>> {
        self.on_bytes(|all| &mut all.scans, async |structure| structure.export_bytes(from, most).await).await
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

impl<S: Spread> Kept for SpreadClient<S> {
    type Verbs = S::Verbs;
    type Refusal = ConnectError;

    fn remote(&self) -> &RemoteMemory<S::Verbs> {
        &self.0.memory
    }
}

impl<S: Spread> StructureClient for SpreadClient<S> {
    type Info = S::Info;

    const REMEMBERS: &'static [Remembered] = &[S::REMEMBERS];

    fn has_byte_keys(info: &S::Info) -> bool {
        S::has_byte_keys(info)
    }

    fn open(
        verbs: S::Verbs,
        infos: &Infos<S::Info>,
        servers: &[u16],
        config: &ClientConfig,
        seed: u64,
    ) -> Result<Self, OpenError> {
        let parts = |server| OpenError::Parts { structure: S::NAME, server };
        let mut known = infos.iter();
        let (_, first) = known.next().ok_or_else(|| parts(servers.first().copied().unwrap_or_default()))?;
        let ServerSet(numbers) = servers.iter().copied().collect();
        let other = known.find(|(_, info)| info.structure != first.structure).map(|(server, _)| *server);
        if S::servers(&first.structure) != numbers || other.is_some() {
            return Err(parts(other.unwrap_or(first.server)));
        }
        let remote = RemoteConfig {
            lanes: config.lanes,
            contention: config.contention,
            patience: config.patience,
            ..RemoteConfig::default()
        };
        let memory = RemoteMemory::new(verbs, servers.iter().copied(), remote, seed)?;
        let awaited = memory.shared::<Awaited>();
        let absent = servers.iter().filter(|server| !infos.contains_key(server));
        absent.for_each(|server| awaited.wait_for(*server));
        let generations = infos.iter().map(|(server, info)| (*server, info.generation)).collect();
        Ok(Self(Rc::new(Inner {
            memory: Rc::new(memory),
            home: S::home(&first.structure),
            generations: RefCell::new(generations),
            open: RefCell::default(),
            remembered: Cell::new(S::REMEMBERED),
            latencies: RefCell::default(),
        })))
    }

    fn turn(&self, now: Instant) {
        self.0.memory.turn(now);
    }

    /// A server that has begun anew, as an operator had it do, ends the structure that is open.
    fn believe(&self, server: u16, infos: &Infos<S::Info>) -> Believed {
        let Some(info) = infos.get(&server) else { return Believed::Fits };
        let known = self.0.generations.borrow_mut().insert(server, info.generation);
        let is_same = match known {
            Some(known) => known == info.generation,
            None => {
                let generations = infos.iter().map(|(server, info)| (*server, info.generation));
                self.0.memory.shared::<Awaited>().came(server, generations)
            }
        };
        if !is_same && let Some(open) = self.0.open.borrow_mut().take() {
            open.leave(server);
            return Believed::Another(format!("it may have begun anew: the {} is opened again", S::NAME));
        }
        Believed::Fits
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

    /// The next opening, which this call brings about, takes so many bytes. By default [`Spread::REMEMBERED`].
    fn remember(&self, kind: Remembered, bytes: u64) {
        if kind == S::REMEMBERS && self.0.remembered.replace(bytes) != bytes {
            self.0.open.take();
        }
    }

    fn cache_use(&self, kind: Remembered) -> CacheUse {
        let open = self.opened().filter(|_| kind == S::REMEMBERS);
        open.map(|open| open.cache_use()).unwrap_or_default()
    }

    fn latencies(&self) -> OperationLatencies {
        *self.0.latencies.borrow()
    }
}

//! One thread's share of the queries.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fatbtree_blink::{
    ConnectionId, GlobalAddress, IndexCache, KeyRange, Keys, Partition, Pool, PoolConfig, PoolError,
    PoolStats, Start, SuperRoot, SuperRootError,
};
use fatbtree_query::{Outcome, Responder, ResponderOptions, ResponderStats, Ticket, ToClient};
use fatbtree_remote_memory::session_keeper::{
    Call, CallId, Denied, Granted, KeeperOptions, Meaning, Notice, SessionKeeper,
};
use fatbtree_verbs::Alarm;
use fatbtree_verbs::local::{LocalHost, LocalVerbs};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::query::Op;
use futures_buffered::FuturesUnorderedBounded;
use futures_core::Stream;

use super::NodeMap;
use super::operation::{ScanBounds, carry_out};
use crate::TreeServerInfo;
use crate::tenant::TreeInfo;

/// Options of a worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The first key of each memory server and its partition, ascending from 0. A client that asks for
    /// another server's key is sent there.
    pub servers: Vec<(u64, u16)>,
    /// Limits of clients at the worker.
    pub responder: ResponderOptions,
    /// Bounds of the answer to one scan.
    pub scans: ScanBounds,
    /// Cache of inner nodes, which workers of one server share. `None`: every operation begins at the root.
    pub cache: Option<Arc<IndexCache>>,
    /// Options of its session with the memory server.
    pub session: KeeperOptions,
}

/// Errors from creating a worker, or from another tree in the place of its own.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// No memory for buffers.
    #[error("no memory for the buffers of a query worker: {0}")]
    Buffers(#[from] std::io::Error),
    /// The tree cannot be worked on.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The server's description of itself is invalid.
    #[error(transparent)]
    Roots(#[from] SuperRootError),
    /// The server has been loaded with a tree of another layout.
    #[error("the tree has another layout than the one that this worker was made for")]
    OtherLayout,
}

/// Counters of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerStats {
    /// Datagrams and requests.
    pub responder: ResponderStats,
    /// Counters of operations in the tree.
    pub pool: PoolStats,
    /// Requests for keys of other partitions.
    pub redirected: u64,
    /// Requests that brought the address of a node where one was.
    pub led: u64,
    /// Requests that brought an address where none was.
    pub stale_hints: u64,
    /// Requests whose record, or a node on the way to it, failed its checks however often it was read.
    pub damaged: u64,
}

type Work = Pin<Box<dyn Future<Output = Ended>>>;

/// Work that has ended.
enum Ended {
    /// A request, with the keys of the partition when it was begun.
    Request(Ticket, Outcome, KeyRange),
    /// Locks were given back.
    Chore,
}

/// Answers queries, for one thread.
///
/// **Driving contract.** Time never goes back. After a bounded number of [`handle`](Self::handle) come some [`step`](Self::step)s; then
/// everything that [`poll_transmit`](Self::poll_transmit) has is sent, and each call of [`poll_call`](Self::poll_call) is carried to the
/// memory server as one of a [local](fatbtree_memserver::ClientId::local) client, and answered by [`handle_answer`](Self::handle_answer),
/// at once or later. While a step says that there may be more, the socket is looked at and another step follows. Otherwise there is one
/// when [`poll_timeout`](Self::poll_timeout) has come, or the memory server has answered.
///
/// What it holds is bounded: requests at work by [`ResponderOptions::running`], what clients hold by the others of them.
pub struct QueryWorker {
    responder: Responder,
    pool: Rc<Pool<LocalVerbs>>,
    connection: ConnectionId,
    keeper: SessionKeeper<TreeInfo>,
    info: TreeServerInfo,
    nodes: Option<NodeMap>,
    options: WorkerOptions,
    start: Start,
    work: FuturesUnorderedBounded<Work>,
    room: usize,
    alarm: Arc<Alarm>,
    waker: Waker,
    /// A change gave up while it held a lock.
    unfinished: bool,
    /// Time of the next look at clients' leases.
    look_due: Instant,
    /// Time at which a turn ended before all was done.
    more_since: Option<Instant>,
    stats: WorkerStats,
}

impl std::fmt::Debug for QueryWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryWorker")
            .field("partition", &self.connection.server)
            .field("responder", &self.responder)
            .finish_non_exhaustive()
    }
}

/// Sampling interval of admission to the workers' cache: one in this many inner nodes that are read is
/// inserted, so that the cache holds those that are read often. Inserting each would cost more than reading
/// it (`query_server_time`, an example of `fatbtree-sim`, with a tree that is much larger than the cache).
const TAKEN: u32 = 8;

/// Creates a cache of inner nodes, of at most `bytes`, for all workers of a server.
#[must_use]
pub fn worker_cache(bytes: u64) -> Arc<IndexCache> {
    Arc::new(IndexCache::new(bytes).one_in(TAKEN))
}

/// Interval between looks at clients whose leases have ended.
const LOOK: Duration = Duration::from_secs(1);

/// Steps of a turn: so a request that reads on and on, as a scan over many leaves without keys does, keeps no other one's answer back for
/// longer than some milliseconds.
const STEPS: usize = 4096;

/// Operations that end in one step: the worker's driver looks at its socket between two.
const ENDED_AT_ONCE: usize = 64;

/// Chores beside the requests.
const CHORES: usize = 2;

/// The partition, and two beside it that are never used: a super-root has all keys.
fn roots(partition: &Partition) -> Result<SuperRoot, SuperRootError> {
    let mut others = (0..=u16::MAX).filter(|id| *id != partition.id);
    let mut other = |range| {
        let id = others.next().expect("there are more than three numbers");
        Partition { id, range, root: GlobalAddress::new(id, 64), root_level: 0 }
    };
    let KeyRange { low, high } = partition.range;
    let below = (low > 0).then(|| other(KeyRange { low: 0, high: Some(low) }));
    let above = high.map(|high| other(KeyRange { low: high, high: None }));
    SuperRoot::new(below.into_iter().chain([*partition]).chain(above).collect())
}

impl QueryWorker {
    /// A worker of the memory server that has said this of itself. It needs a link first. The seed must be one that clients cannot guess.
    ///
    /// # Errors
    /// When there is no memory, or the tree cannot be.
    pub fn new(
        host: &LocalHost,
        info: &TreeServerInfo,
        options: WorkerOptions,
        seed: u64,
    ) -> Result<Self, WorkerError> {
        let verbs = LocalVerbs::new(host, &LocalVerbs::BUFFERS)?;
        let config = PoolConfig { tree: info.config, ..PoolConfig::default() };
        let pool = Pool::new(verbs, config, roots(&info.partition)?, seed)?;
        pool.set_cache(options.cache.clone());
        let start = if options.cache.is_some() { Start::Cached } else { Start::Root };
        let responder = ResponderOptions { partition: info.partition.id, ..options.responder };
        let room = responder.running + CHORES;
        let alarm = Alarm::ringing();
        let connection = ConnectionId { server: info.partition.id, lane: 0 };
        for other in pool.connections().into_iter().filter(|id| *id != connection) {
            pool.abandon(other).map_err(PoolError::from)?;
        }
        Ok(Self {
            responder: Responder::new(responder, seed ^ 0x9e37_79b9_7f4a_7c15),
            pool: Rc::new(pool),
            connection,
            keeper: SessionKeeper::new([connection], options.session),
            info: *info,
            nodes: None,
            options,
            start,
            work: FuturesUnorderedBounded::new(room),
            room,
            waker: Arc::clone(&alarm).into(),
            alarm,
            unfinished: false,
            look_due: Instant::ZERO + LOOK,
            more_since: None,
            stats: WorkerStats::default(),
        })
    }

    /// A datagram has come.
    pub fn handle(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        let Some(request) = self.responder.handle(now, from, datagram) else { return };
        let (ticket, key, range) = (request.ticket, request.key, self.info.partition.range);
        let (code, are_bytes) = (self.info.config.code(), self.info.config.keys() == Keys::Bytes);
        let is_other_kind = request.bytes.is_some() != are_bytes;
        // What switches know of a key must be what is known of it here.
        let is_other_word =
            are_bytes && request.bytes.as_ref().is_some_and(|bytes| code.word(&bytes.key) != key);
        let is_elsewhere = key < range.low || range.is_below(key);
        if (is_elsewhere || is_other_kind || is_other_word) && !self.is_linked() {
            // The session has ended, perhaps because the server has another tree, with other keys: no client
            // is redirected or refused before that is known.
            self.keeper.doubt(self.connection.server);
            self.responder.finish(ticket, Outcome::Failed);
            return;
        }
        if is_other_word {
            let description = code.description().to_vec();
            self.responder.finish(ticket, Outcome::OtherCode(description));
            return;
        }
        if is_elsewhere {
            self.stats.redirected += 1;
            self.responder.finish(ticket, Outcome::Redirect(self.partition_of(key)));
            return;
        }
        if self.work.len() >= self.room {
            self.responder.finish(ticket, Outcome::Failed);
            return;
        }
        let led = match (request.op, request.address) {
            // A scan finds its leaves by itself.
            (Op::Scan, _) | (_, 0) => None,
            (_, address) => {
                let start = self.nodes.as_ref().and_then(|nodes| nodes.start(key, address));
                if start.is_some() {
                    self.stats.led += 1;
                    self.responder.begins_there(ticket);
                } else {
                    self.stats.stale_hints += 1;
                }
                start
            }
        };
        let start = led.unwrap_or(self.start);
        let done = carry_out(Rc::clone(&self.pool), request, start, self.info.partition, self.options.scans);
        self.work.push(Box::pin(async move { Ended::Request(ticket, done.await, range) }));
        self.waker.wake_by_ref();
    }

    fn is_linked(&self) -> bool {
        let queue_pair = self.pool.queue_pair(self.connection);
        queue_pair.is_some_and(|queue_pair| self.pool.reactor().with(|verbs| verbs.is_open(queue_pair)))
    }

    /// Partition of a key that is not this partition's.
    fn partition_of(&self, key: u64) -> u16 {
        let (servers, own) = (&self.options.servers, self.info.partition.id);
        let at = servers.partition_point(|(low, _)| *low <= key).saturating_sub(1);
        match servers.get(at) {
            Some(&(_, other)) if other != own => other,
            // The ranges have changed since this was written down: a neighbour knows more.
            _ => {
                let here = servers.iter().position(|&(_, partition)| partition == own);
                let next = here.and_then(|here| match key < self.info.partition.range.low {
                    true => here.checked_sub(1),
                    false => here.checked_add(1),
                });
                next.and_then(|next| servers.get(next)).map_or(own, |&(_, partition)| partition)
            }
        }
    }

    /// Goes on with everything, as far as it goes in a bounded number of steps: for tests and tools, which have no socket to look at between
    /// two. If there is more to do, the [next turn](Self::poll_timeout) is due at once.
    pub fn turn(&mut self, now: Instant) {
        self.more_since = (0..STEPS).all(|_| self.step(now)).then_some(now);
    }

    /// Goes on by one step of each operation that can make one. Says whether there was one: then there may be more. Others may work on
    /// the tree between two steps, as they do at any moment where this is a thread.
    pub fn step(&mut self, now: Instant) -> bool {
        self.responder_timeout(now);
        let any = self.pool.turn(now);
        let rang = self.alarm.take();
        if rang {
            let mut context = Context::from_waker(&self.waker);
            for ended in 0.. {
                // The rest has its turn in the next step.
                if ended == ENDED_AT_ONCE {
                    self.waker.wake_by_ref();
                    break;
                }
                let Poll::Ready(Some(done)) = Pin::new(&mut self.work).poll_next(&mut context) else { break };
                match done {
                    // A scan that continues after the former border misses keys that now lie before it; and
                    // what lies after a new border is no damage.
                    Ended::Request(ticket, Outcome::Records { .. } | Outcome::Damaged, range)
                        if range != self.info.partition.range =>
                    {
                        self.responder.finish(ticket, Outcome::Failed);
                    }
                    Ended::Request(ticket, outcome, _) => {
                        self.stats.damaged += u64::from(outcome == Outcome::Damaged);
                        self.responder.finish(ticket, outcome);
                    }
                    Ended::Chore => {}
                }
            }
        }
        self.give_locks_back();
        any || rang
    }

    fn responder_timeout(&mut self, now: Instant) {
        if now >= self.look_due {
            self.look_due = now + LOOK;
            self.responder.handle_timeout(now);
        }
    }

    fn give_locks_back(&mut self) {
        if self.unfinished && self.work.len() < self.room {
            self.unfinished = false;
            let pool = Rc::clone(&self.pool);
            self.work.push(Box::pin(async move {
                pool.finish().await;
                Ended::Chore
            }));
            self.waker.wake_by_ref();
        }
    }

    /// The next call for the memory server.
    pub fn poll_call(&mut self, now: Instant) -> Option<(CallId, Call)> {
        let call = self.keeper.poll_call(now, &*self.pool);
        while let Some(notice) = self.keeper.poll_notice() {
            self.handle_notice(&notice);
        }
        call
    }

    /// The memory server has answered a call that is under way.
    ///
    /// # Errors
    /// When a new session is with a tree of another layout. Then it [begins anew](Self::begin_anew).
    pub fn handle_answer(
        &mut self,
        now: Instant,
        call: CallId,
        answer: Result<Granted<TreeInfo>, impl Into<Denied>>,
    ) -> Result<(), WorkerError> {
        if let Ok(Granted::Attached(attached)) = &answer {
            self.nodes = Some(NodeMap::new(self.connection.server, attached));
        }
        self.keeper.handle_answer(now, &*self.pool, call, answer);
        let mut result = Ok(());
        while let Some(notice) = self.keeper.poll_notice() {
            match notice {
                Notice::Opened { .. } => result = self.begin_session(),
                notice => self.handle_notice(&notice),
            }
        }
        result
    }

    fn begin_session(&mut self) -> Result<(), WorkerError> {
        if let Some(info) = self.keeper.info(self.connection.server) {
            self.info = *info;
        }
        self.nodes = None;
        if self.info.config != self.pool.config().tree {
            return Err(WorkerError::OtherLayout);
        }
        // Other ranges have other numbers beside them.
        Ok(self.pool.set_roots(roots(&self.info.partition)?)?)
    }

    fn handle_notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Unfinished { .. } => {
                self.unfinished = true;
                self.give_locks_back();
            }
            Notice::Denied { denied, .. } if denied.meaning == Meaning::No => {
                tracing::warn!(%denied, "a memory server refuses a query worker's call");
            }
            notice => tracing::debug!(?notice, "a query worker's session"),
        }
    }

    /// Begins anew with the tree that its server has now, whatever its layout. Clients stay known. What they have asked for of the former tree
    /// has ended. The seed must be one that clients cannot guess.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn begin_anew(&mut self, host: &LocalHost, seed: u64) -> Result<(), WorkerError> {
        let mut anew = Self::new(host, &self.info, self.options.clone(), seed)?;
        self.responder.abandon();
        std::mem::swap(&mut anew.responder, &mut self.responder);
        anew.stats = self.stats;
        *self = anew;
        Ok(())
    }

    /// Takes the calls under way for unanswered: their carrier is gone.
    pub fn abandon_calls(&mut self, now: Instant) {
        self.keeper.abandon_calls(now, &*self.pool);
    }

    /// Closes the session: the last calls follow.
    pub fn close(&mut self) {
        self.keeper.close(&*self.pool);
    }

    /// The server's description of itself when the last session was opened.
    pub fn info(&self) -> &TreeServerInfo {
        &self.info
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<ToClient> {
        self.responder.poll_transmit()
    }

    /// Latest time of the next turn.
    pub fn poll_timeout(&self) -> Instant {
        let due = [self.pool.poll_timeout(), self.more_since, Some(self.keeper.poll_timeout())];
        due.into_iter().flatten().fold(self.look_due, Instant::min)
    }

    /// Requests that are at work.
    pub fn under_way(&self) -> usize {
        self.work.len()
    }

    /// Counters so far.
    pub fn stats(&self) -> WorkerStats {
        WorkerStats { responder: self.responder.stats(), pool: self.pool.stats(), ..self.stats }
    }
}

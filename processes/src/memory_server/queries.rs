//! Threads that answer queries, beside the thread of the memory server's NIC.
//!
//! ```text
//!   UDP, one address ─► kernel: by peer ─► worker 1: socket, QueryWorker ─┐
//!                                      └─► worker 2: socket, QueryWorker ─┼─► the tree's memory ◄─ NIC ◄─ RDMA clients
//!                                              │ calls    ▲ answers
//!                                              ▼          │
//!                                          carrier: to the memory server's mailbox (control plane's thread)
//! ```
//!
//! Without an address of their own they come over the wire of the NIC: its thread hands datagrams for the protocol's ports on by peer, as the
//! kernel does, and workers send by the wire themselves.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use fatbtree_blink_host::query::{QueryWorker, WorkerOptions, WorkerStats, worker_cache};
use fatbtree_blink_host::{TreeHandle, TreeInfo, TreeServerInfo};
use fatbtree_memserver::ClientId;
use fatbtree_port::{DatagramCounts, Datagrams, Lanes, Waiter, share_address};
use fatbtree_query::{ResponderOptions, Secret};
use fatbtree_remote_memory::session_keeper::{Call, CallId, Denied, Granted, KeeperOptions, NoAnswer};
use fatbtree_topology::Host;
use fatbtree_verbs::local::LocalHost;
use fatbtree_verbs::time::{self, Instant};
use fatbtree_wire::query::{DIRECT_QUERY_UDP_PORT, QUERY_UDP_PORT};
use tokio::runtime::Runtime;
use tokio::sync::mpsc as calls;

use crate::NodeError;
use crate::adapter::{Adapter, Share, Shares, Watch};
use crate::metrics::Metrics;
use crate::stop::{Stopper, stopper_of};

/// Options of a memory server's query workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueryOptions {
    /// Address for queries, `name-or-address:port`, by sockets of this machine. `None` if they come over the wire of the software NIC, at
    /// the
    /// host's address.
    pub address: Option<String>,
    /// Threads, each with its own queue: at least 1.
    pub workers: u16,
    /// The first key of each memory server and its partition, ascending from 0.
    pub servers: Vec<(u64, u16)>,
    /// Size in bytes of the workers' caches of internal nodes, together; 0: every operation begins at the root.
    pub cache_bytes: u64,
    /// Secret from which the keys of clients are made; requests without such a key are not answered. `None` if all clients are answered.
    pub secret: Option<Secret>,
}

impl QueryOptions {
    pub(super) fn threads(&self) -> usize {
        self.workers.max(1).into()
    }
}

/// Counts of all workers together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueryReport {
    /// Requests that were handed on to the tree.
    pub requests: u64,
    /// Writes that came again, and were answered from memory.
    pub again: u64,
    /// Requests for keys of other partitions.
    pub redirected: u64,
    /// Requests that were refused because a bound was reached.
    pub busy: u64,
    /// Requests without the tag of a client's key.
    pub no_key: u64,
    /// Datagrams that are no requests.
    pub damaged: u64,
    /// Requests that began at a node that switches had found.
    pub led: u64,
    /// Requests with the address of a node where none was: what a switch knew was old.
    pub stale_hints: u64,
    /// Requests whose record, or a node on the way to it, failed its checks however often it was read.
    pub damaged_data: u64,
    /// Frames that have found no room with the thread that they are for.
    pub crowded_out: u64,
    /// Nodes that were split.
    pub splits: u64,
    /// Counters of datagrams.
    pub datagrams: DatagramCounts,
}

impl QueryReport {
    fn add(&mut self, stats: &WorkerStats, datagrams: &DatagramCounts) {
        let WorkerStats { responder, pool, redirected, led, stale_hints, damaged } = stats;
        self.requests += responder.requests;
        self.again += responder.again;
        self.busy += responder.busy;
        self.no_key += responder.no_key;
        self.damaged += responder.damaged;
        self.redirected += redirected;
        self.led += led;
        self.stale_hints += stale_hints;
        self.damaged_data += damaged;
        self.splits += pool.splits;
        self.datagrams.merge(datagrams);
    }

    pub(super) fn metrics(&self, metrics: &mut Metrics) {
        for (name, help, value) in [
            ("query_requests", "Requests that were handed on to the tree", self.requests),
            ("query_again", "Writes that came again, and were answered from memory", self.again),
            ("query_redirected", "Requests for keys of other partitions", self.redirected),
            ("query_busy", "Requests that were refused for a bound", self.busy),
            ("query_no_key", "Requests without the tag of a client's key", self.no_key),
            ("query_damaged", "Datagrams that are no requests", self.damaged),
            ("query_led", "Requests that began at a node that switches had found", self.led),
            ("query_stale_hints", "Requests that switches had led to where no node was", self.stale_hints),
            (
                "query_damaged_data",
                "Requests for keys whose records or nodes fail their checks",
                self.damaged_data,
            ),
            ("query_crowded_out", "Frames that found no room with their thread", self.crowded_out),
            ("query_foreign", "Frames that were no datagrams for here", self.datagrams.foreign),
            ("query_frames_damaged", "Frames with wrong lengths or checksums", self.datagrams.damaged),
            ("query_splits", "Nodes that query workers have split", self.splits),
            ("query_datagrams_received", "Datagrams received", self.datagrams.received),
            ("query_datagrams_sent", "Datagrams sent", self.datagrams.sent),
            ("query_datagrams_dropped", "Datagrams that the system did not take", self.datagrams.dropped),
            ("query_system_calls", "System calls of query workers", self.datagrams.calls),
        ] {
            metrics.counter(name, help, value);
        }
    }
}

impl fmt::Display for QueryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, led, again, redirected, busy, damaged, splits, datagrams, .. } = self;
        write!(
            f,
            "{requests} requests, {led} led by switches, {again} writes again, {redirected} redirected, {busy} refused, {damaged} damaged, \
             {splits} splits"
        )?;
        for (count, what) in [
            (self.stale_hints, "stale hints"),
            (self.no_key, "without a key"),
            (self.crowded_out, "crowded out"),
            (datagrams.damaged, "frames damaged"),
            (self.damaged_data, "for damaged data (restore the server's folder, or load the tree again)"),
            (datagrams.dropped, "answers lost"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        if datagrams.calls > 0 && *requests > 0 {
            let each = datagrams.calls as f64 / *requests as f64;
            write!(f, ", {} system calls ({each:.2} each)", datagrams.calls)?;
        }
        Ok(())
    }
}

/// Counts of a worker.
type Done = (WorkerStats, DatagramCounts);

/// Schedule of a worker's reports to the board: before each wait, and from time to time while the worker is busy.
#[derive(Debug, Default)]
struct Telling {
    last: Option<Done>,
    due: Instant,
}

impl Telling {
    /// Longest time between two reports of a busy worker.
    const BUSY: time::Duration = time::Duration::from_secs(1);

    /// Counts to report now, if a report is due and they have changed.
    fn next(&mut self, now: Instant, waits: bool, done: impl FnOnce() -> Done) -> Option<Done> {
        if !waits && now < self.due {
            return None;
        }
        self.due = now + Self::BUSY;
        let done = done();
        (self.last.replace(done) != Some(done)).then_some(done)
    }
}

/// Counts of all workers of a server so far, for other threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Board {
    workers: Arc<Mutex<Vec<Done>>>,
    /// Frames that found no room, if queries come by a wire.
    lost: Option<Arc<AtomicU64>>,
}

impl Board {
    fn tell(&self, worker: usize, done: Done) {
        let mut all = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        all[worker] = done;
    }

    pub(super) fn report(&self) -> QueryReport {
        let lost = self.lost.as_ref().map_or(0, |lost| lost.load(Ordering::Relaxed));
        let mut report = QueryReport { crowded_out: lost, ..QueryReport::default() };
        let all = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().for_each(|(stats, datagrams)| report.add(stats, datagrams));
        report
    }
}

/// Places that are open, and threads that are to be started.
pub(super) struct Queries {
    options: QueryOptions,
    address: SocketAddr,
    places: Vec<Place>,
    lost: Option<Arc<AtomicU64>>,
}

/// Source of a worker's datagrams.
enum Place {
    Socket(UdpSocket),
    Wire(Share),
}

impl Place {
    /// Opens the lanes, for the calling thread.
    fn open(self) -> Result<Lanes, NodeError> {
        Ok(match self {
            Self::Socket(socket) => Lanes::Sockets(vec![Datagrams::new(socket)?]),
            Self::Wire(share) => Lanes::Frames(Box::new(share.open()?)),
        })
    }
}

/// UDP ports of requests on a wire; answers are sent from the first.
const PORTS: Range<u16> = QUERY_UDP_PORT..DIRECT_QUERY_UDP_PORT + 1;

/// Threads that answer queries. They end when this value is dropped.
pub struct Workers {
    pub(super) address: SocketAddr,
    pub(super) board: Board,
    threads: Vec<(Stopper, JoinHandle<()>)>,
}

impl Queries {
    /// Opens the sockets, or diverts datagrams from the device's wire. Reports errors before any thread is started.
    pub(super) fn open(options: QueryOptions, host: &Host, device: &mut Adapter) -> Result<Self, NodeError> {
        let Some(named) = &options.address else {
            let Shares { all, lost } = device.divert(&PORTS)?.ok_or(NodeError::NoWire)?;
            let (address, places) = ((host.ip, PORTS.start).into(), all.into_iter().map(Place::Wire));
            return Ok(Self { address, places: places.collect(), lost: Some(lost), options });
        };
        let failed = |source| NodeError::Listen { address: named.clone(), source };
        let mut found = named.to_socket_addrs().map_err(failed)?;
        let address = found.next().ok_or_else(|| failed(std::io::ErrorKind::AddrNotAvailable.into()))?;
        let sockets = share_address(address, options.threads())?;
        let address = sockets[0].local_addr().map_err(failed)?;
        Ok(Self { address, places: sockets.into_iter().map(Place::Socket).collect(), lost: None, options })
    }

    /// Starts the threads, and the carriers of their calls to the memory server.
    pub(super) fn start(
        self,
        control: &Runtime,
        host: &LocalHost,
        info: &TreeServerInfo,
        handle: &TreeHandle,
    ) -> Result<Workers, NodeError> {
        let Self { options, address, places, lost } = self;
        let cache = (options.cache_bytes > 0).then(|| worker_cache(options.cache_bytes));
        let board = vec![(WorkerStats::default(), DatagramCounts::default()); places.len()];
        let board = Board { workers: Arc::new(Mutex::new(board)), lost };
        let mut workers = Workers { address, board, threads: Vec::new() };
        for (number, place) in places.into_iter().enumerate() {
            let waiter = Waiter::new()?;
            let (stopper, waker) = (stopper_of(&waiter), waiter.waker());
            let (to_carrier, mut from_worker) = calls::channel(CALLS);
            let (to_worker, answers) = mpsc::channel();
            let handle = handle.clone();
            control.spawn(async move {
                while let Some((id, call)) = from_worker.recv().await {
                    let carried = async { Ok(handle.call(ClientId::local(number as u32), call).await??) };
                    let answer = carried.await;
                    // A thread that has ended needs no answer.
                    let _ = to_worker.send((id, answer));
                    waker.wake();
                }
            });
            let begin = Begin {
                number,
                host: host.clone(),
                info: *info,
                options: WorkerOptions {
                    servers: options.servers.clone(),
                    responder: ResponderOptions { secret: options.secret, ..ResponderOptions::default() },
                    scans: Default::default(),
                    cache: cache.clone(),
                    session: KeeperOptions { longest_pause: PAUSE, ..KeeperOptions::default() },
                },
                board: workers.board.clone(),
                stopper: stopper.clone(),
            };
            let run = move || {
                if let Err(error) = work(begin, place, waiter, to_carrier, answers) {
                    tracing::error!(%error, "a query worker has ended");
                }
            };
            let thread = std::thread::Builder::new().name(format!("query-{number}")).spawn(run);
            let thread = thread.map_err(NodeError::system("starting a query worker's thread"))?;
            workers.threads.push((stopper, thread));
        }
        Ok(workers)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.threads.iter().for_each(|(stopper, _)| stopper.stop());
        for (_, thread) in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a query worker has panicked");
            }
        }
    }
}

/// Initial values of a worker's thread.
struct Begin {
    number: usize,
    host: LocalHost,
    info: TreeServerInfo,
    options: WorkerOptions,
    board: Board,
    stopper: Stopper,
}

/// Runs a worker until it is told to stop.
fn work(
    begin: Begin,
    place: Place,
    waiter: Waiter,
    calls: calls::Sender<(CallId, Call)>,
    answers: mpsc::Receiver<(CallId, Result<Granted<TreeInfo>, Denied>)>,
) -> Result<(), NodeError> {
    let mut lanes = place.open()?;
    let mut worker = QueryWorker::new(&begin.host, &begin.info, begin.options, rand::random())?;
    let mut watch = Watch::new(waiter);
    let mut telling = Telling::default();
    while !begin.stopper.is_told() {
        let more = lanes.receive(|_| true);
        let mut now = watch.now();
        lanes.each(|_, from, datagram| worker.handle(now, from, datagram));
        while let Ok((call, answer)) = answers.try_recv() {
            if let Err(error) = worker.handle_answer(now, call, answer) {
                // A tree of another layout, with other keys.
                tracing::info!(%error, "a query worker begins anew");
                worker.begin_anew(&begin.host, rand::random())?;
            }
        }
        // Whatever there is to do, the socket is looked at again before it overflows.
        let until = now + AT_ONCE;
        let busy = loop {
            if !worker.step(now) {
                break false;
            }
            now = watch.now();
            if now >= until {
                break true;
            }
        };
        while let Some((id, call)) = worker.poll_call(now) {
            if calls.try_send((id, call)).is_err() {
                worker.handle_answer(now, id, Err(NoAnswer))?;
            }
        }
        let mut is_committed = false;
        while let Some(answer) = worker.poll_transmit() {
            // What is sent now acknowledges what was written before.
            if !is_committed {
                begin.host.commit()?;
                is_committed = true;
            }
            lanes.send(0, answer.to, answer.bytes);
        }
        lanes.flush();
        let waits = !more && !busy;
        if let Some(done) = telling.next(now, waits, || (worker.stats(), lanes.counts())) {
            begin.board.tell(begin.number, done);
        }
        if waits {
            watch.wait(&mut lanes, Some(worker.poll_timeout()));
        }
    }
    begin.board.tell(begin.number, (worker.stats(), lanes.counts()));
    let now = watch.now();
    worker.close();
    // For answers there is no time.
    worker.abandon_calls(now);
    while let Some((id, call)) = worker.poll_call(now) {
        let _ = calls.try_send((id, call));
        worker.handle_answer(now, id, Err(NoAnswer))?;
    }
    Ok(())
}

/// Longest time for work between two looks at the socket: its buffer holds what comes meanwhile.
const AT_ONCE: time::Duration = time::Duration::from_micros(200);

/// The longest pause after a refusal: the memory server is in the same process.
const PAUSE: time::Duration = time::Duration::from_millis(50);
/// Calls that wait for the carrier: the last ones of a session together, else one.
const CALLS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_never_waits_tells_its_counts_once_a_second() {
        let (mut telling, mut requests) = (Telling::default(), 0);
        let mut told = Vec::new();
        for millisecond in 0..3_500 {
            requests += 1;
            let stats = WorkerStats { redirected: requests, ..WorkerStats::default() };
            let now = Instant::ZERO + time::Duration::from_millis(millisecond);
            told.extend(telling.next(now, false, || (stats, DatagramCounts::default())));
        }
        let told: Vec<_> = told.into_iter().map(|(stats, _)| stats.redirected).collect();
        assert_eq!(told, [1, 1001, 2001, 3001]);
    }

    #[test]
    fn a_worker_that_waits_tells_what_has_changed() {
        let (mut telling, now) = (Telling::default(), Instant::ZERO);
        let done =
            |redirected| (WorkerStats { redirected, ..WorkerStats::default() }, DatagramCounts::default());
        let mut tell = |redirected, waits| telling.next(now, waits, || done(redirected)).is_some();
        assert!(tell(1, true) && !tell(1, true) && tell(2, true) && !tell(3, false) && tell(3, true));
    }
}

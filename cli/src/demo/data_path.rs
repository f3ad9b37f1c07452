//! The two threads that own every switch, NIC and tree: frames go round in them, and between frames they answer the control
//! plane.
//!
//! ```text
//!   racks     client, memory servers, edge switches    ◄─ what the rest of the demo wants done
//!    │ ▲
//!    ▼ │ frames
//!   fabric    aggregation and core switches
//! ```

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use fatbtree_blink::ConnectionId;
use fatbtree_blink_host as host;
use fatbtree_controller::Registration;
use fatbtree_sim::{Client, Clock, Cluster, InstantWires};
use fatbtree_switch::service::Inbox;
use fatbtree_verbs::time::{Instant, RunningTime};
use fatbtree_verbs::{Alarm, Device as _};

use super::sessions::{Desk, Sessions};

/// Looks for a frame that the fabric makes before it looks at anything else.
const BATCH: usize = 32;

/// Looks for a frame that the racks make before they look at anything else.
const STEPS: u64 = 4096;

/// Looks for a frame that a thread makes before it offers its processor to others.
const LOOKS: u32 = 256;

/// Clock that counts the time since it was made, as far as the process could run.
pub(super) struct RunningClock {
    began: std::time::Instant,
    running: Cell<RunningTime>,
}

impl RunningClock {
    fn new() -> Self {
        Self { began: std::time::Instant::now(), running: Cell::default() }
    }
}

impl Clock for RunningClock {
    fn now(&self) -> Instant {
        let mut running = self.running.get();
        let now = running.at(Instant::ZERO + self.began.elapsed().into());
        self.running.set(running);
        now
    }
}

/// State that one of the threads owns.
pub(super) struct DataPath {
    pub(super) cluster: Cluster<InstantWires>,
    clock: RunningClock,
    /// The inboxes of this half's switches, by the switch's position.
    switch_inboxes: Vec<(usize, Inbox)>,
    server_mailboxes: Vec<host::TreeMailbox>,
    /// The client's sessions, in the half that has the client.
    sessions: Option<Sessions>,
    /// Error of the sessions that has not been reported yet.
    trouble: Option<anyhow::Error>,
    /// Looks in a row that found no frame.
    idle: u32,
}

impl DataPath {
    /// Creates one half; mailboxes come in the order of the servers.
    pub(super) fn new(
        cluster: Cluster<InstantWires>,
        switch_inboxes: Vec<(usize, Inbox)>,
        server_mailboxes: Vec<host::TreeMailbox>,
        desk: Option<Desk>,
    ) -> Self {
        let clock = RunningClock::new();
        let sessions = desk.map(|desk| Sessions::new(&cluster.clients()[0], desk));
        Self { cluster, clock, switch_inboxes, server_mailboxes, sessions, trouble: None, idle: 0 }
    }

    fn answer_control_plane(&mut self) {
        for (switch, inbox) in &mut self.switch_inboxes {
            inbox.try_drain(&mut self.cluster.switches_mut()[*switch]);
        }
        for (server, mailbox) in self.cluster.servers_mut().iter_mut().zip(&mut self.server_mailboxes) {
            mailbox.answer(self.clock.now(), server);
            // Nobody here follows events: the connections are there as long as the demo is.
            while server.poll_event().is_some() {}
        }
        self.cluster.handle_timeout(&self.clock);
        self.keep_sessions();
    }

    /// The demo's client.
    pub(super) fn client(&self) -> &Client {
        &self.cluster.clients()[0]
    }

    /// Takes answers of memory servers, and makes the calls that are due.
    fn keep_sessions(&mut self) {
        let now = self.clock.now();
        if let Some(sessions) = &mut self.sessions
            && let Err(trouble) = sessions.turn(now, &self.cluster.clients()[0])
        {
            self.trouble.get_or_insert(trouble);
        }
    }

    /// Data with which the client's edge switch admits index reads on a connection; `None` until the connection is up.
    ///
    /// # Errors
    /// When a session cannot be kept.
    pub(super) fn registration(&mut self, id: ConnectionId) -> Result<Option<Registration>> {
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        let (pool, sessions) = (self.client().pool(), self.sessions.as_ref());
        let info = sessions.and_then(|sessions| sessions.keeper().info(id.server));
        let (Some(info), Some(queue_pair), Some(server)) = (info, pool.queue_pair(id), pool.replaces(id))
        else {
            return Ok(None);
        };
        let local = pool.reactor().with(|nic| nic.endpoint(queue_pair))?;
        let mtu = info.path_mtu.min(local.mtu).bytes();
        Ok(Some(Registration {
            client: local.ip,
            queue_pair: server.0,
            rkey: info.region.rkey,
            root: info.partition.root.raw(),
            mtu: mtu.try_into().context("an MTU is 4096 bytes at most")?,
        }))
    }

    /// Runs a future of the client's to its end.
    ///
    /// # Errors
    /// When a connection breaks: nothing is ever lost here. When there is no memory for what it writes.
    pub(super) fn run<F: Future>(&mut self, future: F) -> Result<F::Output> {
        let mut future = pin!(future);
        let alarm = Alarm::ringing();
        let waker = Arc::clone(&alarm).into();
        let mut context = Context::from_waker(&waker);
        let mut steps = 0u64;
        loop {
            steps += 1;
            // However long the future takes, sessions are renewed meanwhile.
            if steps.is_multiple_of(STEPS) {
                self.answer_control_plane();
            }
            if alarm.take() {
                let polled =
                    self.cluster.with_client(0, &self.clock, |_, _| future.as_mut().poll(&mut context));
                if let Poll::Ready(output) = polled {
                    return Ok(output);
                }
            }
            if !self.advance() {
                self.keep_sessions();
            }
            if let Some(trouble) = self.trouble.take() {
                return Err(trouble);
            }
        }
    }

    /// Handles a frame, and says whether one has arrived. Where none has for a while, timers may be due, and another thread may
    /// need the processor.
    fn advance(&mut self) -> bool {
        if self.cluster.step(&self.clock) {
            self.idle = 0;
            return true;
        }
        self.idle += 1;
        if self.idle < LOOKS {
            std::hint::spin_loop();
        } else {
            self.idle = 0;
            self.cluster.handle_timeout(&self.clock);
            std::thread::yield_now();
        }
        false
    }
}

type Work = Box<dyn FnOnce(&mut DataPath) + Send>;

enum Order {
    Do(Work),
    /// Something was put into an inbox, or frames are about to come.
    Look,
    /// The demo is over, as far as it needs the network.
    End(mpsc::SyncSender<()>),
}

/// Wakes one of the threads when there is something for it.
#[derive(Clone)]
pub(super) struct Waker(mpsc::Sender<Order>);

impl Waker {
    pub(super) fn wake(&self) {
        // A thread that has ended needs no wake-up.
        let _ = self.0.send(Order::Look);
    }

    /// Ends the thread, and waits until its memory is free.
    fn end(&self) {
        let (reply, ended) = mpsc::sync_channel(1);
        if self.0.send(Order::End(reply)).is_ok() {
            // The answer, or its sender that was dropped: the thread has ended either way.
            let _ = ended.recv();
        }
    }
}

/// The handle that the rest of the demo holds.
pub(super) struct DataPathThreads {
    orders: mpsc::Sender<Order>,
}

/// Wakers for inboxes that are made before the threads are started.
pub(super) struct Starter {
    racks: (mpsc::Sender<Order>, mpsc::Receiver<Order>),
    fabric: (mpsc::Sender<Order>, mpsc::Receiver<Order>),
}

impl Starter {
    pub(super) fn new() -> Self {
        Self { racks: mpsc::channel(), fabric: mpsc::channel() }
    }

    pub(super) fn waker_of_racks(&self) -> Waker {
        Waker(self.racks.0.clone())
    }

    pub(super) fn waker_of_fabric(&self) -> Waker {
        Waker(self.fabric.0.clone())
    }

    /// Starts the threads; each makes what it owns, because a client never leaves its thread.
    pub(super) fn start(
        self,
        racks: impl FnOnce() -> Result<DataPath> + Send + 'static,
        fabric: impl FnOnce() -> Result<DataPath> + Send + 'static,
    ) -> Result<DataPathThreads> {
        let wake_fabric = self.waker_of_fabric();
        let (orders, racks_inbox) = self.racks;
        let (_, fabric_inbox) = self.fabric;
        // While the racks send frames, the fabric does not sleep.
        let awake = Arc::new(AtomicBool::new(false));
        let fabric_awake = Arc::clone(&awake);
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let (made, both_made) = mpsc::channel();
        let fabric_made = made.clone();
        thread("fabric").spawn(move || {
            if let Some(path) = tell(fabric(), &fabric_made) {
                run_fabric(path, &fabric_inbox, &fabric_awake);
            }
        })?;
        thread("racks").spawn(move || {
            if let Some(path) = tell(racks(), &made) {
                run_racks(path, &racks_inbox, &wake_fabric, &awake);
            }
        })?;
        both_made.iter().take(2).collect::<Result<()>>()?;
        Ok(DataPathThreads { orders })
    }
}

/// Returns the half that was made, and reports to the starting thread whether it was.
fn tell(path: Result<DataPath>, made: &mpsc::Sender<Result<()>>) -> Option<DataPath> {
    let (path, news) = match path {
        Ok(path) => (Some(path), Ok(())),
        Err(error) => (None, Err(error)),
    };
    // A caller that has given up needs no answer.
    let _ = made.send(news);
    path
}

/// Longest sleep: timers and leases do not wake a thread.
const SLEEP: Duration = Duration::from_millis(1);

fn run_racks(mut path: DataPath, inbox: &mpsc::Receiver<Order>, fabric: &Waker, fabric_awake: &AtomicBool) {
    loop {
        match inbox.recv_timeout(SLEEP) {
            Ok(Order::Do(work)) => {
                fabric_awake.store(true, Ordering::Relaxed);
                fabric.wake();
                work(&mut path);
                fabric_awake.store(false, Ordering::Relaxed);
            }
            Ok(Order::End(reply)) => {
                drop(path);
                fabric.end();
                let _ = reply.send(());
                return;
            }
            Ok(Order::Look) | Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        path.answer_control_plane();
    }
}

fn run_fabric(mut path: DataPath, inbox: &mpsc::Receiver<Order>, awake: &AtomicBool) {
    loop {
        match inbox.recv_timeout(SLEEP) {
            Ok(Order::End(reply)) => {
                drop(path);
                let _ = reply.send(());
                return;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Ok(Order::Do(_) | Order::Look) | Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        path.answer_control_plane();
        while awake.load(Ordering::Relaxed) {
            for _ in 0..BATCH {
                path.advance();
            }
            path.answer_control_plane();
        }
    }
}

impl DataPathThreads {
    /// Ends the threads and frees what they own: memory servers, switches, NICs.
    pub(super) fn end(&self) {
        Waker(self.orders.clone()).end();
    }

    /// Runs `work` on the racks' thread, and waits for its result.
    pub(super) fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut DataPath) -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = mpsc::sync_channel(1);
        let work: Work = Box::new(move |data_path| {
            let _ = reply.send(work(data_path));
        });
        let gone = || anyhow!("a thread of the data path has ended early: see its message above");
        self.orders.send(Order::Do(work)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }
}

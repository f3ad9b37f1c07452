//! The thread that owns every switch, NIC and tree: frames go round in it, and between them it answers the control plane.

use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use fatbtree_memserver as memserver;
use fatbtree_nic::time::Instant;
use fatbtree_sim::{Clock, Cluster, InstantWires};
use fatbtree_switch::service::Inbox;

/// The wall's time, from when it was made.
#[derive(Clone, Copy)]
pub(super) struct WallClock(std::time::Instant);

impl Clock for WallClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

/// Everything the thread owns.
pub(super) struct DataPath {
    pub(super) cluster: Cluster<InstantWires>,
    pub(super) clock: WallClock,
    switch_inboxes: Vec<Inbox>,
    server_mailboxes: Vec<memserver::Mailbox>,
}

impl DataPath {
    /// Inboxes in the order of the switches, mailboxes in the order of the servers.
    pub(super) fn new(
        cluster: Cluster<InstantWires>,
        switch_inboxes: Vec<Inbox>,
        server_mailboxes: Vec<memserver::Mailbox>,
    ) -> Self {
        Self { cluster, clock: WallClock(std::time::Instant::now()), switch_inboxes, server_mailboxes }
    }

    /// Answers what the control plane has asked meanwhile.
    pub(super) fn answer_control_plane(&mut self) {
        for (switch, inbox) in self.cluster.switches_mut().iter_mut().zip(&mut self.switch_inboxes) {
            inbox.try_drain(switch);
        }
        for (server, mailbox) in self.cluster.servers_mut().iter_mut().zip(&mut self.server_mailboxes) {
            server.answer(mailbox);
        }
    }

    /// Lets frames go round until none is under way.
    pub(super) fn settle(&mut self) {
        while self.cluster.step(&self.clock) {}
    }
}

type Work = Box<dyn FnOnce(&mut DataPath) + Send>;

enum Order {
    Do(Work),
    /// Somebody has put something into an inbox.
    Look,
}

/// Wakes the thread when an inbox has something for it.
#[derive(Clone)]
pub(super) struct Waker(mpsc::Sender<Order>);

impl Waker {
    pub(super) fn wake(&self) {
        // A thread that has ended has nobody to wake.
        let _ = self.0.send(Order::Look);
    }
}

/// The handle that the rest of the demo holds.
pub(super) struct DataPathThread {
    orders: mpsc::Sender<Order>,
}

/// A waker for inboxes that are made before the thread is started.
pub(super) struct Starter {
    orders: mpsc::Sender<Order>,
    inbox: mpsc::Receiver<Order>,
}

impl Starter {
    pub(super) fn new() -> Self {
        let (orders, inbox) = mpsc::channel();
        Self { orders, inbox }
    }

    pub(super) fn waker(&self) -> Waker {
        Waker(self.orders.clone())
    }

    /// Starts the thread.
    pub(super) fn start(self, mut data_path: DataPath) -> Result<DataPathThread> {
        let Self { orders, inbox } = self;
        std::thread::Builder::new().name("data path".into()).spawn(move || {
            loop {
                // The memory servers' mailboxes have no waker: look into them now and then.
                match inbox.recv_timeout(Duration::from_millis(1)) {
                    Ok(Order::Do(work)) => work(&mut data_path),
                    Ok(Order::Look) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                }
                data_path.answer_control_plane();
            }
        })?;
        Ok(DataPathThread { orders })
    }
}

impl DataPathThread {
    /// Has the thread do something, and waits for what comes of it.
    pub(super) fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut DataPath) -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = mpsc::sync_channel(1);
        let work: Work = Box::new(move |data_path| {
            let _ = reply.send(work(data_path));
        });
        let gone = || anyhow!("the data path's thread has ended early: see its message above");
        self.orders.send(Order::Do(work)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }
}

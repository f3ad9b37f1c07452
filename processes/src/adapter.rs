//! A role's device, and what moves it: a software NIC behind a port, or an RDMA device of this machine, which moves by itself.
//!
//! A role's loop is the same over both: [`receive`](Adapter::receive), [`handle_timeout`](Adapter::handle_timeout) and
//! [`send`](Adapter::send) do nothing where a card does the work, and [`wait`](Adapter::wait) sleeps until the card tells of something.

#[cfg(feature = "ibverbs")]
mod card;
mod divert;
mod software;

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fatbtree_port::{Counters, Lanes, PortSpec, Waiter, Waker};
use fatbtree_soft_nic::NicStats;
use fatbtree_topology::Host;
use fatbtree_verbs::time::{Instant, RunningTime};
use fatbtree_verbs::{
    Access, Agreed, Capabilities, Completion, ConnectError, Device, DeviceMemoryError, Endpoint, Memory,
    PostError, QueuePair, QueuePairState, Region, RegisterError, Verbs, WorkRequest,
};

use crate::NodeError;
#[cfg(feature = "ibverbs")]
use card::Card;
use software::SoftwareNic;

pub(crate) use divert::{Share, Shares};

pub(crate) use software::SILENCE;

/// Network interface of a role.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NicSpec {
    /// Software NIC behind this port.
    Software(PortSpec),
    /// RDMA device of this name. It needs the cargo feature `ibverbs`.
    Ibverbs(String),
}

/// Side of a connection on which a role's device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// The device posts requests.
    Asks,
    /// The device has memory, and many clients.
    Answers,
}

/// The device of a role.
pub struct Adapter(Kind);

enum Kind {
    Software(Box<SoftwareNic>),
    #[cfg(feature = "ibverbs")]
    Card(Box<Card>),
}

/// Calls the same method of either device.
macro_rules! either {
    ($adapter:expr, $call:ident($($argument:expr),*)) => {
        match $adapter {
            Kind::Software(software) => software.nic.$call($($argument),*),
            #[cfg(feature = "ibverbs")]
            Kind::Card(card) => card.device.$call($($argument),*),
        }
    };
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Software(_) => "Adapter: a software NIC",
            #[cfg(feature = "ibverbs")]
            Kind::Card(_) => "Adapter: an RDMA device",
        })
    }
}

/// Waiter and clock of a role's thread.
pub(crate) struct Watch {
    waiter: Waiter,
    ready: Vec<bool>,
    began: std::time::Instant,
    running: Cell<RunningTime>,
}

impl Watch {
    pub(crate) fn new(waiter: Waiter) -> Self {
        let (began, running) = (std::time::Instant::now(), Cell::default());
        Self { waiter, ready: Vec::new(), began, running }
    }

    pub(crate) fn waker(&self) -> Waker {
        self.waiter.waker()
    }

    /// Time since the watch was made, without time in which the process was suspended.
    pub(crate) fn now(&self) -> Instant {
        let mut running = self.running.get();
        let now = running.at(Instant::ZERO + self.began.elapsed().into());
        self.running.set(running);
        now
    }

    /// Whether the lane of this number had something when the last [wait](Self::wait) ended.
    pub(crate) fn is_ready(&self, number: usize) -> bool {
        self.ready.get(number).is_none_or(|ready| *ready)
    }

    /// Waits until something may have come by these lanes, for a wake, or until `due`. May end early.
    pub(crate) fn wait(&mut self, lanes: &mut Lanes, due: Option<Instant>) {
        let patience = self.patience(due);
        lanes.wait(&self.waiter, Some(patience), &mut self.ready);
    }

    /// Longest time to wait before the clock is read again.
    fn patience(&self, due: Option<Instant>) -> Duration {
        let wait = due.map_or(RunningTime::LONGEST_WAIT, |due| due - self.now());
        wait.min(RunningTime::LONGEST_WAIT).into()
    }
}

impl Adapter {
    /// Opens the device of a host, or reports what is wrong with it. Up to `threads` other threads may [share](Self::divert) it.
    #[cfg_attr(not(feature = "ibverbs"), expect(unused_variables, reason = "software NICs do both"))]
    pub(crate) fn open(spec: &NicSpec, host: &Host, side: Side, threads: usize) -> Result<Self, NodeError> {
        match spec {
            NicSpec::Software(port) => {
                Ok(Self(Kind::Software(Box::new(SoftwareNic::open(port, host, threads)?))))
            }
            #[cfg(feature = "ibverbs")]
            NicSpec::Ibverbs(device) => Ok(Self(Kind::Card(Box::new(Card::open(device, host.ip, side)?)))),
            #[cfg(not(feature = "ibverbs"))]
            NicSpec::Ibverbs(device) => Err(NodeError::NoIbverbs(device.clone())),
        }
    }

    /// Whether the device is a software NIC, whose writes this process carries out.
    pub(crate) fn is_software(&self) -> bool {
        matches!(self.0, Kind::Software(_))
    }

    /// Hands datagrams for these UDP ports to other threads from now on. `None` if an RDMA card handles the frames.
    pub(crate) fn divert(&mut self, ports: &Range<u16>) -> Result<Option<Shares>, NodeError> {
        match &mut self.0 {
            Kind::Software(software) => software.divert(ports),
            #[cfg(feature = "ibverbs")]
            Kind::Card(_) => Ok(None),
        }
    }

    /// Receives a batch of frames. Returns whether there may be more.
    pub(crate) fn receive(&mut self, now: Instant) -> bool {
        match &mut self.0 {
            Kind::Software(software) => software.receive(now),
            #[cfg(feature = "ibverbs")]
            Kind::Card(_) => false,
        }
    }

    /// Sends what there is to send, as far as there is room.
    pub(crate) fn send(&mut self, now: Instant) {
        match &mut self.0 {
            Kind::Software(software) => software.send(now),
            #[cfg(feature = "ibverbs")]
            Kind::Card(_) => {}
        }
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match &self.0 {
            Kind::Software(software) => software.nic.poll_timeout(),
            #[cfg(feature = "ibverbs")]
            Kind::Card(_) => None,
        }
    }

    /// Runs the device's timers that are due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        match &mut self.0 {
            Kind::Software(software) => software.handle_timeout(now),
            #[cfg(feature = "ibverbs")]
            Kind::Card(_) => {}
        }
    }

    /// Waits until something has come, for a wake, or until `due`. May end early.
    pub(crate) fn wait(&mut self, watch: &mut Watch, due: Option<Instant>) {
        let patience = watch.patience(due);
        match &mut self.0 {
            Kind::Software(software) => software.wait(watch, patience),
            #[cfg(feature = "ibverbs")]
            Kind::Card(card) => card.wait(watch, patience),
        }
    }

    /// Closes the port of a software NIC, so that others may use it. A card is closed when the last client that has it is dropped.
    pub(crate) fn close(&mut self) {
        match &mut self.0 {
            Kind::Software(software) => software.close(),
            #[cfg(feature = "ibverbs")]
            Kind::Card(_) => {}
        }
    }

    /// Counters of a software NIC and its port; a card counts for itself.
    pub(crate) fn counters(&self) -> Option<(Counters, NicStats)> {
        match &self.0 {
            Kind::Software(software) => Some((software.counters()?, software.nic.stats().clone())),
            #[cfg(feature = "ibverbs")]
            Kind::Card(_) => None,
        }
    }
}

impl Device for Adapter {
    fn capabilities(&self) -> Capabilities {
        either!(&self.0, capabilities())
    }

    fn register(&mut self, memory: &Arc<Memory>, iova: u64, access: Access) -> Result<Region, RegisterError> {
        either!(&mut self.0, register(memory, iova, access))
    }

    fn register_device_memory(
        &mut self,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        either!(&mut self.0, register_device_memory(len, iova, access))
    }

    fn read_device_memory(&self, rkey: u32, offset: u64, into: &mut [u8]) -> Result<(), DeviceMemoryError> {
        either!(&self.0, read_device_memory(rkey, offset, into))
    }

    fn shared_memory(&self, rkey: u32) -> Option<Arc<Memory>> {
        either!(&self.0, shared_memory(rkey))
    }

    fn deregister(&mut self, rkey: u32) {
        either!(&mut self.0, deregister(rkey));
    }

    fn create(&mut self) -> Result<QueuePair, ConnectError> {
        either!(&mut self.0, create())
    }

    fn endpoint(&self, queue_pair: QueuePair) -> Result<Endpoint, ConnectError> {
        either!(&self.0, endpoint(queue_pair))
    }

    fn connect(&mut self, queue_pair: QueuePair, remote: &Endpoint) -> Result<Agreed, ConnectError> {
        either!(&mut self.0, connect(queue_pair, remote))
    }

    fn state(&self, queue_pair: QueuePair) -> Option<QueuePairState> {
        either!(&self.0, state(queue_pair))
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        either!(&mut self.0, destroy(queue_pair));
    }

    fn poll_broken(&mut self) -> Option<QueuePair> {
        either!(&mut self.0, poll_broken())
    }
}

impl Verbs for Adapter {
    #[inline]
    fn post(&mut self, queue_pair: QueuePair, chain: &[WorkRequest<'_>]) -> Result<(), PostError> {
        either!(&mut self.0, post(queue_pair, chain))
    }

    #[inline]
    fn poll(&mut self) -> Option<Completion> {
        either!(&mut self.0, poll())
    }
}

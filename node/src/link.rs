//! A NIC and its port.

use std::time::Duration;

use fatbtree_nic::{Nic, NicConfig};
use fatbtree_port::{BATCH, Batch, Port, PortSpec, Waiter};
use fatbtree_topology::Host;
use fatbtree_verbs::time::Instant;

use crate::NodeError;

/// The port that a NIC sends and receives by, and what waits to be sent.
pub(crate) struct Link {
    /// One, as waiters want it.
    port: [Box<dyn Port>; 1],
    came: Batch,
    /// Frames that the NIC has made; those from `first` to `end` were not taken yet.
    leaving: Vec<Vec<u8>>,
    first: usize,
    end: usize,
    waiter: Waiter,
    ready: Vec<bool>,
    began: std::time::Instant,
}

/// How soon a port that had no room is tried again.
const FULL: Duration = Duration::from_millis(1);

impl Link {
    pub(crate) fn open(spec: &PortSpec, waiter: Waiter) -> Result<Self, NodeError> {
        Ok(Self {
            port: [spec.open()?],
            came: Batch::new(),
            leaving: vec![Vec::new(); BATCH],
            first: 0,
            end: 0,
            waiter,
            ready: Vec::new(),
            began: std::time::Instant::now(),
        })
    }

    /// Time since the link was opened.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.began.elapsed().as_nanos() as u64)
    }

    pub(crate) fn port(&self) -> &dyn Port {
        &*self.port[0]
    }

    /// Hands a batch of frames in. Says whether there may be more.
    pub(crate) fn receive(&mut self, nic: &mut Nic) -> bool {
        if self.port[0].receive(&mut self.came) == 0 {
            return false;
        }
        let now = self.now();
        self.came.iter().for_each(|frame| nic.handle_frame(now, frame));
        self.came.is_full()
    }

    /// Sends what the NIC has, as far as there is room.
    pub(crate) fn send(&mut self, nic: &mut Nic) {
        let now = self.now();
        loop {
            if self.first == self.end {
                (self.first, self.end) = (0, 0);
                while self.end < BATCH && nic.poll_transmit(now, &mut self.leaving[self.end]) {
                    self.end += 1;
                }
                if self.end == 0 {
                    return;
                }
            }
            let mut frames: [&[u8]; BATCH] = [&[]; BATCH];
            for (place, frame) in frames.iter_mut().zip(&self.leaving[self.first..self.end]) {
                *place = frame;
            }
            self.first += self.port[0].send(&frames[..self.end - self.first]);
            if self.first < self.end {
                return;
            }
        }
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&self, nic: &mut Nic) {
        let now = self.now();
        if nic.poll_timeout().is_some_and(|at| at <= now) {
            nic.handle_timeout(now);
        }
    }

    /// Waits for frames, a wake, or until `due`.
    pub(crate) fn wait(&mut self, due: Option<Instant>) {
        let now = self.now();
        let patience =
            due.map(|due| Duration::from_nanos(if due > now { (due - now).as_nanos() } else { 0 }));
        let full = (self.first < self.end).then_some(FULL);
        self.waiter.wait(&self.port, patience.into_iter().chain(full).min(), &mut self.ready);
    }
}

/// How long a request may go without progress before it is sent again. What is late is late because the machine is busy: software
/// switches share its processors.
const ACK_TIMEOUT: fatbtree_verbs::time::Duration = fatbtree_verbs::time::Duration::from_millis(100);
/// How often it is sent again.
const RETRIES: u8 = 7;

/// How long a queue pair lives whose requests are not answered.
pub(crate) const SILENCE: Duration = Duration::from_millis(100 * (1 + RETRIES as u64));

/// The NIC of a host.
pub(crate) fn nic(host: &Host) -> Result<Nic, NodeError> {
    let config =
        NicConfig { ack_timeout: ACK_TIMEOUT, retry_count: RETRIES, ..NicConfig::new(host.mac.0, host.ip) };
    Nic::new(config, rand::random()).map_err(NodeError::system("getting memory for the NIC's buffers"))
}

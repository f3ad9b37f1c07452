//! A software NIC and its port.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fatbtree_port::{BATCH, Batch, Counters, MacAddress, Port, PortSpec, Wire};
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_topology::Host;
use fatbtree_verbs::time::Instant;

use super::Watch;
use super::divert::{self, Diversion, Shares};
use crate::NodeError;

/// A NIC, the ports that it sends and receives by, and what waits to be sent.
pub(super) struct SoftwareNic {
    pub(super) nic: Nic,
    /// Ports for received frames: the wire, or threads that have its queues and hand on what is not for them. None when it is closed.
    receives: Vec<Box<dyn Port>>,
    /// Port of the wire to send by, if frames are received elsewhere.
    sends: Option<Box<dyn Port>>,
    /// Wire that other threads share.
    wire: Option<Arc<Wire>>,
    /// Number of these threads.
    threads: usize,
    address: (MacAddress, Ipv4Addr),
    diversion: Option<Diversion>,
    came: Batch,
    /// Frames that the NIC has made; those from `first` to `end` were not taken yet.
    leaving: Vec<Vec<u8>>,
    first: usize,
    end: usize,
}

/// Interval after which a port that had no room is tried again.
const FULL: Duration = Duration::from_millis(1);

/// Time without progress after which a request is sent again. Answers are late because the machine is busy: software switches share its
/// processors.
const ACK_TIMEOUT: fatbtree_verbs::time::Duration = fatbtree_verbs::time::Duration::from_millis(100);
/// Number of times that a request is sent again.
const RETRIES: u8 = 7;

/// Life of a queue pair whose requests are not answered.
pub(crate) const SILENCE: Duration = Duration::from_millis(100 * (1 + RETRIES as u64));

impl SoftwareNic {
    pub(super) fn open(spec: &PortSpec, host: &Host, threads: usize) -> Result<Self, NodeError> {
        let wire = Arc::new(spec.open_wire_for(threads)?);
        let config = NicConfig {
            ack_timeout: ACK_TIMEOUT,
            retry_count: RETRIES,
            ..NicConfig::new(host.mac.0, host.ip)
        };
        let nic = Nic::new(config, rand::random());
        let nic = nic.map_err(NodeError::system("getting memory for the NIC's buffers"))?;
        Ok(Self {
            nic,
            receives: vec![wire.port()?],
            sends: None,
            wire: Some(wire),
            threads,
            address: (host.mac.0, host.ip),
            diversion: None,
            came: Batch::new(),
            leaving: vec![Vec::new(); BATCH],
            first: 0,
            end: 0,
        })
    }

    /// Counters of its ports. `None` when it is closed.
    pub(super) fn counters(&self) -> Option<Counters> {
        let mut all = self.receives.first()?.counters();
        self.receives[1..].iter().chain(&self.sends).for_each(|port| all.add(&port.counters()));
        Some(all)
    }

    /// Ends receiving and sending.
    pub(super) fn close(&mut self) {
        self.receives.clear();
        (self.sends, self.wire) = (None, None);
    }

    /// Hands datagrams for these UDP ports to other threads from now on. `None` when it is closed.
    ///
    /// If the wire is polled and has a queue for each of these threads, they receive by their queues, and hand on the NIC's frames. A
    /// thread that
    /// polls finds its own frames at once. Otherwise the NIC's thread receives, and hands on theirs.
    pub(super) fn divert(&mut self, ports: &Range<u16>) -> Result<Option<Shares>, NodeError> {
        let Some(wire) = &self.wire else { return Ok(None) };
        let threads = self.threads;
        let shares = if wire.is_polled() && wire.queues() >= threads {
            self.sends = Some(wire.port_for(threads)?);
            let (receives, shares) = divert::queues(wire, self.address, ports, threads)?;
            self.receives = receives;
            shares
        } else {
            let (diversion, shares) = Diversion::new(wire, self.address, ports, threads)?;
            self.diversion = Some(diversion);
            shares
        };
        Ok(Some(shares))
    }

    /// Receives a batch of frames by each port. Returns whether there may be more.
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        let Self { nic, receives, came, diversion, .. } = self;
        let mut more = false;
        for port in receives {
            if port.receive(came) == 0 {
                continue;
            }
            match diversion {
                None => came.iter().for_each(|frame| nic.handle_frame(now, frame)),
                Some(diversion) => diversion.divert(came, |frame| nic.handle_frame(now, frame)),
            }
            more |= came.is_full();
        }
        more
    }

    /// Sends what the NIC has, as far as there is room.
    pub(super) fn send(&mut self, now: Instant) {
        let Some(port) = self.sends.as_mut().or_else(|| self.receives.first_mut()) else { return };
        loop {
            if self.first == self.end {
                (self.first, self.end) = (0, 0);
                while self.end < BATCH && self.nic.poll_transmit(now, &mut self.leaving[self.end]) {
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
            self.first += port.send(&frames[..self.end - self.first]);
            if self.first < self.end {
                return;
            }
        }
    }

    /// Runs the NIC's timers that are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.nic.poll_timeout().is_some_and(|at| at <= now) {
            self.nic.handle_timeout(now);
        }
    }

    /// Waits for frames, a wake, or as long as `patience` lasts.
    pub(super) fn wait(&self, watch: &mut Watch, patience: Duration) {
        let patience = if self.first < self.end { patience.min(FULL) } else { patience };
        watch.waiter.wait(&self.receives, Some(patience), &mut watch.ready);
    }
}

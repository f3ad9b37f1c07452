//! A software NIC and its port.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fatbtree_nic::{Nic, NicConfig};
use fatbtree_port::{BATCH, Batch, MacAddress, Port, PortSpec, Wire};
use fatbtree_topology::Host;
use fatbtree_verbs::time::Instant;

use super::Watch;
use super::divert::{Diversion, Shares};
use crate::NodeError;

/// A NIC, the port that it sends and receives by, and what waits to be sent.
pub(super) struct SoftwareNic {
    pub(super) nic: Nic,
    /// One, as waiters want it; none when it is closed.
    port: Vec<Box<dyn Port>>,
    /// The same, for others that send by it.
    wire: Option<Arc<Wire>>,
    address: (MacAddress, Ipv4Addr),
    diversion: Option<Diversion>,
    came: Batch,
    /// Frames that the NIC has made; those from `first` to `end` were not taken yet.
    leaving: Vec<Vec<u8>>,
    first: usize,
    end: usize,
}

/// How soon a port that had no room is tried again.
const FULL: Duration = Duration::from_millis(1);

/// How long a request may go without progress before it is sent again. What is late is late because the machine is busy: software
/// switches share its processors.
const ACK_TIMEOUT: fatbtree_verbs::time::Duration = fatbtree_verbs::time::Duration::from_millis(100);
/// How often it is sent again.
const RETRIES: u8 = 7;

/// How long a queue pair lives whose requests are not answered.
pub(crate) const SILENCE: Duration = Duration::from_millis(100 * (1 + RETRIES as u64));

impl SoftwareNic {
    pub(super) fn open(spec: &PortSpec, host: &Host) -> Result<Self, NodeError> {
        let wire = Arc::new(spec.open_wire()?);
        let port = vec![wire.port()?];
        let config = NicConfig {
            ack_timeout: ACK_TIMEOUT,
            retry_count: RETRIES,
            ..NicConfig::new(host.mac.0, host.ip)
        };
        let nic = Nic::new(config, rand::random());
        let nic = nic.map_err(NodeError::system("getting memory for the NIC's buffers"))?;
        Ok(Self {
            nic,
            port,
            wire: Some(wire),
            address: (host.mac.0, host.ip),
            diversion: None,
            came: Batch::new(),
            leaving: vec![Vec::new(); BATCH],
            first: 0,
            end: 0,
        })
    }

    /// None when it is closed.
    pub(super) fn port(&self) -> Option<&dyn Port> {
        self.port.first().map(|port| &**port)
    }

    /// Nothing is received or sent any more.
    pub(super) fn close(&mut self) {
        self.port.clear();
        self.wire = None;
    }

    /// From now on, datagrams to these UDP ports are for other threads. None when it is closed.
    pub(super) fn divert(&mut self, ports: &Range<u16>, threads: usize) -> Result<Option<Shares>, NodeError> {
        let Some(wire) = &self.wire else { return Ok(None) };
        let (diversion, shares) = Diversion::new(wire, self.address, ports, threads)?;
        self.diversion = Some(diversion);
        Ok(Some(shares))
    }

    /// Hands a batch of frames in. Says whether there may be more.
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        let Some(port) = self.port.first_mut() else { return false };
        if port.receive(&mut self.came) == 0 {
            return false;
        }
        let Self { nic, came, diversion, .. } = self;
        match diversion {
            None => came.iter().for_each(|frame| nic.handle_frame(now, frame)),
            Some(diversion) => diversion.divert(came, |frame| nic.handle_frame(now, frame)),
        }
        self.came.is_full()
    }

    /// Sends what the NIC has, as far as there is room.
    pub(super) fn send(&mut self, now: Instant) {
        let Some(port) = self.port.first_mut() else { return };
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

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.nic.poll_timeout().is_some_and(|at| at <= now) {
            self.nic.handle_timeout(now);
        }
    }

    /// Waits for frames, a wake, or as long as `patience` lasts.
    pub(super) fn wait(&self, watch: &mut Watch, patience: Option<Duration>) {
        let full = (self.first < self.end).then_some(FULL);
        watch.waiter.wait(&self.port, patience.into_iter().chain(full).min(), &mut watch.ready);
    }
}

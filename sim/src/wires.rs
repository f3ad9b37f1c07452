//! What carries frames from node to node: an instant wire for real time, a delaying and lossy one for virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use fatbtree_nic::time::{Duration, Instant};

use crate::cluster::Clock;
use crate::faults::{FaultRates, Faults, Verdict};

/// One end of a link: a node of the [`Cluster`](crate::Cluster) and its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// Index of the node in the cluster.
    pub node: u32,
    /// Port of that node.
    pub port: u16,
}

/// A frame that reaches a node.
#[derive(Debug)]
pub struct Delivery {
    /// Where it arrives.
    pub to: Attachment,
    /// Its bytes, Ethernet header first. Give the buffer back with [`Wires::recycle`].
    pub frame: Vec<u8>,
}

/// Carries frames over links. The cluster asks for the next delivery until there is none due.
pub trait Wires {
    /// Takes a frame that a node sent; `to` is the far end of the link.
    fn send(&mut self, clock: &impl Clock, to: Attachment, frame: Vec<u8>);
    /// The next frame that has arrived by now.
    fn receive(&mut self, clock: &impl Clock) -> Option<Delivery>;
    /// When the next frame arrives, if one is under way.
    fn next_arrival(&self) -> Option<Instant>;
    /// An empty buffer for a frame to send: one that was given back, if there is any, so that carrying frames allocates
    /// nothing in the steady state.
    fn buffer(&mut self) -> Vec<u8>;
    /// Takes a delivered buffer back.
    fn recycle(&mut self, buffer: Vec<u8>);
}

/// Wires of no length: first in, first out. The demo's wires.
#[derive(Debug, Default)]
pub struct InstantWires {
    under_way: VecDeque<Delivery>,
    spare: Vec<Vec<u8>>,
}

impl Wires for InstantWires {
    fn send(&mut self, _clock: &impl Clock, to: Attachment, frame: Vec<u8>) {
        self.under_way.push_back(Delivery { to, frame });
    }

    fn receive(&mut self, _clock: &impl Clock) -> Option<Delivery> {
        self.under_way.pop_front()
    }

    fn next_arrival(&self) -> Option<Instant> {
        (!self.under_way.is_empty()).then_some(Instant::ZERO)
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn recycle(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.spare.push(buffer);
    }
}

/// Ordered by arrival, then by sending order: two frames due at the same time never race.
type UnderWay = (Instant, u64, Attachment, Vec<u8>);

/// Wires under virtual time: each frame takes a delay, and what the seed decides may befall it.
#[derive(Debug)]
pub struct FaultyWires {
    delay: Duration,
    faults: Faults,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    sent: u64,
}

impl FaultyWires {
    /// Wires of the given propagation delay; `seed` decides every fault.
    pub fn new(delay: Duration, rates: FaultRates, seed: u64) -> Self {
        Self { delay, faults: Faults::new(rates, seed), under_way: BinaryHeap::new(), sent: 0 }
    }

    /// What happened so far.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// From now on nothing is lost or damaged: what is under way still arrives as it is.
    pub fn heal(&mut self) {
        self.faults.set_rates(FaultRates::NONE);
    }

    fn deliver(&mut self, at: Instant, to: Attachment, frame: Vec<u8>) {
        self.sent += 1;
        self.under_way.push(Reverse((at, self.sent, to, frame)));
    }
}

impl Wires for FaultyWires {
    fn send(&mut self, clock: &impl Clock, to: Attachment, mut frame: Vec<u8>) {
        let arrival = clock.now() + self.delay;
        match self.faults.judge() {
            Verdict::Pass => self.deliver(arrival, to, frame),
            Verdict::Drop => {}
            Verdict::Delay(extra) => self.deliver(arrival + extra, to, frame),
            Verdict::Duplicate(extra) => {
                self.deliver(arrival, to, frame.clone());
                self.deliver(arrival + extra, to, frame);
            }
            Verdict::Corrupt => {
                self.faults.damage(&mut frame);
                self.deliver(arrival, to, frame);
            }
        }
    }

    fn receive(&mut self, clock: &impl Clock) -> Option<Delivery> {
        if self.next_arrival()? > clock.now() {
            return None;
        }
        self.under_way.pop().map(|Reverse((_, _, to, frame))| Delivery { to, frame })
    }

    fn next_arrival(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse((at, ..))| *at)
    }

    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn recycle(&mut self, _buffer: Vec<u8>) {}
}

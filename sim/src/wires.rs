//! Transports of frames from node to node: an instant wire for real time, a delaying and lossy one for
//! virtual time.

use std::collections::VecDeque;

use fatbtree_soft_nic::faults::{FaultRates, Faults, LossyLink};
use fatbtree_verbs::time::{Duration, Instant};

use crate::cluster::Clock;

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
    /// Place of its arrival.
    pub to: Attachment,
    /// Bytes of the frame, Ethernet header first. Give the buffer back with [`Wires::recycle`].
    pub frame: Vec<u8>,
}

/// Carries frames over links. The cluster asks for the next delivery until there is none due.
pub trait Wires {
    /// Whether a host may send a frame to the far end of its link now. A switch that sends without asking may lose it.
    fn has_room(&self, to: Attachment) -> bool;
    /// Takes a frame that a node sent; `to` is the far end of the link.
    fn send(&mut self, clock: &impl Clock, to: Attachment, frame: Vec<u8>);
    /// The next frame that has arrived by now.
    fn receive(&mut self, clock: &impl Clock) -> Option<Delivery>;
    /// Arrival of the next frame, if one is under way.
    fn next_arrival(&self) -> Option<Instant>;
    /// An empty buffer for a frame to send. Returned buffers are used again, so that carrying frames allocates
    /// nothing in the steady state.
    fn buffer(&mut self) -> Vec<u8>;
    /// Takes a delivered buffer back.
    fn recycle(&mut self, buffer: Vec<u8>);
}

/// Frames under way at which hosts send no more.
const UNDER_WAY: usize = 4096;

/// Frames that may be under way from one half of a network to the other.
const BETWEEN_HALVES: usize = 4096;

/// Wires of no length: first in, first out. The demo's wires.
///
/// Two threads may carry one network, each half of its nodes. Each half is a [`Cluster`](crate::Cluster) with its own
/// end of a [`pair`](Self::pair) of these.
#[derive(Debug, Default)]
pub struct InstantWires {
    under_way: VecDeque<Delivery>,
    spare: Vec<Vec<u8>>,
    other: Option<OtherHalf>,
}

#[derive(Debug)]
struct OtherHalf {
    /// Presence of each node.
    nodes: Vec<bool>,
    to: rtrb::Producer<Delivery>,
    from: rtrb::Consumer<Delivery>,
}

impl OtherHalf {
    fn has(&self, to: Attachment) -> bool {
        self.nodes.get(to.node as usize) == Some(&true)
    }
}

impl InstantWires {
    /// The wires of a network in two halves: of the nodes that `is_first` holds for, and of the others. A frame between the
    /// halves arrives when the other one next looks; where thousands wait already, it is lost, as at a full port.
    pub fn pair(is_first: &[bool]) -> (Self, Self) {
        let (to_second, from_first) = rtrb::RingBuffer::new(BETWEEN_HALVES);
        let (to_first, from_second) = rtrb::RingBuffer::new(BETWEEN_HALVES);
        let half = |other| Self { other: Some(other), ..Self::default() };
        let second = is_first.iter().map(|first| !first).collect();
        (
            half(OtherHalf { nodes: second, to: to_second, from: from_second }),
            half(OtherHalf { nodes: is_first.to_vec(), to: to_first, from: from_first }),
        )
    }
}

impl Wires for InstantWires {
    fn has_room(&self, to: Attachment) -> bool {
        match &self.other {
            Some(other) if other.has(to) => !other.to.is_full(),
            _ => self.under_way.len() < UNDER_WAY,
        }
    }

    fn send(&mut self, _clock: &impl Clock, to: Attachment, frame: Vec<u8>) {
        let delivery = Delivery { to, frame };
        match &mut self.other {
            Some(other) if other.has(to) => {
                if let Err(rtrb::PushError::Full(lost)) = other.to.push(delivery) {
                    self.recycle(lost.frame);
                }
            }
            _ => self.under_way.push_back(delivery),
        }
    }

    fn receive(&mut self, _clock: &impl Clock) -> Option<Delivery> {
        self.under_way.pop_front().or_else(|| self.other.as_mut()?.from.pop().ok())
    }

    fn next_arrival(&self) -> Option<Instant> {
        let waiting = !self.under_way.is_empty() || self.other.as_ref().is_some_and(|o| !o.from.is_empty());
        waiting.then_some(Instant::ZERO)
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn recycle(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.spare.push(buffer);
    }
}

/// Wires under virtual time: each frame takes a delay, and what the seed decides may befall it.
#[derive(Debug)]
pub struct FaultyWires {
    link: LossyLink<Attachment>,
    spare: Vec<Vec<u8>>,
}

impl FaultyWires {
    /// Wires of the given propagation delay; `seed` decides every fault.
    pub fn new(delay: Duration, rates: FaultRates, seed: u64) -> Self {
        Self { link: LossyLink::new(delay, rates, seed).with_room(UNDER_WAY), spare: Vec::new() }
    }

    /// Faults that happened so far.
    pub fn faults(&self) -> &Faults {
        self.link.faults()
    }

    /// Ends faults: from now on nothing is lost or damaged. Frames under way still arrive as they are.
    pub fn heal(&mut self) {
        self.link.set_rates(FaultRates::NONE);
    }
}

impl Wires for FaultyWires {
    fn has_room(&self, _to: Attachment) -> bool {
        self.link.has_room()
    }

    fn send(&mut self, clock: &impl Clock, to: Attachment, frame: Vec<u8>) {
        self.link.send(clock.now(), to, &frame);
        self.recycle(frame);
    }

    fn receive(&mut self, clock: &impl Clock) -> Option<Delivery> {
        let mut frame = self.buffer();
        match self.link.receive(clock.now(), &mut frame) {
            Some(to) => Some(Delivery { to, frame }),
            None => {
                self.recycle(frame);
                None
            }
        }
    }

    fn next_arrival(&self) -> Option<Instant> {
        self.link.next_arrival()
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn recycle(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.spare.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtual_time::VirtualClock;

    const FIRST: Attachment = Attachment { node: 0, port: 3 };
    const SECOND: Attachment = Attachment { node: 1, port: 4 };

    #[test]
    fn a_frame_arrives_in_the_half_that_its_node_is_in() {
        let clock = VirtualClock::default();
        let (mut first, mut second) = InstantWires::pair(&[true, false]);
        first.send(&clock, SECOND, vec![1]);
        first.send(&clock, FIRST, vec![2]);
        second.send(&clock, FIRST, vec![3]);
        let take = |wires: &mut InstantWires| {
            std::iter::from_fn(|| wires.receive(&clock)).map(|d| (d.to, d.frame)).collect::<Vec<_>>()
        };
        assert_eq!(second.next_arrival(), Some(Instant::ZERO));
        assert_eq!(take(&mut second), [(SECOND, vec![1])]);
        assert_eq!(take(&mut first), [(FIRST, vec![2]), (FIRST, vec![3])]);
        assert_eq!((first.next_arrival(), second.next_arrival()), (None, None));
    }

    #[test]
    fn a_half_that_nobody_drives_loses_frames_and_stops_nobody() {
        let clock = VirtualClock::default();
        let (mut first, mut second) = InstantWires::pair(&[true, false]);
        for _ in 0..BETWEEN_HALVES + 9 {
            first.send(&clock, SECOND, vec![7]);
        }
        assert!(!first.has_room(SECOND) && first.has_room(FIRST));
        assert_eq!(std::iter::from_fn(|| second.receive(&clock)).count(), BETWEEN_HALVES);
    }
}

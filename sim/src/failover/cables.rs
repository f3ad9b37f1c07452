//! Cables of different lengths that are cut, between switches that die and freeze.

use std::collections::{BTreeMap, BTreeSet};

use fatbtree_topology::Network as Topology;
use fatbtree_verbs::time::{Duration, Instant};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::agenda::Agenda;
use crate::cluster::Clock;
use crate::wires::{Attachment, Delivery, Wires};

/// Fate of frames that arrive at a switch.
#[derive(Debug)]
enum Gone {
    /// The frames are lost.
    Dead,
    /// Up to `room` frames wait until the switch goes on; those beyond are lost.
    Frozen { waiting: Vec<Delivery>, room: usize },
}

/// Cables under virtual time: a frame takes as long as its cable is long, and arrives whole and in order, or not at all.
#[derive(Debug)]
pub(super) struct Cables {
    under_way: Agenda<Delivery>,
    /// Delay of each cable, by its end.
    delays: BTreeMap<Attachment, Duration>,
    /// Ends at which nothing arrives.
    cut: BTreeSet<Attachment>,
    gone: BTreeMap<u32, Gone>,
    /// Frames that were lost.
    pub(super) lost: u64,
    spare: Vec<Vec<u8>>,
}

/// A host's cable.
const HOST: Duration = Duration::from_nanos(500);

impl Cables {
    /// Creates cables. The seed decides the delay of each cable between switches; both directions take the same time.
    pub(super) fn new(tree: &Topology, random: &mut ChaCha8Rng) -> Self {
        let mut delays = BTreeMap::new();
        for link in tree.links() {
            let fatbtree_topology::Peer::Switch { switch, port } = link.lower else { continue };
            let nanos = match random.random_range(0..10u8) {
                0 => random.random_range(5_000..=50_000),
                _ => random.random_range(300..=5_000),
            };
            for end in [(link.upper, link.port), (switch, port)] {
                let end = Attachment { node: end.0.0, port: end.1 };
                delays.insert(end, Duration::from_nanos(nanos));
            }
        }
        let (cut, gone, lost, spare) = (BTreeSet::new(), BTreeMap::new(), 0, Vec::new());
        Self { under_way: Agenda::new(), delays, cut, gone, lost, spare }
    }

    /// Cuts one direction of a cable: nothing arrives at this end any more.
    pub(super) fn cut(&mut self, end: Attachment) {
        self.cut.insert(end);
    }

    /// Mends one direction of a cable: frames arrive at this end again.
    pub(super) fn mend(&mut self, end: Attachment) {
        self.cut.remove(&end);
    }

    /// Kills a switch: it takes no frames any more.
    pub(super) fn kill(&mut self, node: u32) {
        self.gone.insert(node, Gone::Dead);
    }

    /// Freezes a switch: it takes no frames, but up to `room` of them wait for it.
    pub(super) fn freeze(&mut self, node: u32, room: usize) {
        self.gone.insert(node, Gone::Frozen { waiting: Vec::new(), room });
    }

    /// Revives a switch: it takes frames again, first those that have waited.
    pub(super) fn revive(&mut self, now: Instant, node: u32) {
        if let Some(Gone::Frozen { waiting, .. }) = self.gone.remove(&node) {
            waiting.into_iter().for_each(|delivery| self.under_way.add(now, delivery));
        }
    }
}

impl Wires for Cables {
    fn has_room(&self, _to: Attachment) -> bool {
        true
    }

    fn send(&mut self, clock: &impl Clock, to: Attachment, frame: Vec<u8>) {
        if self.cut.contains(&to) {
            self.lost += 1;
            return self.recycle(frame);
        }
        let delay = self.delays.get(&to).copied().unwrap_or(HOST);
        self.under_way.add(clock.now() + delay, Delivery { to, frame });
    }

    fn receive(&mut self, clock: &impl Clock) -> Option<Delivery> {
        loop {
            let delivery = self.under_way.pop(clock.now())?;
            let is_cut = self.cut.contains(&delivery.to);
            match self.gone.get_mut(&delivery.to.node) {
                None if !is_cut => return Some(delivery),
                Some(Gone::Frozen { waiting, room }) if !is_cut && waiting.len() < *room => {
                    waiting.push(delivery);
                }
                _ => {
                    self.lost += 1;
                    self.recycle(delivery.frame);
                }
            }
        }
    }

    fn next_arrival(&self) -> Option<Instant> {
        self.under_way.next_at()
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn recycle(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.spare.push(buffer);
    }
}

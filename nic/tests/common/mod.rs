//! Two NICs, virtual time, and a seeded link between them that loses, doubles, damages and delays frames.
#![allow(dead_code, unreachable_pub)] // each test file uses its part, and none exports anything

use fatbtree_nic::time::{Duration, Instant};
use fatbtree_nic::{Completion, Endpoint, Nic, NicConfig, QueuePairNumber, QueuePairOptions};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// What a link does to frames; chances are per 1024.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub drop: u32,
    pub duplicate: u32,
    pub corrupt: u32,
    pub reorder: u32,
}

pub struct Link {
    pub faults: Faults,
    rng: ChaCha8Rng,
    /// By arrival time, then order of sending: the frame, and whether it goes to the server.
    flying: BTreeMap<(Instant, u64), (bool, Vec<u8>)>,
    sent: u64,
}

impl Link {
    fn chance(&mut self, per_1024: u32) -> bool {
        self.rng.next_u32() % 1024 < per_1024
    }

    fn send(&mut self, now: Instant, to_server: bool, frame: &[u8]) {
        if self.chance(self.faults.drop) {
            return;
        }
        let copies = 1 + u32::from(self.chance(self.faults.duplicate));
        for _ in 0..copies {
            let mut frame = frame.to_vec();
            if self.chance(self.faults.corrupt) {
                let bit = self.rng.next_u32() as usize % (frame.len() * 8);
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            let mut delay = 5_000;
            if self.chance(self.faults.reorder) {
                delay += u64::from(self.rng.next_u32() % 300_000);
            }
            self.sent += 1;
            self.flying.insert((now + Duration::from_nanos(delay), self.sent), (to_server, frame));
        }
    }
}

pub struct Pair {
    pub now: Instant,
    pub client: Nic,
    pub server: Nic,
    pub qpn: QueuePairNumber,
    pub peer: QueuePairNumber,
    pub link: Link,
    frame: Vec<u8>,
}

pub const CLIENT: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1));
pub const SERVER: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2));

pub fn client_config() -> NicConfig {
    NicConfig { ack_timeout: Duration::from_micros(100), ..NicConfig::new(CLIENT.0, CLIENT.1) }
}

pub fn server_config() -> NicConfig {
    NicConfig { ack_timeout: Duration::from_micros(100), ..NicConfig::new(SERVER.0, SERVER.1) }
}

pub fn endpoint(nic: &Nic, qpn: QueuePairNumber) -> Endpoint {
    nic.local_endpoint(qpn).unwrap()
}

impl Pair {
    pub fn new(seed: u64) -> Pair {
        Pair::with(seed, client_config(), server_config(), QueuePairOptions::default(), Faults::default())
    }

    pub fn with(
        seed: u64,
        client: NicConfig,
        server: NicConfig,
        options: QueuePairOptions,
        faults: Faults,
    ) -> Pair {
        let mut client = Nic::new(client, seed);
        let mut server = Nic::new(server, seed ^ 0x5eed);
        let qpn = client.create_queue_pair_with(options).unwrap();
        let peer = server.create_queue_pair();
        client.connect(qpn, endpoint(&server, peer)).unwrap();
        server.connect(peer, endpoint(&client, qpn)).unwrap();
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let link = Link { faults, rng, flying: BTreeMap::new(), sent: 0 };
        Pair { now: Instant::ZERO, client, server, qpn, peer, link, frame: Vec::new() }
    }

    fn transmit(&mut self) {
        while self.client.poll_transmit(self.now, &mut self.frame) {
            self.link.send(self.now, true, &self.frame);
        }
        while self.server.poll_transmit(self.now, &mut self.frame) {
            self.link.send(self.now, false, &self.frame);
        }
    }

    /// Moves to the next event. False when nothing is on its way and nothing is due.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let arrival = self.link.flying.first_key_value().map(|(&(at, _), _)| at);
        let timeout = [self.client.poll_timeout(), self.server.poll_timeout()].into_iter().flatten().min();
        let Some(next) = [arrival, timeout].into_iter().flatten().min() else { return false };
        assert!(next >= self.now, "time went back");
        self.now = next;
        if arrival == Some(next) {
            let (_, (to_server, frame)) = self.link.flying.pop_first().unwrap();
            let nic = if to_server { &mut self.server } else { &mut self.client };
            nic.handle_frame(self.now, &frame);
        } else {
            self.client.handle_timeout(self.now);
            self.server.handle_timeout(self.now);
        }
        true
    }

    /// Steps until nothing is left to do.
    pub fn drive(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!(
            "still busy after a million events: client {}, server {}",
            self.client.stats(),
            self.server.stats()
        );
    }

    pub fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.client.poll_completion()).collect()
    }
}

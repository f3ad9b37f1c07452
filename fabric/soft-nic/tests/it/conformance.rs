//! The suite that every implementation of verbs passes, over two NICs back to back: on a link that loses nothing, and on links
//! that lose, double, damage and delay frames.
use crate::common;

use common::{End, LATENCY, client_config, server_config};
use fatbtree_soft_nic::faults::{FaultRates, LossyLink};
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_verbs::conformance::{self, Bench, LocalResponder, Responder};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{BufferClass, Mtu};
use std::cell::Cell;
use std::rc::Rc;

struct NicBench {
    now: Instant,
    client: Nic,
    server: LocalResponder<Nic>,
    link: LossyLink<End>,
    lossy: bool,
    /// Retransmissions of the client, over all benches.
    retransmissions: Rc<Cell<u64>>,
    frame: Vec<u8>,
}

impl Drop for NicBench {
    fn drop(&mut self) {
        self.retransmissions.set(self.retransmissions.get() + self.client.stats().retransmissions);
    }
}

impl NicBench {
    fn new(client: NicConfig, server: NicConfig, rates: FaultRates, seed: u64) -> NicBench {
        NicBench {
            now: Instant::ZERO,
            client: Nic::new(client, seed).unwrap(),
            server: LocalResponder::new(Nic::new(server, seed ^ 0x5eed).unwrap()),
            link: LossyLink::new(LATENCY, rates, seed),
            lossy: rates != FaultRates::NONE,
            retransmissions: Rc::default(),
            frame: Vec::new(),
        }
    }
}

impl Bench for NicBench {
    type Verbs = Nic;

    fn verbs(&mut self) -> &mut Nic {
        &mut self.client
    }

    fn responder(&mut self) -> &mut dyn Responder {
        &mut self.server
    }

    fn loses_messages(&self) -> bool {
        self.lossy
    }

    fn advance(&mut self, turns: u64) -> bool {
        let server = &mut self.server.device;
        for (nic, to) in [(&mut self.client, End::Server), (&mut *server, End::Client)] {
            while self.link.has_room() && nic.poll_transmit(self.now, &mut self.frame) {
                self.link.send(self.now, to, &self.frame);
            }
        }
        let timeouts = [self.client.poll_timeout(), server.poll_timeout(), self.link.next_arrival()];
        let Some(next) = timeouts.into_iter().flatten().min() else { return false };
        self.now = self.now.max(next);
        while let Some(to) = self.link.receive(self.now, &mut self.frame) {
            match to {
                End::Server => server.handle_frame(self.now, &self.frame),
                End::Client => self.client.handle_frame(self.now, &self.frame),
            }
        }
        self.client.handle_timeout(self.now);
        server.handle_timeout(self.now);
        assert!(turns < 1_000_000, "no end is in sight");
        true
    }
}

#[test]
fn on_a_link_that_loses_nothing() {
    let report = conformance::run(|| NicBench::new(client_config(), server_config(), FaultRates::NONE, 1));
    assert!(report.failures().is_empty(), "{report}");
    assert!(report.cases() > 40, "{report}");
}

#[test]
fn with_unlike_and_small_configurations() {
    let small = [BufferClass { count: 40, bytes: 2048 }, BufferClass { count: 2, bytes: 48 << 10 }];
    let client = NicConfig {
        mtu: Mtu::B512,
        initiator_reads: 3,
        send_queue: 100,
        completion_queue: 90,
        buffers: small.to_vec(),
        ..client_config()
    };
    let server = NicConfig { responder_reads: 2, device_memory: 4096, ..server_config() };
    for mtu in [Mtu::B256, Mtu::B4096] {
        let server = NicConfig { mtu, ..server.clone() };
        let report = conformance::run(|| NicBench::new(client.clone(), server.clone(), FaultRates::NONE, 2));
        assert!(report.failures().is_empty(), "server's path MTU {mtu}: {report}");
    }
}

#[test]
fn on_links_that_lose_double_damage_and_delay() {
    // Retries enough that giving up says something about the peer, not about luck.
    let patient = |config: NicConfig| NicConfig { retry_count: 60, ..config };
    let retransmissions = Rc::new(Cell::new(0));
    for seed in 0..256 {
        let part = |number: u64| [0, 100, 400, 1_000][(seed >> (2 * number)) as usize % 4];
        let rates = FaultRates {
            drop: part(0),
            duplicate: part(1),
            delay: part(2).max(50),
            corrupt: part(0) / 2,
            longest_delay: Duration::from_micros(300),
        };
        let report = conformance::run(|| {
            let configs = (patient(client_config()), patient(server_config()));
            let mut bench = NicBench::new(configs.0, configs.1, rates, seed);
            bench.retransmissions = Rc::clone(&retransmissions);
            bench
        });
        assert!(report.failures().is_empty(), "seed {seed}, {rates:?}: {report}");
    }
    // The faults must have done their work, or this test shows nothing.
    assert!(retransmissions.get() > 10_000, "{}", retransmissions.get());
}

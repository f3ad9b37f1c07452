//! One READ of 1 KB from post to completion, both NICs in this thread: `cargo bench -p fatbtree-nic`.
#![allow(missing_docs)] // criterion's macros make undocumented functions

use criterion::{Criterion, criterion_group, criterion_main};
use fatbtree_nic::time::Instant;
use fatbtree_nic::{Access, MemoryRegion, Nic, NicConfig, QueuePairNumber};
use std::hint::black_box;
use std::net::Ipv4Addr;

const NOW: Instant = Instant::ZERO;

struct Pair {
    client: Nic,
    server: Nic,
    qpn: QueuePairNumber,
    region: MemoryRegion,
}

impl Pair {
    fn new() -> Pair {
        let mut client = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1)), 1);
        let mut server = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2)), 2);
        let region = server.register_memory(1 << 48, vec![0xa5; 1 << 20], Access::ALL);
        let (qpn, peer) = (client.create_queue_pair(), server.create_queue_pair());
        client.connect(qpn, server.local_endpoint(peer).expect("just made")).expect("a good endpoint");
        server.connect(peer, client.local_endpoint(qpn).expect("just made")).expect("a good endpoint");
        Pair { client, server, qpn, region }
    }

    fn round_trip(&mut self, frame: &mut Vec<u8>, len: u32) {
        let MemoryRegion { iova, rkey, .. } = self.region;
        self.client.post_read(NOW, self.qpn, 1, iova + 1024, rkey, len).expect("room");
        while self.client.poll_transmit(NOW, frame) {
            self.server.handle_frame(NOW, frame);
        }
        while self.server.poll_transmit(NOW, frame) {
            self.client.handle_frame(NOW, frame);
        }
        let completion = self.client.poll_completion().expect("answered");
        black_box(&completion.data);
        self.client.recycle(completion.data);
    }
}

fn nic(c: &mut Criterion) {
    let mut frame = Vec::new();
    let mut pair = Pair::new();
    c.bench_function("READ of 1 KB, post to completion (4 frame operations)", |b| {
        b.iter(|| pair.round_trip(&mut frame, 1024));
    });
    c.bench_function("READ of 64 B, post to completion (4 frame operations)", |b| {
        b.iter(|| pair.round_trip(&mut frame, 64));
    });
    c.bench_function("READ of 64 KB, post to completion (130 frame operations)", |b| {
        b.iter(|| pair.round_trip(&mut frame, 65536));
    });

    // The responder's part alone: a duplicate READ request, handled and answered again and again.
    let MemoryRegion { iova, rkey, .. } = pair.region;
    pair.client.post_read(NOW, pair.qpn, 1, iova, rkey, 1024).expect("room");
    let mut request = Vec::new();
    assert!(pair.client.poll_transmit(NOW, &mut request));
    c.bench_function("respond 1 KB to a READ request (2 frame operations)", |b| {
        b.iter(|| {
            pair.server.handle_frame(NOW, black_box(&request));
            assert!(pair.server.poll_transmit(NOW, &mut frame));
        });
    });
}

criterion_group!(benches, nic);
criterion_main!(benches);

//! Requests and messages from post to completion, and connecting, both NICs in this thread: `cargo bench -p fatbtree-soft-nic`.
#![allow(missing_docs)] // criterion's macros make undocumented functions

use criterion::{Criterion, criterion_group, criterion_main};
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{
    Access, ConnectionEvent, Connector, Device, Memory, Message, Messages, Operation, QueuePair, Region,
    Remote, Service, Verbs, WorkRequest,
};
use std::hint::black_box;
use std::net::Ipv4Addr;

const NOW: Instant = Instant::ZERO;

struct Pair {
    client: Nic,
    server: Nic,
    queue_pair: QueuePair,
    peer: QueuePair,
    region: Region,
}

fn nic_of(host: u8) -> Nic {
    let config = NicConfig::new([2, 0, 0, 0, 0, host], Ipv4Addr::new(10, 0, 0, host));
    Nic::new(config, u64::from(host)).expect("a few megabytes of address space")
}

impl Pair {
    fn new() -> Pair {
        let (mut client, mut server) = (nic_of(1), nic_of(2));
        let memory = Memory::shared(1 << 20).expect("a megabyte");
        memory.write(0, &vec![0xa5; 1 << 20]).expect("all of it");
        let region = server.register(&memory, 1 << 48, Access::ALL).expect("a good address");
        let (queue_pair, peer) = (client.create().expect("room"), server.create().expect("room"));
        let (here, there) = (client.endpoint(queue_pair), server.endpoint(peer));
        client.connect(queue_pair, &there.expect("just made")).expect("a good endpoint");
        server.connect(peer, &here.expect("just made")).expect("a good endpoint");
        Pair { client, server, queue_pair, peer, region }
    }

    fn at(&self, offset: u64) -> Remote {
        Remote { address: self.region.iova + offset, rkey: self.region.rkey }
    }

    fn post(&mut self, operation: Operation<'_>) {
        let request = WorkRequest { tag: 1, signalled: true, operation };
        self.client.post(self.queue_pair, &[request]).expect("room");
    }

    fn round_trip(&mut self, frame: &mut Vec<u8>, operation: Operation<'_>) {
        self.post(operation);
        self.exchange(frame);
    }

    /// A message, and the place that it takes.
    fn message(&mut self, frame: &mut Vec<u8>, message: Message<'_>) {
        self.server.receive(self.peer, 1, 1024).expect("room");
        self.client.send(self.queue_pair, 1, message).expect("room");
        self.exchange(frame);
        let received = self.server.poll_received().expect("it came");
        black_box(&received.result).as_ref().expect("success");
    }

    fn exchange(&mut self, frame: &mut Vec<u8>) {
        while self.client.poll_transmit(NOW, frame) {
            self.server.handle_frame(NOW, frame);
        }
        while self.server.poll_transmit(NOW, frame) {
            self.client.handle_frame(NOW, frame);
        }
        let completion = self.client.poll().expect("answered");
        black_box(&completion.result).as_ref().expect("success");
    }
}

/// Connects so many queue pairs by the Communication Manager, then ends the connections.
fn connect(count: usize) {
    const SERVICE: Service = Service { mac: [2, 0, 0, 0, 0, 2], ip: Ipv4Addr::new(10, 0, 0, 2), port: 7471 };
    let (mut client, mut server, mut frame) = (nic_of(1), nic_of(2), Vec::new());
    server.listen(SERVICE.port);
    for _ in 0..count {
        let queue_pair = client.create().expect("room");
        client.request(queue_pair, &SERVICE, b"").expect("room");
    }
    let (mut established, mut is_busy) = (0, true);
    while is_busy {
        is_busy = false;
        while client.poll_transmit(NOW, &mut frame) {
            server.handle_frame(NOW, &frame);
            is_busy = true;
            while let Some((connection, event)) = server.poll_connection() {
                if let ConnectionEvent::Requested { .. } = event {
                    let queue_pair = server.create().expect("room");
                    server.accept(connection, queue_pair, b"").expect("it was asked for");
                }
            }
        }
        while server.poll_transmit(NOW, &mut frame) {
            client.handle_frame(NOW, &frame);
        }
    }
    while let Some((connection, event)) = client.poll_connection() {
        established += usize::from(matches!(event, ConnectionEvent::Established { .. }));
        client.disconnect(connection);
    }
    assert_eq!(established, count);
}

fn nic(c: &mut Criterion) {
    let mut frame = Vec::new();
    let mut pair = Pair::new();
    let from = pair.at(1024);
    c.bench_function("READ of 1 KB, post to completion (4 frame operations)", |b| {
        b.iter(|| pair.round_trip(&mut frame, Operation::Read { from, len: 1024 }));
    });
    c.bench_function("READ of 8 B, post to completion (4 frame operations)", |b| {
        b.iter(|| pair.round_trip(&mut frame, Operation::Read { from, len: 8 }));
    });
    c.bench_function("READ of 64 B, post to completion (4 frame operations)", |b| {
        b.iter(|| pair.round_trip(&mut frame, Operation::Read { from, len: 64 }));
    });
    c.bench_function("READ of 64 KB, post to completion (130 frame operations)", |b| {
        b.iter(|| pair.round_trip(&mut frame, Operation::Read { from, len: 65536 }));
    });
    let data = [7; 1024];
    c.bench_function("WRITE of 16 B, post to completion (4 frame operations)", |b| {
        b.iter(|| pair.round_trip(&mut frame, Operation::Write { to: from, data: &data[..16] }));
    });
    c.bench_function("WRITE of 1 KB, post to completion (4 frame operations)", |b| {
        b.iter(|| pair.round_trip(&mut frame, Operation::Write { to: from, data: &data }));
    });

    for (name, len) in [("16 B", 16), ("1 KB", 1024)] {
        let data = &data[..len];
        c.bench_function(&format!("SEND of {name}, post to completion (4 frame operations)"), |b| {
            b.iter(|| pair.message(&mut frame, Message::Send { data, immediate: None }));
        });
        c.bench_function(
            &format!("WRITE with immediate of {name}, post to completion (4 frame operations)"),
            |b| {
                b.iter(|| pair.message(&mut frame, Message::Write { to: from, data, immediate: 1 }));
            },
        );
    }
    c.bench_function("1,000 connections by the Communication Manager", |b| b.iter(|| connect(1000)));

    // The responder's part alone: a duplicate READ request, handled and answered again and again.
    pair.post(Operation::Read { from: pair.at(0), len: 1024 });
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

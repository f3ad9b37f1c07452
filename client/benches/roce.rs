//! Lookups per second with both NICs in one thread and nothing between them: `cargo bench -p fatbtree-client
//! --bench roce`. Every answer is checked.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a bench: it prints, and stops at the first surprise

use std::time::Instant as Clock;

use fatbtree_client::ClosedLoop;
use fatbtree_client::roce::{ClientConfig, ConnectionId, Event, Mode, RemoteSide, RoceClient, SeededValues};
use fatbtree_client::workload::{KeyMap, WorkloadSpec, builtin};
use fatbtree_index::{KeyRange, SuperRoot, TreeConfig, ValueLayout};
use fatbtree_nic::time::Instant;
use fatbtree_nic::{Access, Nic, NicConfig};

#[path = "../tests/lab/tree.rs"]
#[allow(unreachable_pub)] // shared with the tests
mod tree;

const RECORDS: u64 = 200_000;
const STRETCH: u32 = 1000;

fn main() {
    for (name, values) in [("in line", ValueLayout::Inline(8)), ("out of line", ValueLayout::OutOfLine)] {
        let tree = TreeConfig::new(16, 1024, values).unwrap();
        let mut properties = builtin("c").unwrap();
        properties.set("recordcount", &RECORDS.to_string());
        properties.set("operationcount", "300000");
        let spec = WorkloadSpec::from_properties(&properties).unwrap();
        let keys = KeyMap::from(spec.insert_order);
        let mut sorted: Vec<u64> = (0..RECORDS).map(|record| keys.key(record).unwrap()).collect();
        sorted.sort_unstable();
        let (region, partition) = tree::build(&tree, 0, KeyRange::ALL, &sorted);

        let mut server = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 2], [10, 0, 0, 2].into()), 1);
        let region = server.register_memory(0, region, Access::READ);
        let nic = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 1], [10, 0, 0, 1].into()), 2);
        let config = ClientConfig { tree, depth: 16, ..ClientConfig::default() };
        let roots = SuperRoot::new(vec![partition]).unwrap();
        let mut client = RoceClient::new(nic, config, roots, SeededValues { seed: tree::SEED }).unwrap();
        let id = ConnectionId { partition: 0, lane: 0 };
        let local = client.reconnect(Instant::ZERO, id).unwrap();
        let queue_pair = server.create_queue_pair();
        server.connect(queue_pair, local).unwrap();
        let endpoint = server.local_endpoint(queue_pair).unwrap();
        let remote = RemoteSide { endpoint, rkey: region.rkey, registered: false };
        client.connected(Instant::ZERO, id, remote).unwrap();

        let mut run = ClosedLoop::new(&spec, keys, 1, Mode::Ordinary, 0, 1).unwrap();
        let mut frame = Vec::with_capacity(2048);
        let start = Clock::now();
        let elapsed = || Instant::from_nanos(start.elapsed().as_nanos() as u64);
        let mut now = elapsed();
        let (mut stretch, mut best) = ((0, now), f64::MAX);
        while !run.is_finished() {
            run.fill(now, &mut client);
            while client.poll_transmit(now, &mut frame) {
                server.handle_frame(now, &frame);
            }
            now = elapsed();
            while server.poll_transmit(now, &mut frame) {
                client.handle_frame(now, &frame);
            }
            while let Some(event) = client.poll_event() {
                match event {
                    Event::Done(done) => {
                        run.on_done(now, &done);
                        stretch.0 += 1;
                    }
                    Event::ConnectionBroken { reason, .. } => panic!("the connection broke for {reason}"),
                }
            }
            if stretch.0 >= STRETCH {
                best = best.min((now - stretch.1).as_nanos() as f64 / f64::from(stretch.0));
                stretch = (0, now);
            }
        }
        let summary = run.summary(&client);
        assert!(summary.verified(), "{:?}", run.first_wrong());
        println!(
            "values {name:12} {:8.0} lookups/s, best {:8.0}; {:.1} reads each; best {:.0} ns per read (both NICs, all checks)",
            summary.ops_per_s,
            1e9 / best,
            summary.round_trips,
            best / summary.round_trips
        );
    }
}

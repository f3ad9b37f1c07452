//! Lookups per second with both NICs in one thread and nothing between them, and what each allocates: `cargo bench -p
//! fatbtree-workload --bench roce`. Every answer is checked.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a bench: it prints, and stops at the first surprise

use std::time::Instant as Clock;

use fatbtree_blink::{
    Contention, GlobalAddress, PoolConfig, RemoteSide, Start, SuperRoot, TreeConfig, ValueLayout,
};
use fatbtree_blink_host::{LoadOptions, bulk_load, seeded};
use fatbtree_client::Client;
use fatbtree_nic::{Nic, NicConfig};

use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Access, Device};
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
use fatbtree_workload::{LoadGenerator, LoopOptions, Values};

const RECORDS: u64 = 200_000;
const STRETCH: u64 = 1000;
const SEED: u64 = 7;

fn main() {
    // Few operations at a time, so that no limit holds any back.
    for (name, layout, len, contention, depth) in [
        ("in line", ValueLayout::Inline(8), 8, Contention::SHERMAN, 16),
        ("out of line", ValueLayout::OutOfLine, 52, Contention::SHERMAN, 16),
        ("in line, depth 4", ValueLayout::Inline(8), 8, Contention::SHERMAN, 4),
        ("in line, depth 4, SMART", ValueLayout::Inline(8), 8, Contention::SMART, 4),
    ] {
        let tree = TreeConfig::new(16, 1024, layout).unwrap();
        let mut properties = builtin("c").unwrap();
        properties.set("recordcount", &RECORDS.to_string());
        properties.set("operationcount", "300000");
        let spec = WorkloadSpec::from_properties(&properties).unwrap();
        let keys = KeyMap::from(spec.insert_order);
        let mut sorted: Vec<u64> = (0..RECORDS).map(|record| keys.key(record).unwrap()).collect();
        sorted.sort_unstable();
        let options = LoadOptions { fill: 0.5, ..LoadOptions::new(tree, 0) };
        let loaded = bulk_load(&options, &sorted, &mut seeded(SEED, len)).unwrap();

        let mut server = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 2], [10, 0, 0, 2].into()), 1).unwrap();
        let iova = GlobalAddress::new(0, 0).raw();
        let region = server.register(&loaded.region, iova, Access::READ).unwrap();
        let nic = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 1], [10, 0, 0, 1].into()), 2).unwrap();
        let roots = SuperRoot::new(vec![loaded.partition]).unwrap();
        let client =
            Client::new(nic, PoolConfig { tree, contention, ..PoolConfig::default() }, roots, 1).unwrap();
        let id = client.pool().connections()[0];
        let local = client.pool().open(id).unwrap();
        let queue_pair = server.create().unwrap();
        server.connect(queue_pair, &local).unwrap();
        let endpoint = server.endpoint(queue_pair).unwrap();
        let remote = RemoteSide { endpoint, rkey: region.rkey, registered: false };
        client.pool().connected(id, remote).unwrap();

        let mut run = LoadGenerator::new();
        let mut frame = Vec::with_capacity(2048);
        let start = Clock::now();
        let elapsed = || Instant::from_nanos(start.elapsed().as_nanos() as u64);
        let mut network = |nic: &mut Nic| {
            let now = elapsed();
            while nic.poll_transmit(now, &mut frame) {
                server.handle_frame(now, &frame);
            }
            while server.poll_transmit(now, &mut frame) {
                nic.handle_frame(now, &frame);
            }
            now
        };
        let options = LoopOptions { start: Start::Root, depth };
        let mut workload = Workload::new(&spec, keys, 1).unwrap();
        let values = Values::new(SEED, len as usize);
        let (mut best, mut allocations) = (f64::MAX, u64::MAX);
        for _ in 0..spec.operation_count / STRETCH {
            let before = elapsed();
            let counted = allocation_counter::measure(|| {
                let work = run.run(&client, &mut workload, STRETCH, options, &values);
                client.pool().reactor().run(work, &mut network).unwrap();
            });
            best = best.min((elapsed() - before).as_nanos() as f64 / STRETCH as f64);
            allocations = allocations.min(counted.count_total);
        }
        let summary = run.summary(&client);
        assert!(summary.verified(), "{:?}", run.first_wrong());
        println!(
            "values {name:24} {:8.0} lookups/s, best {:8.0}; {:.1} reads each; best {:.0} ns per read (both NICs, all checks); \
             {allocations} allocations in {STRETCH} lookups, those of beginning a loop among them",
            summary.ops_per_s,
            1e9 / best,
            summary.round_trips,
            best / summary.round_trips
        );
    }
}

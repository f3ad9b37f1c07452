//! Lookups per second with both NICs in one thread and nothing between them, and what each allocates: `cargo bench -p
//! fatbtree-workload --bench roce`. Every answer is checked.
//!
//! What SMART's techniques cost a lookup is said by a pair: the stretches of both setups alternate, so that whatever else
//! the machine does meets both alike.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a bench: it prints, and stops at the first surprise

use std::time::Instant as Clock;

use fatbtree_blink::{
    Contention, GlobalAddress, PoolConfig, RemoteSide, Start, SuperRoot, TreeConfig, ValueLayout,
};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{LoadOptions, bulk_load, seeded};
use fatbtree_soft_nic::{Nic, NicConfig};

use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Access, Device};
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
use fatbtree_workload::{LoadGenerator, LoopOptions, Values};

const RECORDS: u64 = 200_000;
const STRETCH: u64 = 1000;
const STRETCHES: usize = 300;
const SEED: u64 = 7;

/// Values in line, 8 bytes; few operations at a time, so that no limit of SMART's holds any back.
const IN_LINE: (ValueLayout, u32, usize) = (ValueLayout::Inline(8), 8, 4);

fn main() {
    for (name, layout, len, depth) in
        [("in line", ValueLayout::Inline(8), 8, 16), ("out of line", ValueLayout::OutOfLine, 52, 16)]
    {
        let mut setup = Setup::new(layout, len, depth, Contention::SHERMAN);
        (0..STRETCHES).for_each(|_| setup.stretch());
        setup.print(name);
    }
    let (layout, len, depth) = IN_LINE;
    let [mut without, mut with] =
        [Contention::SHERMAN, Contention::SMART].map(|contention| Setup::new(layout, len, depth, contention));
    for stretch in 0..STRETCHES {
        // The one that comes second finds the processor's caches full of the other.
        let mut order = [&mut without, &mut with];
        order.rotate_left(stretch % 2);
        order.into_iter().for_each(Setup::stretch);
    }
    without.print("in line, depth 4");
    with.print("in line, depth 4, SMART");
    let mut ratios: Vec<f64> = with.stretches.iter().zip(&without.stretches).map(|(a, b)| a / b).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let at = |share: usize| ratios[ratios.len() * share / 100];
    println!(
        "SMART's techniques: a lookup takes x {:.3} as long; of {STRETCHES} pairs a quarter below {:.3}, a quarter above {:.3}",
        at(50),
        at(25),
        at(75)
    );
}

/// A client, a server and the loop of lookups between them.
struct Setup {
    server: Nic,
    client: Client<Nic>,
    generator: LoadGenerator,
    workload: Workload,
    values: Values,
    options: LoopOptions,
    start: Clock,
    frame: Vec<u8>,
    /// Nanoseconds a lookup.
    stretches: Vec<f64>,
    allocations: u64,
}

impl Setup {
    fn new(layout: ValueLayout, len: u32, depth: usize, contention: Contention) -> Self {
        let tree = TreeConfig::new(16, 1024, layout).unwrap();
        let mut properties = builtin("c").unwrap();
        properties.set("recordcount", &RECORDS.to_string());
        properties.set("operationcount", &(STRETCH * STRETCHES as u64).to_string());
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
        Self {
            server,
            client,
            generator: LoadGenerator::new(),
            workload: Workload::new(&spec, keys, 1).unwrap(),
            values: Values::new(SEED, len as usize),
            options: LoopOptions { start: Start::Root, depth },
            start: Clock::now(),
            frame: Vec::with_capacity(2048),
            stretches: Vec::with_capacity(STRETCHES),
            allocations: u64::MAX,
        }
    }

    /// [`STRETCH`] lookups.
    fn stretch(&mut self) {
        let Self {
            server,
            client,
            generator,
            workload,
            values,
            options,
            start,
            frame,
            stretches,
            allocations,
        } = self;
        let elapsed = || Instant::ZERO + start.elapsed().into();
        let mut network = |nic: &mut Nic| {
            let now = elapsed();
            while nic.poll_transmit(now, frame) {
                server.handle_frame(now, frame);
            }
            while server.poll_transmit(now, frame) {
                nic.handle_frame(now, frame);
            }
            now
        };
        let before = elapsed();
        let counted = allocation_counter::measure(|| {
            let work = generator.run(client, workload, STRETCH, *options, values);
            client.pool().reactor().run(work, &mut network).unwrap();
        });
        stretches.push((elapsed() - before).as_nanos() as f64 / STRETCH as f64);
        *allocations = counted.count_total.min(*allocations);
    }

    fn print(&self, name: &str) {
        let summary = self.generator.summary(&self.client);
        assert!(summary.verified(), "{:?}", self.generator.first_wrong());
        let best = self.stretches.iter().copied().fold(f64::MAX, f64::min);
        println!(
            "values {name:24} best {:8.0} lookups/s; {:.1} reads each; best {:.0} ns per read (both NICs, all checks); \
             {} allocations in {STRETCH} lookups, those of beginning a loop among them",
            1e9 / best,
            summary.round_trips,
            best / summary.round_trips,
            self.allocations
        );
    }
}

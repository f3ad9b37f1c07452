//! The table under the load generator of all indexes: round trips, rate and latency in virtual time.

use std::rc::Rc;

use fatbtree_race::{Shape, Table};
use fatbtree_remote_memory::{Contention, Keys};
use fatbtree_sim::hash::lab::{begin, serve};
use fatbtree_sim::world::{MachineOptions, Options, World, random};
use fatbtree_verbs::time::Duration;
use fatbtree_workload::measure::{Summary, Troubles};
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
use fatbtree_workload::{LoadGenerator, Pace, Values};

const RECORDS: u64 = 1_000;
const VALUE_BYTES: usize = 64;

/// A workload of YCSB on one server, by one client with so many operations in flight.
fn run(name: &str, depth: usize) -> Summary {
    let world = World::new(1, Options::default());
    let shape = Shape { groups: 16, directory_bits: 10, servers: 1, max_value: 1_000, keys: Keys::Numbers };
    let servers = serve(&world, shape, 4 << 20, Duration::from_secs(1));
    let machine = world.machine(MachineOptions::named("client"));
    let memory = begin(&machine, &servers, Contention::SMART, &mut random(1, 52));
    let name = name.to_owned();
    let running = machine.spawn(async move {
        let table = Table::open(Rc::clone(&memory), 0).await.expect("the server lives");
        let values = Values::new(1, VALUE_BYTES).loaded_with(|_, bytes| bytes == [0; VALUE_BYTES]);
        for key in 0..RECORDS {
            assert!(table.insert(key, &[0; VALUE_BYTES]).await.result.expect("nothing is in the way"));
        }
        let mut properties = builtin(&name).expect("YCSB has this workload");
        properties.set("recordcount", &RECORDS.to_string());
        let spec = WorkloadSpec::from_properties(&properties).expect("the properties are valid");
        let mut workload = Workload::new(&spec, KeyMap::Ordered, 1).expect("there are records");
        let (mut load, pace) = (LoadGenerator::new(), Pace::Closed { depth });
        let ran = load.run_on(&table, &mut workload, 4_000, pace, &values, |_| {}).await;
        ran.expect("operations are drawn");
        assert_eq!(load.first_wrong(), None);
        load.summary_of(&Troubles::default())
    });
    world.run_until(|| running.has_ended(), Duration::from_secs(20)).expect("nothing is in the way");
    running.take().expect("the load generator has ended")
}

/// Reads take two round trips, updates and insertions three, and operations in flight overlap.
#[test]
fn a_table_under_ycsb() {
    println!("workload   in flight   operations/s   round trips   p50 us   p99 us");
    for (name, least, most) in [("a", 2.5, 2.75), ("c", 2.0, 2.1), ("d", 2.0, 2.2)] {
        let [one, many] = [1, 8].map(|depth| {
            let summary = run(name, depth);
            let Summary { ops_per_s, round_trips, p50_us, p99_us, .. } = summary;
            println!(
                "{name:8}   {depth:9}   {ops_per_s:12.0}   {round_trips:11.2}   {p50_us:6.2}   {p99_us:6.2}"
            );
            assert!(summary.verified(), "{summary:?}");
            summary
        });
        assert!((least..most).contains(&one.round_trips), "{name}: {}", one.round_trips);
        assert!(
            many.ops_per_s > 4.0 * one.ops_per_s,
            "{} and {} operations/s",
            many.ops_per_s,
            one.ops_per_s
        );
    }
}

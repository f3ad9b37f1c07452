//! The array under the load generator of all indexes: round trips, rate and latency in virtual time.

use fatbtree_remote_memory::Contention;
use fatbtree_sim::world::{MachineOptions, Options, World, random};
use fatbtree_verbs::time::Duration;
use fatbtree_workload::measure::{Summary, Troubles};
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
use fatbtree_workload::{LoadGenerator, Pace, Values};

use crate::lab::{SERVER, begin, serve};
use crate::structure::Counters;

const COUNTERS: u32 = 200;

/// YCSB's workload A on one server, by one client with so many operations in flight.
fn run(depth: usize) -> Summary {
    let world = World::new(1, Options::default());
    let server = serve(COUNTERS, &world.machine(MachineOptions::named("server")), world.operator());
    let machine = world.machine(MachineOptions::named("client"));
    let client = begin(&machine, &server, Contention::SHERMAN, &mut random(1, 52));
    let running = machine.spawn(async move {
        let counters = Counters::open(client, SERVER).await.expect("the server lives");
        let mut properties = builtin("a").expect("YCSB has a workload A");
        properties.set("recordcount", &COUNTERS.to_string());
        properties.set("requestdistribution", "uniform");
        let spec = WorkloadSpec::from_properties(&properties).expect("the properties are valid");
        let mut workload = Workload::new(&spec, KeyMap::Ordered, 1).expect("there are records");
        let values = Values::new(1, 8).loaded_with(|_, bytes| bytes == [0; 8]);
        let (mut load, pace) = (LoadGenerator::new(), Pace::Closed { depth });
        let ran = load.run_on(&counters, &mut workload, 4_000, pace, &values, |_| {}).await;
        ran.expect("operations are drawn");
        assert_eq!(load.first_wrong(), None);
        load.summary_of(&Troubles::default())
    });
    world.run_until(|| running.has_ended(), Duration::from_secs(5)).expect("nothing is in the way");
    running.take().expect("the load generator has ended")
}

/// A read takes one round trip and an update two, and operations in flight overlap.
#[test]
fn counters_under_ycsb_a() {
    println!("in flight   operations/s   round trips   p50 us   p99 us");
    let [one, many] = [1, 16].map(|depth| {
        let summary = run(depth);
        let Summary { ops_per_s, round_trips, p50_us, p99_us, .. } = summary;
        println!("{depth:9}   {ops_per_s:12.0}   {round_trips:11.2}   {p50_us:6.2}   {p99_us:6.2}");
        assert!(summary.verified(), "{summary:?}");
        summary
    });
    assert!((1.4..1.6).contains(&one.round_trips), "half of one trip, half of two: {}", one.round_trips);
    assert!(many.ops_per_s > 8.0 * one.ops_per_s, "{} and {} operations/s", many.ops_per_s, one.ops_per_s);
}

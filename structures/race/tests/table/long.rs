//! Long values: their parts are read at once, within the bounds of the queue pair and of the buffers, and a value that is torn is noticed.

use std::rc::Rc;

use fatbtree_race::{Shape, Table};
use fatbtree_remote_memory::{Check as RemoteCheck, Contention, Keys};
use fatbtree_sim::hash::lab::{begin, serve_in_chunks};
use fatbtree_sim::world::{MachineOptions, Options, Tearing, World, random};
use fatbtree_verbs::BufferClass;
use fatbtree_verbs::time::Duration;

use crate::model::{done, value};

const SHAPE: Shape =
    Shape { groups: 64, directory_bits: 8, servers: 1, max_value: 1 << 20, keys: Keys::Numbers };

/// Buffers as a software NIC has them, and others.
fn machine(world: &World, name: &str, long: u32, send_queue: usize) -> fatbtree_sim::world::Machine {
    let mut options = MachineOptions { send_queue, ..MachineOptions::named(name) };
    options.buffers = vec![
        BufferClass { count: 256, bytes: 4 << 10 },
        BufferClass { count: long, bytes: 64 << 10 },
        BufferClass { count: 2, bytes: (1 << 20) + (4 << 10) },
    ];
    world.machine(options)
}

/// Puts a value of each length and finds it. Returns the round trips of the searches.
fn trips(lengths: &[usize], long: u32, send_queue: usize) -> Vec<u32> {
    let world = World::new(1, Options::default());
    let servers = serve_in_chunks(&world, SHAPE, (64 << 20, 2 << 20), Duration::from_secs(1));
    let machine = machine(&world, "client", long, send_queue);
    let memory = begin(&machine, &servers, Contention::SMART, &mut random(1, 1));
    let lengths = lengths.to_vec();
    let task = machine.spawn(async move {
        let table = Table::open(memory, 0).await.expect("the server lives");
        let mut trips = Vec::new();
        for (key, length) in (0..).zip(lengths) {
            let put = value(key, 7, length);
            assert!(done(table.insert(key, &put).await));
            let found = table.search(key).await;
            assert_eq!(found.result.expect("the server lives").as_deref(), Some(&put[..]), "{length}");
            trips.push(found.round_trips);
        }
        trips
    });
    world.run_until(|| task.has_ended(), Duration::from_secs(10)).expect("nothing is in the way");
    task.take().expect("the machine lives")
}

#[test]
fn the_parts_of_a_long_value_are_read_at_once() {
    let lengths = [16_296, 16_297, 60_000, 100_000, 1 << 20];
    let found = trips(&lengths, 64, 128);
    println!("round trips of values of {lengths:?} bytes: {found:?}");
    assert_eq!(found, [2, 3, 3, 3, 3]);
}

/// The queue holds three requests, and there are four buffers for a part: more windows, and no error.
#[test]
fn parts_wait_for_the_queue_and_for_buffers() {
    let found = trips(&[60_000, 1 << 20], 2, 3);
    println!("{found:?}");
    assert!(found[0] == 3 && (4..40).contains(&found[1]), "{found:?}");
}

/// One client writes a long value again and again, and another one reads it: each value is one that was written. Says whether one was not.
fn torn(seed: u64) -> bool {
    // READs take long: the block is freed and written anew meanwhile.
    let tearing = Tearing { any_order: 40, stretched: 5_000, stretch: 30, at_once: false };
    let world = World::new(seed, Options { tearing, ..Options::default() });
    let servers = serve_in_chunks(&world, SHAPE, (64 << 20, 2 << 20), Duration::from_secs(1));
    let [(writing, one), (reading, other)] = ["writing", "reading"].map(|name| {
        let machine = machine(&world, name, 64, 128);
        (machine.clone(), begin(&machine, &servers, Contention::SMART, &mut random(seed, 1)))
    });
    drop(writing.spawn(async move {
        let table = Table::open(one, 0).await.expect("the server lives");
        for number in 0_u8.. {
            assert!(done(table.upsert(1, &vec![number; 150_000]).await));
        }
    }));
    let task = reading.spawn(async move {
        let table = Rc::new(Table::open(other, 0).await.expect("the server lives"));
        let mut is_torn = false;
        for _ in 0..40 {
            if let Ok(Some(value)) = table.search(1).await.result {
                is_torn |= value.iter().any(|byte| *byte != value[0]);
            }
        }
        is_torn
    });
    world.run_until(|| task.has_ended(), Duration::from_secs(20)).expect("nothing is in the way");
    task.take().expect("the machine lives")
}

#[test]
fn a_value_that_is_torn_between_its_parts_is_noticed() {
    assert!((0..6).all(|seed| !torn(seed)));
    let unchecked =
        |seed| RemoteCheck::RecordChecksum.without(|| RemoteCheck::RecordVersion.without(|| torn(seed)));
    assert!((0..6).any(unchecked), "the values were never torn");
}

//! Speed of the simulated world on one processor: `cargo bench -p fatbtree-sim --bench world`.
//!
//! Each figure is a number of simulated operations, with everything that belongs to them: tasks, reactors, events, memory.
#![allow(missing_docs)] // criterion's macros make undocumented functions

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fatbtree_sim::world::SimDevice;
use fatbtree_sim::world::{Machine, MachineOptions, MachineReactor, Options, World, random};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Access, Device as _, Memory, Operation, Output, QueuePair, Reactor, Region, Remote};
use rand::RngExt as _;

const CLIENTS: usize = 8;
const TASKS: u64 = 16;
const OPERATIONS: u64 = 100;
const LONG: Duration = Duration::from_secs(10);

/// A server with 1 MB, and what clients need to know of it.
struct Lab {
    world: World,
    memory: Arc<Memory>,
    server: Machine,
    region: Region,
}

impl Lab {
    fn new(options: Options) -> Self {
        let world = World::new(1, options);
        let server = world.machine(MachineOptions::named("server"));
        let memory = Memory::shared(1 << 20).expect("a megabyte");
        let region =
            server.reactor().with(|card| card.register(&memory, 0, Access::ALL)).expect("registered");
        Self { world, memory, server, region }
    }

    /// Runs `task` repeatedly on each of the clients, and returns the number of operations.
    fn run<F: Future<Output = ()> + 'static>(
        &self,
        task: impl Fn(MachineReactor, QueuePair, Region, u64) -> F + Copy + 'static,
    ) -> u64 {
        let all: Vec<_> = (0..CLIENTS as u64)
            .map(|number| {
                let client = self.world.machine(MachineOptions::named("client"));
                let (server, region) = (self.server.clone(), self.region);
                client.clone().spawn(async move {
                    let queue_pair = client.dial(&server).await.expect("the server answers");
                    let jobs: Vec<_> = (0..TASKS)
                        .map(|job| {
                            client.spawn(task(client.reactor(), queue_pair, region, number * TASKS + job))
                        })
                        .collect();
                    for job in jobs {
                        job.await.expect("no task dies");
                    }
                })
            })
            .collect();
        self.world.run_until(|| all.iter().all(|task| task.has_ended()), LONG).expect("it ends");
        CLIENTS as u64 * TASKS * OPERATIONS
    }
}

async fn read(reactor: &Reactor<SimDevice>, queue_pair: QueuePair, from: Remote, len: u32) -> u64 {
    match reactor.chain(queue_pair, [Operation::Read { from, len }]).await {
        Ok([Output::Read(bytes)]) => u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes at least")),
        other => panic!("a READ gave {other:?}"),
    }
}

fn reads(lab: &Lab, len: u32) -> u64 {
    lab.run(move |reactor, queue_pair, region, seed| async move {
        let mut draw = random(seed, 0);
        for _ in 0..OPERATIONS {
            let from = Remote { address: draw.random_range(0..1000) * 1024, rkey: region.rkey };
            black_box(read(&reactor, queue_pair, from, len).await);
        }
    })
}

/// READs and WRITEs of 1 KB at 16 places: nearly each one meets another.
fn contended(lab: &Lab) -> u64 {
    lab.run(|reactor, queue_pair, region, seed| async move {
        let mut draw = random(seed, 0);
        let data = [7; 1024];
        for _ in 0..OPERATIONS {
            let at = Remote { address: draw.random_range(0..16) * 1024, rkey: region.rkey };
            if draw.random_bool(0.5) {
                black_box(read(&reactor, queue_pair, at, 1024).await);
            } else {
                reactor.chain(queue_pair, [Operation::Write { to: at, data: &data }]).await.expect("written");
            }
        }
    })
}

const FAN_OUT: u64 = 16;
const NODE: u64 = 256;

/// A tree of three levels of 16 children, 8 bytes an address, the root at 0.
fn plant(memory: &Memory) {
    for node in 0..1 + FAN_OUT {
        for child in 0..FAN_OUT {
            let address = (1 + node * FAN_OUT + child) * NODE;
            memory.write(node * NODE + 16 * child, &address.to_le_bytes()).expect("inside");
        }
    }
    for leaf in 0..FAN_OUT * FAN_OUT {
        let address = (1 + FAN_OUT + leaf) * NODE;
        memory.write(address, &leaf.to_le_bytes()).expect("inside");
    }
}

fn lookups(lab: &Lab) -> u64 {
    lab.run(|reactor, queue_pair, region, seed| async move {
        let mut draw = random(seed, 0);
        for _ in 0..OPERATIONS {
            let key = draw.random_range(0..FAN_OUT * FAN_OUT);
            let mut address = 0;
            for branch in [key / FAN_OUT, key % FAN_OUT] {
                let from = Remote { address: address + 16 * branch, rkey: region.rkey };
                // The whole node travels; its first word is the branch's.
                address = read(&reactor, queue_pair, from, NODE as u32).await;
            }
            let from = Remote { address, rkey: region.rkey };
            assert_eq!(read(&reactor, queue_pair, from, NODE as u32).await, key);
        }
    })
}

fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("world");
    group.sample_size(10);
    group.throughput(Throughput::Elements(CLIENTS as u64 * TASKS * OPERATIONS));
    for len in [64, 1024] {
        group.bench_function(format!("READs of {len} bytes"), |bencher| {
            bencher.iter_with_large_drop(|| {
                let lab = Lab::new(Options::default());
                reads(&lab, len);
                lab
            });
        });
    }
    group.bench_function("READs and WRITEs of 1024 bytes that meet", |bencher| {
        bencher.iter_with_large_drop(|| {
            let lab = Lab::new(Options::default());
            contended(&lab);
            lab
        });
    });
    group.bench_function("lookups in a tree of three levels", |bencher| {
        bencher.iter_with_large_drop(|| {
            let lab = Lab::new(Options::default());
            plant(&lab.memory);
            lookups(&lab);
            lab
        });
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);

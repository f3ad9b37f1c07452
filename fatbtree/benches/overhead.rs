//! Cost of the client library beside the client process that it drives: one read after the other, and 32 at once.
//!
//! Both have the same memory server, on a thread of this process, and nothing between. `process` runs the reads on its own thread;
//! `library` has its thread asked by another one, and the answers brought back.

#[path = "../tests/it/common/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod common;

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use common::Running;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fatbtree_node::{ClientOptions, ClientProcess, NicSpec, host_port};
use fatbtree_topology::Cluster;
use fatbtree_trust::Trust;
use futures_buffered::FuturesUnorderedBounded;
use futures_core::Stream as _;

/// Keys in the tree, which are read in turn.
const KEYS: u64 = 1_000;

/// Runs `count` operations, `depth` at once.
async fn in_turn<F: Future>(count: u64, depth: usize, begin: impl Fn(u64) -> F) {
    let mut under_way = FuturesUnorderedBounded::new(depth);
    let mut left = 0..count;
    poll_fn(|context| {
        loop {
            while under_way.len() < depth
                && let Some(number) = left.next()
            {
                under_way.push(begin(number % KEYS));
            }
            match Pin::new(&mut under_way).poll_next(context) {
                Poll::Ready(Some(output)) => drop(black_box(output)),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

fn process(running: &Running) -> ClientProcess {
    let text = std::fs::read_to_string(running.folder.path().join("cluster.toml")).expect("the file");
    let cluster = Cluster::from_toml(&text).expect("a cluster file");
    let host = cluster.clients()[0].host;
    let options = ClientOptions {
        host: cluster.tree().host(host).clone(),
        nic: NicSpec::Software(host_port(&cluster, host).expect("a wire")),
        servers: cluster.servers().to_vec(),
        lanes: 2,
        controllers: Vec::new(),
        trust: Trust::default(),
        metrics: None,
        patience: Duration::from_secs(20),
        contention: fatbtree_blink::Contention::default(),
    };
    ClientProcess::open(&options).expect("the server runs")
}

fn overhead(bench: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let running = Running::start();
    runtime.block_on(async {
        let client = running.client().await;
        for key in 0..KEYS {
            client.put(key, key.to_le_bytes()).await.expect("there is room");
        }
        client.close().await;
    });
    let mut group = bench.benchmark_group("get");
    group.measurement_time(Duration::from_secs(10));
    for depth in [1, 32] {
        group.bench_function(BenchmarkId::new("process", depth), |bencher| {
            let mut process = process(&running);
            let client = process.client().clone();
            bencher.iter_custom(|count| {
                let begun = Instant::now();
                let get = |key| {
                    let client = client.clone();
                    async move { client.get(key).await.expect("nothing fails").map(|value| value.len()) }
                };
                process.run(in_turn(count, depth, get)).expect("the server runs");
                begun.elapsed()
            });
            drop(client);
            process.close();
        });
        group.bench_function(BenchmarkId::new("library", depth), |bencher| {
            let client = runtime.block_on(running.client());
            bencher.iter_custom(|count| {
                let begun = Instant::now();
                let get = |key| {
                    let client = client.clone();
                    async move { client.get(key).await.expect("nothing fails").map(|value| value.len()) }
                };
                runtime.block_on(in_turn(count, depth, get));
                begun.elapsed()
            });
            runtime.block_on(client.close());
        });
    }
}

criterion_group!(benches, overhead);
criterion_main!(benches);

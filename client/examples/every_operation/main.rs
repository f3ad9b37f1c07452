//! Carries out every operation of the library on a running cluster, and checks each answer:
//! `cargo run -p fatbtree --example every_operation -- cluster.toml`.
//!
//! After the cluster file: `query` for requests to the processors of the memory servers, or the name of an RDMA device, such as `mlx5_0`
//! (cargo feature `ibverbs`). It uses the first keys from 2^63 on, which nothing else may hold, and leaves none of them behind.

#![allow(clippy::print_stdout, reason = "an example shows what it found")]

mod operations;

use std::time::{Duration, Instant};

use fatbtree::{Options, Protocol};
use operations::{Failure, Work};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "cluster.toml".to_owned());
    let options = Options::new(file).patience(Duration::from_secs(60));
    let (options, has_conditions) = match arguments.next() {
        None => (options, true),
        Some(way) if way == "query" => (options.protocol(Protocol::Query), false),
        Some(device) => (options.rdma_device(device), true),
    };
    let db = options.connect().await?;
    let begun = Instant::now();
    let work = Work { first: 1 << 63, tasks: 8, operations: 100, has_conditions };
    let operations = work.run(&db).await?;
    let seconds = begun.elapsed().as_secs_f64();
    println!("{operations} operations by {} tasks, every answer right, in {seconds:.2} s", work.tasks);
    db.close().await;
    Ok(())
}

//! A program with a client of its own: it reads, writes and scans keys of a running cluster.
//!
//! `docs/src/embed.md` shows this file. To run it, start `fatbtree up cluster.toml` first:
//! `cargo run --example embedded -- cluster.toml`.
#![allow(clippy::print_stdout, reason = "an example prints what it finds")]

use std::error::Error;

use fatbtree_processes::{ClientOptions, ClientProcess, NicSpec, host_port};
use fatbtree_topology::Cluster;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("expected the name of a cluster file")?;
    let cluster = Cluster::from_toml(&std::fs::read_to_string(file)?)?;
    let me = cluster.clients().first().ok_or("the cluster file has no [[client]]")?;
    let host = cluster.tree().host(me.host).clone();
    let nic = NicSpec::Software(host_port(&cluster, me.host)?);
    let mut process = ClientProcess::open(&ClientOptions {
        controllers: cluster.controllers().to_vec(),
        metrics: cluster.metrics(&me.name).map(str::to_owned),
        // `trust` has the certificates of a folder, `contention` is for clients that compete for few keys, and so on.
        ..ClientOptions::new(host, nic, cluster.servers())
    })?;

    // A clone shares the connections. `run` drives any future that uses it.
    let client = process.client().clone();
    process.run(async {
        client.upsert(1, b"one").await?;
        client.upsert(2, b"two").await?;
        let value = client.get(1).await?.ok_or("key 1 is missing")?;
        println!("1 {}", String::from_utf8_lossy(&value));

        let mut scan = client.scan(1..10);
        while let Some(pair) = scan.next().await {
            let (key, value) = pair?;
            println!("{key} {}", String::from_utf8_lossy(&value));
        }

        client.delete(2).await?;
        Ok::<_, Box<dyn Error>>(())
    })??;
    process.close();
    Ok(())
}

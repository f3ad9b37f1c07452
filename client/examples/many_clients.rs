//! Connects many clients of one host at once: `cargo run --release -p fatbtree --example many_clients -- cluster.toml 1000`.
//!
//! The cluster file gives the client's host as many UDP ports: `wire = "udp:127.0.0.1:20000-20999"` in its `[[host]]`. Each client has
//! some files open (`ulimit -n`).

#![allow(clippy::print_stdout, reason = "an example shows what it found")]

use std::time::Instant;

use fatbtree::{Client, Options};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "cluster.toml".to_owned());
    let count: u64 = arguments.next().map_or(Ok(100), |count| count.parse())?;
    let begun = Instant::now();
    // Two queue pairs a client would be more than some switches have room for.
    let options = Options::new(file).lanes(1);
    let tasks: Vec<_> = (0..count).map(|_| tokio::spawn(options.clone().connect())).collect();
    let mut clients: Vec<Client> = Vec::new();
    for task in tasks {
        clients.push(task.await??);
    }
    println!("{count} clients connected in {:.2} s", begun.elapsed().as_secs_f64());

    let begun = Instant::now();
    // One writes: each client that does takes memory of the servers for what it adds.
    if let Some(first) = clients.first() {
        for put in first.put_many((0..count).map(|key| (key, key.to_le_bytes()))).await? {
            put?;
        }
    }
    let tasks = clients.iter().zip(0..count).map(|(client, key)| {
        let client = client.clone();
        tokio::spawn(async move { (key, client.get(key).await) })
    });
    for task in tasks.collect::<Vec<_>>() {
        let (key, value) = task.await?;
        if value?.as_deref() != Some(&key.to_le_bytes()[..]) {
            return Err(format!("key {key} has another value than was put").into());
        }
    }
    println!("each has read a key, in {:.2} s", begun.elapsed().as_secs_f64());

    let begun = Instant::now();
    let tasks: Vec<_> = clients.into_iter().map(|client| tokio::spawn(client.close())).collect();
    for task in tasks {
        task.await?;
    }
    println!("all are closed, in {:.2} s", begun.elapsed().as_secs_f64());
    Ok(())
}

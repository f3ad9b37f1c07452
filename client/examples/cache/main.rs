//! A read-through cache with a bound, shared by all processes: `cargo run -p fatbtree --example cache -- cluster.toml`.
//!
//! `cache.rs` is the cache. This program reads names through it, some of them often, and shows what the slow source is spared.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

mod cache;

use std::time::{Duration, Instant};

use cache::Cache;

/// Somewhere slow: a database far away, or a computation.
async fn load(name: &str) -> Result<Vec<u8>, fatbtree::Error> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    Ok(format!("the value of {name}").into_bytes())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "cluster.toml".to_owned());
    let db = fatbtree::connect(file).await?;
    let cache = Cache { db, first: 1 << 62, slots: 1024, life: Duration::from_secs(60) };
    let (begun, mut hits) = (Instant::now(), 0);
    const READS: u32 = 2_000;
    for n in 0..READS {
        // Name 0 is asked for in every second read, name 1 in every fourth, and so on.
        let name = format!("page-{}", (n + 1).trailing_zeros());
        let (value, was_cached) = cache.get(&name, load).await?;
        if value[..] != *format!("the value of {name}").as_bytes() {
            return Err(format!("{name} has another value").into());
        }
        hits += u32::from(was_cached);
    }
    println!("{hits} of {READS} reads came from the cache, in {:.2} s", begun.elapsed().as_secs_f64());
    cache.forget("page-0").await?;
    let (_, was_cached) = cache.get("page-0", load).await?;
    println!("after it was forgotten, page-0 was {}", if was_cached { "cached" } else { "loaded again" });
    cache.db.close().await;
    Ok(())
}

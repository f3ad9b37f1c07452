//! Counts the keys and bytes of a range: `cargo run -p fatbtree --example range_report -- cluster.toml 0 1000000`.

#![allow(clippy::print_stdout, reason = "an example shows what it found")]

use fatbtree::blocking;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "cluster.toml".to_owned());
    let low: u64 = arguments.next().map_or(Ok(0), |key| key.parse())?;
    let high: u64 = arguments.next().map_or(Ok(u64::MAX), |key| key.parse())?;
    let db = blocking::connect(file)?;
    let (mut keys, mut bytes) = (0u64, 0);
    for pair in db.scan(low..=high) {
        let (_, value) = pair?;
        keys += 1;
        bytes += value.len();
    }
    println!("{keys} keys from {low} to {high}, with {bytes} bytes of values");
    db.close();
    Ok(())
}

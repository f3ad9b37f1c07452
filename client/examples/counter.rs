//! Counts a key up, beside others that do the same: `cargo run -p fatbtree --example counter -- cluster.toml 7`.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use fatbtree::blocking;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "cluster.toml".to_owned());
    let key = arguments.next().map_or(Ok(7), |key| key.parse())?;
    let db = blocking::connect(file)?;
    let count = loop {
        let before = db.get(key)?;
        let count = match before.as_deref() {
            None => 1,
            Some(bytes) => u64::from_le_bytes(bytes.try_into()?) + 1,
        };
        let counted = match &before {
            None => db.insert(key, count.to_le_bytes())?,
            Some(before) => db.compare_and_swap(key, before, count.to_le_bytes())?,
        };
        // Otherwise another process was quicker.
        if counted {
            break count;
        }
    };
    println!("{key} was counted up to {count}");
    db.close();
    Ok(())
}

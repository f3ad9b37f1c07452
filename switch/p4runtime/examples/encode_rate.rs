//! How fast entries are built and encoded: `cargo run --release -p fatbtree-p4runtime --example encode_rate`.
//!
//! Builds `child` entries by resolved names, in batches of 5000, and encodes each batch as the Write request that
//! would go over the wire.

use std::time::Instant;

use fatbtree_p4runtime::prost::Message as _;
use fatbtree_p4runtime::{P4InfoIndex, entry, v1};

const ENTRIES: u64 = 2_000_000;
const BATCH: u64 = 5000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let info = P4InfoIndex::from_text(include_str!("../testdata/small.p4info.txtpb"))?;
    let child = info.table("node_set_a.child")?;
    let (epoch, node_id, results) = (child.field("epoch")?, child.field("node_id")?, child.field("results")?);
    let descend = child.action("descend_to")?;
    let mut bytes = 0;
    let mut wire = Vec::new();
    let started = Instant::now();
    let mut building = std::time::Duration::ZERO;
    for batch in 0..ENTRIES / BATCH {
        let batch_started = Instant::now();
        let mut updates = Vec::with_capacity(BATCH as usize);
        for i in batch * BATCH..(batch + 1) * BATCH {
            let built = child
                .entry()
                .exact(epoch, 1 + i % 2)
                .exact(node_id, 1 + i / 16 % 4096)
                .exact(results, (2 << (i % 16)) - 1)
                .action(descend, &[0x0001_0000_0000_0400 + i * 1024, i % 4096])
                .build()?;
            updates.push(entry::insert(built));
        }
        building += batch_started.elapsed();
        wire.clear();
        let request = v1::WriteRequest { device_id: 1, updates, ..v1::WriteRequest::default() };
        request.encode(&mut wire)?;
        bytes += wire.len();
    }
    let elapsed = started.elapsed();
    #[allow(clippy::print_stdout, reason = "an example reports on the terminal")]
    {
        let rate = |time: std::time::Duration| ENTRIES as f64 / time.as_secs_f64() / 1e6;
        println!(
            "{ENTRIES} entries: built {:.2} M/s; built and encoded {:.2} M/s; {:.0} bytes an entry",
            rate(building),
            rate(elapsed),
            bytes as f64 / ENTRIES as f64
        );
    }
    Ok(())
}

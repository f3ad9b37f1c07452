//! How fast a controller fills a switch over gRPC on loopback.
//!
//! ```text
//! cargo run --release -p fatbtree-switch --example p4runtime_push -- PROGRAM.json PROGRAM.p4info.txtpb [ENTRIES]
//! ```
//!
//! Pushes ENTRIES (default 50000, at most 65536) entries into `node_set_a.coarse`, reads them back with their counters, verifies
//! every one, and deletes them. Client, server and switch share this process and its four threads. Beside the time on the
//! clock it reports the CPU time that all of them took together (Linux only), which other work on the machine does not
//! change much.

use std::time::Instant;

use fatbtree_p4runtime::entry::{delete, insert};
use fatbtree_p4runtime::{P4InfoIndex, P4RuntimeClient};
use fatbtree_switch::service::{Switch, mailbox, serve};

#[allow(clippy::print_stdout, reason = "an example reports on the terminal")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: p4runtime_push PROGRAM.json PROGRAM.p4info.txtpb [ENTRIES]";
    let program = std::fs::read(arguments.next().ok_or(usage)?)?;
    let info = P4InfoIndex::from_text(&std::fs::read_to_string(arguments.next().ok_or(usage)?)?)?;
    let count = arguments.next().map_or(Ok(50_000), |text| text.parse::<u64>())?;

    let (mailbox, mut inbox) = mailbox();
    let owner = std::thread::spawn(move || inbox.run(&mut Switch::new(1)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = tokio::spawn(serve(listener, mailbox, async move {
            let _ = stopped.await;
        }));
        let mut client = P4RuntimeClient::connect(&address.to_string(), 1).await?;
        client.become_primary(1).await?;
        let started = Mark::now();
        client.set_pipeline(info.p4info().clone(), program).await?;
        println!("pipeline set in {:.1?}", started.clock.elapsed());

        let coarse = info.table("node_set_a.coarse")?;
        let (epoch, address) = (coarse.field("epoch")?, coarse.field("address")?);
        let quarter_by_high = coarse.action("quarter_by_high")?;
        // The node at `i * 512`: its last keys, slot, first child, stride, and kind of its children.
        let params = |i: u64| [i, i + 1, i + 2, i, i << 13, 8, i & 1];
        let entry = |i: u64| coarse.entry().exact(epoch, 1).exact(address, i << 9);

        let started = Mark::now();
        let inserts =
            (0..count).map_while(|i| entry(i).action(quarter_by_high, &params(i)).build().ok()).map(insert);
        client.write(inserts).await?;
        started.report("inserted", count);

        let started = Mark::now();
        let found = client.read_table(coarse, true).await?;
        started.report("read", count);
        assert_eq!(found.len() as u64, count);
        for message in &found {
            let view = coarse.view(message)?;
            assert_eq!(view.exact(epoch)?, 1);
            let node = (view.exact(address)? >> 9) as u64;
            let (_, found) = view.action()?.ok_or("an entry without an action")?;
            assert_eq!(found, params(node).map(u128::from));
        }

        let started = Mark::now();
        client.write((0..count).map_while(|i| entry(i).build().ok()).map(delete)).await?;
        started.report("deleted", count);
        assert!(client.read_table(coarse, false).await?.is_empty());

        drop(client);
        let _ = stop.send(());
        server.await??;
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    drop(runtime);
    owner.join().map_err(|_| "the owner of the switch panicked")?;
    Ok(())
}

/// A point in time: on the clock, and in CPU time of this process.
struct Mark {
    clock: Instant,
    cpu: Option<f64>,
}

impl Mark {
    fn now() -> Self {
        Self { clock: Instant::now(), cpu: cpu_seconds() }
    }

    #[allow(clippy::print_stdout, reason = "an example reports on the terminal")]
    fn report(&self, what: &str, count: u64) {
        let elapsed = self.clock.elapsed();
        let rate = |seconds: f64| count as f64 / seconds;
        print!("{what} {count} entries in {elapsed:.1?}: {:.0} entries/s", rate(elapsed.as_secs_f64()));
        match (self.cpu, cpu_seconds()) {
            (Some(before), Some(after)) if after > before => {
                let spent = after - before;
                println!("; CPU time {spent:.2} s: {:.0} entries per CPU second", rate(spent));
            }
            _ => println!(),
        }
    }
}

/// User and system time of this process, from `/proc/self/stat` (fields 14 and 15, in ticks of 10 ms).
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks = after_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    Some(ticks.sum::<Result<u64, _>>().ok()? as f64 / 100.0)
}

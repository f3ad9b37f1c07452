//! A software switch without ports that serves P4Runtime: for trying out controllers.
//!
//! ```text
//! cargo run --release -p fatbtree-switch --example p4runtime_server -- [ADDRESS [DEVICE_ID]]
//! ```
//!
//! ADDRESS defaults to 127.0.0.1:9559, DEVICE_ID to 1. The switch has no program until a controller loads one.

use fatbtree_switch::service::{Switch, mailbox, serve};

#[allow(clippy::print_stdout, reason = "an example reports on the terminal")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:9559".to_owned());
    let device_id = arguments.next().map_or(Ok(1), |text| text.parse::<u64>())?;

    let (mailbox, mut inbox) = mailbox();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind(&address))?;
    println!("device {device_id} serves P4Runtime on {}", listener.local_addr()?);
    let server = runtime.spawn(serve(listener, mailbox, std::future::pending()));

    // This thread owns the switch. One with ports would look at them here and call `try_drain` in between.
    let mut switch = Switch::new(device_id);
    inbox.run(&mut switch);
    runtime.block_on(server)??;
    Ok(())
}

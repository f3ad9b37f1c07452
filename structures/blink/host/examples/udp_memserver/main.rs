//! A memory server as a process: the software NIC behind a UDP port that carries one Ethernet frame per datagram (as
//! `fatbtree switch` and QEMU's `-netdev dgram` do), and the gRPC service beside it. `scripts/interop_rxe.py` runs it.
//!
//! ```text
//!   udp_memserver --ip 10.0.0.2 --port 127.0.0.1:7000,127.0.0.1:6000 --keys 100000 --grpc 127.0.0.1:50051
//!
//!   ready grpc=127.0.0.1:50051 keys=100000 levels=5
//!   opened client=10.1.0.2 server=10.0.0.2 queue_pair=17 partition=0 root=64 mtu=1024 rkey=4711     a first-hop entry is wanted
//!   closed client=…                                                                         it is to be taken back
//!   root partition=0 root=…                                                                 the tree has another root
//! ```
//!
//! Key number i of n is i · ⌊(2⁶⁴ - 1) / n⌋; `fatbtree_blink::value` makes the values, of `--value-bytes` bytes, from key and
//! `--seed`. It ends on Ctrl-C, on SIGTERM or after `--seconds`.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

mod arguments;
mod data_path;

use std::process::ExitCode;
use std::time::Duration;

use fatbtree_blink_host::{LoadOptions, TreeEvent, TreeServer, bulk_load, seeded};
use fatbtree_memserver::{MemoryServer, ServerOptions, mailbox_with_waker};
use fatbtree_soft_nic::{Nic, NicConfig};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use arguments::Arguments;
use data_path::{DataPath, Waker};

/// Requests of the control plane that wait for the data path.
const MAILBOX: usize = 64;

fn main() -> ExitCode {
    let arguments = match Arguments::from_words(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("udp_memserver: {error}\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("udp_memserver: {error}");
            ExitCode::FAILURE
        }
    }
}

type Failure = Box<dyn std::error::Error>;

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut server = load(arguments)?;
    // The service has a thread of its own: requests do not keep the data path from its frames.
    let control = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let waker = Waker::default();
    let (handle, mailbox) = mailbox_with_waker(MAILBOX, {
        let waker = waker.clone();
        move || waker.wake()
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut data_path = {
        let _reactor_of_its_socket = runtime.enter();
        DataPath::open(arguments.local, arguments.remote, mailbox, waker)
            .map_err(|error| format!("--port: frames at {}: {error}", arguments.local))?
    };
    let listener = control
        .block_on(TcpListener::bind(arguments.grpc))
        .map_err(|error| format!("--grpc: listening on {}: {error}", arguments.grpc))?;
    let info = server.info();
    println!(
        "ready grpc={} keys={} levels={}",
        listener.local_addr()?,
        info.counts.keys,
        u32::from(info.partition.root_level) + 1
    );
    control.spawn(fatbtree_blink_host::grpc::serve(listener, handle, std::future::pending()));

    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            result = data_path.serve(&mut server, tell) => result,
            _ = tokio::signal::ctrl_c() => Ok(()),
            _ = terminated.recv() => Ok(()),
            () = after(arguments.seconds) => Ok(()),
        }
    })?;
    println!("stopped: {}", server.device().stats());
    Ok(())
}

/// A line for the program of a lab that fills the switches' tables: it must know the rkey.
fn tell(event: TreeEvent) {
    match event {
        TreeEvent::Opened(hop) | TreeEvent::Closed(hop) => println!("{event} rkey={}", hop.rkey),
        _ => println!("{event}"),
    }
}

fn load(arguments: &Arguments) -> Result<TreeServer<Nic>, Failure> {
    let step = u64::MAX / arguments.keys;
    let keys: Vec<u64> = (0..arguments.keys).map(|i| i * step).collect();
    let options = LoadOptions::new(fatbtree_blink::TreeConfig::default(), arguments.partition);
    let tree = bulk_load(&options, &keys, &mut seeded(arguments.seed, arguments.value_bytes))?;
    let [a, b, c, d] = arguments.ip.octets();
    // The address that hosts have by default; see the crate `topology`.
    let nic = Nic::new(NicConfig::new([2, 0, a, b, c, d], arguments.ip), rand::random())?;
    let server = MemoryServer::new(nic, tree, &ServerOptions::default(), rand::random())?;
    Ok(server.with_device_counters(|nic| nic.stats().counters()))
}

/// Waits for the end of the time that was given, if one was.
async fn after(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

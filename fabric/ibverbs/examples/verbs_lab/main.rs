//! Two machines with RDMA devices run the conformance suite of the verbs seam against each other, and one machine looks keys up
//! on a memory server. `scripts/interop_rxe.py` does both with soft RoCE in emulated machines; by hand it takes any devices
//! that reach each other:
//!
//! ```text
//!   verbs_lab devices                                names of the devices here, and what they can do
//!   verbs_lab responder DEVICE 0.0.0.0:18601         machine A: the side with the memory; says when it is ready
//!   verbs_lab conformance DEVICE 10.0.0.1:18601      machine B: the side that posts; a line per check
//!   verbs_lab lookup DEVICE http://10.0.0.1:50051    looks keys up, as it is told line by line: see `lookup/`
//! ```
//!
//! The first two roles talk over TCP, a line for each request and each answer: see `control.rs`.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

mod conformance;
mod control;
mod limits;
mod lookup;
mod responder;

use std::process::ExitCode;

use fatbtree_ibverbs::{Config, RdmaDevice};
use fatbtree_verbs::{BufferClass, Device as _};

/// What all roles ask of their devices: small pools, and patience for machines that are emulated on a busy host.
fn config() -> Config {
    let class = |count, bytes| BufferClass { count, bytes };
    Config {
        // Half a second, and four until a peer is given up.
        timeout: 17,
        // Few: what piles up in a queue for so many shows soon.
        queue_pairs: 32,
        buffers: vec![class(32, 64), class(64, 4096), class(4, 1 << 16)],
        ..Config::default()
    }
}

fn devices() -> Result<(), String> {
    let names = RdmaDevice::names().map_err(|error| error.to_string())?;
    if names.is_empty() {
        return Err("no RDMA device here; load its driver, or make one of soft RoCE: rdma link add rxe0 type rxe netdev eth0".to_owned());
    }
    for name in names {
        match RdmaDevice::open(&name, &config()) {
            Ok(device) => println!("{name}: {:?}", device.capabilities()),
            Err(error) => println!("{name}: {error}"),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["devices"] => devices(),
        ["responder", device, address] => responder::serve(device, address),
        ["conformance", device, address] => conformance::run(device, address),
        ["lookup", device, url] => lookup::run(device, url),
        _ => {
            eprintln!(
                "usage: verbs_lab devices | verbs_lab responder DEVICE ADDRESS:PORT | verbs_lab conformance DEVICE ADDRESS:PORT | \
                 verbs_lab lookup DEVICE URL"
            );
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("verbs_lab: {error}");
            ExitCode::FAILURE
        }
    }
}

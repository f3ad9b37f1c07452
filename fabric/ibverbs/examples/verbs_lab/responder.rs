//! The side with the memory.

use std::net::TcpListener;

use fatbtree_ibverbs::RdmaDevice;
use fatbtree_verbs::conformance::LocalResponder;

use crate::control::{self, Lines};

/// Serves connections, one after the other, until it is ended from outside. Each has a device of its own: what one leaves
/// after is gone when the next one comes.
pub(crate) fn serve(device: &str, address: &str) -> Result<(), String> {
    let listener = TcpListener::bind(address).map_err(|error| format!("listening on {address}: {error}"))?;
    // A device that cannot be opened is an error now, not at the first connection.
    drop(open(device)?);
    println!("responder ready");
    loop {
        let (stream, from) = listener.accept().map_err(|error| format!("accepting: {error}"))?;
        if let Err(error) = Lines::new(stream).and_then(|lines| converse(device, lines)) {
            println!("{from}: {error}");
        }
    }
}

fn open(device: &str) -> Result<RdmaDevice, String> {
    RdmaDevice::open(device, &crate::config()).map_err(|error| error.to_string())
}

fn converse(device: &str, mut lines: Lines) -> Result<(), String> {
    let mut responder = LocalResponder::new(open(device)?);
    while let Some(request) = lines.receive()? {
        let answer = control::answer(&mut responder, &request);
        lines.send(&answer)?;
    }
    Ok(())
}

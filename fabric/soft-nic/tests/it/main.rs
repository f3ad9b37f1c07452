//! Tests of the software NIC through its public interface. One binary: each more would link the whole crate again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test says by failing what is wrong"
)]

mod any_frame;
mod bounds;
mod common;
mod conformance;
mod connector;
mod errors;
mod hostile_peer;
mod kernel_capture;
mod local;
mod loss;
mod lossy_link;
mod messages;
mod reactor;
mod retransmission;

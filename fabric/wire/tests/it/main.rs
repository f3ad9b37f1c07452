//! Tests of the formats on the wire. One binary: each more would link the whole crate again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test says by failing what is wrong"
)]

mod cm;
mod in_flight;
mod properties;
mod query;
mod udp_frame;
mod vectors;

//! Tests on simulated clusters. One binary: each more would link the whole crate again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test says by failing what is wrong"
)]

mod agreement;
mod common;
mod damage;
mod damaged_folder;
mod failover;
mod follow;
mod full_wires;
mod living;
mod queries;
mod rivals;
mod seeds;
mod threads;

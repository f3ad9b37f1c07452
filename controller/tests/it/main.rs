//! Tests of the controller through its public interface. One binary: each more would link the whole crate again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test says by failing what is wrong"
)]

mod common;
mod connections;
mod fat_root_room;
mod grown;
mod lowering;
mod primary;
mod push;
mod tables;

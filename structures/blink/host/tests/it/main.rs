//! Tests of the memory server through its public interface. One binary: each more would link the whole crate again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test says by failing what is wrong"
)]

mod bulk_load;
mod chunks;
mod commits;
mod common;
mod connections;
mod folder;
mod free_blocks;
mod hostile_peers;
mod index_reads;
mod living_tree;
mod loading;
mod locate;
mod lost_tree;
mod model;
mod owners;
mod refill;
mod room;
mod separators;
mod server;
mod service;
mod session_keeper;
mod sessions;
mod sweep;
mod torn;

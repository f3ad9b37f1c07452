//! Tests of what a memory server does for a tree, through its public interface. One binary: each more would link the whole crate again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test says by failing what is wrong"
)]

mod bulk_load;
mod byte_keys;
mod commits;
mod common;
mod folder;
mod hostile_peers;
mod index_reads;
mod living_tree;
mod loading;
mod locate;
mod lost_tree;
mod refill;
mod separators;
mod service;
mod superblock;
mod sweep;
mod torn;

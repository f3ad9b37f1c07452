//! Tests of the memory server through its public interface, over the smallest tenant that has what they need: [`common::blocks`].
//! One binary: each more would link the whole crate again.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by failing what is wrong")]

mod chunks;
mod common;
mod connections;
mod folder;
mod free_blocks;
mod full_disk;
mod hostile_peers;
mod loader;
mod model;
mod owners;
mod room;
mod server;
mod service;
mod session_keeper;
mod sessions;
mod sweep;

//! The library as programs use it, over a memory server in this process.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

mod cache;
mod cancel;
mod common;
mod counters;
mod failures;
mod hash;
mod names;
mod operations;
mod seats;
mod transactions;
mod ways;

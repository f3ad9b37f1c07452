//! Tests of the B-link tree through its public interface. One binary: each more would link the whole crate again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test says by failing what is wrong"
)]

mod buckets;
mod cache;
mod cached_operations;
mod common;
mod damage;
mod descent;
mod hot_keys;
mod layers;
mod merges;
mod nodes;
mod pool;
mod published_failures;
mod record_places;
mod scan;
mod session_identity;
mod speculation;
mod top;
mod values_by_length;
mod verify;
mod write;

//! Helpers of several test files: the tenant, and a lab with a device that is watched.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod blocks;
pub mod device;
pub mod lab;

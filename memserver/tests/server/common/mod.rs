//! Helpers of several test files: the tenant, a lab with a device that is watched, and the service with a data path in a thread.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod blocks;
pub mod device;
pub mod lab;
pub mod served;
pub mod service;

//! Under construction.
pub mod measure;
pub mod workload;

//! Network faults: they are judged where frames are made and read, and used here.

pub use fatbtree_nic::faults::{FaultRates, Faults, Verdict};

//! Workloads of transactions: [SmallBank](smallbank) and [TATP](tatp), with the mixes of SMART's evaluation.
//!
//! They draw from numbers that the caller gives: `draw(n)` is a number below `n`, each as likely as another.

pub mod smallbank;
pub mod tatp;

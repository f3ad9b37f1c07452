//! Workloads of transactions: [SmallBank](smallbank) and [TATP](tatp), with the mixes of SMART's evaluation.
//!
//! They draw from numbers that the caller gives: `draw(n)` is a number below `n`, each as likely as another.

/// What becomes of items that a transaction has fetched, by their places among its wants: a value, or `None` where one is taken away.
pub type Writes = Vec<(usize, Option<Vec<u8>>)>;

pub mod smallbank;
pub mod tatp;

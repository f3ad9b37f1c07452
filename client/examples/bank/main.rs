//! A bank on tables of transactions: moves money between two accounts of a running cluster, or nothing. The program stands alone in
//! `program.rs`, as the page shows it.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

include!("program.rs");

//! Puts, reads, swaps, scans and deletes a key of a running cluster. The program stands alone in `program.rs`, as pages show it.

include!("program.rs");

//! The binary under test.

use std::process::{Command, Output};

/// `fatbtree`, as built with this test.
pub(crate) fn fatbtree() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fatbtree"))
}

/// Runs it to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    fatbtree().args(arguments).output().expect("the binary was built with this test")
}

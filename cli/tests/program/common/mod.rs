//! The binary under test.

pub(crate) mod chaos_folders;
pub(crate) mod http;
pub(crate) mod processes;
pub(crate) mod repository;
pub(crate) mod spread;

use std::process::{Command, Output};

/// `fatbtree`, as built with this test.
pub(crate) fn fatbtree() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fatbtree"))
}

/// Runs it to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    fatbtree().args(arguments).output().expect("the binary was built with this test")
}

/// A command that is refused, for a reason that stands in what it prints.
pub(crate) fn refused(arguments: &[&str], reason: &str) {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains(reason), "{arguments:?}: {text}");
}

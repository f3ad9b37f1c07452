//! Output to a pipe whose reader has closed it.

use std::process::{Command, Stdio};

#[test]
fn whoever_reads_may_stop() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fatbtree"))
        .args(["topology", "show"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it is built");
    // As `head -0` does.
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

//! `fatbtree up` without a cluster file: the example, in a network of its own because its ports are fixed.

mod common;
#[path = "common/processes.rs"]
mod processes;

use std::path::Path;
use std::process::Command;

use common::{fatbtree, run};
use processes::Role;

/// A command in a new network namespace with a loopback interface.
fn isolated(arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]);
    command.arg(fatbtree().get_program()).args(arguments);
    command
}

#[test]
fn up_without_a_file_starts_the_example() {
    if !isolated(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no network namespace here");
        return;
    }
    let up = Role::of(isolated(&["up", "--example", "single"]));
    let line = up.until("cluster file ");
    let file = line.strip_prefix("cluster file ").expect("the path follows");
    up.until("ready");
    let example = run(&["topology", "example", "single"]).stdout;
    assert_eq!(std::fs::read(file).expect("the file is there"), example);
    let inside = |arguments: &[&str]| {
        let mut command = Command::new("nsenter");
        command.args(["-t", &up.id().to_string(), "-U", "-n", "--preserve-credentials"]);
        command.arg(fatbtree().get_program()).args(arguments).args(["--cluster", file]);
        let output = command.output().expect("nsenter is of the same package");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    inside(&["put", "7", "seven"]);
    assert_eq!(inside(&["get", "7"]), "seven\n");
    assert!(up.stop("INT").success());
    assert!(!Path::new(file).exists(), "the file is there as long as the cluster");
}

#[test]
fn an_example_is_named_instead_of_a_file() {
    let output = run(&["up", "cluster.toml", "--example", "pair"]);
    assert_eq!(output.status.code(), Some(2));
    let output = run(&["up", "--example", "ring"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("leaf-spine"));
}

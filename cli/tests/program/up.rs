//! `fatbtree up` with an example, in a network of its own because its ports are fixed.

use std::path::Path;
use std::process::Command;

use crate::common::processes::Role;
use crate::common::{fatbtree, run};

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
    let line = up.until("controller ");
    // Such as 2026-01-02T03:04:05.678901Z, as in the log.
    let time = line.split(' ').next().expect("a word");
    let is_time = time.len() == 27 && time.as_bytes()[10] == b'T' && time.ends_with('Z');
    assert!(is_time && time[..4].parse().is_ok_and(|year: u16| year > 2024), "{line}");
    assert!(up.until("ready") == "ready", "alone, for scripts");
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
    assert_eq!(inside(&["get", "7"]), "seven");
    assert!(up.stop("INT").success());
    assert!(!Path::new(file).exists(), "the file is there as long as the cluster");
}

/// The cluster file of `--example` stays where it was told to be, and starts the same cluster again.
#[test]
fn an_example_with_a_file_leaves_the_file_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("cluster.toml");
    let path = file.to_str().expect("a plain path");
    if isolated(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        for _ in 0..2 {
            let up = Role::of(isolated(&["up", path, "--example", "single"]));
            up.until("ready");
            assert!(up.stop("INT").success());
            let example = run(&["topology", "example", "single"]).stdout;
            assert_eq!(std::fs::read(&file).expect("the file stays"), example);
        }
    } else {
        eprintln!("SKIPPED: no network namespace here");
    }
    std::fs::write(&file, "# of my own\n").expect("it is written");
    let output = run(&["up", path, "--example", "single"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("leave --example away"), "{said}");
    assert_eq!(std::fs::read(&file).expect("the file stays"), b"# of my own\n");
}

#[test]
fn a_kind_of_example_that_does_not_exist_is_refused_with_those_that_do() {
    let output = run(&["up", "--example", "ring"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("leaf-spine"));
}

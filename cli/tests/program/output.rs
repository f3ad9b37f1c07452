//! Standard output that is full, and pipes that their readers have closed: every command ends its work, and says what became of its output.

use std::fs::File;
use std::process::{Output, Stdio};

use crate::common::processes::{Role, cluster_file_like};
use crate::common::{fatbtree, run};

/// Exit code of a command whose output could not be written.
const NOT_PRINTED: i32 = 5;

/// Runs a command whose standard output is a device that is full.
fn full(arguments: &[&str]) -> Output {
    let device = File::options().write(true).open("/dev/full").expect("Linux has it");
    let child = fatbtree().args(arguments).stdin(Stdio::null()).stdout(device).stderr(Stdio::piped()).spawn();
    child.expect("it starts").wait_with_output().expect("it ends")
}

/// Runs a command whose reader has closed the pipe, as `head -0` does.
fn closed(arguments: &[&str]) -> Output {
    let mut command = fatbtree();
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    drop(child.stdout.take());
    child.wait_with_output().expect("it ends")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A full output is told with a code of its own, a closed pipe is no error.
fn is_told(arguments: &[&str]) {
    let output = full(arguments);
    let text = said(&output);
    let told = text.contains("error: the output could not be written: No space left on device");
    assert!(output.status.code() == Some(NOT_PRINTED) && told, "{arguments:?}: {output:?}");
    let output = closed(arguments);
    assert!(output.status.success() && said(&output).is_empty(), "{arguments:?}: {output:?}");
}

#[test]
fn commands_without_a_cluster_say_that_their_output_is_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (trace, pages, picture) = (path("made.trace"), path("pages"), path("network.svg"));
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["bench", "--help"],
        &["topology", "show"],
        &["topology", "show", "--svg", &picture],
        &["topology", "example"],
        &["completions", "bash"],
        &["man", &pages],
        &["trace", "make", "--operations", "100", "--keys", "10", "--out", &trace],
        &["trace", "show", &trace],
        &["trace", "show", &trace, "--json"],
        &["simulate", "reads", "--seed", "1"],
    ] {
        is_told(arguments);
    }
}

#[test]
fn errors_without_a_reader_keep_their_exit_codes() {
    for (arguments, code) in [(&["get", "seven"][..], 2), (&["plan", "show", "no-such-file"], 1)] {
        let device = File::options().write(true).open("/dev/full").expect("Linux has it");
        let status = fatbtree().args(arguments).stderr(device).status().expect("it starts");
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
    // The command has failed: that goes before.
    let output = full(&["plan", "show", "no-such-file"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn the_shell_stops_when_answers_cannot_be_written() {
    let lines = "put 1 one\n".repeat(1000);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("lines");
    std::fs::write(&path, lines).expect("a file");
    let input = || Stdio::from(File::open(&path).expect("it is there"));
    let device = File::options().write(true).open("/dev/full").expect("Linux has it");
    let output = fatbtree().arg("shell").stdin(input()).stdout(device).output().expect("it starts");
    let told = "an answer could not be written: later lines were not carried out";
    assert!(output.status.code() == Some(1) && said(&output).contains(told), "{output:?}");
    let mut child = fatbtree().arg("shell").stdin(input()).stdout(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn commands_on_a_cluster_end_their_work_and_say_that_their_output_is_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let plan = path("plan.json");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    let at = |words: &[&str], check: &dyn Fn(&[&str])| check(&[words, &["--cluster", cluster]].concat());
    let told = |words: &[&str]| at(words, &is_told);
    told(&["load", "--keys", "1000", "--replace"]);
    told(&["load", "--keys", "1000", "--replace", "--json", "-"]);
    told(&["put", "7", "seven", "--json"]);
    // The change was done.
    assert_eq!(run(&["get", "7", "--cluster", cluster]).stdout, b"seven");
    told(&["get", "7"]);
    told(&["get", "7", "--quote"]);
    told(&["get", "7", "--json"]);
    told(&["scan", ".."]);
    told(&["scan", "..", "--json"]);
    told(&["scan", "..", "--csv"]);
    // What is not there keeps its code.
    at(&["get", "8", "--json"], &|words| assert_eq!(full(words).status.code(), Some(1)));
    for further in [&[][..], &["--json", "-"], &["--progress", "-"]] {
        told(&[&["bench", "--operations", "300"], further].concat());
    }
    // One of many that are merged: a file of results is written, whatever becomes of the output.
    let (one, other) = (path("one.json"), path("other.json"));
    for out in [&one, &other] {
        told(&["bench", "--operations", "300", "--out", out]);
    }
    is_told(&["merge", &one, &other]);
    told(&["control", "wait-ready"]);
    told(&["control", "reload"]);
    for command in ["status", "plan", "reload", "show", "counters", "drops", "sync", "diff"] {
        for further in [&[][..], &["--json"]] {
            told(&[&["control", command], further].concat());
        }
    }
    told(&["control", "rollback"]);
    told(&["control", "plan", "--save", &plan]);
    told(&["control", "explain", "7"]);
    is_told(&["plan", "show", &plan]);
    assert!(up.stop("INT").success());
}

#[test]
fn roles_go_on_without_a_reader_of_their_lines() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let device = File::options().write(true).open("/dev/full").expect("Linux has it");
    let up = fatbtree().args(["up", cluster]).stdout(device).stderr(Stdio::piped()).spawn();
    let up = up.expect("it starts");
    let began = std::time::Instant::now();
    while !run(&["put", "7", "seven", "--cluster", cluster]).status.success() {
        assert!(began.elapsed().as_secs() < 60, "the cluster does not work");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(run(&["get", "7", "--cluster", cluster]).stdout, b"seven");
    assert!(crate::common::processes::kill("INT", up.id()));
    let output = up.wait_with_output().expect("it ends");
    let told = said(&output).contains("this role goes on without its lines");
    assert!(output.status.success() && told, "{output:?}");
}

//! Clients beside others on a host: commands beside a program, clients that died, and seats that are taken.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::processes::{Role, cluster_file_like, kill, process};
use crate::common::{fatbtree, run};

const KINDS: [&str; 4] = ["single", "pair", "leaf-spine", "fat-tree"];

fn example(folder: &Path, kind: &str) -> String {
    let file = cluster_file_like(folder, &["topology", "example", kind]);
    file.to_str().expect("a plain path").to_owned()
}

/// Starts a get, whose output is kept.
fn get(cluster: &str, key: &str) -> Child {
    let mut command = fatbtree();
    command.args(["get", key, "--cluster", cluster]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

#[test]
fn commands_run_beside_a_program_and_each_other_with_every_example_file() {
    for kind in KINDS {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cluster = example(folder.path(), kind);
        let up = Role::start(&["up", &cluster, "--keys", "1000"]);
        up.until("ready");
        assert!(run(&["put", "7", "seven", "--cluster", &cluster]).status.success());
        // It has a seat for as long as this lasts.
        let program = Role::start(&[
            "bench",
            "--cluster",
            &cluster,
            "--operations",
            "100000000",
            "--at-once",
            "--progress",
            "-",
        ]);
        program.until("\"operations\"");
        for child in (0..5).map(|_| get(&cluster, "7")).collect::<Vec<_>>() {
            let output = child.wait_with_output().expect("it ends");
            assert_eq!(output.stdout, b"seven", "{kind}: {output:?}");
        }
        program.stop("INT");
        assert!(up.stop("INT").success());
    }
}

#[test]
fn clients_that_died_do_not_lock_out_the_living() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cluster = example(folder.path(), "single");
    // One seat, as a host has without a range: the dead and the living share it.
    let text = std::fs::read_to_string(&cluster).expect("the file");
    let (text, _) = text.split_once("[[host]]").expect("the example has a host with seats");
    std::fs::write(&cluster, text).expect("it is written");
    let up = Role::start(&["up", &cluster, "--keys", "1000"]);
    up.until("ready");
    for _ in 0..6 {
        let words =
            ["bench", "--cluster", &cluster, "--operations", "100000000", "--at-once", "--progress", "-"];
        let client = Role::start(&[&words[..], &["--patience", "30"]].concat());
        client.until("\"operations\"");
        client.stop("KILL");
    }
    let output = run(&["put", "7", "seven", "--cluster", &cluster, "--patience", "30"]);
    assert!(output.status.success(), "{output:?}");
    assert!(up.stop("INT").success());
}

#[test]
fn a_seat_is_waited_for_and_the_message_names_ranges() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cluster = example(folder.path(), "single");
    let text = std::fs::read_to_string(&cluster).expect("the file");
    let (text, _) = text.split_once("[[host]]").expect("the example has a host with seats");
    std::fs::write(&cluster, text).expect("it is written");
    let up = Role::start(&["up", &cluster, "--keys", "1000"]);
    up.until("ready");
    let words = ["bench", "--cluster", &cluster, "--operations", "100000000", "--at-once", "--progress", "-"];
    let program = Role::start(&words);
    program.until("\"operations\"");
    let (began, output) = (Instant::now(), run(&["get", "7", "--cluster", &cluster, "--patience", "1"]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let named =
        ["the only UDP port of host-0-2, 127.0.0.1:", "range of ports", "wire = \"udp:ADDRESS:FIRST-LAST\""];
    assert!(output.status.code() == Some(3) && named.iter().all(|words| said.contains(words)), "{said}");
    assert!(began.elapsed() >= Duration::from_secs(1), "it has waited");
    // The seat is free soon, and the command that waits for it goes on.
    let mut waits = fatbtree();
    waits.args(["put", "7", "seven", "--cluster", &cluster, "--patience", "60"]);
    let mut waits = waits.spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(300));
    program.stop("INT");
    assert!(waits.wait().expect("it ends").success());
    assert!(up.stop("INT").success());
}

/// It was twice the patience, and a second.
#[test]
fn patience_is_how_long_a_command_takes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cluster = example(folder.path(), "single");
    let up = Role::start(&["up", &cluster, "--keys", "1000"]);
    let left = process(&up.until("left "));
    up.until("ready");
    assert!(kill("STOP", left));
    for further in [&[][..], &["--root-to-leaf"]] {
        let began = Instant::now();
        let output = match further {
            [] => run(&["get", "7", "--cluster", &cluster, "--patience", "4"]),
            _ => run(&[&["bench", "--cluster", &cluster, "--operations", "1", "--patience", "4"], further]
                .concat()),
        };
        let took = began.elapsed();
        assert!(!output.status.success(), "{output:?}");
        // Twice as long would be 8 s; a busy machine takes its time as well.
        assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(7), "{took:?}: {output:?}");
    }
    assert!(kill("CONT", left));
    assert!(up.stop("INT").success());
}

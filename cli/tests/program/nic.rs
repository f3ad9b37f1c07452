//! `--nic`: what cannot be opened is told, before anything else is done.

use std::path::Path;

use crate::common::processes::{Role, cluster_file};
use crate::common::run;

/// Exit status and output of a memory server and of a client with this device; no other role runs.
fn with(file: &Path, nic: &str) -> [(Option<i32>, String); 2] {
    let file = file.to_str().expect("UTF-8");
    let server = ["memserver", "left", "--cluster", file, "--nic", nic];
    let client = ["bench", "--cluster", file, "--operations", "1", "--nic", nic];
    [&server[..], &client[..]].map(|arguments| {
        let output = run(arguments);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    })
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = cluster_file(folder.path());
    for (code, said) in with(&file, "ibverbs:nobody_has_this0") {
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("nobody_has_this0"), "{said}");
        // Either how this program is built with it, or which devices there are.
        let advice = match cfg!(feature = "ibverbs") {
            true => "found ",
            false => "cargo build --release -p fatbtree-cli --features ibverbs",
        };
        assert!(said.contains(advice), "{said}");
    }
}

#[test]
fn a_kind_of_nic_that_is_not_known_is_refused_with_those_that_are() {
    for (code, said) in with(Path::new("cluster.toml"), "mlx5_0") {
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("expected software, or an RDMA device such as ibverbs:mlx5_0"), "{said}");
    }
}

/// A tree on a device that tears lines has checksums; all memory servers keep theirs alike.
#[test]
fn trees_of_different_shapes_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("UTF-8");
    let checksums = Role::start(&["memserver", "left", "--cluster", cluster, "--checksums"]);
    let versions = Role::start(&["memserver", "right", "--cluster", cluster]);
    for server in [&checksums, &versions] {
        server.until("gRPC on");
    }
    let output = run(&["bench", "--cluster", cluster, "--operations", "1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("all with --checksums"), "{said}");
    assert!(versions.stop("TERM").success());
    let alike = Role::start(&["memserver", "right", "--cluster", cluster, "--checksums"]);
    alike.until("gRPC on");
    // They fit now: no key is there.
    let output = run(&["bench", "--cluster", cluster, "--operations", "1"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("hold no keys that were loaded"), "{output:?}");
}

/// RDMA devices have cables of their own.
#[test]
fn only_a_software_nic_needs_a_wire() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = cluster_file(folder.path());
    let text = std::fs::read_to_string(&file).expect("the file");
    let (before, wires) = text.split_once("[wires]").expect("the example has wires");
    let (_, behind) = wires.split_once("\n[").expect("another section");
    let text = format!("{before}[{behind}");
    // The host's own wire goes, too.
    let (before, host) = text.split_once("[[host]]").expect("the example has a host with seats");
    let (_, behind) = host.split_once("\nwire = ").expect("its seats");
    let (_, behind) = behind.split_once('\n').expect("a line");
    std::fs::write(&file, format!("{before}{behind}")).expect("it is written");
    for (code, said) in with(&file, "software") {
        assert!(code == Some(1) && said.contains("does not say where wires are"), "{said}");
    }
    for (code, said) in with(&file, "ibverbs:nobody_has_this0") {
        assert!(code == Some(1) && said.contains("nobody_has_this0"), "{said}");
    }
}

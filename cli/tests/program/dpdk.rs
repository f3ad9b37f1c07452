//! Ports on DPDK devices: all roles as processes, with rings in shared memory (net_memif) in the place of cables. No hardware, no huge pages,
//! no rights.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::fatbtree;
use crate::common::processes::cluster_file_like;

/// A switch with two memory servers and a client, whose cables are pairs of net_memif devices.
fn cluster(folder: &Path) -> PathBuf {
    let file = cluster_file_like(folder, &["topology", "example", "single"]);
    let text = std::fs::read_to_string(&file).expect("the file");
    // The example describes the client's host: its seats are UDP ports.
    let paragraphs: Vec<&str> = text.split("\n\n").filter(|part| !part.contains("[[host]]")).collect();
    let text = paragraphs.join("\n\n");
    let socket = folder.join("memif");
    let device =
        |n, role, port| format!("\"dpdk:net_memif{n},role={role},id={port},socket={}\"", socket.display());
    let own: Vec<String> = (0..4).map(|port| device(port, "server", port)).collect();
    let mut wires = format!("[[switch]]\nname = \"switch-0\"\nwires = [{}]\n", own.join(", "));
    for host in 0..4 {
        let wire = device(0, "client", host);
        wires.push_str(&format!("[[host]]\nname = \"host-0-{host}\"\nwire = {wire}\n"));
    }
    std::fs::write(&file, format!("{text}\n{wires}")).expect("it is written");
    file
}

fn command(arguments: &[&str]) -> Command {
    let mut command = fatbtree();
    command.args(arguments).env("FATBTREE_EAL", "--no-huge -m 256");
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("it starts")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
#[cfg(not(feature = "dpdk"))]
fn a_program_without_dpdk_says_how_to_get_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = cluster(folder.path());
    let cluster = file.to_str().expect("UTF-8");
    for role in [&["switch", "switch-0"][..], &["memserver", "left"], &["bench", "--operations", "1"]] {
        let output = run(&[role, &["--cluster", cluster]].concat());
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("cargo build --release -p fatbtree-cli --features dpdk"), "{said}");
    }
}

#[cfg(feature = "dpdk")]
mod with {
    use super::*;
    use crate::common::processes::{Role, kill, process};

    fn bench(cluster: &str, further: &[&str]) -> serde_json::Value {
        let words = ["bench", "--cluster", cluster, "--json", "-", "--operations", "3000"];
        let output = run(&[&words[..], further].concat());
        assert!(output.status.success(), "{}", said(&output));
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
        result
    }

    #[test]
    fn lookups_go_through_nics_and_a_switch_on_dpdk_ports() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = cluster(folder.path());
        let cluster = file.to_str().expect("UTF-8");
        let up = Role::of(command(&["up", cluster, "--switch-threads", "2", "--keys", "2000"]));
        let switch = process(&up.until("switch-0 "));
        up.until("ready");
        for workload in ["c", "a"] {
            bench(cluster, &["--workload", workload]);
        }
        // The switch is killed, comes again, and its peers find it.
        assert!(kill("KILL", switch));
        up.until("ended");
        up.until("ready");
        bench(cluster, &[]);
    }

    #[test]
    fn queries_go_from_host_to_host_and_beside_rdma() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = cluster(folder.path());
        // One server, and its wire ends at the client's host: no switch runs.
        let text = std::fs::read_to_string(&file).expect("the file");
        let kept = |text: &str, name: &str| {
            let (before, after) =
                text.split_once(&format!("[[memory_server]]\nname = \"{name}\"")).expect("it");
            format!("{before}{}", after.split_once("\n\n").expect("more follows").1)
        };
        let text = kept(&text, "right");
        let (network, _) = text.split_once("[[switch]]\nname").expect("its wires");
        let socket = folder.path().join("memif");
        let host = |host, role| {
            let wire = format!("dpdk:net_memif0,role={role},id=7,socket={}", socket.display());
            format!("[[host]]\nname = \"{host}\"\nwire = \"{wire}\"\n")
        };
        let wires = host("host-0-0", "server") + &host("host-0-2", "client");
        std::fs::write(&file, format!("{network}{wires}")).expect("it is written");
        let cluster = file.to_str().expect("UTF-8");
        let server = ["memserver", "left", "--cluster", cluster, "--serve", "queries", "--keys", "2000"];
        let server = Role::of(command(&server));
        server.until("queries");
        for (protocol, workload) in [("query", "a"), ("roce", "a"), ("query", "e")] {
            bench(cluster, &["--protocol", protocol, "--workload", workload, "--root-to-leaf"]);
        }
    }

    #[test]
    fn what_dpdk_does_not_do_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = cluster(folder.path());
        let cluster = file.to_str().expect("UTF-8");
        let arguments = ["memserver", "left", "--cluster", cluster];
        let output = command(&arguments).env("FATBTREE_EAL", "--no-such-option").output().expect("it starts");
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains("FATBTREE_EAL=\"--no-such-option\""), "{}", said(&output));
        let output = run(&["switch", "--grpc", "127.0.0.1:0", "--port", "0=dpdk:net_nothing0"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains("no DPDK device \"net_nothing0\""), "{}", said(&output));
    }
}

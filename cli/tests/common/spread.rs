//! Clusters of structures over all memory servers.

#![allow(dead_code, reason = "each file of tests uses some of it")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fatbtree_node::{ClientOptions, NicSpec, Spread, SpreadProcess, host_port};
use fatbtree_topology::Cluster;

use crate::common::{fatbtree, run};
use crate::processes::cluster_file;

/// A cluster file with a structure.
pub(crate) fn structure_file(folder: &Path, structure: &str) -> PathBuf {
    let file = cluster_file(folder);
    let text = std::fs::read_to_string(&file).expect("it was written");
    std::fs::write(&file, format!("structure = \"{structure}\"\n\n{text}")).expect("it is written");
    file
}

/// A client in this process, at the wire that the file has for it.
pub(crate) fn client<S: Spread>(file: &Path) -> SpreadProcess<S> {
    let text = std::fs::read_to_string(file).expect("the file");
    let cluster = Cluster::from_toml(&text).expect("it was checked");
    let host = cluster.clients()[0].host;
    let options = ClientOptions {
        host: cluster.tree().host(host).clone(),
        nic: NicSpec::Software(host_port(&cluster, host).expect("it has a wire")),
        servers: cluster.servers().to_vec(),
        controllers: Vec::new(),
        trust: fatbtree_trust::Trust::default(),
        metrics: None,
        lanes: 1,
        patience: Duration::from_secs(30),
        contention: fatbtree_blink::Contention::default(),
    };
    SpreadProcess::open(&options).expect("the servers run")
}

pub(crate) fn refused(arguments: &[&str], reason: &str) {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains(reason), "{arguments:?}: {text}");
}

pub(crate) fn load(cluster: &str, further: &[&str]) -> serde_json::Value {
    let output = run(&[&["load", "--cluster", cluster, "--json", "-"], further].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// What the shell answers, and whether all lines were carried out.
pub(crate) fn shell(further: &[&str], lines: &str) -> (String, bool) {
    let mut command = fatbtree();
    command.arg("shell").args(further).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    (String::from_utf8(output.stdout).expect("text"), output.status.success())
}

/// Exit code and answer of a single operation, through the client library.
pub(crate) fn single(cluster: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(&[arguments, &["--cluster", cluster]].concat());
    (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

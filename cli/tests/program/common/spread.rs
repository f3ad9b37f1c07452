//! Clusters of structures over all memory servers.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fatbtree_memserver::grpc::Describe;
use fatbtree_processes::{Adapter, SpreadProcess};
use fatbtree_remote_memory::Spread;
use fatbtree_topology::Cluster;

use crate::common::http::get;
use crate::common::processes::{Role, bench, client_options, cluster_file, kill, process};
use crate::common::{fatbtree, refused, run};

/// A cluster file with a structure.
pub(crate) fn structure_file(folder: &Path, structure: &str) -> PathBuf {
    let file = cluster_file(folder);
    let text = std::fs::read_to_string(&file).expect("it was written");
    std::fs::write(&file, format!("structure = \"{structure}\"\n\n{text}")).expect("it is written");
    file
}

/// A client in this process, at the wire that the file has for it.
pub(crate) fn client<S: Spread<Verbs = Adapter, Info: Describe>>(file: &Path) -> SpreadProcess<S> {
    SpreadProcess::open(&client_options(file, None)).expect("the servers run")
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

/// Round trips of an operation of this workload, of which none fails.
pub(crate) fn round_trips(cluster: &str, workload: &str) -> f64 {
    let result = bench(cluster, &["--workload", workload]);
    assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
    result["round_trips"].as_f64().expect("a number")
}

/// Kills a client so long after its first changes.
pub(crate) fn kill_a_writer(cluster: &str, after: Duration) {
    let mut command = fatbtree();
    command.args(["bench", "--cluster", cluster, "--workload", "a"]);
    command.args(["--operations", "10000000", "--progress", "-", "--json", "/dev/null"]);
    let writer = Role::of(command);
    writer.until("\"operations\":");
    std::thread::sleep(after);
    assert!(kill("KILL", writer.id()));
    assert!(!writer.end().success());
}

/// The controller knows that there is nothing to plan.
pub(crate) fn nothing_to_plan(cluster: &str, structure: &str) {
    let status = run(&["control", "status", "--cluster", cluster]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    let left = format!("left holds a structure of kind \"{structure}\": it takes no part in plans");
    assert!(status.contains(&left), "{status}");
    refused(
        &["control", "reload", "--cluster", cluster],
        "there is nothing to plan: memory server left holds",
    );
}

/// Two records of a file take the place of all that is there.
pub(crate) fn replaced_by_csv(cluster: &str, folder: &Path) {
    let csv = folder.join("people.csv");
    std::fs::write(&csv, "key,value\n1,one\n2,two\n").expect("written");
    let result = load(cluster, &["--keys", csv.to_str().expect("plain"), "--replace"]);
    assert_eq!(result["keys"], 2, "{result}");
    let (answers, all) = shell(&["--cluster", cluster], "get 1\nget 2\nget 3\n");
    assert!(all && answers == "one\ntwo\nnot there\n", "{answers}");
}

/// A tree is not served from the folder of this structure.
pub(crate) fn no_folder_of_a_tree(cluster: &str, data: &str, structure: &str) {
    let left = Path::new(data).join("left");
    let left = left.to_str().expect("a plain path");
    refused(
        &["memserver", "left", "--cluster", cluster, "--structure", "tree", "--data", left],
        &format!("holds a structure of kind \"{structure}\", not \"tree\""),
    );
}

/// Without folders a server comes back empty. The other one's part leads to what is lost: no client is served until both begin anew.
pub(crate) fn lost_part_is_noticed(structure: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), structure);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    let server = process(&up.until("right "));
    up.until("ready");
    load(cluster, &["--keys", "2000"]);
    assert!(kill("KILL", server));
    up.until("started");
    // The controller may warn before `up` has an answer from the server.
    let warning = format!("load all servers again with `fatbtree load --structure {structure} --replace`");
    up.until_all(&["ready", &warning]);
    // It answers, and is not healthy.
    let text = std::fs::read_to_string(&file).expect("the cluster file");
    let at = Cluster::from_toml(&text).expect("a good file");
    let health = get(at.metrics("right").expect("the example has metrics"), "/healthz");
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("came back without its data"), "{health}");
    let output = run(&["bench", "--cluster", cluster, "--operations", "100", "--patience", "2"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    load(cluster, &["--keys", "2000", "--replace"]);
    round_trips(cluster, "b");
    assert!(up.stop("INT").success());
}

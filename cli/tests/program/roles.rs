//! Roles as processes of the real binary, which find each other by the cluster file alone.

use std::time::Duration;

use crate::common::processes::{Role, bench, cluster_file, kill, process};
use crate::common::run;

#[test]
fn everything_comes_up_serves_is_restarted_and_stops() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster, "--keys", "5000"]);
    let server = process(&up.until("left "));
    let controller = process(&up.until("controller "));
    let core = process(&up.until("core-0 "));
    let first_hop = process(&up.until("edge-1-0 "));
    up.until("ready");

    let result = bench(cluster, &[]);
    assert_eq!(
        (&result["operations"], &result["wrong"], &result["failed"]),
        (&3000.into(), &0.into(), &0.into())
    );
    // The switches lead to the leaf; then its record is read.
    assert!(result["round_trips"].as_f64().is_some_and(|trips| trips < 2.5), "{result}");
    let walking = bench(cluster, &["--root-to-leaf"]);
    assert!(walking["round_trips"].as_f64().is_some_and(|trips| trips > 3.0), "{walking}");
    let bytes = |of: &serde_json::Value| of["read_bytes"].as_f64().expect("its client READs");
    assert!(bytes(&result) > 1_000.0 && bytes(&walking) > bytes(&result), "{result} {walking}");
    assert!(result["ops_per_s"].as_f64().is_some_and(|rate| rate > 0.0));
    assert_eq!(result["percentiles"][0]["operation"], "READ");
    // Other values than those that were loaded: it is noticed before the first operation.
    let lying = run(&["bench", "--cluster", cluster, "--operations", "10", "--seed", "1"]);
    assert_eq!(lying.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&lying.stderr).contains("was not made by `fatbtree load` with --seed 1"),
        "{lying:?}"
    );

    // A switch that dies comes back with program, routes, connections and caches, a server with its tree, a controller with what the
    // switches hold.
    for role in [core, server, first_hop, controller] {
        assert!(kill("KILL", role));
        up.until("ended");
        up.until("ready");
        // `ready` says that all roles answer. On a busy machine the controller has yet to load what was lost: then keys are found from
        // the root.
        let begins_below_the_root = (0..20).any(|_| {
            let result = bench(cluster, &[]);
            assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()));
            result["round_trips"].as_f64().is_some_and(|trips| trips < 3.0)
        });
        assert!(begins_below_the_root, "20 times all keys were found from the root");
    }
    let writing = |workload| {
        let result = bench(cluster, &["--workload", workload]);
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{workload}: {result}");
        assert_eq!(result["percentiles"].as_array().map(Vec::len), Some(2), "{result}");
    };
    writing("a");
    assert!(up.stop("INT").success());
    // No process is left: their ports are free again.
    let up = Role::start(&["up", cluster, "--keys", "1000"]);
    up.until("ready");
    writing("e");
    assert!(up.stop("TERM").success());
}

/// The client has queue pairs, a session and chunks there; it gets them anew.
#[test]
fn a_running_client_outlives_a_server_that_dies_and_one_that_freezes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path").to_owned();
    let up = Role::start(&["up", &cluster, "--keys", "5000"]);
    let (left, right) = (process(&up.until("left ")), process(&up.until("right ")));
    up.until("ready");
    let running = {
        let cluster = cluster.clone();
        std::thread::spawn(move || bench(&cluster, &["--operations", "20000"]))
    };
    std::thread::sleep(Duration::from_millis(500));
    assert!(kill("KILL", right));
    up.until("ended");
    up.until("ready");
    assert!(kill("STOP", left));
    std::thread::sleep(Duration::from_millis(500));
    assert!(kill("CONT", left));
    let result = running.join().expect("it ends well");
    assert_eq!(
        (&result["operations"], &result["wrong"], &result["failed"]),
        (&20000.into(), &0.into(), &0.into())
    );
}

/// Its operations lose their connections again and again: for shorter than they have patience, though more often than at other times.
#[test]
fn operations_wait_for_a_frozen_switch_as_long_as_their_patience_lasts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path").to_owned();
    let up = Role::start(&["up", &cluster, "--keys", "5000"]);
    let first_hop = process(&up.until("edge-1-0 "));
    up.until("ready");
    let running = {
        let cluster = cluster.clone();
        std::thread::spawn(move || bench(&cluster, &["--operations", "100000", "--patience", "20"]))
    };
    std::thread::sleep(Duration::from_millis(500));
    assert!(kill("STOP", first_hop));
    std::thread::sleep(Duration::from_secs(8));
    assert!(kill("CONT", first_hop));
    let result = running.join().expect("it ends well");
    assert!(
        result["seconds"].as_f64().is_some_and(|seconds| seconds > 7.0),
        "it was frozen meanwhile: {result}"
    );
    assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
}

#[test]
fn roles_start_one_by_one_and_end_with_their_counters() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path");
    let names = ["core-0", "agg-0-0", "agg-1-0", "agg-2-0", "agg-3-0"];
    let edges = (0..4).flat_map(|pod| (0..2).map(move |edge| format!("edge-{pod}-{edge}")));
    let names: Vec<String> = names.map(str::to_owned).into_iter().chain(edges).collect();
    let switches: Vec<Role> =
        names.iter().map(|name| Role::start(&["switch", name, "--cluster", cluster])).collect();
    switches.iter().for_each(|switch| drop(switch.until("waits for a controller")));
    let server = |name| Role::start(&["memserver", name, "--cluster", cluster, "--keys", "1000"]);
    let servers = [server("left"), server("host-0-1-0")];
    for server in &servers {
        // Each has about half of the keys.
        let line = server.until("gRPC on");
        let keys = line.split_whitespace().nth(3).and_then(|word| word.parse().ok());
        assert!(keys.is_some_and(|keys: u32| (400..600).contains(&keys)), "{line}");
    }
    let controller = Role::start(&["controller", "--cluster", cluster]);
    controller.until("none was active");
    assert_eq!(bench(cluster, &["--client", "client"])["wrong"], 0);
    servers[0].until("opened client=10.1.0.2 server=10.0.0.2");
    servers[0].until("closed client=10.1.0.2");

    // The same port again: the error asks whether another process has it.
    let twice = run(&["switch", "core-0", "--cluster", cluster]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&twice.stderr).contains("is another process running there?"),
        "{twice:?}"
    );
    let core = switches.into_iter().next().expect("the first");
    assert!(kill("TERM", core.id()));
    let line = core.until("stopped: ");
    let count: u64 =
        line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("stopped: N frames");
    assert!(count > 3000, "{line}");
}

#[test]
fn what_cannot_start_says_why() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path");
    let refused = |arguments: &[&str], reason: &str| {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(reason), "{arguments:?}: {text}");
    };
    refused(&["switch", "core-9", "--cluster", cluster], "no switch \"core-9\"");
    refused(&["switch", "core-0"], "--cluster");
    refused(&["memserver", "core-0", "--cluster", cluster], "they are left, right");
    refused(&["bench", "--cluster", cluster, "--operations", "1", "--client", "left"], "no client \"left\"");
    refused(
        &["bench", "--cluster", cluster, "--operations", "1", "--workload", "z"],
        "neither a built-in workload",
    );
    refused(
        &["bench", "--cluster", cluster, "--operations", "1", "--json", "/nowhere/x"],
        "--json /nowhere/x",
    );
    refused(&["bench", "--cluster", cluster, "--operations", "1", "--patience", "0"], "is it running?");
    refused(
        &["switch", "--port", "1=127.0.0.1:1,127.0.0.1:2", "--port", "1=127.0.0.1:3,127.0.0.1:4"],
        "twice",
    );
    let text = std::fs::read_to_string(&file).expect("written");
    let (before, wires) = text.split_once("[wires]").expect("a section");
    let (_, after) = wires.split_once("\n\n").expect("an empty line after it");
    // Without it the client's host has no wire either.
    let (after, _) = after.split_once("[[host]]").expect("a host with seats");
    let unwired = format!("{before}{after}");
    std::fs::write(&file, unwired).expect("written");
    refused(&["memserver", "left", "--cluster", cluster], "add a section `[wires]`");
}

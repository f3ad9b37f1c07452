//! Memory servers that answer queries, as processes: beside RDMA clients, under rubbish, and when one is killed.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::processes::{Role, bench, cluster_file_like, kill, ports, process};
use crate::common::run;
use rand::{Rng as _, RngExt as _, SeedableRng as _};

/// One switch, through which queries go.
fn cluster(folder: &Path) -> String {
    let file = cluster_file_like(folder, &["topology", "example", "single"]);
    file.to_str().expect("a plain path").to_owned()
}

/// Queries pass by the switch.
fn cluster_with_sockets(folder: &Path) -> String {
    let cluster = cluster(folder);
    with_sockets(&cluster, usize::MAX);
    cluster
}

/// Gives memory servers, so many of the first, addresses for queries.
fn with_sockets(cluster: &str, mut count: usize) {
    let text = std::fs::read_to_string(cluster).expect("the file");
    let mut server = false;
    let mut found = String::new();
    for line in text.lines() {
        found += &format!("{line}\n");
        server = line == "[[memory_server]]" || server && !line.is_empty();
        if server && line.starts_with("grpc = ") && count > 0 {
            count -= 1;
            found += &format!("query = \"127.0.0.1:{}\"\n", ports::take(1));
        }
    }
    std::fs::write(cluster, found).expect("the file is written");
}

fn right(cluster: &str, further: &[&str]) -> serde_json::Value {
    let result = bench(cluster, further);
    assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{further:?}: {result}");
    result
}

/// Where the servers answer, as the file says.
fn addresses(cluster: &str) -> Vec<String> {
    let text = std::fs::read_to_string(cluster).expect("the file");
    let lines = text.lines().filter_map(|line| line.strip_prefix("query = \""));
    lines.map(|line| line.trim_end_matches('"').to_owned()).collect()
}

#[test]
fn clients_of_both_kinds_work_on_one_tree_whatever_else_comes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cluster = &cluster_with_sockets(folder.path());
    let up = Role::start(&["up", cluster, "--serve", "queries", "--workers", "2"]);
    up.until("ready");
    // The load moves the borders between servers, and workers know them before the first query.
    assert!(run(&["load", "--cluster", cluster, "--keys", "5000"]).status.success());
    for workload in ["c", "a", "f", "d", "e"] {
        right(cluster, &["--protocol", "query", "--workload", workload]);
    }
    let many = ["--protocol", "query", "--depth", "256", "--operations", "20000"];
    let result = right(cluster, &many);
    // How few depends on how busy the machine is; `port` checks that many datagrams take one call.
    let calls = result["system_calls"].as_f64().expect("it has sockets");
    assert!(calls > 0.0 && calls.is_finite(), "{calls} system calls for each operation");
    assert_eq!(result["protocol"], "query");

    // Garbage comes all the time: noise, and requests of unknown clients with addresses at which there is no node.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
            let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
            let addresses = addresses(cluster);
            let mut bytes = [0; 2000];
            while !over.load(Ordering::Relaxed) {
                random.fill_bytes(&mut bytes);
                if random.random_bool(0.7) {
                    // A request, as far as its header says.
                    bytes[0] = 3;
                    bytes[24] = random.random_range(1..=6);
                    bytes[25] = 0;
                    bytes[56..64].fill(0);
                    bytes[58] = random.random_range(0..8);
                }
                let length = random.random_range(0..bytes.len());
                let to = &addresses[random.random_range(0..addresses.len())];
                // Datagrams without room are dropped, and so is the error of an absent receiver.
                let _ = socket.send_to(&bytes[..length], to);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let both = std::thread::scope(|scope| {
            let query = scope.spawn(|| {
                right(cluster, &["--protocol", "query", "--workload", "a", "--operations", "10000"])
            });
            let roce = scope.spawn(|| right(cluster, &["--workload", "a", "--operations", "10000"]));
            [query.join(), roce.join()]
        });
        over.store(true, Ordering::Relaxed);
        both.into_iter().for_each(|result| _ = result.expect("both are right"));
    });
    for protocol in ["query", "roce"] {
        right(cluster, &["--protocol", protocol, "--workload", "e"]);
        right(cluster, &["--protocol", protocol, "--workload", "e", "--scan-parts", "7"]);
    }
    assert!(up.stop("INT").success());
}

#[test]
fn a_server_that_is_killed_answers_again_from_its_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cluster = &cluster_with_sockets(folder.path());
    let data = folder.path().join("data");
    let data = data.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster, "--keys", "5000", "--serve", "queries", "--data", data]);
    let left = process(&up.until("left "));
    up.until("ready");
    std::thread::scope(|scope| {
        let bench = scope.spawn(|| {
            let long = ["--operations", "300000", "--patience", "60", "--workload", "a"];
            right(cluster, &[&["--protocol", "query"], &long[..]].concat())
        });
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!bench.is_finished(), "it is killed under way");
        assert!(kill("KILL", left));
        bench.join().expect("every answer was right");
    });
    up.until("ready");
    // RDMA clients find all acknowledged writes.
    right(cluster, &["--workload", "c"]);
}

#[test]
fn switches_lead_queries_while_plans_change() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cluster = &cluster(folder.path());
    let up = Role::start(&["up", cluster, "--serve", "queries", "--workers", "2"]);
    up.until("ready");
    assert!(run(&["load", "--cluster", cluster, "--keys", "5000"]).status.success());
    // It plans by itself when the trees have changed, and does one thing at a time.
    let reload = || run(&["control", "reload", "--cluster", cluster]).status.success();
    let began = Instant::now();
    while !reload() {
        assert!(began.elapsed() < Duration::from_secs(20), "no reload");
        std::thread::sleep(Duration::from_millis(100));
    }
    let query =
        |further: &[&str]| right(cluster, &[&["--protocol", "query", "--depth", "100"], further].concat());
    let count = |result: &serde_json::Value, what: &str| result[what].as_u64().expect("it is counted");

    // Switches find the server and a node below its root.
    let result = query(&["--workload", "c"]);
    let (led, redirected) = (count(&result, "led"), count(&result, "redirected"));
    assert!(led >= 2700 && redirected == 0, "{result}");
    assert_eq!(result.get("system_calls"), None, "it has no sockets");
    assert_eq!(result.get("read_bytes"), None, "it makes no READs");
    // Without their help each goes to its server, and begins at the root.
    let result = query(&["--workload", "c", "--root-to-leaf"]);
    assert_eq!((count(&result, "led"), count(&result, "redirected")), (0, 0), "{result}");

    // Leaves are split and plans are loaded meanwhile.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reloads = scope.spawn(|| {
            let mut reloads = 0;
            while !over.load(Ordering::Relaxed) {
                reloads += u32::from(reload());
                std::thread::sleep(Duration::from_millis(50));
            }
            reloads
        });
        for workload in ["a", "d", "e", "f"] {
            let result = query(&["--workload", workload, "--operations", "6000"]);
            assert!(workload == "e" || count(&result, "led") > 0, "{result}");
        }
        over.store(true, Ordering::Relaxed);
        assert!(reloads.join().expect("no panic") > 0);
    });
    // RDMA clients find all that queries have written.
    right(cluster, &["--workload", "c"]);
    assert!(up.stop("INT").success());
}

#[test]
fn a_client_has_one_way_to_all_memory_servers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cluster = &cluster(folder.path());
    with_sockets(cluster, 1);
    let refused = run(&["bench", "--cluster", cluster, "--operations", "1", "--protocol", "query"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("left answers queries at an address of its own"), "{said}");
    assert!(said.contains("right on its host's wire"), "{said}");
}

/// Whether a get without a key is answered, and with what.
fn asks_without_key(address: &str) -> fatbtree_wire::query::Status {
    use fatbtree_wire::query::{Op, Query, QueryHeader};
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("it is a time");
    socket.send_to(&QueryHeader::request(Op::Get, 7, 9, 1).to_bytes(), address).expect("sent");
    let mut bytes = [0; 2000];
    let len = socket.recv(&mut bytes).expect("an answer");
    Query::parse(&bytes[..len]).expect("a query").header.status.expect("an answer")
}

#[test]
fn queries_bear_keys_where_there_are_certificates() {
    use fatbtree_wire::query::Status;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cluster = &cluster_with_sockets(folder.path());
    let text = std::fs::read_to_string(cluster).expect("the file");
    let trusting = |further: &str| {
        std::fs::write(cluster, format!("[trust]\nfolder = \"certificates\"\n{further}\n{text}"))
            .expect("written");
    };
    trusting("");
    assert!(run(&["topology", "certificates", "--cluster", cluster]).status.success());
    let query = ["--protocol", "query", "--workload", "a"];
    let up = Role::start(&["up", cluster, "--serve", "queries", "--keys", "2000"]);
    up.until("ready");
    right(cluster, &query);
    let addresses = addresses(cluster);
    assert_eq!(asks_without_key(&addresses[0]), Status::NoKey);
    up.stop("TERM");

    // With `query_open = true`, servers answer queries without keys, and clients notice.
    trusting("query_open = true");
    let up = Role::start(&["up", cluster, "--serve", "queries", "--keys", "2000"]);
    up.until("ready");
    right(cluster, &query);
    assert_eq!(asks_without_key(&addresses[0]), Status::NotFound);
    up.stop("TERM");

    // Without the secret a server does not start.
    trusting("");
    let secret = folder.path().join("certificates/queries.secret");
    std::fs::remove_file(secret).expect("it was made");
    let refused = run(&["memserver", "left", "--cluster", cluster, "--serve", "queries"]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && told.contains("queries.secret") && told.contains("query_open"),
        "{told}"
    );
}

//! What roles tell Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use crate::common::http::{ask, get};
use crate::common::processes::{Role, bench, cluster_file};
use fatbtree_topology::Cluster;

/// The sum over all labels.
fn value(text: &str, name: &str) -> u64 {
    let lines = text.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
    });
    let values: Vec<u64> =
        lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number")).collect();
    assert!(!values.is_empty(), "no {name} in {text}");
    values.into_iter().sum()
}

/// Metrics that `docs/src/metrics.md` lacks, or has with another kind.
fn undocumented(text: &str) -> Vec<&str> {
    let page = include_str!("../../../docs/src/metrics.md");
    let told = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let is_there = |(name, kind): &(&str, &str)| {
        let suffix = if *kind == "counter" { "_total" } else { "" };
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}{suffix}` |")));
        row.is_some_and(|row| row.contains(&format!("| {kind} |")))
    };
    told.filter(|metric| !is_there(metric)).map(|(name, _)| name).collect()
}

/// Names of series in a text.
fn series(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.starts_with("fatbtree_") || word.starts_with("fatbtree:")).collect()
}

/// A role that answers and cannot do its work says why.
#[test]
fn a_role_without_what_it_needs_is_not_healthy() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let path = file.to_str().expect("a plain path");
    let cluster = Cluster::from_toml(&fs::read_to_string(&file).expect("text")).expect("it was checked");
    let at = |name: &str| cluster.metrics(name).expect("the example has metrics").to_owned();
    let switch = Role::start(&["switch", "core-0", "--cluster", path]);
    switch.until("waits for a controller");
    let health = get(&at("core-0"), "/healthz");
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("no controller has given"), "{health}");
    assert!(get(&at("core-0"), "/metrics").starts_with("HTTP/1.1 200"));
    drop(switch);
    // No switch answers: none tells which controller is primary.
    let controller = Role::start(&["controller", "--cluster", path, "--take-over"]);
    controller.until("controller on");
    let health = get(&at("controller"), "/healthz");
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("is not primary: "), "{health}");
}

#[test]
fn the_dashboard_and_the_rules_name_metrics_that_exist() {
    let page = include_str!("../../../docs/src/metrics.md");
    let dashboard = include_str!("../../../packaging/grafana/fatbtree.json");
    let rules = include_str!("../../../packaging/prometheus/rules.yml");
    let recorded: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- record: ")).collect();
    let is_known = |name: &&str| {
        let of_histogram = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
        let row = |name: &str, kind: &str| {
            page.lines().any(|line| line.starts_with(&format!("| `{name}` |")) && line.contains(kind))
        };
        recorded.contains(name)
            || row(name, "| counter |")
            || row(name, "| gauge |")
            || of_histogram.is_some_and(|name| row(name, "| histogram |"))
    };
    for text in [dashboard, rules] {
        let named = series(text);
        assert!(named.len() > 15, "{named:?}");
        let unknown: Vec<_> = named.into_iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "docs/src/metrics.md does not have {unknown:?}");
    }
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("a list");
    let titles: BTreeSet<&str> =
        panels.iter().map(|panel| panel["title"].as_str().expect("each has one")).collect();
    assert_eq!(titles.len(), panels.len(), "each once");
    for row in ["Health", "Lookups", "Latency", "Plan", "Memory servers", "Switches"] {
        assert!(titles.contains(row), "{row}");
    }
}

#[test]
fn every_role_tells_what_it_has_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = cluster_file(folder.path());
    let path = file.to_str().expect("UTF-8");
    let cluster = Cluster::from_toml(&fs::read_to_string(&file).expect("the file")).expect("a good file");
    let at = |name: &str| cluster.metrics(name).unwrap_or_else(|| panic!("no port for {name}")).to_owned();
    let up = Role::start(&["up", path, "--keys", "20000"]);
    up.until("ready");
    let result = bench(path, &[]);
    assert!(result["wrong"] == 0 && result["failed"] == 0, "{result}");

    let core = get(&at("core-0"), "/metrics");
    assert!(core.contains("table=\"ingress.first_hop.roce_connection\""), "{core}");
    assert!(!core.contains("tbl_"), "names that the compiler has made: {core}");
    assert!(core.starts_with("HTTP/1.1 200"), "{core}");
    assert!(core.trim_end().ends_with("# EOF"), "{core}");
    assert!(value(&core, "fatbtree_port_received_total") > 1000);
    assert!(value(&core, "fatbtree_switch_table_entries") > 0);
    value(&core, "fatbtree_switch_drops_total");
    let left = get(&at("left"), "/metrics");
    assert!(value(&left, "fatbtree_memory_server_sessions_opened_total") >= 1);
    assert_eq!(value(&left, "fatbtree_memory_server_sessions"), 0, "bench has closed its session");
    let keys = value(&left, "fatbtree_memory_server_loaded_keys");
    assert!((9_000..11_000).contains(&keys), "about half of them: {keys}");
    let used = value(&left, "fatbtree_memory_server_region_bytes_used");
    assert!(used > 1_000_000 && used < value(&left, "fatbtree_memory_server_region_bytes"), "{used}");
    let generation =
        left.lines().find_map(|line| line.strip_prefix("fatbtree_memory_server_generation{value=\""));
    let digits = generation.and_then(|rest| rest.strip_suffix("\"} 1")).unwrap_or_else(|| panic!("{left}"));
    assert!(digits.parse::<u64>().is_ok(), "{digits}");
    let controller = get(&at("controller"), "/metrics");
    assert!(value(&controller, "fatbtree_controller_reloads_total") >= 1);
    assert!(value(&controller, "fatbtree_controller_entries") > 0);
    assert_eq!(value(&controller, "fatbtree_controller_switch_silent"), 0);
    for role in [&core, &left, &controller] {
        let version = format!("fatbtree_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
        assert!(role.contains(&version), "{role}");
        assert_eq!(undocumented(role), [""; 0]);
        let mut helps: Vec<&str> = role.lines().filter_map(|line| line.strip_prefix("# HELP ")).collect();
        let all = helps.len();
        helps.sort_by_key(|line| line.split_once(' ').map(|(_, help)| help));
        helps.dedup_by_key(|line| line.split_once(' ').map(|(_, help)| help));
        assert_eq!(helps.len(), all, "a help text tells one metric from the others: {role}");
        assert_eq!(value(role, "fatbtree_grpc_refused_connections_total"), 0);
    }
    for role in ["core-0", "left", "controller"] {
        let health = get(&at(role), "/healthz");
        assert!(
            health.starts_with("HTTP/1.1 200") && health.ends_with("\r\n\r\nready\n"),
            "{role}: {health}"
        );
    }
    for of_process in ["resident_memory_bytes", "virtual_memory_bytes", "open_fds", "max_fds"] {
        assert!(left.contains(&format!("\nprocess_{of_process} ")), "{of_process}: {left}");
    }
    assert!(left.contains("\nprocess_cpu_seconds_total ") && left.contains("\nprocess_start_time_seconds "));
    let used = value(&controller, "fatbtree_controller_switch_table_entries");
    assert!(used > 0 && used < value(&controller, "fatbtree_controller_switch_table_size"));

    // A client has its place while it runs.
    let client = Role::start(&["bench", "--cluster", path, "--operations", "2000000"]);
    let began = std::time::Instant::now();
    let reads = loop {
        if TcpStream::connect(at("client")).is_ok() {
            let text = get(&at("client"), "/metrics");
            if value(&text, "fatbtree_client_index_reads_total") > 0 {
                let took = "fatbtree_client_operation_seconds_bucket{le=\"+Inf\",operation=\"read\"} ";
                let took = text.lines().find_map(|line| line.strip_prefix(took));
                assert_eq!(undocumented(&text), [""; 0]);
                assert!(took.is_some_and(|count| count.parse().is_ok_and(|count: u64| count > 0)), "{text}");
                break value(&text, "fatbtree_client_reads_total");
            }
        }
        assert!(began.elapsed() < Duration::from_secs(30), "the client does not begin");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(reads > 0);
    drop(client);

    // Peers that say nothing hold up others for as long as their time lasts, and no longer.
    let silent: Vec<TcpStream> =
        (0..8).map(|_| TcpStream::connect(at("core-0")).expect("there is room")).collect();
    assert!(get(&at("core-0"), "/metrics").starts_with("HTTP/1.1 200"));
    drop(silent);
    assert!(get(&at("core-0"), "/").starts_with("HTTP/1.1 404"));
    assert!(ask(&at("core-0"), "HEAD", "/").starts_with("HTTP/1.1 404"));
    let head = ask(&at("core-0"), "HEAD", "/metrics");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "headers alone: {head}");
    let refused = ask(&at("core-0"), "POST", "/metrics").to_ascii_lowercase();
    assert!(refused.starts_with("http/1.1 405") && refused.contains("allow: get, head"), "{refused}");
    assert!(refused.contains("text/plain"), "{refused}");
}

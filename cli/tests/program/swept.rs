//! Memory of clients that were killed comes back, where a structure lies over two memory servers: these sweep together.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::http::get;
use crate::common::processes::{Role, kill, process};
use crate::common::spread::{kill_a_writer, load, round_trips, structure_file};
use fatbtree_topology::Cluster;

/// Far longer than a lease and the pauses between sweeps.
const PATIENCE: Duration = Duration::from_secs(90);

/// Long enough for a client to tell what it keeps, by the renewal of its sessions.
const TOLD: Duration = Duration::from_secs(5);

/// Metrics of servers.
struct Servers(Vec<String>);

impl Servers {
    fn of(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).expect("the file");
        let cluster = Cluster::from_toml(&text).expect("a good file");
        Self(["left", "right"].map(|name| cluster.metrics(name).expect("an address").to_owned()).into())
    }

    /// Sum of a metric of all servers.
    fn sum(&self, name: &str) -> u64 {
        let name = format!("fatbtree_memory_server_{name}");
        let value = |address: &String| {
            let text = get(address, "/metrics");
            let value = text.lines().find_map(|line| {
                line.strip_prefix(&name)?.trim_start_matches("{}").strip_prefix(' ')?.parse::<u64>().ok()
            });
            value.unwrap_or_else(|| panic!("no {name} in {text}"))
        };
        self.0.iter().map(value).sum()
    }

    /// Waits until the servers have found so many blocks since, and nothing is lost.
    fn until_found(&self, before: u64, least: u64) {
        let began = Instant::now();
        let state = || (self.sum("blocks_reclaimed_total"), self.sum("region_bytes_lost"));
        while state().0 < before + least || state().1 > 0 {
            assert!(began.elapsed() < PATIENCE, "{before} blocks before, now {:?}", state());
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn comes_back(structure: &str, further: impl FnOnce(&str, &Servers, u32)) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), structure);
    let cluster = file.to_str().expect("a plain path");
    let data = folder.path().join("data");
    let up = Role::start(&["up", cluster, "--data", data.to_str().expect("plain")]);
    let right = process(&up.until("right "));
    up.until("ready");
    let servers = Servers::of(&file);
    load(cluster, &["--keys", "3000"]);
    let before = servers.sum("blocks_reclaimed_total");
    kill_a_writer(cluster, TOLD);
    kill_a_writer(cluster, Duration::from_millis(300));
    let lost = servers.sum("region_bytes_lost") + servers.sum("region_bytes_held");
    assert!(lost > 0, "the clients kept nothing");
    servers.until_found(before, 1);
    round_trips(cluster, "b");
    further(cluster, &servers, right);
    round_trips(cluster, "a");
    assert!(up.stop("INT").success());
}

#[test]
fn a_hash_tables_memory_comes_back_also_after_a_server_has_stood_still() {
    comes_back("hash", |cluster, servers, right| {
        // Meanwhile the other one's sessions end.
        let before = servers.sum("blocks_reclaimed_total");
        kill_a_writer(cluster, TOLD);
        assert!(kill("STOP", right));
        std::thread::sleep(Duration::from_secs(13));
        assert!(kill("CONT", right));
        servers.until_found(before, 1);
    });
}

#[test]
fn a_dolphin_indexs_memory_comes_back() {
    comes_back("dolphin", |_, _, _| {});
}

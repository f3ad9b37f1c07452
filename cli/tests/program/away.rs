//! Clients that begin while one of several memory servers is away, in processes.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::processes::{Role, cluster_file_like};
use crate::common::run;
use crate::common::spread::{load, single};
use fatbtree::Options;
use fatbtree::blocking::Client;
use fatbtree_topology::Cluster;

/// All roles of a file but the memory servers, started by hand: nothing starts a memory server again.
fn network(cluster: &str) -> Vec<Role> {
    let text = std::fs::read_to_string(cluster).expect("the cluster file");
    let names: Vec<String> = Cluster::from_toml(&text)
        .expect("a good file")
        .tree()
        .switches()
        .iter()
        .map(|it| it.name())
        .collect();
    let switches = names.iter().map(|name| Role::start(&["switch", name, "--cluster", cluster]));
    switches.chain([Role::start(&["controller", "--cluster", cluster])]).collect()
}

fn memory_server(cluster: &str, folder: &Path, name: &str) -> Role {
    let data = folder.join(name);
    let data = data.to_str().expect("a plain path");
    Role::start(&["memserver", name, "--cluster", cluster, "--data", data])
}

/// Keys on both servers, in each structure.
fn keys() -> impl Iterator<Item = u64> {
    (1..40_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn begins_without_one(structure: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    if structure != "tree" {
        let text = std::fs::read_to_string(&file).expect("it was written");
        std::fs::write(&file, format!("structure = \"{structure}\"\n\n{text}")).expect("it is written");
    }
    let cluster = file.to_str().expect("a plain path");
    let _network = network(cluster);
    let _left = memory_server(cluster, folder.path(), "left");
    let right = memory_server(cluster, folder.path(), "right");
    assert!(run(&["control", "wait-ready", "--cluster", cluster, "--patience", "90"]).status.success());
    // Enough that hash table and index have grown over both servers.
    load(cluster, &["--keys", "5000"]);
    let connect = |patience| {
        let options = Options::new(&file).patience(patience).time_limit(patience);
        Client::connect(options).unwrap_or_else(|error| panic!("{structure}: {error:?}"))
    };
    let db = connect(Duration::from_secs(60));
    for key in keys() {
        db.put(key, key.to_string().as_bytes()).expect("both servers run");
    }
    db.close();
    assert!(right.stop("INT").success());

    let began = Instant::now();
    let db = connect(Duration::from_secs(12));
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    let is_value = |key: u64, found: Option<&[u8]>| found == Some(key.to_string().as_bytes());
    let (mut there, mut away) = (Vec::new(), Vec::new());
    for key in keys() {
        match db.get(key) {
            Ok(found) => {
                assert!(is_value(key, found.as_deref()), "{structure}: {key}");
                there.push(key);
            }
            Err(error) => {
                let causes = std::iter::successors(
                    std::error::Error::source(&error),
                    |cause: &&dyn std::error::Error| cause.source(),
                );
                let text = causes.map(ToString::to_string).collect::<String>();
                assert!(text.contains("memory server 1"), "{structure}: {error:?}");
                away.push(key);
            }
        }
    }
    assert!(!there.is_empty() && !away.is_empty(), "{structure}: {there:?}, {away:?}");
    db.put(there[0], there[0].to_string().as_bytes()).expect("its server runs");
    // Commands, too.
    let (key, value) = (there[0].to_string(), there[0].to_string());
    assert_eq!(single(cluster, &["get", &key]), (Some(0), value), "{structure}");
    // A scan of all pairs is never silently short.
    let output = run(&["scan", "--cluster", cluster, "--patience", "12"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && text.contains("memory server 1"), "{structure}: {text}");

    // The client that has begun without it gets its session.
    let _right = memory_server(cluster, folder.path(), "right");
    let began = Instant::now();
    for key in keys() {
        let found = loop {
            match db.get(key) {
                Ok(found) => break found,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{structure}: {error:?}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        assert!(is_value(key, found.as_deref()), "{structure}: {key}");
    }
    db.put(away[0], b"another").expect("it is back");
    db.close();
}

#[test]
fn a_client_of_trees_begins_without_a_server_that_is_away() {
    begins_without_one("tree");
}

#[test]
fn a_client_of_a_hash_table_begins_without_a_server_that_is_away() {
    begins_without_one("hash");
}

#[test]
fn a_client_of_a_dolphin_index_begins_without_a_server_that_is_away() {
    begins_without_one("dolphin");
}

//! A Dolphin index over the memory servers of a cluster, in processes.

use std::path::Path;
use std::time::Duration;

use crate::common::processes::{Role, bench, kill_repeatedly, process as process_of};
use crate::common::refused;
use crate::common::spread::{
    client, kill_a_writer, load, lost_part_is_noticed, no_folder_of_a_tree, nothing_to_plan, replaced_by_csv,
    round_trips, shell, single, structure_file,
};
use fatbtree_dolphin::{Index, IndexError, Shape};
use fatbtree_memserver::grpc::{Client, empty};
use fatbtree_remote_memory::KeyRange;
use fatbtree_topology::Cluster;
use fatbtree_trust::Trust;

#[test]
fn an_index_is_loaded_measured_and_typed_into() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), "dolphin");
    let cluster = file.to_str().expect("a plain path");
    refused(&["up", cluster, "--keys", "100"], "the memory servers hold a Dolphin index: start them empty");
    refused(
        &["memserver", "left", "--cluster", cluster, "--serve", "queries"],
        "--serve queries is for trees",
    );
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    refused(&["bench", "--cluster", cluster, "--operations", "1"], "hold no keys that were loaded");

    let result = load(cluster, &["--keys", "3000"]);
    assert_eq!((&result["keys"], &result["servers"]), (&3000.into(), &2.into()), "{result}");
    refused(&["load", "--cluster", cluster, "--keys", "10"], "repeat the command with --replace");
    let trips = |workload: &str| round_trips(cluster, workload);
    // A leaf, and the record of a value of 100 bytes.
    let [a, b, c] = ["a", "b", "c"].map(trips);
    assert!((2.0..2.3).contains(&c) && c < a && b < a && a < 3.2, "round trips of A, B and C: {a}, {b}, {c}");
    // The cache of inner nodes has a bound. Without one a lookup walks from the root.
    let cached = |bytes: &str| {
        let result = bench(cluster, &["--workload", "c", "--cache", bytes]);
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
        let figure =
            |name: &str| result["cache"][name].as_u64().unwrap_or_else(|| panic!("{name}: {result}"));
        let (bytes, hits, misses) = (figure("bytes"), figure("hits"), figure("misses"));
        (bytes, hits, misses, result["round_trips"].as_f64().expect("a number"))
    };
    let (none, all) = (cached("0"), cached("64K"));
    assert!(none.0 == 0 && none.1 == 0 && none.3 >= 3.0, "{none:?}");
    assert!((1..=64_000).contains(&all.0) && all.1 > 9 * all.2 && all.3 < 2.3, "{all:?}");
    let [d, e, f] = ["d", "e", "f"].map(trips);
    assert!(d < 2.5 && f < 4.5 && e < 8.0, "round trips of D, E and F: {d}, {e}, {f}");
    refused(
        &["bench", "--cluster", cluster, "--operations", "1", "--entry-cache", "1000"],
        "a client of a Dolphin index remembers inner nodes",
    );
    refused(
        &["bench", "--cluster", cluster, "--operations", "1", "--structure", "hash"],
        "a structure of kind \"dolphin\", expected \"hash\"",
    );

    load(cluster, &["--keys", "10", "--replace"]);
    let long = "x".repeat(20_000);
    let (answers, all) = shell(
        &["--cluster", cluster],
        &format!(
            "put 7 seven\nget 7\ninsert 7 x\nupdate 7 eight\nget 7\nput 5 {long}\nput 6 12345678\nscan 5 9\n\
             scan 5 9 2\nget 5\nlen\ndelete 7\nget 7\nupdate 7 x\nrscan 5 9 1\ncas 5 a b\ncas 6 12345678 b\nget 6\n"
        ),
    );
    let expected = [
        "ok",
        "seven",
        "there already",
        "updated",
        "eight",
        "ok",
        "ok",
        &format!("5 {long}"),
        "6 12345678",
        "7 eight",
        &format!("5 {long}"),
        "6 12345678",
        &long,
        "13",
        "deleted",
        "not there",
        "not there",
        "6 12345678",
        "not set",
        "set",
        "b",
    ];
    let lines: Vec<&str> = answers.lines().collect();
    assert_eq!(lines, expected, "{all}");
    assert!(all, "{answers}");

    // Single operations, through the client library.
    let single = |arguments: &[&str]| single(cluster, arguments);
    assert_eq!(single(&["put", "8", "eight"]).0, Some(0));
    assert_eq!(single(&["get", "8"]), (Some(0), "eight".to_owned()));
    assert_eq!(single(&["scan", "6..9"]).1.lines().count(), 2);
    let last = single(&["scan", "..9", "--backward", "--limit", "1"]).1;
    assert!(last.starts_with("8 "), "{last}");
    assert_eq!(single(&["delete", "8"]).0, Some(0));
    assert_eq!(single(&["get", "8"]).0, Some(1));

    nothing_to_plan(cluster, "dolphin");

    // Begun anew under a client, which opens the index again.
    let mut process = client::<Index<_>>(&file);
    let index = process.client().clone();
    let get = async |key: u64| {
        let found = index.structure().await?.get(key).await.result?;
        Ok::<_, IndexError>(found.map(|value| value.to_vec()))
    };
    assert_eq!(process.run(get(6)).expect("it is not stopped"), Ok(Some(b"b".to_vec())));
    begin_anew(&file);
    let found = loop {
        if let Ok(found) = process.run(get(6)).expect("it is not stopped") {
            break found;
        }
    };
    assert_eq!(found, None);
    process.close();
    replaced_by_csv(cluster, folder.path());
    assert!(up.stop("INT").success());
}

/// Has all servers begin anew, that with the root last.
fn begin_anew(file: &Path) {
    let text = std::fs::read_to_string(file).expect("the file");
    let cluster = Cluster::from_toml(&text).expect("it was checked");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for server in cluster.servers().iter().rev() {
        let emptied = runtime.block_on(async {
            let client = Client::connect(Trust::default().to(&server.grpc, &server.name)).await?;
            empty::<Shape>(&client, server.partition).await
        });
        emptied.expect("it begins anew");
    }
}

#[test]
fn an_index_in_folders_comes_back_after_kills() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), "dolphin");
    let (cluster, data) = (file.to_str().expect("a plain path"), folder.path().join("data"));
    let data = data.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster, "--data", data]);
    let server = process_of(&up.until("left "));
    up.until("ready");
    let mut process = client::<Index<_>>(&file);
    let handle = process.client().clone();
    let kills = kill_repeatedly(up, server);
    let value = |key: u64| format!("written {key}").repeat(1 + key as usize % 3);
    // In no order, so that leaves are split everywhere, and nodes grow.
    let key_of = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let put = async |number: u64| {
        let index = handle.structure().await?;
        index.upsert(key_of(number), value(number).as_bytes()).await.result
    };
    let (mut count, mut is_known) = (0, true);
    while !kills.is_finished() || count < 3_000 || !is_known {
        // After an error the outcome is unknown: it is done again.
        is_known = process.run(put(count)).expect("it is not stopped").is_ok();
        count += u64::from(is_known);
    }
    let up = kills.join().expect("the server comes back");
    let mut expected: Vec<(u64, u64)> = (0..count).map(|number| (key_of(number), number)).collect();
    expected.sort_unstable();
    // Of two numbers with one key, the later one was written last.
    expected.reverse();
    expected.dedup_by_key(|(key, _)| *key);
    expected.reverse();
    let verify = async || {
        let index = handle.structure().await?;
        let all = index.scan(KeyRange::of(0..=u64::MAX), usize::MAX).await.result?;
        assert_eq!(all.len(), expected.len());
        for ((key, found), (expected, number)) in all.iter().zip(&expected) {
            assert_eq!((key, &found[..]), (expected, value(*number).as_bytes()));
        }
        Ok::<_, IndexError>(index.verify().await.map(|verified| verified.keys))
    };
    let verified = process.run(verify()).expect("it is not stopped").expect("all are there");
    assert_eq!(verified, Ok(expected.len() as u64));
    process.close();
    assert!(up.stop("INT").success());

    // All of it again after a stop; and the folder is no tree's.
    let up = Role::start(&["up", cluster, "--data", data]);
    up.until("ready");
    let mut process = client::<Index<_>>(&file);
    let handle = process.client().clone();
    let found = process.run(async {
        let index = handle.structure().await?;
        Ok::<_, IndexError>(index.verify().await.map(|verified| verified.keys))
    });
    let found = found.expect("it is not stopped").expect("the index is there");
    assert_eq!(found, Ok(expected.len() as u64));
    process.close();
    assert!(up.stop("INT").success());
    no_folder_of_a_tree(cluster, data, "dolphin");
}

#[test]
fn a_part_that_is_lost_is_noticed() {
    lost_part_is_noticed("dolphin");
}

/// A client that is killed in the middle of writes leaves announcements and locks: others go on, and structure changes too.
#[test]
fn clients_go_on_after_another_one_was_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), "dolphin");
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    load(cluster, &["--keys", "1000"]);
    for kill_after in [300, 700] {
        kill_a_writer(cluster, Duration::from_millis(kill_after));
        // Inserts split leaves, so they meet what it has left.
        let mut process = client::<Index<_>>(&file);
        let handle = process.client().clone();
        let insert = async || {
            let index = handle.structure().await?;
            for number in 0..2_000_u64 {
                let key = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0xffff) | kill_after;
                index.upsert(key, b"after").await.result?;
            }
            Ok::<_, IndexError>(index.verify().await.map(|verified| verified.unfinished))
        };
        let unfinished = process.run(insert()).expect("it is not stopped");
        assert!(matches!(unfinished, Ok(Ok(_))), "{unfinished:?}");
        process.close();
    }
    let result = bench(cluster, &["--workload", "a", "--patience", "30"]);
    assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
    assert!(up.stop("INT").success());
}

#[test]
fn an_index_can_be_tried_without_a_cluster() {
    let lines = "load 5000\nget 4999\ndelete 1\nscan 4998 6000\nverify\nlen\n";
    let (answers, all) = shell(&["--structure", "dolphin", "--servers", "2"], lines);
    let lines: Vec<&str> = answers.lines().collect();
    assert!(all && lines[..3] == ["ok", "v4999", "deleted"], "{answers}");
    assert_eq!(lines[3..6], ["4998 v4998", "4999 v4999", "5000 v5000"]);
    assert!(lines[6].starts_with("whole: 4999 keys in "), "{answers}");
    assert_eq!(lines[7..], ["4999"]);
}

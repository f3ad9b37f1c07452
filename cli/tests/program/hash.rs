//! A hash table over the memory servers of a cluster, in processes.

use crate::common::processes::{Role, bench, cluster_file, kill_repeatedly, process as process_of};
use crate::common::spread::{
    client, load, lost_part_is_noticed, no_folder_of_a_tree, nothing_to_plan, replaced_by_csv, round_trips,
    shell, single, structure_file,
};
use crate::common::{refused, run};
use fatbtree_race::Table;

#[test]
fn a_table_is_loaded_measured_and_typed_into() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), "hash");
    let cluster = file.to_str().expect("a plain path");
    refused(&["up", cluster, "--keys", "100"], "--keys is for trees");
    refused(&["up", cluster, "--inline", "20"], "--inline is for trees");
    // It is not passed over in silence either.
    let words = ["load", "--cluster", cluster, "--keys", "100"];
    refused(&[&words[..], &["--leaves", "buckets"]].concat(), "--leaves is for trees");
    refused(&[&words[..], &["--inline", "20"]].concat(), "--inline is for trees");
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
    let [a, b, c] = ["a", "b", "c"].map(trips);
    assert!((2.0..2.2).contains(&c) && c < b && b < a && a < 3.0, "round trips of A, B and C: {a}, {b}, {c}");
    let result = bench(cluster, &["--workload", "c", "--entry-cache", "1000000"]);
    let (hits, trips) = (&result["entry_cache"]["hits"], result["round_trips"].as_f64());
    assert!(hits.as_u64() > Some(1_000) && trips < Some(1.7), "{result}");
    assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
    refused(
        &["bench", "--cluster", cluster, "--operations", "1", "--workload", "e"],
        "a hash table has no order of keys",
    );
    refused(
        &["bench", "--cluster", cluster, "--operations", "1", "--protocol", "query"],
        "--protocol query is for trees",
    );

    // Another structure than the servers hold is told by name.
    refused(
        &["bench", "--cluster", cluster, "--operations", "1", "--structure", "tree"],
        "a structure of kind \"hash\", expected \"blink\"",
    );

    let (answers, all) = shell(
        &["--cluster", cluster],
        "put 7 seven\nget 7\ninsert 7 x\nupdate 7 eight\nget 7\ndelete 7\nget 7\nupdate 7 x\nlen\nstats\nscan 1 2\n",
    );
    let expected = [
        "ok",
        "seven",
        "there already",
        "updated",
        "eight",
        "deleted",
        "not there",
        "not there",
        "3000",
        "gets, changes, scans and loads: 8;",
    ];
    assert!(!all && answers.lines().count() == expected.len(), "{answers}");
    assert!(
        answers.lines().zip(expected).all(|(answer, expected)| answer.starts_with(expected)),
        "{answers}"
    );

    // Single operations, through the client library.
    let single = |arguments: &[&str]| single(cluster, arguments);
    assert_eq!(single(&["put", "9", "nine"]).0, Some(0));
    assert_eq!(single(&["get", "9"]), (Some(0), "nine".to_owned()));
    assert_eq!(single(&["delete", "9"]).0, Some(0));
    assert_eq!(single(&["get", "9"]).0, Some(1));

    nothing_to_plan(cluster, "hash");

    // Begun anew under a client, which opens the table again.
    let mut process = client::<Table<_>>(&file);
    let table = process.client().clone();
    let get = async |key: u64| {
        let found = table.structure().await?.search(key).await.result?;
        Ok::<_, fatbtree_race::TableError>(found.map(|value| value.to_vec()))
    };
    drop(process.run(get(1)).expect("it is not stopped"));
    process.close();
    replaced_by_csv(cluster, folder.path());
    assert!(up.stop("INT").success());
}

/// Lines that a scan prints, sorted.
fn scanned(cluster: &str, further: &[&str]) -> Vec<Vec<u8>> {
    let output = run(&[&["scan", "--cluster", cluster], further].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = output.stdout.split_inclusive(|byte| *byte == b'\n');
    let mut lines: Vec<Vec<u8>> = lines.map(<[u8]>::to_vec).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn what_a_scan_of_a_table_writes_can_be_loaded_into_any_structure() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let file = structure_file(folders[0].path(), "hash");
    let cluster = file.to_str().expect("a plain path");
    let csv = folders[0].path().join("pairs.csv");
    let mut pairs = String::new();
    // Enough for subtables on both servers.
    for key in 100..5_100 {
        pairs += &format!("{key},value {key}\n");
    }
    std::fs::write(&csv, pairs).expect("a file");
    let csv = csv.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    load(cluster, &["--keys", csv]);
    let odd = ["", "a, b and \"c\"", " spaces ", "# no comment", "key,value"];
    for (key, value) in (1_u64..).zip(odd) {
        assert_eq!(single(cluster, &["put", &key.to_string(), "--text", value]).0, Some(0), "{value:?}");
    }
    assert_eq!(single(cluster, &["put", "0xffffffffffffffff", "0x00ff22"]).0, Some(0));
    let all = 5_000 + odd.len() + 1;
    let output = run(&["scan", "..", "--cluster", cluster]);
    let text = String::from_utf8_lossy(&output.stderr);
    let words =
        "a hash table does not have the operation scan; use pairs, or `fatbtree scan` without a range";
    assert!(output.status.code() == Some(3) && output.stdout.is_empty() && text.contains(words), "{text}");

    let written = scanned(cluster, &["--csv"]);
    assert_eq!((written.len(), scanned(cluster, &[]).len()), (all, all));
    assert_eq!(scanned(cluster, &["--limit", "1100"]).len(), 1_100);
    let key =
        |line: Vec<u8>| serde_json::from_slice::<serde_json::Value>(&line).expect("JSON")["key"].as_u64();
    let mut keys: Vec<_> = scanned(cluster, &["--json"]).into_iter().map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), all);

    std::fs::write(csv, written.concat()).expect("a file");
    let tree = cluster_file(folders[1].path());
    let tree = tree.to_str().expect("a plain path");
    let other = Role::start(&["up", tree]);
    other.until("ready");
    assert_eq!(load(tree, &["--keys", csv])["keys"], all);
    assert!(scanned(tree, &["--csv"]) == written && scanned(tree, &["..", "--csv"]) == written);
    assert!(other.stop("INT").success());
    assert_eq!(load(cluster, &["--keys", csv, "--replace"])["keys"], all);
    assert!(scanned(cluster, &["--csv"]) == written);
    assert!(up.stop("INT").success());
}

#[test]
fn a_table_in_folders_comes_back_after_kills() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), "hash");
    let (cluster, data) = (file.to_str().expect("a plain path"), folder.path().join("data"));
    let data = data.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster, "--data", data]);
    let server = process_of(&up.until("left "));
    up.until("ready");
    let mut process = client::<Table<_>>(&file);
    let handle = process.client().clone();
    let kills = kill_repeatedly(up, server);
    let put = async |key: u64| {
        let table = handle.structure().await?;
        table.upsert(key, format!("written {key}").as_bytes()).await.result
    };
    let (mut keys, mut is_known) = (0, true);
    // Enough to split subtables, which have 1,344 slots.
    while !kills.is_finished() || keys < 3_000 || !is_known {
        // After an error the outcome is unknown: it is done again.
        is_known = process.run(put(keys)).expect("it is not stopped").is_ok();
        keys += u64::from(is_known);
    }
    let up = kills.join().expect("the server comes back");
    let verify = async |keys: u64| {
        let table = handle.structure().await?;
        for key in 0..keys {
            let found = table.search(key).await.result?;
            assert_eq!(found.as_deref(), Some(format!("written {key}").as_bytes()), "{key}");
        }
        Ok::<_, fatbtree_race::TableError>(table.verify().await.map(|verified| verified.keys))
    };
    let verified = process.run(verify(keys)).expect("it is not stopped").expect("all are there");
    assert_eq!(verified, Ok(keys));
    process.close();
    assert!(up.stop("INT").success());

    // All of it again after a stop; and the folder is no tree's.
    let up = Role::start(&["up", cluster, "--data", data]);
    up.until("ready");
    let mut process = client::<Table<_>>(&file);
    let handle = process.client().clone();
    let found = process.run(async {
        let table = handle.structure().await?;
        Ok::<_, fatbtree_race::TableError>(table.verify().await.map(|verified| verified.keys))
    });
    assert_eq!(found.expect("it is not stopped").expect("the table is there"), Ok(keys));
    process.close();
    assert!(up.stop("INT").success());
    no_folder_of_a_tree(cluster, data, "hash");
}

#[test]
fn a_part_that_is_lost_is_noticed() {
    lost_part_is_noticed("hash");
}

#[test]
fn a_table_can_be_tried_without_a_cluster() {
    let lines = "load 5000\nget 4999\ndelete 1\nverify\nlen\n";
    let (answers, all) = shell(&["--structure", "hash", "--servers", "2"], lines);
    let lines: Vec<&str> = answers.lines().collect();
    assert!(all && lines[..3] == ["ok", "v4999", "deleted"], "{answers}");
    assert!(lines[3].starts_with("whole: 4999 keys in ") && lines[4..] == ["4999"], "{answers}");
}

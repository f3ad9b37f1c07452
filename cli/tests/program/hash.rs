//! A hash table over the memory servers of a cluster, in processes.

use crate::common::processes::{Role, bench, kill_repeatedly, process as process_of};
use crate::common::refused;
use crate::common::spread::{
    client, load, lost_part_is_noticed, no_folder_of_a_tree, nothing_to_plan, replaced_by_csv, round_trips,
    shell, single, structure_file,
};
use fatbtree_race::Table;

#[test]
fn a_table_is_loaded_measured_and_typed_into() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), "hash");
    let cluster = file.to_str().expect("a plain path");
    refused(&["up", cluster, "--keys", "100"], "--keys is for trees");
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
        "put 7 seven\nget 7\ninsert 7 x\nupdate 7 eight\nget 7\ndelete 7\nget 7\nupdate 7 x\nstats\nscan 1 2\n",
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
        "gets, changes and loads: 8;",
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
    assert_eq!(single(&["scan", "1..3"]).0, Some(3));

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
    assert!(!all && lines[..3] == ["ok", "v4999", "deleted"], "{answers}");
    assert!(lines[3].starts_with("whole: 4999 keys in "), "{answers}");
}

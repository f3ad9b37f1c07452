//! Tables of transactions over the memory servers of a cluster, in processes.

use std::collections::BTreeMap;
use std::time::Duration;

use fatbtree::{Bytes, Client, Error, Options};
use fatbtree_dtx::Tables;
use fatbtree_remote_memory::Structure as _;

use crate::common::processes::{Role, bench, kill, kill_repeatedly, process as process_of};
use crate::common::spread::{
    client, kill_a_writer, load, no_folder_of_a_tree, nothing_to_plan, replaced_by_csv, round_trips, shell,
    single, structure_file,
};
use crate::common::{refused, run};

#[test]
fn tables_are_loaded_measured_and_typed_into() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), "dtx");
    let cluster = file.to_str().expect("a plain path");
    refused(&["up", cluster, "--keys", "100"], "the memory servers hold a transactional table");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    refused(&["bench", "--cluster", cluster, "--operations", "1"], "hold no keys that were loaded");

    let result = load(cluster, &["--keys", "3000"]);
    assert_eq!((&result["keys"], &result["servers"]), (&3000.into(), &2.into()), "{result}");
    refused(&["load", "--cluster", cluster, "--keys", "10"], "repeat the command with --replace");
    let [b, c] = ["b", "c"].map(|workload| round_trips(cluster, workload));
    // The address of a key is remembered when it was used, and saves the READ of its node.
    assert!((1.0..1.8).contains(&c) && c < b && b < 2.6, "round trips of B and C: {b}, {c}");
    // Many clients at few hot keys: attempts, and no wrong answer.
    round_trips(cluster, "a");
    refused(
        &["bench", "--cluster", cluster, "--operations", "1", "--workload", "e"],
        "a transactional table has no order of keys",
    );
    refused(
        &["bench", "--cluster", cluster, "--operations", "1", "--structure", "hash"],
        "a structure of kind \"dtx\", expected \"hash\"",
    );

    load(cluster, &["--keys", "10", "--replace"]);
    for (workload, kinds) in [("smallbank", 6), ("tatp", 7)] {
        load(cluster, &["--keys", "1", "--replace"]);
        for _twice in 0..2 {
            let result = bench(cluster, &["--workload", workload, "--customers", "500"]);
            assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
            let percentiles = result["percentiles"].as_array().expect("a list");
            assert_eq!(percentiles.len(), kinds, "{result}");
            let round_trips = result["round_trips"].as_f64().expect("a number");
            assert!((1.0..12.0).contains(&round_trips), "{result}");
        }
        // Another customer's money, and a subscriber's half.
        let (answers, all) = shell(&["--cluster", cluster], "put 3 x\n");
        assert!(all, "{answers}");
        let wrong = run(&[
            "bench",
            "--cluster",
            cluster,
            "--operations",
            "2000",
            "--workload",
            workload,
            "--customers",
            "5",
        ]);
        assert!(!wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("WrongAnswer"));
    }
    for (workload, customers, why) in [("smallbank", "1", "2 or more"), ("tatp", "1e10", "or fewer")] {
        let bench = ["bench", "--cluster", cluster, "--operations", "1", "--workload", workload];
        refused(&[&bench[..], &["--customers", customers]].concat(), why);
    }
    for (workload, option, value, why) in [
        ("tatp", "--keys", "keys.txt", "brings its records"),
        ("tatp", "--value-bytes", "8", "brings its records"),
        ("tatp", "--seed", "1", "brings its records"),
        ("a", "--customers", "5", "smallbank or tatp"),
    ] {
        let bench = ["bench", "--cluster", cluster, "--operations", "1", "--workload", workload];
        refused(&[&bench[..], &[option, value]].concat(), why);
    }
    for structure in ["hash", "tree"] {
        refused(
            &[
                "bench",
                "--cluster",
                cluster,
                "--operations",
                "1",
                "--structure",
                structure,
                "--workload",
                "tatp",
            ],
            "expected",
        );
    }

    load(cluster, &["--keys", "10", "--replace"]);
    let (answers, all) = shell(
        &["--cluster", cluster],
        "put 7 seven\nget 7\ninsert 7 x\nupdate 7 eight\ncas 7 seven nine\ncas 7 eight nine\nlen\n\
         begin\nget 7\nput 7 ten\nput 8 eight\nabort\nget 7\nbegin\ndelete 7\ninsert 8 eight\ncommit\nget 7\nget 8\n",
    );
    let expected = "ok seven there_already updated not_set set 11 \
                    ok nine ok ok aborted nine ok deleted inserted committed not_there eight";
    let lines: Vec<String> = answers.lines().map(|line| line.replace(' ', "_")).collect();
    assert!(all, "{answers}");
    assert_eq!(lines, expected.split_whitespace().collect::<Vec<_>>(), "{answers}");
    let (_, all) = shell(&["--cluster", cluster], "commit\nscan 1 2\nbegin\nbegin\n");
    assert!(!all, "these lines are refused");
    let long = run(&["put", "5", &"x".repeat(127), "--cluster", cluster]);
    let why = String::from_utf8_lossy(&long.stderr).into_owned();
    assert!(!long.status.success() && why.contains("a value of 127 bytes"), "{why}");

    // Single operations, through the client library.
    let single = |arguments: &[&str]| single(cluster, arguments);
    assert_eq!(single(&["put", "9", "nine"]).0, Some(0));
    assert_eq!(single(&["get", "9"]), (Some(0), "nine".to_owned()));
    assert_eq!(single(&["scan"]).1.lines().count(), 12);
    assert_eq!(single(&["delete", "9"]).0, Some(0));
    assert_eq!(single(&["get", "9"]).0, Some(1));

    nothing_to_plan(cluster, "dtx");
    replaced_by_csv(cluster, folder.path());
    assert!(up.stop("INT").success());
}

/// Cents of an account.
fn cents(value: Option<&Bytes>) -> u64 {
    value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok()).expect("the account is there")
}

/// Moves a cent between two accounts.
async fn transfer(bank: &Client, from: u64, to: u64) -> Result<(), Error> {
    let moved = bank.transact(async |tx| {
        let (a, b) = (tx.get_for_update(from).await?, tx.get_for_update(to).await?);
        let (a, b) = (cents(a.as_ref()), cents(b.as_ref()));
        if a > 0 {
            tx.put(from, (a - 1).to_string()).await?;
            tx.put(to, (b + 1).to_string()).await?;
        }
        Ok(())
    });
    moved.await
}

/// Accounts of the bank, with 100 cents each.
const ACCOUNTS: u64 = 20;

/// What all accounts have, at one moment. A connection that breaks late, after the last kill, is a conflict: nothing has been done, and it is
/// done again.
async fn sum(bank: &Client) -> Result<u64, Error> {
    for _ in 0..100 {
        let all = bank.transact(async |tx| {
            let mut sum = 0;
            for account in 0..ACCOUNTS {
                sum += cents(tx.get(account).await?.as_ref());
            }
            Ok(sum)
        });
        match all.await {
            Err(Error::Conflict { .. }) => {}
            sum => return sum,
        }
    }
    panic!("a transaction that only reads conflicts a hundred times");
}

/// A bank whose clients transfer while servers are killed, with their folders or without them: no cent is lost.
fn bank_with_kills(data: bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), "dtx");
    let (cluster, data_path) = (file.to_str().expect("a plain path"), folder.path().join("data"));
    let mut arguments = vec!["up", cluster];
    if data {
        arguments.extend(["--data", data_path.to_str().expect("a plain path")]);
    }
    let up = Role::start(&arguments);
    let server = process_of(&up.until("right "));
    up.until("ready");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ended = runtime.block_on(async {
        let bank = Options::new(&file).patience(Duration::from_secs(30)).connect().await?;
        for account in 0..ACCOUNTS {
            bank.put(account, "100").await?;
        }
        // Conflicts of transactions that are open at once.
        let mut one = bank.begin().await?;
        one.get_for_update(1).await?;
        let mut other = bank.begin().await?;
        let conflict = other.get_for_update(1).await.expect_err("the other one has locked it");
        assert!(matches!(conflict, Error::Conflict { .. }), "{conflict}");
        other.abort().await?;
        one.put(1, "0").await?;
        drop(one);
        assert_eq!(bank.get(1).await?.as_deref(), Some(&b"100"[..]), "a dropped transaction is aborted");

        let kills = kill_repeatedly(up, server);
        let (mut done, mut number) = (0_u64, 0_u64);
        while !kills.is_finished() || done < 200 {
            number += 1;
            let from = number.wrapping_mul(7) % ACCOUNTS;
            let moved = transfer(&bank, from, (from + 1 + number % 5) % ACCOUNTS).await;
            // Under a kill the outcome may be unknown: then it is all of it, or nothing.
            done += u64::from(moved.is_ok());
        }
        assert_eq!(sum(&bank).await?, 100 * ACCOUNTS, "after {done} transfers of {number}");
        bank.close().await;
        Ok::<_, Error>(kills.join().expect("the server comes back"))
    });
    let up = ended.unwrap_or_else(|error| panic!("{error:?}"));

    // Replicas are equal.
    let mut process = client::<Tables<_>>(&file);
    let handle = process.client().clone();
    let verified = process.run(async {
        let tables = handle.structure().await.map_err(|error| error.to_string())?;
        let mut all = BTreeMap::new();
        let note =
            |_: u8, key: u64, value: &[u8]| drop(all.insert(key, fatbtree_dtx::unpack(value).to_vec()));
        let verified = tables.verify(note).await.map_err(|fault| fault.to_string())?;
        Ok::<_, String>((verified.keys, all))
    });
    let (keys, all) = verified.expect("it is not stopped").unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(keys, ACCOUNTS);
    let cents = |value: &Vec<u8>| std::str::from_utf8(value).expect("text").parse::<u64>().expect("cents");
    assert_eq!(all.values().map(cents).sum::<u64>(), 100 * ACCOUNTS);
    process.close();
    assert!(up.stop("INT").success());
    if data {
        no_folder_of_a_tree(cluster, data_path.to_str().expect("a plain path"), "dtx");
    }
}

#[test]
fn a_bank_loses_no_cent_when_servers_with_folders_are_killed() {
    bank_with_kills(true);
}

#[test]
fn a_bank_loses_no_cent_when_servers_without_folders_are_killed() {
    bank_with_kills(false);
}

#[test]
fn each_server_is_filled_from_the_other_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), "dtx");
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    let (left, right) = (process_of(&up.until("left ")), process_of(&up.until("right ")));
    up.until("ready");
    load(cluster, &["--keys", "2000"]);
    for server in [right, left] {
        assert!(kill("KILL", server));
        up.until("started");
        up.until("ready");
        // Each value is what was loaded.
        let result = bench(cluster, &["--workload", "c", "--patience", "30"]);
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
        let (answers, all) = shell(&["--cluster", cluster], "len\n");
        assert!(all && answers == "2000\n", "{answers}");
    }
    assert!(up.stop("INT").success());
}

/// A client that is killed in the middle of commits leaves locks and open logs: others finish what it has left, and go on.
#[test]
fn clients_go_on_after_another_one_was_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), "dtx");
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    load(cluster, &["--keys", "1000"]);
    for kill_after in [300, 700] {
        kill_a_writer(cluster, Duration::from_millis(kill_after));
        // All keys are read, and none is locked for ever.
        let mut process = client::<Tables<_>>(&file);
        let handle = process.client().clone();
        let count = process.run(async {
            let (mut count, mut next) = (0, Some(0));
            while let Some(from) = next {
                let portion = handle.export(from, 100).await.result?;
                (count, next) = (count + portion.pairs.len(), portion.rest);
            }
            Ok::<_, fatbtree_dtx::DtxError>(count)
        });
        assert_eq!(count.expect("it is not stopped"), Ok(1000));
        process.close();
    }
    let result = bench(cluster, &["--workload", "a", "--patience", "30"]);
    assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
    assert!(up.stop("INT").success());
}

#[test]
fn tables_can_be_tried_without_a_cluster() {
    let lines = "load 5000\nget 4999\ndelete 1\nbegin\nput 2 two\nget 2\ncommit\nget 2\nverify\nlen\n";
    let (answers, all) = shell(&["--structure", "dtx", "--servers", "3"], lines);
    let lines: Vec<&str> = answers.lines().collect();
    assert!(all, "{answers}");
    assert_eq!(lines[..8], ["ok", "v4999", "deleted", "ok", "ok", "two", "committed", "two"], "{answers}");
    assert!(lines[8].starts_with("whole: 4999 keys"), "{answers}");
    assert_eq!(lines[9..], ["4999"]);
}

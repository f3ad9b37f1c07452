//! Memory servers that are filled while they run, and that come back with what they held.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::processes::{
    Role, bench, client_options, cluster_file, kill, kill_repeatedly, process as process_of,
};
use crate::common::{refused, run};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::TreeInfo;
use fatbtree_processes::{Adapter, ClientProcess};
use fatbtree_remote_memory::session_keeper::Call;
use fatbtree_topology::Cluster;

/// A client in this process.
fn client(file: &Path) -> ClientProcess {
    ClientProcess::open(&client_options(file, None)).expect("the servers run")
}

async fn get(client: &Client<Adapter>, key: u64) -> Result<Option<Vec<u8>>, String> {
    let found = client.get(key).await.map_err(|error| error.to_string())?;
    Ok(found.map(|value| value.to_vec()))
}

/// Asks until the answer is there: after a load the client has to connect anew first. Whatever comes before that is the old answer, or
/// none.
fn soon(process: &mut ClientProcess, key: u64, expected: Option<&[u8]>, before: Option<&[u8]>) {
    let (client, began) = (process.client().clone(), Instant::now());
    loop {
        let found = process.run(get(&client, key)).expect("it is not stopped");
        if found.as_ref().is_ok_and(|found| found.as_deref() == expected) {
            return;
        }
        if let Ok(found) = &found {
            assert_eq!(found.as_deref(), before, "neither what was there nor what was loaded");
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{found:?} for {key}, {expected:?} was expected");
        process.run_for(Duration::from_millis(20)).expect("it is not stopped");
    }
}

fn load(cluster: &str, keys: &str) -> serde_json::Value {
    let output = run(&["load", "--cluster", cluster, "--keys", keys, "--replace", "--json", "-"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn generation(result: &serde_json::Value) -> u64 {
    result["servers"][1]["generation"].as_u64().expect("a number")
}

#[test]
fn servers_begin_empty_are_loaded_and_loaded_again_under_a_client() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path");
    refused(&["load", "--cluster", cluster, "--keys", "10"], "is it running?");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    refused(&["bench", "--cluster", cluster, "--operations", "1"], "hold no keys that were loaded");

    // Clients can insert at once.
    let mut process = client(&file);
    let client = process.client().clone();
    let written = process.run(async {
        for key in [5, u64::MAX, 1 << 62] {
            client.upsert(key, b"first").await?;
        }
        client.len().await
    });
    assert_eq!(written.expect("it is not stopped").expect("the servers are writable"), 3);

    // What is bad is told before anything is sent.
    let csv = folder.path().join("people.csv");
    let csv_name = csv.to_str().expect("a plain path");
    std::fs::write(&csv, "key,value\n1,a\n1,b\n").expect("written");
    refused(&["load", "--cluster", cluster, "--keys", csv_name], "people.csv:3: key 1 is on line 2 already");
    soon(&mut process, 5, Some(b"first"), None);
    // Inserted keys are as safe as loaded ones.
    for words in [["--keys", "3000"], ["--empty", "left"]] {
        let words = [&["load", "--cluster", cluster], &words[..]].concat();
        refused(&words, "repeat the command with --replace");
        refused(&words, "memory server left holds a tree of ");
    }
    soon(&mut process, 5, Some(b"first"), None);

    // All keys are below 2^62, where the file has the border: it moves, and the client follows.
    let lines = (1..=2000).map(|key| format!("{key},value {key}\n"));
    std::fs::write(&csv, lines.collect::<String>()).expect("written");
    let result = load(cluster, csv_name);
    let before = generation(&result);
    assert_eq!((&result["keys"], &result["servers"][0]["keys"]), (&2000.into(), &1000.into()), "{result}");
    assert_eq!(result["servers"][1]["low"], "0x3e9", "between 1000 and 1001: {result}");
    soon(&mut process, 5, Some(b"value 5"), Some(b"first"));
    soon(&mut process, 1999, Some(b"value 1999"), None);
    soon(&mut process, u64::MAX, None, Some(b"first"));
    let checked = process.run(async {
        for key in 1..=2000 {
            assert_eq!(get(&client, key).await, Ok(Some(format!("value {key}").into_bytes())));
        }
        client.upsert(5, b"changed").await?;
        client.upsert(3000, b"new").await?;
        Ok::<_, fatbtree_blink::OperationError>(client.verify().await.map(|verified| verified.keys))
    });
    let verified = checked.expect("it is not stopped").expect("it can write");
    assert_eq!(verified, Ok(2001));
    process.close();

    let left = format!("(generation {})", result["servers"][0]["generation"]);
    refused(&["load", "--cluster", cluster, "--keys", "3000"], &left);
    let result = load(cluster, "3000");
    assert_eq!(generation(&result), before + 1, "{result}");
    let result = bench(cluster, &[]);
    assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
    another_layout(&file, cluster);
    assert!(up.stop("INT").success());
}

/// Values of 32 bytes lie in records, and then in leaves of buckets. A client that is connected is told, and empty servers follow the others.
fn another_layout(file: &Path, cluster: &str) {
    let load = |words: &[&str]| {
        let all = [&["load", "--cluster", cluster, "--replace", "--json", "-"], words].concat();
        let output = run(&all);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let bench = || {
        let result = bench(cluster, &["--value-bytes", "32", "--workload", "c"]);
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
        result["read_bytes"].as_f64().expect("a number")
    };
    let keys = ["--keys", "3000", "--value-bytes", "32"];
    load(&keys);
    let records = bench();
    refused(
        &[&["load", "--cluster", cluster, "--replace", "--inline", "43", "--leaves", "buckets"], &keys[..]]
            .concat(),
        "plain leaves",
    );
    let mut process = client(file);
    let client = process.client().clone();
    process.run(get(&client, 5)).expect("it is not stopped").expect("the servers run");
    load(&[&keys[..], &["--inline", "32", "--leaves", "buckets"]].concat());
    let began = Instant::now();
    let told = loop {
        match process.run(get(&client, 5)) {
            Err(error) => break error.to_string(),
            Ok(found) => assert!(began.elapsed() < Duration::from_secs(30), "{found:?}"),
        }
    };
    assert!(told.contains("another layout than when this client connected"), "{told}");
    assert!(told.contains("connect anew"), "{told}");
    process.close();
    // Lookups that begin before all switches have the new plan ask for more.
    let began = Instant::now();
    loop {
        let buckets = bench();
        if buckets < records / 2.0 {
            break;
        }
        let told = format!("{buckets} bytes a lookup in buckets, {records} with records");
        assert!(began.elapsed() < Duration::from_secs(30), "{told}");
    }
    load(&["--empty", "left"]);
    let mut process = self::client(file);
    soon(&mut process, 5, None, None);
    process.close();
}

#[test]
fn a_server_with_a_folder_comes_back_with_its_tree_after_a_kill() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let (cluster, data) = (file.to_str().expect("a plain path"), folder.path().join("data"));
    let data = data.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster, "--data", data, "--keys", "100"]);
    let server = process_of(&up.until("left "));
    up.until("ready");
    load(cluster, "3000");
    let taken = Path::new(data).join("left");
    let taken = taken.to_str().expect("a plain path");
    let args = |data| ["memserver", "left", "--cluster", cluster, "--data", data];
    // Its ports are in use, too, but a folder is locked by the process that has it.
    assert!(std::fs::File::open(Path::new(taken).join("lock")).is_ok_and(|lock| lock.try_lock().is_err()));

    let mut process = client(&file);
    let client = process.client().clone();
    // Small keys are none of YCSB's: the bench does not ask for them. Enough to split leaves, and to need chunks.
    // Killed in the middle of it, three times.
    let kills = kill_repeatedly(up, server);
    let (mut keys, mut is_known) = (0, true);
    while !kills.is_finished() || keys < 300 || !is_known {
        let value = format!("written {keys}").into_bytes();
        let written = process.run(client.upsert(keys, &value)).expect("it is not stopped");
        // After an error the outcome of the write is unknown: it is done again.
        is_known = written.is_ok();
        keys += u64::from(is_known);
    }
    let up = kills.join().expect("the server comes back");
    // The same client goes on, and writes.
    let read = process.run(async {
        for key in 0..keys {
            assert_eq!(get(&client, key).await, Ok(Some(format!("written {key}").into_bytes())));
        }
        client.upsert(7, b"again").await
    });
    read.expect("it is not stopped").expect("it can write");
    process.close();
    let result = bench(cluster, &[]);
    assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
    assert!(up.stop("INT").success());

    let up = Role::start(&["up", cluster, "--data", data]);
    up.until("ready");
    let mut process = self::client(&file);
    soon(&mut process, 7, Some(b"again"), None);
    soon(&mut process, 299, Some(b"written 299"), None);
    let client = process.client().clone();
    let verified = process.run(async { client.verify().await }).expect("it is not stopped");
    assert_eq!(verified.map(|verified| verified.keys), Ok(3000 + keys));
    process.close();
    assert!(up.stop("TERM").success());

    let other = Path::new(data).join("right");
    refused(&args(other.to_str().expect("a plain path")), "belongs to memory server right (partition 1, ");
    std::fs::write(Path::new(taken).join("state.json"), "{").expect("written");
    refused(&args(taken), "is damaged");
}

/// Without a folder the server comes back empty: neither the client that has known its tree, nor another one, is told that keys are not there.
#[test]
fn a_server_that_comes_back_without_its_tree_serves_nobody_until_it_is_loaded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    let server = process_of(&up.until("left "));
    up.until("ready");
    // The border is far from where the cluster file has it from then on.
    let keys = folder.path().join("keys.txt");
    std::fs::write(&keys, (100..200).map(|key| format!("{key}\n")).collect::<String>()).expect("written");
    let loaded = run(&["load", "--cluster", cluster, "--keys", keys.to_str().expect("a plain path")]);
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
    let mut process = client(&file);
    let client = process.client().clone();
    let pairs = [(5, b"five".as_slice()), (u64::MAX, b"last")];
    let written = process.run(async {
        for (key, value) in pairs {
            client.upsert(key, value).await?;
        }
        Ok::<_, fatbtree_blink::OperationError>(())
    });
    written.expect("it is not stopped").expect("it can write");
    assert!(kill("KILL", server));
    up.until("ended");
    // The controller may warn before `up` has an answer from the server.
    up.until_all(&["ready", "warning: memory server left came back without its tree"]);

    let lost = |process: &mut ClientProcess, reason: &str| {
        let (client, began) = (process.client().clone(), Instant::now());
        loop {
            match process.run(get(&client, 5)).expect("it is not stopped") {
                Err(error) if error.contains(reason) => return,
                Ok(Some(value)) if value == b"five" => {}
                Ok(found) => panic!("key 5 was written, and {found:?} is found"),
                Err(error) => assert!(began.elapsed() < Duration::from_secs(30), "{error}"),
            }
        }
    };
    lost(&mut process, "has lost its tree");
    let written = process.run(client.upsert(6, b"six")).expect("it is not stopped");
    assert!(written.expect_err("it is not served").to_string().contains("has lost its tree"));
    // The other server is there.
    soon(&mut process, u64::MAX, Some(b"last"), None);
    // Nor is one that has not known the tree.
    let described =
        Cluster::from_toml(&std::fs::read_to_string(&file).expect("the file")).expect("it was checked");
    let left = described.server(0).expect("left").grpc.clone();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let refusal = runtime.block_on(async {
        let mut server =
            fatbtree_memserver::grpc::Client::connect(left.as_str()).await.expect("it is let in");
        let open = Call::Open { known: None };
        server.call::<TreeInfo>([10, 1, 0, 9].into(), open).await.expect_err("refused").to_string()
    });
    assert!(refusal.contains("has lost what it held"), "{refusal}");
    let began = Instant::now();
    loop {
        let output = run(&["control", "status", "--cluster", cluster]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.lines().any(|line| line.contains("left") && line.contains("tree lost")) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{text}");
        std::thread::sleep(Duration::from_millis(100));
    }
    // That is meant, says an operator.
    refused(&["load", "--cluster", cluster, "--empty", "core-0"], "they are left, right");
    let output = run(&["load", "--cluster", cluster, "--empty", "left"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    soon(&mut process, 5, None, None);
    let written = process.run(client.upsert(5, b"again")).expect("it is not stopped");
    written.expect("it can write");
    soon(&mut process, 5, Some(b"again"), None);
    soon(&mut process, u64::MAX, Some(b"last"), None);
    process.close();
    // Its partition fits the other one's.
    let mut process = self::client(&file);
    for key in [120, 149] {
        soon(&mut process, key, None, None);
    }
    assert_eq!(process.client().pool().roots().partitions()[1].range.low, 150);
    process.close();
    assert!(up.stop("INT").success());
}

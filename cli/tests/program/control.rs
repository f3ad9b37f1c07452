//! An operator and a controller: what it tells, what it is told, what it refuses, and what becomes of switches that freeze and die.

use std::time::{Duration, Instant};

use crate::common::processes::{Role, bench, cluster_file, kill, process};
use crate::common::run;
use serde_json::Value;

struct Operator {
    cluster: String,
}

impl Operator {
    fn output(&self, words: &[&str]) -> std::process::Output {
        run(&[&["control"], words, &["--cluster", &self.cluster]].concat())
    }

    fn asks(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.asks(&[words, &["--json"]].concat())).expect("JSON")
    }

    fn refused(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    fn switch(&self, name: &str) -> Value {
        let status = self.json(&["status"]);
        let mut switches = status["switches"].as_array().expect("a list").iter();
        switches.find(|switch| switch["name"] == name).cloned().expect("it is in the network")
    }

    fn waits(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}: {}", self.asks(&["status"]));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn epoch(&self) -> Option<u64> {
        self.json(&["status"])["epoch"].as_u64()
    }
}

#[test]
fn an_operator_looks_plans_reloads_and_goes_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let operator = Operator { cluster: file.to_str().expect("a plain path").to_owned() };
    let path = |name: &str| folder.path().join(name).display().to_string();
    assert!(operator.refused(&["status"]).contains("is it running?"));
    let refused = operator.refused(&["wait-ready", "--patience", "1"]);
    assert!(refused.contains("not whole after 1 s") && refused.contains("is it running?"), "{refused}");
    let up = Role::start(&["up", &operator.cluster, "--keys", "20000"]);
    let left = process(&up.until("left "));
    let core = process(&up.until("core-0 "));
    let edge = process(&up.until("edge-0-1 "));
    up.until("ready");
    operator.waits("a first plan", |operator| operator.epoch().is_some());
    let first_plan = operator.json(&["status"])["plan"].clone();
    // Every role answers; whether cables carry frames is known when probes have passed them, and there are routes then.
    assert_eq!(operator.asks(&["wait-ready"]), "ready\n");

    // What it tells.
    let status = operator.json(&["status"]);
    assert_eq!(status["switches"].as_array().map(Vec::len), Some(13));
    assert!(status["servers"].as_array().expect("a list").iter().all(|server| server["state"] == "settled"));
    let core_status = operator.switch("core-0");
    assert_eq!((&core_status["state"], &core_status["epoch"]), (&"settled".into(), &status["epoch"]));
    assert!(
        core_status["program"].is_string() && core_status["entries"].as_u64() > Some(100),
        "{core_status}"
    );
    assert!(operator.asks(&["status"]).contains("active"));
    // How full it is: all entries of plans are in these tables, and a few that are always there.
    let tables = core_status["tables"].as_array().expect("a list");
    let sum = |memory: &str, what: &str| -> u64 {
        let those = tables.iter().filter(|table| table["memory"] == memory);
        those.map(|table| table["entries"][what].as_u64().expect("a number")).sum()
    };
    assert!(sum("tcam", "used") > 100 && sum("sram", "used") > 0, "{core_status}");
    assert!(sum("tcam", "used") + sum("sram", "used") > core_status["entries"].as_u64().expect("a number"));
    for table in tables {
        let [used, size] = ["used", "size"].map(|what| table["entries"][what].as_u64().expect("a number"));
        assert!(used <= size && size > 0, "{table}");
    }
    let text = operator.asks(&["status"]);
    let line = text.lines().find(|line| line.contains("core-0")).expect("a line for each switch");
    assert!(text.contains("TCAM") && text.contains("SRAM") && line.matches(" %").count() == 2, "{line}");
    assert!(operator.asks(&["show"]).contains("fat root in core-0"));
    let explained = operator.json(&["explain", "0x1234"]);
    assert_eq!(explained["steps"][0]["table"], "fat root");
    assert_eq!(
        explained["steps"].as_array().and_then(|steps| steps.last()).map(|last| &last["address"]),
        Some(&explained["address"])
    );
    assert_eq!(bench(&operator.cluster, &[])["wrong"], 0);
    let counters = operator.json(&["counters"]);
    let ended: u64 = counters["tables"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|table| table["stops"].as_u64())
        .sum();
    assert!(ended >= 3000, "{counters}");
    assert!(operator.asks(&["counters"]).contains("fat root"));

    // Plans: a dry run changes nothing; the controller chooses the epochs.
    let first = operator.epoch().expect("a plan is active");
    let text = operator.asks(&["plan", "--save", &path("kept.json")]);
    assert!(text.contains("round trips") && text.contains("kept.json"), "{text}");
    assert_eq!(operator.epoch(), Some(first));
    let kept = run(&["plan", "show", &path("kept.json")]);
    let kept = String::from_utf8(kept.stdout).expect("text");
    operator.asks(&["diff"]);
    // Most of the nodes stay, so only what differs is written, under the epoch that is active.
    let second = operator.json(&["reload"]);
    let [entries, changes] = ["entries", "changes"].map(|what| second[what].as_u64().expect("a number"));
    assert!(second["epoch"].as_u64() == Some(first) && changes < 2 * entries, "{second}");
    // Keys that are asked for often are hot now: switches lead to their records at once, and these reads are a row of their own.
    let client = Role::start(&["bench", "--cluster", &operator.cluster, "--operations", "100000000"]);
    let hot = |operator: &Operator| {
        let counters = operator.json(&["counters"]);
        assert_eq!(counters["tables"][0]["table"], "hot keys", "{counters}");
        counters["tables"][0]["stops"].as_u64().expect("a number")
    };
    operator.waits("reads of hot keys are counted", |operator| hot(operator) > 1000);
    let status = operator.json(&["status"]);
    let [of_client, all] = [&status["clients"][0]["hot_keys"], &status["hot_keys"]].map(Value::as_u64);
    assert!(of_client > Some(0) && all >= of_client, "{status}");
    client.stop("INT");
    // A plan with hot keys is another one than the first, whatever its epoch.
    let before = operator.json(&["status"])["plan"].clone();
    assert_ne!(before, first_plan);
    let third = operator.json(&["reload", "--plan", &path("kept.json")]);
    assert_eq!(operator.epoch(), third["epoch"].as_u64());
    let fingerprint = third["plan"].as_str().expect("a fingerprint");
    assert!(kept.starts_with(&format!("plan {fingerprint} ")), "{fingerprint} is not in\n{kept}");
    assert_eq!(operator.json(&["status"])["plan"], third["plan"]);
    assert!(operator.asks(&["show"]).contains(fingerprint));
    let rolled_back = operator.json(&["rollback"]);
    let fourth = rolled_back["epoch"].as_u64();
    assert_eq!((operator.epoch(), &rolled_back["plan"]), (fourth, &before));
    let synced = operator.json(&["sync"]);
    assert_eq!((&synced["settled"], &synced["others"]), (&13.into(), &Value::Array(vec![])));

    // Plans for something else.
    let text = std::fs::read_to_string(path("kept.json")).expect("it was kept");
    let changed = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut value: Value = serde_json::from_str(&text).expect("JSON");
        change(&mut value);
        std::fs::write(path(name), value.to_string()).expect("a file");
        operator.refused(&["reload", "--plan", &path(name)])
    };
    let refused = changed("roots.json", &|value| value["plan"]["roots"] = vec![99].into());
    assert!(refused.contains("switch number 99 in the plan, core-0 in the cluster file"), "{refused}");
    let refused = changed("tree.json", &|value| value["source"]["1"]["number"] = 7.into());
    assert!(refused.contains("another tree of partition 1"), "{refused}");
    let refused = changed("damaged.json", &|value| value["plan"]["fat_root"][0]["low"] = 5.into());
    assert!(refused.contains("expected ranges from key 0"), "{refused}");
    std::fs::write(path("none.json"), "{}").expect("a file");
    assert!(operator.refused(&["reload", "--plan", &path("none.json")]).contains("control plan --save"));
    assert_eq!(operator.epoch(), fourth);

    // A frozen switch is named, and holds up no other.
    assert!(kill("STOP", edge));
    operator.waits("it is missed", |operator| operator.switch("edge-0-1")["state"] == "silent");
    let refused = operator.refused(&["wait-ready", "--patience", "1"]);
    assert!(refused.contains("switch edge-0-1 does not answer"), "{refused}");
    let reason = operator.switch("edge-0-1")["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.contains("edge-0-1"), "{reason}");
    operator.json(&["reload"]);
    let refused = operator.refused(&["sync"]);
    assert!(refused.contains("edge-0-1"), "{refused}");
    let line = up.until("silent: it runs");
    assert!(line.contains(" edge-0-1 "), "{line}");
    assert!(kill("CONT", edge));
    operator.waits("it is back", |operator| operator.switch("edge-0-1")["state"] == "settled");

    // So is a memory server; no plan is made without its tree.
    assert!(kill("STOP", left));
    let state = |operator: &Operator| operator.json(&["status"])["servers"][0]["state"].clone();
    operator.waits("it is missed", |operator| state(operator) == "silent");
    let refused = operator.refused(&["reload"]);
    assert!(refused.contains("memory server left does not answer"), "{refused}");
    // The supervisor names it, too.
    let line = up.until("silent: it runs");
    assert!(line.contains(" left "), "{line}");
    assert!(kill("CONT", left));
    operator.waits("it is back", |operator| state(operator) == "settled");
    operator.json(&["reload"]);

    // One that comes back empty gets everything, and the others are left alone.
    assert_eq!(operator.asks(&["wait-ready"]), "ready\n");
    let before = operator.switch("core-0");
    assert!(kill("KILL", core));
    up.until("ended");
    up.until("ready");
    assert_eq!(operator.asks(&["wait-ready"]), "ready\n");
    assert_eq!(operator.switch("core-0"), before);
    assert_eq!(operator.json(&["sync"])["settled"], 13);
}

#[test]
fn a_controller_that_is_killed_goes_on_with_its_plan() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let operator = Operator { cluster: file.to_str().expect("a plain path").to_owned() };
    let data = folder.path().join("data").display().to_string();
    let up = Role::start(&["up", &operator.cluster, "--keys", "5000", "--data", &data]);
    let controller = process(&up.until("controller "));
    up.until("ready");
    operator.waits("a first plan", |operator| operator.epoch().is_some());
    operator.json(&["reload"]);
    let (epoch, plan) = (operator.epoch(), operator.json(&["show"]));
    assert!(kill("KILL", controller));
    up.until("ended");
    up.until("ready");
    // Every role answers; the controller may still be reading the switches.
    operator.waits("it has read the switches", |operator| operator.epoch().is_some());
    assert_eq!(operator.epoch(), epoch);
    assert_eq!(operator.json(&["show"]), plan);
    assert_eq!(bench(&operator.cluster, &[])["wrong"], 0);
}

//! JSON that commands print is as `docs/src/schema.json` says, which has each field of each command.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::processes::{Role, cluster_file_like};
use crate::common::repository::read;
use crate::common::run;
use serde_json::{Value, json};

fn schema() -> Value {
    serde_json::from_str(&read("docs/src/schema.json")).expect("it is JSON")
}

/// Checks a value by the keywords of JSON Schema that `schema.json` uses. Another keyword panics: it would not be checked.
fn check(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let refused = |expected: &str| Err(format!("{at}: expected {expected}, found {value}"));
    for (keyword, wanted) in schema.as_object().expect("a schema is an object") {
        let texts = || wanted.as_array().into_iter().flatten().filter_map(Value::as_str);
        match keyword.as_str() {
            "description" => {}
            "$ref" => {
                let path =
                    wanted.as_str().and_then(|path| path.strip_prefix('#')).expect("a path in the file");
                check(root, root.pointer(path).expect("it is there"), value, at)?;
            }
            "anyOf" => {
                let schemas = wanted.as_array().expect("schemas");
                let errors: Vec<_> =
                    schemas.iter().filter_map(|schema| check(root, schema, value, at).err()).collect();
                if errors.len() == schemas.len() {
                    return Err(errors.join("; "));
                }
            }
            "type" => {
                let is = |kind: &str| match kind {
                    "null" => value.is_null(),
                    "boolean" => value.is_boolean(),
                    "integer" => value.is_u64() || value.is_i64(),
                    "number" => value.is_number(),
                    "string" => value.is_string(),
                    "array" => value.is_array(),
                    "object" => value.is_object(),
                    other => panic!("type {other}"),
                };
                if !wanted.as_str().into_iter().chain(texts()).any(is) {
                    return refused(&wanted.to_string());
                }
            }
            "enum" if !wanted.as_array().expect("values").contains(value) => {
                return refused(&wanted.to_string());
            }
            "minimum" if value.as_f64().is_some_and(|value| value < wanted.as_f64().expect("a number")) => {
                return refused(&format!("at least {wanted}"));
            }
            "required" => {
                if let Some(missing) = texts().find(|name| value.get(name).is_none()) {
                    return refused(&format!("a field {missing}"));
                }
            }
            "properties" => {
                for (name, schema) in wanted.as_object().expect("schemas by name") {
                    if let Some(value) = value.get(name) {
                        check(root, schema, value, &format!("{at}.{name}"))?;
                    }
                }
            }
            "additionalProperties" => {
                assert_eq!(wanted, false);
                let known = |name: &&String| schema["properties"].get(name.as_str()).is_some();
                let fields = value.as_object();
                let more = fields.into_iter().flat_map(|fields| fields.keys()).find(|name| !known(name));
                if let Some(more) = more {
                    return refused(&format!("no field {more}"));
                }
            }
            "prefixItems" => {
                let parts =
                    wanted.as_array().expect("schemas").iter().zip(value.as_array().into_iter().flatten());
                for (n, (schema, value)) in parts.enumerate() {
                    check(root, schema, value, &format!("{at}[{n}]"))?;
                }
            }
            "minItems"
                if value
                    .as_array()
                    .is_some_and(|items| (items.len() as u64) < wanted.as_u64().unwrap_or(0)) =>
            {
                return refused(&format!("{wanted} items"));
            }
            "items" => {
                let before = schema["prefixItems"].as_array().map_or(0, Vec::len);
                for (n, item) in value.as_array().into_iter().flatten().enumerate().skip(before) {
                    if wanted == false {
                        return refused(&format!("{before} items"));
                    }
                    check(root, wanted, item, &format!("{at}[{n}]"))?;
                }
            }
            "enum" | "minimum" | "minItems" => {}
            other => panic!("this test does not know the keyword {other}"),
        }
    }
    Ok(())
}

/// Outputs that are looked at, and the names of those that have been.
struct Outputs {
    schema: Value,
    seen: BTreeSet<String>,
}

impl Outputs {
    fn new() -> Self {
        Self { schema: schema(), seen: BTreeSet::new() }
    }

    fn check(&mut self, name: &str, output: &Value) {
        let definition = self.schema["$defs"].get(name).unwrap_or_else(|| panic!("no {name} in the schema"));
        if let Err(error) = check(&self.schema, definition, output, name) {
            panic!("docs/src/schema.json is not what is printed: {error}");
        }
        self.seen.insert(name.to_owned());
    }

    /// What a command prints, one value or one a line.
    fn of(&mut self, name: &str, words: &[&str]) -> Vec<Value> {
        let output = run(words);
        let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
        let values: Vec<Value> = values.map(|value| value.expect("JSON")).collect();
        assert!(!values.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        values.iter().for_each(|value| self.check(name, value));
        values
    }

    fn of_file(&mut self, name: &str, path: &Path) {
        let text = fs::read_to_string(path).expect("it was written");
        let values = serde_json::Deserializer::from_str(&text).into_iter();
        values.for_each(|value| self.check(name, &value.expect("JSON")));
    }
}

#[test]
fn each_command_prints_what_the_schema_says() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = ["--cluster", file.to_str().expect("a plain path")];
    let up = Role::start(&["up", cluster[1], "--serve", "queries"]);
    up.until("ready");
    let mut outputs = Outputs::new();
    let mut of = |name: &str, words: &[&str]| outputs.of(name, &[words, &cluster].concat());
    let values = ["seven", "a b", "", "\"say\"", "0x00ff", "\ttab\n"];
    let mut expected = Vec::new();
    for (key, value) in (7..).zip(values) {
        let text = key.to_string();
        let put = of("put", &["put", &text, "--text", value, "--json"]);
        assert_eq!(put, [json!({ "key": key, "put": true })]);
        expected.push(json!({ "key": key, "value": value }));
        assert_eq!(of("get", &["get", &text, "--json"]), expected[expected.len() - 1..]);
    }
    of("put", &["put", "99", "0x00ff", "--json"]);
    expected.push(json!({ "key": 99, "hex": "00ff" }));
    assert_eq!(of("get", &["get", "99", "--json"]), expected[expected.len() - 1..]);
    assert_eq!(of("get", &["get", "6", "--json"]), [json!({ "key": 6, "value": null })]);
    assert_eq!(of("scan", &["scan", "..", "--json"]), expected);
    assert_eq!(of("scan", &["scan", "--json"]), expected);
    assert_eq!(of("delete", &["delete", "7", "--json"]), [json!({ "key": 7, "deleted": true })]);
    assert_eq!(of("delete", &["delete", "7", "--json"]), [json!({ "key": 7, "deleted": false })]);
    let loaded = of("load", &["load", "--keys", "2000", "--replace", "--json", "-"]);
    assert_eq!(loaded[0]["keys"], 2000, "{loaded:?}");
    let progress = path("progress.json");
    let bench = ["bench", "--operations", "500", "--json", "-"];
    of(
        "bench",
        &[&bench[..], &["--workload", "a", "--entry-cache", "1M", "--cache", "1M", "--progress", &progress]]
            .concat(),
    );
    of("bench", &[&bench[..], &["--protocol", "query"]].concat());
    let parts = [path("one.json"), path("two.json")];
    of("bench", &[&bench[..], &["--rate", "2000", "--out", &parts[0]]].concat());
    of("bench", &[&bench[..], &["--workload", "a", "--out", &parts[1]]].concat());
    // A switch may hold what it should a moment later, on a busy machine.
    of("control_status", &["control", "wait-ready", "--json"]);
    of("control_reload", &["control", "reload", "--json"]);
    // A client that is there while the controller is asked, and has led reads to hot keys.
    let client = [&bench[..1], &["--operations", "100000000"], &cluster].concat();
    let client = Role::start(&client);
    let began = Instant::now();
    while !run(&[&["control", "status", "--json"], &cluster[..]].concat())
        .stdout
        .windows(12)
        .any(|w| w == b"\"stale_hints")
    {
        assert!(began.elapsed() < Duration::from_secs(60), "the client does not report");
        std::thread::sleep(Duration::from_millis(100));
    }
    of("control_status", &["control", "wait-ready", "--json"]);
    for name in ["status", "plan", "show", "diff", "explain", "counters", "drops", "sync"] {
        let key: &[&str] = if name == "explain" { &["4711"] } else { &[] };
        of(&format!("control_{name}"), &[&["control", name], key, &["--json"]].concat());
    }
    client.stop("INT");
    let saved = path("plan.json");
    let save = [&["control", "plan", "--save", &saved], &cluster[..]].concat();
    assert!(run(&save).status.success());
    outputs.of_file("saved_plan", Path::new(&saved));
    outputs.of_file("bench_progress", Path::new(&progress));
    parts.iter().for_each(|part| outputs.of_file("bench_out", Path::new(part)));
    let merged = outputs.of("merge", &["merge", &parts[0], &parts[1], "--json"]);
    assert_eq!((&merged[0]["runs"], &merged[0]["operations"]), (&json!(2), &json!(1000)), "{merged:?}");
    let counts = merged[0]["percentiles"].as_array().expect("a list").iter();
    assert_eq!(counts.filter_map(|kind| kind["count"].as_u64()).sum::<u64>(), 1000, "{merged:?}");
    assert!(up.stop("INT").success());

    let up = Role::start(&["up", cluster[1], "--structure", "hash"]);
    up.until("ready");
    let hash = ["load", "--keys", "500", "--structure", "hash", "--json", "-"];
    outputs.of("load_hash", &[&hash[..], &cluster].concat());
    outputs.of("control_status", &[&["control", "status", "--json"], &cluster[..]].concat());
    assert!(up.stop("INT").success());

    let trace = path("made.trace");
    assert!(run(&["trace", "make", "--operations", "100", "--keys", "10", "--out", &trace]).status.success());
    outputs.of("trace_show", &["trace", "show", &trace, "--json"]);
    let demo = path("demo.json");
    let words = ["demo", "--keys", "5000", "--lookups", "500", "--json", &demo];
    assert!(run(&words).status.success(), "{words:?}");
    outputs.of_file("demo", Path::new(&demo));

    let rows = path("rows.json");
    for (name, of) in [
        ("figures", &["sherman"][..]),
        ("figures", &["structures", "--figure", "skewed"]),
        ("figures_of_smart", &["smart", "--figure", "4"]),
        ("figures_of_smart", &["smart", "--figure", "led"]),
        ("figures_of_dolphin", &["dolphin", "--figure", "8"]),
        ("figures_of_dolphin", &["dolphin", "--figure", "table-2"]),
        ("figures_of_dolphin", &["dolphin", "--figure", "switches"]),
    ] {
        let words = [&["figures", "--keys", "2000", "--window", "100", "--json", &rows, "--of"], of].concat();
        assert!(run(&words).status.success(), "{words:?}");
        outputs.of_file(name, Path::new(&rows));
    }
    outputs.of("simulate", &["simulate", "reads", "--seed", "1"]);

    // Parts of others, which these have brought along.
    let parts = [
        "room",
        "percentiles",
        "way",
        "figure",
        "figure_row",
        "smart_figure",
        "smart_row",
        "smart_check",
        "memory_row",
        "switch_row",
        "published",
    ];
    let parts = parts.map(str::to_owned);
    let all: BTreeSet<String> = outputs.schema["$defs"].as_object().expect("names").keys().cloned().collect();
    let seen: BTreeSet<String> = outputs.seen.into_iter().chain(parts).collect();
    assert_eq!(all, seen, "each entry of the schema was looked at");
}

/// The checker refuses each kind of difference.
#[test]
fn outputs_that_differ_are_refused() {
    let schema = schema();
    let is = |name: &str, value: Value| check(&schema, &schema["$defs"][name], &value, name);
    assert_eq!(is("get", json!({ "key": 7, "value": null })), Ok(()));
    for (value, reason) in [
        (json!({ "key": 7 }), "get: expected a field value"),
        (json!({ "key": 7, "value": "x", "more": 1 }), "get: expected no field more"),
        (json!({ "key": [7], "value": "x" }), "get.key: expected [\"integer\",\"string\",\"null\"]"),
        (json!({ "key": -7, "value": "x" }), "get.key: expected at least 0"),
        (json!({ "key": 7, "value": 7 }), "get.value: expected [\"string\",\"null\"]"),
        (json!({ "key": 7, "value": "x", "hex": "78" }), "get: expected no field hex"),
        (json!([]), "get: expected"),
    ] {
        let error = is("get", value).expect_err("it differs");
        assert!(error.starts_with(reason), "{error}");
    }
    let synced = |others: Value| is("control_sync", json!({ "settled": 1, "mended": 0, "others": others }));
    assert_eq!(synced(json!([["core-0", "silent"]])), Ok(()));
    for others in [json!([["core-0"]]), json!([["core-0", 7]]), json!([["core-0", "silent", 1]])] {
        assert!(synced(others.clone()).is_err(), "{others}");
    }
}

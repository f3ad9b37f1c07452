//! A control plane over switches that are processes of their own: program them, load a plan, replace it.

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use common::{fatbtree, run};

fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn refuses(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}

/// Ends the switches with the test, however it ends.
struct Switches(Vec<Child>);

impl Drop for Switches {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A FatTree(2), one software switch per process, and its cluster file.
fn start(file: &Path) -> Switches {
    let mut text =
        "[network]\nk = 2\n\n[[memory_server]]\nhost = \"host-0-0-0\"\ngrpc = \"127.0.0.1:1\"\n".to_owned();
    text.push_str("\n[[client]]\nhost = \"host-1-0-0\"\n");
    let mut switches = Switches(Vec::new());
    for (device, name) in (1..).zip(["core-0", "agg-0-0", "edge-0-0", "agg-1-0", "edge-1-0"]) {
        // A port that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
        let child = fatbtree()
            .args([
                "switch",
                "--grpc",
                &address.to_string(),
                "--device-id",
                &device.to_string(),
                "--seconds",
                "60",
            ])
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("the switch starts");
        switches.0.push(child);
        text.push_str(&format!(
            "\n[[switch]]\nname = \"{name}\"\np4runtime = \"{address}\"\ndevice_id = {device}\n"
        ));
        let began = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "{name} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    std::fs::write(file, text).expect("the cluster file is written");
    switches
}

#[test]
fn switches_are_programmed_loaded_and_reloaded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (cluster, plan) = (path("cluster.toml"), path("plan.json"));
    let switches = start(Path::new(&cluster));

    succeeds(&["demo", "--k", "2", "--servers", "1", "--keys", "5000", "--lookups", "200", "--plan", &plan]);
    let text = succeeds(&["control", "bring-up", "--cluster", &cluster]);
    assert!(text.starts_with("5 switches programmed for v1model"), "{text}");
    let text = succeeds(&["control", "load", &plan, "--cluster", &cluster]);
    assert!(text.starts_with("epoch 2 in force"), "{text}");
    // What is there must be named, or it would stay for ever.
    let refused = refuses(&["control", "load", &plan, "--cluster", &cluster]);
    assert!(refused.contains("hold a plan already") && refused.contains("--replacing"), "{refused}");
    // Epochs are chosen by what the switches hold, whatever the files say.
    for epoch in [3, 4] {
        let text = succeeds(&["control", "load", &plan, "--replacing", &plan, "--cluster", &cluster]);
        assert!(text.starts_with(&format!("epoch {epoch} in force")), "{text}");
    }

    // Plans for other networks.
    let text = std::fs::read_to_string(&plan).expect("a plan");
    let changed = |name: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let mut value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        change(&mut value);
        std::fs::write(path(name), value.to_string()).expect("a file");
        refuses(&["control", "load", &path(name), "--replacing", &plan, "--cluster", &cluster])
    };
    let refused = changed("core.json", &|value| value["core"] = 99.into());
    assert!(refused.contains("switch number 99 in the plan, core-0 in the cluster file"), "{refused}");
    let refused = changed("low.json", &|value| value["partitions"][0]["id"] = 7.into());
    assert!(refused.contains("partition"), "{refused}");
    let refused = changed("name.json", &|value| value["switch_names"][0][1] = "core-3".into());
    assert!(refused.contains("core-3 in the plan, core-0 in the cluster file"), "{refused}");

    // A switch that is frozen is named, and costs no more than the patience.
    let stop = |signal: &str| {
        let id = switches.0[2].id().to_string();
        let done = std::process::Command::new("kill").args([signal, &id]).status();
        assert!(done.expect("kill is everywhere").success());
    };
    stop("-STOP");
    let replace = ["control", "load", &plan, "--replacing", &plan, "--cluster", &cluster];
    let refused = refuses(&[&replace[..], &["--patience", "1"]].concat());
    stop("-CONT");
    assert!(refused.contains("edge-0-0") && refused.contains("no answer within 1 s"), "{refused}");
    let text = succeeds(&replace);
    assert!(text.starts_with("epoch 5 in force"), "{text}");

    succeeds(&["plan", "check", &plan, "--target", "tofino2"]);
    let output = run(&["control", "bring-up", "--cluster", &cluster, "--target", "tofino1"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("--compiled DIR"), "{text}");
    let output = run(&[
        "control",
        "bring-up",
        "--cluster",
        &cluster,
        "--target",
        "tofino1",
        "--compiled",
        &path("none"),
    ]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("tofino-core") && text.contains("compile_tofino.sh"), "{text}");
}

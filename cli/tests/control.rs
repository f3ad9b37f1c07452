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
    let _switches = start(Path::new(&cluster));

    succeeds(&["demo", "--k", "2", "--servers", "1", "--keys", "5000", "--lookups", "200", "--plan", &plan]);
    let text = succeeds(&["control", "bring-up", "--cluster", &cluster]);
    assert!(text.starts_with("5 switches programmed for v1model"), "{text}");
    let text = succeeds(&["control", "load", &plan, "--cluster", &cluster]);
    assert!(text.starts_with("epoch 2 in force"), "{text}");
    // The same epoch cannot follow itself: its entries are there.
    let again = run(&["control", "load", &plan, "--cluster", &cluster]);
    assert_eq!(again.status.code(), Some(1));
    let refused = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(refused.contains("refused"), "{refused}");
    let same = run(&["control", "load", &plan, "--replacing", &plan, "--cluster", &cluster]);
    assert!(String::from_utf8_lossy(&same.stderr).contains("epoch 2 cannot follow epoch 2"));

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

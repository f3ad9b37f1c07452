//! Work that is interrupted is no success, and says how far it came; logs go where they are told to.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::processes::{Role, cluster_file, kill, process};
use crate::common::{fatbtree, run};

/// Starts it with its log and its errors in a file.
fn start(arguments: &[&str], errors: &Path) -> Role {
    let mut command = fatbtree();
    command.args(arguments).stderr(File::create(errors).expect("a file"));
    Role::of(command)
}

fn text(file: &Path) -> String {
    std::fs::read_to_string(file).expect("text")
}

#[test]
fn interrupted_work_is_no_success() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path");
    let errors = folder.path().join("errors");
    let up = Role::start(&["up", cluster, "--keys", "5000"]);
    let server = process(&up.until("left "));
    up.until("ready");

    for signal in ["INT", "TERM"] {
        let json = folder.path().join("result.json");
        let written = json.to_str().expect("a plain path");
        let words = ["bench", "--cluster", cluster, "--operations", "1e9", "--progress", "-"];
        let bench = start(&[&words[..], &["--json", written]].concat(), &errors);
        bench.until("\"operations\":");
        assert_eq!(bench.stop(signal).code(), Some(130), "SIG{signal}");
        let said = text(&errors);
        assert!(
            said.contains("interrupted: ") && said.contains(" of 1000000000 operations were done"),
            "{said}"
        );
        let result: serde_json::Value = serde_json::from_str(&text(&json)).expect("what was done until then");
        assert_eq!((&result["interrupted"], &result["wrong"]), (&true.into(), &0.into()), "{result}");
    }

    // A load comes no further than to a server that does not run.
    assert!(kill("STOP", server));
    let load = start(&["load", "--cluster", cluster, "--keys", "100000", "--replace", "-v"], &errors);
    let began = Instant::now();
    while !text(&errors).contains("the load begins") {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", text(&errors));
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = load.stop("INT");
    assert!(kill("CONT", server));
    let said = text(&errors);
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(
        said.contains(" of 100000 keys were sent") && said.contains("serve what they served before"),
        "{said}"
    );
    assert!(!said.contains('\x1b'), "colours in a file: {said:?}");
    assert!(up.stop("INT").success());
}

#[test]
fn the_log_says_as_much_as_it_is_asked_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path");
    let said = |further: &[&str], environment: Option<&str>| {
        let mut command = fatbtree();
        command.args(["memserver", "left", "--cluster", cluster, "--seconds", "1"]).args(further);
        environment.map(|wanted| command.env("RUST_LOG", wanted));
        let output = command.output().expect("it ends");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let (quiet, error) = said(&[], None);
    assert_eq!((quiet, error.as_str()), (Some(0), ""));
    for (further, environment) in [(&["-vvv"][..], None), (&[], Some("trace"))] {
        let (code, lines) = said(further, environment);
        assert!(code == Some(0) && lines.contains(" TRACE "), "{further:?} {environment:?}: {lines}");
        assert!(!lines.contains('\x1b'), "colours in a pipe: {lines:?}");
    }
    let (code, error) = said(&[], Some("left=loud"));
    assert!(code == Some(1) && error.contains("RUST_LOG=left=loud: expected a level"), "{error}");
    let help = String::from_utf8(run(&["--help"]).stdout).expect("text");
    assert!(help.contains("Exit codes:") && help.contains("130"), "{help}");
}

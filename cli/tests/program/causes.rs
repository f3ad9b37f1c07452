//! Messages name the cause that was put in, and advise nothing that destroys what the user has.

use std::time::Duration;

use crate::common::processes::{Role, cluster_file_like, kill, process};
use crate::common::{fatbtree, run};

/// What a command that fails says.
fn said(words: &[&str]) -> String {
    let output = run(words);
    assert!(!output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_bench_tells_keys_and_values_of_others_from_wrong_answers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    let bench = ["bench", "--cluster", cluster, "--operations", "200"];
    let of = |further: &[&str]| said(&[&bench[..], further].concat());

    // Keys of the user's own, which no load has put.
    for (key, value) in [("7", "seven"), ("8", "eight, or so")] {
        assert!(run(&["put", key, value, "--cluster", cluster]).status.success());
    }
    let text = of(&[]);
    assert!(text.contains("hold no keys that were loaded") && !text.contains("--replace"), "{text}");
    // What it advises works, and leaves them as they are.
    let pairs = folder.path().join("pairs.csv");
    let csv = run(&["scan", "..", "--csv", "--cluster", cluster]).stdout;
    std::fs::write(&pairs, &csv).expect("a file");
    let pairs = pairs.to_str().expect("a plain path");
    let output = run(&[&bench[..], &["--keys", pairs, "--workload", "c"]].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(run(&["scan", "..", "--csv", "--cluster", cluster]).stdout, csv);

    // Values of another length, or another seed.
    let load = ["load", "--cluster", cluster, "--keys", "1000", "--replace", "--value-bytes", "40"];
    assert!(run(&load).status.success());
    let text = of(&["--value-bytes", "24"]);
    assert!(
        text.contains("values of 40 bytes: give --value-bytes 40") && !text.contains("WrongAnswer"),
        "{text}"
    );
    let text = of(&["--value-bytes", "40", "--seed", "4711"]);
    assert!(text.contains("was not made by `fatbtree load` with --seed 4711"), "{text}");
    let output = run(&[&bench[..], &["--value-bytes", "40", "--workload", "a"]].concat());
    assert!(output.status.success(), "{output:?}");
    let output = run(&[&bench[..], &["--value-bytes", "24", "--workload", "c"]].concat());
    assert!(!String::from_utf8_lossy(&output.stderr).contains("WrongAnswer"), "{output:?}");
    assert!(up.stop("INT").success());
}

#[test]
fn a_command_line_names_no_part_of_a_library() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    for words in [
        &["get", "7", "--client", "nobody"][..],
        &["get", "7", "--patience", "1"],
        &["get", "7", "--patience", "1", "--query"],
        &["put", "7", "seven", "--patience", "1"],
        &["scan", "..", "--patience", "1"],
    ] {
        let text = said(&[words, &["--cluster", cluster]].concat());
        assert!(!text.contains("::"), "{words:?}: {text}");
    }
}

#[test]
fn a_frozen_controller_is_named_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    let controller = process(&up.until("controller "));
    up.until("ready");
    assert!(kill("STOP", controller));
    let text = said(&["control", "status", "--cluster", cluster, "--patience", "30"]);
    assert!(kill("CONT", controller));
    assert!(text.contains("it hangs") && !text.contains("error: the controller at http2"), "{text}");
    assert!(up.stop("INT").success());
}

#[test]
fn reloads_wait_for_each_other_unless_they_are_not_to() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster, "--keys", "5000"]);
    up.until("ready");
    let reload = |further: &[&str]| {
        let mut command = fatbtree();
        command.args(["control", "reload", "--cluster", cluster]).args(further);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
        command.spawn().expect("it starts")
    };
    for child in (0..6).map(|_| reload(&[])).collect::<Vec<_>>() {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
    }
    // At once they are in each other's way, if they come while one is under way.
    let mut refused = 0;
    for _ in 0..20 {
        for child in (0..6).map(|_| reload(&["--no-wait"])).collect::<Vec<_>>() {
            let output = child.wait_with_output().expect("it ends");
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() || text.contains("try again"), "{text}");
            refused += u32::from(!output.status.success());
        }
        if refused > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(refused > 0, "none of them met another one");
    // There and back.
    let rollback = || run(&["control", "rollback", "--cluster", cluster]);
    for _ in 0..2 {
        let output = rollback();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("`rollback` again loads"), "{output:?}");
    }
    assert!(up.stop("INT").success());
}

#[test]
fn a_certificate_that_is_wrong_or_missing_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let plain = std::fs::read_to_string(&file).expect("the file");
    let with_trust = format!("[trust]\nfolder = \"certificates\"\n\n{plain}");
    let beside = |name: &str, text: &str| {
        let folder = folder.path().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("cluster.toml");
        std::fs::write(&file, text).expect("the file is written");
        file.to_str().expect("a plain path").to_owned()
    };
    let own = beside("own", &with_trust);
    let (other, none) = (beside("other", &with_trust), beside("none", &plain));
    for file in [&own, &other] {
        assert!(run(&["topology", "certificates", "--cluster", file]).status.success());
    }
    let up = Role::start(&["up", &own]);
    up.until("ready");
    for file in [&other, &none] {
        for words in [&["get", "7", "--patience", "3"][..], &["control", "status"]] {
            let text = said(&[words, &["--cluster", file]].concat());
            let is_named = text.contains("certificate") && text.contains("[trust]");
            let misleads = ["is it running", "busy", "hangs"].iter().any(|words| text.contains(words));
            assert!(is_named && !misleads, "{words:?}: {text}");
        }
    }
    assert!(run(&["put", "7", "seven", "--cluster", &own]).status.success());
    assert!(up.stop("INT").success());
}

/// It was 10 s, and "see whether all memory servers run".
#[test]
fn a_server_that_answers_no_queries_says_so_at_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    let began = std::time::Instant::now();
    let text = said(&["get", "7", "--query", "--cluster", cluster, "--patience", "60"]);
    assert!(text.contains("--serve queries") && began.elapsed() < Duration::from_secs(30), "{text}");
    assert!(up.stop("INT").success());
}

//! Several controllers of one network: one is primary, and the others say so, wait, and take its place.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::processes::{Role, bench, cluster_file_like, kill, process};
use crate::common::run;
use fatbtree_controller::election::{OTHER, VACANT};
use fatbtree_topology::Cluster;

/// A file for two switches, the address of its controller, and one for another controller.
fn pair(folder: &Path) -> (String, String, String) {
    let file = cluster_file_like(folder, &["topology", "example", "pair"]);
    let text = std::fs::read_to_string(&file).expect("written");
    let first = Cluster::from_toml(&text).expect("it is valid").controller().expect("it has one").to_owned();
    let (host, port) = first.rsplit_once(':').expect("host:port");
    let second = format!("{host}:{}", port.parse::<u16>().expect("a port") - 1);
    (file.to_str().expect("a plain path").to_owned(), first, second)
}

/// A file with the same switches for the other controller.
fn beside(folder: &Path, file: &str, first: &str, second: &str) -> String {
    let other = folder.join("other.toml").display().to_string();
    let text = std::fs::read_to_string(file).expect("written").replace(first, second);
    let (before, metrics) = text.split_once("[metrics]").expect("a section");
    let (_, after) = metrics.split_once("\n\n").expect("an empty line after it");
    let text = format!("{before}{after}");
    std::fs::write(&other, text).expect("written");
    other
}

fn control(cluster: &str, word: &str) -> Result<String, String> {
    let output = run(&["control", word, "--cluster", cluster]);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Asks until the answer is right.
fn waits(
    what: &str,
    cluster: &str,
    word: &str,
    is_right: impl Fn(&Result<String, String>) -> bool,
) -> String {
    let began = Instant::now();
    loop {
        let answer = control(cluster, word);
        if is_right(&answer) {
            return answer.unwrap_or_else(|error| error);
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: {answer:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn has_plan(answer: &Result<String, String>) -> bool {
    let is_so = |text: &String| {
        text.contains(" active in epoch ") && !text.contains("silent") && !text.contains("being")
    };
    answer.as_ref().is_ok_and(is_so)
}

/// A reload is carried out; one that the controller has begun by itself comes first.
fn reloads(cluster: &str) {
    waits("a reload", cluster, "reload", Result::is_ok);
}

/// Lookups by the switches, and none wrong: the client's connections are registered.
fn serves(cluster: &str) {
    let result = bench(cluster, &[]);
    assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
    assert!(result["round_trips"].as_f64().is_some_and(|trips| trips < 2.6), "{result}");
}

/// An operator starts a second controller by another file: first by mistake, then with intent, and ends it.
#[test]
fn a_second_controller_does_not_put_the_first_one_out_for_good() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, first, second) = pair(folder.path());
    let other = beside(folder.path(), &file, &first, &second);
    let up = Role::start(&["up", &file, "--keys", "5000"]);
    up.until("ready");
    waits("a first plan", &file, "status", has_plan);

    let refused = run(&["controller", "--cluster", &other]);
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{reason}");
    assert!(reason.contains(&format!("the controller at {first} is primary")), "{reason}");
    assert!(reason.contains("--standby") && reason.contains("--take-over"), "{reason}");
    reloads(&file);

    let intruder = Role::start(&["controller", "--cluster", &other, "--take-over"]);
    intruder.until("primary of the switches");
    let not_primary = format!("not primary: the controller at {second} is");
    waits("the first one is put out", &file, "status", |answer| {
        answer.as_ref().is_err_and(|error| error.contains(&not_primary))
    });
    assert!(control(&file, "reload").is_err_and(|error| error.contains(&not_primary)));
    waits("the second one has the switches", &other, "status", |answer| {
        answer.as_ref().is_ok_and(|text| !text.contains("is silent"))
    });
    assert!(intruder.stop("INT").success());

    waits("the first one is primary again", &file, "status", has_plan);
    reloads(&file);
    serves(&file);
}

/// It is started before the switches have noticed that the primary is frozen.
#[test]
fn one_that_is_started_at_once_in_the_place_of_a_frozen_primary_leads() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, first, second) = pair(folder.path());
    let other = beside(folder.path(), &file, &first, &second);
    let up = Role::start(&["up", &file, "--keys", "5000"]);
    let primary = process(&up.until("controller "));
    up.until("ready");
    waits("a first plan", &file, "status", has_plan);

    assert!(kill("STOP", primary));
    let replacement = Role::start(&["controller", "--cluster", &other]);
    replacement.until("primary of the switches");
    assert!(kill("CONT", primary));
    waits("the first one is told", &file, "status", |answer| {
        answer
            .as_ref()
            .is_err_and(|error| error.contains(&format!("not primary: the controller at {second} is")))
    });
    assert!(replacement.stop("INT").success());
    assert!(up.stop("INT").success());
}

#[test]
fn the_help_says_how_long_a_controller_waits() {
    let help = run(&["controller", "--help"]);
    let text = String::from_utf8(help.stdout).expect("text");
    assert!(text.contains(&format!("waits {} s", OTHER.as_secs())), "{text}");
    assert!(text.contains(&format!("for {} s", VACANT.as_secs())), "{text}");
}

#[test]
fn a_standby_takes_the_place_of_a_primary_that_is_frozen_and_keeps_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, first, second) = pair(folder.path());
    let text = std::fs::read_to_string(&file).expect("written");
    let line = format!("grpc = \"{first}\"\n");
    assert!(text.contains(&line));
    let text = text.replace(&line, &format!("{line}standby = [\"{second}\"]\n"));
    std::fs::write(&file, text).expect("written");
    let up = Role::start(&["up", &file, "--keys", "5000"]);
    let primary = process(&up.until("controller "));
    let standby = process(&up.until("standby-1 "));
    up.until("ready");
    waits("a first plan", &file, "status", has_plan);
    serves(&file);

    assert!(kill("STOP", primary));
    waits("the standby is primary", &file, "status", has_plan);
    reloads(&file);
    serves(&file);

    // It believes for a moment that it is primary, and is told.
    assert!(kill("CONT", primary));
    std::thread::sleep(Duration::from_secs(1));
    waits("the standby stays primary", &file, "status", has_plan);
    reloads(&file);
    serves(&file);

    assert!(kill("KILL", standby));
    up.until("ended");
    waits("one of them is primary", &file, "status", has_plan);
    reloads(&file);
    serves(&file);
    assert!(up.stop("INT").success());
}

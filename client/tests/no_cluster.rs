//! Connecting where no cluster runs. Alone in its process, whose signal handlers are looked at.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

#[path = "it/common/mod.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod common;

use std::error::Error as _;
use std::time::{Duration, Instant};

use fatbtree::{Error, Options, blocking};

/// Signals that this process catches, as bits: signal n is bit n - 1.
fn caught() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

#[test]
fn a_cluster_that_does_not_answer_is_an_error_in_time_and_signals_stay_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let file = common::write_file(&folder);
    let (before, began) = (caught(), Instant::now());
    let options = Options::new(file).patience(Duration::from_millis(500));
    let error = blocking::Client::connect(options).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }) && error.source().is_some(), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(caught(), before, "no handler is installed");
}

/// A server that is frozen accepts connections and answers nothing.
#[test]
fn a_server_that_is_frozen_is_an_error_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = common::write_file(&folder);
    let text = std::fs::read_to_string(&file).unwrap();
    let frozen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address =
        |line: &str| line.contains("grpc = ").then(|| format!("grpc = \"{}\"", frozen.local_addr().unwrap()));
    let text: Vec<String> =
        text.lines().map(|line| address(line).unwrap_or_else(|| line.to_owned())).collect();
    std::fs::write(&file, text.join("\n")).unwrap();
    let (began, options) = (Instant::now(), Options::new(file).patience(Duration::from_millis(500)));
    let error = blocking::Client::connect(options).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

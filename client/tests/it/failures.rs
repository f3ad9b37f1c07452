//! Errors say whether a change may have been carried out.

use std::time::{Duration, Instant};

use fatbtree::{Error, Options};

use crate::common::{Running, write_file};

#[tokio::test]
async fn operations_on_a_server_that_has_stopped_fail_in_time() {
    let mut cluster = Running::start();
    let db = cluster.options().time_limit(Duration::from_millis(500)).connect().await.unwrap();
    db.put(1, b"x").await.unwrap();
    cluster.stop();
    let began = Instant::now();
    let (read, put) = (db.get(1).await.unwrap_err(), db.put(1, b"y").await.unwrap_err());
    assert!(!read.may_have_happened(), "{read}");
    assert!(put.may_have_happened(), "{put}");
    assert!(put.to_string().contains("may have been carried out"), "{put}");
    assert!(began.elapsed() < Duration::from_secs(10));
    // Time that is over in the queue: nothing was begun.
    let late = db.with_time_limit(Duration::ZERO).put(1, b"z").await.unwrap_err();
    assert!(matches!(late, Error::TimedOut { .. }) && !late.may_have_happened(), "{late}");
    let stats = db.stats();
    assert_eq!((stats.failed, stats.unknown), (3, 1));
}

#[tokio::test]
async fn wrong_files_and_names_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = write_file(&folder);
    let error = Options::new(&file).client("nobody").connect().await.unwrap_err();
    assert!(error.to_string().contains("\"nobody\"") && error.to_string().contains("host-0-1"), "{error}");
    let error = fatbtree::connect(folder.path().join("none.toml")).await.unwrap_err();
    assert!(matches!(error, Error::ReadFile { .. }), "{error}");
    std::fs::write(&file, "[network]\nkind = 7\n").unwrap();
    let error = fatbtree::connect(&file).await.unwrap_err();
    assert!(matches!(error, Error::ClusterFile { .. }), "{error}");
}

#[tokio::test]
async fn a_value_that_is_too_long_has_changed_nothing() {
    let cluster = Running::start();
    let db = cluster.client().await;
    let error = db.put(1, vec![0; 64 << 20]).await.unwrap_err();
    assert!(matches!(error, Error::Failed { .. }) && !error.may_have_happened(), "{error}");
    assert_eq!(db.get(1).await.unwrap(), None);
    db.close().await;
}

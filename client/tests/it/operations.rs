//! What each operation answers, from several threads and executors.

use std::collections::BTreeMap;

use fatbtree::{Bytes, Error, Protocol, blocking};

use crate::common::Running;

/// The example of the library's page, word for word.
mod twelve_lines {
    include!("../../examples/twelve_lines/program.rs");

    pub(super) fn run() -> Result<(), fatbtree::Error> {
        main()
    }
}

#[test]
fn the_twelve_lines_of_the_page_run() {
    let cluster = Running::start();
    // The other tests have absolute paths.
    std::env::set_current_dir(cluster.folder.path()).unwrap();
    twelve_lines::run().unwrap();
}

#[tokio::test]
async fn each_operation_answers_what_it_should() {
    let cluster = Running::start();
    let db = cluster.client().await;
    assert_eq!(db.get(1).await.unwrap(), None);
    assert!(db.insert(1, "one").await.unwrap());
    assert!(!db.insert(1, "another").await.unwrap());
    assert!(db.update(1, b"two").await.unwrap());
    assert!(!db.update(2, b"two").await.unwrap());
    assert!(!db.compare_and_swap(1, "one", "three").await.unwrap());
    assert!(db.compare_and_swap(1, "two", "three").await.unwrap());
    assert_eq!(db.get(1).await.unwrap().as_deref(), Some(&b"three"[..]));
    assert!(db.delete(1).await.unwrap());
    assert!(!db.delete(1).await.unwrap());

    let put = db.put_many((0..3000u64).map(|n| (n * 2, n.to_le_bytes()))).await.unwrap();
    assert_eq!((put.len(), put.iter().filter(|put| put.is_err()).count()), (3000, 0));
    let found = db.get_many([4, 5, 5998]).await.unwrap();
    let value = |n: u64| Some(Bytes::copy_from_slice(&n.to_le_bytes()));
    assert_eq!(found, [value(2), None, value(2999)]);
    for range in [0..6000, 10..11, 11..12, 7..7, 100..4000] {
        let (mut found, mut scan) = (Vec::new(), db.scan(range.clone()));
        while let Some(pair) = scan.next().await {
            found.push(pair.unwrap().0);
        }
        let expected: Vec<u64> = range.clone().filter(|key| key % 2 == 0).collect();
        assert_eq!(found, expected);
        let (mut found, mut scan) = (Vec::new(), db.scan_backward(range));
        while let Some(pair) = scan.next().await {
            found.push(pair.unwrap().0);
        }
        assert!(found.iter().eq(expected.iter().rev()), "{found:?}");
    }
    let (mut keys, mut pairs) = (Vec::new(), db.pairs());
    while let Some(pair) = pairs.next().await {
        keys.push(pair.unwrap().0);
    }
    assert!(keys.iter().copied().eq((0..3000).map(|n| n * 2)), "in ascending order");
    let stats = db.stats();
    assert_eq!((stats.failed, stats.unknown, stats.changes), (0, 0, 3008));
    db.close().await;
}

#[test]
fn clones_work_on_several_threads() {
    let cluster = Running::start();
    let db = blocking::Client::connect(cluster.options()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let db = db.clone();
            scope.spawn(move || {
                for n in 0..100 {
                    db.put(n * 4 + thread, thread.to_le_bytes()).unwrap();
                    // All of them count the same key up.
                    loop {
                        let before = db.get(u64::MAX).unwrap();
                        let counted = before.as_deref().map_or(0, |bytes| bytes[0]);
                        let next = [counted.wrapping_add(1)];
                        let done = match &before {
                            Some(before) => db.compare_and_swap(u64::MAX, before, next),
                            None => db.insert(u64::MAX, next),
                        };
                        if done.unwrap() {
                            break;
                        }
                    }
                }
            });
        }
    });
    assert_eq!(db.get(u64::MAX).unwrap().as_deref(), Some(&[(400 % 256) as u8][..]));
    let pairs: BTreeMap<u64, Bytes> = db.scan(..u64::MAX).map(Result::unwrap).collect();
    assert_eq!(pairs.len(), 400);
    assert!(pairs.iter().all(|(key, value)| value[..] == (key % 4).to_le_bytes()));
    db.close();
}

#[tokio::test]
async fn queries_have_the_same_operations_except_two() {
    let cluster = Running::start();
    let db = cluster.options().protocol(Protocol::Query).connect().await.unwrap();
    assert_eq!(db.get(1).await.unwrap(), None);
    db.put(1, b"one").await.unwrap();
    assert!(db.update(1, b"two").await.unwrap());
    assert!(!db.update(2, b"two").await.unwrap());
    assert_eq!(db.get(1).await.unwrap().as_deref(), Some(&b"two"[..]));
    db.put_many((10..200).map(|key| (key, b"x"))).await.unwrap();
    let (mut keys, mut scan) = (Vec::new(), db.scan(..=150));
    while let Some(pair) = scan.next().await {
        keys.push(pair.unwrap().0);
    }
    assert_eq!(keys, [1].into_iter().chain(10..=150).collect::<Vec<u64>>());
    let (mut count, mut pairs) = (0, db.pairs());
    while let Some(pair) = pairs.next().await {
        count += usize::from(pair.is_ok());
    }
    assert_eq!(count, 191);
    assert!(db.delete(1).await.unwrap());
    assert!(!db.delete(1).await.unwrap());
    for refused in [db.insert(3, b"x").await, db.compare_and_swap(3, b"x", b"y").await] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }) && !error.may_have_happened(), "{error}");
    }
    db.close().await;
}

#[tokio::test]
async fn a_client_that_was_closed_says_so_and_its_place_is_free_again() {
    let cluster = Running::start();
    let db = cluster.client().await;
    let clone = db.clone();
    db.put(1, b"x").await.unwrap();
    db.close().await;
    let error = clone.put(1, b"y").await.unwrap_err();
    assert!(matches!(error, Error::Closed { .. }) && !error.may_have_happened(), "{error}");
    let again = cluster.client().await;
    assert_eq!(again.get(1).await.unwrap().as_deref(), Some(&b"x"[..]));
    again.close().await;
}

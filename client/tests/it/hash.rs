//! A hash table: what it has, and what it has not.

use std::collections::BTreeMap;

use fatbtree::{Bytes, Error, Structure, blocking};
use fatbtree_registry::{Dolphin, Hash};

use crate::common::Running;

#[test]
fn all_pairs_of_a_hash_table_come_once_in_no_order() {
    let cluster = Running::with::<Hash>();
    let db = blocking::Client::connect(cluster.options().structure(Structure::Hash)).unwrap();
    assert_eq!(db.pairs().count(), 0);
    let expected: BTreeMap<u64, Bytes> =
        (0..5000_u64).map(|key| (key * 3, vec![7; key as usize % 200].into())).collect();
    let put = db.put_many(expected.iter().map(|(key, value)| (*key, value.clone()))).unwrap();
    assert!(put.iter().all(Result::is_ok));
    let found: Vec<(u64, Bytes)> = db.pairs().collect::<Result<_, _>>().unwrap();
    assert_eq!(found.len(), expected.len());
    assert!(!found.is_sorted_by_key(|(key, _)| *key));
    assert_eq!(found.into_iter().collect::<BTreeMap<_, _>>(), expected);
    // Some of them are changed while they are given.
    let mut given = 0;
    for pair in db.pairs() {
        let (key, value) = pair.unwrap();
        assert_eq!(expected.get(&key), Some(&value));
        given += 1;
        assert!(db.delete(key).unwrap());
    }
    assert_eq!((given, db.pairs().count()), (expected.len(), 0));
    db.close();
}

#[tokio::test]
async fn a_range_of_a_hash_table_is_refused_with_what_it_has_instead() {
    let cluster = Running::with::<Hash>();
    let db = cluster.options().structure(Structure::Hash).connect().await.unwrap();
    db.put(1, b"one").await.unwrap();
    let error = db.scan(..).next().await.expect("it is refused").unwrap_err();
    assert!(matches!(error, Error::NotInStructure { operation: "scan", .. }), "{error:?}");
    let error = db.scan_backward(..).next().await.expect("it is refused").unwrap_err();
    assert!(matches!(error, Error::NotInStructure { operation: "scan_backward", .. }), "{error:?}");
    assert!(error.to_string().contains("use pairs"), "{error}");
    let error = db.begin().await.unwrap_err();
    assert!(matches!(error, Error::NotInStructure { operation: "begin", .. }), "{error:?}");
    assert!(error.to_string().contains("tables of transactions"), "{error}");
    db.close().await;
}

/// Increments by several tasks at once are none lost, on either structure.
#[tokio::test]
async fn swaps_of_one_value_have_one_winner() {
    for (cluster, structure) in
        [(Running::with::<Hash>(), Structure::Hash), (Running::with::<Dolphin>(), Structure::Dolphin)]
    {
        let db = cluster.options().structure(structure).connect().await.unwrap();
        assert!(!db.compare_and_swap(1, b"", b"x").await.unwrap());
        for before in [vec![0; 8], vec![0; 100]] {
            db.put(1, &before).await.unwrap();
            let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(count_up(db.clone(), 25))).collect();
            for task in tasks {
                task.await.unwrap();
            }
            let value = db.get(1).await.unwrap().unwrap();
            assert_eq!((value[0], value.len()), (100, before.len()));
        }
        db.close().await;
    }
}

async fn count_up(db: fatbtree::Client, times: u8) {
    for _ in 0..times {
        loop {
            let before = db.get(1).await.unwrap().unwrap();
            let mut after = before.to_vec();
            after[0] += 1;
            if db.compare_and_swap(1, &before, &after).await.unwrap() {
                break;
            }
        }
    }
}

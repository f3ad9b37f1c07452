//! Keys of bytes.

use std::collections::BTreeMap;

use fatbtree::{Bytes, Error, MAX_KEY_BYTES, Protocol, Scan, Structure, blocking, tuple};
use fatbtree_blink::{Keys, TreeConfig, ValueLayout};
use fatbtree_registry::{Dolphin, Dtx, Hash};

use crate::common::Running;

fn names() -> Running {
    let config = TreeConfig::default().with_values(ValueLayout::SHORT).unwrap();
    Running::with_trees(1, config.with_keys(Keys::Bytes).unwrap())
}

fn causes(error: &Error) -> String {
    let first: &dyn std::error::Error = error;
    let causes = std::iter::successors(Some(first), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn all(mut scan: Scan<Bytes>) -> Vec<(String, String)> {
    let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let mut pairs = Vec::new();
    while let Some(pair) = scan.next().await {
        let (key, value) = pair.unwrap();
        pairs.push((text(key), text(value)));
    }
    pairs
}

#[tokio::test]
async fn each_operation_answers_what_it_should() {
    let cluster = names();
    let db = cluster.client().await.bytes();
    assert_eq!(db.get("user:4711").await.unwrap(), None);
    assert!(db.insert("user:4711", "Ada").await.unwrap());
    assert!(!db.insert("user:4711", "another").await.unwrap());
    assert!(db.update("user:4711", "Grace").await.unwrap());
    assert!(!db.update("user:4712", "Grace").await.unwrap());
    assert!(!db.compare_and_swap("user:4711", "Ada", "Edsger").await.unwrap());
    assert!(db.compare_and_swap("user:4711", "Grace", "Edsger").await.unwrap());
    assert_eq!(db.get("user:4711").await.unwrap().as_deref(), Some(&b"Edsger"[..]));
    assert!(db.delete("user:4711").await.unwrap());
    assert!(!db.delete("user:4711").await.unwrap());

    let mut model = BTreeMap::new();
    for n in 0..2000 {
        let key = format!("https://www.example.{}/page/{n}", ["com", "org"][n % 2]);
        model.insert(key, n.to_string());
    }
    let put = db.put_many(&model).await.unwrap();
    assert!(put.len() == 2000 && put.iter().all(Result::is_ok));
    let some = model.iter().take(50).chain(model.iter().skip(1900).rev());
    let found = db.get_many(some.clone().map(|(key, _)| key).chain([&"neither".to_owned()])).await.unwrap();
    let expected = some.map(|(_, value)| Some(value.as_bytes())).chain([None]);
    assert!(found.iter().map(Option::as_deref).eq(expected), "{found:?}");
    let long = vec![b'x'; MAX_KEY_BYTES + 1];
    let mixed = db.put_many([(&long[..], "long"), (b"a", "b")]).await.unwrap();
    assert!(mixed[0].is_err() && mixed[1].is_ok(), "{mixed:?}");
    assert!(db.delete("a").await.unwrap() && db.get_many([long]).await.is_err());
    let pairs: Vec<(String, String)> = model.into_iter().collect();
    assert_eq!(all(db.pairs()).await, pairs);
    let prefix = "https://www.example.org/page/12";
    let expected: Vec<_> = pairs.iter().filter(|(key, _)| key.starts_with(prefix)).cloned().collect();
    assert_eq!(all(db.scan_prefix(prefix)).await, expected);
    assert!(expected.len() > 50);
    let (low, high) = (&pairs[700].0, &pairs[1500].0);
    assert_eq!(all(db.scan(low.as_str()..high.as_str())).await, pairs[700..1500]);
    let mut backward = all(db.scan_backward(low.as_str()..=high.as_str())).await;
    backward.reverse();
    assert_eq!(backward, pairs[700..=1500]);
    db.client().clone().close().await;
}

#[test]
fn threads_that_wait_have_names_too() {
    let cluster = names();
    let db = blocking::Client::connect(cluster.options()).unwrap().bytes();
    for name in ["b", "a", "a\0", "", "c"] {
        db.put(name, name.len().to_string()).unwrap();
    }
    let found: Vec<Bytes> = db.pairs().map(|pair| pair.unwrap().0).collect();
    assert_eq!(found, ["", "a", "a\0", "b", "c"]);
    assert_eq!(db.scan_prefix("a").count(), 2);
    assert_eq!(db.scan_backward::<&str>(..).next().unwrap().unwrap().0, "c");
}

#[tokio::test]
async fn keys_of_the_other_kind_are_refused_by_name() {
    let cluster = names();
    let db = cluster.client().await;
    let refused = [
        db.get(7).await.unwrap_err(),
        db.put(7, "seven").await.unwrap_err(),
        db.scan(..).next().await.unwrap().unwrap_err(),
    ];
    for error in refused {
        let text = causes(&error);
        assert!(text.contains("keys of this tree are bytes") && text.contains("--key-type"), "{text}");
    }
    db.close().await;
    drop(cluster);

    let cluster = Running::start();
    let db = cluster.client().await.bytes();
    let error = causes(&db.get("user:4711").await.unwrap_err());
    assert!(error.contains("keys of this tree are numbers"), "{error}");
    db.client().clone().close().await;
    drop(cluster);
    let cluster = Running::with_byte_keys::<Hash>();
    let db = cluster.options().structure(Structure::Hash).connect().await.unwrap();
    for error in [db.get(7).await.unwrap_err(), db.pairs().next().await.unwrap().unwrap_err()] {
        let text = causes(&error);
        assert!(text.contains("keys of this hash table are bytes") && text.contains("--key-type"), "{text}");
    }
    db.close().await;
    drop(cluster);
    let cluster = Running::with::<Hash>();
    let db = cluster.options().structure(Structure::Hash).connect().await.unwrap().bytes();
    let refused = [db.put("a", "").await.unwrap_err(), db.pairs().next().await.unwrap().unwrap_err()];
    for error in refused {
        let text = causes(&error);
        assert!(text.contains("keys of this hash table are numbers"), "{text}");
    }
    db.client().clone().close().await;
}

/// Structures whose keys are always numbers say so, whatever is asked of them.
#[tokio::test]
async fn structures_of_numbers_alone_refuse_names_by_name() {
    async fn check(cluster: Running, structure: Structure, name: &str) {
        let db = cluster.options().structure(structure).connect().await.unwrap().bytes();
        let refused = [
            db.get("user:4711").await.unwrap_err(),
            db.put("user:4711", "Ada").await.unwrap_err(),
            db.delete("user:4711").await.unwrap_err(),
            db.pairs().next().await.unwrap().unwrap_err(),
            db.scan_prefix("user:").next().await.unwrap().unwrap_err(),
        ];
        for error in refused {
            let text = causes(&error);
            assert!(text.contains(name) && text.contains("keys that are numbers"), "{text}");
        }
        db.client().clone().close().await;
    }
    check(Running::with::<Dolphin>(), Structure::Dolphin, "Dolphin index").await;
    check(Running::with::<Dtx>(), Structure::Dtx, "transactional table").await;
}

#[tokio::test]
async fn a_hash_table_has_names_in_no_order() {
    let cluster = Running::with_byte_keys::<Hash>();
    let db = cluster.options().structure(Structure::Hash).connect().await.unwrap().bytes();
    assert_eq!(db.get("user:4711").await.unwrap(), None);
    assert!(db.insert("user:4711", "Ada").await.unwrap() && !db.insert("user:4711", "Eve").await.unwrap());
    assert!(db.compare_and_swap("user:4711", "Ada", "Grace").await.unwrap());
    assert!(!db.update("user:4712", "Joan").await.unwrap());
    assert_eq!(db.get("user:4711").await.unwrap().as_deref(), Some(&b"Grace"[..]));
    assert!(db.delete("user:4711").await.unwrap() && !db.delete("user:4711").await.unwrap());
    let mut expected = BTreeMap::new();
    for n in 0..3000 {
        let (key, value) = (format!("https://www.example.com/page/{n}"), n.to_string());
        db.put(&key, &value).await.unwrap();
        expected.insert(key, value);
    }
    let pairs = all(db.pairs()).await;
    assert!(pairs.len() == expected.len() && !pairs.is_sorted());
    assert_eq!(pairs.into_iter().collect::<BTreeMap<_, _>>(), expected);
    let refused = [db.scan_prefix("https").next().await, db.scan("a"..).next().await];
    for error in refused.map(|found| found.unwrap().unwrap_err()) {
        assert!(matches!(error, Error::NotInStructure { operation: "scan", .. }), "{error:?}");
        assert!(
            error.to_string().contains("hash table") && error.to_string().contains("use pairs"),
            "{error}"
        );
    }
    db.client().clone().close().await;
}

#[tokio::test]
async fn queries_have_names_but_not_all_operations() {
    let cluster = names();
    let db = cluster.options().protocol(Protocol::Query).connect().await.unwrap().bytes();
    assert_eq!(db.get("user:4711").await.unwrap(), None);
    db.put("user:4711", "Ada").await.unwrap();
    db.put("user:12", "Grace").await.unwrap();
    assert!(db.update("user:4711", "Edsger").await.unwrap());
    assert!(!db.update("user:4712", "Edsger").await.unwrap());
    let found =
        [("user:12", "Grace"), ("user:4711", "Edsger")].map(|(key, value)| (key.into(), value.into()));
    assert_eq!(all(db.scan_prefix("user:")).await, found);
    assert_eq!(all(db.pairs()).await, found);
    for refused in [db.insert("a", "x").await, db.compare_and_swap("a", "x", "y").await] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }) && !error.may_have_happened(), "{error}");
    }
    let error = db.scan_backward("a"..).next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(db.delete("user:12").await.unwrap() && !db.delete("user:12").await.unwrap());
    let error = db.put("x".repeat(4097), "").await.unwrap_err();
    assert!(causes(&error).contains("at most 4,096 bytes"), "{}", causes(&error));
    let error = db.client().put(7, b"x").await.unwrap_err();
    assert!(causes(&error).contains("keys of the other kind, numbers or bytes"), "{}", causes(&error));
}

/// Orders of users by time, with users whose numbers have other lengths and signs.
#[test]
fn tuples_are_scanned_by_what_they_begin_with() {
    let cluster = names();
    let db = blocking::Client::connect(cluster.options()).unwrap().bytes();
    let users = [-300, -1, 0, 9, 10, 256, 4711];
    // Not in their order.
    for number in [3, 0, 255, 256, 1, 65_536] {
        for user in users {
            db.put(tuple::encode(&("order", user, number)), format!("{user} {number}")).unwrap();
        }
    }
    db.put(tuple::encode(&("order\0", 9, 1)), "another kind").unwrap();
    db.put(tuple::encode(&("order",)), "the kind itself").unwrap();
    db.put("user:9", "no tuple").unwrap();
    type Order = (String, i64, u32);
    let orders = |range, backward| -> Vec<Order> {
        let keys = db.scan_range(range, backward).map(|pair| pair.unwrap());
        keys.map(|(key, value)| {
            let (kind, user, number): Order = tuple::decode(&key).unwrap();
            assert_eq!(value, format!("{user} {number}"));
            (kind, user, number)
        })
        .collect()
    };
    for user in users {
        let mut expected: Vec<_> =
            [0, 1, 3, 255, 256, 65_536].map(|number| ("order".to_owned(), user, number)).into();
        assert_eq!(orders(tuple::prefix(&("order", user)), false), expected);
        assert_eq!(
            db.scan(tuple::encode(&("order", user, 1))..tuple::encode(&("order", user, 256))).count(),
            3
        );
        expected.reverse();
        assert_eq!(orders(tuple::prefix(&("order", user)), true), expected);
    }
    assert_eq!(db.scan_range(tuple::prefix(&("order",)), false).count(), 1 + 6 * users.len());
    // All tuples, and the other keys among them.
    assert_eq!(db.scan_range(tuple::prefix(&()), false).count(), 3 + 6 * users.len());

    let longest = tuple::encode(&(vec![1u8; MAX_KEY_BYTES - 2],));
    db.put(&longest, "longest").unwrap();
    assert_eq!(db.get(&longest).unwrap().as_deref(), Some(&b"longest"[..]));
    let error = causes(&db.put([&longest[..], &[0]].concat(), "x").unwrap_err());
    assert!(error.contains("4096") && error.contains("4097"), "{error}");
}

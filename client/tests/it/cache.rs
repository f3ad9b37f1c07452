//! The cache of the example `cache`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fatbtree::Error;

use crate::common::Running;

#[path = "../../examples/cache/cache.rs"]
mod shared;
use shared::Cache;

async fn cache(cluster: &Running, slots: u64, life: Duration) -> Cache {
    Cache { db: cluster.client().await, first: 100, slots, life }
}

#[tokio::test]
async fn names_are_loaded_once_and_never_confused_and_the_bound_holds() {
    let cluster = Running::start();
    let cache = cache(&cluster, 16, Duration::from_secs(600)).await;
    let loads = AtomicU32::new(0);
    let load = async |name: &str| {
        loads.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Error>(name.repeat(3).into_bytes())
    };
    assert!(!cache.get("one", load).await.unwrap().1);
    for _ in 0..5 {
        assert_eq!(cache.get("one", load).await.unwrap(), ("oneoneone".into(), true));
    }
    assert_eq!(loads.load(Ordering::Relaxed), 1);
    for n in 0..200 {
        let name = format!("name {n}");
        assert_eq!(cache.get(&name, load).await.unwrap().0[..], *name.repeat(3).as_bytes());
    }
    let (mut scan, mut slots) = (cache.db.scan(..), 0);
    while let Some(pair) = scan.next().await {
        assert!((100..116).contains(&pair.unwrap().0));
        slots += 1;
    }
    assert!(slots > 8, "{slots} slots are in use");
    // Far more names than slots evict each other.
    assert!(loads.load(Ordering::Relaxed) >= 200);
    cache.db.close().await;
}

#[tokio::test]
async fn values_are_loaded_again_when_they_are_old_or_forgotten() {
    let cluster = Running::start();
    let cache = cache(&cluster, 16, Duration::from_millis(50)).await;
    let load = async |_: &str| Ok::<_, Error>(b"x".to_vec());
    cache.get("a", load).await.unwrap();
    tokio::time::sleep(Duration::from_millis(80)).await;
    assert!(!cache.get("a", load).await.unwrap().1);

    let cache = Cache { life: Duration::from_secs(600), ..cache };
    tokio::time::sleep(Duration::from_millis(80)).await;
    cache.get("a", load).await.unwrap();
    assert!(cache.get("a", load).await.unwrap().1);
    cache.forget("a").await.unwrap();
    assert!(!cache.get("a", load).await.unwrap().1);
    cache.db.close().await;
}

/// The value changes while a reader loads the old one: the old one does not stay.
#[tokio::test]
async fn a_load_that_was_overtaken_does_not_fill_the_slot() {
    let cluster = Running::start();
    let cache = Arc::new(cache(&cluster, 1, Duration::from_secs(600)).await);
    for is_empty in [true, false] {
        if !is_empty {
            cache.forget("a").await.unwrap();
        }
        let overtaken = cache.get("a", async |_: &str| {
            cache.forget("a").await?;
            Ok::<_, Error>(b"old".to_vec())
        });
        assert_eq!(overtaken.await.unwrap(), ("old".into(), false));
        let (now, was_cached) =
            cache.get("a", async |_: &str| Ok::<_, Error>(b"new".to_vec())).await.unwrap();
        assert_eq!((&now[..], was_cached), (&b"new"[..], false));
    }
}

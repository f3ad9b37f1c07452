//! Time limits of transactions.

use std::time::{Duration, Instant};

use fatbtree::{Error, Structure};
use fatbtree_registry::Dtx;

use crate::common::Running;

const LIMIT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_transaction_ends_at_its_time_limit() {
    let cluster = Running::with::<Dtx>();
    let db = cluster.options().structure(Structure::Dtx).connect().await.unwrap();
    let error = db.with_time_limit(Duration::ZERO).begin().await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }) && !error.may_have_happened(), "{error:?}");

    let mut without_end = db.with_time_limit(Duration::MAX).begin().await.unwrap();
    without_end.put(1, b"one").await.unwrap();
    // The second attempt waits for what never comes: it has what the first one has left of the limit.
    let (limited, begun, mut attempts) = (db.with_time_limit(LIMIT), Instant::now(), 0);
    let ended = limited.transact(async |tx| {
        attempts += 1;
        match attempts {
            1 => {
                tokio::time::sleep(LIMIT * 2 / 3).await;
                tx.get_for_update(1).await.map(drop)
            }
            _ => {
                tokio::time::sleep(LIMIT * 5 / 6).await;
                tx.get(2).await.map(drop)
            }
        }
    });
    let error = ended.await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?} after {:?}", begun.elapsed());
    assert_eq!(attempts, 2);
    without_end.commit().await.unwrap();
    assert_eq!(db.get(1).await.unwrap().as_deref(), Some(&b"one"[..]));
    db.close().await;
}

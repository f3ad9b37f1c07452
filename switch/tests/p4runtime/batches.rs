//! Batches in which something fails, and the three atomicities.

use fatbtree_p4runtime::entry::{delete, insert, modify};
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{TableEntry, Update, write_request::Atomicity};
use fatbtree_p4runtime::{ClientError, P4InfoIndex, TableInfo, WriteError};

use crate::harness::{Harness, failed, info};

fn table(info: &P4InfoIndex) -> &TableInfo {
    info.table("exact_table").expect("there")
}

fn entry(info: &P4InfoIndex, key: u64, port: u64) -> TableEntry {
    let table = table(info);
    let (dst, forward) =
        (table.field("dst").expect("there"), table.action("forward_counted").expect("there"));
    table.entry().exact(dst, key).action(forward, &[port]).build().expect("legal")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_update_in_the_middle_harms_nobody_else() {
    let (_harness, client) = Harness::loaded().await;
    let info = info();
    let mut wrong = entry(&info, 4, 1);
    wrong.table_id += 0x1000;
    let updates = [
        insert(entry(&info, 1, 1)),
        insert(entry(&info, 2, 1)),
        insert(wrong), // 2: no such table
        insert(entry(&info, 3, 1)),
        insert(entry(&info, 1, 2)), // 4: there already
        modify(entry(&info, 2, 9)),
        delete(entry(&info, 99, 1)), // 6: not there
        delete(entry(&info, 3, 1)),
    ];
    let Err(ClientError::Write(error)) = client.write(updates).await else { panic!("three must fail") };
    assert_eq!(error.total, 8);
    let found: Vec<_> = error.failed.iter().map(|error| (error.index, error.code)).collect();
    assert_eq!(found, [(2, Code::InvalidArgument), (4, Code::AlreadyExists), (6, Code::NotFound)]);
    assert!(error.to_string().contains("3 of 8") && error.to_string().contains("update 2"), "{error}");
    let mut entries = client.read_table(table(&info), false).await.expect("readable");
    entries.sort_by(|a, b| format!("{:?}", a.r#match).cmp(&format!("{:?}", b.r#match)));
    assert_eq!(entries, [entry(&info, 1, 1), entry(&info, 2, 9)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn indices_count_over_all_batches_of_a_call() {
    let (harness, client) = Harness::loaded().await;
    let info = info();
    client.write([insert(entry(&info, 23, 1)), insert(entry(&info, 95, 1))]).await.expect("legal");
    drop(client);
    let mut client = harness.client_with_batches(10).await;
    client.become_primary(2).await.expect("the highest bid");
    let errors = failed(client.write((0..100).map(|key| insert(entry(&info, key, 1)))).await);
    let found: Vec<_> = errors.iter().map(|error| (error.index, error.code)).collect();
    assert_eq!(found, [(23, Code::AlreadyExists), (95, Code::AlreadyExists)]);
    assert_eq!(client.read_table(table(&info), false).await.expect("readable").len(), 100);
}

/// The errors of a batch travel in one header; thousands of them must fit.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_errors_come_through() {
    let (_harness, client) = Harness::loaded().await;
    let info = info();
    let all = || (0..5000).map(|key| insert(entry(&info, key, 1)));
    client.write(all()).await.expect("legal");
    let errors = failed(client.write(all()).await);
    assert_eq!(errors.len(), 5000);
    assert!(
        errors.iter().enumerate().all(|(i, error)| error.index == i && error.code == Code::AlreadyExists)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn all_or_none() {
    let (_harness, client) = Harness::loaded().await;
    let info = info();
    let keyless = info.table("keyless").expect("there");
    let forward = keyless.action("forward").expect("there");
    let mut cookie = entry(&info, 1, 1);
    cookie.metadata = b"mine".to_vec();
    cookie.counter_data = Some(fatbtree_p4runtime::v1::CounterData { byte_count: 640, packet_count: 10 });
    let default = |port| modify(keyless.default_entry(forward, &[port]).expect("legal"));
    client.write([insert(cookie), insert(entry(&info, 2, 2)), default(5)]).await.expect("legal");
    let read = async || {
        let mut state = client.read_table(table(&info), true).await.expect("readable");
        state.sort_by_key(|entry| format!("{:?}", entry.r#match));
        (state, client.read_default(keyless).await.expect("readable"))
    };
    let before = read().await;
    let attempt = |last: Update| {
        vec![
            default(6),
            insert(entry(&info, 3, 3)),
            modify(entry(&info, 2, 9)),
            delete(entry(&info, 1, 0)),
            insert(entry(&info, 1, 8)),
            last,
            insert(entry(&info, 4, 4)),
        ]
    };
    for mode in [Atomicity::RollbackOnError, Atomicity::DataplaneAtomic] {
        let result = client.write_batch(attempt(insert(entry(&info, 2, 2))), mode).await;
        let Err(ClientError::Write(WriteError { total: 7, failed })) = result else { panic!("{result:?}") };
        let codes: Vec<_> = failed.iter().map(|error| error.code).collect();
        let mut expected = [Code::Aborted; 7];
        expected[5] = Code::AlreadyExists;
        assert_eq!(codes, expected);
        assert_eq!(read().await, before, "{mode:?} must leave no trace");
    }
    client.write_batch(attempt(insert(entry(&info, 5, 5))), Atomicity::DataplaneAtomic).await.expect("legal");
    let after = read().await.0;
    assert_eq!(after.len(), 5);
}

//! The example `every_operation`, over each protocol: the same program, the same answers. The interop lab runs it on an RDMA device.

use fatbtree::Protocol;

use crate::common::Running;

#[path = "../../examples/every_operation/operations.rs"]
mod operations;
use operations::Work;

async fn every_operation(protocol: Protocol, has_conditions: bool) {
    let cluster = Running::start();
    let db = cluster.options().protocol(protocol).connect().await.unwrap();
    let work = Work { first: 1 << 63, tasks: 8, operations: 200, has_conditions };
    let operations = work.run(&db).await.unwrap();
    assert!(operations > 8 * 200, "{operations} operations");
    // It leaves nothing behind, so it can run again; a key in its way is told.
    db.put((1 << 63) + 3, "in its way").await.unwrap();
    let error = work.run(&db).await.unwrap_err().to_string();
    assert!(error.starts_with("keys at the beginning: expected None"), "{error}");
    db.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_answers_right_by_one_sided_rdma() {
    every_operation(Protocol::Rdma, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_answers_right_by_queries() {
    every_operation(Protocol::Query, false).await;
}

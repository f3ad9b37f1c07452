//! The service over loopback: a data-path thread with a mailbox on one side, gRPC clients on the other.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

mod common;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fatbtree_index::plain::Regions;
use fatbtree_index::{KeyRange, Tree, TreeConfig, ValueLayout};
use fatbtree_memserver::{
    ConnectError, Endpoint, LoadOptions, MemoryServer, OwnerRequest, ServerError, grpc, mailbox,
};
use tokio::net::TcpListener;

fn client_end(path_mtu: u32) -> Endpoint {
    Endpoint {
        mac: [2, 0, 0, 0, 0, 9],
        ip: Ipv4Addr::new(10, 0, 0, 9),
        queue_pair: 0x123456,
        first_psn: 0xfffffe,
        path_mtu,
    }
}

fn server_end(client: &Endpoint) -> Endpoint {
    Endpoint {
        mac: [2, 0, 0, 0, 0, 1],
        ip: Ipv4Addr::new(10, 0, 1, 1),
        queue_pair: 17,
        first_psn: 3,
        ..*client
    }
}

#[test]
fn snapshot_agrees_with_the_walk() {
    let config = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).unwrap();
    let keys: Vec<u64> = (0..50_000).map(|i| i * 11 + 5).collect();
    let range = KeyRange { low: 3, high: Some(1_000_000) };
    let tree = common::load(&LoadOptions { range, ..LoadOptions::new(config, 2) }, &keys);
    let snapshot = tree.snapshot().unwrap();
    assert_eq!(snapshot.nodes.len() as u64, tree.counts.internal_nodes);
    assert_eq!((snapshot.nodes[0].address, snapshot.nodes[0].low()), (tree.partition.root.raw(), 3));
    let memory = Regions::new([(2, &tree.region[..])]);
    let walk = Tree::new(&memory, &config, &tree.partition);
    for key in [3, 4, 5, 6, 15, 16, 17, 300_000, 549_994, 549_995, 999_999]
        .into_iter()
        .chain((3..550_000).step_by(997))
    {
        let mut path = vec![snapshot.partition.root.raw()];
        while let Some(node) = snapshot.nodes.iter().find(|node| node.address == path[path.len() - 1]) {
            let child = node.children.iter().rev().find(|(low, _)| *low <= key).unwrap();
            path.push(child.1);
        }
        let expected: Vec<u64> =
            walk.find_node_path(key).unwrap().iter().map(|step| step.address.raw()).collect();
        assert_eq!(path, expected, "key {key}");
    }
}

#[test]
fn a_leaf_root_has_an_empty_snapshot() {
    let tree = common::load(&LoadOptions::new(TreeConfig::default(), 0), &[1]);
    let snapshot = tree.snapshot().unwrap();
    assert_eq!((snapshot.nodes.len(), snapshot.partition), (0, tree.partition));
}

#[test]
fn node_larger_than_the_path_mtu_is_refused() {
    let tree = common::load(&LoadOptions::new(TreeConfig::default(), 0), &[1]);
    let error = MemoryServer::new(tree, 512).unwrap_err();
    assert!(matches!(error, ServerError::Config(_)));
    assert!(
        error.to_string().contains("node of 1024 bytes exceeds path MTU 512: index reads must be answered"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trip_over_loopback() {
    let config = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).unwrap();
    let keys: Vec<u64> = (0..300_000).collect();
    let tree = common::load(&LoadOptions { spare_bytes: 4096, ..LoadOptions::new(config, 4) }, &keys);
    let expected = tree.snapshot().unwrap();
    assert!(expected.nodes.len() > 512, "several chunks");
    let (partition, counts, bytes) = (tree.partition, tree.counts, tree.region.len());

    let (handle, mut mail) = mailbox(16);
    let stop = Arc::new(AtomicBool::new(false));
    let registered = Arc::new(AtomicBool::new(false));
    let data_path = std::thread::spawn({
        let (stop, registered) = (Arc::clone(&stop), Arc::clone(&registered));
        move || {
            let mut server = MemoryServer::new(tree, 2048).unwrap();
            let region = server.take_region().unwrap();
            assert!(server.take_region().is_none());
            while !stop.load(Ordering::Relaxed) {
                if registered.load(Ordering::Relaxed) {
                    server.set_rkey(0xabcd);
                }
                mail.drain(&mut server, |request| match request {
                    OwnerRequest::Connect(call) if call.client.queue_pair == 1 => {
                        call.answer(Err(ConnectError::Refused { reason: "no queue pair left".into() }));
                    }
                    OwnerRequest::Connect(call) => {
                        let end = server_end(&call.client);
                        call.answer(Ok(end));
                    }
                    OwnerRequest::Statistics(call) => call.answer([("nic_reads".to_owned(), 12)]),
                });
                std::thread::yield_now();
            }
            region.len()
        }
    });

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (done, until) = tokio::sync::oneshot::channel::<()>();
    let service = tokio::spawn(grpc::serve(listener, handle, async { drop(until.await) }));
    let mut client = grpc::Client::connect(&address).await.unwrap();

    let early = client.connect_queue_pair(client_end(1024)).await.unwrap_err();
    assert!(early.to_string().contains("not registered yet"), "{early}");
    registered.store(true, Ordering::Relaxed);
    let mut info = client.info().await.unwrap();
    while info.rkey.is_none() {
        info = client.info().await.unwrap();
    }
    assert_eq!((info.partition, info.counts, info.config), (partition, counts, config));
    assert_eq!((info.rkey, info.region_iova, info.region_bytes), (Some(0xabcd), 4 << 48, bytes as u64));
    assert_eq!(grpc::super_root([&info]).unwrap().partitions(), [partition]);

    assert_eq!(client.snapshot().await.unwrap(), expected);

    // The smaller path MTU of both counts.
    let end = client.connect_queue_pair(client_end(4096)).await.unwrap();
    assert_eq!(end, Endpoint { path_mtu: 2048, ..server_end(&client_end(4096)) });
    let small = client.connect_queue_pair(client_end(512)).await.unwrap_err().to_string();
    assert!(small.contains("node of 1024 bytes exceeds path MTU 512: index reads"), "{small}");
    let refused =
        client.connect_queue_pair(Endpoint { queue_pair: 1, ..client_end(1024) }).await.unwrap_err();
    assert!(refused.to_string().contains("no queue pair left"), "{refused}");
    let wide =
        client.connect_queue_pair(Endpoint { queue_pair: 1 << 24, ..client_end(1024) }).await.unwrap_err();
    assert!(wide.to_string().contains("more than 24 bits"), "{wide}");
    let odd = client.connect_queue_pair(client_end(1500)).await.unwrap_err();
    assert!(odd.to_string().contains("1024, 2048 or 4096 expected"), "{odd}");

    let chunk = client.allocate(4000).await.unwrap();
    assert_eq!((chunk.server(), chunk.offset() % 64), (4, 0));
    assert!(client.allocate(4000).await.unwrap_err().to_string().contains("4000 bytes wanted"));

    let counters = client.statistics().await.unwrap();
    assert!(
        counters.contains(&("nic_reads".to_owned(), 12))
            && counters.contains(&("connects_refused".to_owned(), 2))
    );

    // The data path stops: clients are told, not kept waiting.
    stop.store(true, Ordering::Relaxed);
    assert_eq!(data_path.join().unwrap(), bytes);
    let gone = client.info().await.unwrap_err();
    assert!(gone.to_string().contains("memory server has stopped"), "{gone}");
    drop(done);
    service.await.unwrap().unwrap();
}

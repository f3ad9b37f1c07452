//! Peers that stall, freeze or lie about a tree, on both sides of the service.
use crate::common;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use common::lab::options;
use common::service::{Service, soon};
use fatbtree_blink::{TreeConfig, ValueLayout};
use fatbtree_blink_host::grpc::proto::tree_client::TreeClient;
use fatbtree_blink_host::grpc::{TreeCalls, TreeServiceOptions, proto as tree_proto};
use fatbtree_blink_host::{LoadOptions, LoadedTree, TreeInfo};
use fatbtree_memserver::grpc;
use fatbtree_memserver::grpc::{ClientError, Deadlines, ServiceOptions, proto};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use tonic::{Code, Status};

const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn tree(keys: u64) -> LoadedTree {
    // Small nodes: a snapshot of many messages.
    let config = TreeConfig::new(4, 256, ValueLayout::Inline(8)).unwrap();
    let load = LoadOptions { spare_bytes: 3 * 4096, ..LoadOptions::new(config, 4) };
    common::load(&load, &(0..keys).collect::<Vec<_>>())
}

async fn start(service: TreeServiceOptions) -> Service {
    Service::start(tree(100), options(), service).await
}

fn hasty() -> Deadlines {
    Deadlines { connect: Duration::from_millis(300), call: Duration::from_millis(300) }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, text: &str) {
    let status = answer.unwrap_err();
    assert!(status.code() == code && status.message().contains(text), "{code:?} {text}: {status:?}");
}

async fn slow_reader(
    service: &Service,
    host: Ipv4Addr,
) -> Result<tonic::Streaming<tree_proto::SnapshotChunk>, Status> {
    let to = tonic::transport::Endpoint::from_shared(service.url()).unwrap();
    let to = to.local_address(Some(IpAddr::V4(host))).initial_stream_window_size(65_535);
    let mut stub = TreeClient::new(to.connect().await.unwrap());
    Ok(stub.snapshot(tree_proto::SnapshotRequest {}).await?.into_inner())
}

/// A peer that takes nothing of its snapshot loses it: neither its memory nor its place is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_is_left_behind() {
    let bounds = TreeServiceOptions {
        snapshots: 3,
        snapshots_per_host: 2,
        // Longer than all that happens before the pause below takes on a busy machine.
        stall: Duration::from_secs(5),
        ..TreeServiceOptions::default()
    };
    let mut service = Service::start(tree(200_000), options(), bounds).await;
    let mut slow =
        vec![slow_reader(&service, HOSTILE).await.unwrap(), slow_reader(&service, HOSTILE).await.unwrap()];
    let third = slow_reader(&service, HOSTILE).await.map(drop);
    refused(third, Code::ResourceExhausted, "as many snapshots are on their way as may be");
    let fast = service.client().await.snapshot().await.unwrap();
    assert!(fast.nodes.len() > 10_000);
    slow.push(slow_reader(&service, Ipv4Addr::LOCALHOST).await.unwrap());
    let fourth = slow_reader(&service, Ipv4Addr::new(127, 0, 0, 3)).await.map(drop);
    refused(fourth, Code::ResourceExhausted, "as many snapshots are on their way as may be");

    // Each slow reader loses its place once it has taken nothing for that long.
    tokio::time::sleep(Duration::from_secs(5)).await;
    soon(|| async { slow_reader(&service, HOSTILE).await.ok() }).await;
    let again = service.client().await.snapshot().await.unwrap();
    assert_eq!(again, fast);
    // Only messages sent before arrive.
    for mut stream in slow {
        let mut nodes = 0;
        while let Some(Ok(chunk)) = stream.next().await {
            nodes += chunk.nodes.len();
        }
        assert!(nodes < fast.nodes.len(), "{nodes} nodes were kept");
    }
    service.stop_data_path();
}

/// A server that accepts and never answers must not hang its clients.
#[tokio::test]
async fn a_frozen_server_is_named_after_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let mut client = match grpc::Client::connect_with(&address, hasty()).await {
        Ok(client) => client,
        Err(ClientError::Deadline { call, .. }) => {
            assert_eq!(call, "to connect");
            return;
        }
        Err(other) => panic!("{other}"),
    };
    let started = Instant::now();
    let error = client.snapshot().await.map(drop).unwrap_err();
    assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
    let told = error.to_string();
    let place = address.trim_start_matches("http://");
    assert!(told.contains(place) && told.contains("in 300ms"), "{told}");
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}

/// A server whose service lives, but whose data path does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_path_that_hangs_is_told_by_the_service() {
    let bounds = ServiceOptions { answer: Duration::from_millis(200), ..ServiceOptions::default() }.into();
    let service = start(bounds).await;
    let mut client = service.client().await;
    service.freeze(true);
    let error = client.snapshot().await.unwrap_err();
    assert_eq!(error.code(), Some(Code::DeadlineExceeded), "{error}");
    assert!(!error.is_final(), "it may answer later");
    service.freeze(false);
    client.snapshot().await.unwrap();
}

/// Answers of a hostile server.
#[derive(Clone)]
struct Liar {
    snapshot: Vec<tree_proto::SnapshotChunk>,
    /// Sends no more after those, and does not end.
    hangs: bool,
    info: proto::ServerInfo,
}

type Reply<T> = Result<tonic::Response<T>, Status>;

#[tonic::async_trait]
impl proto::memory_server_server::MemoryServer for Liar {
    async fn get_info(&self, _: tonic::Request<proto::GetInfoRequest>) -> Reply<proto::ServerInfo> {
        Ok(tonic::Response::new(self.info.clone()))
    }

    async fn get_statistics(
        &self,
        _: tonic::Request<proto::StatisticsRequest>,
    ) -> Reply<proto::StatisticsReply> {
        Err(Status::unimplemented(""))
    }

    async fn compare(&self, _: tonic::Request<proto::CompareRequest>) -> Reply<proto::CompareReply> {
        Err(Status::unimplemented(""))
    }

    async fn call(&self, _: tonic::Request<proto::Call>) -> Reply<proto::Granted> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl tree_proto::tree_server::Tree for Liar {
    type SnapshotStream =
        std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<tree_proto::SnapshotChunk, Status>> + Send>>;

    async fn snapshot(&self, _: tonic::Request<tree_proto::SnapshotRequest>) -> Reply<Self::SnapshotStream> {
        let chunks = tokio_stream::iter(self.snapshot.clone()).map(Ok);
        if self.hangs {
            return Ok(tonic::Response::new(Box::pin(chunks.chain(tokio_stream::pending()))));
        }
        Ok(tonic::Response::new(Box::pin(chunks)))
    }

    /// One place, however many keys there are.
    async fn locate(&self, _: tonic::Request<tree_proto::LocateRequest>) -> Reply<tree_proto::LocateReply> {
        Ok(tonic::Response::new(tree_proto::LocateReply { addresses: vec![64] }))
    }

    async fn get_query_keys(
        &self,
        _: tonic::Request<tree_proto::QueryKeysRequest>,
    ) -> Reply<tree_proto::QueryKeysReply> {
        Err(Status::unimplemented(""))
    }
}

async fn lie(liar: Liar) -> grpc::Client {
    lie_within(Deadlines::default(), liar).await
}

async fn lie_within(deadlines: Deadlines, liar: Liar) -> grpc::Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let tree = tree_proto::tree_server::TreeServer::new(liar.clone());
    let service = proto::memory_server_server::MemoryServerServer::new(liar);
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(service).add_service(tree);
    tokio::spawn(server.serve_with_incoming(incoming));
    grpc::Client::connect_with(&address, deadlines).await.unwrap()
}

#[tokio::test]
async fn a_server_that_lies_is_not_believed() {
    let mut honest = start(TreeServiceOptions::default()).await;
    let info: proto::ServerInfo = honest.handle.info().await.unwrap().into();
    honest.stop_data_path();
    let header =
        |nodes| tree_proto::SnapshotHeader { root_address: 64, root_level: 1, nodes, ..Default::default() };
    let node = tree_proto::InternalNode { address: 64, level: 1, pivots: vec![0, 9], children: vec![1, 2] };
    let chunk = |header, nodes| tree_proto::SnapshotChunk { header, nodes };
    let of_nodes = |nodes: &[tree_proto::InternalNode]| {
        let length = nodes.len() as u64;
        vec![chunk(Some(header(length)), vec![]), chunk(None, nodes.to_vec())]
    };
    let honest = Liar { snapshot: of_nodes(std::slice::from_ref(&node)), hangs: false, info };
    assert_eq!(lie(honest.clone()).await.snapshot().await.unwrap().nodes.len(), 1);
    assert!(lie(honest.clone()).await.info::<TreeInfo>().await.is_ok());

    let snapshots = [
        (vec![], "0 parts came, 0 were announced"),
        (vec![chunk(Some(header(2)), vec![node.clone()])], "1 parts came, 2 were announced"),
        (vec![chunk(None, vec![node.clone()])], "1 parts came, 0 were announced"),
        (vec![chunk(Some(header(1)), vec![node.clone(); 3])], "3 parts came, 1 were announced"),
        (vec![chunk(Some(header(u64::MAX)), vec![])], "0 parts came, 18446744073709551615 were announced"),
        (
            of_nodes(&[tree_proto::InternalNode { pivots: vec![], children: vec![], ..node.clone() }]),
            "cannot be",
        ),
        (of_nodes(&[tree_proto::InternalNode { children: vec![1], ..node.clone() }]), "cannot be"),
        (of_nodes(&[tree_proto::InternalNode { pivots: vec![9, 9], ..node.clone() }]), "cannot be"),
        (of_nodes(&[tree_proto::InternalNode { level: 256, ..node.clone() }]), "cannot be"),
        (
            vec![chunk(Some(tree_proto::SnapshotHeader { partition: 1 << 16, ..header(0) }), vec![])],
            "cannot be",
        ),
        (vec![chunk(Some(tree_proto::SnapshotHeader { root_level: 256, ..header(0) }), vec![])], "cannot be"),
        // Two megabytes in one message.
        (of_nodes(&vec![node.clone(); 60_000]), "refuses"),
    ];
    for (snapshot, text) in snapshots {
        let error = lie(Liar { snapshot, ..honest.clone() }).await.snapshot().await.unwrap_err();
        assert!(error.to_string().contains(text), "{text}: {error}");
    }
    // An endless one ends with what was announced; a silent one with the deadline.
    let endless = vec![chunk(Some(header(5)), vec![node.clone()]); 100];
    let error = lie(Liar { snapshot: endless, ..honest.clone() }).await.snapshot().await.unwrap_err();
    assert!(matches!(error, ClientError::Incomplete { expected: 5, found: 6, .. }), "{error}");
    let silent = Liar { snapshot: vec![chunk(Some(header(5)), vec![])], hangs: true, ..honest.clone() };
    let error = lie_within(hasty(), silent).await.snapshot().await.unwrap_err();
    assert!(matches!(error, ClientError::Deadline { .. }), "{error}");

    let trees: [fn(&mut tree_proto::TreeDescription); 6] = [
        |tree| tree.root_level = 256,
        |tree| tree.fan_out = 1,
        |tree| tree.fan_out = 1 << 16,
        |tree| tree.leaf_node_bytes = 100,
        |tree| tree.inline_value_bytes = 300,
        |tree| tree.internal_node_bytes += 64,
    ];
    let changed_trees = trees.map(|change| {
        let mut tree = tree_proto::TreeDescription::decode(honest.info.description.as_slice()).unwrap();
        change(&mut tree);
        proto::ServerInfo { description: tree.encode_to_vec(), ..honest.info.clone() }
    });
    for info in changed_trees {
        let error = lie(Liar { info, ..honest.clone() }).await.info::<TreeInfo>().await.unwrap_err();
        assert!(matches!(error, ClientError::Answer { .. }), "{error}");
    }
}

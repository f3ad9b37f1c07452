//! The service over loopback: a data-path thread with a mailbox on one side, gRPC clients on the other.
use crate::common;

use std::net::Ipv4Addr;
use std::time::Duration;

use common::lab::options;
use common::service::{Service, soon};
use fatbtree_blink::size_class::{CLASSES, LEAVES};
use fatbtree_blink::{GlobalAddress, Owner, ReturnedBlocks, TopNode, Tree, TreeConfig, TreeTop, ValueLayout};
use fatbtree_blink_host::grpc::{TreeCalls, TreeServiceOptions};
use fatbtree_blink_host::{LoadOptions, LoadedTree, TreeEvent, TreeInfo};
use fatbtree_memserver::grpc::ClientError;
use fatbtree_memserver::{GivenBack, Grant, ServerOptions, grpc};
use fatbtree_remote_memory::session_keeper::{Call, Denied, Granted, Meaning};
use fatbtree_verbs::{Access, Endpoint, Mtu, QueuePairNumber};
use tonic::Code;

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

fn client_end(mtu: Mtu) -> Endpoint {
    Endpoint {
        mac: [2, 0, 0, 0, 0, 9],
        ip: HERE,
        queue_pair: QueuePairNumber(0x12_3456),
        psn: 0xff_fffe,
        mtu,
        responder_reads: 16,
        initiator_reads: 9,
    }
}

fn tree(keys: u64) -> LoadedTree {
    let config = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).unwrap();
    let load = LoadOptions { spare_bytes: 3 * 4096, ..LoadOptions::new(config, 4) };
    common::load(&load, &(0..keys).collect::<Vec<_>>())
}

/// The top of a tree that stands still.
fn top(tree: &LoadedTree) -> TreeTop {
    let memory = common::memory(tree);
    let mut nodes = vec![];
    Tree::new(&memory, &tree.config, &tree.partition)
        .for_each_internal(|node| {
            nodes.push(TopNode {
                address: node.header().address.raw(),
                level: node.header().level,
                children: node.children().map(|(pivot, child)| (pivot, child.raw())).collect(),
            });
        })
        .unwrap();
    TreeTop { partition: tree.partition, nodes }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trip_over_loopback() {
    let tree = tree(500_000);
    let expected = top(&tree);
    assert!(expected.nodes.len() > 1200, "several messages");
    let (partition, counts, config, bytes) = (tree.partition, tree.counts, tree.config, tree.region.len());
    let server = ServerOptions { access: Access::ALL, lock_table_bytes: 4096, ..options() };
    let mut service = Service::start(tree, server, TreeServiceOptions::default()).await;
    let mut client = service.client().await;

    let info = client.info::<TreeInfo>().await.unwrap();
    assert_eq!((info.partition, info.counts, info.config), (partition, counts, config));
    assert_eq!((info.region.iova, info.region.len, info.generation), (4 << 48, bytes, 1));
    let locks = info.locks.unwrap();
    assert_eq!((locks.on_device, locks.region.iova, locks.region.len), (true, 0, 4096));
    assert_ne!(locks.region.rkey, info.region.rkey);
    assert!(info.masked_atomics && info.line_atomicity);
    assert_eq!((info.path_mtu, info.chunk_bytes), (Mtu::B4096, 4096));
    assert_eq!(service.handle.info().await.unwrap(), info, "nothing is lost on the wire");
    assert_eq!(fatbtree_blink_host::grpc::super_root([&info]).unwrap().partitions(), [partition]);

    assert_eq!(client.snapshot().await.unwrap(), expected);

    let session = client.open_session(HERE).await.unwrap();
    assert_eq!(session.lease, Duration::from_secs(10));
    assert_eq!(client.renew_session(session.id).await.unwrap(), session);
    let end = client.connect_queue_pair(session.id, client_end(Mtu::B1024), None).await.unwrap();
    assert_eq!((end.mtu, end.responder_reads, end.initiator_reads), (Mtu::B4096, 255, 255));
    let refused = client.connect_queue_pair(session.id, client_end(Mtu::B512), None).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::FailedPrecondition));
    assert!(refused.to_string().contains("index reads of 1024 bytes exceed path MTU 512"), "{refused}");
    let other = Endpoint { ip: Ipv4Addr::new(10, 0, 0, 8), ..client_end(Mtu::B1024) };
    let refused = client.connect_queue_pair(session.id, other, None).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::PermissionDenied), "{refused}");
    assert!(refused.is_final());

    let mut chunks = vec![];
    for class in CLASSES {
        let Grant::Chunk(chunk) = client.allocate(session.id, class, 0).await.unwrap() else {
            panic!("nothing was given back")
        };
        assert_eq!((chunk.address.server(), chunk.bytes, chunk.class), (4, 4096, class));
        chunks.push(chunk.address);
    }
    let full = client.allocate(session.id, LEAVES, 0).await.unwrap_err();
    assert_eq!(full.code(), Some(Code::ResourceExhausted));
    assert!(full.to_string().contains("no chunk is free for leaves: of 3 chunks 3 were given out"), "{full}");
    client.publish(session.id, chunks[0]).await.unwrap();
    assert_eq!(client.free(session.id, chunks[0]).await.unwrap_err().code(), Some(Code::FailedPrecondition));
    client.free(session.id, chunks[1]).await.unwrap();
    let unknown = client.free(session.id, GlobalAddress::NULL).await.unwrap_err();
    assert_eq!(unknown.code(), Some(Code::NotFound));

    // A leaf of the loaded tree is not free; a record that was freed is.
    let given_back = client.give_back(session.id, LEAVES, 0, &[GlobalAddress::new(4, 64)]).await.unwrap();
    assert_eq!(given_back, GivenBack { refused: 1, ..GivenBack::default() });
    let many = vec![GlobalAddress::NULL; 257];
    let refused = client.give_back(session.id, LEAVES, 0, &many).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::InvalidArgument), "{refused}");
    assert_eq!(session.owner, Some(Owner { session: session.id, number: 1 }));

    let counters = client.statistics().await.unwrap();
    let counter = |name: &str| counters.iter().find(|(found, _)| found == name).unwrap().1;
    assert_eq!((counter("nic_reads"), counter("queue_pairs"), counter("refused")), (12, 1, 6));
    client.disconnect_queue_pair(session.id, end.queue_pair).await.unwrap();
    let gone = client.disconnect_queue_pair(session.id, end.queue_pair).await.unwrap_err();
    assert_eq!((gone.code(), gone.session_has_ended()), (Some(Code::NotFound), false));
    client.close_session(session.id).await.unwrap();
    for ended in [
        client.close_session(session.id).await.unwrap_err(),
        client.renew_session(session.id).await.unwrap_err(),
        client.allocate(session.id, LEAVES, 0).await.unwrap_err(),
    ] {
        assert!(ended.session_has_ended(), "{ended}");
    }

    // The data path stops: clients are told, not kept waiting.
    let events = service.stop_data_path();
    assert!(
        matches!(events[..], [TreeEvent::Opened(open), TreeEvent::Closed(closed)] if open == closed && open.client == HERE)
    );
    let gone = client.info::<TreeInfo>().await.unwrap_err();
    assert!(gone.to_string().contains("memory server has stopped"), "{gone}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_lasts_as_long_as_it_is_renewed() {
    let server = ServerOptions { lease: fatbtree_verbs::time::Duration::from_millis(400), ..options() };
    let service = Service::start(tree(10), server, TreeServiceOptions::default()).await;
    let mut client = service.client().await;
    let session = client.open_session(HERE).await.unwrap();
    client.connect_queue_pair(session.id, client_end(Mtu::B1024), None).await.unwrap();
    for _ in 0..9 {
        tokio::time::sleep(Duration::from_millis(130)).await;
        client.renew_session(session.id).await.expect("it lasts as long as it is renewed");
    }
    let counter = async |name: &str| {
        let counters = service.client().await.statistics().await.unwrap();
        counters.into_iter().find(|(found, _)| found == name).unwrap().1
    };
    soon(async || (counter("queue_pairs").await == 0).then_some(())).await;
    // A client that renews a session which has ended is told.
    let ended = client.renew_session(session.id).await.unwrap_err();
    assert!(ended.session_has_ended(), "{ended}");
}

/// All calls of a session keeper, and the meaning of a refusal for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_session_keeper_are_carried() {
    let service = Service::start(tree(10), options(), TreeServiceOptions::default()).await;
    let mut client = service.client().await;
    let Granted::Opened(opened) = client.carry::<TreeInfo>(HERE, Call::Open { known: None }).await.unwrap()
    else {
        panic!("a session is opened")
    };
    let session = opened.session;
    assert_eq!((opened.lease, opened.info.generation), (options().lease, 1));
    let connect = Call::Connect { session, local: client_end(Mtu::B1024), replaces: None };
    assert!(matches!(client.carry::<TreeInfo>(HERE, connect).await, Ok(Granted::Connected(_))));
    let allocate = Call::Allocate { session, class: LEAVES, bytes: 0 };
    assert!(matches!(client.carry::<TreeInfo>(HERE, allocate).await, Ok(Granted::Supplied(Grant::Chunk(_)))));
    let (server, addresses) = (4, Vec::new());
    let surplus = ReturnedBlocks { server, session, class: LEAVES, bytes: 0, addresses };
    let surplus = Call::GiveBack { places: surplus, settled: 0 };
    for call in [surplus, Call::Renew { session, settled: 0, keeps: 0 }, Call::Close { session }] {
        assert!(matches!(
            client.carry::<TreeInfo>(HERE, call).await,
            Ok(Granted::Done | Granted::Renewed { wait: 0 })
        ));
    }
    let ended =
        client.carry::<TreeInfo>(HERE, Call::Renew { session, settled: 0, keeps: 0 }).await.unwrap_err();
    assert_eq!(Denied::from(ended).meaning, Meaning::Ended);
}

#[tokio::test]
async fn nobody_there_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = grpc::Client::connect(&address).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    let error = grpc::Client::connect("not an address").await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_is_not_taken_for_one_that_refuses() {
    // It was there, and is gone when it is asked again.
    let mut service = Service::start(tree(10), options(), TreeServiceOptions::default()).await;
    let mut client = service.client().await;
    client.info::<TreeInfo>().await.unwrap();
    service.stop().await;
    let gone = client.info::<TreeInfo>().await.unwrap_err();
    assert!(matches!(gone, ClientError::Lost { .. }), "{gone:?}");
    assert!(gone.to_string().ends_with("is it running?"), "{gone}");
    assert!(gone.code().is_none() && !gone.session_has_ended());

    // It goes while it is asked.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let connect = tokio::spawn(async move { grpc::Client::connect(&address).await });
    let (peer, _) = listener.accept().await.unwrap();
    let mut client = connect.await.unwrap().unwrap();
    let session = tokio::spawn(async move { client.open_session(HERE).await });
    drop((peer, listener));
    let gone = session.await.unwrap().unwrap_err();
    assert!(matches!(gone, ClientError::Lost { .. }), "{gone:?}");
}

//! The service over loopback: a data-path thread with a mailbox on one side, gRPC clients on the other.
use crate::common;

use std::net::Ipv4Addr;
use std::time::Duration;

use common::blocks::{self, CLASSES, Info, LARGE, LoadedBlocks, Shape};
use common::lab::{LOADED, options};
use common::service::{self, soon};
use fatbtree_memserver::grpc::{ClientError, ServiceOptions};
use fatbtree_memserver::{Event, Grant, PartOptions, ServerOptions, Tenant as _, grpc};
use fatbtree_remote_memory::session_keeper::{Call, Denied, Granted, Meaning, Opened};
use fatbtree_remote_memory::{GlobalAddress, Owner, ReturnedBlocks};
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

fn part() -> LoadedBlocks {
    blocks::part(&PartOptions { spare_bytes: 3 * 4096, ..PartOptions::new(4, Shape { loaded: LOADED }) })
}

async fn open(client: &mut grpc::Client) -> Opened<Info> {
    match client.call(HERE, Call::Open { known: None }).await.unwrap() {
        Granted::Opened(opened) => *opened,
        other => panic!("a session is opened: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trip_over_loopback() {
    let part = part();
    let (structure, bytes) = (part.tenant.description(), part.region.len());
    let server = ServerOptions { access: Access::ALL, lock_table_bytes: 4096, ..options() };
    let mut service = service::start(part, server, ServiceOptions::default()).await;
    let mut client = service.client().await;

    let info = client.info::<Info>().await.unwrap();
    assert_eq!(info.structure, structure);
    assert_eq!((info.region.iova, info.region.len, info.generation), (4 << 48, bytes, 1));
    let locks = info.locks.unwrap();
    assert_eq!((locks.on_device, locks.region.iova, locks.region.len), (true, 0, 4096));
    assert_ne!(locks.region.rkey, info.region.rkey);
    assert!(info.masked_atomics && info.line_atomicity);
    assert_eq!((info.path_mtu, info.chunk_bytes), (Mtu::B4096, 4096));
    assert_eq!(service.handle.info().await.unwrap(), info, "nothing is lost on the wire");

    let opened = open(&mut client).await;
    let session = opened.session;
    assert_eq!((opened.lease, opened.info), (options().lease, info));
    assert_eq!(opened.owner, Some(Owner { session, number: 1 }));
    let mut call = async |call| client.call::<Info>(HERE, call).await;
    let renew = Call::Renew { session, settled: 0, keeps: 0 };
    assert!(matches!(call(renew.clone()).await, Ok(Granted::Renewed { wait: 0 })));
    let connect = |local| Call::Connect { session, local, replaces: None };
    let Granted::Connected(end) = call(connect(client_end(Mtu::B1024))).await.unwrap() else {
        panic!("a queue pair is connected")
    };
    assert_eq!((end.mtu, end.responder_reads, end.initiator_reads), (Mtu::B4096, 255, 255));
    let refused = call(connect(client_end(Mtu::B512))).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::FailedPrecondition));
    assert!(refused.to_string().contains("index reads of 1024 bytes exceed path MTU 512"), "{refused}");
    let other = Endpoint { ip: Ipv4Addr::new(10, 0, 0, 8), ..client_end(Mtu::B1024) };
    let refused = call(connect(other)).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::PermissionDenied), "{refused}");
    assert!(refused.is_final());

    let allocate = |class| Call::Allocate { session, class, bytes: 0 };
    for class in CLASSES {
        let Granted::Supplied(Grant::Chunk(chunk)) = call(allocate(class)).await.unwrap() else {
            panic!("nothing was given back")
        };
        assert_eq!((chunk.address.server(), chunk.bytes, chunk.class), (4, 4096, class));
    }
    let full = call(allocate(LARGE)).await.unwrap_err();
    assert_eq!(full.code(), Some(Code::ResourceExhausted));
    assert!(
        full.to_string().contains("no chunk is free for large blocks: of 3 chunks 3 were given out"),
        "{full}"
    );

    // A loaded block is not free.
    let give_back = |addresses| {
        let places = ReturnedBlocks { server: 4, session, class: LARGE, bytes: 0, addresses };
        Call::GiveBack { places, settled: 0 }
    };
    assert!(matches!(call(give_back(vec![GlobalAddress::new(4, 64)])).await, Ok(Granted::Done)));
    let refused = call(give_back(vec![GlobalAddress::NULL; 257])).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::InvalidArgument), "{refused}");
    assert!(matches!(call(Call::Sync { session }).await, Ok(Granted::Done)));

    let counters = service.client().await.statistics().await.unwrap();
    let counter = |name: &str| counters.iter().find(|(found, _)| found == name).unwrap().1;
    assert_eq!((counter("nic_reads"), counter("queue_pairs"), counter("refused")), (12, 1, 4));
    assert_eq!(counter("free_blocks_refused"), 1);
    assert!(matches!(call(Call::Close { session }).await, Ok(Granted::Done)));
    for ended in [Call::Close { session }, renew, allocate(LARGE)] {
        let ended = call(ended).await.unwrap_err();
        assert!(ended.session_has_ended(), "{ended}");
        assert_eq!(Denied::from(ended).meaning, Meaning::Ended);
    }

    // The data path stops: clients are told, not kept waiting.
    let events = service.stop_data_path();
    assert!(
        matches!(events[..], [Event::Opened(open), Event::Closed(closed)] if open == closed && open.client == HERE)
    );
    let gone = client.info::<Info>().await.unwrap_err();
    assert!(gone.to_string().contains("memory server has stopped"), "{gone}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_lasts_as_long_as_it_is_renewed() {
    let server = ServerOptions { lease: fatbtree_verbs::time::Duration::from_secs(2), ..options() };
    let service = service::start(part(), server, ServiceOptions::default()).await;
    let mut client = service.client().await;
    let session = open(&mut client).await.session;
    let renew = Call::Renew { session, settled: 0, keeps: 0 };
    let connect = Call::Connect { session, local: client_end(Mtu::B1024), replaces: None };
    client.call::<Info>(HERE, connect).await.unwrap();
    for _ in 0..9 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        client.call::<Info>(HERE, renew.clone()).await.expect("it lasts as long as it is renewed");
    }
    let counter = async |name: &str| {
        let counters = service.client().await.statistics().await.unwrap();
        counters.into_iter().find(|(found, _)| found == name).unwrap().1
    };
    soon(async || (counter("queue_pairs").await == 0).then_some(())).await;
    // A client that renews a session which has ended is told.
    let ended = client.call::<Info>(HERE, renew).await.unwrap_err();
    assert!(ended.session_has_ended(), "{ended}");
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
    let mut service = service::start(part(), options(), ServiceOptions::default()).await;
    let mut client = service.client().await;
    client.info::<Info>().await.unwrap();
    service.stop().await;
    let gone = client.info::<Info>().await.unwrap_err();
    assert!(matches!(gone, ClientError::Lost { .. }), "{gone:?}");
    assert!(gone.to_string().ends_with("is it running?"), "{gone}");
    assert!(gone.code().is_none() && !gone.session_has_ended());

    // It goes while it is asked.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let connect = tokio::spawn(async move { grpc::Client::connect(&address).await });
    let (peer, _) = listener.accept().await.unwrap();
    let mut client = connect.await.unwrap().unwrap();
    let session = tokio::spawn(async move { client.call::<Info>(HERE, Call::Open { known: None }).await });
    drop((peer, listener));
    let gone = session.await.unwrap().unwrap_err();
    assert!(matches!(gone, ClientError::Lost { .. }), "{gone:?}");
}

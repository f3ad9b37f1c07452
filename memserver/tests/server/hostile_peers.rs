//! Peers that flood, freeze, stall, lie or send nonsense, on both sides of the service.
use crate::common;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use common::blocks::{self, Info, LoadedBlocks, Shape};
use common::lab::options;
use common::service::{self, Service, soon};
use fatbtree_memserver::grpc::proto::call::Asked;
use fatbtree_memserver::grpc::proto::granted::Granted as Answer;
use fatbtree_memserver::grpc::proto::memory_server_client::MemoryServerClient;
use fatbtree_memserver::grpc::{ClientError, Deadlines, ServiceOptions, proto};
use fatbtree_memserver::{PartOptions, grpc};
use fatbtree_remote_memory::SessionId;
use fatbtree_remote_memory::session_keeper::{Call, Granted};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::Channel;
use tonic::{Code, Status};

const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const ROCE: u32 = 0x0a00_0009;

fn part() -> LoadedBlocks {
    blocks::part(&PartOptions { spare_bytes: 3 * 4096, ..PartOptions::new(4, Shape { loaded: 3 }) })
}

async fn start(service: ServiceOptions) -> Service {
    service::start(part(), options(), service).await
}

/// A client without manners, at an address of its own.
async fn stub(
    service: &Service,
    host: Ipv4Addr,
) -> Result<MemoryServerClient<Channel>, tonic::transport::Error> {
    let to = tonic::transport::Endpoint::from_shared(service.url())?.local_address(Some(IpAddr::V4(host)));
    Ok(MemoryServerClient::new(to.connect().await?))
}

fn hasty() -> Deadlines {
    Deadlines { connect: Duration::from_millis(300), call: Duration::from_millis(300) }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, text: &str) {
    let status = answer.unwrap_err();
    assert!(status.code() == code && status.message().contains(text), "{code:?} {text}: {status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_field_is_checked() {
    let service = start(ServiceOptions::default()).await;
    let mut stub = stub(&service, HOSTILE).await.unwrap();
    let session = open(&mut stub, ROCE).await.unwrap();
    let good = proto::Endpoint {
        mac: vec![2, 0, 0, 0, 0, 9],
        ip: ROCE,
        queue_pair: 17,
        first_psn: 5,
        path_mtu: 1024,
        responder_reads: 16,
        initiator_reads: 16,
    };
    let with = |change: &dyn Fn(&mut proto::Endpoint)| {
        let mut end = good.clone();
        change(&mut end);
        proto::Connect { session, client: Some(end), replaces: None }
    };
    let bad: [(proto::Connect, &str); 12] = [
        (proto::Connect { session, client: None, replaces: None }, "client: missing"),
        (with(&|end| end.mac = vec![1; 5]), "mac: expected 6 bytes, found 5"),
        (with(&|end| end.mac = vec![1; 9000]), "mac: expected 6 bytes, found 9000"),
        (with(&|end| end.queue_pair = 1), "queue pair number: expected 2 to 2^24 - 1, found 1"),
        (with(&|end| end.queue_pair = 1 << 24), "queue pair number: expected"),
        (with(&|end| end.first_psn = 1 << 24), "PSN: expected 24 bits"),
        (with(&|end| end.path_mtu = 1500), "256, 512, 1024, 2048 or 4096, found 1500"),
        (with(&|end| end.path_mtu = u32::MAX), "path_mtu: expected"),
        (with(&|end| end.responder_reads = 0), "READs it answers at once: expected at least 1"),
        (with(&|end| end.responder_reads = 256), "responder_reads: expected at most 255, found 256"),
        (with(&|end| end.initiator_reads = 0), "READs it has outstanding: expected at least 1"),
        (with(&|end| end.initiator_reads = 1000), "initiator_reads: expected at most 255"),
    ];
    for (request, text) in bad {
        refused(stub.call(asked(Asked::Connect(request))).await, Code::InvalidArgument, text);
    }
    let classes = [
        (None, "size_class"),
        (Some(3), "the server's structure has no size class 3: expected a number below 3"),
        (Some(255), "no size class 255"),
        (Some(256), "size_class: expected 0 to 254"),
        (Some(u32::MAX), "size_class: expected 0 to 254"),
    ];
    for (size_class, text) in classes {
        let request = proto::Allocate { session, size_class, block_bytes: 64 };
        refused(stub.call(asked(Asked::Allocate(request))).await, Code::InvalidArgument, text);
        let request = proto::GiveBack { session, size_class, ..proto::GiveBack::default() };
        // A class of which the structure has none has no free blocks either.
        if !text.contains("no size class") {
            refused(stub.call(asked(Asked::GiveBack(request))).await, Code::InvalidArgument, text);
        }
    }
    for session in [0, !session, u64::MAX] {
        let in_session = proto::InSession { session };
        let calls = [
            Asked::Renew(proto::Renew { session, settled: 0, keeps: 0 }),
            Asked::Sync(in_session),
            Asked::Close(in_session),
        ];
        for call in calls {
            refused(stub.call(asked(call)).await, Code::Unauthenticated, "there is no session");
        }
    }
    refused(stub.call(proto::Call::default()).await, Code::InvalidArgument, "asked: missing");
    // A message larger than any that makes sense is not read.
    let huge = with(&|end| end.mac = vec![1; 1 << 20]);
    refused(stub.call(asked(Asked::Connect(huge))).await, Code::OutOfRange, "message length too large");
    let connect = proto::Connect { session, client: Some(good), replaces: None };
    stub.call(asked(Asked::Connect(connect))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_of_no_use_to_another_host() {
    let service = start(ServiceOptions::default()).await;
    let (mut owner, mut thief) =
        (stub(&service, Ipv4Addr::LOCALHOST).await.unwrap(), stub(&service, HOSTILE).await.unwrap());
    let session = open(&mut owner, ROCE).await.unwrap();
    let close = asked(Asked::Close(proto::InSession { session }));
    refused(thief.call(close.clone()).await, Code::Unauthenticated, "of host 127.0.0.2");
    owner.call(close).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_opens_without_end_is_refused_and_others_are_served() {
    let mut server = options();
    server.limits.host.sessions = 20;
    let service = service::start(part(), server, ServiceOptions::default()).await;
    let mut hostile = stub(&service, HOSTILE).await.unwrap();
    let mut opened = 0;
    for n in 0..200 {
        // Another made-up address each time.
        match open(&mut hostile, n).await {
            Ok(_) => opened += 1,
            refusal => refused(refusal, Code::ResourceExhausted, "host 127.0.0.2 has 20 sessions"),
        }
    }
    assert_eq!(opened, 20);
    let mut client = service.client().await;
    client.call::<Info>(Ipv4Addr::from_bits(3), OPEN).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_bounded_per_host_and_in_all() {
    let bounds = ServiceOptions { connections: 6, connections_per_host: 4, ..ServiceOptions::default() };
    let mut service = start(bounds).await;
    let socket = async |host: Ipv4Addr| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((host, 0).into()).unwrap();
        socket.connect(service.address).await.unwrap()
    };
    // Says nothing, for ever: is it closed at once?
    let closed = async |stream: &mut TcpStream| {
        let read = tokio::time::timeout(Duration::from_millis(200), stream.read(&mut [0; 100])).await;
        matches!(read, Ok(Ok(0) | Err(_)))
    };
    let mut held = vec![];
    for n in 0..8 {
        let mut stream = socket(HOSTILE).await;
        assert_eq!(closed(&mut stream).await, n >= 4, "connection {n}");
        held.push(stream);
    }
    // Others are served.
    let mut other = service.client().await;
    other.info::<Info>().await.unwrap();
    let mut more = vec![];
    for last in 3..6 {
        let mut stream = socket(Ipv4Addr::new(127, 0, 0, last)).await;
        more.push(closed(&mut stream).await);
        held.push(stream);
    }
    assert_eq!(more, [false, true, true], "six in all");
    drop(held);
    soon(async || stub(&service, HOSTILE).await.unwrap().get_info(proto::GetInfoRequest {}).await.ok()).await;
    // A peer that holds on to a connection does not keep the service from its end.
    let _held = socket(HOSTILE).await;
    let _silent = stub(&service, HOSTILE).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), service.stop()).await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_grpc_does_no_harm() {
    let service = start(ServiceOptions::default()).await;
    let mut random = 1_u64;
    for length in [0, 1, 24, 100, 5000] {
        let mut stream = TcpStream::connect(service.address).await.unwrap();
        let junk = (0..length).map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        });
        let junk: Vec<u8> = junk.collect();
        let _ = stream.write_all(&junk).await;
        let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\xff").await;
        service.client().await.info::<Info>().await.unwrap();
    }
}

/// Calls on one connection wait for each other; those on other connections do not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_calls_is_bounded() {
    let bounds = ServiceOptions {
        calls_per_connection: 4,
        answer: Duration::from_millis(400),
        ..ServiceOptions::default()
    };
    let service = start(bounds).await;
    let mut flood = stub(&service, HOSTILE).await.unwrap();
    // From its first answer on it knows how many calls the service takes at a time.
    flood.get_info(proto::GetInfoRequest {}).await.unwrap();
    service.freeze(true);
    let started = Instant::now();
    let calls: Vec<_> = (0..12)
        .map(|_| {
            let mut stub = flood.clone();
            tokio::spawn(async move { stub.get_info(proto::GetInfoRequest {}).await.map(drop) })
        })
        .collect();
    for call in calls {
        refused(call.await.unwrap(), Code::DeadlineExceeded, "data path has not answered in 400ms");
    }
    assert!(started.elapsed() >= Duration::from_millis(1200), "four at a time: {:?}", started.elapsed());
    service.freeze(false);
    service.client().await.info::<Info>().await.unwrap();
}

// ---- servers ----

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
    let errors = [
        client.info::<Info>().await.map(drop),
        client.statistics().await.map(drop),
        client.call::<Info>(Ipv4Addr::LOCALHOST, OPEN).await.map(drop),
        client.call::<Info>(Ipv4Addr::LOCALHOST, connect_of(good_endpoint())).await.map(drop),
    ];
    for error in errors {
        let error = error.unwrap_err();
        assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
        let told = error.to_string();
        let place = address.trim_start_matches("http://");
        assert!(told.contains(place) && told.contains("in 300ms"), "{told}");
    }
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}

/// A server whose service lives, but whose data path does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_path_that_hangs_is_told_by_the_service() {
    let bounds = ServiceOptions { answer: Duration::from_millis(200), ..ServiceOptions::default() };
    let service = start(bounds).await;
    let mut client = service.client().await;
    service.freeze(true);
    let error = client.info::<Info>().await.unwrap_err();
    assert_eq!(error.code(), Some(Code::DeadlineExceeded), "{error}");
    assert!(!error.is_final(), "it may answer later");
    // A request whose caller gave up is not granted afterwards.
    let error = client.call::<Info>(Ipv4Addr::LOCALHOST, OPEN).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::DeadlineExceeded), "{error}");
    service.freeze(false);
    let counters = client.statistics().await.unwrap();
    let counter = |name: &str| counters.iter().find(|(found, _)| found == name).unwrap().1;
    assert_eq!(counter("sessions"), 0);
}

/// Answers of a hostile server.
#[derive(Clone)]
struct Liar {
    info: proto::ServerInfo,
    granted: Option<Answer>,
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
        let long = "x".repeat(3 << 20);
        Ok(tonic::Response::new(proto::StatisticsReply { counters: [(long, 1)].into() }))
    }

    async fn compare(&self, _: tonic::Request<proto::CompareRequest>) -> Reply<proto::CompareReply> {
        Err(Status::unimplemented(""))
    }

    async fn call(&self, _: tonic::Request<proto::Call>) -> Reply<proto::Granted> {
        Ok(tonic::Response::new(proto::Granted { granted: self.granted.clone() }))
    }
}

async fn lie(liar: Liar) -> grpc::Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let service = proto::memory_server_server::MemoryServerServer::new(liar);
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    grpc::Client::connect(&address).await.unwrap()
}

#[tokio::test]
async fn a_server_that_lies_is_not_believed() {
    let mut honest = start(ServiceOptions::default()).await;
    let info: proto::ServerInfo = honest.handle.info().await.unwrap().into();
    honest.stop_data_path();
    let honest = Liar { info, granted: None };
    assert!(lie(honest.clone()).await.info::<Info>().await.is_ok());

    let infos: [fn(&mut proto::ServerInfo); 7] = [
        |info| info.locks = info.region,
        |info| info.server = 1 << 16,
        |info| info.region = None,
        |info| info.region = Some(proto::Region::default()),
        |info| info.path_mtu = 1000,
        |info| info.structure = "hash table".to_owned(),
        |info| info.description = vec![255; 3],
    ];
    for change in infos {
        let mut info = honest.info.clone();
        change(&mut info);
        let error = lie(Liar { info, ..honest.clone() }).await.info::<Info>().await.unwrap_err();
        assert!(matches!(error, ClientError::Answer { .. }), "{error}");
    }
    let mut client = lie(honest.clone()).await;
    assert!(matches!(client.statistics().await, Err(ClientError::Refused { .. })), "three megabytes");
    let other = client.moments().await.unwrap_err();
    assert!(other.is_final() && matches!(other, ClientError::OtherVersion { .. }), "{other}");

    let call = connect_of(good_endpoint());
    let end = proto::Endpoint::from(good_endpoint());
    let opened = proto::Opened { session: 1, info: Some(honest.info.clone()), ..proto::Opened::default() };
    let answers = [
        None,
        Some(Answer::Connected(proto::Endpoint { queue_pair: 1, ..end.clone() })),
        Some(Answer::Connected(proto::Endpoint { responder_reads: 0, ..end.clone() })),
        Some(Answer::Connected(proto::Endpoint { path_mtu: 0, ..end.clone() })),
        Some(Answer::Opened(proto::Opened { info: None, ..opened.clone() })),
        Some(Answer::Opened(proto::Opened { owner: Some(0), ..opened.clone() })),
        Some(Answer::Opened(proto::Opened { owner: Some(1 << 16), ..opened })),
        Some(Answer::Supplied(proto::Memory::default())),
        Some(Answer::Supplied(proto::Memory { size_class: Some(256), ..proto::Memory::default() })),
    ];
    for granted in answers {
        let mut client = lie(Liar { granted, ..honest.clone() }).await;
        let error = client.call::<Info>(Ipv4Addr::LOCALHOST, call.clone()).await.unwrap_err();
        assert!(matches!(error, ClientError::Answer { .. }), "{error}");
    }
    let mut client = lie(Liar { granted: Some(Answer::Connected(end)), ..honest }).await;
    let granted = client.call::<Info>(Ipv4Addr::LOCALHOST, call).await.unwrap();
    assert!(matches!(granted, Granted::Connected(end) if end == good_endpoint()), "{granted:?}");
}

const OPEN: Call = Call::Open { known: None };

fn connect_of(local: fatbtree_verbs::Endpoint) -> Call {
    Call::Connect { session: SessionId(1), local, replaces: None }
}

/// A call from the address [`ROCE`].
fn asked(asked: Asked) -> proto::Call {
    proto::Call { roce_address: ROCE, asked: Some(asked) }
}

async fn open(stub: &mut MemoryServerClient<Channel>, roce_address: u32) -> Result<u64, Status> {
    let asked = Some(Asked::Open(proto::Open { known_generation: None }));
    match stub.call(proto::Call { roce_address, asked }).await?.into_inner().granted {
        Some(Answer::Opened(opened)) => Ok(opened.session),
        other => panic!("a session is opened: {other:?}"),
    }
}

fn good_endpoint() -> fatbtree_verbs::Endpoint {
    fatbtree_verbs::Endpoint {
        mac: [0; 6],
        ip: Ipv4Addr::LOCALHOST,
        queue_pair: fatbtree_verbs::QueuePairNumber(2),
        psn: 0,
        mtu: fatbtree_verbs::Mtu::B1024,
        responder_reads: 1,
        initiator_reads: 1,
    }
}

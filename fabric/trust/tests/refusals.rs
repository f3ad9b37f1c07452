//! Callers that are let in, and callers that are refused, each for one wrong thing.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use std::time::Duration;

use fatbtree_trust::{CONTROLLER, Connections, Door, OPERATOR, Peer, Roster, Trust, make_certificates};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);

/// A service that returns its door's verdict: `ABORTED` if the caller is let in.
#[derive(Clone)]
struct Guarded(Door<()>);

impl NamedService for Guarded {
    const NAME: &'static str = "test.Guarded";
}

impl Service<http::Request<Body>> for Guarded {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (parts, _) = request.into_parts();
        let mut asked = Request::new(());
        *asked.extensions_mut() = parts.extensions;
        let (door, caller) = (&self.0, self.0.caller(&asked));
        let may = match parts.uri.path() {
            "/test.Guarded/controller" => door.admit(&asked, &[CONTROLLER]),
            "/test.Guarded/partition_0" => door.admit_server(&caller, 0),
            "/test.Guarded/partition_7" => door.admit_server(&caller, 7),
            "/test.Guarded/client" => door.admit_client(&caller, CLIENT),
            _ => door.admit_client(&caller, Ipv4Addr::new(10, 1, 0, 3)),
        };
        ready(Ok(may.map_or_else(|refused| refused, |()| Status::aborted("let in")).into_http()))
    }
}

/// Starts a service with this certificate; returns its address and its door.
async fn serve(trust: Trust, bound: Connections) -> (String, Door<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let roster = Roster {
        partitions: [(0, "left".to_owned()), (1, "right".to_owned())].into(),
        clients: [(CLIENT, "client".to_owned())].into(),
    };
    let door = Door { trust, roster: roster.into(), ..Door::from(listener) };
    let mut server = door.server().expect("good certificates");
    let (connections, door) = door.open(bound);
    let serving = server.add_service(Guarded(door.clone())).serve_with_incoming(connections);
    tokio::spawn(serving);
    (address, door)
}

const MANY: Connections = Connections { all: 64, per_host: 64 };

/// Status that a caller gets, from the service or from the transport.
async fn asks(peer: Peer, what: &str) -> Status {
    asks_at(peer.endpoint().expect("an address"), what).await
}

async fn asks_at(endpoint: Endpoint, what: &str) -> Status {
    let channel = match endpoint.timeout(Duration::from_secs(10)).connect().await {
        Ok(channel) => channel,
        Err(error) => return Status::unavailable(error.to_string()),
    };
    let mut grpc = Grpc::new(channel);
    if let Err(error) = grpc.ready().await {
        return Status::unavailable(error.to_string());
    }
    let path = PathAndQuery::try_from(format!("/test.Guarded/{what}")).expect("a path");
    let answer = grpc.unary::<(), (), _>(Request::new(()), path, ProstCodec::default()).await;
    answer.expect_err("the service never says OK")
}

const ROLES: [&str; 5] = [OPERATOR, CONTROLLER, "left", "right", "client"];

/// Certificates of one authority in a folder of its own.
fn authority(folder: &Path, name: &str) -> PathBuf {
    let folder = folder.join(name);
    make_certificates(&folder, ROLES, 365).expect("a set");
    folder
}

#[tokio::test]
async fn each_may_do_what_its_name_may() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = authority(folder.path(), "ours");
    let of = |name: &str| Trust::read(&ours, name).expect("a certificate");
    let (address, _door) = serve(of("left"), MANY).await;
    for name in ROLES {
        for (what, may) in [
            ("controller", CONTROLLER),
            ("partition_0", "left"),
            ("partition_7", "nobody"),
            ("client", "client"),
            ("another_client", "nobody"),
        ] {
            let status = asks(of(name).to(&address, "left"), what).await;
            let expected = if name == may { Code::Aborted } else { Code::PermissionDenied };
            assert_eq!(status.code(), expected, "{name} asks for {what}: {status}");
        }
    }
}

#[tokio::test]
async fn certificates_of_another_authority_open_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = (authority(folder.path(), "ours"), authority(folder.path(), "theirs"));
    // Their certificate, and our authority's: it believes the service, and is not believed.
    let mixed = folder.path().join("mixed");
    std::fs::create_dir(&mixed).expect("a folder");
    for (from, file) in [(&ours, "ca.pem"), (&theirs, "controller.pem"), (&theirs, "controller.key")] {
        std::fs::copy(from.join(file), mixed.join(file)).expect("copied");
    }
    let of = |folder: &Path| Trust::read(folder, CONTROLLER).expect("a certificate");
    let (address, _door) = serve(Trust::read(&ours, "left").expect("a certificate"), MANY).await;
    let refused_at = async |endpoint: Endpoint| {
        let status = asks_at(endpoint, "controller").await;
        assert!(!matches!(status.code(), Code::Aborted | Code::PermissionDenied), "{status}");
    };
    let refused = async |peer: Peer| refused_at(peer.endpoint().expect("an address")).await;
    assert_eq!(asks(of(&ours).to(&address, "left"), "controller").await.code(), Code::Aborted);
    refused(of(&mixed).to(&address, "left")).await;
    refused(of(&theirs).to(&address, "left")).await;
    // None at all, and no TLS at all.
    let ca = std::fs::read_to_string(ours.join("ca.pem")).expect("it is there");
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name("left");
    let nameless = Endpoint::from_shared(format!("https://{address}")).expect("an address").tls_config(tls);
    refused_at(nameless.expect("good certificates")).await;
    refused(Peer::from(&address)).await;
    // A client does not believe another authority's service, nor one with another name.
    refused(of(&ours).to(&address, "right")).await;
    let (false_one, _door) = serve(Trust::read(&theirs, "left").expect("a certificate"), MANY).await;
    refused(of(&ours).to(&false_one, "left")).await;
}

#[tokio::test]
async fn in_plaintext_everybody_may_do_everything() {
    let (address, _door) = serve(Trust::default(), MANY).await;
    for what in ["controller", "partition_7", "another_client"] {
        assert_eq!(asks(Peer::from(&address), what).await.code(), Code::Aborted, "{what}");
    }
}

/// Whether the service closes a silent connection at once.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(Duration::from_millis(300), stream.read(&mut [0; 100])).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn connections_are_bounded_and_counted_before_anything_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = authority(folder.path(), "ours");
    let of = |name: &str| Trust::read(&ours, name).expect("a certificate");
    for trust in [Trust::default(), of("left")] {
        let (address, door) = serve(trust.clone(), Connections { all: 5, per_host: 3 }).await;
        let from = async |host: u8| {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind(([127, 0, 0, host], 0).into()).expect("loopback");
            socket.connect(address.parse().expect("an address")).await.expect("the service listens")
        };
        let mut held = Vec::new();
        for n in 0..6 {
            let mut stream = from(2).await;
            assert_eq!(is_closed(&mut stream).await, n >= 3, "connection {n} of a host");
            held.push(stream);
        }
        assert_eq!(door.refused.count(), 3);
        // Another host is served meanwhile; then there are as many as there may be of all.
        let peer =
            if trust.is_plaintext() { Peer::from(&address) } else { of(CONTROLLER).to(&address, "left") };
        assert_eq!(asks(peer.clone(), "controller").await.code(), Code::Aborted);
        let mut more = Vec::new();
        for host in 3..7 {
            let mut stream = from(host).await;
            more.push(is_closed(&mut stream).await);
            held.push(stream);
        }
        assert!(more.ends_with(&[true, true]) && more.starts_with(&[false]), "{more:?}: five in all");
        let refused = door.refused.count();
        assert!(refused >= 5, "{refused} counted");
        // Connections that end make room.
        drop(held);
        let came = async {
            while asks(peer.clone(), "controller").await.code() != Code::Aborted {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), came).await.expect("there is room again");
    }
}

//! Bounds of what a peer can make the server hold: bytes of a request, requests and messages that wait,
//! connections.

use std::time::Duration;

use fatbtree_p4runtime::entry::insert;
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::tonic::transport::Endpoint;
use fatbtree_p4runtime::v1::p4_runtime_client::P4RuntimeClient as Grpc;
use fatbtree_p4runtime::v1::{
    CapabilitiesRequest, FieldMatch, PacketOut, StreamMessageRequest, TableEntry, WriteRequest, field_match,
    stream_message_request,
};
use fatbtree_switch::service::{Inbox, Request, Switch, mailbox, serve};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};

use super::harness::{DEVICE, Harness};

/// Handles waiting requests without giving peers time to send more; returns their number.
fn drain(inbox: &mut Inbox, switch: &mut Switch) -> usize {
    std::iter::from_fn(|| Some(inbox.try_drain(switch)).filter(|handled| *handled > 0)).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_too_large_is_refused_before_it_is_decoded() {
    let (harness, client) = Harness::loaded().await;
    let endpoint = Endpoint::from_shared(format!("http://{}", harness.address)).expect("an address");
    let mut grpc = Grpc::new(endpoint.connect().await.expect("the server runs"));
    let mut write = async |bytes: usize| {
        let value = field_match::Exact { value: vec![1; bytes] };
        let field =
            FieldMatch { field_id: 1, field_match_type: Some(field_match::FieldMatchType::Exact(value)) };
        let update = insert(TableEntry { table_id: 1, r#match: vec![field], ..TableEntry::default() });
        let request = WriteRequest { device_id: DEVICE, updates: vec![update], ..WriteRequest::default() };
        grpc.write(request).await.expect_err("such a table there is not").code()
    };
    assert_eq!(write(65 << 20).await, Code::OutOfRange);
    assert_ne!(write(1 << 20).await, Code::OutOfRange);
    assert!(client.p4info().await.is_ok());
}

/// Takes none of the messages that it causes.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_nobody_reads_is_given_up() {
    const MESSAGES: usize = 60_000;
    let (harness, client) = Harness::loaded().await;
    let endpoint = Endpoint::from_shared(format!("http://{}", harness.address)).expect("an address");
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let mut grpc = Grpc::new(endpoint.connect().await.expect("the server runs"));
    let (requests, outbound) = tokio::sync::mpsc::channel(16);
    let sending = tokio::spawn(async move {
        for _ in 0..MESSAGES {
            // The switch has no use for a packet, and says so.
            let update = Some(stream_message_request::Update::Packet(PacketOut::default()));
            if requests.send(StreamMessageRequest { update }).await.is_err() {
                return;
            }
        }
    });
    let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
    let mut stream = grpc.stream_channel(outbound).await.expect("it starts").into_inner();
    sending.await.expect("it ends");
    let mut received = 0;
    while let Ok(Some(_)) = stream.message().await {
        received += 1;
    }
    assert!((256..MESSAGES).contains(&received), "{received} of {MESSAGES} messages were kept");
    assert!(client.p4info().await.is_ok());
}

#[tokio::test]
async fn callers_wait_when_as_many_requests_wait_as_may() {
    let (mailbox, mut inbox) = mailbox();
    let mut switch = Switch::new(DEVICE);
    let calls: Vec<_> = (0..300)
        .map(|_| {
            let mailbox = mailbox.clone();
            tokio::spawn(async move {
                mailbox.call(Request::Capabilities(CapabilitiesRequest { device_id: DEVICE })).await.is_ok()
            })
        })
        .collect();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(drain(&mut inbox, &mut switch), 64);
    // All are answered in the end.
    while !calls.iter().all(|call| call.is_finished()) {
        drain(&mut inbox, &mut switch);
        tokio::task::yield_now().await;
    }
    for call in calls {
        assert!(call.await.expect("it ends"));
    }
}

#[tokio::test]
async fn a_connection_has_few_requests_under_way() {
    let (mailbox, mut inbox) = mailbox();
    let mut switch = Switch::new(DEVICE);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(serve(listener, mailbox, std::future::pending()));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let grpc = Grpc::new(endpoint.connect().await.expect("the server runs"));
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let mut grpc = grpc.clone();
            tokio::spawn(
                async move { grpc.capabilities(CapabilitiesRequest { device_id: DEVICE }).await.is_ok() },
            )
        })
        .collect();
    while !inbox.is_waiting() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Time for all of them to come.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let waiting = drain(&mut inbox, &mut switch);
    assert!((1..=8).contains(&waiting), "{waiting} at once");
    while !calls.iter().all(|call| call.is_finished()) {
        drain(&mut inbox, &mut switch);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for call in calls {
        assert!(call.await.expect("it ends"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_bounded_per_host() {
    let (harness, client) = Harness::loaded().await;
    let connect = async || {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 2], 0).into()).expect("loopback");
        socket.connect(harness.address.parse().expect("an address")).await.expect("the server runs")
    };
    // The server speaks first, in HTTP/2.
    let is_closed = async |stream: &mut TcpStream| {
        let mut bytes = [0; 256];
        loop {
            let read = tokio::time::timeout(Duration::from_millis(300), stream.read(&mut bytes)).await;
            match read {
                Ok(Ok(0) | Err(_)) => return true,
                Ok(Ok(_)) => {}
                Err(_) => return false,
            }
        }
    };
    let mut held = Vec::new();
    for _ in 0..66 {
        held.push(connect().await);
    }
    let mut closed = Vec::new();
    for stream in [0, 63, 64, 65] {
        closed.push(is_closed(&mut held[stream]).await);
    }
    assert_eq!(closed, [false, false, true, true]);
    assert!(client.p4info().await.is_ok(), "others are served");
    assert!(harness.client().await.p4info().await.is_ok(), "and may come");
}

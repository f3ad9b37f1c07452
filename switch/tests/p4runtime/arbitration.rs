//! Permission to write, as clients see it.

use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::tonic::transport::Endpoint;
use fatbtree_p4runtime::v1::p4_runtime_client::P4RuntimeClient as Grpc;
use fatbtree_p4runtime::v1::{
    PacketOut, StreamMessageRequest, stream_message_request, stream_message_response,
};
use fatbtree_p4runtime::{ClientError, Mastership, P4RuntimeClient};

use crate::harness::{DEVICE, Harness, info, refused};

#[tokio::test(flavor = "multi_thread")]
async fn a_higher_bid_takes_over_and_the_old_primary_learns_it() {
    let (harness, mut first) = Harness::loaded().await;
    let mut notices = first.mastership().expect("bid before");
    assert!(first.is_primary());
    let second = harness.primary(u128::from(u64::MAX) + 5).await;
    notices
        .wait_for(|now| *now == Mastership::Backup { highest: Some(u128::from(u64::MAX) + 5) })
        .await
        .expect("told");
    assert!(!first.is_primary());
    let status = refused(first.write([fatbtree_p4runtime::v1::Update::default()]).await);
    assert_eq!(status.code(), Code::PermissionDenied);
    // Reading needs no mastership.
    first.read_table(info().table("exact_table").expect("there"), false).await.expect("readable");

    // A lower bid is told the highest one.
    let error = first.become_primary(4).await.expect_err("too low");
    assert!(
        matches!(error, ClientError::NotPrimary { ours: 4, highest: Some(highest), .. } if highest > u128::from(u64::MAX)),
        "{error}"
    );
    // When the primary leaves, no client may write until a bid as high as the highest.
    drop(second);
    notices.wait_for(|now| matches!(now, Mastership::Vacant { .. })).await.expect("told");
    assert!(matches!(first.become_primary(5).await, Err(ClientError::NotPrimary { ours: 5, .. })));
    first.become_primary(u128::from(u64::MAX) + 5).await.expect("as high as the highest");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bids_end_the_session() {
    let (harness, _first) = Harness::loaded().await;
    let mut same = harness.client().await;
    let error = same.become_primary(1).await.expect_err("the id is taken");
    assert!(
        matches!(&error, ClientError::SessionEnded { reason, .. } if reason.contains("another live controller")),
        "{error}"
    );
    same.become_primary(2).await.expect("a new session with another id");
    let mut stranger = P4RuntimeClient::connect(&harness.address, DEVICE + 1).await.expect("the server runs");
    let error = stranger.become_primary(9).await.expect_err("no such device");
    assert!(error.to_string().contains("expected device 3, found device 4"), "{error}");
}

/// Opens streams without end; the others are not disturbed.
#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded() {
    let (harness, client) = Harness::loaded().await;
    let (mut connections, mut open, mut refused) = (Vec::new(), Vec::new(), None);
    for n in 0..200 {
        if n % 50 == 0 {
            let endpoint = Endpoint::from_shared(format!("http://{}", harness.address)).expect("an address");
            connections.push(Grpc::new(endpoint.connect().await.expect("the server runs")));
        }
        let grpc = connections.last_mut().expect("one was made");
        let (requests, outbound) = tokio::sync::mpsc::channel(1);
        // The switch has no use for a packet, and says so: that is how the stream is known to be open.
        let update = Some(stream_message_request::Update::Packet(PacketOut::default()));
        requests.send(StreamMessageRequest { update }).await.expect("there is room for one");
        let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
        let mut stream = grpc.stream_channel(outbound).await.expect("it starts").into_inner();
        match stream.message().await {
            Ok(_) => open.push((requests, stream)),
            Err(status) => {
                refused = Some((n, status.code()));
                break;
            }
        }
    }
    let (n, code) = refused.expect("there is a bound");
    assert_eq!(code, Code::ResourceExhausted);
    assert!(n > 64, "{n} are allowed");
    assert!(client.p4info().await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn packet_out_is_answered_with_an_error_on_the_stream() {
    let (_harness, mut client) = Harness::loaded().await;
    let mut messages = client.take_messages().expect("the first taker");
    client
        .packet_out(PacketOut { payload: vec![1, 2, 3], metadata: Vec::new() })
        .await
        .expect("the stream is open");
    match messages.recv().await {
        Some(stream_message_response::Update::Error(error)) => {
            assert_eq!(Code::from_i32(error.canonical_code), Code::Unimplemented);
        }
        other => panic!("expected an error, found {other:?}"),
    }
}

//! Packets from and to the controller, through the CPU port.

use std::time::Duration;

use fatbtree_p4runtime::client::uint128;
use fatbtree_p4runtime::entry::insert;
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{
    self, ForwardingPipelineConfig, PacketIn, PacketMetadata, PacketOut, StreamMessageRequest,
    stream_message_request, stream_message_response::Update,
};
use fatbtree_p4runtime::{P4InfoIndex, P4RuntimeClient, bytestring};
use fatbtree_switch::service::{
    CPU_PORT, Inbox, Request, StreamEvent, StreamId, StreamOutput, Switch, mailbox, serve,
};
use fatbtree_switch::{DropReason, Output, Pipeline};

use crate::harness::{DEVICE, frame, info};

const JSON: &str = include_str!("../../testdata/packets.json");
const P4INFO: &str = include_str!("../../testdata/packets.p4info.txtpb");
const PROBE: u16 = 0x88b5;
const STREAM: StreamId = StreamId(1);

fn config() -> ForwardingPipelineConfig {
    let info = P4InfoIndex::from_text(P4INFO).expect("it is sound");
    let (p4info, p4_device_config) = (Some(info.p4info().clone()), JSON.as_bytes().to_vec());
    ForwardingPipelineConfig { p4info, p4_device_config, cookie: None }
}

fn metadata(values: &[(u32, u64)]) -> Vec<PacketMetadata> {
    let values = values.iter();
    values.map(|(id, value)| PacketMetadata { metadata_id: *id, value: bytestring::encode(*value) }).collect()
}

fn out(port: u64, payload: Vec<u8>) -> PacketOut {
    PacketOut { payload, metadata: metadata(&[(1, port), (2, 0)]) }
}

/// Has a stream bid.
fn bid(switch: &mut Switch, stream: StreamId, election_id: u128) {
    let bid = v1::MasterArbitrationUpdate {
        device_id: DEVICE,
        election_id: Some(uint128(election_id)),
        ..v1::MasterArbitrationUpdate::default()
    };
    send(switch, stream, stream_message_request::Update::Arbitration(bid));
    while switch.poll_stream().is_some() {}
}

fn send(switch: &mut Switch, stream: StreamId, update: stream_message_request::Update) {
    let message = StreamMessageRequest { update: Some(update) };
    switch.handle_request(Request::Stream(stream, StreamEvent::Message(message)));
}

/// A switch with the program, and a primary.
fn switch() -> Switch {
    let mut switch = Switch::new(DEVICE);
    switch.load(config()).expect("a sound program");
    bid(&mut switch, STREAM, 1);
    switch
}

/// Next update of a stream.
fn told(switch: &mut Switch) -> Option<(StreamId, Update)> {
    match switch.poll_stream()? {
        (stream, StreamOutput::Message(message)) => {
            Some((stream, message.update.expect("it says something")))
        }
        (_, StreamOutput::Close(status)) => panic!("the stream ends: {status}"),
    }
}

fn packet_in(switch: &mut Switch) -> Option<(StreamId, PacketIn)> {
    match told(switch)? {
        (stream, Update::Packet(packet)) => Some((stream, packet)),
        other => panic!("expected a packet, found {other:?}"),
    }
}

#[test]
fn a_packet_of_the_primary_passes_the_pipeline() {
    let mut switch = switch();
    let mut output = Output::new();
    let payload = frame(1, 2, PROBE);
    send(&mut switch, STREAM, stream_message_request::Update::Packet(out(300, payload.clone())));
    assert!(told(&mut switch).is_none());
    switch.handle_packets_out(0, &mut output);
    assert_eq!(output.iter().collect::<Vec<_>>(), [(300, &payload[..])]);
    // Once.
    output.clear();
    switch.handle_packets_out(0, &mut output);
    assert!(output.is_empty());
}

#[test]
fn what_leaves_by_the_cpu_port_is_told_to_the_primary_only() {
    let mut switch = switch();
    bid(&mut switch, StreamId(2), 0); // a backup
    let mut output = Output::new();
    let probe = frame(1, 2, PROBE);
    switch.handle_frame(0, 7, &frame(1, 2, 0x0800), &mut output);
    switch.handle_frame(0, 300, &probe, &mut output);
    switch.handle_frame(0, 7, &frame(3, 4, 0x0800), &mut output);
    // The others go on, in order.
    let ports: Vec<_> = output.iter().map(|(port, frame)| (port, frame[5])).collect();
    assert_eq!(ports, [(1, 1), (1, 3)]);
    let told = packet_in(&mut switch).expect("there is one");
    assert_eq!(told, (STREAM, PacketIn { payload: probe.clone(), metadata: metadata(&[(1, 300), (2, 0)]) }));
    // Canonical: no leading zero, and zero is one byte.
    assert_eq!(told.1.metadata[0].value, [1, 44]);
    assert_eq!(told.1.metadata[1].value, [0]);
    assert!(packet_in(&mut switch).is_none());
    // In a buffer that is given away, too.
    output.clear();
    switch.forward_frame(0, 9, &mut probe.clone(), &mut output);
    assert!(output.is_empty());
    assert_eq!(packet_in(&mut switch).expect("there is one").1.metadata, metadata(&[(1, 9), (2, 0)]));
    // A later primary has later packets.
    bid(&mut switch, StreamId(3), 9);
    switch.handle_frame(0, 9, &probe, &mut output);
    assert_eq!(packet_in(&mut switch).expect("there is one").0, StreamId(3));
}

#[test]
fn a_share_of_what_is_dropped_is_told_and_the_share_comes_from_the_seed() {
    let drawn = |seed: u64| {
        let mut switch = switch();
        switch.pipeline_mut().expect("it is loaded").seed_random(seed);
        let mut output = Output::new();
        let mut told = Vec::new();
        for n in 0..1000 {
            switch.handle_frame(0, 7, &frame(n, 2, 0x1234), &mut output);
            if let Some((_, packet)) = packet_in(&mut switch) {
                assert_eq!(packet.metadata, metadata(&[(1, 7), (2, 3)]));
                told.push(n);
            }
        }
        let dropped =
            switch.pipeline().map(Pipeline::drops).expect("it is loaded").count(DropReason::Ingress);
        assert_eq!(dropped as usize + told.len(), 1000);
        told
    };
    let first = drawn(1);
    assert!((200..300).contains(&first.len()), "{}", first.len());
    assert_eq!(first, drawn(1));
    assert_ne!(first, drawn(2));
}

#[test]
fn packets_that_nobody_takes_are_bounded_and_counted() {
    let mut switch = switch();
    let mut output = Output::new();
    for _ in 0..1000 {
        switch.handle_frame(0, 7, &frame(1, 2, PROBE), &mut output);
    }
    let taken = std::iter::from_fn(|| packet_in(&mut switch)).count();
    assert_eq!((taken, switch.packets_in_lost()), (256, 744));
    // Without a primary no stream is told.
    switch.handle_request(Request::Stream(STREAM, StreamEvent::Closed));
    switch.handle_frame(0, 7, &frame(1, 2, PROBE), &mut output);
    assert!(told(&mut switch).is_none());
    assert_eq!(switch.packets_in_lost(), 745);
    // The other way: what there is no room for is refused.
    bid(&mut switch, STREAM, 1);
    for _ in 0..1000 {
        send(&mut switch, STREAM, stream_message_request::Update::Packet(out(1, vec![0; 64])));
    }
    let mut refused = 0;
    while let Some((_, Update::Error(error))) = told(&mut switch) {
        assert_eq!(Code::from_i32(error.canonical_code), Code::ResourceExhausted);
        refused += 1;
    }
    switch.handle_packets_out(0, &mut output);
    assert_eq!((refused, output.len()), (744, 256));
}

#[test]
fn packets_that_are_wrong_are_refused_by_code_and_words() {
    let mut switch = switch();
    bid(&mut switch, StreamId(2), 0);
    let payload = vec![0; 64];
    let packet = |values: &[(u32, u64)]| PacketOut { payload: payload.clone(), metadata: metadata(values) };
    let long = PacketOut { payload: vec![0; 65_534], metadata: metadata(&[(1, 1), (2, 0)]) };
    let empty = PacketMetadata { metadata_id: 1, value: Vec::new() };
    let empty = PacketOut { metadata: vec![empty], payload: payload.clone() };
    let cases = [
        (StreamId(2), packet(&[(1, 1), (2, 0)]), Code::PermissionDenied, "primary"),
        (StreamId(9), packet(&[(1, 1), (2, 0)]), Code::PermissionDenied, "primary"),
        (STREAM, packet(&[(1, 1)]), Code::InvalidArgument, "`padding` (id 2) is missing"),
        (STREAM, packet(&[(1, 1), (2, 0), (1, 1)]), Code::InvalidArgument, "twice"),
        (STREAM, packet(&[(1, 1), (3, 0)]), Code::InvalidArgument, "1: egress_port, 2: padding"),
        (STREAM, packet(&[(1, 512), (2, 0)]), Code::OutOfRange, "egress_port"),
        (STREAM, empty, Code::OutOfRange, "egress_port"),
        (STREAM, long, Code::InvalidArgument, "65533"),
    ];
    for (stream, packet, code, words) in cases {
        send(&mut switch, stream, stream_message_request::Update::Packet(packet.clone()));
        let Some((told, Update::Error(error))) = told(&mut switch) else { panic!("expected an error") };
        assert_eq!((told, Code::from_i32(error.canonical_code)), (stream, code), "{}", error.message);
        assert!(error.message.contains(words), "`{words}` is not in: {}", error.message);
        let details = v1::PacketOutError { packet_out: Some(packet) };
        assert_eq!(error.details, Some(v1::stream_error::Details::PacketOut(details)));
    }
    let mut output = Output::new();
    switch.handle_packets_out(0, &mut output);
    assert!(output.is_empty());
}

#[test]
fn a_program_without_the_headers_has_no_cpu_port() {
    let mut switch = Switch::new(DEVICE);
    bid(&mut switch, STREAM, 1);
    let refused = |switch: &mut Switch| {
        send(switch, STREAM, stream_message_request::Update::Packet(out(1, vec![0; 64])));
        let Some((_, Update::Error(error))) = told(switch) else { panic!("expected an error") };
        Code::from_i32(error.canonical_code)
    };
    assert_eq!(refused(&mut switch), Code::FailedPrecondition);
    let mut plain = config();
    plain.p4info.as_mut().expect("it has one").controller_packet_metadata.clear();
    switch.load(plain).expect("a sound program");
    assert_eq!(refused(&mut switch), Code::Unimplemented);
    // Port 510 is one like any other.
    let mut output = Output::new();
    switch.handle_frame(0, 7, &frame(1, 2, PROBE), &mut output);
    assert_eq!(output.iter().map(|(port, _)| port).collect::<Vec<_>>(), [CPU_PORT]);
    assert!(told(&mut switch).is_none());
}

/// A switch over gRPC, whose owner is the test.
struct Owned {
    inbox: Inbox,
    switch: Switch,
    address: String,
}

impl Owned {
    async fn new(config: ForwardingPipelineConfig) -> Self {
        let (mailbox, inbox) = mailbox();
        let mut switch = Switch::new(DEVICE);
        switch.load(config).expect("a sound program");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        tokio::spawn(serve(listener, mailbox, std::future::pending()));
        Self { inbox, switch, address }
    }

    /// A client that may write.
    async fn primary(&mut self) -> P4RuntimeClient {
        let address = self.address.clone();
        self.until(async {
            let mut client = P4RuntimeClient::connect(&address, DEVICE).await.expect("the server runs");
            client.become_primary(1).await.expect("the highest bid");
            client
        })
        .await
    }

    /// Drains the inbox until a future is done.
    async fn until<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        loop {
            self.inbox.try_drain(&mut self.switch);
            tokio::select! {
                biased;
                done = &mut future => return done,
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_pass_over_grpc() {
    let mut owned = Owned::new(config()).await;
    let mut output = Output::new();
    let mut client = owned.primary().await;
    let mut messages = client.take_messages().expect("the first taker");
    let probe = frame(1, 2, PROBE);
    client.packet_out(out(7, probe.clone())).await.expect("the stream is open");
    while output.is_empty() {
        owned.inbox.try_drain(&mut owned.switch);
        owned.switch.handle_packets_out(0, &mut output);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(output.iter().collect::<Vec<_>>(), [(7, &probe[..])]);
    // It comes in at the other end of the cable.
    owned.switch.handle_frame(0, 8, &probe, &mut output);
    owned.inbox.deliver(&mut owned.switch);
    let message = messages.recv().await.expect("the stream is open");
    assert_eq!(message, Update::Packet(PacketIn { payload: probe, metadata: metadata(&[(1, 8), (2, 0)]) }));
}

/// A primary that takes nothing loses packets, not its session.
#[tokio::test(flavor = "multi_thread")]
async fn packets_that_a_primary_does_not_take_are_lost() {
    let mut owned = Owned::new(config()).await;
    let client = owned.primary().await;
    let mut output = Output::new();
    for _ in 0..100_000 {
        owned.switch.handle_frame(0, 8, &frame(1, 2, PROBE), &mut output);
        owned.inbox.deliver(&mut owned.switch);
    }
    assert!(owned.switch.packets_in_lost() > 0);
    let answer = client.read(Vec::new());
    owned.until(answer).await.expect("it is answered");
    assert!(client.is_primary());
}

/// A packet waits for a part of a write, not for all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_packet_overtakes_large_writes() {
    const ENTRIES: u64 = 2000;
    let program = crate::harness::config();
    let mut owned = Owned::new(program).await;
    let mut client = owned.primary().await;
    let mut messages = client.take_messages().expect("the first taker");
    let info = info();
    let table = info.table("exact_table").expect("there");
    let (dst, forward) =
        (table.field("dst").expect("there"), table.action("forward_counted").expect("there"));
    let entry = |key: u64| table.entry().exact(dst, key).action(forward, &[1]).build().expect("it fits");
    let updates: Vec<_> = (0..ENTRIES).map(|key| insert(entry(key))).collect();
    let write = client.write(updates);
    let mut write = std::pin::pin!(write);
    // The write has begun.
    while owned
        .switch
        .pipeline()
        .map_or(0, |pipeline| pipeline.len(pipeline.program().table("ingress.exact_table").expect("there")))
        == 0
    {
        tokio::select! {
            biased;
            _ = &mut write => panic!("it was done at once"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
        owned.inbox.try_drain(&mut owned.switch);
    }
    // This program takes no packets: the answer says that it was looked at.
    client.packet_out(out(1, vec![0; 64])).await.expect("the stream is open");
    tokio::time::sleep(Duration::from_millis(100)).await;
    owned.inbox.try_drain(&mut owned.switch);
    let message = tokio::time::timeout(Duration::from_secs(10), messages.recv()).await;
    let message = message.expect("it does not wait for the write").expect("the stream is open");
    assert!(matches!(message, Update::Error(_)), "{message:?}");
    let written = owned
        .switch
        .pipeline()
        .map(|pipeline| pipeline.len(pipeline.program().table("ingress.exact_table").expect("there")));
    assert!(written.expect("it is loaded") < ENTRIES as usize / 2, "{written:?} were written before");
    owned.until(write).await.expect("all fit");
}

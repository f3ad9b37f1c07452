//! BMv2 as a child process: tables over P4Runtime, frames over the gRPC interface that `simple_switch_grpc` has beside it.

use std::error::Error;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fatbtree_p4runtime::v1::stream_message_response::Update as FromSwitch;
use fatbtree_p4runtime::v1::{Entity, PacketIn};
use fatbtree_p4runtime::{P4InfoIndex, P4RuntimeClient};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::{Frame, Sent};

const DEVICE: u64 = 1;
/// Time limit of BMv2 for a batch of frames.
const PATIENCE: Duration = Duration::from_secs(60);

/// `p4.bm.PacketStreamRequest` and `p4.bm.PacketStreamResponse` of behavioral-model: fields are the same.
#[derive(Clone, PartialEq, prost::Message)]
struct OnePacket {
    /// Comes back with what becomes of the packet.
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    device_id: u64,
    #[prost(uint32, tag = "3")]
    port: u32,
    #[prost(bytes = "vec", tag = "4")]
    packet: Vec<u8>,
}

/// A process that ends with this value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running `simple_switch_grpc`.
pub(crate) struct Reference {
    _process: Process,
    pub(crate) client: P4RuntimeClient,
    frames: Channel,
    packets_in: Arc<Mutex<Vec<PacketIn>>>,
    next_id: u64,
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Reference {
    /// Starts it with the program.
    pub(crate) async fn start(binary: &Path, info: &P4InfoIndex) -> Result<Self, Box<dyn Error>> {
        let (control, data) = (format!("127.0.0.1:{}", free_port()?), format!("127.0.0.1:{}", free_port()?));
        let child = Command::new(binary)
            .args(["--no-p4", "--device-id", "1", "--"])
            // With fewer queues it drops what `traffic_class` gives a queue that there is not.
            .args(["--cpu-port", "510", "--priority-queues", "8"])
            .args(["--grpc-server-addr", &control, "--dp-grpc-server-addr", &data])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        let process = Process(child);
        let mut tries = 0;
        let mut client = loop {
            match P4RuntimeClient::connect(&control, DEVICE).await {
                Ok(client) => break client,
                Err(error) if tries == 100 => return Err(error.into()),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        client.become_primary(1).await?;
        client.set_pipeline(info.p4info().clone(), fatbtree_p4::PROGRAM.into()).await?;
        let packets_in = Arc::new(Mutex::new(Vec::new()));
        let kept = packets_in.clone();
        let mut messages = client.take_messages().ok_or("the session has no messages")?;
        tokio::spawn(async move {
            while let Some(message) = messages.recv().await {
                if let FromSwitch::Packet(packet) = message {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(packet);
                }
            }
        });
        let frames = Endpoint::from_shared(format!("http://{data}"))?.tcp_nodelay(true).connect().await?;
        let mut started = Self { _process: process, client, frames, packets_in, next_id: 1 };
        // It takes frames a moment after it has got its program.
        let mut tries = 0;
        while let Err(error) = started.pass(&[]).await {
            if tries == 100 {
                return Err(error);
            }
            tries += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(started)
    }

    /// As [`send`](Self::send), if BMv2 answers at all.
    pub(crate) async fn pass(&mut self, frames: &[Frame]) -> Result<Vec<Sent>, Box<dyn Error>> {
        tokio::time::timeout(PATIENCE, self.send(frames)).await?
    }

    /// Sends frames and waits until nothing of them is in the switch any more: when the stream of frames ends, BMv2 ends its own after the
    /// last packet. What leaves, by frame.
    async fn send(&mut self, frames: &[Frame]) -> Result<Vec<Sent>, Box<dyn Error>> {
        let first = self.next_id;
        self.next_id += frames.len() as u64;
        let requests: Vec<OnePacket> = (first..)
            .zip(frames)
            .map(|(id, frame)| OnePacket {
                id,
                device_id: DEVICE,
                port: frame.port.into(),
                packet: frame.bytes.clone(),
            })
            .collect();
        let mut grpc = tonic::client::Grpc::new(self.frames.clone());
        grpc.ready().await?;
        let path = PathAndQuery::from_static("/p4.bm.DataplaneInterface/PacketStream");
        let codec: ProstCodec<OnePacket, OnePacket> = ProstCodec::default();
        let answer = grpc.streaming(tonic::Request::new(tokio_stream::iter(requests)), path, codec).await?;
        let mut answers = answer.into_inner();
        let mut sent = vec![Sent::new(); frames.len()];
        while let Some(OnePacket { id, port, packet, .. }) = answers.message().await? {
            let at = id.checked_sub(first).and_then(|at| sent.get_mut(usize::try_from(at).ok()?));
            let at = at.ok_or_else(|| {
                format!(
                    "BMv2 answered with frame {id}, which is none of {first} and the next {}",
                    frames.len()
                )
            })?;
            at.push((u16::try_from(port)?, packet));
        }
        Ok(sent)
    }

    /// Packets that the controller was given until now.
    pub(crate) fn take_packets_in(&self) -> Vec<PacketIn> {
        std::mem::take(&mut *self.packets_in.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) async fn read(&self, entities: Vec<Entity>) -> Result<Vec<Entity>, Box<dyn Error>> {
        Ok(self.client.read(entities).await?)
    }
}

//! Packets to and from one switch, over the stream of its session.

use std::sync::Arc;

use fatbtree_p4runtime::v1::stream_message_response::Update;
use fatbtree_p4runtime::{ClientError, P4RuntimeClient, PacketFormat};
use tokio::sync::mpsc;

/// Sender of frames through a switch.
#[derive(Clone, Debug)]
pub struct PacketSender {
    client: Arc<P4RuntimeClient>,
    format: PacketFormat,
}

/// Takes the frames that a switch passes on.
#[derive(Debug)]
pub struct PacketReceiver {
    messages: mpsc::Receiver<Update>,
    format: PacketFormat,
}

/// A frame that a switch has passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Port by which it came in.
    pub port: u16,
    /// Reason for which it was passed on: 0 for a probe, else the number of the reason for which it was dropped.
    pub reason: u16,
    /// The frame.
    pub frame: Vec<u8>,
}

/// Both ways, for a client whose session has begun. `None` where the messages were taken before.
pub fn packets(
    client: Arc<P4RuntimeClient>,
    messages: Option<mpsc::Receiver<Update>>,
    format: PacketFormat,
) -> Option<(PacketSender, PacketReceiver)> {
    let receiver = PacketReceiver { messages: messages?, format: format.clone() };
    Some((PacketSender { client, format }, receiver))
}

impl PacketSender {
    /// Sends a frame by a port of the switch. It is lost where the switch refuses it.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn send(&self, port: u16, frame: Vec<u8>) -> Result<(), ClientError> {
        self.client.packet_out(self.format.packet_out(port, frame)).await
    }
}

impl PacketReceiver {
    /// The next frame; `None` when the session has ended.
    pub async fn receive(&mut self) -> Option<Packet> {
        loop {
            match self.messages.recv().await? {
                Update::Packet(packet) => {
                    if let Some((port, reason)) = self.format.read(&packet) {
                        return Some(Packet { port, reason, frame: packet.payload });
                    }
                }
                Update::Error(error) => {
                    tracing::debug!(
                        code = error.canonical_code,
                        message = error.message,
                        "refused by a switch"
                    );
                }
                _ => {}
            }
        }
    }
}

//! The software switch, in this process.

use std::error::Error;

use fatbtree_p4runtime::v1::stream_message_response::Update as FromSwitch;
use fatbtree_p4runtime::v1::{Entity, PacketIn, ReadRequest};
use fatbtree_sim::Network;
use fatbtree_switch::Output;
use fatbtree_switch::service::{Request, Response, StreamOutput, Switch};

use crate::case::Case;
use crate::{Frame, Sent};

pub(crate) struct Ours {
    switch: Switch,
    device_id: u64,
    output: Output,
    packets_in: Vec<PacketIn>,
}

impl Ours {
    /// Starts the switch with all entries of the case.
    pub(crate) fn start(case: &Case, network: &Network) -> Result<Self, Box<dyn Error>> {
        let mut switches = network.switches()?;
        let mut switch = switches.swap_remove(case.switch.0 as usize);
        network.write(&mut switch, case.switch, &case.changes)?;
        let device_id = u64::from(case.switch.0) + 1;
        Ok(Self { switch, device_id, output: Output::new(), packets_in: Vec::new() })
    }

    pub(crate) fn pass(&mut self, frame: &Frame) -> Sent {
        self.output.clear();
        self.switch.handle_frame(0, frame.port, &frame.bytes, &mut self.output);
        while let Some((_, output)) = self.switch.poll_stream() {
            if let StreamOutput::Message(message) = output
                && let Some(FromSwitch::Packet(packet)) = message.update
            {
                self.packets_in.push(packet);
            }
        }
        self.output.iter().map(|(port, bytes)| (port, bytes.to_vec())).collect()
    }

    pub(crate) fn take_packets_in(&mut self) -> Vec<PacketIn> {
        std::mem::take(&mut self.packets_in)
    }

    pub(crate) fn read(&mut self, entities: Vec<Entity>) -> Result<Vec<Entity>, Box<dyn Error>> {
        let request = ReadRequest { device_id: self.device_id, entities, ..ReadRequest::default() };
        match self.switch.handle_request(Request::Read(request)) {
            Response::Read(outcome) => {
                outcome.end?;
                Ok(outcome.parts.into_iter().flat_map(|part| part.entities).collect())
            }
            other => Err(format!("the software switch answered a Read with {other:?}").into()),
        }
    }
}

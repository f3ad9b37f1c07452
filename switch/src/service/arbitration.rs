//! The choice of the controller that may write: the state machine of "Client Arbitration and Controller Replication".
//!
//! One device, the default role only. The machine is handed bids and closed streams and hands back notices and their receivers.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use fatbtree_p4runtime::client::{election_id, uint128};
use fatbtree_p4runtime::proto::google::rpc;
use fatbtree_p4runtime::tonic::{Code, Status};
use fatbtree_p4runtime::v1::{self, stream_message_response};

/// A StreamChannel call, numbered by the acceptor of the calls; numbers are not used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Message to a stream.
#[derive(Debug, Clone)]
pub enum StreamOutput {
    /// A message.
    Message(v1::StreamMessageResponse),
    /// The stream ends with this error.
    Close(Status),
}

/// Maximum number of controllers with an open session; a further bid is answered with `RESOURCE_EXHAUSTED`.
const MAX_CONTROLLERS: usize = 64;

#[derive(Debug)]
pub(super) struct Arbitration {
    device_id: u64,
    /// Live controllers and their bids.
    controllers: BTreeMap<StreamId, Option<u128>>,
    primary: Option<StreamId>,
    /// Highest bid ever; only a restart forgets it.
    highest: Option<u128>,
    output: VecDeque<(StreamId, StreamOutput)>,
}

impl Arbitration {
    pub(super) fn new(device_id: u64) -> Self {
        let (controllers, output) = (BTreeMap::new(), VecDeque::new());
        Self { device_id, controllers, primary: None, highest: None, output }
    }

    /// Checks that a request with this election id comes from the primary.
    pub(super) fn check_primary(&self, id: Option<&v1::Uint128>) -> Result<(), Status> {
        let bid = self.primary.and_then(|stream| self.controllers.get(&stream).copied().flatten());
        let found = id.map(election_id);
        match (bid, found) {
            (Some(bid), Some(found)) if bid == found => Ok(()),
            (Some(bid), _) => Err(Status::permission_denied(format!(
                "expected the primary's election id {bid}, found {}: bid higher on a StreamChannel first",
                found.map_or("none".to_owned(), |id| id.to_string())
            ))),
            (None, _) => Err(Status::permission_denied(
                "this device has no primary controller: open a StreamChannel and send a MasterArbitrationUpdate with \
                 an election id first",
            )),
        }
    }

    pub(super) fn primary(&self) -> Option<StreamId> {
        self.primary
    }

    pub(super) fn is_primary(&self, stream: StreamId) -> bool {
        self.primary == Some(stream)
    }

    pub(super) fn push(&mut self, stream: StreamId, output: StreamOutput) {
        self.output.push_back((stream, output));
    }

    pub(super) fn poll(&mut self) -> Option<(StreamId, StreamOutput)> {
        self.output.pop_front()
    }

    /// Handles a bid ("Rules for Handling MasterArbitrationUpdate Messages").
    pub(super) fn bid(&mut self, stream: StreamId, bid: &v1::MasterArbitrationUpdate) {
        match self.check_bid(stream, bid) {
            Ok(id) => self.accept(stream, id),
            Err(status) => {
                self.push(stream, StreamOutput::Close(status));
                self.closed(stream);
            }
        }
    }

    /// Handles the end of a stream.
    pub(super) fn closed(&mut self, stream: StreamId) {
        if self.controllers.remove(&stream).is_some() && self.primary == Some(stream) {
            self.primary = None;
            self.notify_all();
        }
    }

    fn check_bid(&self, stream: StreamId, bid: &v1::MasterArbitrationUpdate) -> Result<Option<u128>, Status> {
        let known = self.controllers.contains_key(&stream);
        if bid.device_id != self.device_id {
            let message = format!("expected device {}, found device {}", self.device_id, bid.device_id);
            // A stream belongs to its device for good; a new one only has the wrong address.
            return Err(if known {
                Status::failed_precondition(message)
            } else {
                Status::not_found(message)
            });
        }
        if let Some(role) = &bid.role {
            #[allow(deprecated, reason = "old clients name roles by number")]
            let other = !role.name.is_empty() || role.id != 0;
            if other || role.config.is_some() {
                return Err(Status::invalid_argument(format!(
                    "expected the default role (role unset), found role `{}`: this switch has no other roles",
                    role.name
                )));
            }
        }
        let id = bid.election_id.as_ref().map(election_id);
        if let Some(id) = id
            && self.controllers.iter().any(|(other, taken)| *other != stream && *taken == Some(id))
        {
            return Err(Status::invalid_argument(format!(
                "election id {id} belongs to another live controller of device {}: use another one",
                self.device_id
            )));
        }
        if !known && self.controllers.len() >= MAX_CONTROLLERS {
            return Err(Status::resource_exhausted(format!(
                "this switch serves {MAX_CONTROLLERS} controllers at a time: close another session first"
            )));
        }
        Ok(id)
    }

    fn accept(&mut self, stream: StreamId, id: Option<u128>) {
        self.controllers.insert(stream, id);
        // An unset id is lower than any id and never wins ("Unset Election ID").
        if id.is_some() && id >= self.highest {
            self.highest = id;
            self.primary = Some(stream);
            self.notify_all();
        } else if self.primary == Some(stream) {
            self.primary = None; // it stepped down
            self.notify_all();
        } else {
            self.notify(stream);
        }
    }

    /// Tells the others first and the primary last: by then no other controller believes that it is primary.
    fn notify_all(&mut self) {
        let others = self.controllers.keys().copied().filter(|stream| self.primary != Some(*stream));
        for stream in others.chain(self.primary).collect::<Vec<_>>() {
            self.notify(stream);
        }
    }

    fn notify(&mut self, stream: StreamId) {
        let (code, message) = match self.primary {
            Some(primary) if primary == stream => (Code::Ok, "you are primary"),
            Some(_) => (Code::AlreadyExists, "another controller is primary"),
            None => (Code::NotFound, "there is no primary"),
        };
        let notice = v1::MasterArbitrationUpdate {
            device_id: self.device_id,
            role: None,
            election_id: self.highest.map(uint128),
            status: Some(rpc::Status { code: code.into(), message: message.to_owned(), details: Vec::new() }),
        };
        let update = Some(stream_message_response::Update::Arbitration(notice));
        self.push(stream, StreamOutput::Message(v1::StreamMessageResponse { update }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: u64 = 7;
    const A: StreamId = StreamId(1);
    const B: StreamId = StreamId(2);
    const C: StreamId = StreamId(3);

    fn bid(id: impl Into<Option<u128>>) -> v1::MasterArbitrationUpdate {
        v1::MasterArbitrationUpdate {
            device_id: DEVICE,
            election_id: id.into().map(uint128),
            ..v1::MasterArbitrationUpdate::default()
        }
    }

    /// Notices since the last call: stream, code, highest id.
    fn told(machine: &mut Arbitration) -> Vec<(StreamId, Code, Option<u128>)> {
        std::iter::from_fn(|| machine.poll())
            .map(|(stream, output)| match output {
                StreamOutput::Close(status) => (stream, status.code(), None),
                StreamOutput::Message(message) => match message.update {
                    Some(stream_message_response::Update::Arbitration(notice)) => {
                        let code = Code::from_i32(notice.status.expect("always set").code);
                        (stream, code, notice.election_id.as_ref().map(election_id))
                    }
                    other => panic!("not a notice: {other:?}"),
                },
            })
            .collect()
    }

    fn may_write(machine: &Arbitration, id: u128) -> bool {
        machine.check_primary(Some(&uint128(id))).is_ok()
    }

    #[test]
    fn the_highest_bid_wins_and_everybody_is_told() {
        let mut machine = Arbitration::new(DEVICE);
        machine.bid(A, &bid(5));
        assert_eq!(told(&mut machine), [(A, Code::Ok, Some(5))]);
        machine.bid(B, &bid(3));
        assert_eq!(told(&mut machine), [(B, Code::AlreadyExists, Some(5))]);
        machine.bid(C, &bid(9));
        assert_eq!(
            told(&mut machine),
            [(A, Code::AlreadyExists, Some(9)), (B, Code::AlreadyExists, Some(9)), (C, Code::Ok, Some(9))]
        );
        assert!(may_write(&machine, 9) && !may_write(&machine, 5) && machine.check_primary(None).is_err());
    }

    #[test]
    fn a_lost_primary_leaves_a_vacancy() {
        let mut machine = Arbitration::new(DEVICE);
        machine.bid(A, &bid(5));
        machine.bid(B, &bid(3));
        told(&mut machine);
        machine.closed(A);
        assert_eq!(told(&mut machine), [(B, Code::NotFound, Some(5))]);
        assert!(!may_write(&machine, 5) && !may_write(&machine, 3));
        machine.bid(B, &bid(4)); // still below the highest ever
        assert_eq!(told(&mut machine), [(B, Code::NotFound, Some(5))]);
        machine.bid(C, &bid(5)); // the same id again, after a reconnect
        assert_eq!(told(&mut machine), [(B, Code::AlreadyExists, Some(5)), (C, Code::Ok, Some(5))]);
    }

    #[test]
    fn stepping_down() {
        let mut machine = Arbitration::new(DEVICE);
        machine.bid(A, &bid(5));
        machine.bid(B, &bid(3));
        told(&mut machine);
        machine.bid(A, &bid(1));
        assert_eq!(told(&mut machine), [(A, Code::NotFound, Some(5)), (B, Code::NotFound, Some(5))]);
    }

    #[test]
    fn an_unset_id_never_wins() {
        let mut machine = Arbitration::new(DEVICE);
        machine.bid(A, &bid(None));
        assert_eq!(told(&mut machine), [(A, Code::NotFound, None)]);
        machine.bid(B, &bid(0)); // zero is an id
        assert_eq!(told(&mut machine), [(A, Code::AlreadyExists, Some(0)), (B, Code::Ok, Some(0))]);
    }

    #[test]
    fn wrong_bids_end_the_stream() {
        let mut machine = Arbitration::new(DEVICE);
        machine.bid(A, &v1::MasterArbitrationUpdate { device_id: 8, ..bid(1) });
        assert_eq!(told(&mut machine), [(A, Code::NotFound, None)]);
        machine.bid(A, &bid(5));
        machine.bid(B, &bid(5));
        assert_eq!(told(&mut machine), [(A, Code::Ok, Some(5)), (B, Code::InvalidArgument, None)]);
        let role = Some(v1::Role { name: "routing".to_owned(), ..v1::Role::default() });
        machine.bid(B, &v1::MasterArbitrationUpdate { role, ..bid(6) });
        assert_eq!(told(&mut machine), [(B, Code::InvalidArgument, None)]);
        machine.bid(C, &bid(4));
        told(&mut machine);
        // The primary asks for another device: its stream ends, the others learn of the vacancy.
        machine.bid(A, &v1::MasterArbitrationUpdate { device_id: 8, ..bid(5) });
        assert_eq!(told(&mut machine), [(A, Code::FailedPrecondition, None), (C, Code::NotFound, Some(5))]);
    }

    #[test]
    fn there_is_a_limit() {
        let mut machine = Arbitration::new(DEVICE);
        for i in 0..MAX_CONTROLLERS as u64 {
            machine.bid(StreamId(i), &bid(u128::from(i)));
        }
        told(&mut machine);
        machine.bid(StreamId(1000), &bid(1000));
        assert_eq!(told(&mut machine), [(StreamId(1000), Code::ResourceExhausted, None)]);
    }
}

//! A switch's end of its control channel: what it is asked, in order, while it lives.

use std::collections::{BTreeSet, VecDeque};

use fatbtree_controller::{KeeperAnswer, KeeperRequest};
use fatbtree_p4runtime::v1::stream_message_request::Update;
use fatbtree_p4runtime::v1::{self, StreamMessageRequest, stream_message_response};
use fatbtree_switch::service::{Request, StreamEvent, StreamId, StreamOutput};
use fatbtree_topology::SwitchId;
use fatbtree_verbs::time::Duration;

use super::cables::Cables;
use crate::cluster::{Clock, Cluster};
use crate::network::{Network, blank};

/// Request to a switch in a session.
#[derive(Debug)]
pub(super) enum Ask {
    /// A request of the switch's keeper.
    Keep(KeeperRequest),
    /// Request to forget the session.
    Close,
    /// Request to send a frame by a port.
    Packet(u16, Vec<u8>),
}

/// Answer of a switch.
#[derive(Debug)]
pub(super) enum Answer {
    /// An answer to the switch's keeper.
    Kept(KeeperAnswer),
    /// The switch refuses.
    Refused(String),
    /// The session has ended, or the switch has no process that could open one.
    Closed,
    /// A frame that came in by a port, and why it was passed on.
    Packet { port: u16, reason: u16, frame: Vec<u8> },
}

/// State of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The switch works.
    Up,
    /// The switch stands still; requests to it wait.
    Frozen,
    /// The process has ended, and its machine reports that.
    Killed,
    /// The machine has no power: no answer comes.
    Unpowered,
}

/// A switch's end.
#[derive(Debug)]
pub(super) struct Channel {
    switch: SwitchId,
    life: Life,
    sessions: BTreeSet<u64>,
    waiting: VecDeque<(u64, Ask)>,
    /// Delay of the channel, one way.
    pub(super) delay: Duration,
    /// Time to load a program.
    loading: Duration,
}

/// An answer to a session, so much later.
pub(super) type Later = (Duration, u64, Answer);

/// Time to write or read an entry.
const ENTRY: Duration = Duration::from_micros(2);

impl Channel {
    pub(super) fn new(switch: SwitchId, delay: Duration, loading: Duration) -> Self {
        Self { switch, life: Life::Up, sessions: BTreeSet::new(), waiting: VecDeque::new(), delay, loading }
    }

    pub(super) fn switch(&self) -> SwitchId {
        self.switch
    }

    /// Stops the switch. Returns the sessions that hear of it.
    pub(super) fn stop(&mut self, life: Life) -> Vec<Later> {
        self.life = life;
        let hear = if life == Life::Killed { std::mem::take(&mut self.sessions) } else { BTreeSet::new() };
        hear.into_iter().map(|session| (self.delay, session, Answer::Closed)).collect()
    }

    /// Lets the switch go on, or begin anew where it was not only frozen.
    pub(super) fn start(
        &mut self,
        network: &Network,
        cluster: &mut Cluster<Cables>,
        clock: &impl Clock,
    ) -> Vec<Later> {
        let was = std::mem::replace(&mut self.life, Life::Up);
        if was == Life::Frozen {
            let waiting: Vec<_> = self.waiting.drain(..).collect();
            let answers = waiting
                .into_iter()
                .filter_map(|(session, ask)| self.handle(session, ask, network, cluster, clock));
            return answers.collect();
        }
        cluster.switches_mut()[self.switch.0 as usize] = blank(self.switch);
        // A peer that still believes in a session is told when its next packet comes.
        let forgotten = std::mem::take(&mut self.sessions).into_iter();
        forgotten.map(|session| (self.delay, session, Answer::Closed)).collect()
    }

    /// Handles a request that arrives.
    pub(super) fn handle(
        &mut self,
        session: u64,
        ask: Ask,
        network: &Network,
        cluster: &mut Cluster<Cables>,
        clock: &impl Clock,
    ) -> Option<Later> {
        match self.life {
            Life::Up => {}
            Life::Frozen => {
                self.waiting.push_back((session, ask));
                return None;
            }
            Life::Killed => return Some((self.delay, session, Answer::Closed)),
            Life::Unpowered => return None,
        }
        let is_known = self.sessions.contains(&session) || matches!(ask, Ask::Keep(KeeperRequest::Open));
        if !is_known {
            return Some((self.delay, session, Answer::Closed));
        }
        let (switch, stream) = (self.switch, StreamId(session));
        let value = &mut cluster.switches_mut()[switch.0 as usize];
        let request = match ask {
            Ask::Keep(request) => request,
            Ask::Close => {
                self.sessions.remove(&session);
                value.handle_request(Request::Stream(stream, StreamEvent::Closed));
                return None;
            }
            Ask::Packet(port, frame) => {
                let packet = network.packets().packet_out(port, frame);
                let message = StreamMessageRequest { update: Some(Update::Packet(packet)) };
                value.handle_request(Request::Stream(stream, StreamEvent::Message(message)));
                cluster.send_packets_out(switch, clock);
                return None;
            }
        };
        let is_load = request == KeeperRequest::Load;
        if request == KeeperRequest::Open {
            self.sessions.insert(session);
        }
        let written = if let KeeperRequest::Write(changes) = &request { changes.len() } else { 0 };
        let (work, answer) = match network.answer(value, switch, stream, request) {
            Ok(answer) => {
                let entries =
                    if let KeeperAnswer::Holds(held) = &answer { held.entries().len() } else { written };
                let work = if is_load { self.loading } else { ENTRY * entries as u64 };
                (work, Answer::Kept(answer))
            }
            Err(refused) => (Duration::ZERO, Answer::Refused(refused.to_string())),
        };
        Some((self.delay + work, session, answer))
    }

    /// Messages that the switch sends by itself.
    pub(super) fn poll(&self, network: &Network, cluster: &mut Cluster<Cables>) -> Option<Later> {
        let value = &mut cluster.switches_mut()[self.switch.0 as usize];
        while let Some((StreamId(session), output)) = value.poll_stream() {
            let StreamOutput::Message(v1::StreamMessageResponse {
                update: Some(stream_message_response::Update::Packet(packet)),
            }) = output
            else {
                continue;
            };
            if let Some((port, reason)) = network.packets().read(&packet) {
                let answer = Answer::Packet { port, reason, frame: packet.payload };
                return Some((self.delay, session, answer));
            }
        }
        None
    }
}

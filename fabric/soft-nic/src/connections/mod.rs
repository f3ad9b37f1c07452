//! The Communication Manager of a NIC: which connections are asked for, are there, or end (IBTA volume 1, section 12.9).
//!
//! ```text
//!   active:   request ─► RequestSent ── REP ─► Established
//!   passive:  REQ ─► RequestReceived ── accept ─► ReplySent ── RTU ─► Established
//!   both:     Established ── disconnect ─► DisconnectSent ── DREP ─► Ended ── after a while ─► (forgotten)
//!             Established ── DREQ ─────────────────────────────────► Ended
//! ```
//!
//! A message that wants an answer is sent again until its answer comes, [`NicConfig::cm_retries`](crate::NicConfig) times; then the
//! connection has timed out. So whatever a peer does not say, what is kept for it goes within a bounded time; and there are only so many
//! connections that are not established. Answers to repeated messages need no state, but for the acceptance that is sent again.

mod messages;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Agreed, ConnectError, Connection, ConnectionEvent, Endpoint, QueuePair};
use fatbtree_wire::cm::{
    Disconnect, DisconnectReply, Ids, Mad, Message, MessageReceipt, ReadyToUse, Reason, Reject, Reply,
    Request, What, service_id,
};

pub(crate) use messages::Timing;
use messages::{Terms, decoded, port_of, program_data};

/// Connections that are not established, or have ended lately, at most.
const MOST_PENDING: usize = 4096;

/// Answers that wait to be sent, at most. What is not sent is asked for again.
const MOST_ANSWERS: usize = 256;

/// Time for which a request waits for its owner, and the longest that a peer may ask for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time after which a repeated request says that its owner still thinks: 4.3 s, encoded.
const THINKING: u8 = 20;

/// Where messages come from, and answers go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) mac: [u8; 6],
    pub(crate) ip: Ipv4Addr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    RequestSent,
    RequestReceived,
    ReplySent,
    Established,
    DisconnectSent,
    Ended,
}

impl State {
    const fn is_live(self) -> bool {
        matches!(self, Self::RequestReceived | Self::ReplySent | Self::Established | Self::DisconnectSent)
    }
}

struct Held {
    name: Connection,
    peer: Peer,
    state: State,
    /// The number that the other side has given it; 0 while it is not known.
    remote_id: u32,
    transaction: u64,
    queue_pair: Option<QueuePair>,
    /// Of this side; none before it is accepted.
    local: Option<Endpoint>,
    /// Of the other side, as soon as it is known.
    remote: Option<Endpoint>,
    /// What both have agreed on.
    agreed: Option<Agreed>,
    /// The message that is sent until it is answered.
    message: Option<Box<Mad>>,
    retries: u8,
    deadline: Option<Instant>,
    queued: bool,
}

impl Held {
    fn ids(&self, id: u32) -> Ids {
        Ids { local: id, remote: self.remote_id }
    }
}

/// Connects a queue pair of the NIC to an endpoint.
pub(crate) type Connect<'n> = dyn FnMut(QueuePair, &Endpoint) -> Result<Agreed, ConnectError> + 'n;

pub(crate) struct Manager {
    timing: Timing,
    ports: BTreeSet<u16>,
    held: BTreeMap<u32, Held>,
    /// By the other side's address and number.
    by_number: BTreeMap<(Ipv4Addr, u32), u32>,
    /// Live ones by the other side's address and queue pair.
    by_queue_pair: BTreeMap<(Ipv4Addr, u32), u32>,
    /// Number of connections that are not established.
    pending: usize,
    deadlines: BTreeSet<(Instant, u32)>,
    ready: VecDeque<u32>,
    answers: VecDeque<(Peer, Mad)>,
    events: VecDeque<(Connection, ConnectionEvent)>,
    made: u64,
}

impl Manager {
    pub(crate) fn new(timing: Timing) -> Self {
        Self {
            timing,
            ports: BTreeSet::new(),
            held: BTreeMap::new(),
            by_number: BTreeMap::new(),
            by_queue_pair: BTreeMap::new(),
            pending: 0,
            deadlines: BTreeSet::new(),
            ready: VecDeque::new(),
            answers: VecDeque::new(),
            events: VecDeque::new(),
            made: 0,
        }
    }

    // ---- what the owner does ----

    pub(crate) fn listen(&mut self, port: u16) {
        self.ports.insert(port);
    }

    /// Asks a service for a connection. `draw` gives random numbers.
    pub(crate) fn request(
        &mut self,
        queue_pair: QueuePair,
        local: Endpoint,
        peer: Peer,
        port: u16,
        private: &[u8],
        draw: &mut dyn FnMut() -> u32,
    ) -> Result<Connection, ConnectError> {
        if self.pending >= MOST_PENDING {
            return Err(ConnectError::NoConnection { limit: MOST_PENDING });
        }
        let id = self.free_id(draw);
        let transaction = u64::from(draw()) << 32 | u64::from(id);
        let terms = Terms { timing: self.timing, local, peer };
        let message = Message::Request(terms.request(id, port, private));
        let name = self.hold(id, peer, State::RequestSent, transaction);
        let held = self.held.get_mut(&id).expect("it was just inserted");
        (held.queue_pair, held.local) = (Some(queue_pair), Some(local));
        self.send(id, message);
        Ok(name)
    }

    /// The other side of a connection that waits to be accepted or rejected.
    pub(crate) fn waiting(&self, connection: Connection) -> Result<Endpoint, ConnectError> {
        self.find(connection)
            .filter(|held| held.state == State::RequestReceived)
            .and_then(|held| held.remote)
            .ok_or(ConnectError::NotWaiting { connection })
    }

    /// Accepts a connection that [waits](Self::waiting) with a queue pair that is connected.
    pub(crate) fn accept(
        &mut self,
        connection: Connection,
        queue_pair: QueuePair,
        local: Endpoint,
        agreed: Agreed,
        private: &[u8],
    ) {
        let id = id_of(connection);
        let Some(held) = self.held.get_mut(&id) else { return };
        (held.queue_pair, held.local, held.agreed) = (Some(queue_pair), Some(local), Some(agreed));
        held.state = State::ReplySent;
        let (ids, remote) = (held.ids(id), held.remote.unwrap_or(local));
        let terms = Terms { timing: self.timing, local, peer: held.peer };
        self.send(id, Message::Reply(terms.reply(ids, &remote, private)));
    }

    /// Rejects a connection that [waits](Self::waiting).
    pub(crate) fn reject(&mut self, connection: Connection, private: &[u8]) {
        let id = id_of(connection);
        if let Some(held) = self.held.get(&id) {
            let (peer, transaction, ids) = (held.peer, held.transaction, held.ids(id));
            let reject = messages::reject(ids, What::Request, Reason::BY_CONSUMER, &[], private);
            self.answer(peer, transaction, Message::Reject(reject));
            self.forget(id);
        }
    }

    pub(crate) fn disconnect(&mut self, connection: Connection, draw: &mut dyn FnMut() -> u32) {
        let Some(held) = self.find(connection) else { return };
        let (id, peer, transaction) = (id_of(connection), held.peer, held.transaction);
        match held.state {
            State::RequestSent | State::RequestReceived => {
                let reject = messages::reject(held.ids(id), What::Request, Reason::BY_CONSUMER, &[], &[]);
                self.answer(peer, transaction, Message::Reject(reject));
                self.end(id, ConnectionEvent::Disconnected);
            }
            State::ReplySent | State::Established => {
                let queue_pair = held.remote.map_or(0, |remote| remote.queue_pair.0);
                let ids = held.ids(id);
                let transaction = u64::from(draw()) << 32 | u64::from(id);
                if let Some(held) = self.held.get_mut(&id) {
                    self.pending += usize::from(held.state == State::Established);
                    held.transaction = transaction;
                    held.state = State::DisconnectSent;
                }
                self.send(id, Message::Disconnect(Disconnect { ids, queue_pair, private: [0; 220] }));
            }
            State::DisconnectSent | State::Ended => {}
        }
    }

    pub(crate) fn poll_event(&mut self) -> Option<(Connection, ConnectionEvent)> {
        self.events.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    // ---- what arrives ----

    /// Takes a message. `connect` connects queue pairs, and `draw` gives random numbers.
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        peer: Peer,
        mad: &Mad,
        connect: &mut Connect<'_>,
        draw: &mut dyn FnMut() -> u32,
    ) {
        match &mad.message {
            Message::Request(request) => self.requested(now, peer, mad.transaction, request, draw),
            Message::Reply(reply) => self.replied(peer, mad.transaction, reply, connect),
            Message::ReadyToUse(ready) => self.ready_to_use(peer, ready.ids),
            Message::Reject(reject) => self.rejected(peer, reject),
            Message::MessageReceipt(receipt) => self.receipt(now, peer, receipt),
            Message::Disconnect(disconnect) => {
                self.disconnected(now, peer, mad.transaction, disconnect);
            }
            Message::DisconnectReply(reply) => self.disconnect_replied(now, peer, reply.ids),
        }
    }

    fn requested(
        &mut self,
        now: Instant,
        peer: Peer,
        transaction: u64,
        request: &Request,
        draw: &mut dyn FnMut() -> u32,
    ) {
        let ids = Ids { local: 0, remote: request.local_id };
        if let Some(&id) = self.by_number.get(&(peer.ip, request.local_id)) {
            // The same request again; what it says now is not looked at.
            match self.held.get(&id).map(|held| held.state) {
                Some(State::RequestReceived) => {
                    let receipt = MessageReceipt {
                        ids: Ids { local: id, ..ids },
                        what: What::Request,
                        timeout: THINKING,
                        private: [0; 222],
                    };
                    self.answer(peer, transaction, Message::MessageReceipt(receipt));
                }
                Some(State::ReplySent) => self.queue(id),
                _ => {}
            }
            return;
        }
        let refuse = |manager: &mut Self, reason, information: &[u8]| {
            let reject = messages::reject(ids, What::Request, reason, information, &[]);
            manager.answer(peer, transaction, Message::Reject(reject));
        };
        if request.transport != 0 {
            return refuse(self, Reason::INVALID_TRANSPORT, &[]);
        }
        let Some(port) = port_of(request.service_id).filter(|port| self.ports.contains(port)) else {
            return refuse(self, Reason::INVALID_SERVICE_ID, &[]);
        };
        if let Some(&old) = self.by_queue_pair.get(&(peer.ip, request.queue_pair)) {
            // The peer has lost the connection of which this side knows (IBTA volume 1, section 12.9.8.3.1).
            self.end(old, ConnectionEvent::Disconnected);
            return refuse(self, Reason::STALE_CONNECTION, &[]);
        }
        let Some(mtu) = messages::mtu_of(request.mtu) else {
            return refuse(self, Reason::INVALID_MTU, &[messages::mtu_code(self.timing.mtu)]);
        };
        if mtu > self.timing.mtu {
            return refuse(self, Reason::INVALID_MTU, &[messages::mtu_code(self.timing.mtu)]);
        }
        let from = messages::endpoint_of_request(peer, request, mtu);
        let Some(private) = program_data(&request.private).filter(|_| from.check().is_ok()) else {
            return refuse(self, Reason::UNSUPPORTED, &[]);
        };
        if self.pending >= MOST_PENDING || self.events.len() >= MOST_PENDING {
            return refuse(self, Reason::NO_RESOURCES, &[]);
        }
        let id = self.free_id(draw);
        let name = self.hold(id, peer, State::RequestReceived, transaction);
        self.by_number.insert((peer.ip, request.local_id), id);
        self.by_queue_pair.insert((peer.ip, request.queue_pair), id);
        let held = self.held.get_mut(&id).expect("it was just inserted");
        (held.remote_id, held.remote) = (request.local_id, Some(from));
        self.set_deadline(id, Some(now + PATIENCE));
        self.events.push_back((name, ConnectionEvent::Requested { port, from, private: private.to_vec() }));
    }

    fn replied(&mut self, peer: Peer, transaction: u64, reply: &Reply, connect: &mut Connect<'_>) {
        let (id, ids) = (reply.ids.remote, Ids { local: reply.ids.remote, remote: reply.ids.local });
        let held = self.held.get_mut(&id).filter(|held| held.peer.ip == peer.ip);
        let is_known = match held.as_ref().map(|held| (held.state, held.remote_id)) {
            Some((State::RequestSent, _)) => true,
            // The RTU was lost.
            Some((State::Established, remote)) if remote == reply.ids.local => {
                return self.answer(peer, transaction, ready_to_use(ids));
            }
            _ => false,
        };
        let Some(held) = held.filter(|_| is_known) else {
            let reject = messages::reject(ids, What::Reply, Reason::INVALID_COMMUNICATION_ID, &[], &[]);
            return self.answer(peer, transaction, Message::Reject(reject));
        };
        let (Some(queue_pair), Some(local)) = (held.queue_pair, held.local) else { return };
        let remote = messages::endpoint_of_reply(peer, reply, local.mtu);
        match connect(queue_pair, &remote) {
            Ok(agreed) => {
                (held.remote_id, held.remote, held.agreed) = (reply.ids.local, Some(remote), Some(agreed));
                held.peer = peer;
                let name = held.name;
                self.by_number.insert((peer.ip, reply.ids.local), id);
                self.by_queue_pair.insert((peer.ip, reply.queue_pair), id);
                self.established(id);
                self.answer(peer, transaction, ready_to_use(ids));
                let private = reply.private.to_vec();
                self.events.push_back((name, ConnectionEvent::Established { agreed, private }));
            }
            // Its owner has destroyed the queue pair, or the endpoint cannot be right.
            Err(_) => {
                let reject = messages::reject(ids, What::Reply, Reason::UNSUPPORTED, &[], &[]);
                self.answer(peer, transaction, Message::Reject(reject));
                let (reason, private) = (Reason::UNSUPPORTED.0, Vec::new());
                self.end(id, ConnectionEvent::Rejected { reason, private });
            }
        }
    }

    fn ready_to_use(&mut self, peer: Peer, ids: Ids) {
        let Some(held) = self.held_of(peer, ids).filter(|held| held.state == State::ReplySent) else {
            return;
        };
        let (name, agreed) = (held.name, held.agreed.expect("it was accepted"));
        self.established(ids.remote);
        self.events.push_back((name, ConnectionEvent::Established { agreed, private: Vec::new() }));
    }

    fn rejected(&mut self, peer: Peer, reject: &Reject) {
        // Of a side that has heard nothing from this one, the number here is not known.
        let id = match reject.ids.remote {
            0 => self.by_number.get(&(peer.ip, reject.ids.local)).copied(),
            id => Some(id),
        };
        let held = id.and_then(|id| self.held.get_mut(&id)).filter(|held| held.peer.ip == peer.ip);
        let (Some(id), Some(held)) = (id, held) else { return };
        let is_its = held.remote_id == 0 || held.remote_id == reject.ids.local;
        if !is_its || !matches!(held.state, State::RequestSent | State::RequestReceived | State::ReplySent) {
            return;
        }
        if let (State::RequestSent, Some(local)) = (held.state, &mut held.local)
            && reject.reason == Reason::INVALID_MTU
            && reject.information_bytes >= 1
            && let Some(mtu) = messages::mtu_of(reject.information[0]).filter(|mtu| *mtu < local.mtu)
            && let Some(message) = &mut held.message
            && let Message::Request(request) = &mut message.message
        {
            // What the other side can do: the same again.
            (local.mtu, request.mtu) = (mtu, messages::mtu_code(mtu));
            return self.queue(id);
        }
        let (reason, private) = (reject.reason.0, reject.private.to_vec());
        self.end(id, ConnectionEvent::Rejected { reason, private });
    }

    fn receipt(&mut self, now: Instant, peer: Peer, receipt: &MessageReceipt) {
        let id = receipt.ids.remote;
        let Some(held) = self.held.get(&id).filter(|held| held.peer.ip == peer.ip) else { return };
        let waits = match receipt.what {
            What::Request => held.state == State::RequestSent,
            What::Reply => held.state == State::ReplySent && held.remote_id == receipt.ids.local,
            What::Other => false,
        };
        if waits {
            self.set_deadline(id, Some(now + decoded(receipt.timeout).min(PATIENCE)));
        }
    }

    fn disconnected(&mut self, now: Instant, peer: Peer, transaction: u64, disconnect: &Disconnect) {
        let ids = Ids { local: disconnect.ids.remote, remote: disconnect.ids.local };
        let reply = Message::DisconnectReply(DisconnectReply { ids, private: [0; 224] });
        if let Some(held) = self.held_of(peer, disconnect.ids) {
            if held.local.is_none_or(|local| local.queue_pair.0 != disconnect.queue_pair) {
                return;
            }
            let id = ids.local;
            if matches!(held.state, State::ReplySent | State::Established | State::DisconnectSent) {
                self.linger(now, id);
            }
        }
        // Also for a connection that is forgotten: the peer asks until it is answered.
        self.answer(peer, transaction, reply);
    }

    fn disconnect_replied(&mut self, now: Instant, peer: Peer, ids: Ids) {
        if self.held_of(peer, ids).is_some_and(|held| held.state == State::DisconnectSent) {
            self.linger(now, ids.remote);
        }
    }

    // ---- time, and what is to be sent ----

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.deadlines.first()
            && at <= now
        {
            self.set_deadline(id, None);
            let Some(held) = self.held.get_mut(&id) else { continue };
            if held.retries > 0 && held.message.is_some() {
                held.retries -= 1;
                self.queue(id);
                continue;
            }
            let (peer, transaction, ids) = (held.peer, held.transaction, held.ids(id));
            match held.state {
                State::RequestSent | State::RequestReceived | State::ReplySent => {
                    let what = if held.state == State::ReplySent { What::Reply } else { What::Request };
                    let reject = messages::reject(ids, what, Reason::TIMEOUT, &[], &[]);
                    self.answer(peer, transaction, Message::Reject(reject));
                    self.end(id, ConnectionEvent::TimedOut);
                }
                State::DisconnectSent => self.end(id, ConnectionEvent::Disconnected),
                State::Ended => self.forget(id),
                State::Established => {}
            }
        }
    }

    pub(crate) fn wants_to_transmit(&self) -> bool {
        !self.answers.is_empty() || !self.ready.is_empty()
    }

    /// The next message to send.
    pub(crate) fn transmit(&mut self, now: Instant) -> Option<(Peer, Mad)> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(answer);
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(held) = self.held.get_mut(&id).filter(|held| held.queued) else { continue };
            held.queued = false;
            let Some(message) = &held.message else { continue };
            let sent = (held.peer, **message);
            self.set_deadline(id, Some(now + self.timing.timeout));
            return Some(sent);
        }
        None
    }

    // ---- what is kept ----

    fn free_id(&self, draw: &mut dyn FnMut() -> u32) -> u32 {
        loop {
            let id = draw();
            if id != 0 && !self.held.contains_key(&id) {
                return id;
            }
        }
    }

    fn hold(&mut self, id: u32, peer: Peer, state: State, transaction: u64) -> Connection {
        self.made += 1;
        let name = Connection(self.made << 32 | u64::from(id));
        self.pending += 1;
        let held = Held {
            name,
            peer,
            state,
            remote_id: 0,
            transaction,
            queue_pair: None,
            local: None,
            remote: None,
            agreed: None,
            message: None,
            retries: 0,
            deadline: None,
            queued: false,
        };
        self.held.insert(id, held);
        name
    }

    fn find(&self, connection: Connection) -> Option<&Held> {
        self.held.get(&id_of(connection)).filter(|held| held.name == connection)
    }

    /// The connection that a message of its other side is about.
    fn held_of(&self, peer: Peer, ids: Ids) -> Option<&Held> {
        self.held.get(&ids.remote).filter(|held| held.peer.ip == peer.ip && held.remote_id == ids.local)
    }

    fn set_deadline(&mut self, id: u32, deadline: Option<Instant>) {
        let Some(held) = self.held.get_mut(&id) else { return };
        if let Some(at) = std::mem::replace(&mut held.deadline, deadline) {
            self.deadlines.remove(&(at, id));
        }
        self.deadlines.extend(deadline.map(|at| (at, id)));
    }

    /// Sends a message until it is answered.
    fn send(&mut self, id: u32, message: Message) {
        let retries = self.timing.retries;
        if let Some(held) = self.held.get_mut(&id) {
            held.retries = retries;
            held.message = Some(Box::new(Mad { transaction: held.transaction, message }));
        }
        self.set_deadline(id, None);
        self.queue(id);
    }

    fn queue(&mut self, id: u32) {
        if let Some(held) = self.held.get_mut(&id).filter(|held| !held.queued) {
            held.queued = true;
            self.ready.push_back(id);
        }
    }

    fn answer(&mut self, peer: Peer, transaction: u64, message: Message) {
        if self.answers.len() < MOST_ANSWERS {
            self.answers.push_back((peer, Mad { transaction, message }));
        }
    }

    fn established(&mut self, id: u32) {
        self.set_deadline(id, None);
        if let Some(held) = self.held.get_mut(&id) {
            self.pending -= 1;
            (held.state, held.message) = (State::Established, None);
        }
    }

    /// Ends a connection, and forgets it.
    fn end(&mut self, id: u32, event: ConnectionEvent) {
        if let Some(held) = self.held.get(&id) {
            self.events.push_back((held.name, event));
        }
        self.forget(id);
    }

    /// Ends a connection, and keeps its numbers until what is on its way has arrived.
    fn linger(&mut self, now: Instant, id: u32) {
        let Some(held) = self.held.get_mut(&id) else { return };
        self.pending += usize::from(held.state == State::Established);
        (held.state, held.message) = (State::Ended, None);
        self.events.push_back((held.name, ConnectionEvent::Disconnected));
        let queue_pair = held.remote.map(|remote| (held.peer.ip, remote.queue_pair.0));
        // A queue pair of this number may ask again now.
        if let Some(key) = queue_pair.filter(|key| self.by_queue_pair.get(key) == Some(&id)) {
            self.by_queue_pair.remove(&key);
        }
        self.set_deadline(id, Some(now + self.timing.timeout + self.timing.timeout));
    }

    fn forget(&mut self, id: u32) {
        self.set_deadline(id, None);
        let Some(held) = self.held.remove(&id) else { return };
        self.pending -= usize::from(held.state != State::Established);
        let number = (held.peer.ip, held.remote_id);
        if self.by_number.get(&number) == Some(&id) {
            self.by_number.remove(&number);
        }
        if let Some(remote) = held.remote.filter(|_| held.state.is_live()) {
            let key = (held.peer.ip, remote.queue_pair.0);
            if self.by_queue_pair.get(&key) == Some(&id) {
                self.by_queue_pair.remove(&key);
            }
        }
    }
}

fn id_of(connection: Connection) -> u32 {
    connection.0 as u32
}

fn ready_to_use(ids: Ids) -> Message {
    Message::ReadyToUse(ReadyToUse { ids, private: [0; 224] })
}

//! Connections by the Communication Manager: as programs make them, over bad networks, and by peers that break the rules.
use crate::common;

use std::collections::BTreeMap;

use common::{Addresses, CLIENT, LATENCY, SERVER, client_config, drain, read, server_config, write};
use fatbtree_soft_nic::faults::{FaultRates, LossyLink};
use fatbtree_soft_nic::{DropReason, Nic, NicConfig, QueuePairOptions};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Access, ConnectError, Connection, ConnectionEvent, Connector, Device, Memory, Mtu, Output, QueuePair,
    QueuePairNumber, Service, Verbs, WorkRequest,
};
use fatbtree_wire::cm::{
    Disconnect, Ids, MANAGEMENT_QUEUE_KEY, Mad, Message, MessageReceipt, ReadyToUse, Reason, Reject, What,
};
use fatbtree_wire::{Bth, Deth, Extension, Frame, HeaderTemplate, Opcode};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

const PORT: u16 = 7471;
const SERVICE: Service = Service { mac: SERVER.0, ip: SERVER.1, port: PORT };

fn quick(config: NicConfig) -> NicConfig {
    NicConfig { cm_timeout: Duration::from_micros(200), cm_retries: 7, ..config }
}

/// Both ends, and a link between them.
struct Ends {
    now: Instant,
    nics: [Nic; 2],
    link: LossyLink<usize>,
    /// Messages that a NIC has sent, by its index, as they left.
    sent: Vec<(usize, Mad)>,
    frame: Vec<u8>,
}

impl Ends {
    fn with(seed: u64, client: NicConfig, server: NicConfig, rates: FaultRates) -> Self {
        let mut nics = [Nic::new(client, seed).unwrap(), Nic::new(server, !seed).unwrap()];
        nics[1].listen(PORT);
        let link = LossyLink::new(LATENCY, rates, seed);
        Self { now: Instant::ZERO, nics, link, sent: Vec::new(), frame: Vec::new() }
    }

    fn new() -> Self {
        Self::with(1, quick(client_config()), quick(server_config()), FaultRates::NONE)
    }

    fn transmit(&mut self) {
        for at in 0..2 {
            while self.nics[at].poll_transmit(self.now, &mut self.frame) {
                self.sent.extend(mad_of(&self.frame).map(|mad| (at, mad)));
                self.link.send(self.now, 1 - at, &self.frame);
            }
        }
    }

    /// Moves to the next event, before `end`. False when there is none.
    fn step(&mut self, end: Option<Instant>) -> bool {
        self.transmit();
        let timeouts = self.nics.each_ref().map(Nic::poll_timeout).into_iter().flatten();
        let next = self.link.next_arrival().into_iter().chain(timeouts).min();
        let Some(next) = next.filter(|next| end.is_none_or(|end| *next <= end)) else { return false };
        self.now = self.now.max(next);
        match self.link.receive(self.now, &mut self.frame) {
            Some(to) => self.nics[to].handle_frame(self.now, &self.frame),
            None => self.nics.iter_mut().for_each(|nic| nic.handle_timeout(self.now)),
        }
        true
    }

    /// Steps until nothing is on its way. What is due later stays so.
    fn settle(&mut self) {
        loop {
            self.transmit();
            let Some(next) = self.link.next_arrival() else { return };
            self.step(Some(next));
        }
    }

    /// Steps until nothing is left to do.
    fn drive(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step(None) {
                return;
            }
        }
        panic!("still busy after a million events");
    }

    fn event(&mut self, at: usize) -> (Connection, ConnectionEvent) {
        self.nics[at].poll_connection().expect("there is news")
    }

    /// The client asks, and the server is asked.
    fn requested(&mut self, private: &[u8]) -> (Connection, QueuePair, Connection) {
        let queue_pair = self.nics[0].create().unwrap();
        let here = self.nics[0].request(queue_pair, &SERVICE, private).unwrap();
        self.settle();
        let (there, ConnectionEvent::Requested { .. }) = self.event(1) else { panic!("no request") };
        (here, queue_pair, there)
    }

    /// Connects both.
    fn connect(&mut self) -> [(Connection, QueuePair); 2] {
        let (here, queue_pair, there) = self.requested(b"");
        let peer = self.nics[1].create().unwrap();
        self.nics[1].accept(there, peer, b"").unwrap();
        self.settle();
        for at in 0..2 {
            assert!(matches!(self.event(at).1, ConnectionEvent::Established { .. }));
        }
        [(here, queue_pair), (there, peer)]
    }

    /// Reads eight bytes of the server's memory.
    fn read(&mut self, queue_pair: QueuePair) -> Vec<u8> {
        let memory = Memory::shared(4096).unwrap();
        memory.write(0, b"findable").unwrap();
        let region = self.nics[1].register(&memory, 0x10_0000, Access::READ).unwrap();
        let operation = read(region.iova, region.rkey, 8);
        self.nics[0].post(queue_pair, &[WorkRequest { tag: 1, signalled: true, operation }]).unwrap();
        self.drive();
        match self.nics[0].poll().map(|completion| completion.result) {
            Some(Ok(Output::Read(bytes))) => bytes.to_vec(),
            other => panic!("a READ was to succeed: {other:?}"),
        }
    }

    /// Hands the server a message as if it came from this address.
    fn forge(&mut self, from: Addresses, message: Message) {
        let frame = frame_with(from, 9, &Mad { transaction: 9, message }.to_bytes());
        self.nics[1].handle_frame(self.now, &frame);
    }

    /// What the server answers now.
    fn answers(&mut self) -> Vec<Message> {
        let frames = drain(&mut self.nics[1], self.now);
        frames.iter().filter_map(|frame| mad_of(frame)).map(|mad| mad.message).collect()
    }

    /// The last request that the client has sent.
    fn request(&self) -> fatbtree_wire::cm::Request {
        let mut requests = self.sent.iter().filter_map(|(_, mad)| match mad.message {
            Message::Request(request) => Some(request),
            _ => None,
        });
        requests.next_back().expect("the client has asked")
    }
}

fn frame_with(from: Addresses, psn: u32, payload: &[u8]) -> Vec<u8> {
    frame_between(from, SERVER, psn, payload)
}

fn frame_between(from: Addresses, to: Addresses, psn: u32, payload: &[u8]) -> Vec<u8> {
    let flow = common::flow(from, to);
    let deth = Deth { qkey: MANAGEMENT_QUEUE_KEY, resv8: 0, source_qp: 1 };
    let bth = Bth::new(Opcode::UD_SEND_ONLY, 1, psn);
    let mut out = Vec::new();
    HeaderTemplate::new(&flow).emit(&mut out, 1, &bth, &Extension::Deth(deth), payload);
    out
}

fn mad_of(frame: &[u8]) -> Option<Mad> {
    Mad::parse(Frame::parse(frame).ok()?.payload).ok()
}

fn begins(private: &[u8], with: &[u8]) -> bool {
    private.starts_with(with) && private[with.len()..].iter().all(|byte| *byte == 0)
}

#[test]
fn both_sides_learn_of_each_other_and_a_read_goes_through() {
    let mut ends = Ends::new();
    let queue_pair = ends.nics[0].create().unwrap();
    let here = ends.nics[0].request(queue_pair, &SERVICE, b"token").unwrap();
    ends.settle();
    let (there, ConnectionEvent::Requested { port, from, private }) = ends.event(1) else {
        panic!("no request")
    };
    assert_eq!((port, from), (PORT, ends.nics[0].endpoint(queue_pair).unwrap()));
    assert!(begins(&private, b"token") && private.len() == Nic::REQUEST_BYTES);
    let peer = ends.nics[1].create().unwrap();
    let agreed = ends.nics[1].accept(there, peer, b"regions").unwrap();
    ends.settle();
    let (found, ConnectionEvent::Established { private, agreed: theirs }) = ends.event(0) else {
        panic!("no answer")
    };
    assert!(found == here && begins(&private, b"regions") && private.len() == Nic::ACCEPT_BYTES);
    assert_eq!(ends.event(1), (there, ConnectionEvent::Established { agreed, private: vec![] }));
    assert_eq!(agreed, theirs);
    assert_eq!(ends.read(queue_pair), b"findable");
    assert_eq!(ends.nics.each_ref().map(|nic| (nic.connections(), nic.poll_timeout())), [(1, None); 2]);

    ends.nics[1].disconnect(there);
    ends.settle();
    assert_eq!(ends.event(0), (here, ConnectionEvent::Disconnected));
    assert_eq!(ends.event(1), (there, ConnectionEvent::Disconnected));
    ends.drive();
    assert_eq!(ends.nics.each_ref().map(Nic::connections), [0, 0], "after a while nothing is kept");
    ends.nics[0].disconnect(here);
    ends.drive();
    assert_eq!(ends.nics[0].poll_connection(), None, "it has ended already");
}

#[test]
fn rejections_have_their_reasons() {
    let mut ends = Ends::new();
    let other = Service { port: PORT + 1, ..SERVICE };
    let queue_pair = ends.nics[0].create().unwrap();
    let nowhere = ends.nics[0].request(queue_pair, &other, b"").unwrap();
    ends.drive();
    let (found, ConnectionEvent::Rejected { reason, .. }) = ends.event(0) else { panic!("not rejected") };
    assert_eq!((found, reason), (nowhere, Reason::INVALID_SERVICE_ID.0));

    let (here, _, there) = ends.requested(b"");
    ends.nics[1].reject(there, b"no such tree").unwrap();
    ends.drive();
    let (found, ConnectionEvent::Rejected { reason, private }) = ends.event(0) else {
        panic!("not rejected")
    };
    assert_eq!((found, reason), (here, Reason::BY_CONSUMER.0));
    assert!(begins(&private, b"no such tree"));
    let peer = ends.nics[1].create().unwrap();
    let late = ends.nics[1].accept(there, peer, b"");
    assert_eq!(late, Err(ConnectError::NotWaiting { connection: there }));
    assert_eq!(ends.nics.each_ref().map(Nic::connections), [0, 0]);

    // The queue pair is still new, so another service can be asked.
    let (.., there) = {
        let here = ends.nics[0].request(queue_pair, &SERVICE, b"").unwrap();
        ends.settle();
        (here, ends.event(1).0)
    };
    ends.nics[1].accept(there, peer, b"").unwrap();
    ends.settle();
    assert_eq!(ends.read(queue_pair), b"findable");

    let long = [7; 57];
    let unused = ends.nics[0].create().unwrap();
    let refused = ends.nics[0].request(unused, &SERVICE, &long);
    assert_eq!(refused, Err(ConnectError::PrivateData { found: 57, limit: 56 }));
    let refused = ends.nics[0].request(queue_pair, &SERVICE, b"");
    assert!(matches!(refused, Err(ConnectError::State { .. })), "{refused:?}");
}

#[test]
fn a_service_with_a_smaller_mtu_is_asked_again_with_that() {
    let client = NicConfig { mtu: Mtu::B4096, ..quick(client_config()) };
    let server = NicConfig { mtu: Mtu::B512, ..quick(server_config()) };
    let mut ends = Ends::with(1, client, server, FaultRates::NONE);
    let [(_, queue_pair), _] = ends.connect();
    assert_eq!(ends.read(queue_pair), b"findable");
    assert_eq!(ends.request().mtu, 2);
}

#[test]
fn a_side_without_an_answer_gives_up_in_time() {
    let mut ends = Ends::new();
    // There is no such host: the server's NIC drops it.
    let queue_pair = ends.nics[0].create().unwrap();
    let away = Service { mac: [2; 6], ..SERVICE };
    let here = ends.nics[0].request(queue_pair, &away, b"").unwrap();
    ends.drive();
    assert_eq!(ends.event(0), (here, ConnectionEvent::TimedOut));
    assert_eq!(ends.now, Instant::ZERO + Duration::from_micros(200) * 8 + LATENCY);
    assert_eq!(ends.nics[0].connections(), 0);

    // A program that never answers, and one that goes before it has the acceptance.
    let (here, _, there) = ends.requested(b"");
    ends.drive();
    assert_eq!(ends.event(0), (here, ConnectionEvent::TimedOut));
    assert!(matches!(ends.event(1), (found, ConnectionEvent::Rejected { .. }) if found == there));
    let (_, _, there) = ends.requested(b"");
    ends.nics[0] = Nic::new(quick(client_config()), 2).unwrap();
    let peer = ends.nics[1].create().unwrap();
    ends.nics[1].accept(there, peer, b"").unwrap();
    ends.drive();
    let (found, ConnectionEvent::Rejected { reason, .. }) = ends.event(1) else { panic!("not rejected") };
    assert_eq!((found, reason), (there, Reason::INVALID_COMMUNICATION_ID.0));
    assert_eq!(ends.nics.each_ref().map(Nic::connections), [0, 0]);
}

#[test]
fn a_repeated_request_with_other_private_data_is_the_first_one() {
    let mut ends = Ends::new();
    let (.., there) = ends.requested(b"first");
    let mut request = ends.request();
    request.private[36..42].copy_from_slice(b"second");
    ends.forge(CLIENT, Message::Request(request));
    assert!(matches!(
        ends.answers()[..],
        [Message::MessageReceipt(MessageReceipt { what: What::Request, .. })]
    ));
    assert_eq!(ends.nics[1].poll_connection(), None);
    let peer = ends.nics[1].create().unwrap();
    ends.nics[1].accept(there, peer, b"").unwrap();
    let first = ends.answers();
    assert!(matches!(first[..], [Message::Reply(_)]));
    ends.forge(CLIENT, Message::Request(request));
    assert_eq!(ends.answers(), first, "the same acceptance");
    let other = ends.nics[1].create().unwrap();
    let twice = ends.nics[1].accept(there, other, b"");
    assert_eq!(twice, Err(ConnectError::NotWaiting { connection: there }));
    assert_eq!(ends.nics[1].connections(), 1);
}

#[test]
fn a_queue_pair_that_is_asked_for_twice_is_stale_once() {
    let mut ends = Ends::new();
    let [(_, queue_pair), (there, _)] = ends.connect();
    let number = ends.nics[0].endpoint(queue_pair).unwrap().queue_pair;
    // The client has died and lost all; its new queue pair has the number of the old one.
    ends.nics[0] = Nic::new(quick(client_config()), 2).unwrap();
    let with_number = |number| QueuePairOptions { number: Some(number), ..QueuePairOptions::default() };
    let again = ends.nics[0].create_with(with_number(number)).unwrap();
    ends.nics[0].request(again, &SERVICE, b"").unwrap();
    ends.settle();
    let (_, ConnectionEvent::Rejected { reason, .. }) = ends.event(0) else { panic!("not rejected") };
    assert_eq!(reason, Reason::STALE_CONNECTION.0);
    assert_eq!(ends.event(1), (there, ConnectionEvent::Disconnected));
    ends.nics[0].request(again, &SERVICE, b"").unwrap();
    ends.settle();
    assert!(matches!(ends.event(1).1, ConnectionEvent::Requested { .. }));
}

#[test]
fn a_number_can_be_used_again_right_after_a_disconnect() {
    let mut ends = Ends::new();
    let [(here, queue_pair), _] = ends.connect();
    let number = ends.nics[0].endpoint(queue_pair).unwrap().queue_pair;
    ends.nics[0].disconnect(here);
    ends.settle();
    ends.nics[0].destroy(queue_pair);
    let options = QueuePairOptions { number: Some(number), ..QueuePairOptions::default() };
    let again = ends.nics[0].create_with(options).unwrap();
    ends.nics[0].request(again, &SERVICE, b"").unwrap();
    ends.settle();
    assert!(matches!(ends.event(1).1, ConnectionEvent::Disconnected));
    let (there, ConnectionEvent::Requested { .. }) = ends.event(1) else { panic!("no request") };
    let peer = ends.nics[1].create().unwrap();
    ends.nics[1].accept(there, peer, b"").unwrap();
    ends.settle();
    assert_eq!(ends.read(again), b"findable");
}

#[test]
fn what_the_passive_side_has_not_heard_is_said_again() {
    let mut ends = Ends::new();
    let (here, _, there) = ends.requested(b"");
    let peer = ends.nics[1].create().unwrap();
    ends.nics[1].accept(there, peer, b"").unwrap();
    for frame in drain(&mut ends.nics[1], ends.now) {
        ends.nics[0].handle_frame(ends.now, &frame);
    }
    assert_eq!(drain(&mut ends.nics[0], ends.now).len(), 1, "the RTU, which is lost");
    ends.drive();
    for (at, connection) in [(0, here), (1, there)] {
        assert!(
            matches!(ends.event(at), (found, ConnectionEvent::Established { .. }) if found == connection)
        );
        assert_eq!(ends.nics[at].poll_connection(), None);
    }
}

/// Another host knows the numbers of a connection, or guesses some.
#[test]
fn what_others_forge_changes_nothing() {
    let mut ends = Ends::new();
    let (here, queue_pair, there) = ends.requested(b"");
    let peer = ends.nics[1].create().unwrap();
    ends.nics[1].accept(there, peer, b"").unwrap();
    ends.transmit();
    let ids = Ids { local: ends.request().local_id, remote: there.0 as u32 };
    let number = ends.nics[1].endpoint(peer).unwrap().queue_pair.0;
    let ready = |ids| Message::ReadyToUse(ReadyToUse { ids, private: [0; 224] });
    let disconnect = |ids, queue_pair| Message::Disconnect(Disconnect { ids, queue_pair, private: [0; 220] });
    let reject = |ids| {
        let (information, private) = ([0; 72], [0; 148]);
        let what = What::Reply;
        Message::Reject(Reject {
            ids,
            what,
            information_bytes: 0,
            reason: Reason::TIMEOUT,
            information,
            private,
        })
    };
    let stranger = ([2, 0, 0, 0, 0, 9], std::net::Ipv4Addr::new(10, 0, 0, 9));
    let wrong = Ids { local: ids.local ^ 1, ..ids };
    for (from, ids) in [(stranger, ids), (CLIENT, wrong)] {
        for message in [ready(ids), reject(ids), disconnect(ids, number)] {
            ends.forge(from, message);
            assert_eq!(ends.nics[1].poll_connection(), None);
        }
    }
    // The queue pair's number has to be right as well.
    ends.forge(CLIENT, disconnect(ids, number ^ 1));
    assert_eq!(ends.nics[1].poll_connection(), None);
    // A queue key that is not management's, another source, and other classes of management.
    let mut frame = frame_with(CLIENT, 1, &Mad { transaction: 9, message: ready(ids) }.to_bytes());
    for at in [54, 61] {
        let byte = std::mem::replace(&mut frame[at], 7);
        let parsed = Frame::parse(&frame).unwrap();
        let icrc = parsed.expected_icrc();
        let end = frame.len() - 4;
        let sum = frame[end..].to_vec();
        frame[end..].copy_from_slice(&icrc.to_le_bytes());
        ends.nics[1].handle_frame(ends.now, &frame);
        frame[at] = byte;
        frame[end..].copy_from_slice(&sum);
    }
    let mut other = Mad { transaction: 9, message: ready(ids) }.to_bytes();
    other[1] = 3;
    ends.nics[1].handle_frame(ends.now, &frame_with(CLIENT, 1, &other));
    assert_eq!(ends.nics[1].stats().dropped(DropReason::OtherManagement), 3);
    assert_eq!(ends.nics[1].poll_connection(), None);
    // All of it is still there.
    ends.settle();
    assert!(matches!(ends.event(0), (found, ConnectionEvent::Established { .. }) if found == here));
    assert!(matches!(ends.event(1), (found, ConnectionEvent::Established { .. }) if found == there));
    assert_eq!(ends.read(queue_pair), b"findable");
    ends.forge(CLIENT, disconnect(ids, number));
    assert_eq!(ends.event(1), (there, ConnectionEvent::Disconnected));
}

/// A peer that asks and asks is kept no more than so often, and not for long.
#[test]
fn a_flood_of_requests_ends_by_itself() {
    let mut ends = Ends::new();
    let (.., there) = ends.requested(b"");
    let request = ends.request();
    for number in 0..10_000 {
        let request = fatbtree_wire::cm::Request { local_id: number, queue_pair: number + 2, ..request };
        ends.forge(CLIENT, Message::Request(request));
    }
    assert_eq!(ends.nics[1].connections(), 4096);
    let answers = ends.answers();
    assert!(answers.len() <= 256 && answers.iter().all(|answer| matches!(answer, Message::Reject(_))));
    ends.nics[0] = Nic::new(quick(client_config()), 2).unwrap();
    ends.drive();
    assert_eq!(ends.nics[1].connections(), 0);
    let ended = std::iter::from_fn(|| ends.nics[1].poll_connection())
        .filter(|(_, event)| matches!(event, ConnectionEvent::TimedOut | ConnectionEvent::Rejected { .. }));
    assert_eq!(ended.count(), 4096, "{there} among them");
    let _ = ends.requested(b"it takes requests again");
}

/// The longest time that a side may wait for the other.
#[test]
fn a_receipt_buys_time() {
    let mut ends = Ends::new();
    let (_, _, there) = ends.requested(b"");
    // It is asked again, and says that it thinks.
    ends.step(None);
    ends.settle();
    let thinking = Duration::from_nanos(4096 << 20);
    let until = ends.nics[0].poll_timeout().unwrap();
    assert!(until > ends.now + thinking / 2 && until <= ends.now + thinking, "{until:?}");
    // However long a peer wants to think.
    let ids = Ids { local: 0, remote: ends.request().local_id };
    let forever = MessageReceipt { ids, what: What::Request, timeout: 31, private: [0; 222] };
    let mad = Mad { transaction: 9, message: Message::MessageReceipt(forever) };
    let frame = frame_between(SERVER, CLIENT, 9, &mad.to_bytes());
    ends.nics[0].handle_frame(ends.now, &frame);
    assert_eq!(ends.nics[0].poll_timeout(), Some(ends.now + Duration::from_secs(60)));
    let peer = ends.nics[1].create().unwrap();
    ends.now += Duration::from_secs(1);
    ends.nics[1].accept(there, peer, b"").unwrap();
    ends.settle();
    assert!(matches!(ends.event(0).1, ConnectionEvent::Established { .. }));
}

/// Datagrams wait for what queue pairs have to say, but not for ever.
#[test]
fn an_end_comes_after_what_is_acknowledged_and_in_spite_of_what_has_no_end() {
    let mut ends = Ends::new();
    let [(here, queue_pair), (there, peer)] = ends.connect();
    let memory = Memory::shared(1 << 20).unwrap();
    let region = ends.nics[1].register(&memory, 0x10_0000, Access::ALL).unwrap();
    let operation = write(region.iova, region.rkey, &[7; 8]);
    let wanted = WorkRequest { tag: 1, signalled: true, operation };
    ends.nics[0].post(queue_pair, &[wanted]).unwrap();
    for frame in drain(&mut ends.nics[0], ends.now) {
        ends.nics[1].handle_frame(ends.now, &frame);
    }
    ends.nics[1].disconnect(there);
    let opcodes = drain(&mut ends.nics[1], ends.now);
    let opcodes: Vec<_> = opcodes.iter().map(|frame| Frame::parse(frame).unwrap().bth.opcode).collect();
    assert_eq!(opcodes, [Opcode::RC_ACKNOWLEDGE, Opcode::UD_SEND_ONLY]);
    // A READ that is answered by a thousand frames.
    let [(_, queue_pair), (there, _)] = ends.connect();
    let operation = read(region.iova, region.rkey, 1 << 20);
    ends.nics[0].post(queue_pair, &[WorkRequest { tag: 2, signalled: true, operation }]).unwrap();
    for frame in drain(&mut ends.nics[0], ends.now) {
        ends.nics[1].handle_frame(ends.now, &frame);
    }
    ends.nics[1].disconnect(there);
    let frames = drain(&mut ends.nics[1], ends.now);
    let at = frames.iter().position(|frame| mad_of(frame).is_some());
    assert_eq!((at, frames.len()), (Some(64), 1025), "{here} {peer}");
}

/// What one side has seen of a connection.
#[derive(Default, Debug)]
struct Seen {
    established: u32,
    ended: u32,
    queue_pair: Option<QueuePair>,
    peer: Option<QueuePairNumber>,
}

/// Connections over a bad network, to a server that accepts, rejects, waits and restarts.
fn run(seed: u64) -> u64 {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut below = |n: u32| random.next_u32() % n;
    let bad = below(4) != 0;
    let rates = FaultRates {
        drop: if bad { below(20_000) as u16 } else { 0 },
        duplicate: if bad { below(20_000) as u16 } else { 0 },
        delay: if bad { below(30_000) as u16 } else { 0 },
        corrupt: if bad { below(8_000) as u16 } else { 0 },
        longest_delay: Duration::from_micros(u64::from(1 + below(2_000))),
    };
    let mut ends = Ends::with(seed, quick(client_config()), quick(server_config()), rates);
    let mut seen: [BTreeMap<Connection, Seen>; 2] = Default::default();
    let (mut waiting, mut connected) = (Vec::new(), 0);
    for turn in 0..400_u32 {
        match below(10) {
            0..=1 if turn < 300 => {
                let queue_pair = ends.nics[0].create().unwrap();
                let connection = ends.nics[0].request(queue_pair, &SERVICE, b"mine").unwrap();
                seen[0].insert(connection, Seen { queue_pair: Some(queue_pair), ..Seen::default() });
            }
            2..=4 if !waiting.is_empty() => {
                let (connection, from) = waiting.swap_remove(below(waiting.len() as u32) as usize);
                let peer = ends.nics[1].create().unwrap();
                if below(5) == 0 {
                    let _ = ends.nics[1].reject(connection, b"not now");
                    seen[1].remove(&connection);
                } else if ends.nics[1].accept(connection, peer, b"yours").is_ok() {
                    let seen = seen[1].get_mut(&connection).expect("it was requested");
                    (seen.queue_pair, seen.peer) = (Some(peer), Some(from));
                }
            }
            5 => {
                let at = below(2) as usize;
                let some = seen[at].keys().nth(below(1 + seen[at].len() as u32) as usize).copied();
                if let Some(connection) = some {
                    ends.nics[at].disconnect(connection);
                }
            }
            6 if below(40) == 0 => {
                ends.nics[1] = Nic::new(quick(server_config()), seed ^ u64::from(turn)).unwrap();
                ends.nics[1].listen(PORT);
                (seen[1], waiting) = (BTreeMap::new(), Vec::new());
            }
            _ => drop(ends.step(None)),
        }
        for at in 0..2 {
            while let Some((connection, event)) = ends.nics[at].poll_connection() {
                if let ConnectionEvent::Requested { from, private, .. } = &event {
                    assert!(begins(private, b"mine"), "{seed}");
                    waiting.push((connection, from.queue_pair));
                    assert!(seen[at].insert(connection, Seen::default()).is_none(), "{seed}: a name again");
                    continue;
                }
                let seen = seen[at].get_mut(&connection).expect("it was asked for");
                match event {
                    ConnectionEvent::Established { private, .. } => {
                        assert!(at == 1 || begins(&private, b"yours"), "{seed}");
                        assert_eq!(seen.ended, 0, "{seed}: {connection} is there after its end");
                        seen.established += 1;
                        connected += u64::from(at == 0);
                    }
                    _ => seen.ended += 1,
                }
                assert!(seen.established <= 1 && seen.ended <= 1, "{seed}: {connection} {seen:?}");
            }
        }
    }
    // Each connection ends, or is there at both sides.
    let mut left: Vec<_> = seen
        .iter()
        .enumerate()
        .flat_map(|(at, seen)| {
            seen.iter().filter(|(_, seen)| seen.ended == 0).map(move |(connection, _)| (at, *connection))
        })
        .collect();
    for &(at, connection) in &left {
        ends.nics[at].disconnect(connection);
    }
    ends.drive();
    for at in 0..2 {
        while let Some((connection, event)) = ends.nics[at].poll_connection() {
            match event {
                ConnectionEvent::Requested { .. } => left.push((at, connection)),
                ConnectionEvent::Established { .. } => {}
                _ => left.retain(|other| *other != (at, connection)),
            }
        }
    }
    let unended: Vec<_> = left.iter().filter(|(at, _)| *at == 0).collect();
    assert!(unended.is_empty(), "{seed}: {unended:?} never end");
    assert_eq!(ends.nics[0].connections(), 0, "{seed}");
    // Late requests that no program accepts are gone a minute later.
    assert_eq!(ends.nics[1].connections(), 0, "{seed}");
    connected
}

#[test]
fn connections_come_and_end_over_bad_networks() {
    let seeds = common::seeds(1500);
    let connected: u64 = seeds.clone().map(run).sum();
    assert!(connected > 3 * seeds.end, "{connected} connections");
}

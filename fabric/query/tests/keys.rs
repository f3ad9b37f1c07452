//! Servers that want keys: what bears no tag, another's, or was captured and comes again, brings nothing and changes nothing.
#![allow(clippy::unwrap_used)] // a test that unwraps nothing fails, as it should

use std::net::SocketAddr;

use fatbtree_query::{
    Answer, Ask, Identity, Outcome, Requester, RequesterOptions, Responder, ResponderOptions, Secret,
};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::query::{Op, Query, QueryHeader, Status, datagram};

const SECRET: Secret = Secret::new(*b"known to servers");
const NOW: Instant = Instant::ZERO;
const PART: usize = 100;

fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

const HOME: u8 = 1;

/// A server, a client at [`HOME`], and everything that they have said.
struct World {
    server: Responder,
    client: Requester,
    identity: Identity,
    requests: Vec<Vec<u8>>,
    answers: Vec<Vec<u8>>,
    /// Keys that were written, as often as they were.
    written: Vec<u64>,
}

impl World {
    fn new(secret: Option<Secret>, identity: Option<Identity>) -> Self {
        let options = RequesterOptions { part: PART, ..RequesterOptions::default() };
        let client = match identity {
            Some(identity) => Requester::with_identity(options, identity),
            None => Requester::new(options, 1),
        };
        Self {
            server: Responder::new(ResponderOptions { part: PART, secret, ..ResponderOptions::default() }, 2),
            client,
            identity: identity.unwrap_or(SECRET.identity(1)),
            requests: Vec::new(),
            answers: Vec::new(),
            written: Vec::new(),
        }
    }

    fn with_keys() -> Self {
        Self::new(Some(SECRET), Some(SECRET.identity(77)))
    }

    /// What a server sends to `from` for a datagram.
    fn server_takes(&mut self, from: SocketAddr, bytes: &[u8]) -> Vec<Vec<u8>> {
        if let Some(request) = self.server.handle(NOW, from, bytes) {
            let outcome = match request.op {
                Op::Get => Outcome::Value(vec![request.key as u8; 250]),
                Op::Scan => Outcome::Records { payload: vec![1; 250], next: None },
                _ => {
                    self.written.push(request.key);
                    Outcome::Done
                }
            };
            self.server.finish(request.ticket, outcome);
        }
        let sent = std::iter::from_fn(|| self.server.poll_transmit());
        sent.map(|sent| (assert_eq!(sent.to, from), sent.bytes).1).collect()
    }

    /// Asks, and passes on what both say until there is an answer.
    fn ask(&mut self, ask: Ask) -> Option<Answer> {
        let id = self.client.ask(NOW, ask).unwrap();
        for _ in 0..10 {
            while let Some(datagram) = self.client.poll_transmit() {
                let answers = self.server_takes(at(HOME, 1), &datagram.bytes);
                self.requests.push(datagram.bytes);
                answers.iter().for_each(|answer| self.client.handle(NOW, answer));
                self.answers.extend(answers);
            }
            if let Some((answered, answer)) = self.client.poll_answer() {
                assert_eq!(answered, id);
                return Some(answer);
            }
        }
        None
    }
}

fn status(bytes: &[u8]) -> Status {
    Query::parse(bytes).unwrap().header.status.unwrap()
}

#[test]
fn a_client_with_a_key_reads_and_writes() {
    let mut world = World::with_keys();
    assert_eq!(world.ask(Ask::get(5)), Some(Answer::Value(vec![5; 250])));
    assert_eq!(world.ask(Ask::put(6, vec![7; 1000])), Some(Answer::Written));
    assert_eq!(world.ask(Ask::delete(6)), Some(Answer::Written));
    assert!(matches!(world.ask(Ask::scan(5, 9, 10)), Some(Answer::Records { .. })));
    assert_eq!((world.server.stats().no_key, world.client.stats().stray), (0, 0));
    // Both directions bear tags, each another one.
    let all: Vec<u64> = world
        .requests
        .iter()
        .chain(&world.answers)
        .map(|bytes| Query::parse(bytes).unwrap().header.tag)
        .collect();
    assert!(all.len() > 20 && all.iter().all(|tag| *tag != 0));
}

#[test]
fn without_a_key_or_with_anothers_nothing_is_done() {
    let other = SECRET.identity(78);
    let stranger = Secret::new([9; 16]).identity(77);
    // Another client's key under this number, one of another cluster, and none.
    for identity in [Some(Identity { client: 77, key: other.key }), Some(stranger), None] {
        let mut world = World::new(Some(SECRET), identity);
        for ask in [Ask::get(5), Ask::put(6, vec![1; 300]), Ask::delete(7), Ask::scan(1, 9, 10)] {
            let is_write = ask.op.is_write();
            let answer = world.ask(ask);
            match identity {
                None => assert_eq!(answer, Some(Answer::Refused(Status::NoKey)), "it is told at once"),
                Some(_) => {
                    // A server that may be none has told it: it is told when nothing else has come.
                    assert_eq!(answer, None);
                    world.client.handle_timeout(NOW + Duration::from_secs(100));
                    let (_, answer) = world.client.poll_answer().unwrap();
                    let expected = if is_write { Answer::Unknown } else { Answer::Refused(Status::NoKey) };
                    assert_eq!(answer, expected);
                }
            }
        }
        assert!(
            world
                .answers
                .iter()
                .all(|answer| status(answer) == Status::NoKey && answer.len() == QueryHeader::LEN)
        );
        assert!(world.answers.iter().all(|answer| Query::parse(answer).unwrap().header.tag == 0));
        let stats = world.server.stats();
        assert_eq!((stats.requests, stats.no_key), (0, world.requests.len() as u64));
        assert!(world.written.is_empty() && world.client.stats().no_key >= 4);
    }
}

#[test]
fn a_server_that_wants_no_key_answers_everybody() {
    for identity in [None, Some(SECRET.identity(77))] {
        let mut world = World::new(None, identity);
        // A client with a key ignores answers without a tag: its server tells it beforehand if no key is needed.
        let answer = world.ask(Ask::put(5, vec![1; 9]));
        assert_eq!(answer, identity.is_none().then_some(Answer::Written));
    }
}

/// What a switch may write in a request changes nothing of its tag; what it may not change is found out.
#[test]
fn requests_that_were_changed_on_the_way_are_refused() {
    let mut world = World::with_keys();
    assert_eq!(world.ask(Ask::put(1, vec![1])), Some(Answer::Written));
    world.client.ask(NOW, Ask::put(6, vec![7; 50])).unwrap();
    let sent = world.client.poll_transmit().unwrap().bytes;
    for at_byte in 1..sent.len() {
        let mut bytes = sent.clone();
        bytes[at_byte] ^= 1;
        let before = world.written.len();
        let answers = world.server_takes(at(HOME, 1), &bytes);
        if at_byte < 8 || (16..24).contains(&at_byte) {
            assert_eq!(
                answers.iter().map(|answer| status(answer)).collect::<Vec<_>>(),
                [Status::Done],
                "{at_byte}"
            );
        } else {
            assert_eq!(world.written.len(), before, "byte {at_byte}");
            assert!(answers.iter().all(|answer| status(answer) == Status::NoKey), "byte {at_byte}");
        }
    }
    assert_eq!(world.written, [1, 6], "once, however often it came");
}

#[test]
fn what_was_captured_brings_nothing_elsewhere_and_changes_nothing() {
    let mut world = World::with_keys();
    assert!(matches!(world.ask(Ask::get(5)), Some(Answer::Value(_))));
    assert_eq!(world.ask(Ask::put(6, vec![7; 250])), Some(Answer::Written));
    let written = world.written.clone();
    for bytes in world.requests.clone() {
        // From another address: no value, no client is opened, no more bytes than came.
        for answer in world.server_takes(at(9, 9), &bytes) {
            assert!(matches!(status(&answer), Status::NotOpen), "{:?}", status(&answer));
            assert!(answer.len() <= bytes.len());
        }
        // At the client's own address reads are read again, writes are not written again.
        world.server_takes(at(HOME, 1), &bytes);
    }
    assert_eq!(world.written, written);
    // Nor when the server has forgotten the client, or begins anew.
    world.server.handle_timeout(NOW + Duration::from_secs(1000));
    for begins_anew in [false, true] {
        if begins_anew {
            let options = ResponderOptions { secret: Some(SECRET), ..ResponderOptions::default() };
            world.server = Responder::new(options, 3);
        }
        for bytes in world.requests.clone() {
            let answers = world.server_takes(at(HOME, 1), &bytes);
            assert!(answers.iter().all(|answer| status(answer) == Status::NotOpen));
        }
    }
    assert_eq!(world.written, written);
}

#[test]
fn answers_without_the_right_tag_are_not_believed() {
    let mut world = World::with_keys();
    assert!(matches!(world.ask(Ask::get(5)), Some(Answer::Value(_))));
    let old = world.answers.clone();
    let id = world.client.ask(NOW, Ask::get(5)).unwrap();
    let sent = world.client.poll_transmit().unwrap().bytes;
    let asked = Query::parse(&sent).unwrap().header;
    assert_eq!((asked.client, asked.request), (world.identity.client, id));
    // An attacker on the path sees the request, and answers it.
    let forged = asked.response(Status::NotFound);
    for tag in [0, asked.tag, 1] {
        world.client.handle(NOW, &QueryHeader { tag, ..forged }.to_bytes());
    }
    let lie = QueryHeader { total: 3, ..asked.response(Status::Done) };
    world.client.handle(NOW, &datagram(&lie, b"lie"));
    // Or with an answer to another request, or with one that was changed.
    old.iter().for_each(|answer| world.client.handle(NOW, answer));
    let answers = world.server_takes(at(HOME, 1), &sent);
    for answer in &answers {
        for at_byte in (0..answer.len()).step_by(3) {
            let mut bytes = answer.clone();
            bytes[at_byte] ^= 0x40;
            world.client.handle(NOW, &bytes);
        }
    }
    assert_eq!(world.client.poll_answer(), None);
    answers.iter().for_each(|answer| world.client.handle(NOW, answer));
    assert_eq!(world.client.poll_answer(), Some((id, Answer::Value(vec![5; 250]))));
}

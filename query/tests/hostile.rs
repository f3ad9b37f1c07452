//! What peers may do that mean no good: a server stays within its bounds, and others are served.
#![allow(clippy::unwrap_used)] // a test that unwraps nothing fails, as it should

use std::net::SocketAddr;
use std::time::Duration;

use fatbtree_query::{
    Answer, Ask, Outcome, Requester, RequesterOptions, Responder, ResponderOptions, ToClient,
};
use fatbtree_wire::query::{Op, Query, QueryHeader, Status};
use proptest::prelude::*;

const NOW: Duration = Duration::ZERO;

fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

fn header(bytes: &[u8]) -> QueryHeader {
    Query::parse(bytes).unwrap().header
}

/// What a server says to a datagram that it does not hand on.
fn told(server: &mut Responder, from: SocketAddr, request: &QueryHeader, part: &[u8]) -> Option<QueryHeader> {
    let datagram = [&request.to_bytes()[..], part].concat();
    assert!(server.handle(NOW, from, &datagram).is_none(), "{request:?} was handed on");
    let ToClient { to, bytes } = server.poll_transmit()?;
    assert_eq!(to, from);
    Some(header(&bytes))
}

fn cookie(server: &mut Responder, from: SocketAddr, client: u64) -> u64 {
    let open = QueryHeader::request(Op::Open, 0, client, 1);
    let told = told(server, from, &open, &[]).unwrap();
    assert_eq!(told.status, Some(Status::NotOpen));
    told.range_end
}

fn open(server: &mut Responder, from: SocketAddr, client: u64) -> Option<Status> {
    let cookie = cookie(server, from, client);
    let open = QueryHeader { range_end: cookie, ..QueryHeader::request(Op::Open, 0, client, 1) };
    told(server, from, &open, &[]).unwrap().status
}

#[test]
fn a_cookie_is_good_at_one_address() {
    let mut server = Responder::new(ResponderOptions::default(), 1);
    let stolen = cookie(&mut server, at(1, 1000), 9);
    for other in [at(2, 1000), at(1, 1001)] {
        let open = QueryHeader { range_end: stolen, ..QueryHeader::request(Op::Open, 0, 9, 1) };
        assert_eq!(told(&mut server, other, &open, &[]).unwrap().status, Some(Status::NotOpen));
    }
    // Nor does a client's number serve another host.
    assert_eq!(open(&mut server, at(1, 1000), 9), Some(Status::Done));
    assert_eq!(open(&mut server, at(2, 1000), 9), Some(Status::Refused));
    let write = QueryHeader::request(Op::Delete, 7, 9, 1);
    assert_eq!(told(&mut server, at(2, 1000), &write, &[]).unwrap().status, Some(Status::NotOpen));
}

#[test]
fn a_host_has_so_many_clients_and_another_has_its_own() {
    let options = ResponderOptions { clients_per_host: 3, clients: 5, ..ResponderOptions::default() };
    let mut server = Responder::new(options, 1);
    for client in 1..=3 {
        assert_eq!(open(&mut server, at(1, client as u16), client), Some(Status::Done));
    }
    assert_eq!(open(&mut server, at(1, 4), 4), Some(Status::Busy));
    assert_eq!(open(&mut server, at(1, 1), 1), Some(Status::Done), "it is known");
    assert_eq!(open(&mut server, at(2, 5), 5), Some(Status::Done));
    assert_eq!(open(&mut server, at(2, 6), 6), Some(Status::Done));
    assert_eq!(open(&mut server, at(3, 7), 7), Some(Status::Busy), "of all hosts");
    // Those that are silent make room.
    server.handle_timeout(options.lease);
    assert_eq!(open(&mut server, at(3, 7), 7), Some(Status::Done));
}

#[test]
fn a_client_that_writes_nothing_makes_room_for_another_of_its_host() {
    let options = ResponderOptions { clients_per_host: 2, ..ResponderOptions::default() };
    let mut server = Responder::new(options, 1);
    let late = cookie(&mut server, at(1, 2), 2);
    for client in 1..=2 {
        assert_eq!(open(&mut server, at(1, client as u16), client), Some(Status::Done));
    }
    let later = NOW + Duration::from_secs(1);
    let mut say = |client: u64, asked: QueryHeader| {
        let request = server.handle(later, at(1, client as u16), &asked.to_bytes());
        if let Some(request) = request {
            server.finish(request.ticket, Outcome::Done);
        }
        header(&server.poll_transmit().unwrap().bytes)
    };
    let delete = |client: u64, id: u64| QueryHeader::request(Op::Delete, 7, client, id);
    assert_eq!(say(1, delete(1, 1)).status, Some(Status::Done));
    // Of the two, the second has written nothing for a second.
    let (new, another) = (say(3, delete(3, 1)), say(4, delete(4, 1)));
    let opens = |client, floor, cookie| QueryHeader {
        range_end: cookie,
        ..QueryHeader::request(Op::Open, 0, client, floor)
    };
    assert_eq!(say(3, opens(3, 1, new.range_end)).status, Some(Status::Done));
    assert_eq!(say(1, delete(1, 1)).status, Some(Status::Done), "it is remembered");
    let gone = say(2, delete(2, 1));
    assert_eq!(gone.status, Some(Status::NotOpen));
    // An open of it that is still on its way would have old writes carried out again. And the two others have just written.
    assert_eq!(say(2, opens(2, 1, late)).status, Some(Status::NotOpen));
    assert_eq!(say(2, opens(2, 2, gone.range_end)).status, Some(Status::Busy));
    // Nobody else is taken for one who was forgotten.
    assert_eq!(say(4, opens(4, 1, another.range_end)).status, Some(Status::Busy));
}

#[test]
fn values_that_never_come_to_an_end_hold_no_more_than_is_allowed() {
    let options =
        ResponderOptions { longest_value: 1000, waiting_per_host: 2500, ..ResponderOptions::default() };
    let mut server = Responder::new(options, 1);
    assert_eq!(open(&mut server, at(1, 1), 1), Some(Status::Done));
    let put = |id: u64, total: u32| QueryHeader { total, ..QueryHeader::request(Op::Put, 7, 1, id) };
    assert_eq!(told(&mut server, at(1, 1), &put(1, 1001), b"x").unwrap().status, Some(Status::TooLarge));
    assert_eq!(told(&mut server, at(1, 1), &put(1, 1000), b"x"), None, "more of it has to come");
    assert_eq!(told(&mut server, at(1, 1), &put(2, 1000), b"x"), None);
    assert_eq!(told(&mut server, at(1, 1), &put(3, 1000), b"x").unwrap().status, Some(Status::Busy));
    assert_eq!(told(&mut server, at(1, 1), &put(1, 1000), b"x"), None, "the same part takes nothing more");
    // What takes the place of an older one frees what that held.
    assert_eq!(told(&mut server, at(1, 1), &put(1 + 64, 1000), b"x"), None);
    assert_eq!(told(&mut server, at(1, 1), &put(3, 1000), b"x").unwrap().status, Some(Status::Busy));
    let rest = QueryHeader { offset: 1, ..put(2, 1000) };
    let whole = server.handle(NOW, at(1, 1), &[&rest.to_bytes()[..], &[0; 999]].concat()).unwrap();
    assert_eq!(whole.value.len(), 1000);
    assert_eq!(told(&mut server, at(1, 1), &put(3, 1000), b"x"), None, "there is room again");
}

#[test]
fn a_server_that_has_enough_to_do_says_so() {
    let mut server = Responder::new(ResponderOptions { running: 2, ..ResponderOptions::default() }, 1);
    assert_eq!(open(&mut server, at(1, 1), 1), Some(Status::Done));
    let get = QueryHeader::request(Op::Get, 7, 0, 1);
    let first = server.handle(NOW, at(2, 1), &get.to_bytes()).unwrap();
    assert!(server.handle(NOW, at(2, 1), &get.to_bytes()).is_some());
    let delete = QueryHeader::request(Op::Delete, 7, 1, 1);
    assert_eq!(told(&mut server, at(1, 1), &delete, &[]).unwrap().status, Some(Status::Busy));
    server.finish(first.ticket, Outcome::NotFound);
    assert!(server.poll_transmit().is_some());
    assert!(server.handle(NOW, at(1, 1), &delete.to_bytes()).is_some(), "it was not carried out before");
}

/// The window's left edge: what lies behind it is refused for good, what lies before it is not, whatever became of the
/// write that has moved it.
#[test]
fn a_write_that_fails_gives_no_old_one_its_place_back() {
    const WINDOW: u64 = fatbtree_wire::query::WINDOW;
    let options = ResponderOptions { waiting_per_host: 100, ..ResponderOptions::default() };
    let delete = |id: u64| QueryHeader::request(Op::Delete, 7, 1, id);
    // A later write in its place that fails, has no room for its value, or is but half there.
    for what in 0..3 {
        let mut server = Responder::new(options, 1);
        assert_eq!(open(&mut server, at(1, 1), 1), Some(Status::Done));
        let first = server.handle(NOW, at(1, 1), &delete(5).to_bytes()).unwrap();
        server.finish(first.ticket, Outcome::Done);
        assert_eq!(header(&server.poll_transmit().unwrap().bytes).status, Some(Status::Done));
        assert_eq!(told(&mut server, at(1, 1), &delete(5), &[]).unwrap().status, Some(Status::Done), "again");
        let later = 5 + WINDOW;
        let total = [0, 101, 100][what];
        let put = QueryHeader { total, ..QueryHeader::request(Op::Put, 7, 1, later) };
        match what {
            0 => {
                let failed = server.handle(NOW, at(1, 1), &put.to_bytes()).unwrap();
                server.finish(failed.ticket, Outcome::Failed);
                assert_eq!(header(&server.poll_transmit().unwrap().bytes).status, Some(Status::Failed));
            }
            1 => assert_eq!(told(&mut server, at(1, 1), &put, b"x").unwrap().status, Some(Status::Busy)),
            _ => assert_eq!(told(&mut server, at(1, 1), &put, b"x"), None),
        }
        for old in [1, 4, 5] {
            let said = told(&mut server, at(1, 1), &delete(old), &[]).unwrap();
            assert_eq!(said.status, Some(Status::Forgotten), "{old} after {what}");
        }
        let next = server.handle(NOW, at(1, 1), &delete(6).to_bytes());
        assert!(next.is_some(), "it is not older than a window");
    }
}

/// A response that somebody made up, who does not know the client's number, answers nothing.
#[test]
fn answers_of_strangers_are_stray() {
    let mut client = Requester::new(RequesterOptions::default(), 1);
    let id = client.ask(NOW, Ask::get(7)).unwrap();
    let asked = header(&client.poll_transmit().unwrap().bytes);
    let forged = QueryHeader { client: asked.client ^ 1, ..asked.response(Status::NotFound) };
    client.handle(NOW, &forged.to_bytes());
    let other_key = QueryHeader::request(Op::Get, 8, asked.client, asked.request).response(Status::NotFound);
    client.handle(NOW, &other_key.to_bytes());
    assert_eq!((client.poll_answer(), client.stats().stray), (None, 2));
    client.handle(NOW, &asked.response(Status::NotFound).to_bytes());
    assert_eq!(client.poll_answer(), Some((id, Answer::NotFound)));
}

proptest! {
    /// Whatever comes, neither end panics, and a server hands on nothing that is not whole.
    #[test]
    fn no_datagram_makes_them_panic(
        fields in prop::collection::vec((0u8..10, 0u8..12, any::<u16>(), any::<[u8; 3]>(), 0u32..3000, 0u32..3000, 0usize..200), 1..60),
        noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
    ) {
        let mut server = Responder::new(ResponderOptions { running: 4, waiting_per_host: 4000, ..ResponderOptions::default() }, 1);
        let mut client = Requester::new(RequesterOptions::default(), 2);
        client.ask(NOW, Ask::get(7));
        client.ask(NOW, Ask::put(8, vec![1; 3000]));
        let real = header(&client.poll_transmit().unwrap().bytes).client;
        for client_number in 1..4 {
            open(&mut server, at(1, 1), client_number);
        }
        let mut at_work = Vec::new();
        for (op, status, request, small, total, offset, len) in fields {
            let known = if small[0] % 2 == 0 { u64::from(small[0] % 5) } else { real };
            let mut bytes = QueryHeader {
                total, offset, range_end: u64::from(small[1]), limit: u32::from(small[2]), execution: u16::from(small[2] % 3),
                ..QueryHeader::request(Op::Get, u64::from(small[1] % 3) + 7, known, u64::from(request % 70))
            }.to_bytes().to_vec();
            (bytes[24], bytes[25]) = (op | if status < 10 && small[2] % 2 == 0 { 0x80 } else { 0 }, status * u8::from(small[2].is_multiple_of(2)));
            bytes.resize(QueryHeader::LEN + len, 7);
            for (at, byte) in &noise {
                if at.index(40) == 0 {
                    *at.get_mut(&mut bytes) = *byte;
                }
            }
            if let Some(request) = server.handle(NOW, at(1, 1), &bytes) {
                prop_assert!(request.op.brings_value() || request.value.is_empty());
                at_work.push(request.ticket);
            }
            client.handle(NOW, &bytes);
            if small[0] % 4 == 0 && let Some(ticket) = at_work.pop() {
                server.finish(ticket, Outcome::Value(vec![3; 3000]));
            }
            while server.poll_transmit().is_some() {}
        }
        server.handle_timeout(Duration::from_secs(100));
        client.handle_timeout(Duration::from_secs(100));
        prop_assert_eq!(client.under_way(), 0);
    }
}

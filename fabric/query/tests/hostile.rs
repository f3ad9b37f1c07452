//! What peers may do that mean no good: a server stays within its bounds, and others are served.
#![allow(clippy::unwrap_used)] // a test that unwraps nothing fails, as it should

use std::net::SocketAddr;

use fatbtree_query::{
    Answer, Ask, BytesKey, Outcome, Requester, RequesterOptions, Responder, ResponderOptions, ToClient,
};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::query::{Op, Query, QueryHeader, Status};
use proptest::prelude::*;

const NOW: Instant = Instant::ZERO;

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
    // There are no more in all: the host that has most gives one up.
    assert_eq!(open(&mut server, at(3, 7), 7), Some(Status::Done));
    let forgotten = (1..=3).filter(|client| {
        let delete = QueryHeader::request(Op::Delete, 7, *client, 1);
        told_or_handed(&mut server, at(1, *client as u16), &delete) == Some(Status::NotOpen)
    });
    assert_eq!(forgotten.count(), 1);
    // Now each has its share: one more client of a host makes room for itself, or waits.
    assert_eq!(open(&mut server, at(1, 8), 8), Some(Status::Busy));
    assert_eq!(open(&mut server, at(4, 9), 9), Some(Status::Done), "a host that has none");
    // Those that are silent make room.
    server.handle_timeout(NOW + options.lease);
    assert_eq!(open(&mut server, at(1, 8), 8), Some(Status::Done));
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
    // A delayed Open of the client would have old writes carried out again. The two other clients have just written.
    assert_eq!(say(2, opens(2, 1, late)).status, Some(Status::NotOpen));
    assert_eq!(say(2, opens(2, 2, gone.range_end)).status, Some(Status::Busy));
    // Another client is not taken for the forgotten one: its cookie is still valid, but there is no room.
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
fn values_of_many_hosts_that_never_come_to_an_end_leave_room_for_another() {
    let options = ResponderOptions { waiting_per_host: 2500, waiting: 3000, ..ResponderOptions::default() };
    let mut server = Responder::new(options, 1);
    let put = |host: u8, id: u64| QueryHeader {
        total: 1000,
        ..QueryHeader::request(Op::Put, 7, u64::from(host), id)
    };
    for (host, id) in [(1, 1), (1, 2), (2, 1)] {
        assert_eq!(open(&mut server, at(host, 1), u64::from(host)), Some(Status::Done));
        assert_eq!(told(&mut server, at(host, 1), &put(host, id), b"x"), None, "more of it has to come");
    }
    // The host with most gives up what it has, and the newcomer's value is carried out.
    assert_eq!(open(&mut server, at(3, 1), 3), Some(Status::Done));
    let first = &[7; 600];
    assert_eq!(told(&mut server, at(3, 1), &put(3, 1), first), None, "there is room");
    let rest = QueryHeader { offset: 600, ..put(3, 1) };
    let whole = server.handle(NOW, at(3, 1), &[&rest.to_bytes()[..], &[7; 400]].concat()).unwrap();
    assert_eq!(whole.value, [7; 1000]);
    // The other host's was left alone, and what was given up comes again.
    let rest = |host, id| [&QueryHeader { offset: 1, ..put(host, id) }.to_bytes()[..], &[0; 999]].concat();
    assert!(server.handle(NOW, at(2, 1), &rest(2, 1)).is_some());
    assert!(server.handle(NOW, at(1, 1), &rest(1, 1)).is_none(), "its first part is gone");
    assert!(server.handle(NOW, at(1, 1), &[&put(1, 1).to_bytes()[..], b"x"].concat()).is_some());
}

/// What a server makes of a request that it may hand on: `None` then.
fn told_or_handed(server: &mut Responder, from: SocketAddr, request: &QueryHeader) -> Option<Status> {
    match server.handle(NOW, from, &request.to_bytes()) {
        Some(_) => None,
        None => header(&server.poll_transmit()?.bytes).status,
    }
}

#[test]
fn an_address_that_is_not_proved_is_sent_one_packet_for_one() {
    let options = ResponderOptions { part: 100, ..ResponderOptions::default() };
    let mut server = Responder::new(options, 1);
    // How many packets a get brings whose value has so many bytes, and what the first says.
    let get = |server: &mut Responder, from: SocketAddr, client: u64, bytes: usize| {
        let get = QueryHeader::request(Op::Get, 7, client, 1);
        let request = server.handle(NOW, from, &get.to_bytes()).unwrap();
        server.finish(request.ticket, Outcome::Value(vec![1; bytes]));
        let sent: Vec<_> = std::iter::from_fn(|| server.poll_transmit()).collect();
        assert!(sent.iter().all(|sent| sent.to == from));
        (sent.len(), header(&sent[0].bytes).status.unwrap())
    };
    let scan = QueryHeader { range_end: 100, limit: 10, ..QueryHeader::request(Op::Scan, 7, 9, 2) };
    for client in [0, 9] {
        assert_eq!(get(&mut server, at(1, 1), client, 100), (1, Status::Done));
        assert_eq!(get(&mut server, at(1, 1), client, 101), (1, Status::NotOpen));
        let scan = QueryHeader { client, ..scan };
        assert_eq!(told_or_handed(&mut server, at(1, 1), &scan), Some(Status::NotOpen));
    }
    assert_eq!(open(&mut server, at(1, 1), 9), Some(Status::Done));
    assert_eq!(get(&mut server, at(1, 1), 9, 1001), (11, Status::Done));
    assert_eq!(told_or_handed(&mut server, at(1, 1), &scan), None, "it is carried out");
    // Its number proves nothing elsewhere.
    for other in [at(1, 2), at(2, 1)] {
        assert_eq!(get(&mut server, other, 9, 101), (1, Status::NotOpen));
        assert_eq!(told_or_handed(&mut server, other, &scan), Some(Status::NotOpen));
    }
    let many = QueryHeader::request(Op::Open, 0, 0, 1);
    assert_eq!(
        told_or_handed(&mut server, at(1, 1), &many),
        Some(Status::Refused),
        "a number that many have"
    );
}

/// A client that reads opens by itself when it is told to.
#[test]
fn a_long_answer_comes_to_a_client_that_never_writes() {
    let part = 100;
    let mut server = Responder::new(ResponderOptions { part, ..ResponderOptions::default() }, 1);
    let mut client = Requester::new(RequesterOptions { part, ..RequesterOptions::default() }, 1);
    for ask in [Ask::get(7), Ask::scan(7, 9, 10)] {
        let expected = vec![5; 1000];
        client.ask(NOW, ask.clone()).unwrap();
        let mut answer = None;
        for _ in 0..10 {
            while let Some(datagram) = client.poll_transmit() {
                if let Some(request) = server.handle(NOW, at(1, 1), &datagram.bytes) {
                    let outcome = match request.op {
                        Op::Get => Outcome::Value(expected.clone()),
                        _ => Outcome::Records { payload: expected.clone(), next: None },
                    };
                    server.finish(request.ticket, outcome);
                }
            }
            while let Some(datagram) = server.poll_transmit() {
                client.handle(NOW, &datagram.bytes);
            }
            answer = answer.or(client.poll_answer());
        }
        match answer {
            Some((_, Answer::Value(found) | Answer::Records { payload: found, .. })) => {
                assert_eq!(found, expected);
            }
            other => panic!("{ask:?}: {other:?}"),
        }
    }
    assert_eq!((client.stats().opens, client.stats().again), (1, 0));
}

/// Running requests: each host may have as many as it leaves to others. Clients that are not open, at whatever forged
/// addresses, count as one host together.
#[test]
fn hosts_that_ask_for_everything_leave_room_for_others() {
    let options = ResponderOptions { running: 64, ..ResponderOptions::default() };
    let mut server = Responder::new(options, 1);
    // So many of 100 gets are handed on, and what the others are told.
    let asks = |server: &mut Responder, from: &dyn Fn(u64) -> SocketAddr, client: u64| {
        let mut handed = 0;
        for id in 0..100 {
            let get = QueryHeader::request(Op::Get, 7, client, id);
            match told_or_handed(server, from(id), &get) {
                None => handed += 1,
                Some(status) => assert_eq!(status, if client == 99 { Status::NotOpen } else { Status::Busy }),
            }
        }
        handed
    };
    for host in 1..=3 {
        assert_eq!(open(&mut server, at(host, 1), u64::from(host)), Some(Status::Done));
    }
    assert_eq!(asks(&mut server, &|_| at(1, 1), 1), 32);
    assert_eq!(asks(&mut server, &|id| SocketAddr::from(([9, 9, 9, id as u8], 1)), 99), 16);
    assert_eq!(asks(&mut server, &|_| at(2, 1), 2), 8);
    assert_eq!(asks(&mut server, &|_| at(3, 1), 3), 4);
    assert_eq!(server.stats().busy, 68 + 84 + 92 + 96);
}

#[test]
fn a_long_scan_takes_the_places_of_many_lookups() {
    let options = ResponderOptions { running: 1024, ..ResponderOptions::default() };
    for (limit, expected) in [(1, 512), (64, 256), (1000, 32), (u32::MAX, 8)] {
        let mut server = Responder::new(options, 1);
        assert_eq!(open(&mut server, at(1, 1), 1), Some(Status::Done));
        let mut tickets = Vec::new();
        for id in 0..1500 {
            let scan = QueryHeader { limit, ..QueryHeader::request(Op::Scan, 7, 1, id) };
            tickets.extend(server.handle(NOW, at(1, 1), &scan.to_bytes()).map(|request| request.ticket));
        }
        assert_eq!(tickets.len(), expected, "of {limit} records");
        // Each gives back what it took.
        tickets.into_iter().for_each(|ticket| server.finish(ticket, Outcome::NotFound));
        let scan = QueryHeader { limit, ..QueryHeader::request(Op::Scan, 7, 1, 0) };
        assert!((0..expected).all(|_| server.handle(NOW, at(1, 1), &scan.to_bytes()).is_some()));
    }
}

#[test]
fn a_server_that_has_enough_to_do_says_so() {
    let mut server = Responder::new(ResponderOptions { running: 2, ..ResponderOptions::default() }, 1);
    assert_eq!(open(&mut server, at(1, 1), 1), Some(Status::Done));
    assert_eq!(open(&mut server, at(2, 1), 2), Some(Status::Done));
    let get = |client: u64| QueryHeader::request(Op::Get, 7, client, 1).to_bytes();
    let first = server.handle(NOW, at(2, 1), &get(2)).unwrap();
    assert!(server.handle(NOW, at(3, 1), &get(0)).is_some());
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

/// Writes come in any order: one that is late, but not older than a window, opens the window to no older one.
#[test]
fn a_write_that_comes_late_does_not_move_the_window_back() {
    const WINDOW: u64 = fatbtree_wire::query::WINDOW;
    let mut server = Responder::new(ResponderOptions::default(), 1);
    assert_eq!(open(&mut server, at(1, 1), 1), Some(Status::Done));
    let delete = |id: u64| QueryHeader::request(Op::Delete, 7, 1, id);
    let carry_out = |server: &mut Responder, id: u64| {
        let request = server.handle(NOW, at(1, 1), &delete(id).to_bytes()).expect("it has not come before");
        server.finish(request.ticket, Outcome::Done);
        assert_eq!(header(&server.poll_transmit().unwrap().bytes).status, Some(Status::Done));
    };
    carry_out(&mut server, 5);
    // Its outcome is remembered where that of 5 was.
    carry_out(&mut server, 5 + WINDOW);
    for late in [6 + WINDOW / 2, 6] {
        carry_out(&mut server, late);
        let copy = told(&mut server, at(1, 1), &delete(5), &[]).expect("5 is not carried out again");
        assert_eq!(copy.status, Some(Status::Forgotten), "after {late}");
    }
}

/// A write at work keeps its place until it ends, whatever comes: for its client a later one in the same place is refused,
/// and what is left of a client that was forgotten ends nothing of the same client's new writes.
#[test]
fn a_write_at_work_ends_no_other() {
    const WINDOW: u64 = fatbtree_wire::query::WINDOW;
    let options = ResponderOptions::default();
    let mut server = Responder::new(options, 1);
    assert_eq!(open(&mut server, at(1, 1), 1), Some(Status::Done));
    let delete = |id: u64| QueryHeader::request(Op::Delete, 7, 1, id);
    let first = server.handle(NOW, at(1, 1), &delete(5).to_bytes()).unwrap();
    assert_eq!(
        told(&mut server, at(1, 1), &delete(5 + WINDOW), &[]).map(|told| told.status),
        Some(Some(Status::Busy))
    );
    assert_eq!(
        told(&mut server, at(1, 1), &delete(5), &[]).map(|told| told.status),
        Some(Some(Status::Forgotten))
    );
    // The client is forgotten, and opens again: another of its writes is at work in the same place when the first one ends.
    server.handle_timeout(NOW + options.lease);
    assert_eq!(open(&mut server, at(1, 1), 1), Some(Status::Done));
    let second = server.handle(NOW, at(1, 1), &delete(5 + WINDOW).to_bytes()).unwrap();
    server.finish(first.ticket, Outcome::Done);
    assert!(server.poll_transmit().is_some());
    assert_eq!(told(&mut server, at(1, 1), &delete(5 + WINDOW), &[]), None, "it is at work still");
    server.finish(second.ticket, Outcome::NotFound);
    assert_eq!(header(&server.poll_transmit().unwrap().bytes).status, Some(Status::NotFound));
    let again = told(&mut server, at(1, 1), &delete(5 + WINDOW), &[]).unwrap();
    assert_eq!(again.status, Some(Status::NotFound), "its own outcome");
}

/// Keys of bytes that are none, or too long, or not whole.
#[test]
fn keys_of_bytes_are_read_or_refused() {
    let options = ResponderOptions { longest_value: 100, ..ResponderOptions::default() };
    let mut server = Responder::new(options, 1);
    let of = |op, id, total| QueryHeader { bytes: true, total, ..QueryHeader::request(op, 7, 1, id) };
    let ask = |server: &mut Responder, op, id, payload: &[u8]| {
        let datagram = [&of(op, id, payload.len() as u32).to_bytes()[..], payload].concat();
        server.handle(NOW, at(1, 1), &datagram)
    };
    let status = |server: &mut Responder| header(&server.poll_transmit().unwrap().bytes).status;
    // Whether a client has opened or not.
    let got = ask(&mut server, Op::Get, 1, b"\0\x02ab").unwrap();
    let key = BytesKey { key: b"ab".to_vec(), high: None };
    assert_eq!((got.bytes.as_ref(), &got.value[..], got.key), (Some(&key), &[][..], 7));
    server.finish(got.ticket, Outcome::NotFound);
    let answer = header(&server.poll_transmit().unwrap().bytes);
    assert_eq!((answer.bytes, answer.status), (true, Some(Status::NotFound)));
    let parts = of(Op::Get, 2, 4000);
    assert_eq!(told(&mut server, at(1, 1), &parts, &[0; 1000]).unwrap().status, Some(Status::NotOpen));
    assert_eq!(open(&mut server, at(1, 1), 1), Some(Status::Done));
    let all = Op::ALL.into_iter().filter(|op| *op != Op::Open);
    for (number, op) in all.enumerate() {
        let bad: [&[u8]; 5] =
            [b"", b"\0", b"\0\x03ab", b"\xff\xff", &[&4098_u16.to_be_bytes()[..], &[0; 4098]].concat()];
        for (payload, id) in bad.into_iter().zip(10 * number as u64 + 2..) {
            assert_eq!(ask(&mut server, op, id, payload), None, "{op} {payload:?}");
            let refused = status(&mut server);
            assert!(
                matches!(refused, Some(Status::Refused | Status::TooLarge)),
                "{op} {payload:?}: {refused:?}"
            );
        }
    }
    // What follows the key is a value, the end of a scan, or nothing.
    for op in [Op::Get, Op::Delete] {
        assert_eq!(ask(&mut server, op, 60, b"\0\x01ab"), None);
        assert_eq!(status(&mut server), Some(Status::Refused), "{op}");
    }
    assert_eq!(ask(&mut server, Op::Put, 61, b"\0\x01avalue").unwrap().value, b"value");
    assert_eq!(ask(&mut server, Op::Put, 62, &[&b"\0\x01a"[..], &[7; 101]].concat()), None);
    assert_eq!(status(&mut server), Some(Status::TooLarge));
    let scan = ask(&mut server, Op::Scan, 63, b"\0\x01a\0\x01b").unwrap().bytes.unwrap();
    assert_eq!((&scan.key[..], scan.high.as_deref()), (&b"a"[..], Some(&b"b"[..])));
    assert_eq!(ask(&mut server, Op::Scan, 64, b"\0\0\xff\xff").unwrap().bytes.unwrap().high, None);
    // A long key comes in parts.
    let long = [&4000_u16.to_be_bytes()[..], &[7; 4000]].concat();
    let (first, rest) = long.split_at(1400);
    let parts = of(Op::Get, 65, 4002);
    assert_eq!(told(&mut server, at(1, 1), &parts, first), None, "more of it has to come");
    let rest = [&QueryHeader { offset: 1400, ..parts }.to_bytes()[..], rest].concat();
    let got = server.handle(NOW, at(1, 1), &rest).expect("it is whole");
    assert_eq!(got.bytes.unwrap().key, [7; 4000]);
    server.finish(got.ticket, Outcome::NotFound);
    assert_eq!(status(&mut server), Some(Status::NotFound));
    assert_eq!(told(&mut server, at(1, 1), &parts, first), None, "a read may be asked for again");
    assert!(server.handle(NOW, at(1, 1), &rest).is_some());
}

/// A forged response without the client's number is ignored.
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
        server.handle_timeout(NOW + Duration::from_secs(100));
        client.handle_timeout(NOW + Duration::from_secs(100));
        prop_assert_eq!(client.under_way(), 0);
    }
}

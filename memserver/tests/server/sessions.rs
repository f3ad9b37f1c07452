//! Resources of clients are bounded, and are taken back: when they close, when they are silent, when their
//! connections break.
use crate::common;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use common::blocks::{LARGE, RECORDS, SMALL};
use common::lab::{Lab, SERVER, options};
use fatbtree_memserver::{Bounds, ClientId, Event, Limits, Payer, Refusal, Request, Resource, ServerOptions};
use fatbtree_remote_memory::session_keeper::Call;
use fatbtree_remote_memory::{GlobalAddress, SessionId};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{ConnectError, Endpoint, Mtu, Operation, QueuePairNumber, Remote};

const SECOND: Duration = Duration::from_secs(1);

/// Bounds that are met soon.
fn narrow() -> ServerOptions {
    let bounds = |n: u32| Bounds { sessions: 2 * n, queue_pairs: 4 * n, chunks: 3 * n, attempts: 1000 * n };
    let limits = Limits { client: bounds(1), host: bounds(2), server: bounds(4), ..Limits::default() };
    ServerOptions { limits, ..options() }
}

fn over(refusal: Refusal) -> (Payer, Resource, u32) {
    match refusal {
        Refusal::OverBound(bound) => (bound.payer, bound.what, bound.limit),
        other => panic!("a bound was expected: {other}"),
    }
}

#[test]
fn a_session_that_is_not_renewed_gives_everything_back() {
    let mut lab = Lab::new(options());
    let mut client = lab.client();
    let session = lab.open(&client).unwrap();
    let pairs: Vec<_> = (0..3).map(|_| lab.connect(&mut client, session).unwrap()).collect();
    let large = lab.allocate(session, LARGE).unwrap();
    let small = lab.allocate(session, SMALL).unwrap();
    let last = GlobalAddress(small.address.raw() + 4096 / 384 * 384 - 384);
    lab.put(last, SMALL, false);
    let opened = lab.events();
    assert_eq!((opened.len(), lab.watch().queue_pairs.len()), (3, 3));
    for (event, pair) in opened.iter().zip(&pairs) {
        let Event::Opened(hop) = event else { panic!("{event:?}") };
        let info = lab.server.info();
        assert_eq!((hop.client, hop.queue_pair, hop.partition), (client.roce, pair.there, SERVER));
        assert_eq!((hop.rkey, hop.root), (info.region.rkey, info.structure.root));
    }

    lab.pass(Duration::from_secs(9));
    assert_eq!(lab.server.renew_session(lab.now, session).unwrap().duration, Duration::from_secs(10));
    lab.pass(Duration::from_secs(9));
    assert_eq!((lab.counter("sessions"), lab.events().len()), (1, 0), "renewed");
    assert_eq!(lab.server.poll_timeout(), Some(Instant::ZERO + Duration::from_secs(19)));
    lab.pass(SECOND);

    let closed = opened.iter().map(|event| match event {
        Event::Opened(hop) => Event::Closed(*hop),
        other => *other,
    });
    let closed: Vec<_> = closed.collect();
    assert_eq!(lab.events(), closed, "the entries of the first-hop switch go, too");
    assert!(lab.watch().queue_pairs.is_empty());
    assert_eq!(lab.server.poll_timeout(), None);
    let counters = ["sessions", "sessions_lapsed", "queue_pairs", "chunks_held", "chunks_published"];
    assert_eq!(counters.map(|name| lab.counter(name)), [0, 1, 0, 0, 1]);
    assert_eq!(lab.server.renew_session(lab.now, session), Err(Refusal::UnknownSession(session)));
    // Nothing that was posted before can be written into the chunk that another client gets now.
    let to = Remote { address: large.address.raw(), rkey: lab.server.info().region.rkey };
    assert!(client.post(pairs[0], Operation::Write { to, data: b"late" }).is_err());
    let other = lab.client();
    let session = lab.open(&other).unwrap();
    assert_eq!(lab.allocate(session, LARGE), Ok(large));
}

#[test]
fn closing_and_disconnecting_give_back_at_once() {
    let mut lab = Lab::new(ServerOptions { lock_table_bytes: 64, ..narrow() });
    let mut client = lab.client();
    let (first, second) = (lab.open(&client).unwrap(), lab.open(&client).unwrap());
    let pair = lab.connect(&mut client, first).unwrap();
    let kept = lab.connect(&mut client, second).unwrap();
    let unknown = Refusal::UnknownQueuePair { session: second, queue_pair: pair.there };
    assert_eq!(lab.server.disconnect(lab.now, second, pair.there), Err(unknown), "it is the other session's");
    lab.server.disconnect(lab.now, first, pair.there).unwrap();
    let again = Refusal::UnknownQueuePair { session: first, queue_pair: pair.there };
    assert_eq!(lab.server.disconnect(lab.now, first, pair.there), Err(again));
    let _ = lab.connect(&mut client, first).unwrap();
    lab.allocate(first, RECORDS).unwrap();
    lab.server.close_session(lab.now, first).unwrap();
    lab.pass(Duration::ZERO);
    assert_eq!(lab.server.close_session(lab.now, first), Err(Refusal::UnknownSession(first)));
    let counters = ["sessions", "queue_pairs", "chunks_held", "chunks_free_again"];
    assert_eq!(counters.map(|name| lab.counter(name)), [1, 1, 0, 1]);
    let left: Vec<_> = lab.events();
    assert!(matches!(left[..], [Event::Opened(hop)] if hop.queue_pair == kept.there), "{left:?}");
    let Lab { server, watch, .. } = lab;
    let (_, memory) = server.stop();
    assert!(watch.borrow().queue_pairs.is_empty() && watch.borrow().regions.is_empty());
    assert_eq!(std::sync::Arc::strong_count(&memory), 1, "the memory can be filled anew");
}

#[test]
fn a_queue_pair_that_breaks_is_destroyed_and_makes_room() {
    let mut lab = Lab::new(narrow());
    let (mut client, mut other) = (lab.client(), lab.client());
    let (session, others) = (lab.open(&client).unwrap(), lab.open(&other).unwrap());
    let pairs: Vec<_> = (0..4).map(|_| lab.connect(&mut client, session).unwrap()).collect();
    let well = lab.connect(&mut other, others).unwrap();
    assert!(lab.connect(&mut client, session).is_err(), "four it may have");
    assert_eq!(lab.events().len(), 5);
    client.break_pair(pairs[1]);
    let server = &mut lab.server;
    server.work(lab.now, 1);
    let events = lab.events();
    assert!(matches!(events[..], [Event::Closed(hop)] if hop.queue_pair == pairs[1].there), "{events:?}");
    assert_eq!((lab.watch().queue_pairs.len(), lab.counter("queue_pairs_broken")), (4, 1));
    // A client that reconnects need not wait until the server has been driven.
    lab.connect(&mut client, session).unwrap();
    client.break_pair(pairs[2]);
    lab.connect(&mut client, session).unwrap();
    let gone = Refusal::UnknownQueuePair { session, queue_pair: pairs[2].there };
    assert_eq!(lab.server.disconnect(lab.now, session, pairs[2].there), Err(gone));
    let from = Remote { address: lab.server.info().region.iova, rkey: lab.server.info().region.rkey };
    assert!(other.post(well, Operation::Read { from, len: 64 }).is_ok(), "the other is not disturbed");
}

#[test]
fn who_connects_without_end_is_refused_and_disturbs_nobody() {
    let mut lab = Lab::new(narrow());
    let (mut hostile, mut other) = (lab.client().on_host(1), lab.client().on_host(2));
    let session = lab.open(&hostile).unwrap();
    let mut connected = 0;
    let refusal = loop {
        match lab.connect(&mut hostile, session) {
            Ok(_) => connected += 1,
            Err(refusal) => break refusal,
        }
        assert!(connected < 100, "it never ends");
    };
    assert_eq!(connected, 4);
    assert_eq!(over(refusal), (Payer::Client(hostile.id()), Resource::QueuePairs, 4));
    // Another session does not help: it is the same client.
    let session = lab.open(&hostile).unwrap();
    assert!(lab.connect(&mut hostile, session).is_err());
    for _ in 0..100 {
        let refusal = lab.open(&hostile).unwrap_err();
        assert_eq!(over(refusal), (Payer::Client(hostile.id()), Resource::Sessions, 2));
    }
    let session = lab.open(&other).unwrap();
    for _ in 0..4 {
        lab.connect(&mut other, session).unwrap();
    }
    assert_eq!(lab.watch().queue_pairs.len(), 8);
    // It never renews: after the lease all of it is gone.
    lab.pass(Duration::from_secs(5));
    lab.server.renew_session(lab.now, session).unwrap();
    lab.pass(Duration::from_secs(5));
    assert_eq!((lab.counter("sessions"), lab.watch().queue_pairs.len()), (1, 4));
    assert!(lab.open(&hostile).is_ok());
}

/// Addresses on the data path can be made up; the host cannot.
#[test]
fn made_up_addresses_spend_what_the_host_has() {
    let mut lab = Lab::new(narrow());
    let hostile = lab.client().on_host(1).id();
    let made_up = |n: u32| ClientId { roce: Ipv4Addr::from_bits(0x0a00_0000 + n), ..hostile };
    let mut opened = 0;
    let refusal = (0..100).find_map(|n| match lab.server.open_session(lab.now, made_up(n)) {
        Ok(_) => {
            opened += 1;
            None
        }
        Err(refusal) => Some(refusal),
    });
    assert_eq!((opened, over(refusal.unwrap())), (4, (Payer::Host(hostile.host), Resource::Sessions, 4)));
    // Not even the one whose address was claimed is disturbed.
    let victim = ClientId { host: lab.client().on_host(2).id().host, ..made_up(0) };
    lab.server.open_session(lab.now, victim).unwrap();
    // All hosts together have their bound, too.
    let mut others = (3..100).map(|n| lab.client().on_host(n).id()).collect::<Vec<_>>().into_iter();
    let refusal = others.find_map(|client| lab.server.open_session(lab.now, client).err()).unwrap();
    assert_eq!(over(refusal), (Payer::Server, Resource::Sessions, 8));
    lab.pass(Duration::from_secs(10));
    assert_eq!(lab.counter("sessions"), 0);
}

#[test]
fn attempts_are_bounded_in_time() {
    let mut options = narrow();
    options.limits.client.attempts = 5;
    let mut lab = Lab::new(options);
    let (mut hostile, mut other) = (lab.client().on_host(1), lab.client().on_host(2));
    let session = lab.open(&hostile).unwrap();
    for _ in 0..4 {
        let pair = lab.connect(&mut hostile, session).unwrap();
        lab.server.disconnect(lab.now, session, pair.there).unwrap();
    }
    for _ in 0..10 {
        let refusal = lab.connect(&mut hostile, session).unwrap_err();
        assert_eq!(over(refusal), (Payer::Client(hostile.id()), Resource::Attempts, 5));
        assert_eq!(over(lab.open(&hostile).unwrap_err()).1, Resource::Attempts);
    }
    let others = lab.open(&other).unwrap();
    lab.connect(&mut other, others).unwrap();
    assert!(lab.server.renew_session(lab.now, session).is_ok(), "renewing is no attempt");
    lab.pass(SECOND);
    lab.connect(&mut hostile, session).unwrap();
    // A request that is refused for another reason counts as well.
    for _ in 0..4 {
        let bad = Endpoint { psn: 1 << 24, ..hostile_endpoint(&mut hostile) };
        let refusal = lab.server.connect(lab.now, session, &bad, None).unwrap_err();
        assert!(matches!(refusal, Refusal::Endpoint(_)), "{refusal}");
    }
    assert_eq!(over(lab.connect(&mut hostile, session).unwrap_err()).1, Resource::Attempts);
}

fn hostile_endpoint(client: &mut common::lab::Client) -> Endpoint {
    use fatbtree_verbs::Device;
    let queue_pair = client.device.create().unwrap();
    client.device.endpoint(queue_pair).unwrap()
}

/// A NIC has a limited number of queue pairs; a connection beyond it is an error.
#[test]
fn the_devices_last_queue_pair_is_an_error_and_no_panic() {
    let bounds = Bounds { sessions: 10, queue_pairs: 100_000, chunks: 1, attempts: u32::MAX };
    let limits = Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() };
    let mut lab = Lab::new(ServerOptions { limits, ..options() });
    lab.watch_mut().limit = 65_534;
    let mut client = lab.client();
    let session = lab.open(&client).unwrap();
    let local = hostile_endpoint(&mut client);
    for _ in 0..65_534 {
        lab.server.connect(lab.now, session, &local, None).unwrap();
    }
    for _ in 0..3 {
        let refusal = lab.server.connect(lab.now, session, &local, None).unwrap_err();
        assert_eq!(refusal, Refusal::Device(ConnectError::NoQueuePair { limit: 65_534 }));
    }
    assert_eq!(lab.counter("queue_pairs"), 65_534);
    lab.server.close_session(lab.now, session).unwrap();
    assert!(lab.watch().queue_pairs.is_empty());
    let session = lab.open(&client).unwrap();
    lab.server.connect(lab.now, session, &local, None).unwrap();
}

#[test]
fn what_cannot_be_connected_leaves_nothing_behind() {
    let mut lab = Lab::new(narrow());
    let mut client = lab.client();
    let session = lab.open(&client).unwrap();
    let good = hostile_endpoint(&mut client);
    let other = Ipv4Addr::new(10, 9, 9, 9);
    for _ in 0..20 {
        for bad in [
            Endpoint { queue_pair: QueuePairNumber(1), ..good },
            Endpoint { queue_pair: QueuePairNumber(1 << 24), ..good },
            Endpoint { responder_reads: 0, ..good },
        ] {
            let refusal = lab.server.connect(lab.now, session, &bad, None).unwrap_err();
            assert!(matches!(refusal, Refusal::Endpoint(_)), "{refusal}");
        }
        let refusal =
            lab.server.connect(lab.now, session, &Endpoint { mtu: Mtu::B512, ..good }, None).unwrap_err();
        let text = refusal.to_string();
        assert!(text.starts_with("index reads of 1024 bytes exceed path MTU 512: they must"), "{text}");
        let refusal =
            lab.server.connect(lab.now, session, &Endpoint { ip: other, ..good }, None).unwrap_err();
        assert_eq!(refusal, Refusal::OtherAddress { expected: client.roce, found: other });
        lab.watch_mut().fails_to_connect = true;
        let refusal = lab.server.connect(lab.now, session, &good, None).unwrap_err();
        assert!(refusal.to_string().ends_with("it does not want to"), "{refusal}");
        lab.watch_mut().fails_to_connect = false;
    }
    let events = lab.events().len();
    assert_eq!((lab.watch().queue_pairs.len(), lab.counter("queue_pairs"), events), (0, 0, 0));
    for _ in 0..4 {
        lab.server.connect(lab.now, session, &good, None).unwrap();
    }
}

#[test]
fn a_session_is_its_hosts_and_its_name_is_not_to_be_guessed() {
    let mut lab = Lab::new(options());
    let mut client = lab.client().on_host(1);
    let session = lab.open(&client).unwrap();
    let pair = lab.connect(&mut client, session).unwrap();
    lab.allocate(session, LARGE).unwrap();
    let mut stolen = session;
    stolen.host = lab.client().on_host(2).id().host;
    let unknown = Refusal::UnknownSession(stolen);
    let server = &mut lab.server;
    assert_eq!(server.renew_session(lab.now, stolen), Err(unknown.clone()));
    assert_eq!(server.connect(lab.now, stolen, &pair.local, None), Err(unknown.clone()));
    assert_eq!(server.disconnect(lab.now, stolen, pair.there), Err(unknown.clone()));
    assert_eq!(server.allocate(lab.now, stolen, LARGE, 0), Err(unknown.clone()));
    assert_eq!(server.close_session(lab.now, stolen), Err(unknown));
    assert_eq!(["sessions", "queue_pairs", "chunks_held"].map(|name| lab.counter(name)), [1, 1, 1]);

    let names = |lab: &mut Lab| -> BTreeSet<SessionId> {
        (0..32)
            .map(|host| {
                let client = lab.client().on_host(host);
                lab.open(&client).unwrap().id
            })
            .collect()
    };
    let (first, again) = (names(&mut Lab::new(options())), names(&mut Lab::new(options())));
    assert_eq!((first.len(), &first), (32, &again), "one seed, the same names");
    assert!(first.iter().filter(|id| id.0 >> 32 != 0).count() > 30);
}

/// An owner that takes no events has no more of them than there are queue pairs.
#[test]
fn events_that_nobody_takes_are_bounded() {
    let mut lab = Lab::new(narrow());
    let mut client = lab.client();
    let session = lab.open(&client).unwrap();
    for _ in 0..500 {
        let pair = lab.connect(&mut client, session).unwrap();
        lab.server.disconnect(lab.now, session, pair.there).unwrap();
    }
    assert_eq!(lab.counter("events_not_taken"), 0, "nobody heard of them");
    let pairs: Vec<_> = (0..4).map(|_| lab.connect(&mut client, session).unwrap()).collect();
    assert_eq!(lab.server.poll_event().map(|event| matches!(event, Event::Opened(_))), Some(true));
    for pair in &pairs {
        lab.server.disconnect(lab.now, session, pair.there).unwrap();
    }
    let left = lab.events();
    assert!(matches!(left[..], [Event::Closed(hop)] if hop.queue_pair == pairs[0].there), "{left:?}");
}

/// A grant to a client that has gone meanwhile is taken back at once.
#[test]
fn an_answer_that_nobody_waits_for_is_taken_back() {
    let mut lab = Lab::new(options());
    let mut client = lab.client();
    let id = client.id();
    let dropped = |lab: &mut Lab, call| {
        let (reply, _) = tokio::sync::oneshot::channel();
        lab.server.handle(lab.now, Request::Call { client: id, call, reply });
    };
    dropped(&mut lab, Call::Open { known: None });
    assert_eq!(["sessions", "sessions_opened"].map(|name| lab.counter(name)), [0, 1]);
    let session = lab.open(&client).unwrap();
    let local = hostile_endpoint(&mut client);
    let connect = Call::Connect { session: session.id, local, replaces: None };
    dropped(&mut lab, connect.clone());
    dropped(&mut lab, Call::Allocate { session: session.id, class: LARGE, bytes: 0 });
    let counters = ["queue_pairs", "queue_pairs_opened", "chunks_held", "chunks_free_again"];
    assert_eq!(counters.map(|name| lab.counter(name)), [0, 1, 0, 1]);
    let (reply, mut answer) = tokio::sync::oneshot::channel();
    lab.server.handle(lab.now, Request::Call { client: id, call: connect, reply });
    assert!(answer.try_recv().unwrap().is_ok());
    assert_eq!(lab.counter("queue_pairs"), 1);
}

//! Owners of locks: each session has a number, which lives as long as it can write, and which comes again only when no lock carries it.
use crate::common;

use common::lab::{Client, Lab, Pair, options};
use fatbtree_memserver::{Bounds, Lease, Limits, NoOwner, Refusal, ServerInfo, ServerOptions};
use fatbtree_remote_memory::{Owner, SessionId, Writer};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Failure, Operation, Output, Remote};

/// A server to write to, that lets one client open sessions without end.
fn writable() -> ServerOptions {
    let bounds = Bounds { sessions: 100_000, queue_pairs: 100, chunks: 100, attempts: u32::MAX };
    let limits = Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() };
    ServerOptions { limits, chunk_bytes: 4096, lease: Duration::from_secs(10), ..ServerOptions::writable() }
}

fn open(lab: &mut Lab, client: &Client) -> Result<Lease, Refusal> {
    lab.server.open_session(lab.now, client.id())
}

fn number(lease: Lease) -> Option<u16> {
    lease.owner.map(|owner| owner.number)
}

/// The next `count` numbers, of sessions that end at once.
fn numbers(lab: &mut Lab, client: &Client, count: usize) -> Vec<u16> {
    let number = |_| {
        let lease = open(lab, client).unwrap();
        lab.server.close_session(lab.now, lease.session).unwrap();
        lease.owner.unwrap().number
    };
    (0..count).map(number).collect()
}

/// Owner of a client that has this number in some session.
fn owner_of(number: u16) -> Owner {
    Owner { session: SessionId(7), number }
}

fn writer(lab: &Lab, owner: u16) -> Writer {
    lab.server.info().writer(Some(owner_of(owner)), true).unwrap()
}

/// Whether a number lives, as a client finds out.
fn lives(lab: &Lab, client: &mut Client, pair: Pair, owner: u16) -> bool {
    let from = writer(lab, owner).owners;
    let from = Remote { address: from.address + u64::from(owner / 64) * 8, ..from };
    let Ok(Output::Read(bytes)) = client.post(pair, Operation::Read { from, len: 8 }) else {
        panic!("it may be read")
    };
    u64::from_le_bytes(bytes[..8].try_into().unwrap()) >> (owner % 64) & 1 == 1
}

/// Puts owners into locks, from a word of the table on.
fn put(lab: &Lab, client: &mut Client, pair: Pair, word: u64, owners: &[u16]) {
    let locks = writer(lab, 1).locks;
    let to = Remote { address: locks.address + word * 8, ..locks };
    let bytes: Vec<u8> = owners.iter().flat_map(|owner| owner.to_le_bytes()).collect();
    client.post(pair, Operation::Write { to, data: &bytes }).unwrap();
}

#[test]
fn what_a_client_needs_to_write_comes_from_one_place() {
    let mut lab = Lab::new(writable());
    let mut client = lab.client();
    let lease = open(&mut lab, &client).unwrap();
    let info = *lab.server.info();
    let table = info.locks.unwrap();
    let expected = Writer {
        locks: Remote { address: table.region.iova, rkey: table.region.rkey },
        count: 131_072,
        owners: Remote { address: table.owners.iova, rkey: table.owners.rkey },
        owner: Owner { session: lease.session.id, number: 1 },
        masked_atomics: true,
        syncs: false,
    };
    assert_eq!(info.writer(lease.owner, true), Some(expected));
    assert_eq!(info.writer(lease.owner, false), Some(Writer { masked_atomics: false, ..expected }));
    assert_eq!(info.writer(None, true), None);
    let poor = ServerInfo { masked_atomics: false, ..info };
    assert_eq!(poor.writer(lease.owner, true), Some(Writer { masked_atomics: false, ..expected }));
    assert_eq!((table.owners.len, table.on_device), (8192 + 65_536 * 8, true), "a bit and a name for each");
    assert_eq!(lab.server.renew_session(lab.now, lease.session).unwrap().owner, lease.owner);

    // The region is written; the table of owners is only read.
    let pair = lab.connect(&mut client, lease.session).unwrap();
    let to = Remote { address: info.region.iova + 64, rkey: info.region.rkey };
    client.post(pair, Operation::Write { to, data: b"data" }).unwrap();
    let write = Operation::Write { to: expected.owners, data: &[0; 8] };
    assert_eq!(client.post(pair, write).unwrap_err(), Failure::RemoteAccess);

    let mut lab = Lab::new(options());
    let client = lab.client();
    let lease = open(&mut lab, &client).unwrap();
    assert_eq!(
        (lease.owner, lab.server.info().writer(Some(owner_of(1)), true)),
        (None, None),
        "a server without locks"
    );
}

#[test]
fn a_number_lives_until_nothing_of_its_owner_can_be_written() {
    let mut lab = Lab::new(writable());
    let (mut watcher, mut client) = (lab.client(), lab.client());
    let lease = open(&mut lab, &watcher).unwrap();
    let pair = lab.connect(&mut watcher, lease.session).unwrap();
    let (first, second) = (open(&mut lab, &client).unwrap(), open(&mut lab, &client).unwrap());
    let owners = [first, second].map(|lease| lease.owner.unwrap().number);
    assert_eq!(owners, [2, 3]);
    assert!(owners.iter().all(|&owner| lives(&lab, &mut watcher, pair, owner)));
    let mine: Vec<_> = (0..3).map(|_| lab.connect(&mut client, first.session).unwrap()).collect();
    lab.watch_mut().alive_at_destroy.clear();
    lab.server.close_session(lab.now, first.session).unwrap();
    assert_eq!(lab.watch().alive_at_destroy, [0b1110; 3], "it lives until the last queue pair is gone");
    assert!(!lives(&lab, &mut watcher, pair, 2) && lives(&lab, &mut watcher, pair, 3));
    let to = Remote { address: lab.server.info().region.iova + 64, rkey: lab.server.info().region.rkey };
    for pair in mine {
        assert!(client.post(pair, Operation::Write { to, data: b"late" }).is_err());
    }
    // The same when a lease ends.
    lab.pass(Duration::from_secs(5));
    lab.server.renew_session(lab.now, lease.session).unwrap();
    lab.pass(Duration::from_secs(5));
    assert!(!lives(&lab, &mut watcher, pair, 3) && lives(&lab, &mut watcher, pair, 1));
    assert_eq!((lab.counter("owners"), lab.counter("sessions")), (1, 1));
}

/// Locks on the device and in ordinary memory.
#[test]
fn a_number_comes_again_when_no_lock_carries_it() {
    for device_memory in [1 << 18, 0] {
        let mut lab = Lab::poor(writable(), device_memory);
        assert_eq!(lab.server.info().locks.unwrap().on_device, device_memory > 0);
        let (mut watcher, client) = (lab.client(), lab.client());
        let lease = open(&mut lab, &watcher).unwrap();
        let pair = lab.connect(&mut watcher, lease.session).unwrap();
        // Left in locks at both ends of the table, and by one that lives when the table is read.
        put(&lab, &mut watcher, pair, 0, &[0, 7, 0, 65_535]);
        put(&lab, &mut watcher, pair, 32_767, &[0, 0, 0, 9]);
        assert!(numbers(&mut lab, &client, 65_530).into_iter().eq(2..=65_531));
        assert_eq!((lab.watch().device_memory_reads, lab.counter("owners_went_round")), (0, 0));
        let living = open(&mut lab, &client).unwrap();
        assert_eq!(number(living), Some(65_532));
        let again = numbers(&mut lab, &client, 10);
        assert_eq!(again, [65_533, 65_534, 65_535, 2, 3, 4, 5, 6, 8, 10]);
        let reads = if device_memory > 0 { 64 } else { 0 };
        assert_eq!((lab.watch().device_memory_reads, lab.counter("owners_went_round")), (reads, 1));
        // It may have taken locks since the table was read: its number is passed over in this round.
        lab.server.close_session(lab.now, living.session).unwrap();
        put(&lab, &mut watcher, pair, 0, &[0, 0, 0, 65_535]);
        let round = numbers(&mut lab, &client, 65_535 - 10 - 2);
        assert!(round.into_iter().eq((11..65_535).filter(|&number| number != 65_532)));
        assert_eq!(lab.watch().device_memory_reads, reads, "once in a round");
        let again = numbers(&mut lab, &client, 8);
        assert_eq!(again, [2, 3, 4, 5, 6, 7, 8, 10], "the lock of 7 was taken over");
    }
}

/// A hostile client writes all numbers into the locks.
#[test]
fn when_no_number_is_free_a_session_is_refused_and_the_table_is_not_read_for_every_request() {
    let mut lab = Lab::new(writable());
    let (mut hostile, client) = (lab.client(), lab.client());
    let lease = open(&mut lab, &hostile).unwrap();
    let pair = lab.connect(&mut hostile, lease.session).unwrap();
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for (at, owners) in all.chunks(1024).enumerate() {
        put(&lab, &mut hostile, pair, at as u64 * 256, owners);
    }
    numbers(&mut lab, &client, 65_534);
    for _ in 0..100 {
        let refused = open(&mut lab, &client);
        assert_eq!(refused, Err(Refusal::NoOwner(NoOwner::InUse)));
    }
    assert_eq!((lab.watch().device_memory_reads, lab.counter("sessions")), (64, 1));
    put(&lab, &mut hostile, pair, 0, &[0; 8]);
    assert!(open(&mut lab, &client).is_err(), "not at once");
    lab.pass(Duration::from_secs(10));
    assert_eq!(number(open(&mut lab, &client).unwrap()), Some(1), "its lease has ended, too");
    assert_eq!(numbers(&mut lab, &client, 6), [2, 3, 4, 5, 6, 7]);
    assert_eq!(numbers(&mut lab, &client, 2), [2, 3], "the table was read again");
}

/// A WRITE that was posted on the queue pair that broke arrives late.
#[test]
fn who_connects_anew_is_not_met_by_what_it_posted_before() {
    let mut lab = Lab::new(writable());
    let mut client = lab.client();
    let session = lab.open(&client).unwrap();
    let other = lab.open(&client).unwrap();
    let info = *lab.server.info();
    let at = |offset| Remote { address: info.region.iova + offset, rkey: info.region.rkey };
    let old = lab.connect(&mut client, session).unwrap();
    let theirs = lab.connect(&mut client, other).unwrap();
    client.post(old, Operation::Write { to: at(64), data: b"in time!" }).unwrap();
    let new = lab.reconnect(&mut client, session, Some(old.there)).unwrap();
    assert!(client.post(old, Operation::Write { to: at(64), data: b"too late" }).is_err());
    let Ok(Output::Read(bytes)) = client.post(new, Operation::Read { from: at(64), len: 8 }) else {
        panic!("the new one works")
    };
    assert_eq!(*bytes, *b"in time!");
    assert_eq!((lab.counter("queue_pairs"), lab.counter("queue_pairs_replaced")), (2, 1));
    // Queue pairs that are gone already, or another session's, are left alone.
    let again = lab.reconnect(&mut client, session, Some(old.there)).unwrap();
    lab.reconnect(&mut client, session, Some(theirs.there)).unwrap();
    client.post(theirs, Operation::Write { to: at(64), data: b"another." }).unwrap();
    assert_eq!((lab.counter("queue_pairs"), lab.counter("queue_pairs_replaced")), (4, 1));
    // The queue pair to be replaced is gone even where there is no other.
    lab.watch_mut().fails_to_connect = true;
    assert!(lab.reconnect(&mut client, session, Some(again.there)).is_err());
    assert!(client.post(again, Operation::Write { to: at(64), data: b"too late" }).is_err());
    assert_eq!(lab.counter("queue_pairs"), 3);
}

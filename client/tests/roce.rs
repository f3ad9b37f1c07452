//! The RoCE client against software NICs of both ends: right answers, whatever the network and the switches
//! do.
#![allow(clippy::unwrap_used)] // tests: also in functions without #[test]

mod lab;

use fatbtree_client::measure::{Outcome, Recorder};
use fatbtree_client::roce::{
    Answer, BreakReason, ClientConfig, ClientConfigError, ConnectError, ConnectionId, Done, Failure, Mode,
    RemoteSide, RoceClient, SubmitError,
};
use fatbtree_index::{GlobalAddress, ReadFailure, SuperRoot, TreeConfig, ValueLayout};
use fatbtree_nic::time::Duration;
use fatbtree_nic::{Mtu, Nic, NicConfig};
use fatbtree_wire::Extension;
use lab::{Fate, Lab, Way};
use proptest::prelude::*;
use rand::RngExt;

fn inline() -> ClientConfig {
    ClientConfig {
        tree: TreeConfig::new(8, 512, ValueLayout::Inline(16)).unwrap(),
        depth: 8,
        ..ClientConfig::default()
    }
}

fn out_of_line() -> ClientConfig {
    ClientConfig { tree: TreeConfig::new(8, 512, ValueLayout::OutOfLine).unwrap(), ..inline() }
}

const FIRST: ConnectionId = ConnectionId { partition: 0, lane: 0 };

fn assert_all_found(done: &[Done]) {
    for done in done {
        assert_eq!(done.answer, Answer::Found, "{done:?}");
    }
}

#[test]
fn ordinary_lookups_walk_every_level() {
    for (config, extra) in [(inline(), 0), (out_of_line(), 1)] {
        let mut lab = Lab::new(config, 2, 500, 1).connected();
        let keys = lab.keys.clone();
        let done = lab.run(keys.iter().copied(), Mode::Ordinary);
        assert_eq!(done.len(), keys.len());
        assert_all_found(&done);
        for done in &done {
            let levels = u32::from(lab.client.roots().partition_of(done.key).root_level) + 1;
            assert!(levels >= 3, "the tree is too flat to tell anything");
            assert_eq!((done.trips.round_trips, done.restarts), (levels + extra, 0));
            assert!(done.latency >= Duration::from_micros(4) * u64::from(levels));
        }
        assert_eq!(lab.client.stats().index_reads, 0);
        assert!(lab.broken.is_empty());
    }
}

#[test]
fn absent_keys_are_not_found() {
    let mut lab = Lab::new(inline(), 2, 100, 2).connected();
    let absent: Vec<u64> = (0..200).map(|_| lab.rng.random()).filter(|key| !lab.keys.contains(key)).collect();
    for mode in [Mode::Ordinary, Mode::Index] {
        let done = lab.run(absent.iter().copied().chain([0, u64::MAX]), mode);
        assert!(done.iter().all(|done| done.answer == Answer::NotFound));
        assert!(done.iter().all(|done| done.answer.outcome(false) == Outcome::Absent));
    }
}

#[test]
fn index_reads_land_where_the_switches_say() {
    for (config, extra) in [(inline(), 0), (out_of_line(), 1)] {
        for level in 0..3 {
            let mut lab = Lab::new(config, 2, 500, 3).connected();
            lab.landing = match level {
                0 => |lab, partition, key, _| lab.node_above(partition, key, 0),
                1 => |lab, partition, key, _| lab.node_above(partition, key, 1),
                _ => |lab, partition, key, _| lab.node_above(partition, key, 2),
            };
            let keys = lab.keys.clone();
            let done = lab.run(keys, Mode::Index);
            assert_all_found(&done);
            assert!(done.iter().all(|done| done.trips.round_trips == u32::from(level) + 1 + extra));
            assert!(done.iter().all(|done| done.trips.landed == Some(level)));
            assert_eq!(lab.client.stats().index_reads, done.len() as u64);
        }
    }
}

/// Switches behind the times: any node of the server, or no node at all.
#[test]
fn stale_switches_cost_round_trips_only() {
    let mut lab = Lab::new(out_of_line(), 2, 300, 4).connected();
    lab.landing = |lab, partition, key, _| {
        let region = &lab.servers[usize::from(partition)].region;
        let max = (region.len() - lab.config.tree.max_node_bytes() as usize) as u64 / 64;
        GlobalAddress::new(partition, key % max * 64)
    };
    let keys = lab.keys.clone();
    let done = lab.run(keys, Mode::Index);
    assert_all_found(&done);
    assert!(lab.broken.is_empty());
    let stats = *lab.client.stats();
    assert!(stats.fallbacks > 100, "{stats:?}");
    assert_eq!(stats.fallbacks, done.iter().map(|done| u64::from(done.trips.restarts)).sum::<u64>());
}

#[test]
fn an_unregistered_index_read_breaks_the_connection_and_is_answered_all_the_same() {
    let mut lab = Lab::new(inline(), 2, 200, 5);
    lab.registers = false;
    let mut lab = lab.connected();
    // From now on the owner knows better.
    lab.claims_registered = false;
    let keys = lab.keys.clone();
    let done = lab.run(keys.iter().copied(), Mode::Index);
    assert_all_found(&done);
    assert_eq!(done.len(), keys.len());

    // Told so, once per connection; everything that was on it began again.
    assert_eq!(lab.broken.len(), 2);
    assert!(lab.broken.iter().all(|&(_, reason, _)| reason == BreakReason::Unregistered));
    let stats = *lab.client.stats();
    let affected: u32 = lab.broken.iter().map(|&(_, _, affected)| affected).sum();
    assert_eq!((stats.broken_connections, stats.refused_index_reads), (2, 2));
    assert_eq!(stats.restarts, u64::from(affected));
    assert_eq!(stats.restarts, done.iter().map(|done| u64::from(done.restarts)).sum::<u64>());
    assert!(stats.unregistered > 300, "later lookups walk: {stats:?}");
    assert!(!lab.client.is_registered(FIRST));

    // The controller registers the queue pairs: index reads again.
    let before = stats.index_reads;
    for partition in 0..2 {
        let id = ConnectionId { partition, lane: 0 };
        lab.client.set_registered(id, true).unwrap();
        assert!(lab.client.is_registered(id));
    }
    lab.registered.extend(lab.server_queue_pairs.values());
    let done = lab.run(keys.iter().copied(), Mode::Index);
    assert_all_found(&done);
    assert_eq!(lab.client.stats().index_reads - before, keys.len() as u64);
    assert_eq!(lab.broken.len(), 2);
}

/// An owner that claims registration again and again gets a clear error, not an endless loop.
#[test]
fn reconnects_are_bounded() {
    let mut lab = Lab::new(ClientConfig { max_restarts: 2, ..inline() }, 1, 100, 6).connected();
    lab.servers[0].dead = true;
    let key = lab.keys[5];
    let done = lab.run([key], Mode::Ordinary);
    let last = BreakReason::Read(ReadFailure::RetryExceeded);
    assert_eq!(done[0].answer, Answer::Failed(Failure::ConnectionBroke { key, breaks: 3, last }));
    assert_eq!(done[0].answer.outcome(true), Outcome::Failed);
    assert_eq!((lab.broken.len(), done[0].restarts), (3, 3));
    let Answer::Failed(failure) = done[0].answer else { unreachable!() };
    assert!(failure.to_string().contains("broke 3 times") && failure.to_string().contains("retries"));

    // The server comes back: so do the answers.
    lab.servers[0].dead = false;
    lab.connect_all_down();
    let keys = lab.keys.clone();
    assert_all_found(&lab.run(keys, Mode::Index));
}

/// Design §9: the answer to an index read is lost, the switches are reloaded, and the READ sent again is
/// rewritten to another address under the same PSN. Hardware executes it; a strict server drops it until the
/// queue pair fails.
#[test]
fn an_index_read_retried_after_a_reload() {
    for strict in [false, true] {
        let mut lab = Lab::new(out_of_line(), 1, 300, 7).connected();
        lab.strict = strict;
        lab.landing =
            |lab, partition, key, seen| lab.node_above(partition, key, if seen == 0 { 0 } else { 1 });
        lab.budget = 1;
        lab.fate = |lab, way, frame| {
            let response = way == Way::ToClient && matches!(frame.extension, Extension::Aeth(_));
            if response && lab.budget > 0 {
                lab.budget -= 1;
                return Fate::Drop;
            }
            Fate::Pass
        };
        let keys = lab.keys.clone();
        let done = lab.run(keys.iter().copied().take(40), Mode::Index);
        assert_all_found(&done);
        assert_eq!(lab.budget, 0);
        if strict {
            let broken = BreakReason::Read(ReadFailure::RetryExceeded);
            assert_eq!(lab.broken.len(), 1);
            assert_eq!(lab.broken[0].1, broken);
            assert!(done.iter().any(|done| done.restarts == 1 && done.trips.landed.is_none()));
        } else {
            assert!(lab.broken.is_empty(), "{:?}", lab.broken);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// Whatever is lost, whatever the shape, every lookup ends with the right answer.
    #[test]
    fn lost_frames_cost_time_only(
        seed in any::<u64>(), loss in 0u32..150, lanes in 1u8..4, depth in 1u32..40, index in any::<bool>(), records in any::<bool>()
    ) {
        let shape = if records { out_of_line() } else { inline() };
        let mut lab = Lab::new(ClientConfig { lanes, depth, ..shape }, 2, 60, seed).connected();
        lab.loss = loss;
        let mode = if index { Mode::Index } else { Mode::Ordinary };
        let keys = lab.keys.clone();
        let done = lab.run(keys.iter().copied(), mode);
        assert_all_found(&done);
        let mut asked: Vec<u64> = done.iter().map(|done| done.key).collect();
        asked.sort_unstable();
        prop_assert_eq!(asked, keys);
    }

    /// Connections that are abandoned and reconnected at random points: each lookup ends exactly once, and
    /// never wrong.
    #[test]
    fn abandoned_connections_never_lose_a_lookup(seed in any::<u64>(), lanes in 1u8..3, index in any::<bool>()) {
        let mut lab = Lab::new(ClientConfig { lanes, depth: 16, ..out_of_line() }, 2, 60, seed).connected();
        let keys = lab.keys.clone();
        let mode = if index { Mode::Index } else { Mode::Ordinary };
        let mut next = 0;
        let mut ops = Vec::new();
        while next < keys.len() || lab.client.under_way() > 0 {
            if next < keys.len() && lab.client.room() > 0 && lab.rng.random_bool(0.5) {
                ops.push(lab.client.submit(lab.now, keys[next], mode).unwrap());
                next += 1;
            } else if lab.rng.random_bool(0.05) {
                let all: Vec<ConnectionId> = lab.client.connections().collect();
                let id = all[lab.rng.random_range(0..all.len())];
                lab.client.abandon(lab.now, id).unwrap();
                if lab.rng.random_bool(0.8) {
                    lab.connect(id);
                }
            } else {
                lab.step();
            }
            if lab.rng.random_bool(0.02) {
                lab.connect_all_down();
            }
            lab.settle();
        }
        let mut ended: Vec<_> = lab.done.iter().map(|done| done.op).collect();
        ended.sort_unstable();
        ops.sort_unstable();
        prop_assert_eq!(ended, ops);
        for done in &lab.done {
            let fine = matches!(done.answer, Answer::Found | Answer::Failed(Failure::Abandoned { .. } | Failure::ConnectionBroke { .. }));
            prop_assert!(fine, "{:?}", done);
        }
    }
}

#[test]
fn abandoned_connections_fail_their_lookups_until_reconnected() {
    let mut lab = Lab::new(inline(), 1, 50, 8);
    let (key, id) = (lab.keys[0], FIRST);
    // Before anything is connected, lookups wait.
    lab.client.submit(lab.now, key, Mode::Index).unwrap();
    lab.step();
    assert!(lab.done.is_empty());
    lab.client.abandon(lab.now, id).unwrap();
    lab.settle();
    assert_eq!(lab.done[0].answer, Answer::Failed(Failure::Abandoned { key, id }));
    let done = lab.run([key], Mode::Ordinary);
    assert_eq!(done[0].answer, Answer::Failed(Failure::Abandoned { key, id }));
    lab.connect(id);
    assert_all_found(&lab.run([key], Mode::Ordinary));
}

#[test]
fn wrong_values_are_noticed() {
    let mut lab = Lab::new(inline(), 1, 50, 9).connected();
    lab.client.checker_mut().seed = 1234;
    let keys = lab.keys.clone();
    let done = lab.run(keys, Mode::Ordinary);
    assert!(done.iter().all(|done| done.answer == Answer::Wrong));
    let mut recorder = Recorder::new();
    for done in &done {
        recorder.record(done.answer.outcome(true), done.latency.as_nanos(), done.trips.round_trips);
    }
    let summary = recorder.summary(lab.now.as_nanos());
    assert_eq!((summary.wrong_answers, summary.verified()), (50, false));
}

/// The queue pair fails while nothing is under way on it, so that no completion says so: the next read does.
#[test]
fn a_queue_pair_that_failed_silently_is_replaced() {
    let mut lab = Lab::new(inline(), 1, 50, 13).connected();
    let server_end = lab.server_queue_pairs[&FIRST];
    // A write that the client's NIC must refuse, which fails both ends.
    lab.servers[0].nic.post_write(lab.now, server_end, 1, 0, 99, &[1]).unwrap();
    while lab.step() {}
    assert!(lab.broken.is_empty());
    let key = lab.keys[7];
    let done = lab.run([key], Mode::Index);
    assert_eq!((done[0].answer, done[0].restarts), (Answer::Found, 0));
    assert_eq!(lab.broken, [(FIRST, BreakReason::Read(ReadFailure::Flushed), 0)]);
}

/// More lookups than the NIC's send queue takes: the rest wait their turn.
#[test]
fn a_full_send_queue_is_waited_for() {
    let config = ClientConfig { depth: 1000, ..inline() };
    let mut lab = Lab::new(config, 1, 2000, 10).connected();
    let keys = lab.keys.clone();
    let done = lab.run(keys.iter().copied(), Mode::Index);
    assert_eq!(done.len(), keys.len());
    assert_all_found(&done);
}

#[test]
fn misuse_is_refused_with_what_to_do() {
    let mut lab = Lab::new(ClientConfig { depth: 1, ..inline() }, 1, 50, 11).connected();
    let now = lab.now;
    lab.client.submit(now, 1, Mode::Ordinary).unwrap();
    assert_eq!(lab.client.submit(now, 1, Mode::Ordinary), Err(SubmitError::Full { depth: 1 }));

    let unknown = ConnectionId { partition: 7, lane: 0 };
    let lane = ConnectionId { partition: 0, lane: 1 };
    for id in [unknown, lane] {
        assert_eq!(lab.client.reconnect(now, id), Err(ConnectError::Unknown { id, lanes: 1 }));
    }
    assert_eq!(lab.client.reconnect(now, FIRST), Err(ConnectError::Up { id: FIRST }));
    let endpoint = lab.servers[0].nic.create_queue_pair();
    let endpoint = lab.servers[0].nic.local_endpoint(endpoint).unwrap();
    let remote = RemoteSide { endpoint, rkey: 1, registered: false };
    assert_eq!(lab.client.connected(now, FIRST, remote), Err(ConnectError::NotOpening { id: FIRST }));

    let roots = Lab::new(inline(), 2, 10, 1).client.roots().clone();
    let error = lab.client.set_roots(roots).unwrap_err();
    assert_eq!(error, ConnectError::OtherPartitions { old: vec![0], new: vec![0, 1] });
}

/// The single-packet rule, by configuration and by what the server offers.
#[test]
fn nodes_larger_than_the_path_mtu_are_refused() {
    let lab = Lab::new(inline(), 1, 10, 12);
    let roots: SuperRoot = lab.client.roots().clone();
    let nic = || Nic::new(NicConfig::new([2; 6], [10, 0, 0, 9].into()), 1);
    let checker = |_, _, _: &[u8]| true;
    let small = ClientConfig { path_mtu: 256, ..inline() };
    let error = RoceClient::new(nic(), small, roots.clone(), checker).unwrap_err();
    assert!(matches!(error, ClientConfigError::Tree(_)), "{error}");
    assert!(error.to_string().starts_with("node of 512 bytes exceeds path MTU 256"), "{error}");
    for (depth, lanes) in [(0, 1), (1 << 20, 1), (1, 0)] {
        let config = ClientConfig { depth, lanes, ..inline() };
        assert!(RoceClient::new(nic(), config, roots.clone(), checker).is_err());
    }

    let mut client = RoceClient::new(nic(), inline(), roots, checker).unwrap();
    let mut server = lab.servers.into_iter().next().unwrap().nic;
    let queue_pair = server.create_queue_pair();
    let mut endpoint = server.local_endpoint(queue_pair).unwrap();
    endpoint.mtu = Mtu::B256;
    client.reconnect(lab.now, FIRST).unwrap();
    let remote = RemoteSide { endpoint, rkey: 1, registered: true };
    let error = client.connected(lab.now, FIRST, remote).unwrap_err();
    assert!(error.to_string().contains("exceeds path MTU 256"), "{error}");
}

//! The client over software NICs at both ends: right answers, whatever the network and the switches do.
#![allow(clippy::unwrap_used)] // tests: also in functions without #[test]

mod lab;

use fatbtree_blink::{
    BreakReason, CommonError, ConnectError, ConnectionId, GlobalAddress, Limits, OperationError, PoolConfig,
    PoolError, RemoteSide, Start, TreeConfig, ValueLayout,
};
use fatbtree_blink_client::Client;
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Device, Failure, Mtu, Operation, QueuePairState, Remote, Verbs, WorkRequest};
use fatbtree_wire::Extension;
use lab::{Answer, Done, Fate, Lab, Way, client_nic_config};
use proptest::prelude::*;
use rand::RngExt;

fn inline() -> PoolConfig {
    PoolConfig { tree: TreeConfig::new(8, 512, ValueLayout::Inline(16)).unwrap(), ..PoolConfig::default() }
}

fn out_of_line() -> PoolConfig {
    PoolConfig { tree: TreeConfig::new(8, 512, ValueLayout::OutOfLine).unwrap(), ..inline() }
}

const FIRST: ConnectionId = ConnectionId { server: 0, lane: 0 };

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
        let done = lab.run(keys.iter().copied(), Start::Root);
        assert_eq!(done.len(), keys.len());
        assert_all_found(&done);
        for done in &done {
            let levels = u32::from(lab.client.pool().roots().partition_of(done.key).root_level) + 1;
            assert!(levels >= 3, "the tree is too flat to tell anything");
            assert_eq!((done.trips.round_trips, done.trips.breaks), (levels + extra, 0));
            assert!(done.latency >= Duration::from_micros(4) * u64::from(levels));
        }
        assert_eq!(lab.client.pool().stats().index_reads, 0);
        assert!(lab.broken.is_empty());
    }
}

#[test]
fn absent_keys_are_not_found() {
    let mut lab = Lab::new(inline(), 2, 100, 2).connected();
    let absent: Vec<u64> = (0..200).map(|_| lab.rng.random()).filter(|key| !lab.keys.contains(key)).collect();
    for start in [Start::Root, Start::IndexRead] {
        let done = lab.run(absent.iter().copied().chain([0, u64::MAX]), start);
        assert!(done.iter().all(|done| done.answer == Answer::NotFound));
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
            let done = lab.run(keys, Start::IndexRead);
            assert_all_found(&done);
            assert!(done.iter().all(|done| done.trips.round_trips == u32::from(level) + 1 + extra));
            assert!(done.iter().all(|done| done.trips.landed == Some(level)));
            assert_eq!(lab.client.pool().stats().index_reads, done.len() as u64);
        }
    }
}

/// Switches behind the times: any line of the server's memory, node or not, to its very last.
#[test]
fn stale_switches_cost_round_trips_only() {
    let mut lab = Lab::new(out_of_line(), 2, 300, 4).connected();
    lab.landing = |lab, partition, key, _| {
        let len = lab.servers[usize::from(partition)].tree.region.len();
        let max = (len - u64::from(lab.config.tree.max_node_bytes())) / 64;
        GlobalAddress::new(partition, (1 + key % max) * 64)
    };
    let keys = lab.keys.clone();
    let done = lab.run(keys, Start::IndexRead);
    assert_all_found(&done);
    assert!(lab.broken.is_empty());
    let stats = lab.client.pool().stats();
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
    let done = lab.run(keys.iter().copied(), Start::IndexRead);
    assert_all_found(&done);
    assert_eq!(done.len(), keys.len());

    // Told so, once per connection; everything that was on it began again.
    assert_eq!(lab.broken.len(), 2);
    assert!(lab.broken.iter().all(|&(_, reason)| reason == BreakReason::Unregistered));
    let stats = lab.client.pool().stats();
    assert_eq!((stats.remote.broken_connections, stats.remote.refused_index_reads), (2, 2));
    assert_eq!(stats.restarts, done.iter().map(|done| u64::from(done.trips.breaks)).sum::<u64>());
    assert!(stats.restarts >= 2);
    assert!(stats.unregistered > 300, "later lookups walk: {stats:?}");
    assert!(!lab.client.pool().is_registered(FIRST), "what is not told is not registered");

    // The controller registers the queue pairs: index reads again.
    let before = stats.index_reads;
    for server in 0..2 {
        let id = ConnectionId { server, lane: 0 };
        lab.client.pool().set_registered(id, true).unwrap();
        assert!(lab.client.pool().is_registered(id));
        let number = lab.servers[usize::from(server)].nic.endpoint(lab.server_queue_pairs[&id]).unwrap();
        lab.registered.insert(number.queue_pair);
    }
    let done = lab.run(keys.iter().copied(), Start::IndexRead);
    assert_all_found(&done);
    assert_eq!(lab.client.pool().stats().index_reads - before, keys.len() as u64);
    assert_eq!(lab.broken.len(), 2);
}

/// A connection that was registered is not any more when it is connected anew and nobody says so.
#[test]
fn a_new_queue_pair_is_registered_for_itself() {
    let mut lab = Lab::new(inline(), 1, 50, 21).connected();
    let pool = |lab: &Lab| lab.client.pool().is_registered(FIRST);
    assert!(pool(&lab));
    lab.claims_registered = false;
    lab.client.pool().abandon(FIRST).unwrap();
    assert!(!pool(&lab));
    lab.connect(FIRST);
    assert!(!pool(&lab));
    let keys = lab.keys.clone();
    assert_all_found(&lab.run(keys, Start::IndexRead));
    assert_eq!(lab.client.pool().stats().index_reads, 0);
}

#[test]
fn reconnects_are_bounded() {
    let limits = Limits { reconnects: 2, ..Limits::default() };
    let mut lab = Lab::new(PoolConfig { limits, ..inline() }, 1, 100, 6).connected();
    lab.servers[0].dead = true;
    let key = lab.keys[5];
    let done = lab.run([key], Start::Root);
    let last = BreakReason::Failed(Failure::RetryExceeded);
    assert_eq!(done[0].answer, Answer::Failed(OperationError::ConnectionBroke { key, breaks: 3, last }));
    assert_eq!((lab.broken.len(), done[0].trips.breaks), (3, 3));
    let Answer::Failed(failure) = done[0].answer.clone() else { unreachable!() };
    assert!(failure.to_string().contains("broke 3 times") && failure.to_string().contains("retries"));

    // The server comes back: so do the answers.
    lab.servers[0].dead = false;
    lab.connect_all_down();
    let keys = lab.keys.clone();
    assert_all_found(&lab.run(keys, Start::IndexRead));
}

/// docs/src/invariants.md "A stale switch is harmless": the answer to an index read is lost, the switches are reloaded, and the READ
/// sent again is rewritten to another address under the same PSN. Hardware executes it; a strict server drops it until the
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
        let done = lab.run(keys.iter().copied().take(40), Start::IndexRead);
        assert_all_found(&done);
        assert_eq!(lab.budget, 0);
        if strict {
            assert_eq!(lab.broken, [(FIRST, BreakReason::Failed(Failure::RetryExceeded))]);
            assert!(done.iter().any(|done| done.trips.breaks == 1 && done.trips.landed.is_none()));
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
        seed in any::<u64>(), loss in 0u32..150, lanes in 1u8..4, depth in 1usize..40, index in any::<bool>(), records in any::<bool>()
    ) {
        let shape = if records { out_of_line() } else { inline() };
        let mut lab = Lab::new(PoolConfig { lanes, ..shape }, 2, 60, seed).connected();
        lab.loss = loss;
        let start = if index { Start::IndexRead } else { Start::Root };
        let keys = lab.keys.clone();
        let done = lab.run_with(keys.iter().copied(), start, depth, |_| {});
        assert_all_found(&done);
        let mut asked: Vec<u64> = done.iter().map(|done| done.key).collect();
        asked.sort_unstable();
        prop_assert_eq!(asked, keys);
    }

    /// Connections that are abandoned and reconnected at random points: each lookup ends exactly once, and never wrong.
    #[test]
    fn abandoned_connections_never_lose_a_lookup(seed in any::<u64>(), lanes in 1u8..3, index in any::<bool>()) {
        abandons(seed, lanes, index)?;
    }
}

/// Looks up keys of two servers while connections are abandoned and made anew.
fn abandons(seed: u64, lanes: u8, index: bool) -> Result<(), TestCaseError> {
    let mut lab = Lab::new(PoolConfig { lanes, ..out_of_line() }, 2, 60, seed).connected();
    let keys = lab.keys.clone();
    let start = if index { Start::IndexRead } else { Start::Root };
    let done = lab.run_with(keys.iter().copied(), start, 16, |lab| {
        if lab.rng.random_bool(0.05) {
            let all = lab.client.pool().connections();
            let id = all[lab.rng.random_range(0..all.len())];
            lab.client.pool().abandon(id).unwrap();
            if lab.rng.random_bool(0.8) {
                lab.connect(id);
            }
        }
        if lab.rng.random_bool(0.02) {
            lab.connect_all_down();
        }
    });
    let mut ended: Vec<_> = done.iter().map(|done| done.key).collect();
    ended.sort_unstable();
    prop_assert_eq!(ended, keys);
    for done in &done {
        let fine = matches!(
            done.answer,
            Answer::Found
                | Answer::Failed(
                    OperationError::Common { error: CommonError::Abandoned(_), .. }
                        | OperationError::ConnectionBroke { .. }
                )
        );
        prop_assert!(fine, "{:?}", done);
    }
    Ok(())
}

/// Three polls in a row in which connections come and go while nothing is on its way.
#[test]
fn connections_that_come_and_go_at_once() {
    abandons(10_037_684_642_003_518_437, 1, false).unwrap();
}

#[test]
fn abandoned_connections_fail_their_lookups_until_reconnected() {
    let mut lab = Lab::new(inline(), 1, 50, 8);
    let (key, id) = (lab.keys[0], FIRST);
    // Before anything is connected, lookups wait; then the owner gives up.
    let mut steps = 0;
    let done = lab.run_with([key], Start::IndexRead, 1, |lab| {
        steps += 1;
        lab.client.pool().abandon(id).unwrap();
    });
    assert_eq!(
        (done[0].answer.clone(), steps),
        (Answer::Failed(OperationError::Common { key, error: CommonError::Abandoned(id) }), 1)
    );
    let done = lab.run([key], Start::Root);
    assert_eq!(
        done[0].answer,
        Answer::Failed(OperationError::Common { key, error: CommonError::Abandoned(id) })
    );
    lab.connect(id);
    assert_all_found(&lab.run([key], Start::Root));
}

/// The queue pair fails while nothing is under way on it, so that no completion says so.
#[test]
fn a_queue_pair_that_failed_silently_is_replaced() {
    let mut lab = Lab::new(inline(), 1, 50, 13).connected();
    let server_end = lab.server_queue_pairs[&FIRST];
    // A write that the client's NIC must refuse, which fails both ends.
    let to = Remote { address: 0, rkey: 99 };
    let write = WorkRequest { tag: 1, signalled: true, operation: Operation::Write { to, data: &[1] } };
    lab.servers[0].nic.post(server_end, &[write]).unwrap();
    let before = lab.client.pool().queue_pair(FIRST);
    while lab.step() {}
    assert_eq!(lab.broken, [(FIRST, BreakReason::Failed(Failure::Flushed))], "noticed at once");
    assert_ne!(lab.client.pool().queue_pair(FIRST), before);
    let key = lab.keys[7];
    let done = lab.run([key], Start::IndexRead);
    assert_eq!((&done[0].answer, done[0].trips.breaks), (&Answer::Found, 0));
}

/// More lookups than the NIC's send queue takes: the rest wait their turn.
#[test]
fn a_full_send_queue_is_waited_for() {
    let mut lab = Lab::new(inline(), 1, 2000, 10).connected();
    let keys = lab.keys.clone();
    let done = lab.run_with(keys.iter().copied(), Start::IndexRead, 1000, |_| {});
    assert_eq!(done.len(), keys.len());
    assert_all_found(&done);
}

/// A completion that comes when its lookup was dropped, or on a queue pair that is gone, is nobody else's.
#[test]
fn late_answers_are_not_the_next_lookups() {
    let mut lab = Lab::new(inline(), 1, 200, 14).connected();
    let keys = lab.keys.clone();
    for round in 0..50 {
        let client = lab.client.clone();
        let mut dropped = Box::pin(client.get(keys[round]));
        let polled = dropped.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        assert!(polled.is_pending());
        if round % 2 == 0 {
            lab.settle();
        }
        drop(dropped);
        if round % 3 == 0 {
            lab.client.pool().abandon(FIRST).unwrap();
            lab.connect(FIRST);
        }
        assert_all_found(&lab.run([keys[round + 100]], Start::IndexRead));
    }
    assert!(lab.broken.is_empty());
}

#[test]
fn misuse_is_refused_with_what_to_do() {
    let mut lab = Lab::new(inline(), 1, 50, 11).connected();
    let unknown = ConnectionId { server: 7, lane: 0 };
    let lane = ConnectionId { server: 0, lane: 1 };
    for id in [unknown, lane] {
        assert_eq!(lab.client.pool().open(id), Err(ConnectError::Unknown { id, lanes: 1 }));
    }
    assert_eq!(lab.client.pool().open(FIRST), Err(ConnectError::Up { id: FIRST }));
    let queue_pair = lab.servers[0].nic.create().unwrap();
    let endpoint = lab.servers[0].nic.endpoint(queue_pair).unwrap();
    let remote = RemoteSide { endpoint, rkey: 1, registered: false };
    let error = lab.client.pool().connected(FIRST, remote).unwrap_err();
    assert_eq!(error, PoolError::Connect(ConnectError::NotOpening { id: FIRST }));

    let roots = Lab::new(inline(), 2, 10, 1).client.pool().roots();
    let error = lab.client.pool().set_roots(roots.clone()).unwrap_err();
    assert_eq!(error, PoolError::OtherPartitions { old: vec![0], new: vec![0, 1] });
    let none = PoolConfig { lanes: 0, ..inline() };
    let nic = Nic::new(client_nic_config(), 1).unwrap();
    assert_eq!(Client::new(nic, none, roots, 1).map(drop), Err(PoolError::Connect(ConnectError::Lanes)));
}

/// The single-packet rule, whichever side has the smaller path MTU: refused when connecting, and the queue pair stays new.
#[test]
fn nodes_larger_than_the_path_mtu_of_either_side_are_refused() {
    let small = |config: NicConfig| NicConfig { mtu: Mtu::B256, ..config };
    for (client, server) in [(Mtu::B256, Mtu::B1024), (Mtu::B1024, Mtu::B256)] {
        let client_nic = NicConfig { mtu: client, ..client_nic_config() };
        let mut lab = Lab::with_nics(inline(), 1, 10, 12, client_nic, |config| match server {
            Mtu::B256 => small(config),
            _ => config,
        });
        let remote = lab.accept(FIRST);
        let error = lab.client.pool().connected(FIRST, remote).unwrap_err();
        assert!(error.to_string().starts_with("node of 512 bytes exceeds path MTU 256"), "{error}");
        let queue_pair = lab.client.pool().queue_pair(FIRST).unwrap();
        assert_eq!(lab.client_nic(|nic, _| nic.state(queue_pair)), Some(QueuePairState::Reset));
    }
}

/// What was answered wrongly before: with a client NIC of MTU 512, nodes of 1024 bytes and frames lost, a resumed READ
/// asked for `key + 512`. Now such a connection cannot be made; with nodes that fit nothing is wrong.
#[test]
fn a_client_with_a_small_mtu_gets_no_wrong_answers() {
    let tree = TreeConfig::new(16, 1024, ValueLayout::Inline(16)).unwrap();
    let nic = || NicConfig { mtu: Mtu::B512, ..client_nic_config() };
    let mut lab = Lab::with_nics(PoolConfig { tree, ..inline() }, 1, 500, 15, nic(), |config| config);
    let remote = lab.accept(FIRST);
    let error = lab.client.pool().connected(FIRST, remote).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "node of 1024 bytes exceeds path MTU 512: index reads must be answered in one packet"
        ),
        "{error}"
    );

    for seed in 0..8 {
        let mut lab = Lab::with_nics(inline(), 1, 500, seed, nic(), |config| config).connected();
        lab.loss = 20;
        let keys = lab.keys.clone();
        let done = lab.run(keys, Start::IndexRead);
        assert_all_found(&done);
    }
}

/// Nothing that was torn is read again without a pause, and what stays torn ends in an error that says so.
#[test]
fn torn_nodes_are_given_time() {
    let limits = Limits { patience: Duration::from_millis(50), ..Limits::default() };
    let mut lab = Lab::new(PoolConfig { limits, ..inline() }, 1, 100, 16).connected();
    let key = lab.keys[50];
    let leaf = lab.node_above(0, key, 0);
    let region = std::sync::Arc::clone(&lab.servers[0].tree.region);
    // A write that stands still half-way: another version in the second line.
    let mut version = [0];
    region.read(leaf.offset() + 64, &mut version).unwrap();
    region.write(leaf.offset() + 64, &[version[0] ^ 1]).unwrap();
    let began = lab.now;
    let done = lab.run([key], Start::Root);
    let Answer::Failed(OperationError::GaveUp { fault, .. }) = done[0].answer else { panic!("{done:?}") };
    assert!(fault.is_torn());
    assert!(done[0].latency > limits.patience && done[0].trips.retries >= 8, "{done:?}");
    assert!(done[0].trips.round_trips < 1000, "it pauses: {done:?}");

    // The write goes on after a while: the lookup that waits for it finds the value.
    let done = lab.run_with([key], Start::Root, 1, |lab| {
        if lab.now > began + Duration::from_millis(80) {
            region.write(leaf.offset() + 64, &version).unwrap();
        }
    });
    assert_all_found(&done);
    assert!(done[0].trips.retries > 0 && lab.now > Instant::ZERO + Duration::from_millis(50));
}

//! Index reads: where they land, when caches are behind, when they pass twice.

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Device as _, Error, Failure, Operation, Output, QueuePairState, RKEY_NODE, RKEY_NODE_OR_RECORD, Remote,
};

use super::{LONG, Lab};
use crate::world::{
    CachedSwitches, Duplicates, IndexRead, LinkFaults, Options, Random, Resolved, Retry, Switches,
};

#[test]
fn they_land_where_the_caches_say_when_they_pass() {
    let lab = Lab::new(1, Options::default(), 1);
    let switches = CachedSwitches::default();
    lab.world.set_switches(switches.clone());
    for (address, text) in [(0, b"root"), (64, b"left"), (128, b"rite")] {
        lab.memory.write(address, text).unwrap();
    }
    let wire = lab.connect(0);
    switches.register(wire.queue_pair, lab.at(0));
    switches.cache(lab.server.id(), 0..=9, lab.at(64));
    let find = |key| {
        let wire = wire.clone();
        lab.run(async move { wire.index_read(key, 4).await }).unwrap()
    };
    assert_eq!([find(9), find(10)], [b"left", b"root"]);
    switches.cache(lab.server.id(), 5..=u64::MAX, lab.at(128));
    assert_eq!([find(4), find(5), find(u64::MAX)], [b"left", b"rite", b"rite"]);
    switches.forget(lab.server.id(), 6..=6);
    assert_eq!([find(5), find(6), find(7)], [b"rite", b"root", b"rite"]);
    assert_eq!(lab.world.counts().index_reads, 8);
    // A READ with an rkey of index reads is the same on the wire.
    for rkey in [RKEY_NODE_OR_RECORD, RKEY_NODE] {
        let named = wire.clone();
        let read = Operation::Read { from: Remote { address: 7, rkey }, len: 4 };
        let outputs = lab.run(async move { named.post([read]).await }).unwrap();
        assert!(matches!(&outputs, [Output::Read(bytes)] if **bytes == *b"rite"), "{outputs:?}");
    }
}

#[test]
fn from_an_unregistered_connection_they_break_both_queue_pairs() {
    let lab = Lab::new(1, Options::default(), 1);
    let switches = CachedSwitches::default();
    lab.world.set_switches(switches.clone());
    let wire = lab.connect(0);
    switches.register(wire.queue_pair, lab.at(0));
    switches.unregister(wire.queue_pair);
    let asked = wire.clone();
    let error = lab.run(async move { asked.index_read(7, 64).await }).unwrap_err();
    assert_eq!(error, Error::Failed(Failure::RemoteAccess));
    let state = wire.machine.reactor().with(|card| card.state(wire.queue_pair));
    assert_eq!(state, Some(QueuePairState::Error));
    assert!(lab.server.reactor().poll_broken().is_some());
}

/// A landing outside of all regions is refused as any other READ would be.
#[test]
fn a_wrong_landing_is_refused() {
    let lab = Lab::new(1, Options::default(), 1);
    let switches = CachedSwitches::default();
    lab.world.set_switches(switches.clone());
    let wire = lab.connect(0);
    switches.register(wire.queue_pair, Remote { rkey: lab.region.rkey ^ 1, ..lab.at(0) });
    let error = lab.run(async move { wire.index_read(7, 64).await }).unwrap_err();
    assert_eq!(error, Error::Failed(Failure::RemoteAccess));
}

/// Switches that let each index read land elsewhere.
struct Moving(u64, u32);

impl Switches for Moving {
    fn resolve(&mut self, _now: Instant, _read: &IndexRead, _random: &mut Random) -> Resolved {
        self.0 += 64;
        Resolved::At(Remote { address: self.0, rkey: self.1 })
    }
}

/// An index read whose answer is lost passes again after a reload: hardware reads the new place, `rdma_rxe` is silent until retries
/// run out.
#[test]
fn a_second_passage_may_land_elsewhere() {
    let run = |strict_reads| {
        let options = Options {
            duplicates: Duplicates { strict_reads, ..Duplicates::default() },
            retry: Retry { limit: 10, ..Retry::default() },
            ..Options::default()
        };
        let (mut moved, mut failed) = (0, 0);
        for seed in 0..100 {
            let lab = Lab::new(seed, options.clone(), 1);
            lab.world.set_switches(Moving(0, lab.region.rkey));
            for place in 0..20u64 {
                lab.memory.write(64 * place, &place.to_le_bytes()).unwrap();
            }
            let wire = lab.connect(0);
            lab.clients[0].set_link_faults(LinkFaults { lost: 300_000, ..LinkFaults::default() });
            let task = wire.machine.clone().spawn(async move { wire.index_read(7, 8).await });
            lab.world.run_until(|| task.has_ended(), LONG).unwrap();
            match task.take().unwrap() {
                Ok(bytes) => moved += u64::from(bytes != 1u64.to_le_bytes()),
                Err(error) => {
                    assert_eq!(error, Error::Failed(Failure::RetryExceeded));
                    failed += 1;
                }
            }
            assert_eq!(
                lab.world.counts().strict_drops > 0,
                strict_reads && lab.world.counts().duplicates > 0
            );
        }
        (moved, failed)
    };
    let ((moved, failed), (strict_moved, strict_failed)) = (run(false), run(true));
    assert!(moved > 20 && failed < 5, "lenient: {moved} moved, {failed} failed");
    assert!(strict_failed > 20 && strict_moved == 0, "strict: {strict_moved} moved, {strict_failed} failed");
}

/// The caches are asked when the request passes, neither when it is posted nor when it arrives.
#[test]
fn the_moment_that_counts_is_the_passage() {
    let lab = Lab::new(1, Options::default(), 1);
    let switches = CachedSwitches::default();
    lab.world.set_switches(switches.clone());
    lab.memory.write(0, &[1]).unwrap();
    lab.memory.write(64, &[2]).unwrap();
    let wire = lab.connect(0);
    switches.register(wire.queue_pair, lab.at(0));
    let machine = wire.machine.clone();
    let task = machine.clone().spawn(async move { wire.index_read(7, 1).await.unwrap() });
    lab.world.run_for(Duration::from_nanos(50));
    switches.cache(lab.server.id(), 0..=9, lab.at(64));
    // It passes after about 350 ns.
    lab.world.run_for(Duration::from_nanos(400));
    switches.forget(lab.server.id(), 0..=9);
    lab.world.run_until(|| task.has_ended(), LONG).unwrap();
    assert_eq!(task.take().unwrap(), [2]);
}

//! Trees grow under switches that hold a plan: nothing is answered wrongly, and the controller follows by itself (paper §IV-B).

use crate::living;

use fatbtree_controller::{Budget, FollowOptions, Follower, SETS};
use living::Living;

/// Records loaded: the trees are full, root included, and grow with the first inserts.
const LOADED: u64 = 6_000;
/// Records inserted then.
const INSERTED: u64 = 6_000;
/// Lookups of a measurement.
const LOOKUPS: u64 = 4_000;

/// Room for the level above the leaves, but not for much more when the trees have grown.
fn budget() -> Budget {
    Budget { fat_root_ranges: 80, set_nodes: [60; SETS], ..Budget::bmv2() }
}

/// A cluster with an active plan, and its follower.
fn living() -> (Living, Follower) {
    let mut living = Living::new(LOADED);
    let plan = living.plan(&budget(), &[]);
    living.begin_reload(plan);
    let plan = living.finish_reload();
    let options = FollowOptions { entries_per_s: 1e9, ..FollowOptions::default() };
    let (topology, placement) = (living.network().tree(), living.network().placement());
    let follower = Follower::new(topology, placement, plan, options);
    (living, follower)
}

/// Tells the follower what the first client has seen, and lets it do what it thinks worth it, while all clients write. Says whether
/// it planned anew.
fn follow(living: &mut Living, follower: &mut Follower) -> bool {
    let report = living.clients[0].report();
    follower.report(report.index_reads, report.stale_hints, &report.keys);
    if follower.poll_timeout().is_none_or(|due| due > living.now()) {
        return false;
    }
    let (now, tops) = (living.now(), living.tops());
    let Some(next) = follower.replan(now, &tops, [], &[]).unwrap() else { return false };
    living.begin_reload(next.plan);
    while living.reload_is_under_way() {
        living.mix(50, 0.1);
    }
    follower.loaded(living.finish_reload());
    true
}

#[test]
fn a_tree_that_grows_is_followed() {
    let (mut living, mut follower) = living();
    let before = living.round_trips(LOOKUPS);
    assert!(!follow(&mut living, &mut follower), "no hint was stale");

    let (loaded, old) = (living.tops(), follower.active().clone());
    living.insert(INSERTED);
    let grown = living.tops();
    for (loaded, grown) in loaded.iter().zip(&grown) {
        assert!(grown.partition.root_level > loaded.partition.root_level, "the root grew");
        assert!(grown.nodes.len() > loaded.nodes.len() + 50, "inner nodes were split");
    }
    living.clients[0].report();
    let stale = living.round_trips(LOOKUPS);
    assert!(stale > before + 0.3, "{stale} round trips by stale switches, {before} before");

    let (followed, planned) = come_to_rest(&mut living, &mut follower);
    eprintln!("{before} before, {stale} stale, {followed} followed, {planned} planned from nothing");
    assert_ne!(follower.active(), &old);
    assert!(followed < stale - 1.0);
    living.verify();
}

/// Lets the follower plan until it sees no reason any more, and then plans from nothing. Returns the mean
/// round trips after both.
///
/// Clients insert while a plan is loaded, so switches give more stale hints the longer that takes. Differences to the plan in
/// force are short enough to come to rest. Whole epochs are not: with one each time, six reloads do not suffice after shrinking.
fn come_to_rest(living: &mut Living, follower: &mut Follower) -> (f64, f64) {
    let mut reloads = 0;
    while follow(living, follower) {
        reloads += 1;
        assert!(reloads <= 3, "it does not come to rest");
        living.round_trips(LOOKUPS);
    }
    assert!(reloads >= 1, "it noticed nothing");
    let followed = living.round_trips(LOOKUPS);
    let keys = living.clients[0].report().keys;
    let plan = living.plan(&budget(), &keys);
    living.begin_reload(plan);
    living.finish_reload();
    let planned = living.round_trips(LOOKUPS);
    assert!(followed <= 1.05 * planned, "{followed} round trips, {planned} by a plan made from nothing");
    (followed, planned)
}

/// Nodes are merged and freed, and used again elsewhere, while switches lead there.
#[test]
fn a_tree_that_shrinks_is_followed() {
    let (mut living, mut follower) = living();
    let before = living.tops().iter().map(|top| top.nodes.len()).sum::<usize>();
    living.shrink(LOADED / 8);
    let after = living.tops().iter().map(|top| top.nodes.len()).sum::<usize>();
    assert!(after * 4 < before * 3, "{after} inner nodes of {before}");
    living.clients[0].report();
    living.mix(1_000, 0.5);
    let stale = living.round_trips(LOOKUPS);
    let (followed, planned) = come_to_rest(&mut living, &mut follower);
    eprintln!("{stale} stale, {followed} followed, {planned} planned from nothing");
    assert!(followed < stale - 0.1, "{followed} round trips, {stale} before");
    living.verify();
}

/// Every batch of a reload is met by lookups and inserts of one client that is registered and one that only believes it is.
#[test]
fn reloads_and_unregistered_periods_are_harmless_to_writers() {
    let (mut living, _) = living();
    living.insert(500);
    for round in 0..3 {
        // Other keys each time, so that there is much to write.
        let keys: Vec<u64> = (0..round * 500).map(|n| n << 48).collect();
        let plan = living.plan(&budget(), &keys);
        living.begin_reload(plan);
        living.mix(50, 0.5);
        let refused = living.refused;
        living.forget(1, true);
        living.mix(100, 0.5);
        assert!(living.refused > refused, "its index reads are refused");
        assert!(living.reload_is_under_way(), "nothing was met");
        living.forget(1, false);
        while living.reload_is_under_way() {
            living.mix(50, 0.5);
        }
        living.finish_reload();
    }
    eprintln!("{} batches, {} refused connections", living.written, living.refused);
    assert!(living.written > 100, "{} batches", living.written);
    living.verify();
}

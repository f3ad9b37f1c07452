//! The index cache: its size, its eviction, its threads.
use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::cache::{partition, put, spec};
use fatbtree_blink::node::NodeSpec;
use fatbtree_blink::{CacheStats, GlobalAddress, IndexCache, KeyRange};

/// Address of the child that begins at a key, in the tests of the map.
fn place(pivot: u64) -> GlobalAddress {
    GlobalAddress::new(0, 64 * (pivot + 1))
}

/// The level-1 node of the keys 160·n to 160·(n + 1) with children that begin 160 / `children` apart.
fn put_number(cache: &IndexCache, number: u64, children: u64, version: u32) {
    let low = number * 160;
    let children: Vec<_> = (0..children).map(|at| low + at * 160 / children).map(|p| (p, place(p))).collect();
    put(cache, 1, spec(1, low, low + 160, version), &children);
}

#[test]
fn a_copy_answers_for_its_range_and_no_further() {
    let cache = IndexCache::new(1 << 20);
    assert_eq!(cache.leaf_of(0), None);
    put_number(&cache, 1, 16, 1);
    let leaf = |key| cache.leaf_of(key);
    assert_eq!((leaf(159), leaf(160), leaf(169)), (None, Some(place(160)), Some(place(160))));
    assert_eq!((leaf(170), leaf(319), leaf(320)), (Some(place(170)), Some(place(310)), None));
    assert_eq!(cache.stats().entries, 1);
    assert_eq!(cache.stats().bytes, IndexCache::entry_bytes(16));
    // A newer version takes its place, with what it has.
    put_number(&cache, 1, 2, 2);
    assert_eq!((leaf(170), leaf(240)), (Some(place(160)), Some(place(240))));
    assert_eq!(cache.stats().bytes, IndexCache::entry_bytes(2));
    // The last node of the level has no end.
    let last = NodeSpec { range: KeyRange { low: 320, high: None }, ..spec(1, 320, 321, 1) };
    put(&cache, 9, last, &[(320, place(320))]);
    assert_eq!(leaf(u64::MAX), Some(place(320)));
}

#[test]
fn a_cache_that_is_hard_to_please_takes_what_comes_often() {
    let cache = IndexCache::new(1 << 20).one_in(4);
    for _ in 0..10 {
        (1..=3).for_each(|number| put_number(&cache, number, 16, 1));
    }
    assert_eq!(cache.stats().entries, 3);
    (4..=20).for_each(|number| put_number(&cache, number, 16, 1));
    let taken = cache.stats().entries - 3;
    assert!((4..=5).contains(&taken), "{taken} of 17 that came once");
}

#[test]
fn a_copy_learns_a_split_and_goes_when_it_has_too_many_children() {
    let cache = IndexCache::new(1 << 20);
    put_number(&cache, 0, 2, 1);
    cache.learn(1, 20, place(20), 4);
    assert_eq!((cache.leaf_of(19), cache.leaf_of(20)), (Some(place(0)), Some(place(20))));
    assert_eq!(cache.stats().bytes, IndexCache::entry_bytes(3));
    // The same once more is no news, and the node as it was read before is none either.
    cache.learn(1, 20, place(20), 4);
    put_number(&cache, 0, 2, 1);
    assert_eq!(cache.leaf_of(20), Some(place(20)));
    // Another child in the same place.
    cache.learn(1, 20, place(1000), 4);
    assert_eq!((cache.leaf_of(79), cache.leaf_of(80)), (Some(place(1000)), Some(place(80))));
    // No copy covers these keys.
    cache.learn(1, 160, place(160), 4);
    cache.learn(2, 20, place(20), 4);
    assert_eq!((cache.leaf_of(160), cache.stats().entries), (None, 1));
    cache.learn(1, 40, place(40), 4);
    cache.learn(1, 60, place(60), 4);
    assert_eq!(cache.stats(), CacheStats::default(), "five children where four fit");
}

#[test]
fn only_a_copy_that_still_leads_there_is_forgotten() {
    let cache = IndexCache::new(1 << 20);
    put_number(&cache, 0, 2, 1);
    cache.forget(1, 5, place(80));
    cache.forget(2, 5, place(0));
    assert_eq!(cache.leaf_of(5), Some(place(0)));
    cache.forget(1, 5, place(0));
    assert_eq!(cache.stats(), CacheStats::default());
}

/// Nodes that are used all the time stay, though far more pass by than there is room for.
#[test]
fn what_was_used_longer_ago_goes_first() {
    let cache = IndexCache::new(100 * IndexCache::entry_bytes(16));
    let (mut hits, mut asked) = (0, 0);
    for number in 10..5_000 {
        put_number(&cache, number, 16, 1);
        for hot in 0..10 {
            asked += 1;
            match cache.leaf_of(hot * 160) {
                Some(_) => hits += 1,
                None => put_number(&cache, hot, 16, 1),
            }
        }
    }
    assert_eq!((cache.stats().entries, cache.stats().bytes), (100, cache.limit()));
    assert!(cache.stats().evicted >= 4_900);
    // Chosen blindly, each would have to go once in a hundred fills.
    assert!(hits * 1_000 > asked * 998, "{hits} of {asked}");
}

/// The top two levels stay whatever passes by; when the tree grows, what is not top any more goes.
#[test]
fn the_top_two_levels_stay_until_the_tree_grows() {
    let room = 10 * IndexCache::entry_bytes(2);
    let cache = IndexCache::new(room);
    let two = |low: u64| [(low, place(low)), (low + 40, place(low + 40))];
    put(&cache, 3, spec(3, 0, 160, 1), &[(0, place(0)), (80, place(80))]);
    put(&cache, 3, spec(2, 0, 80, 1), &two(0));
    for number in 0..500 {
        put_number(&cache, number, 2, 1);
    }
    assert_eq!((cache.stats().entries, cache.stats().bytes), (10, room));
    assert_eq!(cache.below_top(45, 3), Some((place(40), 1)));
    assert_eq!(cache.below_top(100, 3), Some((place(80), 2)), "the root's child is not there");
    assert_eq!(cache.below_top(160, 3), None);
    // A level between is not kept.
    put(&cache, 9, spec(4, 0, 80, 1), &two(0));
    assert_eq!(cache.stats().entries, 10);
    // A new root: what was the top of the old tree is the second level, and what was the second goes.
    put(&cache, 4, spec(4, 0, 320, 1), &[(0, place(0)), (100, place(100))]);
    assert_eq!(
        (cache.below_top(45, 3), cache.below_top(200, 4)),
        (Some((place(0), 2)), Some((place(100), 3)))
    );
    assert_eq!(cache.below_top(90, 4), Some((place(80), 2)));
    // A client with the older level brings the second level once more.
    put(&cache, 3, spec(2, 80, 160, 1), &two(80));
    assert_eq!(cache.below_top(125, 3), Some((place(80), 2)));
    // The root has gone, and its second child's level is the top again: what is above is of no use.
    let entries = cache.stats().entries;
    cache.root_moved(&partition(3));
    assert_eq!((cache.below_top(200, 4), cache.stats().entries), (None, entries - 1));
    put(&cache, 3, spec(2, 80, 160, 1), &two(80));
    assert_eq!(cache.below_top(125, 3), Some((place(120), 1)));
    // The limit holds for the top as well.
    for low in 1..100 {
        put(&cache, 4, spec(3, low * 160, low * 160 + 80, 1), &two(low * 160));
    }
    assert_eq!((cache.stats().entries, cache.stats().bytes), (10, room));
}

#[test]
fn the_limit_holds_whatever_is_done() {
    let one = IndexCache::entry_bytes(1);
    for limit in [0, 1, one - 1, one, 400, 1_000, 5_000] {
        let cache = IndexCache::new(limit);
        for step in 0..3_000u64 {
            let draw = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let number = draw % 40;
            match draw % 7 {
                0..4 => put_number(&cache, number, 1 + draw / 64 % 16, draw as u32),
                4 => cache.learn(1, draw % 6_400, place(draw % 6_400), 16),
                5 => put(
                    &cache,
                    3,
                    spec(2, number * 160, number * 160 + 160, draw as u32),
                    &[(number * 160, place(0))],
                ),
                _ => cache.forget(1, draw % 6_400, cache.leaf_of(draw % 6_400).unwrap_or_default()),
            }
            assert!(cache.stats().bytes <= limit, "{:?} of {limit}", cache.stats());
        }
        assert_eq!(cache.stats().entries > 0, limit >= one, "{:?} of {limit}", cache.stats());
        cache.clear();
        assert_eq!((cache.stats().entries, cache.stats().bytes), (0, 0));
    }
}

/// Threads read, fill, mend and forget concurrently: each value found was put there by a thread, and the
/// count is right in the end.
#[test]
fn threads_share_a_cache() {
    let cache = IndexCache::new(16 * IndexCache::entry_bytes(16));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let fillers: Vec<_> = (0..3u64)
            .map(|thread| {
                let cache = &cache;
                scope.spawn(move || {
                    for step in 0..20_000u64 {
                        let draw = (step * 3 + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                        let (number, key) = (draw % 64, draw / 64 % (64 * 160));
                        match draw % 8 {
                            0..4 => {
                                put_number(cache, number, [2, 4, 8, 16][draw as usize / 8 % 4], draw as u32)
                            }
                            4..6 => cache.learn(1, key / 10 * 10, place(key / 10 * 10), 16),
                            6 => cache.forget(1, key, cache.leaf_of(key).unwrap_or_default()),
                            _ => assert!(cache.stats().bytes <= cache.limit()),
                        }
                    }
                })
            })
            .collect();
        for thread in 0..2u64 {
            let (cache, done) = (&cache, &done);
            scope.spawn(move || {
                let (mut key, mut found) = (thread, 0u64);
                while !done.load(Ordering::Relaxed) || found == 0 {
                    key = (key + 7_919) % (64 * 160);
                    if let Some(leaf) = cache.leaf_of(key) {
                        let pivot = leaf.offset() / 64 - 1;
                        assert!(
                            pivot <= key && pivot % 10 == 0 && pivot / 160 == key / 160,
                            "{key}: {pivot}"
                        );
                        found += 1;
                    }
                }
            });
        }
        let ended: Vec<_> = fillers.into_iter().map(|filler| filler.join()).collect();
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|end| end.unwrap());
    });
    let stats = cache.stats();
    assert!(stats.entries > 10 && stats.evicted > 1_000, "{stats:?}");
    cache.clear();
    assert_eq!((cache.stats().bytes, cache.stats().entries), (0, 0));
}

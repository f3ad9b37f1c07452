use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;

fn place(number: u64) -> EntryPlace {
    EntryPlace { address: GlobalAddress::new(3, 64 * (number + 1)), part: EntryPart::of(number as u32) }
}

/// Bytes of so many sets.
fn sets(count: u64) -> u64 {
    count * size_of::<Set>() as u64
}

#[test]
fn it_holds_what_was_put_and_no_more_than_fits() {
    let cache = EntryCache::new(sets(1000) + 95);
    assert_eq!((cache.bytes(), cache.limit(), cache.capacity()), (sets(1000), sets(1000) + 95, 4000));
    assert_eq!(cache.get(0), None, "an empty slot is no place of key 0");
    for key in 0..1_000 {
        cache.put(key, place(key), cache.tree());
    }
    let found = (0..1_000).filter(|key| cache.get(*key) == Some(place(*key))).count();
    assert!(found > 980, "{found} of 1000 in a quarter of the room");
    (0..100_000).for_each(|key| cache.put(key, place(key), cache.tree()));
    assert_eq!((cache.stats().entries, cache.stats().bytes), (4_000, sets(1000)));
}

#[test]
fn without_room_it_is_empty() {
    for limit in [0, 1, sets(1) - 1] {
        let cache = EntryCache::new(limit);
        cache.put(7, place(7), cache.tree());
        cache.forget(7, place(7));
        assert_eq!((cache.get(7), cache.bytes(), cache.capacity()), (None, 0, 0));
    }
}

#[test]
fn keys_that_are_asked_for_stay() {
    let cache = EntryCache::new(sets(1));
    for key in 0..3 {
        cache.put(key, place(key), cache.tree());
        assert!(cache.get(key).is_some());
    }
    (3..1_000).for_each(|key| cache.put(key, place(key), cache.tree()));
    assert!((0..3).all(|key| cache.get(key).is_some()), "keys that come once take one slot");
    // When all were used, the next one takes the place of one of them.
    assert!(cache.get(999).is_some());
    cache.put(1_000, place(1_000), cache.tree());
    assert_eq!([0, 1, 2, 999].iter().filter(|key| cache.get(**key).is_some()).count(), 3);
}

#[test]
fn another_tree_hides_all_places_and_those_that_come_late() {
    let cache = EntryCache::new(sets(16));
    let before = cache.tree();
    cache.put(1, place(1), before);
    cache.clear();
    assert_eq!(cache.get(1), None);
    cache.put(2, place(2), before);
    assert_eq!((cache.get(2), cache.stats().entries), (None, 0));
    cache.put(1, place(5), cache.tree());
    assert_eq!(cache.get(1), Some(place(5)));
}

#[test]
fn a_place_is_forgotten_only_if_it_is_the_one() {
    let cache = EntryCache::new(sets(16));
    cache.put(1, place(1), cache.tree());
    cache.forget(1, place(2));
    assert_eq!(cache.get(1), Some(place(1)));
    cache.forget(1, place(1));
    assert_eq!(cache.get(1), None);
}

/// Words of two places in one slot are those of no key.
#[test]
fn a_torn_slot_is_not_taken_for_a_place() {
    let (one, two) = (Slot::words(7, 1, place(1)), Slot::words(7, 1, place(2)));
    for mixture in 1..7_usize {
        let words = std::array::from_fn(|at| if mixture >> at & 1 == 0 { one[at] } else { two[at] });
        let slot = Slot::default();
        slot.write(words);
        assert_ne!(slot.read().0, 7, "mixture {mixture}");
    }
}

/// Threads that fill and read at once never get a place that was not put for the key.
#[test]
fn threads_get_only_what_was_put_for_the_key() {
    let cache = EntryCache::new(sets(2));
    let done = AtomicBool::new(false);
    let of = |key: u64, number: u64| place(key << 20 | number);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (cache, done) = (&cache, &done);
            scope.spawn(move || {
                for number in 0..100_000 {
                    let key = number % 16;
                    cache.put(key, of(key, number * 2 + thread), cache.tree());
                    if number % 7 == 0 {
                        cache.forget(key, of(key, number * 2 + thread));
                    }
                }
                done.store(true, Relaxed);
            });
        }
        let mut found = 0;
        while !done.load(Relaxed) || found == 0 {
            for key in 0..16 {
                if let Some(EntryPlace { address, part }) = cache.get(key) {
                    let number = address.offset() / 64 - 1;
                    assert_eq!((number >> 20, number as u32), (key, part.word()));
                    found += 1;
                }
            }
        }
    });
}

#[derive(Clone, Debug)]
enum Step {
    Get(u64),
    Put(u64, u64),
    PutLate(u64, u64),
    Forget(u64, u64),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || prop_oneof![0..20_u64, any::<u64>()];
    prop_oneof![
        4 => key().prop_map(Step::Get),
        4 => (key(), 0..5_u64).prop_map(|(key, number)| Step::Put(key, number)),
        1 => (key(), 0..5_u64).prop_map(|(key, number)| Step::PutLate(key, number)),
        2 => (key(), 0..5_u64).prop_map(|(key, number)| Step::Forget(key, number)),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    /// The table is a map that may lose places and invents none. What it names was put last, under the present tree, and was not forgotten.
    #[test]
    fn it_is_a_map_that_may_forget(count in 0..8_u64, steps in prop::collection::vec(step(), 0..200)) {
        let cache = EntryCache::new(sets(count));
        let mut model: BTreeMap<u64, EntryPlace> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Get(key) => {
                    let found = cache.get(key);
                    prop_assert!(found.is_none() || found == model.get(&key).copied(), "{key}: {found:?}");
                }
                Step::Put(key, number) => {
                    cache.put(key, place(number), cache.tree());
                    model.insert(key, place(number));
                    prop_assert_eq!(cache.get(key).is_some(), count > 0, "what came last is there");
                }
                Step::PutLate(key, number) => cache.put(key, place(number), cache.tree().wrapping_sub(1)),
                Step::Forget(key, number) => {
                    cache.forget(key, place(number));
                    if model.get(&key) == Some(&place(number)) {
                        model.remove(&key);
                        prop_assert_eq!(cache.get(key), None);
                    }
                }
                Step::Clear => {
                    cache.clear();
                    model.clear();
                }
            }
            prop_assert!(cache.stats().entries <= cache.capacity() as u64);
        }
    }
}

//! Short values in entries and longer ones in records, in one tree: a value grows and shrinks, and a client or switch that
//! knows its former place gets the present one.
use crate::common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use common::{Client, Lab, configs};
use fatbtree_blink::{
    Change, EntryCache, GlobalAddress, KeyRange, ScanOptions, Start, TreeConfig, Trips, ValueLayout,
};

const KEY: u64 = 500;

/// Trees with such values, and the longest that is in line.
fn by_length() -> impl Iterator<Item = (TreeConfig, usize)> {
    configs().into_iter().filter_map(|config| match config.values() {
        ValueLayout::ByLength(longest) => Some((config, longest.into())),
        _ => None,
    })
}

/// A tree of some leaves, and switches that know its root and one place.
struct Led {
    lab: Lab,
    client: Client,
    /// Of the key, and whether it is its leaf.
    place: Rc<Cell<Option<(GlobalAddress, bool)>>>,
}

impl Led {
    fn new(config: TreeConfig) -> Self {
        let mut lab = Lab::new(config);
        let place = Rc::new(Cell::new(None::<(GlobalAddress, bool)>));
        let root = lab.servers[0].partition.root;
        let client = lab.client_behind(1, true, {
            let place = Rc::clone(&place);
            move |_, target| match place.get().filter(|_| target.or_record()) {
                Some((leaf, true)) => Some(leaf.behind(target.offset_in_leaf())),
                Some((record, false)) => Some(record),
                None => Some(root),
            }
        });
        let led = Self { lab, client, place };
        for key in 0..20 {
            led.put(key * 50, &[7; 20][..key as usize]);
        }
        led
    }

    fn put(&self, key: u64, value: &[u8]) {
        let change = self.client.mutate(key, Change::Upsert(value), Start::Root);
        assert!(self.lab.run(&self.client, change).result.unwrap());
    }

    fn get(&self, key: u64, start: Start) -> (Option<Vec<u8>>, Trips) {
        let found = self.lab.run(&self.client, self.client.lookup(key, start));
        (found.result.unwrap().map(|value| value.to_vec()), found.trips)
    }

    /// The switches hear where the key is now: its leaf, or its record.
    fn learn(&self, key: u64) {
        let mut found = None;
        self.lab.each_tree(|_, tree| found = tree.place_of(key, &mut 0).unwrap());
        let is_leaf = !self.has_record(key);
        self.place.set(found.map(|place| (place, is_leaf)));
    }

    fn has_record(&self, key: u64) -> bool {
        let mut found = None;
        self.lab.each_tree(|_, tree| found = tree.record_of(key).unwrap());
        found.is_some()
    }
}

#[test]
fn a_value_is_found_by_every_way_whatever_its_length_was() {
    for (config, longest) in by_length() {
        let led = Led::new(config);
        led.client.set_entry_cache(Some(Arc::new(EntryCache::new(1 << 12))));
        // In an order that crosses the border often.
        let lengths = [longest, longest + 1, 0, longest + 30, 8, longest, 1_000, longest + 2, 1];
        for (number, length) in lengths.into_iter().enumerate() {
            let value = vec![number as u8; length];
            led.put(KEY, &value);
            assert_eq!(led.has_record(KEY), length > longest, "{length} bytes");
            // The places that switches and the cache know are the former ones, then the present ones.
            for _ in 0..2 {
                for start in [Start::IndexRead, Start::Cached, Start::CachedOrIndexRead, Start::Root] {
                    assert_eq!(led.get(KEY, start).0.as_ref(), Some(&value), "{start:?}, {length} bytes");
                }
                led.learn(KEY);
            }
            assert!(led.get(KEY, Start::Cached).1.speculated, "{length} bytes");
            let (mut scan, mut pairs) = (led.client.scan(KeyRange::ALL, ScanOptions::default()), Vec::new());
            while let Some(pair) = led.lab.run(&led.client, scan.next()) {
                pairs.push(pair.unwrap());
            }
            let found = pairs.iter().find(|(key, _)| *key == KEY).map(|(_, value)| value.to_vec());
            assert_eq!((found.as_ref(), pairs.len()), (Some(&value), 20));
            let swap = Change::CompareAndSwap { expected: &value, value: &value };
            let swapped = led.lab.run(&led.client, led.client.mutate(KEY, swap, Start::Root));
            assert!(swapped.result.unwrap(), "{length} bytes");
        }
        led.lab.assert_unlocked(&led.client);
    }
}

/// A switch that knows the key's leaf, or its record, brings the value in one round trip.
#[test]
fn a_hot_key_takes_one_round_trip_whatever_its_length() {
    for (config, longest) in by_length() {
        for length in [0, 8, longest, longest + 1, 100] {
            let led = Led::new(config);
            led.put(KEY, &vec![1; length]);
            led.learn(KEY);
            let mut trips = led.get(KEY, Start::IndexRead).1;
            // A client that has moved a record itself does not ask for it at once.
            for _ in 0..20 {
                trips = led.get(KEY, Start::IndexRead).1;
            }
            assert_eq!(trips.round_trips, 1, "{length} bytes");
        }
    }
}

/// Records that were given up for short values are free: others take their places.
#[test]
fn places_of_records_are_used_again() {
    for (config, longest) in by_length() {
        let led = Led::new(config);
        led.put(KEY, &vec![1; longest + 19]);
        let mut first = None;
        led.lab.each_tree(|_, tree| first = tree.record_of(KEY).unwrap());
        led.put(KEY, b"short");
        led.put(450, &vec![2; longest + 19]);
        let mut second = None;
        led.lab.each_tree(|_, tree| second = tree.record_of(450).unwrap());
        assert_eq!(first.unwrap().address, second.unwrap().address);
        assert_eq!(led.get(KEY, Start::Root).0.as_deref(), Some(&b"short"[..]));
    }
}

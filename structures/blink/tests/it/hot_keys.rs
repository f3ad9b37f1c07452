//! Index reads that switches lead straight to the records of keys, or to where records were.
use crate::common;

use std::cell::Cell;
use std::rc::Rc;

use common::{Client, Lab};
use fatbtree_blink::record::{MARK_BYTES, RecordPointer, UNPUBLISHED};
use fatbtree_blink::{Change, GlobalAddress, Start, TreeConfig, Trips, ValueLayout};

const KEY: u64 = 500;

/// A tree of some leaves, and switches that know its root and where a record is, or was.
struct Hot {
    lab: Lab,
    client: Client,
    record: Rc<Cell<Option<GlobalAddress>>>,
}

impl Hot {
    fn new() -> Self {
        let mut lab = Lab::new(TreeConfig::new(4, 256, ValueLayout::OutOfLine).unwrap());
        let record = Rc::new(Cell::new(None));
        let root = lab.servers[0].partition.root;
        let client = lab.client_behind(1, true, {
            let record = Rc::clone(&record);
            move |_, target| record.get().filter(|_| target.or_record()).or(Some(root))
        });
        let hot = Self { lab, client, record };
        for key in 0..10 {
            hot.put(key * 100, b"first");
        }
        hot
    }

    fn mutate(&self, key: u64, mutation: Change<'_>) {
        let change = self.lab.run(&self.client, self.client.mutate(key, mutation, Start::IndexRead));
        assert!(change.result.unwrap());
    }

    fn put(&self, key: u64, value: &[u8]) {
        self.mutate(key, Change::Upsert(value));
    }

    fn record_of(&self, key: u64) -> Option<RecordPointer> {
        let mut found = None;
        self.lab.each_tree(|_, tree| found = tree.record_of(key).unwrap());
        found
    }

    /// The switches know where the record is now.
    fn learn(&self, key: u64) -> RecordPointer {
        let record = self.record_of(key).unwrap();
        self.record.set(Some(record.address));
        record
    }

    fn get(&self, key: u64) -> (Option<Vec<u8>>, Trips) {
        let found = self.lab.run(&self.client, self.client.lookup(key, Start::IndexRead));
        (found.result.unwrap().map(|value| value.to_vec()), found.trips)
    }

    /// Looks a key up by the way of nodes until the client has forgotten that the key's record has moved, if it knew. Says what one
    /// lookup costs.
    fn forget(&self, key: u64) -> Trips {
        let record = self.record.take();
        let mut trips = Trips::default();
        for _ in 0..20 {
            trips = self.get(key).1;
        }
        self.record.set(record);
        trips
    }

    /// Looks the key up past a record that does not count.
    fn get_past_stale(&self, key: u64) -> Option<Vec<u8>> {
        let direct = self.forget(key);
        let before = self.client.stats();
        let (found, trips) = self.get(key);
        let after = self.client.stats();
        assert_eq!(trips.round_trips, direct.round_trips + 1, "one more, for the record");
        assert_eq!((trips.restarts, trips.retries, trips.landed_on_record), (0, 0, false));
        assert_eq!(after.index_reads - before.index_reads, 2);
        assert_eq!((after.stale_records - before.stale_records, after.records), (1, before.records));
        assert!(after.stale_hints > before.stale_hints);
        let (again, trips) = self.get(key);
        assert_eq!((&again, trips), (&found, direct), "the client knows now");
        found
    }
}

#[test]
fn a_record_is_the_answer_in_one_round_trip() {
    let hot = Hot::new();
    hot.learn(KEY);
    let (found, trips) = hot.get(KEY);
    assert_eq!(found.unwrap(), b"first");
    assert_eq!(trips, Trips { round_trips: 1, landed_on_record: true, ..Trips::default() });
    let stats = hot.client.stats();
    assert_eq!((stats.records, stats.stale_records, stats.stale_hints), (1, 0, 0));
}

#[test]
fn a_record_that_does_not_count_costs_one_round_trip() {
    let hot = Hot::new();
    let first = hot.learn(KEY);
    assert_eq!(hot.get_past_stale(400).unwrap(), b"first", "another key's");
    hot.put(KEY, b"second");
    assert_eq!(hot.get_past_stale(KEY).unwrap(), b"second", "the one before");
    hot.put(KEY, b"third");
    assert_eq!(hot.record_of(KEY).unwrap().address, first.address, "its place is used again");
    hot.forget(KEY);
    assert_eq!(hot.get(KEY).0.unwrap(), b"third");
    assert_eq!(hot.get(KEY).1.round_trips, 1);
    hot.mutate(KEY, Change::Delete);
    assert_eq!(hot.get_past_stale(KEY), None, "deleted");
    assert_eq!(hot.record_of(KEY), None);
    hot.put(400, b"other");
    assert_eq!(hot.record_of(400).unwrap().address, hot.record.get().unwrap(), "of another key now");
    assert_eq!(hot.get_past_stale(KEY), None);
    hot.forget(400);
    assert_eq!(hot.get(400).1.round_trips, 1);
}

/// Lookups by way of the leaf ignore the mark; switches lead none to a record without it.
#[test]
fn a_record_whose_writer_died_is_found_by_its_leaf() {
    let hot = Hot::new();
    let record = hot.learn(KEY);
    let memory = &hot.lab.servers[0].memory;
    let mut mark = [0; MARK_BYTES];
    memory.read(record.address.offset(), &mut mark).unwrap();
    assert_ne!(mark, UNPUBLISHED);
    let verify = || hot.lab.run(&hot.client, hot.client.verify()).unwrap();
    assert_eq!(verify().unpublished, 0);
    memory.write(record.address.offset(), &UNPUBLISHED).unwrap();
    assert_eq!(hot.get_past_stale(KEY).unwrap(), b"first");
    assert_eq!((hot.record_of(KEY), verify().unpublished), (None, 1));
    hot.put(KEY, b"second");
    assert!(hot.record_of(KEY).is_some(), "the next writer marks its own");
}

/// A value that is longer than what an index read asks for is no answer, wherever a switch leads.
#[test]
fn a_record_that_is_too_long_is_read_by_its_leaf() {
    let hot = Hot::new();
    hot.put(KEY, &[7; 1000]);
    hot.learn(KEY);
    assert_eq!(hot.get_past_stale(KEY).unwrap(), [7; 1000]);
}

/// Changes and scans need the leaf.
#[test]
fn only_lookups_are_led_to_records() {
    let hot = Hot::new();
    hot.learn(KEY);
    hot.put(KEY, b"second");
    let change = hot.client.mutate(KEY, Change::Update(b"third"), Start::IndexRead);
    assert_eq!(hot.lab.run(&hot.client, change).trips.restarts, 0);
    assert_eq!((hot.client.stats().records, hot.client.stats().stale_records), (0, 0));
}

/// Marks take two WRITEs of two bytes for an update, one for an insertion or deletion, and no round trip.
#[test]
fn what_marks_cost() {
    let hot = Hot::new();
    let cost = |mutation: Change<'_>| {
        let before = hot.client.stats().remote.written_bytes;
        let change = hot.lab.run(&hot.client, hot.client.mutate(KEY, mutation, Start::Root));
        assert!(change.result.unwrap());
        (hot.client.stats().remote.written_bytes - before, change.trips.round_trips)
    };
    let trips = hot.lab.run(&hot.client, hot.client.lookup(KEY, Start::Root)).trips;
    // To the leaf, lock and read it, write and unlock: as many as without marks. The lookup reads leaf and record.
    let (record, entry, round_trips) = (24 + 8, 1 + 8 + 12, trips.round_trips);
    assert_eq!(cost(Change::Update(&[1; 8])), (record + 2 + entry + 2, round_trips));
    assert_eq!(cost(Change::Delete), (2 + entry, round_trips));
    assert_eq!(cost(Change::Insert(&[2; 8])), (record + entry + 2, round_trips));
}

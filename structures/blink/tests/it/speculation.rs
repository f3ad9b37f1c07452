//! Speculative lookups at places that are right, stale, freed, used again, torn, or another key's.
use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Client, Lab, configs, value_of};
use fatbtree_blink::node::{LINE, NodeHeader, entry_lines, mark_free, offsets, partnered, read_entry};
use fatbtree_blink::record::{MARK_BYTES, UNPUBLISHED, record_bytes};
use fatbtree_blink::{
    Change, Check, EntryCache, EntryPart, EntryPlace, GlobalAddress, Integrity, LeafKind, Owner, SessionId,
    Start, TreeConfig, Trips, ValueLayout,
};
use proptest::prelude::*;

/// The key that is looked up.
const KEY: u64 = 1_000_000;

/// Does something without a check; nothing where checks cannot be left out.
fn without<T>(check: Check, work: impl FnOnce() -> T) -> Option<T> {
    #[cfg(feature = "switchable-checks")]
    return Some(check.without(work));
    #[cfg(not(feature = "switchable-checks"))]
    {
        let _ = (check, work);
        None
    }
}

/// A tree, a client that writes, and one that speculates.
struct Two {
    lab: Lab,
    writer: Client,
    reader: Client,
    entries: Arc<EntryCache>,
}

impl Two {
    fn new(config: TreeConfig) -> Self {
        let mut lab = Lab::with_many_locks(config);
        let (writer, reader) = (lab.client(1, true), lab.client(2, true));
        let entries = Arc::new(EntryCache::new(1 << 16));
        reader.set_entry_cache(Some(Arc::clone(&entries)));
        Self { lab, writer, reader, entries }
    }

    fn value(&self, number: u64) -> Vec<u8> {
        // All of one length, so that records take the places of one another.
        let mut value = value_of(&self.lab.config, number);
        if self.lab.config.values() == ValueLayout::OutOfLine {
            value = number.to_le_bytes().repeat(3);
        }
        value
    }

    fn mutate(&self, key: u64, mutation: Change<'_>) {
        let change = self.lab.run(&self.writer, self.writer.mutate(key, mutation, Start::Root));
        assert!(change.result.unwrap());
    }

    fn put(&self, key: u64, number: u64) {
        self.mutate(key, Change::Upsert(&self.value(number)));
    }

    fn get(&self, key: u64) -> (Option<Vec<u8>>, Trips) {
        let found = self.lab.run(&self.reader, self.reader.lookup(key, Start::Cached));
        (found.result.unwrap().map(|value| value.to_vec()), found.trips)
    }

    /// Looks the key up twice, so that its place is known, and is right.
    fn learn(&self, key: u64) -> EntryPlace {
        self.get(key);
        assert!(self.get(key).1.speculated);
        self.entries.get(key).unwrap()
    }

    /// The same where the value is in line: leaf and slot.
    fn learn_slot(&self, key: u64) -> (GlobalAddress, usize) {
        match self.learn(key) {
            EntryPlace { address, part: EntryPart::Slot(slot) } => (address, slot as usize),
            place => panic!("{place:?} is a record"),
        }
    }

    /// Without `check` the known place of [`KEY`] answers with a value of the number `wrong`. With it, the lookup notices, costs one round
    /// trip more, and finds the value of the number `right`.
    fn assert_needed(&self, check: Check, wrong: u64, right: Option<u64>) {
        if let Some((found, trips)) = without(check, || self.get(KEY)) {
            assert_eq!(found, Some(self.value(wrong)), "{check:?} in {:?}", self.lab.config);
            assert_eq!((trips.speculated, trips.round_trips), (true, 1));
        }
        let before = self.reader.entry_cache_stats();
        let (found, trips) = self.get(KEY);
        assert_eq!(found, right.map(|number| self.value(number)), "{check:?} in {:?}", self.lab.config);
        let after = self.reader.entry_cache_stats();
        assert_eq!((trips.speculated, after.stale, after.hits), (false, before.stale + 1, before.hits));
        let again = self.get(KEY);
        assert_eq!((&again.0, again.1.speculated), (&found, right.is_some()), "the place is right now");
    }

    fn bytes(&self, address: GlobalAddress, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.lab.servers[0].memory.read(address.offset(), &mut bytes).unwrap();
        bytes
    }

    fn write(&self, address: GlobalAddress, bytes: &[u8]) {
        self.lab.servers[0].memory.write(address.offset(), bytes).unwrap();
    }

    fn leaf(&self, address: GlobalAddress) -> Vec<u8> {
        self.bytes(address, self.lab.config.leaf_bytes() as usize)
    }

    fn header(&self, address: GlobalAddress) -> NodeHeader {
        NodeHeader::parse(self.bytes(address, LINE).first_chunk().unwrap())
    }

    /// Fills the root until it has been split; [`KEY`] is the greatest key. Returns the right leaf.
    fn split(&self) -> GlobalAddress {
        self.put(KEY, 1);
        for key in 0.. {
            if self.writer.stats().splits > 0 {
                break;
            }
            self.put(key * 10, 1);
        }
        let leaves = self.lab.leaves();
        assert_eq!(leaves.len(), 2);
        leaves[1].1
    }

    /// Deletes other keys until the two leaves are one.
    fn merge(&self) {
        let keys: Vec<u64> = self.lab.contents().into_keys().filter(|key| *key != KEY).collect();
        for key in keys {
            if self.writer.stats().merges > 0 {
                break;
            }
            self.mutate(key, Change::Delete);
        }
        assert_eq!(self.writer.stats().merges, 1);
    }
}

fn inline() -> impl Iterator<Item = TreeConfig> {
    configs().into_iter().filter(|config| config.leaf_shape().has_values())
}

fn out_of_line() -> impl Iterator<Item = TreeConfig> {
    configs().into_iter().filter(|config| config.values() == ValueLayout::OutOfLine)
}

#[test]
fn a_known_place_is_the_answer_in_one_round_trip() {
    for config in configs() {
        let two = Two::new(config);
        for key in 0..100 {
            two.put(key, key);
        }
        assert_eq!(two.get(7).0, Some(two.value(7)));
        let before = two.reader.stats().remote.read_bytes;
        let (found, trips) = two.get(7);
        assert_eq!(found, Some(two.value(7)));
        assert_eq!(trips, Trips { round_trips: 1, speculated: true, ..Trips::default() });
        let bytes = match config.values() {
            ValueLayout::Inline(_) | ValueLayout::ByLength(_) => {
                if config.leaf_shape().is_wide() {
                    192
                } else {
                    128
                }
            }
            ValueLayout::OutOfLine => u64::from(record_bytes(24)),
        };
        assert_eq!(two.reader.stats().remote.read_bytes - before, bytes);
        let stats = two.reader.entry_cache_stats();
        assert_eq!((stats.hits, stats.misses, stats.stale, stats.entries), (1, 1, 0, 1));
        assert_eq!(stats.bytes, two.entries.bytes());
        // Only what asks the caches asks this one.
        let walk = two.lab.run(&two.reader, two.reader.lookup(7, Start::Root));
        assert!(!walk.trips.speculated);
        assert_eq!(
            (two.get(1_000).0, two.entries.get(1_000)),
            (None, None),
            "what is not there has no place"
        );
    }
}

/// Two threads' clients and one cache.
#[test]
fn clients_share_it() {
    for config in configs() {
        let mut two = Two::new(config);
        (0..30).for_each(|key| two.put(key, key));
        two.learn(5);
        let other = two.lab.client(3, true);
        other.set_entry_cache(Some(Arc::clone(&two.entries)));
        let found = two.lab.run(&other, other.lookup(5, Start::CachedOrIndexRead));
        assert!(found.trips.speculated && other.entry_cache_stats().hits == 1);
        other.set_entry_cache(Some(Arc::new(EntryCache::new(0))));
        assert!(!two.lab.run(&other, other.lookup(5, Start::Cached)).trips.speculated);
    }
}

/// Changes of a client that has the cache keep its places right.
#[test]
fn own_changes_keep_places_right() {
    for config in configs() {
        let two = Two::new(config);
        (0..30).for_each(|key| two.put(key, key));
        let change = |mutation: Change<'_>| {
            let change = two.lab.run(&two.reader, two.reader.mutate(5, mutation, Start::Cached));
            assert!(change.result.unwrap());
            change.trips.round_trips
        };
        change(Change::Update(&two.value(100)));
        assert_eq!(
            two.get(5),
            (Some(two.value(100)), Trips { round_trips: 1, speculated: true, ..Trips::default() })
        );
        let trips = change(Change::Update(&two.value(101)));
        assert!(two.get(5).1.speculated);
        let starts = two.reader.entry_cache_stats().starts;
        // Where it leads to leaves, a change begins there: it locks and reads, then writes and unlocks.
        assert_eq!(
            (starts, trips == 2),
            if config.leaf_shape().has_values() { (1, true) } else { (0, false) }
        );
        change(Change::Delete);
        assert_eq!(two.entries.get(5), None);
        assert_eq!(two.get(5).0, None);
        change(Change::Insert(&two.value(102)));
        assert_eq!((two.get(5).0, two.get(5).1.speculated), (Some(two.value(102)), true));
        assert_eq!(two.reader.entry_cache_stats().stale, 0);
    }
}

#[test]
fn a_leaf_that_was_merged_away_is_noticed() {
    for config in inline() {
        let two = Two::new(config);
        let right = two.split();
        assert_eq!(two.learn(KEY).address, right);
        two.merge();
        assert!(two.header(right).is_free());
        two.put(KEY, 2);
        two.assert_needed(Check::SpeculatedFree, 1, Some(2));
    }
}

/// The writer died after the second WRITE of a split, and the key was changed in the new leaf.
#[test]
fn a_leaf_whose_split_is_unfinished_is_noticed() {
    for config in inline() {
        let two = Two::new(config);
        two.put(KEY, 1);
        let root = two.learn(KEY).address;
        let mut before = two.leaf(root);
        for key in 0.. {
            let now = two.leaf(root);
            // Entries may have been moved for the key before.
            two.learn(KEY);
            two.put(key * 10, 1);
            if two.writer.stats().splits > 0 {
                before = now;
                break;
            }
        }
        let begun = partnered(&config, &before, two.header(root).sibling);
        before[..begun.len()].copy_from_slice(&begun);
        two.write(root, &before);
        two.put(KEY, 2);
        assert!(!two.header(root).partner.is_null(), "the split is not finished");
        two.assert_needed(Check::SpeculatedPartner, 1, Some(2));
    }
}

/// Line and header are read while the leaf's memory becomes another leaf.
#[test]
fn a_header_of_another_leaf_in_the_same_memory_is_noticed() {
    for config in inline() {
        let two = Two::new(config);
        let right = two.split();
        let (_, slot) = two.learn_slot(KEY);
        let lines = entry_lines(config.leaf_shape(), slot);
        two.merge();
        // The line is read here,
        let old = two.leaf(right);
        two.put(KEY, 2);
        for key in 1..1_000 {
            if !two.header(right).is_free() {
                break;
            }
            two.put(key * 10 + 1, 1);
        }
        // and the header here.
        let new = two.leaf(right);
        assert!(two.header(right).range().contains(KEY) && !two.header(right).is_free());
        let read = |header: &[u8], line: &[u8]| {
            read_entry(&config, right, slot, KEY, &header[..LINE], &line[lines.clone()])
        };
        let wrong = without(Check::SpeculatedVersion, || read(&new, &old));
        if let Some(wrong) = wrong {
            assert_eq!(old[lines.clone()][wrong.unwrap()], two.value(1));
        }
        assert!(read(&new, &old).unwrap_err().is_torn());
        // The other way round, the header was read before the leaf was freed.
        assert!(read(&old, &new).is_err());
        let (found, _) = two.get(KEY);
        assert_eq!(found, Some(two.value(2)));
    }
}

#[test]
fn a_slot_with_another_entry_or_none_is_noticed() {
    for config in inline().filter(|config| config.leaves() == LeafKind::Plain) {
        let two = Two::new(config);
        two.put(KEY, 1);
        let place = two.learn(KEY);
        two.mutate(KEY, Change::Delete);
        two.assert_needed(Check::SpeculatedKey, 1, None);
        two.put(7, 7);
        assert_eq!(two.learn(7), place, "the slot is the next one to be used");
        two.entries.put(KEY, place, two.entries.tree());
        two.assert_needed(Check::SpeculatedKey, 7, None);
    }
}

/// What lies at the place is no leaf of this tree, or not the key's, although it has an entry of the key.
#[test]
fn memory_that_is_no_leaf_of_the_tree_is_noticed() {
    for config in inline().filter(|config| config.integrity() == Integrity::LineVersions) {
        let two = Two::new(config);
        let right = two.split();
        let place = two.learn(KEY);
        let leaf = two.leaf(right);
        two.merge();
        two.put(KEY, 2);
        let forge = |at: usize, bytes: &[u8]| {
            let mut forged = leaf.clone();
            forged[at..at + bytes.len()].copy_from_slice(bytes);
            two.write(right, &forged);
            two.entries.put(KEY, place, two.entries.tree());
            two.assert_needed(Check::SpeculatedLeaf, 1, Some(2));
        };
        forge(offsets::MAGIC, &[0, 0]);
        forge(offsets::LEVEL, &[1]);
        forge(offsets::FORMAT, &[7]);
        forge(offsets::FLAGS, &[2 | 4]);
        forge(offsets::ADDRESS, &(right.raw() + 64).to_le_bytes());
        forge(offsets::LOW, &(KEY + 1).to_le_bytes());
    }
}

/// One line is cut in the middle, where cards do so.
#[test]
fn a_torn_line_does_not_match_its_checksum() {
    for config in inline().filter(|config| config.integrity() == Integrity::Checksums) {
        let two = Two::new(config);
        two.put(KEY, 1);
        let (address, slot) = two.learn_slot(KEY);
        let mut leaf = two.leaf(address);
        let lines = entry_lines(config.leaf_shape(), slot);
        let read = |leaf: &[u8]| {
            let value = read_entry(&config, address, slot, KEY, &leaf[..LINE], &leaf[lines.clone()]);
            value.map(|value| leaf[lines.clone()][value].to_vec())
        };
        assert_eq!(read(&leaf), Ok(two.value(1)));
        let before = if matches!(config.values(), ValueLayout::ByLength(_)) { 10 } else { 9 };
        let value = config.leaf_shape().entry_offset(slot) + before;
        leaf[value] ^= 0xff;
        let torn = without(Check::SpeculatedChecksum, || read(&leaf));
        assert!(torn.is_none_or(|torn| torn.unwrap() != two.value(1)));
        assert!(read(&leaf).unwrap_err().is_torn());
        leaf[value] ^= 0xff;
        leaf[offsets::PARTNER - 1] ^= 1;
        assert!(read(&leaf).unwrap_err().is_torn(), "the header's line as well");
    }
}

/// A wide entry is written between the READs of its two lines.
#[test]
fn halves_of_two_entries_are_noticed() {
    // Values of one size: those of the other trees here are short, and lie in the first line with their length.
    let wide = |config: &TreeConfig| config.values() == ValueLayout::Inline(60);
    for config in inline().filter(wide) {
        let two = Two::new(config);
        two.put(KEY, 1);
        let (address, slot) = two.learn_slot(KEY);
        let lines = entry_lines(config.leaf_shape(), slot);
        let old = two.leaf(address);
        two.put(KEY, 2);
        let mut mixed = two.leaf(address);
        mixed[lines.start..lines.start + LINE].copy_from_slice(&old[lines.start..lines.start + LINE]);
        let read = || read_entry(&config, address, slot, KEY, &mixed[..LINE], &mixed[lines.clone()]);
        if let Some(torn) = without(Check::SpeculatedEntryVersion, read) {
            let value = &mixed[lines.clone()][torn.unwrap()];
            assert!(value != two.value(1) && value != two.value(2), "some of both");
        }
        assert!(read().unwrap_err().is_torn());
    }
}

/// Any bytes are refused without a panic.
#[test]
fn fewer_bytes_than_asked_for_are_refused() {
    for config in inline() {
        for (header, lines) in [(0, 128), (LINE, 0), (LINE - 1, 128), (LINE, LINE - 1)] {
            let read = read_entry(&config, GlobalAddress::NULL, 0, 7, &vec![0; header], &vec![0; lines]);
            assert!(read.is_err());
        }
    }
}

/// A server comes back with another tree, and rests of the former one lie in its spare memory.
#[test]
fn places_of_a_former_tree_are_not_asked_for() {
    for config in inline() {
        let mut two = Two::new(config);
        let right = two.split();
        two.learn(KEY);
        let leaf = two.leaf(right);
        two.lab.restart(0, false);
        let owner = Owner { session: SessionId(7), number: 2 };
        for id in two.reader.connections() {
            two.reader.abandon(id).unwrap();
            two.lab.connect(&two.reader, id, owner, true);
        }
        two.reader.set_roots(two.lab.roots()).unwrap();
        two.write(right, &leaf);
        let wrong = without(Check::SpeculatedTree, || two.get(KEY));
        assert!(wrong.is_none_or(|(wrong, trips)| wrong == Some(two.value(1)) && trips.speculated));
        let before = two.reader.entry_cache_stats();
        assert_eq!(two.get(KEY).0, None);
        let after = two.reader.entry_cache_stats();
        assert_eq!((after.misses, after.entries), (before.misses + 1, 0));
    }
}

#[test]
fn a_record_that_was_replaced_or_is_another_keys_is_noticed() {
    for config in out_of_line() {
        let two = Two::new(config);
        two.put(KEY, 1);
        let place = two.learn(KEY);
        two.put(KEY, 2);
        two.assert_needed(Check::Published, 1, Some(2));
        // The place of the first one becomes another key's.
        two.put(7, 7);
        assert_eq!(two.learn(7), place);
        two.entries.put(KEY, place, two.entries.tree());
        two.assert_needed(Check::RecordKey, 7, Some(2));
        let place = two.learn(KEY);
        two.mutate(KEY, Change::Delete);
        two.assert_needed(Check::Published, 2, None);
        // Longer than what is read.
        two.mutate(KEY, Change::Upsert(&[9; 40]));
        let now = two.learn(KEY);
        two.entries.put(KEY, EntryPlace { part: EntryPart::Slot(3), ..now }, two.entries.tree());
        assert_eq!(two.get(KEY).0.unwrap(), [9; 40]);
        assert_ne!(place, now);
    }
}

/// Its entry leads there, but the record has no mark: its writer died. It has no place in the cache until it is written again.
#[test]
fn a_record_without_a_mark_is_not_speculated_on_again() {
    for config in out_of_line() {
        let two = Two::new(config);
        two.put(KEY, 1);
        let place = two.learn(KEY);
        assert_ne!(two.bytes(place.address, MARK_BYTES), UNPUBLISHED);
        two.write(place.address, &UNPUBLISHED);
        for _ in 0..3 {
            assert_eq!(two.get(KEY).0, Some(two.value(1)));
        }
        assert_eq!((two.reader.entry_cache_stats().stale, two.entries.get(KEY)), (1, None));
    }
}

/// A hostile peer marks a leaf that is in use as freed: the ordinary lookup refuses it as well.
#[test]
fn what_the_ordinary_lookup_refuses_is_refused() {
    let config = inline().next().unwrap();
    let two = Two::new(config);
    two.put(KEY, 1);
    let root = two.learn(KEY).address;
    let mut line = *two.bytes(root, LINE).first_chunk().unwrap();
    mark_free(&mut line);
    two.write(root, &line);
    assert!(two.lab.run(&two.reader, two.reader.lookup(KEY, Start::Cached)).result.is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Get(u64),
    /// Key, number of the value, whether the client with the cache writes.
    Put(u64, u64, bool),
    Delete(u64, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..40_u64;
    prop_oneof![
        4 => key().prop_map(Step::Get),
        3 => (key(), 0..1_000_u64, any::<bool>()).prop_map(|(key, number, own)| Step::Put(key, number, own)),
        2 => (key(), any::<bool>()).prop_map(|(key, own)| Step::Delete(key, own)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Splits, merges and memory that is used again: answers are those of a map.
    #[test]
    fn answers_are_those_of_a_map(shape in 0..10_usize, steps in prop::collection::vec(step(), 1..300)) {
        let two = Two::new(configs()[shape]);
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Get(key) => {
                    let expected = model.get(&key).map(|number| two.value(*number));
                    prop_assert_eq!(two.get(key).0, expected, "key {}", key);
                }
                Step::Put(key, number, own) => {
                    let (client, value) = (if own { &two.reader } else { &two.writer }, two.value(number));
                    let put = client.mutate(key, Change::Upsert(&value), Start::Cached);
                    prop_assert_eq!(two.lab.run(client, put).result, Ok(true));
                    model.insert(key, number);
                }
                Step::Delete(key, own) => {
                    let client = if own { &two.reader } else { &two.writer };
                    let delete = client.mutate(key, Change::Delete, Start::Cached);
                    prop_assert_eq!(two.lab.run(client, delete).result, Ok(model.remove(&key).is_some()));
                }
            }
        }
    }
}

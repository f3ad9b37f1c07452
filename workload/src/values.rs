//! Values that a read may return while others write; each tells which write it comes from.
//!
//! Every write stores a value that no other write has stored, so an answer tells which write it comes from. A value
//! may be read from the beginning of its write on, until another write that began after its end has ended. That is
//! what a linearizable register promises, as far as one read can show it. All clients of one thread share one
//! [`Values`], so that each must read what the others have written.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fatbtree_blink::value;
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

/// Values that the keys of a tree may have. A tree begins with those of [`fatbtree_blink::value::fill`], all of one
/// length.
pub struct Values {
    seed: u64,
    length: usize,
    /// Check of the loaded values, if they were not made from the seed.
    from_file: Option<IsLoaded>,
    /// Base of the stamps of this run's writes, if others may write, too.
    among_others: Option<u64>,
    /// Loaded keys, ascending, as far as they are known.
    loaded: Arc<[u64]>,
    state: RefCell<State>,
}

/// Whether these bytes are the value that a key was loaded with.
type IsLoaded = Box<dyn Fn(u64, &[u8]) -> bool + Send>;

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Values")
            .field("seed", &self.seed)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    /// Logical clock of the beginnings of operations and the ends of writes.
    now: u64,
    /// Begins of the operations under way.
    under_way: BTreeSet<u64>,
    /// Number of writes begun, by which writes are numbered.
    writes: u64,
    /// Keys that were written to.
    written: FxHashMap<u64, Versions>,
    /// Keys that were not loaded, with the time since which they have been there.
    inserted: BTreeMap<u64, u64>,
    /// Buffers of written values, reused so that a measured run allocates nothing for each write.
    spare: Vec<Vec<u8>>,
}

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The key was not there.
    Absent,
    Loaded,
    /// A write of this run, by number.
    Write(u64),
    /// A write of another run, by its stamp.
    Others(u64),
}

/// A value of a key, or none.
#[derive(Clone, Copy, Debug)]
struct Version {
    source: Source,
    /// Beginning of the write. For a value of another run: beginning of the first read that found it. Values that had
    /// ended before that read began were replaced by then.
    began: u64,
    /// End of the write; `u64::MAX` while the value is being written, and if the outcome of the write is unknown. For
    /// a value of another run: end of the first read that found it.
    ended: u64,
}

/// An operation that is under way.
#[derive(Debug)]
pub(crate) struct Began(u64);

/// Versions of a key that may still be read: mostly one before a write, and two with it.
type Versions = SmallVec<[Version; 2]>;

impl Values {
    /// Creates the values of a tree whose keys have those of `seed`, of `length` bytes each.
    pub fn new(seed: u64, length: usize) -> Self {
        let (from_file, among_others) = (None, None);
        Self { seed, length, from_file, among_others, loaded: Arc::default(), state: RefCell::default() }
    }

    /// Sets a check for a tree that was loaded with other values, of any length. `is_loaded` returns whether these
    /// bytes are the value of a key.
    #[must_use]
    pub fn loaded_with(self, is_loaded: impl Fn(u64, &[u8]) -> bool + Send + 'static) -> Self {
        Self { from_file: Some(Box::new(is_loaded)), ..self }
    }

    /// Allows for others that write to the tree as well, or have written to it: values tell which run wrote them.
    /// `run` is a random number that no other run has. It is 64 bits long so that all writes of all runs have numbers
    /// of their own.
    ///
    /// # Panics
    /// At a write, when values are shorter than [`value::STAMPED_BYTES`]: they have no room for it.
    #[must_use]
    pub fn among_others(self, run: u64) -> Self {
        Self { among_others: Some(run), ..self }
    }

    /// Sets the keys that were loaded, ascending, so that a scan that misses one of them is noticed. Keys are never
    /// deleted.
    #[must_use]
    pub fn with_keys(self, loaded: Arc<[u64]>) -> Self {
        Self { loaded, ..self }
    }

    /// Begins an operation.
    pub(crate) fn begin(&self) -> Began {
        let mut state = self.state.borrow_mut();
        let now = state.tick();
        state.under_way.insert(now);
        Began(now)
    }

    /// Ends an operation.
    pub(crate) fn end(&self, began: Began) {
        self.state.borrow_mut().under_way.remove(&began.0);
    }

    /// Begins a write; returns its number and the new value. `there` tells whether the key was in the tree when it
    /// was loaded.
    pub(crate) fn write(&self, key: u64, there: bool) -> (u64, Vec<u8>) {
        let mut state = self.state.borrow_mut();
        let began = state.tick();
        state.writes += 1;
        let write = state.writes;
        let first = if there { Source::Loaded } else { Source::Absent };
        state.add(key, first, Version { source: Source::Write(write), began, ended: u64::MAX });
        let mut bytes = state.spare.pop().unwrap_or_else(|| vec![0; self.length]);
        match self.among_others {
            None => value::fill(key, self.seed_of(write), &mut bytes),
            Some(run) => value::stamp(key, run.wrapping_add(write), &mut bytes),
        }
        (write, bytes)
    }

    /// Takes back the buffer of a value that is no longer needed.
    pub(crate) fn take_back(&self, value: Vec<u8>) {
        self.state.borrow_mut().spare.push(value);
    }

    /// Notes that a write has taken effect.
    pub(crate) fn wrote(&self, key: u64, write: u64) {
        let mut state = self.state.borrow_mut();
        let now = state.tick();
        let State { written, inserted, .. } = &mut *state;
        let Some(versions) = written.get_mut(&key) else { return };
        for version in versions.iter_mut().filter(|version| version.source == Source::Write(write)) {
            version.ended = now;
        }
        if versions.first().is_some_and(|version| version.source == Source::Absent) {
            inserted.entry(key).or_insert(now);
        }
    }

    /// Whether a read of `key` that began at `began` may return `found` now.
    pub(crate) fn allows(&self, key: u64, began: &Began, found: Option<&[u8]>) -> bool {
        let mut state = self.state.borrow_mut();
        // Values that were loaded from a file have other lengths than those that are written.
        let is_written = found.is_some_and(|bytes| bytes.len() == self.length);
        if found.is_some() && !is_written && self.from_file.is_none() {
            return false;
        }
        let written = found.filter(|_| is_written);
        let stamp = self.among_others.and_then(|run| Some((run, value::stamp_of(key, written?)?)));
        if let Some((run, stamp)) = stamp {
            let write = stamp.wrapping_sub(run);
            let is_ours = (1..=state.writes).contains(&write);
            let source = if is_ours { Source::Write(write) } else { Source::Others(stamp) };
            let versions = state.written.get(&key).map_or(&[][..], |versions| versions);
            if let Some(version) = versions.iter().find(|version| version.source == source) {
                return !version.is_replaced(versions, began.0);
            }
            if !is_ours {
                let ended = state.tick();
                state.add(key, Source::Loaded, Version { source, began: began.0, ended });
            }
            return !is_ours;
        }
        let is = |source: Source| match (source, found) {
            (Source::Absent, None) => true,
            (Source::Loaded, Some(bytes)) => match &self.from_file {
                None => value::check(key, self.seed, bytes),
                Some(is_loaded) => is_loaded(key, bytes),
            },
            (Source::Write(write), Some(bytes)) if is_written && self.among_others.is_none() => {
                value::check(key, self.seed_of(write), bytes)
            }
            _ => false,
        };
        match state.written.get(&key) {
            None => is(Source::Loaded),
            Some(versions) => {
                versions.iter().any(|version| is(version.source) && !version.is_replaced(versions, began.0))
            }
        }
    }

    /// Whether a scan of the first `most` pairs from key `from` on that began at `began` may return `found` now. Keys
    /// must ascend, each with a value that a read may return. No key may be missing that has been there since before
    /// the scan began.
    pub(crate) fn allows_scan<B: AsRef<[u8]>>(
        &self,
        from: u64,
        most: usize,
        began: &Began,
        found: &[(u64, B)],
    ) -> bool {
        let ascending =
            found.is_sorted_by(|a, b| a.0 < b.0) && found.first().is_none_or(|pair| pair.0 >= from);
        let right = |(key, value): &(u64, B)| self.allows(*key, began, Some(value.as_ref()));
        if found.len() > most || !ascending || !found.iter().all(right) {
            return false;
        }
        let last = match found.last() {
            Some((key, _)) if found.len() == most => *key,
            _ => u64::MAX,
        };
        let has = |key: &u64| found.binary_search_by_key(key, |pair| pair.0).is_ok();
        let first = self.loaded.partition_point(|key| *key < from);
        let mut loaded = self.loaded[first..].iter().take_while(|key| **key <= last);
        let state = self.state.borrow();
        let mut inserted = state.inserted.range(from..=last).filter(|(_, since)| **since < began.0);
        loaded.all(has) && inserted.all(|(key, _)| has(key))
    }

    /// Seed of a write's value. Write 0 has the seed that the tree was loaded with.
    fn seed_of(&self, write: u64) -> u64 {
        self.seed ^ write.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl State {
    /// Begin of the oldest operation under way.
    fn oldest(&self) -> u64 {
        self.under_way.first().copied().unwrap_or(self.now)
    }

    /// Adds a version of a key; `first` is the one that it had before all others. Versions that may no longer be read
    /// are dropped, except the last one of another run, which would be believed once more.
    fn add(&mut self, key: u64, first: Source, version: Version) {
        let first = Version { source: first, began: 0, ended: 0 };
        let oldest = self.oldest();
        let versions = self.written.entry(key).or_insert_with(|| smallvec![first]);
        if versions.len() > 1 {
            let all = versions.clone();
            let others = |version: &&Version| matches!(version.source, Source::Others(_));
            let last = all.iter().filter(others).max_by_key(|version| version.ended).map(|last| last.source);
            versions.retain(|version| Some(version.source) == last || !version.is_replaced(&all, oldest));
        }
        versions.push(version);
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}

impl Version {
    /// Whether another value had replaced this one before `moment`.
    fn is_replaced(&self, all: &[Version], moment: u64) -> bool {
        all.iter().any(|other| other.began > self.ended && other.ended < moment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(key: u64) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        value::fill(key, 5, &mut bytes);
        bytes
    }

    #[test]
    fn values_of_a_file_are_right_until_they_are_replaced() {
        let values =
            Values::new(5, 16).among_others(77).loaded_with(|key, bytes| key == 7 && bytes == b"seven");
        let began = values.begin();
        assert!(values.allows(7, &began, Some(b"seven")));
        assert!(!values.allows(7, &began, Some(b"eight")) && !values.allows(8, &began, Some(b"seven")));
        assert!(!values.allows(7, &began, None) && !values.allows(7, &began, Some(&[0; 16])));
        values.end(began);
        let (write, bytes) = values.write(7, true);
        values.wrote(7, write);
        let began = values.begin();
        assert!(values.allows(7, &began, Some(&bytes)) && !values.allows(7, &began, Some(b"seven")));
    }

    #[test]
    fn a_key_that_nobody_writes_has_its_first_value() {
        let values = Values::new(5, 8);
        let began = values.begin();
        assert!(values.allows(1, &began, Some(&loaded(1))));
        assert!(!values.allows(1, &began, Some(&loaded(2))));
        assert!(!values.allows(1, &began, Some(&loaded(1)[..7])), "the beginning of the value");
        assert!(!values.allows(1, &began, None));
    }

    #[test]
    fn while_a_value_is_written_both_may_be_read_and_afterwards_only_the_new_one() {
        let values = Values::new(5, 8);
        let before = values.begin();
        let (write, new) = values.write(1, true);
        let during = values.begin();
        for began in [&before, &during] {
            assert!(values.allows(1, began, Some(&loaded(1))) && values.allows(1, began, Some(&new)));
        }
        values.wrote(1, write);
        let after = values.begin();
        assert!(values.allows(1, &during, Some(&loaded(1))), "it may have been read before");
        assert!(!values.allows(1, &after, Some(&loaded(1))) && values.allows(1, &after, Some(&new)));
        values.end(before);
    }

    #[test]
    fn of_two_writes_at_a_time_either_may_be_the_last() {
        let values = Values::new(5, 8);
        let (first, a) = values.write(1, true);
        let (second, b) = values.write(1, true);
        values.wrote(1, second);
        values.wrote(1, first);
        let began = values.begin();
        assert!(values.allows(1, &began, Some(&a)) && values.allows(1, &began, Some(&b)));
        assert!(!values.allows(1, &began, Some(&loaded(1))));
        let (third, c) = values.write(1, true);
        values.wrote(1, third);
        let began = values.begin();
        assert!(values.allows(1, &began, Some(&c)) && !values.allows(1, &began, Some(&a)));
    }

    #[test]
    fn a_new_key_is_absent_until_it_is_there() {
        let values = Values::new(5, 8);
        let (write, new) = values.write(1, false);
        let during = values.begin();
        assert!(values.allows(1, &during, None) && values.allows(1, &during, Some(&new)));
        values.wrote(1, write);
        assert!(!values.allows(1, &values.begin(), None));
    }

    #[test]
    fn a_scan_has_every_key_that_was_there_before_and_no_other() {
        let values = Values::new(5, 8).with_keys([1, 3, 5, 7].into());
        let before = values.begin();
        let (write, new) = values.write(4, false);
        values.wrote(4, write);
        let after = values.begin();
        let allows = |began, most, keys: &[u64]| {
            let value = |key| if key == 4 { new.clone() } else { loaded(key) };
            let found: Vec<_> = keys.iter().map(|key| (*key, value(*key))).collect();
            values.allows_scan(3, most, began, &found)
        };
        assert!(allows(&after, 3, &[3, 4, 5]) && allows(&after, 9, &[3, 4, 5, 7]));
        assert!(
            allows(&before, 3, &[3, 4, 5]) && allows(&before, 3, &[3, 5, 7]),
            "it was there during the scan"
        );
        assert!(!allows(&after, 3, &[3, 5, 7]), "4 is missing");
        assert!(!allows(&after, 3, &[3, 4, 7]) && !allows(&after, 9, &[3, 4, 5]), "5, and 7");
        assert!(
            !allows(&after, 3, &[4, 3, 5])
                && !allows(&after, 3, &[1, 3, 4])
                && !allows(&after, 2, &[3, 4, 5])
        );
        assert!(!values.allows_scan(3, 1, &after, &[(3, loaded(5))]));
    }

    fn other_runs(key: u64, stamp: u64) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        value::stamp(key, stamp, &mut bytes);
        bytes
    }

    #[test]
    fn values_of_other_runs_are_known_by_themselves() {
        let values = Values::new(5, 16).among_others(1 << 40);
        let mut loaded = vec![0; 16];
        value::fill(1, 5, &mut loaded);
        let began = values.begin();
        assert!(values.allows(1, &began, Some(&loaded)));
        assert!(values.allows(1, &began, Some(&other_runs(1, 77))));
        assert!(!values.allows(1, &began, Some(&other_runs(2, 77))), "another key's");
        for bit in 0..128 {
            let mut damaged = other_runs(1, 77);
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!values.allows(1, &began, Some(&damaged)), "bit {bit}");
        }
        let torn = [&other_runs(1, 77)[..8], &other_runs(1, 78)[8..]].concat();
        assert!(!values.allows(1, &began, Some(&torn)), "half of each");
        assert!(!values.allows(1, &began, None) && !values.allows(1, &began, Some(&[0; 16])));
        // Without others there are none.
        let alone = Values::new(5, 16);
        assert!(!alone.allows(1, &alone.begin(), Some(&other_runs(1, 77))));
    }

    #[test]
    fn no_value_comes_back_once_it_was_replaced_whoever_wrote_it() {
        let values = Values::new(5, 16).among_others(1 << 40);
        let mut loaded = vec![0; 16];
        value::fill(1, 5, &mut loaded);
        let reads = |value: &[u8]| {
            let began = values.begin();
            let may = values.allows(1, &began, Some(value));
            values.end(began);
            may
        };
        let writes = || {
            let (write, value) = values.write(1, true);
            values.wrote(1, write);
            value
        };
        let theirs = other_runs(1, 77);
        assert!(reads(&loaded) && reads(&theirs));
        assert!(!reads(&loaded), "theirs has taken its place");
        let ours = writes();
        assert!(reads(&ours));
        assert!(!reads(&theirs) && !reads(&loaded));
        // However many were written since.
        let newest = (0..100).fold(Default::default(), |_, _| writes());
        assert!(!reads(&theirs) && !reads(&ours) && reads(&newest));
        // Another run writes on; ours is gone then, and theirs from before does not come back either.
        assert!(reads(&other_runs(1, 78)));
        assert!(!reads(&newest) && reads(&other_runs(1, 78)));
        assert!(!reads(&theirs));
        // What this run has not written yet it cannot have read.
        assert!(reads(&other_runs(1, (1 << 40) + 5000)), "by its number it is another run's");
        let (_, damaged) = values.write(2, true);
        assert!(!values.allows(1, &values.begin(), Some(&damaged)), "another key's of this run");
    }

    #[test]
    fn reads_that_overlap_another_runs_write_may_have_either() {
        let values = Values::new(5, 16).among_others(1 << 40);
        let mut loaded = vec![0; 16];
        value::fill(1, 5, &mut loaded);
        let (early, late) = (values.begin(), values.begin());
        assert!(values.allows(1, &late, Some(&other_runs(1, 77))));
        assert!(values.allows(1, &early, Some(&loaded)), "it began before theirs was read");
        let (_, ours) = values.write(1, true);
        assert!(values.allows(1, &early, Some(&ours)) && values.allows(1, &late, Some(&other_runs(1, 77))));
    }

    #[test]
    fn what_nobody_can_read_any_more_is_forgotten_and_nothing_else() {
        let values = Values::new(5, 8);
        let old = values.begin();
        for _ in 0..100 {
            let (write, _) = values.write(1, true);
            values.wrote(1, write);
        }
        assert!(values.allows(1, &old, Some(&loaded(1))), "it began before all of them");
        values.end(old);
        let (write, _) = values.write(1, true);
        values.wrote(1, write);
        assert_eq!(values.state.borrow().written[&1].len(), 2);
    }
}

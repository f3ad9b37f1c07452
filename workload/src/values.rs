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

use crate::byte_keys::value_number;
use crate::names::Names;

/// Values that the keys of a tree may have. A tree begins with those of [`fatbtree_blink::value::fill`], all of one
/// length.
pub struct Values {
    seed: u64,
    length: usize,
    /// Check of the loaded values, if they were not made from the seed.
    from_file: Option<IsLoaded>,
    /// Base of the stamps of this run's writes, if others may write, too.
    among_others: Option<u64>,
    /// Whether a key was not loaded, for workloads that read such keys.
    is_absent: Option<IsAbsent>,
    /// Loaded keys, ascending, as far as they are known.
    loaded: Arc<[u64]>,
    /// Keys of bytes, if the keys of operations are numbers for these.
    names: Option<Arc<Names>>,
    state: RefCell<State>,
}

/// Whether these bytes are the value that a key was loaded with.
type IsLoaded = Box<dyn Fn(u64, &[u8]) -> bool + Send>;

/// Whether a key was absent when the run began.
type IsAbsent = Box<dyn Fn(u64) -> bool + Send>;

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
    /// The key was not loaded.
    Absent,
    Loaded,
    /// A delete of this run, by number.
    Deleted(u64),
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
        Self {
            seed,
            length,
            from_file: None,
            among_others: None,
            is_absent: None,
            loaded: Arc::default(),
            names: None,
            state: RefCell::default(),
        }
    }

    /// Sets a check for a tree that was loaded with other values, of any length. `is_loaded` returns whether these
    /// bytes are the value of a key.
    #[must_use]
    pub fn loaded_with(self, is_loaded: impl Fn(u64, &[u8]) -> bool + Send + 'static) -> Self {
        Self { from_file: Some(Box::new(is_loaded)), ..self }
    }

    /// Sets the keys that were not loaded. Without this, every key that a workload reads, updates or deletes was.
    #[must_use]
    pub fn without(self, is_absent: impl Fn(u64) -> bool + Send + 'static) -> Self {
        Self { is_absent: Some(Box::new(is_absent)), ..self }
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

    /// Sets the keys that were loaded, ascending, so that a scan that misses one of them is noticed. A key that this
    /// run has deleted may be missing.
    #[must_use]
    pub fn with_keys(self, loaded: Arc<[u64]>) -> Self {
        Self { loaded, ..self }
    }

    /// Sets the names that keys are numbers of. Values are made for the names: by [`value_number`].
    #[must_use]
    pub fn named(self, names: Arc<Names>) -> Self {
        Self { names: Some(names), ..self }
    }

    /// The names that keys are numbers of, if they are.
    pub fn names(&self) -> Option<&Arc<Names>> {
        self.names.as_ref()
    }

    /// The number that the values of a key are made from. `None` for a key of another run, which [`Named`](crate::Named) has checked.
    #[inline]
    fn number_of(&self, key: u64) -> Option<u64> {
        match &self.names {
            None => Some(key),
            Some(names) => names.name_of(key).map(value_number),
        }
    }

    /// A key as a message shows it.
    pub(crate) fn show(&self, key: u64) -> String {
        self.names.as_ref().map_or_else(|| format!("{key:#x}"), |names| names.show(key))
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

    /// Begins a write of so many bytes; returns its number and the new value. `there` tells whether the key was in the
    /// tree when it was loaded, unless [`without`](Self::without) tells it.
    pub(crate) fn write(&self, key: u64, there: bool, length: usize) -> (u64, Vec<u8>) {
        let first = self.first(key, there);
        let mut state = self.state.borrow_mut();
        let write = state.change(key, first, Source::Write);
        let mut bytes = state.spare.pop().unwrap_or_default();
        bytes.resize(length, 0);
        let number = self.number_of(key).expect("a key that is written has a name");
        match self.among_others {
            None => value::fill(number, self.seed_of(write), &mut bytes),
            Some(run) => value::stamp(number, run.wrapping_add(write), &mut bytes),
        }
        (write, bytes)
    }

    /// Begins a delete; returns its number.
    pub(crate) fn delete(&self, key: u64) -> u64 {
        let first = self.first(key, true);
        let mut state = self.state.borrow_mut();
        state.inserted.remove(&key);
        state.change(key, first, Source::Deleted)
    }

    fn first(&self, key: u64, there: bool) -> Source {
        let is_there = self.is_absent.as_ref().map_or(there, |is_absent| !is_absent(key));
        if is_there { Source::Loaded } else { Source::Absent }
    }

    /// Length of a value of which a workload does not say it, in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Takes back the buffer of a value that is no longer needed.
    pub(crate) fn take_back(&self, value: Vec<u8>) {
        self.state.borrow_mut().spare.push(value);
    }

    /// Notes that a write or a delete has taken effect.
    pub(crate) fn wrote(&self, key: u64, write: u64) {
        let mut state = self.state.borrow_mut();
        let now = state.tick();
        let State { written, inserted, .. } = &mut *state;
        let Some(versions) = written.get_mut(&key) else { return };
        for version in versions.iter_mut().filter(|version| version.source.is_change(write)) {
            version.ended = now;
        }
        let is_deleted = |version: &Version| matches!(version.source, Source::Deleted(_));
        if versions.first().is_some_and(|version| version.source == Source::Absent)
            && !versions.iter().any(is_deleted)
        {
            inserted.entry(key).or_insert(now);
        }
    }

    /// Notes that a write or a delete that began at `began` was refused. Returns whether it may have been: a key that
    /// may be there refuses an insert, one that may be absent refuses an update or a delete.
    pub(crate) fn refused(&self, key: u64, write: u64, began: &Began, is_insert: bool) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(versions) = state.written.get_mut(&key) else { return false };
        versions.retain(|version| !version.source.is_change(write));
        let fits = |version: &&Version| version.source.is_value() == is_insert;
        versions.iter().filter(fits).any(|version| !version.is_replaced(versions, began.0))
    }

    /// Whether a read of `key` that began at `began` may return `found` now.
    pub(crate) fn allows(&self, key: u64, began: &Began, found: Option<&[u8]>) -> bool {
        let Some(number) = self.number_of(key) else { return true };
        let mut state = self.state.borrow_mut();
        // Values that were loaded from a file have other lengths than those that are written, unless these have any.
        let is_written = found.is_some_and(|bytes| bytes.len() == self.length || self.is_absent.is_some());
        if found.is_some() && !is_written && self.from_file.is_none() {
            return false;
        }
        let written = found.filter(|_| is_written);
        let stamp = self.among_others.and_then(|run| Some((run, value::stamp_of(number, written?)?)));
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
            (Source::Absent | Source::Deleted(_), None) => true,
            (Source::Loaded, Some(bytes)) => match &self.from_file {
                None => value::check(number, self.seed, bytes),
                Some(is_loaded) => is_loaded(key, bytes),
            },
            (Source::Write(write), Some(bytes)) if is_written && self.among_others.is_none() => {
                value::check(number, self.seed_of(write), bytes)
            }
            _ => false,
        };
        match state.written.get(&key) {
            None => is(self.first(key, true)),
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
        let has = |key: &u64| has(key) || state.may_be_deleted(*key, began.0);
        let mut inserted = state.inserted.range(from..=last).filter(|(_, since)| **since < began.0);
        loaded.all(has) && inserted.all(|(key, _)| has(key))
    }

    /// Seed of a write's value. Write 0 has the seed that the tree was loaded with.
    fn seed_of(&self, write: u64) -> u64 {
        self.seed ^ write.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Source {
    /// Whether this comes from a write or delete of this run, by number.
    fn is_change(self, number: u64) -> bool {
        matches!(self, Self::Write(write) | Self::Deleted(write) if write == number)
    }

    /// Whether the key has a value.
    fn is_value(self) -> bool {
        !matches!(self, Self::Absent | Self::Deleted(_))
    }
}

impl State {
    /// Begins a change of a key; returns its number.
    fn change(&mut self, key: u64, first: Source, source: fn(u64) -> Source) -> u64 {
        let began = self.tick();
        self.writes += 1;
        let number = self.writes;
        self.add(key, first, Version { source: source(number), began, ended: u64::MAX });
        number
    }

    /// Whether an operation that began at `began` may find that this run has deleted the key.
    fn may_be_deleted(&self, key: u64, began: u64) -> bool {
        let Some(versions) = self.written.get(&key) else { return false };
        let is_deleted = |version: &&Version| matches!(version.source, Source::Deleted(_));
        versions.iter().filter(is_deleted).any(|version| !version.is_replaced(versions, began))
    }

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
mod tests;

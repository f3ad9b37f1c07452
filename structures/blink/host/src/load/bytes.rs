//! Keys of bytes with their values.

use std::ops::Range;

use fatbtree_blink::layers::{Division, KeyCode, MAX_KEY_BYTES, SortedEntry, join, parts};
use fatbtree_blink::node::LeafShape;
use fatbtree_blink::{GlobalAddress, KeyRange, MAX_VALUE, TreeConfig};

use super::LoadError;
use super::pairs::{Held, Pairs};

/// Keys of bytes with their values, each pair as its record has it.
#[derive(Clone, Default, Debug)]
pub struct BytePairs {
    /// End of each pair.
    ends: Vec<usize>,
    content: Vec<u8>,
}

impl BytePairs {
    /// Appends a pair.
    ///
    /// # Errors
    /// When they are too long for a record.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        if key.len() > MAX_KEY_BYTES {
            return Err(LoadError::KeyBytes { position: self.len(), found: key.len() });
        }
        join(key, value, &mut self.content);
        self.end_pair()
    }

    /// Appends a pair as [`record`](Self::record) gives it.
    ///
    /// # Errors
    /// When it is too long, or none.
    pub fn push_record(&mut self, record: &[u8]) -> Result<(), LoadError> {
        match parts(record) {
            Some((key, _)) if key.len() > MAX_KEY_BYTES => {
                Err(LoadError::KeyBytes { position: self.len(), found: key.len() })
            }
            Some(_) => {
                self.content.extend_from_slice(record);
                self.end_pair()
            }
            None => Err(LoadError::NoPair { position: self.len() }),
        }
    }

    fn end_pair(&mut self) -> Result<(), LoadError> {
        let (position, from) = (self.len(), self.ends.last().copied().unwrap_or(0));
        let found = self.content.len() - from;
        if found > MAX_VALUE as usize {
            self.content.truncate(from);
            return Err(LoadError::PairBytes { position, found });
        }
        self.ends.push(self.content.len());
        Ok(())
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all pairs, with two each for the length of its key.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        self.content.len()
    }

    /// A pair as its record has it.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn record(&self, at: usize) -> &[u8] {
        let from = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.content[from..self.ends[at]]
    }

    /// Key and value of a pair.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn pair(&self, at: usize) -> (&[u8], &[u8]) {
        parts(self.record(at)).expect("it was checked when it came")
    }

    /// Key of a pair.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn key(&self, at: usize) -> &[u8] {
        self.pair(at).0
    }

    /// The pairs at these positions.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn part(&self, places: Range<usize>) -> Self {
        let from = places.start.checked_sub(1).map_or(0, |before| self.ends[before]);
        let ends: Vec<usize> = self.ends[places].iter().map(|end| end - from).collect();
        let content = self.content[from..from + ends.last().copied().unwrap_or(0)].to_vec();
        Self { ends, content }
    }

    /// The code that a load of these pairs chooses, which are sorted.
    #[must_use]
    pub fn code(&self) -> KeyCode {
        KeyCode::of_sorted(self.len(), |at| self.key(at))
    }

    /// The same pairs in the order of their keys.
    #[must_use]
    pub fn sorted(self) -> Self {
        let mut order: Vec<usize> = (0..self.len()).collect();
        if order.is_sorted_by_key(|&at| self.key(at)) {
            return self;
        }
        order.sort_by_key(|&at| self.key(at));
        let mut sorted =
            Self { ends: Vec::with_capacity(self.len()), content: Vec::with_capacity(self.content.len()) };
        for at in order {
            sorted.content.extend_from_slice(self.record(at));
            sorted.ends.push(sorted.content.len());
        }
        sorted
    }
}

/// Pairs that a tree is built of.
pub(super) struct ByteKeys<'p> {
    pairs: &'p BytePairs,
    division: Division,
}

impl<'p> ByteKeys<'p> {
    /// Of these pairs, if their keys are strictly ascending.
    pub(super) fn new(config: &TreeConfig, pairs: &'p BytePairs) -> Result<Self, LoadError> {
        for position in 1..pairs.len() {
            let (before, key) = (pairs.key(position - 1), pairs.key(position));
            if before >= key {
                return Err(LoadError::BytesOrder { position });
            }
        }
        Ok(Self { pairs, division: Division::new(config, pairs.len(), |at| pairs.key(at)) })
    }

    fn key_at(&self, layer: usize, at: usize) -> (usize, bool) {
        match self.division.entry(layer, at) {
            SortedEntry::Key { at, ends } => (at, ends),
            SortedEntry::Layer(_) => unreachable!("a layer has no value"),
        }
    }
}

impl Pairs for ByteKeys<'_> {
    fn len(&self) -> usize {
        self.pairs.len()
    }

    fn check(&mut self, range: KeyRange, config: &TreeConfig) -> Result<(), LoadError> {
        let ends = [0, self.pairs.len().saturating_sub(1)].into_iter().take(self.pairs.len());
        let mut words = ends.map(|at| config.code().word(self.pairs.key(at)));
        match words.find(|&word| !range.contains(word)) {
            Some(key) => Err(LoadError::OutOfRange { key, range }),
            None => Ok(()),
        }
    }

    fn layers(&self) -> usize {
        self.division.layers()
    }

    fn words(&self, layer: usize) -> &[u64] {
        self.division.words(layer)
    }

    fn tree(&self, layer: usize, _: &TreeConfig) -> TreeConfig {
        self.division.tree(layer)
    }

    fn held(&mut self, layer: usize, at: usize, shape: &LeafShape) -> Held {
        match self.division.entry(layer, at) {
            SortedEntry::Layer(below) => Held::Layer(below),
            SortedEntry::Key { at, ends } => {
                let value = self.pairs.pair(at).1.len();
                match ends && shape.holds(value) {
                    true => Held::Short(value as u32),
                    false => Held::Record(self.pairs.record(at).len() as u32),
                }
            }
        }
    }

    fn record_key(&self, layer: usize, at: usize) -> u64 {
        self.division.record_key(layer, at)
    }

    fn fill(&mut self, layer: usize, at: usize, out: &mut [u8]) {
        let (at, _) = self.key_at(layer, at);
        let (record, value) = (self.pairs.record(at), self.pairs.pair(at).1);
        // A record has the key as well.
        out.copy_from_slice(if out.len() == record.len() { record } else { value });
    }

    fn head(&self, layer: usize, leaf: GlobalAddress, root: (GlobalAddress, u8)) -> Vec<u8> {
        if layer == 0 { vec![] } else { self.division.head(layer, leaf, root, |at| self.pairs.key(at)) }
    }
}

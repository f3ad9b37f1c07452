//! Keys with their values, as entries of leaves.

use fatbtree_blink::node::LeafShape;
use fatbtree_blink::{GlobalAddress, KeyRange, TreeConfig, ValueLayout};

use super::LoadError;
use crate::values::ValueSource;

/// What an entry holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    /// A value of the size that all have.
    Inline,
    /// A value of so many bytes.
    Short(u32),
    /// The address of a record with a value of so many bytes.
    Record(u32),
    /// The address of the layer with this number.
    Layer(usize),
}

/// Sorted keys with their values, divided into layers. Layer 0 is the first one, which numbers have alone; each other one comes after the one
/// above it.
pub(super) trait Pairs {
    /// Number of pairs.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all keys are in order and of this range, and all values have a place in the leaves of `config`.
    ///
    /// # Errors
    /// Names the first that is not.
    fn check(&mut self, range: KeyRange, config: &TreeConfig) -> Result<(), LoadError>;

    /// Number of layers.
    fn layers(&self) -> usize {
        1
    }

    /// Keys of a layer's entries, strictly ascending.
    fn words(&self, layer: usize) -> &[u64];

    /// Shape of a layer's nodes, in a tree of this shape.
    fn tree(&self, layer: usize, config: &TreeConfig) -> TreeConfig;

    /// What an entry of a layer holds; the same whenever it is asked for.
    fn held(&mut self, layer: usize, at: usize, shape: &LeafShape) -> Held;

    /// The key that an entry's record has.
    fn record_key(&self, layer: usize, at: usize) -> u64;

    /// Writes the value of an entry or its record over all of `out`.
    fn fill(&mut self, layer: usize, at: usize, out: &mut [u8]);

    /// The head of a layer whose first leaf and root these are; the first one has none.
    fn head(&self, layer: usize, leaf: GlobalAddress, root: (GlobalAddress, u8)) -> Vec<u8>;
}

/// Numbers, and values by them.
pub(super) struct Numbers<'p, S> {
    pub(super) keys: &'p [u64],
    pub(super) values: &'p mut S,
}

impl<S: ValueSource> Pairs for Numbers<'_, S> {
    fn len(&self) -> usize {
        self.keys.len()
    }

    fn check(&mut self, range: KeyRange, config: &TreeConfig) -> Result<(), LoadError> {
        let Self { keys, values } = self;
        if let Some(before) = keys.windows(2).position(|pair| pair[0] >= pair[1]) {
            let (key, position) = (keys[before + 1], before + 1);
            return Err(if keys[before] == key {
                LoadError::DuplicateKey { key }
            } else {
                LoadError::Unsorted { key, position }
            });
        }
        if let Some(&key) =
            [keys.first(), keys.last()].into_iter().flatten().find(|&&key| !range.contains(key))
        {
            return Err(LoadError::OutOfRange { key, range });
        }
        if let ValueLayout::Inline(expected) = config.values() {
            for &key in *keys {
                let found = values.length(key);
                if found != u32::from(expected) {
                    return Err(LoadError::InlineLength { key, found, expected });
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn words(&self, _: usize) -> &[u64] {
        self.keys
    }

    fn tree(&self, _: usize, config: &TreeConfig) -> TreeConfig {
        *config
    }

    #[inline]
    fn held(&mut self, _: usize, at: usize, shape: &LeafShape) -> Held {
        if !shape.has_records() {
            return Held::Inline;
        }
        let length = self.values.length(self.keys[at]);
        if shape.holds(length as usize) { Held::Short(length) } else { Held::Record(length) }
    }

    #[inline]
    fn record_key(&self, _: usize, at: usize) -> u64 {
        self.keys[at]
    }

    #[inline]
    fn fill(&mut self, _: usize, at: usize, out: &mut [u8]) {
        self.values.fill(self.keys[at], out);
    }

    fn head(&self, _: usize, _: GlobalAddress, _: (GlobalAddress, u8)) -> Vec<u8> {
        vec![]
    }
}

//! Sorted keys divided into layers, for a load that builds all nodes at once.

use std::ops::Range;

use fatbtree_remote_memory::GlobalAddress;

use super::head::{LayerHead, LayerState, MAX_PREFIX};
use super::{Beginning, LayerId, Spelled};
use crate::config::TreeConfig;

/// Sorted keys, divided into layers as clients would that insert them. Layer 0 is the first one; each other one comes after the one above it.
#[derive(Debug)]
pub struct Division {
    tree: TreeConfig,
    /// Keys of the entries of all layers, one layer after the other.
    words: Vec<u64>,
    entries: Vec<SortedEntry>,
    layers: Vec<Divided>,
}

/// What an entry is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SortedEntry {
    /// The key at this position, which is alone.
    Key {
        /// Its position.
        at: usize,
        /// Whether no other key can end in this entry, so that it may have the value itself.
        ends: bool,
    },
    /// The layer with this number.
    Layer(usize),
}

#[derive(Debug)]
struct Divided {
    entries: Range<usize>,
    /// Bytes of the keys.
    prefix: Range<usize>,
    /// A key that has the prefix.
    key: usize,
    /// Of the layer without the prefix, and of the layer; none: the first one.
    id: Option<(LayerId, LayerId)>,
    /// Key of the entry of the first layer that leads here.
    first: u64,
}

/// A layer whose keys are not divided yet.
struct Ahead {
    keys: Range<usize>,
    begins_at: usize,
    prefix: Range<usize>,
    base: Option<LayerId>,
    first: u64,
}

impl Division {
    /// Divides so many keys, which are strictly ascending.
    pub fn new<'k>(tree: &TreeConfig, count: usize, key: impl Fn(usize) -> &'k [u8]) -> Self {
        let mut division = Self { tree: *tree, words: vec![], entries: vec![], layers: vec![] };
        let mut ahead = std::collections::VecDeque::from([Ahead {
            keys: 0..count,
            begins_at: 0,
            prefix: 0..0,
            base: None,
            first: 0,
        }]);
        // A layer's number, as the entry above has it, is its place in the queue.
        let mut numbered = 1;
        while let Some(Ahead { keys, begins_at, prefix, base, first }) = ahead.pop_front() {
            let from = division.words.len();
            let spelled = Spelled::of(if keys.is_empty() { &[] } else { key(keys.start) });
            let mut padded = vec![];
            let beginning = match base {
                None => Beginning::Coded(tree.code()),
                Some(_) => {
                    padded.extend(prefix.clone().map(|at| spelled.byte(at)));
                    Beginning::Plain { at: begins_at, prefix: &padded }
                }
            };
            let id = base.map(|base| (base, base.with_prefix(&padded)));
            let words: Vec<u64> = keys.clone().map(|at| beginning.word(&Spelled::of(key(at)))).collect();
            let mut at = keys.start;
            for same in words.chunk_by(|one, other| one == other) {
                let (word, shared) = (same[0], at..at + same.len());
                at = shared.end;
                let spelled = Spelled::of(key(shared.start));
                division.words.push(word);
                if shared.len() == 1 {
                    let ends = beginning.ends_in(&spelled, word);
                    division.entries.push(SortedEntry::Key { at: shared.start, ends });
                    continue;
                }
                division.entries.push(SortedEntry::Layer(numbered));
                numbered += 1;
                let begins_at = beginning.below(word);
                let last = Spelled::of(key(shared.end - 1));
                // All of them have the prefix of their layer, so none lies at an end of it.
                let common = spelled.common(&last, begins_at, MAX_PREFIX);
                ahead.push_back(Ahead {
                    keys: shared,
                    begins_at,
                    prefix: begins_at..begins_at + common,
                    base: Some(LayerId::below(id.map(|(_, id)| id), word)),
                    first: if base.is_none() { word } else { first },
                });
            }
            let entries = from..division.words.len();
            division.layers.push(Divided { entries, prefix, key: keys.start, id, first });
        }
        division
    }

    /// Number of layers, the first one included.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Keys of the entries of a layer, strictly ascending.
    #[must_use]
    pub fn words(&self, layer: usize) -> &[u64] {
        &self.words[self.layers[layer].entries.clone()]
    }

    /// What the entry of a layer at a position among them is for.
    #[must_use]
    pub fn entry(&self, layer: usize, at: usize) -> SortedEntry {
        self.entries[self.layers[layer].entries.start + at]
    }

    /// The key that a record has in this entry.
    #[must_use]
    pub fn record_key(&self, layer: usize, at: usize) -> u64 {
        let Divided { entries, id, first, .. } = &self.layers[layer];
        if id.is_some() { *first } else { self.words[entries.start + at] }
    }

    /// Shape of a layer's nodes.
    #[must_use]
    pub fn tree(&self, layer: usize) -> TreeConfig {
        self.layers[layer].id.map_or(self.tree, |(_, id)| self.tree.of_layer(id))
    }

    /// The head of a layer below the first one, as it lies behind its first leaf, which lies at `leaf`. The keys are those of [`new`](Self::new).
    ///
    /// # Panics
    /// For the first layer.
    pub fn head<'k>(
        &self,
        layer: usize,
        leaf: GlobalAddress,
        root: (GlobalAddress, u8),
        key: impl Fn(usize) -> &'k [u8],
    ) -> Vec<u8> {
        let Divided { prefix, key: one, id, first, .. } = &self.layers[layer];
        let (base, _) = id.expect("the first layer has no head");
        let spelled = Spelled::of(key(*one));
        let (root, root_level) = root;
        let prefix = prefix.clone().map(|at| spelled.byte(at)).collect();
        let state = LayerState::Coming;
        LayerHead { state, root, root_level, leaf, base, first: *first, prefix, version: 1 }.to_bytes()
    }
}

//! Keys of bytes, in layers of trees over eight bytes each (Masstree, EuroSys 2012, section 4.1).
//!
//! ```text
//!   first layer: the tree that switches lead in          a layer: first leaf and head in one block, read in one round trip
//!                    [   ]
//!                   ╱     ╲                                ┌──────────────────────────┬──────────────────────────┐
//!   ["alice\0\0\0": value] [ "https://": layer ]──────────►│ "en.wikip": layer        │ prefix "www."; root      │
//!   ["bob\0…": record    ] [ "user:471": layer ]──► …      │ "example.": record       │                          │
//!                                                          └──────────────────────────┴──────────────────────────┘
//! ```
//!
//! An entry has eight bytes of a key. While one key alone has these eight bytes, the entry is that key's: its record, which has the whole
//! key, or the value itself if the key ends there. When a second key comes with the same eight bytes, the entry leads to a layer: a B-link
//! tree of the bytes that follow. What the two keys go on with together is left out of the layer's nodes and stands once, in the layer's
//! head, as the layer's prefix.
//!
//! **A tree of its own.** The other way would be one tree with longer fences. A layer of its own has nodes of the first layer's layout,
//! sixteen children of eight bytes each, and its first leaf is read together with its head: nearly all layers have no other. In
//! one tree of all layers an entry could name the node where its part begins as well, but fences would take 16 bytes, so nodes had half
//! the children.
//!
//! **Keys that come later, without the prefix**, are less than all keys with it, or greater. They lie in the same layer: in the entry of
//! the least word, or of the greatest. Below these two entries keys agree in no more than the layer began with, so a layer there begins where
//! this one began, and has no prefix. So a prefix is never changed.
//!
//! **The first layer** has no prefix, but a [code](KeyCode), which a load chooses: what switches lead is not eight bytes of the key but
//! eight bytes of its code, which stand for forty of a URL. Layers below have bytes of the key as they are: there are few, where the code is
//! good.
//!
//! **What proves itself.** Nodes of layers lie in memory of their own classes, so that no node of the first layer ever lies there. Each
//! has the number of its layer, which is made of all that the layer's keys begin with: a reader whose pointer is old learns it from
//! the node, as it learns by fences what keys a node has. A layer that goes and comes again has the same number, and means the same.
//! Whether a key is the one that was looked for is told by the record.
//!
//! **Coming and going.** A layer comes and goes under the lock of the leaf whose entry leads to it, with one doorbell:
//!
//! ```text
//!   coming    block, first leaf marked as free    entry: layer    leaf no more free
//!   going     head: gone                          leaf: free      entry goes           (under the lock of the leaf as well)
//! ```
//!
//! A layer whose leaf is marked as free cannot be written to. Its keys count when an entry leads there: the key with which it was
//! written, if it is coming, and none, if it is gone. The next client that wants to write there finishes what was begun, under the same lock. So a
//! client that dies leaves a layer that readers read and writers complete.

mod change;
mod checks;
mod code;
mod create;
mod get;
mod head;
mod key;
mod open;
mod remove;
mod scan;
mod sorted;

use fatbtree_remote_memory::{GlobalAddress, KeyRange};

use crate::config::TreeConfig;
use crate::node::{NodeFault, NodeHeader};
use crate::super_root::Partition;

pub use checks::Check;
pub use code::{CodeError, KeyCode};
pub use fatbtree_remote_memory::byte_keys::{MAX_KEY_BYTES, parts};
pub use get::join;
pub use head::LayerState;
pub(crate) use head::{LayerHead, LayerId};
use key::{Spelled, WORD};
pub use scan::BytesScan;
pub use sorted::{Division, SortedEntry};

/// What words of a layer have of its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Beginning<'l> {
    /// Of the first layer, which has all keys: their code.
    Coded(KeyCode),
    /// Of the layers below: eight bytes, behind bytes that all keys of the layer have in common.
    Plain {
        /// The byte of the keys at which the prefix begins.
        at: usize,
        prefix: &'l [u8],
    },
}

/// Word of keys that are less than all with the prefix, and of those that are greater.
const LESS: u64 = 0;
const GREATER: u64 = u64::MAX;

/// The word of keys with the greatest words, which is not [`GREATER`].
const LAST: u64 = GREATER - 1;

impl<'l> Beginning<'l> {
    /// That of a layer of a tree; none: of the first one.
    fn of(tree: &TreeConfig, layer: Option<&'l Layer>) -> Self {
        layer.map_or(Beginning::Coded(tree.code()), Layer::beginning)
    }

    /// The key of a key's entry.
    fn word(&self, key: &Spelled<'_>) -> u64 {
        let (at, prefix) = match *self {
            Self::Coded(code) => return code.word_of(key),
            Self::Plain { at, prefix } => (at, prefix),
        };
        match key.compare(at, prefix) {
            std::cmp::Ordering::Less if Check::Prefix.on() => LESS,
            std::cmp::Ordering::Greater if Check::Prefix.on() => GREATER,
            // Only the key that ends here has the word 0, and no key has 1: a zero byte is 00 ff.
            _ => key.word(at + prefix.len()).clamp(LESS + 1, LAST),
        }
    }

    /// Whether the entry of this word has all keys at one end that do not have the prefix.
    fn is_end(&self, word: u64) -> bool {
        matches!(self, Self::Plain { .. }) && matches!(word, LESS | GREATER)
    }

    /// Whether a key is the only one that can end in the entry of this word, which is its own.
    fn ends_in(&self, key: &Spelled<'_>, word: u64) -> bool {
        match *self {
            Self::Coded(code) => code.has_all_of(key, word),
            Self::Plain { .. } => (LESS + 1..LAST).contains(&word) && key.has_ended(self.below(word)),
        }
    }

    /// What all keys of this word have in common behind the layer's first byte: the whole rest of the key that ends in the entry.
    fn common(&self, word: u64) -> Vec<u8> {
        match *self {
            Self::Coded(code) => code.common(word).collect(),
            Self::Plain { prefix, .. } => match word {
                LESS | GREATER => vec![],
                // Also that of keys whose last byte is one more.
                LAST => [prefix, &word.to_be_bytes()[..WORD - 1]].concat(),
                // Of the key that ends with the prefix.
                1 => [prefix, &[0; WORD]].concat(),
                _ => [prefix, &word.to_be_bytes()].concat(),
            },
        }
    }

    /// The byte at which the keys begin to differ that share the entry of this word.
    fn below(&self, word: u64) -> usize {
        match *self {
            Self::Coded(code) => code.common(word).count(),
            Self::Plain { at, prefix } => match word {
                LESS | GREATER => at,
                LAST => at + prefix.len() + WORD - 1,
                _ => at + prefix.len() + WORD,
            },
        }
    }
}

/// What an entry that leads to a layer says of it.
#[derive(Clone, Debug)]
pub struct LayerEntry {
    /// The first layer's.
    tree: TreeConfig,
    base: LayerId,
    begins_at: usize,
    leaf: GlobalAddress,
    first: u64,
    depth: u32,
}

/// Layers above one another at most: a key has 1,024 words, if all of its bytes are zeros, and there are at most two layers for each.
const MOST_LAYERS: u32 = 2 * (2 * MAX_KEY_BYTES / WORD) as u32 + 2;

impl LayerEntry {
    /// Of the entry with this key in the layer `above`, or in the first one, whose shape is `tree`.
    #[must_use]
    pub fn new(tree: &TreeConfig, above: Option<&Layer>, word: u64, leaf: GlobalAddress) -> Self {
        let base = LayerId::below(above.and_then(|above| above.tree.layer()), word);
        let begins_at = Beginning::of(tree, above).below(word);
        let (first, depth) = above.map_or((word, 1), |above| (above.first, above.depth + 1));
        Self { tree: *tree, base, begins_at, leaf, first, depth }
    }

    /// Where the layer's first leaf and its head lie, and their bytes.
    #[must_use]
    pub fn block(&self) -> (GlobalAddress, u32) {
        (self.leaf, block_bytes(&self.tree))
    }

    /// The layer in these bytes.
    ///
    /// # Errors
    /// When it is being written, or is not the one that the entry leads to.
    pub fn read(&self, block: &[u8]) -> Result<(Layer, LayerState), NodeFault> {
        if self.depth > MOST_LAYERS && Check::Depth.on() {
            return Err(NodeFault::LayerChain { passed: self.depth });
        }
        let (head, is_free) = head_of(&self.tree, block, self.leaf)?;
        if (head.base, head.first) != (self.base, self.first) && Check::Head.on() {
            return Err(NodeFault::NoLayer { layer: self.leaf });
        }
        let state = if is_free { head.state } else { LayerState::Here };
        let layer = Layer {
            tree: self.tree.of_layer(head.id()),
            base: self.base,
            begins_at: self.begins_at,
            prefix: head.prefix,
            leaf: self.leaf,
            root: head.root,
            root_level: head.root_level,
            first: self.first,
            depth: self.depth,
        };
        Ok((layer, state))
    }
}

/// A layer below the first one, as an entry above has led to it.
#[derive(Clone, Debug)]
pub struct Layer {
    tree: TreeConfig,
    base: LayerId,
    begins_at: usize,
    prefix: Vec<u8>,
    leaf: GlobalAddress,
    root: GlobalAddress,
    root_level: u8,
    /// The key of the entry of the first layer that leads here.
    first: u64,
    /// Number of layers above.
    depth: u32,
}

/// The key of the entry of the first layer that leads to the layer in `block`, which begins at `leaf`; none, if no layer lies there.
#[must_use]
pub fn first_of(tree: &TreeConfig, block: &[u8], leaf: GlobalAddress) -> Option<u64> {
    head_of(tree, block, leaf).ok().map(|(head, _)| head.first)
}

/// The head of the layer in `block`, which begins at `leaf`, and whether the first leaf is marked as a free one.
fn head_of(tree: &TreeConfig, block: &[u8], leaf: GlobalAddress) -> Result<(LayerHead, bool), NodeFault> {
    let head = LayerHead::parse(block.get(tree.leaf_bytes() as usize..).unwrap_or_default(), leaf)?;
    let is_free = block.first_chunk().is_none_or(|line| NodeHeader::parse(line).is_free());
    Ok((head, is_free))
}

/// Bytes of a first leaf and the head behind it.
#[must_use]
pub const fn block_bytes(tree: &TreeConfig) -> u32 {
    tree.leaf_bytes() + LayerHead::BYTES
}

impl Layer {
    /// Shape of its nodes.
    #[must_use]
    pub fn tree(&self) -> &TreeConfig {
        &self.tree
    }

    /// The key that the records of its keys have.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Whether the record with this value may be in the entry of this key.
    #[must_use]
    pub fn may_have(&self, word: u64, record: &[u8]) -> bool {
        parts(record).is_some_and(|(key, _)| self.beginning().word(&Spelled::of(key)) == word)
    }

    /// The layer in place of a partition.
    #[must_use]
    pub fn partition(&self) -> Partition {
        let Self { root, root_level, .. } = *self;
        Partition { id: self.leaf.server(), range: KeyRange::ALL, root, root_level }
    }

    pub(crate) fn set_root(&mut self, root: GlobalAddress, level: u8) {
        (self.root, self.root_level) = (root, level);
    }

    /// What its keys begin with.
    pub(crate) fn beginning(&self) -> Beginning<'_> {
        Beginning::Plain { at: self.begins_at, prefix: &self.prefix }
    }

    /// Where the first leaf and the head lie, and their bytes.
    #[must_use]
    pub fn block(&self) -> (GlobalAddress, u32) {
        (self.leaf, block_bytes(&self.tree))
    }

    pub(crate) fn head_place(&self) -> GlobalAddress {
        self.leaf.behind(self.tree.leaf_bytes().into())
    }

    /// The head behind the first leaf in `block`, if it is this layer's.
    pub(crate) fn check_head(&self, block: &[u8]) -> Result<LayerHead, NodeFault> {
        let (head, is_free) = head_of(&self.tree, block, self.leaf)?;
        let is_same = head.base == self.base && head.prefix == self.prefix;
        let is_there = is_same && !is_free;
        if is_there || !Check::Head.on() { Ok(head) } else { Err(NodeFault::NoLayer { layer: self.leaf }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Keys, ValueLayout};
    use crate::node::{LINE, LeafBuilder, NodeSpec, claim, mark_free};

    /// The block of a layer below an entry of the first layer, without keys.
    fn block(tree: &TreeConfig, word: u64, leaf: GlobalAddress) -> Vec<u8> {
        let base = LayerId::below(None, word);
        let state = LayerState::Coming;
        let prefix = b"prefix".to_vec();
        let head =
            LayerHead { state, root: leaf, root_level: 0, leaf, base, first: word, prefix, version: 1 };
        let spec = NodeSpec {
            address: leaf,
            level: 0,
            range: KeyRange::ALL,
            sibling: GlobalAddress::NULL,
            version: 1,
        };
        let layer = tree.of_layer(head.id());
        let mut block = vec![0; tree.leaf_bytes() as usize];
        LeafBuilder::new(&mut block, layer.leaf_shape(), spec).finish();
        claim(&layer, &mut block);
        [block, head.to_bytes()].concat()
    }

    #[test]
    fn a_block_is_the_layer_of_one_entry_and_of_no_other() {
        let tree = TreeConfig::new(16, 1024, ValueLayout::SHORT).unwrap().with_keys(Keys::Bytes).unwrap();
        let leaf = GlobalAddress::new(1, 0x4000);
        let mut block = block(&tree, 17, leaf);
        let entry = |word, leaf| LayerEntry::new(&tree, None, word, leaf);
        let (layer, state) = entry(17, leaf).read(&block).unwrap();
        assert_eq!((layer.first(), layer.block(), state), (17, (leaf, 1280), LayerState::Here));
        assert_eq!(first_of(&tree, &block, leaf), Some(17));
        let none = NodeFault::NoLayer { layer: leaf };
        assert_eq!(entry(18, leaf).read(&block).unwrap_err(), none);
        assert_eq!(LayerEntry::new(&tree, Some(&layer), 17, leaf).read(&block).unwrap_err(), none);
        assert!(entry(17, GlobalAddress::new(1, 0x4040)).read(&block).is_err());
        assert_eq!(layer.check_head(&block).map(|head| head.root), Ok(leaf));
        // Layers that lead in a circle, which no honest client makes.
        let last = Layer { depth: MOST_LAYERS, ..layer.clone() };
        let fault = LayerEntry::new(&tree, Some(&last), 17, leaf).read(&block).unwrap_err();
        assert_eq!(fault, NodeFault::LayerChain { passed: MOST_LAYERS + 1 });
        mark_free(block.first_chunk_mut::<LINE>().unwrap());
        assert_eq!(entry(17, leaf).read(&block).unwrap().1, LayerState::Coming);
        assert_eq!(layer.check_head(&block).unwrap_err(), none, "it has no nodes now");
    }

    #[test]
    fn words_are_in_the_order_of_keys_with_the_prefix_and_without() {
        let beginning = Beginning::Plain { at: 2, prefix: b"mm" };
        let mut keys: Vec<&[u8]> = vec![
            b"aa",
            b"aaml",
            b"aamm",
            b"aamm\0",
            b"aamm\x01",
            b"aamm\xff\xff\xff\xff\xff\xff\xff\xfe",
            b"aamm\xff\xff\xff\xff\xff\xff\xff\xff",
            b"aamn",
        ];
        let words: Vec<u64> = keys.iter().map(|key| beginning.word(&Spelled::of(key))).collect();
        assert!(words.is_sorted());
        assert_eq!(words[..3], [LESS, LESS, LESS + 1]);
        assert_eq!(words[5..], [LAST, LAST, GREATER]);
        assert_eq!((beginning.below(LESS), beginning.below(GREATER)), (2, 2));
        assert_eq!((beginning.below(LAST), beginning.below(words[3])), (11, 12));
        keys.truncate(5);
        let ends = |key: &[u8]| beginning.ends_in(&Spelled::of(key), beginning.word(&Spelled::of(key)));
        assert_eq!(keys.into_iter().map(ends).collect::<Vec<_>>(), [false, false, true, true, true]);
    }
}

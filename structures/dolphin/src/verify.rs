//! A walk over the whole index that checks its structure, while nothing changes it.

use std::collections::BTreeMap;
use std::fmt;

use fatbtree_remote_memory::GlobalAddress;
use fatbtree_verbs::Verbs;

use crate::entry::Entry;
use crate::error::IndexError;
use crate::index::Index;
use crate::inner::{HEAD_BYTES, Node, NodeState, successor};
use crate::key::Prefix;
use crate::leaf::{LEAF_BYTES, Leaf, LeafState, NoLeaf, SLOTS, Use};
use crate::word;

/// What a walk has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Keys.
    pub keys: u64,
    /// Leaves.
    pub leaves: u64,
    /// Inner nodes.
    pub nodes: u64,
    /// Inner nodes of each size, from 4 entries to 256.
    pub sizes: [u64; 7],
    /// Servers of inner nodes, a bit for each number.
    pub servers: u32,
    /// Largest depth of an inner node.
    pub depth: u8,
    /// Entries of inner nodes.
    pub entries: u64,
    /// Leaves and inner nodes with a change that was begun and not completed. What is there counts; a client that walks by completes it.
    pub unfinished: u64,
    /// Bytes of leaves and inner nodes.
    pub bytes: u64,
    /// Bytes of all records.
    pub record_bytes: u64,
}

/// Words for people: `whole: 5000 keys in 150 leaves, …`.
impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, leaves, nodes, depth, bytes, record_bytes, .. } = self;
        write!(
            f,
            "whole: {keys} keys in {leaves} leaves under {nodes} inner nodes of {entries} entries, down to depth {depth}; {bytes} bytes \
             of leaves and nodes, {record_bytes} bytes of records",
            entries = self.entries,
        )
    }
}

/// A fault in the structure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Something cannot be read.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// A child is no inner node, or one that has moved to nowhere.
    #[error("entry {entry:?} of the node at {above}: expected an inner node there")]
    NoNode {
        /// The node above.
        above: GlobalAddress,
        /// Its entry.
        entry: Entry,
    },
    /// A child stands for keys that its entry does not lead to it.
    #[error("entry {entry:?} of the node at {above}: the child is for keys {low:#x} to {high:#x}")]
    Misplaced {
        /// The node above.
        above: GlobalAddress,
        /// Its entry.
        entry: Entry,
        /// The child's lowest key.
        low: u64,
        /// The child's highest key.
        high: u64,
    },
    /// A child is no leaf in use, or one with lines of several changes, or that says that it lies elsewhere.
    #[error("entry {entry:?} of the node at {above}: expected a whole leaf in use there")]
    NoLeaf {
        /// The node above.
        above: GlobalAddress,
        /// Its entry.
        entry: Entry,
    },
    /// Two children of a node have one byte.
    #[error("the node at {at} has two entries for byte {byte:#04x}")]
    Twins {
        /// The node.
        at: GlobalAddress,
        /// The byte.
        byte: u8,
    },
    /// A key is in a leaf of other keys, or there twice.
    #[error("leaf at {at}: key {key:#x} is there twice")]
    Twice {
        /// The leaf.
        at: GlobalAddress,
        /// The key.
        key: u64,
    },
    /// A key is outside of its leaf's range.
    #[error(
        "leaf at {at}: key {key:#x} is neither in the leaf's range, nor a free slot's or a deleted key's word"
    )]
    Stray {
        /// The leaf.
        at: GlobalAddress,
        /// The key.
        key: u64,
    },
    /// A word leads to something else than its key's record.
    #[error("leaf at {at}: no record of key {key:#x} of the word's version at {record}")]
    Record {
        /// The leaf.
        at: GlobalAddress,
        /// The key.
        key: u64,
        /// Where its word leads.
        record: GlobalAddress,
    },
    /// Two parts share memory.
    #[error("what lies at {at} overlaps another part of the index")]
    Shared {
        /// The second part.
        at: GlobalAddress,
    },
}

/// Nodes that have moved, one after the other, at most: where there are more, they lead in a circle.
const MOST_MOVES: usize = 24;

/// State of a walk.
#[derive(Default)]
struct Walk {
    verified: Verified,
    /// Ends of all parts, by begin.
    parts: BTreeMap<u64, u64>,
}

impl Walk {
    fn part(&mut self, at: GlobalAddress, bytes: u64) -> Result<(), Fault> {
        let (from, to) = (at.raw(), at.raw() + bytes);
        if self.parts.range(..to).next_back().is_some_and(|(_, &end)| end > from) {
            return Err(Fault::Shared { at });
        }
        self.parts.insert(from, to);
        Ok(())
    }
}

impl<V: Verbs> Index<V> {
    /// Walks over all nodes, leaves and records. Nothing may change the index meanwhile.
    ///
    /// # Errors
    /// The first fault.
    pub async fn verify(&self) -> Result<Verified, Fault> {
        let mut walk = Walk::default();
        let root = self.shape().root();
        let mut left = vec![(root.at(), root, None::<Prefix>)];
        while let Some((above, entry, prefix)) = left.pop() {
            let node = self.verify_node(&mut walk, above, entry, prefix).await?;
            for (number, (_, entry)) in node.entries.iter().enumerate() {
                let end = match node.entries.get(number + 1) {
                    Some((_, next)) if next.byte() == entry.byte() => {
                        return Err(Fault::Twins { at: node.at, byte: entry.byte() });
                    }
                    Some((_, next)) => node.prefix.first_of(next.byte()) - 1,
                    None => node.prefix.high(),
                };
                let entry = self.follow(&mut walk, *entry).await?;
                if entry.is_inner() {
                    left.push((node.at, entry, Some(node.prefix)));
                } else {
                    self.verify_leaf(&mut walk, &node, entry, end).await?;
                }
            }
        }
        Ok(walk.verified)
    }

    /// The entry that counts in an entry's place: a node that has moved leads to its successor, as long as the node above leads to it.
    async fn follow(&self, walk: &mut Walk, mut entry: Entry) -> Result<Entry, Fault> {
        for _ in 0..MOST_MOVES {
            if !entry.is_inner() {
                break;
            }
            let head = self.bytes_at(entry.at(), HEAD_BYTES as u32).await?;
            let Some(successor) = successor(&head, entry.size()) else { break };
            entry = successor.under(entry.byte());
            walk.verified.unfinished += 1;
        }
        Ok(entry)
    }

    async fn verify_node(
        &self,
        walk: &mut Walk,
        above: GlobalAddress,
        entry: Entry,
        prefix: Option<Prefix>,
    ) -> Result<Node, Fault> {
        let bytes = self.bytes_at(entry.at(), entry.size().bytes()).await?;
        let node = Node::parse(&bytes, entry.at(), entry.size()).ok_or(Fault::NoNode { above, entry })?;
        if node.damage().is_some() {
            return Err(Fault::NoNode { above, entry });
        }
        if node.is(NodeState::Unborn) {
            walk.verified.unfinished += 1;
        } else if !node.is(NodeState::Live) {
            return Err(Fault::NoNode { above, entry });
        }
        let (low, high) = (node.prefix.low(), node.prefix.high());
        let is_below = |prefix: Prefix| {
            prefix.covers(low) && prefix.depth() < node.prefix.depth() && prefix.byte_of(low) == entry.byte()
        };
        if prefix.is_some_and(|prefix| !is_below(prefix)) {
            return Err(Fault::Misplaced { above, entry, low, high });
        }
        walk.part(node.at, node.size.place_bytes().into())?;
        let verified = &mut walk.verified;
        verified.nodes += 1;
        verified.sizes[usize::from(node.size.number())] += 1;
        verified.servers |= 1 << (node.at.server() & 31);
        verified.depth = verified.depth.max(node.prefix.depth());
        verified.entries += node.entries.len() as u64;
        verified.bytes += u64::from(node.size.place_bytes());
        Ok(node)
    }

    async fn verify_leaf(&self, walk: &mut Walk, node: &Node, entry: Entry, end: u64) -> Result<(), Fault> {
        let (above, at) = (node.at, entry.at());
        let bytes = self.bytes_at(at, LEAF_BYTES as u32).await?;
        let no_leaf = Fault::NoLeaf { above, entry };
        let leaf = Leaf::new(&bytes).ok_or(no_leaf.clone())?;
        match leaf.check(Use::Read) {
            Ok(()) if leaf.lock().is(LeafState::Open) => {}
            Err(NoLeaf::Busy) if leaf.is_mixed() => return Err(no_leaf),
            // What was left half done still counts.
            Ok(()) | Err(NoLeaf::Busy) if leaf.is_leaf() => walk.verified.unfinished += 1,
            _ => return Err(no_leaf),
        }
        let (low, high) = (leaf.min(), leaf.max());
        if leaf.own() != at {
            return Err(no_leaf);
        }
        if let Some(slot) = leaf.stray().filter(|_| leaf.check(Use::Read).is_ok()) {
            return Err(Fault::Stray { at, key: leaf.key(slot) });
        }
        if low != node.prefix.first_of(entry.byte()) || high > end || low > high {
            return Err(Fault::Misplaced { above, entry, low, high });
        }
        walk.part(at, LEAF_BYTES as u64)?;
        let mut keys: Vec<u64> = (0..SLOTS).map(|slot| leaf.key(slot)).collect();
        keys.retain(|key| (low..=high).contains(key));
        keys.sort_unstable();
        if let Some(twice) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Fault::Twice { at, key: twice[0] });
        }
        for (key, value) in leaf.items() {
            walk.verified.keys += 1;
            let Some(pointer) = (if self.shape().fixed() { None } else { value.pointer() }) else { continue };
            let record = self.bytes_at(pointer.at, pointer.bytes).await?;
            if word::find(&record, key, pointer).is_none() {
                return Err(Fault::Record { at, key, record: pointer.at });
            }
            walk.part(pointer.at, pointer.bytes.into())?;
            walk.verified.record_bytes += u64::from(pointer.bytes);
        }
        walk.verified.leaves += 1;
        walk.verified.bytes += LEAF_BYTES as u64;
        Ok(())
    }
}

//! Inner nodes of the radix tree, as they lie in memory.
//!
//! ```text
//! offset size field
//!      0    8 successor: entry of the node or leaf in this one's place, if it has moved
//!      8    8 identity: prefix (7 bytes), then depth (3 bits), size (3 bits) and a mark
//!     16    8 state, and stamp: its high 16 bits are a sum of the identity
//!     24  8·N entries, in no order; 0 is free
//! ```
//!
//! A node has its *whole* prefix, not only the bytes that its path leaves out. So a reader that
//! comes by an old pointer sees whether the node is its key's, and a new node between two others
//! leaves the lower one as it is.
//!
//! Identity and stamp never change. A node that grows or shrinks is written anew elsewhere.
//!
//! What no client writes is damaged: an entry or successor with wrong check bits, a successor of a node that
//! has not moved, no successor of one that has.

use fatbtree_remote_memory::{GlobalAddress, mix, word_at};

use crate::checks::Check;
use crate::entry::{Entry, NodeSize};
use crate::key::Prefix;

/// Bytes before the entries.
pub(crate) const HEAD_BYTES: u64 = 24;

pub(crate) const IDENTITY: usize = 8;
pub(crate) const STATE: u64 = 16;

/// Stands in the last byte of each identity.
const MARK: u64 = 0b11 << 6;

/// State of a node, in the low bits of a word that has its stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeState {
    /// Written, and not linked yet.
    Unborn = 1,
    /// In use.
    Live = 2,
    /// Its successor counts.
    Moved = 3,
}

/// A stamp for the node of a prefix and size: with the sum of its identity.
pub(crate) const fn stamp_of(stamp: u64, prefix: Prefix, size: NodeSize) -> u64 {
    let sum = mix(identity_word(prefix, size)) & !(u64::MAX >> SUM_BITS);
    stamp & (u64::MAX >> SUM_BITS) | sum
}

/// Bits of a stamp that are the sum of the node's identity.
const SUM_BITS: u32 = 16;

/// The word of a state. Stamps have low bits of 0.
pub(crate) const fn state_word(stamp: u64, state: NodeState) -> u64 {
    stamp | state as u64
}

/// An inner node that was read.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: GlobalAddress,
    pub(crate) prefix: Prefix,
    pub(crate) size: NodeSize,
    pub(crate) successor: Entry,
    state: u64,
    /// Entries by byte, each with its slot.
    pub(crate) entries: Vec<(u16, Entry)>,
    /// The first free slot.
    pub(crate) free: Option<u16>,
}

/// Where a node sends a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    Leaf(Entry),
    Inner(Entry),
    /// There is no leaf for the key.
    Gap,
}

/// Chooses among entries that are sorted by byte: leaves by range, inner nodes by the exact byte.
pub(crate) fn choose(entries: impl DoubleEndedIterator<Item = Entry>, byte: u8) -> Choice {
    match entries.rev().find(|entry| entry.byte() <= byte) {
        Some(entry) if !entry.is_inner() => Choice::Leaf(entry),
        Some(entry) if entry.byte() == byte => Choice::Inner(entry),
        _ => Choice::Gap,
    }
}

impl Node {
    /// Reads a node. `None` if none of this size lies there.
    pub(crate) fn parse(bytes: &[u8], at: GlobalAddress, size: NodeSize) -> Option<Self> {
        let (prefix, state) = parse_head(bytes, size)?;
        let slots =
            (0..size.entries() as u16).map(|slot| (slot, Entry(word_at(bytes, slot_offset(slot) as usize))));
        let (full, empty): (Vec<_>, Vec<_>) = slots.partition(|(_, entry)| *entry != Entry::EMPTY);
        let mut entries = full;
        entries.sort_unstable_by_key(|(_, entry)| entry.byte());
        let free = empty.first().map(|(slot, _)| *slot);
        Some(Self { at, prefix, size, successor: Entry(word_at(bytes, 0)), state, entries, free })
    }

    pub(crate) fn is(&self, state: NodeState) -> bool {
        self.state & 7 == state as u64
    }

    /// What no client has written so; `None` if there is nothing.
    pub(crate) fn damage(&self) -> Option<&'static str> {
        if self.entries.iter().any(|(_, entry)| !entry.is_sound()) || !self.successor.is_sound() {
            return Some("entries that match their check bits");
        }
        let is_empty = self.successor.is_empty();
        let fits = match () {
            () if self.is(NodeState::Moved) => !is_empty,
            () => is_empty && (self.is(NodeState::Live) || self.is(NodeState::Unborn)),
        };
        (!fits).then_some("a state that goes with the successor")
    }

    /// Whether the node may be used: what is not linked yet may never be.
    pub(crate) fn is_live(&self) -> bool {
        self.is(NodeState::Live) || self.is(NodeState::Unborn) && !Check::Unborn.on()
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.state & !7
    }

    pub(crate) fn choose(&self, key: u64) -> Choice {
        choose(self.entries.iter().map(|(_, entry)| *entry), self.prefix.byte_of(key))
    }

    /// Slot of a child.
    pub(crate) fn slot_of(&self, at: GlobalAddress) -> Option<(u16, Entry)> {
        self.entries.iter().find(|(_, entry)| entry.at() == at).copied()
    }

    /// Entries after the one for a key.
    pub(crate) fn behind(&self, key: u64) -> impl Iterator<Item = Entry> + '_ {
        let byte = self.prefix.byte_of(key);
        self.entries.iter().map(|(_, entry)| *entry).filter(move |entry| entry.byte() > byte)
    }

    /// The entry before the one for a key.
    pub(crate) fn before(&self, byte: u8) -> Option<Entry> {
        self.entries.iter().rev().map(|(_, entry)| *entry).find(|entry| entry.byte() < byte)
    }

    /// Lowest key of a gap in which `key` lies.
    pub(crate) fn begin_of(&self, key: u64) -> u64 {
        match self.before(self.prefix.byte_of(key)) {
            Some(last) => self.prefix.last_of(last.byte()) + 1,
            None => self.prefix.low(),
        }
    }

    /// Highest key for which there may be a leaf from the one for `key` on.
    pub(crate) fn end_of(&self, key: u64) -> u64 {
        match self.behind(key).next() {
            Some(next) => self.prefix.first_of(next.byte()) - 1,
            None => self.prefix.high(),
        }
    }

    /// Address of a slot.
    pub(crate) fn slot_at(&self, slot: u16) -> GlobalAddress {
        self.at.behind(slot_offset(slot))
    }
}

/// Prefix and state word of a node of a size, if one lies there.
pub(crate) fn parse_head(bytes: &[u8], size: NodeSize) -> Option<(Prefix, u64)> {
    let identity = word_at(bytes, IDENTITY);
    let prefix = Prefix::of(identity, (identity & 7) as u8);
    if bytes.len() < HEAD_BYTES as usize {
        return None;
    }
    let state = word_at(bytes, STATE as usize);
    let is_one = identity == identity_word(prefix, size) && stamp_of(state, prefix, size) == state;
    is_one.then_some((prefix, state))
}

/// What has taken the place of a node of a size, by its head. `None`: it has not moved, or none lies there.
pub(crate) fn successor(head: &[u8], size: NodeSize) -> Option<Entry> {
    let (_, state) = parse_head(head, size)?;
    let successor = Entry(word_at(head, 0));
    (state & 7 == NodeState::Moved as u64 && !successor.is_empty()).then_some(successor)
}

/// Size of the node that a head says, for a server that knows no more.
#[cfg(feature = "host")]
pub(crate) fn size_in(head: &[u8]) -> Option<(NodeSize, u64)> {
    let size = NodeSize::of_number((word_at(head, IDENTITY) >> 3 & 7) as u8);
    parse_head(head, size).map(|(_, state)| (size, state))
}

const fn identity_word(prefix: Prefix, size: NodeSize) -> u64 {
    prefix.word() | (size.number() as u64) << 3 | MARK
}

pub(crate) const fn slot_offset(slot: u16) -> u64 {
    HEAD_BYTES + 8 * slot as u64
}

/// Bytes of a new node.
pub(crate) fn build(
    prefix: Prefix,
    size: NodeSize,
    stamp: u64,
    state: NodeState,
    entries: impl IntoIterator<Item = Entry>,
) -> Vec<u8> {
    let mut bytes = vec![0; size.bytes() as usize];
    bytes[IDENTITY..][..8].copy_from_slice(&identity_word(prefix, size).to_le_bytes());
    let word = state_word(stamp_of(stamp, prefix, size), state);
    bytes[STATE as usize..][..8].copy_from_slice(&word.to_le_bytes());
    let (_, slots) = bytes.split_at_mut(HEAD_BYTES as usize);
    for (slot, entry) in slots.chunks_exact_mut(8).zip(entries) {
        slot.copy_from_slice(&entry.0.to_le_bytes());
    }
    bytes
}

/// The head of a node that has moved.
pub(crate) fn moved_head(node: &Node, successor: Entry) -> [u8; HEAD_BYTES as usize] {
    let mut head = [0; HEAD_BYTES as usize];
    head[..8].copy_from_slice(&successor.0.to_le_bytes());
    head[8..16].copy_from_slice(&identity_word(node.prefix, node.size).to_le_bytes());
    head[16..].copy_from_slice(&state_word(node.stamp(), NodeState::Moved).to_le_bytes());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_chosen_by_range_and_nodes_by_their_byte() {
        let at = |unit: u64| GlobalAddress::new(1, unit * 64);
        let leaf = |byte, unit| Entry::leaf(byte, at(unit)).unwrap();
        let inner = |byte, unit| Entry::inner(byte, NodeSize::NEW, at(unit)).unwrap();
        let prefix = Prefix::of(0x0102_0000_0000_0000, 2);
        let entries = [leaf(0x40, 3), inner(0x20, 2), leaf(0x10, 1)];
        let bytes = build(prefix, NodeSize::NEW, 64, NodeState::Live, entries);
        let node = Node::parse(&bytes, at(9), NodeSize::NEW).unwrap();
        assert!(node.is_live() && node.prefix == prefix && node.damage().is_none());
        assert_eq!(node.stamp(), stamp_of(64, prefix, NodeSize::NEW));
        let choose = |byte| node.choose(prefix.first_of(byte) | 7);
        assert_eq!(choose(0x0f), Choice::Gap);
        assert_eq!(choose(0x10), Choice::Leaf(entries[2]));
        assert_eq!(choose(0x1f), Choice::Leaf(entries[2]));
        assert_eq!(choose(0x20), Choice::Inner(entries[1]));
        assert_eq!(choose(0x21), Choice::Gap);
        assert_eq!(choose(0xff), Choice::Leaf(entries[0]));
        assert_eq!(node.end_of(prefix.first_of(0x11)), prefix.first_of(0x20) - 1);
        assert_eq!(node.end_of(prefix.first_of(0x50)), prefix.high());
        assert_eq!((node.free, node.slot_at(3).offset()), (Some(3), 9 * 64 + 48));
        assert!(Node::parse(&bytes, at(9), NodeSize::LARGEST).is_none(), "another size");
        let head = moved_head(&node, inner(0, 5));
        let moved = Node::parse(&[&head[..], &bytes[24..]].concat(), at(9), NodeSize::NEW).unwrap();
        assert!(moved.is(NodeState::Moved) && moved.successor == inner(0, 5));
        assert_eq!(size_in(&head).map(|(size, _)| size), Some(NodeSize::NEW));
        assert_eq!(moved.damage(), None);
        for bit in 0..8 * NodeSize::NEW.bytes() as usize {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let Some(node) = Node::parse(&bytes, at(9), NodeSize::NEW) else { continue };
            // Only the free part of the stamp, and what is not linked for what is, say nothing.
            let says_nothing = (128..176).contains(&bit) && (bit >= 131 || node.is_live());
            assert!(node.damage().is_some() || says_nothing, "bit {bit}");
        }
    }
}

//! Structural damage: plain WRITEs to a tree by a hostile writer that has a session and a queue pair like all
//! others.
//!
//! Each piece is made from the nodes that the tree has now. Its lines carry right versions and checksums, because a
//! reader's check of torn lines would refuse others. A hostile writer can write any bytes, so answers to honest
//! clients about damaged nodes need not be right. But each operation of an honest client must end, and nothing may
//! panic.

use std::collections::{BTreeSet, VecDeque};

use fatbtree_blink::node::{LINE, LeafBuilder, MAGIC, Node, NodeHeader, NodeSpec, offsets};
use fatbtree_blink::record::{RECORD_HEAD, RecordPointer, published, write_record};
use fatbtree_blink::{GlobalAddress, Integrity, KeyRange, Superblock, TreeConfig, ValueLayout};
use fatbtree_verbs::Memory;
use rand::RngExt as _;
use serde::Serialize;

use crate::world::Random;

/// Maximum number of nodes that a hostile writer looks at before it strikes.
const MOST_NODES: usize = 192;

/// Bit of the flags that says "freed".
const FREE: u8 = 1 << 0;
/// Bit of the flags that says "no high fence".
const LAST: u8 = 1 << 1;

/// Longest value that a leaf entry can name.
const LONGEST: u32 = (1 << 21) - 1;

/// Kinds of structural damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Damage {
    /// A node is its own right sibling.
    SiblingSelf,
    /// Two nodes, both left of all keys, are each other's siblings.
    SiblingCycle,
    /// The right sibling is another node, a place outside of the region, or one of another server.
    Sibling,
    /// Pivots of an internal node do not ascend.
    Pivots,
    /// A child is the node itself, a node of another level, a record, outside of the region, another server's, or null.
    Child,
    /// The number of children, or the format, is another.
    Count,
    /// The level is another.
    Level,
    /// The fences are swapped, equal, or hold all keys.
    Fences,
    /// The node is marked as freed.
    Free,
    /// The partner is the node itself, another node, or a place where none is.
    Partner,
    /// A line of random bytes.
    Garbage,
    /// A leaf whose entries lead to forged records, or outside of the region.
    Entries,
    /// A leaf with one key many times.
    Twice,
    /// The superblock names another root, at any level.
    Root,
    /// A superblock of random bytes.
    Superblock,
    /// Lock words.
    Locks,
}

impl Damage {
    /// All kinds of damage.
    pub const ALL: &[Self] = &[
        Self::SiblingSelf,
        Self::SiblingCycle,
        Self::Sibling,
        Self::Pivots,
        Self::Child,
        Self::Count,
        Self::Level,
        Self::Fences,
        Self::Free,
        Self::Partner,
        Self::Garbage,
        Self::Entries,
        Self::Twice,
        Self::Root,
        Self::Superblock,
        Self::Locks,
    ];
}

/// A WRITE to the memory of a server's tree: where, and what.
pub type Write = (u64, Vec<u8>);

/// A node that was found.
#[derive(Clone, Copy)]
struct Found {
    at: GlobalAddress,
    header: NodeHeader,
}

/// A tree as its hostile writer sees it.
pub struct Target<'a> {
    memory: &'a Memory,
    config: TreeConfig,
    server: u16,
    nodes: Vec<Found>,
}

impl std::fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

impl<'a> Target<'a> {
    /// Looks at the tree in the memory of `server`, damaged as it may be already.
    #[must_use]
    pub fn new(memory: &'a Memory, config: &TreeConfig, server: u16, root: GlobalAddress) -> Self {
        let mut target = Self { memory, config: *config, server, nodes: Vec::new() };
        let (mut seen, mut next) = (BTreeSet::new(), VecDeque::from([root]));
        while let Some(at) = next.pop_front() {
            if target.nodes.len() == MOST_NODES {
                break;
            }
            let is_new = at.server() == server && seen.insert(at);
            let Some(bytes) = target.node(at).filter(|_| is_new) else { continue };
            let Some(header) = bytes.first_chunk::<LINE>().map(NodeHeader::parse) else { continue };
            if header.magic != MAGIC || header.address != at {
                continue;
            }
            target.nodes.push(Found { at, header });
            next.push_back(header.sibling);
            if let Ok(Node::Internal(node)) = Node::read(config, &bytes) {
                next.extend(node.children().map(|(_, child)| child));
            }
        }
        target
    }

    /// The bytes of the largest node at a place, or those that are there.
    fn node(&self, at: GlobalAddress) -> Option<Vec<u8>> {
        let len = self.memory.len().checked_sub(at.offset())?.min(self.config.max_node_bytes().into());
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.memory.read(at.offset(), &mut bytes).ok()?;
        Some(bytes)
    }

    fn any(&self, random: &mut Random) -> Option<Found> {
        (!self.nodes.is_empty()).then(|| self.nodes[random.random_range(0..self.nodes.len())])
    }

    fn internal(&self, random: &mut Random) -> Option<Found> {
        let internal: Vec<&Found> = self.nodes.iter().filter(|node| node.header.level > 0).collect();
        (!internal.is_empty()).then(|| *internal[random.random_range(0..internal.len())])
    }

    fn leaf(&self, random: &mut Random) -> Option<Found> {
        let leaves: Vec<&Found> = self.nodes.iter().filter(|node| node.header.level == 0).collect();
        (!leaves.is_empty()).then(|| *leaves[random.random_range(0..leaves.len())])
    }

    /// A pointer that leads to something else than it should.
    fn elsewhere(&self, random: &mut Random) -> GlobalAddress {
        let len = self.memory.len();
        match random.random_range(0..8) {
            0..4 => self.any(random).map_or(GlobalAddress::NULL, |node| node.at),
            4 => GlobalAddress::new(self.server, random.random_range(0..len) & !63),
            5 => GlobalAddress::new(self.server, len + random.random_range(0..1 << 20)),
            6 => {
                GlobalAddress::new(self.server ^ random.random_range(1..4), random.random_range(0..len) & !63)
            }
            _ => [GlobalAddress::NULL, GlobalAddress(u64::MAX)][random.random_range(0..2)],
        }
    }

    /// WRITEs for one piece of damage. Empty where there is nothing of the kind to be damaged, or it is not
    /// in the tree's memory, as locks are.
    pub fn strike(&self, damage: Damage, random: &mut Random) -> Vec<Write> {
        self.writes(damage, random).unwrap_or_default()
    }

    fn writes(&self, damage: Damage, random: &mut Random) -> Option<Vec<Write>> {
        Some(match damage {
            Damage::SiblingSelf => vec![self.own_sibling(random)?],
            Damage::SiblingCycle => self.circle(random)?,
            Damage::Sibling => {
                let (node, to) = (self.any(random)?, self.elsewhere(random));
                vec![self.header(node.at, |line| put(line, offsets::SIBLING, to.raw()))?]
            }
            Damage::Pivots => {
                let node = self.internal(random)?;
                let at = self.slot(node, random);
                let pivot = [0, node.header.low, node.header.high, u64::MAX][random.random_range(0..4)];
                vec![self.line_of(node.at, at, |line| put(line, at % LINE, pivot))?]
            }
            Damage::Child => vec![self.child(random)?],
            Damage::Count => {
                let count = [0, 1, self.config.fan_out(), u16::MAX][random.random_range(0..4)];
                vec![self.header(self.any(random)?.at, |line| {
                    line[offsets::COUNT..][..2].copy_from_slice(&count.to_le_bytes());
                })?]
            }
            Damage::Level => {
                let node = self.any(random)?;
                let level = [0, 1, node.header.level.wrapping_add(1), u8::MAX][random.random_range(0..4)];
                vec![self.header(node.at, |line| line[offsets::LEVEL] = level)?]
            }
            Damage::Fences => vec![self.fences(random)?],
            Damage::Free => vec![self.header(self.any(random)?.at, |line| line[offsets::FLAGS] ^= FREE)?],
            Damage::Partner => {
                let node = self.any(random)?;
                let to = if random.random_bool(0.3) { node.at } else { self.elsewhere(random) };
                vec![self.header(node.at, |line| put(line, offsets::PARTNER, to.raw()))?]
            }
            Damage::Garbage => {
                let node = self.any(random)?;
                let lines = u64::from(self.config.node_bytes(node.header.level.min(1))) / LINE as u64;
                let at = node.at.offset() + LINE as u64 * random.random_range(0..lines);
                vec![(at, garbage(random))]
            }
            Damage::Entries => self.entries(random)?,
            Damage::Twice => {
                let leaf = self.leaf(random)?;
                let key = leaf.header.low;
                vec![self.forged_leaf(leaf, |_| (key, Self::nowhere(self.server)))]
            }
            Damage::Root => vec![self.root(random)?],
            Damage::Superblock => vec![(0, garbage(random))],
            Damage::Locks => Vec::new(),
        })
    }

    /// A node that is its own sibling. Half of them have few keys, so that a reader must go on.
    fn own_sibling(&self, random: &mut Random) -> Option<Write> {
        let node = self.any(random)?;
        let range = KeyRange { low: 0, high: Some(node.header.low.max(1)) };
        self.header(node.at, |line| {
            put(line, offsets::SIBLING, node.at.raw());
            if random.random_bool(0.5) {
                set_range(line, range);
            }
        })
    }

    /// Two nodes of a level that are each other's siblings, with few keys.
    fn circle(&self, random: &mut Random) -> Option<Vec<Write>> {
        let one = self.any(random)?;
        let same: Vec<&Found> =
            self.nodes.iter().filter(|node| node.header.level == one.header.level).collect();
        let other = same[random.random_range(0..same.len())];
        let left = KeyRange { low: 0, high: Some(random.random_range(0..2)) };
        let lead = |from: &Found, to: &Found| {
            self.header(from.at, |line| {
                put(line, offsets::SIBLING, to.at.raw());
                set_range(line, left);
            })
        };
        Some(vec![lead(&one, other)?, lead(other, &one)?])
    }

    /// A child that is another one.
    fn child(&self, random: &mut Random) -> Option<Write> {
        let node = self.internal(random)?;
        let to = if random.random_bool(0.2) { node.at } else { self.elsewhere(random) };
        if random.random_bool(0.5) {
            return self.header(node.at, |line| put(line, offsets::FIRST_CHILD, to.raw()));
        }
        let at = self.slot(node, random) + 8;
        self.line_of(node.at, at, |line| put(line, at % LINE, to.raw()))
    }

    /// Fences that no node has.
    fn fences(&self, random: &mut Random) -> Option<Write> {
        let node = self.any(random)?;
        let NodeHeader { low, high, .. } = node.header;
        let range = match random.random_range(0..4) {
            0 => KeyRange { low: high, high: Some(low) },
            1 => KeyRange { low, high: Some(low) },
            2 => KeyRange { low: u64::MAX, high: Some(u64::MAX) },
            _ => KeyRange::ALL,
        };
        self.header(node.at, |line| set_range(line, range))
    }

    /// A superblock with another root.
    fn root(&self, random: &mut Random) -> Option<Write> {
        let mut line = [0; LINE];
        self.memory.read(0, &mut line).ok()?;
        let mut superblock = Superblock::parse(&line).ok()?;
        let (root, level) = match self.any(random) {
            Some(node) if random.random_bool(0.5) => (node.at, node.header.level),
            _ => (self.elsewhere(random), random.random_range(0..=u8::MAX)),
        };
        (superblock.partition.root, superblock.partition.root_level) = (root, level);
        superblock.version = superblock.version.wrapping_add(1);
        Some((0, superblock.to_bytes().to_vec()))
    }

    /// A place in an internal node where a pivot after the first is.
    fn slot(&self, node: Found, random: &mut Random) -> usize {
        const PER_LINE: usize = fatbtree_blink::node::CHILDREN_PER_LINE;
        let most = usize::from(node.header.count).clamp(2, self.config.fan_out().into()) - 1;
        let behind = random.random_range(0..most);
        (1 + behind / PER_LINE) * LINE + 16 + behind % PER_LINE * 16
    }

    /// Line 0 of a node, changed, with the checksum of what it is then.
    fn header(&self, at: GlobalAddress, change: impl FnOnce(&mut [u8; LINE])) -> Option<Write> {
        self.line_of(at, 0, change)
    }

    /// The line of an internal node, or line 0 of any, that holds this byte.
    fn line_of(&self, at: GlobalAddress, byte: usize, change: impl FnOnce(&mut [u8; LINE])) -> Option<Write> {
        let offset = at.offset() + (byte / LINE * LINE) as u64;
        let mut line = [0; LINE];
        self.memory.read(offset, &mut line).ok()?;
        change(&mut line);
        if self.config.integrity() == Integrity::Checksums {
            const SUM: usize = offsets::NODE_VERSION + 4;
            let mut sum = crc32fast::Hasher::new();
            sum.update(&line[..SUM]);
            sum.update(&line[SUM + 4..]);
            line[SUM..SUM + 4].copy_from_slice(&sum.finalize().to_le_bytes());
        }
        Some((offset, line.to_vec()))
    }

    /// A leaf, the records that it leads to, and how they are forged.
    fn entries(&self, random: &mut Random) -> Option<Vec<Write>> {
        let (leaf, record) = (self.leaf(random)?, self.any(random)?.at);
        let low = leaf.header.low;
        let length = [0, 8, 4096, LONGEST][random.random_range(0..4)];
        let pointer = match random.random_range(0..3) {
            0 => RecordPointer { address: self.elsewhere(random), length, version: 1 },
            1 => RecordPointer { address: record, length, version: 1 },
            _ => RecordPointer { length: 8, ..Self::nowhere(self.server) },
        };
        let mut writes = vec![self.forged_leaf(leaf, |number| (low.wrapping_add(number), pointer))];
        // Over whatever lies there: a node that is a record now.
        if pointer.address == record {
            let mut bytes = vec![0; RECORD_HEAD + 8];
            write_record(&mut bytes, low, 1, published(1), |value| value.fill(0xee));
            if random.random_bool(0.5) {
                // A length that the memory does not have.
                bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
            }
            writes.push((record.offset(), bytes));
        }
        Some(writes)
    }

    fn nowhere(server: u16) -> RecordPointer {
        RecordPointer { address: GlobalAddress::new(server, 1 << 40), length: LONGEST, version: 0 }
    }

    fn forged_leaf(&self, leaf: Found, entry: impl Fn(u64) -> (u64, RecordPointer)) -> Write {
        let mut bytes = vec![0; self.config.leaf_bytes() as usize];
        let NodeHeader { sibling, version, .. } = leaf.header;
        let (address, range) = (leaf.at, leaf.header.range());
        let spec = NodeSpec { address, level: 0, range, sibling, version: version.wrapping_add(1) };
        let mut builder = LeafBuilder::new(&mut bytes, self.config.leaf_shape(), spec);
        let entries: Vec<_> = (0..self.config.leaf_capacity() as u64).map(entry).collect();
        let fitting = self.config.leaf_shape().fitting(entries.iter().map(|(key, _)| *key));
        for &(key, record) in &entries[..fitting] {
            match self.config.values() {
                ValueLayout::OutOfLine | ValueLayout::ByLength(_) => builder.push_record(key, record),
                ValueLayout::Inline(_) => builder.push_inline(key).fill(0xee),
            }
        }
        builder.finish();
        (leaf.at.offset(), bytes)
    }
}

/// A line of random bytes, half of them with a node's magic.
pub fn garbage(random: &mut Random) -> Vec<u8> {
    let mut line: Vec<u8> = (0..LINE).map(|_| random.random_range(0..=u8::MAX)).collect();
    if random.random_bool(0.5) {
        line[offsets::MAGIC..][..2].copy_from_slice(&MAGIC.to_le_bytes());
    }
    line
}

fn put(line: &mut [u8; LINE], at: usize, word: u64) {
    line[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

fn set_range(line: &mut [u8; LINE], range: KeyRange) {
    put(line, offsets::LOW, range.low);
    put(line, offsets::HIGH, range.high.unwrap_or(u64::MAX));
    match range.high {
        Some(_) => line[offsets::FLAGS] &= !LAST,
        None => line[offsets::FLAGS] |= LAST,
    }
}

//! The first line of every region: what lies in it, and where its tree begins.
//!
//! It is a [`RegionHeader`] of the structure `FatB+Tre`, with the root and this configuration:
//!
//! ```text
//! offset size field
//!     32    8 low key of the partition, inclusive
//!     40    8 high key, exclusive; u64::MAX and meaningless when "last" is set
//!     48    2 partition
//!     50    2 fan-out of internal nodes
//!     52    4 bytes of a leaf
//!     56    1 level of the root
//!     57    1 format of leaves, as in their headers
//!     58    1 flags: bit 0 last (no high key), bit 1 lines have checksums, bit 2 keys are bytes
//!     59    1 version, one more with every write
//! ```
//!
//! Where keys are bytes, their [code](KeyCode) lies behind it; a configuration that was read from a superblock does not have it.
//!
//! The client that splits the root rewrites this line; a client whose root fails its checks reads it.

use fatbtree_remote_memory::{CONFIGURATION_BYTES, Check, GlobalAddress, KeyRange, RegionHeader};

use crate::config::{ConfigError, Integrity, Keys, TreeConfig};
use crate::layers::KeyCode;
use crate::node::{LINE, LeafShape, MAX_LEVEL, NodeFault};
use crate::super_root::Partition;

/// Bytes of a superblock: one line.
pub const SUPERBLOCK_BYTES: u32 = LINE as u32;

/// Offset of the first node of a loaded tree: behind the superblock and, where keys are bytes, their
/// [code](crate::layers::KeyCode).
#[must_use]
pub const fn nodes_from(config: &TreeConfig) -> u64 {
    match config.keys() {
        Keys::Numbers => SUPERBLOCK_BYTES as u64,
        Keys::Bytes => SUPERBLOCK_BYTES as u64 + KeyCode::AREA as u64,
    }
}

const STRUCTURE: [u8; 8] = *b"FatB+Tre";
const LAST: u8 = 1 << 0;
const CHECKSUMS: u8 = 1 << 1;
const BYTES: u8 = 1 << 2;

/// Content of the first line of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Number, keys, root and its level.
    pub partition: Partition,
    /// The tree's shape.
    pub config: TreeConfig,
    /// One more whenever the region is filled anew.
    pub generation: u64,
    /// Bytes of the region, padding included.
    pub region_bytes: u64,
    /// One more with every write of the superblock.
    pub version: u8,
}

impl Superblock {
    /// The line as it lies in memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LINE] {
        let Partition { id, range, root, root_level } = self.partition;
        let mut configuration = [0; CONFIGURATION_BYTES];
        let mut put = |at: usize, bytes: &[u8]| configuration[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &range.low.to_le_bytes());
        put(8, &range.high.unwrap_or(u64::MAX).to_le_bytes());
        put(16, &id.to_le_bytes());
        put(18, &self.config.fan_out().to_le_bytes());
        put(20, &self.config.leaf_bytes().to_le_bytes());
        let last = if range.high.is_none() { LAST } else { 0 };
        let sums = if self.config.integrity() == Integrity::Checksums { CHECKSUMS } else { 0 };
        let bytes = if self.config.keys() == Keys::Bytes { BYTES } else { 0 };
        put(24, &[root_level, self.config.leaf_shape().format(), last | sums | bytes, self.version]);
        let Self { generation, region_bytes, .. } = *self;
        RegionHeader { structure: STRUCTURE, root, generation, region_bytes, configuration }.to_bytes()
    }

    /// The same with another root, as it is written next.
    #[must_use]
    pub const fn with_root(self, root: GlobalAddress, root_level: u8) -> Self {
        let partition = Partition { root, root_level, ..self.partition };
        Self { partition, version: self.version.wrapping_add(1), ..self }
    }

    /// Reads the first line of a region.
    ///
    /// # Errors
    /// [`SuperblockError::Node`] when there is no superblock, or one that was being written: read it again.
    /// [`SuperblockError::Config`] when it describes a tree that cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let line = bytes.first_chunk::<LINE>();
        let line = line.ok_or(NodeFault::Short { found: bytes.len(), expected: LINE })?;
        let header = RegionHeader::from_bytes(line);
        if RegionHeader::parse(line, &STRUCTURE).is_none() && Check::Superblock.on() {
            return Err(NodeFault::Superblock { found: u64::from_le_bytes(header.structure) }.into());
        }
        let RegionHeader { root, generation, region_bytes, configuration, .. } = header;
        let word =
            |at: usize| configuration[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let half = |at: usize| u16::from_le_bytes([configuration[at], configuration[at + 1]]);
        let [.., root_level, format, flags, version] = configuration;
        let (values, leaves) = LeafShape::of_format(format);
        let integrity = if flags & CHECKSUMS != 0 { Integrity::Checksums } else { Integrity::LineVersions };
        let keys = if flags & BYTES != 0 { Keys::Bytes } else { Keys::Numbers };
        let leaf_bytes = (word(16) >> 32) as u32;
        let plain = TreeConfig::with_integrity(half(18), leaf_bytes, values, integrity)?;
        Ok(Self {
            partition: Partition {
                id: half(16),
                range: KeyRange { low: word(0), high: (flags & LAST == 0).then(|| word(8)) },
                root,
                root_level,
            },
            config: plain.with_leaves(leaves)?.with_keys(keys)?,
            generation,
            region_bytes,
            version,
        })
    }

    /// Whether this is the superblock of the tree that a client was told of: the root may be another one.
    ///
    /// # Errors
    /// Names what differs.
    pub fn check(&self, partition: &Partition, config: &TreeConfig) -> Result<(), NodeFault> {
        let same = |field, found: u64, expected: u64| match found == expected {
            true => Ok(()),
            false => Err(NodeFault::OtherTree { field, found, expected }),
        };
        let high = |range: KeyRange| range.high.unwrap_or(u64::MAX);
        same("partition", self.partition.id.into(), partition.id.into())?;
        same("low key", self.partition.range.low, partition.range.low)?;
        same("high key", high(self.partition.range), high(partition.range))?;
        same("root on server", self.partition.root.server().into(), partition.id.into())?;
        if self.partition.root.is_null() {
            return Err(NodeFault::NoRoot);
        }
        if self.partition.root_level > MAX_LEVEL {
            return Err(NodeFault::Height { found: self.partition.root_level });
        }
        same("fan-out", self.config.fan_out().into(), config.fan_out().into())?;
        same("bytes of a leaf", self.config.leaf_bytes().into(), config.leaf_bytes().into())?;
        let format = |config: &TreeConfig| u64::from(config.leaf_shape().format());
        same("format of leaves", format(&self.config), format(config))?;
        same("kind of keys", self.config.keys() as u64, config.keys() as u64)?;
        same("integrity", self.config.integrity() as u64, config.integrity() as u64)
    }
}

/// Reasons for which a region has no usable superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SuperblockError {
    /// The superblock is missing or torn.
    #[error(transparent)]
    Node(#[from] NodeFault),
    /// The superblock describes an impossible tree.
    #[error("the superblock describes a tree that cannot be: {0}")]
    Config(#[from] ConfigError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LeafKind, ValueLayout};

    fn superblock(range: KeyRange, config: TreeConfig) -> Superblock {
        let partition = Partition { id: 7, range, root: GlobalAddress::new(7, 0x1240), root_level: 3 };
        Superblock { partition, config, generation: 5, region_bytes: 1 << 33, version: 200 }
    }

    #[test]
    fn is_read_as_it_was_written_and_every_bit_matters() {
        let config = |values, integrity| TreeConfig::with_integrity(13, 960, values, integrity).unwrap();
        for (range, config) in [
            (KeyRange::ALL, config(ValueLayout::OutOfLine, Integrity::LineVersions)),
            (
                KeyRange { low: 9, high: Some(u64::MAX) },
                config(ValueLayout::Inline(33), Integrity::Checksums),
            ),
            (
                KeyRange::of(3..),
                config(ValueLayout::SHORT, Integrity::Checksums).with_leaves(LeafKind::Buckets).unwrap(),
            ),
            (KeyRange::ALL, config(ValueLayout::ByLength(64), Integrity::LineVersions)),
            (
                KeyRange::ALL,
                config(ValueLayout::SHORT, Integrity::LineVersions).with_keys(Keys::Bytes).unwrap(),
            ),
            (
                KeyRange::ALL,
                config(ValueLayout::ByLength(12), Integrity::Checksums)
                    .with_leaves(LeafKind::Buckets)
                    .unwrap(),
            ),
            (
                KeyRange::of(3..),
                config(ValueLayout::Inline(7), Integrity::LineVersions)
                    .with_leaves(LeafKind::Buckets)
                    .unwrap(),
            ),
        ] {
            let written = superblock(range, config);
            let mut bytes = written.to_bytes();
            assert_eq!(bytes[..8], *b"FatB+Tre");
            assert_eq!(Superblock::parse(&bytes), Ok(written));
            assert_eq!(written.check(&written.partition, &config), Ok(()));
            for bit in 0..LINE * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    matches!(Superblock::parse(&bytes), Err(SuperblockError::Node(fault)) if fault.is_torn())
                );
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert!(Superblock::parse(&[0; 63]).is_err());
    }

    #[test]
    fn another_tree_is_told() {
        let config = TreeConfig::default();
        let written = superblock(KeyRange::ALL, config);
        let grown = Partition { root: GlobalAddress::new(7, 64), root_level: 1, ..written.partition };
        assert_eq!(written.check(&grown, &config), Ok(()), "roots come and go");
        let other = Partition { id: 8, ..written.partition };
        let text = written.check(&other, &config).unwrap_err().to_string();
        assert!(text.starts_with("the superblock says partition 7, 8 was expected"), "{text}");
        let rootless = Partition { root: GlobalAddress::new(7, 0), ..written.partition };
        let fault = Superblock { partition: rootless, ..written }.check(&rootless, &config);
        assert_eq!(fault, Err(NodeFault::NoRoot), "no client takes it for a root");
        let high = Partition { root_level: MAX_LEVEL + 1, ..written.partition };
        let fault = Superblock { partition: high, ..written }.check(&written.partition, &config);
        assert_eq!(fault, Err(NodeFault::Height { found: MAX_LEVEL + 1 }));
        let config = TreeConfig::new(8, 1024, ValueLayout::OutOfLine).unwrap();
        assert!(
            written.check(&written.partition, &config).unwrap_err().to_string().contains("fan-out 16, 8")
        );
    }
}

//! The shape of a tree: node sizes, fan-out, how values are kept.

use std::fmt;

use crate::layers::{KeyCode, LayerId};
use crate::node::{LINE, LeafShape, internal_bytes};

/// The largest path MTU InfiniBand knows (IBTA vol. 1 §9.4), hence the largest node.
pub const MAX_PATH_MTU: u32 = 4096;

/// The largest value a leaf can hold in line, in bytes.
pub const MAX_INLINE_VALUE: u8 = 64;

pub use fatbtree_remote_memory::Keys;
pub use fatbtree_remote_memory::record::MAX_VALUE;

/// Place of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ValueLayout {
    /// In the leaf entry; every value has exactly this many bytes, 1 to 64.
    Inline(u8),
    /// In a record of its own (see [`crate::record`]); values may have any length up to [`MAX_VALUE`].
    OutOfLine,
    /// In the leaf entry up to so many bytes, [`POINTER_ROOM`] to [`MAX_INLINE_VALUE`]; in a record of its own otherwise.
    ByLength(u8),
}

impl ValueLayout {
    /// Values by their length, with entries that are no longer than a pointer to a record.
    pub const SHORT: Self = Self::ByLength(POINTER_ROOM);
}

/// Words for people, such as `values of up to 11 bytes in line`.
impl fmt::Display for ValueLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline(bytes) => write!(f, "values of {bytes} bytes in line"),
            Self::OutOfLine => write!(f, "values out of line"),
            Self::ByLength(bytes) => write!(f, "values of up to {bytes} bytes in line"),
        }
    }
}

/// Bytes of the longest value that has room where there would be the pointer to a record.
pub const POINTER_ROOM: u8 = 11;

/// What a lookup reads of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum LeafKind {
    /// All of it.
    #[default]
    Plain,
    /// Two lines, in which the key's entry is if there is one: see [`read_bucket`](crate::node::read_bucket).
    Buckets,
}

/// Means by which a reader detects that a node was written during the read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum Integrity {
    /// A version in every line of 64 bytes (FaRM §4.4, SMART §5.2). Enough where the server's device reads and writes a line
    /// whole.
    #[default]
    LineVersions,
    /// A checksum of 32 bits beside it: where the device may tear even a line.
    Checksums,
}

impl Integrity {
    /// Consistency marks for memory that is reached through a device with or without [line
    /// atomicity](fatbtree_verbs::Capabilities::line_atomicity).
    #[must_use]
    pub const fn for_device(line_atomicity: bool) -> Self {
        if line_atomicity { Self::LineVersions } else { Self::Checksums }
    }
}

/// The shape of one tree: both ends must agree on it. Always valid: [`TreeConfig::new`] refuses the rest.
///
/// ```
/// use fatbtree_blink::{TreeConfig, ValueLayout};
/// let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine)?;
/// assert_eq!((config.internal_bytes(), config.leaf_capacity()), (384, 45));
/// config.check_path_mtu(1024)?;
/// assert!(config.check_path_mtu(512).is_err());
/// # Ok::<(), fatbtree_blink::ConfigError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeConfig {
    fan_out: u16,
    internal_bytes: u32,
    values: ValueLayout,
    leaf: LeafShape,
    integrity: Integrity,
    keys: Keys,
    code: KeyCode,
    /// The layer whose nodes these are; none: the first one.
    layer: Option<LayerId>,
}

impl Default for TreeConfig {
    /// 16 branches (what a switch node set holds), leaves of 1 KB, values out of line.
    fn default() -> Self {
        Self::new(16, 1024, ValueLayout::OutOfLine).expect("the default shape fits a path MTU of 1024")
    }
}

impl TreeConfig {
    /// A tree with internal nodes of up to `fan_out` children, leaves of `leaf_bytes` bytes, and line versions.
    ///
    /// # Errors
    /// When a node would hold too little, or exceed the largest path MTU there is, 4096 bytes.
    pub fn new(fan_out: u16, leaf_bytes: u32, values: ValueLayout) -> Result<Self, ConfigError> {
        Self::with_integrity(fan_out, leaf_bytes, values, Integrity::LineVersions)
    }

    /// The same with another way to notice torn reads; checksums take 4 bytes of every line of a leaf.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_integrity(
        fan_out: u16,
        leaf_bytes: u32,
        values: ValueLayout,
        integrity: Integrity,
    ) -> Result<Self, ConfigError> {
        if fan_out < 2 {
            return Err(ConfigError::FanOut { found: fan_out });
        }
        if let ValueLayout::Inline(found) = values
            && !(1..=MAX_INLINE_VALUE).contains(&found)
        {
            return Err(ConfigError::InlineSize { found });
        }
        if let ValueLayout::ByLength(found) = values
            && !(POINTER_ROOM..=MAX_INLINE_VALUE).contains(&found)
        {
            return Err(ConfigError::ShortSize { found });
        }
        if leaf_bytes == 0 || !leaf_bytes.is_multiple_of(LINE as u32) {
            return Err(ConfigError::LeafLines { found: leaf_bytes });
        }
        let internal_bytes = internal_bytes(fan_out);
        let bytes = internal_bytes.max(leaf_bytes);
        if bytes > MAX_PATH_MTU {
            return Err(ConfigError::NodeTooLarge { bytes, path_mtu: MAX_PATH_MTU });
        }
        let leaf = LeafShape::new(values, leaf_bytes, integrity);
        if leaf.capacity() < 2 {
            return Err(ConfigError::LeafCapacity { leaf_bytes, values, capacity: leaf.capacity() });
        }
        let (keys, code) = (Keys::Numbers, KeyCode::NONE);
        Ok(Self { fan_out, internal_bytes, values, leaf, integrity, keys, code, layer: None })
    }

    /// The same with keys of this kind.
    ///
    /// # Errors
    /// When an entry of a leaf has no room to say that several keys of bytes share it.
    pub fn with_keys(self, keys: Keys) -> Result<Self, ConfigError> {
        match (keys, self.values) {
            (Keys::Bytes, ValueLayout::Inline(_) | ValueLayout::OutOfLine) => {
                Err(ConfigError::ByteKeys { values: self.values })
            }
            _ => Ok(Self { keys, code: KeyCode::NONE, ..self }),
        }
    }

    /// The same, where the first layer has this code of keys. Trees of numbers have none.
    #[must_use]
    pub fn with_code(self, code: KeyCode) -> Self {
        let code = if self.keys == Keys::Bytes { code } else { KeyCode::NONE };
        Self { code, ..self }
    }

    /// How keys of bytes become words of the first layer.
    #[must_use]
    pub const fn code(&self) -> KeyCode {
        self.code
    }

    /// The shape of the nodes of a layer below the first one: plain leaves.
    pub(crate) fn of_layer(self, layer: LayerId) -> Self {
        let leaf = LeafShape::new(self.values, self.leaf_bytes(), self.integrity);
        Self { leaf, layer: Some(layer), ..self }
    }

    /// Kind of the keys.
    #[must_use]
    pub const fn keys(&self) -> Keys {
        self.keys
    }

    /// The layer whose nodes these are; none: the first one.
    pub(crate) const fn layer(&self) -> Option<LayerId> {
        self.layer
    }

    /// The same with this means to notice torn reads.
    ///
    /// # Errors
    /// When leaves have no room for checksums.
    pub fn protected_by(self, integrity: Integrity) -> Result<Self, ConfigError> {
        let other = Self::with_integrity(self.fan_out, self.leaf_bytes(), self.values, integrity)?;
        Ok(other.with_leaves(self.leaves())?.with_keys(self.keys)?.with_code(self.code))
    }

    /// The same with leaves of this kind.
    ///
    /// # Errors
    /// When leaves or values are too large for buckets.
    pub fn with_leaves(self, leaves: LeafKind) -> Result<Self, ConfigError> {
        let (leaf_bytes, values) = (self.leaf_bytes(), self.values);
        let plain = LeafShape::new(values, leaf_bytes, self.integrity);
        let leaf = match leaves {
            LeafKind::Plain => Some(plain),
            LeafKind::Buckets => plain.with_buckets(),
        };
        Ok(Self { leaf: leaf.ok_or(ConfigError::Buckets { leaf_bytes, values })?, ..self })
    }

    /// The same with values there, in plain leaves.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_values(self, values: ValueLayout) -> Result<Self, ConfigError> {
        Self::with_integrity(self.fan_out, self.leaf_bytes(), values, self.integrity)?
            .with_keys(self.keys)
            .map(|config| config.with_code(self.code))
    }

    /// Kind of the leaves.
    #[must_use]
    pub const fn leaves(&self) -> LeafKind {
        if self.leaf.has_buckets() { LeafKind::Buckets } else { LeafKind::Plain }
    }

    /// Most children of an internal node.
    #[must_use]
    pub const fn fan_out(&self) -> u16 {
        self.fan_out
    }

    /// Bytes of an internal node, whole lines.
    #[must_use]
    pub const fn internal_bytes(&self) -> u32 {
        self.internal_bytes
    }

    /// Bytes of a leaf node, whole lines.
    #[must_use]
    pub const fn leaf_bytes(&self) -> u32 {
        self.leaf.bytes()
    }

    /// Bytes of the larger of the two: what an index read asks for, since it may land on either.
    #[must_use]
    pub const fn max_node_bytes(&self) -> u32 {
        if self.internal_bytes > self.leaf.bytes() { self.internal_bytes } else { self.leaf.bytes() }
    }

    /// Bytes of a node at `level` (leaves are level 0).
    #[must_use]
    pub const fn node_bytes(&self, level: u8) -> u32 {
        if level == 0 { self.leaf.bytes() } else { self.internal_bytes }
    }

    /// Most entries of a leaf.
    #[must_use]
    pub const fn leaf_capacity(&self) -> usize {
        self.leaf.capacity()
    }

    /// Place of values.
    #[must_use]
    pub const fn values(&self) -> ValueLayout {
        self.values
    }

    /// Means by which a reader detects that a node was written during the read.
    #[must_use]
    pub const fn integrity(&self) -> Integrity {
        self.integrity
    }

    /// Arrangement of entries in a leaf.
    #[must_use]
    pub const fn leaf_shape(&self) -> &LeafShape {
        &self.leaf
    }

    /// The single-packet rule: an index read carries a key where a READ carries an address. A READ of several
    /// packets that loses one is resumed at `address + bytes received`, which would be another key.
    ///
    /// # Errors
    /// When a node would not fit in one packet of `path_mtu` bytes.
    pub const fn check_path_mtu(&self, path_mtu: u32) -> Result<(), ConfigError> {
        let bytes = self.max_node_bytes();
        if bytes > path_mtu { Err(ConfigError::NodeTooLarge { bytes, path_mtu }) } else { Ok(()) }
    }
}

/// Errors from building or using a tree of this shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// Single-packet rule.
    #[error(
        "node of {bytes} bytes exceeds path MTU {path_mtu}: index reads must be answered in one packet, because \
         a resumed READ would ask for another key; use smaller nodes or a path MTU of at least {bytes}"
    )]
    NodeTooLarge {
        /// Bytes of the larger kind of node.
        bytes: u32,
        /// Path MTU of the connection, bytes.
        path_mtu: u32,
    },
    /// A node with fewer than two children does not divide anything.
    #[error("fan-out of {found}: an internal node needs at least 2 children; switches cache 16")]
    FanOut {
        /// The requested value.
        found: u16,
    },
    /// In-line values have 1 to 64 bytes.
    #[error("in-line values of {found} bytes: 1 to {MAX_INLINE_VALUE} are possible; keep others out of line")]
    InlineSize {
        /// The requested value.
        found: u8,
    },
    /// Values of up to 11 to 64 bytes are in line, where others are in records.
    #[error(
        "in-line values of up to {found} bytes: {POINTER_ROOM} to {MAX_INLINE_VALUE} are possible; longer ones lie in records"
    )]
    ShortSize {
        /// The requested value.
        found: u8,
    },
    /// Keys of bytes need entries that say what they hold.
    #[error(
        "keys of bytes with {values}: they need values by their length, in line up to {POINTER_ROOM} to {MAX_INLINE_VALUE} bytes and in records otherwise"
    )]
    ByteKeys {
        /// Place of values.
        values: ValueLayout,
    },
    /// A leaf is made of 64-byte lines.
    #[error("leaf of {found} bytes: expected a positive multiple of {LINE}, the line that carries a version")]
    LeafLines {
        /// The requested value.
        found: u32,
    },
    /// Entries too wide for buckets, or a leaf without room for them.
    #[error(
        "leaf of {leaf_bytes} bytes with {values}: buckets need leaves of 192 to 2048 bytes, and in-line values of up to 42 bytes (38 with \
         checksums), or 43 (39) where all have one size; choose plain leaves, or keep longer values out of line"
    )]
    Buckets {
        /// Bytes of the leaf.
        leaf_bytes: u32,
        /// Place of values.
        values: ValueLayout,
    },
    /// A leaf that cannot be split.
    #[error(
        "leaf of {leaf_bytes} bytes holds {capacity} entries with {values}, at least 2 are needed: make it larger"
    )]
    LeafCapacity {
        /// Bytes of the leaf.
        leaf_bytes: u32,
        /// Place of values.
        values: ValueLayout,
        /// Entries that fit.
        capacity: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_shapes_that_cannot_work_and_says_why() {
        let text = |r: Result<TreeConfig, ConfigError>| r.unwrap_err().to_string();
        assert!(text(TreeConfig::new(1, 1024, ValueLayout::OutOfLine)).contains("at least 2 children"));
        assert!(text(TreeConfig::new(16, 1024, ValueLayout::Inline(0))).contains("1 to 64"));
        assert!(text(TreeConfig::new(16, 1024, ValueLayout::Inline(65))).contains("1 to 64"));
        for size in [0, 10, 65, 255] {
            assert!(text(TreeConfig::new(16, 1024, ValueLayout::ByLength(size))).contains("11 to 64 are"));
        }
        assert!(text(TreeConfig::new(16, 1000, ValueLayout::OutOfLine)).contains("multiple of 64"));
        assert!(text(TreeConfig::new(16, 0, ValueLayout::OutOfLine)).contains("multiple of 64"));
        assert!(text(TreeConfig::new(16, 192, ValueLayout::Inline(64))).contains("holds 1 entries"));
        assert!(text(TreeConfig::new(16, 8192, ValueLayout::OutOfLine)).contains("exceeds path MTU 4096"));
        assert!(
            text(TreeConfig::new(u16::MAX, 1024, ValueLayout::OutOfLine)).contains("exceeds path MTU 4096")
        );
    }

    #[test]
    fn node_larger_than_the_path_mtu_is_refused() {
        let config = TreeConfig::default();
        assert_eq!(config.check_path_mtu(1024), Ok(()));
        let text = config.check_path_mtu(512).unwrap_err().to_string();
        assert!(text.starts_with(
            "node of 1024 bytes exceeds path MTU 512: index reads must be answered in one packet"
        ));
    }
}

//! The head of a layer: which keys it has, and where its root is.
//!
//! ```text
//! offset size field
//!      0    4 CRC-32 of the other bytes of this line
//!      4    2 magic 0xFB7A
//!      6    1 state: 1 coming, 2 gone
//!      7    1 level of the root
//!      8    8 address of the layer's first leaf, which this head lies behind
//!     16    8 address of the root
//!     24    8 number of what all keys of the layer begin with as the entry above has it
//!     32    8 number of the layer: of the prefix as well
//!     40    2 bytes of the prefix
//!     42    1 version, one more with every write
//!     43    5 zero
//!     48    8 key of the entry of the first layer
//!     56    8 zero
//!     64  192 the prefix, then zeros
//! ```
//!
//! The client that splits the layer's root rewrites the first line. The prefix is never written again.

use fatbtree_remote_memory::{GlobalAddress, mix};

use super::checks::Check;
use crate::node::{LINE, MAX_LEVEL, NodeFault};

const MAGIC: u16 = 0xfb7a;

/// Bytes of the longest prefix. Longer ones take layers of their own.
pub(crate) const MAX_PREFIX: usize = 3 * LINE;

/// Number of a layer: of what the keys of the layer begin with. A reader of a node that belongs to another layer learns it by this. Layers
/// of the same beginning have the same number, and mean the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct LayerId(pub(crate) u64);

impl LayerId {
    /// Of keys that lie in the layer `above` in the entry with this key; none: in the first one.
    pub(crate) fn below(above: Option<LayerId>, word: u64) -> Self {
        Self(mix(above.map_or(1, |above| above.0).rotate_left(29) ^ mix(word ^ 0x5bd1_e995)))
    }

    /// Of those among them that go on with this prefix.
    pub(crate) fn with_prefix(self, prefix: &[u8]) -> Self {
        let mut id = self.0 ^ prefix.len() as u64;
        for bytes in prefix.chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            id = mix(id.rotate_left(29) ^ mix(u64::from_le_bytes(word) ^ 0x5bd1_e995));
        }
        // Nodes of the first layer have 0 there.
        Self(id.max(1))
    }
}

/// State of a layer. A head has one of the last two, and it counts where the layer's first leaf is marked as a free one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LayerState {
    /// It has the keys that its nodes say.
    Here,
    /// It was written, and no entry led to it then.
    Coming,
    /// It has no keys, and its entry goes.
    Gone,
}

/// The head of a layer, as read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LayerHead {
    pub(crate) state: LayerState,
    pub(crate) root: GlobalAddress,
    pub(crate) root_level: u8,
    /// The layer's first leaf.
    pub(crate) leaf: GlobalAddress,
    pub(crate) base: LayerId,
    /// The key of the entry of the first layer that leads here, by way of others or not.
    pub(crate) first: u64,
    pub(crate) prefix: Vec<u8>,
    pub(crate) version: u8,
}

impl LayerHead {
    /// Bytes of a head.
    pub(crate) const BYTES: u32 = (LINE + MAX_PREFIX) as u32;

    /// Number of the layer.
    pub(crate) fn id(&self) -> LayerId {
        self.base.with_prefix(&self.prefix)
    }

    /// The same with another root, as it is written next.
    pub(crate) fn with_root(&self, root: GlobalAddress, root_level: u8) -> Self {
        Self { root, root_level, version: self.version.wrapping_add(1), ..self.clone() }
    }

    /// The same in another state, as it is written next.
    pub(crate) fn with_state(&self, state: LayerState) -> Self {
        Self { state, version: self.version.wrapping_add(1), ..self.clone() }
    }

    /// The first line.
    pub(crate) fn line(&self) -> [u8; LINE] {
        let mut line = [0; LINE];
        let mut put = |at: usize, bytes: &[u8]| line[at..at + bytes.len()].copy_from_slice(bytes);
        put(4, &MAGIC.to_le_bytes());
        put(6, &[if self.state == LayerState::Gone { 2 } else { 1 }, self.root_level]);
        put(8, &self.leaf.raw().to_le_bytes());
        put(16, &self.root.raw().to_le_bytes());
        put(24, &self.base.0.to_le_bytes());
        put(32, &self.id().0.to_le_bytes());
        put(40, &(self.prefix.len() as u16).to_le_bytes());
        put(42, &[self.version]);
        put(48, &self.first.to_le_bytes());
        let sum = crc32fast::hash(&line[4..]);
        line[..4].copy_from_slice(&sum.to_le_bytes());
        line
    }

    /// The head as it lies in memory.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.line().to_vec();
        bytes.extend_from_slice(&self.prefix);
        bytes.resize(Self::BYTES as usize, 0);
        bytes
    }

    /// Reads the head of the layer whose first leaf lies at `leaf`.
    ///
    /// # Errors
    /// [`NodeFault::Superblock`] if it is being written, [`NodeFault::NoLayer`] if none lies there.
    pub(crate) fn parse(bytes: &[u8], leaf: GlobalAddress) -> Result<Self, NodeFault> {
        let Some((line, rest)) = bytes.split_first_chunk::<LINE>() else {
            return Err(NodeFault::Short { found: bytes.len(), expected: LINE });
        };
        let none = NodeFault::NoLayer { layer: leaf };
        let word = |at: usize| line[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if word(0) as u32 != crc32fast::hash(&line[4..]) {
            return Err(NodeFault::Superblock { found: word(0) });
        }
        let state = match line[6] {
            1 => LayerState::Coming,
            _ => LayerState::Gone,
        };
        let length = usize::from(u16::from_le_bytes([line[40], line[41]]));
        let (root, root_level) = (GlobalAddress(word(16)), line[7]);
        let is_one = (word(0) >> 32) as u16 == MAGIC && root_level <= MAX_LEVEL && !root.is_null();
        let prefix = rest.get(..length).filter(|_| is_one && word(8) == leaf.raw()).ok_or(none)?;
        let base = LayerId(word(24));
        let (first, version, prefix) = (word(48), line[42], prefix.to_vec());
        let head = Self { state, root, root_level, leaf, base, first, prefix, version };
        // The prefix has no other sum: it is of this layer, or is being written.
        match head.id().0 == word(32) || !Check::Head.on() {
            true => Ok(head),
            false => Err(NodeFault::Superblock { found: word(32) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_every_bit_matters() {
        let leaf = GlobalAddress::new(3, 0x4000);
        for prefix in [&b""[..], b"https://www.", &[7; MAX_PREFIX]] {
            let head = LayerHead {
                state: LayerState::Coming,
                root: GlobalAddress::new(3, 0x9040),
                root_level: 2,
                leaf,
                base: LayerId::below(None, 17),
                first: 17,
                prefix: prefix.to_vec(),
                version: 9,
            };
            let mut bytes = head.to_bytes();
            assert_eq!(bytes.len(), LayerHead::BYTES as usize);
            assert_eq!(LayerHead::parse(&bytes, leaf), Ok(head.clone()));
            let gone = head.with_state(LayerState::Gone).with_root(leaf, 0);
            assert_eq!(LayerHead::parse(&gone.to_bytes(), leaf), Ok(gone));
            for bit in 0..(LINE + prefix.len()) * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(LayerHead::parse(&bytes, leaf).is_err_and(|fault| fault.is_torn()), "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let elsewhere = GlobalAddress::new(3, 0x4040);
            assert_eq!(LayerHead::parse(&bytes, elsewhere), Err(NodeFault::NoLayer { layer: elsewhere }));
        }
        assert!(LayerHead::parse(&[0; 256], leaf).is_err());
    }
}

//! Bytes of keys, and the prefixes that nodes stand for.

/// Bytes of a key that inner nodes may tell apart: depths 0 to 7.
pub(crate) const DEPTHS: u8 = 8;

/// Byte of a key at a depth, the most significant first.
pub(crate) const fn byte(key: u64, depth: u8) -> u8 {
    (key >> (56 - 8 * depth as u32)) as u8
}

/// Bytes at the begin that two keys share, 0 to 8.
pub(crate) const fn common(one: u64, other: u64) -> u8 {
    ((one ^ other).leading_zeros() / 8) as u8
}

/// The first bytes of a key, 0 to 7: what all keys below an inner node share.
///
/// In a word the bytes come first, as in the key; the last byte is their number. So the word names
/// a node, whatever lies where.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Prefix {
    bytes: u64,
    depth: u8,
}

impl Prefix {
    /// No byte: the root's.
    pub(crate) const ROOT: Self = Self { bytes: 0, depth: 0 };

    /// The first `depth` bytes of a key, 7 at most.
    pub(crate) const fn of(key: u64, depth: u8) -> Self {
        let depth = if depth < DEPTHS { depth } else { DEPTHS - 1 };
        Self { bytes: key & !(u64::MAX >> (8 * depth as u32)), depth }
    }

    pub(crate) const fn word(self) -> u64 {
        self.bytes | self.depth as u64
    }

    pub(crate) const fn depth(self) -> u8 {
        self.depth
    }

    /// Lowest key.
    pub(crate) const fn low(self) -> u64 {
        self.bytes
    }

    /// Highest key.
    pub(crate) const fn high(self) -> u64 {
        self.bytes | (u64::MAX >> (8 * self.depth as u32))
    }

    pub(crate) const fn covers(self, key: u64) -> bool {
        key >= self.low() && key <= self.high()
    }

    /// Lowest key below this node with a byte at the node's depth.
    pub(crate) const fn first_of(self, byte: u8) -> u64 {
        self.bytes | (byte as u64) << (56 - 8 * self.depth as u32)
    }

    /// Highest key below this node with a byte at the node's depth.
    pub(crate) const fn last_of(self, byte: u8) -> u64 {
        self.first_of(byte) | ((1 << (56 - 8 * self.depth as u32)) - 1)
    }

    /// Byte of a key at the node's depth.
    pub(crate) const fn byte_of(self, key: u64) -> u8 {
        byte(key, self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_cover_what_shares_their_bytes() {
        let key = 0x0102_0304_0506_0708;
        for depth in 0..DEPTHS {
            let prefix = Prefix::of(key, depth);
            assert!(prefix.covers(key) && prefix.covers(prefix.low()) && prefix.covers(prefix.high()));
            assert_eq!(prefix.byte_of(key), depth + 1);
            assert!(prefix.first_of(depth + 1) <= key && key <= prefix.last_of(depth + 1));
            assert_eq!(prefix.last_of(255), prefix.high());
            assert_eq!(common(prefix.low(), prefix.high()), depth);
            assert_eq!(prefix.word() & 0xff, u64::from(depth));
        }
        assert!(!Prefix::of(key, 7).covers(key + 0x100) && Prefix::ROOT.covers(u64::MAX));
        assert_eq!(common(5, 5), 8);
    }
}

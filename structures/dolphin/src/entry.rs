//! The eight bytes by which an inner node names a child.

use std::fmt;

use fatbtree_remote_memory::GlobalAddress;

/// Bytes of a unit: nodes, leaves and records begin at multiples of it.
pub const UNIT: u64 = 64;

/// Bytes of a server's region that entries reach: 4 TiB.
pub const MAX_REGION: u64 = UNIT << UNIT_BITS;

const UNIT_BITS: u32 = 36;
const SERVER: u32 = UNIT_BITS;
const SERVER_BITS: u32 = 5;
const CHECK: u32 = SERVER + SERVER_BITS;
const CHECK_BITS: u32 = 11;
const CHECK_MASK: u64 = ((1 << CHECK_BITS) - 1) << CHECK;
const SIZE: u32 = CHECK + CHECK_BITS;
const INNER: u64 = 1 << (SIZE + 3);
const BYTE: u32 = 56;
const _: () = assert!(INNER << 1 == 1 << BYTE);

/// The check bits of an entry, where they belong: the highest ones of a product with an odd number. A bit that flips changes the product by
/// that number, shifted, of which the highest bits are neither all 0 nor all 1.
const fn check(word: u64) -> u64 {
    (word & !CHECK_MASK).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - CHECK_BITS) << CHECK
}

/// Number of entries that an inner node has room for: 4, 8, 16, 32, 64, 128 or 256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeSize(u8);

impl NodeSize {
    /// Size of a new node.
    pub const NEW: Self = Self(2);
    /// Size of the root.
    pub const LARGEST: Self = Self(6);

    /// The size of a number, 0 to 6; of others, the largest.
    #[must_use]
    pub const fn of_number(number: u8) -> Self {
        if number < 6 { Self(number) } else { Self::LARGEST }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Entries.
    #[must_use]
    pub const fn entries(self) -> usize {
        4 << self.0
    }

    /// Bytes that a READ asks for.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        crate::inner::HEAD_BYTES as u32 + 8 * self.entries() as u32
    }

    /// Bytes in memory: a multiple of [`UNIT`].
    #[must_use]
    pub const fn place_bytes(self) -> u32 {
        self.bytes().next_multiple_of(UNIT as u32)
    }

    /// The smallest size for so many entries.
    pub(crate) const fn least_for(entries: usize) -> Self {
        let mut size = Self(0);
        while size.0 < 6 && size.entries() < entries {
            size.0 += 1;
        }
        size
    }
}

/// An entry of an inner node as it lies in memory, little-endian.
///
/// ```text
///   63      56 55     54  52 51   41 40    36 35          0
///   byte       inner  size   check   server   64-byte units
///    8          1      3      11      5        36
/// ```
///
/// An *inner* entry is for keys with its byte, and no others. A *leaf* entry is for keys from its
/// byte up to the next entry's; the leaf itself says where its range ends. The *check* bits depend on all
/// others: an entry changes with one WRITE of its word, so one that does not match them is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Entry(pub u64);

impl Entry {
    /// No child.
    pub const EMPTY: Self = Self(0);

    /// Entry of a leaf. `None` if entries do not reach the address.
    #[must_use]
    pub const fn leaf(byte: u8, at: GlobalAddress) -> Option<Self> {
        match place(at) {
            Some(place) => Some(Self::sealed((byte as u64) << BYTE | place)),
            None => None,
        }
    }

    /// Entry of an inner node. `None` if entries do not reach the address.
    #[must_use]
    pub const fn inner(byte: u8, size: NodeSize, at: GlobalAddress) -> Option<Self> {
        match place(at) {
            Some(place) => {
                Some(Self::sealed((byte as u64) << BYTE | INNER | (size.0 as u64) << SIZE | place))
            }
            None => None,
        }
    }

    /// The word with its check bits.
    const fn sealed(word: u64) -> Self {
        Self(word & !CHECK_MASK | check(word))
    }

    /// Whether the check bits are right: no client has ever written another word, so it is damaged.
    #[must_use]
    pub const fn is_sound(self) -> bool {
        check(self.0) == self.0 & CHECK_MASK
    }

    /// Whether there is no child.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 & ((1 << UNIT_BITS) - 1) == 0
    }

    /// Byte of the keys.
    #[must_use]
    pub const fn byte(self) -> u8 {
        (self.0 >> BYTE) as u8
    }

    /// The same child under another byte.
    #[must_use]
    pub const fn under(self, byte: u8) -> Self {
        let sealed = Self::sealed(self.0 & !(0xff << BYTE) | (byte as u64) << BYTE);
        // What is damaged stays so.
        if self.is_sound() { sealed } else { Self(sealed.0 ^ CHECK_MASK) }
    }

    /// Whether the child is an inner node.
    #[must_use]
    pub const fn is_inner(self) -> bool {
        self.0 & INNER != 0
    }

    /// Size of the child, if it is an inner node.
    #[must_use]
    pub const fn size(self) -> NodeSize {
        NodeSize::of_number((self.0 >> SIZE & 7) as u8)
    }

    /// Address of the child.
    #[must_use]
    pub const fn at(self) -> GlobalAddress {
        let server = self.0 >> SERVER & ((1 << SERVER_BITS) - 1);
        GlobalAddress::new(server as u16, (self.0 & ((1 << UNIT_BITS) - 1)) * UNIT)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_inner() { "inner" } else { "leaf" };
        write!(f, "{:#04x} {kind} {}", self.byte(), self.at())
    }
}

const fn place(at: GlobalAddress) -> Option<u64> {
    let offset = at.offset();
    let is_reached = at.server() < 1 << SERVER_BITS && offset < MAX_REGION;
    let fits = is_reached && offset.is_multiple_of(UNIT) && offset > 0;
    if fits { Some(((at.server() as u64) << SERVER) | (offset / UNIT)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let at = GlobalAddress::new(31, 0x123_4567 * 64);
        let leaf = Entry::leaf(0x7f, at).unwrap();
        assert!(!leaf.is_inner() && !leaf.is_empty());
        assert_eq!((leaf.byte(), leaf.at()), (0x7f, at));
        for number in 0..=6 {
            let inner = Entry::inner(3, NodeSize::of_number(number), at).unwrap();
            assert!(inner.is_inner());
            assert_eq!((inner.byte(), inner.size().number(), inner.at()), (3, number, at));
            assert_eq!((inner.under(9).byte(), inner.under(9).at()), (9, at));
        }
        assert!(Entry::EMPTY.is_empty());
        for (server, offset) in [(0, 0), (0, 32), (0, MAX_REGION), (32, 64)] {
            assert_eq!(Entry::leaf(1, GlobalAddress::new(server, offset)), None, "{server}, {offset}");
        }
    }

    #[test]
    fn any_bit_that_flips_is_noticed() {
        for unit in (1..200_000).step_by(97) {
            let at = GlobalAddress::new((unit % 32) as u16, unit * unit * 64 % MAX_REGION);
            let Some(entry) = Entry::leaf(unit as u8, at) else { continue };
            assert!(entry.is_sound() && entry.under(7).is_sound());
            for bit in 0..64 {
                let damaged = Entry(entry.0 ^ 1 << bit);
                assert!(!damaged.is_sound() && !damaged.under(9).is_sound(), "{entry:?}, bit {bit}");
            }
        }
        assert!(Entry::EMPTY.is_sound());
        assert!((0..64).all(|bit| !Entry(1 << bit).is_sound()));
    }

    #[test]
    fn sizes() {
        let entries: Vec<_> = (0..=6).map(|number| NodeSize::of_number(number).entries()).collect();
        assert_eq!(entries, [4, 8, 16, 32, 64, 128, 256]);
        assert_eq!(NodeSize::NEW.bytes(), 152);
        assert_eq!(NodeSize::LARGEST.place_bytes(), 2112);
        assert_eq!([0, 4, 5, 17, 256].map(|least| NodeSize::least_for(least).entries()), [4, 4, 8, 32, 256]);
    }
}

//! Operations on remote memory.

/// A place in a remote memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    /// Address as the region's owner registered it (its `iova` and up).
    pub address: u64,
    /// Key of the region. A server's tree memory and its device memory have one each.
    pub rkey: u32,
}

/// The rkey of an index read that may land on a node or on the record of its key; see [`IndexTarget`].
pub const RKEY_NODE_OR_RECORD: u32 = 0;

/// The rkey of an index read that must land on a node; see [`IndexTarget`].
pub const RKEY_NODE: u32 = 1;

/// Rkeys below this are index reads.
pub const INDEX_RKEYS: u32 = 1 << 8;

/// Target of an index read.
///
/// A switch cannot ask the client, so the READ says it by its rkey: beside address and length that is the only thing of a READ
/// that verbs let a client choose freely. No region has such an rkey, so a READ that no switch rewrites is refused.
///
/// ```text
/// rkey  bits 31..8   0
///       bits 7..3    the slice of a leaf: its first line, 0 for the whole
///       bits 2..1    not used
///       bit  0       1: a node and no record
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IndexTarget {
    /// A node on the way to the key, or the record of the key.
    NodeOrRecord,
    /// A node on the way to the key. For operations that must know the leaf.
    Node,
    /// A slice of the key's leaf, if the switches lead to it, and otherwise what the other targets bring: the last hop adds the slice's
    /// offset to the leaf's address.
    Slice {
        /// First line of the slice, 1 to [`MAX_SLICE`](Self::MAX_SLICE).
        line: u8,
        /// Whether the record of the key will do.
        or_record: bool,
    },
}

impl IndexTarget {
    /// Targets of each kind.
    pub const ALL: [Self; 4] = [
        Self::NodeOrRecord,
        Self::Node,
        Self::Slice { line: Self::MAX_SLICE, or_record: true },
        Self::Slice { line: Self::MAX_SLICE, or_record: false },
    ];

    /// Highest line at which a slice can begin.
    pub const MAX_SLICE: u8 = 31;

    /// Bytes of a line.
    pub const LINE: u64 = 64;

    /// The rkey of the target.
    #[must_use]
    pub const fn rkey(self) -> u32 {
        match self {
            Self::NodeOrRecord => RKEY_NODE_OR_RECORD,
            Self::Node => RKEY_NODE,
            Self::Slice { line, or_record } => {
                let target = if or_record { RKEY_NODE_OR_RECORD } else { RKEY_NODE };
                target | (line as u32 & Self::MAX_SLICE as u32) << 3
            }
        }
    }

    /// Target of a READ with this rkey; `None` if it is no index read.
    #[must_use]
    pub const fn of_rkey(rkey: u32) -> Option<Self> {
        if rkey >= INDEX_RKEYS {
            return None;
        }
        let (line, or_record) = ((rkey >> 3) as u8, rkey & RKEY_NODE == 0);
        Some(match (line, or_record) {
            (0, true) => Self::NodeOrRecord,
            (0, false) => Self::Node,
            (line, or_record) => Self::Slice { line, or_record },
        })
    }

    /// Whether the record of the key will do.
    #[must_use]
    pub const fn or_record(self) -> bool {
        matches!(self, Self::NodeOrRecord | Self::Slice { or_record: true, .. })
    }

    /// Offset from the start of the leaf at which the answer begins where the switches lead to the leaf, in bytes.
    #[must_use]
    pub const fn offset_in_leaf(self) -> u64 {
        match self {
            Self::NodeOrRecord | Self::Node => 0,
            Self::Slice { line, .. } => line as u64 * Self::LINE,
        }
    }
}

/// One operation on remote memory. Data to write is copied when it is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// RDMA READ.
    Read {
        /// Place to read from.
        from: Remote,
        /// Number of bytes.
        len: u32,
    },
    /// An RDMA READ with the key where the address would be and an rkey that no region has; the switches on the way choose
    /// the address. It must fit in one packet: a READ of several that loses one is resumed at `address + bytes received`,
    /// which would be another key.
    IndexRead {
        /// The key.
        key: u64,
        /// Number of bytes; at most the path MTU.
        len: u32,
        /// Target of the read. It travels as the rkey.
        target: IndexTarget,
    },
    /// RDMA WRITE.
    Write {
        /// Place to write to.
        to: Remote,
        /// The bytes to write.
        data: &'a [u8],
    },
    /// Stores `swap` if memory holds `compare`; 64 bits.
    CompareSwap {
        /// Place of the 64 bits; a multiple of 8.
        at: Remote,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds to 64 bits, wrapping.
    FetchAdd {
        /// Place of the 64 bits; a multiple of 8.
        at: Remote,
        /// The number to add.
        add: u64,
    },
    /// Compares and swaps some of 64 bits: where `memory & compare_mask` equals `compare & compare_mask`, the bits of
    /// `swap_mask` are taken from `swap` (extended atomics of ConnectX; Sherman section 4.3).
    MaskedCompareSwap {
        /// Place of the 64 bits; a multiple of 8.
        at: Remote,
        /// Expected value, in the bits of `compare_mask`.
        compare: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// New value, in the bits of `swap_mask`.
        swap: u64,
        /// Bits that are changed.
        swap_mask: u64,
    },
    /// Adds to the fields of 64 bits: no carry goes out of a bit that is set in `boundary`, the highest of each field.
    MaskedFetchAdd {
        /// Place of the 64 bits; a multiple of 8.
        at: Remote,
        /// The number to add.
        add: u64,
        /// The highest bit of each field.
        boundary: u64,
    },
}

impl Operation<'_> {
    /// Key and target of an index read in either form: a READ with an rkey of index reads is one, too.
    #[must_use]
    pub const fn as_index_read(&self) -> Option<(u64, IndexTarget)> {
        match *self {
            Operation::IndexRead { key, target, .. } => Some((key, target)),
            Operation::Read { from, .. } => match IndexTarget::of_rkey(from.rkey) {
                Some(target) => Some((from.address, target)),
                None => None,
            },
            _ => None,
        }
    }

    /// Whether the operation returns something: bytes, or the value that an atomic found.
    #[must_use]
    pub const fn has_result(&self) -> bool {
        !matches!(self, Operation::Write { .. })
    }

    /// Address of an atomic, which must be a multiple of 8; `None` for other operations.
    #[must_use]
    pub const fn atomic_address(&self) -> Option<u64> {
        match self {
            Operation::CompareSwap { at, .. }
            | Operation::FetchAdd { at, .. }
            | Operation::MaskedCompareSwap { at, .. }
            | Operation::MaskedFetchAdd { at, .. } => Some(at.address),
            Operation::Read { .. } | Operation::IndexRead { .. } | Operation::Write { .. } => None,
        }
    }

    /// Result of an atomic for the 64 bits that it finds; `None` for other operations.
    #[must_use]
    pub const fn apply(&self, found: u64) -> Option<u64> {
        match *self {
            Operation::CompareSwap { compare, swap, .. } => Some(if found == compare { swap } else { found }),
            Operation::FetchAdd { add, .. } => Some(found.wrapping_add(add)),
            Operation::MaskedCompareSwap { compare, compare_mask, swap, swap_mask, .. } => {
                let equal = (found ^ compare) & compare_mask == 0;
                Some(if equal { found & !swap_mask | swap & swap_mask } else { found })
            }
            Operation::MaskedFetchAdd { add, boundary, .. } => Some(add_in_fields(found, add, boundary)),
            Operation::Read { .. } | Operation::IndexRead { .. } | Operation::Write { .. } => None,
        }
    }
}

/// Adds field by field: the sums without the fields' highest bits cannot carry out of a field; those bits are added
/// without carry.
const fn add_in_fields(a: u64, b: u64, boundary: u64) -> u64 {
    (a & !boundary).wrapping_add(b & !boundary) ^ (a ^ b) & boundary
}

/// An operation to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequest<'a> {
    /// Tag that comes back with the completion.
    pub tag: u64,
    /// Whether success makes a completion; failure always does.
    pub signalled: bool,
    /// The operation.
    pub operation: Operation<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: Remote = Remote { address: 0, rkey: 7 };

    #[test]
    fn masked_compare_swap_touches_its_bits_only() {
        let lock = |found: u64, shift: u32| {
            Operation::MaskedCompareSwap {
                at: AT,
                compare: 0,
                compare_mask: 0xffff << shift,
                swap: 0xabcd << shift,
                swap_mask: 0xffff << shift,
            }
            .apply(found)
            .unwrap()
        };
        assert_eq!(lock(0, 16), 0xabcd_0000);
        assert_eq!(lock(0x1111_0000_2222, 16), 0x1111_abcd_2222);
        assert_eq!(lock(0x1_0000, 16), 0x1_0000, "taken");
    }

    proptest! {
        #[test]
        fn rkeys_of_index_reads_are_read_as_they_were_written(line in 0..=IndexTarget::MAX_SLICE, or_record: bool, other in INDEX_RKEYS..) {
            let target = match line {
                0 => IndexTarget::ALL[usize::from(!or_record)],
                line => IndexTarget::Slice { line, or_record },
            };
            prop_assert!(target.rkey() < INDEX_RKEYS);
            prop_assert_eq!(IndexTarget::of_rkey(target.rkey()), Some(target));
            prop_assert_eq!((target.or_record(), target.offset_in_leaf()), (or_record, u64::from(line) * 64));
            prop_assert_eq!(IndexTarget::of_rkey(other), None);
        }

        #[test]
        fn fields_add_without_carry_into_each_other(a: u64, b: u64, at in 0u32..63) {
            // Two fields: bits 0..=at, and the rest.
            let boundary = 1 << at | 1 << 63;
            let sum = Operation::MaskedFetchAdd { at: AT, add: b, boundary }.apply(a).unwrap();
            let low = (1u64 << at) * 2 - 1;
            prop_assert_eq!(sum & low, a.wrapping_add(b) & low);
            prop_assert_eq!(sum >> 1 >> at, (a >> 1 >> at).wrapping_add(b >> 1 >> at) & (u64::MAX >> 1 >> at));
            let whole = Operation::MaskedFetchAdd { at: AT, add: b, boundary: 0 }.apply(a);
            prop_assert_eq!(whole, Operation::FetchAdd { at: AT, add: b }.apply(a));
        }
    }
}

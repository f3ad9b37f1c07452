//! Where a byte lives in the pool: memory server and offset in one word.

use std::fmt;

/// Bits of an address that hold the offset; the 16 above them hold the memory server.
pub const OFFSET_BITS: u32 = 48;

/// The largest offset an address can hold.
pub const MAX_OFFSET: u64 = (1 << OFFSET_BITS) - 1;

/// An address in the memory pool: memory server in the high 16 bits, byte offset in the low 48
/// (Sherman §3). Zero is null: the first 64 bytes of a region never hold a node.
///
/// A server registers its region with `iova = server << 48`, so that this value, unchanged, is the
/// remote address of an RDMA READ.
///
/// ```
/// use fatbtree_remote_memory::GlobalAddress;
/// let a = GlobalAddress::new(3, 0x40);
/// assert_eq!((a.server(), a.offset(), a.raw()), (3, 0x40, 0x0003_0000_0000_0040));
/// assert_eq!(format!("{a}"), "3:0x40");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct GlobalAddress(pub u64);

impl GlobalAddress {
    /// No node.
    pub const NULL: Self = Self(0);

    /// The address `offset` bytes into the region of `server`; bits of `offset` above 48 are cut off.
    #[must_use]
    pub const fn new(server: u16, offset: u64) -> Self {
        Self(((server as u64) << OFFSET_BITS) | (offset & MAX_OFFSET))
    }

    /// The memory server.
    #[must_use]
    pub const fn server(self) -> u16 {
        (self.0 >> OFFSET_BITS) as u16
    }

    /// Bytes from the start of the server's region.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.0 & MAX_OFFSET
    }

    /// The address so many bytes after this one, on the same server.
    ///
    /// ```
    /// use fatbtree_remote_memory::GlobalAddress;
    /// let lock = GlobalAddress::new(3, 0x40);
    /// assert_eq!(lock.behind(8), GlobalAddress::new(3, 0x48));
    /// ```
    #[must_use]
    pub const fn behind(self, bytes: u64) -> Self {
        Self::new(self.server(), self.offset() + bytes)
    }

    /// The address as it stands in nodes and in RETH.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Whether this is the null pointer. Offset 0 is null on every server.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.offset() == 0
    }
}

impl fmt::Display for GlobalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.server(), self.offset())
    }
}

impl fmt::Debug for GlobalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

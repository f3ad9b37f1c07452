//! Rights of remote queue pairs to memory.

use std::ops::BitOr;

/// Rights of remote queue pairs to a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Access(u8);

impl Access {
    /// No rights: only the owner reads and writes.
    pub const NONE: Access = Access(0);
    /// RDMA READ.
    pub const READ: Access = Access(1);
    /// RDMA WRITE.
    pub const WRITE: Access = Access(2);
    /// Atomics.
    pub const ATOMIC: Access = Access(4);
    /// All rights.
    pub const ALL: Access = Access(7);

    /// Whether every right of `other` is granted.
    #[must_use]
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// The rights as three bits: 1 READ, 2 WRITE, 4 atomics.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Rights from the result of [`bits`](Self::bits); other bits are ignored.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Access {
        Access(bits & Access::ALL.0)
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

//! Atomic ACK extended transport header, 8 bytes (IBTA volume 1, section 9.5.3): the value before the atomic.

/// The answer of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicAckEth {
    /// The memory's value before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads a header.
    #[inline]
    pub fn parse(bytes: &[u8; AtomicAckEth::LEN]) -> AtomicAckEth {
        AtomicAckEth { original: u64::from_be_bytes(*bytes) }
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; AtomicAckEth::LEN] {
        self.original.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let header = AtomicAckEth { original: 0x0102_0304_0506_0708 };
        assert_eq!(header.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(AtomicAckEth::parse(&[1, 2, 3, 4, 5, 6, 7, 8]), header);
    }
}

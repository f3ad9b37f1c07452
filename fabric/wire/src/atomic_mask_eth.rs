//! Masks of a masked atomic, 16 bytes after its AtomicETH: `swap_mask_or_boundary(8) compare_mask(8)`.
//!
//! Not in the specification: see [`Opcode`](crate::Opcode) on masked atomics. The masks stand in the order of the operands that
//! they belong to.

/// Masks of a 64-bit atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicMaskEth {
    /// Bits that are swapped (masked CmpSwap), or the highest bit of each field, which no carry leaves (masked FetchAdd).
    pub swap_mask_or_boundary: u64,
    /// Bits that are compared; 0 in a masked FetchAdd.
    pub compare_mask: u64,
}

impl AtomicMaskEth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads a header.
    #[inline]
    pub fn parse(bytes: &[u8; AtomicMaskEth::LEN]) -> AtomicMaskEth {
        let u64_at = |i: usize| u64::from_be_bytes(std::array::from_fn(|k| bytes[i + k]));
        AtomicMaskEth { swap_mask_or_boundary: u64_at(0), compare_mask: u64_at(8) }
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; AtomicMaskEth::LEN] {
        let mut bytes = [0; AtomicMaskEth::LEN];
        bytes[..8].copy_from_slice(&self.swap_mask_or_boundary.to_be_bytes());
        bytes[8..].copy_from_slice(&self.compare_mask.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let header = AtomicMaskEth {
            swap_mask_or_boundary: 0x0102_0304_0506_0708,
            compare_mask: 0x090a_0b0c_0d0e_0f10,
        };
        let golden: [u8; 16] = std::array::from_fn(|i| i as u8 + 1);
        assert_eq!(header.to_bytes(), golden);
        assert_eq!(AtomicMaskEth::parse(&golden), header);
    }
}

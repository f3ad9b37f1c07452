//! Atomic extended transport header, 28 bytes (IBTA volume 1, section 9.3.4): `va(8) rkey(4) swap(8) compare(8)`.

/// Operands of a 64-bit atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// Virtual address, a multiple of 8.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Value to store if the comparison holds (CmpSwap), or to add (FetchAdd).
    pub swap_or_add: u64,
    /// Value that memory must hold for the swap; 0 in a FetchAdd.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads a header.
    #[inline]
    pub fn parse(bytes: &[u8; AtomicEth::LEN]) -> AtomicEth {
        let u64_at = |i: usize| u64::from_be_bytes(std::array::from_fn(|k| bytes[i + k]));
        AtomicEth {
            va: u64_at(0),
            rkey: u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            swap_or_add: u64_at(12),
            compare: u64_at(20),
        }
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; AtomicEth::LEN] {
        let mut bytes = [0; AtomicEth::LEN];
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        bytes[20..].copy_from_slice(&self.compare.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let header = AtomicEth {
            va: 0x0102_0304_0506_0708,
            rkey: 0x090a_0b0c,
            swap_or_add: 0x0d0e_0f10_1112_1314,
            compare: 0x1516_1718_191a_1b1c,
        };
        let golden: [u8; 28] = std::array::from_fn(|i| i as u8 + 1);
        assert_eq!(header.to_bytes(), golden);
        assert_eq!(AtomicEth::parse(&golden), header);
    }
}

//! RDMA extended transport header, 16 bytes (IBTA volume 1, section 9.3.3): `va(8) rkey(4) dmalen(4)`.

/// Target of an RDMA READ or WRITE. In an index read that has not passed the first switch yet, `va` is the key and
/// `rkey` is below 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reth {
    /// Virtual address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole operation in bytes (DMA length).
    pub length: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads a header.
    #[inline]
    pub fn parse(bytes: &[u8; Reth::LEN]) -> Reth {
        let [a, b, c, d, e, f, g, h, rkey @ .., l0, l1, l2, l3] = *bytes;
        Reth {
            va: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_be_bytes(rkey),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Reth::LEN] {
        let mut bytes = [0; Reth::LEN];
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let reth = Reth { va: 0x0000_5565_5d29_c000, rkey: 0x2dd, length: 0x400 };
        let golden = [0, 0, 0x55, 0x65, 0x5d, 0x29, 0xc0, 0, 0, 0, 2, 0xdd, 0, 0, 4, 0];
        assert_eq!(reth.to_bytes(), golden);
        assert_eq!(Reth::parse(&golden), reth);
    }
}

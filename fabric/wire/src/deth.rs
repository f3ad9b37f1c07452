//! Datagram extended transport header, 8 bytes (IBTA volume 1, section 9.3.1): `qkey(4) resv(1) source QP(3)`.

/// Sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Reserved byte, kept.
    pub resv8: u8,
    /// Queue pair of the sender, 24 bits.
    pub source_qp: u32,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads a header.
    #[inline]
    pub fn parse(bytes: &[u8; Deth::LEN]) -> Deth {
        let [a, b, c, d, resv8, x, y, z] = *bytes;
        Deth { qkey: u32::from_be_bytes([a, b, c, d]), resv8, source_qp: u32::from_be_bytes([0, x, y, z]) }
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Deth::LEN] {
        let [a, b, c, d] = self.qkey.to_be_bytes();
        let [_, x, y, z] = self.source_qp.to_be_bytes();
        [a, b, c, d, self.resv8, x, y, z]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let header = Deth { qkey: 0x8001_0000, resv8: 0, source_qp: 1 };
        assert_eq!(header.to_bytes(), [0x80, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(Deth::parse(&header.to_bytes()), header);
    }
}

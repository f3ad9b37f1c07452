//! Base transport header, 12 bytes (IBTA volume 1, section 9.2).
//!
//! ```text
//! byte 0        1                        2..4   4       5..8     8            9..12
//! | opcode      | SE M pad(2) TVer(4)    | pkey | resv8a| dest QP | A resv7(7) | PSN   |
//! ```

use crate::Opcode;
use crate::error::{Expected, Header, ParseError};

/// The partition key every RoCE port has: full member of the default partition.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// A base transport header. Numbers of 24 bits are held in `u32`; emitting keeps their low 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bth {
    /// Operation of the packet.
    pub opcode: Opcode,
    /// Solicited event (SE).
    pub solicited: bool,
    /// Migration state (M).
    pub migration: bool,
    /// Padding bytes after the payload, 0 to 3.
    pub pad_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// FECN, BECN and six reserved bits: the one byte of the BTH that the ICRC does not cover.
    pub resv8a: u8,
    /// Destination queue pair, 24 bits.
    pub destination_qp: u32,
    /// Whether the sender asks for an acknowledgement (A).
    pub ack_request: bool,
    /// Seven reserved bits beside `ack_request`.
    pub resv7: u8,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// A header with the default partition key and every flag off.
    pub const fn new(opcode: Opcode, destination_qp: u32, psn: u32) -> Bth {
        Bth {
            opcode,
            solicited: false,
            migration: false,
            pad_count: 0,
            pkey: DEFAULT_PKEY,
            resv8a: 0,
            destination_qp,
            ack_request: false,
            resv7: 0,
            psn,
        }
    }

    /// Reads a header; the transport version must be 0, the only one there is.
    // Always: out of line its result comes back through memory, and is read in wider pieces than it was written, for which the
    // processor waits. That was a tenth of what a frame costs.
    #[inline(always)]
    pub fn parse(bytes: &[u8; Bth::LEN]) -> Result<Bth, ParseError> {
        let version = bytes[1] & 0x0f;
        if version != 0 {
            return Err(ParseError::Field {
                header: Header::Bth,
                field: "transport version",
                expected: Expected::Exactly(0),
                found: u32::from(version),
            });
        }
        let [_, to, at] = words(bytes);
        Ok(Bth {
            opcode: Opcode(bytes[0]),
            solicited: bytes[1] & 0x80 != 0,
            migration: bytes[1] & 0x40 != 0,
            pad_count: bytes[1] >> 4 & 3,
            pkey: u16::from_be_bytes([bytes[2], bytes[3]]),
            resv8a: (to >> 24) as u8,
            destination_qp: to & 0xff_ffff,
            ack_request: at >> 31 != 0,
            resv7: (at >> 24) as u8 & 0x7f,
            psn: at & 0xff_ffff,
        })
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Bth::LEN] {
        let flags = u8::from(self.solicited) << 7 | u8::from(self.migration) << 6 | (self.pad_count & 3) << 4;
        let ack = u8::from(self.ack_request) << 7 | self.resv7 & 0x7f;
        let words = [
            u32::from(self.opcode.0) << 24 | u32::from(flags) << 16 | u32::from(self.pkey),
            u32::from(self.resv8a) << 24 | self.destination_qp & 0xff_ffff,
            u32::from(ack) << 24 | self.psn & 0xff_ffff,
        ];
        let mut bytes = [0; Bth::LEN];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_be_bytes();
        }
        bytes
    }
}

/// The header's three words.
#[inline]
fn words(bytes: &[u8; Bth::LEN]) -> [u32; 3] {
    let (words, _) = bytes.as_chunks::<4>();
    [0, 1, 2].map(|at| u32::from_be_bytes(words[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The BTH of the first READ request in the kernel's capture.
    const GOLDEN: [u8; 12] = [0x0c, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x80, 0xe9, 0x26, 0xca];

    #[test]
    fn golden_bytes() {
        let bth = Bth { ack_request: true, ..Bth::new(Opcode::RC_RDMA_READ_REQUEST, 0x11, 0xe926ca) };
        assert_eq!(bth.to_bytes(), GOLDEN);
        assert_eq!(Bth::parse(&GOLDEN), Ok(bth));
    }

    #[test]
    fn another_transport_version_is_refused() {
        let mut bytes = GOLDEN;
        bytes[1] |= 0x03;
        let error = Bth::parse(&bytes).unwrap_err();
        assert!(error.to_string().starts_with("BTH transport version: expected 0 (0x0), found 3"));
    }
}

//! Fields of a message in their order, most significant bit first: one description of a layout reads and writes it.

use super::MAD_BYTES;

/// A place in a datagram that is read or written.
pub(super) struct Fields<'b> {
    bytes: Bytes<'b>,
    /// Bits before the next field.
    at: usize,
}

enum Bytes<'b> {
    Read(&'b [u8; MAD_BYTES]),
    Write(&'b mut [u8; MAD_BYTES]),
}

impl<'b> Fields<'b> {
    /// Fields are set to what stands there.
    pub(super) fn reading(bytes: &'b [u8; MAD_BYTES], from: usize) -> Self {
        Self { bytes: Bytes::Read(bytes), at: from * 8 }
    }

    /// What stands there is set to the fields. It is 0 before.
    pub(super) fn writing(bytes: &'b mut [u8; MAD_BYTES], from: usize) -> Self {
        Self { bytes: Bytes::Write(bytes), at: from * 8 }
    }

    /// A number of up to 64 bits. Higher bits of the field are not written.
    pub(super) fn number<N: Copy + Into<u64> + TryFrom<u64>>(&mut self, bits: usize, field: &mut N) {
        let range = self.at..self.at + bits;
        self.at = range.end;
        match &mut self.bytes {
            Bytes::Read(bytes) => {
                let bit = |at: usize| u64::from(bytes[at / 8] >> (7 - at % 8) & 1);
                let number = range.fold(0, |number, at| number << 1 | bit(at));
                // As many bits fit.
                if let Ok(number) = N::try_from(number) {
                    *field = number;
                }
            }
            Bytes::Write(bytes) => {
                let number: u64 = (*field).into();
                for (at, place) in range.rev().zip(0..) {
                    bytes[at / 8] |= ((number >> place & 1) as u8) << (7 - at % 8);
                }
            }
        }
    }

    /// A bit.
    pub(super) fn flag(&mut self, field: &mut bool) {
        let mut bit = u8::from(*field);
        self.number(1, &mut bit);
        *field = bit == 1;
    }

    /// Bytes that begin at a byte.
    pub(super) fn data(&mut self, field: &mut [u8]) {
        let range = self.at / 8..self.at / 8 + field.len();
        self.at += field.len() * 8;
        match &mut self.bytes {
            Bytes::Read(bytes) => field.copy_from_slice(&bytes[range]),
            Bytes::Write(bytes) => bytes[range].copy_from_slice(field),
        }
    }

    /// Reserved bits, and those of fields that are not in use: 0.
    pub(super) fn skip(&mut self, bits: usize) {
        self.at += bits;
    }

    /// The bit behind the last field.
    pub(super) fn at(&self) -> usize {
        self.at
    }
}

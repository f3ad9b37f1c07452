//! Extended headers between BTH and payload, as the opcode determines them.

use crate::error::{Header, ParseError, take};
use crate::{Aeth, AtomicAckEth, AtomicEth, AtomicMaskEth, Deth, Opcode, Reth};

/// Kinds of extended headers that follow a BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtensionLayout {
    /// No extended headers.
    None,
    /// RETH.
    Reth,
    /// RETH and immediate data.
    RethImmediate,
    /// AETH.
    Aeth,
    /// AETH and AtomicAckETH.
    AethAtomicAck,
    /// AtomicETH.
    Atomic,
    /// AtomicETH and AtomicMaskETH.
    MaskedAtomic,
    /// Immediate data.
    Immediate,
    /// IETH.
    Invalidate,
    /// DETH.
    Deth,
    /// DETH and immediate data.
    DethImmediate,
}

/// The extended headers of one packet; immediate data and invalidated rkeys as host numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extension {
    /// No extended headers.
    None,
    /// RDMA READ request; first or only packet of an RDMA WRITE.
    Reth(Reth),
    /// RDMA WRITE only with immediate.
    RethImmediate(Reth, u32),
    /// Acknowledge; first, last or only RDMA READ response.
    Aeth(Aeth),
    /// Atomic acknowledge.
    AethAtomicAck(Aeth, AtomicAckEth),
    /// Atomic request.
    Atomic(AtomicEth),
    /// Masked atomic request.
    MaskedAtomic(AtomicEth, AtomicMaskEth),
    /// Last packet with immediate data.
    Immediate(u32),
    /// SEND with invalidate: the rkey.
    Invalidate(u32),
    /// Datagram.
    Deth(Deth),
    /// Datagram with immediate data.
    DethImmediate(Deth, u32),
}

impl Extension {
    /// Maximum size of extended headers in bytes: an AtomicETH and an AtomicMaskETH.
    pub const MAX_LEN: usize = AtomicEth::LEN + AtomicMaskEth::LEN;

    /// Reads the headers that follow a BTH of `opcode`, which begin at `offset` of `bytes` (the frame up to its ICRC).
    // Always: out of line its result comes back through memory, and is read in wider pieces than it was written, for which the
    // processor waits. That was a tenth of what a frame costs.
    #[inline(always)]
    pub fn parse(opcode: Opcode, bytes: &[u8], offset: usize) -> Result<Extension, ParseError> {
        let u32_at = |offset, header| take::<4>(bytes, offset, header).map(|b| u32::from_be_bytes(*b));
        Ok(match opcode.layout() {
            ExtensionLayout::None => Extension::None,
            ExtensionLayout::Reth => Extension::Reth(Reth::parse(take(bytes, offset, Header::Reth)?)),
            ExtensionLayout::RethImmediate => Extension::RethImmediate(
                Reth::parse(take(bytes, offset, Header::Reth)?),
                u32_at(offset + Reth::LEN, Header::ImmDt)?,
            ),
            ExtensionLayout::Aeth => Extension::Aeth(Aeth::parse(take(bytes, offset, Header::Aeth)?)),
            ExtensionLayout::AethAtomicAck => Extension::AethAtomicAck(
                Aeth::parse(take(bytes, offset, Header::Aeth)?),
                AtomicAckEth::parse(take(bytes, offset + Aeth::LEN, Header::AtomicAckEth)?),
            ),
            ExtensionLayout::Atomic => {
                Extension::Atomic(AtomicEth::parse(take(bytes, offset, Header::AtomicEth)?))
            }
            ExtensionLayout::MaskedAtomic => Extension::MaskedAtomic(
                AtomicEth::parse(take(bytes, offset, Header::AtomicEth)?),
                AtomicMaskEth::parse(take(bytes, offset + AtomicEth::LEN, Header::AtomicMaskEth)?),
            ),
            ExtensionLayout::Immediate => Extension::Immediate(u32_at(offset, Header::ImmDt)?),
            ExtensionLayout::Invalidate => Extension::Invalidate(u32_at(offset, Header::Ieth)?),
            ExtensionLayout::Deth => Extension::Deth(Deth::parse(take(bytes, offset, Header::Deth)?)),
            ExtensionLayout::DethImmediate => Extension::DethImmediate(
                Deth::parse(take(bytes, offset, Header::Deth)?),
                u32_at(offset + Deth::LEN, Header::ImmDt)?,
            ),
        })
    }

    /// Kind of these headers.
    pub fn layout(&self) -> ExtensionLayout {
        match self {
            Extension::None => ExtensionLayout::None,
            Extension::Reth(_) => ExtensionLayout::Reth,
            Extension::RethImmediate(..) => ExtensionLayout::RethImmediate,
            Extension::Aeth(_) => ExtensionLayout::Aeth,
            Extension::AethAtomicAck(..) => ExtensionLayout::AethAtomicAck,
            Extension::Atomic(_) => ExtensionLayout::Atomic,
            Extension::MaskedAtomic(..) => ExtensionLayout::MaskedAtomic,
            Extension::Immediate(_) => ExtensionLayout::Immediate,
            Extension::Invalidate(_) => ExtensionLayout::Invalidate,
            Extension::Deth(_) => ExtensionLayout::Deth,
            Extension::DethImmediate(..) => ExtensionLayout::DethImmediate,
        }
    }

    /// Size of these headers on the wire, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Extension::None => 0,
            Extension::Reth(_) => Reth::LEN,
            Extension::RethImmediate(..) => Reth::LEN + 4,
            Extension::Aeth(_) => Aeth::LEN,
            Extension::AethAtomicAck(..) => Aeth::LEN + AtomicAckEth::LEN,
            Extension::Atomic(_) => AtomicEth::LEN,
            Extension::MaskedAtomic(..) => AtomicEth::LEN + AtomicMaskEth::LEN,
            Extension::Immediate(_) | Extension::Invalidate(_) => 4,
            Extension::Deth(_) => Deth::LEN,
            Extension::DethImmediate(..) => Deth::LEN + 4,
        }
    }

    /// Whether there are no extended headers.
    pub fn is_empty(&self) -> bool {
        matches!(self, Extension::None)
    }

    /// Appends the headers.
    #[inline]
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Extension::None => {}
            Extension::Reth(reth) => out.extend_from_slice(&reth.to_bytes()),
            Extension::RethImmediate(reth, immediate) => {
                out.extend_from_slice(&reth.to_bytes());
                out.extend_from_slice(&immediate.to_be_bytes());
            }
            Extension::Aeth(aeth) => out.extend_from_slice(&aeth.to_bytes()),
            Extension::AethAtomicAck(aeth, ack) => {
                out.extend_from_slice(&aeth.to_bytes());
                out.extend_from_slice(&ack.to_bytes());
            }
            Extension::Atomic(atomic) => out.extend_from_slice(&atomic.to_bytes()),
            Extension::MaskedAtomic(atomic, masks) => {
                out.extend_from_slice(&atomic.to_bytes());
                out.extend_from_slice(&masks.to_bytes());
            }
            Extension::Immediate(value) | Extension::Invalidate(value) => {
                out.extend_from_slice(&value.to_be_bytes());
            }
            Extension::Deth(deth) => out.extend_from_slice(&deth.to_bytes()),
            Extension::DethImmediate(deth, immediate) => {
                out.extend_from_slice(&deth.to_bytes());
                out.extend_from_slice(&immediate.to_be_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_opcode_reads_back_what_it_wrote() {
        let bytes: Vec<u8> = (0..64).collect();
        for &opcode in Opcode::KNOWN {
            let extension = Extension::parse(opcode, &bytes, 5).unwrap();
            assert_eq!(extension.layout(), opcode.layout());
            let (mut out, len) = (vec![77], extension.len());
            extension.append_to(&mut out);
            assert_eq!(out[1..], bytes[5..5 + len], "{opcode}");
            assert!(len <= Extension::MAX_LEN);
            assert_eq!(extension.is_empty(), len == 0);
            for short in 0..len {
                let error = Extension::parse(opcode, &bytes[..5 + short], 5).unwrap_err();
                assert!(matches!(error, ParseError::Truncated { .. }), "{opcode}: {error}");
            }
        }
    }
}

//! BTH opcodes (IBTA volume 1, section 9.2.1, table 38): open, unknown ones are kept and print as numbers.
//!
//! Masked atomics are not in the specification. Network cards have them (ConnectX: "extended atomics"), but their packets
//! are not published, so ours have opcodes of our own, in the range that the specification leaves to manufacturers (0xc0 to
//! 0xff): that of the plain atomic plus 0xc0. Only our software NIC speaks them, on both sides.

use crate::ExtensionLayout;
use std::fmt;

/// The opcode byte of a [`Bth`](crate::Bth): transport in the upper three bits, operation in the lower five.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(pub u8);

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal, $layout:ident;)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Opcode = Opcode($value);)*

            /// The specification's name, if this opcode is known here.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }

            /// Kind of the extended headers after the BTH. Unknown opcodes have none: all the rest is payload.
            #[inline]
            pub fn layout(self) -> ExtensionLayout {
                match self.0 {
                    $($value => ExtensionLayout::$layout,)*
                    _ => ExtensionLayout::None,
                }
            }

            /// Every opcode known by name.
            pub const KNOWN: &[Opcode] = &[$(Opcode($value),)*];
        }
    };
}

opcodes! {
    /// SEND, first packet of several.
    RC_SEND_FIRST = 0x00, "RC SEND First", None;
    /// SEND, middle packet.
    RC_SEND_MIDDLE = 0x01, "RC SEND Middle", None;
    /// SEND, last packet.
    RC_SEND_LAST = 0x02, "RC SEND Last", None;
    /// SEND, last packet, with immediate data.
    RC_SEND_LAST_IMMEDIATE = 0x03, "RC SEND Last with Immediate", Immediate;
    /// SEND in one packet.
    RC_SEND_ONLY = 0x04, "RC SEND Only", None;
    /// SEND in one packet, with immediate data.
    RC_SEND_ONLY_IMMEDIATE = 0x05, "RC SEND Only with Immediate", Immediate;
    /// RDMA WRITE, first packet of several.
    RC_RDMA_WRITE_FIRST = 0x06, "RC RDMA WRITE First", Reth;
    /// RDMA WRITE, middle packet.
    RC_RDMA_WRITE_MIDDLE = 0x07, "RC RDMA WRITE Middle", None;
    /// RDMA WRITE, last packet.
    RC_RDMA_WRITE_LAST = 0x08, "RC RDMA WRITE Last", None;
    /// RDMA WRITE, last packet, with immediate data.
    RC_RDMA_WRITE_LAST_IMMEDIATE = 0x09, "RC RDMA WRITE Last with Immediate", Immediate;
    /// RDMA WRITE in one packet.
    RC_RDMA_WRITE_ONLY = 0x0a, "RC RDMA WRITE Only", Reth;
    /// RDMA WRITE in one packet, with immediate data.
    RC_RDMA_WRITE_ONLY_IMMEDIATE = 0x0b, "RC RDMA WRITE Only with Immediate", RethImmediate;
    /// RDMA READ request.
    RC_RDMA_READ_REQUEST = 0x0c, "RC RDMA READ Request", Reth;
    /// RDMA READ response, first packet of several.
    RC_RDMA_READ_RESPONSE_FIRST = 0x0d, "RC RDMA READ Response First", Aeth;
    /// RDMA READ response, middle packet.
    RC_RDMA_READ_RESPONSE_MIDDLE = 0x0e, "RC RDMA READ Response Middle", None;
    /// RDMA READ response, last packet.
    RC_RDMA_READ_RESPONSE_LAST = 0x0f, "RC RDMA READ Response Last", Aeth;
    /// RDMA READ response in one packet.
    RC_RDMA_READ_RESPONSE_ONLY = 0x10, "RC RDMA READ Response Only", Aeth;
    /// Acknowledge, positive or negative.
    RC_ACKNOWLEDGE = 0x11, "RC Acknowledge", Aeth;
    /// Acknowledge of an atomic operation, with the value that was there before.
    RC_ATOMIC_ACKNOWLEDGE = 0x12, "RC ATOMIC Acknowledge", AethAtomicAck;
    /// Compare and swap of 64 bits.
    RC_COMPARE_SWAP = 0x13, "RC CmpSwap", Atomic;
    /// Fetch and add of 64 bits.
    RC_FETCH_ADD = 0x14, "RC FetchAdd", Atomic;
    /// SEND, last packet, invalidating an rkey.
    RC_SEND_LAST_INVALIDATE = 0x16, "RC SEND Last with Invalidate", Invalidate;
    /// SEND in one packet, invalidating an rkey.
    RC_SEND_ONLY_INVALIDATE = 0x17, "RC SEND Only with Invalidate", Invalidate;
    /// Unreliable SEND in one packet.
    UC_SEND_ONLY = 0x24, "UC SEND Only", None;
    /// Unreliable RDMA WRITE, first packet of several.
    UC_RDMA_WRITE_FIRST = 0x26, "UC RDMA WRITE First", Reth;
    /// Unreliable RDMA WRITE in one packet.
    UC_RDMA_WRITE_ONLY = 0x2a, "UC RDMA WRITE Only", Reth;
    /// Datagram.
    UD_SEND_ONLY = 0x64, "UD SEND Only", Deth;
    /// Datagram with immediate data.
    UD_SEND_ONLY_IMMEDIATE = 0x65, "UD SEND Only with Immediate", DethImmediate;
    /// Congestion notification packet (annex A17).
    CNP = 0x81, "CNP", None;
    /// Compare and swap of some of 64 bits; of our own making.
    RC_MASKED_COMPARE_SWAP = 0xd3, "RC Masked CmpSwap", MaskedAtomic;
    /// Fetch and add of fields of 64 bits; of our own making.
    RC_MASKED_FETCH_ADD = 0xd4, "RC Masked FetchAdd", MaskedAtomic;
}

impl Opcode {
    /// Whether a responder of a reliable connection sends this opcode: READ responses and acknowledgements.
    #[inline]
    pub fn is_rc_response(self) -> bool {
        (Opcode::RC_RDMA_READ_RESPONSE_FIRST..=Opcode::RC_ATOMIC_ACKNOWLEDGE).contains(&self)
    }

    /// Whether this is an RDMA READ response: first, middle, last or only.
    #[inline]
    pub fn is_read_response(self) -> bool {
        (Opcode::RC_RDMA_READ_RESPONSE_FIRST..=Opcode::RC_RDMA_READ_RESPONSE_ONLY).contains(&self)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "unknown opcode {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({:#04x}, {self})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_opcodes_are_kept_and_print() {
        let opcode = Opcode(0xfe);
        assert_eq!(opcode.to_string(), "unknown opcode 0xfe");
        assert_eq!(opcode.layout(), ExtensionLayout::None);
        assert_eq!(Opcode::RC_RDMA_READ_REQUEST.0, 12);
    }

    #[test]
    fn masked_atomics_are_in_the_manufacturers_range() {
        for (masked, plain) in [
            (Opcode::RC_MASKED_COMPARE_SWAP, Opcode::RC_COMPARE_SWAP),
            (Opcode::RC_MASKED_FETCH_ADD, Opcode::RC_FETCH_ADD),
        ] {
            assert_eq!(masked.0, 0xc0 + plain.0);
        }
    }

    #[test]
    fn responses_are_told_from_requests() {
        let responses = Opcode::KNOWN.iter().filter(|opcode| opcode.is_rc_response());
        assert!(responses.map(|opcode| opcode.0).eq(0x0d..=0x12));
    }
}

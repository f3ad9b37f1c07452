//! Errors of parsing: the header, the field, the expected value and the value found.

use std::fmt;

/// A header of a frame, as named in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Header {
    /// Ethernet II.
    Ethernet,
    /// IPv4.
    Ipv4,
    /// UDP.
    Udp,
    /// The index header of reads in flight.
    Index,
    /// Base transport header.
    Bth,
    /// RDMA extended transport header.
    Reth,
    /// ACK extended transport header.
    Aeth,
    /// Atomic extended transport header.
    AtomicEth,
    /// Masks of a masked atomic.
    AtomicMaskEth,
    /// Atomic ACK extended transport header.
    AtomicAckEth,
    /// Datagram extended transport header.
    Deth,
    /// Immediate data.
    ImmDt,
    /// Invalidate extended transport header.
    Ieth,
    /// Bytes between the headers and the ICRC.
    Payload,
    /// Invariant CRC.
    Icrc,
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Header::Ethernet => "Ethernet",
            Header::Ipv4 => "IPv4",
            Header::Udp => "UDP",
            Header::Index => "index header",
            Header::Bth => "BTH",
            Header::Reth => "RETH",
            Header::Aeth => "AETH",
            Header::AtomicEth => "AtomicETH",
            Header::AtomicMaskEth => "AtomicMaskETH",
            Header::AtomicAckEth => "AtomicAckETH",
            Header::Deth => "DETH",
            Header::ImmDt => "ImmDt",
            Header::Ieth => "IETH",
            Header::Payload => "payload",
            Header::Icrc => "ICRC",
        })
    }
}

/// Expected value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// This value.
    Exactly(u32),
    /// This value or more.
    AtLeast(u32),
    /// This value or less.
    AtMost(u32),
    /// A multiple of this value.
    MultipleOf(u32),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Exactly(value) => write!(f, "{value} ({value:#x})"),
            Expected::AtLeast(value) => write!(f, "at least {value}"),
            Expected::AtMost(value) => write!(f, "at most {value}"),
            Expected::MultipleOf(value) => write!(f, "a multiple of {value}"),
        }
    }
}

/// Reason why [`Frame::parse`](crate::Frame::parse) refused a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The bytes end before a header does.
    #[error(
        "{header} at byte {offset}: expected {expected} bytes, found {found}; the frame is cut short, drop it"
    )]
    Truncated {
        /// The header that is incomplete.
        header: Header,
        /// Offset of the header from the start of the frame, in bytes.
        offset: usize,
        /// Number of bytes that the header needs.
        expected: usize,
        /// Number of bytes found.
        found: usize,
    },
    /// The frame is whole but speaks another protocol: pass it on.
    #[error("{header} {field}: expected {expected}, found {found} ({found:#x}); this is no RoCEv2 frame")]
    Foreign {
        /// Header that shows the other protocol.
        header: Header,
        /// Field that shows the other protocol.
        field: &'static str,
        /// The value in RoCEv2.
        expected: Expected,
        /// The found value.
        found: u32,
    },
    /// A field contradicts the rest of the frame or the specification.
    #[error(
        "{header} {field}: expected {expected}, found {found} ({found:#x}); the frame is damaged or malformed, drop it"
    )]
    Field {
        /// Header that contains the field.
        header: Header,
        /// The field.
        field: &'static str,
        /// The expected value.
        expected: Expected,
        /// The found value.
        found: u32,
    },
}

impl ParseError {
    /// The header that was refused.
    pub fn header(&self) -> Header {
        match *self {
            ParseError::Truncated { header, .. }
            | ParseError::Foreign { header, .. }
            | ParseError::Field { header, .. } => header,
        }
    }

    /// Whether the frame may be a valid one of another protocol.
    pub fn is_foreign(&self) -> bool {
        matches!(self, ParseError::Foreign { .. })
    }
}

/// Cuts the next `N` bytes, a header at `offset`, from `bytes`.
pub(crate) fn take<const N: usize>(
    bytes: &[u8],
    offset: usize,
    header: Header,
) -> Result<&[u8; N], ParseError> {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).ok_or(ParseError::Truncated {
        header,
        offset,
        expected: N,
        found: bytes.len().saturating_sub(offset),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_header_expected_and_found() {
        let error =
            ParseError::Truncated { header: Header::Reth, offset: 54, expected: 16, found: 3 }.to_string();
        assert_eq!(error, "RETH at byte 54: expected 16 bytes, found 3; the frame is cut short, drop it");
        let error = ParseError::Foreign {
            header: Header::Udp,
            field: "destination port",
            expected: Expected::Exactly(4791),
            found: 53,
        };
        assert!(error.is_foreign());
        assert_eq!(
            error.to_string(),
            "UDP destination port: expected 4791 (0x12b7), found 53 (0x35); this is no RoCEv2 frame"
        );
    }
}

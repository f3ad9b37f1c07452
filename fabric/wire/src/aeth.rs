//! ACK extended transport header, 4 bytes (IBTA volume 1, section 9.3.5): `syndrome(1) MSN(3)`.

use std::fmt;

/// Answer of a responder to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// Syndrome: acknowledged, not ready, or refused.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: number of requests that the responder has completed.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads a header.
    #[inline]
    pub fn parse(bytes: &[u8; Aeth::LEN]) -> Aeth {
        let word = u32::from_be_bytes(*bytes);
        Aeth { syndrome: Syndrome((word >> 24) as u8), msn: word & 0xff_ffff }
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Aeth::LEN] {
        (u32::from(self.syndrome.0) << 24 | self.msn & 0xff_ffff).to_be_bytes()
    }
}

/// The syndrome byte (table 45): its kind in bits 5 and 6, a value in the lower five.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Syndrome(pub u8);

/// A decoded syndrome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyndromeKind {
    /// Acknowledged; the encoded end-to-end credits (31: none are counted).
    Ack(u8),
    /// Receiver not ready; the encoded wait.
    RnrNak(u8),
    /// Refused.
    Nak(NakCode),
    /// A combination the specification reserves.
    Reserved(u8),
}

impl Syndrome {
    /// Acknowledged, without counting credits: what responders without receive queues send.
    pub const ACK: Syndrome = Syndrome(0x1f);

    /// Refused with `code`.
    #[inline]
    pub const fn nak(code: NakCode) -> Syndrome {
        Syndrome(0x60 | code.0 & 0x1f)
    }

    /// Receiver not ready: the encoded time after which the request is to be sent again.
    #[inline]
    pub const fn rnr(timer: u8) -> Syndrome {
        Syndrome(0x20 | timer & 0x1f)
    }

    /// Decodes the byte.
    #[inline]
    pub const fn kind(self) -> SyndromeKind {
        let value = self.0 & 0x1f;
        match self.0 >> 5 {
            0 => SyndromeKind::Ack(value),
            1 => SyndromeKind::RnrNak(value),
            3 => SyndromeKind::Nak(NakCode(value)),
            _ => SyndromeKind::Reserved(self.0),
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            SyndromeKind::Ack(31) => f.write_str("ACK"),
            SyndromeKind::Ack(credits) => write!(f, "ACK, credits {credits}"),
            SyndromeKind::RnrNak(timer) => write!(f, "RNR NAK, timer {timer}"),
            SyndromeKind::Nak(code) => write!(f, "NAK, {code}"),
            SyndromeKind::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}"),
        }
    }
}

impl fmt::Debug for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Syndrome({:#04x}, {self})", self.0)
    }
}

/// Reason why a request was refused (table 46): an open code of five bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NakCode(pub u8);

impl NakCode {
    /// Packets are missing before this one.
    pub const PSN_SEQUENCE_ERROR: NakCode = NakCode(0);
    /// The request makes no sense where it stands.
    pub const INVALID_REQUEST: NakCode = NakCode(1);
    /// The rkey, the range or the right is invalid.
    pub const REMOTE_ACCESS_ERROR: NakCode = NakCode(2);
    /// The responder cannot carry the request out.
    pub const REMOTE_OPERATIONAL_ERROR: NakCode = NakCode(3);
    /// Code for reliable datagrams only.
    pub const INVALID_RD_REQUEST: NakCode = NakCode(4);
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            NakCode::PSN_SEQUENCE_ERROR => "PSN sequence error",
            NakCode::INVALID_REQUEST => "invalid request",
            NakCode::REMOTE_ACCESS_ERROR => "remote access error",
            NakCode::REMOTE_OPERATIONAL_ERROR => "remote operational error",
            NakCode::INVALID_RD_REQUEST => "invalid RD request",
            NakCode(code) => return write!(f, "unknown NAK code {code}"),
        })
    }
}

impl fmt::Debug for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NakCode({}, {self})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: 1 };
        assert_eq!(aeth.to_bytes(), [0x1f, 0, 0, 1]);
        assert_eq!(Aeth::parse(&[0x1f, 0, 0, 1]), aeth);
    }

    #[test]
    fn syndromes_print_known_or_not() {
        assert_eq!(Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR).0, 0x62);
        assert_eq!(Syndrome(0x62).to_string(), "NAK, remote access error");
        assert_eq!(Syndrome(0x7f).to_string(), "NAK, unknown NAK code 31");
        assert_eq!(Syndrome(0x21).to_string(), "RNR NAK, timer 1");
        assert_eq!(Syndrome(0xff).to_string(), "reserved syndrome 0xff");
    }
}

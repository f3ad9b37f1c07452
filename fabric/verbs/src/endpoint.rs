//! Data that the two sides of a connection exchange before it exists.

use std::fmt;
use std::net::Ipv4Addr;

/// Path MTU: payload bytes of the largest packet (IBTA volume 1, table 23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes: what fits in 1500-byte Ethernet frames.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// Payload bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Mtu::B256 => 256,
            Mtu::B512 => 512,
            Mtu::B1024 => 1024,
            Mtu::B2048 => 2048,
            Mtu::B4096 => 4096,
        }
    }

    /// The MTU of exactly `bytes`, if there is one.
    #[must_use]
    pub const fn from_bytes(bytes: usize) -> Option<Mtu> {
        match bytes {
            256 => Some(Mtu::B256),
            512 => Some(Mtu::B512),
            1024 => Some(Mtu::B1024),
            2048 => Some(Mtu::B2048),
            4096 => Some(Mtu::B4096),
            _ => None,
        }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// The number of a queue pair on the wire: 24 bits; 0 and 1 belong to management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueuePairNumber(pub u32);

impl fmt::Display for QueuePairNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// One side of a connection, as told to the other side out of band.
///
/// A connection uses the smaller path MTU of both sides, and a side has no more READs and atomics outstanding than
/// the smaller of its own `initiator_reads` and the other's `responder_reads` (IBTA volume 1, section 9.7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// MAC address to send to.
    pub mac: [u8; 6],
    /// Address to send to.
    pub ip: Ipv4Addr,
    /// Queue pair to send to.
    pub queue_pair: QueuePairNumber,
    /// PSN of the first packet this side will send, 24 bits.
    pub psn: u32,
    /// Path MTU that this side offers.
    pub mtu: Mtu,
    /// Number of READs and atomics that this side can answer at once, at least 1.
    pub responder_reads: u8,
    /// Maximum number of READs and atomics that this side has outstanding, at least 1.
    pub initiator_reads: u8,
}

impl Endpoint {
    /// Checks an endpoint that a peer has sent.
    ///
    /// # Errors
    /// The first field with a value that no endpoint can have.
    pub fn check(&self) -> Result<(), EndpointError> {
        let wrong = |field, expected, found| Err(EndpointError { field, expected, found });
        if !(2..1 << 24).contains(&self.queue_pair.0) {
            return wrong("queue pair number", "2 to 2^24 - 1", u64::from(self.queue_pair.0));
        }
        if self.psn >= 1 << 24 {
            return wrong("PSN", "24 bits", u64::from(self.psn));
        }
        if self.responder_reads == 0 {
            return wrong("READs it answers at once", "at least 1", 0);
        }
        if self.initiator_reads == 0 {
            return wrong("READs it has outstanding", "at least 1", 0);
        }
        Ok(())
    }
}

/// An endpoint with an impossible field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("remote {field}: expected {expected}, found {found}; exchange endpoints again")]
pub struct EndpointError {
    /// The field of [`Endpoint`].
    pub field: &'static str,
    /// The expected value.
    pub expected: &'static str,
    /// The found value.
    pub found: u64,
}

/// Terms that both sides of a connection have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The path MTU: the smaller of both.
    pub mtu: Mtu,
    /// Number of READs and atomics that this side may have outstanding.
    pub outstanding_reads: u8,
}

impl Agreed {
    /// Terms that two sides agree on, as `local` sees them.
    #[must_use]
    pub fn between(local: &Endpoint, remote: &Endpoint) -> Agreed {
        Agreed {
            mtu: local.mtu.min(remote.mtu),
            outstanding_reads: local.initiator_reads.min(remote.responder_reads),
        }
    }
}

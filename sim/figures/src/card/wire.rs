//! Links: messages in packets with headers.

use fatbtree_verbs::time::Duration;

use super::station::{Picos, Station};
use fatbtree_sim::world::Kind;

/// A kind of link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Time of a byte.
    pub(super) byte: Picos,
    /// Bytes of each packet around transport header and payload.
    pub(super) frame: u64,
    /// Largest payload of a packet in bytes.
    pub(super) mtu: u64,
    /// Time from port to port of a switch.
    pub(super) switch: Duration,
    /// Time in the cables of one way: 2 m at 5 ns each.
    pub(super) cables: Duration,
}

/// Frame of an InfiniBand packet within a subnet: local header 8, base transport header 12, two checksums of 4 and 2 bytes
/// (IBTA volume 1, chapter 5).
pub(super) const INFINIBAND: u64 = 26;
/// Frame of a RoCEv2 packet: Ethernet 14 and 4, preamble and gap 20, IPv4 20, UDP 8, base transport header 12, checksum 4.
pub(super) const ROCE: u64 = 82;

/// Address, key and length of a READ or WRITE.
const TARGET: u64 = 16;
/// Address, key and two operands of an atomic.
const ATOMIC: u64 = 28;
/// Header of an acknowledgement or response.
const ACKNOWLEDGED: u64 = 4;
/// Word that an atomic found.
const FOUND: u64 = 8;

impl Wire {
    /// Time of a request on the link.
    pub(super) fn request(&self, kind: Kind, bytes: u32) -> Picos {
        match kind {
            Kind::Read => self.message(TARGET, 0),
            Kind::Write => self.message(TARGET, bytes.into()),
            Kind::Atomic => self.message(ATOMIC, 0),
        }
    }

    /// Time of an answer on the link.
    pub(super) fn answer(&self, kind: Kind, bytes: u32) -> Picos {
        match kind {
            Kind::Read => self.message(ACKNOWLEDGED, bytes.into()),
            Kind::Write => self.message(ACKNOWLEDGED, 0),
            Kind::Atomic => self.message(ACKNOWLEDGED + FOUND, 0),
        }
    }

    fn message(&self, header: u64, payload: u64) -> Picos {
        let packets = payload.div_ceil(self.mtu).max(1);
        Picos::of_bytes(header + payload + packets * self.frame, self.byte)
    }

    /// Time of one way through so many switches.
    pub(super) fn way(&self, switches: u32) -> Duration {
        self.switch * u64::from(switches) + self.cables
    }
}

/// The two directions of a card's link.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) out: Station,
    pub(super) into: Station,
}

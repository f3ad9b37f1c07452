//! PCI Express between a card and its host: bytes in both directions, packet by packet.

use fatbtree_verbs::time::Duration;

use super::station::{Picos, Station};

/// Bytes of a completion entry.
pub(super) const COMPLETION: u64 = 64;
/// Bytes of a work request, written by the processor or read by the card.
pub(super) const WORK_REQUEST: u64 = 64;

/// A kind of bus.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pcie {
    /// Time of a byte, in one direction. PCIe 3.0 × 16 moves 13.9 GB/s of packets, headers included: SMART's 111 million
    /// READs of 8 bytes a second are 8 + 26 and 64 + 26 bytes each, so 13.8 GB/s; lookups of its hash table 13.8 and
    /// leaves of 1 KB 14.1 GB/s by the same count.
    pub(super) byte: Picos,
    /// Bytes of a packet without payload: 26 (framing 8, header 12 to 16, checksum 4).
    pub(super) header: u64,
    /// Largest payload of a packet ("MPS") in bytes: 256, the default of server boards.
    pub(super) payload: u64,
    /// Time in which a card reads memory: 0.55 µs for 64 bytes (Neugebauer et al., *Understanding PCIe performance for end
    /// host networking*, SIGCOMM 2018, section 6.1).
    pub(super) read: Duration,
    /// Time in which a written word is in memory: one way, about a quarter of a read (same source).
    pub(super) write: Duration,
}

impl Pcie {
    /// PCIe 3.0 with 16 lanes.
    pub(super) const GEN3: Self = Self {
        byte: Picos(72),
        header: 26,
        payload: 256,
        read: Duration::from_nanos(550),
        write: Duration::from_nanos(140),
    };

    /// Bytes on the bus that carry this payload; a request to read carries none.
    pub(super) const fn packed(&self, payload: u64) -> u64 {
        let packets = payload.div_ceil(self.payload);
        payload + self.header * if packets == 0 { 1 } else { packets }
    }

    /// Time of so many bytes.
    pub(super) const fn time(&self, bytes: u64) -> Picos {
        Picos::of_bytes(bytes, self.byte)
    }
}

/// The two directions of a card's bus.
#[derive(Debug, Default)]
pub(super) struct Bus {
    /// From the card to the host: results, completions, requests to read.
    pub(super) up: Station,
    /// From the host to the card: work requests, and what is read.
    pub(super) down: Station,
}

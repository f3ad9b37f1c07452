//! Named calibrations: the constants of a published cluster, each with its evidence.

use fatbtree_verbs::time::Duration;

use super::pcie::Pcie;
use super::processor::Processor;
use super::station::Picos;
use super::wire::{INFINIBAND, ROCE, Wire};
use super::wqe_cache::WqeCache;

/// Constants of a cluster's cards, buses, links and processors. The parts name their sources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calibration {
    /// Name for people.
    pub(crate) name: &'static str,
    /// A card's time for a request that it sends, and for one that it carries out.
    pub(super) request: Picos,
    /// Time from the doorbell until the card has the request.
    pub(super) doorbell: Duration,
    /// Time by which a request is later that follows others of its queue pair: the card has no use for its copy that came with
    /// the doorbell, and reads it. SMART's figure 4a: batches of 4 to 32 of 12 threads lie 0.54 µs above the line through
    /// batches of 1. Several requests share such a read, so its bytes are those of the copy.
    pub(super) follows: Duration,
    /// Time from the card until the completion is in memory.
    pub(super) completion: Duration,
    /// Longest WRITE in bytes that travels in its work request.
    pub(super) inline: u32,
    pub(super) pcie: Pcie,
    pub(super) wire: Wire,
    pub(super) cache: WqeCache,
    pub(super) processor: Processor,
    /// Time for which an atomic in the host's memory holds its bucket: 0.45 µs. SMART's figure 14, 96 threads that want one word: 2.2 million
    /// CASes a second.
    pub(super) host_atomic: Duration,
    /// Time for which an atomic in the card's memory holds its bucket: about 0.11 µs. Sherman section 5.7: locks on the card give
    /// × 2.89 with 176 threads; 0.009 µs would give × 35.
    pub(super) card_atomic: Duration,
    /// Percentage by which latencies and processors' times vary, to both sides: not measured, so that nothing keeps step.
    pub(super) jitter: u64,
}

impl Calibration {
    /// SMART's cluster: ConnectX-6 at 200 Gb/s InfiniBand on PCIe 3.0 × 16, one switch.
    ///
    /// The card takes 4.65 ns a request (215 million a second, the vendor's figure). A READ of 8 bytes takes 2.35 µs, as figure 4a has it
    /// for 12 threads and a batch of one. A switch takes 130 ns (data sheet of NVIDIA QM8700); doorbell and completion are the halves of
    /// what the rest leaves. Its benchmark sends no WRITE inline.
    pub(crate) const CX6_200_PCIE3: Self = Self {
        name: "cx6_200_pcie3",
        request: Picos(4_650),
        doorbell: Duration::from_nanos(425),
        follows: Duration::from_nanos(540),
        completion: Duration::from_nanos(415),
        inline: 0,
        pcie: Pcie::GEN3,
        wire: Wire {
            byte: Picos(40),
            frame: INFINIBAND,
            mtu: 4096,
            switch: Duration::from_nanos(130),
            cables: Duration::from_nanos(10),
        },
        cache: WqeCache::CX6,
        processor: Processor::XEON_6240R,
        host_atomic: Duration::from_nanos(450),
        card_atomic: Duration::from_nanos(110),
        jitter: 10,
    };

    /// The cluster of Sherman and Dolphin: ConnectX-5 at 100 Gb/s InfiniBand, one switch.
    ///
    /// The card takes 9 ns a request (110 million a second, Sherman section 4.3), and a READ of 64 bytes 2 µs (section 2.2). A
    /// switch takes 90 ns (data sheet of Mellanox SB7800); doorbell and completion are the halves of the rest. The card's cache of work
    /// requests is not measured: as that of [`CX6_200_PCIE3`](Self::CX6_200_PCIE3), whose limits this cluster does not reach.
    pub(crate) const CX5_100_IB: Self = Self {
        name: "cx5_100_ib",
        request: Picos(9_000),
        doorbell: Duration::from_nanos(290),
        completion: Duration::from_nanos(280),
        inline: 64,
        wire: Wire { byte: Picos(80), switch: Duration::from_nanos(90), ..Self::CX6_200_PCIE3.wire },
        processor: Processor::XEON_2650,
        ..Self::CX6_200_PCIE3
    };

    /// The Fat-B+Tree paper's testbed: ConnectX-5 at 40 Gb/s Ethernet behind two Tofino switches, completions by event.
    ///
    /// A READ takes about 16 µs there: from the root, six of them and a record take 113 µs. A switch takes 400 ns (Tofino's first packet in,
    /// first packet out, about); the rest of the 16 µs is the event that wakes the client's thread.
    pub(crate) const CX5_40_EVENTS: Self = Self {
        name: "cx5_40_events",
        wire: Wire {
            byte: Picos(200),
            frame: ROCE,
            mtu: 1024,
            switch: Duration::from_nanos(400),
            ..Self::CX6_200_PCIE3.wire
        },
        processor: Processor {
            wake: Duration::from_nanos(12_600),
            operation: Duration::ZERO,
            ..Processor::XEON_2650
        },
        ..Self::CX5_100_IB
    };

    /// The same cards with RoCEv2 through Ethernet switches of 300 ns (data sheet of Mellanox SN2700).
    #[must_use]
    pub(crate) fn over_ethernet(self) -> Self {
        Self { wire: Wire { frame: ROCE, switch: Duration::from_nanos(300), ..self.wire }, ..self }
    }

    /// The same without a client's own work for an operation, where operations are no index's.
    #[must_use]
    pub(crate) fn without_own_work(self) -> Self {
        let processor = Processor { operation: Duration::ZERO, ..self.processor };
        Self { processor, ..self }
    }

    /// The same with a bus of half the speed, to see what a limit is due to.
    #[must_use]
    pub(crate) fn with_half_the_bus(self) -> Self {
        let byte = Picos(self.pcie.byte.0 * 2);
        Self { pcie: Pcie { byte, ..self.pcie }, ..self }
    }

    /// The same with atomics in the host's memory as quick as the card's pipeline, to see what a limit is due to.
    #[must_use]
    pub(crate) fn with_quick_atomics(self) -> Self {
        Self { host_atomic: Duration::from_nanos(9), ..self }
    }

    /// A client's own work for an index operation.
    pub(crate) fn operation(&self) -> Duration {
        self.processor.operation
    }
}

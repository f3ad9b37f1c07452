//! Capabilities of a device.

/// Capabilities of a device. Those that both sides must have (masked atomics, line atomicity) are required of both:
/// the responder states them in its description of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether the device supports masked compare-and-swap and masked fetch-and-add.
    pub masked_atomics: bool,
    /// Bytes of memory on the device itself that can be registered; 0 if there is none.
    pub device_memory: u64,
    /// Whether the device, as a responder, reads and writes each aligned line of 64 bytes whole. If not, a reader may
    /// see half of a line, and a tree needs checksums.
    pub line_atomicity: bool,
    /// Maximum number of work requests in one chain.
    pub longest_chain: usize,
    /// Longest WRITE in bytes that travels inside of its work request.
    pub inline_bytes: usize,
    /// Number of work requests that a queue pair can hold until they complete.
    pub send_queue: usize,
    /// Number of READs and atomics that a queue pair can answer at once.
    pub responder_reads: u8,
    /// Maximum number of READs and atomics that a queue pair has outstanding.
    pub initiator_reads: u8,
    /// Length of the longest READ and WRITE in bytes.
    pub longest_message: u64,
}

//! Capabilities of a device.

/// What a device can do. What both sides must be able to do (masked atomics, line atomicity) is asked of both: the
/// responder says it in its description of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Masked compare and swap, masked fetch and add.
    pub masked_atomics: bool,
    /// Bytes of memory on the device itself that can be registered; 0: none.
    pub device_memory: u64,
    /// As a responder it reads and writes each aligned line of 64 bytes whole. Where this is `false`, a reader may see half
    /// of a line, and a tree needs checksums.
    pub line_atomicity: bool,
    /// Most work requests in one chain.
    pub longest_chain: usize,
    /// A WRITE of up to this many bytes travels inside of its work request.
    pub inline_bytes: usize,
    /// Work requests that a queue pair holds until they complete.
    pub send_queue: usize,
    /// READs and atomics that a queue pair answers at once.
    pub responder_reads: u8,
    /// READs and atomics that a queue pair has outstanding at most.
    pub initiator_reads: u8,
    /// Bytes of the longest READ and WRITE.
    pub longest_message: u64,
}

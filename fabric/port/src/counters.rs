//! Counters of a port.

use std::fmt;

/// Counts of one port's frames since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Frames handed to the owner.
    pub received: u64,
    /// Frames taken from the owner and given to the network.
    pub sent: u64,
    /// Lost because the owner came too late to take them from the receive queue, as far as the kernel tells: frames that came as one message
    /// of a UDP wire count once.
    pub queue_full: u64,
    /// Frames longer than [`LONGEST_FRAME`](crate::LONGEST_FRAME), or than the network takes.
    pub too_long: u64,
    /// Frames sent while there was no receiver: the peer is not up, or not any more.
    pub no_peer: u64,
    /// Frames lost for other reasons; the last reason is in [`Port::last_error`](crate::Port::last_error).
    pub failed: u64,
}

impl Counters {
    /// Adds the counts of another port.
    pub fn add(&mut self, other: &Counters) {
        let Counters { received, sent, queue_full, too_long, no_peer, failed } = other;
        self.received += received;
        self.sent += sent;
        self.queue_full += queue_full;
        self.too_long += too_long;
        self.no_peer += no_peer;
        self.failed += failed;
    }

    /// Number of frames lost here, for any reason.
    pub fn lost(&self) -> u64 {
        self.queue_full + self.too_long + self.no_peer + self.failed
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} frames received, {} sent", self.received, self.sent)?;
        let losses = [
            ("lost in a full queue", self.queue_full),
            ("too long", self.too_long),
            ("sent without a peer", self.no_peer),
            ("failed", self.failed),
        ];
        losses
            .iter()
            .filter(|(_, count)| *count > 0)
            .try_for_each(|(what, count)| write!(f, ", {count} {what}"))
    }
}

//! Counters of a NIC.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident, $text:literal;)*) => {
        /// Reasons for which a received frame was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DropReason {
            $($(#[$doc])* $name,)*
        }

        impl DropReason {
            /// All reasons.
            pub const ALL: &[DropReason] = &[$(DropReason::$name,)*];
        }

        impl fmt::Display for DropReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(DropReason::$name => $text,)* })
            }
        }
    };
}

reasons! {
    /// Another protocol than RoCEv2 over IPv4.
    Foreign, "foreign protocol";
    /// Headers that contradict each other, wrong checksums, or a frame that is cut short.
    Malformed, "malformed";
    /// The index header is still present: no switch removed it.
    IndexHeader, "index header still on";
    /// Another destination MAC.
    WrongMac, "wrong destination MAC";
    /// Another destination address.
    WrongIp, "wrong destination address";
    /// The ICRC does not match: damaged on the way.
    BadIcrc, "wrong ICRC";
    /// No queue pair has this number.
    UnknownQueuePair, "unknown queue pair";
    /// A management datagram that is not of the Communication Manager, or of a version that is not known.
    OtherManagement, "another management datagram";
    /// Another partition key than the default.
    WrongPkey, "wrong partition key";
    /// The queue pair is not connected, or failed.
    NotReady, "queue pair not ready";
    /// Another source address than the connected peer's.
    WrongPeer, "not the connected peer";
    /// Opcode of another transport than reliable connections.
    UnknownOpcode, "unknown opcode";
    /// A response to a request that is already done.
    StaleResponse, "stale response";
    /// A response to a request that was never sent.
    GhostResponse, "response to nothing sent";
    /// A response that does not fit its request.
    BadResponse, "response does not fit its request";
    /// A response after a missing one, which is requested again.
    ResponseGap, "response after a missing one";
    /// A request after a missing one.
    RequestGap, "request after a missing one";
    /// A duplicate request that cannot be answered again.
    StaleRequest, "stale request";
    /// A message for which there is no place; it comes again.
    NoReceive, "message without a receive";
    /// More requests than answers can be kept for.
    ReplyQueueFull, "too many requests to answer";
}

/// Counters of a NIC since it was made.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NicStats {
    /// Frames handed in.
    pub frames_received: u64,
    /// Frames handed out.
    pub frames_sent: u64,
    /// Bytes handed in.
    pub bytes_received: u64,
    /// Bytes handed out.
    pub bytes_sent: u64,
    /// New requests carried out.
    pub requests_executed: u64,
    /// Duplicate requests answered again.
    pub duplicate_requests: u64,
    /// NAKs sent.
    pub naks_sent: u64,
    /// NAKs received.
    pub naks_received: u64,
    /// Acknowledgement timeouts.
    pub timeouts: u64,
    /// Retransmissions begun, by timeout, by NAK or because responses were missing.
    pub retransmissions: u64,
    /// Queue pairs that went to the error state.
    pub queue_pairs_failed: u64,
    dropped: [u64; DropReason::ALL.len()],
}

impl NicStats {
    /// Frames dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Frames dropped for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Every reason that occurred, with its count.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.dropped(reason))).filter(|&(_, count)| count > 0)
    }

    /// Counters of the NIC in a memory server's statistics: frames received and sent, and drops by each reason that occurred.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let counts = [
            ("nic_frames_received", self.frames_received),
            ("nic_frames_sent", self.frames_sent),
            ("nic_requests", self.requests_executed),
            ("nic_duplicates", self.duplicate_requests),
            ("nic_naks_sent", self.naks_sent),
        ];
        let counts = counts.map(|(name, count)| (name.to_owned(), count));
        let drops = self.drops().map(|(reason, count)| (format!("nic_dropped_{reason}"), count));
        counts.into_iter().chain(drops).collect()
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }
}

impl fmt::Display for NicStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} frames in, {} out; {} requests, {} duplicates; {} timeouts, {} retransmissions; {} NAKs in, {} out; {} queue pairs failed",
            self.frames_received,
            self.frames_sent,
            self.requests_executed,
            self.duplicate_requests,
            self.timeouts,
            self.retransmissions,
            self.naks_received,
            self.naks_sent,
            self.queue_pairs_failed
        )?;
        for (reason, count) in self.drops() {
            write!(f, "; dropped {count}: {reason}")?;
        }
        Ok(())
    }
}

//! Errors of calls; what goes wrong on the wire ends in completions and statistics instead.

use crate::{QueuePairNumber, QueuePairState};

/// Why a queue pair could not change its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QpError {
    /// No such queue pair.
    #[error(
        "queue pair {qpn}: expected one of this NIC, found none by this number; it may have been destroyed"
    )]
    Unknown {
        /// The number given.
        qpn: QueuePairNumber,
    },
    /// The state machine does not lead there.
    #[error("queue pair {qpn}: from {from} to {to}: {missing}")]
    Transition {
        /// The queue pair.
        qpn: QueuePairNumber,
        /// Where it is.
        from: QueuePairState,
        /// Where it was to go.
        to: QueuePairState,
        /// What is missing, and what to do.
        missing: &'static str,
    },
    /// The remote endpoint cannot be right.
    #[error("queue pair {qpn}: remote {field}: expected {expected}, found {found}; exchange endpoints again")]
    Endpoint {
        /// The queue pair.
        qpn: QueuePairNumber,
        /// The field of [`Endpoint`](crate::Endpoint).
        field: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: u64,
    },
    /// The number asked for cannot be given.
    #[error("queue pair {qpn}: expected a free number of 2 to 2^24 - 1, found it {found}; ask for another")]
    Number {
        /// The number asked for.
        qpn: QueuePairNumber,
        /// Why not.
        found: &'static str,
    },
}

/// Why a request was not accepted. The queue pair is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// No such queue pair.
    #[error(
        "post: expected a queue pair of this NIC, found none by the number {qpn}; it may have been destroyed"
    )]
    Unknown {
        /// The number given.
        qpn: QueuePairNumber,
    },
    /// Requests are taken in RTS only.
    #[error(
        "post: expected queue pair {qpn} in RTS, found it in {state}; connect it, or after an error a new one"
    )]
    State {
        /// The queue pair.
        qpn: QueuePairNumber,
        /// Where it is.
        state: QueuePairState,
    },
    /// The send queue is full.
    #[error(
        "post: expected room in the send queue of {qpn}, found {found} of {limit} {what}; poll completions first"
    )]
    Full {
        /// The queue pair.
        qpn: QueuePairNumber,
        /// Of what there are too many.
        what: &'static str,
        /// How many there would be.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Longer than any message may be.
    #[error("post: expected at most {limit} bytes, found {found}; split the request")]
    TooLong {
        /// Bytes given.
        found: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// Atomics work on addresses that are multiples of 8.
    #[error("post: expected an address that is a multiple of 8 for an atomic, found {va:#x}; align it")]
    Misaligned {
        /// The address given.
        va: u64,
    },
}

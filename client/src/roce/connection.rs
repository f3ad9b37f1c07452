//! One queue pair to one memory server, as the client sees it.

use std::collections::VecDeque;

use fatbtree_nic::{Endpoint, QueuePairNumber};

use super::event::BreakReason;

/// Names a connection: partition (= memory server) and lane, the number of the queue pair to it from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    /// The partition, as in the super-root.
    pub partition: u16,
    /// Below [`super::ClientConfig::lanes`].
    pub lane: u8,
}

/// What the server says of itself when a queue pair is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSide {
    /// Its end of the queue pair.
    pub endpoint: Endpoint,
    /// Key of its tree region.
    pub rkey: u32,
    /// Whether the client's first-hop switch already admits index reads on this queue pair. Each queue pair
    /// is registered for itself, so after a reconnection this is `false` until the controller has acted.
    pub registered: bool,
}

/// Where a connection is in its life.
///
/// ```text
///          reconnect             connected            read failed
///   Down ────────────► Opening ───────────► Up ───────────────────► Down
///     │ abandon                                                       │ abandon
///     └───────────────► Abandoned ◄───────────────────────────────────┘   reconnect leads out again
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Down,
    Opening { queue_pair: QueuePairNumber },
    Up { queue_pair: QueuePairNumber, rkey: u32 },
    Abandoned,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) link: Link,
    /// The queue pair in use last; it goes when its successor is made.
    pub(super) old: Option<QueuePairNumber>,
    /// Index reads are admitted.
    pub(super) registered: bool,
    /// Slots that wait for the connection, in order.
    pub(super) waiting: VecDeque<u32>,
    /// Why the last queue pair failed.
    pub(super) reason: BreakReason,
    /// Broken, and the owner is not told yet: how many lookups were on it.
    pub(super) untold: Option<u32>,
}

impl Connection {
    /// A connection that at most `lookups` wait for at once.
    pub(super) fn new(id: ConnectionId, lookups: u32) -> Self {
        Connection {
            id,
            link: Link::Down,
            old: None,
            registered: false,
            waiting: VecDeque::with_capacity(lookups as usize),
            reason: BreakReason::Owner,
            untold: None,
        }
    }

    /// Whether a completion of this queue pair concerns the reads under way.
    pub(super) fn uses(&self, queue_pair: QueuePairNumber) -> bool {
        match self.link {
            Link::Up { queue_pair: up, .. } => up == queue_pair,
            Link::Down | Link::Opening { .. } | Link::Abandoned => self.old == Some(queue_pair),
        }
    }

    /// Takes the queue pair out of use; it is destroyed later, when its last completions are in.
    pub(super) fn retire(&mut self) {
        if let Link::Up { queue_pair, .. } | Link::Opening { queue_pair } = self.link {
            self.old = Some(queue_pair);
        }
        self.link = Link::Down;
        self.registered = false;
    }

    /// Notes that the queue pair failed, unless it is known: only the first reason counts, the others are its
    /// flushes. Says whether it was news.
    pub(super) fn broke(&mut self, reason: BreakReason) -> bool {
        let news = matches!(self.link, Link::Up { .. });
        if news {
            self.retire();
            self.reason = reason;
            self.untold = Some(0);
        }
        news
    }
}

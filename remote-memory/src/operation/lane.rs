//! The queue pairs that an operation posts on, and its round trips.

use std::cell::Cell;

use fatbtree_verbs::Error;

use crate::connection::ConnectionId;

/// The queue pairs of one operation, one to each server, and its round trips.
///
/// A round trip counts when it has been waited for: its answer came, or its connection broke. Chains that are posted together, on one
/// server or several, are one round trip. A request that the device refuses is none.
#[derive(Clone, Debug)]
pub struct Lane {
    number: u8,
    round_trips: Cell<u32>,
}

/// The way of an operation to one server.
#[derive(Clone, Copy, Debug)]
pub struct Path<'l> {
    /// The connection.
    pub id: ConnectionId,
    /// Where its round trips are counted.
    pub(crate) lane: &'l Lane,
}

impl Lane {
    /// A lane by its number, before the first round trip.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self { number, round_trips: Cell::new(0) }
    }

    /// Number of its queue pairs among those of each server.
    #[must_use]
    pub const fn number(&self) -> u8 {
        self.number
    }

    /// Round trips so far, one after the other.
    #[must_use]
    pub fn round_trips(&self) -> u32 {
        self.round_trips.get()
    }

    /// The same queue pairs for a part of the operation that counts its round trips apart.
    #[must_use]
    pub const fn apart(&self) -> Self {
        Self::new(self.number)
    }

    /// Adds the round trips of such a part.
    #[inline]
    pub fn add(&self, round_trips: u32) {
        self.round_trips.set(self.round_trips.get() + round_trips);
    }

    /// Counts a round trip in which these chains were waited for, if one of them was posted.
    pub(crate) fn count<T>(&self, chains: &[Result<T, Error>]) {
        self.add(chains.iter().any(|done| !matches!(done, Err(Error::Post(_)))).into());
    }

    /// The operation's way to a server.
    #[inline]
    #[must_use]
    pub const fn to(&self, server: u16) -> Path<'_> {
        self.by(ConnectionId { server, lane: self.number })
    }

    /// The way by another connection than its own, where the operation relies on the order of what was posted there.
    #[must_use]
    pub const fn by(&self, id: ConnectionId) -> Path<'_> {
        Path { id, lane: self }
    }
}

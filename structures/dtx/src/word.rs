//! The eight bytes that stand in a lock: the coordinator that has it.

use fatbtree_remote_memory::{Owner, SessionId};

/// Seats that a server can have: numbers below this.
pub const MAX_SEATS: u16 = 1 << SEAT_BITS;

const SEAT_BITS: u32 = 14;
const TAG_BITS: u32 = 33;
const TAG: u64 = (1 << TAG_BITS) - 1;
const OWNER: u32 = TAG_BITS + SEAT_BITS;
const TAKEN: u64 = 1 << 63;
const _: () = assert!(OWNER + 16 == 63);

/// Coordinator of a transaction, as locks and seats of one server name it. Little-endian in memory; 0 is no coordinator.
///
/// ```text
///   63      62      47 46    33 32             0
///   taken   owner      seat     tag of session
///     1       16        14           33
/// ```
///
/// The owner is the number of the coordinator's session with this server. Numbers come again, so the word has 33 bits of the session's
/// name, too. The seat leads to the coordinator's log on the same server, and from there to its transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Word(u64);

impl Word {
    /// The word of a session's owner and a seat.
    #[must_use]
    pub const fn new(owner: Owner, seat: u16) -> Self {
        let seat = (seat as u64 & (MAX_SEATS as u64 - 1)) << TAG_BITS;
        Self(TAKEN | (owner.number as u64) << OWNER | seat | owner.session.0 & TAG)
    }

    /// Reads a word of memory. `None` if no coordinator stands there.
    #[must_use]
    pub const fn of(raw: u64) -> Option<Self> {
        if raw & TAKEN == 0 { None } else { Some(Self(raw)) }
    }

    /// The word as it lies in memory.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Owner number of the session.
    #[must_use]
    pub const fn owner(self) -> u16 {
        (self.0 >> OWNER) as u16
    }

    /// Seat on this server.
    #[must_use]
    pub const fn seat(self) -> u16 {
        (self.0 >> TAG_BITS) as u16 & (MAX_SEATS - 1)
    }

    /// Whether this is the session that the word was made for.
    #[must_use]
    pub const fn is_of(self, session: SessionId) -> bool {
        self.0 & TAG == session.0 & TAG
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_word_is_read_as_it_was_written(number: u16, session: u64, seat in 0..MAX_SEATS) {
            let owner = Owner { session: SessionId(session), number };
            let word = Word::new(owner, seat);
            prop_assert_eq!(Word::of(word.raw()), Some(word));
            prop_assert_eq!((word.owner(), word.seat()), (number, seat));
            prop_assert!(word.is_of(owner.session) && !word.is_of(SessionId(session ^ 1)));
        }
    }

    #[test]
    fn golden_bytes() {
        let owner = Owner { session: SessionId(0x1_2345_6789), number: 0xabc };
        assert_eq!(Word::new(owner, 5).raw(), 0x855e_000b_2345_6789);
        assert_eq!(Word::of(0), None);
    }
}

//! Locks: hierarchical on-chip locks (Sherman section 4.3).
//!
//! ```text
//!   writers of this client                          lock table of the memory server, on its card
//!   w1 ─┐                                           ┌────┬────┬────┬────┬───
//!   w2 ─┼─► queue of the lock ─ one of them ─CAS──► │  0 │ 17 │  0 │  0 │ ...   16 bits a lock: the owner, or 0
//!   w3 ─┘   hand-over, at most 4 in a row           └────┴────┴────┴────┴───
//! ```
//!
//! What lies at an address is locked by a *global* lock on its own server, chosen by a hash of the address. Operations of one
//! client that want the same lock wait in a queue *here*. Only the first of them asks the server. An operation that ends hands the global
//! lock over to the next in the queue, which saves the release and a round trip. It does so at most [`HAND_OVERS`] times in a row,
//! because other clients wait, too.
//!
//! All clients use one layout of the table, 16 bits a lock. A card with masked atomics changes just these bits; without them a
//! compare-and-swap of the whole word does the same, and is repeated when one of the three neighbours changed meanwhile.
//!
//! A lock on the card is given back by an atomic, not by a WRITE as in Sherman's paper. A card promises that its atomics exclude each other,
//! and not that they exclude a WRITE (`IBV_ATOMIC_HCA`): a compare-and-swap for a neighbour could write the whole word back as it was before
//! the release. Without [`on_chip`](crate::Locking::on_chip) locks are released by a WRITE, for Sherman's figures.

mod guard;
mod local;

use std::fmt;

use fatbtree_verbs::{Operation, Remote};

use crate::address::GlobalAddress;
use crate::checks::Check;

pub use guard::{LockError, LockGuard, restructure_all};
pub(crate) use local::{Admission, End, Left, LocalLocks, Ticket, Unfinished};

/// Times in a row that a global lock is handed over among the operations of one client (Sherman section 4.3).
pub const HAND_OVERS: u8 = 4;

/// Offset of the first session's name in a server's table of owners: after a bit for each of 65,536 numbers. A name has 8 bytes.
pub const OWNER_NAMES: u64 = (1 << 16) / 8;

/// The name of a session with a memory server. The server draws it at random when it opens the session, and it never comes again:
/// neither from the same server, however often that is started, nor after its memory was filled anew.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// The owner of locks of one server: a number that others may have had before, or have after a restart, and the session that tells
/// them apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Owner {
    /// The session in which the server gave the number.
    pub session: SessionId,
    /// The number in the locks: not 0, and no other client's as long as one of its locks may be held.
    pub number: u16,
}

impl Owner {
    /// Whether both are of one session, as everything is that a client may use of a server.
    #[inline]
    pub(crate) fn is(self, other: Self) -> bool {
        if Check::SessionIdentity.on() { self.session == other.session } else { self.number == other.number }
    }
}

/// A client's means to write to a server's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writer {
    /// The first byte of the server's lock table.
    pub locks: Remote,
    /// Locks in it, 16 bits each; a multiple of 4.
    pub count: u32,
    /// The first byte of the server's table of owners: a bit for each of the 65,536, set as long as the owner's session lasts. A
    /// server clears it after it has destroyed the session's queue pairs: from then on nothing that the owner has posted is
    /// written, and other clients may take its locks.
    pub owners: Remote,
    /// The owner as which this client takes locks, and the session.
    pub owner: Owner,
    /// Both cards carry out masked atomics.
    pub masked_atomics: bool,
    /// What is written to the server reaches a disk, some time after it is acknowledged: see
    /// [`RemoteMemory::until_synced`](crate::RemoteMemory::until_synced).
    pub syncs: bool,
}

/// A lock of a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LockId {
    /// Server of the lock.
    pub(crate) server: u16,
    number: u32,
}

/// Result of an attempt to take a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// The lock was free.
    Now,
    /// The lock was this client's already: its release was lost with a connection.
    Before,
    /// Another owner has it: this one.
    Not(u16),
    /// A neighbour in the same word changed; this is the word now.
    Neighbour(u64),
}

impl Writer {
    /// The lock of what begins at an address.
    pub(crate) fn lock_of(&self, at: GlobalAddress) -> LockId {
        // What is locked lies at multiples of 64: the bits above are mixed by a multiplication (Fibonacci hashing).
        let mixed = (at.offset() >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let number = (mixed * u64::from(self.count)) >> 32;
        LockId { server: at.server(), number: number as u32 }
    }

    fn word(&self, lock: LockId) -> Remote {
        Remote { address: self.locks.address + u64::from(lock.number / 4) * 8, rkey: self.locks.rkey }
    }

    const fn shift(lock: LockId) -> u32 {
        lock.number % 4 * 16
    }

    /// Takes a lock that is free. `word` is what the whole word is believed to be.
    pub(crate) fn take(&self, lock: LockId, word: u64) -> Operation<'static> {
        self.change_owner(lock, word, 0)
    }

    /// Takes the lock of an owner whose session has ended. The result is to be read as [`take`](Self::take)'s is, told that the lock
    /// was free.
    pub(crate) fn take_over(&self, lock: LockId, word: u64, dead: u16) -> Operation<'static> {
        self.change_owner(lock, word, dead)
    }

    fn change_owner(&self, lock: LockId, word: u64, from: u16) -> Operation<'static> {
        let (at, shift) = (self.word(lock), Self::shift(lock));
        let (old, mine, mask) =
            (u64::from(from) << shift, u64::from(self.owner.number) << shift, 0xffff << shift);
        if self.masked_atomics {
            return Operation::MaskedCompareSwap {
                at,
                compare: old,
                compare_mask: mask,
                swap: mine,
                swap_mask: mask,
            };
        }
        let others = word & !mask;
        Operation::CompareSwap { at, compare: others | old, swap: others | mine }
    }

    /// Whether [`take_over`](Self::take_over), told to expect `word`, has taken the lock when it has found `found`.
    pub(crate) fn has_taken_over(&self, lock: LockId, word: u64, dead: u16, found: u64) -> bool {
        let (shift, mask) = (Self::shift(lock), 0xffff << Self::shift(lock));
        let was_theirs = found >> shift & 0xffff == u64::from(dead);
        was_theirs && (self.masked_atomics || found & !mask == word & !mask)
    }

    /// The word of the table of owners in which an owner's bit is, and the bit.
    pub(crate) fn life_of(&self, owner: u16) -> (Remote, u64) {
        let address = self.owners.address + u64::from(owner / 64) * 8;
        (Remote { address, ..self.owners }, 1 << (owner % 64))
    }

    /// The word of the table of owners that names the session of a number.
    pub(crate) fn name_of(&self, owner: u16) -> Remote {
        Remote { address: self.owners.address + OWNER_NAMES + u64::from(owner) * 8, ..self.owners }
    }

    /// Result of [`take`](Self::take) with the expected word `word` and the found word `found`.
    pub(crate) fn taken(&self, lock: LockId, word: u64, found: u64) -> Taken {
        let shift = Self::shift(lock);
        let owner = found >> shift & 0xffff;
        if owner == u64::from(self.owner.number) {
            return Taken::Before;
        }
        if owner != 0 && Check::Lock.on() {
            return Taken::Not(owner as u16);
        }
        let as_believed = self.masked_atomics || found == word & !(0xffff << shift);
        if as_believed { Taken::Now } else { Taken::Neighbour(found) }
    }

    /// Gives back a lock that this client has, by a WRITE of its two bytes.
    pub(crate) fn write_back(&self, lock: LockId) -> Operation<'static> {
        let Remote { address, rkey } = self.word(lock);
        Operation::Write {
            to: Remote { address: address + u64::from(lock.number % 4) * 2, rkey },
            data: &[0; 2],
        }
    }

    /// Gives back a lock that this client has.
    pub(crate) fn give_back(&self, lock: LockId) -> Operation<'static> {
        let (at, shift) = (self.word(lock), Self::shift(lock));
        let mine = u64::from(self.owner.number) << shift;
        if self.masked_atomics {
            let mask = 0xffff << shift;
            return Operation::MaskedCompareSwap {
                at,
                compare: mine,
                compare_mask: mask,
                swap: 0,
                swap_mask: mask,
            };
        }
        // The bits are the owner: taking it away borrows nothing from the neighbours, whatever they are.
        Operation::FetchAdd { at, add: mine.wrapping_neg() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn writer(owner: u16, masked_atomics: bool) -> Writer {
        let (locks, owners) = (Remote { address: 4096, rkey: 7 }, Remote { address: 0, rkey: 8 });
        let owner = Owner { session: SessionId(owner.into()), number: owner };
        Writer { locks, owners, count: 1 << 10, owner, masked_atomics, syncs: false }
    }

    #[test]
    fn locks_are_spread() {
        let writer = writer(1, true);
        let mut used = vec![0u32; 1 << 10];
        for node in 0..10_000u64 {
            used[writer.lock_of(GlobalAddress::new(3, 64 + node * 1024)).number as usize] += 1;
        }
        assert!(
            used.iter().all(|&count| count < 40) && used.iter().filter(|&&count| count > 0).count() > 950
        );
        assert_eq!(writer.lock_of(GlobalAddress::new(3, 64)).server, 3);
    }

    /// The server clears bit `owner % 64` of word `owner / 64` when the owner's session has ended.
    #[test]
    fn each_owner_has_a_bit_of_its_own() {
        let writer = writer(1, true);
        for (owner, word, bit) in
            [(0, 0, 0), (1, 0, 1), (63, 0, 63), (64, 1, 0), (130, 2, 2), (0xffff, 1023, 63)]
        {
            let (at, found) = writer.life_of(owner);
            assert_eq!((at.address, at.rkey, found), (word * 8, 8, 1 << bit), "owner {owner}");
        }
    }

    proptest! {
        /// Several clients find a lock of a dead owner, each at its own time, and take it by what they have seen then. One of them has it:
        /// the first one that knows the word as it is. A lock that is free, or has another owner by now, is not taken; neighbours stay as
        /// they are.
        #[test]
        fn a_lock_of_a_dead_owner_has_one_heir(
            number in 0..4u32,
            word: u64,
            now_owned_by in prop_oneof![4 => Just(None), 1 => Just(Some(0)), 1 => Just(Some(9)), 1 => Just(Some(3))],
            neighbour_changes: bool,
            order in Just([0, 1, 2]).prop_shuffle(),
        ) {
            const DEAD: u16 = 7;
            let heirs = [writer(1, true), writer(2, false), writer(3, false)];
            let lock = LockId { server: 0, number };
            let (shift, mask) = (number * 16, 0xffff << (number * 16));
            let seen = word & !mask | u64::from(DEAD) << shift;
            // What has happened since they looked.
            let mut now = now_owned_by.map_or(seen, |owner: u16| seen & !mask | u64::from(owner) << shift);
            if neighbour_changes {
                now ^= 1 << ((number + 1) % 4 * 16);
            }
            let neighbours = now & !mask;
            let mut owner = now_owned_by.unwrap_or(DEAD);
            for heir in order.map(|at| &heirs[at]) {
                let found = now;
                now = heir.take_over(lock, seen, DEAD).apply(found).unwrap_or(found);
                let expected = owner == DEAD && (heir.masked_atomics || !neighbour_changes);
                prop_assert_eq!(heir.has_taken_over(lock, seen, DEAD, found), expected);
                if expected {
                    owner = heir.owner.number;
                }
                prop_assert_eq!(now, neighbours | u64::from(owner) << shift);
            }
        }

        /// Clients with and without masked atomics share a table: a lock has one owner, and neighbours stay as they are.
        #[test]
        fn one_owner_at_a_time(steps in prop::collection::vec((0..3usize, 0..8u64), 1..200)) {
            let writers = [writer(1, true), writer(2, false), writer(0xffff, false)];
            let mut words = [0u64; 2];
            let mut owners = [None; 8];
            for (who, number) in steps {
                let (writer, lock) = (&writers[who], LockId { server: 0, number: number as u32 });
                let word = &mut words[number as usize / 4];
                if owners[number as usize] == Some(who) {
                    // Its own lock is its own still, however often it asks: a release that was lost is found so.
                    let found = *word;
                    *word = writer.take(lock, found).apply(found).unwrap();
                    prop_assert_eq!((writer.taken(lock, found, found), *word), (Taken::Before, found));
                    *word = writer.give_back(lock).apply(*word).unwrap();
                    owners[number as usize] = None;
                } else {
                    let mut believed = 0;
                    let taken = loop {
                        let found = *word;
                        *word = writer.take(lock, believed).apply(found).unwrap();
                        match writer.taken(lock, believed, found) {
                            Taken::Neighbour(found) => believed = found,
                            other => break other,
                        }
                    };
                    let free = owners[number as usize].is_none();
                    prop_assert_eq!(taken, if free { Taken::Now } else { Taken::Not(owners[number as usize].map_or(0, |who| writers[who].owner.number)) });
                    if free {
                        owners[number as usize] = Some(who);
                    }
                }
                for (number, owner) in owners.iter().enumerate() {
                    let found = words[number / 4] >> (number % 4 * 16) & 0xffff;
                    prop_assert_eq!(found, owner.map_or(0, |who| u64::from(writers[who].owner.number)));
                }
            }
        }
    }

    #[test]
    fn a_lock_that_was_kept_is_known_again() {
        for masked in [true, false] {
            let writer = writer(9, masked);
            let lock = LockId { server: 0, number: 6 };
            let taken = writer.take(lock, 0).apply(0).unwrap();
            assert_eq!(taken, 9 << 32);
            assert_eq!(writer.taken(lock, 0, taken), Taken::Before);
            assert_eq!(writer.take(lock, 0).apply(taken), Some(taken));
        }
    }
}

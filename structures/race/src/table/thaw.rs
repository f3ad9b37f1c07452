//! A split that was begun and cannot be completed is taken back: its slots are thawed.
//!
//! A client freezes slots when it has all that the split needs. It may die then, and the others may have no memory; or a server dies whose
//! blocks must be read. Then the subtable would be frozen until there is memory, or the server is back, and so would be keys of servers that live.
//!
//! The word of the successors says what may be done. It counts how often a split was taken back:
//!
//! ```text
//!   63   48 47          36 35 34         0
//!     sum     taken back     │ successors      0: none
//!                            └ being thawed
//! ```
//!
//! ```text
//!   lock of the subtable on its server's card
//!   CAS   open n → thawing n        no copy that was begun before can be announced any more
//!   CAS   w | frozen → w            each slot; tentative | frozen → 0
//!   CAS   thawing n → open n + 1    the next split may begin
//!   release
//! ```
//!
//! # Why no change is lost
//!
//! A client that splits reads the word first, then freezes, reads all slots, copies, and announces by a CAS of the word that it has read. The
//! word comes again after 4,096 splits that were taken back, each of which takes a part of a client's patience: a quarter of an hour at least. So when that CAS succeeds the word was *open n* the whole time, and no slot was thawed in that time: they are thawed only
//! while the word says so. All slots that were read frozen were frozen still when the pair was announced, and no change was made that the
//! copy has not. A split that was taken back fails at its CAS, whatever of it was done.
//!
//! A CAS that thaws a slot must not come late, when the next split has begun. The client that thaws has the subtable's lock, waits for all of its
//! CAS, and opens the word then. If it dies, another one takes the lock over, which it may when the session has ended: nothing that the dead one
//! has posted comes after that. It finds the word *thawing n*, and thaws again. Two clients never thaw one subtable at once, and the lock is
//! taken for this alone: splits need none.
//!
//! A late CAS that *freezes* a slot does no harm. It is found as a split that was begun, and completed or taken back.
//!
//! # What others see
//!
//! * A slot has the word again that it had before it was frozen. A change that read it before, and compares it now, is right: the slot leads to the
//!   same record, and the subtable is the one in use.
//! * A search that has read a frozen slot, and finds no successors then, takes it: it counted when it was read.
//! * A frozen tentative pointer never counts: an insertion that has met one has gone on without it. So it is emptied, not thawed.

use fatbtree_remote_memory::{GlobalAddress, LockGuard};
use fatbtree_verbs::Verbs;

use super::buckets::successors_of;
use super::{Op, Table};
use crate::checks::Check;
use crate::error::Stop;
use crate::layout::{Leaf, SUCCESSORS, slot_offsets, word_at};
use crate::slot::{DamagedLink, Place, Slot, State as SlotState, no_link, number_of};

/// Passes over the slots: others may be freezing some until they look at the word.
const PASSES: u32 = 8;

/// What is expected in place of a damaged word.
pub(super) const EXPECTED: &str = "the successors of a subtable";

/// Part of its patience after which an operation takes back a split that it cannot complete.
const PART: u64 = 4;

/// State of a subtable, as the word of its successors says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It is in use: a split may begin, with this word.
    Open(u64),
    /// A split is being taken back.
    Thawing(u64),
    /// It was split into this pair.
    Split(Place),
}

impl State {
    /// The state that a word says. The lowest bit of its number says that slots are being thawed.
    ///
    /// # Errors
    /// When the word is damaged.
    pub(super) const fn of(word: u64) -> Result<Self, DamagedLink> {
        match Place::of_link(word) {
            Ok(Some(pair)) => Ok(Self::Split(pair)),
            Ok(None) if number_of(word) & 1 == 0 => Ok(Self::Open(word)),
            Ok(None) => Ok(Self::Thawing(word)),
            Err(damaged) => Err(damaged),
        }
    }
}

/// The word after one without successors.
const fn next(word: u64) -> u64 {
    no_link(number_of(word) + 1)
}

impl<V: Verbs> Table<V> {
    /// Reads the state of a subtable.
    pub(super) async fn split_state(&self, leaf: Leaf, op: &mut Op<'_>) -> Result<State, Stop> {
        let at = successors_of(leaf);
        let word = self.memory.read_word(&op.lane, at).await?;
        State::of(word).map_err(|_| op.doubt(at, word, &[], EXPECTED))
    }

    /// Whether an operation has waited long enough for others to complete a split.
    pub(super) fn may_thaw(&self, op: &Op<'_>) -> bool {
        self.memory.time_of(op) > self.memory.config().patience / PART && Check::Thaws.on()
    }

    /// Takes a split back that was begun when the state was `seen`, if nothing came of it meanwhile.
    pub(super) async fn thaw(&self, leaf: Leaf, seen: u64, op: &mut Op<'_>) -> Result<(), Stop> {
        let (at, word_of) = (leaf.place.address(), successors_of(leaf));
        // A session begins before its first connection.
        self.writer(at.server(), &op.lane).await?;
        let length = (SUCCESSORS + 8) as u32;
        let (guard, head) = LockGuard::lock_and_read(&self.memory, &op.lane, at, length).await?;
        let writer = guard.writer();
        let found = word_at(&head, SUCCESSORS);
        let Ok(state) = State::of(found) else {
            guard.release(&op.lane).await?;
            return Err(op.doubt(word_of, found, &[], EXPECTED));
        };
        let thawing = match state {
            State::Split(pair) => {
                guard.release(&op.lane).await?;
                self.follow(leaf, pair, op);
                return Ok(());
            }
            State::Thawing(word) => word,
            // Another client has taken it back.
            State::Open(word) if word != seen => {
                guard.release(&op.lane).await?;
                return Ok(());
            }
            State::Open(word) => {
                let thawing = next(word);
                let found = self.memory.compare_swap_in(&op.lane, &writer, word_of, word, thawing).await?;
                if found != word {
                    guard.release(&op.lane).await?;
                    return Err(Stop::Later);
                }
                thawing
            }
        };
        for _ in 0..PASSES {
            let bytes = self.read_subtable(leaf, op).await?;
            let swaps: Vec<(GlobalAddress, u64, u64)> = slot_offsets(&self.shape)
                .map(|offset| (at.behind(offset), Slot(word_at(&bytes, offset))))
                .filter(|(_, slot)| slot.is_frozen())
                .map(|(at, slot)| (at, slot.0, thawed(slot).0))
                .collect();
            if swaps.is_empty() {
                break;
            }
            self.swap_all(at.server(), &writer, op, &swaps).await?;
        }
        let open = next(thawing);
        self.memory.compare_swap_in(&op.lane, &writer, word_of, thawing, open).await?;
        guard.release(&op.lane).await?;
        Ok(())
    }
}

/// What a frozen slot becomes.
fn thawed(slot: Slot) -> Slot {
    match slot.state() {
        SlotState::Tentative if Check::ThawEmpties.on() => Slot::EMPTY,
        SlotState::Tentative | SlotState::Committed => slot.thawed(),
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_remote_memory::GlobalAddress;

    use super::*;

    #[test]
    fn the_word_counts_and_never_looks_like_a_pair() {
        assert_eq!(State::of(0), Ok(State::Open(0)));
        let (thawing, open) = (next(0), next(next(0)));
        assert_eq!([thawing, open].map(State::of), [Ok(State::Thawing(thawing)), Ok(State::Open(open))]);
        let pair = Place::of(GlobalAddress::new(31, 64)).expect("it is in reach");
        assert_eq!(State::of(pair.link()), Ok(State::Split(pair)));
        let last = no_link(crate::slot::LINK_NUMBERS - 1);
        assert_eq!((State::of(last), next(last)), (Ok(State::Thawing(last)), 0));
    }

    #[test]
    fn what_was_tentative_is_emptied() {
        let place = Place::of(GlobalAddress::new(1, 64)).expect("it is in reach");
        let slot = Slot::new(crate::slot::BlockPointer { fingerprint: 1, units: 1, version: 1, place });
        assert_eq!(
            [slot, slot.tentative(), Slot::EMPTY].map(|slot| thawed(slot.frozen())),
            [slot, Slot::EMPTY, Slot::EMPTY]
        );
    }
}

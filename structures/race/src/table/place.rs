//! Insertion of a key that is not there, so that one of several clients does it.
//!
//! RACE puts the pointer into any free slot, looks again, and takes away all but the lowest of several slots of one key. Meanwhile readers
//! have seen what is taken away, and two insertions have succeeded. Here a pointer is *tentative* until its client has looked again:
//! readers take no notice of it. The second look shares a doorbell with the CAS, so an insertion has three round trips as RACE's.
//!
//! ```text
//!   CAS 0 → tentative, READ both buckets       every client puts, then looks
//!   another of the key counts already?         take mine away: the key is there
//!   another one is tentative, at a lower       take mine away, pause, begin anew
//!     address?
//!   others are tentative, at higher ones?      CAS theirs → 0
//!   CAS tentative → committed                  fails if another client took mine away
//! ```
//!
//! **One of them counts.** Of two insertions that put their pointers, one put first; the other one looked after both, so it saw the first
//! one's pointer. It goes on only if its CAS took that away, and then the first one's last CAS fails.
//!
//! **No client waits for a dead one.** A tentative pointer may be taken away by every client at every time. An insertion that has given way
//! [`PATIENT`] times gives way no more.

use fatbtree_verbs::{Operation, Output, Remote, Verbs};

use super::buckets::{Buckets, Seen};
use super::space::Fresh;
use super::swing::Swung;
use super::{Op, Table};
use crate::block;
use crate::checks::Check;
use crate::error::{Stop, TableError};
use crate::slot::{Slot, State};

/// Attempts in which an insertion gives way to others at lower addresses.
const PATIENT: u32 = 4;

/// What others have put for the same key.
enum Rivals {
    /// The key is there.
    Lost,
    /// Another client goes first.
    GiveWay,
    /// Insertions under way that go no further if these slots are emptied.
    Remove(Vec<Seen>),
}

impl<V: Verbs> Table<V> {
    /// Links a block of a key that was not in `buckets`. Says whether it did; otherwise the key is there.
    pub(super) async fn place(&self, buckets: Buckets, fresh: &Fresh, op: &mut Op<'_>) -> Result<bool, Stop> {
        let tentative = fresh.slot.tentative();
        // Left by an attempt whose connection broke.
        let left = buckets.slots().find(|seen| seen.slot == tentative).map(|seen| seen.offset);
        let again;
        let (offset, seen) = match left {
            Some(offset) => (offset, &buckets),
            None => {
                let Some(offset) = buckets.free() else { return self.make_room(buckets, op).await };
                again = self.put(&buckets, offset, fresh, op).await?;
                (offset, &again)
            }
        };
        let at = buckets.leaf.place.address().behind(offset);
        if Check::Duplicates.on() {
            match self.rivals(&buckets, seen, offset, op).await {
                Ok(Rivals::Remove(rivals)) => {
                    for rival in rivals {
                        let of = buckets.leaf.place.address().behind(rival.offset);
                        let swung = self.swing(of, rival.slot, Slot::EMPTY, op).await;
                        // Taken away, by this client or its own; or frozen while tentative, so that it never counts. All others came
                        // later, and see this one. Any other word: it counts by now, and may have been updated since.
                        let is_gone = match swung {
                            Ok(Swung::Yes) => true,
                            Ok(Swung::No(found)) => {
                                found.thawed().is_empty()
                                    || found == rival.slot.frozen()
                                    || !Check::Removed.on()
                            }
                            Err(_) => false,
                        };
                        if !is_gone {
                            self.swing(at, tentative, Slot::EMPTY, op).await.ok();
                            return Err(Stop::Later);
                        }
                    }
                }
                outcome => {
                    // Where that fails it is left, for the next attempt or for others.
                    self.swing(at, tentative, Slot::EMPTY, op).await.ok();
                    return match outcome? {
                        Rivals::Lost => Ok(false),
                        Rivals::GiveWay | Rivals::Remove(_) => Err(Stop::Later),
                    };
                }
            }
        }
        let writer = Some(&fresh.writer).filter(|_| Check::LinkedInSession.on());
        match self.swing_in(at, tentative, fresh.slot, writer, op).await? {
            Swung::Yes => {
                self.remember(op.key, at, fresh.slot);
                Ok(true)
            }
            Swung::No(_) => Err(Stop::Later),
        }
    }

    /// The second round trip: puts the tentative pointer, and reads the buckets after it.
    async fn put(
        &self,
        buckets: &Buckets,
        offset: u64,
        fresh: &Fresh,
        op: &mut Op<'_>,
    ) -> Result<Buckets, Stop> {
        let leaf = buckets.leaf;
        let at = leaf.place.address().behind(offset);
        let path = op.lane.to(at.server());
        let chain = |rkey| {
            let at = Remote { address: at.raw(), rkey };
            let [one, other] = Self::bucket_reads(&self.shape, leaf, op.state.hash, rkey);
            [Operation::CompareSwap { at, compare: 0, swap: fresh.slot.tentative().0 }, one, other]
        };
        // A block is linked in its session: the next one may be with another region.
        let writer = match Check::LinkedInSession.on() {
            true => fresh.writer,
            false => self.writer(at.server(), &op.lane).await?,
        };
        let [found, one, other] = self.memory.chain(path, &writer, chain).await?;
        let is_mine = matches!(found, Output::Atomic(0));
        self.memory.note_attempt(!is_mine);
        if !is_mine {
            return Err(Stop::Later);
        }
        self.buckets(leaf, op, [one, other]).await
    }

    /// Looks for the key in buckets that were read after the pointer was put at `offset`.
    async fn rivals(
        &self,
        before: &Buckets,
        seen: &Buckets,
        offset: u64,
        op: &mut Op<'_>,
    ) -> Result<Rivals, Stop> {
        // A split has begun: what is frozen may have been there long ago. The next attempt asks.
        if seen.any_frozen() && Check::FrozenRivals.on() {
            return Ok(Rivals::GiveWay);
        }
        let mut remove = Vec::new();
        for rival in seen.matching(op.state.hash).filter(|rival| rival.offset != offset) {
            let Some(pointer) = rival.slot.pointer() else { continue };
            let is_committed = rival.slot.state() == State::Committed;
            if is_committed && before.at(rival.offset) == Some(rival.slot) {
                // It was another key's when the key was looked for, and no word comes twice.
                continue;
            }
            let bytes = self.read_block(pointer, op).await?;
            match block::find(&bytes, pointer, self.shape.keys) {
                Some(found) if !op.state.key.is_of(&found, &bytes) => {}
                Some(_) if is_committed => return Ok(Rivals::Lost),
                // Freed since.
                None if is_committed && Check::FreedRival.on() => return Err(Stop::Later),
                None if is_committed => {}
                Some(_) if rival.offset < offset && op.attempts < PATIENT => return Ok(Rivals::GiveWay),
                Some(_) | None => remove.push(rival),
            }
        }
        Ok(Rivals::Remove(remove))
    }

    /// Makes room for a key whose buckets are full: splits the subtable, or takes insertions away that are under way.
    async fn make_room(&self, buckets: Buckets, op: &mut Op<'_>) -> Result<bool, Stop> {
        let leaf = buckets.leaf;
        if leaf.depth < self.shape.directory_bits && Check::Splits.on() {
            // Its buffers are what the split needs, which waits for others of this client.
            drop(buckets);
            self.split(leaf, op).await?;
            return Err(Stop::Anew);
        }
        let tentative: Vec<_> =
            buckets.slots().filter(|seen| seen.slot.state() == State::Tentative).collect();
        if tentative.is_empty() {
            return Err(TableError::Full { bits: self.shape.directory_bits }.into());
        }
        for seen in tentative {
            let at = leaf.place.address().behind(seen.offset);
            self.swing(at, seen.slot, Slot::EMPTY, op).await.ok();
        }
        Err(Stop::Later)
    }
}

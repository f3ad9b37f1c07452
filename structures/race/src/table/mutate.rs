//! Insert, update, upsert, compare-and-swap and delete.
//!
//! ```text
//!              1                              2                         3
//!   update     [WRITE block, READ 128 × 2]    READ old block            CAS old → new
//!   swap       [WRITE block, READ 128 × 2]    READ old block, compare   CAS old → new
//!   delete     [READ 128 × 2]                 READ block                CAS old → 0
//!   insert     [WRITE block, READ 128 × 2]    [CAS 0 → tentative,       CAS tentative → committed
//!                                              READ 128 × 2]
//! ```
//!
//! Each takes effect with its last CAS. The version in the slot makes the CAS of a swap one of the value that was compared.

use fatbtree_remote_memory::CommonError;
use fatbtree_verbs::{Output, Verbs};

use super::buckets::Buckets;
use super::search::Hit;
use super::space::Fresh;
use super::swing::Swung;
use super::{Answer, Change, Op, Table};
use crate::checks::Check;
use crate::error::{Stop, TableError};
use crate::key::Asked;
use crate::layout::Leaf;
use crate::slot::Slot;

impl<V: Verbs> Table<V> {
    /// Puts a value where none is; says whether it did. Three round trips.
    ///
    /// # Errors
    /// In the answer, as of all changes: see [`TableError`]. After [`CommonError::Unknown`] the change may have been made.
    pub async fn insert(&self, key: u64, value: &[u8]) -> Answer<bool> {
        self.change(key, Change::Insert(value)).await
    }

    /// Replaces the value where one is; says whether it did. Three round trips.
    pub async fn update(&self, key: u64, value: &[u8]) -> Answer<bool> {
        self.change(key, Change::Update(value)).await
    }

    /// Puts a value, whether one is there or not; always true. Three round trips.
    pub async fn upsert(&self, key: u64, value: &[u8]) -> Answer<bool> {
        self.change(key, Change::Upsert(value)).await
    }

    /// Replaces the value where it is the expected one, byte by byte; says whether it did. Three round trips.
    pub async fn compare_and_swap(&self, key: u64, expected: &[u8], value: &[u8]) -> Answer<bool> {
        self.change(key, Change::CompareAndSwap { expected, value }).await
    }

    /// Takes the value away where one is; says whether it did. Three round trips.
    pub async fn delete(&self, key: u64) -> Answer<bool> {
        self.change(key, Change::Delete).await
    }

    /// Changes a key; says whether the change applied.
    ///
    /// One more round trip for each key of the same fingerprint in its buckets, and for each split that the client did not know. More,
    /// where others change the same, after pauses of [`Contention`](fatbtree_remote_memory::Contention).
    pub async fn change(&self, key: u64, change: Change<'_>) -> Answer<bool> {
        self.change_of(Asked::number(key), change).await
    }

    /// The same of a key of bytes: one more round trip for another key of the same [word](crate::word_of).
    pub async fn change_bytes(&self, key: &[u8], change: Change<'_>) -> Answer<bool> {
        self.change_of(Asked::of_bytes(key), change).await
    }

    async fn change_of<'k>(&self, key: Asked<'k>, change: Change<'_>) -> Answer<bool> {
        if let Err(error) = self.check_key(key) {
            return Answer { result: Err(error), round_trips: 0 };
        }
        let mut fresh = None;
        let answer = {
            let _turn = self.memory.compete().await;
            self.answer(self.op(key), async |op: &mut Op<'k>| self.try_change(change, &mut fresh, op).await)
                .await
        };
        match &answer.result {
            // The table may have the block.
            Err(TableError::Common(CommonError::Unknown(_))) if Check::UnknownBlock.on() => {
                self.recycle(fresh)
            }
            _ => self.discard(fresh),
        }
        answer
    }

    async fn try_change(
        &self,
        change: Change<'_>,
        fresh: &mut Option<Fresh>,
        op: &mut Op<'_>,
    ) -> Result<bool, Stop> {
        let leaf = self.reach(op).await?;
        if let Some(value) = change.value() {
            self.prepare(fresh, value, leaf.place.address().server(), op).await?;
        }
        let buckets = self.write_and_read(leaf, fresh.as_mut(), op).await?;
        if buckets.any_frozen() && Check::FrozenBuckets.on() {
            // What waits holds no buffer: the split, of an operation of this client perhaps, needs some.
            drop(buckets);
            return self.await_split(leaf, op).await;
        }
        let hit = self.find(&buckets, op).await?;
        match (hit, change) {
            (Some(hit), Change::CompareAndSwap { expected, .. })
                if *hit.value() != *expected && Check::Compares.on() =>
            {
                Ok(false)
            }
            (Some(_), Change::Insert(_))
            | (None, Change::Update(_) | Change::CompareAndSwap { .. } | Change::Delete) => Ok(false),
            (Some(hit), _) => {
                self.replace(leaf, &hit, fresh.as_ref(), op).await?;
                self.recycle(fresh.take());
                Ok(true)
            }
            (None, Change::Insert(_) | Change::Upsert(_)) => {
                let filled = fresh.as_ref().ok_or(Stop::Later)?;
                let is_placed = self.place(buckets, filled, op).await?;
                if is_placed {
                    self.recycle(fresh.take());
                } else if let Change::Upsert(_) = change {
                    return Err(Stop::Anew);
                }
                Ok(is_placed)
            }
        }
    }

    /// The first round trip: reads the key's buckets, and writes the block on the way.
    async fn write_and_read(
        &self,
        leaf: Leaf,
        fresh: Option<&mut Fresh>,
        op: &mut Op<'_>,
    ) -> Result<Buckets, Stop> {
        let server = leaf.place.address().server();
        let Some(fresh) = fresh.filter(|fresh| !fresh.is_written) else {
            return self.read_buckets(leaf, op).await;
        };
        let path = op.lane.to(server);
        let chain = |rkey| {
            let [one, other] = Self::bucket_reads(&self.shape, leaf, op.state.hash, rkey);
            [fresh.write(rkey), one, other]
        };
        let [_, one, other]: [Output; 3] = self.memory.chain(path, &fresh.writer, chain).await?;
        fresh.is_written = true;
        self.buckets(leaf, op, [one, other]).await
    }

    /// Replaces the slot of a key, and frees its block.
    async fn replace(
        &self,
        leaf: Leaf,
        hit: &Hit,
        filled: Option<&Fresh>,
        op: &mut Op<'_>,
    ) -> Result<(), Stop> {
        let new = filled.map_or(Slot::EMPTY, |fresh| fresh.slot);
        // The block is freed in the session in which it was found, or left alone: another session may be with another region.
        let server = hit.pointer.place.address().server();
        let writer = self.writer(server, &op.lane).await?;
        let at = leaf.place.address().behind(hit.seen.offset);
        let filled_in = filled.filter(|_| Check::LinkedInSession.on()).map(|fresh| fresh.writer);
        match self.swing_in(at, hit.seen.slot, new, filled_in.as_ref(), op).await? {
            Swung::Yes => {
                self.remember(op.key, at, new);
                self.free(at.server(), &writer, hit.pointer, hit.found.length, hit.found.version);
                Ok(())
            }
            Swung::No(_) => Err(Stop::Later),
        }
    }
}

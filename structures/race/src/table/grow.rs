//! The directory in memory after a split. It decides nothing: what is left undone costs others round trips.

use fatbtree_remote_memory::{GlobalAddress, Writer};
use fatbtree_verbs::Verbs;

use super::{Op, Table, read_all};
use crate::error::Stop;
use crate::layout::{BucketHeader, Leaf, entry_offset, word_at};
use crate::slot::Place;

impl<V: Verbs> Table<V> {
    /// Whether the directory can be changed now to lead to the successors of a subtable. Where a server is away, others need a round trip
    /// more until a later client comes by.
    async fn may_advertise(&self, old: Leaf, op: &Op<'_>) -> bool {
        let is_up = || self.memory.is_up(op.lane.to(self.home.server()).id);
        // Its server may go away while the other one's disk is waited for.
        is_up()
            && self.synced_before(old.place.address().server(), self.home.server()).await.is_ok()
            && is_up()
    }

    /// Replaces all entries of a subtable by its successors. The directory grows first, if it has but one entry for the two.
    pub(super) async fn advertise(
        &self,
        header: BucketHeader,
        old: Leaf,
        pair: Place,
        op: &mut Op<'_>,
    ) -> Result<(), Stop> {
        if !self.may_advertise(old, op).await {
            return Ok(());
        }
        // Words of one session: in the next one the server may have begun anew.
        let writer = self.writer(self.home.server(), &op.lane).await?;
        let depth = self.grow(&writer, old.depth + 1, op).await?;
        let Some(halves) = old.halves(pair, &self.shape) else { return Ok(()) };
        let numbers = (header.suffix..1 << depth).step_by(1 << old.depth);
        let swap = |number: u32| {
            let half = halves[(number >> old.depth & 1) as usize];
            (self.entry(number), old.word(), half.word())
        };
        self.swap_all(self.home.server(), &writer, op, &numbers.map(swap).collect::<Vec<_>>()).await
    }

    /// Replaces the entry by which this client has come: its own client may have died before it did. The others are replaced by those that
    /// come by them.
    pub(super) async fn advertise_one(&self, old: Leaf, pair: Place, op: &mut Op<'_>) -> Result<(), Stop> {
        if !self.may_advertise(old, op).await {
            return Ok(());
        }
        let writer = self.writer(self.home.server(), &op.lane).await?;
        let depth = self.memory.read_word(&op.lane, self.home).await?;
        if depth <= old.depth.into() {
            self.grow(&writer, old.depth + 1, op).await?;
        }
        let depth = u8::try_from(depth).unwrap_or(u8::MAX).max(old.depth + 1).min(self.shape.directory_bits);
        let Some(halves) = old.halves(pair, &self.shape) else { return Ok(()) };
        let number = op.state.hash.suffix(depth);
        let half = halves[usize::from(op.state.hash.is_upper(old.depth))];
        let swaps = [(self.entry(number), old.word(), half.word())];
        self.swap_all(self.home.server(), &writer, op, &swaps).await
    }

    /// Doubles the directory until its depth is `least`. Returns its depth.
    async fn grow(&self, writer: &Writer, least: u8, op: &mut Op<'_>) -> Result<u8, Stop> {
        loop {
            let depth = self.memory.read_word(&op.lane, self.home).await?;
            let known = u8::try_from(depth).unwrap_or(u8::MAX).min(self.shape.directory_bits);
            if known >= least.min(self.shape.directory_bits) {
                return Ok(known);
            }
            // The upper half is a copy of the lower one. It may be old before it is used.
            let count = 1_u32 << known;
            let lower = self.entry(0);
            let bytes = read_all(&self.memory, &op.lane, lower, u64::from(count) * 8).await?;
            let copy = |number: u32| (self.entry(count + number), 0, word_at(&bytes, u64::from(number) * 8));
            let copies: Vec<_> = (0..count).map(copy).collect();
            self.swap_all(self.home.server(), writer, op, &copies).await?;
            self.swap_all(self.home.server(), writer, op, &[(self.home, depth, depth + 1)]).await?;
        }
    }

    fn entry(&self, number: u32) -> GlobalAddress {
        self.home.behind(entry_offset(number))
    }
}

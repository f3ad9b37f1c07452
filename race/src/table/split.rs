//! Splits: a subtable becomes two. Any client may finish what another one has begun.
//!
//! ```text
//!   1  freeze     CAS every slot w → w | frozen                        old: nothing in it changes any more
//!   2  copy       READ the keys of its blocks, WRITE two new subtables    no client knows them
//!   3  announce   CAS successors 0 → new pair                          here the split takes effect
//!   4  advertise  CAS the entries of the directory                     saves others a round trip
//! ```
//!
//! RACE locks the subtable, and a client that dies with the lock stops it for ever. Here each step may be done by every client, several
//! times, at once:
//!
//! * A slot that is frozen stays so. A change that was about to CAS it fails.
//! * All copies of a subtable whose slots are all frozen are the same. Tentative pointers are left out, and never count.
//! * One pair is announced. The others are given back; no client has seen them.
//! * An entry that was not advertised leads to the old subtable, which is never used again, and leads on.
//!
//! A client that wants to change a key in a subtable that is being split waits for a while, and then does all of it itself. So a client
//! may die at any step, and a split needs neither lock nor lease. Of one client only one operation does it: the others wait for that.
//!
//! Searches need not wait. A slot that was not frozen when it was read was in use then. A frozen one counts until the successors are
//! announced; a client that has read one asks for them behind it. If there are none, the slot counted until then.
//!
//! Old subtables stay where they are. There is one less of them than of present ones.

use std::cell::RefCell;

use fatbtree_remote::record::RECORD_HEAD;
use fatbtree_remote::{Block, ConnectionId, Part, Writer, bytes_of};
use fatbtree_verbs::{MAX_BATCH, Operation, Output, Remote, Verbs};

use super::buckets::successors_of;
use super::{Op, Table, read_pieces};
use crate::block;
use crate::checks::Check;
use crate::error::{Stop, TableError};
use crate::hash::Hash;
use crate::layout::{BucketHeader, Leaf, PAIRS, slot_offsets, word_at, write_subtable};
use crate::slot::{Place, Slot, State};

/// Pauses in which an operation waits for another one of its client, before it looks again: from 1 µs to 1 ms each.
const PATIENT_WITH_OWN: u32 = 64;

/// Pauses, each twice as long as the one before, in which another client may finish a split: from 1 µs to some 100 µs in all.
const PATIENT: u32 = 8;

impl<V: Verbs> Table<V> {
    /// Notes the successors of a subtable.
    pub(super) fn follow(&self, leaf: Leaf, pair: Place, op: &Op) {
        self.directory.borrow_mut().split(op.hash, leaf, pair, &self.shape);
    }

    /// Splits a subtable, unless another client does.
    pub(super) async fn split(&self, leaf: Leaf, op: &mut Op) -> Result<(), Stop> {
        // One of several that find it full begins: the one that freezes the first slot.
        let first = slot_offsets(&self.shape).next().map(|offset| leaf.place.address().behind(offset));
        let first = first.ok_or(Stop::Later)?;
        let slot = Slot(self.memory.read_word(op.lane, first).await?);
        op.trips += 1;
        if slot.is_frozen() {
            return self.await_split(leaf, op).await;
        }
        op.trips += 1;
        match Slot(self.memory.compare_swap(op.lane, first, slot.0, slot.frozen().0).await?) {
            found if found == slot => self.finish(leaf, op).await,
            found if found.is_frozen() => self.await_split(leaf, op).await,
            _ => Err(Stop::Later),
        }
    }

    /// Waits until a split has ended that was begun. Finishes it if that takes long. The operation begins anew behind it.
    pub(super) async fn await_split<T>(&self, leaf: Leaf, op: &mut Op) -> Result<T, Stop> {
        if self.await_own(leaf).await {
            return Err(Stop::Anew);
        }
        for pause in 0..PATIENT {
            if let Some(pair) = self.successors(leaf, op).await? {
                self.follow(leaf, pair, op);
                self.advertise_one(leaf, pair, op).await?;
                return Err(Stop::Anew);
            }
            self.memory.pause(pause).await;
        }
        if Check::Helping.on() {
            self.finish(leaf, op).await?;
        }
        Err(Stop::Anew)
    }

    /// Waits while another operation of this client splits a subtable. Says whether one did.
    async fn await_own(&self, leaf: Leaf) -> bool {
        for pause in 0..PATIENT_WITH_OWN {
            if !self.splitting.borrow().contains(&leaf.place) {
                return pause > 0;
            }
            self.memory.pause(pause).await;
        }
        true
    }

    /// Splits a subtable, whatever others have done of it.
    async fn finish(&self, leaf: Leaf, op: &mut Op) -> Result<(), Stop> {
        if self.await_own(leaf).await {
            return Ok(());
        }
        let _own = Own::begin(&self.splitting, leaf.place);
        // All in one session: in the next one the server may have begun anew.
        let writer = self.writer(leaf.place.address().server(), op.lane).await?;
        let frozen = self.freeze(leaf, &writer, op).await?;
        if let Some(pair) = self.successors(leaf, op).await? {
            self.follow(leaf, pair, op);
            return Ok(());
        }
        let Some(keys) = self.keys_of(&frozen, op).await? else {
            // A block was freed, so another client has finished.
            return Err(Stop::Later);
        };
        let header = BucketHeader::from_word(word_at(&frozen, 0))
            .ok_or(TableError::Damaged { at: leaf.place.address(), expected: "the header of a subtable" })?;
        let pair = self.copy(header, &keys, op).await?;
        let announced = self.announce(leaf, &writer, pair, op).await?;
        self.follow(leaf, announced, op);
        self.advertise(header, leaf, announced, op).await
    }

    /// Freezes all slots. Returns the subtable as it is from then on.
    async fn freeze(&self, leaf: Leaf, writer: &Writer, op: &mut Op) -> Result<Vec<u8>, Stop> {
        let at = leaf.place.address();
        loop {
            let bytes =
                read_pieces(&self.memory, op.lane, at, self.shape.subtable_bytes(), &mut op.trips).await?;
            let slots = slot_offsets(&self.shape).map(|offset| (offset, Slot(word_at(&bytes, offset))));
            let thawed = slots.filter(|(_, slot)| !slot.is_frozen());
            let swaps: Vec<_> =
                thawed.map(|(offset, slot)| (at.behind(offset), slot.0, slot.frozen().0)).collect();
            if swaps.is_empty() || !Check::FrozenAll.on() {
                return Ok(bytes);
            }
            self.swap_all(at.server(), writer, op, &swaps).await?;
        }
    }

    /// Hashes of the keys in a frozen subtable, with their slots and offsets. `None` if a block is not what its slot says: it was freed, so
    /// the successors were announced.
    async fn keys_of(&self, frozen: &[u8], op: &mut Op) -> Result<Option<Vec<(u64, Slot, Hash)>>, Stop> {
        let slots = slot_offsets(&self.shape).map(|offset| (offset, Slot(word_at(frozen, offset)).thawed()));
        let mut left: Vec<_> = slots
            .filter(|(_, slot)| slot.state() == State::Committed)
            .filter_map(|(offset, slot)| Some((offset, slot, slot.pointer()?)))
            .collect();
        // A doorbell rings for one server.
        left.sort_by_key(|(.., pointer)| pointer.place);
        let mut keys = Vec::with_capacity(left.len());
        for of_one in left
            .chunk_by(|(.., one), (.., other)| one.place.address().server() == other.place.address().server())
        {
            let Some((.., first)) = of_one.first() else { continue };
            let id = ConnectionId { server: first.place.address().server(), lane: op.lane };
            let writer = self.writer(id.server, op.lane).await?;
            for some in of_one.chunks(MAX_BATCH) {
                let reads = |rkey: u32| {
                    some.iter().map(move |(.., pointer)| Operation::Read {
                        from: Remote { address: pointer.place.address().raw(), rkey },
                        len: RECORD_HEAD as u32,
                    })
                };
                let heads = self.memory.batch(id, &writer, reads).await?;
                op.trips += 1;
                for (&(offset, slot, pointer), head) in some.iter().zip(heads) {
                    let Some(found) = block::find_head(&bytes_of(head)?, pointer) else { return Ok(None) };
                    keys.push((offset, slot, Hash::of(found.key)));
                }
            }
        }
        Ok(Some(keys))
    }

    /// Writes a pair of subtables with the keys of one. Each pointer stays at its place in the buckets, which do not depend on the depth.
    async fn copy(
        &self,
        header: BucketHeader,
        keys: &[(u64, Slot, Hash)],
        op: &mut Op,
    ) -> Result<Pair, Stop> {
        let half = self.shape.subtable_bytes();
        let mut bytes = vec![0; 2 * half as usize];
        let (lower, upper) = bytes.split_at_mut(half as usize);
        for (is_upper, (bytes, of)) in
            [false, true].into_iter().zip([lower, upper].into_iter().zip(header.halves()))
        {
            write_subtable(bytes, of, |_| Slot::EMPTY);
            for &(offset, slot, _) in keys.iter().filter(|(.., hash)| hash.is_upper(header.depth) == is_upper)
            {
                bytes[offset as usize..][..8].copy_from_slice(&slot.0.to_le_bytes());
            }
        }
        let server = self.shape.server(header.suffix.wrapping_add(header.depth.into()));
        let size = bytes.len() as u32;
        let (writer, block) = self.take(server, PAIRS, size, op.lane).await?;
        let at = block.address;
        let place = Place::of(at).ok_or(TableError::OutOfReach { at })?;
        let id = ConnectionId { server, lane: op.lane };
        op.trips += self.memory.write_chain(id, &writer, &[Part { at, bytes: &bytes }], &[]).await?;
        Ok(Pair { writer, block, place, size })
    }

    /// Names the successors, unless another client was quicker. Returns those that count.
    async fn announce(&self, leaf: Leaf, writer: &Writer, pair: Pair, op: &mut Op) -> Result<Place, Stop> {
        let at = successors_of(leaf);
        let id = ConnectionId { server: at.server(), lane: op.lane };
        let swap = |rkey| {
            let at = Remote { address: at.raw(), rkey };
            [Operation::CompareSwap { at, compare: 0, swap: pair.place.word() }]
        };
        op.trips += 1;
        // Where that breaks it is found out by the next attempt. The pair is lost if it does not count.
        let [Output::Atomic(found)] = self.memory.chain(id, writer, swap).await? else {
            return Err(Stop::Later);
        };
        match Place::from_word(found) {
            None => Ok(pair.place),
            Some(other) => {
                self.put_back(&pair.writer, PAIRS, pair.size, Block { version: None, ..pair.block });
                Ok(other)
            }
        }
    }
}

/// A split that an operation of this client does.
struct Own<'t> {
    splitting: &'t RefCell<Vec<Place>>,
    place: Place,
}

impl<'t> Own<'t> {
    fn begin(splitting: &'t RefCell<Vec<Place>>, place: Place) -> Self {
        splitting.borrow_mut().push(place);
        Self { splitting, place }
    }
}

impl Drop for Own<'_> {
    /// Also where the operation is dropped in its middle: the next one begins the split anew.
    fn drop(&mut self) {
        self.splitting.borrow_mut().retain(|place| *place != self.place);
    }
}

/// A pair of subtables that no client but this one knows.
struct Pair {
    writer: Writer,
    block: Block,
    place: Place,
    size: u32,
}

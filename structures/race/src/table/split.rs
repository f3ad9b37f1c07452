//! Splits: a subtable becomes two. Any client may finish what another one has begun, and any may take it back.
//!
//! ```text
//!   0  reserve    memory for the pair, and connections with the server of each block    nothing is changed
//!   1  freeze     CAS every slot w → w | frozen                           old: nothing in it changes any more
//!   2  copy       READ the keys of its blocks, WRITE two new subtables    no client knows them
//!   3  announce   CAS successors: state → new pair                        here the split takes effect
//!   4  advertise  CAS the entries of the directory                        saves others a round trip
//! ```
//!
//! RACE locks the subtable, and a client that dies with the lock stops it for ever. Here each step may be done by every client, several
//! times, at once:
//!
//! * A slot that is frozen stays so until the split has taken effect or is taken back. A change that was about to CAS it fails.
//! * All copies of a subtable whose slots are all frozen are the same. Tentative pointers are left out, and never count.
//! * One pair is announced. The others are given back; no client has seen them.
//! * An entry that was not advertised leads to the old subtable, which is never used again, and leads on.
//!
//! A client that wants to change a key in a subtable that is being split waits for a while, and then does all of it itself. So a client
//! may die at any step, and a split needs neither lock nor lease. Of one client only one operation does it: the others wait for that.
//!
//! Searches need not wait. A slot that was not frozen when it was read was in use then. A frozen one counts until the successors are
//! announced; a client that has read one asks for them after that. If there are none, the slot counted when it was read.
//!
//! Old subtables stay where they are. There is one less of them than of present ones.
//!
//! # No server stops the keys of another one
//!
//! A frozen slot stops changes of its key. So a client freezes nothing before it has all that the split needs: a session with the server of the
//! subtable, memory for the pair in a session with its server, and an answer of each of the other servers: that of the pair, and those of the
//! blocks, whose keys it reads.
//! The pair belongs on the server that the suffix names. If that one is away, or has no memory, the pair is put on the next one of the table's
//! servers that has some: the announced word says where a pair is, and nothing else does. Where no server has room the operation that wanted to
//! split fails, and all keys of the subtable can still be changed. The directory's server is not needed: where it is away its entries stay as they
//! are.
//!
//! Before a pair is announced on another server than its own it is on its server's disk. Where that server goes away meanwhile, the operation
//! begins anew after half of its patience at most.
//!
//! A client that finds a split begun goes on in the same way, with memory of its own, on servers that live. Where that is impossible, because
//! servers were lost or filled up since, it [takes the split back](super::thaw).

use std::cell::RefCell;
use std::collections::BTreeSet;

use fatbtree_remote_memory::record::RECORD_HEAD;
use fatbtree_remote_memory::{CommonError, GlobalAddress, NotReserved, Spare, Want, Writer, bytes_of};
use fatbtree_verbs::{MAX_BATCH, Operation, Output, Remote, Verbs};

use super::buckets::successors_of;
use super::thaw::State as SplitState;
use super::{Op, Table, read_all};
use crate::block;
use crate::checks::Check;
use crate::error::{Stop, TableError};
use crate::hash::Hash;
use crate::layout::{BUCKET_BYTES, BucketHeader, Leaf, PAIRS, slot_offsets, word_at, write_subtable};
use crate::slot::{Place, Slot, State};

/// Pauses in which an operation waits for another one of its client, before it looks again: from 1 µs to 1 ms each.
const PATIENT_WITH_OWN: u32 = 64;

/// Pauses, each twice as long as the one before, in which another client may finish a split: from 1 µs to some 100 µs in all.
const PATIENT: u32 = 8;

impl<V: Verbs> Table<V> {
    /// Notes the successors of a subtable.
    pub(super) fn follow(&self, leaf: Leaf, pair: Place, op: &Op<'_>) {
        self.directory.borrow_mut().split(op.state.hash, leaf, pair, &self.shape);
    }

    /// Splits a subtable, unless another client does.
    pub(super) async fn split(&self, leaf: Leaf, op: &mut Op<'_>) -> Result<(), Stop> {
        // One of several that find it full begins: the one that freezes the first slot. It does so in the session in which it has read the
        // slot: in the next one the server may have begun anew.
        let writer = self.writer(leaf.place.address().server(), &op.lane).await?;
        let first = slot_offsets(&self.shape).next().map(|offset| leaf.place.address().behind(offset));
        let first = first.ok_or(Stop::Later)?;
        let slot = Slot(self.memory.read_word(&op.lane, first).await?);
        if slot.is_frozen() {
            return self.await_split(leaf, op).await;
        }
        let state = self.split_state(leaf, op).await?;
        if !matches!(state, SplitState::Open(_)) {
            return self.finish(leaf, None, op).await;
        }
        let reserved = match Check::Reserves.on() {
            true => {
                let bytes = self.read_subtable(leaf, op).await?;
                Some(self.reserve(leaf, self.header_of(leaf, &bytes)?, &bytes, op).await?)
            }
            false => None,
        };
        let swapped = self.memory.compare_swap_in(&op.lane, &writer, first, slot.0, slot.frozen().0).await;
        match Slot(swapped?) {
            found if found == slot => self.finish(leaf, reserved, op).await,
            found if found.is_frozen() => self.await_split(leaf, op).await,
            _ => Err(Stop::Later),
        }
    }

    /// Waits until a split has ended that was begun. Finishes it if that takes long. The operation begins anew after that.
    pub(super) async fn await_split<T>(&self, leaf: Leaf, op: &mut Op<'_>) -> Result<T, Stop> {
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
            self.finish(leaf, None, op).await?;
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

    /// Splits a subtable, whatever others have done of it; or takes back what was begun, where it cannot be completed.
    async fn finish(&self, leaf: Leaf, reserved: Option<Spare<'_, V>>, op: &mut Op<'_>) -> Result<(), Stop> {
        if self.await_own(leaf).await {
            return Ok(());
        }
        let _own = Own::begin(&self.splitting, leaf.place);
        // All in one session: in the next one the server may have begun anew.
        let writer = self.writer(leaf.place.address().server(), &op.lane).await?;
        let state = match self.split_state(leaf, op).await? {
            SplitState::Split(pair) => {
                self.follow(leaf, pair, op);
                return Ok(());
            }
            SplitState::Thawing(state) => return self.thaw(leaf, state, op).await,
            SplitState::Open(state) => state,
        };
        // Read after the state: what is frozen here stays so as long as that does.
        let bytes = self.read_subtable(leaf, op).await?;
        let header = self.header_of(leaf, &bytes)?;
        let reserved = match reserved {
            Some(reserved) => Ok(reserved),
            None => self.reserve(leaf, header, &bytes, op).await,
        };
        let pair = match reserved {
            Ok(pair) => pair,
            // Another client may have what this one has not: it has a part of the time in which this operation tries.
            Err(_) if self.may_thaw(op) => return self.thaw(leaf, state, op).await,
            Err(_) => return Err(Stop::Later),
        };
        let Some(frozen) = self.freeze(leaf, state, bytes, &writer, op).await? else {
            return Err(Stop::Later);
        };
        let Some(keys) = self.keys_of(leaf.place.address(), &frozen, op).await? else {
            // A block was freed: another client has finished the split, or taken it back.
            return Err(Stop::Later);
        };
        let pair = self.copy(header, &keys, pair, op).await?;
        let announced = self.announce(leaf, &writer, state, pair, op).await?;
        self.follow(leaf, announced, op);
        self.advertise(header, leaf, announced, op).await
    }

    fn header_of(&self, leaf: Leaf, bytes: &[u8]) -> Result<BucketHeader, CommonError> {
        let found = BucketHeader::from_word(word_at(bytes, 0));
        let header =
            found.filter(|header| header.depth == leaf.depth && header.depth < self.shape.directory_bits);
        header.ok_or(CommonError::Damaged { at: leaf.place.address(), expected: "the header of a subtable" })
    }

    pub(super) async fn read_subtable(&self, leaf: Leaf, op: &mut Op<'_>) -> Result<Vec<u8>, Stop> {
        let (at, bytes) = (leaf.place.address(), self.shape.subtable_bytes());
        read_all(&self.memory, &op.lane, at, bytes).await
    }

    /// Memory for a pair on a server that lives, if all servers live that a split of this subtable needs.
    async fn reserve(
        &self,
        leaf: Leaf,
        header: BucketHeader,
        subtable: &[u8],
        op: &mut Op<'_>,
    ) -> Result<Spare<'_, V>, Stop> {
        let home = leaf.place.address().server();
        for server in self.blocks_of(subtable).into_iter().filter(|&server| server != home) {
            if !self.memory.answers(&op.lane, server).await {
                return Err(Stop::Later);
            }
        }
        let size = 2 * self.shape.subtable_bytes() as u32;
        let mut shortage = None;
        for number in 0..self.shape.servers.count_ones() {
            let number = header.suffix.wrapping_add(header.depth.into()).wrapping_add(number);
            let server = self.shape.server(number);
            // A server that has just died would not say that it has no memory.
            if server != home && !self.memory.answers(&op.lane, server).await {
                continue;
            }
            let want = Want { server, class: PAIRS, bytes: size, is_fresh: false };
            match self.memory.reserve(&op.lane, want).await {
                Ok(pair) if Place::of(pair.address()).is_some() => return Ok(pair),
                Ok(pair) => return Err(TableError::OutOfReach { at: pair.keep().block.address }.into()),
                Err(NotReserved::Away) => {}
                Err(NotReserved::Shortage(why)) => {
                    shortage.get_or_insert(CommonError::NoMemory { server, shortage: why });
                }
            }
        }
        Err(shortage.map_or(Stop::Later, Stop::from))
    }

    /// Servers of the blocks to which slots of a subtable lead.
    fn blocks_of(&self, subtable: &[u8]) -> BTreeSet<u16> {
        let slots = slot_offsets(&self.shape).map(|offset| Slot(word_at(subtable, offset)));
        slots.filter_map(Slot::pointer).map(|pointer| pointer.place.address().server()).collect()
    }

    /// Freezes all slots, of which `bytes` were read last. Returns the subtable as it is from then on. `None`: the split has ended, or is
    /// being taken back.
    async fn freeze(
        &self,
        leaf: Leaf,
        state: u64,
        mut bytes: Vec<u8>,
        writer: &Writer,
        op: &mut Op<'_>,
    ) -> Result<Option<Vec<u8>>, Stop> {
        let at = leaf.place.address();
        loop {
            let slots = slot_offsets(&self.shape).map(|offset| (offset, Slot(word_at(&bytes, offset))));
            let thawed = slots.filter(|(_, slot)| !slot.is_frozen());
            let swaps: Vec<_> =
                thawed.map(|(offset, slot)| (at.behind(offset), slot.0, slot.frozen().0)).collect();
            if swaps.is_empty() || !Check::FrozenAll.on() {
                return Ok(Some(bytes));
            }
            self.swap_all(at.server(), writer, op, &swaps).await?;
            bytes = self.read_subtable(leaf, op).await?;
            if word_at(&bytes, crate::layout::SUCCESSORS) != state && Check::Revoked.on() {
                return Ok(None);
            }
        }
    }

    /// Hashes of the keys in a frozen subtable, with their slots and offsets. `None` if a block is not what its slot says: it was freed, so
    /// the successors were announced, or the slots are not frozen any more.
    async fn keys_of(
        &self,
        at: GlobalAddress,
        frozen: &[u8],
        op: &mut Op<'_>,
    ) -> Result<Option<Vec<(u64, Slot, Hash)>>, Stop> {
        // What a damaged slot hides would be left out of the copies.
        let is_damaged = slot_offsets(&self.shape).any(|offset| !Slot(word_at(frozen, offset)).is_sound());
        let mut headers = (0..self.shape.subtable_bytes()).step_by(BUCKET_BYTES as usize);
        if is_damaged || headers.any(|offset| word_at(frozen, offset) != word_at(frozen, 0)) {
            let expected = "slots that match their check bits, and one header";
            return Err(CommonError::Damaged { at, expected }.into());
        }
        let slots = slot_offsets(&self.shape).map(|offset| (offset, Slot(word_at(frozen, offset)).thawed()));
        let mut left: Vec<_> = slots
            .filter(|(_, slot)| slot.state() == State::Committed || !Check::CopiesCommitted.on())
            .filter_map(|(offset, slot)| Some((offset, slot, slot.pointer()?)))
            .collect();
        // A doorbell rings for one server.
        left.sort_by_key(|(.., pointer)| pointer.place);
        let mut keys = Vec::with_capacity(left.len());
        for of_one in left
            .chunk_by(|(.., one), (.., other)| one.place.address().server() == other.place.address().server())
        {
            let Some((.., first)) = of_one.first() else { continue };
            let path = op.lane.to(first.place.address().server());
            // Others wait for this split, and not for a server.
            if !self.memory.is_up(path.id) {
                return Err(Stop::Later);
            }
            let writer = self.writer(path.id.server, &op.lane).await?;
            for some in of_one.chunks(MAX_BATCH) {
                let reads = |rkey: u32| {
                    some.iter().map(move |(.., pointer)| Operation::Read {
                        from: Remote { address: pointer.place.address().raw(), rkey },
                        len: RECORD_HEAD as u32,
                    })
                };
                let heads = self.memory.batch(path, &writer, reads).await?;
                for (&(offset, slot, pointer), head) in some.iter().zip(heads) {
                    let head = bytes_of(head)?;
                    let Some(word) = block::find_head(&head, pointer) else {
                        let at = pointer.place.address();
                        let stop = op.doubt(at, slot.0, &head, "the block of a frozen slot");
                        return if let Stop::Later = stop { Ok(None) } else { Err(stop) };
                    };
                    keys.push((offset, slot, Hash::of(word)));
                }
            }
        }
        Ok(Some(keys))
    }

    /// Writes a pair of subtables with the keys of one. Each pointer stays at its place in the buckets, which do not depend on the depth.
    async fn copy<'t>(
        &self,
        header: BucketHeader,
        keys: &[(u64, Slot, Hash)],
        mut pair: Spare<'t, V>,
        op: &mut Op<'_>,
    ) -> Result<Written<'t, V>, Stop> {
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
        // From here on it is given back by hand: what is posted may come late.
        pair.set_held(true);
        let at = pair.address();
        let place = Place::of(at).ok_or(TableError::OutOfReach { at })?;
        if !self.memory.is_up(op.lane.to(at.server()).id) {
            return Err(Stop::Later);
        }
        self.memory.write_long(&op.lane, &pair.taken.writer, at, &bytes).await?;
        pair.taken.block.version = None;
        Ok(Written { pair, place })
    }

    /// Waits until what was written to a server is on its disk, where something on another one is about to lead to it: of two servers that
    /// fail, each comes back as it was at a moment of its own.
    pub(super) async fn synced_before(&self, server: u16, leads: u16) -> Result<(), Stop> {
        match server == leads {
            true => Ok(()),
            false => Ok(self.memory.until_synced(server).await?),
        }
    }

    /// Names the successors, unless another client was quicker. Returns those that count.
    async fn announce(
        &self,
        leaf: Leaf,
        writer: &Writer,
        state: u64,
        written: Written<'_, V>,
        op: &mut Op<'_>,
    ) -> Result<Place, Stop> {
        let at = successors_of(leaf);
        let Written { mut pair, place } = written;
        // Nothing leads to it yet, and no WRITE of it is under way.
        pair.set_held(false);
        self.synced_before(place.address().server(), at.server()).await?;
        pair.set_held(true);
        let path = op.lane.to(at.server());
        let state = match Check::Revoked.on() {
            true => state,
            false => self.memory.read_word(&op.lane, at).await?,
        };
        let swap = |rkey| {
            let at = Remote { address: at.raw(), rkey };
            [Operation::CompareSwap { at, compare: state, swap: place.link() }]
        };
        // Where that breaks it is found out by the next attempt. The pair is lost if it does not count.
        let [Output::Atomic(found)] = self.memory.chain(path, writer, swap).await? else {
            return Err(Stop::Later);
        };
        if found == state {
            return Ok(place);
        }
        // No client has seen it.
        pair.set_held(false);
        match SplitState::of(found) {
            Ok(SplitState::Split(other)) => Ok(other),
            Ok(SplitState::Open(_) | SplitState::Thawing(_)) => Err(Stop::Later),
            Err(_) => Err(op.doubt(at, found, &[], super::thaw::EXPECTED)),
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
struct Written<'t, V: Verbs> {
    pair: Spare<'t, V>,
    place: Place,
}

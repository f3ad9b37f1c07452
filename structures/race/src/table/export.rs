//! Export: all pairs of the table in no order, some at a time.
//!
//! ```text
//!   READ slots of the next subtable, from the next slot on     some frozen? READ successors: go on with both halves, from the same slot
//!   [READ block, READ block, …] on up to eight servers         not what the slot says? read the slots anew, from this one on
//! ```
//!
//! A [`Cursor`] names what is left: parts of the hash space, each by a suffix and by the slot from which on it is left. Parts are walked in the
//! order of their bit-reversed suffixes. So a part that is split meanwhile becomes two that follow each other.
//!
//! # What an export finds
//!
//! **A key that is there all the time is found once.** A pointer stays at its offset in its subtable: an update replaces it there, and a split
//! copies it to the same offset of a half. So the slots before a part's first slot, in whatever subtable, have nothing more of it.
//!
//! **Only keys that are there.** A slot that is not frozen was in use when it was read. A frozen one counts if its subtable has no successors
//! *after* it was read, as for a [search](super::search). What is found in the block belongs to the slot, as for a search.
//!
//! **No key is found twice.** A key that is deleted and inserted again meanwhile may come to lie at a later slot, of the same part. The keys
//! of the parts that are begun are remembered: no more than a subtable has.
//!
//! A key that is inserted or deleted meanwhile is found or not; one that is updated is found with one of its values. Other pairs are of other
//! moments: an export is no snapshot.

use std::collections::{BTreeMap, BTreeSet};

use fatbtree_remote_memory::{CommonError, MAX_SHARES, PIECE, Portion, ReadBytes, Share, bytes_of};
use fatbtree_verbs::{MAX_BATCH, Operation, Remote, Verbs};

use super::{Answer, Op, Table, Value};
use crate::block;
use crate::checks::Check;
use crate::error::{Stop, TableError};
use crate::hash::Hash;
use crate::key::Key;
use crate::layout::{BUCKET_BYTES, BucketHeader, HEAD_BYTES, Leaf, is_slot, may_be_at, word_at};
use crate::slot::{BlockPointer, Slot, State};

/// Bytes of values after which a portion ends, whatever their number: values may be long.
const MOST_BYTES: usize = 1 << 20;

/// Bytes of a subtable that are read at once: a READ brings as many.
const WINDOW: u64 = PIECE as u64;

/// Bytes of blocks that one doorbell reads, if it reads more than one: buffers of long ones are few.
const MOST_OF_BATCH: u32 = 64 << 10;

/// A part of the hash space that is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    header: BucketHeader,
    /// Offset in its subtable of the first slot that is left.
    from: u64,
}

/// Where an [export](Table::export) goes on. The default is its beginning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// Number of the table among those that the client has opened. `None` at the beginning.
    table: Option<u64>,
    /// What is left. The last one is the next.
    parts: Vec<Part>,
    /// Keys that were found in parts of which something is left.
    found: BTreeSet<Key>,
}

impl Default for Cursor {
    fn default() -> Self {
        let all = Part { header: BucketHeader { depth: 0, suffix: 0 }, from: HEAD_BYTES };
        Self { table: None, parts: vec![all], found: BTreeSet::new() }
    }
}

impl Cursor {
    /// Puts its two halves in place of the next part.
    fn halve(&mut self) {
        if let Some(Part { header, from }) = self.parts.pop() {
            let [lower, upper] = header.halves();
            self.parts.extend([upper, lower].map(|header| Part { header, from }));
        }
    }

    /// Notes that the slots of the next part before an offset are done.
    fn go_on_from(&mut self, from: u64) {
        if let Some(part) = self.parts.last_mut() {
            part.from = from;
        }
    }

    /// Notes that all slots of the next part are done. Its keys come no more.
    fn finish(&mut self) {
        if let Some(Part { header, .. }) = self.parts.pop() {
            self.found.retain(|key| !header.covers(Hash::of(key.word())));
        }
    }
}

/// State of the export of a portion.
struct Course {
    cursor: Cursor,
    most: usize,
    found: Vec<(Key, Value)>,
    bytes: usize,
}

impl Course {
    fn is_full(&self) -> bool {
        self.found.len() >= self.most || self.bytes >= MOST_BYTES
    }
}

/// A slot whose block is to be read.
#[derive(Clone, Copy)]
struct Wanted {
    offset: u64,
    slot: Slot,
    pointer: BlockPointer,
}

impl Wanted {
    const fn server(&self) -> u16 {
        self.pointer.place.address().server()
    }
}

impl<V: Verbs> Table<V> {
    /// Finds the next pairs of the whole table, in no order: up to `most`, and fewer if they are long. The [rest](Portion::rest) is where the
    /// export goes on, on the same table; `None`: there is no more.
    ///
    /// A key that is there during the whole export is found exactly once, and no key is found twice. A key that is changed meanwhile is found
    /// as it was at some moment of the export, or not at all. The client's memory is that of a subtable and a portion.
    ///
    /// A round trip reads up to 7,168 slots, and one up to 16 blocks of each server.
    ///
    /// # Errors
    /// In the answer: see [`TableError`]. The export has ended then: [`TableError::OpenedAnew`] if the cursor is another table's.
    pub async fn export(&self, from: Cursor, most: usize) -> Answer<Portion<Value, Cursor, Key>> {
        if from.table.is_some_and(|table| table != self.number) {
            return Answer { result: Err(TableError::OpenedAnew), round_trips: 0 };
        }
        let cursor = Cursor { table: Some(self.number), ..from };
        let mut course = Course { cursor, most: most.max(1), found: Vec::new(), bytes: 0 };
        let Answer { result, round_trips } = self
            .answer(self.op_of_none(), async |op: &mut Op<'static>| {
                while !course.is_full() && !course.cursor.parts.is_empty() {
                    self.export_slots(&mut course, op).await?;
                }
                Ok(())
            })
            .await;
        let Course { cursor, found: pairs, .. } = course;
        let rest = (!cursor.parts.is_empty()).then_some(cursor);
        Answer {
            result: result.map(|()| Portion { pairs, rest }).map_err(TableError::of_no_key),
            round_trips,
        }
    }

    /// Takes the pairs of the next slots.
    async fn export_slots(&self, course: &mut Course, op: &mut Op<'_>) -> Result<(), Stop> {
        let Some(&Part { header, from }) = course.cursor.parts.last() else { return Ok(()) };
        op.state.hash = Hash::of_suffix(header.suffix);
        let leaf = self.reach(op).await?;
        if leaf.depth > self.shape.directory_bits {
            // Each such link would double what is left.
            let expected = "no successors at the directory's depth";
            return Err(CommonError::Damaged { at: leaf.place.address(), expected }.into());
        }
        if leaf.depth > header.depth {
            course.cursor.halve();
            return Ok(());
        }
        let Slots { of, all, end } = self.read_slots(leaf, from, op).await?;
        // As for a search: what is frozen counts if no successor had taken its place after it was read.
        if all.iter().any(|(_, slot)| slot.is_frozen())
            && Check::Successors.on()
            && let Some(pair) = self.successors(leaf, op).await?
        {
            self.follow(leaf, pair, op);
            return Err(Stop::Anew);
        }
        let counts = |slot: Slot| slot.state() == State::Committed || !Check::Tentative.on();
        let wanted = |(offset, slot): (u64, Slot)| {
            slot.pointer().filter(|_| counts(slot)).map(|pointer| Wanted { offset, slot, pointer })
        };
        let wanted: Vec<Wanted> = all.into_iter().filter_map(wanted).collect();
        let mut left = &wanted[..];
        while !left.is_empty() {
            if course.is_full() {
                return Ok(());
            }
            let (now, later) = left.split_at(at_once(left, course.most - course.found.len()));
            for (wanted, bytes) in now.iter().zip(self.read_blocks(now, op).await?) {
                course.cursor.go_on_from(wanted.offset);
                self.take_pair(course, [of, header], *wanted, bytes, op)?;
                course.cursor.go_on_from(wanted.offset + 8);
            }
            left = later;
            // Patience is for what does not go on.
            self.memory.restart(op);
        }
        course.cursor.go_on_from(end);
        if end == self.shape.subtable_bytes() {
            course.cursor.finish();
        }
        Ok(())
    }

    /// Reads the slots of a subtable from an offset on, up to [`WINDOW`] bytes.
    async fn read_slots(&self, leaf: Leaf, from: u64, op: &mut Op<'_>) -> Result<Slots, Stop> {
        let at = leaf.place.address();
        let first = from - from % BUCKET_BYTES;
        let end = self.shape.subtable_bytes().min(first + WINDOW);
        let bytes = self.memory.read_long(&op.lane, at.behind(first), end - first).await?;
        let of = BucketHeader { depth: leaf.depth, suffix: op.state.hash.suffix(leaf.depth) };
        let headers = (0..end - first).step_by(BUCKET_BYTES as usize).map(|offset| word_at(&bytes, offset));
        if let Some(found) = headers.into_iter().find(|&found| found != of.word())
            && Check::Suffix.on()
        {
            // The directory was read while it changed, or another subtable lies there now.
            let stop = op.doubt(at, found, &[], "the header of a subtable");
            if let Stop::Later = stop {
                self.reload(op).await?;
            }
            return Err(stop);
        }
        let slots = (from..end).step_by(8).filter(|&offset| is_slot(offset));
        let all: Vec<_> = slots.map(|offset| (offset, Slot(word_at(&bytes, offset - first)))).collect();
        match all.iter().find(|(_, slot)| !slot.is_sound() && Check::SoundSlots.on()) {
            Some((offset, slot)) => {
                Err(op.doubt(at.behind(*offset), slot.0, &[], "a slot that matches its check bits"))
            }
            None => Ok(Slots { of, all, end }),
        }
    }

    /// Reads blocks on up to [`MAX_SHARES`] servers: one round trip, or one more for each that is longer than a slot can tell.
    async fn read_blocks(&self, wanted: &[Wanted], op: &mut Op<'_>) -> Result<Vec<Vec<u8>>, Stop> {
        let mut servers = BTreeMap::<u16, Vec<usize>>::new();
        for (number, wanted) in wanted.iter().enumerate() {
            servers.entry(wanted.server()).or_default().push(number);
        }
        let mut shares = Vec::with_capacity(servers.len());
        for (&server, numbers) in &servers {
            let writer = self.writer(server, &op.lane).await?;
            let operations = move |rkey| {
                numbers.iter().map(move |&number| {
                    let pointer = wanted[number].pointer;
                    let from = Remote { address: pointer.place.address().raw(), rkey };
                    Operation::Read { from, len: block::first_bytes(pointer) }
                })
            };
            shares.push(Share { server, writer, operations });
        }
        let results = self.memory.scatter(&op.lane, shares).await?;
        let mut blocks = vec![Vec::new(); wanted.len()];
        for (numbers, outputs) in servers.values().zip(results) {
            for (&number, output) in numbers.iter().zip(outputs?) {
                blocks[number] = bytes_of(output)?.to_vec();
            }
        }
        for (wanted, block) in wanted.iter().zip(&mut blocks) {
            self.read_rest(wanted.pointer, block, op).await?;
        }
        Ok(blocks)
    }

    /// Takes the pair of a slot, if it is of the part. `of` is the header of the subtable.
    fn take_pair(
        &self,
        course: &mut Course,
        [of, part]: [BucketHeader; 2],
        Wanted { offset, slot, pointer }: Wanted,
        bytes: Vec<u8>,
        op: &mut Op<'_>,
    ) -> Result<(), Stop> {
        let keys = self.shape.keys;
        let found = block::find(&bytes, pointer, keys);
        if found.is_none() && !Check::FreedBlock.on() {
            return Ok(());
        }
        let is_its = |word: u64| {
            let hash = Hash::of(word);
            hash.fingerprint() == pointer.fingerprint
                && of.covers(hash)
                && may_be_at(&self.shape, hash, offset)
        };
        let Some(found) = found.filter(|found| is_its(found.word) || !Check::OthersKey.on()) else {
            // The block was freed since the slot was read: the slot has changed.
            return Err(op.doubt(pointer.place.address(), slot.0, &bytes, "the block of a key of this slot"));
        };
        if !part.covers(Hash::of(found.word)) {
            return Ok(());
        }
        let key = Key::of(keys, &found, &bytes);
        let known = if Check::WholeKey.on() { key.clone() } else { Key::Number(found.word) };
        if course.cursor.found.insert(known) || !Check::ExportedOnce.on() {
            course.bytes += bytes.len();
            course.found.push((key, Value::new(ReadBytes::Pieces(bytes), &found)));
        }
        Ok(())
    }
}

/// Slots of a subtable that were read.
struct Slots {
    /// Header of the subtable.
    of: BucketHeader,
    /// Each with its offset.
    all: Vec<(u64, Slot)>,
    /// Offset after the last one.
    end: u64,
}

/// How many of the first blocks one round trip reads: up to `most`, and at least one.
fn at_once(wanted: &[Wanted], most: usize) -> usize {
    let mut servers = BTreeMap::<u16, (usize, u32)>::new();
    let fits = |wanted: &&Wanted| {
        let is_new = !servers.contains_key(&wanted.server());
        if is_new && servers.len() == MAX_SHARES {
            return false;
        }
        let (count, bytes) = servers.entry(wanted.server()).or_default();
        *count += 1;
        *bytes += block::first_bytes(wanted.pointer);
        *count == 1 || *count <= MAX_BATCH && *bytes <= MOST_OF_BATCH
    };
    wanted.iter().take(most.max(1)).take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use fatbtree_remote_memory::GlobalAddress;

    use super::*;
    use crate::slot::Place;

    fn wanted(server: u16, units: u8) -> Wanted {
        let place = Place::of(GlobalAddress::new(server, 64)).expect("it is in reach");
        let pointer = BlockPointer { fingerprint: 0, units, version: 0, place };
        Wanted { offset: 72, slot: Slot::new(pointer), pointer }
    }

    #[test]
    fn a_round_trip_reads_what_queue_pairs_and_buffers_hold() {
        let of = |wanted: &[Wanted]| at_once(wanted, usize::MAX);
        assert_eq!(of(&[wanted(0, 1); 40]), MAX_BATCH);
        assert_eq!((at_once(&[wanted(0, 1); 40], 3), at_once(&[wanted(0, 1); 40], 0)), (3, 1));
        // Blocks of 16 KB, or more.
        assert_eq!((of(&[wanted(0, 255); 40]), of(&[wanted(0, 255)])), (4, 1));
        let two: Vec<_> = (0..40).map(|number| wanted(number % 2, 1)).collect();
        assert_eq!(of(&two), 2 * MAX_BATCH);
        let many: Vec<_> = (0..20).map(|number| wanted(number, 1)).collect();
        assert_eq!(of(&many), MAX_SHARES);
    }

    #[test]
    fn halves_follow_each_other_from_the_same_slot() {
        let mut cursor = Cursor::default();
        cursor.go_on_from(80);
        let of = |suffix| (0..).find(|&key| Hash::of(key).suffix(1) == suffix).expect("there are many");
        cursor.found.extend([0, 1].map(|suffix| Key::Number(of(suffix))));
        cursor.halve();
        let part = |suffix| Part { header: BucketHeader { depth: 1, suffix }, from: 80 };
        assert_eq!(cursor.parts, [part(1), part(0)]);
        cursor.finish();
        assert_eq!((&cursor.parts[..], cursor.found.len()), (&[part(1)][..], 1));
        cursor.finish();
        assert_eq!((cursor.parts.len(), cursor.found.len()), (0, 0));
    }
}

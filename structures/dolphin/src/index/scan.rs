//! Scans: leaves of one node are read with one doorbell, as far as the cache knows them, and so are records
//! of one server.

use arrayvec::ArrayVec;
use fatbtree_remote_memory::{GlobalAddress, KeyRange, ReadBytes, bytes_of};
use fatbtree_verbs::{MAX_BATCH, Operation, Remote, Verbs};

use super::descend::Reached;
use super::{Answer, Index, Op, Value};
use crate::error::Stop;
use crate::inner::Choice;
use crate::leaf::{LEAF_BYTES, Leaf, SLOTS, Use};
use crate::word::{Pointer, Word};

/// Items of a leaf that a scan counts on, to decide how many leaves it reads at once.
const EXPECTED: usize = SLOTS / 2;

/// Keys among which a scan looks for records that one doorbell reads.
const WINDOW: usize = 4 * MAX_BATCH;

/// Bytes of records that one doorbell reads, if it reads more than one: buffers of long ones are few.
const MOST_BYTES: u32 = 64 << 10;

/// State of a scan.
struct Course {
    range: KeyRange,
    /// From the highest key down.
    is_backward: bool,
    most: usize,
    /// The next key to look for; `None` after the last one.
    next: Option<u64>,
    found: Vec<Item>,
    /// All items before this one have their values.
    read: usize,
}

/// A key that was found.
struct Item {
    key: u64,
    word: Word,
    value: Option<Value>,
}

impl Course {
    fn new(range: KeyRange, is_backward: bool, most: usize) -> Self {
        let last = range.high.map_or(Some(u64::MAX), |high| high.checked_sub(1));
        let next = if is_backward { last } else { Some(range.low) };
        Self { range, is_backward, most, next, found: Vec::new(), read: 0 }
    }

    fn has_ended(&self) -> bool {
        self.found.len() >= self.most || self.next.is_none_or(|next| self.is_beyond(next))
    }

    /// Whether the scan does not come to a key.
    fn is_beyond(&self, key: u64) -> bool {
        if self.is_backward { key < self.range.low } else { self.range.is_below(key) }
    }

    /// The key to look for after one that was seen.
    fn after(&self, key: u64) -> Option<u64> {
        if self.is_backward { key.checked_sub(1) } else { key.checked_add(1) }
    }

    /// Takes the items of a leaf from the next key on.
    fn take(&mut self, leaf: Leaf<'_>, next: u64) {
        let range = match self.is_backward {
            true => KeyRange { high: next.checked_add(1), ..self.range },
            false => KeyRange { low: next, ..self.range },
        };
        let from = self.found.len();
        let items = leaf.items().filter(|(key, _)| range.contains(*key));
        self.found.extend(items.map(|(key, word)| Item { key, word, value: None }));
        self.found[from..].sort_unstable_by_key(|item| item.key);
        if self.is_backward {
            self.found[from..].reverse();
        }
        let is_cut = self.found.len() > self.most;
        self.found.truncate(self.most);
        let end = if self.is_backward { leaf.min() } else { leaf.max() };
        let last = self.found.last().filter(|_| is_cut).map_or(end, |item| item.key);
        self.next = self.after(last);
    }
}

impl<V: Verbs> Index<V> {
    /// Finds up to `most` keys of a range, in ascending order, with their values.
    ///
    /// Each key is found, or not, as a [`get`](Self::get) at some moment of the scan would. Where the
    /// client knows the leaves, a round trip brings those of one node, up to 16. Of values out of line, a
    /// round trip brings up to 16 on one server.
    ///
    /// # Errors
    /// In the answer: see [`IndexError`](crate::IndexError).
    pub async fn scan(&self, range: KeyRange, most: usize) -> Answer<Vec<(u64, Value)>> {
        self.run(Course::new(range, false, most)).await
    }

    /// The same in descending order. A round trip brings one leaf.
    ///
    /// # Errors
    /// In the answer: see [`IndexError`](crate::IndexError).
    pub async fn scan_backward(&self, range: KeyRange, most: usize) -> Answer<Vec<(u64, Value)>> {
        self.run(Course::new(range, true, most)).await
    }

    async fn run(&self, mut course: Course) -> Answer<Vec<(u64, Value)>> {
        self.answer(self.op(course.next.unwrap_or(0)), async |op| {
            // A key that is found and has no value any more makes room for another one.
            loop {
                if !course.has_ended() {
                    self.advance(&mut course, op).await?;
                } else if course.read < course.found.len() {
                    self.read_values(&mut course, op).await?;
                } else {
                    break;
                }
            }
            let found = std::mem::take(&mut course.found);
            Ok(found.into_iter().filter_map(|item| Some((item.key, item.value?))).collect())
        })
        .await
    }

    /// Reads the next values: those in the leaf, and the records of one server.
    async fn read_values(&self, course: &mut Course, op: &mut Op) -> Result<(), Stop> {
        let mut wanted: ArrayVec<(usize, Pointer), MAX_BATCH> = ArrayVec::new();
        let mut bytes = 0;
        let window = course.found.iter_mut().enumerate().skip(course.read).take(WINDOW);
        for (number, item) in window.filter(|(_, item)| item.value.is_none()) {
            let Some(pointer) = self.pointer(item.word) else {
                item.value = Some(Value::of_word(item.word));
                continue;
            };
            let is_there = wanted.first().is_none_or(|(_, first)| first.at.server() == pointer.at.server());
            let is_first = wanted.is_empty();
            if is_there && !wanted.is_full() && (is_first || bytes + pointer.bytes <= MOST_BYTES) {
                bytes += pointer.bytes;
                wanted.push((number, pointer));
            }
        }
        let places: ArrayVec<_, MAX_BATCH> =
            wanted.iter().map(|(_, pointer)| (pointer.at, pointer.bytes)).collect();
        let mut gone = Vec::new();
        for ((number, pointer), bytes) in wanted.into_iter().zip(self.read_at_once(&places, op).await?) {
            let item = &mut course.found[number];
            match Value::of_record(bytes, item.key, pointer) {
                Some(value) => item.value = Some(value.copied()),
                None => gone.push(number),
            }
        }
        // Their records were freed: the keys have other values by now, or none.
        for number in gone.into_iter().rev() {
            op.key = course.found[number].key;
            match self.look_up(op).await? {
                Some(value) => course.found[number].value = Some(value.copied()),
                None => drop(course.found.remove(number)),
            }
        }
        while course.found.get(course.read).is_some_and(|item| item.value.is_some()) {
            course.read += 1;
        }
        Ok(())
    }

    /// Reads the next leaves.
    async fn advance(&self, course: &mut Course, op: &mut Op) -> Result<(), Stop> {
        let Some(next) = course.next else { return Ok(()) };
        op.key = next;
        if !op.state.anew && self.advance_by_cache(course, op).await? {
            return Ok(());
        }
        match self.reach(op, Use::Read).await? {
            Reached::Leaf(held) => course.take(held.leaf(), next),
            Reached::Gap(gap) => {
                let (first, last) = gap.keys();
                course.next = course.after(if course.is_backward { first } else { last });
            }
        }
        op.state.anew = false;
        Ok(())
    }

    /// Reads the leaves from the next key on that the cache knows below one node. Says whether the first
    /// was the right one.
    async fn advance_by_cache(&self, course: &mut Course, op: &mut Op) -> Result<bool, Stop> {
        let known = self.cache.lookup(op.key);
        let Some((prefix, first)) = known.and_then(|known| match known.choice {
            Choice::Leaf(entry) => Some((known.prefix, entry)),
            _ => None,
        }) else {
            return Ok(false);
        };
        let behind = match course.is_backward {
            true => 0,
            false => ((course.most - course.found.len()) / EXPECTED).min(MAX_BATCH - 1),
        };
        let mut leaves = vec![first];
        if behind > 0 {
            self.cache.leaves_behind(prefix, op.key, behind, &mut leaves);
            leaves.retain(|leaf| leaf.at().server() == first.at().server());
            let range = course.range;
            let end = leaves.iter().skip(1).position(|leaf| range.is_below(prefix.first_of(leaf.byte())));
            leaves.truncate(end.map_or(leaves.len(), |end| end + 1));
        }
        let places: ArrayVec<_, MAX_BATCH> =
            leaves.iter().map(|leaf| (leaf.at(), LEAF_BYTES as u32)).collect();
        for (number, bytes) in self.read_at_once(&places, op).await?.iter().enumerate() {
            let Some(next) = course.next.filter(|_| !course.has_ended()) else { break };
            match Leaf::new(bytes) {
                Some(leaf)
                    if leaf.check(Use::Read).is_ok() && leaf.covers(next) && leaf.stray().is_none() =>
                {
                    course.take(leaf, next);
                }
                _ => return Ok(number > 0),
            }
        }
        Ok(true)
    }

    /// Reads places on one server with one doorbell, up to [`MAX_BATCH`]; or one that may be long.
    async fn read_at_once(
        &self,
        places: &[(GlobalAddress, u32)],
        op: &mut Op,
    ) -> Result<ArrayVec<ReadBytes, MAX_BATCH>, Stop> {
        let mut found = ArrayVec::new();
        match places {
            [] => {}
            &[(at, bytes)] => {
                found.push(self.memory.read_long(&op.lane, at, bytes.into()).await?);
            }
            [(first, _), ..] => {
                let server = first.server();
                let writer = self.writer(server, &op.lane).await?;
                let reads = |rkey| {
                    places.iter().map(move |&(at, len)| Operation::Read {
                        from: Remote { address: at.raw(), rkey },
                        len,
                    })
                };
                let path = op.lane.to(server);
                for output in self.memory.batch(path, &writer, reads).await? {
                    found.push(ReadBytes::Whole(bytes_of(output)?));
                }
            }
        }
        Ok(found)
    }
}

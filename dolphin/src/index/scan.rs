//! Scans: leaves of one node are read with one doorbell, as far as the cache knows them.

use fatbtree_remote::{ConnectionId, KeyRange, bytes_of};
use fatbtree_verbs::{Buffer, MAX_BATCH, Operation, Remote, Verbs};

use super::descend::Reached;
use super::{Answer, Index, Op, Value};
use crate::entry::Entry;
use crate::error::Stop;
use crate::inner::Choice;
use crate::leaf::{LEAF_BYTES, Leaf, SLOTS, Use};
use crate::word::Word;

/// Items of a leaf that a scan counts on, to decide how many leaves it reads at once.
const EXPECTED: usize = SLOTS / 2;

/// State of a scan.
struct Course {
    range: KeyRange,
    most: usize,
    /// The next key to look for; `None` behind the last one.
    next: Option<u64>,
    found: Vec<(u64, Word)>,
}

impl Course {
    fn has_ended(&self) -> bool {
        self.found.len() >= self.most || self.next.is_none_or(|next| self.range.is_below(next))
    }

    /// Takes the items of a leaf from the next key on.
    fn take(&mut self, leaf: Leaf<'_>, next: u64) {
        let range = KeyRange { low: next, ..self.range };
        let from = self.found.len();
        self.found.extend(leaf.items().filter(|(key, _)| range.contains(*key)));
        self.found[from..].sort_unstable_by_key(|(key, _)| *key);
        let is_cut = self.found.len() > self.most;
        self.found.truncate(self.most);
        let last = self.found.last().filter(|_| is_cut).map_or(leaf.max(), |(key, _)| *key);
        self.next = last.checked_add(1);
    }
}

impl<V: Verbs> Index<V> {
    /// Finds up to `most` keys of a range, in ascending order, with their values.
    ///
    /// Each key is found, or not, as a [`get`](Self::get) at some moment of the scan would. Where the
    /// client knows the leaves, a round trip brings those of one node, up to 16; values out of line
    /// take one more each.
    ///
    /// # Errors
    /// In the answer: see [`IndexError`](crate::IndexError).
    pub async fn scan(&self, range: KeyRange, most: usize) -> Answer<Vec<(u64, Value)>> {
        let mut course = Course { range, most, next: Some(range.low), found: Vec::new() };
        let mut values = Vec::new();
        self.answer(self.op(range.low), async |op| {
            // A key that is found and has no value any more makes room for another one.
            while !course.has_ended() || values.len() < course.found.len() {
                if !course.has_ended() {
                    self.advance(&mut course, op).await?;
                    continue;
                }
                let Some(&(key, word)) = course.found.get(values.len()) else { break };
                match self.value_of(key, word, op).await {
                    Ok(value) => values.push((key, value)),
                    // The record was freed: the key has another value by now, or none.
                    Err(Stop::Later) => {
                        op.key = key;
                        match self.look_up(op).await? {
                            Some(value) => values.push((key, value)),
                            None => drop(course.found.remove(values.len())),
                        }
                    }
                    Err(stop) => return Err(stop),
                }
            }
            Ok(std::mem::take(&mut values))
        })
        .await
    }

    /// Reads the next leaves.
    async fn advance(&self, course: &mut Course, op: &mut Op) -> Result<(), Stop> {
        let Some(next) = course.next else { return Ok(()) };
        op.key = next;
        if !op.anew && self.advance_by_cache(course, op).await? {
            return Ok(());
        }
        match self.reach(op, Use::Read).await? {
            Reached::Leaf(held) => course.take(held.leaf(), next),
            Reached::Gap(gap) => course.next = gap.until().checked_add(1),
        }
        op.anew = false;
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
        let behind = ((course.most - course.found.len()) / EXPECTED).min(MAX_BATCH - 1);
        let mut leaves = vec![first];
        if behind > 0 {
            self.cache.leaves_behind(prefix, op.key, behind, &mut leaves);
            leaves.retain(|leaf| leaf.at().server() == first.at().server());
            let range = course.range;
            let end = leaves.iter().skip(1).position(|leaf| range.is_below(prefix.first_of(leaf.byte())));
            leaves.truncate(end.map_or(leaves.len(), |end| end + 1));
        }
        for (number, bytes) in self.read_at_once(&leaves, op).await?.iter().enumerate() {
            let Some(next) = course.next.filter(|_| !course.has_ended()) else { break };
            match Leaf::new(bytes) {
                Some(leaf) if leaf.check(Use::Read).is_ok() && leaf.covers(next) => course.take(leaf, next),
                _ => return Ok(number > 0),
            }
        }
        Ok(true)
    }

    /// Reads leaves of one server with one doorbell.
    async fn read_at_once(&self, leaves: &[Entry], op: &mut Op) -> Result<Vec<Buffer>, Stop> {
        let [one] = leaves else {
            let Some(server) = leaves.first().map(|leaf| leaf.at().server()) else { return Ok(Vec::new()) };
            let writer = self.writer(server, op.lane).await?;
            let reads = |rkey| {
                leaves.iter().map(move |leaf| {
                    let from = Remote { address: leaf.at().raw(), rkey };
                    Operation::Read { from, len: LEAF_BYTES as u32 }
                })
            };
            op.trips += 1;
            let outputs = self.memory.batch(ConnectionId { server, lane: op.lane }, &writer, reads).await?;
            return Ok(outputs.into_iter().map(bytes_of).collect::<Result<_, _>>()?);
        };
        Ok(vec![self.read(one.at(), LEAF_BYTES as u32, op).await?])
    }
}

//! Which blocks of a region slots lead to: what a memory server must know before it takes a block for lost.
//!
//! The walk reads subtables while clients change them. Where a subtable has successors it takes those in its place. A block to which a slot leads
//! during the whole walk is met: a slot does not move within its subtable, and a subtable that is split keeps its slots as they were then. So it
//! does not matter whether slots or successors are read first. If the walk finds no successors, the slots that it reads lead to all such blocks,
//! also when a split ends in between. If it finds some, those do: each was whole before it was announced.

//!
//! Where the table lies over several servers, subtables here are found in all memory of pairs: slots on other servers may lead to them. This server
//! is without sessions then, so nothing changes. A pair that a split has not announced counts as well, because its slots are copies of others that
//! count: what only such a pair leads to stays lost.

use std::ops::Range;

use fatbtree_memserver::Marked;

use super::HashTable;
use crate::layout::{SUCCESSORS, slot_offsets, word_at};
use crate::slot::{Place, Slot, UNIT};

/// Blocks of a budget that reading a subtable takes.
const SUBTABLE: usize = 16;

/// Units of a region that blocks cover to which slots lead, and what is left to be walked over.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    units: Marked,
    /// The server of the region.
    of: u16,
    /// Subtables to be read, by offset.
    left: Vec<u64>,
    /// Memory of pairs to be read.
    parts: Vec<Range<u64>>,
    /// Subtables that were read.
    read: u64,
}

impl Marks {
    /// Takes all blocks for led to, where the walk cannot tell: the table is damaged.
    fn give_up(&mut self) {
        self.units.mark_all();
        self.left.clear();
        self.parts.clear();
    }

    /// The next subtable of those with `half` bytes.
    fn next(&mut self, half: u64) -> Option<u64> {
        while self.left.is_empty() {
            let part = self.parts.last_mut()?;
            let at = part.start;
            part.start += 2 * half;
            match part.start <= part.end {
                true => self.left.extend([at, at + half]),
                // Less than a pair is left of a chunk.
                false => drop(self.parts.pop()),
            }
        }
        self.left.pop()
    }
}

impl HashTable {
    /// Begins a walk for blocks in a region of `bytes` bytes. `pairs` tells where pairs of subtables may lie here.
    pub(super) fn begin_walk(&mut self, of: u16, bytes: u64, pairs: impl FnOnce() -> Vec<Range<u64>>) {
        let left = if self.is_first() { vec![self.first_subtable()] } else { Vec::new() };
        let parts = if self.is_only() { Vec::new() } else { pairs() };
        self.marks = Marks { units: Marked::none(bytes, UNIT), of, left, parts, read: 0 };
    }

    /// What the walk has met.
    pub(super) fn take_walk(&mut self) -> Marked {
        std::mem::take(&mut self.marks).units
    }

    /// Walks on. Returns whether there is more.
    pub(super) fn walk(&mut self, budget: usize) -> bool {
        let half = self.info.shape.subtable_bytes();
        for _ in 0..budget.div_ceil(SUBTABLE) {
            let Some(at) = self.marks.next(half) else { return false };
            let mut bytes = vec![0; half as usize];
            self.marks.read += 1;
            // Damage may lead out of the region, or in a circle: no more subtables fit there.
            if self.region.read(at, &mut bytes).is_err() || self.marks.read > self.region.len() / half + 1 {
                self.marks.give_up();
                return false;
            }
            let Ok(pair) = Place::of_link(self.word(at + SUCCESSORS)) else {
                self.marks.give_up();
                return false;
            };
            if let Some(pair) = pair {
                let pair = pair.address().offset();
                // Over several servers all pairs are met without being led to.
                if self.is_only() {
                    self.marks.left.extend([pair, pair + half]);
                }
                continue;
            }
            for pointer in slot_offsets(&self.info.shape).filter_map(|at| Slot(word_at(&bytes, at)).pointer())
            {
                let address = pointer.place.address();
                if address.server() != self.marks.of {
                    continue;
                }
                let at = address.offset();
                let end = at + u64::from(pointer.units) * UNIT;
                // A slot cannot tell more; the head can. On another server the begin of a block is enough.
                let end = match pointer.units {
                    u8::MAX if self.marks.of == self.server => self.block_end(at).unwrap_or(end).max(end),
                    _ => end,
                };
                self.marks.units.mark(at..end);
            }
        }
        !self.marks.left.is_empty() || !self.marks.parts.is_empty()
    }
}

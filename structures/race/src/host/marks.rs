//! Which blocks of a region slots lead to: what a memory server must know before it takes a block for lost.
//!
//! The walk reads subtables while clients change them. Where a subtable has successors it takes those in its place. A block to which a slot leads
//! during the whole walk is met: a slot does not move within its subtable, and a subtable that is split keeps its slots as they were then. So it
//! does not matter whether slots or successors are read first. If the walk finds no successors, the slots that it reads lead to all such blocks,
//! also when a split ends in between. If it finds some, those do: each was whole before it was announced.

use std::ops::Range;

use fatbtree_memserver::Marked;

use super::HashTable;
use crate::layout::{SUCCESSORS, slot_offsets, word_at};
use crate::slot::{Place, Slot, UNIT};

/// Blocks of a budget that reading a subtable takes.
const SUBTABLE: usize = 16;

/// Units of the region that blocks cover to which slots lead, and what is left to be walked over.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    units: Marked,
    /// Subtables to be read, by offset.
    left: Vec<u64>,
    /// Subtables that were read.
    read: u64,
}

impl Marks {
    /// Takes all blocks for led to, where the walk cannot tell: the table is damaged.
    fn give_up(&mut self) {
        self.units.mark_all();
        self.left.clear();
    }

    /// Whether a unit of a block is marked.
    pub(super) fn is_marked(&self, block: Range<u64>) -> bool {
        self.units.is_marked(block)
    }
}

impl HashTable {
    /// Begins a walk at the first subtable.
    pub(super) fn begin_walk(&mut self) {
        self.marks.units = Marked::none(self.region.len(), UNIT);
        (self.marks.left, self.marks.read) = (vec![self.first_subtable()], 0);
    }

    /// Walks on. Returns whether there is more.
    pub(super) fn walk(&mut self, budget: usize) -> bool {
        for _ in 0..budget.div_ceil(SUBTABLE) {
            let Some(at) = self.marks.left.pop() else { return false };
            let half = self.info.shape.subtable_bytes();
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
                self.marks.left.extend([pair, pair + half]);
                continue;
            }
            for pointer in slot_offsets(&self.info.shape).filter_map(|at| Slot(word_at(&bytes, at)).pointer())
            {
                let at = pointer.place.address().offset();
                let end = at + u64::from(pointer.units) * UNIT;
                // A slot cannot tell more; the head can.
                let end = match pointer.units {
                    u8::MAX => self.block_end(at).unwrap_or(end).max(end),
                    _ => end,
                };
                self.marks.units.mark(at..end);
            }
        }
        !self.marks.left.is_empty()
    }
}

//! Which records leaves lead to, as far as that can be told without clients: what a memory server must know before it takes a record for lost.
//!
//! Only words of leaves lead to records. A record of one server's index lies beside its leaves, so all of them are at hand. The walk asks
//! neither whether a leaf is in use nor where in it a word lies: whatever lies in memory of leaves and looks like a pointer counts as one. So a
//! leaf that is being changed, or was left half-changed by a client that died, needs no thought; and what only a retired leaf leads to
//! stays lost until that is written anew.
//!
//! Clients that write meanwhile could move a word past the walk, so it is right only without sessions.

use std::ops::Range;

use fatbtree_memserver::Marked;

use super::HybridIndex;
use crate::entry::UNIT;
use crate::layout::LEAVES;
use crate::leaf::LEAF_BYTES;
use crate::word::Word;

/// Units of the region that records cover to which leaves lead, and what is left to be walked over.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    units: Marked,
    /// Parts of chunks of leaves.
    left: Vec<Range<u64>>,
}

impl Marks {
    /// Whether a unit of a record is marked.
    pub(super) fn is_marked(&self, record: Range<u64>) -> bool {
        self.units.is_marked(record)
    }
}

impl HybridIndex {
    /// Begins a walk over all memory of leaves.
    pub(super) fn begin_walk(&mut self) {
        let Some(layout) = &self.layout else { return };
        self.marks =
            Marks { units: Marked::none(self.region.len(), UNIT), left: layout.chunks(LEAVES).collect() };
    }

    /// Walks over so many leaves. Returns whether there is more.
    pub(super) fn walk(&mut self, leaves: usize) -> bool {
        for _ in 0..leaves {
            let Some(part) = self.marks.left.last_mut() else { return false };
            let at = part.start;
            part.start += LEAF_BYTES as u64;
            if part.start >= part.end {
                self.marks.left.pop();
            }
            let Some(bytes) = self.bytes::<LEAF_BYTES>(at) else {
                self.marks.units.mark_all();
                continue;
            };
            for word in bytes.as_chunks::<8>().0 {
                let pointer = Word(u64::from_le_bytes(*word)).pointer();
                if let Some(pointer) = pointer.filter(|pointer| pointer.at.server() == self.server) {
                    let record = pointer.at.offset();
                    self.marks.units.mark(record..record + u64::from(pointer.bytes));
                }
            }
        }
        !self.marks.left.is_empty()
    }
}

//! Which records leaves lead to, as far as that can be told without clients: what a memory server must know before it takes a record for lost.
//!
//! Only words of leaves lead to records. The walk goes over all memory of leaves on this server. It asks neither whether a leaf is in use nor
//! where in it a word lies: whatever lies there and looks like a pointer counts as one. So a leaf that is being changed, or was left half-changed
//! by a client that died, needs no thought; and what only a retired leaf leads to stays lost until that is written anew.
//!
//! A burst moves leaves to other servers, and leaves their records behind. So each server walks over its own leaves, for its own records and for
//! those of the others.
//!
//! Clients that write meanwhile could move a word past the walk, so it is right only without sessions. A client writes a pointer that it has read
//! from another leaf under a lock, into memory that it has taken before: in sessions that it had before the record's session could end.

use std::ops::Range;

use fatbtree_memserver::Marked;

use super::HybridIndex;
use crate::entry::UNIT;
use crate::leaf::LEAF_BYTES;
use crate::word::Word;

/// Units of a region that records cover to which leaves lead, and what is left to be walked over.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    units: Marked,
    /// The server of the region.
    of: u16,
    /// Parts of chunks of leaves.
    left: Vec<Range<u64>>,
}

impl HybridIndex {
    /// Begins a walk over all memory of leaves, for records in a region of `bytes` bytes.
    pub(super) fn begin_walk(&mut self, of: u16, bytes: u64, left: Vec<Range<u64>>) {
        self.marks = Marks { units: Marked::none(bytes, UNIT), of, left };
    }

    /// What the walk has met.
    pub(super) fn take_walk(&mut self) -> Marked {
        std::mem::take(&mut self.marks).units
    }

    /// Walks over so many leaves. Returns whether there is more.
    pub(super) fn walk(&mut self, leaves: usize) -> bool {
        for _ in 0..leaves {
            let Some(part) = self.marks.left.last_mut() else { return false };
            let at = part.start;
            part.start += LEAF_BYTES as u64;
            if part.start > part.end {
                // Less than a leaf is left of a chunk.
                self.marks.left.pop();
                continue;
            }
            let Some(bytes) = self.bytes::<LEAF_BYTES>(at) else {
                self.marks.units.mark_all();
                continue;
            };
            for word in bytes.as_chunks::<8>().0 {
                let pointer = Word(u64::from_le_bytes(*word)).pointer();
                if let Some(pointer) = pointer.filter(|pointer| pointer.at.server() == self.marks.of) {
                    let record = pointer.at.offset();
                    self.marks.units.mark(record..record + u64::from(pointer.bytes));
                }
            }
        }
        !self.marks.left.is_empty()
    }
}

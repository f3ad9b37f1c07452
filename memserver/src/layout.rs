//! Places where blocks may lie in a region, by size class.

use std::ops::Range;
use std::sync::Arc;

use fatbtree_remote_memory::SizeClass;
use fatbtree_remote_memory::record::RECORD_ALIGN;
use fatbtree_remote_memory::session_keeper::Places;

use crate::chunk_classes::ChunkClasses;

/// Blocks of one size, or of several sizes that share chunks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Class {
    /// Name for people, in the plural: `leaves`.
    pub name: &'static str,
    /// Bytes of a block. They lie at multiples of this from where a chunk begins, or the loaded ones. 0: blocks of several sizes, at any
    /// multiple of 8.
    pub bytes: u32,
    /// Offsets of the blocks that were loaded, if any.
    pub loaded: Range<u64>,
}

/// Places where blocks may lie: among those that were loaded, or in a chunk of their class. A chunk never
/// changes its class, so what lies where a block may lie is one, or a freed one.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(crate) classes: Arc<[Class]>,
    pub(crate) chunks_from: u64,
    pub(crate) chunk_bytes: u64,
    /// `None`: as if no chunk had been given out.
    pub(crate) given_out: Option<ChunkClasses>,
}

impl Layout {
    /// Whether a block of this class, `bytes` long, may begin at `offset`.
    #[must_use]
    pub fn may_lie(&self, class: SizeClass, offset: u64, bytes: u64) -> bool {
        let Some(Class { bytes: size, loaded, .. }) = self.classes.get(usize::from(class.0)) else {
            return false;
        };
        let (within, len) = if loaded.contains(&offset) {
            (offset - loaded.start, loaded.end - loaded.start)
        } else {
            let Some(from_chunks) = offset.checked_sub(self.chunks_from) else { return false };
            let chunk = from_chunks / self.chunk_bytes.max(1);
            if self.given_out.as_ref().and_then(|classes| classes.get(chunk)) != Some(class) {
                return false;
            }
            (from_chunks % self.chunk_bytes, self.chunk_bytes)
        };
        let is_step = match size {
            0 => offset.is_multiple_of(RECORD_ALIGN),
            &size => within.is_multiple_of(size.into()),
        };
        is_step && within.checked_add(bytes).is_some_and(|end| end <= len)
    }

    /// Places of the chunks that were given out for a class.
    pub fn chunks(&self, class: SizeClass) -> impl Iterator<Item = Range<u64>> + '_ {
        let given_out = self.given_out.as_ref();
        // Chunks are given out in order.
        let classes = (0..).map_while(move |chunk| Some((chunk, given_out?.get(chunk)?)));
        classes.filter(move |(_, of)| *of == class).map(|(chunk, _)| {
            let from = self.chunks_from + chunk * self.chunk_bytes;
            from..from + self.chunk_bytes
        })
    }
}

impl Places for Layout {
    fn may_begin(&self, class: SizeClass, offset: u64) -> bool {
        let bytes = self.classes.get(usize::from(class.0)).map_or(0, |class| class.bytes);
        self.may_lie(class, offset, bytes.into())
    }
}

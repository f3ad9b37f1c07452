//! Where nodes and records may lie in a region.

use std::ops::Range;

use fatbtree_index::record::RECORD_ALIGN;
use fatbtree_index::{ChunkKind, SUPERBLOCK_BYTES, TreeConfig};

use crate::blink::load::LoadCounts;
use crate::chunk::node_bytes;
use crate::kinds::ChunkKinds;

/// Where a tree lies that was loaded.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) leaves: Range<u64>,
    pub(crate) internal: Range<u64>,
    pub(crate) records: Range<u64>,
}

impl Loaded {
    pub(crate) fn new(config: &TreeConfig, counts: &LoadCounts) -> Self {
        let behind = |from: u64, count: u64, bytes: u64| from.saturating_add(count.saturating_mul(bytes));
        let leaves_from = u64::from(SUPERBLOCK_BYTES);
        let internal_from = behind(leaves_from, counts.leaf_nodes, config.leaf_bytes().into());
        let records_from = behind(internal_from, counts.internal_nodes, config.internal_bytes().into());
        Self {
            leaves: leaves_from..internal_from,
            internal: internal_from..records_from,
            records: records_from..records_from.saturating_add(counts.record_bytes),
        }
    }

    pub(crate) fn of(&self, kind: ChunkKind) -> &Range<u64> {
        match kind {
            ChunkKind::Leaves => &self.leaves,
            ChunkKind::InternalNodes => &self.internal,
            ChunkKind::Records => &self.records,
        }
    }
}

/// A loaded tree, and the chunks behind it. Memory that was a node is never used for a record, so what lies where a node may lie is a node,
/// or a freed one.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) config: TreeConfig,
    pub(crate) loaded: Loaded,
    pub(crate) chunks_from: u64,
    pub(crate) chunk_bytes: u64,
    /// None: as if no chunk had been given out.
    pub(crate) kinds: Option<ChunkKinds>,
}

impl Layout {
    /// Whether something of this kind may begin at `offset`, and reach over so many bytes.
    pub(crate) fn may_lie(&self, kind: ChunkKind, offset: u64, bytes: u64) -> bool {
        let step = match kind {
            ChunkKind::Records => RECORD_ALIGN,
            kind => node_bytes(&self.config, kind),
        };
        let loaded = self.loaded.of(kind);
        let (within, len) = if loaded.contains(&offset) {
            (offset - loaded.start, loaded.end - loaded.start)
        } else {
            let Some(from_chunks) = offset.checked_sub(self.chunks_from) else { return false };
            let chunk = from_chunks / self.chunk_bytes.max(1);
            if self.kinds.as_ref().and_then(|kinds| kinds.get(chunk)) != Some(kind) {
                return false;
            }
            (from_chunks % self.chunk_bytes, self.chunk_bytes)
        };
        let is_step = match kind {
            ChunkKind::Records => offset.is_multiple_of(step),
            _ => within.is_multiple_of(step),
        };
        is_step && within.checked_add(bytes).is_some_and(|end| end <= len)
    }
}

//! Where nodes may lie, for whoever is given an address by somebody that nobody vouches for.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use fatbtree_index::{ChunkKind, GlobalAddress, Start, TreeConfig};
use fatbtree_verbs::Memory;

use crate::chunk::{ChunkTable, node_at, node_bytes};
use crate::info::ServerInfo;
use crate::places::PlaceLists;

/// Where nodes may lie in a server's region: among those that were loaded, or in a chunk for nodes, at a multiple of their size. Memory
/// that was a node is never used for a record, so what lies there is a node, or a freed one, and nobody's value that looks like one.
#[derive(Clone)]
pub struct NodeMap {
    region: Arc<Memory>,
    server: u16,
    config: TreeConfig,
    /// Leaves and internal nodes that were loaded.
    loaded: [Range<u64>; 2],
    chunks_from: u64,
    chunk_bytes: u64,
    /// The kind of each chunk, more one; 0 where it was not given out.
    kinds: Option<Arc<Memory>>,
}

impl fmt::Debug for NodeMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeMap")
            .field("server", &self.server)
            .field("loaded", &self.loaded)
            .finish_non_exhaustive()
    }
}

impl NodeMap {
    pub(crate) fn new(
        region: &Arc<Memory>,
        info: &ServerInfo,
        chunks: &ChunkTable,
        places: &PlaceLists,
    ) -> Self {
        let (chunks_from, chunk_bytes, kinds) = chunks.layout();
        Self {
            region: Arc::clone(region),
            server: info.partition.id,
            config: info.config,
            loaded: places.loaded_nodes(),
            chunks_from,
            chunk_bytes,
            kinds: kinds.cloned(),
        }
    }

    /// An operation on `key` that begins at the node of this address, if one lies there that is for the key as far as it says itself. It
    /// may have changed by the time that it is read: the operation notices.
    #[must_use]
    pub fn start(&self, key: u64, address: u64) -> Option<Start> {
        let address = GlobalAddress(address);
        let offset = address.offset();
        if GlobalAddress::new(self.server, offset) != address {
            return None;
        }
        let kind = self.kind_at(offset)?;
        let header = node_at(&self.region, offset)?;
        let is_leaf = header.level == 0;
        let fits = is_leaf == (kind == ChunkKind::Leaves)
            && header.address == address
            && !header.is_free()
            && header.low <= key
            && !header.range().is_below(key);
        fits.then_some(Start::Node { address, level: header.level })
    }

    /// Of which kind a node is that begins there, if one may.
    fn kind_at(&self, offset: u64) -> Option<ChunkKind> {
        let kinds = [ChunkKind::Leaves, ChunkKind::InternalNodes];
        for (kind, loaded) in kinds.into_iter().zip(&self.loaded) {
            if loaded.contains(&offset) {
                return (offset - loaded.start)
                    .is_multiple_of(node_bytes(&self.config, kind))
                    .then_some(kind);
            }
        }
        let from_chunks = offset.checked_sub(self.chunks_from)?;
        let mut found = [0];
        self.kinds.as_ref()?.read(from_chunks / self.chunk_bytes, &mut found).ok()?;
        let kind = kinds.into_iter().find(|&kind| kind as u8 + 1 == found[0])?;
        let (within, size) = (from_chunks % self.chunk_bytes, node_bytes(&self.config, kind));
        (within.is_multiple_of(size) && within + size <= self.chunk_bytes).then_some(kind)
    }
}

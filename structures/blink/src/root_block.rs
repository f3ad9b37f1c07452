//! The place where the root of a tree is announced: a region's superblock or, of a layer below the first one, the layer's head.

use fatbtree_remote_memory::GlobalAddress;
use fatbtree_verbs::Verbs;

use crate::descent::Descent;
use crate::layers::{Layer, LayerHead};
use crate::node::NodeFault;
use crate::superblock::{SUPERBLOCK_BYTES, Superblock, SuperblockError};

/// What announces a root, as it was read.
pub(crate) enum RootBlock {
    Region(Superblock),
    Layer(LayerHead),
}

impl RootBlock {
    /// Address of the root, and its level.
    pub(crate) const fn root(&self) -> (GlobalAddress, u8) {
        match self {
            Self::Region(found) => (found.partition.root, found.partition.root_level),
            Self::Layer(head) => (head.root, head.root_level),
        }
    }

    /// What is written to announce another root.
    pub(crate) fn with_root(&self, root: GlobalAddress, level: u8) -> Vec<u8> {
        match self {
            Self::Region(found) => found.with_root(root, level).to_bytes().to_vec(),
            Self::Layer(head) => head.with_root(root, level).line().to_vec(),
        }
    }
}

impl<V: Verbs> Descent<'_, V> {
    /// What is read and locked to learn of the root of this tree or layer, or to announce another one: the superblock, or a layer's first leaf
    /// and head.
    pub(crate) fn root_place(&self) -> (GlobalAddress, u32) {
        match self.layer() {
            None => (GlobalAddress::new(self.partition().root.server(), 0), SUPERBLOCK_BYTES),
            Some(layer) => layer.block(),
        }
    }

    /// Where another root is written.
    pub(crate) fn announced_at(&self) -> GlobalAddress {
        self.layer().map_or(self.root_place().0, Layer::head_place)
    }

    /// What announces the root in `bytes`, if it is that of this tree or layer.
    pub(crate) fn check_root_block(&self, bytes: &[u8]) -> Result<RootBlock, NodeFault> {
        if let Some(layer) = self.layer() {
            return layer.check_head(bytes).map(RootBlock::Layer);
        }
        match Superblock::parse(bytes) {
            Ok(found) => found.check(self.partition(), self.tree()).map(|()| RootBlock::Region(found)),
            Err(SuperblockError::Node(fault)) => Err(fault),
            Err(SuperblockError::Config(_)) => Err(NodeFault::Superblock { found: 0 }),
        }
    }
}

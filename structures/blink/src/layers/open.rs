//! From an entry into the layer that it leads to.

use fatbtree_remote_memory::GlobalAddress;
use fatbtree_verbs::{Buffer, Verbs};

use super::{Beginning, Layer, LayerEntry, LayerState, Spelled};
use crate::descent::{Descent, Reason};
use crate::node::{LINE, NodeHeader, revive};
use crate::operation::Start;

/// A layer as it was found.
pub(super) struct Found {
    pub(super) layer: Layer,
    /// The first leaf, and the head behind it.
    pub(super) block: Buffer,
    pub(super) state: LayerState,
}

impl<V: Verbs> Descent<'_, V> {
    /// What the keys of this layer begin with.
    pub(super) fn beginning(&self) -> Beginning<'_> {
        Beginning::of(&self.pool().config().tree, self.layer())
    }

    /// Whether a key is the only one that can end in the entry of this descent's key.
    pub(super) fn ends_here(&self, key: &Spelled<'_>) -> bool {
        self.beginning().ends_in(key, self.key())
    }

    /// Reads the layer to which the entry of this descent's key leads.
    pub(super) async fn open(&mut self, leaf: GlobalAddress) -> Result<Found, Reason> {
        let entry = LayerEntry::new(&self.pool().config().tree, self.layer(), self.key(), leaf);
        let (mut torn, (leaf, len)) = (0, entry.block());
        loop {
            let block = self.pool().read(self.lane(), leaf, len).await?;
            match entry.read(&block[..len as usize]) {
                Ok((layer, state)) => return Ok(Found { layer, block, state }),
                Err(fault) => self.pause_if_torn(fault, &mut torn).await?,
            }
        }
    }

    /// Goes on in a layer that was found. Says where a walk begins there; the first leaf is at hand if it does.
    pub(super) fn go_down(&mut self, found: Found, key: &Spelled<'_>) -> (Start, Option<Buffer>) {
        let Found { layer, mut block, .. } = found;
        let (word, leaf) = (layer.beginning().word(key), layer.leaf);
        let line = block.as_mut_slice().first_chunk_mut::<LINE>().expect("a block has many lines");
        if NodeHeader::parse(line).is_free() {
            // An entry leads here: it counts.
            revive(line);
        }
        let is_its = layer.root_level == 0 || NodeHeader::parse(line).range().contains(word);
        self.trips_mut().layers += 1;
        self.enter(layer, word);
        match is_its {
            true => (Start::Node { address: leaf, level: 0 }, Some(block)),
            false => (Start::Root, None),
        }
    }
}

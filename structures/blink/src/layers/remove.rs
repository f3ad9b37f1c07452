//! A layer without keys goes; and what another client has left of one that came or went is completed.

use fatbtree_remote_memory::{Block, GlobalAddress, LockGuard, Part, Taken, Writer, restructure_all};
use fatbtree_verbs::{Buffer, Verbs};

use super::change::Above;
use super::head::LayerState;
use super::open::Found;
use super::{Check, Layer};
use crate::descent::{Descent, Reason};
use crate::node::{EntryValue, LINE, LeafEditor, Node, NodeHeader, freed, revive};
use crate::operation::Start;
use crate::size_class::LAYERS;
use crate::write::leaf::{Locked, present};

/// The bytes of a leaf that change when an entry goes.
struct Emptied {
    leaf: Buffer,
    changed: std::ops::Range<usize>,
    at: GlobalAddress,
}

impl Emptied {
    fn part(&self) -> Part<'_> {
        let bytes = &self.leaf[self.changed.clone()];
        Part { at: self.at.behind(self.changed.start as u64), bytes }
    }
}

impl<'p, V: Verbs> Descent<'p, V> {
    /// Takes away the layer where the descent is if it has no keys, and so on upwards. What goes wrong here leaves the tree right, only
    /// larger.
    pub(super) async fn remove_layers(&mut self, mut above: Above) {
        while let (Some(layer), Some((upper, word))) = (self.layer().cloned(), above.pop()) {
            self.go_back(upper, word);
            if !matches!(self.remove_layer(&layer).await, Ok(true)) {
                return;
            }
            self.merge_up().await;
        }
    }

    /// Takes away the layer below the entry of this descent's key. Says whether it is gone.
    async fn remove_layer(&mut self, layer: &Layer) -> Result<bool, Reason> {
        let locked = self.lock_entry_of(layer.leaf).await?;
        let Some((locked, slot)) = locked else { return Ok(false) };
        let ((block, len), size) = (layer.block(), layer.tree.leaf_bytes() as usize);
        if locked.address.server() != block.server() {
            return self.leave_layer(locked).await;
        }
        let held = LockGuard::try_lock_and_read(self.pool(), self.lane(), block, len).await;
        let (leaf_held, bytes) = match held {
            Ok(Some(held)) => held,
            Ok(None) => return self.leave_layer(locked).await,
            Err(trouble) => return self.without(locked.guard, trouble.into()).await,
        };
        let head = layer.check_head(&bytes).ok();
        let gone = head.filter(|head| is_empty(layer, &bytes[..size], (head.root, head.root_level)));
        let Some(gone) = gone.map(|head| head.with_state(LayerState::Gone).line()) else {
            restructure_all([locked.guard, leaf_held], &[], self.lane()).await?;
            return Ok(false);
        };
        let free = freed(&layer.tree, &bytes[..size]);
        let (guard, emptied) = self.emptied(locked, slot);
        let parts =
            [Part { at: layer.head_place(), bytes: &gone }, Part { at: block, bytes: &free }, emptied.part()];
        let parts = if Check::Dead.on() { &parts[..] } else { &parts[2..] };
        let writer = leaf_held.writer();
        restructure_all([guard, leaf_held], parts, self.lane()).await?;
        self.put_back_layer(layer, &writer);
        Ok(true)
    }

    /// Completes what another client has left of the layer below the entry of this descent's key.
    pub(super) async fn settle_layer(&mut self, found: Found) -> Result<(), Reason> {
        let layer = found.layer;
        let locked = self.lock_entry_of(layer.leaf).await?;
        let Some((locked, slot)) = locked else { return Ok(()) };
        let found = match self.open(layer.leaf).await {
            Ok(found) => found,
            Err(reason) => return self.without(locked.guard, reason).await,
        };
        match found.state {
            LayerState::Here => self.leave_layer(locked).await.map(drop),
            LayerState::Coming => {
                let mut line = *found.block.first_chunk::<LINE>().expect("a block has many lines");
                revive(&mut line);
                let part = Part { at: layer.leaf, bytes: &line };
                Ok(locked.guard.restructure(&[part], self.lane()).await?)
            }
            LayerState::Gone => {
                let (guard, emptied) = self.emptied(locked, slot);
                let writer = guard.writer();
                guard.restructure(&[emptied.part()], self.lane()).await?;
                self.put_back_layer(&layer, &writer);
                Ok(())
            }
        }
    }

    /// Locks the leaf with the entry of this descent's key, if that leads to this layer.
    async fn lock_entry_of(
        &mut self,
        layer: GlobalAddress,
    ) -> Result<Option<(Locked<'p, V>, usize)>, Reason> {
        self.begin(Start::Root).await?;
        let leaf = self.locate(Start::Root, 0).await?;
        let locked = self.lock_node(leaf, 0).await?;
        match present(&locked.bytes, self.tree().leaf_shape(), self.key()) {
            Ok((Some(slot), Some(EntryValue::Layer(found)))) if found == layer => Ok(Some((locked, slot))),
            Ok(_) => self.leave_layer(locked).await.map(|_| None),
            Err(fault) => self.without(locked.guard, Reason::Fault(fault)).await,
        }
    }

    async fn leave_layer(&mut self, locked: Locked<'p, V>) -> Result<bool, Reason> {
        locked.guard.release(self.lane()).await?;
        Ok(false)
    }

    /// Takes the entry in `slot` out of a locked leaf; it is to be written.
    fn emptied(&self, locked: Locked<'p, V>, slot: usize) -> (LockGuard<'p, V>, Emptied) {
        let Locked { guard, address: at, bytes: mut leaf } = locked;
        let shape = self.tree().leaf_shape();
        let mut editor = LeafEditor::new(&mut leaf.as_mut_slice()[..shape.bytes() as usize], shape);
        let changed = self.written_back(editor.remove(slot));
        (guard, Emptied { leaf, changed, at })
    }

    /// Lets a layer's memory be used again, to which no entry leads any more since the session of `writer`.
    fn put_back_layer(&self, layer: &Layer, writer: &Writer) {
        let (address, bytes) = layer.block();
        let block = Block { address, version: None };
        self.pool().put_back(&Taken { writer: *writer, class: LAYERS, bytes, block });
        self.pool().count(|stats| stats.layers_removed += 1);
    }
}

/// Whether a layer has no keys: its first leaf has none, and no other node beside it.
fn is_empty(layer: &Layer, leaf: &[u8], root: (GlobalAddress, u8)) -> bool {
    if !Check::Empty.on() {
        return true;
    }
    let Ok(Node::Leaf(node)) = Node::read(&layer.tree, leaf) else { return false };
    let header: &NodeHeader = node.header();
    let is_alone = header.range().high.is_none() && header.partner.is_null() && root == (layer.leaf, 0);
    is_alone && header.address == layer.leaf && node.entries().next().is_none()
}

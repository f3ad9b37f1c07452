//! A layer comes, with the one key that its entry was for.

use fatbtree_remote_memory::{GlobalAddress, KeyRange, Part, Want};
use fatbtree_verbs::Verbs;

use super::head::{LayerHead, LayerState, MAX_PREFIX};
use super::{Beginning, Check, LayerId, Spelled, block_bytes};
use crate::descent::{Descent, Reason};
use crate::node::{
    EntryValue, LINE, LeafBuilder, LeafEditor, NewValue, NodeSpec, claim, mark_free, next_version, revive,
};
use crate::size_class::LAYERS;
use crate::write::leaf::{Locked, present};

impl<'p, V: Verbs> Descent<'p, V> {
    /// Lets the entry in `slot` lead to a layer with the key that is there, `other`, in which this key will have a place, too. The other key
    /// stays what it was: where this is not carried out to its end, the tree says what it said.
    pub(super) async fn create_layer(
        &mut self,
        locked: Locked<'p, V>,
        slot: usize,
        other: &[u8],
        key: &Spelled<'_>,
    ) -> Result<(), Reason> {
        let Locked { guard, address, mut bytes } = locked;
        let (pool, word, server) = (self.pool(), self.key(), address.server());
        let (tree, other) = (pool.config().tree, Spelled::of(other));
        let at = self.beginning().below(word);
        // Keys in the entries at both ends do not begin with the prefix of this layer. If each layer there had a prefix of its own, there could
        // be as many layers as bytes.
        let common = if self.beginning().is_end(word) { 0 } else { other.common(key, at, MAX_PREFIX) };
        let prefix: Vec<u8> = (at..at + common).map(|at| other.byte(at)).collect();
        let want = Want { server, class: LAYERS, bytes: block_bytes(&tree), is_fresh: false };
        let writer = match pool.writer(server) {
            Ok(writer) => writer,
            Err(trouble) => return self.without(guard, trouble.into()).await,
        };
        let Some(mut place) = pool.take_at_hand(&writer, want) else {
            return self.without(guard, Reason::Memory(want)).await;
        };
        let leaf = place.address();
        let head = LayerHead {
            state: LayerState::Coming,
            root: leaf,
            root_level: 0,
            leaf,
            base: LayerId::below(self.tree().layer(), word),
            first: self.record_key(),
            prefix,
            version: 1,
        };
        let layer_tree = tree.of_layer(head.id());
        let (leaf_bytes, shape) = (tree.leaf_bytes() as usize, *self.tree().leaf_shape());
        let version = match pool.read(self.lane(), leaf, tree.leaf_bytes()).await {
            Ok(found) => next_version(&found),
            Err(trouble) => return self.without(guard, trouble.into()).await,
        };
        let spec =
            NodeSpec { address: leaf, level: 0, range: KeyRange::ALL, sibling: GlobalAddress::NULL, version };
        let mut block = vec![0; leaf_bytes];
        let mut builder = LeafBuilder::new(&mut block, layer_tree.leaf_shape(), spec);
        let entry = match present(&bytes, &shape, word) {
            Ok((_, Some(EntryValue::Inline(value)))) => NewValue::Inline(value),
            Ok((_, Some(EntryValue::Record(record)))) => NewValue::Record(record),
            _ => unreachable!("this entry was read under the same lock"),
        };
        builder.push_value(Beginning::Plain { at, prefix: &head.prefix }.word(&other), entry);
        builder.finish();
        claim(&layer_tree, &mut block);
        let line = block.first_chunk_mut::<LINE>().expect("a leaf has many lines");
        if Check::Unborn.on() {
            mark_free(line);
        }
        let mut born = *line;
        revive(&mut born);
        block.extend_from_slice(&head.to_bytes());
        let mut editor = LeafEditor::new(&mut bytes.as_mut_slice()[..shape.bytes() as usize], &shape);
        let changed = self.written_back(editor.put(slot, word, NewValue::Layer(leaf)));
        let entry = Part { at: address.behind(changed.start as u64), bytes: &bytes[changed] };
        let parts = [Part { at: leaf, bytes: &block }, entry, Part { at: leaf, bytes: &born }];
        place.set_held(true);
        let created = guard.restructure(&parts, self.lane()).await.map_err(Reason::from);
        if let Err(reason) = &created {
            place.set_held(reason.may_be_done());
        }
        pool.count(|stats| stats.layers_created += u64::from(created.is_ok()));
        created
    }
}

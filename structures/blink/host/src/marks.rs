//! Which records of a region leaves lead to: what a memory server must know before it takes a record for lost.
//!
//! The walk goes from leaf to leaf by their keys, while clients change them. Each step reads the leaf that is responsible for a key at that
//! moment, and goes on with the first key that this leaf does not have. So an entry that leads to a record during the whole walk is met:
//! when the walk reads the leaf of its key, it is there.
//!
//! Two things could make a step wrong, and are looked for. A leaf with a partner has its upper keys or not, as the partner says. A copy may
//! be of two moments. So the leaf is read once more after its partner: if it is the same, it was like that when the partner was read.
//!
//! Entries may lead to other servers, and leaves on other servers here, where a client allocates
//! [round robin](fatbtree_blink::Allocation::RoundRobin). Where the walk meets such a pointer nothing can be told. A record of a key of another
//! partition counts as led to.
//!
//! Of nodes nothing is walked over: one is free if its own header says so. A freed node that a leaf names as its partner still is no danger,
//! because in its next life it has other keys: they do not begin within that leaf's.

use std::ops::Range;

use fatbtree_blink::layers::{Layer, LayerEntry, LayerState, first_of};
use fatbtree_blink::node::{EntryValue, LINE, LeafNode, Node, revive};
use fatbtree_blink::size_class::{LAYER_LEAVES, LAYERS, LEAVES};
use fatbtree_blink::{GlobalAddress, KeyRange, Partition, Tree, TreeConfig};
use fatbtree_memserver::{Marked, SizeClass};

use crate::tenant::{Blink, record_at};

/// Least bytes of a place for a record: no two begin in one such unit.
const UNIT: u64 = fatbtree_blink::record::place_bytes(0) as u64;

/// Steps in a row that may fail because a client is writing.
const TRIES: u32 = 1000;

/// Where a walk goes on.
#[derive(Clone, Copy, Debug)]
struct Next {
    /// The first key whose leaf is not read yet.
    key: u64,
    /// The leaf that may be responsible for it.
    leaf: Option<GlobalAddress>,
}

/// Records and layers that leaves lead to, and what is left to be walked over.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Units of the region in which a record or layer begins that a leaf leads to.
    units: Marked,
    next: Option<Next>,
    /// The layer that is walked over, where keys are bytes; none: the first one.
    layer: Option<(LayerEntry, Layer)>,
    /// Entries whose layers are to be walked over.
    layers: Vec<LayerEntry>,
    /// Steps so far. Forged entries may lead round in circles.
    steps: u64,
    /// Steps that failed in a row.
    failed: u32,
}

/// A step that did not work.
enum Trouble {
    /// A client is writing there, perhaps.
    Again,
    /// The tree leads where this server cannot look, or nowhere.
    GiveUp,
}

impl Blink {
    /// Begins a walk at the first key.
    pub(super) fn begin_walk(&mut self) {
        self.marks = Marks::default();
        if !self.info.config.leaf_shape().has_records() {
            return;
        }
        self.marks.units = Marked::none(self.region.len(), UNIT);
        self.marks.next = Some(Next { key: self.info.partition.range.low, leaf: None });
    }

    /// Walks on over up to `budget` leaves. Returns whether there is more.
    pub(super) fn walk(&mut self, budget: usize) -> bool {
        for _ in 0..budget {
            self.marks.steps += 1;
            let step = match self.marks.next {
                // There are fewer leaves than lines.
                _ if self.marks.steps > 2 * self.region.len() / LINE as u64 => Err(Trouble::GiveUp),
                Some(next) => self.step(next),
                None => match self.marks.layers.pop() {
                    Some(entry) => self.begin_layer(entry, 0),
                    None => return false,
                },
            };
            match step {
                Ok(next) => (self.marks.next, self.marks.failed) = (next, 0),
                // Clients get time to end what they are writing.
                Err(Trouble::Again) if self.marks.failed < TRIES => {
                    self.marks.failed += 1;
                    let next = self.marks.next.map(|next| Next { leaf: None, ..next });
                    self.marks.next = match (next, self.marks.layer.take()) {
                        // It may have another root now, or have gone.
                        (Some(Next { key, .. }), Some((entry, _))) => {
                            self.begin_layer(entry, key).ok().flatten()
                        }
                        (next, _) => next,
                    };
                    return true;
                }
                Err(_) => {
                    self.marks.units.mark_all();
                    (self.marks.next, self.marks.layers) = (None, Vec::new());
                }
            }
        }
        self.marks.next.is_some() || !self.marks.layers.is_empty()
    }

    /// Reads the head of a layer, and says where a walk over it goes on, which has come to `key`. A layer that has gone has no keys.
    fn begin_layer(&mut self, entry: LayerEntry, key: u64) -> Result<Option<Next>, Trouble> {
        let (address, len) = entry.block();
        let mut block = vec![0; len as usize];
        self.region.read(self.here(address)?, &mut block).map_err(|_| Trouble::GiveUp)?;
        let (layer, state) = match entry.read(&block) {
            Ok(found) => found,
            Err(fault) if fault.is_torn() => {
                self.marks.layers.push(entry);
                return Err(Trouble::Again);
            }
            Err(_) => return Ok(None),
        };
        let config = *layer.tree();
        self.marks.layer = Some((entry, layer));
        match state {
            LayerState::Here => Ok(Some(Next { key, leaf: (key == 0).then_some(address) })),
            LayerState::Gone => Ok(None),
            LayerState::Coming => {
                revive(block.first_chunk_mut().expect("a block has many lines"));
                let leaf = block.get(..config.leaf_bytes() as usize).unwrap_or_default();
                self.mark_entries(&config, leaf, address)?;
                Ok(None)
            }
        }
    }

    /// The first layer's shape and partition, or those of the layer that is walked over.
    fn ground(&self) -> (TreeConfig, Partition) {
        match &self.marks.layer {
            None => (self.info.config, self.info.partition),
            Some((_, layer)) => (*layer.tree(), layer.partition()),
        }
    }

    /// Marks what the entries of a leaf lead to.
    fn mark_entries(
        &mut self,
        config: &TreeConfig,
        bytes: &[u8],
        leaf: GlobalAddress,
    ) -> Result<(), Trouble> {
        for entry in checked(config, bytes, leaf)?.entries() {
            let (key, value) = entry.map_err(|_| Trouble::Again)?;
            let address = match value {
                EntryValue::Inline(_) => continue,
                EntryValue::Record(record) => record.address,
                EntryValue::Layer(layer) => {
                    let above = self.marks.layer.as_ref().map(|(_, layer)| layer);
                    self.marks.layers.push(LayerEntry::new(&self.info.config, above, key, layer));
                    layer
                }
            };
            let at = self.here(address)?;
            self.marks.units.mark(at..at + 1);
        }
        Ok(())
    }

    /// What the walk has met.
    pub(super) fn take_walk(&mut self) -> Marked {
        std::mem::take(&mut self.marks).units
    }

    /// Marks what the leaf of one key leads to. Returns where to go on.
    fn step(&mut self, Next { key, leaf }: Next) -> Result<Option<Next>, Trouble> {
        let (config, partition) = self.ground();
        let leaf = leaf.map_or_else(|| self.leaf_of(key), Ok)?;
        let bytes = self.leaf_bytes(leaf)?;
        let header = *checked(&config, &bytes, leaf)?.header();
        if !header.range().contains(key) {
            return Err(Trouble::Again);
        }
        let upper =
            if header.partner.is_null() { None } else { self.begin_of(header.partner, header.range())? };
        if self.leaf_bytes(leaf)? != bytes {
            return Err(Trouble::Again);
        }
        if let Some(middle) = upper.filter(|middle| *middle <= key) {
            debug_assert!(middle > header.low, "it is a half of the leaf");
            return Ok(Some(Next { key, leaf: Some(header.partner) }));
        }
        self.mark_entries(&config, &bytes, leaf)?;
        Ok(match (upper, header.range().high) {
            (Some(middle), _) => Some(Next { key: middle, leaf: Some(header.partner) }),
            (None, Some(high)) => Some(Next { key: high, leaf: Some(header.sibling) }),
            (None, None) => None,
        }
        // The last leaf of a partition ends where the partition does.
        .filter(|next| partition.range.contains(next.key)))
    }

    /// The leaf that is responsible for a key, by a walk from the root.
    fn leaf_of(&self, key: u64) -> Result<GlobalAddress, Trouble> {
        let (config, partition) = self.ground();
        let tree = Tree::new(&self.memory, &config, &partition);
        let path = tree.find_node_path(key).map_err(|_| Trouble::Again)?;
        path.last().map(|step| step.address).ok_or(Trouble::Again)
    }

    /// First key of a leaf's partner, if that is a leaf and begins within the keys of the first one.
    fn begin_of(&self, partner: GlobalAddress, range: KeyRange) -> Result<Option<u64>, Trouble> {
        let bytes = self.leaf_bytes(partner)?;
        match Node::read(&self.ground().0, &bytes) {
            Ok(node) => {
                let found = node.header();
                let is_half = found.address == partner && found.level == 0 && found.low > range.low;
                Ok(Some(found.low).filter(|low| is_half && range.contains(*low)))
            }
            Err(fault) if fault.is_torn() => Err(Trouble::Again),
            Err(_) => Ok(None),
        }
    }

    fn leaf_bytes(&self, leaf: GlobalAddress) -> Result<Vec<u8>, Trouble> {
        let mut bytes = vec![0; self.info.config.leaf_bytes() as usize];
        self.region.read(self.here(leaf)?, &mut bytes).map_err(|_| Trouble::GiveUp)?;
        Ok(bytes)
    }

    /// Offset of an address on this server.
    fn here(&self, address: GlobalAddress) -> Result<u64, Trouble> {
        match address.server() == self.info.partition.id {
            true => Ok(address.offset()),
            false => Err(Trouble::GiveUp),
        }
    }

    /// Whether a leaf leads to the record of a block, as far as the walk can tell.
    pub(super) fn is_record_marked(&self, marks: &Marked, block: &Range<u64>) -> bool {
        let of_partition = record_at(&self.region, block.start)
            .is_some_and(|head| self.info.partition.range.contains(head.key()));
        !of_partition || marks.is_marked(block.start..block.start + 1)
    }

    /// Whether an entry leads to a layer, or its first leaf is in use, as far as the walk can tell.
    pub(super) fn is_layer_marked(&self, marks: &Marked, block: &Range<u64>) -> bool {
        let mut bytes = vec![0; (block.end - block.start) as usize];
        let leaf = GlobalAddress::new(self.info.partition.id, block.start);
        let read = self.region.read(block.start, &mut bytes);
        let first = read.ok().and_then(|()| first_of(&self.info.config, &bytes, leaf));
        let of_partition = first.is_none_or(|first| self.info.partition.range.contains(first));
        !of_partition
            || marks.is_marked(block.start..block.start + 1)
            || !self.is_free_node(LAYERS, block.start)
    }

    /// Whether the header of a node says that it is free, of this class, and here.
    pub(super) fn is_free_node(&self, class: SizeClass, at: u64) -> bool {
        super::tenant::node_at(&self.region, at).is_some_and(|header| {
            let is_leaf = header.level == 0;
            header.is_free()
                && header.address == GlobalAddress::new(self.info.partition.id, at)
                && is_leaf == matches!(class, LEAVES | LAYERS | LAYER_LEAVES)
        })
    }
}

/// The leaf at an address, if these bytes are one.
fn checked<'b>(config: &TreeConfig, bytes: &'b [u8], leaf: GlobalAddress) -> Result<LeafNode<'b>, Trouble> {
    match Node::read(config, bytes) {
        Ok(Node::Leaf(node)) if node.header().address == leaf => Ok(node),
        _ => Err(Trouble::Again),
    }
}

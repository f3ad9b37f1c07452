//! A server's part of an index: made empty, and found again in a folder.
//!
//! Before a part from a folder is served, all of it is read that can be told from memory that clients have left:
//!
//! * its header, and on the first server every inner node to which the root leads there: check bits of its entries,
//!   its state, whether its keys are those of the entry that leads to it, and where its entries lead;
//! * each leaf on this server that is in use: its header's sum, its stamps, whether its keys are in its range and there
//!   once;
//! * each record on this server to which such a leaf leads: whole, and of the leaf's key and version.
//!
//! Nodes on other servers are not at hand, and which leaves they lead to. Leaves that are being changed are left to the
//! clients that complete the change. Keys of a leaf, and values of eight bytes, have no sum of their own, because clients
//! change them word by word: the folder's checksums of a stop are what finds a bit that has changed there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fatbtree_memserver::grpc::{Describe, LoadData};
use fatbtree_memserver::{
    Class, Counts, FolderError, FoundRegion, LaidOut, LayError, Laying, Layout, Loaded, Part,
    Shape as Classes, Writes,
};
use fatbtree_remote_memory::{GlobalAddress, RegionHeader};
use fatbtree_verbs::Memory;

use super::load;
use super::marks::Marks;
use super::{HybridIndex, MakeError, MakeOptions};
use crate::entry::{MAX_REGION, NodeSize};
use crate::inner::{self, Node, NodeState};
use crate::key::Prefix;
use crate::layout::{LEAVES, NODES, RECORDS, STRUCTURE, Shape, root_offset};
use crate::leaf::{LEAF_BYTES, Leaf, NoLeaf, Use};
use crate::word::{self, MAX_RECORD_REGION};

/// A folder's `state.json` has the shape as it is.
impl Counts for Shape {
    const STRUCTURE: &'static str = <Self as Describe>::STRUCTURE;
}

/// Size classes of an index, by number.
fn classes() -> Vec<Class> {
    vec![
        Class { name: "leaves", bytes: LEAF_BYTES as u32, ..Class::default() },
        Class { name: "inner nodes", ..Class::default() },
        Class { name: "records", ..Class::default() },
    ]
}

/// What memory servers know of a part.
fn served_as() -> Classes {
    Classes { classes: classes(), whole_lines: true, ..Classes::default() }
}

/// Offset of the first chunk of a part.
pub(super) fn spare_from(shape: &Shape, server: u16) -> u64 {
    let root = if shape.home() == server { NodeSize::LARGEST.place_bytes() } else { 0 };
    root_offset() + u64::from(root)
}

/// A part of an index is one of a structure over several servers.
impl Part for HybridIndex {
    type Shape = Shape;
    type Counts = Shape;
    type MakeError = MakeError;

    fn shape(&self) -> Shape {
        self.shape
    }

    fn begin(shape: &Shape) -> GlobalAddress {
        shape.root().at()
    }

    fn make_with<E: From<MakeError>>(
        options: &MakeOptions,
        region: impl FnOnce(u64) -> Result<Memory, E>,
    ) -> Result<Loaded<Self>, E> {
        let &MakeOptions { server, shape, spare_bytes, generation, origin, .. } = options;
        shape.check().map_err(MakeError::Shape)?;
        if server >= 32 || shape.servers >> server & 1 == 0 {
            return Err(MakeError::Server(server).into());
        }
        let begin = spare_from(&shape, server);
        let bytes = begin.saturating_add(spare_bytes);
        let most = if shape.fixed() { MAX_REGION } else { MAX_RECORD_REGION };
        if bytes > most {
            return Err(MakeError::Region { found: bytes, most }.into());
        }
        let region: Arc<Memory> = region(bytes)?.into();
        let write =
            |offset: u64, bytes: &[u8]| region.write(offset, bytes).expect("the region has room for both");
        if shape.home() == server {
            write(root_offset(), &inner::build(Prefix::ROOT, NodeSize::LARGEST, 8, NodeState::Live, []));
        }
        write(0, &shape.header(generation, bytes).to_bytes());
        let (served, spare) = (Arc::default(), begin..bytes);
        Ok(Loaded {
            server,
            region: Arc::clone(&region),
            spare,
            generation,
            origin,
            chunk_classes: None,
            shape: served_as(),
            tenant: Self::of(server, shape, region, served),
        })
    }

    fn no_memory(bytes: u64, why: io::Error) -> MakeError {
        MakeError::Memory { bytes, why }
    }

    fn found(server: u16, found: FoundRegion<Shape>, _chunk_bytes: u64) -> Result<Loaded<Self>, FolderError> {
        let line = found.first_line()?;
        let header = RegionHeader::parse(&line, &STRUCTURE);
        let (Some(header), Some(shape)) = (header, Shape::of_header(&line)) else {
            return Err(found.damaged("it does not begin with the header of a Dolphin index"));
        };
        found.check_header(&header, spare_from(&shape, server), &shape)?;
        let (layout, region) = (found.layout(classes()), Arc::clone(&found.region));
        let served = Arc::new(AtomicBool::new(true));
        let tenant = Self::of(server, shape, region, served);
        tenant.check(&layout).map_err(|reason| found.damaged(reason))?;
        Ok(found.into_loaded(server, served_as(), tenant))
    }

    fn lay(of: &Laying<Shape>, data: &dyn LoadData, write: &mut Writes<'_>) -> Result<LaidOut, LayError> {
        load::lay(of, data, write)
    }
}

impl HybridIndex {
    fn of(server: u16, shape: Shape, region: Arc<Memory>, served: Arc<AtomicBool>) -> Self {
        Self { server, shape, region, served, is_seen: false, marks: Marks::default() }
    }

    /// Checks the part while nothing changes it, whatever clients have left of it that are dead by now: before it is served.
    ///
    /// # Errors
    /// What is damaged, in words.
    pub fn check(&self, layout: &Layout) -> Result<(), String> {
        self.check_nodes(layout)?;
        self.check_leaves(layout)
    }

    /// Walks from the root as far as that leads on this server.
    fn check_nodes(&self, layout: &Layout) -> Result<(), String> {
        // More nodes would not fit: damage may lead in a circle.
        let mut budget = self.region.len() / u64::from(NodeSize::of_number(0).place_bytes());
        let mut left = Vec::new();
        if self.is_first() {
            left.push((self.shape.root(), None));
        }
        while let Some((entry, above)) = left.pop() {
            let at = entry.at().offset();
            let is_below = |node: &Node| {
                let low = node.prefix.low();
                above.is_none_or(|above: Prefix| {
                    let is_deeper = node.prefix.depth() > above.depth() && above.covers(low);
                    node.prefix == above || is_deeper && above.byte_of(low) == entry.byte()
                })
            };
            let node = self.node(entry).filter(is_below);
            let node = node.ok_or_else(|| format!("offset {at}: expected an inner node"))?;
            if let Some(expected) = node.damage() {
                return Err(format!("offset {at}: expected {expected}"));
            }
            budget = budget.checked_sub(1).ok_or_else(|| format!("offset {at}: inner nodes in a circle"))?;
            // What has moved is told by what came in its place.
            let successor = [(0, node.successor)];
            let is_moved = node.is(NodeState::Moved);
            let children = if is_moved { &successor[..] } else { &node.entries[..] };
            for (_, child) in children.iter().filter(|(_, child)| !child.is_empty()) {
                let (server, to) = (child.at().server(), child.at().offset());
                let (class, bytes) = match child.is_inner() {
                    true => (NODES, u64::from(child.size().place_bytes())),
                    false => (LEAVES, LEAF_BYTES as u64),
                };
                let is_known = server < 32 && self.shape.servers >> server & 1 == 1;
                let is_here = server == self.server;
                if !is_known || is_here && !layout.may_lie(class, to, bytes) {
                    return Err(format!("offset {at}: the node's entry {child:?} leads nowhere"));
                }
                if child.is_inner() && is_here {
                    // A successor has the prefix of the node that has moved.
                    left.push((*child, Some(node.prefix)));
                }
            }
        }
        Ok(())
    }

    /// Checks all leaves that are in use, whichever node leads to them.
    fn check_leaves(&self, layout: &Layout) -> Result<(), String> {
        let leaves = layout.chunks(LEAVES).flat_map(|chunk| chunk.step_by(LEAF_BYTES));
        for at in leaves.filter(|&at| layout.may_lie(LEAVES, at, LEAF_BYTES as u64)) {
            let Some(bytes) = self.bytes::<LEAF_BYTES>(at) else { continue };
            let Some(leaf) = Leaf::new(&bytes).filter(|leaf| leaf.is_leaf()) else { continue };
            let verdict = leaf.check(Use::Read);
            // A client that died may have written the begin of its first leaf here.
            let is_mixed = leaf.is_mixed() && leaf.lock().word != 0;
            if verdict == Err(NoLeaf::Damaged) || is_mixed {
                return Err(format!("offset {at}: expected a leaf with its sum, and one stamp"));
            }
            if verdict.is_ok() {
                self.check_leaf(at, leaf, layout).map_err(|reason| format!("offset {at}: {reason}"))?;
            }
        }
        Ok(())
    }

    /// Checks a leaf that is whole.
    fn check_leaf(&self, at: u64, leaf: Leaf<'_>, layout: &Layout) -> Result<(), String> {
        if leaf.own() != GlobalAddress::new(self.server, at) || leaf.min() > leaf.max() {
            return Err("the leaf says that it lies elsewhere".to_owned());
        }
        if let Some(slot) = leaf.stray() {
            return Err(format!("key {:#x} of the leaf is not in its range", leaf.key(slot)));
        }
        let mut keys: Vec<u64> = leaf.items().map(|(key, _)| key).collect();
        keys.sort_unstable();
        if let Some(twice) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("key {:#x} of the leaf is there twice", twice[0]));
        }
        if self.shape.fixed() {
            return Ok(());
        }
        for (key, word) in leaf.items() {
            let Some(pointer) = word.pointer() else { continue };
            let (record, bytes) = (pointer.at.offset(), pointer.bytes);
            if pointer.at.server() != self.server {
                continue;
            }
            let mut all = vec![0; bytes as usize];
            let is_there = layout.may_lie(RECORDS, record, bytes.into())
                && self.region.read(record, &mut all).is_ok()
                && word::find(&all, key, pointer).is_some();
            if !is_there {
                return Err(format!("no whole record of key {key:#x} at offset {record}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;

    use fatbtree_memserver::{
        Folder, FolderOwner, PartOptions, Seen, Storage, Tenant as _, kept, make_in, part_in,
    };
    use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES};

    use super::*;
    use crate::entry::Entry;
    use crate::inner::slot_offset;
    use crate::layout::line_offset;

    const CHUNK: u64 = 64 << 10;

    fn folder(path: &Path) -> Folder<Shape> {
        let owner = FolderOwner { server: "left".to_owned(), partition: 0, address: [127, 0, 0, 1].into() };
        Folder::open(path, owner, CHUNK).unwrap()
    }

    #[test]
    fn a_part_is_found_in_its_folder_unless_its_nodes_lead_nowhere() {
        let path = tempfile::tempdir().unwrap();
        let mut storage = Storage::Folder(folder(path.path()).into());
        let shape = Shape { servers: 0b11, max_value: 1_000 };
        let options =
            PartOptions { spare_bytes: 4 * CHUNK, chunk_bytes: CHUNK, ..PartOptions::new(0, shape) };
        let made = make_in::<HybridIndex>(&mut storage, &options).unwrap();
        storage.keep(kept(&made)).unwrap();
        assert!(made.tenant.is_empty(&mut std::iter::empty()));
        made.region.write(line_offset(3), &[1; 8]).unwrap();
        // A leaf on another server may lie anywhere.
        let slot = root_offset() + slot_offset(0);
        made.region
            .write(slot, &Entry::leaf(0, GlobalAddress::new(1, 1 << 20)).unwrap().0.to_le_bytes())
            .unwrap();
        let (generation, here) = (made.generation, GlobalAddress::new(0, made.spare.start));
        drop((made, storage));
        let again = || part_in::<HybridIndex>(&folder(path.path()), CHUNK);
        let mut found = again().unwrap().unwrap().tenant;
        assert!(found.shape() == shape && !found.is_empty(&mut std::iter::empty()));
        // What the sessions before have announced is gone.
        let mut line = [0; HEADER_BYTES];
        found.region.read(0, &mut line).unwrap();
        assert_eq!((found.see(&line), found.bytes(line_offset(3))), (Seen::Same, Some([0; 8])));
        drop(found);

        // No chunk was given out, so nothing lies here.
        let file = path.path().join(format!("tree-{generation}"));
        let file = std::fs::File::options().write(true).open(file).unwrap();
        let put = |entry: Entry| file.write_all_at(&entry.0.to_le_bytes(), slot).unwrap();
        for entry in [
            Entry::leaf(0, here),
            Entry::inner(0, NodeSize::NEW, here),
            Entry::leaf(0, GlobalAddress::new(2, 1 << 20)),
        ] {
            put(entry.unwrap());
            let damaged = again().unwrap_err().to_string();
            assert!(damaged.contains("leads nowhere"), "{damaged}");
        }
        file.write_all_at(&[0; 8], root_offset() + 8).unwrap();
        let damaged = again().unwrap_err().to_string();
        assert!(damaged.contains("expected an inner node"), "{damaged}");
    }
}

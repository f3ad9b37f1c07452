//! A server's part of an index: made empty, and found again in a folder.
//!
//! Before a part from a folder is served, its header is read, and on the first server every inner node to
//! which the root leads there: each is one, and its entries lead where leaves and nodes may lie. Nodes on
//! other servers are not at hand. Leaves and records have stamps and checksums, which their readers check.
//! After a machine that died, nodes may be older than leaves: readers see that by the leaves, and give up.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fatbtree_memserver::{Class, Counts, FolderError, FoundRegion, Layout, Loaded, Part, Shape as Classes};
use fatbtree_remote::{GlobalAddress, RegionHeader};
use fatbtree_verbs::Memory;
use serde::{Deserialize, Serialize};

use super::{HybridIndex, MakeError, MakeOptions};
use crate::entry::{MAX_REGION, NodeSize};
use crate::inner::{self, NodeState};
use crate::key::Prefix;
use crate::layout::{LEAVES, NODES, STRUCTURE, Shape, root_offset};
use crate::leaf::LEAF_BYTES;
use crate::word::MAX_RECORD_REGION;

/// Shape of an index, as a folder's `state.json` says it for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IndexCounts {
    /// The index's servers, a bit for each number.
    pub servers: u32,
    /// Bytes of the longest value.
    pub max_value: u32,
}

impl Counts for IndexCounts {
    const STRUCTURE: &'static str = "dolphin";
}

impl From<&Shape> for IndexCounts {
    fn from(shape: &Shape) -> Self {
        let Shape { servers, max_value } = *shape;
        Self { servers, max_value }
    }
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
    type Counts = IndexCounts;
    type MakeError = MakeError;

    fn shape(&self) -> Shape {
        self.shape
    }

    fn counts(&self) -> IndexCounts {
        IndexCounts::from(&self.shape)
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
            tenant: Self { server, shape, region, served, is_seen: false },
        })
    }

    fn no_memory(bytes: u64, why: io::Error) -> MakeError {
        MakeError::Memory { bytes, why }
    }

    fn found(
        server: u16,
        found: FoundRegion<IndexCounts>,
        _chunk_bytes: u64,
    ) -> Result<Loaded<Self>, FolderError> {
        let line = found.first_line()?;
        let header = RegionHeader::parse(&line, &STRUCTURE);
        let (Some(header), Some(shape)) = (header, Shape::of_header(&line)) else {
            return Err(found.damaged("it does not begin with the header of a Dolphin index"));
        };
        found.check_header(&header, spare_from(&shape, server), &IndexCounts::from(&shape))?;
        let (layout, region) = (found.layout(classes()), Arc::clone(&found.region));
        let served = Arc::new(AtomicBool::new(true));
        let tenant = Self { server, shape, region, served, is_seen: false };
        tenant.check_nodes(&layout).map_err(|reason| found.damaged(reason))?;
        Ok(found.into_loaded(server, served_as(), tenant))
    }
}

impl HybridIndex {
    /// Walks from the root as far as that leads on this server.
    fn check_nodes(&self, layout: &Layout) -> Result<(), String> {
        // More nodes would not fit: damage may lead in a circle.
        let mut budget = self.region.len() / u64::from(NodeSize::of_number(0).place_bytes());
        let mut left = Vec::new();
        if self.is_first() {
            left.push((self.shape.root(), 0));
        }
        while let Some((entry, least)) = left.pop() {
            let at = entry.at().offset();
            let node = self.node(entry).filter(|node| node.prefix.depth() >= least);
            let node = node.ok_or_else(|| format!("offset {at}: expected an inner node"))?;
            budget = budget.checked_sub(1).ok_or_else(|| format!("offset {at}: inner nodes in a circle"))?;
            // What has moved is told by what came in its place.
            let successor = [(0, node.successor)];
            let (children, least) = match node.is(NodeState::Moved) {
                true => (&successor[..], node.prefix.depth()),
                false => (&node.entries[..], node.prefix.depth() + 1),
            };
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
                    left.push((*child, least));
                }
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
    use fatbtree_remote::{GlobalAddress, HEADER_BYTES};

    use super::*;
    use crate::entry::Entry;
    use crate::inner::slot_offset;
    use crate::layout::line_offset;

    const CHUNK: u64 = 64 << 10;

    fn folder(path: &Path) -> Folder<IndexCounts> {
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
        assert!(made.tenant.is_empty());
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
        assert!(found.shape() == shape && !found.is_empty());
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

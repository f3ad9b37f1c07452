//! Places where nodes may lie, to check addresses from untrusted clients.

use std::fmt;
use std::sync::Arc;

use fatbtree_blink::size_class::{INTERNAL_NODES, LEAVES};
use fatbtree_blink::{GlobalAddress, SizeClass, Start};
use fatbtree_remote_memory::session_keeper::{Attached, Places};
use fatbtree_verbs::Memory;

use crate::tenant::node_at;

/// Places where nodes may lie in a server's region: among those that were loaded, or in a chunk for nodes, at
/// a multiple of their size. Memory that was a node is never used for a record, so what lies there is a node,
/// or a freed one, and never a value that looks like one.
#[derive(Clone)]
pub struct NodeMap {
    region: Arc<Memory>,
    server: u16,
    places: Arc<dyn Places>,
}

impl fmt::Debug for NodeMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeMap")
            .field("server", &self.server)
            .field("places", &self.places)
            .finish_non_exhaustive()
    }
}

impl NodeMap {
    /// Nodes of the server to which a link leads.
    #[must_use]
    pub fn new(server: u16, attached: &Attached) -> Self {
        let Attached { memory, places, .. } = attached;
        Self { region: Arc::clone(memory), server, places: Arc::clone(places) }
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
        let class = self.class_at(offset)?;
        let header = node_at(&self.region, offset)?;
        let is_leaf = header.level == 0;
        let fits = is_leaf == (class == LEAVES)
            && header.address == address
            && !header.is_free()
            && header.low <= key
            && !header.range().is_below(key);
        fits.then_some(Start::Node { address, level: header.level })
    }

    /// Class of a node that may begin at `offset`, if any.
    fn class_at(&self, offset: u64) -> Option<SizeClass> {
        let classes = [LEAVES, INTERNAL_NODES];
        classes.into_iter().find(|&class| self.places.may_begin(class, offset))
    }
}

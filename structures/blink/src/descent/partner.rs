//! Partners: a node that is being split or merged names the node that may have its upper keys.

use fatbtree_remote_memory::GlobalAddress;
use fatbtree_verbs::Verbs;

use super::{Child, Descent, Reason, Step};
use crate::node::{LINE, Node, NodeFault, NodeHeader};

/// Share of the node's keys that its partner has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Upper {
    /// The partner has the keys from here up.
    From(u64),
    /// The partner has none: the node that names it has them all.
    Nothing,
}

/// Result of reading a node's partner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    version: u32,
    partner: GlobalAddress,
    pub(super) upper: Upper,
}

impl Asked {
    /// Whether it holds for the node as it has been read now.
    pub(super) fn is_of(&self, header: &NodeHeader) -> bool {
        (self.version, self.partner) == (header.version, header.partner)
    }
}

impl<V: Verbs> Descent<'_, V> {
    /// Reads a node's partner to learn which of the two has the node's upper keys.
    ///
    /// If the partner has the key, it is the next step. If it has others, the node is what it was when it was read, as far as this
    /// key is concerned. If it has none, the node has them all, but only if it is still the node that was read: between the two
    /// reads it may have been split and merged. So it is read once more. In each case the node is read again, and `asked` says what
    /// is known of it.
    #[cold]
    pub(super) async fn ask(
        &mut self,
        step: &mut Step,
        bytes: &[u8],
        torn: &mut u32,
    ) -> Result<Option<Asked>, Reason> {
        self.step_aside().map_err(Reason::Fault)?;
        let header = header_of(bytes);
        *step = Step::Node { address: header.address, level: header.level };
        let upper = match self.upper(&header).await? {
            Ok(upper) => upper,
            Err(fault) => {
                self.pause_if_torn(fault, torn).await?;
                return Ok(None);
            }
        };
        if let Upper::From(low) = upper
            && self.key >= low
        {
            if let Some(parent_level) = self.pointed_from.take() {
                self.untold = Some(Child { low, address: header.partner, parent_level });
            }
            self.count_stale_hint();
            self.teach_cache(header.level, low, header.partner);
            *step = Step::Node { address: header.partner, level: header.level };
            return Ok(None);
        }
        Ok(Some(Asked { version: header.version, partner: header.partner, upper }))
    }

    /// Reads the partner of a node to learn which keys it has. An error of the inner kind says that the
    /// partner is being written.
    pub(crate) async fn upper(&mut self, header: &NodeHeader) -> Result<Result<Upper, NodeFault>, Reason> {
        let tree = *self.tree();
        let bytes = self.pool.read(&self.lane, header.partner, tree.node_bytes(header.level)).await?;
        Ok(match Node::read(&tree, &bytes) {
            Ok(node) => {
                let found = node.header();
                let is_its_half = found.address == header.partner
                    && found.level == header.level
                    && found.low > header.low
                    && header.range().contains(found.low);
                Ok(if is_its_half { Upper::From(found.low) } else { Upper::Nothing })
            }
            Err(fault) if fault.is_torn() => Err(fault),
            Err(_) => Ok(Upper::Nothing),
        })
    }
}

/// The header of a node whose lines were checked.
fn header_of(bytes: &[u8]) -> NodeHeader {
    NodeHeader::parse(bytes.first_chunk::<LINE>().expect("a node that was checked has a line"))
}

//! The superblock of a living tree: whoever splits the root writes it, and the server takes notice.

use fatbtree_index::node::LINE;
use fatbtree_index::{GlobalAddress, SUPERBLOCK_BYTES, Superblock};
use fatbtree_verbs::Device;

use super::MemoryServer;
use crate::event::Event;

impl<D: Device> MemoryServer<D> {
    /// Announces another root: writes the superblock. Clients that split a root do the same over the network.
    ///
    /// # Errors
    /// When no node of this tree can lie there.
    pub fn set_root(&mut self, root: GlobalAddress, level: u8) -> Result<(), NoRoot> {
        self.watch_root();
        let Ok(found) = Superblock::parse(&self.superblock) else { return Err(NoRoot { root, level }) };
        let mut new = Superblock { version: found.version.wrapping_add(1), ..found };
        (new.partition.root, new.partition.root_level) = (root, level);
        if !self.may_be_root(&new) {
            return Err(NoRoot { root, level });
        }
        self.region.write(0, &new.to_bytes()).map_err(|_| NoRoot { root, level })?;
        self.watch_root();
        Ok(())
    }

    /// Looks whether the superblock names another root. One that is being written, or that nobody should believe, changes
    /// nothing.
    pub(super) fn watch_root(&mut self) {
        let mut line = [0; LINE];
        if self.region.read(0, &mut line).is_err() || line == self.superblock {
            return;
        }
        self.superblock = line;
        match Superblock::parse(&line) {
            Ok(found) if self.may_be_root(&found) => {
                let partition = found.partition;
                if partition != self.info.partition {
                    self.info.partition = partition;
                    self.counters.roots_seen += 1;
                    self.events.push(Event::NewRoot(partition));
                }
            }
            _ => self.counters.superblocks_refused += 1,
        }
    }

    /// Whether this is a superblock of this region, with a root in it.
    fn may_be_root(&self, found: &Superblock) -> bool {
        let (config, partition) = (&self.info.config, &found.partition);
        let offset = partition.root.offset();
        let node = u64::from(config.node_bytes(partition.root_level));
        let end = self.region.len().saturating_sub(u64::from(config.max_node_bytes()));
        found.check(&self.info.partition, config).is_ok()
            && (found.generation, found.region_bytes) == (self.info.generation, self.region.len())
            && offset >= u64::from(SUPERBLOCK_BYTES)
            && offset.is_multiple_of(LINE as u64)
            && offset + node <= end
    }
}

/// A root that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no root of level {level} can lie at {root}, or the superblock is damaged: expected a whole line inside of the region"
)]
pub struct NoRoot {
    /// Where it should lie.
    pub root: GlobalAddress,
    /// Its level.
    pub level: u8,
}

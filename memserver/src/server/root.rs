//! The superblock of a living tree: whoever splits the root writes it, and the server takes notice. And whether the tree is the one that
//! should be there.
//!
//! A server that begins with an empty tree cannot know by itself whether there was another one before. Its clients know, and the
//! controller: both say which generation they have known. If it was another one, and nobody has loaded this one since, the tree was lost.
//! Whoever has known it is refused then, and not told that its keys are not there. While nobody has written to the empty tree, all others
//! are refused as well, until an operator loads the server, with keys or without.
//!
//! One write would end that. So a server that begins empty opens no session at first, where a controller can say whether there was another
//! tree: not before one has said so, or a bounded time has passed, because a server must start without a controller, too.

use fatbtree_index::node::LINE;
use fatbtree_index::{GlobalAddress, SUPERBLOCK_BYTES, Superblock, Tree};
use fatbtree_verbs::Device;
use fatbtree_verbs::time::Instant;

use super::MemoryServer;
use crate::event::Event;
use crate::info::Origin;

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

    /// Somebody has known a tree of this generation here. Says whether that is another one than the present one, which was not meant to
    /// be its successor. If nobody has written to that one yet, nobody is served from now on: all sessions end.
    pub fn known_before(&mut self, generation: u64) -> bool {
        let is_another = generation != self.info.generation && self.info.origin != Origin::Meant;
        if is_another && self.info.origin == Origin::Begun && self.is_empty() {
            self.info.origin = Origin::Lost;
            self.end_all();
            self.events.push(Event::Lost { partition: self.info.partition.id });
        }
        is_another
    }

    /// A controller has said which tree it has known here before, if any: from now on sessions are opened, unless that tree was lost. Says
    /// whether it was another one than the present one, as [`known_before`](Self::known_before) does.
    pub fn heard(&mut self, former: Option<u64>) -> bool {
        self.undecided_until = None;
        former.is_some_and(|former| self.known_before(former))
    }

    /// Opens no session before it is known whether the tree is in the place of another one, if it may be.
    pub(super) fn begin_undecided(&mut self) {
        let waits = self.info.origin == Origin::Begun && self.is_empty();
        self.undecided_until = waits.then(|| Instant::ZERO + self.options.undecided_for);
    }

    /// Whether the tree may be in the place of another one, as far as a controller has had time to say.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.undecided_until.is_some_and(|until| self.now < until)
    }

    /// Whether the tree has no keys, as far as that can be read now.
    fn is_empty(&mut self) -> bool {
        self.watch_root();
        let mut keys = 0;
        let tree = Tree::new(&self.memory, &self.info.config, &self.info.partition);
        let read = self.info.partition.root_level == 0
            && tree.for_each_leaf(|leaf| keys += leaf.entries().count()).is_ok();
        read && keys == 0
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

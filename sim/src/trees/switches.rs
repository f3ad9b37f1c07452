//! The switches between clients and trees: caches by key range and of hot keys that are never updated, and
//! the rkey of each connection.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fatbtree_blink::GlobalAddress;
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{QueuePair, Remote};

use crate::world::{CachedSwitches, IndexRead, MachineId, Passage, Random, Resolved, Switches};

/// [`CachedSwitches`] that cache addresses and take the rkey from the connection, as the data plane does. Clones are the same
/// switches.
#[derive(Clone, Debug, Default)]
pub(crate) struct TreeSwitches {
    pub(crate) cached: CachedSwitches,
    rkeys: Rc<RefCell<BTreeMap<QueuePair, u32>>>,
    /// Addresses that were taken for leaves: the last hop adds the offset of a slice to such a one.
    leaves: Rc<RefCell<BTreeSet<u64>>>,
}

impl TreeSwitches {
    /// Registers a queue pair, whose index reads are then let in.
    pub(crate) fn register(&self, queue_pair: QueuePair, root: Remote) {
        self.cached.register(queue_pair, root);
        self.rkeys.borrow_mut().insert(queue_pair, root.rkey);
    }

    /// Caches a range: index reads of these keys land at `at` from now on. Of a leaf they may have asked for a slice.
    pub(crate) fn cache(
        &self,
        server: MachineId,
        keys: std::ops::RangeInclusive<u64>,
        at: GlobalAddress,
        is_leaf: bool,
    ) {
        if is_leaf {
            self.leaves.borrow_mut().insert(at.raw());
        }
        self.cached.cache(server, keys, Remote { address: at.raw(), rkey: 0 });
    }

    /// Caches a hot key: its index reads that may land on records land at `at` from now on.
    pub(crate) fn cache_key(&self, server: MachineId, key: u64, at: GlobalAddress, is_leaf: bool) {
        if is_leaf {
            self.leaves.borrow_mut().insert(at.raw());
        }
        self.cached.cache_key(server, key, Remote { address: at.raw(), rkey: 0 });
    }
}

impl Switches for TreeSwitches {
    fn resolve(&mut self, now: Instant, read: &IndexRead, random: &mut Random) -> Resolved {
        match (self.cached.resolve(now, read, random), self.rkeys.borrow().get(&read.queue_pair)) {
            (Resolved::At(Remote { mut address, .. }), Some(&rkey)) => {
                if self.leaves.borrow().contains(&address) {
                    address += read.target.offset_in_leaf();
                }
                Resolved::At(Remote { address, rkey })
            }
            _ => Resolved::Unregistered,
        }
    }

    fn pass(&mut self, now: Instant, from: MachineId, to: MachineId, random: &mut Random) -> Passage {
        self.cached.pass(now, from, to, random)
    }
}

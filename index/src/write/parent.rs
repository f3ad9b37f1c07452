//! What happens above a node that was split: its parent learns of the new one, and the tree may get a new root.

use fatbtree_verbs::Verbs;

use super::held::{Held, Part};
use super::leaf::{Locked, around_the_middle};
use crate::address::GlobalAddress;
use crate::descent::{Descent, OperationError, Reason, Start};
use crate::keys::KeyRange;
use crate::node::{Node, NodeSpec, next_version, write_internal};
use crate::separator::cut_nodes;
use crate::super_root::Partition;
use crate::superblock::{SUPERBLOCK_BYTES, Superblock, SuperblockError};

/// A node that its parent does not know yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewChild {
    /// Its lowest key.
    pub(super) separator: u64,
    pub(super) address: GlobalAddress,
    /// The parent's level.
    pub(super) level: u8,
}

/// What telling a parent leads to.
enum Told {
    /// Everything above is right.
    Done,
    /// The parent was split, and has a new neighbour.
    Split(NewChild),
    /// The tree has grown meanwhile: begin again at its new root.
    Again,
}

impl<'p, V: Verbs> Descent<'p, V> {
    /// Makes a new node known to its parent, and on upwards. Where that fails the tree is right all the same: whoever looks for the
    /// node's keys comes by its left neighbour.
    pub(super) async fn tell_parents(&mut self, mut child: NewChild) {
        loop {
            let mut way = self.beside(child.separator);
            let told = way.tell_parent(child).await;
            let (trips, _) = way.end();
            self.trips_mut().round_trips += trips.round_trips;
            let most = usize::from(self.pool().config().tree.fan_out());
            self.pool().tell_cache(|cache| cache.learn(child.level, child.separator, child.address, most));
            match told {
                Ok(Some(next)) => child = next,
                Ok(None) | Err(_) => return,
            }
        }
    }

    async fn tell_parent(&mut self, child: NewChild) -> Result<Option<NewChild>, OperationError> {
        loop {
            let attempt = match self.begin(Start::Root).await {
                Ok(_) => self.add_child(child).await,
                Err(reason) => Err(reason),
            };
            match attempt {
                Ok(Told::Done) => return Ok(None),
                Ok(Told::Split(next)) => return Ok(Some(next)),
                Ok(Told::Again) => {}
                Err(reason) => self.recover(reason).await?,
            }
        }
    }

    async fn add_child(&mut self, child: NewChild) -> Result<Told, Reason> {
        let level = child.level;
        if self.partition().root_level < level {
            return self.grow(child).await;
        }
        let parent = self.locate(Start::Root, level).await?;
        let Locked { held, address, bytes } = self.lock_node(parent, level).await?;
        let config = self.pool().config().tree;
        let node = match Node::read(&config, &bytes) {
            Ok(Node::Internal(node)) => node,
            Ok(Node::Leaf(_)) => unreachable!("its level was checked when it was locked"),
            Err(fault) => return self.without(held, Reason::Fault(fault)).await,
        };
        let mut children: Vec<(u64, GlobalAddress)> = node.children().collect();
        let Err(at) = children.binary_search_by_key(&child.separator, |(pivot, _)| *pivot) else {
            // Somebody else has told it.
            held.let_go(&mut self.trips_mut().round_trips).await?;
            return Ok(Told::Done);
        };
        children.insert(at, (child.separator, child.address));
        let (header, size) = (*node.header(), config.internal_bytes() as usize);
        let spec = NodeSpec {
            address,
            level,
            range: header.range(),
            sibling: header.sibling,
            version: next_version(&bytes[..size]),
        };
        let write = |spec: &NodeSpec, children: &[(u64, GlobalAddress)]| {
            let mut bytes = vec![0; size];
            write_internal(&mut bytes, spec, children, config.integrity());
            bytes
        };
        if children.len() <= usize::from(config.fan_out()) {
            let whole = write(&spec, &children);
            let part = Part { at: address, bytes: &whole };
            held.write_back(&[part], &mut self.trips_mut().round_trips).await?;
            return Ok(Told::Done);
        }
        let new = match self.new_node(address.server(), level).await {
            Ok(new) => new,
            Err(reason) => return self.without(held, reason).await,
        };
        let window = around_the_middle(children.len());
        let (cut, separator) = cut_nodes(window, children.len() / 2, |at| children[at].0);
        let (lower, upper) = children.split_at(cut);
        let KeyRange { low, high } = spec.range;
        let left = NodeSpec { range: KeyRange { low, high: Some(separator) }, sibling: new.address, ..spec };
        let right = NodeSpec {
            address: new.address,
            range: KeyRange { low: separator, high },
            version: new.version,
            ..spec
        };
        let (left, right) = (write(&left, lower), write(&right, upper));
        let parts = [Part { at: new.address, bytes: &right }, Part { at: address, bytes: &left }];
        held.write_back(&parts, &mut self.trips_mut().round_trips).await?;
        Ok(Told::Split(NewChild { separator, address: new.address, level: level + 1 }))
    }

    /// Gives the tree a new root above the one that was split. The old root keeps its place, its level and its left half: whoever
    /// begins there still finds everything.
    async fn grow(&mut self, child: NewChild) -> Result<Told, Reason> {
        let Partition { id, range, .. } = *self.partition();
        let (pool, lane, place) = (self.pool(), self.lane(), GlobalAddress::new(id, 0));
        let trips = &mut self.trips_mut().round_trips;
        let (held, bytes) = Held::lock_and_read(pool, lane, place, SUPERBLOCK_BYTES, trips).await?;
        let config = pool.config().tree;
        let found = match Superblock::parse(&bytes) {
            Ok(found) => found.check(self.partition(), &config).map(|()| found),
            Err(SuperblockError::Node(fault)) => Err(fault),
            Err(SuperblockError::Config(_)) => Err(crate::node::NodeFault::Superblock { found: 0 }),
        };
        let superblock = match found {
            Ok(found) => found,
            Err(fault) => return self.without(held, Reason::Fault(fault)).await,
        };
        let Partition { root, root_level, .. } = superblock.partition;
        if root_level >= child.level {
            held.let_go(&mut self.trips_mut().round_trips).await?;
            pool.set_root(id, root, root_level);
            return Ok(Told::Again);
        }
        let new = match self.new_node(id, child.level).await {
            Ok(new) => new,
            Err(reason) => return self.without(held, reason).await,
        };
        let spec = NodeSpec {
            address: new.address,
            level: child.level,
            range,
            sibling: GlobalAddress::NULL,
            version: new.version,
        };
        let mut node = vec![0; config.internal_bytes() as usize];
        let children = [(range.low, root), (child.separator, child.address)];
        write_internal(&mut node, &spec, &children, config.integrity());
        let partition = Partition { root: new.address, root_level: child.level, ..superblock.partition };
        let announced =
            Superblock { partition, version: superblock.version.wrapping_add(1), ..superblock }.to_bytes();
        let parts = [Part { at: new.address, bytes: &node }, Part { at: place, bytes: &announced }];
        held.write_back(&parts, &mut self.trips_mut().round_trips).await?;
        pool.set_root(id, new.address, child.level);
        Ok(Told::Done)
    }
}

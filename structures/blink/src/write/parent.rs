//! Changes above a node that was split: its parent learns of the new one, and the tree may get a new root.

use fatbtree_remote_memory::{Check, GlobalAddress, LockGuard, Part};
use fatbtree_verbs::Verbs;

use super::leaf::Locked;
use super::split::again;
use super::whole::Whole;
use crate::descent::{Child, Descent, Reason};
use crate::node::{MAX_LEVEL, Node, NodeSpec, claim, write_internal};
use crate::operation::{OperationError, Start};
use crate::root_block::RootBlock;

/// Result of telling a parent.
enum Told {
    /// Everything above is right.
    Done,
    /// The parent was split, and has a new neighbour.
    Split(Child),
    /// The tree has grown meanwhile: begin again at its new root.
    Again,
}

impl<'p, V: Verbs> Descent<'p, V> {
    /// Makes a new node known to its parent, and on upwards. If that fails the tree is still right: a client
    /// that looks for the node's keys comes by its left neighbour, and tells the parent if it can.
    pub(crate) async fn tell_parents(&mut self, mut child: Child) {
        loop {
            // No node but the first of a level begins where the partition does, and none lies outside of it: that is a damaged one.
            let range = self.partition().range;
            if child.low <= range.low || range.is_below(child.low) {
                return;
            }
            let mut way = self.for_key(child.low);
            let told = way.tell_parent(child).await;
            let (trips, _) = way.end();
            self.lane().add(trips.round_trips);
            self.teach_parent(child);
            match told {
                Ok(Some(next)) => child = next,
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Makes a node known that was met on the way although its parent has no pointer to it.
    pub(crate) async fn tell_untold(&mut self) {
        if let Some(child) = self.take_untold() {
            Box::pin(self.tell_parents(child)).await;
        }
    }

    async fn tell_parent(&mut self, child: Child) -> Result<Option<Child>, OperationError> {
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

    async fn add_child(&mut self, child: Child) -> Result<Told, Reason> {
        let level = child.parent_level;
        if self.partition().root_level < level {
            return self.grow(child).await;
        }
        let parent = self.locate(Start::Root, level).await?;
        let Locked { guard, address: _, bytes } = self.lock_node(parent, level).await?;
        let tree = *self.tree();
        let bytes = &bytes[..tree.internal_bytes() as usize];
        let node = match Node::read(&tree, bytes) {
            Ok(node) => node,
            Err(fault) => return self.without(guard, Reason::Fault(fault)).await,
        };
        let Node::Internal(internal) = node else { unreachable!("its level was checked when it was locked") };
        let mut children: Vec<(u64, GlobalAddress)> = internal.children().collect();
        let place = children.binary_search_by_key(&child.low, |(pivot, _)| *pivot);
        // The parent is locked, so the child is not merged away from now on: that takes its parent's lock.
        let Err(at) = place else { return self.nothing_to_tell(guard).await };
        if !self.is_there(child).await? {
            return self.nothing_to_tell(guard).await;
        }
        children.insert(at, (child.low, child.address));
        let spec = again(internal.header(), bytes);
        let whole = Whole::Internal(children);
        if whole.len() <= usize::from(tree.fan_out()) {
            let part = Part { at: spec.address, bytes: &whole.write(&tree, &spec) };
            guard.restructure(&[part], self.lane()).await?;
            return Ok(Told::Done);
        }
        self.split(guard, spec, bytes, &whole).await.map(Told::Split)
    }

    async fn nothing_to_tell(&mut self, guard: LockGuard<'p, V>) -> Result<Told, Reason> {
        guard.release(self.lane()).await?;
        Ok(Told::Done)
    }

    /// Whether a node is where it was seen, with the same lowest key, and is not being [merged away](super::merge).
    async fn is_there(&mut self, child: Child) -> Result<bool, Reason> {
        if !Check::ChildThere.on() {
            return Ok(true);
        }
        let tree = *self.tree();
        let level = child.parent_level - 1;
        let check = |bytes: &[u8]| match Node::read(&tree, bytes) {
            Ok(node) => {
                let found = node.header();
                let is_it = (found.address, found.level, found.low) == (child.address, level, child.low);
                Ok(is_it && found.partner != found.address)
            }
            Err(fault) if fault.is_torn() => Err(fault),
            Err(_) => Ok(false),
        };
        Ok(self.read_checked(child.address, tree.node_bytes(level), check).await?.1)
    }

    /// Gives the tree a new root above the one that was split. The old root keeps its place, its level and
    /// its left half: an operation that begins there still finds everything.
    async fn grow(&mut self, child: Child) -> Result<Told, Reason> {
        let (id, range) = (self.partition().id, self.partition().range);
        let level = child.parent_level;
        if level > MAX_LEVEL {
            return Ok(Told::Done);
        }
        let (guard, found) = self.lock_root_block().await?;
        let (root, root_level) = found.root();
        if root_level >= level {
            guard.release(self.lane()).await?;
            self.set_root(root, root_level);
            return Ok(Told::Again);
        }
        // A tree that has grown before may have shrunk again, and the child gone with it. From here on it stays: a merge takes the
        // lock of a parent, and there is none. Also the node that was split may be a former root that was
        // never marked as freed, since its writer died after making the tree lower. Nothing of the tree is
        // above the root.
        if root_level + 1 < level || !self.is_there(child).await? {
            return self.nothing_to_tell(guard).await;
        }
        let mut new = match self.new_node(id, level, false).await {
            Ok(new) => new,
            Err(reason) => return self.without(guard, reason).await,
        };
        let (address, sibling) = (new.place.address(), GlobalAddress::NULL);
        let spec = NodeSpec { address, level, range, sibling, version: new.version };
        let tree = *self.tree();
        let mut node = vec![0; tree.internal_bytes() as usize];
        let children = [(range.low, root), (child.low, child.address)];
        write_internal(&mut node, &spec, &children, tree.integrity());
        claim(&tree, &mut node);
        let announced = found.with_root(address, level);
        let place = self.announced_at();
        let parts = [Part { at: address, bytes: &node }, Part { at: place, bytes: &announced }];
        new.place.set_held(true);
        let grown = guard.restructure(&parts, self.lane()).await.map_err(Reason::from);
        if let Err(reason) = grown {
            new.place.set_held(reason.may_be_done());
            return Err(reason);
        }
        self.set_root(address, level);
        Ok(Told::Done)
    }

    /// Locks the place where the root is announced, and reads it.
    async fn lock_root_block(&mut self) -> Result<(LockGuard<'p, V>, RootBlock), Reason> {
        let (pool, (place, len)) = (self.pool(), self.root_place());
        let (guard, bytes) = LockGuard::lock_and_read(pool, self.lane(), place, len).await?;
        match self.check_root_block(&bytes) {
            Ok(found) => Ok((guard, found)),
            Err(fault) => self.without(guard, Reason::Fault(fault)).await,
        }
    }
}

//! Decisions: whether a node is what the way here promised, and where its keys lead.

use fatbtree_remote_memory::{Check, GlobalAddress};
use fatbtree_verbs::Verbs;

use super::partner::{Asked, Upper};
use super::{Child, Descent, Step};
use crate::node::{Node, NodeFault, NodeHeader};

/// Next step after a checked node.
pub(super) enum Decision<T> {
    Arrived(T),
    Go(Step),
    /// The node has a partner; reading the partner tells which of the two has the upper keys.
    Ask,
}

/// State of a node that was read under its lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockedPlace {
    /// The one that is responsible for the key.
    Here,
    /// The key is in this one, or further on.
    Moved(GlobalAddress),
    /// The node has a partner: an earlier split or merge did not finish.
    Unsettled,
}

impl<V: Verbs> Descent<'_, V> {
    #[inline]
    pub(super) fn decide<T>(
        &mut self,
        step: Step,
        level: u8,
        bytes: &[u8],
        asked: Option<Asked>,
        arrive: &mut impl FnMut(&Node<'_>, &[u8]) -> Result<T, NodeFault>,
    ) -> Result<Decision<T>, NodeFault> {
        let node = Node::read(self.tree(), bytes)?;
        let header = node.header();
        self.check_place(step, header)?;
        let range = header.range();
        if self.key < range.low && Check::LowFence.on() {
            return Err(NodeFault::KeyLeft { low: range.low });
        }
        // A node with a partner is being split or merged: it is read again soon.
        if let Node::Internal(node) = &node
            && header.partner.is_null()
            && self.layer.is_none()
        {
            self.pool.tell_cache(|cache| cache.put(node, &self.partition));
        }
        let decision = if range.is_below(self.key) && Check::HighFence.on() {
            Decision::Go(self.sibling_of(header)?)
        } else if !header.partner.is_null()
            && asked.is_none_or(|asked| !asked.is_of(header))
            && Check::Partner.on()
        {
            Decision::Ask
        } else if header.level == level {
            self.high = match asked {
                Some(Asked { upper: Upper::From(low), .. }) if !header.partner.is_null() => Some(low),
                _ => range.high,
            };
            Decision::Arrived(arrive(&node, bytes)?)
        } else {
            match node {
                Node::Internal(node) if header.level > level => {
                    self.pointed_from = Some(header.level);
                    Decision::Go(Step::Node { address: node.find(self.key), level: header.level - 1 })
                }
                // An index read went further down than it was to: rightly, for all that is known.
                _ => {
                    self.by_switches = false;
                    return Err(NodeFault::Level { found: header.level, expected: level });
                }
            }
        };
        if !matches!(decision, Decision::Ask) {
            self.by_switches = false;
        }
        self.trips.levels += 1;
        if step == Step::Index {
            self.trips.landed = Some(header.level);
        }
        Ok(decision)
    }

    /// Checks a node of `level` that was read under its lock, and tells what is to be done with it.
    pub(crate) fn place_of_locked(
        &mut self,
        address: GlobalAddress,
        level: u8,
        bytes: &[u8],
    ) -> Result<LockedPlace, NodeFault> {
        match self.decide(Step::Node { address, level }, level, bytes, None, &mut |_, _| Ok(()))? {
            Decision::Go(Step::Node { address, .. }) => Ok(LockedPlace::Moved(address)),
            Decision::Ask => self.step_aside().map(|()| LockedPlace::Unsettled),
            Decision::Arrived(()) | Decision::Go(Step::Index) => Ok(LockedPlace::Here),
        }
    }

    /// Whether the node is the one that was asked for, as far as the way here tells.
    #[inline]
    fn check_place(&self, step: Step, header: &NodeHeader) -> Result<(), NodeFault> {
        let found = header.address;
        match step {
            Step::Node { address: expected, .. } if found != expected && Check::Address.on() => {
                Err(NodeFault::Address { found, expected })
            }
            Step::Node { level, .. } if header.level != level && Check::Level.on() => {
                Err(NodeFault::Level { found: header.level, expected: level })
            }
            Step::Index => {
                // An index read does not say where it landed, but it is this server that answered.
                let server = self.partition.root.server();
                let here = found.server() == server && !found.is_null();
                if here || !Check::Server.on() { Ok(()) } else { Err(NodeFault::Server { found, server }) }
            }
            Step::Node { .. } => Ok(()),
        }
    }

    fn sibling_of(&mut self, header: &NodeHeader) -> Result<Step, NodeFault> {
        if header.sibling.is_null() && Check::Sibling.on() {
            return Err(NodeFault::NoSibling { high: header.high });
        }
        if let Some(parent_level) = self.pointed_from.take() {
            let (low, address) = (header.high, header.sibling);
            self.untold = Some(Child { low, address, parent_level });
        }
        self.step_aside()?;
        self.trips.siblings_followed += 1;
        self.count_stale_hint();
        self.teach_cache(header.level, header.high, header.sibling);
        Ok(Step::Node { address: header.sibling, level: header.level })
    }

    /// Counts a step that does not lead down: only those could be taken without end.
    pub(super) fn step_aside(&mut self) -> Result<(), NodeFault> {
        if self.siblings >= self.pool.config().limits.siblings && Check::SiblingChain.on() {
            return Err(NodeFault::SiblingChain { followed: self.siblings });
        }
        self.siblings += 1;
        Ok(())
    }

    /// The node that was read has been split: the copy of the parent in the cache, which may have led here, learns of the other half.
    pub(super) fn teach_cache(&mut self, level: u8, low: u64, address: GlobalAddress) {
        self.teach_parent(Child { low, address, parent_level: level.saturating_add(1) });
        if self.cached.take_if(|(_, cached)| *cached == level).is_some() {
            self.pool.count_cache(|stats| stats.stale += 1);
        }
    }

    /// The node that was read is not the key's any more. If the switches have led here, they are behind the tree.
    pub(super) fn count_stale_hint(&mut self) {
        if std::mem::take(&mut self.by_switches) {
            self.pool.count(|stats| stats.stale_hints += 1);
        }
    }
}

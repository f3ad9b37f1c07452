//! The tree of one server as its writer knows it, and the changes it can make: each a list of steps, after which memory is as
//! the model says. A step that was cut short is done again.

use std::collections::{BTreeMap, VecDeque};

use fatbtree_blink::record::{MARK_BYTES, RecordPointer, UNPUBLISHED, published};
use fatbtree_blink::{GlobalAddress, KeyRange, Partition, TreeConfig};
use rand::RngExt as _;

use super::rules::Rule;
use super::space::Space;
use crate::world::Random;

/// Roots of this level are not split.
const HIGHEST: u8 = 6;

/// What a leaf has for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    /// The word of the value.
    pub(super) word: u64,
    /// The record, where values are out of line.
    pub(super) record: Option<RecordPointer>,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Leaf(BTreeMap<u64, Payload>),
    /// By their lowest keys.
    Internal(Vec<(u64, GlobalAddress)>),
}

/// A node of the tree.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) level: u8,
    pub(super) range: KeyRange,
    pub(super) sibling: GlobalAddress,
    pub(super) body: Body,
}

/// A WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A record.
    Record { at: GlobalAddress, key: u64, word: u64, length: u32, version: u32 },
    /// The mark of a record.
    Mark { at: GlobalAddress, mark: [u8; MARK_BYTES] },
    /// The entry of a key in a leaf.
    Entry { leaf: GlobalAddress, key: u64 },
    /// A whole node.
    Node(GlobalAddress),
    /// The mark of a freed node.
    Free(GlobalAddress),
    /// The root.
    Superblock,
}

/// What becomes free when a change is done.
#[derive(Clone, Copy, Debug)]
enum Freed {
    Node { at: GlobalAddress, was_leaf: bool },
    Record(GlobalAddress),
}

/// A change under way.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) steps: VecDeque<Step>,
    freed: Vec<Freed>,
}

/// A child that its parent does not know yet.
#[derive(Clone, Copy, Debug)]
struct Adoption {
    level: u8,
    low: u64,
    child: GlobalAddress,
}

/// The tree of one server.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) config: TreeConfig,
    pub(super) server: u16,
    pub(super) range: KeyRange,
    pub(super) space: Space,
    root: GlobalAddress,
    pub(super) nodes: BTreeMap<GlobalAddress, Node>,
    orphans: VecDeque<Adoption>,
    pub(super) broken: Option<Rule>,
}

impl Model {
    /// An empty leaf; its only step is to be done first.
    pub(super) fn new(
        server: u16,
        range: KeyRange,
        config: TreeConfig,
        mut space: Space,
        broken: Option<Rule>,
        random: &mut Random,
    ) -> (Self, Change) {
        let root = space.take_node(0, random).expect("a region has places for nodes");
        let leaf = Node { level: 0, range, sibling: GlobalAddress::NULL, body: Body::Leaf(BTreeMap::new()) };
        let nodes = BTreeMap::from([(root, leaf)]);
        let model = Self { config, server, range, space, root, nodes, orphans: VecDeque::new(), broken };
        (model, Change::of([Step::Node(root), Step::Superblock]))
    }

    /// The partition, with its root.
    pub(super) fn partition(&self) -> Partition {
        let root_level = self.nodes[&self.root].level;
        Partition { id: self.server, range: self.range, root: self.root, root_level }
    }

    /// Nodes of the tree with their level and range.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (GlobalAddress, u8, KeyRange)> {
        self.nodes.iter().map(|(at, node)| (*at, node.level, node.range))
    }

    /// Keys and words of all values.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        let leaves = self.nodes.values().filter_map(|node| match &node.body {
            Body::Leaf(entries) => Some(entries),
            Body::Internal(_) => None,
        });
        leaves.flatten().map(|(key, payload)| (*key, payload.word))
    }

    pub(super) fn get(&self, key: u64) -> Option<Payload> {
        match &self.nodes[&self.node_of(0, key)].body {
            Body::Leaf(entries) => entries.get(&key).copied(),
            Body::Internal(_) => None,
        }
    }

    /// The node of a level that is responsible for a key.
    pub(super) fn node_of(&self, level: u8, key: u64) -> GlobalAddress {
        let found = self.nodes.iter().find(|(_, node)| node.level == level && node.range.contains(key));
        *found.expect("the nodes of each level cover all keys of the partition").0
    }

    // ---- changes ----

    /// Whether the leaf of a key that is not there must be split before it has room for it.
    pub(super) fn has_no_room(&self, key: u64) -> bool {
        self.is_full(self.node_of(0, key)) && self.get(key).is_none()
    }

    /// Puts a value. None where there is no room, in the leaf or for the record.
    pub(super) fn upsert(&mut self, key: u64, word: u64, length: u32, random: &mut Random) -> Option<Change> {
        let at = self.node_of(0, key);
        let capacity = self.config.leaf_capacity();
        let is_inline = self.config.leaf_shape().is_inline();
        let Body::Leaf(entries) = &mut self.nodes.get_mut(&at)?.body else { return None };
        if entries.len() >= capacity && !entries.contains_key(&key) {
            return None;
        }
        let mut record = None;
        if !is_inline {
            let (address, version) = self.space.take_record(key, random)?;
            record = Some(RecordPointer { address, length, version });
        }
        let old = entries.insert(key, Payload { word, record }).and_then(|old| old.record);
        let write = record.map(|RecordPointer { address: at, length, version }| {
            (Step::Record { at, key, word, length, version }, Step::Mark { at, mark: published(version) })
        });
        Some(self.change_of_entry(Step::Entry { leaf: at, key }, write, old))
    }

    /// Takes a key away; none where it is not there.
    pub(super) fn delete(&mut self, key: u64) -> Option<Change> {
        let at = self.node_of(0, key);
        let Body::Leaf(entries) = &mut self.nodes.get_mut(&at)?.body else { return None };
        let old = entries.remove(&key)?;
        Some(self.change_of_entry(Step::Entry { leaf: at, key }, None, old.record))
    }

    /// The steps that change an entry: before it the new record and the mark of the old one, behind it the mark of the new one.
    fn change_of_entry(&self, entry: Step, new: Option<(Step, Step)>, old: Option<RecordPointer>) -> Change {
        let (record, publish) = new.unzip();
        let unpublish = old.map(|old| Step::Mark { at: old.address, mark: UNPUBLISHED });
        let steps = match self.broken {
            Some(Rule::UnpublishedFirst) => [record, Some(entry), unpublish, publish],
            Some(Rule::PublishedLast) => [record, unpublish, publish, Some(entry)],
            _ => [record, unpublish, Some(entry), publish],
        };
        let mut change = Change::of(steps.into_iter().flatten());
        change.freed.extend(old.map(|old| Freed::Record(old.address)));
        change
    }

    /// Writes a node anew, its entries in another order.
    pub(super) fn rewrite(&self, random: &mut Random) -> Change {
        let at = random.random_range(0..self.nodes.len());
        Change::of(self.nodes.keys().nth(at).map(|at| Step::Node(*at)))
    }

    /// Splits the leaf of a key, or a node above it that has no room.
    pub(super) fn split_leaf(&mut self, key: u64, random: &mut Random) -> Option<Change> {
        self.split(self.node_of(0, key), random)
    }

    /// Splits any node.
    pub(super) fn split_any(&mut self, random: &mut Random) -> Option<Change> {
        let at = random.random_range(0..self.nodes.len());
        let at = *self.nodes.keys().nth(at)?;
        self.split(at, random)
    }

    /// Tells the parent of a node that was split of its right half.
    pub(super) fn adopt(&mut self, random: &mut Random) -> Option<Change> {
        let Adoption { level, low, child } = *self.orphans.front()?;
        let parent = self.node_of(level, low);
        if self.is_full(parent) {
            return self.split_now(parent, random);
        }
        self.orphans.pop_front();
        self.add_child(parent, low, child);
        Some(Change::of([Step::Node(parent)]))
    }

    fn is_full(&self, at: GlobalAddress) -> bool {
        match &self.nodes[&at].body {
            Body::Internal(children) => children.len() >= usize::from(self.config.fan_out()),
            Body::Leaf(entries) => entries.len() >= self.config.leaf_capacity(),
        }
    }

    fn add_child(&mut self, parent: GlobalAddress, low: u64, child: GlobalAddress) {
        if let Some(Node { body: Body::Internal(children), .. }) = self.nodes.get_mut(&parent) {
            let at = children.partition_point(|(pivot, _)| *pivot < low);
            children.insert(at, (low, child));
        }
    }

    fn split(&mut self, at: GlobalAddress, random: &mut Random) -> Option<Change> {
        // One orphan at a time: their parents are told before others move.
        if !self.orphans.is_empty() {
            return self.adopt(random);
        }
        self.split_now(at, random)
    }

    fn split_now(&mut self, at: GlobalAddress, random: &mut Random) -> Option<Change> {
        let level = self.nodes[&at].level;
        let is_root = at == self.root;
        if !is_root {
            let parent = self.node_of(level + 1, self.nodes[&at].range.low);
            if self.is_full(parent) {
                return self.split_now(parent, random);
            }
        }
        if is_root && level >= HIGHEST || self.space.free_nodes() < 2 {
            return None;
        }
        let pivot = self.pivot(at, random)?;
        let right_at = self.space.take_node(level, random)?;
        let new_root = if is_root {
            let Some(new_root) = self.space.take_node(level + 1, random) else {
                self.space.give_node(right_at, level == 0);
                return None;
            };
            Some(new_root)
        } else {
            None
        };
        let left = self.nodes.get_mut(&at)?;
        let right = Node {
            level,
            range: KeyRange { low: pivot, high: left.range.high },
            sibling: left.sibling,
            body: match &mut left.body {
                Body::Leaf(entries) => Body::Leaf(entries.split_off(&pivot)),
                Body::Internal(children) => {
                    let from = children.partition_point(|(low, _)| *low < pivot);
                    Body::Internal(children.split_off(from))
                }
            },
        };
        (left.range.high, left.sibling) = (Some(pivot), right_at);
        let low = left.range.low;
        self.nodes.insert(right_at, right);
        let mut change = Change::of([Step::Node(right_at), Step::Node(at)]);
        if let Some(new_root) = new_root {
            let range = self.range;
            let body = Body::Internal(vec![(low, at), (pivot, right_at)]);
            self.nodes.insert(new_root, Node { level: level + 1, range, sibling: GlobalAddress::NULL, body });
            self.root = new_root;
            change.steps.extend([Step::Node(new_root), Step::Superblock]);
        } else if self.orphans.is_empty() && random.random_bool(0.4) {
            self.orphans.push_back(Adoption { level: level + 1, low: pivot, child: right_at });
        } else {
            let parent = self.node_of(level + 1, pivot);
            self.add_child(parent, pivot, right_at);
            change.steps.push_back(Step::Node(parent));
        }
        Some(change)
    }

    /// Where a node can be split.
    fn pivot(&self, at: GlobalAddress, random: &mut Random) -> Option<u64> {
        let node = &self.nodes[&at];
        match &node.body {
            Body::Internal(children) if children.len() > 1 => {
                Some(children[random.random_range(1..children.len())].0)
            }
            Body::Leaf(entries) if entries.len() > 1 => {
                let keys: Vec<u64> = entries.keys().copied().collect();
                let right = random.random_range(1..keys.len());
                // Any key between two neighbours.
                Some(random.random_range(keys[right - 1]..keys[right]) + 1)
            }
            Body::Internal(_) | Body::Leaf(_) => None,
        }
    }

    /// Merges two neighbours with one parent into the left one.
    pub(super) fn merge(&mut self, random: &mut Random) -> Option<Change> {
        if !self.orphans.is_empty() {
            return self.adopt(random);
        }
        let parents: Vec<GlobalAddress> =
            self.nodes.iter().filter(|(_, node)| node.level > 0).map(|(at, _)| *at).collect();
        let parent = *parents.get(random.random_range(0..parents.len().max(1)))?;
        let Body::Internal(children) = &self.nodes[&parent].body else { return None };
        if children.len() < 2 {
            return None;
        }
        let place = random.random_range(1..children.len());
        let (left_at, right_at) = (children[place - 1].1, children[place].1);
        let room = match (&self.nodes[&left_at].body, &self.nodes[&right_at].body) {
            (Body::Leaf(left), Body::Leaf(right)) => left.len() + right.len() <= self.config.leaf_capacity(),
            (Body::Internal(left), Body::Internal(right)) => {
                left.len() + right.len() <= usize::from(self.config.fan_out())
            }
            _ => false,
        };
        if !room {
            return None;
        }
        let right = self.nodes.remove(&right_at)?;
        let left = self.nodes.get_mut(&left_at)?;
        (left.range.high, left.sibling) = (right.range.high, right.sibling);
        match (&mut left.body, right.body) {
            (Body::Leaf(left), Body::Leaf(right)) => left.extend(right),
            (Body::Internal(left), Body::Internal(right)) => left.extend(right),
            _ => {}
        }
        if let Some(Node { body: Body::Internal(children), .. }) = self.nodes.get_mut(&parent) {
            children.remove(place);
        }
        let (parent, left, free) = (Step::Node(parent), Step::Node(left_at), Step::Free(right_at));
        // Both orders are right: the left node leads to the right one until it has its keys.
        let steps = if random.random_bool(0.5) { [parent, left, free] } else { [left, free, parent] };
        let mut change = Change::of(steps);
        if self.broken == Some(Rule::FreedMark) {
            change.steps.retain(|step| *step != free);
        }
        change.freed.push(Freed::Node { at: right_at, was_leaf: right.level == 0 });
        Some(change)
    }

    /// A change is done: what it freed can be used again.
    pub(super) fn done(&mut self, change: Change) {
        for freed in change.freed {
            match freed {
                Freed::Node { at, was_leaf } => self.space.give_node(at, was_leaf),
                Freed::Record(at) => self.space.give_record(at),
            }
        }
    }
}

impl Change {
    fn of(steps: impl IntoIterator<Item = Step>) -> Self {
        Self { steps: steps.into_iter().collect(), freed: Vec::new() }
    }

    /// This change of an entry as a part of a split: the nodes of the split are written with it.
    pub(super) fn within(mut self, split: Change) -> Self {
        let is_entry = |step: &Step| matches!(step, Step::Entry { .. });
        let at = self.steps.iter().position(is_entry).expect("a change of an entry writes it");
        let behind = self.steps.split_off(at);
        self.steps.extend(split.steps);
        self.steps.extend(behind.into_iter().skip(1));
        self.freed.extend(split.freed);
        self
    }
}

//! All of a node at a time: what it holds, sorted, to be written as a node again or as two.

use std::ops::RangeInclusive;

use fatbtree_remote_memory::{GlobalAddress, KeyRange};

use crate::config::TreeConfig;
use crate::node::{
    EntryValue, LINE, LeafBuilder, NewValue, Node, NodeFault, NodeSpec, claim, write_internal,
};
use crate::separator::{cut_keys, cut_nodes};

/// Content of a node, in ascending order.
#[derive(Clone, Debug)]
pub(super) enum Whole<'a> {
    /// Keys and values.
    Leaf(Vec<(u64, NewValue<'a>)>),
    /// Pivots and children.
    Internal(Vec<(u64, GlobalAddress)>),
}

impl<'a> Whole<'a> {
    /// Content of a node that was checked. All keys are within the node's fences, each once, so the content
    /// can be written again as one node or as two.
    pub(super) fn of(node: &Node<'a>) -> Result<Self, NodeFault> {
        let copy = |entry| match entry {
            EntryValue::Inline(value) => NewValue::Inline(value),
            EntryValue::Record(pointer) => NewValue::Record(pointer),
            EntryValue::Layer(layer) => NewValue::Layer(layer),
        };
        Ok(match node {
            Node::Internal(node) => Self::Internal(node.children().collect()),
            Node::Leaf(leaf) => {
                let entries = leaf.sorted()?;
                Self::Leaf(entries.into_iter().map(|(key, value)| (key, copy(value))).collect())
            }
        })
    }

    /// Entries or children.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Internal(children) => children.len(),
        }
    }

    /// Whether a node has room for it, be it for so many entries: in a leaf of buckets it depends on the keys as well.
    pub(super) fn fits(&self, tree: &TreeConfig) -> bool {
        match self {
            Self::Leaf(entries) => {
                tree.leaf_shape().fitting(entries.iter().map(|(key, _)| *key)) == entries.len()
            }
            Self::Internal(children) => children.len() <= tree.fan_out().into(),
        }
    }

    /// Best cut of the content in two: the lowest key of the upper half.
    pub(super) fn middle(&self) -> u64 {
        let window = around_the_middle(self.len());
        match self {
            Self::Leaf(entries) => {
                let keys: Vec<u64> = entries.iter().map(|(key, _)| *key).collect();
                cut_keys(&keys, window).1
            }
            Self::Internal(children) => cut_nodes(window, children.len() / 2, |at| children[at].0).1,
        }
    }

    /// Takes what `upper` holds, too; its keys are all above these.
    pub(super) fn append(&mut self, upper: Self) {
        match (self, upper) {
            (Self::Leaf(entries), Self::Leaf(more)) => entries.extend(more),
            (Self::Internal(children), Self::Internal(more)) => children.extend(more),
            _ => unreachable!("nodes of one level are of one kind"),
        }
    }

    /// A node that holds what lies in the range of `spec`.
    pub(super) fn write(&self, tree: &TreeConfig, spec: &NodeSpec) -> Vec<u8> {
        let mut bytes = vec![0; tree.node_bytes(spec.level) as usize];
        match self {
            Self::Leaf(entries) => {
                let mut leaf = LeafBuilder::new(&mut bytes, tree.leaf_shape(), *spec);
                for &(key, value) in within(entries, &spec.range) {
                    leaf.push_value(key, value);
                }
                leaf.finish();
            }
            Self::Internal(children) => {
                write_internal(&mut bytes, spec, within(children, &spec.range), tree.integrity());
            }
        }
        claim(tree, &mut bytes);
        bytes
    }
}

/// The part of a sorted list whose keys lie in a range.
fn within<'l, T>(list: &'l [(u64, T)], range: &KeyRange) -> &'l [(u64, T)] {
    let from = list.partition_point(|(key, _)| *key < range.low);
    let to = list.partition_point(|(key, _)| !range.is_below(*key));
    &list[from..to]
}

/// Positions at which a node of this many entries or children may be cut in two: a sixth to each side of the
/// middle, for a shorter separator.
fn around_the_middle(things: usize) -> RangeInclusive<usize> {
    let (middle, reach) = (things / 2, things / 6);
    middle - reach..=middle + reach
}

/// The header line of a node, to be changed and written by itself.
pub(super) fn first_line(bytes: &[u8]) -> [u8; LINE] {
    *bytes.first_chunk().expect("a node has at least its header line")
}

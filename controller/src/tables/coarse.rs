//! `coarse` and `coarse_whole` of a node set: epoch and a node's address → which quarter of it, where its children lie, and its slot.
//! An entry here is what makes a node *there*.

use super::declare::{self, Call, key, of_each_set};
use super::pivots::Last;
use super::{NodeKind, NodeSet};

key! {
    /// Key of an entry.
    pub struct Key {
        /// Epoch.
        epoch: u8 = exact,
        /// The node.
        address: u64 = exact,
    }
    in of_each_set!["coarse", "coarse_whole"], by {
        /// The node set.
        set: NodeSet,
        /// Whether it is in `coarse_whole`: as its action's [`Last`] is.
        whole: bool,
    }
}

/// Look for the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// Last keys before the second, third and fourth quarter of the node.
    pub last: Last,
    /// Name of the rest of the node in this set and epoch.
    pub slot: u16,
    /// Address of the first child, 48 bits, in the memory server of the node; 0 if the children are no run.
    pub first_child: u64,
    /// Distance of its children in units of [`STRIDE_BYTES`](super::run::STRIDE_BYTES); 0 if they are no run.
    pub stride: u8,
    /// Kind of its children, all of them.
    pub kind: NodeKind,
}

/// The parameters: three keys of so many bytes, and the node.
const fn parameters(bytes: usize) -> [(&'static str, usize); 7] {
    let [a, b, c] = Last::parameters(bytes);
    [a, b, c, ("slot", 2), ("first_child", 6), ("stride", 1), ("kind", 1)]
}

impl declare::Action for Action {
    const CALLS: &'static [Call] = &[
        Call { name: "quarter_by_high", parameters: &parameters(4) },
        Call { name: "quarter_by_low", parameters: &parameters(4) },
        Call { name: "quarter_by_whole", parameters: &parameters(8) },
    ];

    fn is_in(call: usize, table: usize) -> bool {
        Last::is_in(call, table)
    }

    fn call<R>(self, with: impl FnOnce(usize, &[u64]) -> R) -> R {
        let Self { last, slot, first_child, stride, kind } = self;
        let [a, b, c] = last.values();
        with(last.call(), &[a, b, c, slot.into(), first_child, stride.into(), kind.value()])
    }

    fn of(call: usize, arguments: &[u64]) -> Option<Self> {
        let [a, b, c, slot, first_child, stride, kind] = *arguments else { return None };
        Some(Self {
            last: Last::of(call, [a, b, c])?,
            slot: slot.try_into().ok()?,
            first_child,
            stride: stride.try_into().ok()?,
            kind: NodeKind::of(kind)?,
        })
    }
}

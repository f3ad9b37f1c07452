//! `fine` and `fine_whole` of a node set: epoch, slot and quarter of a node → which child of the quarter.

use super::NodeSet;
use super::declare::{self, Call, key, of_each_set};
use super::pivots::Last;

key! {
    /// Key of an entry.
    pub struct Key {
        /// Epoch.
        epoch: u8 = exact,
        /// The node.
        slot: u16 = exact,
        /// The quarter, 0 to 3.
        quarter: u8 = exact,
    }
    in of_each_set!["fine", "fine_whole"], by {
        /// The node set.
        set: NodeSet,
        /// Whether it is in `fine_whole`: as its action's [`Last`] is.
        whole: bool,
    }
}

/// Compare the key with these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// Last keys before the second, third and fourth child of the quarter.
    pub last: Last,
}

impl declare::Action for Action {
    const CALLS: &'static [Call] = &[
        Call { name: "child_by_high", parameters: &Last::parameters(4) },
        Call { name: "child_by_low", parameters: &Last::parameters(4) },
        Call { name: "child_by_whole", parameters: &Last::parameters(8) },
    ];

    fn is_in(call: usize, table: usize) -> bool {
        Last::is_in(call, table)
    }

    fn call<R>(self, with: impl FnOnce(usize, &[u64]) -> R) -> R {
        with(self.last.call(), &self.last.values())
    }

    fn of(call: usize, arguments: &[u64]) -> Option<Self> {
        Some(Self { last: Last::of(call, arguments.try_into().ok()?)? })
    }
}

//! Kind of a node, as entries say it of the nodes that they lead to.

use serde::{Deserialize, Serialize};

use super::declare::Number;

/// Kind of the node that an entry leads to: two flags that the packet carries from there on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// An inner node that the plan does not describe: the walk ends there, and the read is of the whole node.
    #[default]
    Undescribed = 0,
    /// An inner node, which may be cached further on.
    Inner = 1,
    /// A leaf: the walk ends there, and the read may be of a slice.
    Leaf = 2,
}

impl NodeKind {
    const ALL: [Self; 3] = [Self::Undescribed, Self::Inner, Self::Leaf];

    /// Number in the program.
    pub(super) const fn value(self) -> u64 {
        self as u64
    }

    /// Kind of this number; `None` if no entry of a controller has it.
    pub(super) fn of(value: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.value() == value)
    }
}

impl Number for NodeKind {
    const BYTES: usize = 1;
    fn encode(value: Self) -> u64 {
        value.value()
    }
    fn decode(number: u64) -> Option<Self> {
        Self::of(number)
    }
}

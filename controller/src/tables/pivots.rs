//! The last keys before three of four parts of a node, or of a quarter of it, as far as they are compared.

use fatbtree_p4runtime::LookupError;
use fatbtree_p4runtime::index::{ActionInfo, TableInfo};

/// What a key is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Last {
    /// High halves: the pivots' low halves are 0.
    High([u32; 3]),
    /// Low halves: all keys of the node have the same high half.
    Low([u32; 3]),
    /// Whole keys.
    Whole([u64; 3]),
}

impl Last {
    /// How many of them are below a key.
    pub fn below(&self, key: u64) -> usize {
        let (high, low) = ((key >> 32) as u32, key as u32);
        match self {
            Self::High(last) => last.iter().filter(|last| **last < high).count(),
            Self::Low(last) => last.iter().filter(|last| **last < low).count(),
            Self::Whole(last) => last.iter().filter(|last| **last < key).count(),
        }
    }

    /// Whether it is in the tables of whole keys.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }

    pub(super) fn values(&self) -> [u64; 3] {
        match *self {
            Self::High(last) | Self::Low(last) => last.map(u64::from),
            Self::Whole(last) => last,
        }
    }
}

/// The actions of a table, one for each way to compare.
#[derive(Clone, Debug)]
pub(super) enum Actions {
    Halves { high: ActionInfo, low: ActionInfo },
    Whole(ActionInfo),
}

impl Actions {
    /// `name_by_high` and `name_by_low`, or `name_by_whole`.
    pub(super) fn new(table: &TableInfo, name: &str, whole: bool) -> Result<Self, LookupError> {
        let action = |by: &str| table.action(&format!("{name}_by_{by}")).cloned();
        Ok(if whole {
            Self::Whole(action("whole")?)
        } else {
            Self::Halves { high: action("high")?, low: action("low")? }
        })
    }

    /// The action for what is compared. It belongs to the table, or entries cannot be built with it.
    pub(super) fn of(&self, last: &Last) -> &ActionInfo {
        match (self, last) {
            (Self::Halves { low, .. }, Last::Low(_)) => low,
            (Self::Halves { high, .. }, _) => high,
            (Self::Whole(whole), _) => whole,
        }
    }

    /// What an entry with this action compares; none if the action is none of these, or values are too wide.
    pub(super) fn read(&self, action: u32, values: [u64; 3]) -> Option<Last> {
        let halves = || {
            let narrow = |at: usize| u32::try_from(values[at]).ok();
            Some([narrow(0)?, narrow(1)?, narrow(2)?])
        };
        match self {
            Self::Halves { high, .. } if high.id == action => Some(Last::High(halves()?)),
            Self::Halves { low, .. } if low.id == action => Some(Last::Low(halves()?)),
            Self::Whole(whole) if whole.id == action => Some(Last::Whole(values)),
            _ => None,
        }
    }
}

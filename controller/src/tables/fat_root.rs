//! `fat_root_0` … `fat_root_3`: sub-table and 16-bit slice of the key → next sub-table and the slice that it looks at, or a child.

use super::declare::{self, Call, Field};
use super::found::{Reader, Writer};
use super::{NodeKind, TableError};
use crate::plan::STAGES;

/// Key of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Stage, 0 to 3.
    pub stage: u8,
    /// Sub-table, unique over all live epochs. It may stand in several stages: where one has no entry for a slice, the next is asked.
    pub sub_table: u16,
    /// First value of the slice.
    pub low: u16,
    /// Last value of the slice.
    pub high: u16,
    /// Higher wins; all 1 where ranges do not overlap.
    pub priority: u16,
}

/// Names in P4, by stage.
pub(crate) const TABLES: [&str; STAGES] = ["fat_root_0", "fat_root_1", "fat_root_2", "fat_root_3"];

impl declare::Key for Key {
    const TABLES: &'static [&'static str] = &TABLES;
    const FIELDS: &'static [Field] =
        &[Field::exact::<u16, u16>("sub_table"), Field::range::<u16, u16>("slice")];

    fn table(&self) -> usize {
        self.stage.into()
    }

    fn write(self, row: Writer<'_>) -> Writer<'_> {
        let row = row.exact::<u16, _>(self.sub_table).range::<u16, _>(self.low, self.high);
        row.priority(self.priority)
    }

    fn read(mut row: Reader<'_>) -> Result<Self, TableError> {
        let stage = row.table() as u8; // one of four
        let sub_table = row.exact::<u16, _>()?;
        let (low, high) = row.range::<u16, _>()?;
        Ok(Self { stage, sub_table, low, high, priority: row.priority()? })
    }
}

/// Action of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Go on in the next stages.
    NextTable {
        /// With this slice of the key, 1 to 3: bits 47..32, 31..16, 15..0. Lookups begin with slice 0, bits 63..48. It is at most the
        /// stage and one.
        slice: u8,
        /// And this sub-table.
        sub_table: u16,
    },
    /// This child.
    Land {
        /// Its address.
        address: u64,
        /// Its partition.
        partition: u16,
        /// Its kind.
        kind: NodeKind,
    },
}

/// Index in the actions of the one that lands; the others go on with the slice of their index, from 1.
const LAND: usize = 0;

impl declare::Action for Action {
    const CALLS: &'static [Call] = &[
        Call { name: "land", parameters: &[("address", 8), ("partition", 2), ("kind", 1)] },
        Call { name: "second_slice", parameters: &[("next", 2)] },
        Call { name: "third_slice", parameters: &[("next", 2)] },
        Call { name: "last_slice", parameters: &[("next", 2)] },
    ];

    /// A slice follows the one before it in a later stage, and nothing follows the last stage.
    fn is_in(call: usize, stage: usize) -> bool {
        call == LAND || stage + 1 < STAGES && call <= stage + 1
    }

    fn call<R>(self, with: impl FnOnce(usize, &[u64]) -> R) -> R {
        match self {
            // No table goes on with the first slice.
            Self::NextTable { slice: 0, .. } => with(usize::MAX, &[]),
            Self::NextTable { slice, sub_table } => with(slice.into(), &[sub_table.into()]),
            Self::Land { address, partition, kind } => with(LAND, &[address, partition.into(), kind.value()]),
        }
    }

    fn of(call: usize, arguments: &[u64]) -> Option<Self> {
        Some(match (call, arguments) {
            (LAND, &[address, partition, kind]) => {
                Self::Land { address, partition: partition.try_into().ok()?, kind: NodeKind::of(kind)? }
            }
            (slice, &[sub_table]) => {
                Self::NextTable { slice: slice.try_into().ok()?, sub_table: sub_table.try_into().ok()? }
            }
            _ => return None,
        })
    }
}

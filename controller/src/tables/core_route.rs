//! `core_route`: by which port index packets climb, by their path number; its default action says what they do where they do not climb.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The packet's path number, 0 to 63.
    pub path: u8,
}

/// Climb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Climb {
    /// The port.
    pub port: u16,
}

/// The default action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// This switch holds the fat root: look up that of this epoch. Epoch 0 with sub-table 0 is the empty one: no entry has
    /// them, so packets go down with the root of their partition.
    Descend {
        /// The epoch.
        epoch: u8,
        /// The sub-table of the first stage.
        sub_table: u16,
    },
    /// Index packets do not turn round here.
    NoAction,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    path: MatchFieldInfo,
    climb: ActionInfo,
    descend: ActionInfo,
    no_action: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        Ok(Self {
            path: table.field("path")?.clone(),
            climb: table.action("climb")?.clone(),
            descend: table.action("descend")?.clone(),
            no_action: table.action("NoAction")?.clone(),
            table: table.clone(),
        })
    }

    pub(super) fn info(&self) -> &TableInfo {
        &self.table
    }

    pub(super) fn entry(&self, key: Key, action: Option<Climb>) -> Result<TableEntry, EntryError> {
        let entry = self.table.entry().exact(&self.path, key.path.into());
        match action {
            None => entry,
            Some(Climb { port }) => entry.action(&self.climb, &[port.into()]),
        }
        .build()
    }

    pub(super) fn read_entry(&self, entry: &TableEntry) -> Result<(Key, Climb), TableError> {
        let path = narrow(&self.table, self.table.view(entry)?.exact(&self.path)?)?;
        let [port] = arguments(&self.table, entry, &self.climb)?;
        Ok((Key { path }, Climb { port: narrow(&self.table, port)? }))
    }

    /// The default action as it was read back; none if it is none of ours.
    pub(super) fn read(&self, entry: &TableEntry) -> Result<Option<Action>, EntryError> {
        let Some((action, params)) = self.table.view(entry)?.action()? else { return Ok(None) };
        let param = |at: usize| params.get(at).copied().unwrap_or(0);
        let found = if action.id == self.descend.id {
            u8::try_from(param(0))
                .ok()
                .zip(u16::try_from(param(1)).ok())
                .map(|(epoch, sub_table)| Action::Descend { epoch, sub_table })
        } else {
            (action.id == self.no_action.id).then_some(Action::NoAction)
        };
        Ok(found)
    }

    pub(super) fn default_entry(&self, action: Action) -> Result<TableEntry, EntryError> {
        match action {
            Action::Descend { epoch, sub_table } => {
                self.table.default_entry(&self.descend, &[epoch.into(), sub_table.into()])
            }
            Action::NoAction => self.table.default_entry(&self.no_action, &[]),
        }
    }
}

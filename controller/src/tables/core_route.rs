//! `core_route`: no key; its default action says whether index packets climb on, or turn round here.

use fatbtree_p4runtime::index::{ActionInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

/// The default action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Index packets climb through this port.
    Climb {
        /// The port.
        port: u16,
    },
    /// This switch is S_c: look up the fat root of this epoch. Epoch 0 with sub-table 0 is the empty one: no entry has
    /// them, so packets go down with the root of their partition.
    Descend {
        /// The epoch.
        epoch: u8,
        /// The sub-table of the first stage.
        sub_table: u16,
    },
    /// Index packets never pass here.
    NoAction,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    climb: ActionInfo,
    descend: ActionInfo,
    no_action: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        Ok(Self {
            climb: table.action("climb")?.clone(),
            descend: table.action("descend")?.clone(),
            no_action: table.action("NoAction")?.clone(),
            table: table.clone(),
        })
    }

    pub(super) fn info(&self) -> &TableInfo {
        &self.table
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
        } else if action.id == self.climb.id {
            u16::try_from(param(0)).ok().map(|port| Action::Climb { port })
        } else {
            (action.id == self.no_action.id).then_some(Action::NoAction)
        };
        Ok(found)
    }

    pub(super) fn default_entry(&self, action: Action) -> Result<TableEntry, EntryError> {
        match action {
            Action::Climb { port } => self.table.default_entry(&self.climb, &[port.into()]),
            Action::Descend { epoch, sub_table } => {
                self.table.default_entry(&self.descend, &[epoch.into(), sub_table.into()])
            }
            Action::NoAction => self.table.default_entry(&self.no_action, &[]),
        }
    }
}

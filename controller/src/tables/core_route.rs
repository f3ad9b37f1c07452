//! `core_route`: by which port index packets climb, by their path number; its default action says what they do where they do not climb.

use std::sync::OnceLock;

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError, P4InfoIndex};

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
    /// Index packets climb through this port, whatever their path number: in programs whose table has no key.
    Climb {
        /// The port.
        port: u16,
    },
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

/// Whether the table of the programs of this version has a key. Where it has none, all packets climb by the port of path 0, which is the
/// default action.
pub(crate) fn has_paths() -> bool {
    static HAS_PATHS: OnceLock<bool> = OnceLock::new();
    let found = || {
        let info = P4InfoIndex::from_text(fatbtree_p4::P4INFO).ok();
        info.is_some_and(|info| info.table("core_route").is_ok_and(|table| !table.fields.is_empty()))
    };
    cfg!(test) || *HAS_PATHS.get_or_init(found)
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    /// None where the table has no key.
    path: Option<MatchFieldInfo>,
    climb: ActionInfo,
    descend: ActionInfo,
    no_action: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        let path = if table.fields.is_empty() { None } else { Some(table.field("path")?.clone()) };
        Ok(Self {
            path,
            climb: table.action("climb")?.clone(),
            descend: table.action("descend")?.clone(),
            no_action: table.action("NoAction")?.clone(),
            table: table.clone(),
        })
    }

    pub(super) fn info(&self) -> &TableInfo {
        &self.table
    }

    pub(super) fn entry(&self, key: Key, action: Option<Climb>) -> Result<TableEntry, TableError> {
        let missing = || TableError::NoTable { table: "core_route with the key `path`".to_owned() };
        let entry = self.table.entry().exact(self.path.as_ref().ok_or_else(missing)?, key.path.into());
        let entry = match action {
            None => entry,
            Some(Climb { port }) => entry.action(&self.climb, &[port.into()]),
        };
        Ok(entry.build()?)
    }

    pub(super) fn read_entry(&self, entry: &TableEntry) -> Result<(Key, Climb), TableError> {
        let missing = || TableError::NoTable { table: "core_route with the key `path`".to_owned() };
        let path = self.path.as_ref().ok_or_else(missing)?;
        let path = narrow(&self.table, self.table.view(entry)?.exact(path)?)?;
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

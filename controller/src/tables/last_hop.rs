//! `last_hop`: ports that lead to hosts, where index packets become ordinary READs again.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The egress port.
    pub port: u16,
}

/// Take the index header off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// The UDP port of index packets between switches: what is added to a packet's port leads from there to RoCE's.
    pub in_flight_port: u16,
}

/// UDP port of RoCEv2.
const ROCE: u16 = 4791;

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    port: MatchFieldInfo,
    strip: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        let (port, strip) = (table.field("egress_port")?.clone(), table.action("strip")?.clone());
        Ok(Self { port, strip, table: table.clone() })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self.table.entry().exact(&self.port, key.port.into());
        match action {
            None => entry,
            Some(Action { in_flight_port }) => {
                entry.action(&self.strip, &[ROCE.wrapping_sub(in_flight_port).into()])
            }
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let port = narrow(&self.table, self.table.view(entry)?.exact(&self.port)?)?;
        let [to_roce] = arguments(&self.table, entry, &self.strip)?;
        let in_flight_port = ROCE.wrapping_sub(narrow(&self.table, to_roce)?);
        Ok((Key { port }, Action { in_flight_port }))
    }
}

//! The tables of the P4 program as the controller sees them: one file each, with a typed key and a typed action.
//!
//! ```text
//!  plan, base, connections ──▶ Entry (typed, Copy, ordered by key) ──Tables──▶ P4Runtime TableEntry (ids, byte strings)
//! ```
//!
//! [`Tables`] resolves names in a P4Info once; lowering an entry is then only copying numbers. A program compiled for one
//! role (a Tofino edge switch has no fat root) simply lacks some tables: using one of those is an error, having none is not.

pub mod child;
pub mod coarse;
pub mod core_route;
pub mod fat_root;
pub mod fine;
pub mod host_port;
pub mod hot_key;
pub mod ipv4_route;
pub mod last_hop;
pub mod loopback_port;
pub mod neighbor;
pub mod partition_route;
pub mod pivots;
pub mod roce_connection;
pub mod run;
pub mod traffic_class;
pub mod trunk_port;
pub mod way_back;

use std::cmp::Ordering;

use fatbtree_p4runtime::entry::{delete, insert, modify};
use fatbtree_p4runtime::index::{ActionInfo, P4InfoIndex, TableInfo};
use fatbtree_p4runtime::v1::{TableEntry, Update};
use fatbtree_p4runtime::{EntryError, LookupError};

pub use fatbtree_topology::NodeSet;

/// An entry that cannot be put into, or read from, the program's tables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The program has the table, but not as we know it.
    #[error(
        "the switch's P4 program does not fit this controller: {0}; compile p4/ anew, or use the controller of its version"
    )]
    Lookup(#[from] LookupError),
    /// A value does not fit.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// The program was compiled for another role.
    #[error("the switch's P4 program has no table `{table}`; it was compiled for another role")]
    NoTable {
        /// The table.
        table: String,
    },
    /// An entry read back is none of ours.
    #[error("entry of table `{table}`: {problem}")]
    Foreign {
        /// The table, by name or id.
        table: String,
        /// What was expected and what was found.
        problem: String,
    },
}

impl TableError {
    /// An entry with an action that the controller writes nowhere.
    fn foreign_action(table: &TableInfo) -> Self {
        let problem = "its action, or a value of it, is none that the controller writes".to_owned();
        Self::Foreign { table: table.name.clone(), problem }
    }
}

/// A typed table entry. Ordered by table, key, action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// A client's connection, at its first hop.
    RoceConnection(roce_connection::Key, roce_connection::Action),
    /// A key that is asked for often.
    HotKey(hot_key::Key, hot_key::Action),
    /// One range of a fat-root sub-table.
    FatRoot(fat_root::Key, fat_root::Action),
    /// A cached node: which quarter of it, and where its children lie.
    Coarse(coarse::Key, coarse::Action),
    /// A quarter of a cached node: which child.
    Fine(fine::Key, fine::Action),
    /// One child of cached nodes whose children lie at equal distances.
    Run(run::Key, run::Action),
    /// One child of a cached node whose children do not.
    Child(child::Key, child::Action),
    /// The way down to a partition.
    PartitionRoute(partition_route::Key, partition_route::Action),
    /// An ordinary route.
    Ipv4Route(ipv4_route::Key, ipv4_route::Action),
    /// A port that leads to a host.
    LastHop(last_hop::Key, last_hop::Action),
    /// The way up for index packets of one path number.
    CoreRoute(core_route::Key, core_route::Climb),
    /// Who is behind a port.
    HostPort(host_port::Key, host_port::Action),
    /// A port that leads to another switch.
    TrunkPort(trunk_port::Key, trunk_port::Action),
    /// Who has an address.
    Neighbor(neighbor::Key, neighbor::Action),
    /// Where packets of a code point wait.
    TrafficClass(traffic_class::Key, traffic_class::Action),
    /// Where index packets of one path number pass a switch a second time.
    LoopbackPort(loopback_port::Key, loopback_port::Action),
    /// The way from the second pass to a partition.
    WayBack(way_back::Key, way_back::Action),
}

impl Entry {
    /// Compares tables and keys only.
    pub fn cmp_keys(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::RoceConnection(a, _), Self::RoceConnection(b, _)) => a.cmp(b),
            (Self::HotKey(a, _), Self::HotKey(b, _)) => a.cmp(b),
            (Self::FatRoot(a, _), Self::FatRoot(b, _)) => a.cmp(b),
            (Self::Coarse(a, _), Self::Coarse(b, _)) => a.cmp(b),
            (Self::Fine(a, _), Self::Fine(b, _)) => a.cmp(b),
            (Self::Run(a, _), Self::Run(b, _)) => a.cmp(b),
            (Self::Child(a, _), Self::Child(b, _)) => a.cmp(b),
            (Self::PartitionRoute(a, _), Self::PartitionRoute(b, _)) => a.cmp(b),
            (Self::Ipv4Route(a, _), Self::Ipv4Route(b, _)) => a.cmp(b),
            (Self::LastHop(a, _), Self::LastHop(b, _)) => a.cmp(b),
            (Self::CoreRoute(a, _), Self::CoreRoute(b, _)) => a.cmp(b),
            (Self::HostPort(a, _), Self::HostPort(b, _)) => a.cmp(b),
            (Self::TrunkPort(a, _), Self::TrunkPort(b, _)) => a.cmp(b),
            (Self::Neighbor(a, _), Self::Neighbor(b, _)) => a.cmp(b),
            (Self::TrafficClass(a, _), Self::TrafficClass(b, _)) => a.cmp(b),
            (Self::LoopbackPort(a, _), Self::LoopbackPort(b, _)) => a.cmp(b),
            (Self::WayBack(a, _), Self::WayBack(b, _)) => a.cmp(b),
            _ => self.cmp(other), // different tables: the variant decides
        }
    }

    /// Bytes of an entry of a plan: key and action data, every field in whole bytes. Entries that are there with any plan, or none,
    /// count nothing.
    pub fn bytes(&self) -> usize {
        let last = |whole: bool| 3 * if whole { 8 } else { 4 };
        match self {
            Self::HotKey(..) => {
                let (server_key_and_kind, address) = (4 + 8 + 1, 8);
                server_key_and_kind + address
            }
            Self::FatRoot(_, action) => {
                let sub_table_and_slice = 2 + 2 + 2;
                sub_table_and_slice
                    + match action {
                        fat_root::Action::NextTable { .. } => 2,
                        fat_root::Action::Land { .. } => 8 + 2 + 1,
                    }
            }
            Self::Coarse(key, _) => {
                let (epoch_and_address, slot_first_child_stride_and_inner) = (1 + 8, 2 + 6 + 1 + 1);
                epoch_and_address + last(key.whole) + slot_first_child_stride_and_inner
            }
            Self::Fine(key, _) => {
                let epoch_slot_and_quarter = 1 + 2 + 1;
                epoch_slot_and_quarter + last(key.whole)
            }
            Self::Run(..) => {
                let (stride_and_branch, distance) = (1 + 1, 4);
                stride_and_branch + distance
            }
            Self::Child(..) => {
                let (epoch_slot_and_branch, offset) = (1 + 2 + 1, 6);
                epoch_slot_and_branch + offset
            }
            Self::RoceConnection(..)
            | Self::PartitionRoute(..)
            | Self::Ipv4Route(..)
            | Self::LastHop(..)
            | Self::CoreRoute(..)
            | Self::HostPort(..)
            | Self::TrunkPort(..)
            | Self::Neighbor(..)
            | Self::TrafficClass(..)
            | Self::LoopbackPort(..)
            | Self::WayBack(..) => 0,
        }
    }

    /// The P4 table's name, as far as the controller needs it.
    pub fn table(&self) -> String {
        match self {
            Self::RoceConnection(..) => "roce_connection".to_owned(),
            Self::HotKey(..) => "hot_key".to_owned(),
            Self::FatRoot(key, _) => format!("fat_root_{}", key.stage),
            Self::Coarse(key, _) => format!("{}.{}", key.set.name(), COARSE[usize::from(key.whole)]),
            Self::Fine(key, _) => format!("{}.{}", key.set.name(), FINE[usize::from(key.whole)]),
            Self::Run(key, _) => format!("{}.run", key.set.name()),
            Self::Child(key, _) => format!("{}.child", key.set.name()),
            Self::PartitionRoute(..) => "partition_route".to_owned(),
            Self::Ipv4Route(..) => "ipv4_route".to_owned(),
            Self::LastHop(..) => "last_hop".to_owned(),
            Self::CoreRoute(..) => "core_route".to_owned(),
            Self::HostPort(..) => "host_port".to_owned(),
            Self::TrunkPort(..) => "trunk_port".to_owned(),
            Self::Neighbor(..) => "neighbor".to_owned(),
            Self::TrafficClass(..) => "traffic_class".to_owned(),
            Self::LoopbackPort(..) => "loopback_port".to_owned(),
            Self::WayBack(..) => "way_back".to_owned(),
        }
    }
}

/// One change of a switch's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new entry.
    Insert(Entry),
    /// Another action for an entry that is there.
    Modify(Entry),
    /// An entry that goes; only its key counts.
    Delete(Entry),
    /// Another default action of `core_route`.
    CoreRoute(core_route::Action),
}

impl Change {
    /// The P4Runtime update.
    ///
    /// # Errors
    /// The program has no such table.
    pub fn update(&self, tables: &Tables) -> Result<Update, TableError> {
        Ok(match self {
            Self::Insert(entry) => insert(tables.entry(entry)?),
            Self::Modify(entry) => modify(tables.entry(entry)?),
            Self::Delete(entry) => delete(tables.key(entry)?),
            Self::CoreRoute(action) => modify(tables.core_route(*action)?),
        })
    }
}

/// The tables of one compiled program, resolved by name.
#[derive(Clone, Debug)]
pub struct Tables {
    roce_connection: Option<roce_connection::Table>,
    hot_key: Option<hot_key::Table>,
    core_route: Option<core_route::Table>,
    fat_root: [Option<fat_root::Table>; 4],
    /// By set; halves and whole keys.
    coarse: [[Option<coarse::Table>; 2]; SETS],
    fine: [[Option<fine::Table>; 2]; SETS],
    run: [Option<run::Table>; SETS],
    child: [Option<child::Table>; SETS],
    partition_route: Option<partition_route::Table>,
    ipv4_route: Option<ipv4_route::Table>,
    last_hop: Option<last_hop::Table>,
    host_port: Option<host_port::Table>,
    trunk_port: Option<trunk_port::Table>,
    neighbor: Option<neighbor::Table>,
    traffic_class: Option<traffic_class::Table>,
    loopback_port: Option<loopback_port::Table>,
    way_back: Option<way_back::Table>,
    by_id: std::collections::BTreeMap<u32, Which>,
}

#[derive(Clone, Copy, Debug)]
enum Which {
    RoceConnection,
    HotKey,
    FatRoot(u8),
    /// Set, and whether of whole keys.
    Coarse(NodeSet, bool),
    Fine(NodeSet, bool),
    Run(NodeSet),
    Child(NodeSet),
    PartitionRoute,
    Ipv4Route,
    LastHop,
    CoreRoute,
    HostPort,
    TrunkPort,
    Neighbor,
    TrafficClass,
    LoopbackPort,
    WayBack,
}

/// Node sets of a program.
const SETS: usize = NodeSet::ALL.len();
/// Tables of halves, and of whole keys.
const COARSE: [&str; 2] = ["coarse", "coarse_whole"];
const FINE: [&str; 2] = ["fine", "fine_whole"];

/// `Ok(None)` when the program has no such table, an error when it has another one of that name.
fn optional<T>(
    index: &P4InfoIndex,
    name: &str,
    resolve: impl FnOnce(&TableInfo) -> Result<T, LookupError>,
) -> Result<Option<T>, LookupError> {
    if index.has_table(name) { resolve(index.table(name)?).map(Some) } else { Ok(None) }
}

/// The action `name`, or `name_number` in tables that are there several times (P4 macros name them so).
fn numbered_action(table: &TableInfo, name: &str, number: u8) -> Result<ActionInfo, LookupError> {
    table.action(&format!("{name}_{number}")).or_else(|_| table.action(name)).cloned()
}

impl Tables {
    /// Finds the tables of a program.
    ///
    /// # Errors
    /// A table that lacks a field or an action that we need.
    pub fn new(index: &P4InfoIndex) -> Result<Self, TableError> {
        let mut by_id = std::collections::BTreeMap::new();
        let mut note = |name: &str, which: Which| {
            if let Ok(table) = index.table(name) {
                by_id.insert(table.id, which);
            }
        };
        note("roce_connection", Which::RoceConnection);
        note("hot_key", Which::HotKey);
        note("partition_route", Which::PartitionRoute);
        note("ipv4_route", Which::Ipv4Route);
        note("last_hop", Which::LastHop);
        note("core_route", Which::CoreRoute);
        note("host_port", Which::HostPort);
        note("trunk_port", Which::TrunkPort);
        note("neighbor", Which::Neighbor);
        note("traffic_class", Which::TrafficClass);
        note("loopback_port", Which::LoopbackPort);
        note("way_back", Which::WayBack);
        let mut fat_root = [const { None }; 4];
        for (stage, slot) in (0u8..).zip(&mut fat_root) {
            let name = format!("fat_root_{stage}");
            note(&name, Which::FatRoot(stage));
            *slot = optional(index, &name, |table| fat_root::Table::new(table, stage))?;
        }
        let mut coarse = [const { [const { None }; 2] }; SETS];
        let mut fine = [const { [const { None }; 2] }; SETS];
        let (mut run, mut child) = ([const { None }; SETS], [const { None }; SETS]);
        for set in NodeSet::ALL {
            let at = set as usize;
            let name = |table: &str| format!("{}.{table}", set.name());
            for whole in [false, true] {
                let (of_coarse, of_fine) = (name(COARSE[usize::from(whole)]), name(FINE[usize::from(whole)]));
                note(&of_coarse, Which::Coarse(set, whole));
                note(&of_fine, Which::Fine(set, whole));
                coarse[at][usize::from(whole)] =
                    optional(index, &of_coarse, |table| coarse::Table::new(table, whole))?;
                fine[at][usize::from(whole)] =
                    optional(index, &of_fine, |table| fine::Table::new(table, whole))?;
            }
            note(&name("run"), Which::Run(set));
            run[at] = optional(index, &name("run"), run::Table::new)?;
            note(&name("child"), Which::Child(set));
            child[at] = optional(index, &name("child"), child::Table::new)?;
        }
        Ok(Self {
            roce_connection: optional(index, "roce_connection", roce_connection::Table::new)?,
            hot_key: optional(index, "hot_key", hot_key::Table::new)?,
            core_route: optional(index, "core_route", core_route::Table::new)?,
            fat_root,
            coarse,
            fine,
            run,
            child,
            partition_route: optional(index, "partition_route", partition_route::Table::new)?,
            ipv4_route: optional(index, "ipv4_route", ipv4_route::Table::new)?,
            last_hop: optional(index, "last_hop", last_hop::Table::new)?,
            host_port: optional(index, "host_port", host_port::Table::new)?,
            trunk_port: optional(index, "trunk_port", trunk_port::Table::new)?,
            neighbor: optional(index, "neighbor", neighbor::Table::new)?,
            traffic_class: optional(index, "traffic_class", traffic_class::Table::new)?,
            loopback_port: optional(index, "loopback_port", loopback_port::Table::new)?,
            way_back: optional(index, "way_back", way_back::Table::new)?,
            by_id,
        })
    }

    /// The P4Runtime entry, key and action.
    ///
    /// # Errors
    /// The program has no such table.
    pub fn entry(&self, entry: &Entry) -> Result<TableEntry, TableError> {
        self.lower(entry, true)
    }

    /// The P4Runtime entry without an action, for deleting.
    ///
    /// # Errors
    /// The program has no such table.
    pub fn key(&self, entry: &Entry) -> Result<TableEntry, TableError> {
        self.lower(entry, false)
    }

    /// Whether index packets pass a switch with this program a second time, by ports in loopback mode.
    pub(crate) fn has_second_pass(&self) -> bool {
        self.loopback_port.is_some()
    }

    /// Whether the controller writes entries of this table.
    pub(crate) fn is_ours(&self, table: &TableInfo) -> bool {
        self.by_id.contains_key(&table.id)
    }

    /// `core_route`, whose default entry says which epoch is in force; none where the program has no such table.
    pub fn core_route_info(&self) -> Option<&TableInfo> {
        self.core_route.as_ref().map(core_route::Table::info)
    }

    /// The default action of `core_route` as it was read back; none if it is none of ours.
    ///
    /// # Errors
    /// An entry that is none of `core_route`.
    pub fn read_core_route(&self, entry: &TableEntry) -> Result<Option<core_route::Action>, TableError> {
        let table = self.core_route.as_ref().ok_or(TableError::NoTable { table: "core_route".to_owned() })?;
        Ok(table.read(entry)?)
    }

    /// The entry that sets the default action of `core_route`.
    ///
    /// # Errors
    /// The program has no such table.
    pub fn core_route(&self, action: core_route::Action) -> Result<TableEntry, TableError> {
        let table = self.core_route.as_ref().ok_or(TableError::NoTable { table: "core_route".to_owned() })?;
        Ok(table.default_entry(action)?)
    }

    #[inline]
    fn lower(&self, entry: &Entry, with_action: bool) -> Result<TableEntry, TableError> {
        let missing = || TableError::NoTable { table: entry.table() };
        let built = match entry {
            Entry::RoceConnection(key, action) => {
                self.roce_connection.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::HotKey(key, action) => {
                self.hot_key.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::FatRoot(key, action) => {
                let table =
                    self.fat_root.get(usize::from(key.stage)).and_then(Option::as_ref).ok_or_else(missing)?;
                table.entry(*key, with_action.then_some(*action))
            }
            Entry::Coarse(key, action) => {
                let table = self.coarse[key.set as usize][usize::from(key.whole)].as_ref();
                table.ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::Fine(key, action) => {
                let table = self.fine[key.set as usize][usize::from(key.whole)].as_ref();
                table.ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::Run(key, action) => {
                let table = self.run[key.set as usize].as_ref().ok_or_else(missing)?;
                table.entry(*key, with_action.then_some(*action))
            }
            Entry::Child(key, action) => {
                let table = self.child[key.set as usize].as_ref().ok_or_else(missing)?;
                table.entry(*key, with_action.then_some(*action))
            }
            Entry::PartitionRoute(key, action) => {
                self.partition_route.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::Ipv4Route(key, action) => {
                self.ipv4_route.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::CoreRoute(key, action) => {
                self.core_route.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::LastHop(key, action) => {
                self.last_hop.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::HostPort(key, action) => {
                self.host_port.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::TrunkPort(key, action) => {
                self.trunk_port.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::Neighbor(key, action) => {
                self.neighbor.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::TrafficClass(key, action) => {
                self.traffic_class.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::LoopbackPort(key, action) => {
                self.loopback_port.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
            Entry::WayBack(key, action) => {
                self.way_back.as_ref().ok_or_else(missing)?.entry(*key, with_action.then_some(*action))
            }
        };
        Ok(built?)
    }

    /// Reads an entry back; `None` for a table that is not the controller's (such as `coarse_compare_1`).
    ///
    /// # Errors
    /// An entry of one of our tables that we cannot have written.
    pub fn read(&self, entry: &TableEntry) -> Result<Option<Entry>, TableError> {
        let Some(which) = self.by_id.get(&entry.table_id).filter(|_| !entry.is_default_action) else {
            return Ok(None);
        };
        let missing = || TableError::NoTable { table: format!("{:#x}", entry.table_id) };
        Ok(Some(match *which {
            Which::RoceConnection => {
                let (key, action) = self.roce_connection.as_ref().ok_or_else(missing)?.read(entry)?;
                Entry::RoceConnection(key, action)
            }
            Which::HotKey => {
                let (key, action) = self.hot_key.as_ref().ok_or_else(missing)?.read(entry)?;
                Entry::HotKey(key, action)
            }
            Which::FatRoot(stage) => {
                let table = self.fat_root[usize::from(stage)].as_ref().ok_or_else(missing)?;
                let (key, action) = table.read(entry)?;
                Entry::FatRoot(key, action)
            }
            Which::Coarse(set, whole) => {
                let table = self.coarse[set as usize][usize::from(whole)].as_ref();
                let (key, action) = table.ok_or_else(missing)?.read(entry, set, whole)?;
                Entry::Coarse(key, action)
            }
            Which::Fine(set, whole) => {
                let table = self.fine[set as usize][usize::from(whole)].as_ref();
                let (key, action) = table.ok_or_else(missing)?.read(entry, set, whole)?;
                Entry::Fine(key, action)
            }
            Which::Run(set) => {
                let (key, action) = self.run[set as usize].as_ref().ok_or_else(missing)?.read(entry, set)?;
                Entry::Run(key, action)
            }
            Which::Child(set) => {
                let (key, action) =
                    self.child[set as usize].as_ref().ok_or_else(missing)?.read(entry, set)?;
                Entry::Child(key, action)
            }
            Which::PartitionRoute => {
                let (key, action) = self.partition_route.as_ref().ok_or_else(missing)?.read(entry)?;
                Entry::PartitionRoute(key, action)
            }
            Which::Ipv4Route => {
                let (key, action) = self.ipv4_route.as_ref().ok_or_else(missing)?.read(entry)?;
                Entry::Ipv4Route(key, action)
            }
            Which::CoreRoute => {
                let (key, action) = self.core_route.as_ref().ok_or_else(missing)?.read_entry(entry)?;
                Entry::CoreRoute(key, action)
            }
            Which::LastHop => {
                let (key, action) = self.last_hop.as_ref().ok_or_else(missing)?.read(entry)?;
                Entry::LastHop(key, action)
            }
            Which::HostPort => {
                let (key, action) = self.host_port.as_ref().ok_or_else(missing)?.read(entry)?;
                Entry::HostPort(key, action)
            }
            Which::TrunkPort => {
                let (key, action) = self.trunk_port.as_ref().ok_or_else(missing)?.read(entry)?;
                Entry::TrunkPort(key, action)
            }
            Which::Neighbor => {
                let (key, action) = self.neighbor.as_ref().ok_or_else(missing)?.read(entry)?;
                Entry::Neighbor(key, action)
            }
            Which::TrafficClass => {
                let (key, action) = self.traffic_class.as_ref().ok_or_else(missing)?.read(entry)?;
                Entry::TrafficClass(key, action)
            }
            Which::LoopbackPort => {
                let (key, action) = self.loopback_port.as_ref().ok_or_else(missing)?.read(entry)?;
                Entry::LoopbackPort(key, action)
            }
            Which::WayBack => {
                let (key, action) = self.way_back.as_ref().ok_or_else(missing)?.read(entry)?;
                Entry::WayBack(key, action)
            }
        }))
    }
}

/// The action that an entry read back has, and its arguments.
fn action_of<const N: usize>(table: &TableInfo, entry: &TableEntry) -> Result<(u32, [u64; N]), TableError> {
    let (action, _) = table.view(entry)?.action()?.ok_or_else(|| TableError::foreign_action(table))?;
    Ok((action.id, arguments(table, entry, &action.clone())?))
}

/// The arguments of the action that an entry read back must have.
fn arguments<const N: usize>(
    table: &TableInfo,
    entry: &TableEntry,
    expected: &ActionInfo,
) -> Result<[u64; N], TableError> {
    let foreign = |problem: String| TableError::Foreign { table: table.name.clone(), problem };
    let (action, values) = table
        .view(entry)?
        .action()?
        .ok_or_else(|| foreign(format!("expected action `{}`, found none", expected.name)))?;
    let values: Vec<u64> = values.into_iter().filter_map(|value| u64::try_from(value).ok()).collect();
    if action.id != expected.id {
        return Err(foreign(format!("expected action `{}`, found `{}`", expected.name, action.name)));
    }
    let count = values.len();
    values
        .try_into()
        .map_err(|_| foreign(format!("expected {N} arguments of at most 64 bits, found {count}")))
}

/// A value read back in the width it was written in: the bit width of the P4Info was checked already.
fn narrow<T: TryFrom<u128>>(table: &TableInfo, value: impl Into<u128>) -> Result<T, TableError> {
    let value = value.into();
    T::try_from(value).map_err(|_| TableError::Foreign {
        table: table.name.clone(),
        problem: format!("value {value:#x} is wider than the controller writes"),
    })
}

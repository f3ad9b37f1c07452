//! The tables of the P4 program as the controller sees them: one file each, with a typed key and a typed action.
//!
//! ```text
//!  plan, base, connections ──▶ Entry (typed, Copy, ordered by key) ──Tables──▶ P4Runtime TableEntry (ids, byte strings)
//! ```
//!
//! A table is declared once: its key and action in its own file, and a line in the list of [`Entry`]. Names, order, sizes,
//! encoding and decoding follow from that (see `declare.rs`).
//!
//! [`Tables`] resolves names in a P4Info once; lowering an entry is then only copying numbers. A program compiled for one
//! role (a Tofino edge switch has no fat root) simply lacks some tables: using one of those is an error, having none is not.

pub mod child;
pub mod coarse;
pub mod core_route;
mod declare;
pub mod fat_root;
pub mod fine;
mod found;
pub mod host_port;
pub mod hot_key;
pub mod ipv4_route;
pub mod last_hop;
pub mod loopback_port;
pub mod neighbor;
mod node_kind;
pub mod partition_route;
pub mod pivots;
pub mod roce_connection;
pub mod run;
pub mod traffic_class;
pub mod trunk_port;
pub mod way_back;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use fatbtree_p4runtime::entry::{delete, insert, modify};
use fatbtree_p4runtime::index::{P4InfoIndex, TableInfo};
use fatbtree_p4runtime::v1::{TableEntry, Update};
use fatbtree_p4runtime::{EntryError, LookupError};

pub use fatbtree_topology::NodeSet;
pub use node_kind::NodeKind;

use declare::{Action as _, Key as _};
use found::Table;

/// An entry that cannot be put into, or read from, the program's tables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The program has the table, but not as we know it.
    #[error(
        "the switch's P4 program does not fit this controller: {0}; compile p4/ anew, or use the controller of its version"
    )]
    Lookup(#[from] LookupError),
    /// The program's table has another key, or an action of it other parameters.
    #[error(
        "the switch's P4 program does not fit this controller: table `{table}`: {problem}; compile p4/ anew, or use the controller of its version"
    )]
    Differs {
        /// The table.
        table: String,
        /// The expected and the found value.
        problem: String,
    },
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
        /// The expected and the found value.
        problem: String,
    },
}

macro_rules! is_planned {
    (planned) => {
        true
    };
    (fixed) => {
        false
    };
}

/// Makes [`Entry`] from a list of the tables: `planned` ones hold what a plan caches, `fixed` ones are there with any plan.
macro_rules! entries {
    ($($(#[$meta:meta])* $life:ident $Table:ident($Key:ty, $Action:ty),)*) => {
        /// A typed table entry. Ordered by table, key, action.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Entry {
            $($(#[$meta])* $Table($Key, $Action),)*
        }

        /// The kinds of entries, by number.
        enum Kind {
            $($Table,)*
        }

        /// Names in P4 of the tables of each kind.
        const KINDS: &[&[&str]] = &[$(<$Key>::TABLES,)*];

        impl Entry {
            /// Compares tables and keys only.
            pub fn cmp_keys(&self, other: &Self) -> Ordering {
                match (self, other) {
                    $((Self::$Table(a, _), Self::$Table(b, _)) => a.cmp(b),)*
                    _ => self.cmp(other), // different tables: the variant decides
                }
            }

            /// Bytes of an entry of a plan: key and action data, every field in whole bytes. Entries that are there with any plan, or
            /// none, count nothing.
            pub fn bytes(&self) -> usize {
                match self {
                    $(Self::$Table(_, action) if is_planned!($life) => <$Key>::bytes() + action.bytes(),)*
                    _ => 0,
                }
            }

            /// Its table's index in [`NAMES`]; `None` if no table holds such a key.
            pub(crate) fn place(&self) -> Option<usize> {
                let (kind, at) = match self {
                    $(Self::$Table(key, _) => (Kind::$Table as usize, key.table()),)*
                };
                (at < KINDS[kind].len()).then(|| FIRST[kind] + at)
            }

            #[inline]
            fn lower(&self, table: &Table, with_action: bool) -> Result<TableEntry, TableError> {
                match self {
                    $(Self::$Table(key, action) => table.lower(*key, with_action.then_some(*action)),)*
                }
            }
        }

        /// All declared tables that the program has, in the order of [`NAMES`].
        fn find(index: &P4InfoIndex) -> Result<Vec<Option<Found>>, TableError> {
            let mut found = Vec::with_capacity(NAMES.len());
            $(for (place, name) in <$Key>::TABLES.iter().enumerate() {
                let read: Read = |table, entry| {
                    let (key, action) = table.read(entry)?;
                    Ok(Entry::$Table(key, action))
                };
                let table = optional(index, name, |info| Table::new::<$Key, $Action>(info, place))?;
                found.push(table.map(|table| Found { table, read }));
            })*
            Ok(found)
        }
    };
}

entries! {
    /// A client's connection, at its first hop.
    fixed RoceConnection(roce_connection::Key, roce_connection::Action),
    /// A key that is asked for often.
    planned HotKey(hot_key::Key, hot_key::Action),
    /// One range of a fat-root sub-table.
    planned FatRoot(fat_root::Key, fat_root::Action),
    /// A cached node: which quarter of it, and where its children lie.
    planned Coarse(coarse::Key, coarse::Action),
    /// A quarter of a cached node: which child.
    planned Fine(fine::Key, fine::Action),
    /// One child of cached nodes whose children lie at equal distances.
    planned Run(run::Key, run::Action),
    /// One child of a cached node whose children do not.
    planned Child(child::Key, child::Action),
    /// The way down to a partition.
    fixed PartitionRoute(partition_route::Key, partition_route::Action),
    /// An ordinary route.
    fixed Ipv4Route(ipv4_route::Key, ipv4_route::Action),
    /// A port that leads to a host.
    fixed LastHop(last_hop::Key, last_hop::Action),
    /// The way up for index packets of one path number.
    fixed CoreRoute(core_route::Key, core_route::Climb),
    /// The host behind a port.
    fixed HostPort(host_port::Key, host_port::Action),
    /// A port that leads to another switch.
    fixed TrunkPort(trunk_port::Key, trunk_port::Action),
    /// The owner of an address.
    fixed Neighbor(neighbor::Key, neighbor::Action),
    /// Queue of packets of a code point.
    fixed TrafficClass(traffic_class::Key, traffic_class::Action),
    /// Port of the second pass of index packets with one path number.
    fixed LoopbackPort(loopback_port::Key, loopback_port::Action),
    /// The way from the second pass to a partition.
    fixed WayBack(way_back::Key, way_back::Action),
}

impl Entry {
    /// The P4 table's name, as far as the controller needs it.
    pub fn table(&self) -> &'static str {
        self.place().map_or("(none that holds this key)", |place| NAMES[place])
    }
}

/// Index in [`NAMES`] of the first table of each kind.
const FIRST: [usize; KINDS.len()] = {
    let mut first = [0; KINDS.len()];
    let mut kind = 1;
    while kind < KINDS.len() {
        first[kind] = first[kind - 1] + KINDS[kind - 1].len();
        kind += 1;
    }
    first
};

/// Names in P4 of all tables that the controller writes, in the order of [`Entry`].
pub(crate) const NAMES: [&str; FIRST[KINDS.len() - 1] + KINDS[KINDS.len() - 1].len()] = {
    let mut names = [""; FIRST[KINDS.len() - 1] + KINDS[KINDS.len() - 1].len()];
    let mut kind = 0;
    while kind < KINDS.len() {
        let mut at = 0;
        while at < KINDS[kind].len() {
            names[FIRST[kind] + at] = KINDS[kind][at];
            at += 1;
        }
        kind += 1;
    }
    names
};

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

type Read = fn(&Table, &TableEntry) -> Result<Entry, TableError>;

/// A table of a program, and how its entries are read back.
#[derive(Clone, Debug)]
struct Found {
    table: Table,
    read: Read,
}

/// The tables of one compiled program, resolved by name.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Tables in the order of [`NAMES`].
    all: Vec<Option<Found>>,
    /// Indices of those that are there, by the tables' ids.
    by_id: BTreeMap<u32, usize>,
    /// `core_route` with its default actions.
    core_route: Option<Table>,
}

/// `Ok(None)` when the program has no such table, an error when it has another one of that name.
fn optional<T>(
    index: &P4InfoIndex,
    name: &str,
    resolve: impl FnOnce(&TableInfo) -> Result<T, TableError>,
) -> Result<Option<T>, TableError> {
    if index.has_table(name) { resolve(index.table(name)?).map(Some) } else { Ok(None) }
}

impl Tables {
    /// Finds the tables of a program.
    ///
    /// # Errors
    /// A table that lacks a field or an action that we need, or has another one.
    pub fn new(index: &P4InfoIndex) -> Result<Self, TableError> {
        let all = find(index)?;
        let ids = all.iter().enumerate();
        let by_id = ids.filter_map(|(at, found)| Some((found.as_ref()?.table.info().id, at))).collect();
        let core_route =
            optional(index, "core_route", |info| Table::new::<core_route::Key, core_route::Action>(info, 0))?;
        Ok(Self { all, by_id, core_route })
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
        self.by_id.values().any(|at| loopback_port::Key::TABLES.contains(&NAMES[*at]))
    }

    /// Whether the controller writes entries of this table.
    pub(crate) fn is_ours(&self, table: &TableInfo) -> bool {
        self.by_id.contains_key(&table.id)
    }

    /// `core_route`, whose default entry says which epoch is active; none where the program has no such table.
    pub fn core_route_info(&self) -> Option<&TableInfo> {
        self.core_route.as_ref().map(Table::info)
    }

    /// The default action of `core_route` as it was read back; none if it is none of ours.
    ///
    /// # Errors
    /// An entry that is none of `core_route`.
    pub fn read_core_route(&self, entry: &TableEntry) -> Result<Option<core_route::Action>, TableError> {
        self.needs_core_route()?.read_action(entry)
    }

    /// The entry that sets the default action of `core_route`.
    ///
    /// # Errors
    /// The program has no such table.
    pub fn core_route(&self, action: core_route::Action) -> Result<TableEntry, TableError> {
        self.needs_core_route()?.default_entry(action)
    }

    fn needs_core_route(&self) -> Result<&Table, TableError> {
        self.core_route.as_ref().ok_or_else(|| TableError::NoTable { table: "core_route".to_owned() })
    }

    #[inline]
    fn lower(&self, entry: &Entry, with_action: bool) -> Result<TableEntry, TableError> {
        let found = entry.place().and_then(|place| self.all[place].as_ref());
        let found = found.ok_or_else(|| TableError::NoTable { table: entry.table().to_owned() })?;
        entry.lower(&found.table, with_action)
    }

    /// Reads an entry back; `None` for a table that is not the controller's (such as `coarse_compare_1`).
    ///
    /// # Errors
    /// An entry of one of our tables that we cannot have written.
    pub fn read(&self, entry: &TableEntry) -> Result<Option<Entry>, TableError> {
        let at = self.by_id.get(&entry.table_id).filter(|_| !entry.is_default_action);
        let found = at.and_then(|at| self.all[*at].as_ref());
        found.map(|found| (found.read)(&found.table, entry)).transpose()
    }
}

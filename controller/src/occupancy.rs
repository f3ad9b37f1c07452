//! Use of the tables of a switch.
//!
//! ```text
//!   Observed ──Observed::counts()──► Counts ──Program::occupancy()──► Vec<TableUse>
//!   (entries)                (a number per table)             (beside what each table has room for)
//! ```

use fatbtree_p4runtime::index::MatchKind;
use serde::{Deserialize, Serialize};

use crate::plan::{STAGES, tcam_rows};
use crate::program::Program;
use crate::tables::{Entry, NAMES, fat_root};

/// Memory in which a table's keys are matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Ranges, prefixes and masks.
    Tcam,
    /// Exact keys.
    Sram,
}

/// Used amount and room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Used amount.
    pub used: usize,
    /// For how much there is room.
    pub size: usize,
}

impl Room {
    /// Used share, 0 to 1. A table without room is full.
    pub fn share(self) -> f64 {
        if self.size == 0 { 1.0 } else { self.used as f64 / self.size as f64 }
    }
}

/// Use of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableUse {
    /// Its name in P4, as far as the controller needs it.
    pub table: String,
    /// Kind of memory that its keys take.
    pub memory: Memory,
    /// Entries, of all epochs.
    pub entries: Room,
    /// TCAM rows of a table of ranges, where the chip's are known: a range takes up to 7.
    pub rows: Option<Room>,
}

impl TableUse {
    /// Used share, 0 to 1: of entries or of rows, whichever is higher.
    pub fn share(&self) -> f64 {
        self.rows.map_or(0.0, Room::share).max(self.entries.share())
    }

    /// The fullest of the tables in a memory; of those that may be fuller or less full, which `core_route` is not: it has an entry for each
    /// path, or none.
    pub fn fullest(tables: &[Self], memory: Memory) -> Option<&Self> {
        let those = tables.iter().filter(|table| table.memory == memory && table.table != "core_route");
        those.max_by(|a, b| a.share().total_cmp(&b.share()))
    }
}

/// Entries of each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Entries in the order of [`NAMES`].
    entries: [usize; NAMES.len()],
    /// TCAM rows that the entries of each stage of the fat root take.
    rows: [usize; STAGES],
}

impl Default for Counts {
    fn default() -> Self {
        Self { entries: [0; NAMES.len()], rows: [0; STAGES] }
    }
}

impl Counts {
    pub(crate) fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut counts = Self::default();
        for entry in entries {
            let Some(place) = entry.place() else { continue };
            counts.entries[place] += 1;
            if let Entry::FatRoot(key, _) = entry {
                counts.rows[usize::from(key.stage)] += tcam_rows(key.low.into(), key.high.into());
            }
        }
        counts
    }
}

impl Program {
    /// Occupancy of the tables of a switch that runs this program and holds these entries. Tables that the program lacks are left out.
    pub fn occupancy(&self, counts: &Counts) -> Vec<TableUse> {
        let used = NAMES.iter().zip(counts.entries).filter_map(|(name, used)| {
            // A table without a key has no entries.
            let table = self.info().table(name).ok().filter(|table| !table.fields.is_empty())?;
            let is_exact = table.fields.iter().all(|field| field.kind == MatchKind::Exact);
            let stage = fat_root::TABLES.iter().position(|stage| stage == name);
            let rows = stage
                .zip(self.stage_rows())
                .map(|(stage, sizes)| Room { used: counts.rows[stage], size: sizes[stage] });
            Some(TableUse {
                table: (*name).to_owned(),
                memory: if is_exact { Memory::Sram } else { Memory::Tcam },
                entries: Room { used, size: usize::try_from(table.size).unwrap_or(usize::MAX) },
                rows,
            })
        });
        used.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use fatbtree_topology::{MacAddress, Role};

    use super::*;
    use crate::tables::pivots::Last;
    use crate::tables::{
        NodeKind, NodeSet, child, coarse, fat_root, fine, last_hop, neighbor, partition_route,
        roce_connection, run, traffic_class, trunk_port,
    };
    use crate::{Programs, Target};

    fn of_fat_root(stage: u8, low: u16, high: u16) -> Entry {
        let key = fat_root::Key { stage, sub_table: 2, low, high, priority: 1 };
        Entry::FatRoot(key, fat_root::Action::NextTable { slice: 1, sub_table: 4 })
    }

    fn of_node(set: NodeSet, slot: u16, whole: bool) -> [Entry; 4] {
        let last = if whole { Last::Whole([1, 2, 3]) } else { Last::Low([1, 2, 3]) };
        let key = coarse::Key { set, whole, epoch: 1, address: slot.into() };
        let action = coarse::Action { last, slot, first_child: 0, stride: 0, kind: NodeKind::Leaf };
        let coarse = Entry::Coarse(key, action);
        let key = fine::Key { set, whole, epoch: 1, slot, quarter: 2 };
        let fine = Entry::Fine(key, fine::Action { last });
        let run = Entry::Run(run::Key { set, stride: 1, branch: 3 }, run::Action { distance: 192 });
        let key = child::Key { set, epoch: 1, slot, branch: 3 };
        [coarse, fine, run, Entry::Child(key, child::Action { offset: 64 })]
    }

    /// One of each table.
    fn one_of_each() -> Vec<Entry> {
        let ip = Ipv4Addr::new(10, 0, 0, 2);
        let mac = MacAddress::of_ip(ip);
        let connection = roce_connection::Key { port: 0, src_mac: mac, src_ip: ip, dst_ip: ip, dest_qp: 7 };
        let admit = roce_connection::Action { rkey: 2, partition: 0, root: 64, udp_port: 4792, mtu: 1024 };
        let mut entries = vec![
            Entry::RoceConnection(connection, admit),
            Entry::PartitionRoute(partition_route::Key { partition: 1 }, partition_route::Action { port: 1 }),
            Entry::LastHop(last_hop::Key { port: 1 }, last_hop::Action { in_flight_port: 4792 }),
            Entry::TrunkPort(trunk_port::Key { port: 1 }, trunk_port::Action),
            Entry::Neighbor(neighbor::Key { ip }, neighbor::Action::ThisSwitch { mac }),
            Entry::TrafficClass(traffic_class::Key { dscp: 26 }, traffic_class::Action { class: 3 }),
        ];
        entries.extend((0..4).map(|stage| of_fat_root(stage, 1, 9)));
        for (set, whole) in [(NodeSet::A, false), (NodeSet::A, true), (NodeSet::B, false), (NodeSet::B, true)]
        {
            entries.extend(of_node(set, 1, whole));
        }
        entries
    }

    #[test]
    fn entries_count_where_they_are_written() {
        let program = Programs::v1model().unwrap();
        for entry in one_of_each() {
            let tables = program.of(Role::Core).occupancy(&Counts::of([&entry]));
            let used: Vec<&TableUse> = tables.iter().filter(|table| table.entries.used > 0).collect();
            assert_eq!(used.len(), 1, "{entry:?}");
            assert_eq!((used[0].table.as_str(), used[0].entries.used), (entry.table(), 1), "{entry:?}");
        }
    }

    #[test]
    fn sizes_are_the_programs() {
        for target in Target::ALL {
            let programs = Programs::tables_only(target).unwrap();
            for role in Role::ALL {
                let program = programs.of(role);
                let tables = program.occupancy(&Counts::default());
                for table in &tables {
                    let info = program.info().table(&table.table).unwrap();
                    assert!(program.tables().is_ours(info), "{table:?}");
                    assert_eq!((table.entries.used, table.entries.size as u64), (0, info.size), "{table:?}");
                    let of_ranges = table.table.starts_with("fat_root");
                    assert_eq!(table.rows.is_some(), of_ranges && target != Target::V1model, "{table:?}");
                    let is_tcam = of_ranges || table.table == "ipv4_route";
                    assert_eq!(table.memory == Memory::Tcam, is_tcam, "{table:?}");
                }
                // None is left out, but the one that has no entries.
                let ours = program
                    .info()
                    .tables()
                    .iter()
                    .filter(|table| program.tables().is_ours(table) && !table.fields.is_empty())
                    .count();
                assert_eq!(tables.len(), ours, "{target:?} {role}");
            }
        }
    }

    #[test]
    fn the_fullest_table_is_the_one_with_the_least_room() {
        let programs = Programs::tables_only(Target::Tofino1).unwrap();
        let core = programs.of(Role::Core);
        // 7 rows each: more of the rows than of the entries.
        let mut entries: Vec<Entry> = (0..100).map(|_| of_fat_root(2, 1, 0xfffe)).collect();
        entries.push(of_fat_root(0, 0, 0xffff));
        entries.extend((1..=3).flat_map(|node| of_node(NodeSet::A, node, false)));
        let tables = core.occupancy(&Counts::of(&entries));
        let fullest = |memory| TableUse::fullest(&tables, memory).unwrap();
        let tcam = fullest(Memory::Tcam);
        assert_eq!((tcam.table.as_str(), tcam.entries.used), ("fat_root_2", 100));
        assert_eq!(tcam.rows.unwrap().used, 700);
        assert!((tcam.share() - 700.0 / 6144.0).abs() < 1e-9, "{tcam:?}");
        let sram = fullest(Memory::Sram);
        assert_eq!((sram.table.as_str(), sram.entries.used), ("node_set_a.run", 3));
    }
}

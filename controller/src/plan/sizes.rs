//! From what the compiler made to a budget.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use fatbtree_p4runtime::P4InfoIndex;
use fatbtree_topology::Role;
use serde::Deserialize;

use super::budget::MAX_RANGES;
use super::next::PerBlock;
use super::ranges::RangeMatch;
use super::{Budget, MAX_SET_NODES, ROLE_SETS, STAGES};
use crate::program::Target;
use crate::tables::NodeSet;

/// `p4/build/tofino/sizes.json`, as far as it counts here.
#[derive(Deserialize)]
struct Sizes {
    chips: BTreeMap<String, BTreeMap<String, Program>>,
}

#[derive(Deserialize)]
struct Program {
    tables: BTreeMap<String, Table>,
}

#[derive(Deserialize)]
struct Table {
    entries: usize,
    sram_blocks: usize,
    tcam_rows: Option<usize>,
    /// Entries of an exact match for which the memory has places.
    room: Option<usize>,
}

impl Table {
    /// Entries that are planned. An exact match is a cuckoo hash table: an entry has one place in each way, and the driver moves others
    /// until it fits. Four ways, with one entry or more in a place, reach 95 to 97 % before an insert fails; and entries of two epochs come
    /// and go. So of the places at most [`FILL`] are planned. What was asked of the compiler is often less, for memory comes in whole blocks.
    fn planned(&self) -> usize {
        let (of, all) = FILL;
        self.room.map_or(self.entries, |room| self.entries.min(room * of / all))
    }
}

/// The share of an exact match's places that is planned.
const FILL: (usize, usize) = (90, 100);

/// Epochs side by side.
const LIVE_EPOCHS: usize = 2;

pub(super) fn budget(target: Target) -> Budget {
    const OURS: &str = "the committed P4Info is the compiler's own output";
    let compiled = target.chip().map(programs);
    let infos: Vec<(Role, P4InfoIndex)> = Role::ALL
        .into_iter()
        .map(|role| (role, P4InfoIndex::from_text(target.p4info(role)).expect(OURS)))
        .collect();
    // None where the role's program has no such table.
    let entries = |role: Role, table: &str| {
        let (_, info) = infos.iter().find(|(own, _)| *own == role).expect("all roles are there");
        let size = usize::try_from(info.table(table).ok()?.size).expect("table sizes are small");
        let measured = compiled.as_ref().and_then(|programs| programs.get(&role.to_string())?.find(table));
        Some(measured.map_or(size, |measured| measured.planned().min(size)))
    };
    // All roles' programs with a table have it alike, or the smallest counts.
    let least = |table: &str| Role::ALL.into_iter().filter_map(|role| entries(role, table)).min();
    let of_set = |(role, set): (Role, NodeSet), table: &str| {
        entries(role, &format!("{}.{table}", set.name())).unwrap_or(0) / LIVE_EPOCHS
    };
    let stage_entries = (0..STAGES).filter_map(|stage| least(&format!("fat_root_{stage}"))).min();
    let whole_nodes = ROLE_SETS.map(|set| of_set(set, "coarse_whole").min(of_set(set, "fine_whole") / 4));
    let set_nodes =
        ROLE_SETS.map(|set| of_set(set, "coarse").min(of_set(set, "fine") / 4).min(MAX_SET_NODES));
    Budget {
        target: target.name().to_owned(),
        fat_root_ranges: MAX_RANGES,
        stage_entries: stage_entries.expect(OURS),
        stage_rows: target.chip().map(stage_rows),
        range_match: if target == Target::V1model { RangeMatch::Exact } else { RangeMatch::OneSided },
        set_nodes,
        whole_nodes,
        children: ROLE_SETS.map(|set| of_set(set, "child")),
        hot_keys: entries(Role::Edge, "hot_key").expect(OURS),
        live_epochs: LIVE_EPOCHS,
    }
}

/// Entries that are planned for a table of a chip's program; none where it has no such table.
pub(crate) fn planned(chip: &str, role: Role, table: &str) -> Option<usize> {
    Some(programs(chip).get(&role.to_string())?.find(table)?.planned())
}

/// Compiled sizes of a chip's programs, by role.
fn programs(chip: &str) -> &'static BTreeMap<String, Program> {
    static SIZES: LazyLock<Sizes> = LazyLock::new(|| {
        serde_json::from_str(fatbtree_p4::tofino::SIZES).expect("the committed sizes are ours")
    });
    SIZES.chips.get(chip).expect("every chip is there")
}

impl Program {
    /// A table by the end of its name.
    fn find(&self, name: &str) -> Option<&Table> {
        let is = |full: &str| {
            full.strip_suffix(name).is_some_and(|front| front.is_empty() || front.ends_with('.'))
        };
        self.tables.iter().find(|(full, _)| is(full)).map(|(_, table)| table)
    }
}

/// Nodes of one epoch, and hot keys, that a block of SRAM holds; `None` where there are no blocks.
pub(super) fn per_block(target: &str) -> Option<PerBlock> {
    let target = Target::ALL.into_iter().find(|known| known.name() == target)?;
    let programs = programs(target.chip()?);
    let table = |role: Role, name: &str| programs.get(&role.to_string()).and_then(|all| all.find(name));
    let nodes = ROLE_SETS.map(|(role, set)| {
        let of_set = |name: &str| table(role, &format!("{}.{name}", set.name()));
        let blocks: usize =
            ["coarse", "fine", "child"].iter().filter_map(|name| Some(of_set(name)?.sram_blocks)).sum();
        // No such set, no room.
        of_set("coarse").map_or(0.0, |coarse| (coarse.planned() / LIVE_EPOCHS) as f64 / blocks as f64)
    });
    let hot = table(Role::Edge, "hot_key")?;
    Some(PerBlock { nodes, hot_keys: hot.planned() as f64 / hot.sram_blocks as f64 })
}

/// Bytes of a block of SRAM: 1024 × 128 bits.
const BLOCK_BYTES: usize = 1024 * 128 / 8;

/// Bytes of SRAM that entries take in a first switch of a chip: all blocks of a table, divided by what is planned for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SramBytes {
    /// A node of one epoch, beside its children; there is room for two epochs.
    pub node: f64,
    /// A node of one epoch that is searched by [whole keys](super::Pivots::Whole).
    pub whole_node: f64,
    /// A child, in one epoch, of a node whose children are no run.
    pub child: f64,
    /// A hot key, which is held once for all epochs.
    pub hot_key: f64,
}

impl SramBytes {
    /// The bytes on a target; `None` if it is no chip.
    pub fn of(target: Target) -> Option<Self> {
        let edge = programs(target.chip()?).get(&Role::Edge.to_string())?;
        let each = |table: &str| {
            let table = edge.find(table)?;
            Some((table.sram_blocks * BLOCK_BYTES) as f64 / table.planned() as f64)
        };
        let epochs = LIVE_EPOCHS as f64;
        Some(Self {
            node: epochs * (each("node_set_a.coarse")? + 4.0 * each("node_set_a.fine")?),
            whole_node: epochs * (each("node_set_a.coarse_whole")? + 4.0 * each("node_set_a.fine_whole")?),
            child: epochs * each("node_set_a.child")?,
            hot_key: each("hot_key")?,
        })
    }
}

/// TCAM rows of each `fat_root_*` table of a chip.
pub(crate) fn stage_rows(chip: &str) -> [usize; STAGES] {
    let programs = programs(chip);
    let rows = |stage: usize| {
        let of = |program: &Program| program.find(&format!("fat_root_{stage}"))?.tcam_rows;
        programs.values().filter_map(of).min().expect("ranges are matched in TCAM")
    };
    std::array::from_fn(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_matches_are_planned_at_a_fill_that_chips_reach() {
        let table = |entries, room| Table { entries, sram_blocks: 1, tcam_rows: None, room };
        assert_eq!(table(16_384, Some(16_384)).planned(), 14_745);
        assert_eq!(table(16_384, Some(18_432)).planned(), 16_384, "there are more places than entries");
        assert_eq!(table(6138, None).planned(), 6138, "no hash table");
    }

    #[test]
    fn entries_have_their_share_of_all_blocks() {
        let SramBytes { node, whole_node, child, hot_key } = SramBytes::of(Target::Tofino1).unwrap();
        // 80 blocks for 65,536 keys, of which nine tenths are planned.
        assert!((hot_key - 80.0 * 16_384.0 / 58_982.0).abs() < 1e-9, "{hot_key}");
        assert!(node < whole_node && child < hot_key + 10.0 && node > 200.0, "{node} {whole_node} {child}");
        assert_eq!(SramBytes::of(Target::V1model), None);
    }

    #[test]
    fn no_table_of_a_budget_is_fuller() {
        for target in [Target::Tofino1, Target::Tofino2] {
            let (budget, programs) = (Budget::compiled(target), programs(target.chip().unwrap()));
            let room = |role: Role, table: &str| {
                programs[&role.to_string()].find(table).map_or(0, |table| table.room.unwrap()) * 90 / 100
            };
            for (at, (role, set)) in ROLE_SETS.into_iter().enumerate() {
                let of = |table: &str| room(role, &format!("{}.{table}", set.name())) / LIVE_EPOCHS;
                let name = format!("{target:?} {role} {set:?}");
                assert!(budget.set_nodes[at] <= of("coarse").min(of("fine") / 4), "{name}");
                assert!(budget.whole_nodes[at] <= of("coarse_whole").min(of("fine_whole") / 4), "{name}");
                assert!(budget.children[at] <= of("child"), "{name}");
                assert_eq!(budget.set_nodes[at] == 0, of("coarse") == 0, "{name}");
            }
            assert!(budget.hot_keys <= room(Role::Edge, "hot_key"), "{target:?}");
            let pair = fatbtree_topology::Network::pair(1).unwrap();
            assert!(budget.clone().in_network(&pair).hot_keys <= room(Role::Single, "hot_key"), "{target:?}");
            let tree = fatbtree_topology::Network::leaf_spine(2, 2, 1).unwrap();
            assert_eq!(budget.clone().in_network(&tree), budget);
            let connections = crate::Programs::tables_only(target).unwrap().connections();
            assert!(connections > 3000, "{target:?}: {connections}");
            assert!(connections <= room(Role::Edge, "roce_connection"), "{target:?}");
            assert!(connections <= room(Role::Single, "roce_connection"), "{target:?}");
            assert!(connections <= room(Role::Folded, "roce_connection"), "{target:?}");
        }
    }
}

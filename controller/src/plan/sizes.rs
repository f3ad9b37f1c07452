//! From what the compiler made to a budget.

use std::collections::BTreeMap;

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
}

/// Epochs side by side.
const LIVE_EPOCHS: usize = 2;

pub(super) fn budget(target: Target) -> Budget {
    const OURS: &str = "the committed P4Info is the compiler's own output";
    let info = |role: Role| Some(P4InfoIndex::from_text(target.p4info(role)?).expect(OURS));
    let entries = |info: &P4InfoIndex, table: &str| {
        usize::try_from(info.table(table).expect(OURS).size).expect("table sizes are small")
    };
    let roles: Vec<(Role, P4InfoIndex)> =
        Role::ALL.into_iter().filter_map(|role| Some((role, info(role)?))).collect();
    let (_, core) = roles.iter().find(|(role, _)| *role == Role::Core).expect(OURS);
    let stage_entries = (0..STAGES).map(|stage| entries(core, &format!("fat_root_{stage}"))).min();
    let of_set = |(role, set): (Role, NodeSet), table: &str| {
        // No program, no room.
        let program = roles.iter().find(|(own, _)| *own == role);
        program.map_or(0, |(_, info)| entries(info, &format!("{}.{table}", set.name())) / LIVE_EPOCHS)
    };
    let whole_nodes = ROLE_SETS.map(|set| of_set(set, "coarse_whole").min(of_set(set, "fine_whole") / 4));
    let set_nodes =
        ROLE_SETS.map(|set| of_set(set, "coarse").min(of_set(set, "fine") / 4).min(MAX_SET_NODES));
    Budget {
        target: target.name().to_owned(),
        fat_root_ranges: MAX_RANGES,
        stage_entries: stage_entries.expect("there are stages"),
        stage_rows: target.chip().map(stage_rows),
        range_match: if target == Target::V1model { RangeMatch::Exact } else { RangeMatch::OneSided },
        set_nodes,
        whole_nodes,
        children: ROLE_SETS.map(|set| of_set(set, "child")),
        hot_keys: roles
            .iter()
            .find(|(role, _)| *role == Role::Edge)
            .map_or(0, |(_, info)| entries(info, "hot_key")),
        live_epochs: LIVE_EPOCHS,
    }
}

/// How much a block of SRAM holds of one epoch's nodes, and of hot keys; none where there are no blocks.
pub(super) fn per_block(target: &str) -> Option<PerBlock> {
    let target = Target::ALL.into_iter().find(|known| known.name() == target)?;
    let sizes: Sizes =
        serde_json::from_str(fatbtree_p4::tofino::SIZES).expect("the committed sizes are ours");
    let programs = sizes.chips.get(target.chip()?)?;
    let table = |role: Role, name: &str| programs.get(&role.to_string()).and_then(|all| all.tables.get(name));
    let nodes = ROLE_SETS.map(|(role, set)| {
        let of_set = |name: &str| table(role, &format!("{}.{name}", set.name()));
        let blocks: usize =
            ["coarse", "fine", "child"].iter().filter_map(|name| Some(of_set(name)?.sram_blocks)).sum();
        // No program, no room.
        of_set("coarse").map_or(0.0, |coarse| (coarse.entries / LIVE_EPOCHS) as f64 / blocks as f64)
    });
    let hot = table(Role::Edge, "first_hop.hot_key")?;
    Some(PerBlock { nodes, hot_keys: hot.entries as f64 / hot.sram_blocks as f64 })
}

/// TCAM rows of each `fat_root_*` table of a chip.
pub(crate) fn stage_rows(chip: &str) -> [usize; STAGES] {
    let sizes: Sizes =
        serde_json::from_str(fatbtree_p4::tofino::SIZES).expect("the committed sizes are ours");
    let core = &sizes.chips[chip][&Role::Core.to_string()];
    std::array::from_fn(|stage| {
        core.tables[&format!("fat_root.fat_root_{stage}")].tcam_rows.expect("ranges are matched in TCAM")
    })
}

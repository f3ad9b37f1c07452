//! From what the compiler made to a budget.

use fatbtree_p4runtime::P4InfoIndex;
use fatbtree_topology::Role;
use serde::Deserialize;

use super::ranges::RangeMatch;
use super::{Budget, LAYERS, MAX_SET_NODES, STAGES};
use crate::program::{Target, role_name};

/// `p4/build/tofino/sizes.json`, as far as it counts here.
#[derive(Deserialize)]
struct Sizes {
    chips: std::collections::BTreeMap<String, std::collections::BTreeMap<String, Program>>,
}

#[derive(Deserialize)]
struct Program {
    tables: std::collections::BTreeMap<String, Table>,
}

#[derive(Deserialize)]
struct Table {
    tcam_rows: Option<usize>,
}

/// The node set of each layer: the role of its switch, and its name there.
const SETS: [(Role, &str); LAYERS] = [
    (Role::Core, "node_set_a"),
    (Role::Aggregation, "node_set_a"),
    (Role::Aggregation, "node_set_b"),
    (Role::Edge, "node_set_a"),
    (Role::Edge, "node_set_b"),
];

/// The paper's fat root (section IV-A).
const RANGES: usize = 1024;

/// Epochs side by side.
const LIVE_EPOCHS: usize = 2;

pub(super) fn budget(target: Target) -> Budget {
    const OURS: &str = "the committed P4Info is the compiler's own output";
    let info = |role: Role| {
        let text = match target.chip() {
            None => fatbtree_p4::P4INFO,
            Some(chip) => {
                fatbtree_p4::tofino::p4info(chip, role_name(role)).expect("each chip has three roles")
            }
        };
        P4InfoIndex::from_text(text).expect(OURS)
    };
    let entries = |info: &P4InfoIndex, table: &str| {
        usize::try_from(info.table(table).expect(OURS).size).expect("table sizes are small")
    };
    let core = info(Role::Core);
    let stage_entries = (0..STAGES).map(|stage| entries(&core, &format!("fat_root_{stage}"))).min();
    let set_nodes = SETS.map(|(role, set)| {
        let info = info(role);
        let of = |table: &str| entries(&info, &format!("{set}.{table}"));
        let nodes = of("coarse").min(of("fine") / 4).min(of("child") / 16);
        MAX_SET_NODES.min(nodes / LIVE_EPOCHS)
    });
    Budget {
        target: target.name().to_owned(),
        fat_root_ranges: RANGES,
        stage_entries: stage_entries.expect("there are stages"),
        stage_rows: target.chip().map(stage_rows),
        range_match: if target == Target::V1model { RangeMatch::Exact } else { RangeMatch::OneSided },
        set_nodes,
        live_epochs: LIVE_EPOCHS,
    }
}

fn stage_rows(chip: &str) -> [usize; STAGES] {
    let sizes: Sizes =
        serde_json::from_str(fatbtree_p4::tofino::SIZES).expect("the committed sizes are ours");
    let core = &sizes.chips[chip][role_name(Role::Core)];
    std::array::from_fn(|stage| {
        core.tables[&format!("fat_root.fat_root_{stage}")].tcam_rows.expect("ranges are matched in TCAM")
    })
}

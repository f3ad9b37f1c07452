//! Figures 7 to 9 of the Fat-B+Tree paper: lookups by RDMA, from the root or where the switches land them.

use std::collections::BTreeMap;

use fatbtree_blink::{Start, TreeConfig, ValueLayout};
use fatbtree_controller::{Budget, Plan, Target, Tree};
use fatbtree_topology::Network as Topology;

use super::bench::{Cache, SERVERS, Setup, Workload, load, run};
use super::card::Calibration;
use super::reads::{Planned, plan, sampled};
use super::table::Row;
use super::{Mix, Size, Skew};

/// The paper's default load: ranges of the fat root, and nodes of each of three layers below (section V-B).
const RANGES: usize = 600;
const LAYER: usize = 3600;

/// Bytes of a leaf: it has about as many keys as an inner node has children, as in the paper.
const LEAF: u32 = 384;

/// The two switches between clients and servers: the first has the fat root and a layer, the other two.
const SWITCHES: u32 = 2;
/// Positions of the layers in a budget, in their order: single A, edge A, edge B.
const LAYERS: [usize; 3] = [5, 3, 4];

/// Skew, nodes of each layer and layers of a plan.
type Point = (Skew, usize, usize);

/// Figure 7: how skewed lookups are, up to `skew`.
pub(super) fn skews(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    let points = [Skew::Zipf90, Skew::Zipf95, skew].map(|skew| (skew, LAYER, 3));
    measure(size, mix, points)
}

/// Figure 8: nodes of each layer below the fat root.
pub(super) fn nodes(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    measure(size, mix, (300..=3900).step_by(600).map(|nodes| (skew, nodes, 3)))
}

/// Figure 9: layers below the fat root.
pub(super) fn layers(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    measure(size, mix, (0..=3).map(|layers| (skew, LAYER, layers)))
}

/// Measures lookups from the root and with each plan. Each client does one at a time and has no cache.
/// Trees have 16 branches and about as many keys in a leaf; servers are two switches away. Plans are the
/// controller's, within the room of two Tofino 1, from sampled keys. They have no hot keys, because the paper has
/// none. Every answer is checked.
///
/// # Errors
/// A wrong answer, an operation that failed, or a plan that cannot be made.
fn measure(size: &Size, mix: Mix, points: impl IntoIterator<Item = Point>) -> Result<Vec<Row>, String> {
    let size = Size { depth: 1, ..*size };
    let tree = TreeConfig::new(16, LEAF, ValueLayout::Inline(8)).map_err(|error| error.to_string())?;
    let cluster = load(tree, &size, true)?;
    let tops = cluster.tops().map_err(|error| error.to_string())?;
    let top = Tree::new(&tops).map_err(|error| error.to_string())?;
    let setup = |name: String, skew, start| Setup {
        start,
        cache: Cache::None,
        calibration: Calibration::CX5_40_EVENTS,
        switches: SWITCHES,
        ..Setup::new(name, tree, Workload::new(skew, mix))
    };
    let mut rows = Vec::new();
    let mut last_skew = None;
    for (skew, nodes, layers) in points {
        if last_skew.replace(skew) != Some(skew) {
            let setup = setup(format!("{}: from the root", skew.name()), skew, Start::Root);
            rows.push(run(&setup, &size, &cluster, |_, _| {})?);
        }
        let (plan, held) = plan_of(&size, &top, skew, nodes, layers)?;
        let setup = setup(format!("{}: {held}", skew.name()), skew, Start::IndexRead);
        rows.push(run(&setup, &size, &cluster, |world, links| {
            world.set_switches(Planned { plan, links });
        })?);
    }
    Ok(rows)
}

/// A plan of this many layers, and its content.
fn plan_of(
    size: &Size,
    top: &Tree,
    skew: Skew,
    nodes: usize,
    layers: usize,
) -> Result<(Plan, String), String> {
    let network = Topology::pair(SERVERS).map_err(|error| error.to_string())?;
    let mut budget = Budget { fat_root_ranges: RANGES, hot_keys: 0, ..Budget::compiled(Target::Tofino1) };
    for (layer, at) in LAYERS.into_iter().enumerate() {
        budget.set_nodes[at] = if layer < layers { nodes.min(budget.set_nodes[at]) } else { 0 };
    }
    let plan = plan(&network, SERVERS, top, &sampled(top, size, skew), &budget)?;
    let held: BTreeMap<_, _> =
        plan.summary().layers.iter().map(|layer| (layer.name.clone(), layer.nodes)).collect();
    let of = |name| held.get(name).copied().unwrap_or(0);
    let ranges = plan.fat_root().len();
    let held = format!("{ranges} ranges, {} + {} + {} nodes", of("single A"), of("edge A"), of("edge B"));
    Ok((plan, held))
}

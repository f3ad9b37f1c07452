//! Reads: clients that cache little, against switches that cache within Tofino 1's budget.

use fatbtree_blink::{Start, TreeConfig, ValueLayout};
use fatbtree_blink_host::Cluster;
use fatbtree_controller::{Budget, Frequencies, Placement, Plan, Target, Tree};
use fatbtree_topology::{Cores, Network as Topology};
use fatbtree_verbs::Remote;
use fatbtree_verbs::time::Instant;

use super::bench::{Cache, Ranks, SERVERS, Setup, Workload, key_of, load, run};
use super::card::Calibration;
use super::rig::Links;
use super::table::Row;
use super::writes::sherman_tree;
use super::{Mix, Size, Skew};
use fatbtree_sim::world::{IndexRead, Random, Resolved, Switches, random};

/// Switches of a path through a FatTree's core: those that index reads take, and the longest of the others.
pub(super) const PATH: u32 = 5;
/// Keys that clients have sampled for the planner.
pub(super) const SAMPLES: usize = 50_000;

/// Switches that hold a plan.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) links: Links,
}

impl Switches for Planned {
    fn resolve(&mut self, _now: Instant, read: &IndexRead, _random: &mut Random) -> Resolved {
        match self.links.get(&read.queue_pair) {
            Some(&(_, rkey)) => {
                let address = self.plan.read_at(read.key, false, read.target.offset_in_leaf());
                Resolved::At(Remote { address, rkey })
            }
            None => Resolved::Unregistered,
        }
    }
}

/// Runs lookups of `skew` without switches and with them, on trees of 16 branches (what switches cache) and of 1 KB nodes (Sherman's).
/// Everything is `switches` away from everything, in a FatTree through its core.
///
/// # Errors
/// A wrong answer, an operation that failed, or a plan that cannot be made.
pub(super) fn reads(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    let sixteen = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).map_err(|error| error.to_string())?;
    let wide = sherman_tree()?;
    // A cold cache is measured from the first lookup on, over some lookups of each task.
    let cold = Size { warm_up_us: 0, window_us: 200, ..*size };
    let mut rows = Vec::new();
    for (tree, shape) in [(wide, "1 KB nodes"), (sixteen, "16 branches")] {
        let cluster = load(tree, size, true)?;
        for (cache, of, name) in [
            (Cache::None, size, "no cache"),
            (Cache::Empty, &cold, "cold cache, first 200 µs"),
            (Cache::Percent(1.0), size, "1 % cache"),
        ] {
            let setup = setup(format!("Sherman, {shape}, {name}"), tree, (skew, mix), Start::Cached, cache);
            rows.push(run(&setup, of, &cluster, |_, _| {})?);
        }
    }
    let cluster = load(sixteen, size, true)?;
    let plan = plan_for(&cluster, size, skew)?;
    for (start, cache, of, name) in [
        (Start::IndexRead, Cache::None, size, "no cache"),
        (Start::CachedOrIndexRead, Cache::Empty, &cold, "cold cache, first 200 µs"),
        (Start::CachedOrIndexRead, Cache::Percent(1.0), size, "1 % cache"),
    ] {
        let setup = setup(format!("in-network Sherman, {name}"), sixteen, (skew, mix), start, cache);
        let plan = plan.clone();
        rows.push(run(&setup, of, &cluster, |world, links| {
            world.set_switches(Planned { plan, links });
        })?);
    }
    Ok(rows)
}

/// A plan of Tofino 1's budget for these trees in a FatTree, by a sample of the keys that clients draw.
pub(super) fn plan_for(cluster: &Cluster, size: &Size, skew: Skew) -> Result<Plan, String> {
    let tops = cluster.tops().map_err(|error| error.to_string())?;
    let top = Tree::new(&tops).map_err(|error| error.to_string())?;
    let network = Topology::fat_tree(4, Cores::All).map_err(|error| error.to_string())?;
    plan(&network, SERVERS, &top, &sampled(&top, size, skew), &Budget::compiled(Target::Tofino1))
}

/// Frequencies by a sample of the keys that clients draw.
pub(super) fn sampled(top: &Tree, size: &Size, skew: Skew) -> Frequencies {
    let (ranks, mut draw) = (Ranks::new(skew, size.keys), random(size.seed, 7));
    let keys: Vec<u64> = (0..SAMPLES).map(|_| key_of(ranks.draw(&mut draw))).collect();
    Frequencies::from_keys(top, &keys)
}

/// A plan for servers that have the last hosts of a network: one half of a FatTree, or all behind the second of two switches.
pub(super) fn plan(
    network: &Topology,
    servers: u16,
    top: &Tree,
    frequencies: &Frequencies,
    budget: &Budget,
) -> Result<Plan, String> {
    let hosts = network.hosts().iter().rev().map(|host| host.id);
    let placement: Placement = (0..servers).zip(hosts).collect();
    Plan::new(network, &placement, top, frequencies, budget, 1).map_err(|error| error.to_string())
}

/// Cards at the ends of such paths.
pub(super) fn calibration() -> Calibration {
    Calibration::CX5_100_IB.over_ethernet()
}

/// A measurement of trees at the ends of such paths.
pub(super) fn setup(
    name: String,
    tree: TreeConfig,
    (skew, mix): (Skew, Mix),
    start: Start,
    cache: Cache,
) -> Setup {
    let calibration = calibration();
    Setup { start, cache, calibration, switches: PATH, ..Setup::new(name, tree, Workload::new(skew, mix)) }
}

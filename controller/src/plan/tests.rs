//! Three answers agree: the tree's own, the plan's, and that of the switches' entries, read as naively as possible.

use std::collections::{BTreeMap, BTreeSet};

use fatbtree_index::TreeTop;
use fatbtree_topology::{Cluster, HostId, Network, SwitchId};
use proptest::prelude::*;

use super::*;
use crate::program::Target;
use crate::reload::{PhaseKind, ReloadSteps};
use crate::tables::{Change, Entry, NodeSet, child, coarse, core_route, fat_root, fine, hot_key, run};
use crate::test_support::{arb_tops, naive_path, top};

/// Room for hot keys in these tests.
const HOT_KEYS: usize = 6;

/// The entries of one switch, as its tables hold them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Switch {
    hot: BTreeMap<hot_key::Key, hot_key::Action>,
    fat_root: BTreeMap<fat_root::Key, fat_root::Action>,
    coarse: BTreeMap<coarse::Key, coarse::Action>,
    fine: BTreeMap<fine::Key, fine::Action>,
    runs: BTreeMap<run::Key, run::Action>,
    children: BTreeMap<child::Key, child::Action>,
}

/// All switches, and what S_c does with index packets.
#[derive(Clone)]
struct Fabric {
    switches: BTreeMap<SwitchId, Switch>,
    core: SwitchId,
    route: core_route::Action,
}

impl Fabric {
    fn empty(core: SwitchId) -> Self {
        Self {
            switches: BTreeMap::new(),
            core,
            route: core_route::Action::Descend { epoch: 0, sub_table: 0 },
        }
    }

    fn apply(&mut self, switch: SwitchId, change: Change) {
        let tables = self.switches.entry(switch).or_default();
        let put = |there: bool, change: &Change| {
            assert_eq!(there, matches!(change, Change::Modify(_)), "{change:?}")
        };
        match change {
            Change::CoreRoute(action) => {
                assert_eq!(switch, self.core);
                self.route = action;
            }
            Change::Insert(Entry::HotKey(key, action)) | Change::Modify(Entry::HotKey(key, action)) => {
                put(tables.hot.insert(key, action).is_some(), &change);
                assert!(tables.hot.len() <= HOT_KEYS, "the table is full");
            }
            Change::Insert(Entry::FatRoot(key, action)) | Change::Modify(Entry::FatRoot(key, action)) => {
                put(tables.fat_root.insert(key, action).is_some(), &change);
            }
            Change::Insert(Entry::Coarse(key, action)) | Change::Modify(Entry::Coarse(key, action)) => {
                put(tables.coarse.insert(key, action).is_some(), &change);
            }
            Change::Insert(Entry::Fine(key, action)) | Change::Modify(Entry::Fine(key, action)) => {
                put(tables.fine.insert(key, action).is_some(), &change);
            }
            Change::Insert(Entry::Run(key, action)) | Change::Modify(Entry::Run(key, action)) => {
                put(tables.runs.insert(key, action).is_some(), &change);
            }
            Change::Insert(Entry::Child(key, action)) | Change::Modify(Entry::Child(key, action)) => {
                put(tables.children.insert(key, action).is_some(), &change);
            }
            Change::Delete(Entry::HotKey(key, _)) => assert!(tables.hot.remove(&key).is_some()),
            Change::Delete(Entry::FatRoot(key, _)) => assert!(tables.fat_root.remove(&key).is_some()),
            Change::Delete(Entry::Coarse(key, _)) => assert!(tables.coarse.remove(&key).is_some()),
            Change::Delete(Entry::Fine(key, _)) => assert!(tables.fine.remove(&key).is_some()),
            Change::Delete(Entry::Run(key, _)) => assert!(tables.runs.remove(&key).is_some()),
            Change::Delete(Entry::Child(key, _)) => assert!(tables.children.remove(&key).is_some()),
            other => panic!("{other:?} is none of a plan's"),
        }
    }

    /// An index read that meets S_c now.
    fn read(&self, home: &PlannedPartition, key: u64) -> Landing {
        self.read_under_way(self, home, key)
    }

    /// An index read that met the fat root when the network was `before`, and all else now. (A switch handles a packet
    /// as a whole, so `core_route` and fat root are always of one moment.)
    fn read_under_way(&self, before: &Self, home: &PlannedPartition, key: u64) -> Landing {
        let none = Switch::default();
        let at = |switch: SwitchId| self.switches.get(&switch).unwrap_or(&none);
        let mut landing = Landing { address: home.root, partition: home.id, levels: 0 };
        let core_route::Action::Descend { epoch, mut sub_table } = before.route else {
            panic!("S_c descends")
        };
        let mut is_inner = false;
        for stage in 0..4u8 {
            let slice = (key >> (48 - 16 * stage)) as u16;
            let tables = &before.switches.get(&self.core).unwrap_or(&none).fat_root;
            let hit = tables
                .iter()
                .filter(|(k, _)| {
                    k.stage == stage && k.sub_table == sub_table && (k.low..=k.high).contains(&slice)
                })
                .max_by_key(|(k, _)| k.priority);
            match hit {
                None => {}
                Some((_, fat_root::Action::NextTable { sub_table: next })) => sub_table = *next,
                Some((_, fat_root::Action::Land { address, partition, inner })) => {
                    if *partition == home.id {
                        (landing.address, landing.levels, is_inner) = (*address, 1, *inner);
                    }
                    break;
                }
            }
        }
        let [core, aggregation, _, edge, _] = home.switches;
        for switch in [core, aggregation, edge].map(at) {
            for set in [NodeSet::A, NodeSet::B] {
                let address = landing.address;
                let node = [false, true].iter().find_map(|whole| {
                    let action = switch.coarse.get(&coarse::Key { set, whole: *whole, epoch, address })?;
                    Some((*whole, *action))
                });
                let Some((whole, node)) = node.filter(|_| is_inner) else { continue };
                let (slot, quarter) = (node.slot, node.last.below(key) as u8);
                let found = switch.fine.get(&fine::Key { set, whole, epoch, slot, quarter });
                // A quarter that is missing is compared with nothing: the differences are all zero.
                let branch = 4 * quarter + found.map_or(0, |found| found.last.below(key) as u8);
                let offset = match node.stride {
                    0 => switch
                        .children
                        .get(&child::Key { set, epoch, slot, branch })
                        .map(|child| child.offset),
                    stride => {
                        let run = switch.runs.get(&run::Key { set, stride, branch });
                        // Without a carry.
                        let low = |run: &run::Action| (node.first_child as u32).wrapping_add(run.distance);
                        run.map(|run| node.first_child >> 32 << 32 | u64::from(low(run)))
                    }
                };
                is_inner = node.inner && offset.is_some();
                if let Some(offset) = offset {
                    landing.address = landing.address >> 48 << 48 | offset;
                    landing.levels += 1;
                }
            }
        }
        landing
    }
}

fn load(plan: &Plan) -> Fabric {
    let mut network = Fabric::empty(plan.core());
    for phase in ReloadSteps::new(None, plan).unwrap().phases {
        for (switch, changes) in phase.changes {
            changes.into_iter().for_each(|change| network.apply(switch, change));
        }
    }
    network
}

fn home(plan: &Plan, key: u64) -> &PlannedPartition {
    plan.partitions().iter().rev().find(|p| p.low <= key).unwrap()
}

/// Keys at which anything can change, and their neighbours.
fn keys(tops: &[TreeTop], random: &[u64]) -> Vec<u64> {
    let lows = tops.iter().flat_map(|top| top.nodes.iter().flat_map(|n| n.children.iter().map(|c| c.0)));
    let ends = lows.chain(tops.iter().map(|top| top.partition.range.low)).chain([0, u64::MAX]);
    ends.flat_map(|key| [key, key.wrapping_sub(1), key.wrapping_add(1)])
        .chain(random.iter().copied())
        .collect()
}

fn topology() -> Network {
    Network::one_core(4).unwrap()
}

fn arb_placement() -> impl Strategy<Value = Placement> {
    Just((0..16u32).collect::<Vec<_>>()).prop_shuffle().prop_map(|hosts| {
        let servers = [2u16, 0, 7, 65535].into_iter().zip(hosts).map(|(p, h)| (p, HostId(h)));
        servers.collect::<Placement>().with_clients(CLIENTS)
    })
}

/// Hosts of clients, behind different first switches; some of them may have a memory server as well.
const CLIENTS: [HostId; 2] = [HostId(5), HostId(9)];

fn arb_budget() -> impl Strategy<Value = Budget> {
    let rows = prop_oneof![Just(None), prop::array::uniform4(8usize..160).prop_map(Some)];
    let sets = (
        prop::array::uniform5(0usize..12),
        prop::array::uniform5(0usize..6),
        prop::array::uniform5(prop_oneof![Just(0usize), Just(20), Just(1000)]),
    );
    let how = prop_oneof![Just(RangeMatch::Exact), Just(RangeMatch::OneSided)];
    (4usize..60, 16usize..200, rows, how, sets, 1usize..3).prop_map(
        |(
            fat_root_ranges,
            stage_entries,
            stage_rows,
            range_match,
            (set_nodes, whole_nodes, children),
            live_epochs,
        )| Budget {
            target: "test".to_owned(),
            fat_root_ranges,
            stage_entries,
            stage_rows,
            range_match,
            set_nodes,
            whole_nodes,
            children,
            hot_keys: HOT_KEYS,
            live_epochs,
        },
    )
}

fn weights() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec(
        (prop_oneof![any::<u64>(), 0u64..100_000, (0u64..70_000).prop_map(|k| k << 32)], 0u64..100),
        0..40,
    )
}

/// A plan, or `None` where the budget cannot even hold the super-root.
fn plan(
    tops: &[TreeTop],
    placement: &Placement,
    weights: &[(u64, u64)],
    budget: &Budget,
    epoch: u8,
) -> Option<Plan> {
    let tree = Tree::new(tops).unwrap();
    let frequencies = Frequencies::from_weighted(&tree, weights);
    match Plan::new(&topology(), placement, &tree, &frequencies, budget, epoch) {
        Ok(plan) => Some(plan),
        Err(PlanError::OverBudget { need, limit, .. }) => {
            assert!(need > limit);
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// Where the record of a key lies, if it is odd, or its leaf.
fn located(tops: &[TreeTop], keys: impl IntoIterator<Item = u64>) -> Vec<Located> {
    let at = |key: u64| {
        let leaf = *naive_path(tops, key).last().unwrap();
        Located {
            key,
            address: if key & 1 == 1 { leaf >> 48 << 48 | 1 << 47 | key << 4 >> 20 } else { leaf },
        }
    };
    keys.into_iter().map(at).collect()
}

/// The same with hot keys.
fn plan_with_hot_keys(
    tops: &[TreeTop],
    placement: &Placement,
    weights: &[(u64, u64)],
    budget: &Budget,
    epoch: u8,
) -> Option<Plan> {
    let tree = Tree::new(tops).unwrap();
    let first = plan(tops, placement, weights, budget, epoch)?;
    let located = located(tops, first.hot_candidates(&tree, weights));
    let (hot, rest) = HotKeys::choose(&tree, weights, &located, budget.hot_keys, None);
    plan(tops, placement, &rest, budget, epoch).map(|plan| plan.with_hot_keys(hot))
}

/// Budgets are kept, slots are unique in their sets, and a cached node can be reached.
fn check_structure(plan: &Plan, budget: &Budget) {
    plan.check(budget).unwrap();
    assert!(plan.fat_root().len() <= budget.fat_root_ranges);
    for nodes in plan.nodes().chunk_by(|a, b| (a.layer, a.switch) == (b.layer, b.switch)) {
        let layer = usize::from(nodes[0].layer);
        let count = |is: &dyn Fn(&&CachedNode) -> bool| nodes.iter().filter(is).count();
        assert!(nodes.len() <= budget.set_nodes[layer]);
        assert!(count(&|node| node.pivots == Pivots::Whole) <= budget.whole_nodes[layer]);
        let irregular = nodes.iter().filter(|node| !node.is_regular());
        assert!(irregular.map(|node| node.children.len()).sum::<usize>() <= budget.children[layer]);
        let slots: BTreeSet<u16> = nodes.iter().map(|node| node.slot).collect();
        assert_eq!(slots.len(), nodes.len());
        assert!(nodes.iter().all(|node| (1..=16).contains(&node.children.len())));
    }
    // The layer from which each address is led to.
    let roots = plan.fat_root().iter().map(|range| (range.address, None));
    let below = plan.nodes().iter().flat_map(|n| n.children.iter().map(|c| (c.address, Some(n.layer))));
    let led: BTreeMap<u64, Option<u8>> = roots.chain(below).collect();
    for node in plan.nodes() {
        assert!(led[&node.address] < Some(node.layer), "a node is led to from an earlier layer");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hot_keys_go_straight(
        tops in arb_tops(), placement in arb_placement(), weights in weights(), budget in arb_budget(),
    ) {
        let Some(plan) = plan_with_hot_keys(&tops, &placement, &weights, &budget, 1) else { return Ok(()) };
        check_structure(&plan, &budget);
        let network = load(&plan);
        let lies = located(&tops, weights.iter().map(|(key, _)| *key));
        let mut useful = BTreeMap::new();
        for Located { key, address } in lies {
            let led = plan.hot_address(key);
            prop_assert!(led.is_none_or(|led| led == address));
            if plan.land(key).address != address {
                let visits = weights.iter().filter(|(other, _)| *other == key).map(|(_, weight)| weight).sum::<u64>();
                useful.insert(key, (visits, led.is_some()));
            } else {
                prop_assert_eq!(led, None, "all others come to {:#x} at once as well", key);
            }
            for hop in CLIENTS.map(|host| topology().edge_of(host).id) {
                let tables = network.switches.get(&hop).cloned().unwrap_or_default();
                let here = tables.hot.get(&hot_key::Key { dst_ip: home(&plan, key).ip, key });
                prop_assert_eq!(here.map(|action| action.address), led);
            }
        }
        let least = useful.values().filter(|(_, hot)| *hot).map(|(visits, _)| *visits).min();
        let entries = useful.values().filter(|(_, hot)| *hot).count();
        prop_assert_eq!(entries, plan.hot_keys().len());
        // Only candidates can be chosen, and some of them are of no use.
        let left = super::hot::hottest(&weights, HOT_KEYS).into_iter().filter_map(|key| useful.get(&key)).filter(|(_, hot)| !hot);
        for (visits, _) in left {
            prop_assert!(entries == HOT_KEYS && least >= Some(*visits));
        }
        prop_assert_eq!(&Plan::from_json(&plan.to_json()).unwrap(), &plan);
    }

    #[test]
    fn tree_plan_and_entries_agree(
        tops in arb_tops(), placement in arb_placement(), weights in weights(), budget in arb_budget(),
        epoch in 1u8..=255, random in prop::collection::vec(any::<u64>(), 20),
    ) {
        let Some(plan) = plan(&tops, &placement, &weights, &budget, epoch) else { return Ok(()) };
        check_structure(&plan, &budget);
        let network = load(&plan);
        let cached: BTreeSet<u64> = plan.nodes().iter().map(|node| node.address).collect();
        for key in keys(&tops, &random) {
            let landing = plan.land(key);
            let path = naive_path(&tops, key);
            let from = plan.fat_root().iter().rev().find(|range| range.low <= key).unwrap();
            let start = path.iter().position(|address| *address == from.address);
            let start = start.expect("the fat root leads to a node on the key's own path");
            // As deep as the sets say: on from the fat root's child while the node is cached.
            let end = (start..path.len()).find(|at| !cached.contains(&path[*at])).expect("leaves are not cached");
            prop_assert_eq!(landing.address, path[end], "key {:#x}", key);
            prop_assert_eq!(usize::from(landing.levels), 1 + end - start);
            prop_assert_eq!(network.read(home(&plan, key), key), landing, "key {:#x}", key);
        }
        prop_assert_eq!(&Plan::from_json(&plan.to_json()).unwrap(), &plan);
    }

    #[test]
    fn a_layer_takes_the_most_visited(
        tops in arb_tops(), placement in arb_placement(), weights in weights(), room in 1usize..6,
    ) {
        let budget = Budget { fat_root_ranges: 12, set_nodes: [room, 0, 0, 0, 0], ..Budget::bmv2() };
        let plan = plan(&tops, &placement, &weights, &budget, 1).unwrap();
        let tree = Tree::new(&tops).unwrap();
        let children: Vec<_> = plan.fat_root().iter().filter_map(|range| {
            let node = tree.nodes().iter().position(|n| n.address == range.address)?;
            tree.cacheable(node as u32).then_some(range)
        }).collect();
        let cached = |range: &&&FatRootRange| plan.nodes().iter().any(|node| node.address == range.address);
        let least = children.iter().filter(cached).map(|range| range.weight).min();
        let left = children.iter().filter(|range| !cached(range)).map(|range| range.weight).max();
        prop_assert_eq!(plan.nodes().len(), room.min(children.len()));
        if let (Some(least), Some(left)) = (least, left) {
            prop_assert!(least >= left, "{} is cached, {} is not", least, left);
        }
    }

    #[test]
    fn diffs_apply(
        tops in arb_tops(), placement in arb_placement(), budget in arb_budget(),
        before in weights(), after in weights(), epochs in prop_oneof![Just((3, 3)), Just((3, 4))],
    ) {
        let old = plan_with_hot_keys(&tops, &placement, &before, &budget, epochs.0);
        let new = plan_with_hot_keys(&tops, &placement, &after, &budget, epochs.1);
        let (Some(old), Some(new)) = (old, new) else { return Ok(()) };
        let mut network = load(&old);
        let changes = diff(&old.entries(), &new.entries());
        let touched: usize = changes.values().map(Vec::len).sum();
        for (switch, changes) in changes {
            // What goes first, for a table may be full.
            let (go, come): (Vec<_>, Vec<_>) = changes.into_iter().partition(|change| matches!(change, Change::Delete(_)));
            go.into_iter().chain(come).for_each(|change| network.apply(switch, change));
        }
        let wanted = load(&new);
        for (switch, tables) in &network.switches {
            let none = Switch::default();
            let wanted = wanted.switches.get(switch).unwrap_or(&none);
            prop_assert_eq!(tables, wanted);
        }
        if before == after && epochs.0 == epochs.1 {
            prop_assert_eq!(touched, 0);
        }
    }

    #[test]
    fn at_every_moment_of_a_reload_a_read_lands_on_its_path(
        tops in arb_tops(), placement in arb_placement(), budget in arb_budget(),
        before in weights(), after in weights(), random in prop::collection::vec(any::<u64>(), 5),
        order in any::<u64>(), epoch in 1u8..=255,
    ) {
        let old = plan_with_hot_keys(&tops, &placement, &before, &budget, epoch);
        let new = plan_with_hot_keys(&tops, &placement, &after, &budget, next_epoch(epoch));
        let (Some(old), Some(new)) = (old, new) else { return Ok(()) };
        let steps = ReloadSteps::new(Some(&old), &new).unwrap();
        prop_assert!(matches!(steps.phases[0].kind, PhaseKind::Forget | PhaseKind::Write));
        let first = load(&old);
        let mut network = first.clone();
        let every: Vec<u64> = keys(&tops, &random);
        let mut moments = order | 1;
        for phase in &steps.phases {
            let mut changes: Vec<_> = phase.changes.iter().flat_map(|(s, changes)| changes.iter().map(|c| (*s, *c))).collect();
            // Any order will do: a cheap shuffle from one seed.
            for at in (1..changes.len()).rev() {
                moments = moments.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                changes.swap(at, (moments >> 33) as usize % (at + 1));
            }
            let step = changes.len().div_ceil(12);
            for (n, (switch, change)) in changes.into_iter().enumerate() {
                network.apply(switch, change);
                if n % step != 0 {
                    continue;
                }
                for key in every.iter().skip(n % 7).step_by(7) {
                    let path = naive_path(&tops, *key);
                    // Packets that enter now, and packets that were already on their way with the old epoch.
                    for before in [&network, &first] {
                        let landing = network.read_under_way(before, home(&old, *key), *key);
                        prop_assert!(path.contains(&landing.address), "{:?}, key {key:#x}: {landing:?}", phase.kind);
                    }
                    if matches!(phase.kind, PhaseKind::Forget | PhaseKind::Write) {
                        prop_assert_eq!(network.read(home(&old, *key), *key), old.land(*key));
                    } else {
                        prop_assert_eq!(network.read(home(&new, *key), *key), new.land(*key));
                    }
                }
            }
        }
        let fresh = load(&new);
        prop_assert!(network.switches.iter().all(|(switch, tables)| {
            let none = Switch::default();
            let wanted = fresh.switches.get(switch).unwrap_or(&none);
            tables == wanted
        }), "nothing of the old epoch is left");
    }
}

fn example() -> (Cluster, Vec<TreeTop>) {
    let cluster = Cluster::example();
    let tops = cluster.servers().iter().map(|server| {
        let leaves: Vec<u64> = (0..500).map(|n| server.low + n * 1000).collect();
        top(server.partition, server.low, &leaves, &[16, 9])
    });
    let tops = tops.collect();
    (cluster, tops)
}

#[test]
fn the_example_cluster_is_planned_printed_and_summed_up() {
    let (cluster, tops) = example();
    let budget = Budget { fat_root_ranges: 30, set_nodes: [8, 10, 20, 20, 20], ..Budget::bmv2() };
    let samples: Vec<(u64, u64)> = (0..2000).map(|n| (n * 250, 1)).collect();
    let plan = plan(&tops, &Placement::of(&cluster), &samples, &budget, 5).unwrap();
    let summary = plan.summary();
    assert_eq!((summary.epoch, summary.layers.len()), (5, 5));
    assert_eq!(summary.layers[0].nodes, 8);
    assert_eq!(summary.layers[0].switches[0].name, "core-0");
    assert_eq!(summary.layers[1].switches.len(), 1, "all four servers are in pod 0");
    assert_eq!(summary.layers[3].switches.len(), 2, "behind two edge switches");
    let entries: usize = plan.entries().values().map(Vec::len).sum();
    assert_eq!(summary.entries, entries);
    let average =
        samples.iter().map(|(key, _)| f64::from(plan.land(*key).levels)).sum::<f64>() / samples.len() as f64;
    assert!((summary.expected_levels - average).abs() < 1e-9, "{} and {average}", summary.expected_levels);
    let text = plan.print();
    for part in [
        "plan of epoch 5 for v1model",
        "fat root in core-0:",
        "core A              8 nodes",
        "agg-0-0",
        "edge-0-1",
    ] {
        assert!(text.contains(part), "{part:?} missing in\n{text}");
    }
    let lines: Vec<_> =
        plan.annotations().into_iter().map(|(id, lines)| (plan.switch_name(id).to_owned(), lines)).collect();
    assert_eq!(
        lines[0],
        ("core-0".to_owned(), vec![format!("fat root {} ranges", summary.ranges), "A: 8 nodes".to_owned()])
    );
    assert_eq!(lines[1].1, ["A: 10 nodes", "B: 20 nodes"]);
    let json: serde_json::Value = serde_json::from_str(&plan.to_json()).unwrap();
    assert_eq!(json["summary"]["ranges"], summary.ranges);
    assert_eq!(json["summary"]["stage_entries"].as_array().unwrap().len(), 4);
}

#[test]
fn counters_become_visits() {
    let (cluster, tops) = example();
    let budget = Budget { fat_root_ranges: 30, set_nodes: [8, 10, 20, 20, 20], ..Budget::bmv2() };
    let plan = plan(&tops, &Placement::of(&cluster), &[], &budget, 5).unwrap();
    let entries = plan.entries();
    // Three packets for each leaf below.
    let leaves_below = |address: u64| -> u64 {
        let mut next = vec![address];
        let mut leaves = 0;
        while let Some(at) = next.pop() {
            match tops.iter().flat_map(|top| &top.nodes).find(|node| node.address == at) {
                Some(node) => next.extend(node.children.iter().map(|child| child.1)),
                None => leaves += 1,
            }
        }
        leaves
    };
    // A range may be several entries.
    let mut ranges = BTreeSet::new();
    let mut packets = |entry: &Entry| match entry {
        Entry::FatRoot(_, fat_root::Action::Land { address, .. }) if ranges.insert(*address) => {
            3 * leaves_below(*address)
        }
        Entry::Coarse(key, _) => 3 * leaves_below(key.address),
        _ => 0,
    };
    let mut counters: Vec<(SwitchId, Entry, u64)> = Vec::new();
    for (switch, entries) in &entries {
        counters.extend(entries.iter().map(|entry| (*switch, *entry, packets(entry))));
    }
    let visits = plan.visits(counters.iter().copied(), &[]);
    let is_end = |address: &u64| plan.nodes().iter().all(|node| node.address != *address);
    let children = plan.nodes().iter().flat_map(|n| &n.children).map(|c| c.address);
    let ends = children.chain(plan.fat_root().iter().map(|r| r.address)).filter(is_end).count();
    assert_eq!(visits.len(), ends);
    let least = visits.iter().map(|visit| visit.1).min().unwrap();
    for (low, _) in &visits {
        let landing = plan.land(*low);
        let known = plan.nodes().iter().any(|node| node.address == landing.address);
        assert!(!known, "visits begin where packets stopped");
    }

    // Samples divide what was counted where they end, and change nothing elsewhere.
    let sum = |visits: &[(u64, u64)]| visits.iter().map(|visit| visit.1).sum::<u64>();
    let inside = plan.nodes().last().unwrap().children.last().unwrap().low;
    let sampled = [inside + 1, inside + 1, inside + 2];
    let divided = plan.visits(counters.iter().copied(), &sampled);
    assert!(sum(&visits).abs_diff(sum(&divided)) < 3, "but for what cannot be divided by three");
    let of = |key| sum(&divided.iter().copied().filter(|visit| visit.0 == key).collect::<Vec<_>>());
    assert_eq!((of(inside), of(inside + 1)), (0, 2 * of(inside + 2)));

    // Where nothing was counted a sample is one visit.
    let alone = plan.visits([], &sampled);
    assert_eq!(sum(&alone), least / 3 * sampled.len() as u64);
}

#[test]
fn what_switches_hold_is_counted() {
    let (cluster, tops) = example();
    let tree = Tree::new(&tops).unwrap();
    let held = |fat_root_ranges, set_nodes| {
        let budget = Budget { fat_root_ranges, set_nodes, ..Budget::bmv2() };
        let plan = plan(&tops, &Placement::of(&cluster), &[], &budget, 1).unwrap();
        (plan.held_nodes(&tree), plan.entry_bytes())
    };
    assert_eq!(held(4, [0; 5]).0, 0, "nothing but the super-root");
    let (some, bytes) = held(4, [3, 0, 0, 0, 0]);
    assert_eq!(some, 3);
    assert!(bytes > 3 * (31 + 4 * 16), "each with five steps of search");
    assert!(held(60, [3, 0, 0, 0, 0]).0 > some, "and those merged into the fat root");
    assert_eq!(held(4, [8192; 5]).0, tree.node_count());
    assert_eq!(held(1024, [8192; 5]).0, tree.node_count());
}

#[test]
fn a_key_below_the_first_fence_goes_to_the_first_children() {
    let (cluster, mut tops) = example();
    tops.truncate(1);
    tops[0].partition.range.low = 500;
    tops[0].nodes.iter_mut().filter(|n| n.low() == 0).for_each(|n| n.children[0].0 = 500);
    let budget = Budget { fat_root_ranges: 1, ..Budget::bmv2() };
    let placement = Placement::of(&cluster);
    let plan = plan(&tops, &placement, &[], &budget, 1).unwrap();
    let network = load(&plan);
    for (key, levels) in [(499, 4), (500, 4)] {
        assert_eq!(network.read(home(&plan, key), key), plan.land(key));
        assert_eq!(plan.land(key).levels, levels);
    }
}

#[test]
fn tcam_ends_the_fat_root_before_its_ranges_do() {
    let (cluster, tops) = example();
    let wide = Budget { fat_root_ranges: 500, ..Budget::compiled(Target::Tofino1) };
    let narrow = Budget { stage_rows: Some([64; 4]), ..wide.clone() };
    let make = |budget: &Budget| plan(&tops, &Placement::of(&cluster), &[], budget, 1).unwrap();
    let (all, few) = (make(&wide), make(&narrow));
    assert!(few.fat_root().len() < all.fat_root().len());
    assert!(few.summary().stage_rows.iter().all(|rows| *rows <= 32), "two epochs share 64 rows");
    let exact = make(&Budget { range_match: RangeMatch::Exact, ..narrow.clone() });
    assert!(exact.fat_root().len() <= few.fat_root().len(), "one-sided matching needs no more rows");
    let error = all.check(&narrow).unwrap_err();
    assert!(error.to_string().contains("TCAM rows) needs"), "{error}");
    let error = all.check(&Budget { set_nodes: [1; 5], ..wide }).unwrap_err();
    assert!(error.to_string().contains("node set core A of core-0 (nodes) needs"), "{error}");
}

#[test]
fn impossible_plans_are_refused() {
    let (cluster, tops) = example();
    let tree = Tree::new(&tops).unwrap();
    let none = Frequencies::none(&tree);
    let make = |placement: &Placement, budget: &Budget, epoch| {
        Plan::new(cluster.tree(), placement, &tree, &none, budget, epoch).unwrap_err()
    };
    let placement = Placement::of(&cluster);
    assert_eq!(make(&placement, &Budget::bmv2(), 0), PlanError::Epoch { found: 0 });
    let three: Placement = placement.iter().take(3).collect();
    assert_eq!(make(&three, &Budget::bmv2(), 1), PlanError::Unplaced { partition: 3 });
    let small = Budget { fat_root_ranges: 3, ..Budget::bmv2() };
    let expected = PlanError::OverBudget { table: "fat root (ranges)".to_owned(), need: 4, limit: 3 };
    assert_eq!(make(&placement, &small, 1), expected);
    assert!(matches!(make(&placement, &Budget { live_epochs: 0, ..small }, 1), PlanError::Budget { .. }));
}

#[test]
fn damaged_files_are_refused() {
    let (cluster, tops) = example();
    let budget = Budget { fat_root_ranges: 30, set_nodes: [8, 10, 20, 20, 20], ..Budget::bmv2() };
    let plan = plan(&tops, &Placement::of(&cluster), &[], &budget, 5).unwrap();
    let good: serde_json::Value = serde_json::from_str(&plan.to_json()).unwrap();
    let refuse = |change: &dyn Fn(&mut serde_json::Value), reason: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = Plan::from_json(&bad.to_string()).unwrap_err().to_string();
        assert!(error.contains(reason), "expected {reason:?} in: {error}");
    };
    refuse(&|v| v["format"] = 1.into(), "expected format 3");
    refuse(&|v| v["epoch"] = 0.into(), "epoch from 1");
    refuse(&|v| v["fat_root"][0]["low"] = 1.into(), "from key 0");
    refuse(&|v| v["nodes"][0]["layer"] = 5.into(), "layer from 0 to 4");
    refuse(&|v| v["nodes"][0]["slot"] = 9.into(), "in order of layer, switch and slot");
    refuse(&|v| v["nodes"][3]["slot"] = 2.into(), "in order of layer, switch and slot");
    refuse(&|v| v["nodes"][1]["address"] = v["nodes"][0]["address"].clone(), "an address twice");
    refuse(&|v| v["nodes"][0]["partition"] = 9.into(), "is not below this switch");
    refuse(&|v| v["nodes"][0]["children"] = serde_json::json!([]), "1 to 16 children");
    refuse(&|v| v["nodes"][0]["children"][0]["address"] = v["nodes"][1]["address"].clone(), "further down");
    refuse(&|v| v["nodes"][0]["pivots"] = "high".into(), "low halves");
    refuse(&|v| v["nodes"][0]["stride"] = 2.into(), "as its stride says");
    refuse(
        &|v| v["budget"]["set_nodes"][0] = 7.into(),
        "node set core A of core-0 (nodes) needs 8, the limit is 7",
    );
    refuse(&|v| v["budget"]["fat_root_ranges"] = 3.into(), "the limit is 3");
    assert!(Plan::from_json("{}").is_err() && Plan::from_json("").is_err());
}

#[test]
fn epochs_follow_each_other_with_other_last_bits() {
    let mut epoch = 1;
    for _ in 0..600 {
        let next = next_epoch(epoch);
        assert!(next != 0 && next & 1 != epoch & 1);
        epoch = next;
    }
    let (cluster, tops) = example();
    let make = |epoch| plan(&tops, &Placement::of(&cluster), &[], &Budget::paper(), epoch).unwrap();
    let ids = |plan: &Plan| -> BTreeSet<u16> {
        let id = |entry: &Entry| match entry {
            Entry::FatRoot(key, _) => Some(key.sub_table),
            _ => None,
        };
        plan.entries().values().flatten().filter_map(id).collect()
    };
    let (one, two) = (make(255), make(2));
    assert!(ids(&one).is_disjoint(&ids(&two)) && !ids(&one).contains(&0) && !ids(&two).contains(&0));
    let error = ReloadSteps::new(Some(&one), &make(3)).unwrap_err().to_string();
    assert!(error.contains("epoch 3 cannot follow epoch 255"), "{error}");
}

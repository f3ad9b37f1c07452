//! Three answers agree: the tree's own, the plan's, and that of the switches' entries, read as naively as possible.

mod fabric;
mod placement;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fatbtree_blink::{LookupBytes, TreeTop};
use fatbtree_topology::{Cluster, Cores, HostId, Network, SwitchId};
use proptest::prelude::*;

use super::*;
use crate::occupancy::Counts;
use crate::program::{Programs, Target};
use crate::reconcile::{Desired, Loaded, Observed};
use crate::tables::{Change, Entry, fat_root, hot_key};
use crate::test_support::{arb_tops, naive_path, top};
use fabric::{Fabric, HOT_KEYS, Switch};

fn load(at: &Place, plan: &Plan) -> Fabric {
    let mut network = Fabric::empty(&at.0);
    for (switch, entries) in plan.entries() {
        entries.into_iter().for_each(|entry| network.apply(switch, Change::Insert(entry)));
    }
    plan.roots().iter().for_each(|root| network.apply(*root, Change::CoreRoute(plan.descend())));
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

/// A network, and the places of its memory servers.
type Place = (Network, Placement);

fn of_cluster(cluster: &Cluster) -> Place {
    (cluster.tree().clone(), Placement::of(cluster))
}

/// Of every kind, with one fat root or several, and memory servers on any hosts.
fn arb_place() -> impl Strategy<Value = Place> {
    let networks = prop_oneof![
        Just(Network::one_core(4)),
        Just(Network::single(12)),
        Just(Network::folded(12, Vec::new())),
        Just(Network::pair(6)),
        (1..4u16, 1..4u16).prop_map(|(leaves, spines)| Network::leaf_spine(leaves + 1, spines, 12 / leaves)),
        Just(Network::fat_tree(4, Cores::All)),
        (0..4u16).prop_map(|core| Network::fat_tree(4, Cores::Chosen(core))),
    ];
    let hosts = Just((0..12u32).collect::<Vec<_>>()).prop_shuffle();
    (networks, hosts).prop_map(|(network, hosts)| {
        let servers = [2u16, 0, 7, 65535].into_iter().zip(hosts).map(|(p, h)| (p, HostId(h)));
        (network.unwrap(), servers.collect::<Placement>().with_clients(CLIENTS))
    })
}

/// Hosts of clients, behind different first switches; some of them may have a memory server as well.
const CLIENTS: [HostId; 2] = [HostId(5), HostId(9)];

fn arb_budget() -> impl Strategy<Value = Budget> {
    let rows = prop_oneof![Just(None), prop::array::uniform4(8usize..160).prop_map(Some)];
    let sets = (
        prop::array::uniform10(0usize..12),
        prop::array::uniform10(0usize..6),
        prop::array::uniform10(prop_oneof![Just(0usize), Just(20), Just(1000)]),
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
fn plan(tops: &[TreeTop], at: &Place, weights: &[(u64, u64)], budget: &Budget, epoch: u8) -> Option<Plan> {
    let tree = Tree::new(tops).unwrap();
    let frequencies = Frequencies::from_weighted(&tree, weights);
    match Plan::new(&at.0, &at.1, &tree, &frequencies, budget, epoch) {
        Ok(plan) => Some(plan),
        Err(PlanError::OverBudget { need, limit, .. }) => {
            assert!(need > limit);
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// The plan without knowledge.
fn blind(tops: &[TreeTop], at: &Place, budget: &Budget) -> Plan {
    plan(tops, at, &[], budget, 1).unwrap()
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
    at: &Place,
    weights: &[(u64, u64)],
    budget: &Budget,
    epoch: u8,
) -> Option<Plan> {
    let tree = Tree::new(tops).unwrap();
    let first = plan(tops, at, weights, budget, epoch)?;
    let located = located(tops, first.hot_candidates(&tree, weights));
    let (hot, rest) = HotKeys::choose(&tree, weights, &located, budget.hot_keys, None);
    plan(tops, at, &rest, budget, epoch).map(|plan| plan.with_hot_keys(hot))
}

/// Budgets are kept, slots are unique in their sets, and a cached node can be reached.
fn check_structure(plan: &Plan, budget: &Budget) {
    plan.check(budget).unwrap();
    assert!(plan.fat_root().len() <= budget.fat_root_ranges);
    for nodes in plan.nodes().chunk_by(|a, b| a.group == b.group) {
        let group = plan.group_of(&nodes[0]);
        let layer = ROLE_SETS.iter().position(|own| *own == (group.role, group.set)).unwrap();
        let count = |is: &dyn Fn(&&CachedNode) -> bool| nodes.iter().filter(is).count();
        assert!(nodes.len() <= budget.set_nodes[layer]);
        assert!(count(&|node| node.pivots == Pivots::Whole) <= budget.whole_nodes[layer]);
        let irregular = nodes.iter().filter(|node| !node.is_regular());
        assert!(irregular.map(|node| node.children.len()).sum::<usize>() <= budget.children[layer]);
        let slots: BTreeSet<u16> = nodes.iter().map(|node| node.slot).collect();
        assert_eq!(slots.len(), nodes.len());
        assert!(nodes.iter().all(|node| (1..=16).contains(&node.children.len())));
    }
    // The group from which each address is led to.
    let roots = plan.fat_root().iter().map(|range| (range.address, None));
    let below = plan.nodes().iter().flat_map(|n| n.children.iter().map(|c| (c.address, Some(n.group))));
    let led: BTreeMap<u64, Option<u16>> = roots.chain(below).collect();
    for node in plan.nodes() {
        assert!(led[&node.address] < Some(node.group), "a node is led to from an earlier set");
    }
}

/// What a plan says that it takes is what its entries take where they are loaded.
fn check_counts(plan: &Plan) {
    let programs = Programs::tables_only(Target::Tofino1).unwrap();
    let (summary, entries) = (plan.summary(), plan.entries());
    let tables =
        programs.of(fatbtree_topology::Role::Core).occupancy(&Counts::of(&entries[&plan.roots()[0]]));
    for stage in 0..STAGES {
        let table = tables.iter().find(|table| table.table == format!("fat_root_{stage}")).unwrap();
        let counted = (table.entries.used, table.rows.unwrap().used);
        assert_eq!(counted, (summary.stage_entries[stage], summary.stage_rows[stage]), "stage {stage}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hot_keys_go_straight(
        tops in arb_tops(), at in arb_place(), weights in weights(), budget in arb_budget(),
    ) {
        let Some(plan) = plan_with_hot_keys(&tops, &at, &weights, &budget, 1) else { return Ok(()) };
        check_structure(&plan, &budget);
        let network = load(&at, &plan);
        let lies = located(&tops, weights.iter().map(|(key, _)| *key));
        let mut useful = BTreeMap::new();
        for Located { key, address } in lies {
            let led = plan.hot_address(key);
            prop_assert!(led.is_none_or(|led| led == address));
            if plan.resolve(key).address != address {
                let visits = weights.iter().filter(|(other, _)| *other == key).map(|(_, weight)| weight).sum::<u64>();
                useful.insert(key, (visits, led.is_some()));
            } else {
                prop_assert_eq!(led, None, "all others come to {:#x} at once as well", key);
            }
            for hop in CLIENTS.map(|host| at.0.edge_of(host).id) {
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
        tops in arb_tops(), at in arb_place(), weights in weights(), budget in arb_budget(),
        epoch in 1u8..=255, random in prop::collection::vec(any::<u64>(), 20),
    ) {
        let Some(plan) = plan(&tops, &at, &weights, &budget, epoch) else { return Ok(()) };
        check_structure(&plan, &budget);
        let network = load(&at, &plan);
        let cached: BTreeSet<u64> = plan.nodes().iter().map(|node| node.address).collect();
        for key in keys(&tops, &random) {
            let landing = plan.resolve(key);
            let path = naive_path(&tops, key);
            let from = plan.fat_root().iter().rev().find(|range| range.low <= key).unwrap();
            let start = path.iter().position(|address| *address == from.address);
            let start = start.expect("the fat root leads to a node on the key's own path");
            // As deep as the sets say: on from the fat root's child while the node is cached.
            let end = (start..path.len()).find(|at| !cached.contains(&path[*at])).expect("leaves are not cached");
            prop_assert_eq!(landing.address, path[end], "key {:#x}", key);
            prop_assert_eq!(usize::from(landing.levels), 1 + end - start);
            let kind = if end + 1 == path.len() { NodeKind::Leaf } else { NodeKind::Inner };
            prop_assert_eq!(landing.kind, kind, "key {:#x}", key);
            for root in plan.roots() {
                prop_assert_eq!(network.read(*root, home(&plan, key), key), landing, "key {:#x}", key);
            }
        }
        prop_assert_eq!(&Plan::from_json(&plan.to_json()).unwrap(), &plan);
        check_counts(&plan);
    }

    /// Stages that are too small for their own slices share what there is.
    #[test]
    fn stages_share_their_rows(
        tops in arb_tops(), weights in weights(), random in prop::collection::vec(any::<u64>(), 20),
        rows in prop::array::uniform4(2usize..40), one_sided in any::<bool>(), stage_entries in 2usize..60,
    ) {
        let range_match = if one_sided { RangeMatch::OneSided } else { RangeMatch::Exact };
        let budget = Budget {
            stage_rows: Some(rows), stage_entries, range_match, live_epochs: 1, set_nodes: [0; SETS], ..Budget::bmv2()
        };
        let at = (Network::one_core(4).unwrap(), [2u16, 0, 7, 65535].into_iter().zip((0..).map(HostId)).collect());
        let Some(plan) = plan(&tops, &at, &weights, &budget, 1) else { return Ok(()) };
        check_structure(&plan, &budget);
        check_counts(&plan);
        let network = load(&at, &plan);
        for key in keys(&tops, &random) {
            let from = plan.fat_root().iter().rev().find(|range| range.low <= key).unwrap();
            let landing = network.read(plan.roots()[0], home(&plan, key), key);
            prop_assert_eq!((landing.address, landing.levels), (from.address, 1), "key {:#x}", key);
            prop_assert_eq!(plan.resolve(key), landing);
        }
    }

    #[test]
    fn a_layer_takes_the_most_visited(
        tops in arb_tops(), at in arb_place(), weights in weights(), room in 1usize..6,
    ) {
        let budget = Budget { fat_root_ranges: 12, set_nodes: [room, 0, 0, 0, 0, room, 0, room, 0, 0], ..Budget::bmv2() };
        let plan = plan(&tops, &at, &weights, &budget, 1).unwrap();
        let tree = Tree::new(&tops).unwrap();
        let children: Vec<_> = plan.fat_root().iter().filter_map(|range| {
            let node = tree.nodes().iter().position(|n| n.address == range.address)?;
            tree.cacheable(node as u32).then_some(range)
        }).collect();
        let cached = |range: &&&FatRootRange| plan.nodes().iter().any(|node| node.address == range.address);
        let frequencies = Frequencies::from_weighted(&tree, &weights);
        let expected = |range: &&FatRootRange| {
            let node = tree.nodes().iter().position(|n| n.address == range.address).unwrap();
            frequencies.expected()[node]
        };
        let least = children.iter().filter(cached).map(expected).min_by(f64::total_cmp);
        let left = children.iter().filter(|range| !cached(range)).map(expected).max_by(f64::total_cmp);
        prop_assert_eq!(plan.nodes().len(), room.min(children.len()));
        let none = blind(&tops, &at, &budget);
        if let (Some(least), Some(left)) = (least, left) {
            // Or leaves alone say better what was asked for.
            let addresses = |plan: &Plan| plan.nodes().iter().map(|node| node.address).collect::<Vec<_>>();
            let is_blind = addresses(&plan) == addresses(&none);
            prop_assert!(least >= left || is_blind, "{} is cached, {} is not", least, left);
        }
    }

    #[test]
    fn diffs_apply(
        tops in arb_tops(), at in arb_place(), budget in arb_budget(),
        before in weights(), after in weights(), epochs in prop_oneof![Just((3, 3)), Just((3, 4))],
    ) {
        let old = plan_with_hot_keys(&tops, &at, &before, &budget, epochs.0);
        let new = plan_with_hot_keys(&tops, &at, &after, &budget, epochs.1);
        let (Some(old), Some(new)) = (old, new) else { return Ok(()) };
        let mut network = load(&at, &old);
        let changes = diff(&old.entries(), &new.entries());
        let touched: usize = changes.values().map(Vec::len).sum();
        for (switch, changes) in changes {
            // What goes first, for a table may be full.
            let (go, come): (Vec<_>, Vec<_>) = changes.into_iter().partition(|change| matches!(change, Change::Delete(_)));
            go.into_iter().chain(come).for_each(|change| network.apply(switch, change));
        }
        let wanted = load(&at, &new);
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
        tops in arb_tops(), at in arb_place(), budget in arb_budget(),
        before in weights(), after in weights(), random in prop::collection::vec(any::<u64>(), 5),
        order in any::<u64>(), epoch in 1u8..=255,
    ) {
        let old = plan_with_hot_keys(&tops, &at, &before, &budget, epoch);
        let new = plan_with_hot_keys(&tops, &at, &after, &budget, next_epoch(epoch));
        let (Some(old), Some(new)) = (old, new) else { return Ok(()) };
        let first = load(&at, &old);
        let mut network = first.clone();
        let every: Vec<u64> = keys(&tops, &random);
        let mut moments = order | 1;
        let mut draw = |below: usize| {
            moments = moments.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (moments >> 33) as usize % below
        };
        let (loaded, switches) = (Loaded::new(old.clone()), at.0.switches());
        let mut held: BTreeMap<SwitchId, Observed> = switches.iter().map(|switch| {
            let entries = old.entries().remove(&switch.id).unwrap_or_default();
            let route = old.roots().contains(&switch.id).then(|| old.descend());
            (switch.id, Observed::new(entries, route))
        }).collect();
        let next = Loaded::new(new.clone());
        let of = |active: &Arc<Loaded>, staged| Desired::of_plans(old.roots(), Arc::clone(active), staged);
        let stages = [
            of(&loaded, Some(Arc::clone(&next))), of(&next, Some(Arc::clone(&loaded))), of(&next, None),
        ];
        for desired in stages {
            loop {
                let mut wanted: Vec<(SwitchId, Vec<Change>)> = held.iter().filter_map(|(switch, held)| {
                    Some((*switch, desired.wanted(*switch).next_changes(held)?))
                }).collect();
                if wanted.is_empty() {
                    break;
                }
                // Each switch has a keeper of its own: some are further than others.
                wanted.retain(|_| draw(2) == 0);
                if wanted.is_empty() {
                    continue;
                }
                wanted.iter().for_each(|(switch, changes)| held.get_mut(switch).unwrap().apply(changes));
                let mut changes: Vec<_> =
                    wanted.into_iter().flat_map(|(switch, changes)| changes.into_iter().map(move |c| (switch, c))).collect();
                // Any order will do: a cheap shuffle from one seed.
                for at in (1..changes.len()).rev() {
                    changes.swap(at, draw(at + 1));
                }
                let step = changes.len().div_ceil(6);
                for (n, (switch, change)) in changes.into_iter().enumerate() {
                    network.apply(switch, change);
                    if n % step != 0 {
                        continue;
                    }
                    for key in every.iter().skip(n % 7).step_by(7) {
                        let path = naive_path(&tops, *key);
                        // Packets that enter now, and packets that were already on their way with the old epoch.
                        for root in old.roots() {
                            for before in [&network, &first] {
                                let landing = network.read_under_way(before, *root, home(&old, *key), *key);
                                prop_assert!(path.contains(&landing.address), "key {key:#x}: {landing:?}");
                            }
                            // Each fat root moves packets by itself.
                            let plan = if network.epoch(*root) == old.epoch() { &old } else { &new };
                            prop_assert_eq!(network.read(*root, home(plan, *key), *key), plan.resolve(*key));
                        }
                    }
                }
            }
        }
        let fresh = load(&at, &new);
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
        let reads = LookupBytes { inner: 384, leaf: 128 };
        TreeTop { reads, ..top(server.partition, server.low, &leaves, &[16, 9]) }
    });
    let tops = tops.collect();
    (cluster, tops)
}

#[test]
fn the_example_cluster_is_planned_printed_and_summed_up() {
    let (cluster, tops) = example();
    let budget =
        Budget { fat_root_ranges: 30, set_nodes: [8, 10, 20, 20, 20, 0, 0, 0, 0, 0], ..Budget::bmv2() };
    let samples: Vec<(u64, u64)> = (0..2000).map(|n| (n * 250, 1)).collect();
    let plan = plan(&tops, &of_cluster(&cluster), &samples, &budget, 5).unwrap();
    let summary = plan.summary();
    assert_eq!((summary.epoch, summary.layers.len()), (5, 5));
    assert_eq!(summary.layers[0].nodes, 8);
    assert_eq!(summary.layers[0].switches[0].name, "core-0");
    assert_eq!(summary.layers[1].switches.len(), 1, "all four servers are in pod 0");
    assert_eq!(summary.layers[3].switches.len(), 2, "behind two edge switches");
    let entries: usize = plan.entries().values().map(Vec::len).sum();
    assert_eq!(summary.entries, entries);
    let average = samples.iter().map(|(key, _)| f64::from(plan.resolve(*key).levels)).sum::<f64>()
        / samples.len() as f64;
    assert!((summary.expected_levels - average).abs() < 1e-9, "{} and {average}", summary.expected_levels);
    let text = plan.print();
    for part in [
        " of epoch 5 for v1model",
        "average sample takes 1.00 round trips and 128 bytes",
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
    let budget =
        Budget { fat_root_ranges: 30, set_nodes: [8, 10, 20, 20, 20, 0, 0, 0, 0, 0], ..Budget::bmv2() };
    let plan = plan(&tops, &of_cluster(&cluster), &[], &budget, 5).unwrap();
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
        let landing = plan.resolve(*low);
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
        let plan = plan(&tops, &of_cluster(&cluster), &[], &budget, 1).unwrap();
        (plan.held_nodes(&tree), plan.entry_bytes())
    };
    assert_eq!(held(4, [0; SETS]).0, 0, "nothing but the super-root");
    let (some, bytes) = held(4, [3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(some, 3);
    assert!(bytes > 3 * (31 + 4 * 16), "each with five steps of search");
    assert!(held(60, [3, 0, 0, 0, 0, 0, 0, 0, 0, 0]).0 > some, "and those merged into the fat root");
    assert_eq!(held(4, [8192; SETS]).0, tree.node_count());
    assert_eq!(held(1024, [8192; SETS]).0, tree.node_count());
}

#[test]
fn a_key_below_the_first_fence_goes_to_the_first_children() {
    let (cluster, mut tops) = example();
    tops.truncate(1);
    tops[0].partition.range.low = 500;
    tops[0].nodes.iter_mut().filter(|n| n.low() == 0).for_each(|n| n.children[0].0 = 500);
    let budget = Budget { fat_root_ranges: 1, ..Budget::bmv2() };
    let at = of_cluster(&cluster);
    let plan = plan(&tops, &at, &[], &budget, 1).unwrap();
    let network = load(&at, &plan);
    for (key, levels) in [(499, 4), (500, 4)] {
        assert_eq!(network.read(plan.roots()[0], home(&plan, key), key), plan.resolve(key));
        assert_eq!(plan.resolve(key).levels, levels);
    }
}

#[test]
fn tcam_ends_the_fat_root_before_its_ranges_do() {
    let (cluster, tops) = example();
    let wide = Budget { fat_root_ranges: 500, ..Budget::compiled(Target::Tofino1) };
    let narrow = Budget { stage_rows: Some([64; 4]), ..wide.clone() };
    let make = |budget: &Budget| plan(&tops, &of_cluster(&cluster), &[], budget, 1).unwrap();
    let (all, few) = (make(&wide), make(&narrow));
    assert!(few.fat_root().len() < all.fat_root().len());
    assert!(few.summary().stage_rows.iter().all(|rows| *rows <= 32), "two epochs share 64 rows");
    let exact = make(&Budget { range_match: RangeMatch::Exact, ..narrow.clone() });
    assert!(exact.fat_root().len() <= few.fat_root().len(), "one-sided matching needs no more rows");
    let error = all.check(&narrow).unwrap_err();
    assert!(error.to_string().contains("TCAM rows) needs"), "{error}");
    let error = all.check(&Budget { set_nodes: [1; SETS], ..wide }).unwrap_err();
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

/// A switch that is everything at once has two node sets, or one where its program has no more.
#[test]
fn layers_are_those_that_there_is_room_for() {
    let (_, tops) = example();
    let at: Place = (Network::pair(2).unwrap(), (0..4).zip((0..).map(HostId)).collect());
    for target in Target::ALL {
        let budget = Budget { fat_root_ranges: 4, ..Budget::compiled(target) };
        let plan = plan(&tops, &at, &[], &budget, 1).unwrap();
        assert_eq!(plan.layer_names(), ["single A", "single B", "edge A", "edge B"]);
        assert!(plan.print().contains("fat root in switch-0:"), "{}", plan.print());
        let b = plan.summary().layers.into_iter().find(|layer| layer.name == "single B");
        assert_eq!(b.is_none_or(|layer| layer.nodes == 0), budget.set_nodes[6] == 0, "{target:?}");
        check_structure(&plan, &budget);
    }
}

/// Nodes of a group are in each of its switches, and what each counts adds up.
#[test]
fn several_fat_roots_hold_the_same_and_count_together() {
    let (_, tops) = example();
    let budget = Budget { fat_root_ranges: 30, set_nodes: [8; SETS], ..Budget::bmv2() };
    let network = Network::leaf_spine(3, 2, 4).unwrap();
    let at: Place = (network, (0..4).zip((0..).map(|host| HostId(3 * host))).collect());
    let plan = plan(&tops, &at, &[], &budget, 5).unwrap();
    let (entries, roots) = (plan.entries(), plan.roots());
    assert_eq!((roots.len(), &entries[&roots[0]]), (2, &entries[&roots[1]]));
    let summary = plan.summary();
    assert_eq!(
        (summary.layers[0].name.as_str(), summary.layers[0].nodes, summary.layers[0].switches.len()),
        ("core A", 8, 2)
    );
    let counted = |switches: &[SwitchId]| {
        let of =
            |switch: &SwitchId| entries[switch].iter().map(|entry| (*switch, *entry, 5)).collect::<Vec<_>>();
        plan.hits_and_stops(switches.iter().flat_map(of))
    };
    let (one, both) = (counted(&roots[..1]), counted(roots));
    assert!(one[1].0 > 0 && both[1].0 == 2 * one[1].0 && both[0].0 == 2 * one[0].0, "{one:?} {both:?}");
    assert!(plan.difference_to(&plan).is_some());
}

/// The numbers of a plan are those of its samples, one by one. Some of them are hot keys, in leaves and in records.
#[test]
fn the_cost_of_a_plan_is_that_of_its_samples() {
    let (cluster, tops) = example();
    let tree = Tree::new(&tops).unwrap();
    let budget = Budget {
        fat_root_ranges: 4,
        set_nodes: [2; SETS],
        hot_keys: 40,
        ..Budget::compiled(Target::Tofino1)
    };
    let keys: Vec<u64> = (0..500_000).step_by(250).collect();
    let samples: Vec<(u64, u64)> = keys.iter().chain(&keys).map(|key| (*key, 1)).collect();
    for records in [0, 20, 40] {
        let located = |at: usize| {
            let (key, leaf) = (keys[at * 49], tree.leaf_of(keys[at * 49]));
            Located { key, address: if at < records { leaf + 7 } else { leaf } }
        };
        let located: Vec<Located> = (0..40).map(located).collect();
        let (hot, rest) = HotKeys::choose(&tree, &samples, &located, 40, None);
        let plan = plan(&tops, &of_cluster(&cluster), &rest, &budget, 5).unwrap().with_hot_keys(hot);
        let (summary, cost) = (plan.summary(), plan.cost(&tree, &samples));
        assert!(cost.round_trips > 1.5, "most end above their leaves: {cost}");
        assert!((summary.round_trips - cost.round_trips).abs() < 1e-9, "{} and {cost}", summary.round_trips);
        let leaves = 1.0 - records as f64 / keys.len() as f64;
        let bytes = 384.0 * (cost.round_trips - leaves) + 128.0 * leaves;
        assert!((summary.read_bytes - bytes).abs() < 1e-6, "{} and {bytes} bytes", summary.read_bytes);
        assert!((cost.bytes - bytes).abs() < 1e-6, "{} and {bytes} bytes", cost.bytes);
        assert_eq!(Plan::from_json(&plan.to_json()).unwrap().summary(), summary);
        assert!(plan.print().contains(&format!("average sample takes {cost}")), "{}", plan.print());
        assert!(plan.print().contains(" round trips a lookup and "), "{}", plan.print());
    }
}

#[test]
fn damaged_files_are_refused() {
    let (cluster, tops) = example();
    let budget =
        Budget { fat_root_ranges: 30, set_nodes: [8, 10, 20, 20, 20, 0, 0, 0, 0, 0], ..Budget::bmv2() };
    let plan = plan(&tops, &of_cluster(&cluster), &[], &budget, 5).unwrap();
    let good: serde_json::Value = serde_json::from_str(&plan.to_json()).unwrap();
    let refuse = |change: &dyn Fn(&mut serde_json::Value), reason: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = Plan::from_json(&bad.to_string()).unwrap_err().to_string();
        assert!(error.contains(reason), "expected {reason:?} in: {error}");
    };
    refuse(&|v| v["format"] = 1.into(), "expected format 6");
    refuse(&|v| v["epoch"] = 0.into(), "epoch from 1");
    refuse(&|v| v["fat_root"][0]["low"] = 1.into(), "from key 0");
    refuse(&|v| v["nodes"][0]["group"] = 99.into(), "node sets, found number 99");
    refuse(&|v| v["roots"] = serde_json::json!([]), "a switch that holds the fat root");
    refuse(&|v| v["groups"][1]["switches"] = serde_json::json!([]), "one for each node set");
    refuse(&|v| v["partitions"][0]["groups"] = serde_json::json!([1, 0]), "in order, found [1, 0]");
    refuse(&|v| v["nodes"][0]["slot"] = 9.into(), "in order of node set and slot");
    refuse(&|v| v["nodes"][3]["slot"] = 2.into(), "in order of node set and slot");
    refuse(&|v| v["nodes"][1]["address"] = v["nodes"][0]["address"].clone(), "an address twice");
    refuse(&|v| v["nodes"][0]["partition"] = 9.into(), "is not below");
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
    let make = |epoch| plan(&tops, &of_cluster(&cluster), &[], &Budget::paper(), epoch).unwrap();
    let ids = |plan: &Plan| -> BTreeSet<u16> {
        let id = |entry: &Entry| match entry {
            Entry::FatRoot(key, _) => Some(key.sub_table),
            _ => None,
        };
        plan.entries().values().flatten().filter_map(id).collect()
    };
    let (one, two) = (make(255), make(2));
    assert!(ids(&one).is_disjoint(&ids(&two)) && !ids(&one).contains(&0) && !ids(&two).contains(&0));
}

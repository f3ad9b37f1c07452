//! How good a placement is: against the plan without knowledge, against the best one, and against its own rooms.

use super::*;
use crate::plan::budget::SetRoom;
use crate::tree::NONE;

fn trips(tree: &Tree, plan: &Plan, weights: &[(u64, u64)]) -> u64 {
    let trips = |key: u64| u64::from(tree.trips(key, plan.resolve(key).address));
    weights.iter().map(|(key, weight)| weight * trips(*key)).sum()
}

/// What a set has room for, and what of it is taken.
fn taken(plan: &Plan, group: u16) -> (SetRoom, SetRoom) {
    let mut taken = SetRoom::default();
    let nodes = plan.nodes().iter().filter(|node| node.group == group);
    nodes.for_each(|node| taken.add(node.pivots, node.is_regular(), node.children.len()));
    (SetRoom::of(plan.budget(), &plan.groups()[usize::from(group)]), taken)
}

/// Expected visits of the nodes below a fat root in the best placement, by trying all of them. Nodes come after their parents.
fn best(nodes: &[(f64, Option<usize>)], rooms: &mut [usize], places: &mut Vec<usize>) -> f64 {
    let Some((visits, parent)) = nodes.get(places.len()) else { return 0.0 };
    // Set `rooms.len()` stands for none.
    places.push(rooms.len());
    let mut most = best(nodes, rooms, places);
    places.pop();
    let first = parent.map_or(0, |parent| places[parent] + 1);
    for set in first..rooms.len() {
        if rooms[set] > 0 {
            rooms[set] -= 1;
            places.push(set);
            most = most.max(visits + best(nodes, rooms, places));
            places.pop();
            rooms[set] += 1;
        }
    }
    most
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_plan_is_worse_than_the_one_without_knowledge(
        tops in arb_tops(), at in arb_place(), weights in weights(), budget in arb_budget(),
    ) {
        let Some(blind) = plan(&tops, &at, &[], &budget, 1) else { return Ok(()) };
        let known = plan(&tops, &at, &weights, &budget, 1).unwrap();
        let tree = Tree::new(&tops).unwrap();
        prop_assert!(trips(&tree, &known, &weights) <= trips(&tree, &blind, &weights));
    }

    #[test]
    fn no_room_stays_empty_while_a_node_that_fits_is_left_out(
        tops in arb_tops(), at in arb_place(), weights in weights(), budget in arb_budget(),
    ) {
        let Some(plan) = plan(&tops, &at, &weights, &budget, 1) else { return Ok(()) };
        let tree = Tree::new(&tops).unwrap();
        let placed: BTreeSet<u64> = plan.nodes().iter().map(|node| node.address).collect();
        // Whatever packets are led to, and the group from which on it may be cached.
        let roots = plan.fat_root().iter().map(|range| (range.address, range.partition, 0));
        let below = plan.nodes().iter().flat_map(|n| n.children.iter().map(|c| (c.address, n.partition, n.group + 1)));
        for (address, partition, from) in roots.chain(below).filter(|(address, ..)| !placed.contains(address)) {
            let Some(node) = tree.nodes().iter().position(|node| node.address == address) else { continue };
            let node = node as u32;
            if !tree.cacheable(node) {
                continue;
            }
            let home = plan.partitions().iter().find(|planned| planned.id == partition).unwrap();
            for group in home.groups.iter().filter(|group| **group >= from) {
                let (room, mut taken) = taken(&plan, *group);
                taken.add(tree.pivots(node), tree.stride(node) != 0, tree.children(node).len());
                prop_assert!(!taken.is_within(&room), "{address:#x} would fit {}", plan.groups()[usize::from(*group)].name());
            }
        }
    }

    /// The bound that a plan states holds, and small plans are not far from the best.
    #[test]
    fn the_best_placement_is_within_the_stated_bound(
        widths in prop::collection::vec(2usize..5, 20), leaves in 3u64..24, ranges in 1usize..5,
        weights in prop::collection::vec((0u64..2400, 1u64..50), 0..30),
        rooms in prop::collection::vec(0usize..4, 5),
    ) {
        let lows: Vec<u64> = (0..leaves).map(|leaf| leaf * 100).collect();
        let tops = [top(0, 0, &lows, &widths)];
        let at: Place = (Network::one_core(4).unwrap(), [(0, HostId(0))].into_iter().collect());
        let mut set_nodes = [0; SETS];
        set_nodes[..5].copy_from_slice(&rooms);
        let budget = Budget { fat_root_ranges: ranges, set_nodes, ..Budget::bmv2() };
        let plan = plan(&tops, &at, &weights, &budget, 1).unwrap();
        let tree = Tree::new(&tops).unwrap();
        let frequencies = Frequencies::from_weighted(&tree, &weights);
        let visits = frequencies.expected();
        let mut below: Vec<u32> = Vec::new();
        let mut nodes: Vec<(f64, Option<usize>)> = Vec::new();
        let mut led = plan.fat_root().iter().map(|range| (range.address, None)).collect::<std::collections::VecDeque<_>>();
        while let Some((address, parent)) = led.pop_front() {
            let Some(node) = tree.nodes().iter().position(|node| node.address == address) else { continue };
            led.extend(tree.children(node as u32).iter().filter(|c| c.node != NONE).map(|c| (c.address, Some(below.len()))));
            below.push(node as u32);
            nodes.push((visits[node], parent));
        }
        prop_assume!(nodes.len() <= 9);
        let most = best(&nodes, &mut rooms.clone(), &mut Vec::new());
        let is_placed = |node: &&u32| plan.nodes().iter().any(|held| held.address == tree.node(**node).address);
        let walked: f64 = below.iter().filter(is_placed).map(|node| visits[*node as usize]).sum();
        let all = visits[tree.partitions()[0].node as usize];
        let bound = walked + plan.summary().short_of_best * all;
        prop_assert!(most <= bound * (1.0 + 1e-9), "the best walks {most}, the bound is {bound}");
        prop_assert!(walked >= 0.75 * most, "{walked} of {most}");
    }

    /// What a plan holds stays where it is when the same is asked for again.
    #[test]
    fn a_plan_follows_itself_without_changes(tops in arb_tops(), at in arb_place(), weights in weights(), budget in arb_budget()) {
        let Some(first) = plan(&tops, &at, &weights, &budget, 1) else { return Ok(()) };
        let tree = Tree::new(&tops).unwrap();
        let frequencies = Frequencies::from_weighted(&tree, &weights);
        let follow = |old: &Plan| Plan::following(&at.0, &at.1, &tree, &frequencies, &budget, 2, Some(old)).unwrap();
        let second = follow(&first);
        let third = follow(&second);
        prop_assert_eq!(second.fat_root(), third.fat_root());
        prop_assert_eq!(second.nodes(), third.nodes());
    }
}

/// A child of a hot node is asked for more often than a cold node with children, but it can wait.
#[test]
fn a_node_that_leads_on_goes_before_a_more_visited_one_that_can_wait() {
    // 4 nodes of 4 nodes of 4 leaves below a root; the fat root holds the root.
    let lows: Vec<u64> = (0..64).map(|leaf| leaf * 100).collect();
    let tops = [top(0, 0, &lows, &[4])];
    let at: Place = (Network::one_core(4).unwrap(), [(0, HostId(0))].into_iter().collect());
    let budget = Budget { fat_root_ranges: 4, set_nodes: [3, 4, 8, 5, 0, 0, 0, 0, 0, 0], ..Budget::bmv2() };
    // The last quarter is cold.
    let asked: Vec<(u64, u64)> = (0..64).map(|leaf| (leaf * 100, if leaf < 48 { 100 } else { 1 })).collect();
    let tree = Tree::new(&tops).unwrap();
    for weights in [&[][..], &asked] {
        let plan = plan(&tops, &at, weights, &budget, 1).unwrap();
        assert_eq!(plan.held_nodes(&tree), tree.node_count(), "there is room for all:\n{}", plan.print());
        assert_eq!(plan.summary().short_of_best, 0.0);
    }
}

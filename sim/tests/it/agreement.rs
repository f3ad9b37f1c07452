//! The plan in software, the switches' rewritten packet, and the tree's own walk agree on the node.

use crate::common;

use std::collections::BTreeSet;

use common::{Bench, Setup};
use fatbtree_blink::Tree;
use fatbtree_controller::Budget;
use fatbtree_topology::{Cores, HostId, Network as Topology, Peer};
use fatbtree_verbs::IndexTarget;
use fatbtree_wire::{Extension, Frame};
use proptest::prelude::*;

fn budget(servers: u16) -> impl Strategy<Value = Budget> {
    // Without more ranges than roots, whole trees are left to node sets.
    let ranges =
        prop_oneof![1 => Just(0usize), 2 => 0..120usize].prop_map(move |more| usize::from(servers) + more);
    let nodes = prop_oneof![Just(0usize), 1..40usize];
    // Where stages are small, the fat root's sub-tables stand in several.
    let entries = prop_oneof![Just(Budget::bmv2().stage_entries), 16..80usize];
    (ranges, entries, prop::array::uniform10(nodes)).prop_map(
        |(fat_root_ranges, stage_entries, set_nodes)| Budget {
            fat_root_ranges,
            stage_entries,
            set_nodes,
            ..Budget::bmv2()
        },
    )
}

fn keys() -> impl Strategy<Value = BTreeSet<u64>> {
    let key = prop_oneof![
        any::<u64>(),
        0..20_000u64,
        (u64::MAX - 20_000)..=u64::MAX,
        (0..300u64).prop_map(|i| 0x1234_5678_0000_0000 + i),
        Just(0),
        Just(u64::MAX)
    ];
    (4..2_000usize, prop::collection::btree_set(key, 4..200), any::<u64>()).prop_map(
        |(more, mut keys, seed)| {
            // Spread further keys over the space, so that trees are several levels deep.
            let mut x = seed | 1;
            for _ in 0..more {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                keys.insert(x);
            }
            keys
        },
    )
}

/// Every pivot and its neighbours, and the ends of the key space.
fn boundary_keys(bench: &Bench) -> BTreeSet<u64> {
    let mut boundaries =
        BTreeSet::from([0, 1, u64::MAX - 1, u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 32, (1 << 32) - 1]);
    for node in bench.tops.iter().flat_map(|top| &top.nodes) {
        for (pivot, _) in &node.children {
            boundaries.extend([pivot.wrapping_sub(1), *pivot, pivot.wrapping_add(1)]);
        }
    }
    boundaries
}

/// Targets of each kind; which slice depends on the key.
fn targets(key: u64) -> [IndexTarget; 4] {
    let line = 1 + (key % u64::from(IndexTarget::MAX_SLICE)) as u8;
    let slice = |or_record| IndexTarget::Slice { line, or_record };
    [IndexTarget::NodeOrRecord, IndexTarget::Node, slice(true), slice(false)]
}

/// Networks of every kind, with one fat root or several.
fn network() -> impl Strategy<Value = Topology> {
    let all = [
        Topology::one_core(4),
        Topology::fat_tree(4, Cores::All),
        Topology::fat_tree(4, Cores::Chosen(1)),
        Topology::leaf_spine(3, 2, 3),
        Topology::pair(5),
        Topology::single(8),
        Topology::folded(8, Vec::new()),
    ];
    prop::sample::select(all.map(Result::unwrap).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plan_switches_and_tree_agree(
        network in network(), keys in keys(),
        (servers, budget) in (1..=4u16).prop_flat_map(|servers| (Just(servers), prop::option::weighted(0.9, budget(servers)))),
        client in 0..4usize,
    ) {
        // Everywhere in the network; the client may be nearer to a server than to the fat root.
        let mut hosts: Vec<HostId> = network.hosts().iter().map(|host| host.id).collect();
        let client = hosts.remove((7 * client) % hosts.len());
        let on: Vec<HostId> = (0..usize::from(servers)).map(|n| hosts[2 * n % hosts.len()]).collect();
        let mut bench = Bench::within(network, on, client, &Setup { keys, servers, budget, registered: true });
        let mut asked = boundary_keys(&bench);
        asked.extend(bench.plan.iter().flat_map(|plan| plan.hot_keys()).map(|hot| hot.key));
        for (key, target) in asked.into_iter().flat_map(|key| targets(key).map(|target| (key, target))) {
            let frame = bench.index_read_of(key, target);
            let hops = bench.hops(bench.client_host, &frame);
            let last = hops.last().expect("the first switch forwards it");
            let Peer::Host(host) = last.at else { panic!("{key:#x} ends inside of the network") };
            let partition = bench.roots.partition_of(key).id;
            prop_assert_eq!(host, bench.server_hosts[usize::from(partition)]);
            let parsed = Frame::parse(&last.frame).expect("an ordinary READ arrives");
            prop_assert!(parsed.index.is_none());
            prop_assert_eq!(parsed.icrc, parsed.expected_icrc());
            let Extension::Reth(reth) = parsed.extension else { panic!("not a READ") };
            prop_assert!(IndexTarget::of_rkey(reth.rkey).is_none());

            let root = bench.roots.partition(partition).unwrap();
            // A read that comes to a leaf is of the slice; the root, an inner node and the record of a hot key are read as they are.
            let led = |offset: u64| {
                let planned = bench.plan.as_ref().map(|plan| plan.read_at(key, target.or_record(), offset));
                planned.unwrap_or(root.root.raw())
            };
            let (planned, read) = (led(0), led(target.offset_in_leaf()));
            prop_assert_eq!(reth.va, read, "the switches and the plan disagree on {:#x} for {:?}", key, target);
            let is_sliced = read != planned;

            let path = Tree::new(&bench.memory, &bench.config, root).find_node_path(key).unwrap();
            let step = path.iter().position(|step| step.address.raw() == planned);
            prop_assert!(step.is_some(), "{:#x} landed on {:#x}, which is not on its path {:?}", key, planned, path);
            if is_sliced {
                prop_assert_eq!(step, Some(path.len() - 1), "{:#x} is an inner node", planned);
            }
        }
    }
}

//! Memory servers that begin empty: their trees are leaves, and plans can be made of them.

use fatbtree_blink::TreeConfig;
use fatbtree_blink_host::{LoadOptions, load_ranges, seeded};
use fatbtree_controller::{Budget, Frequencies, Placement, Plan, Tree};
use fatbtree_topology::Cluster;

#[test]
fn a_plan_of_empty_trees_leads_every_key_to_its_leaf() {
    let cluster = Cluster::from_toml(Cluster::local_toml()).expect("the example");
    let lows: Vec<u64> = cluster.servers().iter().map(|server| server.low).collect();
    let options = LoadOptions::new(TreeConfig::default(), 0);
    let trees = load_ranges(&options, &lows, &[], &mut seeded(0, 8)).expect("empty trees are trees");
    let tops = trees.tops().expect("no client writes to them");
    assert!(tops.iter().all(|top| top.nodes.is_empty() && top.partition.root_level == 0));
    let tree = Tree::new(&tops).expect("leaves are roots, too");
    let (frequencies, placement) = (Frequencies::from_keys(&tree, &[]), Placement::of(&cluster));
    let plan = Plan::new(cluster.tree(), &placement, &tree, &frequencies, &Budget::bmv2(), 1);
    let plan = plan.expect("two ranges, one for each leaf");
    for (place, key) in [(0, 0), (0, lows[1] - 1), (1, lows[1]), (1, u64::MAX)] {
        let landing = plan.resolve(key);
        assert_eq!(landing.address, tops[place].partition.root.raw(), "{key:#x}");
    }
}

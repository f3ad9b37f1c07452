//! Typed entries and the compiled P4 program fit together: every entry lowers, and reads back as itself.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};

use common::{plan, top};
use fatbtree_controller::tables::{core_route, fat_root};
use fatbtree_controller::{
    Budget, Change, Connection, Connections, Entry, HotKeys, Located, Placement, Plan, Programs, RangeMatch,
    TableError, Tables, Target, Tree, base,
};
use fatbtree_p4runtime::P4InfoIndex;
use fatbtree_p4runtime::v1::{self, update};
use fatbtree_topology::{Cluster, IN_FLIGHT_PORT, Prefix, Role};

fn info() -> P4InfoIndex {
    P4InfoIndex::from_text(fatbtree_p4::P4INFO).unwrap()
}

/// The program without some of its tables, as one compiled for another role.
fn without(name: &str) -> P4InfoIndex {
    let mut info = info().p4info().clone();
    info.tables.retain(|table| !table.preamble.as_ref().is_some_and(|p| p.name.contains(name)));
    P4InfoIndex::new(info).unwrap()
}

fn all_entries(cluster: &Cluster, range_match: RangeMatch) -> Vec<Entry> {
    let budget = Budget {
        fat_root_ranges: 60,
        set_nodes: [5, 9, 9, 9, 9, 9, 9, 9, 9, 9],
        range_match,
        ..Budget::bmv2()
    };
    let plan = plan(cluster, 900, &budget, &[], 7).with_hot_keys(hot_keys(cluster, 20, budget.hot_keys));
    let placement = Placement::of(cluster);
    let mut entries: Vec<Entry> = plan.entries().into_values().flatten().collect();
    entries
        .extend(base(cluster.tree(), &placement, IN_FLIGHT_PORT).into_values().flat_map(|base| base.entries));
    let mut connections = Connections::new();
    let connection = Connection {
        client: cluster.tree().host(cluster.clients()[0].host).ip,
        partition: 3,
        dest_qp: 0xff_fffe,
        rkey: u32::MAX,
        root: 3 << 48 | 64,
        mtu: 4096,
    };
    let (switch, _) = connections.register(cluster.tree(), &placement, connection).unwrap();
    entries.extend(connections.of_switch(switch));
    entries
}

#[test]
fn every_entry_lowers_and_reads_back() {
    let tables = Tables::new(&info()).unwrap();
    for range_match in [RangeMatch::Exact, RangeMatch::OneSided] {
        let entries = all_entries(&Cluster::example(), range_match);
        let mut kinds = std::collections::BTreeSet::new();
        for entry in &entries {
            kinds.insert(entry.table());
            let lowered = tables.entry(entry).unwrap_or_else(|error| panic!("{entry:?}: {error}"));
            assert_eq!(tables.read(&lowered).unwrap(), Some(*entry));
            assert_eq!(tables.key(entry).unwrap().action, None);
        }
        // 4 fat root stages, hot keys, connection, 3 routes, last hop, host and trunk ports, neighbor, class; coarse, fine, run and child of each node set; some nodes need whole keys.
        let whole = kinds.iter().filter(|kind| kind.ends_with("_whole")).count();
        assert!(whole > 0 && kinds.len() - whole == 4 + 10 + 2 * 4, "{kinds:?}");
    }
}

#[test]
fn the_default_action_of_core_route_is_a_modify() {
    let tables = Tables::new(&info()).unwrap();
    let actions = [
        core_route::Action::Descend { epoch: 0, sub_table: 0 },
        core_route::Action::Descend { epoch: 255, sub_table: 65_535 },
        core_route::Action::NoAction,
    ];
    let mut seen = Vec::new();
    for action in actions {
        let update = Change::CoreRoute(action).update(&tables).unwrap();
        assert_eq!(update.r#type(), update::Type::Modify);
        let Some(v1::Entity { entity: Some(v1::entity::Entity::TableEntry(entry)) }) = update.entity else {
            panic!()
        };
        assert!(entry.is_default_action && entry.r#match.is_empty());
        assert_eq!(tables.read(&entry).unwrap(), None, "default entries are none of the typed ones");
        seen.push(entry.action);
    }
    assert!(seen[0] != seen[1] && seen[1] != seen[2]);
}

#[test]
fn a_program_of_another_role_lacks_tables_and_says_so() {
    let entries = all_entries(&Cluster::example(), RangeMatch::Exact);
    for (part, table) in
        [("fat_root_2", "fat_root_2"), ("node_set_b", "node_set_b.fine"), ("last_hop", "last_hop")]
    {
        let tables = Tables::new(&without(part)).unwrap();
        let entry = entries.iter().find(|entry| entry.table() == table).unwrap();
        let error = tables.entry(entry).unwrap_err();
        assert_eq!(error, TableError::NoTable { table: table.to_owned() });
        assert!(error.to_string().contains("another role"));
        assert!(entries.iter().filter(|e| !e.table().contains(part)).all(|e| tables.entry(e).is_ok()));
    }
}

#[test]
fn another_program_is_refused_by_name() {
    let mut info = info().p4info().clone();
    for table in &mut info.tables {
        table.match_fields.iter_mut().filter(|f| f.name == "slice").for_each(|f| f.name = "part".to_owned());
    }
    let error = Tables::new(&P4InfoIndex::new(info).unwrap()).unwrap_err().to_string();
    assert!(error.contains("slice") && error.contains("fat_root_0"), "{error}");
}

#[test]
fn entries_that_nobody_of_us_wrote_are_reported() {
    let info = info();
    let tables = Tables::new(&info).unwrap();
    let entry = Entry::Ipv4Route(
        fatbtree_controller::tables::ipv4_route::Key { prefix: Prefix::new([10, 0, 0, 0].into(), 16) },
        fatbtree_controller::tables::ipv4_route::Action { port: 1 },
    );
    let mut lowered = tables.entry(&entry).unwrap();
    lowered.action = None;
    assert!(matches!(tables.read(&lowered), Err(TableError::Foreign { .. })));
    lowered.table_id = 1;
    assert_eq!(tables.read(&lowered), Ok(None));
}

/// The slice after the one of a stage's number cannot follow before the one between them.
#[test]
fn a_slice_that_a_stage_cannot_lead_to_is_refused() {
    let tables = Tables::new(&info()).unwrap();
    for stage in 0..4 {
        let key = fat_root::Key { stage, sub_table: 2, low: 1, high: 1, priority: 1 };
        for slice in 0..5 {
            let entry = Entry::FatRoot(key, fat_root::Action::NextTable { slice, sub_table: 4 });
            match tables.entry(&entry) {
                Ok(lowered) => {
                    assert!(stage < 3 && (1..=stage + 1).contains(&slice), "{entry:?}");
                    assert_eq!(tables.read(&lowered).unwrap(), Some(entry));
                }
                Err(error) => {
                    assert!(stage == 3 || !(1..=stage + 1).contains(&slice), "{entry:?}");
                    assert!(error.to_string().contains(&format!("fat_root_{stage}")), "{error}");
                }
            }
        }
    }
}

/// Hot keys are there once, for all epochs.
fn epochs_of(entry: &Entry) -> u64 {
    if matches!(entry, Entry::HotKey(..)) { 1 } else { 2 }
}

/// Keys of the first partition, of which up to `room` may be hot.
fn hot_keys(cluster: &Cluster, keys: u64, room: usize) -> HotKeys {
    let first = cluster.servers().iter().min_by_key(|server| server.low).unwrap();
    let visits: Vec<(u64, u64)> = (0..keys).map(|key| (key, 1)).collect();
    let address = |key| u64::from(first.partition) << 48 | 1 << 47 | key << 4;
    let located: Vec<Located> = (0..keys).map(|key| Located { key, address: address(key) }).collect();
    let tree = Tree::new(&[top(first.partition, first.low, 20, 13)]).unwrap();
    HotKeys::choose(&tree, &visits, &located, room, None).0
}

/// Reads that want a node have no entries of ours.
#[test]
fn hot_keys_for_reads_that_want_a_node_are_foreign() {
    let tables = Tables::new(&info()).unwrap();
    let entries = all_entries(&Cluster::example(), RangeMatch::Exact);
    let hot = entries.iter().find(|entry| entry.table() == "hot_key").unwrap();
    let mut lowered = tables.entry(hot).unwrap();
    let info = info();
    let table = info.table("hot_key").unwrap();
    let field = table.field("wants_node").unwrap().id;
    let wants_node = lowered.r#match.iter_mut().find(|found| found.field_id == field).unwrap();
    let exact = v1::field_match::Exact { value: vec![1] };
    wants_node.field_match_type = Some(v1::field_match::FieldMatchType::Exact(exact));
    assert!(matches!(tables.read(&lowered), Err(TableError::Foreign { .. })));
}

/// A plan of a cluster, and what is always there, lower with the P4Info of each switch's role, into tables that are large enough for two
/// epochs of the plan. The tables that have entries, by the ends of their names.
fn tables_that_hold(cluster: &Cluster, plan: &Plan, target: Target) -> BTreeSet<String> {
    let programs = Programs::tables_only(target).unwrap();
    let cluster = programs.adapt(cluster.clone());
    let bases = base(cluster.tree(), &Placement::of(&cluster), IN_FLIGHT_PORT);
    let entries = plan.entries();
    let mut kinds = BTreeSet::new();
    for switch in cluster.tree().switches() {
        let program = programs.of(switch.role);
        let mut sizes: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        let cached = entries.get(&switch.id).into_iter().flatten();
        for (entry, epochs) in
            cached.map(|e| (e, epochs_of(e))).chain(bases[&switch.id].entries.iter().map(|e| (e, 1)))
        {
            let name = entry.table();
            let lowered =
                program.tables().entry(entry).unwrap_or_else(|e| panic!("{target:?} {switch:?}: {e}"));
            let table = program.info().table(name).unwrap();
            assert_eq!(lowered.table_id, table.id);
            let (count, size) = sizes.entry(name).or_insert((0, table.size));
            *count += epochs;
            assert!(count <= size, "{target:?}: {} of {}", table.name, switch.name());
            kinds.insert(table.name.rsplit('.').next().unwrap().to_owned());
        }
    }
    kinds
}

/// The example, those of one switch and of two, and of one with a second pass.
fn clusters() -> Vec<Cluster> {
    let small = Cluster::examples().into_iter().filter(|(kind, _)| ["single", "pair"].contains(kind));
    let small = small.map(|(_, text)| Cluster::from_toml(text).unwrap());
    std::iter::once(Cluster::example()).chain(small).chain([folded()]).collect()
}

/// The example of one switch, with a second pass by two ports.
fn folded() -> Cluster {
    let (_, text) = Cluster::examples().into_iter().find(|(kind, _)| *kind == "single").unwrap();
    Cluster::from_toml(&text.replace("# loopback_ports", "loopback_ports")).unwrap()
}

/// A plan that takes all a target has is one that its switches take.
#[test]
fn a_full_plan_fits_every_target() {
    for (cluster, target) in clusters().iter().flat_map(|cluster| Target::ALL.map(|target| (cluster, target)))
    {
        let budget = Budget::compiled(target).in_network(cluster.tree());
        let hot = hot_keys(cluster, budget.hot_keys as u64 + 50_000, budget.hot_keys);
        let plan = plan(cluster, 200_000, &budget, &[], 1).with_hot_keys(hot);
        plan.check(&budget).unwrap();
        assert_eq!(plan.hot_keys().len(), budget.hot_keys);
        let kinds = tables_that_hold(cluster, &plan, target);
        for table in [
            "coarse",
            "fine",
            "run",
            "child",
            "fat_root_0",
            "fat_root_3",
            "ipv4_route",
            "partition_route",
            "last_hop",
            "hot_key",
        ] {
            assert!(kinds.contains(table), "{target:?} has entries in {table}: {kinds:?}");
        }
    }
}

/// The load of the paper's experiments (600 ranges, three layers of 3600 nodes) has room in two switches of
/// the smaller chip: the fat root and a layer in the first, two layers in the second.
#[test]
fn the_papers_plan_fits_two_switches() {
    let (_, text) = Cluster::examples().into_iter().find(|(kind, _)| *kind == "pair").unwrap();
    holds_the_papers_plan(&Cluster::from_toml(text).unwrap(), ["single A", "edge A", "edge B"]);
}

/// And in one, which packets pass twice.
#[test]
fn the_papers_plan_fits_a_folded_switch() {
    holds_the_papers_plan(&folded(), ["folded A", "folded B", "folded C"]);
}

fn holds_the_papers_plan(cluster: &Cluster, layers: [&str; 3]) {
    let room = Budget::compiled(Target::Tofino1);
    let budget = Budget {
        fat_root_ranges: 600,
        set_nodes: room.set_nodes.map(|nodes| nodes.min(3600)),
        ..room.clone()
    };
    let plan = plan(cluster, 400_000, &budget, &[], 1);
    plan.check(&room).unwrap();
    let summary = plan.summary();
    let full: Vec<_> = summary.layers.iter().filter(|layer| layer.nodes > 0).collect();
    let names: Vec<_> = full.iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, layers);
    // A node more in the fat root would have up to 13 children, and the first layer has room for all children of the fat root.
    let ranges = plan.fat_root().len();
    assert!((588..=600).contains(&ranges), "{ranges} ranges");
    assert!((588..=ranges).contains(&full[0].nodes), "{} nodes below {ranges} ranges", full[0].nodes);
    assert_eq!((full[1].nodes, full[2].nodes), (3600, 3600));
    tables_that_hold(cluster, &plan, Target::Tofino1);
}

/// The Tofino programs have the tables, keys, actions and parameters of the v1model program, and none of their own but those of the
/// second pass, which v1model makes in one.
#[test]
fn all_targets_have_the_same_tables() {
    fn shape(info: &P4InfoIndex) -> BTreeMap<String, String> {
        let short = |name: &str| name.rsplit('.').next().unwrap().to_owned();
        info.tables()
            .iter()
            .map(|table| {
                let (_, name) = table.name.split_once('.').unwrap();
                let fields: Vec<_> = table.fields.iter().map(|f| (&f.name, f.bitwidth, f.kind)).collect();
                let actions: BTreeMap<_, _> = table
                    .actions
                    .iter()
                    .map(|a| {
                        (
                            short(&a.action.name),
                            a.action.params.iter().map(|p| (&p.name, p.bitwidth)).collect::<Vec<_>>(),
                        )
                    })
                    .collect();
                (name.to_owned(), format!("{fields:?} {actions:?} {}", table.direct_counter.is_some()))
            })
            .collect()
    }
    let v1model = shape(&info());
    for target in [Target::Tofino1, Target::Tofino2] {
        let programs = Programs::tables_only(target).unwrap();
        let mut all = BTreeMap::new();
        for role in Role::ALL {
            all.extend(shape(programs.of(role).info()));
        }
        for table in ["second_pass.loopback_port", "way_back.way_back"] {
            assert!(all.remove(table).is_some_and(|shape| shape.contains("forward")), "{target:?}: {table}");
        }
        assert_eq!(all, v1model, "{target:?}");
    }
}

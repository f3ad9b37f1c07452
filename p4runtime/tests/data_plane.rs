//! Every name by which the controller programs the data plane leads somewhere in the compiled program's P4Info.

use fatbtree_p4runtime::{MatchKind, P4InfoIndex};

/// Table, its key, one action and that action's parameters.
type Expected = (String, Vec<(&'static str, u32, MatchKind)>, &'static str, Vec<(&'static str, u32)>);

fn expected() -> Vec<Expected> {
    use MatchKind::{Exact, Lpm, Range};
    let mut tables = vec![
        (
            "roce_connection".to_owned(),
            vec![("src_ip", 32, Exact), ("dst_ip", 32, Exact), ("dest_qp", 24, Exact)],
            "admit",
            vec![("rkey", 32), ("partition", 16), ("root", 64)],
        ),
        ("core_route".to_owned(), vec![], "climb", vec![("port", 9)]),
        ("core_route".to_owned(), vec![], "descend", vec![("epoch", 8), ("sub_table", 16)]),
        ("partition_route".to_owned(), vec![("partition", 16, Exact)], "forward", vec![("port", 9)]),
        ("ipv4_route".to_owned(), vec![("dst_ip", 32, Lpm)], "forward", vec![("port", 9)]),
    ];
    for stage in 0..4 {
        let name = format!("fat_root_{stage}");
        let key = || vec![("sub_table", 16, Exact), ("slice", 16, Range)];
        tables.push((name.clone(), key(), "land", vec![("address", 64), ("partition", 16), ("node_id", 16)]));
        tables.push((name, key(), "next_table", vec![]));
    }
    for set in ["node_set_a", "node_set_b"] {
        let key = |more: Option<(&'static str, u32)>| {
            let mut key = vec![("epoch", 8, Exact), ("node_id", 16, Exact)];
            key.extend(more.map(|(name, width)| (name, width, Exact)));
            key
        };
        let last = || vec![("last_1", 64), ("last_2", 64), ("last_3", 64)];
        tables.push((format!("{set}.coarse"), key(None), "compare_quarters", last()));
        tables.push((format!("{set}.fine"), key(Some(("quarter", 2))), "compare_children", last()));
        let child = vec![("offset", 48), ("node_id", 16)];
        tables.push((format!("{set}.child"), key(Some(("branch", 4))), "descend_to", child));
    }
    tables
}

fn check(index: &P4InfoIndex) {
    for (name, key, action, params) in expected() {
        let table = index.table(&name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(table.fields.len(), key.len(), "key of {name}");
        for (field, bitwidth, kind) in key {
            let found = table.field(field).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((found.bitwidth, found.kind), (bitwidth, kind), "{name}.{field}");
        }
        let action = table.action(action).unwrap_or_else(|error| panic!("{error}"));
        for (param, bitwidth) in params {
            let found = action.param(param).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(found.bitwidth, bitwidth, "{name}: {}({param})", action.name);
        }
        let counted = name.contains("fat_root") || name.ends_with("child");
        assert_eq!(table.direct_counter.is_some(), counted, "direct counter of {name}");
        assert_eq!(table.needs_priority, name.contains("fat_root"), "priority in {name}");
    }
    assert!(index.table("node_set_b.fine_compare_3").expect("there").is_const);
}

const P4INFO: &str = include_str!("../../p4/build/fatbtree_v1model.p4info.txtpb");

#[test]
fn v1model() {
    check(&P4InfoIndex::from_text(P4INFO).expect("p4c wrote it"));
}

/// The Tofino program has the same names one level further down.
#[test]
fn one_level_further_down() {
    let text = P4INFO.replace("\"ingress.", "\"pipe.ingress.").replace("\"egress.", "\"pipe.egress.");
    check(&P4InfoIndex::from_text(&text).expect("only names differ"));
}

//! Every name by which the controller programs the data plane leads somewhere in the compiled program's P4Info.

use fatbtree_p4runtime::{MatchKind, P4InfoIndex};

/// Table, its key, one action and that action's parameters.
type Expected = (String, Vec<(&'static str, u32, MatchKind)>, &'static str, Vec<(&'static str, u32)>);

fn expected() -> Vec<Expected> {
    use MatchKind::{Exact, Lpm, Range};
    let mut tables = vec![
        (
            "roce_connection".to_owned(),
            vec![
                ("port", 9, Exact),
                ("src_mac", 48, Exact),
                ("src_ip", 32, Exact),
                ("dst_ip", 32, Exact),
                ("dest_qp", 24, Exact),
            ],
            "admit",
            vec![("rkey", 32), ("partition", 16), ("root", 64), ("udp_port", 16), ("mtu", 16)],
        ),
        ("core_route".to_owned(), vec![("path", 8, Exact)], "climb", vec![("port", 9)]),
        ("core_route".to_owned(), vec![("path", 8, Exact)], "descend", vec![("epoch", 8), ("sub_table", 16)]),
        ("partition_route".to_owned(), vec![("partition", 16, Exact)], "forward", vec![("port", 9)]),
        ("ipv4_route".to_owned(), vec![("dst_ip", 32, Lpm)], "forward", vec![("port", 9)]),
        ("trunk_port".to_owned(), vec![("port", 9, Exact)], "trunk", vec![]),
        ("neighbor".to_owned(), vec![("ip", 32, Exact)], "host", vec![("mac", 48), ("port", 9)]),
        ("neighbor".to_owned(), vec![("ip", 32, Exact)], "this_switch", vec![("mac", 48)]),
        (
            "host_port".to_owned(),
            vec![("egress_port", 9, Exact)],
            "address_to",
            vec![("mac", 48), ("ip", 32)],
        ),
        ("last_hop".to_owned(), vec![("egress_port", 9, Exact)], "strip", vec![("to_roce", 16)]),
        ("traffic_class".to_owned(), vec![("dscp", 6, Exact)], "assign", vec![("class", 3)]),
    ];
    for stage in 0..4 {
        let name = format!("fat_root_{stage}");
        let key = || vec![("sub_table", 16, Exact), ("slice", 16, Range)];
        tables.push((name.clone(), key(), "land", vec![("address", 64), ("partition", 16), ("kind", 2)]));
        // The slice of a stage's number is followed by the next one, or still by an earlier one; the last stage leads nowhere.
        for next in ["second_slice", "third_slice", "last_slice"].into_iter().take(if stage < 3 {
            stage + 1
        } else {
            0
        }) {
            tables.push((name.clone(), key(), next, vec![("next", 16)]));
        }
    }
    for set in ["node_set_a", "node_set_b", "node_set_c"] {
        let node = || vec![("epoch", 8, Exact), ("address", 64, Exact)];
        let quarter = || vec![("epoch", 8, Exact), ("slot", 16, Exact), ("quarter", 2, Exact)];
        for (quarter_by, child_by, suffix, width) in [
            ("quarter_by_high", "child_by_high", "", 32),
            ("quarter_by_low", "child_by_low", "", 32),
            ("quarter_by_whole", "child_by_whole", "_whole", 64),
        ] {
            let lasts = || ["last_1", "last_2", "last_3"].map(|last| (last, width)).to_vec();
            let mut params = lasts();
            params.extend([("slot", 16), ("first_child", 48), ("stride", 8), ("kind", 2)]);
            tables.push((format!("{set}.coarse{suffix}"), node(), quarter_by, params));
            tables.push((format!("{set}.fine{suffix}"), quarter(), child_by, lasts()));
        }
        let key = vec![("stride", 8, Exact), ("branch", 4, Exact)];
        tables.push((format!("{set}.run"), key, "descend_by", vec![("distance", 32)]));
        let key = vec![("epoch", 8, Exact), ("slot", 16, Exact), ("branch", 4, Exact)];
        tables.push((format!("{set}.child"), key, "descend_to", vec![("offset", 48)]));
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
        let counted = name.contains("fat_root") || name.contains(".coarse");
        assert_eq!(table.direct_counter.is_some(), counted, "direct counter of {name}");
        assert_eq!(table.needs_priority, name.contains("fat_root"), "priority in {name}");
    }
    assert!(index.table("node_set_b.fine_compare_3").expect("there").is_const);
}

const P4INFO: &str = include_str!("../../../p4/build/fatbtree_v1model.p4info.txtpb");

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

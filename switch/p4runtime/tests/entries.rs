//! Building and reading entries: what a builder accepts, and what it refuses and how.

use fatbtree_p4runtime::v1::field_match::FieldMatchType;
use fatbtree_p4runtime::{EntryError, P4InfoIndex};
use proptest::prelude::*;

fn info() -> P4InfoIndex {
    P4InfoIndex::from_text(include_str!("../testdata/small.p4info.txtpb")).expect("the test program is sound")
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, EntryError>, words: &[&str]) {
    let text = result.expect_err("should be refused").to_string();
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

#[test]
fn mistakes_are_named() {
    let info = info();
    let child = info.table("node_set_a.child").expect("there");
    let other = info.table("node_set_b.child").expect("there");
    let epoch = child.field("epoch").expect("there");
    let node_id = child.field("node_id").expect("there");
    let descend = child.action("descend_to").expect("there");
    refused(child.entry().exact(epoch, 1).build(), &["node_set_a.child", "node_id", "no value"]);
    refused(child.entry().exact(epoch, 256).build(), &["epoch", "at most 8 bits", "9 bits"]);
    refused(child.entry().exact(epoch, 1).exact(epoch, 1).build(), &["epoch", "twice"]);
    refused(child.entry().exact(other.field("epoch").expect("there"), 1).build(), &["epoch", "belongs"]);
    refused(child.entry().range(epoch, 1, 2).build(), &["epoch", "expected exact match, found range"]);
    refused(child.entry().action(descend, &[1]).build(), &["descend_to", "expected 2", "found 1"]);
    refused(child.entry().action(descend, &[1, 0x1_0000]).build(), &["node_id", "16 bits", "17 bits"]);
    let results = child.field("results").expect("there");
    let keyed = || child.entry().exact(epoch, 1).exact(node_id, 1).exact(results, 1);
    refused(keyed().priority(1).build(), &["priority of 0", "found 1"]);
    assert!(keyed().build().is_ok());

    let root = info.table("fat_root_0").expect("there");
    let (sub_table, slice) = (root.field("sub_table").expect("there"), root.field("slice").expect("there"));
    refused(root.entry().exact(sub_table, 1).range(slice, 1, 2).build(), &["priority above 0", "found 0"]);
    refused(root.entry().exact(sub_table, 1).range(slice, 2, 1).priority(1).build(), &["low <= high"]);

    let routes = info.table("ipv4_route").expect("there");
    let dst = routes.field("dst_addr").expect("there");
    refused(routes.entry().lpm(dst, 0x0a00_0001, 24).build(), &["zeros after 24 bits", "0x1"]);
    refused(routes.entry().lpm(dst, 0x0a00_0000, 33).build(), &["at most 32 bits", "33"]);

    let fixed = info.table("fixed").expect("there");
    let port = fixed.field("port").expect("there");
    refused(fixed.entry().ternary(port, 3, 1).priority(1).build(), &["outside its mask"]);
}

#[test]
fn dont_care_is_left_out() {
    let info = info();
    let root = info.table("fat_root_0").expect("there");
    let (sub_table, slice) = (root.field("sub_table").expect("there"), root.field("slice").expect("there"));
    let entry = root.entry().exact(sub_table, 1).range(slice, 0, 0xffff).priority(1).build().expect("legal");
    assert_eq!(entry.r#match.len(), 1);
    assert_eq!(root.view(&entry).and_then(|view| view.range(slice)), Ok((0, 0xffff)));
    let routes = info.table("ipv4_route").expect("there");
    let entry = routes.entry().lpm(routes.field("dst_addr").expect("there"), 0, 0).build().expect("legal");
    assert!(entry.r#match.is_empty());
    let fixed = info.table("fixed").expect("there");
    let port = fixed.field("port").expect("there");
    let entry = fixed.entry().ternary(port, 0, 0).priority(1).build().expect("legal");
    assert!(entry.r#match.is_empty());
}

#[test]
fn values_are_minimal_on_the_wire() {
    let info = info();
    let child = info.table("node_set_a.child").expect("there");
    let entry = child
        .entry()
        .exact(child.field("epoch").expect("there"), 0)
        .exact(child.field("node_id").expect("there"), 0x12)
        .exact(child.field("results").expect("there"), 0x1234)
        .build()
        .expect("legal");
    let values: Vec<&[u8]> = entry
        .r#match
        .iter()
        .map(|field| match field.field_match_type.as_ref() {
            Some(FieldMatchType::Exact(exact)) => exact.value.as_slice(),
            other => panic!("not exact: {other:?}"),
        })
        .collect();
    assert_eq!(values, [&[0][..], &[0x12], &[0x12, 0x34]]);
}

proptest! {
    #[test]
    fn what_is_built_is_read(sub: u16, a: u16, b: u16, address: u64, partition: u16, node: u16, priority in 1i32..) {
        let info = info();
        let root = info.table("fat_root_0").expect("there");
        let (sub_table, slice) = (root.field("sub_table").expect("there"), root.field("slice").expect("there"));
        let land = root.action("land").expect("there");
        let (low, high) = (a.min(b).into(), a.max(b).into());
        let arguments = [address, partition.into(), node.into()];
        let entry = root.entry().exact(sub_table, sub.into()).range(slice, low, high).priority(priority)
            .action(land, &arguments).build().expect("legal");
        let view = root.view(&entry).expect("same table");
        prop_assert_eq!(view.exact(sub_table), Ok(sub.into()));
        prop_assert_eq!(view.range(slice), Ok((low.into(), high.into())));
        let (action, values) = view.action().expect("legal").expect("set");
        prop_assert_eq!(action, land);
        prop_assert_eq!(values, arguments.map(u128::from).to_vec());
    }
}

//! Permitted and refused requests of control software, and their answers.

use std::sync::Arc;

use fatbtree_switch::{ActionCall, ErrorClass, MatchKind, MatchValue, Program, TableError};

use crate::{FATBTREE, FILTER, GROUPS, ROUTER, Switch, TUNNEL, load};

#[test]
fn a_program_tells_what_it_has() {
    let program = load(FATBTREE);
    let table = program.table("ingress.node_set_a.coarse").unwrap();
    let info = program.table_info(table);
    let kinds: Vec<_> = info.key.iter().map(|f| (f.name.as_str(), f.kind, f.width)).collect();
    let exact = MatchKind::Exact;
    assert_eq!(kinds, [("epoch", exact, 8), ("address", exact, 64)]);
    assert!(info.direct_counter.is_some() && info.const_default && !info.const_entries && !info.has_priority);
    let action = program.table_action(table, "ingress.node_set_a.quarter_by_high").unwrap();
    let params: Vec<_> =
        program.action_info(action).params.iter().map(|p| (p.name.as_str(), p.width)).collect();
    let lasts = [("last_1", 32), ("last_2", 32), ("last_3", 32)];
    assert_eq!(
        params,
        [&lasts[..], &[("slot", 16), ("first_child", 48), ("stride", 8), ("kind", 2)]].concat()
    );
    assert!(program.table_action(table, "ingress.fat_root.land_0").is_none(), "an action of another table");
    assert!(program.table("ingress.nothing").is_none());
}

#[test]
fn updates_are_refused_with_their_reason() {
    let mut switch = Switch::new(ROUTER);
    let table = switch.table("ingress.next_hop");
    let (_, good) = switch.entry("ingress.next_hop", &[MatchValue::Exact(1)], "ingress.rewrite", &[1, 2, 3]);
    let class = |result: Result<(), TableError>| result.map_err(|e| e.class());

    let missing = switch.pipeline.modify(table, &good);
    assert_eq!(class(missing), Err(ErrorClass::NotFound));
    assert_eq!(class(switch.pipeline.delete(table, &good.key, 0)), Err(ErrorClass::NotFound));
    assert_eq!(switch.pipeline.insert(table, &good), Ok(()));
    assert_eq!(class(switch.pipeline.insert(table, &good)), Err(ErrorClass::AlreadyExists));

    let mut bad = Vec::new();
    for key in [
        vec![],
        vec![MatchValue::Exact(0x1_0000)],
        vec![MatchValue::Ternary { value: 1, mask: 0xffff }],
        vec![MatchValue::Exact(2), MatchValue::Exact(3)],
    ] {
        bad.push(fatbtree_switch::Entry { key, ..good.clone() });
    }
    for params in [vec![], vec![1, 2], vec![1, 2, 512], vec![1 << 48, 2, 3]] {
        bad.push(fatbtree_switch::Entry { params, key: vec![MatchValue::Exact(2)], ..good.clone() });
    }
    bad.push(good.clone().with_priority(1));
    let (_, mut foreign) = switch.entry("ingress.route", &[], "ingress.to_next_hop", &[1]);
    foreign.key = vec![MatchValue::Exact(2)];
    bad.push(foreign);
    for entry in &bad {
        let refused = switch.pipeline.insert(table, entry).unwrap_err();
        assert_eq!(refused.class(), ErrorClass::InvalidArgument, "{refused}");
        assert!(refused.to_string().contains("ingress.next_hop"), "{refused}");
    }

    for hop in 2..=4 {
        switch.insert("ingress.next_hop", &[MatchValue::Exact(hop)], "ingress.rewrite", &[1, 2, 3]);
    }
    let (_, fifth) = switch.entry("ingress.next_hop", &[MatchValue::Exact(5)], "ingress.rewrite", &[1, 2, 3]);
    assert_eq!(class(switch.pipeline.insert(table, &fifth)), Err(ErrorClass::ResourceExhausted));
    assert_eq!(switch.pipeline.len(table), 4);
    let drop = ActionCall { action: good.action, params: vec![1, 2, 3] };
    assert_eq!(class(switch.pipeline.set_default(table, Some(&drop))), Err(ErrorClass::PermissionDenied));
    assert!(matches!(switch.pipeline.clear_direct_counters(table), Err(TableError::NoDirectCounter { .. })));
    let counter = switch.pipeline.program().counter("ingress.next_hops").unwrap();
    assert_eq!(switch.pipeline.counter(counter, 4).map_err(|e| e.class()), Err(ErrorClass::OutOfRange));
}

#[test]
fn keys_must_be_canonical() {
    let mut switch = Switch::new(ROUTER);
    let route = |value, prefix_len| [MatchValue::Lpm { value, prefix_len }];
    for key in [route(0x0a00_0001, 24), route(0, 33), route(1 << 32, 32)] {
        let (table, entry) = switch.entry("ingress.route", &key, "ingress.drop", &[]);
        assert_eq!(switch.pipeline.insert(table, &entry).unwrap_err().class(), ErrorClass::InvalidArgument);
    }
    let mut switch = Switch::new(FILTER);
    let fine = [
        MatchValue::Ternary { value: 2, mask: 2 },
        MatchValue::Optional(None),
        MatchValue::Range { low: 1, high: 1 },
        MatchValue::Exact(0),
    ];
    let mut wrong = vec![fine; 4];
    wrong[0][0] = MatchValue::Ternary { value: 3, mask: 2 };
    wrong[1][1] = MatchValue::Optional(Some(0x2000));
    wrong[2][2] = MatchValue::Range { low: 2, high: 1 };
    wrong[3][3] = MatchValue::Exact(2);
    for key in wrong {
        let (table, entry) = switch.entry("ingress.filter", &key, "ingress.deny", &[]);
        let refused = switch.pipeline.insert(table, &entry.with_priority(1)).unwrap_err();
        assert!(matches!(refused, TableError::BadMatch { .. }), "{refused}");
    }
    let (table, entry) = switch.entry("ingress.filter", &fine, "ingress.deny", &[]);
    let refused = switch.pipeline.insert(table, &entry).unwrap_err();
    assert!(matches!(refused, TableError::BadPriority { .. }), "{refused}");
    assert_eq!(switch.pipeline.insert(table, &entry.with_priority(1)), Ok(()));
}

#[test]
fn entries_come_back_as_they_were_written() {
    let mut switch = Switch::new(FILTER);
    let key = [
        MatchValue::Ternary { value: 2, mask: 6 },
        MatchValue::Optional(Some(9)),
        MatchValue::Range { low: 3, high: 200 },
        MatchValue::Exact(1),
    ];
    let (table, mut entry) = switch.entry("ingress.filter", &key, "ingress.permit", &[7]);
    entry.priority = 12;
    entry.metadata = b"cookie".to_vec();
    switch.pipeline.insert(table, &entry).unwrap();
    let read = switch.pipeline.get(table, &key, 12).unwrap();
    let stored = [key[0], MatchValue::Ternary { value: 9, mask: 0x1fff }, key[2], key[3]];
    assert_eq!(read, fatbtree_switch::Entry { key: stored.to_vec(), ..entry.clone() });
    assert_eq!(switch.pipeline.entries(table).map(|(e, _)| e).collect::<Vec<_>>(), [read]);
    // The same match at another priority is another entry.
    switch.pipeline.insert(table, &entry.clone().with_priority(13)).unwrap();
    assert_eq!(switch.pipeline.len(table), 2);
    entry.metadata.clear();
    switch.pipeline.modify(table, &entry).unwrap();
    assert!(switch.pipeline.get(table, &key, 12).unwrap().metadata.is_empty());

    let mut switch = Switch::new(TUNNEL);
    switch.insert("ingress.flows", &[MatchValue::Exact(0xabcdef)], "ingress.push", &[1]);
    let table = switch.table("ingress.flows");
    let (entry, _) = switch.pipeline.entries(table).next().unwrap();
    assert_eq!(entry.key, [MatchValue::Exact(0xabcdef)]);
    assert_eq!(entry.params, [1]);
}

#[test]
fn tables_of_a_group_are_independent() {
    let mut switch = Switch::new(GROUPS);
    let key = [MatchValue::Exact(3)];
    let tables = ["first", "second", "third"];
    for (i, name) in (0u64..).zip(tables) {
        switch.insert(&format!("ingress.{name}"), &key, &format!("ingress.set_{name}"), &[100 + i]);
    }
    let second = switch.table("ingress.second");
    switch.pipeline.delete(second, &key, 0).unwrap();
    for (i, name) in (0u64..).zip(tables) {
        let at = switch.table(&format!("ingress.{name}"));
        assert_eq!(switch.pipeline.len(at), usize::from(i != 1));
        match switch.pipeline.get(at, &key, 0) {
            Ok(entry) => assert_eq!(entry.params, [100 + i]),
            Err(e) => assert!(i == 1, "{e}"),
        }
    }
    assert!({
        let again = switch.table("ingress.again");
        switch.pipeline.is_empty(again)
    });
}

#[test]
fn the_same_text_is_loaded_once() {
    let first = Program::load(ROUTER).unwrap();
    assert!(Arc::ptr_eq(&first, &Program::load(ROUTER).unwrap()));
    assert!(!Arc::ptr_eq(&first, &Program::load(FILTER).unwrap()));
}

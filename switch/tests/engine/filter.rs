//! `filter.p4`: ternary, range, optional and exact fields in one table; const entries; selects under masks.

use fatbtree_switch::{MatchValue, TableError};

use crate::{FILTER, Switch};

const FILTER_TABLE: &str = "ingress.filter";

fn frame(kind: u16, id: u16, low: u8, high: u8, extra: Option<u32>) -> Vec<u8> {
    let mut frame = (kind << 13 | id).to_be_bytes().to_vec();
    frame.extend([low, high]);
    frame.extend(extra.iter().flat_map(|e| e.to_be_bytes()));
    frame.extend(b"rest");
    frame
}

fn key(kind: (u64, u64), id: Option<u64>, low: (u64, u64), extra: u64) -> [MatchValue; 4] {
    [
        MatchValue::Ternary { value: kind.0, mask: kind.1 },
        MatchValue::Optional(id),
        MatchValue::Range { low: low.0, high: low.1 },
        MatchValue::Exact(extra),
    ]
}

#[test]
fn the_highest_priority_wins_whatever_the_order_of_insertion() {
    let mut switch = Switch::new(FILTER);
    switch.insert_at(1, FILTER_TABLE, &key((0, 0), None, (0, 255), 0), "ingress.permit", &[1]);
    switch.insert_at(9, FILTER_TABLE, &key((4, 7), Some(77), (0, 255), 0), "ingress.permit", &[9]);
    switch.insert_at(5, FILTER_TABLE, &key((4, 4), None, (10, 20), 0), "ingress.permit", &[5]);
    switch.insert_at(5, FILTER_TABLE, &key((2, 7), None, (0, 255), 1), "ingress.deny", &[]);
    let mut port_of = |frame: Vec<u8>| switch.one(0, &frame).map(|sent| sent.0);
    assert_eq!(port_of(frame(4, 77, 15, 0, None)), Some(9));
    assert_eq!(port_of(frame(4, 78, 15, 0, None)), Some(5));
    assert_eq!(port_of(frame(4, 78, 20, 0, None)), Some(5));
    assert_eq!(port_of(frame(4, 78, 21, 0, None)), Some(1));
    assert_eq!(port_of(frame(0, 78, 15, 0, None)), Some(1));
    assert_eq!(port_of(frame(2, 78, 15, 0, Some(0))), None);
    assert_eq!(port_of(frame(1, 78, 0x80, 0, Some(0))), None, "no entry with extra");
    assert_eq!(port_of(frame(1, 78, 0x7f, 0, None)), Some(1), "the select's mask keeps extra out");
}

#[test]
fn const_entries_stand_in_the_order_of_the_program() {
    let mut switch = Switch::new(FILTER);
    switch.insert_at(1, FILTER_TABLE, &key((0, 0), None, (0, 255), 0), "ingress.permit", &[1]);
    switch.insert_at(1, FILTER_TABLE, &key((0, 0), None, (0, 255), 1), "ingress.permit", &[1]);
    let mut mark_of = |frame: Vec<u8>| switch.one(0, &frame).unwrap().1[3];
    assert_eq!(mark_of(frame(2, 0, 0, 0x1f, Some(0))), 1);
    assert_eq!(mark_of(frame(2, 0, 0, 0x2f, Some(0))), 2);
    assert_eq!(mark_of(frame(0, 0, 0, 0x2f, None)), 3);
    assert_eq!(mark_of(frame(0, 0, 0, 0xff, None)), 9, "the default action");
}

#[test]
fn a_frame_is_put_together_again() {
    let mut switch = Switch::new(FILTER);
    switch.insert_at(1, FILTER_TABLE, &key((0, 0), None, (0, 255), 1), "ingress.permit", &[3]);
    let sent = switch.one(0, &frame(5, 0x1abc, 0x85, 0x11, Some(0xdead_beef))).unwrap().1;
    // `low` becomes the byte that the lookahead saw, `high` the mark.
    let ahead = (5u16 << 13 | 0x1abc).to_be_bytes()[0];
    assert_eq!(sent, frame(5, 0x1abc, ahead, 1, Some(0xdead_beef)));
}

#[test]
fn hits_are_counted_and_direct_counters_cleared() {
    let mut switch = Switch::new(FILTER);
    let key = key((0, 0), None, (0, 255), 0);
    switch.insert_at(7, FILTER_TABLE, &key, "ingress.permit", &[1]);
    let table = switch.table(FILTER_TABLE);
    for _ in 0..4 {
        switch.one(0, &frame(0, 0, 0, 0, None));
        switch.one(0, &frame(2, 0, 0, 0, Some(1)));
    }
    assert_eq!(switch.pipeline.direct_counter(table, &key, 7).unwrap().packets, 4);
    assert!(matches!(switch.pipeline.direct_counter(table, &key, 6), Err(TableError::NoSuchEntry { .. })));
    switch.pipeline.clear_direct_counters(table).unwrap();
    assert_eq!(switch.pipeline.direct_counter(table, &key, 7).unwrap().packets, 0);
}

#[test]
fn const_tables_cannot_be_changed() {
    let mut switch = Switch::new(FILTER);
    let table = switch.table("ingress.classes");
    assert_eq!(switch.pipeline.len(table), 3);
    let (entry, _) = switch.pipeline.entries(table).next().unwrap();
    assert_eq!(entry.priority, 3, "the first const entry has the highest priority");
    let refused = switch.pipeline.insert(table, &entry).unwrap_err();
    assert_eq!(refused.class(), fatbtree_switch::ErrorClass::PermissionDenied);
    assert!(switch.pipeline.delete(table, &entry.key, entry.priority).is_err());
    assert!(switch.pipeline.clear_table(table).is_err());
    let default = switch.pipeline.default_action(table).unwrap();
    let refused = switch.pipeline.set_default(table, Some(&default)).unwrap_err();
    assert!(refused.to_string().contains("ingress.mark"), "{refused}");
}

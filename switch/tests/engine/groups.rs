//! `groups.p4`: tables that share a lookup, and what must not be shared.

use fatbtree_switch::MatchValue;

use crate::tunnel::crc32;
use crate::{GROUPS, Switch};

fn probe(way: u8, spare: u8, a: u32, b: u32, results: [u8; 3], sum: u32) -> Vec<u8> {
    let mut bytes = vec![way, spare];
    bytes.extend(a.to_be_bytes());
    bytes.extend(b.to_be_bytes());
    bytes.extend(results);
    bytes.extend(sum.to_be_bytes());
    bytes
}

/// Keys 1 and 2 in every table; `again` turns 1 into 2 and the other way round.
fn switch() -> Switch {
    let mut switch = Switch::new(GROUPS);
    for key in [1, 2] {
        let at = [MatchValue::Exact(key)];
        switch.insert("ingress.first", &at, "ingress.set_first", &[10 + key]);
        switch.insert("ingress.again", &at, "ingress.rekey", &[3 - key]);
        switch.insert("ingress.second", &at, "ingress.set_second", &[20 + key]);
        switch.insert("ingress.third", &at, "ingress.set_third", &[30 + key]);
    }
    switch
}

#[test]
fn every_table_sees_the_key_as_it_is_then() {
    let mut switch = switch();
    let mut results = |way, a, b| switch.one(0, &probe(way, 7, a, b, [0; 3], 0)).unwrap().1[10..13].to_vec();
    assert_eq!(results(0, 1, 2), [11, 21, 31]);
    assert_eq!(results(1, 1, 2), [11, 22, 32], "an action has changed the key");
    assert_eq!(results(1, 2, 2), [12, 21, 31]);
    assert_eq!(results(2, 1, 2), [11, 22, 32], "a branch has changed the key");
    assert_eq!(results(0, 3, 2), [0, 0, 0]);
    assert_eq!(results(2, 3, 1), [0, 21, 31]);
    assert_eq!(results(2, 1, 3), [11, 0, 0]);
}

#[test]
fn a_table_without_the_key_leaves_the_others_theirs() {
    let mut switch = switch();
    let second = switch.table("ingress.second");
    switch.pipeline.delete(second, &[MatchValue::Exact(1)], 0).unwrap();
    let sent = switch.one(0, &probe(0, 0, 1, 2, [0; 3], 0)).unwrap().1;
    assert_eq!(sent[10..13], [11, 0, 31]);
    let action = switch.pipeline.program().table_action(second, "ingress.set_second").unwrap();
    let call = fatbtree_switch::ActionCall { action, params: vec![99] };
    switch.pipeline.set_default(second, Some(&call)).unwrap();
    let sent = switch.one(0, &probe(0, 0, 1, 2, [0; 3], 0)).unwrap().1;
    assert_eq!(sent[10..13], [11, 99, 31], "the default action runs, and the next table follows");
}

#[test]
fn a_copy_keeps_what_it_was_made_of() {
    let mut switch = switch();
    let sent = switch.one(0, &probe(3, 0, 0x0102_0304, 0x0506_0708, [0; 3], 0)).unwrap().1;
    let sum = crc32(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(sent, probe(3, 0, 0x0506_0708, 0x0506_0708, [0; 3], sum));
}

#[test]
fn a_field_set_to_zero_is_zero() {
    let sent = switch().one(0, &probe(0, 0xff, 9, 9, [1, 2, 3], 4)).unwrap().1;
    assert_eq!(sent, probe(0, 0, 9, 9, [1, 2, 3], 4));
}

//! A pipeline of several pipes is one pipeline: to packets, whichever pipe they pass through, and to control software.

use fatbtree_switch::{ActionCall, CounterData, Entry, MatchValue, Output, Pipe, Pipeline, Replica};
use proptest::prelude::*;

use crate::{ROUTER, Switch, TUNNEL, ipv4_frame, load};

const ROUTE: &str = "ingress.route";

#[derive(Clone, Debug)]
enum Step {
    /// A packet: its pipe, and its destination address.
    Packet(usize, u32),
    Insert(u32, u16, u64),
    Modify(u32, u16, u64),
    Delete(u32, u16),
    SetCounter(u32, u16, u64),
    SetDefault(Option<u64>),
    Clear,
    ClearCounters,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (value, length) = (0..4u32, prop::sample::select(vec![6, 7, 8]));
    let step = prop_oneof![
        12 => (0..3usize, 0..4u32).prop_map(|(pipe, to)| Step::Packet(pipe, to)),
        6 => (value.clone(), length.clone(), 1..3u64).prop_map(|(v, l, hop)| Step::Insert(v, l, hop)),
        2 => (value.clone(), length.clone(), 1..3u64).prop_map(|(v, l, hop)| Step::Modify(v, l, hop)),
        2 => (value.clone(), length.clone()).prop_map(|(v, l)| Step::Delete(v, l)),
        1 => (value, length, 0..9u64).prop_map(|(v, l, count)| Step::SetCounter(v, l, count)),
        1 => prop::option::of(1..3u64).prop_map(Step::SetDefault),
        1 => Just(Step::Clear),
        1 => Just(Step::ClearCounters),
    ];
    prop::collection::vec(step, 0..80)
}

fn prefix(value: u32, prefix_len: u16) -> Vec<MatchValue> {
    let value = value << 24 & u32::MAX << (32 - prefix_len);
    vec![MatchValue::Lpm { value: u64::from(value), prefix_len }]
}

fn sent(out: &mut Output, process: impl FnOnce(&mut Output)) -> Vec<(u16, Vec<u8>)> {
    out.clear();
    process(out);
    out.iter().map(|(port, frame)| (port, frame.to_vec())).collect()
}

/// Everything that control software can see.
fn state(pipeline: &Pipeline) -> impl PartialEq + std::fmt::Debug {
    let program = pipeline.program();
    let entries = ["ingress.route", "ingress.next_hop"].map(|name| {
        let table = program.table(name).unwrap();
        let mut all: Vec<(Entry, CounterData)> = pipeline.entries(table).collect();
        let (mut parts, mut from) = (Vec::new(), Some(0));
        while let Some(place) = from {
            from = pipeline.next_entries(table, place, 2, &mut parts);
        }
        for entries in [&mut all, &mut parts] {
            entries.sort_by_key(|(entry, _)| format!("{:?}", entry.key));
        }
        assert_eq!(all, parts);
        for (entry, counter) in all.iter().filter(|_| name == ROUTE) {
            assert_eq!(pipeline.direct_counter(table, &entry.key, 0), Ok(*counter));
        }
        (all, pipeline.default_action(table))
    });
    let array = program.counter("ingress.next_hops").unwrap();
    let cells: Vec<_> = (0..5).map(|index| pipeline.counter(array, index)).collect();
    (entries, cells, pipeline.drops())
}

proptest! {
    #[test]
    fn several_pipes_are_one_pipeline(steps in steps()) {
        let mut one = Switch::new(ROUTER);
        let mut several = Pipeline::with_pipes(load(ROUTER), 3);
        for hop in 1..=2 {
            let params = [0x0200_0000_0100 + hop, 0x0200_0000_0200 + hop, 10 + hop];
            one.insert("ingress.next_hop", &[MatchValue::Exact(hop)], "ingress.rewrite", &params);
            let (table, entry) =
                one.entry("ingress.next_hop", &[MatchValue::Exact(hop)], "ingress.rewrite", &params);
            several.insert(table, &entry).unwrap();
        }
        let route = one.table(ROUTE);
        let to = |key: Vec<MatchValue>, hop| one.entry(ROUTE, &key, "ingress.to_next_hop", &[hop]).1;
        let action = to(prefix(0, 8), 1).action;
        let (mut one, mut out) = (Pipeline::new(load(ROUTER)), Output::new());
        let next_hop = several.program().table("ingress.next_hop").unwrap();
        for (entry, _) in several.entries(next_hop).collect::<Vec<_>>() {
            one.insert(next_hop, &entry).unwrap();
        }
        let entry = |key, hop| Entry::new(key, action, vec![hop]);
        for step in steps {
            match step {
                Step::Packet(pipe, to) => {
                    let frame = ipv4_frame(1, to << 24 | 1, 9, 17, b"payload");
                    let expected = sent(&mut out, |out| one.process(0, 1, &frame, out));
                    let found = match pipe.checked_sub(1) {
                        None => sent(&mut out, |out| several.process(0, 1, &frame, out)),
                        Some(other) => {
                            let mut lent: Vec<Pipe> = several.lend();
                            let found = sent(&mut out, |out| lent[other].process(0, 1, &frame, out));
                            several.take_back(lent);
                            found
                        }
                    };
                    prop_assert_eq!(found, expected);
                }
                Step::Insert(v, l, hop) => {
                    let entry = entry(prefix(v, l), hop);
                    prop_assert_eq!(several.insert(route, &entry), one.insert(route, &entry));
                }
                Step::Modify(v, l, hop) => {
                    let entry = entry(prefix(v, l), hop);
                    prop_assert_eq!(several.modify(route, &entry), one.modify(route, &entry));
                }
                Step::Delete(v, l) => {
                    let key = prefix(v, l);
                    prop_assert_eq!(several.delete(route, &key, 0), one.delete(route, &key, 0));
                }
                Step::SetCounter(v, l, packets) => {
                    let (key, data) = (prefix(v, l), CounterData { packets, bytes: 60 * packets });
                    prop_assert_eq!(
                        several.set_direct_counter(route, &key, 0, data),
                        one.set_direct_counter(route, &key, 0, data)
                    );
                    let array = one.program().counter("ingress.next_hops").unwrap();
                    several.set_counter(array, 1, data).unwrap();
                    one.set_counter(array, 1, data).unwrap();
                }
                Step::SetDefault(hop) => {
                    let call = hop.map(|hop| ActionCall { action, params: vec![hop] });
                    prop_assert_eq!(several.set_default(route, call.as_ref()), one.set_default(route, call.as_ref()));
                }
                Step::Clear => {
                    prop_assert_eq!(several.clear_table(route), one.clear_table(route));
                }
                Step::ClearCounters => {
                    several.clear_direct_counters(route).unwrap();
                    one.clear_direct_counters(route).unwrap();
                }
            }
            prop_assert_eq!(state(&several), state(&one));
        }
    }
}

#[test]
fn every_pipe_has_the_multicast_groups() {
    let mut pipeline = Pipeline::with_pipes(load(TUNNEL), 2);
    pipeline
        .set_multicast_group(300, vec![Replica { port: 4, instance: 1 }, Replica { port: 5, instance: 3 }]);
    let (mut lent, mut out) = (pipeline.lend(), Output::new());
    let frame = [&[8, 0, 1, 44, 0, 0, 0, 0][..], &[7; 30]].concat();
    let ports = |sent: Vec<(u16, Vec<u8>)>| sent.into_iter().map(|(port, _)| port).collect::<Vec<_>>();
    assert_eq!(ports(sent(&mut out, |out| lent[0].process(0, 1, &frame, out))), [4, 5]);
    pipeline.take_back(lent);
    pipeline.set_multicast_group(300, Vec::new());
    assert_eq!(pipeline.multicast_groups().count(), 0);
    assert_eq!(ports(sent(&mut out, |out| pipeline.lend()[0].process(0, 1, &frame, out))), [0u16; 0]);
}

#[test]
#[should_panic(expected = "only with all its pipes")]
fn nothing_changes_while_pipes_are_lent() {
    let mut pipeline = Pipeline::with_pipes(load(ROUTER), 2);
    let _lent = pipeline.lend();
    let route = pipeline.program().table(ROUTE).unwrap();
    let _ = pipeline.clear_table(route);
}

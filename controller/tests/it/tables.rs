//! Every table of every compiled program, with every action that its entries may have, fits its declaration.
//! Entries that are made from the P4Info alone are read as typed entries, and these lower to the same bytes.

use std::collections::BTreeSet;

use fatbtree_controller::{Entry, Tables, Target};
use fatbtree_p4runtime::P4InfoIndex;
use fatbtree_p4runtime::config::{self, MatchField, P4Info, match_field};
use fatbtree_p4runtime::index::{ActionInfo, MatchKind, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_topology::Role;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// The widest key and the longest parameter list need fewer values.
const VALUES: usize = 16;

fn programs() -> Vec<P4InfoIndex> {
    let info = |target: Target, role| P4InfoIndex::from_text(target.p4info(role)).unwrap();
    let of_chips = [Target::Tofino1, Target::Tofino2].into_iter();
    let of_chips = of_chips.flat_map(|target| Role::ALL.map(|role| info(target, role)));
    std::iter::once(info(Target::V1model, Role::Core)).chain(of_chips).collect()
}

/// The tables that the program leaves to the controller.
fn written(info: &P4InfoIndex) -> impl Iterator<Item = &TableInfo> {
    info.tables().iter().filter(|table| !table.is_const && !table.fields.is_empty())
}

/// The actions that entries of a table may have.
fn actions(table: &TableInfo) -> impl Iterator<Item = &ActionInfo> {
    table.actions.iter().filter(|action| action.in_entries).map(|action| &action.action)
}

/// Whether the entries of a table come from plans.
fn is_planned(table: &TableInfo) -> bool {
    ["hot_key", "fat_root_", "node_set_"].iter().any(|part| table.name.contains(part))
}

/// Bytes of an entry, every value in whole ones; a range has two.
fn bytes(table: &TableInfo, action: &ActionInfo) -> usize {
    let fields = table.fields.iter().flat_map(|field| {
        let values = if field.kind == MatchKind::Range { 2 } else { 1 };
        std::iter::repeat_n(field.bitwidth, values)
    });
    let params = action.params.iter().map(|param| param.bitwidth);
    fields.chain(params).map(|bits| bits.div_ceil(8) as usize).sum()
}

fn low_bits(value: u64, bits: u32) -> u64 {
    if bits < 64 { value & ((1 << bits) - 1) } else { value }
}

/// An entry with these values, as far as they fit.
fn entry_of(table: &TableInfo, action: &ActionInfo, values: [u64; VALUES]) -> TableEntry {
    let mut values = values.into_iter();
    let mut next = |bits: u32| low_bits(values.next().unwrap(), bits);
    let mut entry = table.entry();
    for field in &table.fields {
        let bits = field.bitwidth;
        entry = match field.kind {
            // Reads that want a node have no entries.
            MatchKind::Exact if field.name == "wants_node" => entry.exact(field, 0),
            MatchKind::Exact => entry.exact(field, next(bits)),
            MatchKind::Range => {
                let (a, b) = (next(bits), next(bits));
                entry.range(field, a.min(b), a.max(b))
            }
            MatchKind::Lpm => {
                let host_bits = u32::try_from(next(64) % u64::from(bits + 1)).unwrap();
                let prefix = next(bits) >> host_bits << host_bits;
                entry.lpm(field, prefix.into(), bits - host_bits)
            }
            other => panic!("{}: the controller writes no {other} fields", table.name),
        };
    }
    if table.needs_priority {
        entry = entry.priority(i32::try_from(next(16).max(1)).unwrap());
    }
    // A node is of one of three kinds.
    let arguments = action.params.iter().map(|param| match param.name.as_str() {
        "kind" => next(param.bitwidth) % 3,
        _ => next(param.bitwidth),
    });
    let arguments: Vec<u64> = arguments.collect();
    entry.action(action, &arguments).build().unwrap()
}

#[test]
fn every_entry_of_the_compiled_programs_reads_and_lowers_to_itself() {
    let mut names = BTreeSet::new();
    for info in programs() {
        let tables = Tables::new(&info).unwrap();
        for (table, action) in written(&info).flat_map(|table| actions(table).map(move |a| (table, a))) {
            let mut runner =
                TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
            let round_trip = runner.run(&any::<[u64; VALUES]>(), |values| {
                let raw = entry_of(table, action, values);
                let read = tables.read(&raw);
                let Ok(Some(entry)) = read else {
                    return Err(TestCaseError::fail(format!("read as {read:?}")));
                };
                prop_assert!(table.name.ends_with(entry.table()), "{entry:?}");
                prop_assert_eq!(entry.bytes(), if is_planned(table) { bytes(table, action) } else { 0 });
                prop_assert_eq!(&tables.entry(&entry).unwrap(), &raw);
                prop_assert_eq!(tables.key(&entry).unwrap(), TableEntry { action: None, ..raw });
                Ok(())
            });
            round_trip.unwrap_or_else(|error| panic!("{}, {}: {error}", table.name, action.name));
            names.insert(table.name.split('.').skip(1).collect::<Vec<_>>().join("."));
        }
    }
    // 4 stages, 3 node sets of 6 tables, and 12 tables that are there once.
    assert_eq!(names.len(), 34, "{names:?}");
}

/// Entries are in the order of their keys, whatever their actions are, and of one table stand together.
#[test]
fn order_is_by_table_and_key() {
    let info = P4InfoIndex::from_text(Target::V1model.p4info(Role::Core)).unwrap();
    let tables = Tables::new(&info).unwrap();
    let strategy = any::<[[u64; VALUES]; 2]>();
    let mut entries: Vec<Entry> = Vec::new();
    let mut runner = TestRunner::new(Config { cases: 8, failure_persistence: None, ..Config::default() });
    for (table, action) in written(&info).flat_map(|table| actions(table).map(move |a| (table, a))) {
        runner
            .run(&strategy, |[a, b]| {
                let read = |values| tables.read(&entry_of(table, action, values)).unwrap().unwrap();
                let (a, b) = (read(a), read(b));
                let keys = (tables.key(&a).unwrap(), tables.key(&b).unwrap());
                prop_assert_eq!(a.cmp_keys(&b).is_eq(), keys.0 == keys.1);
                prop_assert_eq!(a.cmp_keys(&b), b.cmp_keys(&a).reverse());
                prop_assert!(a.cmp_keys(&b).is_eq() || a.cmp_keys(&b) == a.cmp(&b));
                Ok(())
            })
            .unwrap();
        entries.push(tables.read(&entry_of(table, action, [7; VALUES])).unwrap().unwrap());
    }
    entries.sort_unstable();
    let mut kinds: Vec<_> = entries.iter().map(std::mem::discriminant).collect();
    kinds.dedup();
    let unlike = kinds.iter().enumerate().all(|(at, kind)| !kinds[..at].contains(kind));
    assert!(unlike && kinds.len() == 15, "{} runs of one kind", kinds.len());
}

/// A program whose tables have more than is declared, less or other, is refused by name before anything is written.
#[test]
fn a_program_that_differs_is_refused() {
    let info = P4InfoIndex::from_text(Target::V1model.p4info(Role::Core)).unwrap();
    let refusal = |change: &dyn Fn(&mut P4Info)| {
        let mut other = info.p4info().clone();
        change(&mut other);
        Tables::new(&P4InfoIndex::new(other).unwrap()).unwrap_err().to_string()
    };
    let wide = refusal(&|other| table(other, "traffic_class").match_fields[0].bitwidth = 12);
    assert!(
        wide.contains("field `dscp`: expected exact match of 1 bytes, found exact match of 12 bits"),
        "{wide}"
    );
    let kind = refusal(&|other| {
        let ternary = match_field::MatchType::Ternary.into();
        table(other, "traffic_class").match_fields[0].r#match = Some(match_field::Match::MatchType(ternary));
    });
    assert!(kind.contains("expected exact match of 1 bytes, found ternary match"), "{kind}");
    let more = refusal(&|other| {
        let fields = &mut table(other, "partition_route").match_fields;
        let fresh = MatchField { id: 9, name: "colour".to_owned(), ..fields[0].clone() };
        fields.push(fresh);
    });
    assert!(more.contains("partition_route") && more.contains("field `colour` is unknown"), "{more}");
    let fewer = refusal(&|other| {
        let is_address_to =
            |action: &&mut config::Action| action.preamble.as_ref().unwrap().name.ends_with("address_to");
        other.actions.iter_mut().find(is_address_to).unwrap().params.pop();
    });
    assert!(fewer.contains("host_port") && fewer.contains("action `address_to`"), "{fewer}");
}

fn table<'a>(info: &'a mut P4Info, name: &str) -> &'a mut config::Table {
    info.tables.iter_mut().find(|table| table.preamble.as_ref().unwrap().name.ends_with(name)).unwrap()
}

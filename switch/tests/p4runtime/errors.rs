//! Updates that must be refused: each with its own canonical code, and a message that says what and where.

use fatbtree_p4runtime::entry::{delete, insert, modify};
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{
    self, CounterData, CounterEntry, DirectCounterEntry, Entity, FieldMatch, Index, MeterConfig, TableEntry,
    Update, action::Param, entity, field_match::Exact, field_match::FieldMatchType, table_action,
    update::Type,
};

use crate::harness::{Harness, info, one_error};

/// Changes a message in place: the builder refuses to make wrong ones.
fn with(mut entry: TableEntry, change: impl FnOnce(&mut TableEntry)) -> TableEntry {
    change(&mut entry);
    entry
}

fn action_of(entry: &mut TableEntry) -> &mut v1::Action {
    match entry.action.as_mut().and_then(|action| action.r#type.as_mut()) {
        Some(table_action::Type::Action(action)) => action,
        other => panic!("not an action: {other:?}"),
    }
}

fn exact(field_id: u32, value: &[u8]) -> FieldMatch {
    let value = value.to_vec();
    FieldMatch { field_id, field_match_type: Some(FieldMatchType::Exact(Exact { value })) }
}

#[tokio::test(flavor = "multi_thread")]
async fn table_entries() {
    let (_harness, client) = Harness::loaded().await;
    let info = info();
    let table = info.table("exact_table").expect("there");
    let (dst, forward) =
        (table.field("dst").expect("there"), table.action("forward_counted").expect("there"));
    let good = |key| table.entry().exact(dst, key).action(forward, &[1]).build().expect("legal");
    client.write([insert(good(1))]).await.expect("legal");

    let no_action = info.table("lpm_table").and_then(|table| table.action("NoAction")).expect("there").id;
    for (update, code, words) in [
        // Tables and keys.
        (
            insert(with(good(2), |e| e.table_id = 0x0200_0bad)),
            Code::InvalidArgument,
            &["0x02000bad", "P4Info"][..],
        ),
        (insert(with(good(2), |e| e.table_id = 0)), Code::InvalidArgument, &["table id 0"]),
        (insert(good(1)), Code::AlreadyExists, &["exact_table", "already"]),
        (modify(good(2)), Code::NotFound, &["exact_table"]),
        (delete(good(2)), Code::NotFound, &["exact_table"]),
        (
            insert(with(good(2), |e| e.r#match.clear())),
            Code::InvalidArgument,
            &["exact_table", "`dst`", "left out"],
        ),
        (
            insert(with(good(2), |e| e.r#match.push(exact(1, &[1])))),
            Code::InvalidArgument,
            &["`dst`", "twice"],
        ),
        (insert(with(good(2), |e| e.r#match[0].field_id = 9)), Code::InvalidArgument, &["1 dst", "id 9"]),
        (
            insert(with(good(2), |e| e.r#match[0] = exact(1, &[]))),
            Code::OutOfRange,
            &["`dst`", "48 bits", "empty"],
        ),
        (
            insert(with(good(2), |e| e.r#match[0] = exact(1, &[1; 7]))),
            Code::OutOfRange,
            &["`dst`", "48 bits", "49 bits"],
        ),
        (
            insert(with(good(2), |e| e.r#match[0].field_match_type = None)),
            Code::InvalidArgument,
            &["`dst`", "no value"],
        ),
        (
            insert(with(good(2), |e| e.metadata = vec![7; 1025])),
            Code::ResourceExhausted,
            &["1024 bytes of metadata", "1025"],
        ),
        (insert(with(good(2), |e| e.priority = 5)), Code::InvalidArgument, &["exact_table", "priority", "5"]),
        // Actions.
        (insert(with(good(2), |e| e.action = None)), Code::InvalidArgument, &["exact_table", "action"]),
        (
            insert(with(good(2), |e| action_of(e).action_id = 77)),
            Code::InvalidArgument,
            &["exact_table", "forward_counted", "77"],
        ),
        (
            insert(with(good(2), |e| action_of(e).action_id = no_action)),
            Code::PermissionDenied,
            &["NoAction", "default"],
        ),
        (
            insert(with(good(2), |e| action_of(e).params.clear())),
            Code::InvalidArgument,
            &["forward_counted", "`port`", "missing"],
        ),
        (
            insert(with(good(2), |e| action_of(e).params[0].value = vec![2, 0])),
            Code::OutOfRange,
            &["`port`", "9 bits", "10 bits"],
        ),
        (
            insert(with(good(2), |e| action_of(e).params[0].param_id = 8)),
            Code::InvalidArgument,
            &["1 port", "id 8"],
        ),
        (
            insert(with(good(2), |e| action_of(e).params.push(Param { param_id: 1, value: vec![1] }))),
            Code::InvalidArgument,
            &["`port`", "twice"],
        ),
        (
            insert(with(good(2), |e| {
                e.action =
                    Some(v1::TableAction { r#type: Some(table_action::Type::ActionProfileMemberId(1)) });
            })),
            Code::InvalidArgument,
            &["exact_table", "action profile"],
        ),
        // Everything else.
        (insert(with(good(2), |e| e.is_const = true)), Code::InvalidArgument, &["is_const"]),
        (insert(with(good(2), |e| e.idle_timeout_ns = 1)), Code::InvalidArgument, &["idle"]),
        (
            insert(with(good(2), |e| e.meter_config = Some(MeterConfig::default()))),
            Code::InvalidArgument,
            &["meter"],
        ),
        (Update { r#type: 0, ..insert(good(2)) }, Code::InvalidArgument, &["INSERT", "found 0"]),
        (Update { r#type: Type::Insert.into(), entity: None }, Code::InvalidArgument, &["entity"]),
        (
            Update {
                r#type: Type::Insert.into(),
                entity: Some(Entity {
                    entity: Some(entity::Entity::ActionProfileMember(Default::default())),
                }),
            },
            Code::Unimplemented,
            &["action profile member"],
        ),
    ] {
        one_error(client.write([update]).await, code, words);
    }
    // None of it has left a trace.
    let entries = client.read_table(table, false).await.expect("readable");
    assert_eq!(entries, [good(1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn match_kinds() {
    let (_harness, client) = Harness::loaded().await;
    let info = info();
    let lpm = info.table("lpm_table").expect("there");
    let src = lpm.field("src").expect("there");
    let good = lpm
        .entry()
        .lpm(src, 0x0a00_0000_0000, 8)
        .action(lpm.action("forward").expect("there"), &[1])
        .build()
        .expect("legal");
    let lpm_with = |value: &[u8], prefix_len| {
        let lpm = v1::field_match::Lpm { value: value.to_vec(), prefix_len };
        insert(with(good.clone(), |e| e.r#match[0].field_match_type = Some(FieldMatchType::Lpm(lpm))))
    };
    one_error(
        client.write([lpm_with(&[1], 0)]).await,
        Code::InvalidArgument,
        &["lpm_table", "`src`", "1 to 48"],
    );
    one_error(client.write([lpm_with(&[1], 49)]).await, Code::InvalidArgument, &["`src`", "1 to 48", "49"]);
    one_error(client.write([lpm_with(&[1], -1)]).await, Code::InvalidArgument, &["`src`", "-1"]);
    one_error(
        client.write([lpm_with(&[1], 40)]).await,
        Code::InvalidArgument,
        &["`src`", "behind its prefix", "0x1"],
    );
    let wrong_kind = insert(with(good.clone(), |e| e.r#match[0] = exact(1, &[1])));
    one_error(client.write([wrong_kind]).await, Code::InvalidArgument, &["`src`", "LPM", "exact"]);

    let ternary = info.table("ternary_table").expect("there");
    let kind = ternary.field("kind").expect("there");
    let good = ternary
        .entry()
        .ternary(kind, 0x0800, 0xff00)
        .priority(1)
        .action(ternary.action("discard").expect("there"), &[])
        .build()
        .expect("legal");
    let ternary_with = |value: &[u8], mask: &[u8]| {
        let ternary = v1::field_match::Ternary { value: value.to_vec(), mask: mask.to_vec() };
        insert(with(good.clone(), |e| e.r#match[0].field_match_type = Some(FieldMatchType::Ternary(ternary))))
    };
    one_error(
        client.write([ternary_with(&[0], &[0])]).await,
        Code::InvalidArgument,
        &["ternary_table", "mask 0"],
    );
    one_error(
        client.write([ternary_with(&[3], &[1])]).await,
        Code::InvalidArgument,
        &["`kind`", "outside its mask"],
    );
    one_error(
        client.write([ternary_with(&[1], &[1, 0, 0])]).await,
        Code::OutOfRange,
        &["`kind`", "16 bits", "17 bits"],
    );
    let no_priority = insert(with(good.clone(), |e| e.priority = 0));
    one_error(client.write([no_priority]).await, Code::InvalidArgument, &["ternary_table", "priority"]);
    let negative = insert(with(good.clone(), |e| e.priority = -3));
    one_error(client.write([negative]).await, Code::InvalidArgument, &["ternary_table", "priority", "-3"]);

    let range = info.table("range_table").expect("there");
    let (port, kind) = (range.field("port").expect("there"), range.field("kind").expect("there"));
    let good = |low| {
        let action = range.action("forward").expect("there");
        range
            .entry()
            .exact(port, 1)
            .range(kind, low, 0xfff)
            .priority(1)
            .action(action, &[1])
            .build()
            .expect("legal")
    };
    let range_with = |low: &[u8], high: &[u8]| {
        let range = v1::field_match::Range { low: low.to_vec(), high: high.to_vec() };
        insert(with(good(1), |e| e.r#match[1].field_match_type = Some(FieldMatchType::Range(range))))
    };
    one_error(
        client.write([range_with(&[2], &[1])]).await,
        Code::InvalidArgument,
        &["range_table", "`kind`", "2 > 1"],
    );
    one_error(
        client.write([range_with(&[0], &[0xff, 0xff])]).await,
        Code::InvalidArgument,
        &["`kind`", "whole range"],
    );
    // The table holds two entries.
    client.write([insert(good(1)), insert(good(2))]).await.expect("legal");
    one_error(client.write([insert(good(3))]).await, Code::ResourceExhausted, &["range_table", "full", "2"]);
    client.write([delete(good(1))]).await.expect("there");
    client.write([insert(good(3))]).await.expect("there is room again");
}

#[tokio::test(flavor = "multi_thread")]
async fn const_tables_and_default_entries() {
    let (_harness, client) = Harness::loaded().await;
    let info = info();
    let fixed = info.table("const_table").expect("there");
    let (kind, discard) = (fixed.field("kind").expect("there"), fixed.action("discard").expect("there"));
    let entry = |value| fixed.entry().exact(kind, value).action(discard, &[]).build().expect("legal");
    one_error(client.write([insert(entry(1))]).await, Code::PermissionDenied, &["const_table", "const"]);
    one_error(client.write([modify(entry(0x88cc))]).await, Code::PermissionDenied, &["const_table", "const"]);
    one_error(client.write([delete(entry(0x88cc))]).await, Code::PermissionDenied, &["const_table", "const"]);
    // Its default entry is not const.
    client.write([modify(fixed.default_entry(discard, &[]).expect("legal"))]).await.expect("not const");
    let entries = client.read_table(fixed, false).await.expect("readable");
    assert_eq!(entries.len(), 1);
    assert!(entries[0].is_const);

    let range = info.table("range_table").expect("there");
    let no_action = range.action("NoAction").expect("there");
    let default = range.default_entry(no_action, &[]).expect("legal");
    one_error(
        client.write([modify(default)]).await,
        Code::PermissionDenied,
        &["range_table", "const default"],
    );

    let lpm = info.table("lpm_table").expect("there");
    let forward = lpm.action("forward").expect("there");
    let default = || lpm.default_entry(forward, &[1]).expect("legal");
    one_error(client.write([insert(default())]).await, Code::InvalidArgument, &["lpm_table", "MODIFY"]);
    one_error(client.write([delete(default())]).await, Code::InvalidArgument, &["lpm_table", "MODIFY"]);
    let keyed = modify(with(default(), |e| e.r#match.push(exact(1, &[1]))));
    one_error(client.write([keyed]).await, Code::InvalidArgument, &["lpm_table", "1 fields"]);
    let rewrite = lpm.default_entry(lpm.action("rewrite").expect("there"), &[1, 2]).expect("legal");
    one_error(client.write([modify(rewrite)]).await, Code::PermissionDenied, &["rewrite", "entries only"]);
    let keyless = info.table("keyless").expect("there");
    let forward = keyless.action("forward").expect("there");
    let entry = keyless.entry().action(forward, &[1]).build().expect("legal");
    one_error(client.write([insert(entry)]).await, Code::InvalidArgument, &["keyless", "no key"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn counters() {
    let (_harness, client) = Harness::loaded().await;
    let info = info();
    let seen = info.counter("seen").expect("there");
    let cell = |index| CounterEntry {
        counter_id: seen.id,
        index: Some(Index { index }),
        data: Some(CounterData { byte_count: 1, packet_count: 1 }),
    };
    let update = |kind: Type, entry: CounterEntry| Update {
        r#type: kind.into(),
        entity: Some(Entity { entity: Some(entity::Entity::CounterEntry(entry)) }),
    };
    client.write([update(Type::Modify, cell(7))]).await.expect("legal");
    one_error(
        client.write([update(Type::Insert, cell(1))]).await,
        Code::InvalidArgument,
        &["MODIFY", "INSERT"],
    );
    one_error(client.write([update(Type::Modify, cell(-1))]).await, Code::InvalidArgument, &["seen", "-1"]);
    one_error(
        client.write([update(Type::Modify, cell(8))]).await,
        Code::OutOfRange,
        &["seen", "below 8", "8"],
    );
    let unknown = CounterEntry { counter_id: 5, ..cell(0) };
    one_error(client.write([update(Type::Modify, unknown)]).await, Code::InvalidArgument, &["id 5"]);
    let negative = CounterEntry { data: Some(CounterData { byte_count: -1, packet_count: 0 }), ..cell(0) };
    one_error(client.write([update(Type::Modify, negative)]).await, Code::InvalidArgument, &["-1 bytes"]);

    let table = info.table("exact_table").expect("there");
    let key = table.entry().exact(table.field("dst").expect("there"), 1).build().expect("legal");
    let direct = DirectCounterEntry { table_entry: Some(key), data: Some(CounterData::default()) };
    let update = |kind: Type, entry: DirectCounterEntry| Update {
        r#type: kind.into(),
        entity: Some(Entity { entity: Some(entity::Entity::DirectCounterEntry(entry)) }),
    };
    one_error(client.write([update(Type::Modify, direct.clone())]).await, Code::NotFound, &["exact_table"]);
    one_error(client.write([update(Type::Delete, direct.clone())]).await, Code::InvalidArgument, &["MODIFY"]);
    let nothing = DirectCounterEntry { table_entry: None, ..direct };
    one_error(client.write([update(Type::Modify, nothing)]).await, Code::InvalidArgument, &["table entry"]);
}

//! Reading with wildcards and filters, and counters.

use fatbtree_p4runtime::entry::{insert, modify, table_entity};
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{
    self, CounterData, CounterEntry, DirectCounterEntry, Entity, Index, P4Data, RegisterEntry, TableEntry,
    Update, entity, p4_data, update::Type,
};
use fatbtree_p4runtime::{ClientError, P4InfoIndex, P4RuntimeClient};

use crate::harness::{Harness, frame, info, refused};

/// Entries in four tables; returns those of `exact_table`, in order of their keys.
async fn fill(client: &P4RuntimeClient, info: &P4InfoIndex) -> Vec<TableEntry> {
    let table = info.table("exact_table").expect("there");
    let (dst, forward) =
        (table.field("dst").expect("there"), table.action("forward_counted").expect("there"));
    let exact: Vec<_> = (0..2500)
        .map(|key| {
            let mut entry =
                table.entry().exact(dst, key).action(forward, &[key % 512]).build().expect("legal");
            if key % 100 == 0 {
                entry.metadata = b"hundred".to_vec();
            }
            entry
        })
        .collect();
    client.write(exact.iter().cloned().map(insert)).await.expect("legal");
    let lpm = info.table("lpm_table").expect("there");
    let src = lpm.field("src").expect("there");
    let forward = lpm.action("forward").expect("there");
    let ternary = info.table("ternary_table").expect("there");
    let kind = ternary.field("kind").expect("there");
    let optional = ternary.field("src").expect("there");
    let rewrite = ternary.action("rewrite").expect("there");
    client
        .write([
            insert(lpm.entry().lpm(src, 0x0a00_0000_0000, 8).action(forward, &[1]).build().expect("legal")),
            insert(lpm.entry().lpm(src, 0, 0).action(forward, &[2]).build().expect("legal")),
            insert(
                ternary
                    .entry()
                    .ternary(kind, 1, 1)
                    .priority(7)
                    .action(rewrite, &[1, 2])
                    .build()
                    .expect("legal"),
            ),
            insert(
                ternary
                    .entry()
                    .optional(optional, 9)
                    .priority(7)
                    .action(rewrite, &[3, 4])
                    .build()
                    .expect("legal"),
            ),
            insert(
                ternary
                    .entry()
                    .ternary(kind, 1, 1)
                    .priority(8)
                    .action(rewrite, &[5, 6])
                    .build()
                    .expect("legal"),
            ),
        ])
        .await
        .expect("legal");
    exact
}

async fn tables(client: &P4RuntimeClient, filter: TableEntry) -> Vec<TableEntry> {
    let entities = client.read(vec![table_entity(filter)]).await.expect("readable");
    entities
        .into_iter()
        .map(|entity| match entity.entity {
            Some(entity::Entity::TableEntry(entry)) => entry,
            other => panic!("not a table entry: {other:?}"),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn wildcards_and_filters() {
    let (_harness, client) = Harness::loaded().await;
    let info = info();
    let exact = fill(&client, &info).await;
    let table = info.table("exact_table").expect("there");
    // A table, in several parts.
    let mut found = tables(&client, TableEntry { table_id: table.id, ..TableEntry::default() }).await;
    found
        .sort_by_key(|entry| table.view(entry).and_then(|view| view.exact(&table.fields[0])).expect("legal"));
    assert_eq!(found, exact);
    // Everything: those, the others and the const entry.
    assert_eq!(tables(&client, TableEntry::default()).await.len(), 2500 + 2 + 3 + 1);
    // By key.
    let one = TableEntry { action: None, metadata: Vec::new(), ..exact[77].clone() };
    assert_eq!(tables(&client, one.clone()).await, [exact[77].clone()]);
    let none = table.entry().exact(&table.fields[0], 9999).build().expect("legal");
    assert_eq!(tables(&client, none).await, []);
    // By cookie, by action, by priority.
    let hundreds = TableEntry { table_id: table.id, metadata: b"hundred".to_vec(), ..TableEntry::default() };
    assert_eq!(tables(&client, hundreds).await.len(), 25);
    let discard = table.action("discard").expect("there").id;
    let action = v1::Action { action_id: discard, params: Vec::new() };
    let action = Some(v1::TableAction { r#type: Some(v1::table_action::Type::Action(action)) });
    assert_eq!(tables(&client, TableEntry { table_id: table.id, action, ..TableEntry::default() }).await, []);
    let ternary = info.table("ternary_table").expect("there");
    let sevens = TableEntry { table_id: ternary.id, priority: 7, ..TableEntry::default() };
    assert_eq!(tables(&client, sevens).await.len(), 2);
    // A key without priority finds all priorities.
    let key = ternary
        .entry()
        .ternary(ternary.field("kind").expect("there"), 1, 1)
        .priority(1)
        .build()
        .expect("legal");
    assert_eq!(tables(&client, TableEntry { priority: 0, ..key.clone() }).await.len(), 2);
    assert_eq!(tables(&client, TableEntry { priority: 8, ..key }).await.len(), 1);
    // Kinds this program has none of.
    let none = Entity { entity: Some(entity::Entity::ActionProfileGroup(v1::ActionProfileGroup::default())) };
    assert_eq!(client.read(vec![none]).await.expect("readable"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn default_entries() {
    let (_harness, client) = Harness::loaded().await;
    let info = info();
    let keyless = info.table("keyless").expect("there");
    let read = async || client.read_default(keyless).await.expect("readable").expect("there always is one");
    let initial = keyless.default_entry(keyless.action("NoAction").expect("there"), &[]).expect("legal");
    assert_eq!(read().await, initial);
    let mut changed =
        keyless.default_entry(keyless.action("forward").expect("there"), &[300]).expect("legal");
    changed.metadata = b"note".to_vec();
    client.write([modify(changed.clone())]).await.expect("legal");
    assert_eq!(read().await, changed);
    // Without an action it goes back to what the program declares.
    client.write([modify(TableEntry { action: None, ..changed })]).await.expect("legal");
    assert_eq!(read().await, initial);
    let range = info.table("range_table").expect("there");
    assert!(client.read_default(range).await.expect("readable").expect("there").is_const);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_reads_fails_in_part() {
    let (_harness, client) = Harness::loaded().await;
    let info = info();
    fill(&client, &info).await;
    let good = info.table("lpm_table").expect("there").read_all(false);
    let bad = table_entity(TableEntry { table_id: 12, ..TableEntry::default() });
    let mut stream = client.read_stream(vec![good, bad, Entity::default()]).await.expect("starts");
    assert_eq!(stream.message().await.expect("the good part").expect("first").entities.len(), 2);
    let status = stream.message().await.expect_err("then the errors");
    assert_eq!(status.code(), Code::Unknown);
    let errors = fatbtree_p4runtime::status::batch_errors(&status).expect("details");
    let found: Vec<_> = errors.iter().map(|error| (error.index, error.code)).collect();
    assert_eq!(found, [(1, Code::InvalidArgument), (2, Code::InvalidArgument)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_count_frames_and_can_be_set() {
    let (harness, client) = Harness::loaded().await;
    let info = info();
    fill(&client, &info).await;
    harness.on_switch(|switch| {
        let mut output = fatbtree_switch::Output::new();
        for _ in 0..3 {
            switch.handle_frame(0, 2, &frame(77, 5, 6), &mut output);
        }
        assert_eq!(output.iter().map(|(port, _)| port).collect::<Vec<_>>(), [77, 77, 77]);
    });
    let table = info.table("exact_table").expect("there");
    let key = table.entry().exact(&table.fields[0], 77).build().expect("legal");
    let direct = |entry: Option<TableEntry>, data| Entity {
        entity: Some(entity::Entity::DirectCounterEntry(DirectCounterEntry { table_entry: entry, data })),
    };
    let read = async |entity: Entity| -> Vec<CounterData> {
        let entities = client.read(vec![entity]).await.expect("readable");
        let data = entities.into_iter().map(|entity| match entity.entity {
            Some(entity::Entity::DirectCounterEntry(entry)) => entry.data,
            Some(entity::Entity::CounterEntry(entry)) => entry.data,
            other => panic!("not a counter: {other:?}"),
        });
        data.map(|data| data.expect("always set")).collect()
    };
    let three = CounterData { packet_count: 3, byte_count: 192 };
    assert_eq!(read(direct(Some(key.clone()), None)).await, [three]);
    // All of a table, all of all tables.
    let whole = Some(TableEntry { table_id: table.id, ..TableEntry::default() });
    let all = read(direct(whole, None)).await;
    assert_eq!((all.len(), all.iter().map(|data| data.packet_count).sum::<i64>()), (2500, 3));
    assert_eq!(read(direct(None, None)).await.len(), 2500);
    let missing = table.entry().exact(&table.fields[0], 99_999).build().expect("legal");
    let status = refused(client.read(vec![direct(Some(missing), None)]).await);
    assert_eq!(fatbtree_p4runtime::status::batch_errors(&status).expect("details")[0].code, Code::NotFound);
    // Set it.
    let nine = CounterData { packet_count: 9, byte_count: 9 };
    let set = Update { r#type: Type::Modify.into(), entity: Some(direct(Some(key.clone()), Some(nine))) };
    client.write([set]).await.expect("legal");
    assert_eq!(read(direct(Some(key), None)).await, [nine]);

    let seen = info.counter("seen").expect("there");
    let cell = |id, index: Option<i64>, data| Entity {
        entity: Some(entity::Entity::CounterEntry(CounterEntry {
            counter_id: id,
            index: index.map(|index| Index { index }),
            data,
        })),
    };
    assert_eq!(read(cell(seen.id, Some(2), None)).await, [three]);
    let mut expected = [CounterData::default(); 8];
    expected[2] = three;
    assert_eq!(read(cell(seen.id, None, None)).await, expected);
    assert_eq!(read(cell(0, None, None)).await, expected);
    // Without an index, all cells are set.
    let set = Update { r#type: Type::Modify.into(), entity: Some(cell(seen.id, None, Some(nine))) };
    client.write([set]).await.expect("legal");
    assert_eq!(read(cell(seen.id, None, None)).await, [nine; 8]);
}

#[tokio::test(flavor = "multi_thread")]
async fn registers() {
    let (harness, client) = Harness::loaded().await;
    let register_id =
        info().p4info().registers[0].preamble.as_ref().map(|preamble| preamble.id).expect("there is one");
    harness.on_switch(|switch| {
        switch.handle_frame(0, 2, &frame(1, 2, 0x1234), &mut fatbtree_switch::Output::new());
    });
    let entity = |index: Option<i64>, value: Option<&[u8]>| Entity {
        entity: Some(entity::Entity::RegisterEntry(RegisterEntry {
            register_id,
            index: index.map(|index| Index { index }),
            data: value.map(|value| P4Data { data: Some(p4_data::Data::Bitstring(value.to_vec())) }),
        })),
    };
    assert_eq!(
        client.read(vec![entity(Some(0), None)]).await.expect("readable"),
        [entity(Some(0), Some(&[0x12, 0x34]))]
    );
    let write = async |index, value: &[u8]| -> Result<(), ClientError> {
        client.write([Update { r#type: Type::Modify.into(), entity: Some(entity(index, Some(value))) }]).await
    };
    write(Some(3), &[7]).await.expect("legal");
    assert_eq!(client.read(vec![entity(None, None)]).await.expect("readable").len(), 4);
    assert_eq!(
        client.read(vec![entity(Some(3), None)]).await.expect("readable"),
        [entity(Some(3), Some(&[7]))]
    );
    crate::harness::one_error(write(Some(3), &[1, 0, 0]).await, Code::OutOfRange, &["last_kind", "16 bits"]);
    crate::harness::one_error(write(Some(4), &[1]).await, Code::OutOfRange, &["last_kind", "below 4"]);
}

//! Written entries are read back, bit for bit ("Read-Write Symmetry"), whatever the order of events.
//!
//! Without gRPC: a [`Switch`] is driven directly, beside a model that is a plain map.

use std::collections::BTreeMap;

use fatbtree_p4runtime::P4InfoIndex;
use fatbtree_p4runtime::client::uint128;
use fatbtree_p4runtime::entry::{delete, insert, modify};
use fatbtree_p4runtime::prost::Message as _;
use fatbtree_p4runtime::status::batch_errors;
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{
    self, MasterArbitrationUpdate, ReadRequest, StreamMessageRequest, TableEntry, Update, WriteRequest,
    entity, stream_message_request,
};
use fatbtree_switch::service::{Request, Response, StreamEvent, StreamId, Switch};
use proptest::prelude::*;

use crate::harness::{DEVICE, config, info};

fn switch() -> Switch {
    let mut switch = Switch::new(DEVICE);
    switch.load(config()).expect("a sound program");
    let bid = MasterArbitrationUpdate {
        device_id: DEVICE,
        election_id: Some(uint128(1)),
        ..MasterArbitrationUpdate::default()
    };
    let update = Some(stream_message_request::Update::Arbitration(bid));
    let event = StreamEvent::Message(StreamMessageRequest { update });
    switch.handle_request(Request::Stream(StreamId(1), event));
    while switch.poll_stream().is_some() {}
    switch
}

fn write(switch: &mut Switch, updates: Vec<Update>) -> Vec<Code> {
    let count = updates.len();
    let request =
        WriteRequest { device_id: DEVICE, election_id: Some(uint128(1)), updates, ..WriteRequest::default() };
    let Response::Write(result) = switch.handle_request(Request::Write(request)) else {
        panic!("not a write")
    };
    let mut codes = vec![Code::Ok; count];
    if let Err(status) = result {
        for error in batch_errors(&status).expect("one error per update") {
            codes[error.index] = error.code;
        }
    }
    codes
}

/// All entries, by encoded key.
fn read(switch: &mut Switch) -> BTreeMap<Vec<u8>, TableEntry> {
    let entities = vec![v1::Entity { entity: Some(entity::Entity::TableEntry(TableEntry::default())) }];
    let request = ReadRequest { device_id: DEVICE, entities, ..ReadRequest::default() };
    let Response::Read(outcome) = switch.handle_request(Request::Read(request)) else { panic!("not a read") };
    assert!(outcome.end.is_ok());
    let entities = outcome.parts.into_iter().flat_map(|part| part.entities);
    entities
        .filter_map(|entity| match entity.entity {
            Some(entity::Entity::TableEntry(entry)) if !entry.is_const => Some((key(&entry), entry)),
            _ => None,
        })
        .collect()
}

fn key(entry: &TableEntry) -> Vec<u8> {
    TableEntry {
        table_id: entry.table_id,
        r#match: entry.r#match.clone(),
        priority: entry.priority,
        ..TableEntry::default()
    }
    .encode_to_vec()
}

/// An entry of one of four tables; few different keys, so that they meet.
fn entries(info: &'static P4InfoIndex) -> impl Strategy<Value = TableEntry> {
    let numbers =
        (0u64..4, 0u32..4, 0u64..3, 0u64..512, prop::collection::vec(any::<u8>(), 0..3), any::<bool>());
    (0..4usize, numbers).prop_map(|(which, (value, length, other, port, metadata, old_cookie))| {
        let name = ["exact_table", "lpm_table", "ternary_table", "range_table"][which];
        let table = info.table(name).expect("there");
        let field = |name: &str| table.field(name).expect("there");
        let action = |name: &str| table.action(name).expect("there");
        let builder = table.entry();
        let builder = match which {
            0 => {
                builder.exact(field("dst"), (value << 44) | value).action(action("forward_counted"), &[port])
            }
            1 => {
                let prefix = (u128::from(value) << 40) & !((1 << (48 - length * 2)) - 1);
                builder.lpm(field("src"), prefix, length * 2).action(action("forward"), &[port])
            }
            2 => {
                let mask = u128::from(length) * 0x101;
                let builder = builder.ternary(field("kind"), (u128::from(value) * 0x101) & mask, mask);
                let builder = if other == 0 { builder } else { builder.optional(field("src"), other.into()) };
                builder.priority(1 + length as i32 % 2).action(action("rewrite"), &[port << 30, port])
            }
            _ => builder
                .exact(field("port"), value)
                .range(field("kind"), other, if length == 0 { 0xffff } else { 2 + value })
                .priority(1 + length as i32)
                .action(action("forward"), &[port]),
        };
        #[allow(deprecated, reason = "the old cookie has to survive as well")]
        TableEntry {
            metadata,
            controller_metadata: if old_cookie { port } else { 0 },
            ..builder.build().expect("legal")
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn a_switch_is_a_map(steps in prop::collection::vec((0..3usize, entries(leaked())), 1..60), cut in 1usize..8) {
        let mut switch = switch();
        let mut model: BTreeMap<Vec<u8>, TableEntry> = BTreeMap::new();
        for batch in steps.chunks(cut) {
            let mut expected = Vec::new();
            let mut updates = Vec::new();
            for (kind, entry) in batch {
                let key = key(entry);
                // The range table holds two entries, the others more than there are keys.
                let same_table = model.values().filter(|other| other.table_id == entry.table_id).count();
                let full = leaked().table_by_id(entry.table_id).expect("there").size <= same_table as u64;
                expected.push(match (kind, model.contains_key(&key)) {
                    (0, true) => Code::AlreadyExists,
                    (0, false) if full => Code::ResourceExhausted,
                    (0, false) | (1, true) => {
                        model.insert(key, entry.clone());
                        Code::Ok
                    }
                    (2, true) => {
                        model.remove(&key);
                        Code::Ok
                    }
                    _ => Code::NotFound,
                });
                updates.push([insert, modify, delete][*kind](entry.clone()));
            }
            prop_assert_eq!(write(&mut switch, updates), expected);
            prop_assert_eq!(read(&mut switch), model.clone());
        }
    }
}

/// The index, for as long as the tests run: strategies have to own what they use.
fn leaked() -> &'static P4InfoIndex {
    static INDEX: std::sync::LazyLock<P4InfoIndex> = std::sync::LazyLock::new(info);
    &INDEX
}

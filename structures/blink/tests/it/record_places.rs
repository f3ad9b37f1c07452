//! The place of a record is used again, by the same client and by others. The version of each record there
//! follows from the one before. So a reader with the pointer to an earlier record does not accept a later
//! one, whose key and length may be the same.
use crate::common;

use common::{Client, Lab, SESSION, configs, value_of};
use fatbtree_blink::record::RecordPointer;
use fatbtree_blink::size_class::RECORDS;
use fatbtree_blink::{Change, Start, ValueLayout};

const KEY: u64 = 5;

fn lab() -> Lab {
    let out_of_line = |config: &&_| fatbtree_blink::TreeConfig::values(config) == ValueLayout::OutOfLine;
    Lab::new(*configs().iter().find(out_of_line).unwrap())
}

/// The record that the key's entry names.
fn record(lab: &Lab) -> RecordPointer {
    let mut found = None;
    lab.each_tree(|_, tree| found = tree.record_of(KEY).unwrap());
    found.unwrap()
}

/// The version that lies in memory.
fn version_at(lab: &Lab, record: &RecordPointer) -> u32 {
    let mut bytes = [0; 8];
    lab.servers[0].memory.read(record.address.offset(), &mut bytes).unwrap();
    u32::from_le_bytes(*bytes[4..].first_chunk().unwrap())
}

fn write(lab: &Lab, client: &Client, number: u64) -> RecordPointer {
    // All of one length: they have places of one size.
    let value = value_of(&lab.config, 50 * number + 20);
    let change = client.mutate(KEY, Change::Upsert(&value), Start::Root);
    lab.run(client, change).result.unwrap();
    let record = record(lab);
    assert_eq!(version_at(lab, &record), record.version, "small versions are told whole");
    record
}

#[test]
fn a_client_that_uses_a_place_again_goes_on_with_its_version() {
    let mut lab = lab();
    let client = lab.client(1, true);
    let mut last = std::collections::BTreeMap::new();
    for number in 0..40 {
        let record = write(&lab, &client, number);
        let before = last.insert(record.address, record.version);
        assert_eq!(record.version, before.map_or(1, |version| version + 1), "at {}", record.address);
    }
    assert!(last.len() <= 3, "places are used again: {last:?}");
}

#[test]
fn a_client_that_gets_anothers_place_goes_on_with_what_is_there() {
    let mut lab = lab();
    let (first, second) = (lab.client(1, true), lab.client(2, true));
    let old = write(&lab, &first, 1);
    lab.run(&first, first.mutate(KEY, Change::Delete, Start::Root)).result.unwrap();
    let returned = first.take_returned();
    let places = returned.iter().find(|places| places.class == RECORDS).unwrap();
    assert_eq!(places.addresses, [old.address]);
    second.grant_blocks(SESSION, 0, places.class, places.bytes, &places.addresses);
    let new = write(&lab, &second, 2);
    assert_eq!((new.address, new.version), (old.address, old.version + 1));
}

//! Words in a table's memory that no client has written: by one with a session that lies, or by a damaged disk. Every operation ends in an answer,
//! and the process goes on.

use std::rc::Rc;

use fatbtree_memserver::{Loaded, Tenant as _};
use fatbtree_race::host::HashTable;
use fatbtree_race::{Answer, BLOCKS, Cursor, PAIRS, Shape, Table, TableError};
use fatbtree_remote_memory::{CommonError, GlobalAddress, RemoteMemory};
use fatbtree_sim::world::SimDevice;
use proptest::prelude::*;

use crate::model::{SMALL, done, value, with_table};

/// Bytes after the directory's begin in which words are forged: directory, first subtable, first chunks.
const WITHIN: u64 = 200 << 10;

const REGION: u64 = 2 << 20;

/// Words that look like what a table has, and some that look like nothing.
pub(crate) fn word() -> impl Strategy<Value = u64> {
    let place = (0..2_u64, prop_oneof![1..64_u64, 64..REGION / 64, any::<u64>()]);
    let place = place.prop_map(|(server, unit)| server << 30 | unit & ((1 << 30) - 1));
    prop_oneof![
        any::<u64>(),
        0..40_u64,
        Just(u64::MAX),
        // Entries of any depth.
        (any::<u8>(), place.clone()).prop_map(|(depth, place)| u64::from(depth) << 48 | place),
        // Slots of any state.
        (any::<u64>(), place.clone()).prop_map(|(bits, place)| bits << 35 | place),
        // Headers of buckets.
        (any::<u32>(), 0..40_u64).prop_map(|(suffix, depth)| u64::from(suffix) << 24 | depth << 16 | 0x5ace),
        place,
    ]
}

/// Where a word is written: in directory and first subtable above all.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![0..320_u64, 0..320_u64, 256..320_u64, 0..WITHIN / 8].prop_map(|word| word * 8)
}

/// Does everything with some keys. Says what each has answered.
async fn do_all(table: &Table<SimDevice>, keys: impl Iterator<Item = u64>) -> Vec<Result<bool, TableError>> {
    let mut answers = Vec::new();
    let found = |answer: Answer<Option<fatbtree_race::Value>>| answer.result.map(|value| value.is_some());
    for key in keys {
        answers.push(found(table.search(key).await));
        answers.push(table.update(key, &value(key, 1, 20)).await.result);
        answers.push(table.delete(key).await.result);
        answers.push(table.insert(key, &value(key, 2, 20)).await.result);
        answers.push(table.upsert(key + 1_000, &value(key, 3, 20)).await.result);
    }
    let mut next = Some(Cursor::default());
    while let Some(cursor) = next {
        let portion = table.export(cursor, 50).await.result;
        answers.push(portion.as_ref().map(|portion| portion.rest.is_none()).map_err(TableError::clone));
        next = portion.ok().and_then(|portion| portion.rest);
    }
    answers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_operation_ends_on_a_forged_table(
        words in prop::collection::vec((offset(), word()), 1..12),
        first_key in 0..100_u64,
    ) {
        let shape = Shape { groups: 1, ..SMALL };
        with_table(shape, REGION, async move |table| {
            for key in 0..60 {
                assert!(done(table.insert(key, &value(key, 0, 20)).await));
            }
            let (home, memory): (_, Rc<RemoteMemory<SimDevice>>) = (table.home(), Rc::clone(table.memory()));
            for (offset, word) in words {
                let at = GlobalAddress::new(home.server(), home.offset() + offset);
                memory.write(&memory.take_lane(), at, &word.to_le_bytes()).await.expect("the server lives");
            }
            // One that knows the directory, and one that reads it now.
            let _answers = do_all(&table, first_key..first_key + 3).await;
            if let Ok(other) = Table::open(memory, home.server()).await {
                let _answers = do_all(&other, first_key + 3..first_key + 6).await;
                let _whole = other.verify().await;
            }
        });
    }

    /// What a server does for a table ends, too, whatever lies in its region.
    #[test]
    fn a_sweep_of_a_forged_region_ends(
        words in prop::collection::vec((offset(), word()), 1..40),
        from in 0..REGION,
        (servers, of) in prop_oneof![Just((1, 0)), Just((0b11, 0)), Just((0b11, 1))],
    ) {
        let shape = Shape { groups: 1, servers, ..SMALL };
        let Loaded { region, spare, mut tenant, .. } = HashTable::make(0, shape, REGION).expect("there is memory");
        let all = spare.start..spare.start + REGION;
        for (offset, word) in words {
            region.write(64 + offset, &word.to_le_bytes()).expect("it lies in the region");
        }
        tenant.begin_marks(of, region.len(), &|_| vec![all.clone()]);
        let mut steps = 0;
        while tenant.mark(64) {
            steps += 1;
            prop_assert!(steps < REGION, "the walk has no end");
        }
        let marks = tenant.take_marks();
        let chunk = spare.start..spare.start + (64 << 10);
        let block = from / 64 * 64..from / 64 * 64 + 128;
        for class in [BLOCKS, PAIRS] {
            let _found = tenant.find(class, block.clone());
            let _free = tenant.is_free(class, block.clone());
            let _marked = tenant.is_marked(&marks, class, block.clone());
        }
        let _empty = tenant.is_empty(&mut std::iter::once(chunk));
    }
}

/// The entry of a directory says a depth beyond the directory's bits: that is damage, and named so.
#[test]
fn an_entry_of_a_depth_that_cannot_be_is_damage() {
    let opened = with_table(SMALL, 4 << 20, async move |table| {
        for key in 0..200 {
            assert!(done(table.insert(key, &value(key, 0, 20)).await));
        }
        let (home, memory, shape) = (table.home(), Rc::clone(table.memory()), *table.shape());
        let entry = (12 << 48) | ((home.offset() + shape.directory_bytes()) / 64);
        let at = GlobalAddress::new(home.server(), home.offset() + 64);
        memory.write(&memory.take_lane(), at, &u64::to_le_bytes(entry)).await.expect("the server lives");
        // One that knows the directory goes on; one that comes by the entry is told.
        assert!(table.upsert(1, &value(1, 1, 20)).await.result.is_ok());
        Table::open(memory, 0).await.map(drop)
    });
    assert!(matches!(opened, Err(TableError::Common(CommonError::Damaged { .. }))), "{opened:?}");
}

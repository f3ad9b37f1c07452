//! Keys of bytes: the table against a map, with keys that share all of their hash, and what is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fatbtree_memserver::grpc::KeysAndValues;
use fatbtree_memserver::{Laying, lay_in_memory};
use fatbtree_race::host::HashTable;
use fatbtree_race::{
    Answer, Check, Cursor, Fault, Hash, Key, Shape, Table, TableError, Value, twin_of, word_of,
};
use fatbtree_remote_memory::byte_keys::{MAX_KEY_BYTES, join, key_room, longest_value};
use fatbtree_remote_memory::record::{MAX_VALUE, UNPUBLISHED, write_record};
use fatbtree_remote_memory::{
    Change, CommonError, GlobalAddress, Keys, Order, Portion, RemoteMemory, Structure,
};
use fatbtree_sim::stage;
use fatbtree_sim::world::SimDevice;
use fatbtree_verbs::Verbs;
use proptest::prelude::*;

use crate::model::{SMALL, done, value, with_table};

const NAMES: Shape = Shape { keys: Keys::Bytes, ..SMALL };

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys of all sorts: empty, zeros, beginnings of each other, of 4 KiB; and for each of these with sixteen bytes or more, five of its word.
fn names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = (0..40).map(|length| vec![0; length]).collect();
    names.extend((0..40).map(|length| b"https://www.example.com/a/long/path/to/what"[..length].to_vec()));
    names.extend([vec![7; MAX_KEY_BYTES], vec![7; MAX_KEY_BYTES - 1], vec![0; MAX_KEY_BYTES]]);
    names.extend((0..100).map(|number| format!("user:{number}").into_bytes()));
    let twins: Vec<_> = names
        .iter()
        .flat_map(|name| (1..=5_u64).filter_map(|twin| twin_of(name, twin.to_be_bytes())))
        .collect();
    names.extend(twins);
    let all: BTreeSet<Vec<u8>> = names.into_iter().collect();
    all.into_iter().collect()
}

async fn get<V: Verbs>(table: &Table<V>, name: &[u8]) -> Option<Vec<u8>> {
    let found: Answer<Option<Value>> = table.search_bytes(name).await;
    found.result.expect("nothing is in the way").map(|value| value.to_vec())
}

async fn put<V: Verbs>(table: &Table<V>, name: &[u8], value: &[u8]) -> bool {
    done(table.change_bytes(name, Change::Upsert(value)).await)
}

/// All pairs; no key comes twice.
async fn export<V: Verbs>(table: &Table<V>, most: usize) -> Map {
    let (mut pairs, mut next) = (Map::new(), Some(Cursor::default()));
    while let Some(cursor) = next {
        let Portion { pairs: some, rest } =
            table.export(cursor, most).await.result.expect("nothing is in the way");
        for (key, value) in some {
            let Key::Bytes(word, name) = &key else { panic!("{key} is a number") };
            assert_eq!(*word, word_of(name));
            assert!(pairs.insert(name.to_vec(), value.to_vec()).is_none(), "{key} comes twice");
        }
        next = rest;
    }
    pairs
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Insert(usize),
    Update(usize),
    Upsert(usize),
    /// Swaps the value that is there, or another one.
    Swap(bool, usize),
    Delete,
}

fn act() -> impl Strategy<Value = Act> {
    let length = || prop_oneof![4 => 0..100_usize, 1 => 100..4_000_usize];
    prop_oneof![
        4 => length().prop_map(Act::Insert),
        1 => length().prop_map(Act::Update),
        2 => length().prop_map(Act::Upsert),
        1 => (any::<bool>(), length()).prop_map(|(is_right, length)| Act::Swap(is_right, length)),
        2 => Just(Act::Delete),
    ]
}

/// A change of the table and of the map.
async fn change(table: &Table<SimDevice>, map: &mut Map, name: &[u8], number: u64, act: Act) {
    let value = |length| value(word_of(name), number, length);
    let there = map.get(name).cloned();
    let apply = async |change| done(table.change_bytes(name, change).await);
    let (applied, expected, new) = match act {
        Act::Insert(length) => {
            (apply(Change::Insert(&value(length))).await, there.is_none(), Some(value(length)))
        }
        Act::Update(length) => {
            (apply(Change::Update(&value(length))).await, there.is_some(), Some(value(length)))
        }
        Act::Upsert(length) => (apply(Change::Upsert(&value(length))).await, true, Some(value(length))),
        Act::Swap(is_right, length) => {
            let mut seen = there.clone().unwrap_or_default();
            if !is_right {
                seen.push(1);
            }
            let swap = Change::CompareAndSwap { expected: &seen, value: &value(length) };
            (apply(swap).await, there.is_some() && is_right, Some(value(length)))
        }
        Act::Delete => (apply(Change::Delete).await, there.is_some(), None),
    };
    assert_eq!(applied, expected, "{act:?} of {:?}", name.escape_ascii().to_string());
    match new {
        Some(new) if applied => drop(map.insert(name.to_vec(), new)),
        None => drop(map.remove(name)),
        Some(_) => {}
    }
    assert_eq!(get(table, name).await.as_ref(), map.get(name));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_table_is_a_map_of_names(
        acts in prop::collection::vec((any::<prop::sample::Index>(), act()), 1..700),
        servers in prop_oneof![Just(0b1_u32), Just(0b1_0101)],
        places in prop_oneof![Just(0_u64), Just(4_096)],
        most in 1..60_usize,
    ) {
        // All keys of a group of buckets, of which many have one fingerprint.
        let shape = Shape { groups: 2, servers, ..NAMES };
        let (found, expected) = with_table(shape, 16 << 20, async move |table| {
            table.remember_places(places);
            let (names, mut map) = (names(), Map::new());
            for (number, (name, act)) in (0..).zip(acts) {
                change(&table, &mut map, &names[name.index(names.len())], number, act).await;
            }
            for name in &names {
                assert_eq!(get(&table, name).await.as_ref(), map.get(name));
            }
            assert!(export(&table, most).await == map);
            (table.verify().await.expect("the structure is right"), map.len() as u64)
        });
        prop_assert_eq!((found.keys, found.unfinished, found.tentative, found.stale_entries), (expected, 0, 0, 0));
    }

    #[test]
    fn a_table_of_names_that_was_laid_out_is_a_map(
        chosen in prop::collection::btree_map(0..400_usize, 0..3_000_usize, 0..400),
        servers in prop_oneof![Just(0b1), Just(0b1_0110)],
    ) {
        // The plain device has buffers of 4 KiB.
        let names: Vec<_> = names().into_iter().filter(|name| name.len() < 1_000).collect();
        let shape = Shape { servers, ..NAMES };
        let content: Map = chosen
            .into_iter()
            .filter_map(|(at, length)| Some((names.get(at)?.clone(), value(at as u64, 0, length))))
            .collect();
        let parts = lay_in_memory::<HashTable>(&laying(shape), 8 << 20, &data(&content)).expect("it can be laid out");
        stage::with_parts(parts, CHUNK, |table| async move {
            let table: Table<_> = table.expect("its parts fit together");
            assert_eq!(table.verify().await.expect("the structure is right").keys, content.len() as u64);
            for name in &names {
                assert_eq!(get(&table, name).await.as_ref(), content.get(name));
            }
            assert!(export(&table, 50).await == content);
        });
    }
}

const CHUNK: u64 = 32 << 10;

fn laying(shape: Shape) -> Laying<Shape> {
    let generations = (0..32).filter(|server| shape.servers >> server & 1 == 1).map(|server| (server, 7));
    Laying { shape, chunk_bytes: CHUNK, generations: generations.collect() }
}

/// Pairs as a load has them: by words, each with key and value.
fn data(content: &Map) -> KeysAndValues {
    let pair = |(name, value): (&Vec<u8>, &Vec<u8>)| {
        let mut record = vec![0; key_room(name) + value.len()];
        join(&mut record, name, value);
        (word_of(name), record)
    };
    let mut pairs: Vec<_> = content.iter().map(pair).collect();
    pairs.sort();
    pairs.into_iter().collect()
}

/// A load is checked by the server that takes it: keys by their words, and each once.
#[test]
fn a_load_with_another_word_or_a_key_twice_is_refused() {
    let refused = |pairs: Vec<(u64, Vec<u8>)>, shape| {
        let data: KeysAndValues = pairs.into_iter().collect();
        lay_in_memory::<HashTable>(&laying(shape), 8 << 20, &data).expect_err("it is refused").to_string()
    };
    let record = |name: &[u8]| {
        let mut record = vec![0; key_room(name)];
        join(&mut record, name, b"");
        record
    };
    let (word, right) = (word_of(b"a"), record(b"a"));
    let twice = refused(vec![(word, right.clone()), (word, right.clone())], NAMES);
    assert!(twice.contains("a key that is there twice"), "{twice}");
    let other = refused(vec![(word ^ 1, right.clone())], NAMES);
    assert!(other.contains("a key that belongs elsewhere"), "{other}");
    let short = refused(vec![(word, vec![9, 0, 1])], NAMES);
    assert!(short.contains("no whole block"), "{short}");
    let unsorted = refused(vec![(2, right.clone()), (1, right.clone())], NAMES);
    assert!(unsorted.contains("is not larger"), "{unsorted}");
    let of_numbers = refused(vec![(1, vec![]), (1, vec![])], SMALL);
    assert!(of_numbers.contains("is not larger"), "{of_numbers}");
}

/// Round trips are those of numbers; one more for each other key of the same word.
#[test]
fn round_trips() {
    with_table(Shape { groups: 64, ..NAMES }, 16 << 20, async move |table| {
        let name = b"a name of more than sixteen bytes".to_vec();
        let put = table.change_bytes(&name, Change::Insert(b"one")).await;
        assert_eq!((put.round_trips, done(put)), (3, true));
        let found = table.search_bytes(&name).await;
        assert_eq!(
            (found.round_trips, found.result.expect("it is there").as_deref()),
            (2, Some(&b"one"[..]))
        );
        let twin = twin_of(&name, *b"another ").expect("it is long enough");
        let found = table.search_bytes(&twin).await;
        assert_eq!((found.round_trips, found.result.expect("it is not there").is_none()), (2, true));
        let put = table.change_bytes(&twin, Change::Insert(b"two")).await;
        assert_eq!((put.round_trips, done(put)), (4, true));
        for (name, expected) in [(&name, b"one"), (&twin, b"two")] {
            assert_eq!(get(&table, name).await.as_deref(), Some(&expected[..]));
        }
        // The place of one of them is remembered.
        table.remember_places(4_096);
        for (name, trips) in [(&name, 2), (&name, 1), (&twin, 4), (&twin, 1), (&name, 3)] {
            let found = table.search_bytes(name).await;
            assert!(found.result.expect("it is there").is_some());
            assert_eq!(found.round_trips, trips, "{}", name.escape_ascii());
        }
    });
}

/// As many keys of one word as their two buckets have slots; the next one is told that the table is full, and all others stay.
#[test]
fn keys_of_one_word_fill_their_buckets() {
    let shape = Shape { directory_bits: 3, groups: 64, ..NAMES };
    with_table(shape, 16 << 20, async move |table| {
        let name = |number: u64| twin_of(&[b'x'; 20], number.to_le_bytes()).expect("it is long enough");
        for number in 0..28 {
            assert!(put(&table, &name(number), &number.to_le_bytes()).await);
        }
        let full = table.change_bytes(&name(28), Change::Insert(b"")).await.result;
        assert_eq!(full, Err(TableError::Full { bits: 3 }));
        for number in 0..28 {
            assert_eq!(get(&table, &name(number)).await.as_deref(), Some(&number.to_le_bytes()[..]));
        }
        assert!(done(table.change_bytes(&name(3), Change::Delete).await));
        assert!(put(&table, &name(28), b"").await);
        assert!(put(&table, b"another", b"").await);
    });
}

#[test]
fn the_longest_keys_and_values() {
    let shape = Shape { max_value: MAX_VALUE, ..NAMES };
    with_table(shape, 64 << 20, async move |table| {
        let names = [vec![], vec![7; MAX_KEY_BYTES]];
        for name in &names {
            let most = longest_value(name);
            assert_eq!(most, (1 << 20) - 2 - name.len());
            for length in [0, 12_200, 12_300, 16_300, 40_000] {
                let value = value(1, length as u64, length);
                assert!(put(&table, name, &value).await);
                assert_eq!(get(&table, name).await, Some(value));
            }
            let long = table.change_bytes(name, Change::Upsert(&vec![0; most + 1])).await.result;
            let expected = CommonError::TooLong { found: most + 1, most: most as u32 };
            assert_eq!(long, Err(expected.into()));
        }
        let long = vec![7; MAX_KEY_BYTES + 1];
        let expected = TableError::KeyBytes { found: MAX_KEY_BYTES + 1 };
        assert_eq!(table.search_bytes(&long).await.result.map(drop), Err(expected.clone()));
        assert_eq!(table.change_bytes(&long, Change::Delete).await.result, Err(expected.clone()));
        assert!(expected.to_string().contains("4097 bytes was given, the longest has 4096"), "{expected}");
    });
    // A shorter bound of the table counts whatever the key.
    with_table(NAMES, 16 << 20, async move |table| {
        assert!(put(&table, &[7; MAX_KEY_BYTES], &[1; 4_000]).await);
        let long = table.change_bytes(b"", Change::Upsert(&[0; 4_001])).await.result;
        assert_eq!(long, Err(CommonError::TooLong { found: 4_001, most: 4_000 }.into()));
    });
}

/// A table of one kind refuses each operation on keys of the other one, and scans in order.
#[test]
fn keys_of_the_other_kind_are_refused() {
    with_table(NAMES, 4 << 20, async move |table| {
        assert!(put(&table, b"a", b"").await);
        let other = || TableError::Keys { table: Keys::Bytes };
        assert_eq!(table.search(1).await.result.map(drop), Err(other()));
        assert_eq!(table.insert(1, b"").await.result, Err(other()));
        let all = Structure::export(&table, Cursor::default(), 10).await.result;
        assert_eq!(all.map(drop), Err(other()));
        let text = other().to_string();
        assert!(text.contains("keys of this hash table are bytes") && text.contains("--key-type"), "{text}");
        let scanned =
            table.scan_bytes(Default::default(), Order::Forward, 1).await.expect("it has such keys");
        let lacks = CommonError::Lacks { structure: "hash table", operation: "scan" };
        assert_eq!(scanned.result.map(drop), Err(lacks.into()));
    });
    with_table(SMALL, 4 << 20, async move |table| {
        assert!(done(table.insert(1, b"").await));
        let other = || TableError::Keys { table: Keys::Numbers };
        assert_eq!(table.search_bytes(b"a").await.result.map(drop), Err(other()));
        assert_eq!(table.change_bytes(b"a", Change::Upsert(b"")).await.result, Err(other()));
        let all = table.export_bytes(Cursor::default(), 10).await.expect("it has such keys").result;
        assert_eq!(all.map(drop), Err(other()));
    });
}

/// Without the check a number would find what is another key's.
#[test]
fn the_check_of_the_kind_is_needed() {
    let found = || {
        with_table(NAMES, 4 << 20, async move |table| {
            assert!(put(&table, b"a", b"Ada").await);
            table.search(word_of(b"a")).await.result.map(|value| value.is_some())
        })
    };
    assert_eq!(found(), Err(TableError::Keys { table: Keys::Bytes }));
    assert_eq!(Check::Kind.without(found), Ok(true));
}

/// Blocks that a client forged: the word of another key, and a key that goes on beyond its block.
#[test]
fn a_block_that_is_not_its_key_s_is_a_fault() {
    with_table(Shape { groups: 1, ..NAMES }, 4 << 20, async move |table| {
        let (name, memory): (_, Rc<RemoteMemory<SimDevice>>) = (b"user:1", Rc::clone(table.memory()));
        assert!(put(&table, name, b"Ada").await);
        assert_eq!(table.verify().await.expect("it is whole").keys, 1);
        // The only block lies in the first chunk, and has version 1.
        let home = table.home();
        let at = GlobalAddress::new(
            home.server(),
            home.offset() + NAMES.directory_bytes() + Shape { groups: 1, ..NAMES }.subtable_bytes(),
        );
        let forge = async |word: u64, whole: &[u8]| {
            let mut record = vec![0; 24 + whole.len()];
            write_record(&mut record, word, 1, UNPUBLISHED, |room| room.copy_from_slice(whole));
            memory.write(&memory.take_lane(), at, &record).await.expect("the server lives");
        };
        // Of the same word, and so of the same hash.
        let twin = twin_of(&[b'x'; 16], [1; 8]).expect("it is long enough");
        assert_eq!(Hash::of(word_of(&twin)).fingerprint(), Hash::of(word_of(&[b'x'; 16])).fingerprint());
        forge(word_of(name), b"\x06\0user:2Ada").await;
        assert!(matches!(table.verify().await, Err(Fault::Misplaced { key: Key::Bytes(..), .. })));
        assert_eq!(get(&table, name).await, None, "the block is another key's");
        forge(word_of(name), b"\xff\0user:1Ada").await;
        assert!(matches!(table.verify().await, Err(Fault::Block { .. })));
        let damaged = table.search_bytes(name).await.result.map(drop);
        assert!(matches!(damaged, Err(TableError::Common(CommonError::Damaged { .. }))), "{damaged:?}");
    });
}

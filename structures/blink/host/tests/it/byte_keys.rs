//! Loads of keys of bytes: what was loaded is found by clients, in order, and no node is out of its place.
use crate::common;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use common::{memory, roots};
use fatbtree_blink::layers::KeyCode;
use fatbtree_blink::plain::PlainClient;
use fatbtree_blink::{BytesRange, KeyRange, Keys, Order, ScanOptions, Start, TreeConfig, verify_at_hand};
use fatbtree_blink_host::{
    BytePairs, Load, LoadError, LoadOptions, LoadedTree, TreeFolder, TreeStorage, build_in, bulk_load,
    bulk_load_bytes, divide_pairs, divide_words, fixed, load_cluster_bytes, seeded, tree_in,
};
use fatbtree_memserver::FolderOwner;
use proptest::prelude::*;

#[path = "../../../tests/it/common/byte_keys.rs"]
mod keys;

use keys::{codes, configs, key};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn pairs_of(model: &Model) -> BytePairs {
    let mut pairs = BytePairs::default();
    model.iter().for_each(|(key, value)| pairs.push(key, value).unwrap());
    pairs
}

fn load(config: TreeConfig, pairs: &BytePairs) -> LoadedTree {
    bulk_load_bytes(&LoadOptions { spare_bytes: 4096, ..LoadOptions::new(config, 3) }, pairs).unwrap()
}

fn get(client: &PlainClient, key: &[u8]) -> Option<Vec<u8>> {
    let pool = client.pool();
    let lookup = pool.reactor().block_on(pool.lookup_bytes(key, Start::Root));
    lookup.result.unwrap().map(|value| value.to_vec())
}

fn scan(client: &PlainClient, order: Order) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (pool, options) =
        (client.pool(), ScanOptions { order, start: Start::Root, ..ScanOptions::default() });
    let mut scan = pool.scan_bytes(BytesRange::all(), options);
    let mut found = vec![];
    pool.reactor().block_on(async {
        while let Some(pair) = scan.next().await {
            let (key, value) = pair.unwrap();
            found.push((key.to_vec(), value.to_vec()));
        }
    });
    found
}

/// All that clients read of it, and all that a server reads when it is started anew, is what was loaded.
fn agrees_with_map(tree: &LoadedTree, model: &Model) {
    let regions = memory(tree);
    let client = PlainClient::new(&regions, &tree.config, &roots(tree));
    for (key, value) in model {
        let found = get(&client, key);
        assert_eq!(found.as_deref(), Some(&value[..]), "key {}", key.escape_ascii());
        for other in [
            [&key[..], b"\0"].concat(),
            [&key[..], b"a"].concat(),
            key[..key.len().saturating_sub(1)].to_vec(),
        ] {
            let found = get(&client, &other);
            assert_eq!(found.as_deref(), model.get(&other).map(|value| &value[..]));
        }
    }
    let all: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert_eq!(scan(&client, Order::Forward), all);
    assert_eq!(scan(&client, Order::Backward), all.into_iter().rev().collect::<Vec<_>>());
    // In memory of its own class, which a server keeps apart.
    let classes = fatbtree_memserver::Loaded::from(tree.clone()).shape.classes;
    let may_lie = |class: fatbtree_blink::SizeClass, at: u64, bytes: u64| {
        let loaded = &classes[usize::from(class.0)].loaded;
        loaded.contains(&at) && at + bytes <= loaded.end
    };
    let found = verify_at_hand(&regions, &tree.config, tree.partition, may_lie).unwrap();
    assert_eq!(found.keys, model.len() as u64);
    assert_eq!(tree.counts.keys, model.len() as u64);
    let mut area = [0; KeyCode::AREA];
    tree.region.read(64, &mut area).unwrap();
    assert_eq!(KeyCode::parse_area(&area), Some(tree.config.code()));
}

fn model() -> impl Strategy<Value = Model> {
    let value = prop::collection::vec(any::<u8>(), 0..40);
    prop::collection::btree_map(key(), value, 0..120)
}

proptest! {
    #[test]
    fn what_was_loaded_is_read(model in model(), config in prop::sample::select(configs()), code in 0..4_usize) {
        let pairs = pairs_of(&model);
        let config = config.with_code(codes().get(code).copied().unwrap_or_else(|| pairs.code()));
        agrees_with_map(&load(config, &pairs), &model);
    }
}

/// `count` keys with values of eight bytes.
fn numbered(count: u32, key: impl Fn(u32) -> Vec<u8>) -> Model {
    (0..count).map(|number| (key(number), u64::from(number).to_le_bytes().to_vec())).collect()
}

#[test]
fn layers_have_many_nodes_and_long_prefixes() {
    let config = configs()[0];
    let last_byte = numbered(256, |number| [&[b'k'; 300][..], &[number as u8]].concat());
    let deep = numbered(9, |number| vec![0; 4095 - number as usize]);
    for model in [
        numbered(5_000, |number| format!("user:{number}").into_bytes()),
        numbered(5_000, |number| [&[b'p'; 100][..], &number.to_be_bytes()].concat()),
        last_byte,
        deep,
    ] {
        let pairs = pairs_of(&model);
        for code in [KeyCode::NONE, pairs.code()] {
            agrees_with_map(&load(config.with_code(code), &pairs), &model);
        }
    }
}

/// What many keys have in common takes no layer.
#[test]
fn urls_do_not_take_layers_to_say_what_many_have_in_common() {
    let page = |number: u32| {
        format!("https://www.{}.example/pages/{number:07}", ["apple", "boat"][number as usize % 2])
    };
    let model = numbered(5000, |number| page(number * 7919).into_bytes());
    let pairs = pairs_of(&model);
    let (without, with) = (load(configs()[0], &pairs), load(configs()[0].with_code(pairs.code()), &pairs));
    assert_eq!((without.counts.below.layers > 0, with.counts.below.layers), (true, 0));
}

#[test]
fn servers_have_all_words_between_them() {
    let model = numbered(100, |number| format!("https://www.{number}").into_bytes());
    let pairs = pairs_of(&model);
    let cluster = load_cluster_bytes(&LoadOptions::new(configs()[0], 0), 2, &pairs).unwrap();
    let (first, last) = (&cluster.trees[0], &cluster.trees[1]);
    assert_eq!(first.config.code(), pairs.code());
    assert!(first.partition.range.contains(0) && last.partition.range.contains(u64::MAX));
    let counts: Vec<u64> = cluster.trees.iter().map(|tree| tree.counts.keys).collect();
    assert_eq!(counts.iter().sum::<u64>(), 100);
    assert!(counts.iter().all(|count| (30..70).contains(count)), "{counts:?}");
}

#[test]
fn a_tree_of_bytes_is_found_in_its_folder_with_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let model = numbered(500, |number| {
        format!("https://www.{}/{}", number % 7, "x".repeat(number as usize % 40)).into_bytes()
    });
    let pairs = pairs_of(&model);
    let config = configs()[4].with_code(pairs.code());
    let owner = || FolderOwner { server: "left".to_owned(), partition: 3, address: Ipv4Addr::LOCALHOST };
    let open = || TreeFolder::open(folder.path(), owner(), 4096).unwrap();
    {
        let mut storage = TreeStorage::Folder(Box::new(open()));
        let options = LoadOptions { spare_bytes: 1 << 20, ..LoadOptions::new(config, 3) };
        let load = if model.is_empty() { Load::Numbers(&[], &mut seeded(1, 8)) } else { Load::Bytes(&pairs) };
        let tree = build_in(&mut storage, &options, u64::MAX, load).unwrap();
        storage.keep(tree.kept()).unwrap();
    }
    let found = tree_in(&open()).unwrap().unwrap();
    assert_eq!((found.config, found.counts.keys), (config, model.len() as u64));
    agrees_with_map(&found, &model);
    let file = folder.path().join("tree-1");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[64 + 6] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let error = tree_in(&open()).unwrap_err().to_string();
    assert!(error.contains("is not the code of its keys"), "{error}");
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    let config = configs()[0];
    let refused = |keys: &[&[u8]], range: KeyRange| {
        let mut pairs = BytePairs::default();
        keys.iter().for_each(|key| pairs.push(key, b"").unwrap());
        bulk_load_bytes(&LoadOptions { range, ..LoadOptions::new(config, 0) }, &pairs).unwrap_err()
    };
    assert_eq!(refused(&[b"b", b"a"], KeyRange::ALL), LoadError::BytesOrder { position: 1 });
    assert_eq!(refused(&[b"a", b"b", b"b"], KeyRange::ALL), LoadError::BytesOrder { position: 2 });
    let key = u64::from_be_bytes(*b"b\0\0\0\0\0\0\0");
    for range in [KeyRange::of(key + 1..), KeyRange::of(..key)] {
        assert_eq!(refused(&[b"b"], range), LoadError::OutOfRange { key, range });
    }
    let mut pairs = BytePairs::default();
    assert_eq!(pairs.push(&[0; 4097], b""), Err(LoadError::KeyBytes { position: 0, found: 4097 }));
    let long = vec![0; (1 << 20) - 2];
    assert_eq!(pairs.push(b"k", &long), Err(LoadError::PairBytes { position: 0, found: (1 << 20) + 1 }));
    assert_eq!(pairs.push_record(&[2, 0, b'a']), Err(LoadError::NoPair { position: 0 }));
    assert_eq!(
        pairs.push_record(&[&[0x01, 0x10][..], &[0; 4097]].concat()),
        Err(LoadError::KeyBytes { position: 0, found: 4097 })
    );
    assert!(pairs.is_empty() && pairs.content_bytes() == 0);
    pairs.push(b"a", b"1").unwrap();
    let numbers = LoadOptions::new(TreeConfig::default(), 0);
    let expected = LoadError::OtherKeys { expected: Keys::Numbers };
    assert_eq!(bulk_load_bytes(&numbers, &pairs).unwrap_err(), expected);
    let other =
        bulk_load(&LoadOptions::new(config, 0), &[1], &mut fixed(8, |_, _: &mut [u8]| {})).unwrap_err();
    assert_eq!(other, LoadError::OtherKeys { expected: Keys::Bytes });
}

#[test]
fn words_are_divided_where_they_differ() {
    let places = |words: &[u64], servers| divide_words(words, servers);
    assert_eq!(places(&[1, 2, 3, 4], 2), Ok(vec![0..2, 2..4]));
    assert_eq!(places(&[1, 2, 2, 2, 2, 3], 2), Ok(vec![0..1, 1..6]));
    assert_eq!(places(&[2, 2, 2, 2, 3], 2), Ok(vec![0..4, 4..5]));
    assert_eq!(places(&[2, 2, 2, 2], 2), Err(LoadError::TooAlike { servers: 2 }));
    assert_eq!(places(&[2], 2), Err(LoadError::TooFewKeys { keys: 1, servers: 2 }));
    let keys = ["appear", "apple", "boat", "bold", "größer", "grüner"];
    let mut pairs = BytePairs::default();
    keys.iter().for_each(|key| pairs.push(key.as_bytes(), b"").unwrap());
    for code in [KeyCode::NONE, pairs.code()] {
        let parts = divide_pairs(&pairs, code, 6).unwrap();
        let borders: Vec<_> = parts.iter().map(|(low, _)| code.shortest_key(*low)).collect();
        assert_eq!(borders, ["", "appl", "b", "bol", "g", "grü"].map(str::as_bytes), "{code:?}");
    }
}

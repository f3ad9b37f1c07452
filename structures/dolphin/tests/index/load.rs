//! Bulk-loaded indexes: the structure, every answer, and changes on top, against a sorted map.

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use fatbtree_dolphin::host::{HybridIndex, LoadOptions, load};
use fatbtree_dolphin::{Index, IndexError, Shape, Verified};
use fatbtree_memserver::grpc::KeysAndValues;
use fatbtree_memserver::{Laying, Loaded, lay_in_memory};
use fatbtree_remote_memory::{CommonError, KeyRange};
use fatbtree_sim::stage::with_parts;
use fatbtree_verbs::plain::PlainDevice;
use proptest::prelude::*;

/// Small, so that an index takes several.
const CHUNK: u64 = 16 << 10;

/// Loads keys, serves the parts, and runs something with the opened index.
pub(crate) fn with_loaded<F: Future>(
    options: &LoadOptions,
    content: &BTreeMap<u64, Vec<u8>>,
    work: impl FnOnce(Rc<Index<PlainDevice>>) -> F,
) -> F::Output {
    let keys: Vec<u64> = content.keys().copied().collect();
    let loaded = load(options, &keys, |key, value| value.extend(&content[&key])).expect("it can be loaded");
    assert_eq!(loaded.counts.keys, keys.len() as u64);
    let work = |index: Result<_, IndexError>| work(Rc::new(index.expect("it is there")));
    with_parts(loaded.parts, options.chunk_bytes, work)
}

/// The same content as a loader lays it out for servers of this generation.
fn laid(shape: Shape, generation: u64, content: &BTreeMap<u64, Vec<u8>>) -> Vec<Loaded<HybridIndex>> {
    let servers = (0..32).filter(|server| shape.servers >> server & 1 == 1);
    let generations = servers.map(|server| (server, generation)).collect();
    let data: KeysAndValues = content.clone().into_iter().collect();
    lay_in_memory(&Laying { shape, chunk_bytes: CHUNK, generations }, 8 << 20, &data)
        .expect("it can be laid out")
}

/// A load of which not all servers have their part, because the loader has died: no client takes the rest for an index.
#[test]
fn parts_of_two_loads_are_no_index() {
    let shape = Shape { servers: 0b11, max_value: 300 };
    let content: BTreeMap<_, _> = (0..2_000).map(|key| (key, value(key, 0, 300))).collect();
    let [former, later] = [3, 4].map(|generation| laid(shape, generation, &content));
    let empty = |server| HybridIndex::make(server, shape, 8 << 20).expect("it can be made");
    for halves in [
        [former[0].clone(), later[1].clone()],
        [later[0].clone(), former[1].clone()],
        [later[0].clone(), empty(1)],
        [empty(0), later[1].clone()],
    ] {
        with_parts(halves.into(), CHUNK, |index: Result<Index<PlainDevice>, _>| async move {
            let parted = index.map(|_| ()).expect_err("the parts are of two loads");
            assert_eq!(parted, IndexError::Common(CommonError::Parted));
        });
    }
    with_parts(later, CHUNK, |index: Result<_, IndexError>| async move {
        compare(&index.expect("one load"), &content).await
    });
}

/// Compares the whole index with a map.
async fn compare(index: &Index<PlainDevice>, content: &BTreeMap<u64, Vec<u8>>) -> Verified {
    let verified = index.verify().await.expect("the structure is right");
    let scanned = index.scan(KeyRange::ALL, usize::MAX).await.result.expect("nothing is in the way");
    let scanned: Vec<_> = scanned.into_iter().map(|(key, value)| (key, value.to_vec())).collect();
    let expected: Vec<_> = content.iter().map(|(key, value)| (*key, value.clone())).collect();
    assert_eq!(scanned, expected);
    for (key, value) in content {
        let found = index.get(*key).await.result.expect("nothing is in the way");
        assert_eq!(found.as_deref(), Some(&value[..]), "get {key:#x}");
    }
    verified
}

fn value(key: u64, number: u64, longest: u32) -> Vec<u8> {
    let word = (key ^ number << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let length = if longest == 8 { 8 } else { (word >> 40) as usize % (longest as usize + 1) };
    word.to_le_bytes().iter().copied().cycle().take(length).collect()
}

/// Keys side by side, sparse ones, several behind one prefix, and both ends and the middle of the key space.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..2_000_u64,
        2 => any::<u64>(),
        2 => (0..3_u64, 0..400_u64).prop_map(|(prefix, at)| prefix << 61 | at << 24),
        1 => (0..200_u64).prop_map(|at| u64::MAX - at),
        1 => (0..200_u64).prop_map(|at| (1 << 63) - 100 + at),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_loaded_index_is_a_sorted_map(
        keys in prop::collection::btree_set(key(), 0..2_000),
        fill in prop_oneof![Just(1.0), Just(0.75), Just(0.01)],
        servers in prop_oneof![Just(0b1), Just(0b1_0110)],
        longest in prop_oneof![Just(8), Just(300)],
        is_laid: bool,
        changes in prop::collection::vec((key(), any::<bool>()), 0..1_000),
    ) {
        let shape = Shape { servers, max_value: longest };
        let options =
            LoadOptions { fill, spare_bytes: 8 << 20, chunk_bytes: CHUNK, ..LoadOptions::new(shape) };
        let mut content: BTreeMap<_, _> = keys.iter().map(|&key| (key, value(key, 0, longest))).collect();
        let loaded = content.clone();
        let work = |index: Rc<Index<PlainDevice>>| async move {
            let verified = compare(&index, &content).await;
            assert_eq!((verified.keys, verified.unfinished), (content.len() as u64, 0));
            // Structure changes of what was loaded: memory of the loaded chunks is not given out again.
            for (number, (key, inserts)) in (1..).zip(changes) {
                if inserts {
                    let value = value(key, number, longest);
                    assert!(index.upsert(key, &value).await.result.expect("nothing is in the way"));
                    content.insert(key, value);
                } else {
                    let deleted = index.delete(key).await.result.expect("nothing is in the way");
                    assert_eq!(deleted, content.remove(&key).is_some(), "delete {key:#x}");
                }
            }
            let verified = compare(&index, &content).await;
            assert_eq!((verified.keys, verified.unfinished), (content.len() as u64, 0));
        };
        match is_laid {
            true => with_parts(laid(shape, 7, &loaded), CHUNK, |index| work(Rc::new(index.expect("it is there")))),
            false => with_loaded(&options, &loaded, work),
        }
    }
}

/// Sizes of a load are what a walk finds, for dense keys and for random ones.
#[test]
fn leaves_are_as_full_as_asked_for() {
    for (step, fewest) in [(1, 32.0), (0x9e37_79b9_7f4a_7c15, 25.0)] {
        let content: BTreeMap<u64, Vec<u8>> =
            (0..20_000_u64).map(|at| (at.wrapping_mul(step), vec![at as u8; 8])).collect();
        let shape = Shape { servers: 0b1111, max_value: 8 };
        let options = LoadOptions { chunk_bytes: CHUNK, ..LoadOptions::new(shape) };
        let keys: Vec<u64> = content.keys().copied().collect();
        let counts = load(&options, &keys, |key, value| value.extend(&content[&key])).unwrap().counts;
        let verified = with_loaded(&options, &content, |index| async move { index.verify().await.unwrap() });
        assert_eq!(
            (counts.keys, counts.leaves, counts.nodes, counts.entries, counts.bytes),
            (verified.keys, verified.leaves, verified.nodes, verified.entries, verified.bytes)
        );
        let each = counts.keys as f64 / counts.leaves as f64;
        assert!((fewest..=36.75).contains(&each), "{each:.1} keys a leaf with steps of {step}");
        assert_eq!(verified.servers, 0b1111);
    }
}

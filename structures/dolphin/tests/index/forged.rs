//! Words in an index's memory that no client has written: by one with a session that lies, or by a damaged disk. Every operation ends in an
//! answer, and the process goes on.

use std::rc::Rc;

use fatbtree_dolphin::{Index, NodeCache, Shape};
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, KeyRange, RemoteConfig, RemoteMemory};
use fatbtree_sim::dolphin::{begin, serve};
use fatbtree_sim::world::{MachineOptions, Options, SimDevice, World, random};
use fatbtree_verbs::time::Duration;
use proptest::prelude::*;

/// Bytes from the root on in which words are forged: the root, and what the first chunk has.
const WITHIN: u64 = 24 << 10;

/// Words that look like what an index has, and some that look like nothing.
fn word() -> impl Strategy<Value = u64> {
    let place = (0..2_u64, prop_oneof![1..80_u64, any::<u64>()]);
    let place = place.prop_map(|(server, unit)| (server << 36) | (unit & ((1 << 36) - 1)));
    prop_oneof![
        any::<u64>(),
        0..300_u64,
        Just(u64::MAX),
        // Entries of all sizes.
        (any::<u8>(), 0..16_u64, place)
            .prop_map(|(byte, size, place)| (u64::from(byte) << 56) | (size << 52) | place),
        // Pointers to records of all lengths.
        (0..64_u64, 0..2048_u64, 1..1_u64 << 30)
            .prop_map(|(class, version, unit)| (0xda1 << 52) | (class << 46) | (version << 35) | unit),
        // Identities of nodes.
        (any::<u64>(), any::<u8>()).prop_map(|(prefix, low)| (prefix & !0xffff_ffff) | u64::from(low)),
    ]
}

/// Does everything with some keys. What it answers is of no interest.
async fn do_all(index: &Index<SimDevice>, keys: impl Iterator<Item = u64>) {
    for key in keys {
        let _found = index.get(key).await.result;
        let _updated = index.update(key, &[1; 30]).await.result;
        let _deleted = index.delete(key).await.result;
        let _inserted = index.insert(key, &[2; 30]).await.result;
        let _scanned = index.scan(KeyRange { low: key, high: None }, 20).await.result;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_operation_ends_on_a_forged_index(
        words in prop::collection::vec((prop_oneof![0..300_u64, 0..WITHIN / 8], word()), 1..12),
        first_key in 0..300_u64,
    ) {
        let shape = Shape { servers: 1, max_value: 4_000 };
        let world = World::new(1, Options::default());
        let servers = serve(&world, shape, 4 << 20, Duration::from_secs(10));
        let machine = world.machine(MachineOptions::named("client"));
        let config = RemoteConfig { patience: Duration::from_millis(4), ..RemoteConfig::default() };
        let memory: Rc<RemoteMemory<SimDevice>> = begin(&machine, &servers, config, &mut random(1, 1));
        let task = machine.spawn(async move {
            let cache = || Rc::new(NodeCache::new(1 << 20));
            let index = Index::open(Rc::clone(&memory), 0, cache()).await.expect("the server lives");
            for key in 0..200_u64 {
                let value = vec![7; 8 + key as usize % 3 * 20];
                assert_eq!(index.insert(key * 11, &value).await.result, Ok(true));
            }
            let header = memory.read(&memory.take_lane(), GlobalAddress::new(0, 0), HEADER_BYTES as u32).await.expect("the server lives");
            let root = GlobalAddress(fatbtree_remote_memory::word_at(&header, 8));
            for (offset, word) in words {
                memory.write(&memory.take_lane(), root.behind(offset * 8), &word.to_le_bytes()).await.expect("the server lives");
            }
            do_all(&index, [first_key, first_key * 11].into_iter()).await;
            if let Ok(other) = Index::open(memory, 0, cache()).await {
                do_all(&other, [first_key + 1, first_key * 11 % 2_200].into_iter()).await;
                let _whole = other.verify().await;
            }
        });
        world.run_until(|| task.has_ended(), Duration::from_secs(30)).expect("every operation ends");
        task.take().expect("the machine lives");
    }
}

//! Words in the tables' memory that no client has written: by one with a session that lies, or by a damaged disk. Every transaction ends in an
//! answer, and the process goes on.

use std::rc::Rc;

use fatbtree_dtx::Tables;
use fatbtree_remote_memory::{GlobalAddress, RemoteMemory};
use fatbtree_sim::transactions::lab::{begin, serve};
use fatbtree_sim::world::{MachineOptions, Options, SimDevice, World, random};
use fatbtree_verbs::time::Duration;
use proptest::prelude::*;

use crate::model::small;

/// One transaction on two keys. What it answers is of no interest.
async fn transact(tables: &Rc<Tables<SimDevice>>, key: u64) {
    let Ok(mut tx) = tables.begin().await else { return };
    let _read = tx.read(0, key).await.map(|found| found.map(<[u8]>::to_vec));
    let _written = tx.write(1, key, &[7; 40]).await;
    let _inserted = tx.insert(0, key + 1, &[8; 8]).await;
    let _deleted = tx.delete(1, key + 2).await;
    let _outcome = tx.commit().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_transaction_ends_on_forged_tables(
        words in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![any::<u64>(), 0..1_u64 << 20, Just(u64::MAX), any::<u64>().prop_map(|word| 1 << 63 | word)]), 1..40),
    ) {
        let shape = small(0b111, 1);
        let world = World::new(1, Options::default());
        let servers = serve(&world, shape, Duration::from_secs(1));
        let machine = world.machine(MachineOptions::named("client"));
        let memory: Rc<RemoteMemory<SimDevice>> =
            begin(&machine, &servers, fatbtree_remote_memory::Contention::SMART, &mut random(1, 1));
        let task = machine.spawn(async move {
            let tables = Rc::new(Tables::open(Rc::clone(&memory), shape.server(0)).await.expect("the servers live"));
            for key in 0..12 {
                transact(&tables, key).await;
            }
            // Behind the first lines: seats, logs and items.
            let words_of_one = shape.region_bytes() / 8 - 16;
            for (index, word) in words {
                let number = index.index(words_of_one as usize * 3) as u64;
                let server = shape.server((number % 3) as usize);
                let at = GlobalAddress::new(server, 128 + number / 3 * 8);
                memory.write(&memory.take_lane(), at, &word.to_le_bytes()).await.expect("the servers live");
            }
            for key in 0..12 {
                transact(&tables, key).await;
            }
            let _whole = tables.verify(|_, _, _| {}).await;
        });
        world.run_until(|| task.has_ended(), Duration::from_secs(60)).expect("every transaction ends");
        task.take().expect("the machine lives");
    }
}

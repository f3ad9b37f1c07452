//! What an operation that is dropped in its middle leaves, and what takes it back.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use fatbtree_dolphin::{Check, Index, IndexError, NodeCache};
use fatbtree_remote_memory::{CommonError, Contention, RemoteConfig};
use fatbtree_sim::dolphin::{begin, serve};
use fatbtree_sim::world::{MachineOptions, Options, SimDevice, World, random};
use fatbtree_verbs::time::Duration;

use crate::model::FIXED;

/// An update that has announced itself and is dropped holds splits of its leaf up, as long as its client lives and does nothing. The client
/// takes it back when it is told.
#[test]
fn the_announcement_of_a_dropped_update_is_taken_back() {
    let world = World::new(1, Options::default());
    let servers = serve(&world, FIXED, 64 << 20, Duration::from_secs(10));
    let config = RemoteConfig {
        contention: Contention::SMART,
        patience: Duration::from_millis(20),
        ..RemoteConfig::default()
    };
    let memories = ["dropping", "inserting"].map(|name| {
        let machine = world.machine(MachineOptions::named(name));
        (begin(&machine, &servers, config, &mut random(1, 1)), machine)
    });
    let [(dropping, machine), (inserting, _)] = memories;
    let of = machine.clone();
    let task = machine.spawn(async move {
        let open = async |memory| Index::open(memory, 0, Rc::new(NodeCache::new(1 << 20))).await;
        let (dropping, inserting) =
            (open(dropping).await.expect("opened"), open(inserting).await.expect("opened"));
        for key in 0..40_u64 {
            assert_eq!(dropping.insert(key, &[1; 8]).await.result, Ok(true));
        }
        {
            let mut update = pin!(dropping.update(7, &[2; 8]));
            let polled = update.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending), "its announcement is on its way");
        }
        // The announcement arrives all the same.
        of.sleep(Duration::from_millis(1)).await;
        let fill = async || {
            for key in 40..80 {
                inserting.upsert(key, &[3; 8]).await.result?;
            }
            Ok(())
        };
        let before = fill().await;
        dropping.finish().await;
        let behind = fill().await;
        let verified = dropping.verify().await.map(|verified| (verified.keys, verified.leaves));
        (before, behind, verified)
    });
    world.run_until(|| task.has_ended(), Duration::from_secs(10)).expect("nothing is in the way");
    let (before, behind, verified) = task.take().expect("the machine lives");
    assert!(matches!(before, Err(IndexError::Common(CommonError::GaveUp { .. }))), "{before:?}");
    assert_eq!((behind, verified), (Ok(()), Ok((80, 2))));
}

const PATIENCE: Duration = Duration::from_millis(20);

fn config() -> RemoteConfig {
    RemoteConfig { contention: Contention::SMART, patience: PATIENCE, ..RemoteConfig::default() }
}

/// Begins updates of one leaf, which announce themselves. They are dropped with the result.
fn announce(index: &Rc<Index<SimDevice>>) -> Vec<Pin<Box<dyn Future<Output = ()>>>> {
    let update = |key| -> Pin<Box<dyn Future<Output = ()>>> {
        let of = Rc::clone(index);
        Box::pin(async move {
            let _ended = of.update(key, &[2; 8]).await;
        })
    };
    let mut updates: Vec<_> = (0..4).map(update).collect();
    for update in &mut updates {
        assert!(
            update.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(),
            "it is on its way"
        );
    }
    updates
}

/// Time in which a client that has dropped updates fills their leaf, and splits it.
fn own_split() -> Duration {
    let world = World::new(1, Options::default());
    let servers = serve(&world, FIXED, 64 << 20, Duration::from_secs(10));
    let machine = world.machine(MachineOptions::named("client"));
    let memory = begin(&machine, &servers, config(), &mut random(1, 1));
    let of = machine.clone();
    let task = machine.spawn(async move {
        let index = Rc::new(Index::open(memory, 0, Rc::new(NodeCache::new(1 << 20))).await.expect("opened"));
        for key in 0..49_u64 {
            assert_eq!(index.insert(key, &[1; 8]).await.result, Ok(true));
        }
        drop(announce(&index));
        let began = of.now();
        assert_eq!(index.insert(60, &[1; 8]).await.result, Ok(true));
        of.now() - began
    });
    world.run_until(|| task.has_ended(), Duration::from_secs(10)).expect("nothing is in the way");
    task.take().expect("the machine lives")
}

#[test]
fn a_client_does_not_wait_for_updates_that_it_has_dropped() {
    let (with, without) = (own_split(), Check::TakesBack.without(own_split));
    assert!(with < PATIENCE / 20 && without > PATIENCE / 4, "{with}, {without}");
}

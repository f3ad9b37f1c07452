//! What is left: seats, and locks, of clients that have died, were interrupted, or do nothing more.

use std::rc::Rc;
use std::task::Poll;

use fatbtree_dtx::{DtxError, Tables, Want};
use fatbtree_verbs::time::Duration;

use crate::model::small;
use crate::scene::{LEASE, SOON, Scene, add, put};

/// Clients that die in a transaction on keys that no other one wants. There are fewer seats than deaths.
pub(crate) fn coordinators_die(writes: u64) -> Result<(), String> {
    let mut shape = small(0b11, 1);
    shape.seats = 3;
    let scene = Scene::new(shape, LEASE);
    for life in 0..5 {
        let (victim, memory) = scene.client("victim");
        let tables = scene.run(&victim, async move {
            let tables = Tables::open(memory, 0).await?;
            tables.begin().await?.abort().await;
            Ok::<_, DtxError>(tables)
        });
        let tables = tables.map_err(|error| format!("life {life}: {error}"))?;
        victim.mute_after_writes(writes);
        drop(victim.spawn(async move {
            let mut tx = tables.begin().await?;
            tx.write(0, life, &[1; 8]).await?;
            tx.commit().await
        }));
        scene.world.run_for(Duration::from_micros(100));
        victim.kill();
        scene.world.run_for(LEASE * 2);
    }
    Ok(())
}

#[test]
fn seats_of_the_dead_are_found_again() {
    for writes in 1..12 {
        coordinators_die(writes).unwrap_or_else(|why| panic!("{writes} WRITEs: {why}"));
    }
}

/// Polls a future so many times, and drops it.
async fn polled<T>(times: u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = times;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// A time limit may end each step of a `begin`. What it had claimed is given up.
#[test]
fn an_interrupted_begin_keeps_no_seat() {
    let mut shape = small(0b11, 1);
    shape.seats = 3;
    for polls in 1..30 {
        let scene = Scene::new(shape, Duration::from_millis(50));
        let (machine, tables) = scene.open("client");
        let begun = scene.run(&machine, async move {
            let first = tables.begin().await?;
            for _ in 0..3 {
                drop(polled(polls, tables.begin()).await);
            }
            let second = tables.begin().await?;
            second.abort().await;
            first.abort().await;
            Ok::<_, DtxError>(())
        });
        assert_eq!(begun, Ok(()), "{polls} polls");
        let (_, verified) = scene.look([1]).unwrap();
        assert!(verified.seats <= 3 * 2, "{polls} polls: {verified:?}");
    }
}

/// A client drops a transaction that has locked a key, and its tables, and does nothing more.
pub(crate) fn an_idle_client_has_dropped_a_transaction(polls: u64) -> Result<(), String> {
    let scene = Scene::new(small(0b11, 1), Duration::from_secs(5));
    let (idle, tables) = scene.open("idle");
    scene
        .run(&idle, async move {
            put(&tables, 1, 1).await?;
            let mut tx = tables.begin().await?;
            let dropped = async {
                tx.fetch([Want::write(0, 1), Want::write(0, 2)]).await?;
                tx.write(0, 3, &[3; 8]).await?;
                tx.commit().await
            };
            let _ended = polled(polls, dropped).await;
            Ok::<_, DtxError>(())
        })
        .map_err(|error| error.to_string())?;
    let (other, tables) = scene.open("other");
    scene.run(&other, put_all(tables)).map_err(|error| error.to_string())?;
    let (found, verified) = scene.look([1, 2, 3])?;
    if found == [Some(9); 3] && (verified.locks, verified.logs) == (0, 0) {
        Ok(())
    } else {
        Err(format!("{found:?}, {verified:?}"))
    }
}

async fn put_all(tables: Rc<Tables<fatbtree_sim::world::SimDevice>>) -> Result<(), DtxError> {
    for key in 1..4 {
        put(&tables, key, 9).await?;
    }
    Ok(())
}

#[test]
fn what_an_idle_client_has_dropped_is_settled() {
    for polls in 1..60 {
        an_idle_client_has_dropped_a_transaction(polls).unwrap_or_else(|why| panic!("{polls} polls: {why}"));
    }
}

/// A lock is taken, and the answer is lost with the connection; the session lasts.
pub(crate) fn an_answer_is_lost(nanos: u64) -> Result<(), String> {
    let scene = Scene::new(small(0b11, 1), Duration::from_secs(5));
    let (machine, tables) = scene.open("client");
    scene.run(&machine, add(Rc::clone(&tables), 1)).map_err(|error| error.to_string())?;
    let of = Rc::clone(&tables);
    let cut = machine.spawn(async move {
        let mut tx = of.begin().await?;
        tx.fetch([Want::write(0, 1)]).await.map(drop)
    });
    scene.world.run_for(Duration::from_nanos(nanos));
    machine.set_link_down(true);
    scene.world.run_for(Duration::from_millis(3));
    machine.set_link_down(false);
    scene.world.run_until(|| cut.has_ended(), SOON).map_err(|_| "it does not end")?;
    scene.run(&machine, add(tables, 2)).map_err(|error| error.to_string())?;
    let (other, tables) = scene.open("other");
    scene.run(&other, add(tables, 1)).map_err(|error| format!("{error}: a lock was forgotten"))?;
    Ok(())
}

/// All such moments.
pub(crate) fn moments_to_lose_an_answer() -> impl Iterator<Item = u64> {
    (0..6_000).step_by(200)
}

#[test]
fn a_lock_without_an_answer_is_released() {
    for nanos in moments_to_lose_an_answer() {
        an_answer_is_lost(nanos).unwrap_or_else(|why| panic!("{nanos} ns: {why}"));
    }
}

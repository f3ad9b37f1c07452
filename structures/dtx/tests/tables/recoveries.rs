//! Recoveries beside living coordinators, and after others that were left half done.

use std::rc::Rc;

use fatbtree_dtx::{DtxError, Tables, Verdict, Want};
use fatbtree_sim::world::SimDevice;
use fatbtree_verbs::time::Duration;

use crate::model::small;
use crate::scene::{LEASE, LONG, SOON, Scene, add, add_in, add_once, number, told};

/// A client freezes in an addition. One server is started anew, and has ended the client's session; the others have not. Another client
/// adds, too, and then the first one goes on.
pub(crate) fn a_coordinator_lives_elsewhere(
    micros: u64,
    primary: usize,
    server: usize,
) -> Result<(), String> {
    let scene = Scene::new(small(0b111, 1), LONG);
    let key = scene.key_at(primary, 0);
    let (victim, tables) = scene.open("victim");
    scene.run(&victim, add(Rc::clone(&tables), key)).map_err(|error| error.to_string())?;
    let frozen = victim.spawn(add_once(tables, key));
    scene.world.run_for(Duration::from_micros(micros));
    victim.freeze();
    scene.restart(server, true);
    let (other, tables) = scene.open("other");
    let others = other.spawn(add(tables, key));
    scene.world.run_for(Duration::from_micros(400));
    victim.thaw();
    scene
        .world
        .run_until(|| frozen.has_ended() && others.has_ended(), SOON)
        .map_err(|_| "it does not end")?;
    let results = [Some(Ok(())), frozen.take(), others.take()];
    let ([found], _) = scene.look([key])?;
    let found = found.unwrap_or(0);
    if told(&results).contains(&found) { Ok(()) } else { Err(format!("{found}: {results:?}")) }
}

/// All such moments.
pub(crate) fn moments_to_live_elsewhere() -> impl Iterator<Item = (u64, usize, usize)> {
    (1..26).flat_map(|micros| (0..9).map(move |number| (micros, number / 3, number % 3)))
}

async fn add_both(tables: Rc<Tables<SimDevice>>, one: u64, other: u64) -> Result<(), DtxError> {
    let mut tx = tables.begin().await?;
    add_in(&mut tx, one).await?;
    add_in(&mut tx, other).await?;
    tx.commit().await
}

/// A client freezes in its commit until all of its sessions have ended. Another one recovers its transaction, and dies on the way. Then the
/// first one goes on, and is told what became of it.
pub(crate) fn a_recovery_dies(micros: u64, polls: u64) -> Result<&'static str, String> {
    let scene = Scene::new(small(0b111, 1), LEASE);
    let [one, other] = [scene.key_at(0, 0), scene.key_at(1, 0)];
    let (victim, tables) = scene.open("victim");
    let of = Rc::clone(&tables);
    scene.run(&victim, add_both(of, one, other)).map_err(|error| error.to_string())?;
    let frozen = victim.spawn(add_both(tables, one, other));
    scene.world.run_for(Duration::from_micros(micros));
    if frozen.has_ended() {
        return Ok("ended");
    }
    victim.freeze();
    // Its card hears nothing of what has become of its requests.
    victim.set_link_down(true);
    scene.world.run_for(LEASE * 2);
    let (heir, tables) = scene.open("heir");
    heir.kill_after_polls(polls);
    // It only reads: nothing else changes the items.
    drop(heir.spawn(async move {
        let work = tables
            .run(async |tx| Ok(Verdict::Commit(tx.fetch([Want::read(0, one), Want::read(0, other)]).await?)));
        work.await.result
    }));
    scene.world.run_for(Duration::from_micros(400));
    heir.kill();
    victim.set_link_down(false);
    victim.thaw();
    scene.world.run_until(|| frozen.has_ended(), SOON).map_err(|_| "it does not end")?;
    let answer = frozen.take().expect("the machine lives");
    let (found, _) = scene.look([one, other])?;
    match (&answer, found) {
        (Ok(()), [Some(2), Some(2)]) => Ok("committed"),
        (Err(DtxError::Broke | DtxError::Conflict { .. }), [Some(1), Some(1)]) => Ok("undone"),
        (Err(DtxError::Unknown), [Some(1), Some(1)] | [Some(2), Some(2)]) => Ok("unknown"),
        _ => Err(format!("told {answer:?}, and found {found:?}")),
    }
}

/// All such moments.
pub(crate) fn moments_to_die() -> impl Iterator<Item = (u64, u64)> {
    (2..14).flat_map(|micros| (30..130).step_by(2).map(move |polls| (micros, polls)))
}

/// A client dies when its data has reached a primary on server 2, and not the backup on server 0. Another one begins to recover it, and
/// stands still; server 0 loses its memory, and a third one adds.
fn the_first_server_is_lost(micros: u64) -> Result<(), String> {
    let scene = Scene::new(small(0b111, 1), LONG);
    let key = scene.key_at(2, 0);
    let (victim, tables) = scene.open("victim");
    scene.run(&victim, add(Rc::clone(&tables), key)).map_err(|error| error.to_string())?;
    victim.mute_after_writes(3);
    drop(victim.spawn(add_once(tables, key)));
    scene.world.run_for(Duration::from_micros(100));
    victim.kill();
    scene.world.run_for(LONG);
    let (heir, tables) = scene.open("heir");
    let inherits = heir.spawn(add(tables, key));
    scene.world.run_for(Duration::from_micros(micros));
    heir.freeze();
    scene.restart(0, false);
    let (other, tables) = scene.open("other");
    let others = other.spawn(add(tables, key));
    scene.world.run_for(Duration::from_micros(900));
    heir.thaw();
    scene
        .world
        .run_until(|| inherits.has_ended() && others.has_ended(), SOON)
        .map_err(|_| "it does not end")?;
    let results = [Some(Ok(())), None, inherits.take(), others.take()];
    let ([found], _) = scene.look([key])?;
    let found = found.unwrap_or(0);
    if told(&results).contains(&found) { Ok(()) } else { Err(format!("{found}: {results:?}")) }
}

/// All such moments.
fn moments_to_be_lost() -> impl Iterator<Item = u64> {
    (0..160).step_by(2)
}

#[test]
fn a_coordinator_that_lives_somewhere_is_waited_for() {
    for (micros, primary, server) in moments_to_live_elsewhere() {
        a_coordinator_lives_elsewhere(micros, primary, server)
            .unwrap_or_else(|why| panic!("{micros} us, {primary}, {server}: {why}"));
    }
}

#[test]
fn only_what_is_undone_is_said_to_be_undone() {
    let mut counts = std::collections::BTreeMap::new();
    for (micros, polls) in moments_to_die() {
        let ended =
            a_recovery_dies(micros, polls).unwrap_or_else(|why| panic!("{micros} us, {polls} polls: {why}"));
        *counts.entry(ended).or_insert(0) += 1;
    }
    println!("{counts:?}");
    assert!(counts["committed"] > 20 && counts["undone"] > 20, "{counts:?}");
}

#[test]
fn a_recovery_has_all_seats() {
    for micros in moments_to_be_lost() {
        the_first_server_is_lost(micros).unwrap_or_else(|why| panic!("{micros} us: {why}"));
    }
}

/// A log is open, and its data lies on one of two replicas. With one seat on each server, it is in the way of all others.
pub(crate) fn an_open_log_is_in_the_way(writes: u64) -> Result<(), String> {
    let mut shape = small(0b11, 1);
    shape.seats = 1;
    let scene = Scene::new(shape, LEASE);
    let key = scene.key_at(0, 0);
    let (victim, tables) = scene.open("victim");
    scene.run(&victim, add(Rc::clone(&tables), key)).map_err(|error| error.to_string())?;
    victim.mute_after_writes(writes);
    drop(victim.spawn(add_once(tables, key)));
    scene.world.run_for(Duration::from_micros(100));
    victim.kill();
    scene.world.run_for(LEASE * 2);
    let (heir, tables) = scene.open("heir");
    // Another key: it only wants the seat.
    let added = scene.run(&heir, add(tables, scene.key_at(1, 0)));
    heir.kill();
    scene.world.run_for(LEASE * 2);
    let ([found], verified) = scene.look([key])?;
    if added.is_ok() && matches!(found, Some(1 | 2)) && verified.logs == 0 {
        Ok(())
    } else {
        Err(format!("{added:?}, {found:?}, {verified:?}"))
    }
}

#[test]
fn a_transaction_is_recovered_for_its_seat() {
    for writes in 1..9 {
        an_open_log_is_in_the_way(writes).unwrap_or_else(|why| panic!("{writes} WRITEs: {why}"));
    }
}

/// Numbers of a client are told apart by its transactions' versions: one that was undone is not taken for one that has committed.
#[test]
fn a_counter_counts() {
    let scene = Scene::new(small(0b11, 1), LEASE);
    let (machine, tables) = scene.open("client");
    for _ in 0..5 {
        scene.run(&machine, add(Rc::clone(&tables), 1)).expect("nothing is in the way");
    }
    let found = scene.run(&machine, async move { tables.begin().await?.read(0, 1).await.map(number) });
    assert_eq!(found, Ok(Some(5)));
}

//! Servers that begin with empty memory: new tables, a lost server, and servers that an operator has emptied. And exports.

use std::collections::BTreeMap;
use std::rc::Rc;

use fatbtree_dtx::DtxError;
use fatbtree_remote_memory::{CommonError, Origin, Portion};
use fatbtree_sim::world::{LinkFaults, Options, Retry};
use fatbtree_verbs::time::Duration;

use crate::model::small;
use crate::scene::{LEASE, SOON, Scene, add, add_once, get, number, put};

/// Servers that do not know whether there were tables before, with a backup of each item.
fn begun(origin: Origin) -> Scene {
    let scene = Scene::new(small(0b111, 1), LEASE);
    (0..3).for_each(|server| scene.restart_with(server, Some(origin)));
    scene
}

#[test]
fn new_tables_are_made_once_by_clients_that_come_together() {
    for origin in [Origin::Begun, Origin::Meant] {
        let scene = begun(origin);
        let clients: Vec<_> = (0..4).map(|client| scene.open(&format!("client {client}"))).collect();
        let added: Vec<_> =
            clients.iter().map(|(machine, tables)| machine.spawn(add(Rc::clone(tables), 1))).collect();
        scene.world.run_until(|| added.iter().all(|one| one.has_ended()), SOON).expect("they end");
        assert!(added.iter().all(|one| one.take() == Some(Ok(()))));
        let ([found], verified) = scene.look([1]).expect("the tables are right");
        assert_eq!((found, verified.keys), (Some(4), 1));
    }
}

/// A client dies at some moment of the begin of new tables, and a server with it. Others make them all the same.
#[test]
fn new_tables_are_made_where_clients_and_servers_die_meanwhile() {
    for moment in (0..30_000).step_by(500) {
        let scene = begun(Origin::Begun);
        let (first, tables) = scene.open("first");
        let _added = first.spawn(add(tables, 1));
        scene.world.run_for(Duration::from_nanos(moment));
        first.kill();
        scene.restart_with(moment as usize % 3, Some(Origin::Begun));
        let (second, tables) = scene.open("second");
        assert_eq!(scene.run(&second, add(tables, 2)), Ok(()), "{moment} ns");
        let ([one, other], _) = scene.look([1, 2]).unwrap_or_else(|why| panic!("{moment} ns: {why}"));
        assert!(one.is_none_or(|one| one == 1) && other == Some(1), "{moment} ns: {one:?}, {other:?}");
    }
}

/// A server comes back without its memory, and without knowing that: it is filled, and holds what was there.
pub(crate) fn a_server_that_begins_is_filled(lost: usize) -> Result<(), String> {
    let scene = begun(Origin::Begun);
    let (first, tables) = scene.open("first");
    let keys = [0, 1, 2].map(|position| scene.key_at(position, 0));
    scene.run(&first, {
        let tables = Rc::clone(&tables);
        async move {
            for key in keys {
                put(&tables, key, key + 1).await.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        }
    })?;
    let expected = keys.map(|key| Some(key + 1));
    // The other replicas, too, are right afterwards.
    for server in [lost, (lost + 1) % 3] {
        scene.restart_with(server, Some(Origin::Begun));
        let (found, _) = scene.look(keys)?;
        if found != expected {
            return Err(format!("without server {server}: {found:?}, expected {expected:?}"));
        }
    }
    // The client that was there all the time goes on.
    scene.run(&first, async move { get(&tables, keys[0]).await.map_err(|error| error.to_string()) })?;
    Ok(())
}

#[test]
fn servers_that_begin_are_filled_from_the_others() {
    (0..3)
        .for_each(|lost| a_server_that_begins_is_filled(lost).unwrap_or_else(|why| panic!("{lost}: {why}")));
}

/// An operator empties one server after the other. Between them nothing is read or written, and afterwards nothing is there.
pub(crate) fn an_emptied_server_waits_for_the_others() -> Result<(), String> {
    let scene = begun(Origin::Begun);
    let (machine, tables) = scene.open("client");
    scene.run(&machine, add(Rc::clone(&tables), 1)).map_err(|error| error.to_string())?;
    for server in [2, 1] {
        scene.restart_with(server, Some(Origin::Meant));
        let tables = Rc::clone(&tables);
        let found = scene.run(&machine, async move { get(&tables, 1).await });
        if found != Err(DtxError::Common(CommonError::Parted)) {
            return Err(format!("server {server} is emptied, and others are not: {found:?}"));
        }
    }
    scene.restart_with(0, Some(Origin::Meant));
    match scene.look([1])? {
        ([None], verified) if verified.keys == 0 => Ok(()),
        found => Err(format!("all are emptied: {found:?}")),
    }
}

#[test]
fn tables_are_emptied_on_all_servers_or_on_none() {
    an_emptied_server_waits_for_the_others().unwrap_or_else(|why| panic!("{why}"));
}

/// A client dies when its commit has reached one replica, perhaps. What an export finds then is what is there afterwards.
pub(crate) fn an_export_meets_a_dead_commit(moment: u64, seed: u64) -> Result<(), String> {
    let retry = Retry { timeout: Duration::from_millis(2), limit: 7 };
    let scene = Scene::with(small(0b111, 1), LEASE, Options { retry, ..Options::default() }, seed);
    let key = scene.key_at(0, 0);
    let (slow, tables) = scene.open("slow");
    scene.run(&slow, add(Rc::clone(&tables), key)).map_err(|error| error.to_string())?;
    let _added = slow.spawn(add_once(tables, key));
    scene.world.run_for(Duration::from_nanos(moment));
    // What goes to the backup from now on is late.
    let always = LinkFaults { lost: 0, late: 1_000_000, latest: Duration::from_micros(900) };
    scene.servers[1].machine.set_link_faults(always);
    scene.world.run_for(Duration::from_micros(2));
    slow.kill();
    scene.servers[1].machine.set_link_faults(LinkFaults::default());
    let (other, tables) = scene.open("other");
    let exported = scene.run(&other, async move {
        let Portion { pairs, .. } =
            tables.export(0, 0, 100).await.result.map_err(|error| error.to_string())?;
        Ok::<_, String>(pairs.into_iter().collect::<BTreeMap<_, _>>())
    })?;
    let exported = number(exported.get(&key).map(|value| &value[..]));
    let ([found], _) = scene.look([key])?;
    if exported == found {
        Ok(())
    } else {
        Err(format!("an export finds {exported:?}, and there is {found:?}"))
    }
}

/// Moments at which the client dies.
pub(crate) fn moments_of_a_commit() -> impl Iterator<Item = (u64, u64)> {
    (0..12_000).step_by(300).flat_map(|moment| (1..5).map(move |seed| (moment, seed)))
}

#[test]
fn an_export_finds_what_is_committed() {
    for (moment, seed) in moments_of_a_commit() {
        an_export_meets_a_dead_commit(moment, seed)
            .unwrap_or_else(|why| panic!("{moment} ns, {seed}: {why}"));
    }
}

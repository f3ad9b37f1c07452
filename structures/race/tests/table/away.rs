//! Splits whose servers go away for good in their middle: each key of a server that lives can be changed.

use std::rc::Rc;

use fatbtree_race::{Shape, Table};
use fatbtree_sim::hash::lab::serve;
use fatbtree_sim::world::{Options, SimDevice, World};
use fatbtree_verbs::time::Duration;

use crate::model::{done, value};
use crate::split::{Client, TWO_SERVERS};

const LEASE: Duration = Duration::from_millis(2);

/// Time between two moments at which the server dies.
const STEP: Duration = Duration::from_nanos(2_900);

/// Longer than the patience of an operation, which is 30 ms.
const LONG: Duration = Duration::from_millis(100);

/// Keys whose insertions split a subtable.
fn splitting(shape: Shape, most: usize) -> Vec<u64> {
    let world = World::new(1, Options::default());
    let servers = serve(&world, shape, 16 << 20, LEASE);
    let client = Client::new(&world, &servers, "client", 1);
    client.run(&world, async move |table| {
        let mut found = Vec::new();
        for key in 0.. {
            let inserted = table.insert(key, &value(key, 0, 20)).await;
            if inserted.round_trips > 10 {
                found.push(key);
            }
            assert!(done(inserted));
            if found.len() == most {
                return found;
            }
        }
        unreachable!("there are keys enough")
    })
}

/// What came of the keys that could be read.
#[derive(Default)]
struct Found {
    has_ended: bool,
    readable: usize,
    stuck: Vec<String>,
}

/// A server dies for good so long after an insertion has begun that splits a subtable. Each key that can be read then is changed, by the
/// client of the insertion and by another one.
///
/// A key is put before it is deleted, and not put again: an insertion reads the blocks of all keys of its fingerprint, which may be the other
/// server's.
fn die_at(key: u64, number: usize, moment: Duration, syncs: bool) -> Found {
    let world = World::new(1, Options::default());
    let servers = serve(&world, TWO_SERVERS, 16 << 20, LEASE);
    servers.iter().filter(|_| syncs).for_each(|server| server.keep_on_disk());
    let clients = [("same", 1), ("other", 2)].map(|(name, seed)| Client::new(&world, &servers, name, seed));
    let [same, other] = &clients;
    same.run(&world, async move |table| {
        for key in 0..key {
            assert!(done(table.insert(key, &value(key, 0, 20)).await), "{key}");
        }
    });
    let splitting = same.spawn(async move |table| table.insert(key, &value(key, 0, 20)).await.result);
    world.run_for(moment);
    let has_ended = splitting.has_ended();
    servers[number].die();
    // It waits for ever where its own key is the other server's.
    world.run_for(LONG);
    let mut found = Found { has_ended, ..Found::default() };
    // Where the directory is away the other client knows nothing.
    let reader = if number == 0 { same } else { other };
    let is_there =
        |key| reader.spawn(async move |table| matches!(table.search(key).await.result, Ok(Some(_))));
    let searches: Vec<_> = (0..key).map(|key| (key, is_there(key))).collect();
    world.run_for(LONG);
    let readable: Vec<u64> =
        searches.iter().filter(|(_, search)| search.take() == Some(true)).map(|(key, _)| *key).collect();
    found.readable = readable.len();
    let changing: &[_] = if number == 0 { &[("same", same)] } else { &[("same", same), ("other", other)] };
    for (turn, (name, client)) in changing.iter().enumerate() {
        let is_last = turn + 1 == changing.len();
        let change = |key| {
            let change = async move |table: Rc<Table<SimDevice>>| {
                let put = table.upsert(key, &value(key, 1, 20)).await.result;
                (put, if is_last { table.delete(key).await.result } else { Ok(true) })
            };
            (key, client.spawn(change))
        };
        let changes: Vec<_> = readable.iter().copied().map(change).collect();
        world.run_until(|| changes.iter().all(|(_, change)| change.has_ended()), LONG).ok();
        for (key, change) in changes {
            match change.take() {
                Some((Ok(true), Ok(true))) => {}
                what => found.stuck.push(format!("{key} of the {name} client: {what:?}")),
            }
        }
    }
    servers[number].revive(100);
    other.verify(&world);
    found
}

fn die_everywhere(number: usize, syncs: bool) {
    let (mut stuck, mut moments) = (Vec::new(), 0);
    for key in splitting(TWO_SERVERS, 4) {
        for step in 0.. {
            let moment = STEP * step;
            let found = die_at(key, number, moment, syncs);
            moments += 1;
            let died = format!("{key}, server {number} dies after {moment}");
            stuck.extend(found.stuck.iter().map(|what| format!("{died}: {what}")));
            if found.has_ended {
                eprintln!("{key}: {step} moments, {} keys can be read", found.readable);
                break;
            }
        }
    }
    let first = &stuck[..stuck.len().min(8)];
    assert!(stuck.is_empty(), "{} of {moments} moments: {first:#?}", stuck.len());
}

#[test]
fn a_server_that_dies_in_a_split_stops_no_key_of_the_other_one() {
    die_everywhere(1, false);
}

/// The split waits for the disk of the pair's server.
#[test]
fn a_server_that_dies_in_a_sync_stops_no_key_of_the_other_one() {
    die_everywhere(1, true);
}

#[test]
fn a_directory_that_is_away_stops_no_key_of_the_other_server() {
    die_everywhere(0, true);
}

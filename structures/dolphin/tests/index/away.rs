//! Bursts whose new node's server goes away for good in their middle: each key of a server that lives can be changed.

use std::rc::Rc;

use fatbtree_verbs::time::Duration;

use crate::model::done;
use crate::servers::{LONG, Lab, Opened, PATIENCE, TWO};

/// Time between two moments at which the server dies.
const STEP: Duration = Duration::from_nanos(1_700);

/// Keys with a first byte, in a leaf of the root that is full of them, and keys of other leaves of the root.
fn keys(first: u64) -> impl Iterator<Item = u64> {
    let others = (0..60).map(|at| (64 + at % 40) << 56 | at);
    (0..49).map(move |at| first << 56 | at << 40).chain(others)
}

/// What came of the keys that could be read.
struct Found {
    has_ended: bool,
    readable: usize,
    stuck: Vec<String>,
}

/// Server 1 dies for good so long after an insertion has begun that lets a leaf burst. Each key that can be read then is changed, by the client
/// of the insertion and by another one. A key is put before it is deleted, and not put again: that would want the burst.
fn die_at(first: u64, moment: Duration, syncs: bool) -> Found {
    let lab = Lab::new(TWO, 64 << 20, LONG);
    lab.servers.iter().filter(|_| syncs).for_each(|server| server.keep_on_disk());
    let clients = ["same", "other"].map(|name| (name, lab.client(name)));
    let (machine, index) = &clients[0].1;
    lab.run(machine, index, async move |index: Opened| {
        for key in keys(first) {
            assert!(done(index.insert(key, &[1; 8]).await));
        }
    });
    let of = Rc::clone(index);
    let insert = machine.spawn(async move { of.insert(first << 56 | 60 << 40, &[1; 8]).await.result });
    lab.world.run_for(moment);
    let has_ended = insert.has_ended();
    lab.servers[1].die();
    // It waits for ever where its key is the other server's.
    lab.world.run_for(PATIENCE * 3);
    let (machine, index) = &clients[1].1;
    let is_there = |key| {
        let of = Rc::clone(index);
        (key, machine.spawn(async move { matches!(of.get(key).await.result, Ok(Some(_))) }))
    };
    let gets: Vec<_> = keys(first).map(is_there).collect();
    lab.world.run_for(PATIENCE * 3);
    let readable: Vec<u64> =
        gets.iter().filter(|(_, get)| get.take() == Some(true)).map(|(key, _)| *key).collect();
    let mut stuck = Vec::new();
    for (turn, (name, (machine, index))) in clients.iter().enumerate() {
        let change = |key| {
            let of = Rc::clone(index);
            let change = async move {
                let put = of.upsert(key, &[2; 8]).await.result;
                (put, if turn == 1 { of.delete(key).await.result } else { Ok(true) })
            };
            (key, machine.spawn(change))
        };
        let changes: Vec<_> = readable.iter().copied().map(change).collect();
        lab.world.run_until(|| changes.iter().all(|(_, change)| change.has_ended()), PATIENCE * 3).ok();
        for (key, change) in changes {
            match change.take() {
                Some((Ok(true), Ok(true))) => {}
                what => stuck.push(format!("{key:#x} of the {name} client: {what:?}")),
            }
        }
    }
    lab.servers[1].revive(100);
    let verify = async |index: Opened| index.verify().await.map(|found| found.keys);
    let left = lab.run(machine, index, verify);
    if stuck.is_empty() {
        let rest = 109 - readable.len() as u64;
        assert!(left.as_ref().is_ok_and(|keys| (rest..=rest + 1).contains(keys)), "{rest}: {left:?}");
    }
    Found { has_ended, readable: readable.len(), stuck }
}

fn die_everywhere(syncs: bool) {
    let (mut stuck, mut lost) = (Vec::new(), 0);
    for first in 1..6 {
        for step in 0.. {
            let moment = STEP * step;
            let found = die_at(first, moment, syncs);
            let died = format!("{first}, the server dies after {moment}");
            stuck.extend(found.stuck.iter().map(|what| format!("{died}: {what}")));
            if found.has_ended {
                lost += usize::from(found.readable == 60);
                eprintln!("{first}: {step} moments, {} keys can be read", found.readable);
                break;
            }
        }
    }
    let first = &stuck[..stuck.len().min(8)];
    assert!(stuck.is_empty(), "{}: {first:#?}", stuck.len());
    assert!((1..5).contains(&lost), "{lost} of 5 nodes belong on the server that dies");
}

#[test]
fn a_server_that_dies_in_a_burst_stops_no_key_of_the_other_one() {
    die_everywhere(false);
}

/// The burst waits for the disk of the node's server.
#[test]
fn a_server_that_dies_in_a_sync_stops_no_key_of_the_other_one() {
    die_everywhere(true);
}

//! A client that stands still after it has seen a gap, and goes on when another one has died in a merge there.

use std::rc::Rc;

use fatbtree_dolphin::{Check, Index, IndexError, NodeCache};
use fatbtree_sim::dolphin::{begin, serve};
use fatbtree_sim::world::{MachineOptions, Options, World, random};
use fatbtree_verbs::time::Duration;

use crate::died::{config, merge_of};
use crate::model::FIXED;

/// Longer than the changes take of the client that dies.
const LEASE: Duration = Duration::from_millis(200);

const SOON: Duration = Duration::from_secs(10);

/// A key in the upper leaf of the merge, which no other client puts.
const KEY: u64 = 90 << 56 | 77;

/// Lets an insertion stand still after `moment`, and the other client die in the merge after so many requests. Says whether it has died, and
/// what is wrong in the end.
fn stand_still(moment: Duration, requests: u64) -> (bool, Option<String>) {
    let (course, number) = merge_of(56);
    let world = World::new(1, Options::default());
    let servers = serve(&world, FIXED, 64 << 20, LEASE);
    let open = |name: &str| {
        let machine = world.machine(MachineOptions::named(name));
        let memory = begin(&machine, &servers, config(), &mut random(1, 1));
        let task = machine.spawn(async move {
            Rc::new(Index::open(memory, 0, Rc::new(NodeCache::new(1 << 20))).await.expect("opened"))
        });
        world.run_until(|| task.has_ended(), SOON).expect("nothing is in the way");
        (machine, task.take().expect("the machine lives"))
    };
    let [(still, index), (last, reader)] = ["still", "last"].map(open);
    let insert = still.spawn(async move { index.insert(KEY, &[7; 8]).await.result });
    world.run_for(moment);
    still.freeze();
    let has_died = course.let_die((&world, &servers), "dying", &course.changes[..=number], requests);
    still.thaw();
    world.run_until(|| insert.has_ended(), SOON).expect("the dead hold nothing up");
    let inserted = insert.take().expect("the machine lives");
    let there = (0..98).filter(|at| !(0..37).contains(at) && !(49..88).contains(at)).map(|at| at << 56);
    let keys: Vec<u64> = there.chain([KEY]).collect();
    let get = last.spawn(async move {
        // What was left half done is completed first.
        let more = reader.upsert(90 << 56 | 78, &[7; 8]).await.result;
        let mut missing = Vec::new();
        for key in keys {
            if !matches!(reader.get(key).await.result, Ok(Some(_))) {
                missing.push(key);
            }
        }
        (more, missing)
    });
    world.run_until(|| get.has_ended(), SOON).expect("the dead hold nothing up");
    let (more, mut missing) = get.take().expect("the machine lives");
    // The key of the change in which the client has died may be there or not.
    let is_unknown = matches!(inserted, Err(IndexError::Unknown(_)));
    missing.retain(|key| *key != course.changes[number].0 && !(is_unknown && *key == KEY));
    let is_right = (inserted == Ok(true) || is_unknown) && more == Ok(true) && missing.is_empty();
    (has_died, (!is_right).then(|| format!("{moment}, {requests}: {inserted:?}, {more:?}, {missing:x?}")))
}

fn stand_still_everywhere() -> Vec<String> {
    let mut wrong = Vec::new();
    for step in 0..12 {
        for requests in 0.. {
            let (has_died, what) = stand_still(Duration::from_micros(2) * step, requests);
            wrong.extend(what);
            if !has_died {
                break;
            }
        }
    }
    wrong
}

#[test]
fn a_gap_that_was_filled_since_stays_filled() {
    let wrong = stand_still_everywhere();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let without = Check::GapSettled.without(stand_still_everywhere);
    assert!(!without.is_empty(), "no gap was seen");
}

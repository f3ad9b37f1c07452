//! Clients that stand still, and go on when what they have read is another one's: a gap in which a client has died, a full leaf whose place
//! a leaf of fewer keys has taken.

use std::rc::Rc;

use fatbtree_dolphin::{Check, Index, IndexError, NodeCache};
use fatbtree_remote_memory::CommonError;
use fatbtree_sim::dolphin::{Server, begin, serve};
use fatbtree_sim::world::{Machine, MachineOptions, Options, SimDevice, World, random};
use fatbtree_verbs::time::Duration;

use crate::died::{config, merge_of};
use crate::model::FIXED;

/// Longer than the changes take of the client that dies.
const LEASE: Duration = Duration::from_millis(200);

const SOON: Duration = Duration::from_secs(10);

/// A key in the upper leaf of the merge, which no other client puts.
const KEY: u64 = 90 << 56 | 77;

/// A client with the index.
fn open(world: &World, servers: &[Rc<Server>], name: &str) -> (Machine, Rc<Index<SimDevice>>) {
    let machine = world.machine(MachineOptions::named(name));
    let memory = begin(&machine, servers, config(), &mut random(1, 1));
    let task = machine.spawn(async move {
        Rc::new(Index::open(memory, 0, Rc::new(NodeCache::new(1 << 20))).await.expect("opened"))
    });
    world.run_until(|| task.has_ended(), SOON).expect("nothing is in the way");
    (machine, task.take().expect("the machine lives"))
}

/// Lets an insertion stand still after `moment`, and the other client die in the merge after so many requests. Says whether it has died, and
/// what is wrong in the end.
fn stand_still(moment: Duration, requests: u64) -> (bool, Option<String>) {
    let (course, number) = merge_of(56);
    let world = World::new(1, Options::default());
    let servers = serve(&world, FIXED, 64 << 20, LEASE);
    let [(still, index), (last, reader)] = ["still", "last"].map(|name| open(&world, &servers, name));
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
    let is_unknown = matches!(inserted, Err(IndexError::Common(CommonError::Unknown(_))));
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

/// Lets an insertion stand still that has found its leaf full and wants to split it. Meanwhile another client lets the leaf burst, deletes its
/// keys until one leaf of the same byte is left in its place, and fills that. Says what is wrong when the insertion has ended.
fn stand_still_before_a_split() -> Option<String> {
    /// Items of a leaf that is full, and is split and not cleaned.
    const FULL: u64 = 49;
    let filling = |at: u64| 0x33 << 56 | at << 48;
    // Behind the range of the leaf that will be in the place.
    let key = 0x50 << 56;
    let world = World::new(1, Options::default());
    let servers = serve(&world, FIXED, 64 << 20, LEASE);
    let [(still, late), (other, index)] = ["still", "other"].map(|name| open(&world, &servers, name));
    let fill = Rc::clone(&index);
    let full = other.spawn(async move {
        for at in 0..FULL {
            assert_eq!(fill.insert(filling(at), &[1; 8]).await.result, Ok(true), "{at}");
        }
    });
    world.run_until(|| full.has_ended(), SOON).expect("nothing is in the way");
    // It clears its line, announces a change of the leaf, and takes that back when it has read the leaf.
    let writes = world.counts().writes + 3;
    let insert = still.spawn(async move { late.insert(key, &[7; 8]).await.result });
    world.run_until(|| world.counts().writes >= writes, SOON).expect("the leaf is full");
    still.freeze();
    let of_other = Rc::clone(&index);
    let replaced = other.spawn(async move {
        assert_eq!(of_other.insert(filling(FULL), &[1; 8]).await.result, Ok(true));
        let burst = of_other.verify().await.expect("it is whole");
        let mut deleted = 0;
        let collapsed = loop {
            assert_eq!(of_other.delete(filling(deleted)).await.result, Ok(true), "{deleted}");
            deleted += 1;
            let found = of_other.verify().await.expect("it is whole");
            if found.nodes < burst.nodes {
                break found;
            }
        };
        for at in 0..deleted - 1 {
            assert_eq!(of_other.insert(filling(at), &[1; 8]).await.result, Ok(true), "{at}");
        }
        let filled = of_other.verify().await.expect("it is whole");
        assert_eq!((filled.nodes, filled.leaves, filled.keys), (collapsed.nodes, collapsed.leaves, FULL));
        filling(deleted - 1)
    });
    world.run_until(|| replaced.has_ended(), SOON).expect("nothing is in the way");
    let left_out = replaced.take().expect("the machine lives");
    still.thaw();
    world.run_until(|| insert.has_ended(), SOON).expect("nothing is in the way");
    let inserted = insert.take().expect("the machine lives");
    let look = other.spawn(async move {
        let mut missing = Vec::new();
        let filled = (0..=FULL).map(filling).filter(|key| *key != left_out);
        for key in filled.chain([key]) {
            if !matches!(index.get(key).await.result, Ok(Some(_))) {
                missing.push(key);
            }
        }
        (index.verify().await, missing)
    });
    world.run_until(|| look.has_ended(), SOON).expect("nothing is in the way");
    let (verified, missing) = look.take().expect("the machine lives");
    let is_right = inserted == Ok(true) && verified.is_ok() && missing.is_empty();
    (!is_right).then(|| format!("{inserted:?}, {verified:?}, {missing:x?}"))
}

#[test]
fn a_leaf_is_not_split_at_a_key_that_it_does_not_cover() {
    assert_eq!(stand_still_before_a_split(), None);
    let without = Check::RoomInRange.without(stand_still_before_a_split);
    assert!(without.is_some(), "the leaf in the place covers the key");
}

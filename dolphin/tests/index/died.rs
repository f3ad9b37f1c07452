//! A client that dies in the middle of one structure change, and what the next client finds.

use std::cell::Cell;
use std::rc::Rc;

use fatbtree_dolphin::{Change, Index, NodeCache, Shape, Verified};
use fatbtree_remote::{Contention, RemoteConfig};
use fatbtree_sim::dolphin::{begin, serve};
use fatbtree_sim::world::{MachineOptions, Options, World, random};
use fatbtree_verbs::time::Duration;

use crate::model::FIXED;

const LEASE: Duration = Duration::from_millis(2);

/// Far more than anything takes.
const SOON: Duration = Duration::from_secs(10);

/// More than the rest of a doorbell takes to arrive.
const ARRIVES: Duration = Duration::from_micros(100);

/// What two clients do, one after the other.
struct Course {
    shape: Shape,
    /// Changes of the first one, which dies in one of them.
    changes: Vec<(u64, Change<'static>)>,
    /// Keys that the second one puts, which knows nothing.
    puts: Vec<u64>,
}

/// What the second client finds.
struct Found {
    /// Whether the first one has died before the end of its change.
    has_died: bool,
    before: Verified,
    after: Verified,
}

impl Course {
    /// The number of the first change that does something to the structure, by what it was and what it is then.
    fn first_change(&self, does: impl Fn(&Verified, &Verified) -> bool) -> usize {
        let world = World::new(1, Options::default());
        let servers = serve(&world, self.shape, 64 << 20, LEASE);
        let machine = world.machine(MachineOptions::named("client"));
        let memory = begin(&machine, &servers, config(), &mut random(1, 1));
        let (home, changes) = (self.shape.home(), self.changes.clone());
        let task = machine.spawn(async move {
            let index = Index::open(memory, home, Rc::new(NodeCache::new(1 << 20))).await.expect("opened");
            let mut all = vec![index.verify().await.expect("it is whole")];
            for (key, change) in changes {
                assert_eq!(index.change(key, change).await.result, Ok(true), "{key:#x}");
                all.push(index.verify().await.expect("it is whole"));
            }
            all
        });
        world.run_until(|| task.has_ended(), SOON).expect("nothing is in the way");
        let all = task.take().expect("the machine lives");
        all.windows(2).position(|pair| does(&pair[0], &pair[1])).expect("one of them does it")
    }

    /// Lets the first client die in a change after so many WRITEs and atomics of it. The second one walks over the index, puts its
    /// keys, and walks over it again.
    fn die_after(&self, requests: u64, number: usize) -> Found {
        let world = World::new(1, Options::default());
        let servers = serve(&world, self.shape, 64 << 20, LEASE);
        let [(dying, first), (putting, second)] = ["first", "second"].map(|name| {
            let machine = world.machine(MachineOptions::named(name));
            (begin(&machine, &servers, config(), &mut random(1, 1)), machine)
        });
        let done: Rc<Cell<bool>> = Rc::default();
        let (of, log, home) = (first.clone(), Rc::clone(&done), self.shape.home());
        let changes = self.changes[..=number].to_vec();
        drop(first.spawn(async move {
            let index = Index::open(dying, home, Rc::new(NodeCache::new(1 << 20))).await.expect("opened");
            for (at, (key, change)) in changes.into_iter().enumerate() {
                if at == number {
                    of.mute_after_changes(requests);
                }
                assert_eq!(index.change(key, change).await.result, Ok(true), "{key:#x}");
            }
            log.set(true);
        }));
        world.run_until(|| done.get() || first.is_mute(), SOON).expect("nothing is in the way");
        world.run_for(ARRIVES);
        let has_died = !done.get();
        first.kill();
        let (of, puts) = (second.clone(), self.puts.clone());
        let task = second.spawn(async move {
            let index = Index::open(putting, home, Rc::new(NodeCache::new(0))).await.expect("opened");
            let before = index.verify().await.expect("what is left half done is no fault");
            of.sleep(LEASE * 2).await;
            for key in puts {
                assert_eq!(index.upsert(key, &[2; 8]).await.result, Ok(true), "{key:#x}");
            }
            (before, index.verify().await.expect("what is left half done is no fault"))
        });
        world.run_until(|| task.has_ended(), SOON).expect("the dead hold nothing up");
        let (before, after) = task.take().expect("the machine lives");
        Found { has_died, before, after }
    }

    /// Lets the first client die between any two WRITEs and atomics of a change: also of those that it posts with one doorbell. In
    /// the end all must be as if it had not died.
    fn die_everywhere(&self, number: usize) {
        let all: Vec<_> = (0..)
            .map(|requests| self.die_after(requests, number))
            .take_while(|found| found.has_died)
            .collect();
        let whole = self.die_after(u64::MAX, number).after;
        assert_eq!(whole.unfinished, 0);
        for (requests, found) in all.iter().enumerate() {
            let Found { before, after, .. } = found;
            assert_eq!((after.keys, after.unfinished), (whole.keys, 0), "{requests}: {before:?} {after:?}");
        }
        let unfinished = all.iter().filter(|found| found.before.unfinished > 0).count();
        println!("change {number}: {} moments, {unfinished} of them in the middle", all.len());
        assert!(unfinished > 1, "it was never in the middle of it");
    }
}

fn config() -> RemoteConfig {
    RemoteConfig { contention: Contention::SMART, ..RemoteConfig::default() }
}

fn inserts(keys: impl Iterator<Item = u64>) -> impl Iterator<Item = (u64, Change<'static>)> {
    keys.map(|key| (key, Change::Insert(&[1; 8])))
}

fn deletes(keys: impl Iterator<Item = u64>) -> impl Iterator<Item = (u64, Change<'static>)> {
    keys.map(|key| (key, Change::Delete))
}

/// Where the node above does not know yet that a node has moved, the walk over the index goes on to the successor, each key is found, and
/// the next client that passes by puts the entry right.
#[test]
fn a_node_that_grows_is_whole_wherever_its_client_dies() {
    let keys: Vec<u64> = (0..1_000).map(|at| ((at % 256) << 8) | (at / 256)).collect();
    let course = Course { shape: FIXED, changes: inserts(keys.iter().copied()).collect(), puts: keys };
    let has_grown = |before: &Verified, after: &Verified| {
        before.nodes == after.nodes && before.sizes[3] + 1 == after.sizes[3]
    };
    course.die_everywhere(course.first_change(has_grown));
}

/// The second client fills what was split.
#[test]
fn a_leaf_that_is_split_is_whole_wherever_its_client_dies() {
    let key = |at: u64| at << 56 | at;
    let puts = (0..60).flat_map(|at| [key(at), key(at) | 1 << 20]).collect();
    let course = Course { shape: FIXED, changes: inserts((0..60).map(key)).collect(), puts };
    let is_split = |before: &Verified, after: &Verified| {
        (before.leaves + 1, before.nodes) == (after.leaves, after.nodes) && before.leaves > 0
    };
    course.die_everywhere(course.first_change(is_split));
}

/// Slots of deleted keys become free.
#[test]
fn a_leaf_that_is_cleaned_is_whole_wherever_its_client_dies() {
    let changes = inserts(0..49).chain(deletes(0..20)).chain(inserts(60..61)).collect();
    Course { shape: FIXED, changes, puts: (0..80).collect() }.die_everywhere(69);
}

/// The new node lies on another server than the leaf, or on the same one.
#[test]
fn a_leaf_that_bursts_is_whole_wherever_its_client_dies() {
    for (servers, first) in [(0b1, 1), (0b11, 1), (0b11, 2), (0b11, 3), (0b11, 4)] {
        let key = move |at: u64| first << 56 | at << 40;
        let shape = Shape { servers, ..FIXED };
        let course =
            Course { shape, changes: inserts((0..60).map(key)).collect(), puts: (0..70).map(key).collect() };
        let has_burst = |before: &Verified, after: &Verified| before.nodes + 1 == after.nodes;
        course.die_everywhere(course.first_change(has_burst));
    }
}

/// The second client splits what two leaves are merged into, before it comes to keys of the upper one.
#[test]
fn leaves_that_are_merged_are_whole_wherever_their_client_dies() {
    let key = |at: u64| at << 8;
    let lower = deletes((0..37).map(key));
    let upper = deletes((49..88).map(key));
    let splitting = (0..40).flat_map(|at| (1..4).map(move |low| key(at) | low));
    let course = Course {
        shape: FIXED,
        changes: inserts((0..98).map(key)).chain(lower).chain(upper).collect(),
        puts: splitting.chain((0..98).map(key)).collect(),
    };
    let is_merged = |before: &Verified, after: &Verified| {
        (before.leaves, before.nodes) == (after.leaves + 1, after.nodes)
    };
    course.die_everywhere(course.first_change(is_merged));
}

/// The last leaf below a node takes its place, on the server of the node above.
#[test]
fn a_leaf_that_takes_its_nodes_place_is_whole_wherever_its_client_dies() {
    for (servers, first) in [(0b1, 1), (0b11, 1), (0b11, 2), (0b11, 3), (0b11, 4)] {
        let key = move |at: u64| first << 56 | at << 48;
        let shape = Shape { servers, ..FIXED };
        let changes = inserts((0..60).map(key)).chain(deletes((0..60).map(key))).collect();
        let course = Course { shape, changes, puts: (0..70).map(key).collect() };
        let has_collapsed = |before: &Verified, after: &Verified| before.nodes == after.nodes + 1;
        course.die_everywhere(course.first_change(has_collapsed));
    }
}

/// A new node between two others, with a leaf beside the lower one.
#[test]
fn a_node_between_two_is_whole_wherever_its_client_dies() {
    for (servers, first) in [(0b1, 1), (0b11, 1), (0b11, 2), (0b11, 3), (0b11, 4)] {
        let key = move |at: u64| first << 56 | 7 << 48 | at;
        let beside = first << 56 | 9 << 48;
        let shape = Shape { servers, ..FIXED };
        let puts = (0..60).map(key).chain((0..9).map(|at| beside | at << 40)).collect();
        let changes = inserts((0..60).map(key).chain([beside])).collect();
        let course = Course { shape, changes, puts };
        course.die_everywhere(60);
    }
}

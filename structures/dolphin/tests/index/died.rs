//! A client that dies in the middle of one structure change, or loses its connections there, and what is found then.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use fatbtree_dolphin::{Change, Check, Index, IndexError, NodeCache, Shape, Verified};
use fatbtree_remote_memory::{CommonError, Contention, RemoteConfig};
use fatbtree_sim::dolphin::{Server, begin, serve, strays};
use fatbtree_sim::world::{MachineOptions, Options, World, random};
use fatbtree_verbs::time::Duration;

use crate::model::FIXED;

const LEASE: Duration = Duration::from_millis(2);

/// Far more than anything takes.
const SOON: Duration = Duration::from_secs(10);

/// More than the rest of a doorbell takes to arrive.
const ARRIVES: Duration = Duration::from_micros(100);

/// What two clients do, one after the other.
pub(crate) struct Course {
    pub(crate) shape: Shape,
    /// Changes of the first one, which dies in one of them.
    pub(crate) changes: Vec<(u64, Change<'static>)>,
    /// Keys that the second one puts, which knows nothing.
    pub(crate) puts: Vec<u64>,
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

    /// Lets a client make changes, and die in the last of them after so many WRITEs and atomics of it. Says whether it has died before its
    /// end.
    pub(crate) fn let_die(
        &self,
        (world, servers): (&World, &[Rc<Server>]),
        name: &str,
        changes: &[(u64, Change<'static>)],
        requests: u64,
    ) -> bool {
        let machine = world.machine(MachineOptions::named(name));
        let memory = begin(&machine, servers, config(), &mut random(1, 1));
        let done: Rc<Cell<bool>> = Rc::default();
        let (of, log, home, changes) =
            (machine.clone(), Rc::clone(&done), self.shape.home(), changes.to_vec());
        drop(machine.spawn(async move {
            let index = Index::open(memory, home, Rc::new(NodeCache::new(1 << 20))).await.expect("opened");
            for (left, (key, change)) in (0..changes.len()).rev().zip(changes) {
                if left == 0 {
                    of.mute_after_changes(requests);
                }
                assert_eq!(index.change(key, change).await.result, Ok(true), "{key:#x}");
            }
            log.set(true);
        }));
        world.run_until(|| done.get() || machine.is_mute(), SOON).expect("nothing is in the way");
        world.run_for(ARRIVES);
        machine.kill();
        let strays = strays(servers, &self.shape);
        assert_eq!(strays, [], "after {requests}: they answer, and nothing leads to them");
        !done.get()
    }

    /// Lets a client that knows nothing walk over the index, put the keys, read them, and walk over the index again.
    fn put_all(
        &self,
        (world, servers): (&World, &[Rc<Server>]),
        puts: impl Iterator<Item = u64>,
    ) -> [Verified; 2] {
        let machine = world.machine(MachineOptions::named("living"));
        let memory = begin(&machine, servers, config(), &mut random(1, 1));
        let (of, home, puts) = (machine.clone(), self.shape.home(), puts.collect::<Vec<_>>());
        let task = machine.spawn(async move {
            let index = Index::open(memory, home, Rc::new(NodeCache::new(0))).await.expect("opened");
            let before = index.verify().await.expect("what is left half done is no fault");
            of.sleep(LEASE * 2).await;
            for &key in &puts {
                assert_eq!(index.upsert(key, &[2; 8]).await.result, Ok(true), "{key:#x}");
            }
            for key in puts {
                let found = index.get(key).await.result.expect("nothing is in the way");
                assert_eq!(found.as_deref(), Some(&[2; 8][..]), "{key:#x}");
            }
            [before, index.verify().await.expect("what is left half done is no fault")]
        });
        world.run_until(|| task.has_ended(), SOON).expect("the dead hold nothing up");
        task.take().expect("the machine lives")
    }

    /// Lets the first client die in a change after so many WRITEs and atomics of it.
    fn die_after(&self, requests: u64, number: usize) -> Found {
        let world = World::new(1, Options::default());
        let servers = serve(&world, self.shape, 64 << 20, LEASE);
        let scene = (&world, &servers[..]);
        let has_died = self.let_die(scene, "first", &self.changes[..=number], requests);
        let [before, after] = self.put_all(scene, self.puts.iter().copied());
        Found { has_died, before, after }
    }

    /// The same, and another one dies when it completes what the first one has begun. `None`: it comes to its end.
    fn die_twice(&self, requests: u64, number: usize, later: u64) -> Option<Verified> {
        let world = World::new(1, Options::default());
        let servers = serve(&world, self.shape, 64 << 20, LEASE);
        let scene = (&world, &servers[..]);
        self.let_die(scene, "first", &self.changes[..=number], requests);
        world.run_for(LEASE * 2);
        let put = (self.changes[number].0, Change::Upsert(&[1; 8][..]));
        let has_died = self.let_die(scene, "second", &[put], later);
        // In the other order, so that what was to be replaced is changed before the completion goes on.
        let [_, after] = self.put_all(scene, self.puts.iter().rev().copied());
        has_died.then_some(after)
    }

    /// Lets a client lose its connections in a change after so many WRITEs and atomics of it. It lives, goes on, and puts the keys. Says
    /// whether it was before the end of the change.
    fn break_after(&self, requests: u64, number: usize) -> (bool, Verified) {
        let world = World::new(1, Options::default());
        let servers = serve(&world, self.shape, 64 << 20, LEASE);
        let machine = world.machine(MachineOptions::named("client"));
        let memory = begin(&machine, &servers, config(), &mut random(1, 1));
        let done: Rc<Cell<bool>> = Rc::default();
        let (of, log, home, with) =
            (machine.clone(), Rc::clone(&done), self.shape.home(), Rc::clone(&memory));
        let (changes, puts) = (self.changes[..=number].to_vec(), self.puts.clone());
        let task = machine.spawn(async move {
            let index = Index::open(with, home, Rc::new(NodeCache::new(1 << 20))).await.expect("opened");
            for (at, (key, change)) in changes.into_iter().enumerate() {
                if at == number {
                    of.mute_after_changes(requests);
                }
                match index.change(key, change).await.result {
                    Err(IndexError::Common(CommonError::Unknown(_))) if at == number => {}
                    result => {
                        assert!(result == Ok(true) || at == number && result == Ok(false), "{result:?}")
                    }
                }
            }
            log.set(true);
            // What was given back is used again.
            for key in puts {
                while index.upsert(key, &[2; 8]).await.result != Ok(true) {}
            }
            index.verify().await.expect("it is whole")
        });
        world.run_until(|| done.get() || machine.is_mute(), SOON).expect("nothing is in the way");
        world.run_for(ARRIVES);
        let is_broken = !done.get();
        machine.mute_after_changes(u64::MAX);
        (0..32)
            .filter(|server| self.shape.servers >> server & 1 == 1)
            .for_each(|server| memory.sever(server));
        world.run_until(|| task.has_ended(), SOON).expect("it goes on");
        (is_broken, task.take().expect("the machine lives"))
    }

    /// Lets the first client die between any two WRITEs and atomics of a change: also of those that it posts with one doorbell. In
    /// the end all must be as if it had not died. Then it loses its connections there, and lives.
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
        assert!(unfinished > 1, "it was never in the middle of it");
        let in_the_middle = (0..).zip(&all).filter(|(_, found)| found.before.unfinished > 0);
        for requests in in_the_middle.map(|(requests, _)| requests) {
            let completions =
                (0..).map_while(|later| Some((later, self.die_twice(requests, number, later)?)));
            for (later, after) in completions {
                let left = (after.keys, after.unfinished);
                assert_eq!(left, (whole.keys, 0), "{requests}, {later} of the completion");
            }
        }
        for requests in 0.. {
            let (is_broken, found) = self.break_after(requests, number);
            if !is_broken {
                break;
            }
            // A client that knows the leaves does not come by what is left to be done above them.
            assert_eq!(found.keys, whole.keys, "broken after {requests}: {found:?}");
        }
    }
}

pub(crate) fn config() -> RemoteConfig {
    RemoteConfig { contention: Contention::SMART, ..RemoteConfig::default() }
}

fn inserts(keys: impl Iterator<Item = u64>) -> impl Iterator<Item = (u64, Change<'static>)> {
    keys.map(|key| (key, Change::Insert(&[1; 8])))
}

fn deletes(keys: impl Iterator<Item = u64>) -> impl Iterator<Item = (u64, Change<'static>)> {
    keys.map(|key| (key, Change::Delete))
}

fn split() -> (Course, usize) {
    let key = |at: u64| at << 56 | at;
    let puts = (0..60).flat_map(|at| [key(at), key(at) | 1 << 20]).collect();
    let course = Course { shape: FIXED, changes: inserts((0..60).map(key)).collect(), puts };
    let is_split = |before: &Verified, after: &Verified| {
        (before.leaves + 1, before.nodes) == (after.leaves, after.nodes) && before.leaves > 0
    };
    let number = course.first_change(is_split);
    (course, number)
}

/// A burst of a leaf of keys with a first byte.
fn burst(servers: u32, first: u64) -> (Course, usize) {
    let key = move |at: u64| first << 56 | at << 40;
    let shape = Shape { servers, ..FIXED };
    let course =
        Course { shape, changes: inserts((0..60).map(key)).collect(), puts: (0..70).map(key).collect() };
    let number = course.first_change(|before, after| before.nodes + 1 == after.nodes);
    (course, number)
}

fn merge() -> (Course, usize) {
    merge_of(8)
}

/// A merge of leaves of keys that differ from a bit on.
pub(crate) fn merge_of(bit: u32) -> (Course, usize) {
    let key = |at: u64| at << bit;
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
    let number = course.first_change(is_merged);
    (course, number)
}

/// A leaf of keys with a first byte that takes its node's place.
fn collapse(servers: u32, first: u64) -> (Course, usize) {
    let key = move |at: u64| first << 56 | at << 48;
    let changes = inserts((0..60).map(key)).chain(deletes((0..60).map(key))).collect();
    let course = Course { shape: Shape { servers, ..FIXED }, changes, puts: (0..70).map(key).collect() };
    let number = course.first_change(|before, after| before.nodes == after.nodes + 1);
    (course, number)
}

/// A node between the root and that of keys with a first byte.
fn between(servers: u32, first: u64) -> (Course, usize) {
    let key = move |at: u64| first << 56 | 7 << 48 | at;
    let beside = first << 56 | 9 << 48;
    let puts = (0..60).map(key).chain((0..9).map(|at| beside | at << 40)).collect();
    let changes = inserts((0..60).map(key).chain([beside])).collect();
    (Course { shape: Shape { servers, ..FIXED }, changes, puts }, 60)
}

/// One server; and two, where the new node lies on the same one or on the other.
const PLACES: [(u32, u64); 3] = [(0b1, 1), (0b11, 1), (0b11, 2)];

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
    let (course, number) = split();
    course.die_everywhere(number);
}

/// Slots of deleted keys become free.
#[test]
fn a_leaf_that_is_cleaned_is_whole_wherever_its_client_dies() {
    let changes = inserts(0..49).chain(deletes(0..20)).chain(inserts(60..61)).collect();
    Course { shape: FIXED, changes, puts: (0..80).collect() }.die_everywhere(69);
}

#[test]
fn a_leaf_that_bursts_is_whole_wherever_its_client_dies() {
    for (servers, first) in PLACES {
        let (course, number) = burst(servers, first);
        course.die_everywhere(number);
    }
}

/// The second client splits what two leaves are merged into, before it comes to keys of the upper one.
#[test]
fn leaves_that_are_merged_are_whole_wherever_their_client_dies() {
    let (course, number) = merge();
    course.die_everywhere(number);
}

/// The last leaf below a node takes its place, on the server of the node above.
#[test]
fn a_leaf_that_takes_its_nodes_place_is_whole_wherever_its_client_dies() {
    for (servers, first) in PLACES {
        let (course, number) = collapse(servers, first);
        course.die_everywhere(number);
    }
}

/// A new node between two others, with a leaf beside the lower one.
#[test]
fn a_node_between_two_is_whole_wherever_its_client_dies() {
    for (servers, first) in PLACES {
        let (course, number) = between(servers, first);
        course.die_everywhere(number);
    }
}

/// Each order in which a structure change writes is needed.
#[test]
fn an_order_that_is_not_kept_is_found() {
    let all = [
        ("a split", split()),
        ("a burst", burst(0b11, 1)),
        ("a merge", merge()),
        ("a collapse", collapse(0b11, 1)),
        ("a node between two", between(0b1, 1)),
    ];
    let needed: [(Check, &[usize]); 6] = [
        (Check::OpensLast, &[0, 1, 2, 3, 4]),
        (Check::LinksFirst, &[0, 1]),
        (Check::LinksLast, &[2]),
        (Check::LocksAll, &[2]),
        (Check::FreesRetired, &[2]),
        (Check::HoldsDoubtful, &[0, 2]),
    ];
    let mut passed = Vec::new();
    for (check, of) in needed {
        for (name, (course, number)) in of.iter().map(|&number| &all[number]) {
            let run = || check.without(|| course.die_everywhere(*number));
            if catch_unwind(AssertUnwindSafe(run)).is_ok() {
                passed.push((check, name));
            }
        }
    }
    assert!(passed.is_empty(), "nothing was wrong without {passed:?}");
}

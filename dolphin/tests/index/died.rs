//! A client that dies at each moment of one change, and what the next client finds.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_dolphin::{Change, Index, NodeCache, Verified};
use fatbtree_remote::{Contention, RemoteConfig};
use fatbtree_sim::dolphin::{begin, serve};
use fatbtree_sim::world::{MachineOptions, Options, World, random};
use fatbtree_verbs::time::{Duration, Instant};

use crate::model::FIXED;

const LEASE: Duration = Duration::from_millis(2);

/// Behind this time nothing is changed any more.
const END: Instant = Instant::from_nanos(100_000_000);

/// What two clients do, one after the other.
struct Course {
    /// Changes of the first one, which dies.
    changes: Vec<(u64, Change<'static>)>,
    /// Keys that the second one puts, which knows nothing.
    puts: Vec<u64>,
}

/// A change: when it began, and its round trips.
type Done = (Instant, u32);

impl Course {
    /// Lets the first client die at a time. The second one walks over the index, puts its keys, and walks over it again.
    fn die_at(&self, death: Instant) -> (Vec<Done>, [Verified; 2]) {
        let world = World::new(1, Options::default());
        let servers = serve(&world, FIXED, 64 << 20, LEASE);
        let [(dying, first), (putting, second)] = ["first", "second"].map(|name| {
            let machine = world.machine(MachineOptions::named(name));
            let config = RemoteConfig { contention: Contention::SMART, ..RemoteConfig::default() };
            (begin(&machine, &servers, config, &mut random(1, 1)), machine)
        });
        let done: Rc<RefCell<Vec<Done>>> = Rc::default();
        let (of, log, changes) = (first.clone(), Rc::clone(&done), self.changes.clone());
        drop(first.spawn(async move {
            let index = Index::open(dying, 0, Rc::new(NodeCache::new(1 << 20))).await.expect("opened");
            for (key, change) in changes {
                let began = of.now();
                let answer = index.change(key, change).await;
                assert_eq!(answer.result, Ok(true), "{key:#x}");
                log.borrow_mut().push((began, answer.round_trips));
            }
        }));
        world.run_for(death - first.now());
        first.kill();
        let (of, puts) = (second.clone(), self.puts.clone());
        let task = second.spawn(async move {
            let index = Index::open(putting, 0, Rc::new(NodeCache::new(0))).await.expect("opened");
            let before = index.verify().await.expect("what is left half done is no fault");
            of.sleep(LEASE * 2).await;
            for key in puts {
                assert_eq!(index.upsert(key, &[2; 8]).await.result, Ok(true), "{key:#x}");
            }
            [before, index.verify().await.expect("what is left half done is no fault")]
        });
        world.run_until(|| task.has_ended(), Duration::from_secs(10)).expect("the dead hold nothing up");
        (done.take(), task.take().expect("the machine lives"))
    }

    /// Lets the first client die at many moments of its change with the most round trips: also between what lies next to each other in one
    /// doorbell. In the end all must be as if it had not died.
    fn die_everywhere(&self) {
        let (done, [_, whole]) = self.die_at(END);
        assert_eq!((done.len(), whole.unfinished), (self.changes.len(), 0));
        let slowest = done.iter().enumerate().max_by_key(|(_, (_, trips))| *trips);
        let (number, &(began, trips)) = slowest.expect("there are changes");
        let (ended, _) = done[number + 1];
        let found = |death| {
            let (_, [before, behind]) = self.die_at(death);
            assert_eq!((behind.keys, behind.unfinished), (whole.keys, 0), "{before:?} {behind:?}");
            (death, before)
        };
        let step = (ended - began) / u64::from(4 * trips);
        let mut all: Vec<_> = (0..=4 * trips).map(|at| found(began + step * u64::from(at))).collect();
        // Between two moments that differ there may be others.
        let mut at = 0;
        while let Some(&[early, late]) = all.get(at..at + 2) {
            let between = early.0 + (late.0 - early.0) / 2;
            if early.1 == late.1 || between == early.0 {
                at += 1;
            } else {
                all.insert(at + 1, found(between));
            }
        }
        let unfinished = all.iter().filter(|(_, before)| before.unfinished > 0).count();
        eprintln!("{} moments, {unfinished} of them in the middle", all.len());
        assert!(unfinished > 2, "it was never in the middle of it");
    }
}

/// Where the node above does not know yet that a node has moved, the walk over the index goes on to the successor, each key is found, and
/// the next client that passes by puts the entry right.
#[test]
fn a_node_that_grows_is_whole_whenever_its_client_dies() {
    let keys: Vec<u64> = (0..1_000).map(|at| ((at % 256) << 8) | (at / 256)).collect();
    let changes = keys.iter().map(|&key| (key, Change::Insert(&[1; 8]))).collect();
    Course { changes, puts: keys }.die_everywhere();
}

/// The second client splits what two leaves are merged into, before it comes to keys of the upper one.
#[test]
fn leaves_that_are_merged_are_whole_whenever_their_client_dies() {
    let key = |at: u64| at << 8;
    let inserts = (0..98).map(|at| (key(at), Change::Insert(&[1; 8])));
    let lower = (0..37).map(|at| (key(at), Change::Delete));
    let upper = (49..88).map(|at| (key(at), Change::Delete));
    let splitting = (0..40).flat_map(|at| (1..4).map(move |low| key(at) | low));
    Course {
        changes: inserts.chain(lower).chain(upper).collect(),
        puts: splitting.chain((0..98).map(key)).collect(),
    }
    .die_everywhere();
}

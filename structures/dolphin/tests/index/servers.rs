//! An index on several servers: one of them is away, or full, or has the records of another one's leaves.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_dolphin::{Index, IndexError, NodeCache, Shape};
use fatbtree_remote_memory::{CommonError, Contention, RemoteConfig};
use fatbtree_sim::dolphin::{Server, begin, serve};
use fatbtree_sim::world::{Machine, MachineOptions, Options, SimDevice, World, random};
use fatbtree_verbs::time::Duration;

use crate::model::{FIXED, done};

/// Time for which an operation tries.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// Longer than any lease that matters here.
pub(crate) const LONG: Duration = Duration::from_secs(10);

/// Longer than an operation that ends by itself takes.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// Two servers, the first of which has the root.
pub(crate) const TWO: Shape = Shape { servers: 0b11, ..FIXED };

pub(crate) type Opened = Rc<Index<SimDevice>>;

pub(crate) struct Lab {
    pub(crate) world: World,
    pub(crate) servers: Vec<Rc<Server>>,
}

impl Lab {
    pub(crate) fn new(shape: Shape, spare: u64, lease: Duration) -> Self {
        let world = World::new(1, Options::default());
        let servers = serve(&world, shape, spare, lease);
        Self { world, servers }
    }

    pub(crate) fn client(&self, name: &str) -> (Machine, Opened) {
        let config =
            RemoteConfig { contention: Contention::SMART, patience: PATIENCE, ..RemoteConfig::default() };
        let machine = self.world.machine(MachineOptions::named(name));
        let memory = begin(&machine, &self.servers, config, &mut random(1, 1));
        let open = async move |_| {
            Rc::new(Index::open(memory, 0, Rc::new(NodeCache::new(1 << 20))).await.expect("opened"))
        };
        let index = self.run(&machine, &Rc::new(()), open);
        (machine, index)
    }

    /// Runs something to its end, which must come soon.
    pub(crate) fn run<I: 'static, T: 'static>(
        &self,
        machine: &Machine,
        index: &Rc<I>,
        work: impl AsyncFnOnce(Rc<I>) -> T + 'static,
    ) -> T {
        let of = Rc::clone(index);
        let task = machine.spawn(async move { work(of).await });
        self.world.run_until(|| task.has_ended(), SOON).expect("nothing is in the way");
        task.take().expect("the machine lives")
    }
}

/// A burst whose node belongs on a server that is away: the leaf lies on a server that lives. Its keys can be changed meanwhile, and the
/// insertion gives up in time.
#[test]
fn a_burst_waits_for_another_server_with_nothing_locked() {
    let mut away = 0;
    for first in 1..9_u64 {
        let key = move |at: u64| first << 56 | at << 40;
        let lab = Lab::new(TWO, 64 << 20, LONG);
        let (filling, filler) = lab.client("filling");
        let (changing, changer) = lab.client("changing");
        // A leaf of the root, on server 0, that is full of keys of one first byte.
        lab.run(&filling, &filler, async move |index: Opened| {
            for at in 0..49 {
                assert!(done(index.insert(key(at), &[1; 8]).await));
            }
        });
        lab.servers[1].die();
        let update = async move |index: Opened| {
            for at in 0..49 {
                assert!(done(index.update(key(at), &[2; 8]).await), "{at}");
            }
        };
        lab.run(&changing, &changer, update);
        let of = Rc::clone(&filler);
        let insert = filling.spawn(async move { of.insert(key(60), &[1; 8]).await.result });
        lab.world.run_for(PATIENCE / 2);
        lab.run(&changing, &changer, update);
        lab.world.run_until(|| insert.has_ended(), PATIENCE * 2).expect("it has no more patience");
        match insert.take().expect("the machine lives") {
            Err(IndexError::Common(CommonError::GaveUp { .. })) => away += 1,
            inserted => assert_eq!(inserted, Ok(true), "its node is on the same server"),
        }
        lab.run(&changing, &changer, update);
        lab.servers[1].revive(100);
        lab.run(&filling, &filler, async move |index: Opened| {
            // The client has to notice first that it is there again.
            while index.upsert(key(60), &[1; 8]).await.result != Ok(true) {}
            assert_eq!(index.verify().await.map(|found| (found.keys, found.unfinished)), Ok((50, 0)));
        });
    }
    assert!((1..8).contains(&away), "{away} of 8 nodes belong on the other server");
}

/// Keys of which the node lies on server 1, below the root on server 0, in leaves that are split and not burst.
fn keys_on_the_second_server() -> impl Fn(u64) -> u64 + Copy + 'static {
    let on_second = |&first: &u64| {
        let key = move |at: u64| first << 56 | at << 48;
        let lab = Lab::new(TWO, 64 << 20, LONG);
        let (machine, index) = lab.client("client");
        lab.run(&machine, &index, async move |index: Opened| {
            for at in 0..60 {
                assert!(done(index.insert(key(at), &[1; 8]).await));
            }
        });
        lab.servers[1].die();
        let of = Rc::clone(&index);
        let update = machine.spawn(async move { of.update(key(0), &[2; 8]).await.result });
        lab.world.run_until(|| update.has_ended(), SOON).is_err()
    };
    let first = (1..20).find(on_second).expect("half of them are");
    move |at: u64| first << 56 | (at % 40) << 48 | (at / 40)
}

/// Leaves merge, and the last one would take the place of its node, whose entry lies on a server that is away.
#[test]
fn deletions_end_while_the_node_above_is_away() {
    let key = keys_on_the_second_server();
    let lab = Lab::new(TWO, 64 << 20, LONG);
    let (machine, index) = lab.client("client");
    lab.run(&machine, &index, async move |index: Opened| {
        for at in 0..80 {
            assert!(done(index.insert(key(at), &[1; 8]).await));
        }
    });
    lab.servers[0].die();
    lab.run(&machine, &index, async move |index: Opened| {
        for at in 0..80 {
            assert!(done(index.delete(key(at)).await), "{at}");
        }
    });
    lab.servers[0].revive(100);
    // The node above may not know yet that a node has moved.
    let left = lab.run(&machine, &index, async |index: Opened| index.verify().await);
    assert_eq!(left.map(|found| found.keys), Ok(0));
}

/// A node grows, so its former place leads to the next one until the node above is there again.
#[test]
fn insertions_end_while_the_node_above_is_away() {
    let key = keys_on_the_second_server();
    let lab = Lab::new(TWO, 64 << 20, LONG);
    let (machine, index) = lab.client("client");
    let (watching, watcher) = lab.client("watching");
    let (first, last) = (100, 1_200);
    let get = async move |index: Opened| {
        for at in 0..first {
            assert_eq!(index.get(key(at)).await.result.map(|found| found.is_some()), Ok(true), "{at}");
        }
    };
    lab.run(&machine, &index, async move |index: Opened| {
        for at in 0..first {
            assert!(done(index.insert(key(at), &[1; 8]).await));
        }
    });
    lab.run(&watching, &watcher, get);
    let before = lab.run(&machine, &index, async |index: Opened| index.verify().await).expect("it is whole");
    lab.servers[0].die();
    lab.run(&machine, &index, async move |index: Opened| {
        for at in first..last {
            assert!(done(index.insert(key(at), &[1; 8]).await), "{at}");
        }
    });
    // A client that knows the former node.
    lab.run(&watching, &watcher, get);
    let insert = async move |index: Opened| {
        for at in last..last + 200 {
            assert!(done(index.insert(key(at), &[1; 8]).await), "{at}");
        }
    };
    lab.run(&watching, &watcher, insert);
    lab.servers[0].revive(100);
    let after =
        lab.run(&watching, &watcher, async |index: Opened| index.verify().await).expect("it is whole");
    assert_eq!(after.keys, last + 200);
    assert!(after.sizes[3..6] > before.sizes[3..6], "no node has grown: {before:?} {after:?}");
}

/// A client has died in a burst, and the new part lies on a server that is away. Other leaves of the node can be changed, and split.
#[test]
fn a_burst_that_is_half_done_locks_no_other_leaf() {
    let lease = Duration::from_millis(2);
    let mut waited = 0;
    for (first, requests) in (1..9_u64).flat_map(|first| (1..9).map(move |requests| (first, requests))) {
        let key = move |at: u64| first << 56 | at << 40;
        let other = move |at: u64| (64 + at % 40) << 56 | at;
        let lab = Lab::new(TWO, 64 << 20, lease);
        let (dying, index) = lab.client("dying");
        let (living, next) = lab.client("living");
        let fill = async move |index: Opened| {
            for at in 0..49 {
                assert!(done(index.insert(key(at), &[1; 8]).await));
            }
            // In a leaf of their own, which is split and does not burst.
            for at in 0..40 {
                assert!(done(index.insert(other(at), &[1; 8]).await));
            }
        };
        lab.run(&dying, &index, fill);
        dying.mute_after_changes(requests);
        let of = Rc::clone(&index);
        drop(dying.spawn(async move { of.insert(key(60), &[1; 8]).await }));
        lab.world.run_for(Duration::from_micros(300));
        dying.kill();
        lab.servers[1].die();
        lab.world.run_for(lease * 2);
        // Completes it, takes it back, or waits.
        let of = Rc::clone(&next);
        let update = living.spawn(async move { of.update(key(7), &[2; 8]).await.result });
        lab.world.run_for(PATIENCE / 4);
        lab.run(&living, &next, async move |index: Opened| {
            for at in 40..80 {
                assert!(done(index.insert(other(at), &[1; 8]).await), "{at}");
            }
        });
        lab.world.run_until(|| update.has_ended(), SOON).expect("it has no more patience");
        match update.take().expect("the machine lives") {
            Ok(is_there) => assert!(is_there),
            Err(IndexError::Common(CommonError::GaveUp { .. })) => waited += 1,
            Err(error) => panic!("{error}"),
        }
        lab.servers[1].revive(100);
        lab.run(&living, &next, async move |index: Opened| {
            while index.upsert(key(60), &[3; 8]).await.result != Ok(true) {}
            assert!(done(index.update(key(7), &[3; 8]).await));
            assert_eq!(index.verify().await.map(|found| found.keys), Ok(50 + 40 + 40));
        });
    }
    println!("{waited} updates waited for the other server");
    assert!(waited > 0);
}

/// Nothing is begun without room: what is there can be changed and taken away, and then there is room again.
#[test]
fn a_full_index_takes_updates_and_deletions() {
    for servers in [0b1, 0b11, 0b111] {
        let lab = Lab::new(Shape { servers, ..FIXED }, 256 << 10, LONG);
        let clients = ["one", "other"].map(|name| lab.client(name));
        let key = |at: u64| (at % 4) << 61 | at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3;
        let mut keys = Vec::new();
        for number in 0..20_000 {
            let (machine, index) = &clients[number as usize % 2];
            let inserted =
                lab.run(machine, index, async move |index: Opened| index.insert(key(number), &[1; 8]).await);
            match inserted.result {
                Ok(is_new) => assert!(is_new),
                Err(IndexError::Common(CommonError::NoMemory { .. }))
                    if keys.len() as u64 + 2_000 < number =>
                {
                    break;
                }
                Err(IndexError::Common(CommonError::NoMemory { .. })) => continue,
                Err(error) => panic!("{error}"),
            }
            keys.push(key(number));
        }
        println!("{} keys fit {servers:#b}", keys.len());
        for (round, (machine, index)) in (2_u8..).zip(&clients) {
            let all = keys.clone();
            lab.run(machine, index, async move |index: Opened| {
                for key in all {
                    assert!(done(index.update(key, &[round; 8]).await), "{key:#x}");
                }
            });
        }
        let (gone, left) = keys.split_at(keys.len() / 2);
        for ((machine, index), all) in clients.iter().zip(gone.chunks(gone.len().div_ceil(2))) {
            let all = all.to_vec();
            lab.run(machine, index, async move |index: Opened| {
                for key in all {
                    assert!(done(index.delete(key).await), "{key:#x}");
                }
            });
        }
        let (machine, index) = &clients[0];
        let (again, left) = (gone.to_vec(), left.len());
        let (inserted, found) = lab.run(machine, index, async move |index: Opened| {
            let mut inserted = 0;
            for key in again {
                inserted += usize::from(index.insert(key, &[1; 8]).await.result == Ok(true));
            }
            (inserted, index.verify().await.expect("it is whole"))
        });
        println!("{inserted} of {} could be put again", gone.len());
        assert!(inserted > gone.len() * 9 / 10, "{inserted} of {}", gone.len());
        assert_eq!((found.keys as usize, found.unfinished), (left + inserted, 0));
    }
}

/// Chunks that the servers have given, by round, to a client that puts keys with long values and takes them away again.
fn chunks_of_records(servers: u32, rounds: &[u64]) -> Vec<u64> {
    let shape = Shape { servers, max_value: 1_000 };
    let world = World::new(1, Options::default());
    let all = serve(&world, shape, 24 << 20, LONG);
    let machine = world.machine(MachineOptions::named("client"));
    let config = RemoteConfig { contention: Contention::SMART, ..RemoteConfig::default() };
    let memory = begin(&machine, &all, config, &mut random(1, 1));
    let (ended, failed): (Rc<Cell<u64>>, Rc<RefCell<Option<IndexError>>>) = Default::default();
    let (log, why) = (Rc::clone(&ended), Rc::clone(&failed));
    drop(machine.spawn(async move {
        let index =
            Index::open(memory, shape.home(), Rc::new(NodeCache::new(1 << 20))).await.expect("opened");
        for round in 1.. {
            // They share their first byte: a leaf of the root bursts into a node on another server, and comes back.
            let key = |at: u64| 1 << 56 | at << 48;
            for at in 0..200 {
                if let Err(error) = index.upsert(key(at), &[1; 400]).await.result {
                    why.borrow_mut().get_or_insert(error);
                }
            }
            for at in 0..200 {
                let _done = index.delete(key(at)).await;
            }
            log.set(round);
        }
    }));
    let count = |&round: &u64| {
        world.run_until(|| ended.get() >= round, Duration::from_secs(10_000)).expect("nothing is in the way");
        all.iter().map(|server| server.count("chunks_published")).sum()
    };
    let counts = rounds.iter().map(count).collect();
    assert_eq!(failed.take(), None);
    counts
}

/// A record lies where its leaf was. After a burst that is another server than the leaf's.
#[test]
fn records_on_another_server_than_their_leaf_are_freed() {
    for servers in [0b1, 0b11, 0b111] {
        let counts = chunks_of_records(servers, &[5, 20, 60]);
        println!("chunks on servers {servers:#b}: {counts:?}");
        assert!(counts[2] <= counts[0] + 8, "200 keys of 400 bytes: {counts:?}");
    }
}

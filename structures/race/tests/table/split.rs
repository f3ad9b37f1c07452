//! Splits that cannot go on: without memory, without another server, without the client that began them. No key of a server that lives stays
//! frozen.

use std::rc::Rc;

use fatbtree_race::{Check, Shape, Table, TableError, Verified};
use fatbtree_remote_memory::{CommonError, Contention, Keys};
use fatbtree_sim::hash::lab::{Server, begin, serve};
use fatbtree_sim::world::{Machine, MachineOptions, Options, SimDevice, Task, World, random};
use fatbtree_verbs::time::Duration;

use crate::model::{SMALL, done, value};

const CHUNK: u64 = 64 << 10;

/// Far more than an operation takes in which nothing is in the way.
const SOON: Duration = Duration::from_secs(1);

/// Ten pairs of subtables fit a chunk.
const FEW_PAIRS: Shape = Shape { groups: 16, ..SMALL };

/// Two subtables come to lie on the first server before a pair belongs on the other one.
pub(crate) const TWO_SERVERS: Shape =
    Shape { groups: 4, directory_bits: 8, servers: 0b11, max_value: 100, keys: Keys::Numbers };

/// A client with its machine.
pub(crate) struct Client {
    pub(crate) machine: Machine,
    table: Rc<Table<SimDevice>>,
}

impl Client {
    pub(crate) fn new(world: &World, servers: &[Rc<Server>], name: &str, seed: u64) -> Self {
        let machine = world.machine(MachineOptions::named(name));
        let memory = begin(&machine, servers, Contention::SMART, &mut random(seed, 1));
        let task = machine.spawn(async move { Table::open(memory, 0).await.expect("the servers live") });
        world.run_until(|| task.has_ended(), SOON).expect("nothing is in the way");
        Self { machine, table: Rc::new(task.take().expect("the machine lives")) }
    }

    pub(crate) fn spawn<T: 'static>(
        &self,
        work: impl AsyncFnOnce(Rc<Table<SimDevice>>) -> T + 'static,
    ) -> Task<T> {
        let table = Rc::clone(&self.table);
        self.machine.spawn(async move { work(table).await })
    }

    /// Does something to its end.
    pub(crate) fn run<T: 'static>(
        &self,
        world: &World,
        work: impl AsyncFnOnce(Rc<Table<SimDevice>>) -> T + 'static,
    ) -> T {
        let task = self.spawn(work);
        world.run_until(|| task.has_ended(), Duration::from_secs(20)).expect("it ends");
        task.take().expect("the machine lives")
    }

    pub(crate) fn verify(&self, world: &World) -> Verified {
        self.run(world, async |table| table.verify().await.expect("the structure is right"))
    }
}

/// Inserts keys until one fails. Returns how many are there, and why.
async fn fill(table: &Table<SimDevice>) -> (u64, TableError) {
    for key in 0.. {
        if let Err(error) = table.insert(key, &value(key, 0, 20)).await.result {
            return (key, error);
        }
    }
    unreachable!("memory has an end")
}

/// What happens to a full table.
struct Full {
    error: TableError,
    refused: Vec<TableError>,
    /// Time that the insertion has taken which failed.
    took: Duration,
    inserted_again: bool,
    verified: Verified,
}

/// Fills a table whose splits have no more memory: one chunk is for pairs, three for blocks. Then half of the keys are deleted, and the other
/// ones updated.
fn full() -> Full {
    let world = World::new(1, Options::default());
    let servers = serve(&world, FEW_PAIRS, 4 * CHUNK, SOON);
    let client = Client::new(&world, &servers, "client", 1);
    let machine = client.machine.clone();
    let (error, refused, took, inserted_again) = client.run(&world, async move |table| {
        let (keys, error) = fill(&table).await;
        let began = machine.now();
        assert!(table.insert(keys, &value(keys, 0, 20)).await.result.is_err());
        let (mut refused, took) = (Vec::new(), machine.now() - began);
        for key in 0..keys / 2 {
            assert!(table.search(key).await.result.expect("it can be read").is_some());
            refused.extend(table.delete(key).await.result.err());
        }
        for key in keys / 2..keys {
            refused.extend(table.update(key, &value(key, 1, 20)).await.result.err());
        }
        let inserted_again = refused.is_empty() && done(table.insert(0, &value(0, 2, 20)).await);
        (error, refused, took, inserted_again)
    });
    Full { error, refused, took, inserted_again, verified: client.verify(&world) }
}

#[test]
fn a_full_table_takes_deletions_and_updates() {
    let Full { error, refused, took, inserted_again, verified } = full();
    assert!(matches!(error, TableError::Common(CommonError::NoMemory { .. })), "{error:?}");
    assert!(refused.is_empty() && inserted_again, "{} refused: {:?}", refused.len(), refused.first());
    assert_eq!(verified.unfinished, 0, "nothing was begun");
    assert!(took < Duration::from_millis(1), "nothing was waited for: {took}");
}

/// A client that freezes slots before it has memory: another one takes that back.
#[test]
fn a_split_that_was_begun_without_memory_is_taken_back() {
    let begun = || Check::Reserves.without(full);
    let Full { error, refused, took, .. } = begun();
    assert!(
        matches!(
            error,
            TableError::Common(CommonError::GaveUp { .. }) | TableError::Common(CommonError::NoMemory { .. })
        ),
        "{error:?}"
    );
    assert!(refused.is_empty(), "{} refused: {:?}", refused.len(), refused.first());
    assert!(took > Duration::from_millis(5), "it had to be taken back: {took}");
    let Full { refused, verified, .. } = Check::Thaws.without(begun);
    assert!(!refused.is_empty() && verified.unfinished > 0, "its keys are frozen for ever");
}

/// The pair belongs on a server that is down. It is put on the one that lives: all keys there can be changed, and inserted.
#[test]
fn a_split_needs_no_server_that_is_away() {
    let world = World::new(1, Options::default());
    let servers = serve(&world, TWO_SERVERS, 16 << 20, SOON);
    let [filling, changing] =
        [("filling", 1), ("changing", 2)].map(|(name, seed)| Client::new(&world, &servers, name, seed));
    filling.run(&world, async |table| {
        for key in 0..110 {
            assert!(done(table.insert(key, &value(key, 0, 20)).await));
        }
    });
    servers[1].die();
    let update_all = |number| {
        async move |table: Rc<Table<SimDevice>>| {
            for key in 0..110 {
                assert!(done(table.update(key, &value(key, number, 20)).await));
            }
        }
    };
    changing.run(&world, update_all(1));
    filling.run(&world, async |table| {
        for key in 200..300 {
            assert!(done(table.insert(key, &value(key, 0, 20)).await));
        }
    });
    changing.run(&world, update_all(2));
    servers[1].revive(9);
    let verified = changing.verify(&world);
    assert_eq!((verified.keys, verified.servers, verified.unfinished), (210, 0b01, 0));
    // From now on the other one has pairs again.
    filling.run(&world, async |table| {
        for key in 300..600 {
            assert!(done(table.insert(key, &value(key, 0, 20)).await));
        }
    });
    assert_eq!(changing.verify(&world).servers, 0b11);
}

/// An insertion splits a subtable, and its key comes to another server: it leaves the block that it has written, and links one there. A block is
/// linked on its own server only: sweeps over several servers rely on it.
#[test]
fn an_insertion_that_comes_to_another_server_takes_a_block_there() {
    let world = World::new(1, Options::default());
    let servers = serve(&world, TWO_SERVERS, 16 << 20, SOON);
    let client = Client::new(&world, &servers, "client", 1);
    let left = client.run(&world, async |table| {
        for key in 0..400 {
            assert!(done(table.insert(key, &value(key, 0, 20)).await));
            // Nothing else frees a block.
            if table.memory().kept_bytes(0) > 0 {
                return Some(key);
            }
        }
        None
    });
    assert!(left.is_some(), "no insertion came to the other server");
    assert_eq!(client.verify(&world).servers, 0b11);
}

/// Two clients of a server with three chunks: one of blocks for each client, and one for pairs.
fn two_clients() -> (World, [Client; 2]) {
    let world = World::new(1, Options::default());
    let servers = serve(&world, FEW_PAIRS, 3 * CHUNK, Duration::from_millis(2));
    let clients = [("dying", 1), ("other", 2)].map(|(name, seed)| Client::new(&world, &servers, name, seed));
    clients[1].run(&world, async |table| assert!(done(table.insert(u64::MAX, &value(0, 0, 20)).await)));
    (world, clients)
}

/// Keys that fit before the first split.
fn keys_before_a_split() -> u64 {
    let (world, [dying, _other]) = two_clients();
    dying.run(&world, async |table| {
        for key in 0.. {
            if table.insert(key, &value(key, 0, 20)).await.round_trips > 10 {
                return key;
            }
        }
        unreachable!("a subtable is full in the end")
    })
}

/// A client dies at each moment of a split, with the last memory that there was for a pair. Another one changes all keys all the same.
#[test]
fn a_client_that_dies_with_the_last_memory_leaves_nothing_frozen() {
    let keys = keys_before_a_split();
    let (mut unfinished, mut polls) = (0, 0);
    loop {
        let (world, [dying, other]) = two_clients();
        dying.run(&world, async move |table| {
            for key in 0..keys {
                assert!(done(table.insert(key, &value(key, 0, 20)).await), "{key}");
            }
        });
        dying.machine.kill_after_polls(polls);
        let splitting = dying.spawn(async move |table| table.insert(keys, &value(keys, 0, 20)).await.result);
        world.run_for(Duration::from_millis(10));
        let has_ended = splitting.has_ended() && dying.machine.is_up();
        let before = other.verify(&world);
        other.run(&world, async move |table| {
            for key in 0..keys {
                assert!(done(table.update(key, &value(key, 1, 20)).await), "{key}");
            }
        });
        let after = other.verify(&world);
        assert_eq!(after.unfinished, 0, "{before:?} {after:?}");
        unfinished += before.unfinished;
        if has_ended {
            assert_eq!(after.former, 1, "{after:?}");
            break;
        }
        // Closer where the split is under way.
        polls += if before.unfinished > 0 { 1 } else { 3 };
    }
    println!("{polls} moments, {unfinished} of them in the middle");
    assert!(unfinished > 5, "it was never in the middle of it");
}

/// A client stands still at a moment of its split, another one reads all keys meanwhile and remembers their places, and a third one deletes them
/// after the split. Keys that the second one finds then.
fn found_after_a_split(moment: Duration) -> usize {
    const KEYS: u64 = 82;
    let world = World::new(1, Options::default());
    let servers = serve(&world, TWO_SERVERS, 16 << 20, SOON);
    let clients = [("splitting", 1), ("reading", 2), ("deleting", 3)];
    let [splitting, reading, deleting] =
        clients.map(|(name, seed)| Client::new(&world, &servers, name, seed));
    splitting.run(&world, async |table| {
        for key in 0..KEYS {
            assert!(done(table.insert(key, &value(key, 0, 20)).await));
        }
    });
    reading.table.remember_places(1 << 16);
    let insert = splitting.spawn(async |table| table.insert(KEYS, &value(KEYS, 0, 20)).await.result);
    world.run_for(moment);
    splitting.machine.freeze();
    reading.run(&world, async |table| {
        for key in 0..KEYS {
            assert!(table.search(key).await.result.expect("it is right").is_some());
        }
    });
    splitting.machine.thaw();
    world.run_until(|| insert.has_ended(), SOON).expect("nothing is in the way");
    deleting.run(&world, async |table| {
        for key in 0..KEYS {
            assert!(done(table.delete(key).await));
        }
    });
    reading.run(&world, async |table| {
        let mut found = 0;
        for key in 0..KEYS {
            found += usize::from(table.search(key).await.result.expect("it is right").is_some());
        }
        found
    })
}

#[test]
fn a_slot_that_was_frozen_is_not_remembered() {
    let found = || (0..60).map(|step| found_after_a_split(Duration::from_micros(2) * step)).sum::<usize>();
    assert_eq!(found(), 0);
    assert!(Check::RememberFrozen.without(found) > 0, "no frozen slot was read");
}

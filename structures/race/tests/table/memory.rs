//! Memory of blocks: inserts and deletes without end take no more than what is live, and a share.

use std::rc::Rc;

use fatbtree_race::{Check, Shape, Table, block};
use fatbtree_remote_memory::record::{RecordHead, is_record};
use fatbtree_remote_memory::{Contention, GlobalAddress};
use fatbtree_sim::hash::lab::{begin, serve};
use fatbtree_sim::world::{MachineOptions, Options, SimDevice, World, random};
use fatbtree_verbs::time::Duration;

use crate::model::{SMALL, done, value, with_table};

/// Bytes of a server's chunk in the laboratory.
const CHUNK: u64 = 64 << 10;

/// Inserts, updates and deletes 100 keys again and again. Returns the chunks that the server has given.
fn chunks_after(rounds: u64) -> u64 {
    let world = World::new(1, Options::default());
    let servers = serve(&world, SMALL, 4 << 20, Duration::from_secs(1));
    let machine = world.machine(MachineOptions::named("client"));
    let memory = begin(&machine, &servers, Contention::SMART, &mut random(1, 1));
    let task = machine.spawn(async move {
        let table = Table::open(memory, 0).await.expect("the server lives");
        for round in 0..rounds {
            for key in 0..100 {
                assert!(done(table.insert(key + round, &value(key, round, 50)).await));
            }
            for key in 0..100 {
                assert!(done(table.update(key + round, &value(key, round, 60)).await));
                assert!(done(table.delete(key + round).await));
            }
        }
    });
    world.run_until(|| task.has_ended(), Duration::from_secs(100)).expect("nothing is in the way");
    task.take().expect("the machine lives");
    servers[0].count("chunks_published")
}

#[test]
fn memory_is_used_again() {
    assert_eq!(chunks_after(30), chunks_after(2));
    // The published code frees no block.
    let never_freed = Check::Freed.without(|| chunks_after(30));
    assert!(never_freed > chunks_after(2) + 2, "{never_freed}");
}

/// Version of the record of a key at the end of the used part of the region, where the last block was taken.
fn written_versions(discards: bool) -> (u32, u32) {
    with_table(SMALL, 1 << 20, async move |table| {
        assert!(done(table.insert(1, &value(1, 0, 20)).await));
        // The block is filled, and not linked: the key is there. The next record lies in the same place.
        let insert = if discards { 1 } else { 2 };
        assert_eq!(done(table.insert(insert, &value(1, 1, 20)).await), !discards);
        if !discards {
            assert!(done(table.delete(insert).await));
        }
        let before = last_version(&table).await;
        assert!(done(table.insert(3, &value(3, 0, 20)).await));
        (before, last_version(&table).await)
    })
}

/// Version of the record that lies at the highest address.
async fn last_version(table: &Table<SimDevice>) -> u32 {
    let memory = table.memory();
    let bytes = memory.read_long(&memory.take_lane(), GlobalAddress::new(0, 0), 256 << 10).await;
    let bytes = bytes.expect("the server lives");
    let mut heads = bytes.chunks(64).filter(|unit| is_record(unit));
    let last = heads.next_back().and_then(<[u8]>::first_chunk).expect("there are records");
    RecordHead::parse(last).version()
}

/// Each record at a place has a version of its own: that of a block that was unlinked, and that of one that never was linked.
#[test]
fn each_record_at_a_place_has_a_version_of_its_own() {
    for (check, discards) in [(Check::DiscardedVersion, true), (Check::FreedVersion, false)] {
        let (before, after) = written_versions(discards);
        assert_eq!(after, before + 1, "{check:?}");
        let (before, after) = check.without(|| written_versions(discards));
        assert_eq!(after, before, "{check:?}");
    }
}

/// Keys that live at once.
const LIVE: u64 = 500;

/// Length of a key's value: there are six.
fn length(key: u64) -> usize {
    20 + (key % 6) as usize * 60
}

/// Bytes of the blocks of so many keys that live.
fn live_bytes() -> u64 {
    (0..LIVE).map(|key| u64::from(block::block_bytes(length(key) as u32))).sum()
}

/// Most bytes of chunks that a server ever gives for the keys that live, to clients that die one after the other. What a client has freed it
/// keeps, and takes along; the next one lives on other blocks until the server has found these. So there may be as many blocks as live once
/// more, and each of two clients has a chunk that it has begun.
fn bound() -> u64 {
    2 * live_bytes() + 2 * CHUNK
}

/// What is left of clients' lives.
#[derive(Debug)]
struct Left {
    /// Bytes of chunks that are in use.
    bytes: u64,
    /// Blocks that the server has found again.
    reclaimed: u64,
    /// Inserts; there were as many deletes.
    inserts: u64,
}

/// Lets clients live one after the other. Each puts [`LIVE`] keys with values of six sizes and deletes them, `rounds` times, and dies with all
/// that it has freed. `beside` them another one lives all the time, and works.
fn lives(servers: u32, number: u64, rounds: u64, beside: bool) -> Left {
    let world = World::new(1, Options::default());
    let lease = Duration::from_millis(1);
    // On one server no subtable is ever full: subtables that were split keep their memory. Over several, slots lead to other servers by splits.
    let groups = if servers.count_ones() == 1 { 64 } else { 4 };
    let shape = Shape { groups, servers, ..SMALL };
    let servers = serve(&world, shape, 64 << 20, lease);
    let count = |name| servers.iter().map(|server| server.count(name)).sum::<u64>();
    let before = count("region_bytes_used");
    if beside {
        let machine = world.machine(MachineOptions::named("the client beside them"));
        let memory = begin(&machine, &servers, Contention::SMART, &mut random(1, 2));
        drop(machine.clone().spawn(async move {
            let table = Table::open(memory, 0).await.expect("the server lives");
            for round in 0.. {
                let key = u64::MAX - round % 7;
                let expected = value(key, round, length(round));
                assert!(done(table.upsert(key, &expected).await));
                let found = table.search(key).await.result.expect("the server lives");
                assert_eq!(found.as_deref(), Some(&expected[..]));
                machine.sleep(Duration::from_micros(20)).await;
            }
        }));
    }
    for life in 0..number {
        let machine = world.machine(MachineOptions::named(format!("client {life}")));
        let memory = begin(&machine, &servers, Contention::SMART, &mut random(life, 1));
        let task = machine.spawn(async move {
            let table = Table::open(Rc::clone(&memory), 0).await.expect("the server lives");
            for round in 0..rounds {
                let keys = (life * rounds + round) * LIVE..(life * rounds + round + 1) * LIVE;
                for key in keys.clone() {
                    assert!(done(table.insert(key, &value(key, round, length(key))).await));
                }
                for key in keys {
                    assert!(done(table.delete(key).await), "{key}");
                }
            }
        });
        world.run_until(|| task.has_ended(), Duration::from_secs(10_000)).expect("nothing is in the way");
        task.take().expect("no answer was wrong");
        machine.kill();
        world.run_for(lease * 4);
    }
    let [used, reclaimed] = ["region_bytes_used", "blocks_reclaimed"].map(count);
    Left { bytes: used - before, reclaimed, inserts: number * rounds * LIVE }
}

/// Clients that die take blocks with them. The server finds these, and clients after them use them: memory does not grow.
#[test]
fn memory_of_clients_that_died_is_used_again() {
    let left = lives(1, 30, 1, false);
    println!("{left:?}, at most {} bytes; live were {}", bound(), live_bytes());
    assert!(left.reclaimed > 20 * LIVE && left.bytes <= bound(), "{left:?}");
}

/// The same for a table over three servers, which sweep together after each death.
#[test]
fn memory_of_clients_that_died_is_used_again_over_several_servers() {
    let left = lives(0b111, 30, 1, false);
    println!("{left:?}, at most {} bytes; live were {}", 3 * bound(), live_bytes());
    assert!(left.reclaimed > 20 * LIVE && left.bytes <= 3 * bound(), "{left:?}");
}

/// The same beside a client that lives on: the sweeps of the server do not wait for its end.
#[test]
fn memory_is_found_again_beside_a_client_that_lives() {
    let left = lives(1, 30, 1, true);
    println!("{left:?}, at most {} bytes; live were {}", bound(), live_bytes());
    assert!(left.reclaimed > 20 * LIVE && left.bytes <= bound(), "{left:?}");
}

#[test]
fn a_hundred_thousand_inserts_and_deletes_take_bounded_memory() {
    let left = lives(1, 10, 20, true);
    println!("{left:?}, at most {} bytes; live were {}", bound(), live_bytes());
    assert!(left.inserts == 100_000 && left.bytes <= bound(), "{left:?}");
}

/// 10 million inserts and as many deletes, by 20 clients that die: some minutes of processor time.
/// `cargo test --release -p fatbtree-race --test table -- --ignored ten_million`
#[test]
#[ignore = "minutes of processor time; a_hundred_thousand_inserts_and_deletes_take_bounded_memory is its small variant"]
fn ten_million_inserts_and_deletes_take_bounded_memory() {
    let left = lives(1, 20, 1_000, true);
    println!("{left:?}, at most {} bytes; live were {}", bound(), live_bytes());
    assert!(left.inserts == 10_000_000 && left.bytes <= bound(), "{left:?}");
}

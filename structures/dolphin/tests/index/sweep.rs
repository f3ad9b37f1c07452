//! Records of clients that died come back, on one server and over several: these sweep together while no client is there.

use fatbtree_dolphin::Shape;
use fatbtree_memserver::Check;
use fatbtree_verbs::time::Duration;

use crate::model::done;
use crate::servers::{Lab, Opened};

/// Keys that live at once, with a record each.
const LIVE: u64 = 300;

/// The value of a key after so many lives: records of two sizes, 320 and 384 bytes, in turns.
fn value(life: u64) -> Vec<u8> {
    vec![life as u8; 290 + (life % 2) as usize * 64]
}

const LEASE: Duration = Duration::from_millis(1);

/// Keys of several first bytes: bursts move their leaves to other servers, and leave the records behind.
const fn key(number: u64) -> u64 {
    (number % 3 + 1) << 56 | (number / 3) << 40
}

async fn put_all(index: &Opened, life: u64) {
    for number in 0..LIVE {
        assert!(done(index.upsert(key(number), &value(life)).await), "{number}");
    }
}

/// Use of memory after clients' lives, on all servers.
#[derive(Debug)]
struct Left {
    bytes: u64,
    reclaimed: u64,
    /// Servers that have found some.
    finders: usize,
}

/// Lets clients live one after the other. Each gives all keys values of another size, and dies with the records
/// of the size before, which it has freed.
fn lives(servers: u32, number: u64) -> Left {
    let lab = Lab::new(Shape { servers, max_value: 1_000 }, 64 << 20, LEASE);
    let count = |name| lab.servers.iter().map(|server| server.count(name)).sum::<u64>();
    let before = count("region_bytes_used");
    for life in 0..number {
        let (machine, index) = lab.client(&format!("client {life}"));
        lab.run(&machine, &index, async move |index: Opened| {
            put_all(&index, life).await;
        });
        drop(index);
        machine.kill();
        lab.world.run_for(LEASE * 4);
    }
    let (machine, index) = lab.client("last client");
    lab.run(&machine, &index, async move |index: Opened| {
        put_all(&index, number).await;
        for at in 0..LIVE {
            let found = index.get(key(at)).await.result.expect("the servers live");
            assert_eq!(found.as_deref(), Some(&value(number)[..]), "{at}");
        }
        assert_eq!(index.verify().await.expect("it is whole").keys, LIVE);
    });
    let [bytes, reclaimed] = ["region_bytes_used", "blocks_reclaimed"].map(count);
    let finders = lab.servers.iter().filter(|server| server.count("blocks_reclaimed") > 0).count();
    Left { bytes: bytes - before, reclaimed, finders }
}

/// Without sweeps 30 lives take 30 times the records of one.
#[test]
fn records_of_clients_that_died_are_used_again() {
    for servers in [0b1, 0b11, 0b111] {
        let left = lives(servers, 30);
        println!("{servers:#b}: {left:?}; live are {} bytes", LIVE * 384);
        assert!(left.reclaimed > 20 * LIVE / 3, "{left:?}");
        assert!(left.finders > 1 || servers == 1, "{left:?}");
        // A life takes no more than records of its size, and each server has chunks of leaves, nodes and records that were begun.
        let begun = u64::from(servers.count_ones()) * 3 * (32 << 10);
        assert!(left.bytes <= 2 * LIVE * (320 + 384) + begun, "{left:?}");
    }
}

/// Bursts have moved leaves, and left their records behind. Records that the first of two servers takes for lost when the client has died.
fn taken_after_bursts() -> u64 {
    let lab = Lab::new(Shape { servers: 0b11, max_value: 1_000 }, 64 << 20, LEASE);
    let (machine, index) = lab.client("client");
    lab.run(&machine, &index, async move |index: Opened| put_all(&index, 0).await);
    drop(index);
    machine.kill();
    let sweeps = || lab.servers.iter().all(|server| server.count("sweeps") > 0);
    lab.world.run_until(sweeps, LEASE * 100).expect("nothing is in the way");
    lab.servers[0].count("blocks_reclaimed")
}

#[test]
fn records_to_which_leaves_on_another_server_lead_stay() {
    assert_eq!(taken_after_bursts(), 0);
    assert!(Check::SweepAsks.without(taken_after_bursts) > 0, "no leaf leads to another server");
}

//! The tables against a map, in a world without faults: every answer, the structure, and the round trips.

use std::collections::BTreeMap;
use std::rc::Rc;

use fatbtree_dtx::{DtxError, Shape, TableShape, Tables, Verdict, Verified, Want};
use fatbtree_remote_memory::Contention;
use fatbtree_sim::transactions::lab::{begin, serve};
use fatbtree_sim::world::{MachineOptions, Options, SimDevice, World, random};
use fatbtree_verbs::time::Duration;
use proptest::prelude::*;

/// Two tables on three servers, with small nodes.
pub(crate) fn small(servers: u32, backups: u8) -> Shape {
    let table = TableShape { nodes: 10, value_bytes: 8, slots: 8 };
    let tables = [table, TableShape { value_bytes: 40, ..table }];
    let mut shape = Shape::new(&tables, servers, backups).expect("the shape is possible");
    shape.seats = 16;
    shape
}

/// Runs something with tables, alone in its world.
pub(crate) fn with_tables<T: 'static>(
    shape: Shape,
    work: impl AsyncFnOnce(Rc<Tables<SimDevice>>) -> T + 'static,
) -> T {
    let world = World::new(1, Options::default());
    let servers = serve(&world, shape, Duration::from_secs(1));
    let machine = world.machine(MachineOptions::named("client"));
    let memory = begin(&machine, &servers, Contention::SMART, &mut random(1, 1));
    let task = machine.spawn(async move {
        let tables = Tables::open(memory, shape.server(0)).await.expect("the server lives");
        work(Rc::new(tables)).await
    });
    world.run_until(|| task.has_ended(), Duration::from_secs(20)).expect("nothing is in the way");
    task.take().expect("the machine lives")
}

fn value(table: u8, number: u64) -> Vec<u8> {
    number.to_le_bytes().iter().copied().cycle().take(if table == 0 { 8 } else { 40 }).collect()
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Read,
    Write,
    Insert,
    Delete,
}

fn transaction() -> impl Strategy<Value = (Vec<(u8, u64, Act)>, bool)> {
    let act = prop_oneof![Just(Act::Read), Just(Act::Write), Just(Act::Insert), Just(Act::Delete)];
    (prop::collection::vec((0..2_u8, 0..24_u64, act), 1..4), prop::bool::weighted(0.8))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn tables_are_maps(transactions in prop::collection::vec(transaction(), 1..150)) {
        let (found, expected) = with_tables(small(0b1101, 2), async move |tables| {
            let mut map = BTreeMap::new();
            for (number, (acts, commits)) in (1..).zip(transactions) {
                let mut tx = tables.begin().await.expect("nothing is in the way");
                let mut changed = map.clone();
                for (table, key, act) in acts {
                    let (at, new) = ((table, key), value(table, number));
                    match act {
                        Act::Read => {
                            let found = tx.read(table, key).await.expect("nothing is in the way").map(<[u8]>::to_vec);
                            assert_eq!(found.as_ref(), changed.get(&at), "{at:?}");
                        }
                        Act::Write => {
                            tx.write(table, key, &new).await.expect("nothing is in the way");
                            changed.insert(at, new);
                        }
                        Act::Insert => {
                            let is_new = tx.insert(table, key, &new).await.expect("nothing is in the way");
                            assert_eq!(is_new, !changed.contains_key(&at), "{at:?}");
                            changed.entry(at).or_insert(new);
                        }
                        Act::Delete => {
                            let was = tx.delete(table, key).await.expect("nothing is in the way");
                            assert_eq!(was, changed.remove(&at).is_some(), "{at:?}");
                        }
                    }
                }
                if commits {
                    tx.commit().await.expect("nothing is in the way");
                    map = changed;
                } else {
                    tx.abort().await;
                }
            }
            let mut found = BTreeMap::new();
            let verified = tables.verify(|table, key, value| { found.insert((table, key), value.to_vec()); }).await;
            assert_eq!(found, map);
            (verified.expect("the structure is right"), map.len() as u64)
        });
        prop_assert_eq!((found.keys, found.locks, found.logs), (expected, 0, 0));
    }
}

/// With known addresses: FORD's numbers.
#[test]
fn round_trips() {
    with_tables(small(0b111, 1), async move |tables| {
        for key in 0..20 {
            let mut tx = tables.begin().await.expect("nothing is in the way");
            assert!(tx.insert(0, key, &value(0, key)).await.expect("there is room"));
            tx.commit().await.expect("nothing is in the way");
        }
        let two = tables
            .run(async |tx| {
                let [one, other] = tx.fetch([Want::write(0, 1), Want::write(0, 2)]).await?;
                tx.put(one, &value(0, 8))?;
                tx.put(other, &value(0, 9))?;
                Ok(Verdict::Commit(()))
            })
            .await;
        assert_eq!((two.result, two.round_trips, two.attempts), (Ok(()), 4, 1));
        let mixed = tables
            .run(async |tx| {
                let [one, other] = tx.fetch([Want::read(0, 1), Want::write(0, 2)]).await?;
                let read = tx.value(one).map(<[u8]>::to_vec).unwrap_or_default();
                tx.put(other, &read)?;
                Ok(Verdict::Commit(read))
            })
            .await;
        assert_eq!((mixed.result, mixed.round_trips), (Ok(value(0, 8)), 4));
        let both = tables
            .run(async |tx| {
                Ok(Verdict::Commit(tx.fetch([Want::read(0, 1), Want::read(0, 2)]).await.map(drop)?))
            })
            .await;
        assert_eq!((both.result, both.round_trips), (Ok(()), 2));
        let one = tables.run(async |tx| Ok(Verdict::Commit(tx.read(0, 3).await?.is_some()))).await;
        assert_eq!((one.result, one.round_trips), (Ok(true), 1));
        let aborted = tables
            .run(async |tx| {
                tx.write(0, 1, &value(0, 77)).await?;
                Ok(Verdict::Abort(()))
            })
            .await;
        assert_eq!((aborted.result, aborted.round_trips), (Ok(()), 2));
        let kept = tables.run(async |tx| Ok(Verdict::Commit(tx.read(0, 1).await?.map(<[u8]>::to_vec)))).await;
        assert_eq!(kept.result, Ok(Some(value(0, 8))));
        // A new key: node, head of the node, slot; then the four less the first.
        let mut tx = tables.begin().await.expect("nothing is in the way");
        assert!(tx.insert(0, 100, &value(0, 1)).await.expect("there is room"));
        assert_eq!(tx.round_trips(), 3);
        tx.commit().await.expect("nothing is in the way");
    });
}

#[test]
fn errors_say_what_to_do() {
    let table = TableShape { nodes: 1, value_bytes: 8, slots: 2 };
    let mut shape = Shape::new(&[table], 0b1, 0).expect("the shape is possible");
    (shape.seats, shape.writes) = (1, 2);
    with_tables(shape, async move |tables| {
        let mut tx = tables.begin().await.expect("nothing is in the way");
        assert_eq!(tables.begin().await.unwrap_err(), DtxError::NoSeat(0));
        assert_eq!(tx.read(1, 1).await.unwrap_err(), DtxError::NoTable(1));
        assert_eq!(tx.write(0, 1, &[0; 9]).await.unwrap_err(), DtxError::Length { found: 9, expected: 8 });
        let [read] = tx.fetch([Want::read(0, 5)]).await.expect("nothing is in the way");
        assert_eq!(tx.put(read, &[0; 8]).unwrap_err(), DtxError::NotLocked);
        tx.write(0, 1, &[1; 8]).await.expect("there is room");
        tx.write(0, 2, &[2; 8]).await.expect("there is room");
        assert_eq!(tx.write(0, 3, &[3; 8]).await.unwrap_err(), DtxError::Full { table: 0, key: 3 });
        // Two items and the head of their node.
        assert_eq!(tx.commit().await.unwrap_err(), DtxError::TooMany(2));
        let mut tx = tables.begin().await.expect("the seat is free again");
        assert_eq!(tx.read(0, 1).await, Ok(None));
        tx.abort().await;
        let verified = tables.verify(|_, _, _| {}).await.expect("the structure is right");
        assert_eq!(verified, Verified { seats: 1, ..Verified::default() });
    });
}

/// Of two items, one is locked in the first step, and the other is found in it and refused in the second.
#[test]
fn a_lock_is_released_though_a_later_one_was_refused() {
    with_tables(small(0b11, 1), async move |tables| {
        for key in [1, 2] {
            let mut tx = tables.begin().await.expect("nothing is in the way");
            assert!(tx.insert(0, key, &value(0, key)).await.expect("there is room"));
            tx.commit().await.expect("nothing is in the way");
        }
        // It knows no addresses but that of the first item.
        let other = Tables::open(Rc::clone(tables.memory()), tables.shape().server(0)).await;
        let other = other.expect("the server lives");
        let read = other.run(async |tx| Ok(Verdict::Commit(tx.read(0, 1).await.map(drop)?))).await;
        assert_eq!(read.result, Ok(()));

        let mut blocker = tables.begin().await.expect("nothing is in the way");
        blocker.write(0, 2, &value(0, 9)).await.expect("nothing is in the way");
        let mut tx = other.begin().await.expect("there is a seat");
        let refused = tx.fetch([Want::write(0, 1), Want::write(0, 2)]).await;
        assert!(matches!(refused, Err(DtxError::Conflict { .. })), "{refused:?}");
        assert_eq!(tx.round_trips(), 2);
        tx.abort().await;
        blocker.abort().await;
        let verified = tables.verify(|_, _, _| {}).await.expect("the structure is right");
        assert_eq!((verified.keys, verified.locks), (2, 0));
    });
}

/// Transactions of one client that want the same items: each takes effect once.
#[test]
fn transactions_of_one_client_overlap() {
    let sum = with_tables(small(0b11, 1), async move |tables| {
        let add = async |tables: Rc<Tables<SimDevice>>| {
            for _ in 0..20 {
                let added = tables
                    .run(async |tx| {
                        let [item] = tx.fetch([Want::write(0, 7)]).await?;
                        let old = tx.value(item).map_or(0, |value| u64::from(value[0]));
                        tx.put(item, &(old + 1).to_le_bytes())?;
                        Ok(Verdict::Commit(()))
                    })
                    .await;
                added.result.expect("nothing is in the way");
            }
        };
        let mut all: Vec<_> = (0..6).map(|_| Box::pin(add(Rc::clone(&tables)))).collect();
        std::future::poll_fn(|context| {
            all.retain_mut(|one| one.as_mut().poll(context).is_pending());
            if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        let mut tx = tables.begin().await.expect("nothing is in the way");
        tx.read(0, 7).await.expect("nothing is in the way").map(|value| value[0])
    });
    assert_eq!(sum, Some(120));
}

//! One entry a key, one moment a transaction: keys that are read and then locked, keys that are wanted twice, and items that are locked and
//! do not change.

use std::cell::Cell;
use std::rc::Rc;

use fatbtree_dtx::{DtxError, Place, Shape, TableShape, Tables, Verdict, Want};
use fatbtree_remote_memory::{Owner, SessionId};
use fatbtree_verbs::time::Duration;

use crate::model::{small, with_tables};
use crate::scene::{LONG, SOON, Scene, get, number, put};

/// A transaction reads a key, another one changes it, and then the first one writes what follows from the old value: to the same key, or to
/// another one, with the first one locked.
pub(crate) fn a_read_is_changed_before_it_is_locked(same: bool) -> Result<(), String> {
    with_tables(small(0b11, 1), async move |tables| {
        let work = async || {
            put(&tables, 1, 100).await?;
            let mut tx = tables.begin().await?;
            let old = number(tx.read(0, 1).await?).unwrap_or(0);
            put(&tables, 1, old + 50).await?;
            let ended = async {
                if same {
                    tx.write(0, 1, &(old + 10).to_le_bytes()).await?;
                } else {
                    let [_locked] = tx.fetch([Want::write(0, 1)]).await?;
                    tx.write(0, 2, &old.to_le_bytes()).await?;
                }
                tx.commit().await
            };
            let ended = ended.await;
            Ok::<_, DtxError>((ended, get(&tables, 1).await?, get(&tables, 2).await?))
        };
        match work().await.map_err(|error| error.to_string())? {
            (Err(DtxError::Conflict { .. }), Some(150), None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
}

/// The same of a key that was absent.
pub(crate) fn an_absence_ends_before_it_is_locked() -> Result<(), String> {
    with_tables(small(0b11, 1), async move |tables| {
        let work = async || {
            let mut tx = tables.begin().await?;
            let [absent] = tx.fetch([Want::read(0, 1)]).await?;
            assert_eq!(tx.value(absent), None);
            put(&tables, 1, 7).await?;
            let ended = match tx.write(0, 1, &8_u64.to_le_bytes()).await {
                Ok(()) => tx.commit().await,
                Err(error) => Err(error),
            };
            Ok::<_, DtxError>((ended, get(&tables, 1).await?))
        };
        match work().await.map_err(|error| error.to_string())? {
            (Err(DtxError::Conflict { .. }), Some(7)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
}

/// Of an absent key that is wanted twice, one slot is taken, and one deletion takes it away.
pub(crate) fn an_absent_key_is_wanted_twice() -> Result<(), String> {
    with_tables(small(0b11, 1), async move |tables| {
        let work = async || {
            let put = tables.run(async |tx| {
                let [a, b] = tx.fetch([Want::write(0, 5), Want::write(0, 5)]).await?;
                tx.put(a, &1_u64.to_le_bytes())?;
                tx.put(b, &2_u64.to_le_bytes())?;
                Ok(Verdict::Commit(()))
            });
            put.await.result?;
            // It knows no addresses.
            let other = Tables::open(Rc::clone(tables.memory()), tables.shape().server(0)).await?;
            let found = [get(&tables, 5).await?, get(&other, 5).await?];
            let verified = tables.verify(|_, _, _| {}).await;
            let deleted = tables.run(async |tx| Ok(Verdict::Commit(tx.delete(0, 5).await?))).await.result?;
            Ok::<_, DtxError>((found, verified.map(|found| found.keys), deleted, get(&other, 5).await?))
        };
        match work().await.map_err(|error| error.to_string())? {
            ([Some(2), Some(2)], Ok(1), true, None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
}

#[test]
fn what_was_read_is_what_is_locked() {
    a_read_is_changed_before_it_is_locked(true).unwrap();
    a_read_is_changed_before_it_is_locked(false).unwrap();
    an_absence_ends_before_it_is_locked().unwrap();
}

#[test]
fn an_absent_key_gets_one_slot() {
    an_absent_key_is_wanted_twice().unwrap();
}

/// All ways to want a key more than once: each shows the transaction's own changes.
#[test]
fn a_key_has_one_item() {
    with_tables(small(0b11, 1), async move |tables| {
        put(&tables, 1, 100).await.unwrap();
        let mut tx = tables.begin().await.unwrap();
        let [a, b, c] = tx.fetch([Want::read(0, 1), Want::write(0, 1), Want::read(0, 1)]).await.unwrap();
        assert!(a == b && b == c);
        tx.put(a, &30_u64.to_le_bytes()).unwrap();
        assert_eq!(number(tx.read(0, 1).await.unwrap()), Some(30));
        let [later] = tx.fetch([Want::write(0, 1)]).await.unwrap();
        assert_eq!((later, number(tx.value(later))), (a, Some(30)));
        // A transfer to the same account.
        tx.put(later, &(30_u64 + 70).to_le_bytes()).unwrap();
        assert_eq!(tx.read(0, 2).await.unwrap(), None);
        tx.write(0, 2, &5_u64.to_le_bytes()).await.unwrap();
        assert!(tx.delete(0, 2).await.unwrap() && !tx.delete(0, 2).await.unwrap());
        tx.commit().await.unwrap();
        assert_eq!((get(&tables, 1).await, get(&tables, 2).await), (Ok(Some(100)), Ok(None)));
    });
}

/// After a conflict no step can be taken, so no commit rests on half of a fetch.
#[test]
fn a_transaction_in_conflict_can_only_be_given_up() {
    with_tables(small(0b11, 1), async move |tables| {
        put(&tables, 1, 1).await.unwrap();
        let mut first = tables.begin().await.unwrap();
        first.write(0, 1, &2_u64.to_le_bytes()).await.unwrap();
        let mut second = tables.begin().await.unwrap();
        second.write(0, 3, &3_u64.to_le_bytes()).await.unwrap();
        let refused = second.write(0, 1, &3_u64.to_le_bytes()).await.unwrap_err();
        assert!(matches!(refused, DtxError::Conflict { .. }), "{refused:?}");
        first.commit().await.unwrap();
        assert_eq!(second.read(0, 1).await.unwrap_err(), refused);
        assert_eq!(second.commit().await.unwrap_err(), refused);
        assert_eq!((get(&tables, 1).await, get(&tables, 3).await), (Ok(Some(2)), Ok(None)));
    });
}

/// Two persons are on call, and each may leave if the other one stays: each transaction locks both, and changes one. The server of what the
/// first one has locked, and does not change, is started anew with its memory, and another client breaks the lock.
pub(crate) fn a_lock_is_broken_under_a_transaction(changes: bool) -> Result<(), String> {
    let scene = Scene::new(small(0b111, 1), LONG);
    // z has its primary on server 2, and x on server 0, with its backup on server 1.
    let (z, x) = (scene.key_at(2, 0), scene.key_at(0, 0));
    let (first, tables) = scene.open("first");
    let of = Rc::clone(&tables);
    scene.run(&first, async move { put(&of, z, 1).await.and(put(&of, x, 1).await) }).expect("all live");
    let step: Rc<Cell<u32>> = Rc::default();
    let (of, gate, waits) = (tables, Rc::clone(&step), first.clone());
    let slow = first.spawn(async move {
        let mut tx = of.begin().await?;
        let [item] = tx.fetch([Want::write(0, z)]).await?;
        let seen = number(tx.value(item));
        gate.set(1);
        while gate.get() < 2 {
            waits.sleep(Duration::from_micros(5)).await;
        }
        let [item] = tx.fetch([Want::write(0, x)]).await?;
        let seen = [number(tx.value(item)), seen];
        if changes {
            tx.put(item, &0_u64.to_le_bytes())?;
        }
        tx.commit().await.map(|()| seen)
    });
    scene.world.run_until(|| step.get() == 1, SOON).map_err(|_| "no first step")?;
    scene.restart(2, true);
    let (second, tables) = scene.open("second");
    let other = scene.run(&second, async move {
        let done = tables.run(async |tx| {
            let [x, z] = tx.fetch([Want::write(0, x), Want::write(0, z)]).await?;
            tx.put(z, &0_u64.to_le_bytes())?;
            if !changes {
                tx.put(x, &0_u64.to_le_bytes())?;
            }
            Ok(Verdict::Commit(()))
        });
        done.await.result
    });
    other.map_err(|error| error.to_string())?;
    step.set(2);
    scene.world.run_until(|| slow.has_ended(), SOON).map_err(|_| "the first one does not end")?;
    match slow.take() {
        Some(Ok(seen)) => Err(format!("committed, and has seen {seen:?}")),
        _ => Ok(()),
    }
}

#[test]
fn what_is_locked_and_not_changed_is_validated() {
    // Write skew; and two moments in one transaction that only locks.
    a_lock_is_broken_under_a_transaction(true).unwrap();
    a_lock_is_broken_under_a_transaction(false).unwrap();
}

/// What a slow READ may bring: the head of a node after an insertion, and a slot of it from before, locked.
pub(crate) fn a_slot_is_being_filled() -> Result<(), String> {
    with_tables(small(0b11, 1), async move |tables| {
        let (shape, key) = (*tables.shape(), 3);
        let place = Place { table: 0, node: shape.node_of(0, key), slot: Some(5) };
        let owner = Owner { session: SessionId(99), number: 9 };
        let word = fatbtree_dtx::Word::new(owner, 3).raw();
        let memory = tables.memory();
        let at = shape.address(place, 0);
        let locked = memory.write(&memory.take_lane(), at, &word.to_le_bytes()).await;
        locked.expect("the server lives");
        let mut tx = tables.begin().await.expect("nothing is in the way");
        match tx.read(0, key).await {
            Err(DtxError::Conflict { lock, .. }) if lock == word => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
}

#[test]
fn a_key_whose_slot_is_being_filled_is_not_absent() {
    a_slot_is_being_filled().unwrap();
}

/// A node has one slot, of a deleted key. A client that wants it for another key stands still, and the deleted key is put again.
pub(crate) fn a_deleted_key_comes_back(nanos: u64) -> Result<(), String> {
    let table = TableShape { nodes: 1, value_bytes: 8, slots: 1 };
    let mut shape = Shape::new(&[table], 0b11, 1).expect("the shape is possible");
    shape.seats = 8;
    let scene = Scene::new(shape, LONG);
    let (first, tables) = scene.open("first");
    let (second, others) = scene.open("second");
    let of = Rc::clone(&others);
    scene.run(&second, async move {
        put(&of, 1, 1).await.expect("all live");
        let deleted = of.run(async |tx| Ok(Verdict::Commit(tx.delete(0, 1).await?))).await;
        assert_eq!(deleted.result, Ok(true));
    });
    let of = Rc::clone(&tables);
    scene.run(&first, async move { drop(of.begin().await) });
    let slow = first.spawn(async move {
        let mut tx = tables.begin().await?;
        tx.write(0, 2, &2_u64.to_le_bytes()).await?;
        tx.commit().await
    });
    scene.world.run_for(Duration::from_nanos(nanos));
    first.freeze();
    let put = second.spawn(async move {
        let mut tx = others.begin().await?;
        tx.write(0, 1, &3_u64.to_le_bytes()).await?;
        tx.commit().await
    });
    scene.world.run_for(Duration::from_micros(60));
    first.thaw();
    scene.world.run_until(|| slow.has_ended() && put.has_ended(), SOON).map_err(|_| "it does not end")?;
    let (slow, put) = (slow.take().expect("it lives"), put.take().expect("it lives"));
    let (found, _) = scene.look([1, 2])?;
    let expected = [put.is_ok().then_some(3), slow.is_ok().then_some(2)];
    if found == expected { Ok(()) } else { Err(format!("{found:?}: {put:?}, {slow:?}")) }
}

/// All moments at which it stands still.
pub(crate) fn moments_of_an_insertion() -> impl Iterator<Item = u64> {
    (0..20_000).step_by(400)
}

#[test]
fn a_slot_is_taken_if_it_is_still_free() {
    for nanos in moments_of_an_insertion() {
        a_deleted_key_comes_back(nanos).unwrap_or_else(|why| panic!("{nanos} ns: {why}"));
    }
}

//! Exports: all pairs of a quiet table once; and while others change it, what stays, once, and nothing that never was.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;

use fatbtree_race::{Check, Cursor, Key, Shape, Table, TableError, Value};
use fatbtree_remote_memory::{Answer, Portion};
use fatbtree_sim::hash::lab::{serve, serve_in_chunks};
use fatbtree_sim::world::{Machine, Options, SimDevice, World, random};
use fatbtree_verbs::time::{Duration, Instant};
use proptest::prelude::*;

use crate::model::{SMALL, done, value, with_table};
use crate::split::{Client, TWO_SERVERS};

const SOON: Duration = Duration::from_secs(1);

/// All pairs, in portions of `most`, in the order in which they were found.
async fn export(
    table: &Table<SimDevice>,
    most: usize,
    mut between: impl AsyncFnMut(),
) -> Result<Vec<(u64, Vec<u8>)>, TableError> {
    let (mut pairs, mut next) = (Vec::new(), Some(Cursor::default()));
    while let Some(cursor) = next {
        let portion: Portion<Value, Cursor, Key> = table.export(cursor, most).await.result?;
        assert!(portion.pairs.len() <= most, "{} pairs, at most {most}", portion.pairs.len());
        pairs.extend(portion.pairs.into_iter().map(|(key, value)| (number(key), value.to_vec())));
        next = portion.rest;
        between().await;
    }
    Ok(pairs)
}

fn number(key: Key) -> u64 {
    match key {
        Key::Number(number) => number,
        Key::Bytes(..) => panic!("{key} is in a table of numbers"),
    }
}

async fn quiet(table: &Table<SimDevice>, most: usize) -> Vec<(u64, Vec<u8>)> {
    let mut pairs = export(table, most, async || ()).await.expect("nothing is in the way");
    pairs.sort();
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn an_export_of_a_quiet_table_has_each_pair_once(
        lengths in prop::collection::vec(prop_oneof![8 => 0..100_usize, 1 => 100..40_000_usize], 0..500),
        most in prop_oneof![1..20_usize, 20..2_000_usize],
        servers in prop_oneof![Just(1_u32), Just(0b1_0101)],
        groups in 1..4_u32,
    ) {
        let shape = Shape { servers, groups, max_value: 40_000, ..SMALL };
        let (found, expected) = with_table(shape, 16 << 20, async move |table| {
            let mut map = BTreeMap::new();
            for (number, &length) in (0..).zip(&lengths) {
                // Some are replaced, and some are taken away again.
                let key = number * 7 % 400;
                let value = value(key, number, length);
                assert!(done(table.upsert(key, &value).await));
                map.insert(key, value);
                if number % 5 == 4 {
                    assert_eq!(done(table.delete(number).await), map.remove(&number).is_some());
                }
            }
            (quiet(&table, most).await, map)
        });
        prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    }
}

/// A subtable that takes several READs.
#[test]
fn a_large_subtable_is_read_in_parts() {
    let shape = Shape { groups: 1_000, directory_bits: 2, ..SMALL };
    let world = World::new(1, Options::default());
    let servers = serve_in_chunks(&world, shape, (8 << 20, 1 << 20), SOON);
    Client::new(&world, &servers, "client", 1).run(&world, async |table| {
        for key in 0..2_000 {
            assert!(done(table.insert(key, &key.to_le_bytes()).await));
        }
        let pairs = quiet(&table, 300).await;
        assert!(pairs.iter().map(|(key, _)| *key).eq(0..2_000));
        // One READ of slots for each of three windows, and one for 16 blocks.
        let Answer { result, round_trips } = table.export(Cursor::default(), usize::MAX).await;
        assert_eq!(result.expect("nothing is in the way").pairs.len(), 2_000);
        assert!((3 + 125..3 + 130).contains(&round_trips), "{round_trips} round trips");
    });
}

/// A portion of long values ends early: its bytes are bounded, too.
#[test]
fn the_bytes_of_a_portion_are_bounded() {
    let shape = Shape { groups: 64, max_value: 1 << 20, ..SMALL };
    with_table(shape, 64 << 20, async move |table| {
        for key in 0..40 {
            assert!(done(table.insert(key, &vec![7; 60_000]).await));
        }
        let portion =
            table.export(Cursor::default(), usize::MAX).await.result.expect("nothing is in the way");
        let bytes: usize = portion.pairs.iter().map(|(_, value)| value.len()).sum();
        assert!(
            (1 << 20..(1 << 20) + 5 * 60_000).contains(&bytes) && portion.rest.is_some(),
            "{bytes} bytes"
        );
        assert_eq!(quiet(&table, usize::MAX).await.len(), 40);
    });
}

/// What a client exports whose directory is as old as can be: others have split all subtables since, and changed what is in them.
fn by_an_old_directory() -> Result<Vec<(u64, Vec<u8>)>, TableError> {
    let world = World::new(1, Options::default());
    let servers = serve(&world, TWO_SERVERS, 16 << 20, SOON);
    let [old, changing] =
        [("old", 1), ("changing", 2)].map(|(name, seed)| Client::new(&world, &servers, name, seed));
    changing.run(&world, async |table| {
        for key in 0..400 {
            assert!(done(table.insert(key, &value(key, 0, 20)).await));
        }
        for key in 0..400 {
            assert!(done(table.update(key, &value(key, 1, 20)).await));
        }
        for key in (0..400).step_by(3) {
            assert!(done(table.delete(key).await));
        }
    });
    let mut pairs = old.run(&world, async |table| export(&table, 50, async || ()).await)?;
    pairs.sort();
    Ok(pairs)
}

#[test]
fn an_export_follows_subtables_to_their_successors() {
    let expected: Vec<_> = (0..400).filter(|key| key % 3 != 0).map(|key| (key, value(key, 1, 20))).collect();
    let expected = Ok(expected);
    assert_eq!(by_an_old_directory(), expected);
    assert_ne!(Check::Successors.without(by_an_old_directory), expected, "no subtable was split");
}

/// Exports after a client has died at each step of an insertion: pairs that were found, and those that count.
fn beside_a_dead_insertion() -> (usize, Vec<(usize, u64)>) {
    let (mut tentative, mut found) = (0, Vec::new());
    for polls in 0.. {
        let world = World::new(1, Options::default());
        let servers = serve(&world, SMALL, 4 << 20, SOON);
        let [dying, other] =
            [("dying", 1), ("other", 2)].map(|(name, seed)| Client::new(&world, &servers, name, seed));
        other.run(&world, async |table| assert!(done(table.insert(1, &value(1, 0, 20)).await)));
        dying.machine.kill_after_polls(polls);
        let insertion = dying.spawn(async |table| table.insert(2, &value(2, 0, 20)).await.result);
        world.run_for(Duration::from_millis(1));
        let verified = other.verify(&world);
        tentative += verified.tentative as usize;
        found.push((other.run(&world, async |table| quiet(&table, 10).await.len()), verified.keys));
        if insertion.has_ended() && dying.machine.is_up() {
            break;
        }
    }
    (tentative, found)
}

#[test]
fn an_insertion_that_was_left_under_way_is_not_found() {
    let (tentative, found) = beside_a_dead_insertion();
    assert!(
        tentative > 0 && found.iter().all(|&(found, keys)| found as u64 == keys),
        "{tentative}: {found:?}"
    );
    let (_, found) = Check::Tentative.without(beside_a_dead_insertion);
    assert!(found.iter().any(|&(found, keys)| found as u64 > keys), "{found:?}");
}

/// A cursor of another table is refused: this one may have been loaded anew.
#[test]
fn an_export_goes_on_in_its_own_table_alone() {
    with_table(SMALL, 4 << 20, async |table| {
        for key in 0..100 {
            assert!(done(table.insert(key, b"value").await));
        }
        let portion = table.export(Cursor::default(), 10).await.result.expect("nothing is in the way");
        let again = Table::open(Rc::clone(table.memory()), 0).await.expect("the server lives");
        assert_eq!(
            again.export(portion.rest.expect("there are more"), 10).await.result.unwrap_err(),
            TableError::OpenedAnew
        );
        assert_eq!(quiet(&again, 10).await.len(), 100);
    });
}

/// A change of a key.
struct Changed {
    began: Instant,
    ended: Option<Instant>,
    /// The value that it puts; `None`: it takes the value away.
    value: Option<Vec<u8>>,
}

/// Changes of each key, one after the other.
type History = Rc<RefCell<BTreeMap<u64, Vec<Changed>>>>;

/// Keys below this are changed, each by one client.
const KEYS: u64 = 320;

/// Puts a value, or takes it away, and notes that.
async fn change(
    table: &Table<SimDevice>,
    machine: &Machine,
    history: &History,
    key: u64,
    value: Option<Vec<u8>>,
) {
    let noted = Changed { began: machine.now(), ended: None, value: value.clone() };
    history.borrow_mut().entry(key).or_default().push(noted);
    let changed = match &value {
        Some(value) => table.upsert(key, value).await,
        None => table.delete(key).await,
    };
    changed.result.expect("nothing is in the way");
    if let Some(noted) = history.borrow_mut().get_mut(&key).and_then(|all| all.last_mut()) {
        noted.ended = Some(machine.now());
    }
}

/// Changes keys for ever: those of one remainder by 4 stay, those of the next are updated, the others come and go. More are inserted, so that
/// subtables are split.
async fn churn(table: Rc<Table<SimDevice>>, machine: Machine, history: History, seed: u64) {
    let mut random = random(seed, 9);
    let is_odd = seed % 2;
    for number in 1.. {
        let key = match random.random_range(0..4) {
            0 => KEYS + number % 300 * 2 + is_odd,
            _ => random.random_range(0..KEYS / 2) * 2 + is_odd,
        };
        let length = random.random_range(0..100);
        let is_there =
            history.borrow().get(&key).and_then(|all| all.last()).is_some_and(|last| last.value.is_some());
        match key / 2 % 4 {
            0 if is_there => {}
            2 | 3 if is_there => change(&table, &machine, &history, key, None).await,
            _ => change(&table, &machine, &history, key, Some(value(key, number, length))).await,
        }
    }
}

/// What is wrong with an export from one moment to another.
fn faults(history: &History, (from, to): (Instant, Instant), pairs: &[(u64, Vec<u8>)]) -> Vec<String> {
    let (history, mut faults, mut given) = (history.borrow(), Vec::new(), BTreeMap::new());
    for (key, value) in pairs {
        *given.entry(*key).or_insert(0) += 1;
        let of_key = history.get(key).map_or(&[][..], |all| all);
        let was_there = of_key.iter().enumerate().any(|(number, changed)| {
            let until = of_key.get(number + 1).and_then(|next| next.ended);
            changed.value.as_ref() == Some(value)
                && changed.began <= to
                && until.is_none_or(|until| until >= from)
        });
        if !was_there {
            faults.push(format!("key {key}: a value that it did not have"));
        }
    }
    faults.extend(
        given.iter().filter(|(_, times)| **times > 1).map(|(key, times)| format!("key {key}: {times} times")),
    );
    for (key, all) in &*history {
        let before = all.iter().rfind(|changed| changed.ended.is_some_and(|ended| ended < from));
        let is_gone = |changed: &Changed| {
            changed.value.is_none() && changed.ended.is_none_or(|ended| ended >= from) && changed.began <= to
        };
        let stays = before.is_some_and(|before| before.value.is_some()) && !all.iter().any(is_gone);
        if stays && !given.contains_key(key) {
            faults.push(format!("key {key} is missing"));
        }
    }
    faults
}

/// Runs something without a check, which all others make.
async fn without<T>(check: Option<Check>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| match check {
        Some(check) => check.without(|| work.as_mut().poll(context)),
        None => work.as_mut().poll(context),
    })
    .await
}

/// What is wrong with an export beside two other clients, which change the table. The export may leave a check out.
fn beside_changes(seed: u64, check: Option<Check>) -> Vec<String> {
    let draw = &mut random(seed, 4);
    let world = World::new(seed, Options::default());
    let shape = Shape {
        groups: draw.random_range(1..5),
        directory_bits: 10,
        servers: [0b1, 0b11][draw.random_range(0..2)],
        ..SMALL
    };
    let (most, pause) = (draw.random_range(1..60), draw.random_range(0..100));
    let servers = serve(&world, shape, 32 << 20, SOON);
    let clients = [("exporting", 0), ("even", 2), ("odd", 3)];
    let [exporting, even, odd] =
        clients.map(|(name, number)| Client::new(&world, &servers, name, seed * 4 + number));
    let history = History::default();
    for (client, number) in [(&even, 2), (&odd, 3)] {
        let (machine, history) = (client.machine.clone(), Rc::clone(&history));
        drop(client.spawn(async move |table| churn(table, machine, history, seed * 4 + number).await));
    }
    // Most keys were there before.
    world.run_for(Duration::from_millis(4));
    let machine = exporting.machine.clone();
    let is_fresh = draw.random_bool(0.5);
    let task = exporting.spawn(async move |mut table| {
        if is_fresh {
            // Its directory is right when the export begins, and is not for long.
            table = Rc::new(Table::open(Rc::clone(table.memory()), 0).await.expect("nothing is in the way"));
        }
        let from = machine.now();
        let pause = async || machine.sleep(Duration::from_micros(pause)).await;
        let pairs = without(check, export(&table, most, pause)).await;
        ((from, machine.now()), pairs)
    });
    world.run_until(|| task.has_ended(), Duration::from_secs(20)).expect("it ends");
    let (when, pairs) = task.take().expect("the machine lives");
    pairs.map_or_else(|error| vec![error.to_string()], |pairs| faults(&history, when, &pairs))
}

#[test]
fn what_stays_is_found_once_and_nothing_else_that_never_was() {
    for seed in 0..150 {
        let faults = beside_changes(seed, None);
        assert!(
            faults.is_empty(),
            "seed {seed}: {} faults: {:?}",
            faults.len(),
            &faults[..faults.len().min(5)]
        );
    }
}

#[test]
fn each_step_of_an_export_is_needed() {
    for check in [Check::Successors, Check::ExportedOnce, Check::FreedBlock] {
        let first = (0..400)
            .map(|seed| (seed, beside_changes(seed, Some(check))))
            .find(|(_, faults)| !faults.is_empty());
        let (seed, faults) = first.unwrap_or_else(|| panic!("nothing notices that {check:?} is not made"));
        println!("{check:?}: seed {seed}: {}", faults[0]);
    }
}

//! Damage in the memory of a running server, and a server that begins anew: no answer is wrong.

use std::ops::Range;
use std::rc::Rc;

use fatbtree_race::{Check, Shape, Table, TableError};
use fatbtree_remote_memory::{Check as RemoteCheck, CommonError, Contention, Origin};
use fatbtree_sim::hash::lab::{Server, begin, serve};
use fatbtree_sim::world::{Machine, MachineOptions, Options, Random, SimDevice, World, random};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use crate::model::{SMALL, value};

/// Keys of a table before it is damaged.
const KEYS: u64 = 120;

/// Offsets that flips are drawn from: directory, subtables, blocks, and little else.
const USED: Range<u64> = 0..96 << 10;

/// Offsets of pairs of subtables: in the second chunk, after directory and first subtable.
const PAIRS: Range<u64> = (64 << 10) + 2_624..(64 << 10) + 2_624 + 4_000;

/// Length of a key's value: some need two READs.
fn length(key: u64) -> usize {
    if key.is_multiple_of(17) { 3_000 } else { 20 + (key % 5) as usize * 30 }
}

/// What a client with a table does to its end.
fn run<T: 'static>(
    world: &World,
    servers: &[Rc<Server>],
    seed: u64,
    work: impl AsyncFnOnce(Result<Table<SimDevice>, TableError>, Machine) -> T + 'static,
) -> T {
    let machine = world.machine(MachineOptions::named(format!("client {seed}")));
    let memory = begin(&machine, servers, Contention::SMART, &mut random(seed, 1));
    let of = machine.clone();
    let task = machine.spawn(async move { work(Table::open(memory, 0).await, of).await });
    world.run_until(|| task.has_ended(), Duration::from_secs(100)).expect("each operation ends");
    task.take().expect("the machine lives")
}

fn fill(world: &World, servers: &[Rc<Server>]) {
    run(world, servers, 1, async |table, _| {
        let table = table.expect("the servers live");
        for key in 0..KEYS {
            assert!(table.insert(key, &value(key, 0, length(key))).await.result.expect("there is room"));
        }
    });
}

/// Answers of all keys after some flips.
#[derive(Default, Debug)]
struct Answers {
    right: u64,
    wrong: u64,
    damaged: u64,
    /// Errors that do not say that the table is damaged.
    others: u64,
    /// The longest time that an operation took.
    longest: Duration,
}

/// Flips `flips` bits in words that are in use, and asks for all keys, and for as many that are absent.
fn ask_behind_flips(seed: u64, shape: Shape, within: &Range<u64>, flips: usize) -> Answers {
    let world = World::new(1, Options::default());
    let servers = serve(&world, shape, 16 << 20, Duration::from_secs(1));
    fill(&world, &servers);
    let mut draw = random(seed, 7);
    for _ in 0..flips {
        flip(&servers[draw.random_range(0..servers.len())], within, &mut draw);
    }
    run(&world, &servers, seed, async move |table, machine| {
        let mut answers = Answers::default();
        let table = match table {
            Ok(table) => table,
            Err(
                TableError::Common(CommonError::Damaged { .. })
                | TableError::NoTable { .. }
                | TableError::Common(CommonError::Parted),
            ) => {
                answers.damaged += 1;
                return answers;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        };
        for key in 0..2 * KEYS {
            let expected = (key < KEYS).then(|| value(key, 0, length(key)));
            let began = machine.now();
            match table.search(key).await.result {
                Ok(found) if found.as_deref() == expected.as_deref() => answers.right += 1,
                Ok(found) => {
                    eprintln!("seed {seed}: key {key}: {:?}", found.map(|found| found.len()));
                    answers.wrong += 1;
                }
                Err(TableError::Common(CommonError::DamagedKey { key: found, .. })) if found == key => {
                    answers.damaged += 1
                }
                Err(TableError::Common(CommonError::Damaged { .. })) => answers.damaged += 1,
                Err(error) => {
                    eprintln!("seed {seed}: key {key}: {error}");
                    answers.others += 1;
                }
            }
            answers.longest = answers.longest.max(machine.now() - began);
        }
        answers
    })
}

/// Flips a bit of a word that is not 0.
fn flip(server: &Server, within: &Range<u64>, draw: &mut Random) {
    let region = server.region();
    for _ in 0..10_000 {
        let words = within.start / 8..within.end / 8;
        let (at, bit) = (draw.random_range(words) * 8, draw.random_range(0..64));
        let mut word = [0; 8];
        let is_used = region.read(at, &mut word).is_ok() && word != [0; 8];
        if is_used {
            let flipped = u64::from_le_bytes(word) ^ 1 << bit;
            region.write(at, &flipped.to_le_bytes()).expect("it was read there");
            return;
        }
    }
}

fn sum(all: impl Iterator<Item = Answers>) -> Answers {
    all.fold(Answers::default(), |sum, one| Answers {
        right: sum.right + one.right,
        wrong: sum.wrong + one.wrong,
        damaged: sum.damaged + one.damaged,
        others: sum.others + one.others,
        longest: sum.longest.max(one.longest),
    })
}

fn after_flips(servers: u32, within: &Range<u64>) -> Answers {
    let shape = Shape { servers, ..SMALL };
    sum((0..60).map(|seed| ask_behind_flips(seed, shape, within, 1 + seed as usize % 12)))
}

#[test]
fn bits_that_flip_in_a_running_server_give_no_wrong_answer() {
    for servers in [0b1, 0b11] {
        let answers = after_flips(servers, &USED);
        eprintln!("{servers:#b}: {answers:?}");
        assert_eq!((answers.wrong, answers.others), (0, 0), "{answers:?}");
        assert!(answers.damaged > 100 && answers.right > 1_000, "{answers:?}");
        // Far less than the patience of an operation, 30 ms here.
        assert!(answers.longest < Duration::from_millis(10), "{answers:?}");
    }
}

/// Flips in slots and headers alone: they hide keys, or lead to blocks of others.
#[test]
fn each_check_of_a_slot_is_needed() {
    let with = after_flips(0b1, &PAIRS);
    assert!(with.damaged > 100 && (with.wrong, with.others) == (0, 0), "{with:?}");
    let hidden = || Check::SoundSlots.without(|| after_flips(0b1, &PAIRS).wrong);
    let (less, more) = (hidden(), Check::OthersKey.without(hidden));
    eprintln!("keys that are hidden: {less}, and {more} where a pointer may lead to any block");
    assert!(0 < less && less < more, "{less} and {more}");
}

/// Fills two servers, of which one loses what it held and begins anew.
fn lose(lost: usize) -> (World, Vec<Rc<Server>>) {
    let world = World::new(1, Options::default());
    let servers = serve(&world, Shape { servers: 0b11, ..SMALL }, 16 << 20, Duration::from_secs(1));
    fill(&world, &servers);
    servers[lost].lose(Origin::Meant);
    servers[lost].revive(77);
    (world, servers)
}

#[test]
fn a_first_server_that_begins_anew_is_no_new_table() {
    let open = |(world, servers): &(World, Vec<Rc<Server>>), seed| {
        run(world, servers, seed, async |table, _| table.map(drop))
    };
    for lost in [0, 1] {
        let lab = lose(lost);
        assert_eq!(open(&lab, 2), Err(TableError::Common(CommonError::Parted)), "server {lost}");
        // An operator has the other one begin anew, too.
        let (world, servers) = lab;
        servers[1 - lost].lose(Origin::Meant);
        servers[1 - lost].revive(78);
        let absent = run(&world, &servers, 3, async |table, _| {
            let table = table.expect("it is a new one");
            table.search(1).await.result.map(|found| found.is_none())
        });
        assert_eq!(absent, Ok(true));
    }
    // Where the first server alone has the word, it does not know of the others.
    let once = [0, 1].map(|lost| RemoteCheck::MembersEverywhere.without(|| open(&lose(lost), 2)));
    assert_eq!(once, [Ok(()), Err(TableError::Common(CommonError::Parted))]);
}

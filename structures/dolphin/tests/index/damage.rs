//! Damage in the memory of a running server, and a server that begins anew: no answer is wrong.
//!
//! Keys of a leaf have no sum: what flips there is not drawn here. Folders have checksums of everything: see `cli/tests/program/restored.rs`.

use std::ops::Range;
use std::rc::Rc;

use fatbtree_dolphin::{Check, Index, IndexError, LEAF_BYTES, NodeCache, Shape};
use fatbtree_remote_memory::{Check as RemoteCheck, CommonError, Contention, KeyRange, Origin, RemoteConfig};
use fatbtree_sim::dolphin::{Server, begin, leaves, serve};
use fatbtree_sim::world::{Machine, MachineOptions, Options, Random, SimDevice, World, random};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

/// Keys of an index before it is damaged.
const KEYS: u64 = 300;

/// Offsets that flips are drawn from: the root, leaves, nodes and records, and little else.
const USED: Range<u64> = 4 << 20..(4 << 20) + (192 << 10);

/// Offsets of the root, after the lines of clients.
const ROOT: Range<u64> = (4 << 20) + 128..(4 << 20) + 2_240;

/// Patience of an operation.
const PATIENCE: Duration = Duration::from_millis(100);

/// A key by its number: sparse, so that there are several levels.
fn key(number: u64) -> u64 {
    if number.is_multiple_of(2) { number } else { number.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}

/// Value of a key. None has eight bytes: those are words of a leaf.
fn value(number: u64) -> Vec<u8> {
    (0..20 + number % 7 * 30).map(|at| (number + at) as u8).collect()
}

/// What a client with an index does to its end.
fn run<T: 'static>(
    world: &World,
    servers: &[Rc<Server>],
    seed: u64,
    work: impl AsyncFnOnce(Result<Index<SimDevice>, IndexError>, Machine) -> T + 'static,
) -> T {
    let machine = world.machine(MachineOptions::named(format!("client {seed}")));
    let config =
        RemoteConfig { contention: Contention::SMART, patience: PATIENCE, ..RemoteConfig::default() };
    let memory = begin(&machine, servers, config, &mut random(seed, 1));
    let of = machine.clone();
    let task = machine.spawn(async move {
        let cache = Rc::new(NodeCache::new(if seed.is_multiple_of(2) { 0 } else { 1 << 20 }));
        work(Index::open(memory, 0, cache).await, of).await
    });
    world.run_until(|| task.has_ended(), Duration::from_secs(1_000)).expect("each operation ends");
    task.take().expect("the machine lives")
}

fn fill(world: &World, servers: &[Rc<Server>]) {
    run(world, servers, 1, async |index, _| {
        let index = index.expect("the servers live");
        for number in 0..KEYS {
            let inserted = index.insert(key(number), &value(number)).await.result;
            assert!(inserted.expect("there is room"), "{number}");
        }
    });
}

/// Answers of all keys after some flips.
#[derive(Default, Debug)]
struct Answers {
    right: u64,
    wrong: u64,
    damaged: u64,
    /// Errors that do not say that the index is damaged.
    others: u64,
    /// The longest time that an operation took.
    longest: Duration,
}

impl Answers {
    fn take(&mut self, error: &IndexError, what: &str) {
        match error {
            IndexError::Common(CommonError::DamagedKey { .. })
            | IndexError::Common(CommonError::Damaged { .. }) => self.damaged += 1,
            error => {
                eprintln!("{what}: {error}");
                self.others += 1;
            }
        }
    }
}

/// Flips a bit of a word that is not 0, and no key or value of a leaf.
fn flip(server: &Server, within: &Range<u64>, draw: &mut Random) {
    let (region, leaves) = (server.region(), leaves(server));
    for _ in 0..100_000 {
        let words = within.start / 8..within.end / 8;
        let (at, bit) = (draw.random_range(words) * 8, draw.random_range(0..64));
        let mut word = [0; 8];
        let is_used = region.read(at, &mut word).is_ok() && word != [0; 8];
        let inside = leaves.iter().map(|(leaf, _)| at.wrapping_sub(leaf.offset()));
        let is_item = inside
            .clone()
            .any(|inside| (64..LEAF_BYTES as u64 - 64).contains(&inside) && !inside.is_multiple_of(64));
        if is_used && !is_item {
            let flipped = u64::from_le_bytes(word) ^ 1 << bit;
            region.write(at, &flipped.to_le_bytes()).expect("it was read there");
            return;
        }
    }
}

/// Offsets of the last key of each leaf's range.
fn last_keys() -> Vec<Range<u64>> {
    let world = World::new(1, Options::default());
    let servers = serve(&world, Shape { servers: 0b1, max_value: 4_000 }, 16 << 20, Duration::from_secs(10));
    fill(&world, &servers);
    let leaves = leaves(&servers[0]);
    leaves.iter().map(|(leaf, _)| leaf.offset() + 32..leaf.offset() + 40).collect()
}

/// Flips bits, and asks for all keys, for as many that are absent, and for some ranges.
fn ask_behind_flips(seed: u64, servers: u32, within: &Range<u64>, flips: usize) -> Answers {
    let world = World::new(1, Options::default());
    let shape = Shape { servers, max_value: 4_000 };
    let servers = serve(&world, shape, 16 << 20, Duration::from_secs(10));
    fill(&world, &servers);
    let mut draw = random(seed, 7);
    for _ in 0..flips {
        flip(&servers[draw.random_range(0..servers.len())], within, &mut draw);
    }
    run(&world, &servers, seed, async move |index, machine| {
        let (mut answers, index) = (Answers::default(), index);
        let index = match index {
            Ok(index) => index,
            Err(IndexError::NoIndex { .. } | IndexError::Common(CommonError::Parted)) => {
                answers.damaged += 1;
                return answers;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        };
        for number in 0..2 * KEYS {
            let expected = (number < KEYS).then(|| value(number));
            let began = machine.now();
            match index.get(key(number)).await.result {
                Ok(found) if found.as_deref() == expected.as_deref() => answers.right += 1,
                Ok(found) => {
                    eprintln!("seed {seed}: number {number}: {:?}", found.map(|found| found.len()));
                    answers.wrong += 1;
                }
                Err(error) => answers.take(&error, &format!("seed {seed}: number {number}")),
            }
            answers.longest = answers.longest.max(machine.now() - began);
        }
        let mut all: Vec<_> = (0..KEYS).map(|number| (key(number), value(number))).collect();
        all.sort_unstable();
        for from in [0, 100, 1 << 40, 1 << 63] {
            let expected: Vec<_> = all.iter().filter(|(key, _)| *key >= from).take(60).collect();
            match index.scan(KeyRange::of(from..), 60).await.result {
                Ok(found) => {
                    let is_right = found.len() == expected.len()
                        && found
                            .iter()
                            .zip(&expected)
                            .all(|(found, expected)| found.0 == expected.0 && found.1[..] == expected.1[..]);
                    if !is_right {
                        eprintln!("seed {seed}: scan from {from}: {} of {}", found.len(), expected.len());
                    }
                    answers.right += u64::from(is_right);
                    answers.wrong += u64::from(!is_right);
                }
                Err(error) => answers.take(&error, &format!("seed {seed}: scan from {from}")),
            }
        }
        answers
    })
}

fn after_flips(servers: u32, within: &Range<u64>) -> Answers {
    let all = (0..60).map(|seed| ask_behind_flips(seed, servers, within, 1 + seed as usize % 12));
    all.fold(Answers::default(), |sum, one| Answers {
        right: sum.right + one.right,
        wrong: sum.wrong + one.wrong,
        damaged: sum.damaged + one.damaged,
        others: sum.others + one.others,
        longest: sum.longest.max(one.longest),
    })
}

#[test]
fn bits_that_flip_in_a_running_server_give_no_wrong_answer() {
    for servers in [0b1, 0b11] {
        let answers = after_flips(servers, &USED);
        eprintln!("{servers:#b}: {answers:?}");
        assert_eq!((answers.wrong, answers.others), (0, 0), "{answers:?}");
        assert!(answers.damaged > 100 && answers.right > 1_000, "{answers:?}");
        assert!(answers.longest < PATIENCE / 2, "{answers:?}");
    }
}

#[test]
fn without_the_sum_of_a_header_or_the_check_bits_of_entries_keys_are_hidden() {
    // A leaf whose last key is greater than it was hides leaves after it from scans.
    let last_keys = last_keys();
    let with = last_keys.iter().zip(0..).map(|(at, seed)| ask_behind_flips(seed, 0b1, at, 1));
    assert_eq!(with.map(|with| with.wrong).sum::<u64>(), 0);
    let mut draws = (0..4_u64).flat_map(|round| last_keys.iter().map(move |at| (round, at)));
    let is_wrong = |(seed, at): (u64, &Range<u64>)| ask_behind_flips(seed, 0b1, at, 1).wrong > 0;
    assert!(Check::SoundHeaders.without(|| draws.any(is_wrong)));
    let with = after_flips(0b1, &ROOT);
    assert!(with.damaged > 100 && (with.wrong, with.others) == (0, 0), "{with:?}");
    // Without it operations that are led astray try until their patience ends, so few are asked for.
    let is_wrong = |seed| ask_behind_flips(seed, 0b1, &ROOT, 1).wrong > 0;
    assert!(Check::SoundNodes.without(|| (0..12).any(is_wrong)));
}

/// Fills two servers, of which one loses what it held and begins anew.
fn lose(lost: usize) -> (World, Vec<Rc<Server>>) {
    let world = World::new(1, Options::default());
    let servers = serve(&world, Shape { servers: 0b11, max_value: 4_000 }, 16 << 20, Duration::from_secs(10));
    fill(&world, &servers);
    servers[lost].lose(Origin::Meant);
    servers[lost].revive(77);
    (world, servers)
}

#[test]
fn a_first_server_that_begins_anew_is_no_new_index() {
    let open = |(world, servers): &(World, Vec<Rc<Server>>), seed| {
        run(world, servers, seed, async |index, _| index.map(drop))
    };
    for lost in [0, 1] {
        let lab = lose(lost);
        assert_eq!(open(&lab, 2), Err(IndexError::Common(CommonError::Parted)), "server {lost}");
        // An operator has the other one begin anew, too.
        let (world, servers) = lab;
        servers[1 - lost].lose(Origin::Meant);
        servers[1 - lost].revive(78);
        let absent = run(&world, &servers, 3, async |index, _| {
            let index = index.expect("it is a new one");
            index.get(1).await.result.map(|found| found.is_none())
        });
        assert_eq!(absent, Ok(true));
    }
    // Where the first server alone has the word, it does not know of the others.
    let once = [0, 1].map(|lost| RemoteCheck::MembersEverywhere.without(|| open(&lose(lost), 2)));
    assert_eq!(once, [Ok(()), Err(IndexError::Common(CommonError::Parted))]);
}

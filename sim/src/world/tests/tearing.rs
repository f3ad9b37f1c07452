//! Memory tears: between lines, within them where a card does not keep them whole, and against the order of one queue pair's READs.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Operation, Output};

use super::{Lab, Wire};
use crate::world::{MachineOptions, Options, ServiceTimes, Tearing, random};

const LINES: usize = 8;
const BLOCK: usize = 64 * LINES;

/// A block all of whose words say its version.
fn block(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(BLOCK / 8)
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// A reader's observations of blocks that were written meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    whole: u64,
    /// Lines of several versions: a reader that looks at the first line only is deceived.
    mixed: u64,
    /// Blocks with one version at the beginning of all lines and another one within, which line versions do not
    /// notice.
    deceived: u64,
    /// Blocks with one version at both ends and another one between, which two versions a node do not notice.
    between: u64,
}

/// Lets one client write a block again and again while another one reads it.
fn readers_and_a_writer(seed: u64, options: Options, machine: &MachineOptions) -> (Seen, u64) {
    let lab = Lab::with(seed, options, 2, machine);
    let (writer, reader) = (lab.connect(0), lab.connect(1));
    let write = writer.machine.clone().spawn(async move {
        for version in 1..=40 {
            writer.write(4096, &block(version)).await.unwrap();
        }
    });
    let seen = Rc::new(RefCell::new(Seen::default()));
    let noted = Rc::clone(&seen);
    let read = reader.machine.clone().spawn(async move {
        let mut last = 0;
        for _ in 0..40 {
            let words = words(&reader.read(4096, BLOCK as u32).await.unwrap());
            let mut seen = noted.borrow_mut();
            let line_versions_agree = words.iter().step_by(8).all(|version| *version == words[0]);
            let all_agree = words.iter().all(|version| *version == words[0]);
            match (all_agree, line_versions_agree) {
                (true, _) => seen.whole += 1,
                (false, true) => seen.deceived += 1,
                (false, false) => seen.mixed += 1,
            }
            seen.between += u64::from(!all_agree && words[0] == words[words.len() - 1]);
            // A later READ begins when an earlier one has ended: time does not go back.
            let oldest = *words.iter().min().unwrap();
            assert!(oldest >= last, "seed {seed}: {words:?} after version {last}");
            last = oldest;
        }
    });
    lab.run_all(&[write, read]);
    let seen = *seen.borrow();
    (seen, lab.world.fingerprint())
}

fn sum(seeds: u64, options: impl Fn(u64) -> Options, machine: &MachineOptions) -> Seen {
    (0..seeds).map(|seed| readers_and_a_writer(seed, options(seed), machine).0).fold(
        Seen::default(),
        |sum, seen| Seen {
            whole: sum.whole + seen.whole,
            mixed: sum.mixed + seen.mixed,
            deceived: sum.deceived + seen.deceived,
            between: sum.between + seen.between,
        },
    )
}

fn rough(seed: u64) -> Options {
    Options::rough(&mut random(seed, 9))
}

/// A reader that checks nothing takes mixtures; one that compares the versions of lines takes none.
#[test]
fn readers_see_mixtures_and_line_versions_notice_them() {
    let seen = sum(100, rough, &MachineOptions::default());
    assert!(seen.mixed > 100, "nothing is torn: {seen:?}");
    assert!(seen.whole > 1_000, "everything is torn: {seen:?}");
    assert_eq!(seen.deceived, 0, "a line was torn: {seen:?}");
    assert!(seen.between > 10, "old ends around a new middle never come up: {seen:?}");
}

/// With the times of real cards tearing is rare, but it is there.
#[test]
fn real_cards_tear_as_well() {
    let seen = sum(50, |_| Options::default(), &MachineOptions::default());
    assert!(seen.mixed > 5, "{seen:?}");
    assert!(seen.mixed * 10 < seen.whole, "{seen:?}");
}

/// Where lines are not atomic, versions of lines are not enough.
#[test]
fn without_line_atomicity_lines_tear_too() {
    let machine = MachineOptions { line_atomicity: false, ..MachineOptions::default() };
    let seen = sum(100, rough, &machine);
    assert!(seen.deceived > 10 && seen.mixed > 100, "{seen:?}");
}

/// Times of a nanosecond or two, so that many things happen at one moment.
fn tight(seed: u64) -> Options {
    let nano = Duration::from_nanos(1);
    let times = ServiceTimes {
        doorbell: nano,
        request: nano,
        switch: nano,
        switches: 1,
        cables: nano,
        line: nano,
        pcie_read: nano * 2,
        pcie_write: nano,
        device_memory: nano,
        completion: nano,
        jitter: 200,
    };
    Options { times, ..rough(seed) }
}

/// Working lines out only where accesses meet is a matter of speed: no client sees a difference.
#[test]
fn every_touch_an_event_makes_no_difference() {
    for seed in 0..100 {
        for line_atomicity in [true, false] {
            let machine = MachineOptions { line_atomicity, ..MachineOptions::default() };
            for options in [rough(seed), tight(seed)] {
                let with = |every_touch_an_event| Options { every_touch_an_event, ..options.clone() };
                let lazy = readers_and_a_writer(seed, with(false), &machine);
                let eager = readers_and_a_writer(seed, with(true), &machine);
                assert_eq!(lazy, eager, "seed {seed}, line atomicity {line_atomicity}");
            }
        }
    }
}

/// After a WRITE that is seen, every earlier WRITE of its queue pair is seen: this is what lets an unlock ride after a write-back.
#[test]
fn writes_of_one_queue_pair_land_in_order() {
    for seed in 0..60 {
        let lab = Lab::new(seed, rough(seed), 2);
        let (writer, reader) = (lab.connect(0), lab.connect(1));
        let write = writer.machine.clone().spawn(async move {
            for version in 1..=20u64 {
                let chain = [
                    Operation::Write { to: writer.at(4096), data: &block(version) },
                    Operation::Write { to: writer.at(64), data: &version.to_le_bytes() },
                ];
                writer.post(chain).await.unwrap();
            }
        });
        let read = reader.machine.clone().spawn(async move {
            for _ in 0..20 {
                let flag = words(&reader.read(64, 8).await.unwrap())[0];
                let data = words(&reader.read(4096, BLOCK as u32).await.unwrap());
                assert!(data.iter().all(|version| *version >= flag), "seed {seed}: {data:?} after {flag}");
            }
        });
        lab.run_all(&[write, read]);
    }
}

/// Calls look at memory as its owner does.
#[test]
fn a_call_sees_what_is_under_way() {
    let mut mixed = 0;
    for seed in 0..200 {
        let lab = Lab::new(seed, Options { calls: Options::default().calls, ..rough(seed) }, 2);
        let wire = lab.connect(0);
        let write = wire.machine.clone().spawn(async move {
            for version in 1..=40 {
                wire.write(4096, &block(version)).await.unwrap();
            }
        });
        let (caller, server, memory) = (lab.clients[1].clone(), lab.server.clone(), lab.memory.clone());
        let look = caller.clone().spawn(async move {
            let look = |_: &_| {
                let mut bytes = vec![0; BLOCK];
                memory.read(4096, &mut bytes).unwrap();
                words(&bytes)
            };
            caller.call(&server, look).await.unwrap()
        });
        lab.world.run_until(|| look.has_ended(), super::LONG).unwrap();
        let words = look.take().unwrap();
        mixed += u64::from(words.iter().any(|version| *version != words[0]));
        write.cancel();
    }
    assert!(mixed > 3, "{mixed}");
}

/// Values read by chains of READ and WRITE: the READ may be overtaken.
async fn read_before_write(wire: &Wire) -> (u64, u64) {
    wire.write(4096, &block(1)).await.unwrap();
    let chain = [
        Operation::Read { from: wire.at(4096), len: BLOCK as u32 },
        Operation::Write { to: wire.at(4096), data: &block(2) },
        Operation::Read { from: wire.at(4096), len: BLOCK as u32 },
    ];
    let [Output::Read(first), _, Output::Read(second)] = wire.post(chain).await.unwrap() else {
        panic!("READs read")
    };
    let new = |bytes: &[u8]| words(bytes).iter().filter(|version| **version == 2).count() as u64;
    (new(&first), new(&second))
}

#[test]
fn a_read_may_be_overtaken_by_a_later_write_and_never_misses_an_earlier_one() {
    let (mut overtaken, mut not) = (0, 0);
    for seed in 0..200 {
        let lab = Lab::new(seed, rough(seed), 1);
        let wire = lab.connect(0);
        let (first, second) = lab.run(async move { read_before_write(&wire).await });
        assert_eq!(second, BLOCK as u64 / 8, "seed {seed}: a READ misses the WRITE before it");
        overtaken += u64::from(first > 0);
        not += u64::from(first == 0);
    }
    assert!(overtaken > 10 && not > 10, "{overtaken} overtaken, {not} not");
}

/// The owner of memory sees what has been touched by now: with lines in the order of addresses the new ones come first, in any
/// order they do not.
#[test]
fn the_owner_sees_what_is_under_way() {
    let looks = |seed, options| {
        let lab = Lab::new(seed, options, 1);
        let wire = lab.connect(0);
        let (server, memory) = (lab.server.clone(), lab.memory.clone());
        let write = wire.machine.clone().spawn(async move {
            for version in 1..=20 {
                wire.write(4096, &block(version)).await.unwrap();
            }
        });
        let look = lab.server.spawn(async move {
            let (mut rising, mut not) = (0, 0);
            for _ in 0..100 {
                let mut bytes = vec![0; BLOCK];
                memory.read(4096, &mut bytes).unwrap();
                let words = words(&bytes);
                let mixed = words.iter().any(|version| *version != words[0]);
                let falls = words.is_sorted_by(|left, right| left >= right);
                rising += u64::from(mixed && falls);
                not += u64::from(!falls);
                server.sleep(Duration::from_nanos(300)).await;
            }
            (rising, not)
        });
        lab.run_all(&[write]);
        lab.world.run_until(|| look.has_ended(), super::LONG).unwrap();
        look.take().unwrap()
    };
    let all = |any_order| {
        let tearing = |seed| Tearing { any_order, ..rough(seed).tearing };
        let seen = (0..100).map(|seed| looks(seed, Options { tearing: tearing(seed), ..rough(seed) }));
        seen.fold((0, 0), |sum, seen| (sum.0 + seen.0, sum.1 + seen.1))
    };
    let at_once = |seed| Tearing { at_once: true, any_order: 10_000, ..rough(seed).tearing };
    for seed in 0..100 {
        assert_eq!(looks(seed, Options { tearing: at_once(seed), ..rough(seed) }), (0, 0), "seed {seed}");
    }
    let (rising, not) = all(0);
    assert!(rising > 100 && not == 0, "{rising} in the order of addresses, {not} not");
    let (rising, not) = all(10_000);
    assert!(rising > 10 && not > 100, "{rising} in the order of addresses, {not} not");
}

//! Links that lose and delay.

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{
    Device as _, Error, Failure, IndexTarget, Operation, Output, Remote, Verbs as _, WorkRequest,
};

use super::{LONG, Lab};
use crate::world::{CachedSwitches, Duplicates, LinkFaults, MachineOptions, Options, Retry, Tearing, random};

const LOSSY: LinkFaults = LinkFaults { lost: 50_000, late: 50_000, latest: Duration::from_micros(300) };

fn rough(seed: u64) -> Options {
    let options = Options::rough(&mut random(seed, 9));
    Options { retry: Retry { limit: 30, ..options.retry }, ..options }
}

/// Requests are lost before they are carried out, answers after; each atomic is carried out once all the same.
#[test]
fn atomics_are_carried_out_once() {
    let (mut duplicates, mut lost) = (0, 0);
    for seed in 0..40 {
        let lab =
            Lab::with(seed, rough(seed), 4, &MachineOptions { link: LOSSY, ..MachineOptions::default() });
        let tasks: Vec<_> = (0..4)
            .map(|client| {
                let wire = lab.connect(client);
                wire.machine.clone().spawn(async move {
                    let mut found = Vec::new();
                    for _ in 0..10 {
                        let add = Operation::FetchAdd { at: wire.at(64), add: 1 };
                        for output in wire.post([add, add, add]).await.unwrap() {
                            let Output::Atomic(original) = output else { panic!("{output:?}") };
                            found.push(original);
                        }
                    }
                    found
                })
            })
            .collect();
        lab.run_all(&tasks);
        let mut found: Vec<_> = tasks.iter().flat_map(|task| task.take().unwrap()).collect();
        found.sort_unstable();
        assert!(found.into_iter().eq(0..120), "seed {seed}: an addition was lost or doubled");
        assert_eq!(lab.word(64), 120);
        let counts = lab.world.counts();
        (duplicates, lost) = (duplicates + counts.duplicates, lost + counts.lost);
    }
    assert!(lost > 500 && duplicates > 200, "{lost} lost, {duplicates} came again");
}

/// A WRITE that is sent again because its acknowledgement was lost does not undo what others wrote meanwhile; unless the
/// responder is one that writes again.
#[test]
fn duplicate_writes_are_acknowledged_and_not_written() {
    let undone = |rewrite: bool| {
        let mut undone = 0;
        for seed in 0..300 {
            let duplicates = Duplicates { rewrite, ..Duplicates::default() };
            let lab = Lab::new(seed, Options { duplicates, ..rough(seed) }, 2);
            let (one, two) = (lab.connect(0), lab.connect(1));
            lab.clients[0].set_link_faults(LinkFaults { lost: 200_000, ..LinkFaults::default() });
            let wires = (one.clone(), two);
            let first = one.machine.clone().spawn(async move { wires.0.write(64, b"first").await });
            let second = lab.clients[1].clone().spawn(async move {
                // As soon as the first WRITE is seen.
                while wires.1.read(64, 5).await.unwrap() != b"first" {}
                wires.1.write(64, b"later").await.unwrap();
            });
            lab.world.run_until(|| first.has_ended() && second.has_ended(), LONG).unwrap();
            undone += u64::from(lab.bytes(64, 5) != b"later");
        }
        undone
    };
    assert_eq!(undone(false), 0);
    assert!(undone(true) > 10, "a WRITE that is written again is never noticed");
}

const LEN: usize = 16 * 1024;
const PACKET: usize = 4096;

/// A client that loses much, on a network where nothing else takes long.
fn lossy(seed: u64, lost: u32) -> Lab {
    let retry = Retry { limit: 30, ..Retry::default() };
    let lab = Lab::new(seed, Options { retry, ..Options::default() }, 1);
    lab.clients[0].set_link_faults(LinkFaults { lost, ..LinkFaults::default() });
    lab
}

/// A long WRITE that loses its middle is half written until it is sent again. Then it goes on where it was cut. It
/// leaves alone what others have written into its first half meanwhile.
#[test]
fn a_long_write_is_cut_and_goes_on() {
    let mut halves = 0;
    for seed in 0..100 {
        let lab = lossy(seed, 300_000);
        let wire = lab.connect(0);
        let write = wire.machine.clone().spawn(async move { wire.write(0, &[7; LEN]).await });
        // Without a loss it takes less than 4 µs.
        lab.world.run_for(Duration::from_micros(20));
        let written = lab.bytes(0, LEN).iter().filter(|byte| **byte == 7).count();
        assert_eq!(written % PACKET, 0, "packets are whole");
        let half = written != 0 && written != LEN;
        if half {
            lab.memory.write(0, b"mine").unwrap();
        }
        lab.run_all(&[write]);
        assert_eq!(lab.bytes(4, LEN - 4), [7; LEN - 4], "seed {seed}");
        assert_eq!(lab.bytes(0, 4) == b"mine", half, "seed {seed}: the first half was written again");
        halves += u64::from(half);
    }
    assert!(halves > 10, "{halves} halves");
}

/// A long READ whose answer is cut keeps what has come, and reads the rest much later.
#[test]
fn a_long_read_is_cut_and_goes_on() {
    let mut halves = 0;
    for seed in 0..100 {
        let lab = lossy(seed, 300_000);
        let wire = lab.connect(0);
        let read = wire.machine.clone().spawn(async move { wire.read(0, LEN as u32).await });
        lab.world.run_for(Duration::from_micros(20));
        lab.memory.write(0, &[9; LEN]).unwrap();
        lab.run_all(std::slice::from_ref(&read));
        let bytes = read.take().unwrap().unwrap();
        let old = bytes.iter().filter(|byte| **byte == 0).count();
        assert!(old.is_multiple_of(PACKET) && bytes[..old] == vec![0; old], "seed {seed}: packets are whole");
        halves += u64::from(old != 0 && old != LEN);
    }
    assert!(halves > 10, "{halves} halves");
}

/// The acknowledgement of a WRITE says that it is there, also when it was sent again while it was still being carried out.
#[test]
fn a_write_that_is_acknowledged_is_there() {
    let mut duplicates = 0;
    for seed in 0..100 {
        let tearing = Tearing { stretched: 10_000, stretch: 30, any_order: 10_000, at_once: false };
        let retry = Retry { timeout: Duration::from_micros(2), limit: 1_000 };
        let lab = Lab::new(seed, Options { tearing, retry, ..Options::default() }, 1);
        let (wire, memory) = (lab.connect(0), lab.memory.clone());
        let missing = wire.machine.clone().spawn(async move {
            wire.write(0, &[7; LEN]).await.unwrap();
            wire.machine.shared.settle();
            let mut bytes = [0; LEN];
            memory.read(0, &mut bytes).unwrap();
            bytes.iter().filter(|byte| **byte != 7).count()
        });
        lab.run_all(std::slice::from_ref(&missing));
        assert_eq!(missing.take(), Some(0), "seed {seed}");
        duplicates += lab.world.counts().duplicates;
    }
    assert!(duplicates > 50, "{duplicates} came again");
}

/// A refusal after a WRITE tells that the WRITE was carried out, also when its own acknowledgement was lost.
#[test]
fn a_refusal_acknowledges_what_is_before_it() {
    let mut told = 0;
    for seed in 0..200 {
        let lab = lossy(seed, 300_000);
        let (mut card, queue_pair) = lab.bare(0);
        let nowhere = Remote { rkey: lab.region.rkey ^ 1, ..lab.at(0) };
        let write = Operation::Write { to: lab.at(0), data: b"there" };
        let read = Operation::Read { from: nowhere, len: 8 };
        let request = |tag, operation| WorkRequest { tag, signalled: true, operation };
        card.post(queue_pair, &[request(0, write), request(1, read)]).unwrap();
        while lab.world.step() {}
        let results: Vec<_> =
            std::iter::from_fn(|| card.poll()).map(|completion| completion.result.err()).collect();
        match results[..] {
            [None, Some(Failure::RemoteAccess)] => told += 1,
            [None | Some(Failure::RetryExceeded), Some(Failure::RetryExceeded | Failure::Flushed)] => {}
            _ => panic!("seed {seed}: {results:?}"),
        }
    }
    assert!(told > 50, "{told}");
}

/// Answers that come when the queue pair has failed, or is gone, complete nothing a second time.
#[test]
fn late_answers_complete_nothing() {
    for destroyed in [true, false] {
        let lab = Lab::new(1, Options::default(), 1);
        let (mut card, queue_pair) = lab.bare(0);
        let operation = Operation::FetchAdd { at: lab.at(64), add: 1 };
        lab.server.freeze_card();
        card.post(queue_pair, &[WorkRequest { tag: 1, signalled: true, operation }]).unwrap();
        lab.world.run_for(if destroyed { Duration::from_micros(5) } else { Duration::from_millis(10) });
        if destroyed {
            card.destroy(queue_pair);
        }
        lab.server.thaw_card();
        lab.world.run();
        assert_eq!(lab.word(64), 1, "it was carried out");
        let results: Vec<_> =
            std::iter::from_fn(|| card.poll()).map(|completion| completion.result.unwrap_err()).collect();
        assert_eq!(results, [if destroyed { Failure::Flushed } else { Failure::RetryExceeded }]);
    }
}

/// Retries are counted from the last progress on.
#[test]
fn a_queue_pair_may_lose_now_and_then_for_ever() {
    let lab = Lab::new(2, Options::default(), 1);
    let wire = lab.connect(0);
    lab.clients[0].set_link_faults(LinkFaults { lost: 60_000, ..LinkFaults::default() });
    lab.run(async move {
        for _ in 0..300 {
            wire.read(0, 8).await.unwrap();
        }
    });
    let retries = lab.world.counts().retries;
    assert!(retries > 3 * u64::from(Retry::default().limit), "{retries}");
}

/// All that was not answered is sent again at once, not one a time-out.
#[test]
fn everything_is_sent_again_at_once() {
    let lab = Lab::new(1, Options::default(), 1);
    let wire = lab.connect(0);
    lab.server.set_link_down(true);
    let write = wire.machine.clone().spawn(async move {
        let write = Operation::Write { to: wire.at(0), data: b"again" };
        wire.post([write; 10]).await.unwrap();
    });
    lab.world.run_for(Duration::from_micros(50));
    lab.server.set_link_down(false);
    let took = lab.run_all(&[write]);
    assert!(took < Duration::from_micros(200), "{took}");
}

/// Messages of a queue pair do not overtake each other, however late some of them are.
#[test]
fn late_messages_keep_their_order() {
    for seed in 0..20 {
        let lab = Lab::new(seed, Options::default(), 1);
        let (wire, switches) = (lab.connect(0), CachedSwitches::default());
        switches.register(wire.queue_pair, lab.at(0));
        lab.world.set_switches(switches);
        lab.clients[0].set_link_faults(LinkFaults {
            lost: 0,
            late: 500_000,
            latest: Duration::from_micros(20),
        });
        lab.run(async move {
            for _ in 0..10 {
                let read = Operation::Read { from: wire.at(0), len: 64 };
                let write = Operation::Write { to: wire.at(64), data: b"in order" };
                let index = Operation::IndexRead { key: 7, len: 64, target: IndexTarget::NodeOrRecord };
                wire.post([read, index, write, read, write, index, index, write, read, index, read])
                    .await
                    .unwrap();
            }
        });
        let counts = lab.world.counts();
        assert_eq!((counts.out_of_order, counts.retries, counts.duplicates), (0, 0, 0), "seed {seed}");
    }
}

/// A cable that is cut loses what is on its way.
#[test]
fn what_is_on_its_way_is_lost_with_the_cable() {
    // A READ is at the server after 519 ns and back after 1.6 µs.
    for (cut, side, executed) in [(300, "server", 0), (1_300, "client", 1)] {
        let lab = Lab::new(1, Options::default(), 1);
        let wire = lab.connect(0);
        let machine = if side == "client" { lab.clients[0].clone() } else { lab.server.clone() };
        let task = wire.machine.clone().spawn(async move { wire.add(64, 1).await });
        lab.world.run_for(Duration::from_nanos(cut));
        machine.set_link_down(true);
        lab.world.run_for(Duration::from_micros(10));
        assert_eq!((lab.word(64), task.has_ended()), (executed, false), "{side}");
        machine.set_link_down(false);
        lab.world.run_until(|| task.has_ended(), LONG).unwrap();
        assert_eq!((lab.word(64), task.take().unwrap()), (1, Ok(0)), "{side}");
    }
}

#[test]
fn a_link_that_is_down_ends_retries_and_one_that_comes_back_in_time_does_not() {
    for (pause, fine) in [(Duration::from_micros(250), true), (Duration::from_millis(50), false)] {
        for side in ["client", "server"] {
            let lab = Lab::new(1, Options::default(), 1);
            let wire = lab.connect(0);
            let machine = if side == "client" { lab.clients[0].clone() } else { lab.server.clone() };
            machine.set_link_down(true);
            let task = wire.machine.clone().spawn(async move { wire.read(0, 8).await });
            lab.world.run_for(pause);
            machine.set_link_down(false);
            lab.world.run_until(|| task.has_ended(), LONG).unwrap();
            let expected = if fine { Ok(vec![0; 8]) } else { Err(Error::Failed(Failure::RetryExceeded)) };
            assert_eq!(task.take().unwrap(), expected, "{side}");
        }
    }
}

/// Switches that stand still delay, and dark ones lose.
#[test]
fn switches_stand_still_or_go_dark() {
    let lab = Lab::new(1, Options::default(), 1);
    let switches = CachedSwitches::default();
    lab.world.set_switches(switches.clone());
    let wire = lab.connect(0);
    let until = lab.world.now() + Duration::from_micros(60);
    switches.freeze(until);
    let (first, machine) = (wire.clone(), wire.machine.clone());
    let read = lab.run(async move { (first.read(0, 8).await, machine.now()) });
    assert!(read.0.is_ok() && read.1 > until, "{read:?}");
    switches.set_dark(true);
    let dark = wire.clone();
    let read = lab.run(async move { dark.read(0, 8).await });
    assert_eq!(read, Err(Error::Failed(Failure::RetryExceeded)));
    switches.heal();
    let wire = lab.connect(0);
    assert!(lab.run(async move { wire.read(0, 8).await }).is_ok());
}

/// After everything is healed nothing is lost any more.
#[test]
fn healing_heals() {
    let lab =
        Lab::with(5, Options::default(), 2, &MachineOptions { link: LOSSY, ..MachineOptions::default() });
    lab.clients[0].freeze();
    lab.clients[1].set_link_down(true);
    lab.server.freeze_card();
    lab.clients[1].kill_after_polls(3);
    lab.world.heal();
    let wires = [lab.connect(0), lab.connect(1)];
    let tasks = wires.map(|wire| {
        wire.machine.clone().spawn(async move {
            for _ in 0..200 {
                wire.add(64, 1).await.unwrap();
            }
        })
    });
    let took = lab.run_all(&tasks);
    assert_eq!((lab.word(64), lab.world.counts().lost), (400, 0));
    assert!(took < Duration::from_millis(1), "{took}");
}

//! Links that lose and delay.

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Error, Failure, Operation, Output};

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

/// A long WRITE that loses its middle is half written until it is sent again; a long READ goes on where it was cut.
#[test]
fn long_messages_are_cut_and_resumed() {
    const LEN: usize = 16 * 1024;
    let (mut halves, mut mixed) = (0, 0);
    for seed in 0..60 {
        let lab = Lab::new(
            seed,
            Options { tearing: Tearing { any_order: 0, stretched: 0, stretch: 1 }, ..rough(seed) },
            2,
        );
        let (writer, reader) = (lab.connect(0), lab.connect(1));
        for client in &lab.clients {
            client.set_link_faults(LinkFaults { lost: 150_000, ..LinkFaults::default() });
        }
        let write = writer.machine.clone().spawn(async move {
            for round in 1..=10u8 {
                writer.write(0, &[round; LEN]).await.unwrap();
            }
        });
        let read = reader.machine.clone().spawn(async move {
            let mut mixed = 0;
            for _ in 0..10 {
                let bytes = reader.read(0, LEN as u32).await.unwrap();
                mixed += u64::from(bytes.iter().any(|byte| *byte != bytes[0]));
            }
            mixed
        });
        let memory = lab.memory.clone();
        let operator = lab.world.operator().clone();
        let watch = lab.world.operator().spawn(async move {
            let mut halves = 0;
            for _ in 0..100 {
                operator.sleep(Duration::from_micros(20)).await;
                let mut bytes = vec![0; LEN];
                memory.read(0, &mut bytes).unwrap();
                halves += u64::from(bytes[0] != bytes[LEN - 1]);
            }
            halves
        });
        lab.world.run_until(|| write.has_ended() && read.has_ended() && watch.has_ended(), LONG).unwrap();
        assert_eq!(lab.bytes(0, LEN), [10; LEN], "seed {seed}");
        mixed += read.take().unwrap();
        halves += watch.take().unwrap();
    }
    assert!(halves > 100 && mixed > 20, "{halves} halves seen, {mixed} READs mixed");
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

//! Functions of cards besides reading and writing: regions taken back, device memory, ranks of READs,
//! buffers.

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Access, Device as _, Error, Failure, Memory, Operation, Region, RegisterError, Remote};

use super::{LONG, Lab, Wire};
use crate::world::{Options, random};

/// After a region was taken back nothing is written there any more, also not by what was under way.
#[test]
fn a_region_that_is_taken_back_stays_as_it_is() {
    let (mut finished, mut before, mut after) = (0, 0, 0);
    for seed in 0..200 {
        let lab = Lab::new(seed, Options::rough(&mut random(seed, 9)), 1);
        let wire = lab.connect(0);
        let task = wire.machine.clone().spawn(async move { wire.write(0, &[7; 4096]).await });
        lab.world.run_for(Duration::from_nanos(60 * seed));
        lab.server.reactor().with(|card| card.deregister(lab.region.rkey));
        let bytes = lab.bytes(0, 4096);
        lab.world.run_until(|| task.has_ended(), LONG).unwrap();
        lab.world.run();
        assert_eq!(lab.bytes(0, 4096), bytes, "seed {seed}: it was written after it was taken back");
        let written = bytes.iter().filter(|byte| **byte == 7).count();
        let broken = lab.server.reactor().poll_broken().is_some();
        let result = task.take().unwrap();
        assert_eq!(broken, result.is_err(), "seed {seed}: whoever refuses breaks as well");
        match (written, result) {
            (4096, Ok(())) => after += 1,
            (4096, Err(_)) => finished += 1,
            (0, Err(error)) => {
                assert_eq!(error, Error::Failed(Failure::RemoteAccess));
                before += 1;
            }
            (_, result) => panic!("seed {seed}: a WRITE of one packet wrote {written} bytes: {result:?}"),
        }
    }
    let counts = format!("{before} before, {finished} finished, {after} after");
    assert!(finished > 10 && before > 10 && after > 10, "{counts}");
}

/// A queue pair that a server takes back stops at once; a packet that it has begun to write it has written.
#[test]
fn a_queue_pair_that_is_destroyed_serves_no_more() {
    let (mut nothing, mut all) = (0, 0);
    for seed in 0..200 {
        let lab = Lab::new(seed, Options::rough(&mut random(seed, 9)), 1);
        let wire = lab.connect(0);
        // The server's queue pair is the one that was made after the client's.
        let peer = fatbtree_verbs::QueuePair(wire.queue_pair.0 + 1);
        let task = wire.machine.clone().spawn(async move { wire.write(0, &[7; 4096]).await });
        lab.world.run_for(Duration::from_nanos(60 * seed));
        lab.server.reactor().with(|card| card.destroy(peer));
        let bytes = lab.bytes(0, 4096);
        lab.world.run_until(|| task.has_ended(), LONG).unwrap();
        lab.world.run();
        assert_eq!(lab.bytes(0, 4096), bytes, "seed {seed}");
        match bytes.iter().filter(|byte| **byte == 7).count() {
            0 => nothing += 1,
            4096 => all += 1,
            written => panic!("seed {seed}: {written} bytes of a packet were written"),
        }
    }
    assert!(nothing > 10 && all > 10, "{nothing} wrote nothing, {all} wrote all");
}

#[test]
fn device_memory_is_bounded_and_comes_back() {
    let lab = Lab::new(1, Options::default(), 1);
    let card = lab.server.reactor();
    let take = |len| card.with(|card| card.register_device_memory(len, 0, Access::ALL));
    let first = take(200 * 1024).unwrap();
    assert_eq!(
        take(100 * 1024),
        Err(RegisterError::DeviceMemory { wanted: 100 * 1024, available: 56 * 1024 })
    );
    card.with(|card| card.deregister(first.rkey));
    assert!(take(256 * 1024).is_ok());
}

/// Memory on the card is faster, and it is the same memory for both clients.
#[test]
fn atomics_on_the_card_take_less_time() {
    let lab = Lab::new(1, Options::default(), 2);
    let on_card =
        lab.server.reactor().with(|card| card.register_device_memory(4096, 0, Access::ALL)).unwrap();
    let wires = [lab.connect(0), lab.connect(1)];
    let time = |region: Region| {
        let tasks = wires.clone().map(|wire| {
            let wire = Wire { rkey: region.rkey, ..wire };
            wire.machine.clone().spawn(async move {
                let mut last = 0;
                for _ in 0..100 {
                    last = wire.add(8, 1).await.unwrap().max(last);
                }
                last
            })
        });
        let took = lab.run_all(&tasks);
        let last = tasks.iter().map(|task| task.take().unwrap()).max();
        assert_eq!(last, Some(199));
        took
    };
    let (card, memory) = (time(on_card), time(lab.region));
    assert!(card.as_nanos() * 3 < memory.as_nanos() * 2, "{card} on the card, {memory} in memory");
}

/// The same memory registered twice is one memory: accesses by both names meet.
#[test]
fn two_regions_may_be_the_same_memory() {
    let mut mixed = 0;
    for seed in 0..100 {
        let lab = Lab::new(seed, Options::rough(&mut random(seed, 9)), 2);
        let again =
            lab.server.reactor().with(|card| card.register(&lab.memory, 1 << 30, Access::ALL)).unwrap();
        let (writer, reader) = (lab.connect(0), Wire { rkey: again.rkey, ..lab.connect(1) });
        let write = writer.machine.clone().spawn(async move {
            for round in 1..=10u8 {
                writer.write(0, &[round; 1024]).await.unwrap();
            }
            0
        });
        let read = reader.machine.clone().spawn(async move {
            let mut mixed = 0;
            for _ in 0..10 {
                let bytes = reader.read(1 << 30, 1024).await.unwrap();
                mixed += u64::from(bytes.iter().any(|byte| *byte != bytes[0]));
            }
            mixed
        });
        let tasks = [write, read];
        lab.run_all(&tasks);
        mixed += tasks[1].take().unwrap();
    }
    assert!(mixed > 20, "{mixed}");
}

/// A region at the end of the address space, and requests that wrap around it.
#[test]
fn addresses_do_not_wrap() {
    let lab = Lab::new(1, Options::default(), 1);
    let memory = Memory::shared(4096).unwrap();
    let card = lab.server.reactor();
    let refused = card.with(|card| card.register(&memory, u64::MAX - 4094, Access::ALL));
    assert!(matches!(refused, Err(RegisterError::Range { .. })), "{refused:?}");
    let region = card.with(|card| card.register(&memory, u64::MAX - 4096, Access::ALL)).unwrap();
    for (address, fine) in [(u64::MAX - 8, true), (u64::MAX - 7, false), (u64::MAX, false)] {
        let wire = Wire { rkey: region.rkey, ..lab.connect(0) };
        let from = Remote { address, rkey: region.rkey };
        let result = lab.run(async move { wire.post([Operation::Read { from, len: 8 }]).await.map(drop) });
        assert_eq!(result.is_ok(), fine, "{address:#x}");
    }
}

/// A queue pair answers the one that it was connected to, and no other.
#[test]
fn a_queue_pair_has_one_peer() {
    let lab = Lab::new(1, Options::default(), 2);
    let wire = lab.connect(0);
    let peer = fatbtree_verbs::QueuePair(wire.queue_pair.0 + 1);
    let theirs = lab.server.reactor().with(|card| card.endpoint(peer)).unwrap();
    let other = lab.clients[1].reactor().with(|card| {
        let queue_pair = card.create().unwrap();
        card.connect(queue_pair, &theirs).unwrap();
        queue_pair
    });
    let other = Wire { machine: lab.clients[1].clone(), queue_pair: other, rkey: lab.region.rkey };
    let error = lab.run(async move { other.add(64, 1).await }).unwrap_err();
    assert_eq!(error, Error::Failed(Failure::RetryExceeded));
    assert_eq!(lab.word(64), 0);
    assert!(lab.run(async move { wire.add(64, 1).await }).is_ok(), "the right one is not disturbed");
}

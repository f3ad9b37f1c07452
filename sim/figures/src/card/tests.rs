//! The model's parts, asked like a world asks them.

use fatbtree_verbs::time::{Duration, Instant};

use super::{Calibration, Cluster, Resources};
use fatbtree_sim::world::{Kind, MachineId, Posting, Random, Timing, Work, random};

const CLIENT: MachineId = MachineId(0);
const SERVER: MachineId = MachineId(1);

fn work(kind: Kind, bytes: u32) -> Work {
    Work {
        from: CLIENT,
        to: SERVER,
        kind,
        bytes,
        address: 64,
        arrived: Instant::ZERO,
        device_memory: false,
        doorbell: true,
        follows: false,
        signalled: true,
        changed: false,
    }
}

/// A request from its post at zero to its completion.
fn whole(cluster: &mut Cluster, mut work: Work, random: &mut Random) -> Duration {
    let rung = cluster.post(Instant::ZERO, &Posting { from: CLIENT, to: SERVER, requests: 1 }, random);
    work.arrived = cluster.send(rung, &work, random).arrives;
    let answers = cluster.serve(work.arrived, &work, random).answers;
    let come = cluster.answer(answers, &work, random);
    let taken = cluster.complete(come, &work);
    cluster.freed(CLIENT, 1);
    taken - Instant::ZERO
}

fn steady(calibration: Calibration, switches: u32) -> Cluster {
    Cluster::new(Calibration { jitter: 0, ..calibration }, switches)
}

/// Sums as the page of each calibration states them, within 2 %.
#[test]
fn an_idle_read_takes_as_long_as_in_the_papers() {
    for (calibration, switches, bytes, nanos) in [
        (Calibration::CX6_200_PCIE3, 1, 8, 2_350),
        (Calibration::CX5_100_IB, 1, 64, 2_000),
        (Calibration::CX5_40_EVENTS, 2, 384, 16_000),
    ] {
        let mut cluster = steady(calibration, switches);
        cluster.threads([CLIENT], Resources::DoorbellPerThread);
        let took = whole(&mut cluster, work(Kind::Read, bytes), &mut random(0, 0)).as_nanos();
        assert!(took.abs_diff(nanos) * 50 <= nanos, "{}: {took} ns, not {nanos}", calibration.name);
    }
}

/// The ceiling of READs is what they and their completions move over the bus: without completions it is another.
#[test]
fn selective_signalling_lifts_the_ceiling() {
    let span = |signalled| {
        let (mut cluster, mut random) = (steady(Calibration::CX6_200_PCIE3, 1), random(0, 0));
        let read = Work { signalled, ..work(Kind::Read, 8) };
        // A world asks in the order of time.
        let times = vec![Instant::ZERO; 10_000];
        let times: Vec<_> =
            times.into_iter().map(|now| cluster.send(now, &read, &mut random).arrives).collect();
        let serve = |arrived| cluster.serve(arrived, &Work { arrived, ..read }, &mut random).answers;
        let times: Vec<_> = times.into_iter().map(serve).collect();
        let times: Vec<_> = times.into_iter().map(|now| cluster.answer(now, &read, &mut random)).collect();
        let ends = times.into_iter().map(|now| cluster.complete(now, &read));
        (ends.max().unwrap() - Instant::ZERO).as_nanos()
    };
    let (all, none) = (span(true), span(false));
    assert!(all > 10_000 * 8 && none * 13 < all * 10, "{all} {none}");
}

/// Atomics of one word wait for each other, on the card less long; those of other words do not.
#[test]
fn atomics_of_one_word_wait_for_each_other() {
    let last = |device_memory, apart: u64| {
        let (mut cluster, mut random) = (steady(Calibration::CX6_200_PCIE3, 1), random(0, 0));
        let serve = |number: u64| {
            let work = Work { device_memory, address: 64 + number * apart, ..work(Kind::Atomic, 8) };
            (cluster.serve(Instant::ZERO, &work, &mut random).ends - Instant::ZERO).as_nanos()
        };
        (0..100).map(serve).max().unwrap()
    };
    let (host, card, others) = (last(false, 0), last(true, 0), last(false, 8));
    assert!((45_000..46_000).contains(&host) && (11_000..12_000).contains(&card), "{host} {card}");
    assert!(others < 2_000, "{others}");
}

#[test]
fn an_atomic_that_changes_nothing_writes_nothing_back() {
    let bus_up = |changed| {
        let mut cluster = steady(Calibration::CX6_200_PCIE3, 1);
        let work = Work { changed, ..work(Kind::Atomic, 8) };
        cluster.answer(Instant::ZERO, &work, &mut random(0, 0));
        cluster.usage(SERVER).bus_up.as_nanos()
    };
    // 8 bytes and a header of 26, at 13.9 GB/s.
    assert_eq!((bus_up(false), bus_up(true)), (0, 2));
}

/// mlx5's default: 4 registers of one queue pair each, and 12 in turn.
#[test]
fn registers_are_shared_as_the_driver_gives_them_out() {
    let per_thread = Resources::QueuePairPerThread;
    let registers: Vec<_> = [0, 3, 4, 15, 16].map(|thread| per_thread.register(thread, 0, 48)).to_vec();
    assert_eq!(registers, [None, None, Some(0), Some(11), Some(0)]);
    assert_eq!(Resources::ThreadsPerQueuePair(4).register(16, 0, 48), Some(0));
    assert_eq!(Resources::SharedQueuePair.queue_pair(95), Some(0));
    assert_eq!(Resources::DoorbellPerThread.register(95, 1, 96), None);
}

/// Threads that have a queue pair to each of two machines: of 48, four ring a register; of 47, up to eight (SMART section 6.2.2).
#[test]
fn two_queue_pairs_of_a_thread_share_a_register_of_48_threads() {
    let most = |threads: u32| {
        let of = |thread| [0, 1].map(|peer| Resources::QueuePairPerThread.register(thread, peer, threads));
        let at = |register| (0..threads).filter(|&thread| of(thread).contains(&Some(register))).count();
        (0..12).map(at).max()
    };
    assert_eq!([24, 47, 48, 96].map(most), [2, 8, 4, 8].map(Some));
}

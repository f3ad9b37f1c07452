//! What the suite cannot ask of every implementation: bounds of this one, and that nothing piles up in the card's queues.

use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use fatbtree_ibverbs::{Config, RdmaDevice};
use fatbtree_port::Waiter;
use fatbtree_verbs::conformance::{Bench, Responder};
use fatbtree_verbs::{
    Access, Completion, ConnectError, Device, Endpoint, Failure, Memory, Operation, Output, PostError,
    QueuePair, QueuePairNumber, QueuePairState, Reactor, Region, Remote, Verbs, WorkRequest, time,
};

use crate::conformance::TwoMachines;

type Verdict = Result<(), String>;

/// A check by name: it is given the device and the responder's address.
type Check = (&'static str, fn(&str, &str) -> Verdict);

pub(crate) const CHECKS: [Check; 7] = [
    ("a device hands out as many queue pairs as it was told to, then refuses", count_of_queue_pairs),
    ("100 queue pairs come and go, each broken by a refused READ, through queues for 16", come_and_go),
    ("completions that the caller does not take are bounded", untaken_completions),
    ("a sleeper is told of what has come, and of nothing else", sleeping),
    ("connecting to an unused address is refused, and the queue pair is as new", connect_to_nobody),
    ("memory at an address that is not on a page is refused with a reason", off_page),
    ("eight tasks, 800 chains of WRITE, FAA and READ by a reactor", futures),
];

macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A bench whose device has few queue pairs, which hold few requests.
fn small(device: &str, address: &str, queue_pairs: u32) -> Result<TwoMachines, String> {
    TwoMachines::new(device, address, &Config { queue_pairs, send_queue: 16, ..crate::config() })
}

fn connect(bench: &mut TwoMachines) -> Result<(QueuePair, QueuePairNumber), String> {
    let queue_pair = bench.verbs.create().map_err(said)?;
    let local = bench.verbs.endpoint(queue_pair).map_err(said)?;
    let remote = bench.responder.accept(&local)?;
    bench.verbs.connect(queue_pair, &remote).map_err(said)?;
    Ok((queue_pair, remote.queue_pair))
}

fn read(region: &Region) -> Operation<'static> {
    Operation::Read { from: Remote { address: region.iova, rkey: region.rkey }, len: 8 }
}

fn post(
    bench: &mut TwoMachines,
    queue_pair: QueuePair,
    tag: u64,
    operation: Operation<'_>,
) -> Result<(), PostError> {
    bench.verbs.post(queue_pair, &[WorkRequest { tag, signalled: true, operation }])
}

fn take(bench: &mut TwoMachines) -> Result<Completion, String> {
    let mut turns = 0;
    loop {
        if let Some(completion) = bench.verbs.poll() {
            return Ok(completion);
        }
        let waits = bench.advance(turns);
        ensure!(waits || turns == 0, "no completion came");
        turns += 1;
    }
}

fn count_of_queue_pairs(device: &str, address: &str) -> Verdict {
    let mut bench = small(device, address, 5)?;
    let made: Result<Vec<QueuePair>, _> = (0..5).map(|_| bench.verbs.create()).collect();
    let made = made.map_err(said)?;
    let refused = bench.verbs.create();
    ensure!(refused == Err(ConnectError::NoQueuePair { limit: 5 }), "the sixth of five: {refused:?}");
    bench.verbs.destroy(made[2]);
    let again = bench.verbs.create().map_err(said)?;
    ensure!(!made.contains(&again), "{again} was given out twice");
    Ok(())
}

fn come_and_go(device: &str, address: &str) -> Verdict {
    let mut bench = small(device, address, 16)?;
    let region = bench.responder.register(4096, Access::ALL)?;
    let bad = Region { rkey: region.rkey ^ 0x0080_0000, ..region };
    let (bystander, _) = connect(&mut bench)?;
    for round in 0..100 {
        let (queue_pair, peer) = connect(&mut bench)?;
        for (tag, region) in [(0, &region), (1, &bad), (2, &region)] {
            post(&mut bench, queue_pair, tag, read(region))
                .map_err(|error| format!("round {round}: {error}"))?;
        }
        for expected in [None, Some(Failure::RemoteAccess), Some(Failure::Flushed)] {
            let found = take(&mut bench)?.result.err();
            ensure!(found == expected, "round {round}: {expected:?} expected, found {found:?}");
        }
        // The caller does not poll for broken queue pairs: their names must not pile up.
        bench.verbs.destroy(queue_pair);
        bench.responder.disconnect(peer)?;
    }
    let named = (bench.verbs.poll_broken(), bench.responder.broken()?);
    ensure!(named == (None, Vec::new()), "after that, {named:?} are named as broken");
    post(&mut bench, bystander, 3, read(&region)).map_err(said)?;
    take(&mut bench)?.result.map(drop).map_err(said)
}

fn untaken_completions(device: &str, address: &str) -> Verdict {
    let mut bench = small(device, address, 1)?;
    let region = bench.responder.register(4096, Access::ALL)?;
    let (first, _) = connect(&mut bench)?;
    for tag in 0..16 {
        post(&mut bench, first, tag, read(&region)).map_err(said)?;
    }
    bench.verbs.destroy(first);
    let (second, _) = connect(&mut bench)?;
    let refused = post(&mut bench, second, 16, read(&region));
    ensure!(
        matches!(refused, Err(error @ PostError::Full { limit: 16, .. }) if error.is_temporary()),
        "the seventeenth of sixteen: {refused:?}"
    );
    for tag in 0..16 {
        let completion = take(&mut bench)?;
        ensure!(
            (completion.tag, completion.queue_pair) == (tag, first),
            "{tag} expected, found {completion:?}"
        );
    }
    post(&mut bench, second, 16, read(&region)).map_err(said)?;
    let completion = take(&mut bench)?;
    ensure!(completion.tag == 16 && completion.result.is_ok(), "then: {completion:?}");
    Ok(())
}

fn sleeping(device: &str, address: &str) -> Verdict {
    let mut bench = small(device, address, 4)?;
    let region = bench.responder.register(4096, Access::ALL)?;
    let bad = Region { rkey: region.rkey ^ 0x0080_0000, ..region };
    let (queue_pair, _) = connect(&mut bench)?;
    let waiter = Waiter::new().map_err(said)?;
    let is_told = |bench: &TwoMachines, patience| {
        let mut ready = Vec::new();
        waiter.wait_for(bench.verbs.fds().into_iter(), Some(patience), &mut ready);
        ready.contains(&true)
    };
    for (tag, region) in [(0, &region), (1, &region), (2, &bad)] {
        ensure!(bench.verbs.arm().map_err(said)?, "{tag}: something is there before anything was asked");
        ensure!(!is_told(&bench, Duration::from_millis(50)), "{tag}: told of nothing");
        post(&mut bench, queue_pair, tag, read(region)).map_err(said)?;
        ensure!(is_told(&bench, Duration::from_secs(10)), "{tag}: not told of an answer in 10 s");
        ensure!(!bench.verbs.arm().map_err(said)?, "{tag}: to be slept over though it is there");
        take(&mut bench)?;
    }
    ensure!(bench.verbs.has_news(), "a broken queue pair is no news");
    ensure!(bench.verbs.poll_broken() == Some(queue_pair), "the queue pair is not named as broken");
    ensure!(bench.verbs.arm().map_err(said)?, "there is news, but nothing is left to take");
    Ok(())
}

fn connect_to_nobody(device: &str, address: &str) -> Verdict {
    let mut bench = small(device, address, 4)?;
    let region = bench.responder.register(4096, Access::ALL)?;
    let queue_pair = bench.verbs.create().map_err(said)?;
    let local = bench.verbs.endpoint(queue_pair).map_err(said)?;
    // An unused address in the same network.
    let ip = Ipv4Addr::from_bits(local.ip.to_bits() ^ 0x77);
    let refused = bench.verbs.connect(queue_pair, &Endpoint { ip, ..local });
    ensure!(matches!(refused, Err(ConnectError::Driver { .. })), "connecting to {ip}: {refused:?}");
    let state = bench.verbs.state(queue_pair);
    ensure!(state == Some(QueuePairState::Reset), "RESET expected, found {state:?}");
    let remote = bench.responder.accept(&local)?;
    bench.verbs.connect(queue_pair, &remote).map_err(said)?;
    post(&mut bench, queue_pair, 0, read(&region)).map_err(said)?;
    take(&mut bench)?.result.map(drop).map_err(said)
}

fn off_page(device: &str, _: &str) -> Verdict {
    let mut verbs = RdmaDevice::open(device, &crate::config()).map_err(said)?;
    let memory = Memory::shared(4096).map_err(said)?;
    let refused = verbs.register(&memory, 5 << 48 | 64, Access::READ).err().map(said).unwrap_or_default();
    ensure!(refused.contains("multiple of 4096"), "an address inside of a page: {refused:?}");
    verbs.register(&memory, 5 << 48 | 8192, Access::READ).map(drop).map_err(said)
}

fn futures(device: &str, address: &str) -> Verdict {
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 100;
    let mut bench = TwoMachines::new(device, address, &crate::config())?;
    let region = bench.responder.register(4096, Access::ALL)?;
    let pairs = [connect(&mut bench)?.0, connect(&mut bench)?.0];
    let TwoMachines { verbs, mut responder, .. } = bench;
    let reactor = Reactor::new(verbs);
    let at = |offset| Remote { address: region.iova + offset, rkey: region.rkey };

    let task = |number: u64| {
        let (reactor, queue_pair) = (&reactor, pairs[number as usize % pairs.len()]);
        async move {
            for round in 0..ROUNDS {
                let own = at(64 * (number + 1));
                let bytes = (number << 32 | round).to_le_bytes();
                let chain = [
                    Operation::Write { to: own, data: &bytes },
                    Operation::FetchAdd { at: at(0), add: 1 },
                    Operation::Read { from: own, len: 8 },
                ];
                let found = reactor.chain(queue_pair, chain).await.map_err(said)?;
                let fine = matches!(&found, [_, Output::Atomic(_), Output::Read(read)] if **read == bytes);
                ensure!(fine, "task {number}, round {round}: {found:?}");
            }
            Ok(())
        }
    };
    let mut tasks: Vec<Pin<Box<dyn Future<Output = Verdict> + '_>>> = Vec::new();
    (0..TASKS).for_each(|number| tasks.push(Box::pin(task(number))));
    let mut verdict = Ok(());
    let all = std::future::poll_fn(|context| {
        tasks.retain_mut(|task| match task.as_mut().poll(context) {
            Poll::Ready(result) => {
                verdict = std::mem::replace(&mut verdict, Ok(())).and(result);
                false
            }
            Poll::Pending => true,
        });
        if tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    });
    let began = Instant::now();
    reactor.run(all, |_| {
        std::thread::yield_now();
        time::Instant::ZERO + began.elapsed().into()
    });
    verdict?;
    let sum = responder.read(region.rkey, 0, 8)?;
    ensure!(sum == (TASKS * ROUNDS).to_le_bytes(), "{} additions made {sum:?}", TASKS * ROUNDS);
    Ok(())
}

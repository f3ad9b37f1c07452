//! Machines that die, are frozen, come back.

use std::cell::Cell;
use std::rc::Rc;

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{
    Access, Device as _, Error, Failure, Memory, Operation, PostError, QueuePairState, Verbs as _,
    WorkRequest,
};

use super::{LONG, Lab, Wire};
use crate::world::{DialError, LinkFaults, MachineOptions, Options, Retry, ServiceTimes, random};

/// Posts a WRITE from its destructor, as a lock guard that unlocks would.
struct Guard {
    wire: Wire,
    /// Expected answer of the card.
    posts: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let to = self.wire.at(128);
        let request =
            WorkRequest { tag: 9, signalled: true, operation: Operation::Write { to, data: b"unlocked" } };
        let reactor = self.wire.machine.reactor();
        let posted = reactor.with(|card| card.post(self.wire.queue_pair, &[request]));
        assert_eq!(posted.is_ok(), self.posts, "{posted:?}");
    }
}

fn guarded(lab: &Lab, posts: bool) -> crate::world::Task<()> {
    let wire = lab.connect(0);
    let client = wire.machine.clone();
    let guard = Guard { wire, posts };
    let task = client.spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    lab.world.run_for(Duration::from_micros(10));
    task
}

#[test]
fn destructors_of_a_dead_machine_reach_nobody() {
    let lab = Lab::new(1, Options::default(), 1);
    let task = guarded(&lab, false);
    lab.clients[0].kill();
    assert!(task.has_ended());
    lab.world.run();
    assert_eq!(lab.bytes(128, 8), [0; 8]);
}

#[test]
fn destructors_of_a_task_that_is_cancelled_do_their_work() {
    let lab = Lab::new(1, Options::default(), 1);
    let task = guarded(&lab, true);
    task.cancel();
    assert!(task.has_ended());
    lab.world.run();
    assert_eq!(lab.bytes(128, 8), *b"unlocked");
}

/// A machine that kills itself runs on to its next await, and reaches no other machine any more.
#[test]
fn a_machine_may_kill_itself() {
    let lab = Lab::new(1, Options::default(), 1);
    let wire = lab.connect(0);
    let (client, went_on) = (wire.machine.clone(), Rc::new(Cell::new(0)));
    let steps = Rc::clone(&went_on);
    let task = client.clone().spawn(async move {
        client.kill();
        steps.set(1);
        let refused = wire.add(64, 1).await;
        assert!(matches!(refused, Err(Error::Post(PostError::NotConnected { .. }))), "{refused:?}");
        steps.set(2);
        client.sleep(Duration::from_nanos(1)).await;
        steps.set(3);
    });
    lab.world.run();
    assert_eq!((went_on.get(), lab.word(64), task.has_ended(), task.take()), (2, 0, true, None));
}

/// A client that dies at each of its awaits in turn has done a beginning of its work, and never a later part without an earlier.
#[test]
fn death_comes_at_every_await() {
    let mut ends = Vec::new();
    for polls in 0..40 {
        let lab = Lab::new(3, Options::default(), 1);
        let wire = lab.connect(0);
        let steps = Rc::new(Cell::new(0));
        let taken = Rc::clone(&steps);
        let task = wire.machine.clone().spawn(async move {
            for step in 1..=10u64 {
                wire.write(64, &step.to_le_bytes()).await.unwrap();
                wire.add(128, 1).await.unwrap();
                taken.set(step);
            }
        });
        lab.clients[0].kill_after_polls(polls);
        lab.world.run();
        assert!(task.has_ended());
        assert_eq!(lab.clients[0].is_up(), polls >= 21, "{polls} polls");
        let (written, added) = (lab.word(64), lab.word(128));
        assert!(written == added || written == added + 1, "{written} written, {added} added");
        // A request of the last poll may have been carried out without a completion.
        assert!(written >= steps.get() && written <= steps.get() + 1);
        ends.push((written, added));
    }
    ends.dedup();
    assert_eq!(ends.len(), 21, "each await is an end of its own: {ends:?}");
}

/// A long WRITE whose client dies half way stays half written.
#[test]
fn a_write_that_loses_its_client_stays_torn() {
    const LEN: usize = 16 * 1024;
    let mut torn = 0;
    for seed in 0..100 {
        let mut options = Options::rough(&mut random(seed, 9));
        options.times.line = Duration::from_nanos(100);
        let lab = Lab::new(seed, options, 1);
        let wire = lab.connect(0);
        let client = wire.machine.clone();
        client.spawn(async move { wire.write(0, &[7; LEN]).await });
        lab.world.run_for(Duration::from_nanos(300 * seed));
        client.kill();
        lab.world.run();
        let bytes = lab.bytes(0, LEN);
        let written = bytes.iter().filter(|byte| **byte == 7).count();
        assert_eq!(written % 4096, 0, "packets are whole");
        torn += u64::from(written != 0 && written != LEN);
    }
    assert!(torn > 10, "{torn} of 100 WRITEs were torn");
}

/// A server that dies while a WRITE is being carried out keeps the lines that were touched.
#[test]
fn a_server_dies_with_half_a_write_in_its_memory() {
    let mut torn = 0;
    for seed in 0..200 {
        let mut options = Options::rough(&mut random(seed, 9));
        options.retry = Retry { limit: 1, ..options.retry };
        let lab = Lab::new(seed, options, 1);
        let wire = lab.connect(0);
        let task = wire.machine.clone().spawn(async move { wire.write(0, &[7; 4096]).await });
        lab.world.run_for(Duration::from_nanos(100 * seed));
        lab.server.kill();
        let result = lab.world.run_until(|| task.has_ended(), LONG).map(|_| task.take().unwrap()).unwrap();
        let written = lab.bytes(0, 4096).iter().filter(|byte| **byte == 7).count();
        match result {
            Ok(()) => assert_eq!(written, 4096, "seed {seed}"),
            Err(error) => assert_eq!(error, Error::Failed(Failure::RetryExceeded)),
        }
        torn += u64::from(written != 0 && written != 4096);
    }
    assert!(torn > 5, "{torn} of 200 WRITEs were torn");
}

#[test]
fn a_server_that_comes_back_knows_nobody_and_keeps_what_it_is_given() {
    let lab = Lab::new(1, Options::default(), 1);
    let wire = lab.connect(0);
    let first = wire.clone();
    lab.run(async move { first.write(0, b"kept").await }).unwrap();
    lab.server.kill();
    let old = wire.clone();
    let error = lab.run(async move { old.read(0, 4).await }).unwrap_err();
    assert_eq!(error, Error::Failed(Failure::RetryExceeded));
    let (client, server) = (wire.machine.clone(), lab.server.clone());
    let dialled = lab.run(async move { client.dial(&server).await });
    assert!(matches!(dialled, Err(DialError::Unreachable(_))), "{dialled:?}");

    lab.server.boot();
    let region = lab.server.reactor().with(|card| card.register(&lab.memory, 0, Access::ALL)).unwrap();
    assert_ne!(region.rkey, lab.region.rkey, "a key of an earlier life is good again");
    let new = Wire { rkey: region.rkey, ..lab.connect(0) };
    assert_eq!(lab.run(async move { new.read(0, 4).await }).unwrap(), b"kept");
    let stale = Wire { rkey: lab.region.rkey, ..lab.connect(0) };
    let error = lab.run(async move { stale.read(0, 4).await }).unwrap_err();
    assert_eq!(error, Error::Failed(Failure::RemoteAccess));
}

#[test]
fn a_client_that_comes_back_has_another_card() {
    let lab = Lab::new(1, Options::default(), 1);
    let wire = lab.connect(0);
    let old = lab.clients[0].reactor();
    lab.clients[0].kill();
    lab.clients[0].boot();
    assert!(!old.with(|card| card.is_alive()));
    assert!(old.with(|card| card.create()).is_err());
    assert!(old.with(|card| card.register(&Memory::shared(8).unwrap(), 0, Access::ALL)).is_err());
    let error = lab.run(async move { wire.read(0, 8).await }).unwrap_err();
    assert!(
        matches!(error, Error::Post(PostError::NotConnected { state: QueuePairState::Reset, .. })),
        "the queue pair of an earlier life: {error}"
    );
    let again = lab.connect(0);
    assert_eq!(lab.run(async move { again.read(0, 8).await }).unwrap(), [0; 8]);
}

/// A client without processors: what it has posted goes on, and it learns of it when it is thawed.
#[test]
fn a_frozen_client_sends_what_it_has_posted_and_no_more() {
    let lab = Lab::new(1, Options::default(), 1);
    let wire = lab.connect(0);
    let client = wire.machine.clone();
    let task = client.clone().spawn(async move {
        for step in 1..=2u64 {
            wire.write(64, &step.to_le_bytes()).await.unwrap();
        }
    });
    lab.world.run_for(Duration::from_nanos(100));
    client.freeze();
    lab.world.run_for(Duration::from_millis(5));
    assert_eq!((lab.word(64), task.has_ended()), (1, false));
    client.thaw();
    lab.run_all(&[task]);
    assert_eq!(lab.word(64), 2);
}

/// A task that is started, or woken by another machine, while its own stands still runs afterwards.
#[test]
fn a_thawed_machine_runs_what_became_ready_meanwhile() {
    let lab = Lab::new(1, Options::default(), 2);
    let one = lab.clients[0].clone();
    let nap = one.clone().spawn(async move { one.sleep(Duration::from_micros(5)).await });
    let waiting = lab.clients[1].spawn(nap);
    lab.clients[1].freeze();
    let started = lab.clients[1].spawn(async {});
    lab.world.run_for(Duration::from_millis(1));
    assert_eq!((waiting.has_ended(), started.has_ended()), (false, false));
    lab.clients[1].thaw();
    lab.world.run();
    assert_eq!((waiting.take(), started.take()), (Some(Some(())), Some(())));
}

/// A message that has not left its machine when it dies never arrives; one that has left does.
#[test]
fn a_request_leaves_or_it_does_not() {
    // The doorbell takes 200 ns, the card 9.
    for (nanos, left) in [(100, 0), (150, 0), (300, 1)] {
        let options =
            Options { times: ServiceTimes { jitter: 0, ..ServiceTimes::default() }, ..Options::default() };
        let lab = Lab::new(1, options, 1);
        let wire = lab.connect(0);
        wire.machine.clone().spawn(async move { wire.add(64, 1).await });
        lab.world.run_for(Duration::from_nanos(nanos));
        lab.clients[0].kill();
        lab.world.run();
        assert_eq!(lab.word(64), left, "after {nanos} ns");
    }
}

/// An answer that has not left the server when it dies never arrives.
#[test]
fn an_answer_leaves_or_it_does_not() {
    // It arrives at the server after 519 ns; memory is touched 284 ns later; the answer is sent another 280 ns later.
    for (nanos, fine) in [(500, false), (900, false), (1_060, false), (1_200, true)] {
        let options =
            Options { times: ServiceTimes { jitter: 0, ..ServiceTimes::default() }, ..Options::default() };
        let lab = Lab::new(1, options, 1);
        let wire = lab.connect(0);
        let task = wire.machine.clone().spawn(async move { wire.read(64, 8).await });
        lab.world.run_for(Duration::from_nanos(nanos));
        lab.server.kill();
        lab.world.run_until(|| task.has_ended(), LONG).unwrap();
        assert_eq!(task.take().unwrap().is_ok(), fine, "after {nanos} ns");
    }
}

/// A server whose card stands still: requests wait, and are served late or time out.
#[test]
fn a_frozen_card_serves_late_and_only_once() {
    for (pause, fine) in [(Duration::from_micros(300), true), (Duration::from_millis(50), false)] {
        let lab = Lab::new(1, Options::default(), 1);
        let wire = lab.connect(0);
        let task = wire.machine.clone().spawn(async move { wire.add(64, 1).await });
        lab.server.freeze_card();
        lab.world.run_for(pause);
        assert_eq!(lab.word(64), 0);
        lab.server.thaw_card();
        lab.world.run_until(|| task.has_ended(), LONG).unwrap();
        lab.world.run();
        assert_eq!(task.take().unwrap().is_ok(), fine);
        assert_eq!(lab.word(64), 1, "it was sent again, and is carried out once");
    }
}

/// A card that stands still sends nothing, and goes on when it is thawed.
#[test]
fn a_frozen_requester_keeps_what_is_posted() {
    let lab = Lab::new(1, Options::default(), 1);
    let wire = lab.connect(0);
    lab.clients[0].freeze_card();
    let task = wire.machine.clone().spawn(async move { wire.add(64, 1).await });
    lab.world.run_for(Duration::from_millis(5));
    assert_eq!((lab.word(64), task.has_ended()), (0, false));
    lab.clients[0].thaw_card();
    lab.world.run_until(|| task.has_ended(), LONG).unwrap();
    assert_eq!((lab.word(64), task.take().unwrap()), (1, Ok(0)));
}

/// A world that is dropped drops its tasks, although they hold their machines.
#[test]
fn nothing_outlives_its_world() {
    let lab = Lab::with(1, Options::default(), 1, &MachineOptions::default());
    let witness = Rc::new(());
    let (held, client) = (Rc::clone(&witness), lab.clients[0].clone());
    lab.clients[0].spawn(async move {
        let _held = (held, client);
        std::future::pending::<()>().await;
    });
    lab.world.run_for(Duration::from_micros(1));
    assert_eq!(Rc::strong_count(&witness), 2);
    drop(lab);
    assert_eq!(Rc::strong_count(&witness), 1);
}

/// A WRITE that was on its way when its client died lands on what the client's next life has written, unless the server has taken
/// the old queue pair back.
#[test]
fn what_an_earlier_life_sent_may_come_late() {
    let late = |anew: bool| {
        let mut late = 0;
        for seed in 0..200 {
            let lab = Lab::new(seed, Options::default(), 1);
            let (wire, client) = (lab.connect(0), lab.clients[0].clone());
            let always = LinkFaults { late: 1_000_000, latest: Duration::from_micros(100), lost: 0 };
            client.set_link_faults(always);
            client.spawn(async move { wire.write(64, b"old").await });
            lab.world.run_for(Duration::from_micros(1));
            client.kill();
            client.boot();
            client.set_link_faults(LinkFaults::default());
            let (server, rkey) = (lab.server.clone(), lab.region.rkey);
            let again = lab.run(async move {
                let dialled = if anew { client.dial_anew(&server).await } else { client.dial(&server).await };
                let wire = Wire { machine: client, queue_pair: dialled.unwrap(), rkey };
                wire.write(64, b"new").await
            });
            again.unwrap();
            lab.world.run();
            late += u64::from(lab.bytes(64, 3) == b"old");
        }
        late
    };
    assert_eq!(late(true), 0);
    assert!(late(false) > 20, "nothing is ever late");
}

//! A second index over the same remote memory, which shows what one needs: an array of counters, in [`array`]. It runs against the
//! memory server of production, on simulated machines whose clients die at any point.
//!
//! The server knows what of an ended session's memory belongs to the array, because it asks the tenant in [`tenant`]. So the client that
//! has made the array may die as all others, and what it has not used goes to others, which write all over it.

mod array;
mod lab;
mod load;
mod tenant;

use std::cell::RefCell;
use std::rc::Rc;

use array::Counters;
use fatbtree_remote::{ConnectionId, Contention, LockError, Part, Want};
use fatbtree_sim::world::{Machine, MachineOptions, Options, Random, World, random};
use fatbtree_verbs::time::Duration;
use lab::{Client, SERVER, begin, serve};
use rand::RngExt as _;

const COUNTERS: u32 = 4;
const SOON: Duration = Duration::from_secs(2);

/// Results that clients were told, by counter.
#[derive(Default)]
struct Told {
    /// Sums that additions of one returned.
    sums: Vec<Vec<u64>>,
    /// Additions that were begun.
    begun: Vec<u64>,
}

/// Adds and reads until it dies.
async fn work(client: Client, told: Rc<RefCell<Told>>, mut random: Random) {
    let counters = Counters::open(client, SERVER, COUNTERS).await.expect("the server lives");
    loop {
        let number = random.random_range(0..COUNTERS);
        let at = number as usize;
        let floor = told.borrow().sums[at].iter().copied().max().unwrap_or(0);
        if random.random_bool(0.3) {
            let read = counters.get(number).await.expect("the server lives");
            let ceiling = told.borrow().begun[at];
            assert!((floor..=ceiling).contains(&read), "counter {number}: {floor} <= {read} <= {ceiling}");
            continue;
        }
        told.borrow_mut().begun[at] += 1;
        match counters.add(number, 1).await {
            Ok(sum) => {
                assert!(sum > floor, "counter {number}: {sum} after {floor}");
                told.borrow_mut().sums[at].push(sum);
            }
            Err(LockError::Unknown(_)) => {}
            Err(error) => panic!("counter {number}: {error:?}"),
        }
    }
}

/// Takes memory that no other client has, and writes all over it.
async fn scribble(memory: Client) {
    let want = Want { server: SERVER, class: array::ARRAY, bytes: 1024, is_fresh: true };
    loop {
        let Ok(writer) = memory.writer(SERVER) else {
            memory.pause(1).await;
            continue;
        };
        if let Some(Some(block)) = memory.with_allocator(SERVER, &writer, |allocator| allocator.take(want)) {
            let parts = [Part { at: block.address, bytes: &[0xff; 1024] }];
            drop(memory.write_chain(ConnectionId { server: SERVER, lane: 0 }, &writer, &parts, &[]).await);
            return;
        }
        memory.until_memory(want).await.expect("the server has memory");
    }
}

/// SMART's techniques, or none.
fn contention(draw: &mut Random) -> Contention {
    if draw.random_bool(0.5) { Contention::SMART } else { Contention::SHERMAN }
}

/// Returns locks that were taken from dead owners, and sessions that ended.
fn run(seed: u64) -> (u64, u64) {
    let draw = &mut random(seed, 50);
    let world = World::new(seed, Options::rough(draw));
    let server = serve(&world.machine(MachineOptions::named("server")), world.operator());
    let told = Told { sums: vec![Vec::new(); COUNTERS as usize], begun: vec![0; COUNTERS as usize] };
    let told = Rc::new(RefCell::new(told));
    let machines =
        [1, 2, 3].map(|number| world.machine(MachineOptions::rough(format!("client {number}"), draw)));
    let mut clients = Vec::new();
    for round in 0..20 {
        for machine in &machines {
            if round > 0 {
                if machine.is_up() {
                    continue;
                }
                machine.boot();
            }
            let client = begin(machine, &server, contention(draw), draw);
            for _ in 0..2 {
                let random = random(draw.random_range(0..=u64::MAX), 51);
                drop(machine.spawn(work(client.clone(), Rc::clone(&told), random)));
            }
            drop(machine.spawn(scribble(client.clone())));
            clients.push(client);
        }
        let victim = &machines[draw.random_range(0..machines.len())];
        if draw.random_bool(0.5) {
            victim.kill_after_polls(draw.random_range(0..100));
        } else {
            victim.mute_after_writes(draw.random_range(1..6));
        }
        world.run_for(Duration::from_micros(draw.random_range(200..2_000)));
        machines.iter().filter(|machine| machine.is_mute()).for_each(Machine::kill);
    }
    machines.iter().filter(|machine| machine.is_up()).for_each(Machine::kill);

    // Whatever the dead have left: a client that lives adds to each counter, soon.
    let last = world.machine(MachineOptions::named("last"));
    let client = begin(&last, &server, contention(draw), draw);
    let open = Counters::open(Rc::clone(&client), SERVER, COUNTERS);
    let opening = last.spawn(async move { open.await.expect("the server lives") });
    world.run_until(|| opening.has_ended(), SOON).expect("nothing is in the way");
    let array = Rc::new(opening.take().expect("it was opened"));
    assert_eq!(server.borrow().info().structure, array.base(), "seed {seed}: the server knows the array");
    clients.push(client);
    let ended = world.final_phase(SOON, || {
        let adds = |number| {
            let (array, told) = (Rc::clone(&array), Rc::clone(&told));
            let task = last.spawn(async move {
                told.borrow_mut().begun[number as usize] += 1;
                let sum = array.add(number, 1).await.map_err(|error| format!("{error:?}"))?;
                told.borrow_mut().sums[number as usize].push(sum);
                let read = array.get(number).await.map_err(|error| format!("{error:?}"))?;
                if read == sum { Ok(()) } else { Err(format!("{read} was read after {sum}")) }
            });
            (format!("counter {number}"), task)
        };
        (0..COUNTERS).map(adds).collect()
    });
    ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let taken_over = clients.iter().map(|client| client.counters().inherited_locks).sum();

    let Told { sums, begun } = &mut *told.borrow_mut();
    for (sums, begun) in sums.iter_mut().zip(begun) {
        let told = sums.len();
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len(), told, "seed {seed}: two additions were told the same sum");
        let last = *sums.last().expect("the last client has added");
        assert!((told as u64..=*begun).contains(&last), "seed {seed}: {told} <= {last} <= {begun}");
    }
    let lapsed = server.borrow().statistics().into_iter().find(|(name, _)| name == "sessions_lapsed");
    (taken_over, lapsed.map_or(0, |(_, count)| count))
}

/// Additions are neither lost nor doubled, and locks of dead clients are taken over.
#[test]
fn counters_survive_their_clients() {
    let (mut taken_over, mut lapsed) = (0, 0);
    for seed in 0..200 {
        let (locks, sessions) = run(seed);
        taken_over += locks;
        lapsed += sessions;
    }
    println!("{taken_over} locks were taken over, {lapsed} sessions ended");
    assert!(
        taken_over > 100 && lapsed > 1_000,
        "{taken_over} locks were taken over, {lapsed} sessions ended"
    );
}

//! The smallest structure, which shows what one needs: an array of counters, in [`structure`]. Here it runs against the memory server of
//! production, on simulated machines whose clients die at any point; `client/tests/it/counters.rs` has it in processes.
//!
//! The server knows what of an ended session's memory belongs to the array, because it asks its tenant. So the client that has made the
//! array may die as all others, and what it has not used goes to others, which write all over it.

mod lab;
mod load;
mod structure;

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_memserver::Tenant as _;
use fatbtree_remote_memory::{CommonError, Contention, Part, Want};
use fatbtree_sim::world::trial::{Alive, Deaths, Disturbances, Ended, Stage, Trial};
use fatbtree_sim::world::{
    FinalOperation, Machine, MachineOptions, Options, Random, SimDevice, World, random,
};
use fatbtree_verbs::time::Duration;
use lab::{Client, SERVER, Server, begin, serve};
use rand::RngExt as _;
use structure::Counters;
use structure::layout::ARRAY;

const COUNTERS: u64 = 4;
const SOON: Duration = Duration::from_secs(2);

/// Results that clients were told, by counter.
#[derive(Default)]
struct Told {
    /// Sums that additions of one returned.
    sums: Vec<Vec<u64>>,
    /// Additions that were begun.
    begun: Vec<u64>,
}

/// Adds one. Returns the sum.
async fn add(counters: &Counters<SimDevice>, number: u64) -> Result<u64, CommonError> {
    let sum = counters.update(number, |old| Some(old + 1)).await.result?;
    Ok(sum.flatten().expect("there is such a counter, and one is added"))
}

/// Adds and reads until it dies.
async fn work(client: Client, told: Rc<RefCell<Told>>, mut random: Random) {
    let counters = Counters::open(client, SERVER).await.expect("the server lives");
    loop {
        let number = random.random_range(0..COUNTERS);
        let at = number as usize;
        let floor = told.borrow().sums[at].iter().copied().max().unwrap_or(0);
        if random.random_bool(0.3) {
            let read = counters.get(number).await.result.expect("the server lives").expect("it is one");
            let ceiling = told.borrow().begun[at];
            assert!((floor..=ceiling).contains(&read), "counter {number}: {floor} <= {read} <= {ceiling}");
            continue;
        }
        told.borrow_mut().begun[at] += 1;
        match add(&counters, number).await {
            Ok(sum) => {
                assert!(sum > floor, "counter {number}: {sum} after {floor}");
                told.borrow_mut().sums[at].push(sum);
            }
            Err(CommonError::Unknown(_)) => {}
            Err(error) => panic!("counter {number}: {error:?}"),
        }
    }
}

/// Takes memory that no other client has, and writes all over it.
async fn scribble(memory: Client) {
    let want = Want { server: SERVER, class: ARRAY, bytes: 1024, is_fresh: true };
    loop {
        let Ok(writer) = memory.writer(SERVER) else {
            memory.pause(1).await;
            continue;
        };
        if let Some(Some(block)) = memory.with_allocator(SERVER, &writer, |allocator| allocator.take(want)) {
            let parts = [Part { at: block.address, bytes: &[0xff; 1024] }];
            drop(memory.write_chain(memory.take_lane().to(SERVER), &writer, &parts, &[]).await);
            return;
        }
        memory.until_memory(want).await.expect("the server has memory");
    }
}

/// SMART's techniques, or none.
fn contention(draw: &mut Random) -> Contention {
    if draw.random_bool(0.5) { Contention::SMART } else { Contention::SHERMAN }
}

/// The array's clients and its server.
struct Scene {
    machines: [Machine; 3],
    /// Of the client that lives.
    last: Machine,
    server: (Machine, Server),
    clients: RefCell<Vec<Client>>,
    told: Rc<RefCell<Told>>,
}

impl Scene {
    fn client(&self, machine: &Machine, draw: &mut Random) -> Client {
        let client = begin(machine, &self.server.1, contention(draw), draw);
        self.clients.borrow_mut().push(Rc::clone(&client));
        client
    }
}

impl Stage for Scene {
    fn clients(&self) -> &[Machine] {
        &self.machines
    }

    fn any_server(&self, _: &mut Random) -> &Machine {
        &self.server.0
    }

    fn begin_mishap(self: &Rc<Self>, draw: &mut Random) -> bool {
        self.machines.iter().filter(|machine| machine.is_mute()).for_each(Machine::kill);
        for machine in self.machines.iter().filter(|machine| !machine.is_up()) {
            machine.boot();
            let client = self.client(machine, draw);
            for _ in 0..2 {
                let random = random(draw.random_range(0..=u64::MAX), 51);
                drop(machine.spawn(work(client.clone(), Rc::clone(&self.told), random)));
            }
            drop(machine.spawn(scribble(client)));
        }
        false
    }

    /// Whatever the dead have left: a client that lives adds to each counter.
    fn begin_last(self: &Rc<Self>) -> Vec<FinalOperation<String>> {
        self.machines.iter().filter(|machine| machine.is_up()).for_each(Machine::kill);
        let client = self.client(&self.last, &mut random(0, 53));
        let adds = |number: u64| {
            let (scene, client) = (Rc::clone(self), Rc::clone(&client));
            let task = self.last.spawn(async move {
                let failed = |error| format!("{error:?}");
                let counters = Counters::open(client, SERVER).await.map_err(failed)?;
                scene.told.borrow_mut().begun[number as usize] += 1;
                let sum = add(&counters, number).await.map_err(failed)?;
                scene.told.borrow_mut().sums[number as usize].push(sum);
                let read = counters.get(number).await.result.map_err(failed)?;
                let root = scene.server.1.borrow().tenant().root();
                match read == Some(sum) && root == counters.arrays[0] {
                    true => Ok(()),
                    false => Err(format!("{read:?} was read after {sum}, and the server knows {root}")),
                }
            });
            (format!("counter {number}"), task)
        };
        (0..COUNTERS).map(adds).collect()
    }
}

/// Each addition is in the counter once, or perhaps if its client was not told.
fn counted(ended: &Ended<'_, Scene>) -> Result<(), String> {
    let Told { sums, begun } = &mut *ended.stage.told.borrow_mut();
    for (sums, begun) in sums.iter_mut().zip(begun) {
        let told = sums.len();
        sums.sort_unstable();
        sums.dedup();
        let last = sums.last().copied().unwrap_or(0);
        if sums.len() != told || !(told as u64..=*begun).contains(&last) {
            return Err(format!(
                "{last} is counted: {told} additions were told, {} sums, {begun} begun",
                sums.len()
            ));
        }
    }
    Ok(())
}

/// Returns locks that were taken from dead owners, and sessions that ended.
fn run(seed: u64) -> (u64, u64) {
    let draw = &mut random(seed, 50);
    let world = World::new(seed, Options::rough(draw));
    let machine = world.machine(MachineOptions::named("server"));
    let server = serve(COUNTERS as u32, &machine, world.operator());
    let told = Told { sums: vec![Vec::new(); COUNTERS as usize], begun: vec![0; COUNTERS as usize] };
    let machines =
        [1, 2, 3].map(|number| world.machine(MachineOptions::rough(format!("client {number}"), draw)));
    machines.iter().for_each(Machine::kill);
    let scene = Rc::new(Scene {
        machines,
        last: world.machine(MachineOptions::named("last")),
        server: (machine, server),
        clients: RefCell::default(),
        told: Rc::new(RefCell::new(told)),
    });
    let trial = Trial {
        faults: vec![Box::new(Deaths { percent: 60 }), Box::new(Disturbances)],
        calm: Duration::from_millis(1),
        lasts: Duration::from_millis(20),
        soon: SOON,
        properties: vec![Box::new(Alive), Box::new(counted)],
    };
    trial.run(&world, &scene).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let taken_over = scene.clients.borrow().iter().map(|client| client.counters().inherited_locks).sum();
    let statistics = scene.server.1.borrow().statistics();
    let lapsed = statistics.into_iter().find(|(name, _)| name == "sessions_lapsed");
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

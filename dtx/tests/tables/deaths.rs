//! Deaths at each step: a client after each of its polls, and a server that loses its memory.

use std::rc::Rc;

use crate::lab::{Client, Server, begin, serve};
use fatbtree_dtx::{Tables, Verdict, Verified, Want};
use fatbtree_remote::Contention;
use fatbtree_sim::world::{Machine, MachineOptions, Options, World, random};
use fatbtree_verbs::time::Duration;

use crate::model::small;

const SOON: Duration = Duration::from_millis(200);

struct Scene {
    world: World,
    servers: Vec<Rc<Server>>,
}

fn scene(backups: u8) -> Scene {
    let world = World::new(1, Options::default());
    let servers = serve(&world, small(0b111, backups), Duration::from_micros(500));
    Scene { world, servers }
}

impl Scene {
    fn client(&self, name: &str) -> (Machine, Client) {
        let machine = self.world.machine(MachineOptions::named(name));
        let memory = begin(&machine, &self.servers, Contention::SMART, &mut random(1, 1));
        (machine, memory)
    }

    fn run<T: 'static>(&self, machine: &Machine, work: impl Future<Output = T> + 'static) -> T {
        let task = machine.spawn(work);
        self.world.run_until(|| task.has_ended(), SOON).expect("nothing is in the way for long");
        task.take().expect("the machine lives")
    }
}

/// Moves one from key 1 to key 2, and adds a key. The keys begin with 100 each.
async fn transfer(memory: Client, number: u64) -> Result<(), fatbtree_dtx::DtxError> {
    let tables = Tables::open(memory, 0).await?;
    let moved = tables.run(async |tx| {
        let [one, other, new] =
            tx.fetch([Want::write(0, 1), Want::write(0, 2), Want::write(1, 1_000 + number)]).await?;
        let cents = |value: Option<&[u8]>| value.map_or(100, |value| u64::from(value[0]));
        let (from, to) = (cents(tx.value(one)), cents(tx.value(other)));
        tx.put(one, &(from - 1).to_le_bytes())?;
        tx.put(other, &(to + 1).to_le_bytes())?;
        tx.put(new, &[number as u8; 40])?;
        Ok(Verdict::Commit(()))
    });
    moved.await.result
}

async fn check(memory: Client) -> (u64, u64, Verified) {
    let tables = Tables::open(memory, 0).await.expect("the server lives");
    let (mut moved, mut new) = ([0; 2], 0);
    let verified = tables.verify(|table, key, value| match table {
        0 => moved[key as usize - 1] = u64::from(value[0]),
        _ => new += 1,
    });
    let verified = verified.await.expect("the structure is right");
    assert_eq!(moved[0] + moved[1], 200, "money is conserved");
    (moved[1] - 100, new, verified)
}

/// A client dies after so many polls; the next one commits whatever was left, and both or none of its changes are there.
#[test]
fn a_coordinator_that_dies_at_any_step_is_finished_or_undone() {
    let (mut committed, mut undone) = (0, 0);
    for polls in 0..160 {
        let scene = scene(1);
        let (victim, memory) = scene.client("victim");
        scene.run(&victim, transfer(memory.clone(), 0)).expect("nothing is in the way");
        victim.kill_after_polls(polls);
        drop(victim.spawn(transfer(memory, 1)));
        scene.world.run_for(Duration::from_micros(300));
        victim.kill();
        let (heir, memory) = scene.client("heir");
        scene.run(&heir, transfer(Rc::clone(&memory), 2)).expect("the dead are no hindrance");
        let (moved, new, verified) = scene.run(&heir, check(memory));
        assert_eq!(moved, new, "after {polls} polls");
        // A lock of a free slot may be left: nothing waits for it before the next insertion there.
        assert!(verified.locks <= 2 && verified.logs == 0, "after {polls} polls: {verified:?}");
        match moved {
            2 => undone += 1,
            3 => committed += 1,
            _ => panic!("{moved} transfers after {polls} polls"),
        }
    }
    println!("{committed} committed, {undone} undone");
    assert!(committed > 10 && undone > 10, "{committed} committed, {undone} undone");
}

/// Each server loses its memory, one after the other, while a client is at work.
#[test]
fn servers_that_lose_their_memory_are_filled_anew() {
    let scene = scene(1);
    let (machine, memory) = scene.client("client");
    scene.run(&machine, transfer(Rc::clone(&memory), 0)).expect("nothing is in the way");
    for (round, server) in (1..).zip(scene.servers.iter().cycle().take(6)) {
        let under_way = machine.spawn(transfer(Rc::clone(&memory), round * 2));
        scene.world.run_for(Duration::from_micros(3 * round));
        server.lose();
        scene.world.run_for(Duration::from_micros(100));
        // Names of sessions never come again.
        server.revive(100 + round);
        scene.world.run_until(|| under_way.has_ended(), SOON).expect("nothing is in the way for long");
        drop(under_way.take());
        scene.run(&machine, transfer(Rc::clone(&memory), round * 2 + 1)).expect("it was filled");
        assert!(server.is_whole());
        let (moved, new, verified) = scene.run(&machine, check(Rc::clone(&memory)));
        assert_eq!(moved, new, "round {round}");
        assert_eq!((verified.locks, verified.logs), (0, 0), "round {round}");
    }
}

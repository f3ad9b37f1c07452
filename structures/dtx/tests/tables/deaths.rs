//! Deaths at each step: a client after each of its polls, and a server that loses its memory.

use std::rc::Rc;

use fatbtree_dtx::{Tables, Verdict, Verified, Want};
use fatbtree_remote_memory::{Contention, Origin};
use fatbtree_sim::transactions::lab::{Client, Server, begin, is_whole, serve};
use fatbtree_sim::world::{Machine, MachineOptions, Options, World, random};
use fatbtree_verbs::time::Duration;

use crate::model::small;

const SOON: Duration = Duration::from_millis(200);
const LEASE: Duration = Duration::from_micros(500);
/// A lease that outlasts a machine that is frozen.
const LONG: Duration = Duration::from_millis(3);

struct Scene {
    world: World,
    servers: Vec<Rc<Server>>,
}

fn scene(backups: u8, lease: Duration) -> Scene {
    let world = World::new(1, Options::default());
    let servers = serve(&world, small(0b111, backups), lease);
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
    try_check(memory).await.expect("the structure is right")
}

/// Transfers by the money that was moved, and by the keys that were added.
async fn try_check(memory: Client) -> Result<(u64, u64, Verified), String> {
    let tables = Tables::open(memory, 0).await.map_err(|error| error.to_string())?;
    let (mut moved, mut new) = ([0; 2], 0);
    let verified = tables.verify(|table, key, value| match table {
        0 => moved[key as usize - 1] = u64::from(value[0]),
        _ => new += 1,
    });
    let verified = verified.await.map_err(|fault| fault.to_string())?;
    if moved[0] + moved[1] != 200 {
        return Err(format!("{moved:?}: money is not conserved"));
    }
    Ok((moved[1] - 100, new, verified))
}

/// A last transfer and a look at everything.
fn last_look(scene: &Scene) -> Result<(), String> {
    let (last, memory) = scene.client("last");
    scene.run(&last, transfer(Rc::clone(&memory), 9)).map_err(|error| error.to_string())?;
    let (moved, new, _) = scene.run(&last, try_check(memory))?;
    if moved == new { Ok(()) } else { Err(format!("{moved} transfers, and {new} keys")) }
}

/// A client freezes in its transaction. One server is started anew: it has ended the client's session, and the others have not. Another
/// client wants the same items, and then the first one goes on.
fn one_server_forgets_a_client(micros: u64, server: usize) -> Result<(), String> {
    let scene = scene(1, LONG);
    let (victim, memory) = scene.client("victim");
    scene.run(&victim, transfer(Rc::clone(&memory), 0)).expect("nothing is in the way");
    let frozen = victim.spawn(transfer(memory, 1));
    scene.world.run_for(Duration::from_micros(micros));
    victim.freeze();
    scene.servers[server].die();
    scene.world.run_for(Duration::from_micros(5));
    scene.servers[server].revive(100);
    let (other, memory) = scene.client("other");
    let others = other.spawn(transfer(memory, 2));
    scene.world.run_for(Duration::from_micros(400));
    victim.thaw();
    let ended = scene.world.run_until(|| frozen.has_ended() && others.has_ended(), SOON);
    ended.map_err(|_| "a transfer does not end".to_owned())?;
    last_look(&scene)
}

/// A client dies in its transaction after so many WRITEs. Another one recovers it, and freezes on the way; a third one wants the same items,
/// and then the second one goes on.
pub(crate) fn a_recovery_stands_still(writes: u64, micros: u64) -> Result<(), String> {
    let scene = scene(1, LONG);
    let (victim, memory) = scene.client("victim");
    scene.run(&victim, transfer(Rc::clone(&memory), 0)).expect("nothing is in the way");
    victim.mute_after_writes(writes);
    drop(victim.spawn(transfer(memory, 1)));
    scene.world.run_for(Duration::from_micros(300));
    victim.kill();
    scene.world.run_for(LONG);
    let (heir, memory) = scene.client("heir");
    let inherits = heir.spawn(transfer(memory, 2));
    scene.world.run_for(Duration::from_micros(micros));
    heir.freeze();
    let (other, memory) = scene.client("other");
    let others = other.spawn(transfer(memory, 3));
    scene.world.run_for(Duration::from_micros(700));
    heir.thaw();
    let ended = scene.world.run_until(|| inherits.has_ended() && others.has_ended(), SOON);
    ended.map_err(|_| "a transfer does not end".to_owned())?;
    last_look(&scene)
}

/// All moments at which a server forgets a client.
fn moments_to_forget() -> impl Iterator<Item = (u64, usize)> {
    (1..60).flat_map(|micros| (0..3).map(move |server| (micros, server)))
}

/// All moments at which a recovery stands still.
pub(crate) fn moments_to_stand_still() -> impl Iterator<Item = (u64, u64)> {
    (4..16).flat_map(|writes| (50..150).step_by(2).map(move |micros| (writes, micros)))
}

#[test]
fn a_coordinator_is_dead_where_all_servers_say_so() {
    for (micros, server) in moments_to_forget() {
        one_server_forgets_a_client(micros, server)
            .unwrap_or_else(|why| panic!("{micros} us, {server}: {why}"));
    }
}

#[test]
fn one_client_recovers_at_a_time() {
    for (writes, micros) in moments_to_stand_still() {
        a_recovery_stands_still(writes, micros)
            .unwrap_or_else(|why| panic!("{writes} WRITEs, {micros} us: {why}"));
    }
}

/// A client dies after so many polls; the next one commits whatever was left, and both or none of its changes are there.
#[test]
fn a_coordinator_that_dies_at_any_step_is_finished_or_undone() {
    let (mut committed, mut undone) = (0, 0);
    for polls in 0..160 {
        let scene = scene(1, LEASE);
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
    let scene = scene(1, LEASE);
    let (machine, memory) = scene.client("client");
    scene.run(&machine, transfer(Rc::clone(&memory), 0)).expect("nothing is in the way");
    for (round, server) in (1..).zip(scene.servers.iter().cycle().take(6)) {
        let under_way = machine.spawn(transfer(Rc::clone(&memory), round * 2));
        scene.world.run_for(Duration::from_micros(3 * round));
        server.lose(Origin::Lost);
        scene.world.run_for(Duration::from_micros(100));
        // Names of sessions never come again.
        server.revive(100 + round);
        scene.world.run_until(|| under_way.has_ended(), SOON).expect("nothing is in the way for long");
        drop(under_way.take());
        // A transaction that does not use the server may commit before it is filled; a new client begins afterwards.
        let (next, others) = scene.client("next");
        scene.run(&next, transfer(others, round * 2 + 1)).expect("it was filled");
        next.kill();
        assert!(is_whole(server));
        let (moved, new, verified) = scene.run(&machine, check(Rc::clone(&memory)));
        assert_eq!(moved, new, "round {round}");
        assert_eq!((verified.locks, verified.logs), (0, 0), "round {round}");
    }
}

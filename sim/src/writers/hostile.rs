//! A hostile writer among the clients: a session, a queue pair, and WRITEs that damage the tree's structure.
//!
//! Answers to honest clients about damaged nodes need not be right, and damage spreads. A split copies it, a merge
//! follows it, and a stale start trusts a node's own fences. So the keys that are still answered rightly are unknown,
//! and the history is not checked. What is checked: nothing panics, each operation of an honest client ends, and so
//! does each turn of a memory server.

use std::rc::Rc;

use fatbtree_blink_host::{TreeRequests as _, TreeServerInfo};
use fatbtree_controller::Tree;
use fatbtree_remote_memory::session_keeper::{Call, Granted};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Device as _, Operation, QueuePair, Reactor, Remote};
use rand::RngExt as _;

use super::server::Server;
use super::setting::Setting;
use crate::damage::{Damage, Target, garbage};
use crate::world::{Machine, Random, SimDevice};

/// Interval between attempts to get a session.
const LOOK: Duration = Duration::from_micros(20);
/// Keys that are located at once.
const KEYS: usize = 8;

/// Strikes at one memory server until it is cancelled.
pub(super) async fn strike(machine: Machine, setting: Rc<Setting>, pause: Duration, mut random: Random) {
    loop {
        let server = setting.any_server(&mut random);
        if let Some((queue_pair, info)) = connect(&machine, server).await {
            while blow(&machine, &setting, server, (queue_pair, &info), &mut random).await {
                let pause = random.random_range(1..=2 * pause.as_nanos());
                machine.sleep(Duration::from_nanos(pause)).await;
                if random.random_bool(0.05) {
                    break;
                }
            }
            machine.reactor().with(|card| card.destroy(queue_pair));
        }
        machine.sleep(LOOK).await;
    }
}

/// A session and a queue pair, as every client gets them. The session is never renewed.
async fn connect(machine: &Machine, server: &Server) -> Option<(QueuePair, TreeServerInfo)> {
    let call = async |call| {
        let work = |_: &Reactor<SimDevice>| server.carry_out(machine, call);
        machine.call(&server.machine, work).await.ok()??.ok()
    };
    let Some(Granted::Opened(opened)) = call(Call::Open { known: None }).await else { return None };
    let queue_pair = machine.reactor().with(|card| card.create()).ok()?;
    let local = machine.reactor().with(|card| card.endpoint(queue_pair)).ok()?;
    let there = call(Call::Connect { session: opened.session, local, replaces: None }).await;
    let connected = match there {
        Some(Granted::Connected(there)) => {
            machine.reactor().with(|card| card.connect(queue_pair, &there)).is_ok()
        }
        _ => false,
    };
    if !connected {
        machine.reactor().with(|card| card.destroy(queue_pair));
    }
    connected.then_some((queue_pair, opened.info))
}

/// Writes one piece of damage. Returns `false` if the queue pair broke, or the server has no memory.
async fn blow(
    machine: &Machine,
    setting: &Setting,
    server: &Server,
    (queue_pair, info): (QueuePair, &TreeServerInfo),
    random: &mut Random,
) -> bool {
    let damage = Damage::ALL[random.random_range(0..Damage::ALL.len())];
    let (first, rkey, writes) = match (damage, &info.locks) {
        (Damage::Locks, Some(locks)) => {
            let at = 8 * random.random_range(0..locks.region.len / 8);
            // Now and then the table of owners, which is for READs only.
            let region = if random.random_bool(0.05) { &locks.owners } else { &locks.region };
            (region.iova, region.rkey, vec![(at, garbage(random)[..8].to_vec())])
        }
        _ => {
            let Some(memory) = server.memory() else { return false };
            // The memory of a server that has died, or been loaded anew, is another's: the WRITE breaks the queue pair.
            let root = server.superblock().map_or(info.partition.root, |partition| partition.root);
            let target = Target::new(&memory, &info.config, server.id, root);
            (info.region.iova, info.region.rkey, target.strike(damage, random))
        }
    };
    setting.count(|outcome| outcome.strikes += u64::from(!writes.is_empty()));
    for (offset, data) in &writes {
        let to = Remote { address: first + offset, rkey };
        let [written] = match machine.reactor().chain(queue_pair, [Operation::Write { to, data }]).await {
            Ok(written) => written,
            Err(_) => return false,
        };
        drop(written);
    }
    true
}

/// Asks a memory server for snapshots of its tree and for places of keys, as controllers do, until it is cancelled.
pub(super) async fn ask(machine: Machine, setting: Rc<Setting>, id: u16, mut random: Random) {
    let server = setting.server(id);
    loop {
        machine.sleep(Duration::from_micros(random.random_range(20..400))).await;
        let Some(handle) = server.handle() else { continue };
        if random.random_bool(0.5) {
            let keys = (0..KEYS).map(|_| setting.scenario.key(random.random_range(0..setting.scenario.keys)));
            let located = matches!(handle.locate(keys.collect()).await, Ok(Ok(_)));
            setting.count(|outcome| outcome.located += u64::from(located));
        } else if let Ok(Ok(top)) = handle.snapshot().await {
            // The tree that a plan is made from.
            let taken = Tree::new(&[(*top).clone()]).is_ok();
            setting.count(|outcome| {
                outcome.snapshots += 1;
                outcome.snapshots_refused += u64::from(!taken);
            });
        }
    }
}

//! Clients: lookups, many at a time, and the connections that they need.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use fatbtree_blink::{
    BreakReason, ConnectionId, Event, GlobalAddress, Lookup, OperationError, PoolConfig, RemoteSide, Start,
};
use fatbtree_client::Client;
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{ConnectError, Device as _, Failure, Reactor, Remote};
use rand::RngExt as _;

use super::setting::Setting;
use super::values;
use crate::history::{Answer, Call};
use crate::world::{Machine, Random, SimDevice, Task};

/// How often a client looks whether a connection broke.
const LOOK: Duration = Duration::from_micros(15);

/// A client in one life.
#[derive(Clone)]
pub(super) struct Living {
    machine: Machine,
    client: Client<SimDevice>,
    setting: Rc<Setting>,
    /// Connections whose queue pairs the switches know.
    registered: Rc<RefCell<BTreeSet<ConnectionId>>>,
}

impl Living {
    /// Makes a client on a machine that has just booted, and connects it.
    pub(super) fn begin(machine: &Machine, setting: &Rc<Setting>, random: &mut Random) -> Self {
        let scenario = &setting.scenario;
        let config = PoolConfig {
            tree: scenario.config,
            lanes: scenario.lanes,
            limits: scenario.limits,
            ..PoolConfig::default()
        };
        let roots = setting.roots(random.random_bool(0.3));
        let client = Client::new(machine.device(), config, roots, random.random_range(0..=u64::MAX));
        let client = client.expect("a scenario has at least one lane");
        machine.set_driven(Rc::new(client.clone()));
        let living =
            Self { machine: machine.clone(), client, setting: Rc::clone(setting), registered: Rc::default() };
        let seed = random.random_range(0..=u64::MAX);
        // Not among the lives that end before the final phase: it connects what breaks then, too.
        drop(machine.spawn(living.clone().stay_connected(crate::world::random(seed, 0))));
        living
    }

    /// Connects what is not connected, for good.
    async fn stay_connected(self, mut random: Random) {
        for id in self.client.pool().connections() {
            drop(self.machine.spawn(self.clone().connect(id, random.random_range(0..=u64::MAX))));
        }
        loop {
            while let Some(Event::ConnectionBroken { id, reason }) = self.client.poll_event() {
                self.setting.count(|outcome| outcome.broken_connections += 1);
                let draw = random.random_range(0..=u64::MAX);
                drop(self.machine.spawn(self.clone().reconnect(id, reason, draw)));
            }
            self.machine.sleep(LOOK).await;
        }
    }

    async fn reconnect(self, id: ConnectionId, reason: BreakReason, draw: u64) {
        let refused = match reason {
            BreakReason::Unregistered => {
                self.setting.count(|outcome| outcome.refused_index_reads += 1);
                self.registered.borrow().contains(&id)
            }
            reason => reason == BreakReason::Failed(Failure::RemoteAccess),
        };
        if refused {
            self.setting.wrong(format!("{id}: something in the region led a READ out of it: {reason}"));
        }
        self.connect(id, draw).await;
    }

    async fn connect(self, id: ConnectionId, draw: u64) {
        let mut random = crate::world::random(draw, 1);
        while let Err(why) = self.try_connect(id, &mut random).await {
            if let Some(why) = why {
                self.setting.wrong(format!("{id}: {why}"));
                return;
            }
            self.machine.sleep(LOOK).await;
        }
    }

    /// One attempt. Without a reason the server only did not answer.
    async fn try_connect(&self, id: ConnectionId, random: &mut Random) -> Result<(), Option<String>> {
        let refused = |error: &dyn std::fmt::Display| Some(error.to_string());
        let pool = self.client.pool();
        let local = pool.open(id).map_err(|error| refused(&error))?;
        let tree = usize::from(id.server - self.setting.scenario.first_id);
        let server = &self.setting.servers[tree];
        let accept = |theirs: &Reactor<SimDevice>| {
            theirs.with(|card| {
                let peer = card.create()?;
                card.connect(peer, &local)?;
                Ok::<_, ConnectError>((card.endpoint(peer)?, server.region.get().rkey))
            })
        };
        let answer = self.machine.call(&server.machine, accept).await.map_err(|_| None)?;
        let (endpoint, rkey) = answer.map_err(|error| refused(&error))?;
        let queue_pair = pool.queue_pair(id).ok_or_else(|| Some("it has no queue pair".to_owned()))?;
        // Some clients believe that they are registered and are not, some do not know yet that they are.
        let draw = if self.setting.calm.get() { 9 } else { random.random_range(0..20) };
        self.registered.borrow_mut().remove(&id);
        if draw != 0 {
            self.registered.borrow_mut().insert(id);
            let root = self.setting.root_of(tree);
            self.setting.switches.register(queue_pair, Remote { rkey, ..root });
        }
        let side = RemoteSide { endpoint, rkey, registered: draw != 1 };
        pool.connected(id, side).map_err(|error| refused(&error))?;
        Ok(())
    }

    /// Starts the lookups of this life: some tasks, each of which makes one after the other.
    pub(super) fn look_up(&self, tasks: u32, lookups: u32, random: &mut Random) {
        for _ in 0..tasks {
            let mut draw = crate::world::random(random.random_range(0..=u64::MAX), 2);
            let living = self.clone();
            let task = self.machine.spawn(async move {
                let mut known = Vec::new();
                for _ in 0..lookups {
                    let key = living.setting.draw_any_key(&mut draw);
                    let start = living.draw_start(&mut known, &mut draw);
                    // An error says why, and is no answer.
                    let _ = living.get(key, start).await;
                }
            });
            self.setting.lives.borrow_mut().push(task);
        }
    }

    /// Looks up these keys in the final phase: each must be answered.
    pub(super) fn look_up_all(&self, keys: Vec<u64>) -> Task<Result<(), String>> {
        let living = self.clone();
        self.machine.spawn(async move {
            for (number, key) in keys.into_iter().enumerate() {
                let start = if number % 4 == 3 { Start::Root } else { Start::IndexRead };
                living.get(key, start).await?;
            }
            Ok(())
        })
    }

    /// Where a lookup begins: mostly at a switch; sometimes at a node that the client remembers from earlier.
    fn draw_start(&self, known: &mut Vec<(GlobalAddress, u8)>, random: &mut Random) -> Start {
        match random.random_range(0..10) {
            0..6 => Start::IndexRead,
            6..8 => Start::Root,
            _ => {
                let tree = &self.setting.trees[random.random_range(0..self.setting.trees.len())].borrow();
                let nodes: Vec<_> = tree.model.nodes().collect();
                let (address, level, _) = nodes[random.random_range(0..nodes.len())];
                known.push((address, level));
                let (address, level) = known[random.random_range(0..known.len())];
                Start::Node { address, level }
            }
        }
    }

    /// One lookup, in the history.
    async fn get(&self, key: u64, start: Start) -> Result<(), String> {
        let setting = &self.setting;
        let asked = setting.history.ask(&self.machine.name(), self.machine.now(), key, Call::Get);
        let Lookup { result, trips, .. } = self.client.lookup(key, start).await;
        setting.count(|outcome| outcome.add(&trips, &result));
        let word = match result {
            Ok(None) => None,
            Ok(Some(value)) => match values::open(key, &value) {
                Some(word) => Some(word),
                None => {
                    let why = format!("key {key:#x}: a value of {} bytes that nobody wrote", value.len());
                    setting.wrong(why.clone());
                    return Err(why);
                }
            },
            Err(error) => {
                // Whatever happens, a lookup ends in one of these ways.
                let may_be =
                    matches!(error, OperationError::GaveUp { .. } | OperationError::ConnectionBroke { .. });
                if !may_be {
                    setting.wrong(format!("a lookup ended with: {error}"));
                }
                return Err(error.to_string());
            }
        };
        setting.history.answer(asked, self.machine.now(), Answer::Found(word));
        Ok(())
    }
}

//! A random cluster with a random tree, a random plan and random mishaps, checked look-up by look-up.

use std::collections::BTreeSet;
use std::fmt;

use fatbtree_client::roce::{
    Answer, ClientConfig, ConnectionId, Event, Mode, RemoteSide, RoceClient, SeededValues,
};
use fatbtree_controller::{
    Budget, Change, Connection, Connections, Frequencies, Phase, Placement, Plan, ReloadSteps, Snapshot,
    Tree, next_epoch,
};
use fatbtree_index::{TreeConfig, ValueLayout, value};
use fatbtree_memserver::{LoadOptions, MemoryServer, fixed, load_cluster};
use fatbtree_nic::time::{Duration, Instant};
use fatbtree_nic::{Nic, NicConfig};
use fatbtree_topology::{FatTree, HostId, SwitchId};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::cluster::{Clock, Cluster};
use crate::faults::FaultRates;
use crate::network::Network;
use crate::server::{ServerNode, from_nic, planner_partition, to_nic};
use crate::virtual_time::VirtualClock;
use crate::wires::{FaultyWires, Wires};

/// Propagation and processing of one hop.
const HOP: Duration = Duration::from_nanos(500);
/// Virtual time after which a scenario that is not done is stuck.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time that a new connection takes out of band.
const CONNECT: Duration = Duration::from_micros(50);

/// A scenario: everything follows from the seed.
#[derive(Debug, Clone)]
pub struct Scenario {
    seed: u64,
    servers: u16,
    keys: usize,
    values: ValueLayout,
    value_size: usize,
    lookups: u32,
    depth: u32,
    rates: FaultRates,
    fat_root: usize,
    set_nodes: [usize; 5],
    reloads: u32,
    /// Connections that the controller is not told of, though the client believes it was.
    unregistered: bool,
}

/// What a scenario came to. Every look-up found the right value, found that there is none, or said why it failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Look-ups made.
    pub lookups: u64,
    /// Right values.
    pub found: u64,
    /// Keys that are not there, and were not found.
    pub not_found: u64,
    /// Wrong values, or a key that is there and was not found, or one that is not and was. Always 0.
    pub wrong: u64,
    /// Look-ups that ended with an error that says why.
    pub failed: u64,
    /// Connections that broke and were made again.
    pub reconnections: u64,
    /// Of those, because the server refused an index read.
    pub refused_index_reads: u64,
    /// Cache reloads that were carried through.
    pub reloads: u64,
    /// Frames lost, doubled, delayed, damaged.
    pub faults: [u64; 4],
    /// Round trips of all look-ups.
    pub round_trips: u64,
    /// Frames that reached a server with `rkey = 0` on a registered connection. Always 0.
    pub naked_index_reads: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.lookups += other.lookups;
        self.found += other.found;
        self.not_found += other.not_found;
        self.wrong += other.wrong;
        self.failed += other.failed;
        self.reconnections += other.reconnections;
        self.refused_index_reads += other.refused_index_reads;
        self.reloads += other.reloads;
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, more)| *sum += more);
        self.round_trips += other.round_trips;
        self.naked_index_reads += other.naked_index_reads;
    }
}

/// A scenario that went wrong. It prints the command that replays it.
#[derive(Debug, thiserror::Error)]
pub struct ScenarioError {
    scenario: Box<Scenario>,
    what: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n  {:?}\n  replay it with: cargo run --package fatbtree -- simulate --seed {}",
            self.what, self.scenario, self.scenario.seed
        )
    }
}

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let servers = random.random_range(1..=4u16);
        let inline = random.random_bool(0.5);
        let value_size = if inline { random.random_range(1..=64) } else { random.random_range(65..=3000) };
        let rate = |random: &mut ChaCha8Rng| {
            if random.random_bool(0.5) { 0 } else { random.random_range(0..=300u16) }
        };
        let rates = FaultRates {
            drop: rate(&mut random),
            duplicate: rate(&mut random),
            delay: rate(&mut random),
            corrupt: rate(&mut random),
            longest_delay: Duration::from_micros(random.random_range(1..=200)),
        };
        let mut set_nodes = [0; 5];
        for nodes in &mut set_nodes {
            *nodes = if random.random_bool(0.3) { 0 } else { random.random_range(0..=60) };
        }
        Self {
            seed,
            servers,
            keys: random.random_range(usize::from(servers)..=4000),
            values: if inline { ValueLayout::Inline(value_size as u8) } else { ValueLayout::OutOfLine },
            value_size,
            lookups: random.random_range(10..=60),
            depth: random.random_range(1..=8),
            rates,
            fat_root: random.random_range(usize::from(servers)..=100),
            set_nodes,
            reloads: random.random_range(0..=3),
            unregistered: random.random_bool(0.1),
        }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Runs it to the end.
    ///
    /// # Errors
    /// A wrong answer, a look-up that never ends, or a registered client's index read that reached a server unwritten.
    pub fn run(&self) -> Result<Outcome, ScenarioError> {
        let error = |what: String| ScenarioError { scenario: Box::new(self.clone()), what };
        let mut run = Run::new(self).map_err(error)?;
        run.finish().map_err(error)
    }
}

struct Run<'s> {
    scenario: &'s Scenario,
    random: ChaCha8Rng,
    clock: VirtualClock,
    network: Network,
    cluster: Cluster<FaultyWires>,
    client_host: HostId,
    connections: Connections,
    keys: BTreeSet<u64>,
    tree: Tree,
    plan: Option<Plan>,
    /// What the controller still has to write, and when it goes on.
    pending: Vec<(SwitchId, Vec<Change>)>,
    next_plan: Option<Plan>,
    reload_at: Option<Instant>,
    /// Connections being made: done at this time.
    connecting: Vec<(Instant, ConnectionId)>,
    submitted: u32,
    outcome: Outcome,
}

type Step<T = ()> = Result<T, String>;

fn said(error: impl fmt::Display) -> String {
    error.to_string()
}

impl<'s> Run<'s> {
    fn new(scenario: &'s Scenario) -> Step<Self> {
        let mut random = ChaCha8Rng::seed_from_u64(scenario.seed ^ 0x5eed);
        let tree = FatTree::spine(4).map_err(said)?;
        let mut hosts: Vec<HostId> = tree.hosts().iter().map(|host| host.id).collect();
        // Servers and client anywhere: same rack, same pod, other pods.
        for at in (1..hosts.len()).rev() {
            hosts.swap(at, random.random_range(0..=at));
        }
        let client_host = hosts[usize::from(scenario.servers)];
        let server_hosts = &hosts[..usize::from(scenario.servers)];
        let placement: Placement = (0..).zip(server_hosts.iter().copied()).collect();

        let keys = random_keys(&mut random, scenario.keys);
        let config = TreeConfig::new(16, 1024, scenario.values).map_err(said)?;
        let sorted: Vec<u64> = keys.iter().copied().collect();
        let seed = scenario.seed;
        let mut values =
            fixed(scenario.value_size as u32, move |key, out: &mut [u8]| value::fill(key, seed, out));
        let options = LoadOptions::new(config, 0);
        let loaded = load_cluster(&options, scenario.servers, &sorted, &mut values).map_err(said)?;
        let roots = loaded.roots.clone();
        let mut snapshot = Snapshot::default();
        let mut servers = Vec::new();
        for (loaded, host) in loaded.trees.into_iter().zip(server_hosts) {
            let nic = Nic::new(nic_config(&tree, *host), random.next_u64());
            let server = MemoryServer::new(loaded, 1024).map_err(said)?;
            snapshot.partitions.push(planner_partition(server.snapshot()));
            servers.push((*host, ServerNode::new(server, nic)));
        }
        let planner_tree = Tree::new(&snapshot).map_err(said)?;

        let network = Network::new(tree, placement);
        let client_nic = Nic::new(nic_config(network.tree(), client_host), random.next_u64());
        let client_config =
            ClientConfig { tree: config, depth: scenario.depth, max_restarts: 30, ..ClientConfig::default() };
        let client =
            RoceClient::new(client_nic, client_config, roots, SeededValues { seed }).map_err(said)?;
        let switches = network.switches().map_err(said)?;
        let wires = FaultyWires::new(HOP, scenario.rates, scenario.seed ^ 0xfa17);
        let cluster = Cluster::new(network.tree(), switches, servers, vec![(client_host, client)], wires);
        let mut run = Self {
            scenario,
            random,
            clock: VirtualClock::new(),
            network,
            cluster,
            client_host,
            connections: Connections::new(),
            keys,
            tree: planner_tree,
            plan: None,
            pending: Vec::new(),
            next_plan: None,
            reload_at: None,
            connecting: Vec::new(),
            submitted: 0,
            outcome: Outcome::default(),
        };
        let ids: Vec<ConnectionId> = run.cluster.clients()[0].connections().collect();
        for id in ids {
            run.connect(id)?;
        }
        run.schedule_reload();
        Ok(run)
    }

    fn finish(&mut self) -> Step<Outcome> {
        let deadline = Instant::ZERO + DEADLINE;
        loop {
            while self.cluster.step(&self.clock) {
                self.drive_client()?;
            }
            self.drive_client()?;
            if self.outcome.lookups == u64::from(self.scenario.lookups) && self.reload_at.is_none() {
                break;
            }
            let next = [
                self.cluster.wires().next_arrival(),
                self.cluster.next_timeout(),
                self.reload_at,
                self.connecting.iter().map(|(at, _)| *at).min(),
            ];
            let next = next.into_iter().flatten().min().ok_or_else(|| {
                format!(
                    "nothing is under way, and {} of {} look-ups are done",
                    self.outcome.lookups, self.scenario.lookups
                )
            })?;
            self.clock.advance_to(next);
            let now = self.clock.now();
            if now > deadline {
                return Err(format!(
                    "after {} s of virtual time {} of {} look-ups are done",
                    DEADLINE.as_nanos() / 1_000_000_000,
                    self.outcome.lookups,
                    self.scenario.lookups
                ));
            }
            if self.cluster.next_timeout().is_some_and(|at| at <= now) {
                self.cluster.handle_timeouts(&self.clock);
            }
            if self.reload_at.is_some_and(|at| at <= now) {
                self.reload_a_little()?;
            }
            while let Some(at) = self.connecting.iter().position(|(at, _)| *at <= now) {
                let (_, id) = self.connecting.swap_remove(at);
                self.connect(id)?;
            }
        }
        self.outcome.faults = self.cluster.wires().faults().counts;
        if self.outcome.wrong > 0 {
            return Err(format!("{} look-ups were answered wrongly", self.outcome.wrong));
        }
        if self.outcome.naked_index_reads > 0 {
            return Err("a registered client's index read reached a server with rkey = 0".into());
        }
        Ok(self.outcome)
    }

    fn drive_client(&mut self) -> Step {
        let now = self.clock.now();
        let mut events = Vec::new();
        self.cluster.with_client(0, &self.clock, |client, _| {
            while let Some(event) = client.poll_event() {
                events.push(event);
            }
        });
        for event in events {
            match event {
                Event::Done(done) => {
                    self.outcome.lookups += 1;
                    self.outcome.round_trips += u64::from(done.trips.round_trips);
                    let there = self.keys.contains(&done.key);
                    match done.answer {
                        Answer::Found if there => self.outcome.found += 1,
                        Answer::NotFound if !there => self.outcome.not_found += 1,
                        Answer::Failed(_) => self.outcome.failed += 1,
                        _ => self.outcome.wrong += 1,
                    }
                }
                Event::ConnectionBroken { id, reason, .. } => {
                    self.outcome.reconnections += 1;
                    if reason == fatbtree_client::roce::BreakReason::Unregistered {
                        self.outcome.refused_index_reads += 1;
                        // Frames of a registered connection may be refused when they are damaged beyond recognition,
                        // but never as an index read that no switch has rewritten.
                        if !self.scenario.unregistered {
                            self.outcome.naked_index_reads += 1;
                        }
                    }
                    self.connecting.push((now + CONNECT, id));
                }
            }
        }
        while self.submitted < self.scenario.lookups && self.cluster.clients()[0].room() > 0 {
            let key = self.draw_key();
            let mode = if self.random.random_bool(0.85) { Mode::Index } else { Mode::Ordinary };
            self.cluster
                .with_client(0, &self.clock, |client, now| client.submit(now, key, mode))
                .map_err(said)?;
            self.submitted += 1;
        }
        Ok(())
    }

    /// A key of the tree, or one beside it, or an extreme.
    fn draw_key(&mut self) -> u64 {
        let near =
            *self.keys.range(self.random.next_u64()..).next().or(self.keys.first()).expect("trees have keys");
        match self.random.random_range(0..10u8) {
            0 => near.wrapping_add(1),
            1 => near.wrapping_sub(1),
            2 => [0, u64::MAX, 1 << 63, (1 << 63) - 1][self.random.random_range(0..4usize)],
            _ => near,
        }
    }

    /// Exchanges queue pairs out of band, and has the controller admit the new one.
    fn connect(&mut self, id: ConnectionId) -> Step {
        let local = self
            .cluster
            .with_client(0, &self.clock, |client, now| client.reconnect(now, id))
            .map_err(said)?;
        let server = &mut self.cluster.servers_mut()[usize::from(id.partition)];
        let info = *server.server().info();
        let remote = to_nic(server.connect(from_nic(local)).map_err(said)?, local.max_reads).map_err(said)?;
        let rkey = info.rkey.ok_or("the region is not registered")?;
        if !self.scenario.unregistered {
            let connection = Connection {
                client: self.client_host,
                partition: id.partition,
                dest_qp: remote.qpn.0,
                rkey,
                root: info.partition.root.raw(),
            };
            let (switch, change) = self
                .connections
                .register(self.network.tree(), self.network.placement(), connection)
                .map_err(said)?;
            if let Some(change) = change {
                self.write(switch, &[change])?;
            }
        }
        // An unregistered client believes that it is registered until the server has refused it once.
        let registered = !self.scenario.unregistered || self.outcome.refused_index_reads == 0;
        let side = RemoteSide { endpoint: remote, rkey, registered };
        self.cluster.with_client(0, &self.clock, |client, now| client.connected(now, id, side)).map_err(said)
    }

    fn write(&mut self, switch: SwitchId, changes: &[Change]) -> Step {
        let value = &mut self.cluster.switches_mut()[switch.0 as usize];
        self.network.write(value, switch, changes).map_err(said)
    }

    fn schedule_reload(&mut self) {
        self.reload_at = (self.outcome.reloads < u64::from(self.scenario.reloads))
            .then(|| self.clock.now() + Duration::from_nanos(self.random.random_range(1..=100_000)));
    }

    /// Writes a random part of what is pending; when nothing is, plans the next epoch.
    fn reload_a_little(&mut self) -> Step {
        if self.pending.is_empty() {
            if let Some(plan) = self.next_plan.take() {
                self.plan = Some(plan);
                self.outcome.reloads += 1;
                self.schedule_reload();
                return Ok(());
            }
            self.plan_next_epoch()?;
        }
        let writes = self.random.random_range(1..=8usize).min(self.pending.len());
        for (switch, changes) in self.pending.drain(..writes).collect::<Vec<_>>() {
            self.write(switch, &changes)?;
        }
        self.reload_at = Some(self.clock.now() + Duration::from_nanos(self.random.random_range(1..=20_000)));
        Ok(())
    }

    fn plan_next_epoch(&mut self) -> Step {
        let sample: Vec<u64> = (0..200).map(|_| self.draw_key()).collect();
        let frequencies = Frequencies::from_keys(&self.tree, &sample);
        let budget = Budget {
            fat_root_ranges: self.scenario.fat_root,
            set_nodes: self.scenario.set_nodes,
            ..Budget::bmv2()
        };
        let epoch = self.plan.as_ref().map_or(1, |plan| next_epoch(plan.epoch()));
        let plan = Plan::new(
            self.network.tree(),
            self.network.placement(),
            &self.tree,
            &frequencies,
            &budget,
            epoch,
        )
        .map_err(said)?;
        let steps = ReloadSteps::new(self.plan.as_ref(), &plan).map_err(said)?;
        // Phases keep their order; within one, switches and batches may come in any.
        for Phase { changes, .. } in steps.phases {
            let mut batches: Vec<(SwitchId, Vec<Change>)> = changes
                .into_iter()
                .flat_map(|(switch, changes)| {
                    changes.chunks(64).map(|chunk| (switch, chunk.to_vec())).collect::<Vec<_>>()
                })
                .collect();
            for at in (1..batches.len()).rev() {
                batches.swap(at, self.random.random_range(0..=at));
            }
            self.pending.extend(batches);
        }
        self.next_plan = Some(plan);
        Ok(())
    }
}

fn nic_config(tree: &FatTree, host: HostId) -> NicConfig {
    let host = tree.host(host);
    let mut config = NicConfig::new(host.mac.0, host.ip);
    config.ack_timeout = Duration::from_micros(200);
    config
}

fn random_keys(random: &mut ChaCha8Rng, count: usize) -> BTreeSet<u64> {
    let mut keys = BTreeSet::new();
    if random.random_bool(0.3) {
        keys.extend([0, u64::MAX]);
    }
    // Dense runs make ranges that share their first slices; scattered keys make wide ones.
    let shift = [0, 16, 40, 64][random.random_range(0..4usize)];
    while keys.len() < count {
        let key = random.next_u64();
        keys.insert(if shift == 64 { key % (4 * count as u64) } else { key >> shift });
    }
    keys
}

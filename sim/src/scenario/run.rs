//! One run of a scenario: the client's owner, the servers' owner and the controller in one.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use fatbtree_blink::{BreakReason, Limits, Lookup, PoolConfig, Start, TreeConfig, value};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{LoadOptions, TreeInfo, load_cluster, seeded};
use fatbtree_controller::{self as controller, Budget, Frequencies, Placement, Plan, Tree};
use fatbtree_memserver::{self as memserver, ClientId, ServerOptions};
use fatbtree_remote_memory::session_keeper::{Call, CallId, KeeperOptions, Meaning, Notice, SessionKeeper};
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_topology::{HostId, Network as Topology, SwitchId};
use fatbtree_verbs::BufferClass;
use fatbtree_verbs::time::{Duration, Instant};
use rand::seq::SliceRandom as _;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Outcome, Scenario};
use crate::cluster::{Clock, Cluster};
use crate::control::{Control, described, registration};
use crate::network::Network;
use crate::virtual_time::VirtualClock;
use crate::wires::{FaultyWires, Wires};

/// Propagation and processing of one hop.
const HOP: Duration = Duration::from_nanos(500);
/// Virtual time after which a scenario that is not done is stuck.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time that a call takes out of band, and longest pause after one that failed.
const CALL: Duration = Duration::from_micros(50);

/// Changes in one write of the controller.
const PIECE: usize = 64;

pub(super) struct Run<'s> {
    scenario: &'s Scenario,
    random: ChaCha8Rng,
    clock: VirtualClock,
    network: Network,
    cluster: Cluster<FaultyWires>,
    client: Client<Nic>,
    client_host: HostId,
    /// The client's sessions.
    keeper: SessionKeeper<TreeInfo>,
    /// Calls on their way, and when they come to their servers.
    calls: Vec<(Instant, CallId, Call)>,
    keys: BTreeSet<u64>,
    tree: Tree,
    control: Control,
    /// Time at which the controller goes on.
    reload_at: Option<Instant>,
    lookups: Vec<Pin<Box<dyn Future<Output = Lookup>>>>,
    submitted: u32,
    outcome: Outcome,
}

type Step<T = ()> = Result<T, String>;

fn said(error: impl fmt::Display) -> String {
    error.to_string()
}

impl<'s> Run<'s> {
    pub(super) fn new(scenario: &'s Scenario) -> Step<Self> {
        let mut random = ChaCha8Rng::seed_from_u64(scenario.seed ^ 0x5eed);
        let tree = Topology::one_core(4).map_err(said)?;
        let mut hosts: Vec<HostId> = tree.hosts().iter().map(|host| host.id).collect();
        // Servers and client anywhere: same rack, same pod, other pods.
        for at in (1..hosts.len()).rev() {
            hosts.swap(at, random.random_range(0..=at));
        }
        let client_host = hosts[usize::from(scenario.servers)];
        let server_hosts = &hosts[..usize::from(scenario.servers)];
        let described = described("k = 4", &tree, server_hosts, &[])?;

        let keys = random_keys(&mut random, scenario.keys);
        let config = TreeConfig::new(16, 1024, scenario.values).map_err(said)?;
        let sorted: Vec<u64> = keys.iter().copied().collect();
        let mut values = seeded(scenario.seed, scenario.value_size as u32);
        let options = LoadOptions::new(config, 0);
        let loaded = load_cluster(&options, scenario.servers, &sorted, &mut values).map_err(said)?;
        let roots = loaded.roots.clone();
        let planner_tree = Tree::new(&loaded.tops().map_err(said)?).map_err(said)?;
        let nics: Vec<Nic> =
            server_hosts.iter().map(|host| nic(&tree, *host, random.next_u64())).collect::<Step<_>>()?;
        let mut nics = nics.into_iter();
        let options = ServerOptions { lease: scenario.lease, ..ServerOptions::default() };
        let servers = loaded
            .serve(&options, random.next_u64(), |_| nics.next().expect("one for each server"))
            .map_err(said)?;

        let network = Network::new(tree, Placement::of(&described));
        let mut control = Control::new(&described, PIECE, random.random());
        let config = PoolConfig {
            tree: config,
            limits: Limits { reconnects: 30, ..Limits::default() },
            ..PoolConfig::default()
        };
        let client = nic(network.tree(), client_host, random.next_u64())?;
        let client = Client::new(client, config, roots, random.next_u64()).map_err(said)?;
        let mut switches = network.switches().map_err(said)?;
        control.settle(&network, &mut switches).map_err(said)?;
        let wires = FaultyWires::new(HOP, scenario.rates, scenario.seed ^ 0xfa17);
        let servers = server_hosts.iter().copied().zip(servers).collect();
        let clients = vec![(client_host, client.clone())];
        let pauses = KeeperOptions { first_pause: CALL, longest_pause: CALL, ..KeeperOptions::default() };
        let keeper = SessionKeeper::new(client.pool().connections(), pauses);
        let mut run = Self {
            scenario,
            random,
            clock: VirtualClock::new(),
            cluster: Cluster::new(network.tree(), switches, servers, clients, wires),
            network,
            client,
            client_host,
            keeper,
            calls: Vec::new(),
            keys,
            tree: planner_tree,
            control,
            reload_at: None,
            lookups: Vec::new(),
            submitted: 0,
            outcome: Outcome::default(),
        };
        while let Some((id, call)) = run.keeper.poll_call(Instant::ZERO, run.client.pool()) {
            run.carry(id, call)?;
        }
        run.schedule_reload();
        Ok(run)
    }

    pub(super) fn finish(&mut self) -> Step<Outcome> {
        let deadline = Instant::ZERO + DEADLINE;
        loop {
            while self.cluster.step(&self.clock) {
                self.drive_client()?;
            }
            self.drive_client()?;
            self.follow_servers()?;
            if self.outcome.lookups == u64::from(self.scenario.lookups) && self.reload_at.is_none() {
                break;
            }
            let next = [
                self.cluster.wires().next_arrival(),
                self.cluster.poll_timeout(),
                self.reload_at,
                self.calls.iter().map(|(at, ..)| *at).min(),
                Some(self.keeper.poll_timeout()),
            ];
            let next = next.into_iter().flatten().min().ok_or_else(|| {
                format!(
                    "nothing is under way, and {} of {} lookups are done",
                    self.outcome.lookups, self.scenario.lookups
                )
            })?;
            self.clock.advance_to(next);
            let now = self.clock.now();
            if now > deadline {
                return Err(format!(
                    "after {DEADLINE} of virtual time {} of {} lookups are done",
                    self.outcome.lookups, self.scenario.lookups
                ));
            }
            if self.cluster.poll_timeout().is_some_and(|at| at <= now) {
                self.cluster.handle_timeout(&self.clock);
                self.drive_client()?;
            }
            if self.reload_at.is_some_and(|at| at <= now) {
                self.reload_a_little()?;
            }
            while let Some(at) = self.calls.iter().position(|(at, ..)| *at <= now) {
                let (_, id, call) = self.calls.swap_remove(at);
                self.carry(id, call)?;
            }
        }
        self.outcome.faults = self.cluster.wires().faults().counts;
        let counter = |(name, count): (String, u64)| if name == "sessions_lapsed" { count } else { 0 };
        let servers = self.cluster.servers_mut().iter();
        self.outcome.lapsed = servers.flat_map(memserver::MemoryServer::statistics).map(counter).sum();
        if self.outcome.wrong > 0 {
            return Err(format!("{} lookups were answered wrongly", self.outcome.wrong));
        }
        // One whose source MAC address was damaged on the client's cable is on no connection that the switch knows: nothing but Ethernet's own
        // checksum, which is not simulated, covers it.
        let [.., damaged] = self.outcome.faults;
        if self.outcome.naked_index_reads > damaged {
            return Err("a registered client's index read reached a server with rkey = 0".into());
        }
        Ok(self.outcome)
    }

    /// Whether the client lets its sessions lapse.
    fn is_careless(&self) -> bool {
        self.outcome.reconnections < self.scenario.careless
    }

    /// Takes what the client has to say, and keeps it busy.
    fn drive_client(&mut self) -> Step {
        let now = self.clock.now();
        while let Some((id, call)) = self.keeper.poll_call(now, self.client.pool()) {
            self.take_notices()?;
            // A careless client renews its session when that has lapsed.
            let is_late = self.is_careless() && matches!(call, Call::Renew { .. });
            let late = if is_late { self.scenario.lease } else { Duration::ZERO };
            self.calls.push((now + CALL + late, id, call));
        }
        self.take_notices()?;
        // New lookups post at their first poll, and may even end at it.
        loop {
            while self.submitted < self.scenario.lookups && self.lookups.len() < self.scenario.depth as usize
            {
                let key = self.draw_key();
                let start = if self.random.random_bool(0.85) { Start::IndexRead } else { Start::Root };
                let client = self.client.clone();
                self.lookups.push(Box::pin(async move { client.lookup(key, start).await }));
                self.submitted += 1;
            }
            let lookups = &mut self.lookups;
            let ended = self.cluster.with_client(0, &self.clock, |_, _| {
                let mut context = Context::from_waker(Waker::noop());
                let mut ended = Vec::new();
                lookups.retain_mut(|lookup| match lookup.as_mut().poll(&mut context) {
                    Poll::Ready(lookup) => {
                        ended.push(lookup);
                        false
                    }
                    Poll::Pending => true,
                });
                ended
            });
            if ended.is_empty() {
                return Ok(());
            }
            ended.iter().for_each(|lookup| self.record(lookup));
        }
    }

    fn record(&mut self, lookup: &Lookup) {
        self.outcome.lookups += 1;
        self.outcome.round_trips += u64::from(lookup.trips.round_trips);
        let there = self.keys.contains(&lookup.key);
        match &lookup.result {
            Ok(Some(bytes)) if there && value::check(lookup.key, self.scenario.seed, bytes) => {
                self.outcome.found += 1;
            }
            Ok(None) if !there => self.outcome.not_found += 1,
            Err(_) => self.outcome.failed += 1,
            _ => self.outcome.wrong += 1,
        }
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

    /// Brings a call to its server, and the answer back. The controller admits a new connection before.
    fn carry(&mut self, id: CallId, call: Call) -> Step {
        let (now, roce) = (self.clock.now(), self.network.tree().host(self.client_host).ip);
        let server = &mut self.cluster.servers_mut()[usize::from(id.server())];
        let answer = server.carry_out(now, ClientId { host: roce.into(), roce }, call);
        self.follow_servers()?;
        self.keeper.handle_answer(now, self.client.pool(), id, answer);
        self.take_notices()
    }

    fn take_notices(&mut self) -> Step {
        while let Some(notice) = self.keeper.poll_notice() {
            match notice {
                Notice::Broken { reason, .. } => {
                    self.outcome.reconnections += 1;
                    if reason == BreakReason::Unregistered {
                        self.outcome.refused_index_reads += 1;
                        // Frames of a registered connection may be refused when they are damaged beyond recognition,
                        // but never as an index read that no switch has rewritten.
                        self.outcome.naked_index_reads += u64::from(!self.scenario.unregistered);
                    }
                }
                Notice::Connected { id } => {
                    // An unregistered client believes that it is registered until the server has refused it once.
                    let registered = !self.scenario.unregistered || self.outcome.refused_index_reads == 0;
                    self.client.pool().set_registered(id, registered).map_err(said)?;
                }
                Notice::Opened { .. } => {}
                Notice::Denied { denied, .. } if denied.meaning == Meaning::Ended => {}
                notice => return Err(format!("the client's session: {notice:?}")),
            }
        }
        Ok(())
    }

    /// The controller keeps the first-hop entries as the servers say.
    fn follow_servers(&mut self) -> Step {
        for server in 0..self.scenario.servers {
            while let Some(event) = self.cluster.servers_mut()[usize::from(server)].poll_event() {
                match event {
                    _ if self.scenario.unregistered => continue,
                    memserver::Event::Opened(hop) => {
                        self.control.controller.opened(hop.partition, registration(&hop));
                    }
                    memserver::Event::Closed(hop) => {
                        self.control.controller.closed(hop.partition, hop.client, hop.queue_pair.0);
                    }
                    memserver::Event::NewRoot(_)
                    | memserver::Event::Reloaded { .. }
                    | memserver::Event::Lost { .. }
                    | memserver::Event::Ask(_) => {
                        return Err("a tree without writers has a new root".into());
                    }
                }
                // Clients are told when their first switch has the entry.
                let edge = self.network.tree().edge_of(self.client_host).id;
                let switches = self.cluster.switches_mut();
                self.control.settle_one(&self.network, switches, edge).map_err(said)?;
            }
        }
        Ok(())
    }

    fn schedule_reload(&mut self) {
        self.reload_at = (self.outcome.reloads < u64::from(self.scenario.reloads))
            .then(|| self.clock.now() + Duration::from_nanos(self.random.random_range(1..=100_000)));
    }

    /// Makes some steps of a reload, and begins the next reload if none is under way.
    fn reload_a_little(&mut self) -> Step {
        if self.control.controller.reload().is_none() {
            self.load_next_plan()?;
        }
        for _ in 0..self.random.random_range(1..=8) {
            self.write_to_any()?;
        }
        while let Some(notice) = self.control.controller.poll_notice() {
            match notice {
                controller::Notice::Reloaded { .. } => {
                    self.outcome.reloads += 1;
                    self.schedule_reload();
                    return Ok(());
                }
                controller::Notice::Registered(..) => {}
                controller::Notice::Void => return Err("a plan is void, although no tree has changed".into()),
            }
        }
        self.reload_at = Some(self.clock.now() + Duration::from_nanos(self.random.random_range(1..=20_000)));
        Ok(())
    }

    /// Writes to one switch; the seed decides which one comes first.
    fn write_to_any(&mut self) -> Step {
        let mut order: Vec<SwitchId> = self.network.tree().switches().iter().map(|it| it.id).collect();
        order.shuffle(&mut self.random);
        let switches = self.cluster.switches_mut();
        self.control.step_first(&self.network, switches, &order).map(drop).map_err(said)
    }

    fn load_next_plan(&mut self) -> Step {
        let sample: Vec<u64> = (0..200).map(|_| self.draw_key()).collect();
        let frequencies = Frequencies::from_keys(&self.tree, &sample);
        let budget = Budget {
            fat_root_ranges: self.scenario.fat_root,
            set_nodes: self.scenario.set_nodes,
            ..Budget::bmv2()
        };
        let plan =
            Plan::new(self.network.tree(), self.network.placement(), &self.tree, &frequencies, &budget, 1)
                .map_err(said)?;
        let trees = self.control.controller.trees();
        self.control.controller.load(plan, trees).map_err(said)?;
        Ok(())
    }
}

fn nic(tree: &Topology, host: HostId, seed: u64) -> Step<Nic> {
    let host = tree.host(host);
    let mut config = NicConfig::new(host.mac.0, host.ip);
    config.ack_timeout = Duration::from_micros(200);
    config.buffers = vec![BufferClass { count: 64, bytes: 4 << 10 }];
    Nic::new(config, seed).map_err(said)
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

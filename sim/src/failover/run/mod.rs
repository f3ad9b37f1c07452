//! One run of a scenario.

mod lookups;
mod verdict;

use std::collections::BTreeSet;
use std::fmt;

use fatbtree_blink::{ConnectionId, Limits, PoolConfig, TreeConfig, ValueLayout};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{LoadOptions, TreeEvent, load_cluster, seeded};
use fatbtree_controller::grpc::{ServerHello, ServerNews, TREE};
use fatbtree_controller::operator::Question;
use fatbtree_controller::{
    Budget, ControllerNews, Frequencies, Generation, Loaded, Made, Order, Placement, Plan, Tree,
};
use fatbtree_memserver::ServerOptions;
use fatbtree_remote_memory::session_keeper::{Call, CallId};
use fatbtree_soft_nic::{DropReason, Nic, NicConfig};
use fatbtree_topology::{Cluster as Described, HostId, Network as Topology, Peer, Role, SwitchId};
use fatbtree_verbs::BufferClass;
use fatbtree_verbs::time::{Duration, Instant};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::agenda::Agenda;
use super::asker::Asker;
use super::cables::Cables;
use super::channel::{Answer, Ask, Channel, Life};
use super::control::Control;
use super::{Calm, Fault, Outcome, Scenario, Shape};
use crate::cluster::{Clock as _, Cluster};
use crate::control::registration;
use crate::network::{Network, blank};
use crate::virtual_time::VirtualClock;
use crate::wires::{Attachment, Wires as _};

/// Virtual time after which something that does not come will never come.
const PATIENCE: Duration = Duration::from_secs(40);
/// Time limit for a network to become whole again by itself.
const WHOLE: Duration = Duration::from_secs(12);
/// Longest time for which lookups may be held up where there is a way round.
const HELD_UP: Duration = Duration::from_secs(1);
/// Time for which clients go on after all is whole again.
const AFTERWARDS: Duration = Duration::from_millis(150);
/// Lookups of a client that have not ended, at most.
const DEPTH: usize = 24;
/// Bytes of a value.
const VALUE: u32 = 24;

/// Number of each memory server's only stream to the controller.
const STREAM: u64 = 0;

/// An event at a point in virtual time.
enum Event {
    Ask(SwitchId, u64, Ask),
    Answer(SwitchId, u64, Answer),
    /// A memory server's news reach the controller.
    News(TreeEvent),
    /// A client hears that a connection is registered.
    Registered {
        client: usize,
        partition: u16,
        queue_pair: u32,
    },
    /// A call of a client's keeper comes to its server.
    Call {
        client: usize,
        id: CallId,
        call: Call,
    },
    Burst {
        client: usize,
    },
    Reload,
    /// A plan that the controller has ordered is made.
    Planned(Box<Made>),
    Dies,
    Back,
    /// Time goes on until then, though nothing happens.
    Ends,
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before all works.
    Starting,
    /// From then on, until all is whole again after the fault.
    Going,
    /// All is whole again; clients go on until this time.
    Afterwards(Instant),
    /// No lookups are begun any more.
    Ending,
}

/// The cable or switch that dies.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Switch(SwitchId),
    /// A cable, by the two ends at which frames arrive.
    Cable {
        lower: Attachment,
        upper: Attachment,
    },
}

pub(super) struct Run<'s> {
    scenario: &'s Scenario,
    random: ChaCha8Rng,
    clock: VirtualClock,
    agenda: Agenda<Event>,
    network: Network,
    cluster: Cluster<Cables>,
    channels: Vec<Channel>,
    control: Control,
    askers: Vec<Asker>,
    keys: BTreeSet<u64>,
    tree: Tree,
    phase: Phase,
    has_plan: bool,
    victim: Victim,
    died: Option<Instant>,
    back: Option<Instant>,
    outcome: Outcome,
}

type Step<T = ()> = Result<T, String>;

fn said(error: impl fmt::Display) -> String {
    error.to_string()
}

impl<'s> Run<'s> {
    pub(super) fn new(scenario: &'s Scenario) -> Step<Self> {
        let mut random = ChaCha8Rng::seed_from_u64(scenario.seed ^ 0xfa11_07e5);
        let text = scenario.cluster_file(&mut |count| random.random_range(0..count));
        let described = Described::from_toml(&text).map_err(said)?;
        let topology = described.tree().clone();
        let mut keys = BTreeSet::new();
        while keys.len() < scenario.keys {
            keys.insert(random.next_u64());
        }
        let leaf = if scenario.is_large { 256 } else { 1024 };
        let config = TreeConfig::new(16, leaf, ValueLayout::Inline(VALUE as u8)).map_err(said)?;
        let sorted: Vec<u64> = keys.iter().copied().collect();
        let mut values = seeded(scenario.seed, VALUE);
        let loaded = load_cluster(&LoadOptions::new(config, 0), scenario.servers, &sorted, &mut values);
        let loaded = loaded.map_err(said)?;
        let roots = loaded.roots.clone();
        let tree = Tree::new(&loaded.tops().map_err(said)?).map_err(said)?;
        let mut nics = Vec::new();
        for partition in 0..scenario.servers {
            let host = described.server(partition).ok_or("a partition without a server")?.host;
            nics.push((host, nic(&topology, host, scenario.hasty, random.next_u64())?));
        }
        let server_hosts: Vec<HostId> = nics.iter().map(|(host, _)| *host).collect();
        let mut nics = nics.into_iter();
        // A long lease: clients do not renew their sessions here.
        let options = ServerOptions { lease: Duration::from_secs(3_600), ..ServerOptions::default() };
        let servers = loaded.serve(&options, random.next_u64(), |_| nics.next().expect("one for each").1);
        let servers = server_hosts.into_iter().zip(servers.map_err(said)?).collect();

        let mut askers = Vec::new();
        for described in described.clients() {
            let config = PoolConfig {
                tree: config,
                lanes: scenario.lanes,
                limits: Limits { reconnects: 200, ..Limits::default() },
                ..PoolConfig::default()
            };
            let nic = nic(&topology, described.host, scenario.hasty, random.next_u64())?;
            let client = Client::new(nic, config, roots.clone(), random.next_u64()).map_err(said)?;
            askers.push(Asker::new(client, described.host));
        }
        let clients = askers.iter().map(|asker| (asker.host, asker.client.clone())).collect();
        let network = Network::new(topology.clone(), Placement::of(&described));
        let switches = topology.switches().iter().map(|switch| blank(switch.id)).collect();
        let cables = Cables::new(&topology, &mut random);
        let cluster = Cluster::new(&topology, switches, servers, clients, cables);
        let mut channels = Vec::new();
        for switch in topology.switches() {
            let delay = Duration::from_micros(random.random_range(50..=4_000));
            let loading = Duration::from_millis(random.random_range(5..=300));
            channels.push(Channel::new(switch.id, delay, loading));
        }
        let (draw, token) = (random.random(), random.next_u64());
        let control = Control::new(&described, scenario.writes_per_s, draw, token, scenario.without.monitor);
        let victim = victim(&topology, scenario, &mut random);
        let mut run = Self {
            scenario,
            clock: VirtualClock::new(),
            agenda: Agenda::new(),
            network,
            cluster,
            channels,
            control,
            askers,
            keys,
            tree,
            phase: Phase::Starting,
            has_plan: false,
            victim,
            died: None,
            back: None,
            outcome: Outcome::default(),
            random,
        };
        for partition in 0..scenario.servers {
            let generation = run.generation(partition);
            let root = run.tree_root(partition);
            let hello = ServerHello {
                partition,
                structure: TREE.to_owned(),
                generation,
                root,
                first_key: None,
                lost: false,
                connections: Vec::new(),
            };
            run.control.primary.server_joined(STREAM, &hello).map_err(|_| "it has no other stream")?;
        }
        for (stream, asker) in (0..).zip(&run.askers) {
            run.control.primary.client_joined(stream, run.network.tree().host(asker.host).ip);
        }
        for client in 0..run.askers.len() {
            while let Some((id, call)) = run.next_call(client)? {
                run.carry(client, id, call)?;
            }
        }
        Ok(run)
    }

    pub(super) fn finish(&mut self) -> Step<Outcome> {
        let mut deadline = Instant::ZERO + PATIENCE;
        loop {
            let phase = self.phase;
            self.turn()?;
            if phase == Phase::Ending && self.askers.iter().all(|asker| asker.running() == 0) {
                return self.judge();
            }
            if self.phase != phase {
                deadline = self.clock.now() + PATIENCE;
            }
            let next = [
                self.cluster.wires().next_arrival(),
                self.cluster.poll_timeout(),
                self.agenda.next_at(),
                self.control.poll_timeout(),
                self.askers.iter().map(|asker| asker.keeper.poll_timeout()).min(),
            ];
            let next = next.into_iter().flatten().min().ok_or("nothing is under way")?;
            self.clock.advance_to(next);
            if self.clock.now() > deadline {
                let running: usize = self.askers.iter().map(Asker::running).sum();
                return Err(format!(
                    "nothing more comes in {phase:?}: {running} lookups; {}",
                    self.control.describe()
                ));
            }
            let late = self.back.is_some_and(|back| self.clock.now() > back + WHOLE);
            if phase == Phase::Going && late {
                return Err(format!("it is not whole again by itself: {}", self.control.describe()));
            }
        }
    }

    /// Handles everything that happens at one time.
    fn turn(&mut self) -> Step {
        let now = self.clock.now();
        if self.cluster.poll_timeout().is_some_and(|at| at <= now) {
            self.cluster.handle_timeout(&self.clock);
        }
        while self.cluster.step(&self.clock) {}
        self.hear_switches();
        while let Some(event) = self.agenda.pop(now) {
            self.happens(event)?;
        }
        self.drive_clients()?;
        self.hear_servers();
        let is_first = self.control.controller().outages().is_empty();
        self.control.handle_timeout(now);
        let hears = is_first && !self.control.controller().outages().is_empty();
        if hears && self.control.controller().reload().is_some() {
            self.outcome.during_reload = 1;
        }
        self.act();
        self.obey()?;
        self.go_on()
    }

    // ---- the control plane ----

    fn hear_switches(&mut self) {
        for channel in &self.channels {
            while let Some((after, session, answer)) = channel.poll(&self.network, &mut self.cluster) {
                let switch = channel.switch();
                self.agenda.add(self.clock.now() + after, Event::Answer(switch, session, answer));
            }
        }
    }

    fn hear_servers(&mut self) {
        for server in self.cluster.servers_mut() {
            while let Some(event) = server.poll_event() {
                let after = Duration::from_micros(self.random.random_range(100..=3_000));
                self.agenda.add(self.clock.now() + after, Event::News(event));
            }
        }
    }

    fn act(&mut self) {
        for (switch, session, ask) in self.control.take_asks() {
            let after = self.channels[switch.0 as usize].delay;
            self.agenda.add(self.clock.now() + after, Event::Ask(switch, session, ask));
        }
    }

    fn happens(&mut self, event: Event) -> Step {
        let now = self.clock.now();
        match event {
            Event::Ask(switch, session, ask) => {
                let Self { channels, network, cluster, clock, .. } = self;
                let channel = &mut channels[switch.0 as usize];
                if let Some((after, session, answer)) = channel.handle(session, ask, network, cluster, clock)
                {
                    self.agenda.add(now + after, Event::Answer(switch, session, answer));
                }
                self.hear_switches();
            }
            Event::Answer(switch, session, answer) => self.control.heard(now, switch, session, answer),
            Event::News(event) => self.news(event)?,
            Event::Registered { client, partition, queue_pair } => {
                let asker = &mut self.askers[client];
                asker.registered.insert((partition, queue_pair));
                let pool = asker.client.pool();
                let ours = |id: &ConnectionId| {
                    id.server == partition && pool.replaces(*id).is_some_and(|end| end.0 == queue_pair)
                };
                if let Some(id) = pool.connections().into_iter().find(ours) {
                    pool.set_registered(id, true).map_err(said)?;
                }
            }
            Event::Call { client, id, call } => self.carry(client, id, call)?,
            Event::Burst { client } => self.burst(client),
            // Refused while something is not as it should be.
            Event::Reload => self.control.primary.asked_for_plan(0, Question::Reload { plan: None }),
            Event::Planned(made) => self.control.primary.planned(Ok(*made)),
            Event::Dies => self.die(),
            Event::Back => self.come_back(),
            Event::Ends => {}
        }
        Ok(())
    }

    fn generation(&mut self, partition: u16) -> Generation {
        let info = self.cluster.servers_mut()[usize::from(partition)].info();
        Generation { number: info.generation, low: info.partition.range.low }
    }

    fn tree_root(&mut self, partition: u16) -> u64 {
        self.cluster.servers_mut()[usize::from(partition)].info().partition.root.raw()
    }

    fn news(&mut self, event: TreeEvent) -> Step {
        match event {
            TreeEvent::Opened(hop) => {
                let news = ServerNews::Opened(registration(&hop));
                self.control.primary.server_news(STREAM, hop.partition, news);
            }
            TreeEvent::Closed(hop) => {
                let news = ServerNews::Closed { client: hop.client, queue_pair: hop.queue_pair.0 };
                self.control.primary.server_news(STREAM, hop.partition, news);
            }
            TreeEvent::NewRoot(_)
            | TreeEvent::Reloaded { .. }
            | TreeEvent::Lost { .. }
            | TreeEvent::Ask(_) => {
                return Err("a tree without writers has a new root".into());
            }
        }
        Ok(())
    }

    /// Carries out what the controller orders.
    fn obey(&mut self) -> Step {
        while let Some(order) = self.control.primary.poll_order() {
            let after = Duration::from_micros(self.random.random_range(100..=3_000));
            match order {
                Order::Registered(stream, (partition, queue_pair)) => {
                    let event = Event::Registered { client: stream as usize, partition, queue_pair };
                    self.agenda.add(self.clock.now() + after, event);
                }
                Order::Plan { active, source, epoch, .. } => {
                    let plan = self.planned(active.as_deref(), epoch)?;
                    let made = Made { plan, source, cost_active: None, cost: Default::default() };
                    self.agenda.add(self.clock.now() + after, Event::Planned(Box::new(made)));
                }
                Order::Tell(ControllerNews::Reloaded { .. }) => self.has_plan = true,
                Order::Tell(ControllerNews::Void) => {
                    return Err("a plan is void, although no tree has changed".into());
                }
                Order::Follow(_) => return Err("a follower that heard of no client sees a gain".into()),
                Order::Keep | Order::Sync(_) | Order::Answer(..) | Order::Tell(_) => {}
            }
        }
        Ok(())
    }

    /// A plan of what some keys visit.
    fn planned(&mut self, active: Option<&Loaded>, epoch: u8) -> Step<Plan> {
        let sample: Vec<u64> = (0..300).map(|_| self.draw_key()).collect();
        let frequencies = Frequencies::from_keys(&self.tree, &sample);
        let nodes = match active {
            None if self.scenario.is_large => 0,
            _ => self.scenario.set_nodes,
        };
        let budget = Budget {
            fat_root_ranges: self.scenario.fat_root,
            set_nodes: [nodes; fatbtree_controller::SETS],
            ..Budget::bmv2()
        };
        let (tree, placement, old) =
            (self.network.tree(), self.network.placement(), active.map(Loaded::plan));
        Plan::following(tree, placement, &self.tree, &frequencies, &budget, epoch, old).map_err(said)
    }

    // ---- what happens when ----

    fn go_on(&mut self) -> Step {
        let now = self.clock.now();
        match self.phase {
            Phase::Starting => {
                let all = |asker: &Asker| {
                    let pool = asker.client.pool();
                    pool.connections().into_iter().all(|id| pool.is_registered(id))
                };
                if self.has_plan && self.control.is_whole() && self.askers.iter().all(all) {
                    self.phase = Phase::Going;
                    (0..self.askers.len()).for_each(|client| self.agenda.add(now, Event::Burst { client }));
                    if let Some(after) = self.scenario.reload {
                        self.agenda.add(now + after, Event::Reload);
                    }
                    self.agenda.add(now + self.scenario.dies, Event::Dies);
                    self.agenda.add(now + self.scenario.dies + self.scenario.back, Event::Back);
                }
            }
            Phase::Going if self.back.is_some_and(|back| now > back) => {
                if !self.is_whole_again()? {
                    return Ok(());
                }
                let took = self.back.map_or(Duration::ZERO, |back| now - back);
                self.outcome.whole_again_ms = millis(took);
                self.phase = Phase::Afterwards(now + AFTERWARDS);
                self.agenda.add(now + AFTERWARDS, Event::Ends);
            }
            Phase::Afterwards(until) if now >= until => self.phase = Phase::Ending,
            _ => {}
        }
        Ok(())
    }

    fn die(&mut self) {
        let now = self.clock.now();
        self.outcome.calm = self.calm();
        self.died = Some(now);
        if self.scenario.without.fault {
            return;
        }
        let wires = self.cluster.wires_mut();
        match (self.victim, self.scenario.fault) {
            (Victim::Cable { lower, upper }, Fault::Cable { down, up }) => {
                self.outcome.faults[0] = 1;
                [(lower, down), (upper, up)].iter().filter(|end| end.1).for_each(|end| wires.cut(end.0));
            }
            (Victim::Switch(switch), fault) => {
                let life = match fault {
                    Fault::Frozen { room } => {
                        wires.freeze(switch.0, room);
                        self.outcome.faults[1] = 1;
                        Life::Frozen
                    }
                    Fault::Killed => {
                        self.outcome.faults[2] = 1;
                        Life::Killed
                    }
                    Fault::Unpowered | Fault::Cable { .. } => {
                        self.outcome.faults[3] = 1;
                        Life::Unpowered
                    }
                };
                if life != Life::Frozen {
                    wires.kill(switch.0);
                }
                for (after, session, answer) in self.channels[switch.0 as usize].stop(life) {
                    self.agenda.add(now + after, Event::Answer(switch, session, answer));
                }
            }
            (Victim::Cable { .. }, _) => {}
        }
    }

    /// Counts so far.
    fn calm(&mut self) -> Calm {
        let mut calm = Calm { lookups: self.outcome.lookups, ..Calm::default() };
        for server in self.cluster.servers_mut() {
            calm.naks += server.device().stats().naks_sent;
            calm.dropped += server.device().stats().dropped(DropReason::RequestGap);
        }
        for asker in &self.askers {
            let pool = asker.client.pool();
            (calm.reads, calm.index_reads) =
                (calm.reads + pool.stats().remote.reads, calm.index_reads + pool.stats().index_reads);
            calm.timeouts += pool.reactor().with(|nic| nic.stats().timeouts);
        }
        calm
    }

    fn come_back(&mut self) {
        let now = self.clock.now();
        self.back = Some(now);
        if self.scenario.without.fault {
            return;
        }
        match self.victim {
            Victim::Cable { lower, upper } => {
                [lower, upper].into_iter().for_each(|end| self.cluster.wires_mut().mend(end));
            }
            Victim::Switch(switch) => {
                self.cluster.wires_mut().revive(now, switch.0);
                let Self { channels, network, cluster, clock, .. } = self;
                let answers = channels[switch.0 as usize].start(network, cluster, clock);
                for (after, session, answer) in answers {
                    self.agenda.add(now + after, Event::Answer(switch, session, answer));
                }
            }
        }
    }
}

fn at(now: Instant) -> Duration {
    now - Instant::ZERO
}

fn millis(time: Duration) -> u64 {
    time.as_nanos() / 1_000_000
}

/// Draws the cable between switches, or the switch, that dies. The switch has no hosts, unless the network is a pair
/// or a single switch.
fn victim(tree: &Topology, scenario: &Scenario, random: &mut ChaCha8Rng) -> Victim {
    if let Fault::Cable { .. } = scenario.fault {
        let cables = tree.links().into_iter().filter_map(|link| match link.lower {
            Peer::Switch { switch, port } => Some((link, switch, port)),
            Peer::Host(_) => None,
        });
        let cables: Vec<_> = cables.collect();
        let (link, switch, port) = cables[random.random_range(0..cables.len())];
        return Victim::Cable {
            lower: Attachment { node: switch.0, port },
            upper: Attachment { node: link.upper.0, port: link.port },
        };
    }
    let any = matches!(scenario.shape, Shape::Pair | Shape::Single);
    let of = |role: Role| any || matches!(role, Role::Core | Role::Aggregation);
    let switches: Vec<SwitchId> =
        tree.switches().iter().filter(|switch| of(switch.role)).map(|switch| switch.id).collect();
    Victim::Switch(switches[random.random_range(0..switches.len())])
}

fn nic(tree: &Topology, host: HostId, is_hasty: bool, seed: u64) -> Step<Nic> {
    let host = tree.host(host);
    let mut config = NicConfig::new(host.mac.0, host.ip);
    // As the process's software NIC has it.
    if !is_hasty {
        (config.ack_timeout, config.retry_count) = (Duration::from_millis(100), 7);
    }
    config.buffers = vec![BufferClass { count: 64, bytes: 4 << 10 }];
    Nic::new(config, seed).map_err(said)
}

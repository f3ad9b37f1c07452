//! The controller's knowledge and decisions, without I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use fatbtree_topology::{Cluster, HostId, Outages, Role, Switch, SwitchId};
use serde::{Deserialize, Serialize};

use super::roots::Roots;
use super::{Active, Desired, KeeperNotice, Loaded, Serving};
use crate::connection::{Connection, ConnectionError};
use crate::plan::{Placement, Plan, PlanError, next_epoch};

/// A connection that a memory server has accepted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Registration {
    /// Where the client's packets come from.
    pub client: Ipv4Addr,
    /// The server's queue pair number.
    pub queue_pair: u32,
    /// Key of the tree memory.
    pub rkey: u32,
    /// The root of the server's tree.
    pub root: u64,
    /// The path MTU in bytes.
    pub mtu: u16,
}

impl fmt::Debug for Registration {
    /// Without the rkey: it permits writing to the tree.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, queue_pair, root, mtu, rkey: _ } = self;
        f.debug_struct("Registration")
            .field("client", client)
            .field("queue_pair", queue_pair)
            .field("root", root)
            .field("mtu", mtu)
            .finish_non_exhaustive()
    }
}

/// A memory server's tree: another number means that nodes may lie elsewhere than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// A number that no other filling of the server's memory has had.
    pub number: u64,
    /// First key of its partition.
    pub low: u64,
}

/// Trees by partition.
pub type Generations = BTreeMap<u16, Generation>;

/// State of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchState {
    /// It does not answer, for this reason.
    Silent(String),
    /// It answers, and does not hold all that it should yet.
    Converging,
    /// It holds what was desired at this version.
    Settled(u64),
}

/// A memory server as the controller knows it.
#[derive(Clone, Debug, Default)]
struct Server {
    /// Whether it is connected to the controller.
    here: bool,
    generation: Option<Generation>,
    /// Its clients' connections, by client and queue pair.
    connections: BTreeMap<(Ipv4Addr, u32), Registration>,
}

/// Where a reload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The new epoch is written beside the old one.
    Write,
    /// Packets are sent into it.
    Flip,
    /// The old one goes.
    Clear,
}

#[derive(Clone, Debug)]
struct Reload {
    new: Arc<Loaded>,
    old: Option<Arc<Loaded>>,
    source: Generations,
    changes: usize,
    stage: Stage,
    /// The version of what is desired in this stage.
    version: u64,
    began: Duration,
}

/// Something that others want to know.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// Index reads on this connection, to this partition, are admitted from now on.
    Registered(u16, Registration),
    /// A plan is active, and nothing of the one before is left in switches that answer.
    Reloaded {
        /// Its epoch.
        epoch: u8,
        /// Entries that were written or deleted, in all switches.
        changes: usize,
        /// Duration.
        took: Duration,
    },
    /// The active plan was made of trees that are gone: switches lead nowhere until there is another plan.
    Void,
}

/// Why a plan is not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// One at a time.
    #[error("a reload is under way, to epoch {epoch}; try again when it is done")]
    Busy {
        /// The epoch that it leads to.
        epoch: u8,
    },
    /// A switch with the fat root that packets are sent to was not read yet, or does not hold what it should.
    #[error(
        "{switch} does not answer, or does not hold yet what it should: `fatbtree control status` says why; wait for it"
    )]
    CoreSilent {
        /// Its name.
        switch: String,
    },
    /// It was made of other trees.
    #[error(
        "the plan was made of another tree of partition {partition}: it was loaded anew since; make a plan of this one"
    )]
    OtherTree {
        /// The partition.
        partition: u16,
    },
    /// It does not fit.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// A controller's knowledge and decisions. It is told of switches, memory servers and time, and says what all switches
/// [should hold](Self::desired); its driver makes them so, each by itself.
#[derive(Debug)]
pub struct Controller {
    cluster: Cluster,
    placement: Placement,
    roots: Roots,
    outages: Outages,
    /// The version since which routes are what they are.
    rerouted: u64,
    /// All that answer have been seen to have the routes of now.
    all_go_round: bool,
    desired: Arc<Desired>,
    version: u64,
    switches: BTreeMap<SwitchId, SwitchState>,
    servers: BTreeMap<u16, Server>,
    /// Trees that the active plan was made of.
    source: Generations,
    /// Plans that were saved, one of them perhaps of the epoch that is found active.
    saved: Vec<(Plan, Generations)>,
    left_out: Option<PlanError>,
    /// Nothing is active because the fat roots that were read so far are empty.
    found_nothing: bool,
    reload: Option<Reload>,
    /// The version since which packets are to be sent where they are to be sent now.
    turned: u64,
    /// The epoch that was begun last. It is not begun again: a switch that does not answer may hold some of it.
    last_begun: u8,
    draw: u8,
    previous: Option<(Plan, Generations)>,
    /// Connections that are told of when the client's first switch and the fat roots hold this version.
    pending: BTreeMap<(u16, Ipv4Addr, u32), (u64, SwitchId)>,
    notices: VecDeque<Notice>,
    now: Duration,
    connections_per_switch: usize,
    refused_connections: u64,
}

impl Controller {
    /// Knows nothing yet. A first switch has room for so many connections. `draw` is a random number: where epochs begin, for a switch
    /// that does not answer may hold some of an epoch that a former controller has begun and never finished.
    pub fn new(cluster: &Cluster, connections_per_switch: usize, draw: u8) -> Self {
        let switches = cluster.tree().switches().iter();
        let silent = || SwitchState::Silent("not reached yet".to_owned());
        Self {
            placement: Placement::of(cluster),
            roots: Roots::new(cluster),
            outages: Outages::none(),
            rerouted: 1,
            all_go_round: false,
            desired: Arc::new(Desired::new(cluster)),
            version: 1,
            switches: switches.map(|switch| (switch.id, silent())).collect(),
            servers: cluster.servers().iter().map(|server| (server.partition, Server::default())).collect(),
            source: Generations::new(),
            saved: Vec::new(),
            left_out: None,
            found_nothing: false,
            reload: None,
            turned: 0,
            last_begun: u8::MAX,
            draw,
            previous: None,
            pending: BTreeMap::new(),
            notices: VecDeque::new(),
            now: Duration::ZERO,
            connections_per_switch,
            refused_connections: 0,
            cluster: cluster.clone(),
        }
    }

    /// Takes notice of a plan that was saved: if its epoch is found active, it is the active plan.
    pub fn restore(&mut self, plan: Plan, source: Generations) {
        match plan.check_network(&self.cluster) {
            Ok(()) => self.saved.push((plan, source)),
            Err(error) => {
                tracing::warn!(epoch = plan.epoch(), %error, "a saved plan is left out");
                self.left_out = Some(error);
            }
        }
    }

    /// Why a plan that was saved is not of this cluster.
    pub fn left_out(&self) -> Option<&PlanError> {
        self.left_out.as_ref()
    }

    /// Time, counted from any moment on. It never goes back.
    pub fn at(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    // ---- what is desired ----

    /// The desired state and its version, which increases monotonically.
    pub fn desired(&self) -> (u64, &Arc<Desired>) {
        (self.version, &self.desired)
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut Desired) -> T) -> T {
        let result = change(Arc::make_mut(&mut self.desired));
        self.version += 1;
        result
    }

    /// Packets are to be sent somewhere else.
    fn turn(&mut self, active: Active) {
        self.change(|desired| desired.active = active);
        self.turned = self.version;
    }

    /// The next thing that others want to know.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    // ---- switches ----

    /// Takes in what the keeper of a switch has to say of it.
    pub fn switch_noticed(&mut self, switch: SwitchId, notice: &KeeperNotice) {
        match notice {
            KeeperNotice::Read(serving) => self.switch_read(switch, *serving),
            KeeperNotice::Converging => self.switch_converging(switch),
            KeeperNotice::Settled(version) => self.switch_settled(switch, *version),
            KeeperNotice::Lost(reason) => self.switch_lost(switch, reason.clone()),
            // The driver carries the switch's packets, and answers operators.
            KeeperNotice::Runs | KeeperNotice::Synced { .. } => {}
        }
    }

    /// A switch answers, and was read: it sends packets there.
    pub(crate) fn switch_read(&mut self, switch: SwitchId, serving: Option<Serving>) {
        self.switches.insert(switch, SwitchState::Converging);
        self.all_go_round = false;
        let is_root = self.cluster.tree().is_root(switch);
        let is_first = is_root && self.desired.active == Active::Unread;
        if is_first {
            let last = serving.map_or(u8::MAX, |serving| serving.epoch);
            self.last_begun = (0..2 * (self.draw / 2)).fold(last, |epoch, _| next_epoch(epoch));
        }
        // The first one may have come back empty.
        if is_first || is_root && self.found_nothing && serving.is_some() {
            self.found_nothing = serving.is_none();
            let saved = if self.found_nothing { Vec::new() } else { std::mem::take(&mut self.saved) };
            let mut saved = saved.into_iter();
            if serving.is_some_and(|serving| serving.epoch == next_epoch(self.last_begun)) {
                self.last_begun = next_epoch(self.last_begun);
            }
            let active = match serving {
                None => Active::Nothing,
                Some(serving) => match saved.find(|(plan, _)| plan.epoch() == serving.epoch) {
                    Some((plan, source)) => {
                        self.source = source;
                        Active::Plan(Loaded::new(plan))
                    }
                    None => Active::Unknown(serving),
                },
            };
            self.turn(active);
            self.check_trees();
        }
        if is_root {
            let holds_it = serving == self.desired.active.serving();
            self.roots.read(switch, holds_it, self.version);
            self.go_round();
        }
        self.advance();
    }

    /// A switch holds what was desired at a version.
    pub(crate) fn switch_settled(&mut self, switch: SwitchId, version: u64) {
        self.switches.insert(switch, SwitchState::Settled(version));
        self.roots.settled(switch, version);
        self.go_round();
        self.advance();
    }

    /// A switch is at work on what is desired now.
    pub(crate) fn switch_converging(&mut self, switch: SwitchId) {
        self.switches.insert(switch, SwitchState::Converging);
    }

    /// A switch does not answer, or refuses.
    pub(crate) fn switch_lost(&mut self, switch: SwitchId, reason: String) {
        self.switches.insert(switch, SwitchState::Silent(reason));
        self.roots.lost(switch);
        self.go_round();
        self.advance();
    }

    /// State of a switch.
    pub fn switch(&self, switch: SwitchId) -> Option<&SwitchState> {
        self.switches.get(&switch)
    }

    fn is_settled(&self, switch: SwitchId, version: u64) -> bool {
        matches!(self.switches.get(&switch), Some(SwitchState::Settled(at)) if *at >= version)
    }

    /// All that answer, and all fat roots that packets are sent to in any case.
    fn are_settled(&self, version: u64) -> bool {
        self.answering_are_settled(version) && self.roots_are_settled(version)
    }

    /// All that answer; one that is down need not.
    fn answering_are_settled(&self, version: u64) -> bool {
        let settled = |(switch, state): (&SwitchId, &SwitchState)| match state {
            _ if self.outages.switches.contains(switch) => true,
            SwitchState::Silent(_) => true,
            SwitchState::Converging => false,
            SwitchState::Settled(at) => *at >= version,
        };
        self.switches.iter().all(settled)
    }

    /// All fat roots that packets may be sent to, one at least: those that have path numbers, and those that answer. Packets go round the
    /// others once all that answer know it.
    fn roots_are_settled(&self, version: u64) -> bool {
        self.root_to_wait_for(version).is_none()
    }

    /// The first fat root that does not hold yet what it should at this version, if one is to be waited for.
    fn root_to_wait_for(&self, version: u64) -> Option<SwitchId> {
        let all = self.cluster.tree().roots();
        let may_get_packets = |root: &SwitchId| {
            let answers = !matches!(self.switches.get(root), Some(SwitchState::Silent(_)) | None);
            self.roots.is_used(*root) || answers && !self.outages.switches.contains(root)
        };
        let late = |root: &SwitchId| may_get_packets(root) && !self.is_settled(*root, version);
        let none_holds = || !all.iter().any(|root| self.is_settled(*root, version));
        // Those that do not answer may lead packets where they led them before; an edge switch only its own clients', which wait for it.
        let leads_elsewhere = |switch: &Switch| {
            let is_silent = matches!(self.switches.get(&switch.id), Some(SwitchState::Silent(_)));
            switch.role == Role::Aggregation && is_silent && !self.outages.switches.contains(&switch.id)
        };
        let switches = || self.cluster.tree().switches().iter();
        let others_may =
            || !self.roots.all_are_used() && (!self.all_go_round || switches().any(leads_elsewhere));
        let first = || all.first().copied();
        all.iter().copied().find(late).or_else(|| first().filter(|_| none_holds() || others_may()))
    }

    // ---- what is down ----

    /// Other parts of the network are down than before: packets go round them, and switches that are down are not waited for. One that was
    /// down and comes back with a fat root gets index packets once it holds the active plan.
    pub fn network_changed(&mut self, outages: Outages) {
        if outages == self.outages {
            return;
        }
        let before = std::mem::replace(&mut self.outages, outages);
        for switch in before.switches.difference(&self.outages.switches) {
            self.roots.came_back(*switch, self.version);
            if matches!(self.switches.get(switch), Some(SwitchState::Silent(_))) {
                self.roots.lost(*switch);
            }
        }
        self.reroute();
        self.advance();
    }

    /// Dead cables and switches, as far as the controller was told.
    pub fn outages(&self) -> &Outages {
        &self.outages
    }

    /// Gives path numbers to the fat roots that are ready now, if these are others than before.
    fn go_round(&mut self) {
        if self.roots.have_changed(&self.cluster, &self.outages) {
            self.reroute();
        }
    }

    fn reroute(&mut self) {
        let Self { cluster, outages, desired, roots, .. } = self;
        roots.use_ready(cluster, outages);
        Arc::make_mut(desired).go_round(cluster, outages, roots.unready());
        self.version += 1;
        self.rerouted = self.version;
        self.all_go_round = false;
        // A reload goes on once packets go where they go now.
        if let Some(reload) = &mut self.reload {
            reload.version = self.version;
        }
    }

    // ---- memory servers ----

    /// A memory server is here, with these connections and no others.
    pub fn server_joined(&mut self, partition: u16, generation: Generation, connections: &[Registration]) {
        let Some(server) = self.servers.get_mut(&partition) else { return };
        (server.here, server.generation) = (true, Some(generation));
        let stay: BTreeSet<(Ipv4Addr, u32)> = connections.iter().map(|c| (c.client, c.queue_pair)).collect();
        let gone = server.connections.values().filter(|c| !stay.contains(&(c.client, c.queue_pair)));
        for gone in gone.copied().collect::<Vec<_>>() {
            self.closed(partition, gone.client, gone.queue_pair);
        }
        self.check_trees();
        connections.iter().for_each(|connection| self.opened(partition, *connection));
    }

    /// A memory server has another tree.
    pub fn server_refilled(&mut self, partition: u16, generation: Generation) {
        let Some(server) = self.servers.get_mut(&partition) else { return };
        server.generation = Some(generation);
        self.check_trees();
    }

    /// A memory server is not here any more. Its entries stay: they do no harm, and it may come back with the same connections.
    pub fn server_left(&mut self, partition: u16) {
        if let Some(server) = self.servers.get_mut(&partition) {
            server.here = false;
        }
    }

    /// A memory server has accepted a connection.
    pub fn opened(&mut self, partition: u16, connection: Registration) {
        let Registration { client, queue_pair, .. } = connection;
        match self.register(partition, &connection) {
            Ok((edge, changed)) => {
                self.version += u64::from(changed);
                self.pending.insert((partition, client, queue_pair), (self.version, edge));
                if let Some(server) = self.servers.get_mut(&partition) {
                    server.connections.insert((client, queue_pair), connection);
                }
            }
            Err(error) => {
                self.refused_connections += 1;
                tracing::warn!(partition, %client, queue_pair, %error, "connection not registered");
            }
        }
        self.advance();
    }

    /// A connection is gone.
    pub fn closed(&mut self, partition: u16, client: Ipv4Addr, queue_pair: u32) {
        let Some(server) = self.servers.get_mut(&partition) else { return };
        server.connections.remove(&(client, queue_pair));
        self.pending.remove(&(partition, client, queue_pair));
        let Ok(host) = self.host_of(client) else { return };
        let Self { cluster, placement, desired, .. } = self;
        let connections = &mut Arc::make_mut(desired).connections;
        // It was registered with the same numbers.
        let _ = connections.unregister(cluster.tree(), placement, host, partition, queue_pair);
        self.version += 1;
    }

    /// Wants a connection at its client's first switch, if there is room; says which switch that is, and whether anything changes.
    fn register(
        &mut self,
        partition: u16,
        connection: &Registration,
    ) -> Result<(SwitchId, bool), ConnectionError> {
        let Registration { client, queue_pair, rkey, root, mtu } = *connection;
        let host = self.host_of(client)?;
        let Self { cluster, placement, desired, connections_per_switch: room, .. } = self;
        let (tree, room) = (cluster.tree(), *room);
        let connections = &mut Arc::make_mut(desired).connections;
        let wanted = Connection { client: host, partition, dest_qp: queue_pair, rkey, root, mtu };
        let (edge, change) = connections.register(tree, placement, wanted)?;
        if connections.of_switch(edge).count() > room {
            // It was registered just now.
            let _ = connections.unregister(tree, placement, host, partition, queue_pair);
            return Err(ConnectionError::Full { switch: tree.switch(edge).name(), room });
        }
        Ok((edge, change.is_some()))
    }

    /// A server's tree has another root.
    pub fn rerooted(&mut self, partition: u16, root: u64) {
        if root >> 48 == u64::from(partition) {
            self.change(|desired| desired.connections.reroot(partition, root));
        }
    }

    fn host_of(&self, client: Ipv4Addr) -> Result<HostId, ConnectionError> {
        let found = self.cluster.tree().hosts().iter().find(|host| host.ip == client);
        found.map(|host| host.id).ok_or(ConnectionError::UnknownAddress { client })
    }

    /// Connections to a partition that are registered, and whether clients were told so.
    pub fn connections(&self, partition: u16) -> impl Iterator<Item = (&Registration, bool)> {
        let all = self.servers.get(&partition).into_iter().flat_map(|server| server.connections.values());
        all.map(move |c| (c, !self.pending.contains_key(&(partition, c.client, c.queue_pair))))
    }

    /// Whether a memory server is connected to the controller.
    pub fn server_is_here(&self, partition: u16) -> bool {
        self.servers.get(&partition).is_some_and(|server| server.here)
    }

    /// Known trees of the servers that have registered.
    pub fn trees(&self) -> Generations {
        let known = self.servers.iter().filter_map(|(id, server)| Some((*id, server.generation?)));
        known.collect()
    }

    /// Connections that were not registered: no switch knows their client.
    pub fn refused_connections(&self) -> u64 {
        self.refused_connections
    }

    /// A plan leads to where nodes lay when it was made. Once a tree was loaded anew, it must lead no packet.
    fn check_trees(&mut self) {
        let differs = |source: &Generations| self.other_tree(source).is_some();
        if self.reload.as_ref().is_some_and(|reload| differs(&reload.source)) {
            self.reload = None;
            self.change(|desired| {
                desired.beside = None;
            });
        }
        let void = self.desired.active.plan().is_some() && self.other_tree(&self.source).is_some();
        if void {
            self.previous = None;
            self.found_nothing = false;
            self.turn(Active::Nothing);
            self.notices.push_back(Notice::Void);
        }
    }

    /// A partition whose tree is known to be another one.
    fn other_tree(&self, source: &Generations) -> Option<u16> {
        let known = self.servers.iter().filter_map(|(id, server)| Some((*id, server.generation?)));
        known.into_iter().find(|(id, now)| source.get(id) != Some(now)).map(|(id, _)| id)
    }

    // ---- plans ----

    /// Whether a plan is missing, and all that one can be made of is here.
    pub fn wants_plan(&self) -> bool {
        let missing = matches!(self.desired.active, Active::Nothing | Active::Unknown(_));
        missing && self.next_epoch().is_ok() && self.servers.values().all(|server| server.here)
    }

    /// The epoch of the next plan, unless it is a difference to the active one.
    ///
    /// # Errors
    /// When a reload is under way, or a fat root was not read yet.
    pub fn next_epoch(&self) -> Result<u8, Refused> {
        if let Some(reload) = &self.reload {
            return Err(Refused::Busy { epoch: reload.new.plan().epoch() });
        }
        // Until fat roots do what they are to do now, they may do what they did before.
        if let Some(root) = self.root_to_wait_for(self.turned) {
            return Err(Refused::CoreSilent { switch: self.cluster.tree().switch(root).name() });
        }
        Ok(next_epoch(self.last_begun))
    }

    /// Begins to load a plan, whatever its epoch: as a [difference](Plan::beside) to the active one if that is possible, else in the next
    /// epoch. `source` are the trees that it was made of. Returns the epoch.
    ///
    /// # Errors
    /// When it cannot be loaded, or not now.
    pub fn load(&mut self, plan: Plan, source: Generations) -> Result<u8, Refused> {
        let next = self.next_epoch()?;
        self.found_nothing = false;
        if let Some(partition) = self.other_tree(&source) {
            return Err(Refused::OtherTree { partition });
        }
        plan.check_network(&self.cluster)?;
        let old = self.desired.active.plan().cloned();
        // Ids are given again only where everybody is known to have forgotten whose they were.
        let is_difference = self.all_are_settled() && self.source == source;
        let beside = old.as_ref().filter(|_| is_difference).and_then(|old| plan.beside(old.plan()));
        let plan = match beside {
            Some(plan) => plan,
            None => {
                self.last_begun = next;
                plan.after(next, self.desired.active.serving().map_or(0, |serving| serving.parity))
            }
        };
        let new = Loaded::new(plan);
        let changes = new.changes_from(old.as_deref());
        let (beside, epoch) = (Arc::clone(&new), new.plan().epoch());
        self.change(|desired| desired.beside = Some(beside));
        let (version, began) = (self.version, self.now);
        self.reload = Some(Reload { new, old, source, changes, stage: Stage::Write, version, began });
        self.advance();
        Ok(epoch)
    }

    fn all_are_settled(&self) -> bool {
        self.switches.keys().all(|switch| self.is_settled(*switch, self.version))
    }

    /// The active plan, and what it was made of.
    pub fn plan(&self) -> Option<(&Arc<Loaded>, &Generations)> {
        self.desired.active.plan().map(|loaded| (loaded, &self.source))
    }

    /// The epoch that index reads follow, and the entries of its plan, 0 if it is not known: until all fat roots have turned to a new plan,
    /// those of the one before.
    pub fn followed(&self) -> (Option<u8>, usize) {
        match &self.reload {
            Some(Reload { stage: Stage::Flip, old, .. }) => {
                old.as_ref().map_or((None, 0), |old| (Some(old.plan().epoch()), old.len()))
            }
            _ => (self.desired.active.epoch(), self.plan().map_or(0, |(loaded, _)| loaded.len())),
        }
    }

    /// The plan that was active before.
    pub fn previous(&self) -> Option<&(Plan, Generations)> {
        self.previous.as_ref()
    }

    /// The plan that is being loaded, and how far that is.
    pub fn reload(&self) -> Option<(&Arc<Loaded>, &Generations, Stage)> {
        self.reload.as_ref().map(|reload| (&reload.new, &reload.source, reload.stage))
    }

    /// Does what the state of the switches allows.
    fn advance(&mut self) {
        self.all_go_round |= self.answering_are_settled(self.rerouted);
        self.tell_registered();
        while let Some(Reload { new, old, stage, version, .. }) = &self.reload {
            let (new, old, version) = (Arc::clone(new), old.clone(), *version);
            let stage = match stage {
                Stage::Write if self.are_settled(version) => {
                    self.turn(Active::Plan(new));
                    self.change(|desired| desired.beside = old);
                    self.turned = self.version;
                    Stage::Flip
                }
                Stage::Flip if self.roots_are_settled(version) => {
                    self.change(|desired| desired.beside = None);
                    Stage::Clear
                }
                Stage::Clear if self.are_settled(version) => {
                    self.finish_reload();
                    return;
                }
                _ => return,
            };
            let version = self.version;
            if let Some(reload) = &mut self.reload {
                if stage == Stage::Flip {
                    let before = std::mem::replace(&mut self.source, reload.source.clone());
                    self.previous = reload.old.as_ref().map(|old| (old.plan().clone(), before));
                }
                (reload.stage, reload.version) = (stage, version);
            }
        }
    }

    fn finish_reload(&mut self) {
        if let Some(Reload { new, changes, began, .. }) = self.reload.take() {
            let took = self.now.saturating_sub(began);
            self.notices.push_back(Notice::Reloaded { epoch: new.plan().epoch(), changes, took });
        }
    }

    /// Index reads need the first switch to know the connection, and no fat root to lead by a plan that is void.
    fn tell_registered(&mut self) {
        let ready: Vec<(u16, Ipv4Addr, u32)> = self
            .pending
            .iter()
            .filter(|(_, (version, edge))| {
                // Before the last turn it may have kept hot keys of trees that are gone.
                self.is_settled(*edge, self.turned.max(*version)) && self.roots_are_settled(*version)
            })
            .map(|(key, _)| *key)
            .collect();
        for (partition, client, queue_pair) in ready {
            self.pending.remove(&(partition, client, queue_pair));
            let server = self.servers.get(&partition);
            let connection = server.and_then(|server| server.connections.get(&(client, queue_pair)));
            if let Some(connection) = connection {
                self.notices.push_back(Notice::Registered(partition, *connection));
            }
        }
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

//! The controller's knowledge and decisions, without I/O.

mod reload;
mod servers;

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;

use fatbtree_topology::{Cluster, Outages, Role, Switch, SwitchId};
use fatbtree_verbs::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::roots::Roots;
use super::{Active, Desired, KeeperNotice, Loaded, Serving};
use crate::plan::{Placement, Plan, PlanError, next_epoch};
use reload::Reload;
pub use reload::{Refused, Stage};
pub use servers::Registration;
use servers::Server;

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
    /// The switch does not answer, for this reason.
    Silent(String),
    /// The switch answers, and does not hold all that it should yet.
    Converging {
        /// The last version that it held since it was read. What changes since then adds to it.
        held: Option<u64>,
    },
    /// The switch holds what was desired at this version.
    Settled(u64),
}

impl SwitchState {
    /// The last version that the switch is known to have held. A client that comes or goes makes a switch converge; what it held before
    /// stays, so that reloads do not wait for the busy.
    fn held(&self) -> Option<u64> {
        match self {
            Self::Silent(_) => None,
            Self::Converging { held } => *held,
            Self::Settled(at) => Some(*at),
        }
    }

    fn has_held(&self, version: u64) -> bool {
        self.held().is_some_and(|at| at >= version)
    }
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
    /// No plan is active because the fat roots that were read so far are empty.
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
    now: Instant,
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
            now: Instant::ZERO,
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

    /// Reason for which a plan that was saved is not of this cluster.
    pub fn left_out(&self) -> Option<&PlanError> {
        self.left_out.as_ref()
    }

    /// Takes note of the time. It never goes back.
    pub fn at(&mut self, now: Instant) {
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
        self.switches.insert(switch, SwitchState::Converging { held: None });
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
        let held = self.switches.get(&switch).and_then(SwitchState::held);
        self.switches.insert(switch, SwitchState::Converging { held });
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
        self.switches.get(&switch).is_some_and(|state| state.has_held(version))
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
            state => state.has_held(version),
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

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

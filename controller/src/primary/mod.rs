//! Decisions of a primary controller in a term, without I/O: when a plan is made and loaded, and what others are told.
//!
//! ```text
//!   keepers ── notices ─────────►┐             ┌─► Plan, Follow ─► planner ─► planned(), followed() ─┐
//!   link watch ── outages ──────►│             │        ▲                                            │
//!   memory servers ── streams ──►├── Primary ──┤        └────────────────────────────────────────────┘
//!   clients ── reports ─────────►│             ├─► Keep ─► disk
//!   operators ── questions ─────►┘             └─► Answer, Registered, Tell ─► operators, clients, the log
//!                                     │
//!                                     └─ controller().desired() ─► keepers
//! ```

mod news;
mod operators;
mod plans;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;

use fatbtree_topology::{Cluster, SwitchId};
use fatbtree_verbs::time::Instant;

pub use news::ControllerNews;
pub use operators::{Answer, Ticket};
pub use plans::Made;

use crate::follow::{FollowOptions, Follower};
use crate::grpc::{ClientReport, Registered, ServerHello, ServerNews, TREE};
use crate::links::{Cable, CableEnd, Outages};
use crate::operator::{CableStatus, RoomStatus};
use crate::plan::Placement;
use crate::reconcile::{Controller, Generations, KeeperNotice, Loaded, Notice, SwitchState};
use operators::Sync;
use plans::Purpose;

/// Sampled keys that are kept, the newest of them.
const KEYS: usize = 1 << 18;

/// Something that the driver has to do.
#[derive(Debug)]
pub enum Order {
    /// Make a plan, and give it to [`Primary::planned`].
    Plan {
        /// The active plan.
        active: Option<Arc<Loaded>>,
        /// Keys that clients have sampled, the newest last.
        keys: Vec<u64>,
        /// Known trees before they are read.
        source: Generations,
        /// The plan's epoch.
        epoch: u8,
    },
    /// Ask the follower whether another plan is worth its entries by now, and give its answer to [`Primary::followed`].
    Follow(Box<Follower>),
    /// Save the plan that is [being loaded](Controller::reload), before anything that is desired is published.
    Keep,
    /// Have all keepers [read their switches back](crate::Keeper::handle_sync), under this number.
    Sync(u64),
    /// Tell a client, by the number of its stream, of a connection that is registered.
    Registered(u64, Registered),
    /// Answer a question.
    Answer(Ticket, Result<Answer, String>),
    /// Tell people.
    Tell(ControllerNews),
}

/// A client that reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address on the data path.
    pub address: Ipv4Addr,
    /// Index reads that it has reported.
    pub index_reads: u64,
    /// Index reads with a stale hint.
    pub stale_hints: u64,
    /// Index reads that a hot key's entry led to a record.
    pub hot_keys: u64,
}

/// Index reads that hot keys' entries led to records, as all clients have reported them in this term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HotReads {
    all: u64,
    /// The active epoch of the last report, and how many were reported before it was active.
    epoch: Option<u8>,
    before: u64,
}

/// A newer stream of a memory server is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outdated;

/// A controller in the term in which it is primary.
///
/// Its driver says [what time it is](Self::at) and then what has happened, by one of the other methods with `&mut self`. Then, and four
/// times a second in any case, it calls [`handle_timeout`](Self::handle_timeout), carries out [orders](Self::poll_order) until there are
/// none, and only then gives what is [desired](Controller::desired) to the keepers.
#[derive(Debug)]
pub struct Primary {
    controller: Controller,
    placement: Placement,
    follow: FollowOptions,
    now: Instant,
    outages: Outages,
    /// Purpose of the plan that is being made.
    planning: Option<Purpose>,
    follower: Option<Follower>,
    /// Reports of clients while the follower was asked.
    meanwhile: ClientReport,
    /// Keys that clients have sampled, the newest.
    keys: VecDeque<u64>,
    /// Server streams: the newest of each partition counts.
    server_streams: BTreeMap<u16, u64>,
    lost: BTreeSet<u16>,
    /// Structures that are no trees, by partition.
    others: BTreeMap<u16, String>,
    /// Use of the servers' regions, by partition, as it was last told of.
    rooms: BTreeMap<u16, RoomStatus>,
    /// First keys of partitions whose keys are bytes.
    first_keys: BTreeMap<u16, Vec<u8>>,
    strangers: BTreeSet<(u16, u64)>,
    clients: BTreeMap<u64, Client>,
    hot_reads: HotReads,
    trouble: Option<String>,
    /// Reason for the plan that is being loaded, and questions that wait for it.
    because: String,
    waiting: Vec<Ticket>,
    /// Number of the newest request to read all switches back, and those that are not answered.
    sync: u64,
    syncs: Vec<Sync>,
    /// After a plan that could not be made, the next one comes then at the earliest.
    not_before: Instant,
    orders: VecDeque<Order>,
}

impl Primary {
    /// Begins a term. `controller` may know plans that were [saved](Controller::restore), and nothing else.
    pub fn new(controller: Controller, follow: FollowOptions) -> Self {
        Self {
            placement: Placement::of(controller.cluster()),
            controller,
            follow,
            now: Instant::ZERO,
            outages: Outages::default(),
            planning: None,
            follower: None,
            meanwhile: ClientReport::default(),
            keys: VecDeque::new(),
            server_streams: BTreeMap::new(),
            lost: BTreeSet::new(),
            others: BTreeMap::new(),
            rooms: BTreeMap::new(),
            first_keys: BTreeMap::new(),
            strangers: BTreeSet::new(),
            clients: BTreeMap::new(),
            hot_reads: HotReads::default(),
            trouble: None,
            because: String::new(),
            waiting: Vec::new(),
            sync: 0,
            syncs: Vec::new(),
            not_before: Instant::ZERO,
            orders: VecDeque::new(),
        }
    }

    /// Known switches, connections and plans.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        self.controller.cluster()
    }

    /// Dead cables and switches, by the numbers that programs have for ports.
    pub fn outages(&self) -> &Outages {
        &self.outages
    }

    /// Clients that report, by the numbers of their streams.
    pub fn clients(&self) -> &BTreeMap<u64, Client> {
        &self.clients
    }

    /// Index reads that the entries of hot keys led to records, by the reports of all clients: in this term, those that have left included;
    /// and since the active epoch is active. No table of the switches counts them.
    pub fn hot_key_reads(&self) -> (u64, u64) {
        let HotReads { all, epoch, before } = self.hot_reads;
        let since = if epoch == self.controller.desired().1.active.epoch() { all - before } else { 0 };
        (all, since)
    }

    /// Whether a partition's memory server has lost its tree, and serves no client.
    pub fn has_lost_its_tree(&self, partition: u16) -> bool {
        self.lost.contains(&partition)
    }

    /// First key of a partition, if its keys are bytes.
    pub fn first_key(&self, partition: u16) -> Option<&[u8]> {
        self.first_keys.get(&partition).map(Vec::as_slice)
    }

    /// Use of the region of a partition's memory server, as it was last told of.
    pub fn room(&self, partition: u16) -> Option<RoomStatus> {
        self.rooms.get(&partition).copied()
    }

    /// Name of the structure that a partition's memory server holds, if it is no tree: then the switches lead no reads there.
    pub fn other_structure(&self, partition: u16) -> Option<&str> {
        self.others.get(&partition).map(String::as_str)
    }

    /// Reason for which there is no plan in this cluster, if it holds anything but trees.
    pub(crate) fn nothing_to_plan(&self) -> Option<String> {
        let (partition, structure) = self.others.first_key_value()?;
        let name = self.server_name(*partition).unwrap_or_default();
        Some(format!(
            "there is nothing to plan: memory server {name} holds a structure of kind {structure:?}, and switches lead reads of trees only"
        ))
    }

    /// Partitions of connected memory servers that the cluster file does not have.
    pub fn strangers(&self) -> impl Iterator<Item = u16> {
        self.strangers.iter().map(|(partition, _)| *partition)
    }

    /// Reason for which the last attempt to make or load a plan failed.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// A switch's name.
    pub fn switch_name(&self, switch: SwitchId) -> String {
        self.cluster().tree().switch(switch).name()
    }

    /// A cable by the names of its ends.
    pub fn cable_status(&self, cable: Cable) -> CableStatus {
        let end = |end: CableEnd| (self.switch_name(end.switch), end.port);
        CableStatus { a: end(cable.a), b: end(cable.b) }
    }

    // ---- what the driver calls each time ----

    /// Takes note of the time. It never goes back.
    pub fn at(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.controller.at(now);
    }

    /// Decides what follows from the time, and from what was told since the last call.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.at(now);
        while let Some(notice) = self.controller.poll_notice() {
            self.noticed(notice);
        }
        self.think();
    }

    /// The next thing to do.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    fn tell(&mut self, news: ControllerNews) {
        self.orders.push_back(Order::Tell(news));
    }

    fn noticed(&mut self, notice: Notice) {
        match notice {
            Notice::Registered(partition, connection) => {
                let here = self.clients.iter().filter(|(_, client)| client.address == connection.client);
                let told = here.map(|(at, _)| Order::Registered(*at, (partition, connection.queue_pair)));
                self.orders.extend(told);
            }
            Notice::Reloaded { epoch, changes, took } => self.reloaded(epoch, changes, took),
            Notice::Void => self.void(),
        }
    }

    // ---- switches ----

    /// The keeper of a switch has something to say.
    pub fn switch_noticed(&mut self, switch: SwitchId, notice: &KeeperNotice) {
        let was_silent = matches!(self.controller.switch(switch), Some(SwitchState::Silent(_)));
        self.controller.switch_noticed(switch, notice);
        match notice {
            KeeperNotice::Read(_) => {
                if was_silent {
                    self.tell(ControllerNews::Switch { name: self.switch_name(switch), trouble: None });
                }
                self.restore_follower();
            }
            KeeperNotice::Synced { number, mended } => self.switch_synced(switch, *number, *mended),
            KeeperNotice::Lost(reason) if !was_silent => {
                let trouble = Some(reason.clone());
                self.tell(ControllerNews::Switch { name: self.switch_name(switch), trouble });
            }
            _ => {}
        }
        self.finish_syncs();
    }

    /// A cable or a switch is dead, or is back.
    pub fn network_changed(&mut self, outages: Outages) {
        let before = std::mem::replace(&mut self.outages, outages);
        self.controller.network_changed(self.outages.in_network(self.controller.cluster()));
        let now = &self.outages;
        let switch = |switch: &SwitchId| format!("switch {}", self.switch_name(*switch));
        let cable = |cable: &Cable| format!("cable {}", self.cable_status(*cable));
        let down = now.switches.difference(&before.switches).map(switch);
        let down = down.chain(now.cables.difference(&before.cables).map(cable)).map(|what| (what, true));
        let up = before.switches.difference(&now.switches).map(switch);
        let up = up.chain(before.cables.difference(&now.cables).map(cable)).map(|what| (what, false));
        for (what, is_down) in down.chain(up).collect::<Vec<_>>() {
            tracing::info!(what, is_down, "the network has changed");
            self.tell(ControllerNews::Outage { what, is_down });
        }
    }

    // ---- memory servers ----

    /// A memory server is here, on the stream of this number. Says the number of another tree of its that was known before, if one was:
    /// the server decides what another tree means.
    ///
    /// # Errors
    /// When a newer stream of it is there already. Then the server must not believe that no tree was known.
    pub fn server_joined(&mut self, stream: u64, hello: &ServerHello) -> Result<Option<u64>, Outdated> {
        let partition = hello.partition;
        let Some(name) = self.server_name(partition) else {
            tracing::warn!(partition, "a memory server that the cluster file does not name");
            self.strangers.insert((partition, stream));
            return Ok(None);
        };
        if self.server_streams.get(&partition).is_some_and(|newest| *newest > stream) {
            return Err(Outdated);
        }
        self.server_streams.insert(partition, stream);
        self.note_lost(partition, hello.lost);
        self.note_first_key(partition, hello.first_key.clone());
        match hello.structure.as_str() {
            TREE => self.others.remove(&partition),
            other => self.others.insert(partition, other.to_owned()),
        };
        let known = self.controller.trees().get(&partition).map(|tree| tree.number);
        self.controller.server_joined(partition, hello.generation, &hello.connections);
        self.controller.rerooted(partition, hello.root);
        self.tell(ControllerNews::Server { name, here: true });
        Ok(known.filter(|known| *known != hello.generation.number))
    }

    fn note_first_key(&mut self, partition: u16, first_key: Option<Vec<u8>>) {
        match first_key {
            Some(first_key) => self.first_keys.insert(partition, first_key),
            None => self.first_keys.remove(&partition),
        };
    }

    /// A memory server has news.
    pub fn server_news(&mut self, stream: u64, partition: u16, news: ServerNews) {
        if self.server_streams.get(&partition) != Some(&stream) {
            return;
        }
        match news {
            ServerNews::Opened(registration) => self.controller.opened(partition, registration),
            ServerNews::Closed { client, queue_pair } => {
                self.controller.closed(partition, client, queue_pair);
            }
            ServerNews::Root(root) => self.controller.rerooted(partition, root),
            ServerNews::Lost => self.note_lost(partition, true),
            ServerNews::Room(room) => drop(self.rooms.insert(partition, room)),
            ServerNews::Refilled { generation, root, first_key } => {
                self.note_lost(partition, false);
                self.note_first_key(partition, first_key);
                self.controller.server_refilled(partition, generation);
                self.controller.rerooted(partition, root);
            }
        }
    }

    /// A memory server's stream has ended.
    pub fn server_left(&mut self, stream: u64, partition: u16) {
        self.strangers.remove(&(partition, stream));
        if self.server_streams.get(&partition) == Some(&stream) {
            self.controller.server_left(partition);
            let name = self.server_name(partition).unwrap_or_default();
            self.tell(ControllerNews::Server { name, here: false });
        }
    }

    fn note_lost(&mut self, partition: u16, lost: bool) {
        match lost {
            true => self.lost.insert(partition),
            false => self.lost.remove(&partition),
        };
    }

    fn server_name(&self, partition: u16) -> Option<String> {
        self.cluster().server(partition).map(|server| server.name.clone())
    }

    /// A memory server without which there is no plan.
    fn missing_server(&self) -> Option<&str> {
        let mut servers = self.cluster().servers().iter();
        let missing = servers.find(|server| !self.controller.server_is_here(server.partition))?;
        Some(&missing.name)
    }

    // ---- clients ----

    /// A client is here, on the stream of this number. It is told of its connections that are registered.
    pub fn client_joined(&mut self, stream: u64, address: Ipv4Addr) {
        let Self { controller, orders, .. } = self;
        for server in controller.cluster().servers() {
            let known = controller.connections(server.partition);
            let known = known.filter(|(connection, told)| *told && connection.client == address);
            orders.extend(known.map(|(it, _)| Order::Registered(stream, (server.partition, it.queue_pair))));
        }
        self.clients.insert(stream, Client { address, index_reads: 0, stale_hints: 0, hot_keys: 0 });
    }

    /// A client reports what it has seen since it did so last.
    pub fn client_reported(&mut self, stream: u64, report: &ClientReport) {
        let Some(client) = self.clients.get_mut(&stream) else { return };
        client.index_reads = client.index_reads.saturating_add(report.index_reads);
        client.stale_hints = client.stale_hints.saturating_add(report.stale_hints);
        client.hot_keys = client.hot_keys.saturating_add(report.hot_keys);
        let (hot, epoch) = (&mut self.hot_reads, self.controller.desired().1.active.epoch());
        if hot.epoch != epoch {
            (hot.epoch, hot.before) = (epoch, hot.all);
        }
        hot.all = hot.all.saturating_add(report.hot_keys);
        let keys = &report.keys[report.keys.len().saturating_sub(KEYS)..];
        self.keys.extend(keys);
        self.keys.drain(..self.keys.len().saturating_sub(KEYS));
        if let Some(follower) = &mut self.follower {
            follower.report(report.index_reads, report.stale_hints, keys);
        }
        if self.planning.is_some() {
            let meanwhile = &mut self.meanwhile;
            meanwhile.index_reads = meanwhile.index_reads.saturating_add(report.index_reads);
            meanwhile.stale_hints = meanwhile.stale_hints.saturating_add(report.stale_hints);
            meanwhile.keys.extend(keys);
            meanwhile.keys.drain(..meanwhile.keys.len().saturating_sub(KEYS));
        }
    }

    /// A client's stream has ended.
    pub fn client_left(&mut self, stream: u64) {
        self.clients.remove(&stream);
    }
}

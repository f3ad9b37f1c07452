//! Drives a [`Controller`]: takes what comes in, publishes what is desired, has plans made.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fatbtree_controller::election::Bid;
use fatbtree_controller::grpc::{ClientReport, Input, Registered, ServerNews};
use fatbtree_controller::links::{Cable, CableEnd, Outages};
use fatbtree_controller::operator::{CableStatus, Question, Reloaded, Synced};
use fatbtree_controller::{
    Controller, Desired, FollowOptions, Follower, Incarnations, KeeperNotice, Notice, Plan, Replanned,
    SwitchState,
};
use fatbtree_topology::SwitchId;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};

use super::ControllerNews;
use super::keeper::{HeldNow, KeeperNews};
use super::links::Samples;
use super::planner::{Made, Planner};
use super::state::{StateFolder, plan_of};

pub(super) type Reply = oneshot::Sender<Result<String, String>>;

/// A client that reports.
pub(super) struct Client {
    pub(super) address: Ipv4Addr,
    registered: mpsc::Sender<Registered>,
    pub(super) index_reads: u64,
    pub(super) astray: u64,
}

/// Why a plan is being made.
enum For {
    /// There is none.
    Start,
    Operator(Question, Reply),
}

/// What a task that plans has come to.
enum Thought {
    Made(For, Result<Made, String>),
    Followed(Box<Follower>, Incarnations, Result<Option<Replanned>, String>),
}

/// Switches that are being read back for an operator.
struct Sync {
    number: u64,
    /// With how many entries were mended.
    done: BTreeMap<SwitchId, usize>,
    reply: Reply,
}

/// The way to the switches' keepers, and from everybody.
pub(super) struct Channels {
    pub(super) desired: watch::Sender<(u64, Arc<Desired>)>,
    pub(super) sync: watch::Sender<u64>,
    pub(super) switches: mpsc::Receiver<(SwitchId, KeeperNews)>,
    pub(super) outages: watch::Receiver<Outages>,
    pub(super) samples: Samples,
}

pub(super) struct Driver {
    pub(super) controller: Controller,
    pub(super) planner: Planner,
    follow: FollowOptions,
    folder: Option<StateFolder>,
    desired: watch::Sender<(u64, Arc<Desired>)>,
    sync: watch::Sender<u64>,
    switches: mpsc::Receiver<(SwitchId, KeeperNews)>,
    /// As which this controller leads.
    bid: Bid,
    told_of_outages: watch::Receiver<Outages>,
    /// What is dead.
    pub(super) outages: Outages,
    /// Of what is dropped.
    pub(super) samples: Samples,
    thoughts: (mpsc::Sender<Thought>, mpsc::Receiver<Thought>),
    /// A plan is being made.
    is_thinking: bool,
    follower: Option<Follower>,
    /// What clients have told while the follower was thinking.
    meanwhile: Vec<ClientReport>,
    /// Keys that clients have sampled while no follower takes them, the newest.
    keys: VecDeque<u64>,
    /// Server streams: the newest of each partition counts.
    server_streams: BTreeMap<u16, u64>,
    /// Partitions whose servers have lost their trees.
    pub(super) lost: BTreeSet<u16>,
    /// Partitions of memory servers that the cluster file does not have, with their streams.
    pub(super) strangers: BTreeSet<(u16, u64)>,
    pub(super) clients: BTreeMap<u64, Client>,
    /// What the keeper of a switch said last.
    pub(super) held: BTreeMap<SwitchId, HeldNow>,
    /// Why there was no plan the last time.
    pub(super) trouble: Option<String>,
    /// Why the plan that is being loaded was made, and who waits for it.
    because: String,
    waiting: Vec<Reply>,
    syncs: Vec<Sync>,
    began: Instant,
    /// The next plan after one that could not be made.
    not_before: Duration,
}

/// How often what is due is looked for.
const TICK: Duration = Duration::from_millis(250);
/// After a plan that could not be made.
const PAUSE: Duration = Duration::from_millis(500);
/// Sampled keys that are kept.
const KEYS: usize = 1 << 18;

impl Driver {
    pub(super) fn new(
        controller: Controller,
        planner: Planner,
        follow: FollowOptions,
        folder: Option<StateFolder>,
        channels: Channels,
        bid: Bid,
    ) -> Self {
        let Channels { desired, sync, switches, outages, samples } = channels;
        Self {
            controller,
            planner,
            follow,
            folder,
            desired,
            sync,
            switches,
            bid,
            told_of_outages: outages,
            outages: Outages::default(),
            samples,
            thoughts: mpsc::channel(4),
            is_thinking: false,
            follower: None,
            meanwhile: Vec::new(),
            keys: VecDeque::new(),
            server_streams: BTreeMap::new(),
            lost: BTreeSet::new(),
            strangers: BTreeSet::new(),
            clients: BTreeMap::new(),
            held: BTreeMap::new(),
            trouble: None,
            because: String::new(),
            waiting: Vec::new(),
            syncs: Vec::new(),
            began: Instant::now(),
            not_before: Duration::ZERO,
        }
    }

    /// Ends when a switch has seen a higher bid, and returns it.
    pub(super) async fn drive(
        mut self,
        inputs: &mut mpsc::Receiver<Input>,
        mut tell: impl FnMut(ControllerNews),
    ) -> Bid {
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                Some((switch, news)) = self.switches.recv() => match news {
                    KeeperNews::Outbid(by) if by > self.bid => return by,
                    // One that is not higher, of a session before: the keeper bids again.
                    KeeperNews::Outbid(_) => {}
                    KeeperNews::Holds(held) => drop(self.held.insert(switch, *held)),
                    KeeperNews::Notice(notice) => self.switch(switch, &notice, &mut tell),
                },
                Some(input) = inputs.recv() => self.other(input, &mut tell),
                Some(thought) = self.thoughts.1.recv() => self.thought(thought, &mut tell),
                Ok(()) = self.told_of_outages.changed() => self.network_changed(&mut tell),
                _ = ticks.tick() => {}
            }
            self.controller.at(self.began.elapsed());
            self.follow_notices(&mut tell);
            self.publish();
            self.think();
        }
    }

    fn publish(&self) {
        let (version, desired) = self.controller.desired();
        self.desired.send_if_modified(|published| {
            let is_new = published.0 != version;
            if is_new {
                *published = (version, Arc::clone(desired));
            }
            is_new
        });
    }

    // ---- what comes in ----

    fn switch(&mut self, switch: SwitchId, notice: &KeeperNotice, tell: &mut impl FnMut(ControllerNews)) {
        let was_silent = matches!(self.controller.switch(switch), Some(SwitchState::Silent(_)));
        self.controller.switch_noticed(switch, notice);
        let name = self.switch_name(switch);
        match notice {
            KeeperNotice::Read(_) => {
                if was_silent {
                    tell(ControllerNews::Switch { name, trouble: None });
                }
                self.restore_follower();
            }
            KeeperNotice::Synced { number, mended } => {
                for sync in self.syncs.iter_mut().filter(|sync| sync.number <= *number) {
                    sync.done.insert(switch, *mended);
                }
            }
            KeeperNotice::Lost(reason) if !was_silent => {
                tell(ControllerNews::Switch { name, trouble: Some(reason.clone()) });
            }
            _ => {}
        }
        self.finish_syncs();
    }

    /// A cable or a switch is dead, or is back.
    fn network_changed(&mut self, tell: &mut impl FnMut(ControllerNews)) {
        let now = self.told_of_outages.borrow_and_update().clone();
        let before = std::mem::replace(&mut self.outages, now);
        self.controller.network_changed(self.outages.in_network(&self.planner.cluster));
        let (now, names) =
            (&self.outages, |switch: &SwitchId| format!("switch {}", self.switch_name(*switch)));
        let mut told = |what: String, is_down| {
            tracing::info!(what, is_down, "the network has changed");
            tell(ControllerNews::Outage { what, is_down });
        };
        now.switches.difference(&before.switches).for_each(|switch| told(names(switch), true));
        before.switches.difference(&now.switches).for_each(|switch| told(names(switch), false));
        let names = |cable: &Cable| format!("cable {}", self.cable_status(*cable));
        now.cables.difference(&before.cables).for_each(|cable| told(names(cable), true));
        before.cables.difference(&now.cables).for_each(|cable| told(names(cable), false));
    }

    pub(super) fn switch_name(&self, switch: SwitchId) -> String {
        self.planner.cluster.tree().switch(switch).name()
    }

    pub(super) fn cable_status(&self, cable: Cable) -> CableStatus {
        let end = |end: CableEnd| (self.switch_name(end.switch), end.port);
        CableStatus { a: end(cable.a), b: end(cable.b) }
    }

    fn other(&mut self, input: Input, tell: &mut impl FnMut(ControllerNews)) {
        match input {
            Input::ServerJoined { stream, hello, former } => {
                let Some(name) = self.server_name(hello.partition) else {
                    tracing::warn!(
                        partition = hello.partition,
                        "a memory server that the cluster file does not name"
                    );
                    self.strangers.insert((hello.partition, stream));
                    let _ = former.send(None);
                    return;
                };
                if self.server_streams.get(&hello.partition).is_some_and(|newest| *newest > stream) {
                    return;
                }
                self.server_streams.insert(hello.partition, stream);
                self.note_lost(hello.partition, hello.lost);
                let known = self.controller.trees().get(&hello.partition).map(|tree| tree.number);
                // The server decides what another tree means. If its stream has ended, the word is not needed.
                let _ = former.send(known.filter(|known| *known != hello.incarnation.number));
                self.controller.server_joined(hello.partition, hello.incarnation, &hello.connections);
                self.controller.rerooted(hello.partition, hello.root);
                tell(ControllerNews::Server { name, here: true });
            }
            Input::ServerNews { stream, partition, news } => {
                if self.server_streams.get(&partition) == Some(&stream) {
                    self.server_news(partition, news);
                }
            }
            Input::ServerLeft { stream, partition } => {
                self.strangers.remove(&(partition, stream));
                if self.server_streams.get(&partition) == Some(&stream) {
                    self.controller.server_left(partition);
                    let name = self.server_name(partition).unwrap_or_default();
                    tell(ControllerNews::Server { name, here: false });
                }
            }
            Input::ClientJoined { stream, address, registered } => {
                for server in self.planner.cluster.servers() {
                    let known = self.controller.connections(server.partition);
                    let known = known.filter(|(connection, told)| *told && connection.client == address);
                    for (connection, _) in known {
                        // A client that does not take them walks from the root.
                        let _ = registered.try_send((server.partition, connection.queue_pair));
                    }
                }
                self.clients.insert(stream, Client { address, registered, index_reads: 0, astray: 0 });
            }
            Input::ClientReport { stream, report } => self.report(stream, report),
            Input::ClientLeft { stream } => {
                self.clients.remove(&stream);
            }
            Input::Asked { question, reply } => self.asked(question, reply),
        }
    }

    fn note_lost(&mut self, partition: u16, lost: bool) {
        match lost {
            true => self.lost.insert(partition),
            false => self.lost.remove(&partition),
        };
    }

    fn server_name(&self, partition: u16) -> Option<String> {
        self.planner.cluster.server(partition).map(|server| server.name.clone())
    }

    /// One without which there is no plan.
    fn missing_server(&self) -> Option<&str> {
        let mut servers = self.planner.cluster.servers().iter();
        let missing = servers.find(|server| !self.controller.server_is_here(server.partition))?;
        Some(&missing.name)
    }

    fn server_news(&mut self, partition: u16, news: ServerNews) {
        match news {
            ServerNews::Opened(registration) => self.controller.opened(partition, registration),
            ServerNews::Closed { client, queue_pair } => {
                self.controller.closed(partition, client, queue_pair)
            }
            ServerNews::Root(root) => self.controller.rerooted(partition, root),
            ServerNews::Lost => self.note_lost(partition, true),
            ServerNews::Refilled(incarnation, root) => {
                self.note_lost(partition, false);
                self.controller.server_refilled(partition, incarnation);
                self.controller.rerooted(partition, root);
            }
        }
    }

    fn report(&mut self, stream: u64, mut report: ClientReport) {
        let Some(client) = self.clients.get_mut(&stream) else { return };
        report.keys.drain(..report.keys.len().saturating_sub(KEYS));
        client.index_reads = client.index_reads.saturating_add(report.index_reads);
        client.astray = client.astray.saturating_add(report.astray);
        self.keys.extend(&report.keys);
        let gone = self.keys.len().saturating_sub(KEYS);
        self.keys.drain(..gone);
        if let Some(follower) = &mut self.follower {
            follower.report(report.index_reads, report.astray, &report.keys);
        }
        if self.is_thinking {
            self.meanwhile.push(report);
        }
    }

    fn follow_notices(&mut self, tell: &mut impl FnMut(ControllerNews)) {
        while let Some(notice) = self.controller.poll_notice() {
            match notice {
                Notice::Registered(partition, connection) => {
                    let here = self.clients.values().filter(|client| client.address == connection.client);
                    for client in here {
                        let _ = client.registered.try_send((partition, connection.queue_pair));
                    }
                }
                Notice::Reloaded { epoch, changes, took } => {
                    let entries = self.controller.plan().map_or(0, |(loaded, _)| loaded.len());
                    let because = std::mem::take(&mut self.because);
                    tell(ControllerNews::Reloaded { epoch, entries, changes, took, because });
                    let done = Reloaded { epoch, entries, changes, seconds: took.as_secs_f64() };
                    self.waiting.drain(..).for_each(|reply| answer(reply, Ok(&done)));
                    self.follow_plan();
                    if let Some(follower) = &mut self.follower {
                        follower.spent(self.began.elapsed(), changes);
                    }
                }
                Notice::Void => {
                    tell(ControllerNews::Void);
                    self.follower = None;
                    let gone = "the trees were filled anew meanwhile; try again";
                    self.waiting.drain(..).for_each(|reply| drop(reply.send(Err(gone.to_owned()))));
                }
            }
        }
    }

    // ---- plans ----

    /// The plan in force is followed from now on.
    fn follow_plan(&mut self) {
        let Some((loaded, _)) = self.controller.plan() else { return };
        let plan = loaded.plan().clone();
        match &mut self.follower {
            Some(follower) => follower.loaded(plan),
            None => {
                let (topology, placement) = (self.planner.cluster.tree(), &self.planner.placement);
                let mut follower = Follower::new(topology, placement, plan, self.follow);
                follower.report(0, 0, self.keys.make_contiguous());
                self.follower = Some(follower);
            }
        }
    }

    /// A plan that was found in force is followed as well.
    fn restore_follower(&mut self) {
        if self.follower.is_none() && !self.is_thinking && self.controller.reload().is_none() {
            self.follow_plan();
        }
    }

    /// Has a plan made, if one is missing or worth it.
    fn think(&mut self) {
        let now = self.began.elapsed();
        if self.is_thinking || now < self.not_before || self.controller.reload().is_some() {
            return;
        }
        if self.controller.wants_plan() {
            return self.make_plan(For::Start);
        }
        let due = self.follower.as_ref().and_then(Follower::due).filter(|_| self.missing_server().is_none());
        if due.is_some_and(|due| due <= now)
            && let Some(follower) = self.follower.clone()
        {
            self.is_thinking = true;
            let (planner, made_of, thoughts) =
                (self.planner.clone(), self.controller.trees(), self.thoughts.0.clone());
            tokio::spawn(async move {
                let (follower, replanned) = planner.follow(follower, now).await;
                // A driver that has ended needs no plan.
                let _ = thoughts.send(Thought::Followed(Box::new(follower), made_of, replanned)).await;
            });
        }
    }

    fn make_plan(&mut self, wanted: For) {
        let epoch = match self.controller.next_epoch() {
            Ok(epoch) => epoch,
            Err(refused) => {
                if let For::Operator(_, reply) = wanted {
                    let _ = reply.send(Err(refused.to_string()));
                }
                return;
            }
        };
        self.is_thinking = true;
        let in_force = self.controller.plan().map(|(loaded, _)| Arc::clone(loaded));
        let keys = self.keys.iter().copied().collect();
        let made = self.planner.clone().plan(in_force, keys, self.controller.trees(), epoch);
        let thoughts = self.thoughts.0.clone();
        tokio::spawn(async move {
            let made = made.await;
            let _ = thoughts.send(Thought::Made(wanted, made)).await;
        });
    }

    fn thought(&mut self, thought: Thought, tell: &mut impl FnMut(ControllerNews)) {
        self.is_thinking = false;
        if !matches!(thought, Thought::Followed(..)) {
            self.meanwhile.clear();
        }
        match thought {
            Thought::Made(For::Operator(question, reply), made) => match (question, made) {
                (_, Err(trouble)) => drop(reply.send(Err(trouble))),
                (Question::Reload { .. }, Ok(made)) => {
                    self.load(
                        made.plan,
                        made.made_of,
                        "an operator has asked for it".to_owned(),
                        Some(reply),
                    );
                }
                (question, Ok(made)) => self.answer_made(&question, &made, reply),
            },
            Thought::Made(For::Start, Ok(made)) => {
                self.load(made.plan, made.made_of, "none was in force".to_owned(), None);
            }
            Thought::Made(For::Start, Err(trouble)) => self.cannot_plan(trouble, tell),
            Thought::Followed(mut follower, made_of, replanned) => {
                for ClientReport { keys, index_reads, astray } in self.meanwhile.drain(..) {
                    follower.report(index_reads, astray, &keys);
                }
                // Its plan may have been taken out meanwhile, or replaced.
                self.follower = self.follower.is_some().then_some(*follower);
                let in_force = self.controller.plan().map(|(loaded, _)| loaded.plan());
                if self.follower.as_ref().map(Follower::in_force) != in_force {
                    self.follow_plan();
                }
                match replanned {
                    Ok(None) => self.trouble = None,
                    Ok(Some(Replanned { plan, astray, trips, .. })) => {
                        let because = format!(
                            "{:.1} % of index reads led astray; {:.2} round trips to the leaf, {:.2} by this plan",
                            100.0 * astray,
                            trips.0,
                            trips.1
                        );
                        self.load(plan, made_of, because, None);
                    }
                    Err(trouble) => self.cannot_plan(trouble, tell),
                }
            }
        }
    }

    fn cannot_plan(&mut self, trouble: String, tell: &mut impl FnMut(ControllerNews)) {
        if self.trouble.as_ref() != Some(&trouble) {
            tell(ControllerNews::Trouble(trouble.clone()));
        }
        self.trouble = Some(trouble);
        self.not_before = self.began.elapsed() + PAUSE;
    }

    pub(super) fn load(&mut self, plan: Plan, made_of: Incarnations, because: String, reply: Option<Reply>) {
        match self.controller.load(plan, made_of) {
            Err(refused) => match reply {
                Some(reply) => drop(reply.send(Err(refused.to_string()))),
                None => self.trouble = Some(refused.to_string()),
            },
            Ok(_) => {
                (self.trouble, self.because) = (None, because);
                self.waiting.extend(reply);
                self.keep_plan();
            }
        }
    }

    /// Nothing is published yet: a plan is on disk before the first entry is written.
    fn keep_plan(&self) {
        let (Some(folder), Some((new, made_of, _))) = (&self.folder, self.controller.reload()) else {
            return;
        };
        let in_force = self.controller.plan().map(|(loaded, _)| loaded.plan().epoch());
        let stay: Vec<u8> = in_force.into_iter().collect();
        if let Err(error) = folder.keep(new.plan(), made_of, &stay) {
            tracing::warn!(%error, "the plan is not kept: a controller that is started again will make another one");
        }
    }

    // ---- operators ----

    fn asked(&mut self, question: Question, reply: Reply) {
        match question {
            Question::Plan | Question::Diff | Question::Reload { plan: None } => {
                if let Some(name) = self.missing_server() {
                    let _ = reply.send(Err(format!(
                        "memory server {name} does not answer, and a plan is made of all trees: wait for it, or start it again"
                    )));
                } else if self.is_thinking {
                    let _ = reply.send(Err("a plan is being made; try again in a moment".to_owned()));
                } else {
                    self.make_plan(For::Operator(question, reply));
                }
            }
            Question::Reload { plan: Some(saved) } => match plan_of(&saved) {
                Err(error) => drop(reply.send(Err(error))),
                Ok(plan) => {
                    self.load(plan, saved.made_of, "an operator has brought it".to_owned(), Some(reply));
                }
            },
            Question::Rollback => match self.controller.previous().cloned() {
                None => drop(reply.send(Err("no plan was in force before this one".to_owned()))),
                Some((plan, made_of)) => {
                    self.load(plan, made_of, "an operator has gone back to it".to_owned(), Some(reply));
                }
            },
            Question::Sync => {
                let number = *self.sync.borrow() + 1;
                self.syncs.push(Sync { number, done: BTreeMap::new(), reply });
                self.sync.send_replace(number);
                self.finish_syncs();
            }
            Question::Status => answer(reply, Ok(&self.status())),
            Question::Show => self.show(reply),
            Question::Explain { key } => self.explain(key, reply),
            Question::Counters => self.count(reply),
            Question::Drops => self.count_drops(reply),
        }
    }

    /// Those that do not answer are not waited for.
    fn finish_syncs(&mut self) {
        let switches = self.planner.cluster.tree().switches();
        let silent: BTreeMap<SwitchId, (String, String)> = switches
            .iter()
            .filter_map(|switch| match self.controller.switch(switch.id) {
                Some(SwitchState::Silent(reason)) => Some((switch.id, (switch.name(), reason.clone()))),
                _ => None,
            })
            .collect();
        let is_done = |sync: &mut Sync| {
            switches
                .iter()
                .all(|switch| sync.done.contains_key(&switch.id) || silent.contains_key(&switch.id))
        };
        for sync in self.syncs.extract_if(.., is_done) {
            let others = silent.iter().filter(|(switch, _)| !sync.done.contains_key(switch));
            let synced = Synced {
                settled: sync.done.len(),
                mended: sync.done.values().sum(),
                others: others.map(|(_, other)| other.clone()).collect(),
            };
            answer(sync.reply, Ok(&synced));
        }
    }
}

/// Answers; whoever asked may be gone.
pub(super) fn answer<T: Serialize>(reply: Reply, answer: Result<&T, String>) {
    let json = answer.map(|answer| serde_json::to_string(answer).expect("answers always serialise"));
    let _ = reply.send(json);
}

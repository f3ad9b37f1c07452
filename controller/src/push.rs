//! The driver: all switches of a cluster over P4Runtime, at once.
//!
//! This is the one part of the crate that does I/O and reads a clock. What it pushes are values made elsewhere
//! ([`Base`], [`Change`]); it keeps no state of its own but the connections.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fatbtree_p4runtime::entry::EntryView;
use fatbtree_p4runtime::v1::forwarding_pipeline_config::Cookie;
use fatbtree_p4runtime::v1::get_forwarding_pipeline_config_request::ResponseType;
use fatbtree_p4runtime::v1::{self, set_forwarding_pipeline_config_request::Action as PipelineAction};
use fatbtree_p4runtime::{ClientError, ClientOptions, Mastership, P4RuntimeClient, PacketFormat};
use fatbtree_topology::{Cluster, P4RuntimeEndpoint, SwitchId};
use fatbtree_trust::Trust;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::Code;

use crate::base::Base;
use crate::election::Seen;
use crate::packets::{PacketReceiver, PacketSender, packets};
use crate::program::{Program, Programs};
use crate::reasons::Reasons;
use crate::reconcile::{Controller, Keeper, KeeperAnswer, KeeperRequest, Observed, Pace};
use crate::tables::{Change, Entry, TableError};

/// Updates of a switch that are lowered and written in one go.
const CHUNK: usize = 20_000;
/// No time passes for keepers of a fleet that nothing else uses: they do not look again at what a switch runs.
const NOW: fatbtree_verbs::time::Instant = fatbtree_verbs::time::Instant::ZERO;
/// Time after which a switch that says nothing is asked for a sign of life.
const ASK: Duration = Duration::from_secs(1);

/// Errors of a push.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// One switch failed. The others' updates were tried nevertheless.
    #[error("switch {switch}: {source}")]
    Switch {
        /// Its name.
        switch: String,
        /// Why.
        source: ClientError,
    },
    /// The program does not fit.
    #[error("switch {switch}: {source}")]
    Table {
        /// Its name.
        switch: String,
        /// Why.
        source: TableError,
    },
    /// There are changes for a switch that we are not connected to.
    #[error("there are changes for switch number {}, which is not in this cluster", switch.0)]
    UnknownSwitch {
        /// The switch.
        switch: SwitchId,
    },
    /// A task of ours ended early.
    #[error("a task that wrote to a switch ended early: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Options for pushing entries.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FleetOptions {
    /// Election id; the default 0 is taken as 1, for P4Runtime has no election id 0.
    pub election_id: u128,
    /// Batch size, requests in flight, connect timeout.
    pub client: ClientOptions,
    /// Our certificate: switches must show theirs.
    pub trust: Trust,
}

/// Progress of a push: updates handed to gRPC, of all. At most one window of requests is still on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Updates handed over.
    pub done: usize,
    /// All updates of this push.
    pub total: usize,
}

/// Called now and then from several threads.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// Result of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PushReport {
    /// Updates that the switches accepted.
    pub updates: usize,
    /// Wall-clock seconds.
    pub seconds: f64,
}

impl PushError {
    /// The highest election id that a switch has seen, if it is not ours.
    pub fn outbid(&self) -> Option<u128> {
        match self {
            Self::Switch { source: ClientError::NotPrimary { highest, .. }, .. } => *highest,
            _ => None,
        }
    }
}

impl PushReport {
    /// Updates per second, over all switches.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.updates as f64 / self.seconds } else { 0.0 }
    }
}

/// A session that asks a switch which controller leads, and writes nothing.
#[derive(Debug)]
pub struct Ballot {
    name: String,
    /// The session lives as long as its client.
    client: P4RuntimeClient,
    mastership: watch::Receiver<Mastership>,
    first: Option<Mastership>,
}

impl Ballot {
    /// Connects to a switch, and bids with the election id of the options.
    ///
    /// # Errors
    /// When it does not answer.
    ///
    /// # Panics
    /// When the switch is another network's.
    pub async fn open(
        cluster: &Cluster,
        switch: SwitchId,
        options: &FleetOptions,
    ) -> Result<Self, PushError> {
        let name = cluster.tree().switch(switch).name();
        let failed = |source| PushError::Switch { switch: name.clone(), source };
        let mut client = connect(way_to(cluster, switch, options)).await.map_err(failed)?;
        let first = client.bid(options.election_id).await.map_err(failed)?;
        let device_id = client.device_id();
        let ended =
            || failed(ClientError::SessionEnded { device_id, reason: "the stream is closed".to_owned() });
        let mastership = client.mastership().ok_or_else(ended)?;
        Ok(Self { name, client, mastership, first: Some(first) })
    }

    /// The switch's news: at once, then when it changes, or when it does not answer any more. Then the session is of no use.
    pub async fn next(&mut self) -> Seen {
        if let Some(first) = self.first.take() {
            return Seen::of(&first);
        }
        let Self { name, client, mastership, .. } = self;
        tokio::select! {
            biased;
            changed = mastership.changed() => match changed {
                Ok(()) => Seen::of(&mastership.borrow_and_update()),
                Err(_) => Seen::Silent(format!("switch {name}: the stream is closed")),
            },
            reason = falls_silent(client) => Seen::Silent(format!("switch {name}: {reason}")),
        }
    }
}

/// Waits until a switch does not answer in time. Its last notice would count for ever: a switch that is frozen, or whose machine is gone,
/// ends no stream.
async fn falls_silent(client: &P4RuntimeClient) -> ClientError {
    loop {
        tokio::time::sleep(ASK).await;
        match client.pipeline(ResponseType::CookieOnly).await {
            Err(error) if is_no_answer(&error) => return error,
            // A refusal is a sign of life, too. If the connection is broken, the stream ends.
            Ok(_) | Err(_) => {}
        }
    }
}

fn is_no_answer(error: &ClientError) -> bool {
    matches!(error, ClientError::Rpc { status, .. } if status.code() == Code::DeadlineExceeded)
}

/// Address of a switch's P4Runtime server, and the options for it.
fn way_to(cluster: &Cluster, switch: SwitchId, options: &FleetOptions) -> (P4RuntimeEndpoint, ClientOptions) {
    let mut client = options.client.clone();
    client.tls = options.trust.tls(&cluster.tree().switch(switch).name());
    (cluster.p4runtime(switch).clone(), client)
}

async fn connect((to, options): (P4RuntimeEndpoint, ClientOptions)) -> Result<P4RuntimeClient, ClientError> {
    P4RuntimeClient::connect_with(&to.address, to.device_id, options).await
}

struct Member {
    name: String,
    client: Arc<P4RuntimeClient>,
    program: Arc<Program>,
    /// Until they are taken.
    messages: Mutex<Option<mpsc::Receiver<v1::stream_message_response::Update>>>,
}

/// Switches of a cluster, mostly all, each with this controller as its primary.
pub struct Fleet {
    members: BTreeMap<SwitchId, Arc<Member>>,
}

impl Fleet {
    /// Connects to every switch of the cluster and becomes its primary controller. Each runs the program of its role.
    ///
    /// # Errors
    /// The first switch that cannot be reached, or has another primary.
    pub async fn connect(
        cluster: &Cluster,
        programs: &Programs,
        options: FleetOptions,
    ) -> Result<Self, PushError> {
        let all = cluster.tree().switches().iter().map(|switch| switch.id);
        Self::connect_to(cluster, all, programs, options).await
    }

    /// Connects to some of the switches, such as one that has come back and holds nothing.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Panics
    /// When a switch is another network's.
    pub async fn connect_to(
        cluster: &Cluster,
        switches: impl IntoIterator<Item = SwitchId>,
        programs: &Programs,
        options: FleetOptions,
    ) -> Result<Self, PushError> {
        let mut tasks = JoinSet::new();
        for switch in switches.into_iter().map(|id| cluster.tree().switch(id)) {
            let (id, name) = (switch.id, switch.name());
            let (to, election_id) = (way_to(cluster, id, &options), options.election_id.max(1));
            let program = programs.of(switch.role).clone();
            tasks.spawn(async move {
                let connected = async {
                    let mut client = connect(to).await?;
                    client.become_primary(election_id).await?;
                    let messages = Mutex::new(client.take_messages());
                    Ok((Arc::new(client), messages))
                };
                match connected.await {
                    Ok((client, messages)) => Ok((id, Arc::new(Member { name, client, program, messages }))),
                    Err(source) => Err(PushError::Switch { switch: name, source }),
                }
            });
        }
        let members = join_all(tasks).await?.into_iter().collect();
        Ok(Self { members })
    }

    /// The client of one switch, for whatever this type does not offer.
    pub fn client(&self, switch: SwitchId) -> Option<&P4RuntimeClient> {
        self.members.get(&switch).map(|member| &*member.client)
    }

    /// The packets of a switch, whose program must be loaded. `None` where it has none, and after the first time.
    pub fn packets(&self, switch: SwitchId) -> Option<(PacketSender, PacketReceiver)> {
        let member = self.members.get(&switch)?;
        let format = PacketFormat::of(member.program.info.p4info())?;
        let messages = member.messages.lock().unwrap_or_else(PoisonError::into_inner).take();
        packets(Arc::clone(&member.client), messages, format)
    }

    /// Loads its program into every switch, which empties all tables.
    ///
    /// # Errors
    /// The first switch that refuses it.
    pub async fn set_pipeline(&self) -> Result<(), PushError> {
        self.each(|member| async move { member.set_pipeline().await }).await.map(drop)
    }

    /// Waits until this controller does not control a switch any more: the connection is gone, or there is another primary.
    pub async fn session_ends(&self, switch: SwitchId) -> PushError {
        match self.members.get(&switch) {
            Some(member) => member.failed(member.client.session_ends().await),
            None => PushError::UnknownSwitch { switch },
        }
    }

    /// Carries out a request of a switch's [`Keeper`]. The fleet has a session already.
    ///
    /// # Errors
    /// When the switch refuses it, does not answer, or is none of this fleet.
    pub async fn answer(&self, switch: SwitchId, request: KeeperRequest) -> Result<KeeperAnswer, PushError> {
        let member = self.members.get(&switch).ok_or(PushError::UnknownSwitch { switch })?;
        member.answer(request, &Counter::new(0, None)).await
    }

    /// Writes the base entries into freshly programmed switches.
    ///
    /// # Errors
    /// The first switch that refuses some.
    pub async fn load_base(&self, base: &BTreeMap<SwitchId, Base>) -> Result<PushReport, PushError> {
        let changes = base.iter().map(|(switch, base)| (*switch, base.changes().collect())).collect();
        self.apply(changes).await
    }

    /// Brings all switches to what a controller desires, to the end of a reload. `keepers` are the switches' keepers: new ones if it is empty,
    /// as in the beginning and after an error.
    ///
    /// # Errors
    /// The first switch that refuses something. Nothing further is begun: with the new epoch not yet active the old one goes on serving,
    /// and with it active what is left of the old one does no harm.
    pub async fn settle(
        &self,
        controller: &mut Controller,
        keepers: &mut Vec<Keeper>,
        progress: Option<OnProgress>,
    ) -> Result<PushReport, PushError> {
        let mut kept = std::mem::take(keepers);
        if kept.is_empty() {
            let new = |(&id, member): (&SwitchId, &Arc<Member>)| Keeper::new(id, member.program.cookie());
            kept = self.members.iter().map(new).map(|keeper| keeper.with_piece(CHUNK)).collect();
        }
        let before = controller.plan().map(|(loaded, _)| &**loaded);
        let total = controller.reload().map_or(0, |(new, ..)| new.changes_from(before));
        let counter = Counter::new(total, progress);
        let (mut report, mut pace) = (PushReport::default(), Pace::new(f64::INFINITY));
        loop {
            let (version, start) = (controller.desired().0, Instant::now());
            let (mut tasks, mut updates) = (JoinSet::new(), 0);
            for (at, keeper) in kept.iter_mut().enumerate() {
                let (version, desired) = controller.desired();
                let request = keeper.poll_request(NOW, (version, desired), &mut pace);
                while let Some(notice) = keeper.poll_notice() {
                    controller.switch_noticed(keeper.switch(), &notice);
                }
                let Some(request) = request else { continue };
                if let KeeperRequest::Write(changes) = &request {
                    updates += changes.len();
                }
                let (member, counter) = (Arc::clone(&self.members[&keeper.switch()]), Arc::clone(&counter));
                tasks.spawn(async move { Ok((at, member.answer(request, &counter).await?)) });
            }
            if tasks.is_empty() && controller.desired().0 == version {
                *keepers = kept;
                return Ok(report);
            }
            for (at, answer) in join_all(tasks).await? {
                kept[at].handle_answer(NOW, answer);
            }
            if updates > 0 {
                report.updates += updates;
                report.seconds += start.elapsed().as_secs_f64();
                tracing::debug!(updates, "switches have taken a step");
            }
        }
    }

    /// Applies changes to several switches at once, in batches that may overtake each other.
    ///
    /// # Errors
    /// The first switch that refuses some; everything was tried nevertheless.
    async fn apply(&self, changes: BTreeMap<SwitchId, Vec<Change>>) -> Result<PushReport, PushError> {
        if let Some(switch) = changes.keys().find(|switch| !self.members.contains_key(switch)) {
            return Err(PushError::UnknownSwitch { switch: *switch });
        }
        let updates = changes.values().map(Vec::len).sum();
        let (start, counter, mut tasks) = (Instant::now(), Counter::new(updates, None), JoinSet::new());
        for (switch, changes) in changes {
            let (member, counter) = (Arc::clone(&self.members[&switch]), Arc::clone(&counter));
            tasks.spawn(async move { member.write(&changes, &counter).await });
        }
        join_all(tasks).await?;
        Ok(PushReport { updates, seconds: start.elapsed().as_secs_f64() })
    }

    /// Reads what each switch has dropped, and which READs with keys it has not admitted: packets, by reason. Nothing for one whose program does not count them.
    ///
    /// # Errors
    /// The first switch that does not answer.
    pub async fn read_drops(&self) -> Result<BTreeMap<SwitchId, Vec<(String, u64)>>, PushError> {
        let all = self.each(|member| async move { member.read_drops().await }).await?;
        Ok(all.into_iter().collect())
    }

    /// Reads back the direct counters of fat root and child entries of every switch: `(switch, entry, packets)`.
    ///
    /// # Errors
    /// The first switch that does not answer, or holds entries that are none of ours.
    pub async fn read_counters(&self) -> Result<Vec<(SwitchId, Entry, u64)>, PushError> {
        let all = self.each(|member| async move { member.read_counters().await }).await?;
        let counted = |(switch, found): (SwitchId, Vec<(Entry, u64)>)| {
            found.into_iter().map(move |(entry, packets)| (switch, entry, packets))
        };
        Ok(all.into_iter().flat_map(counted).collect())
    }

    /// Does something with all switches at once.
    async fn each<T: Send + 'static, F: Future<Output = Result<T, PushError>> + Send + 'static>(
        &self,
        work: impl Fn(Arc<Member>) -> F,
    ) -> Result<Vec<(SwitchId, T)>, PushError> {
        let mut tasks = JoinSet::new();
        for (&switch, member) in &self.members {
            let done = work(Arc::clone(member));
            tasks.spawn(async move { Ok((switch, done.await?)) });
        }
        join_all(tasks).await
    }
}

struct Counter {
    done: AtomicUsize,
    total: usize,
    progress: Option<OnProgress>,
}

impl Counter {
    fn new(total: usize, progress: Option<OnProgress>) -> Arc<Self> {
        Arc::new(Self { done: AtomicUsize::new(0), total, progress })
    }

    fn add(&self, count: usize) {
        let done = self.done.fetch_add(count, Ordering::Relaxed) + count;
        if let Some(progress) = &self.progress {
            progress(Progress { done, total: self.total });
        }
    }
}

impl Member {
    fn failed(&self, source: ClientError) -> PushError {
        PushError::Switch { switch: self.name.clone(), source }
    }

    fn unfit(&self, source: TableError) -> PushError {
        PushError::Table { switch: self.name.clone(), source }
    }

    async fn answer(&self, request: KeeperRequest, counter: &Counter) -> Result<KeeperAnswer, PushError> {
        Ok(match request {
            KeeperRequest::Open => KeeperAnswer::Opened,
            KeeperRequest::Cookie => {
                let config = self.client.pipeline(ResponseType::CookieOnly).await;
                let config = config.map_err(|source| self.failed(source))?;
                KeeperAnswer::Cookie(config.and_then(|config| config.cookie).map(|cookie| cookie.cookie))
            }
            KeeperRequest::Load => self.set_pipeline().await.map(|()| KeeperAnswer::Loaded)?,
            KeeperRequest::Read => KeeperAnswer::Holds(self.read_back().await?),
            KeeperRequest::Write(changes) => {
                self.write(&changes, counter).await?;
                KeeperAnswer::Written
            }
        })
    }

    async fn set_pipeline(&self) -> Result<(), PushError> {
        let config = v1::ForwardingPipelineConfig {
            p4info: Some(self.program.info.p4info().clone()),
            p4_device_config: self.program.device_config.clone(),
            cookie: self.program.cookie().map(|cookie| Cookie { cookie }),
        };
        let set = self.client.set_pipeline_with(PipelineAction::VerifyAndCommit, Some(config)).await;
        set.map_err(|source| self.failed(source))
    }

    async fn write(&self, changes: &[Change], counter: &Counter) -> Result<(), PushError> {
        for chunk in changes.chunks(CHUNK) {
            let updates = chunk
                .iter()
                .map(|change| change.update(&self.program.tables))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|source| self.unfit(source))?;
            self.client.write(updates).await.map_err(|source| self.failed(source))?;
            counter.add(chunk.len());
        }
        Ok(())
    }

    /// Reads back all that the switch holds.
    async fn read_back(&self) -> Result<Observed, PushError> {
        let Self { client, program, .. } = self;
        let mut entries = Vec::new();
        for table in program.info.tables().iter().filter(|table| program.tables.is_ours(table)) {
            let found = client.read_table(table, false).await;
            for raw in found.map_err(|source| self.failed(source))? {
                entries.extend(program.tables.read(&raw).map_err(|source| self.unfit(source))?);
            }
        }
        let mut route = None;
        if let Some(table) = program.tables.core_route_info()
            && let Some(raw) = client.read_default(table).await.map_err(|source| self.failed(source))?
        {
            route = program.tables.read_core_route(&raw).map_err(|source| self.unfit(source))?;
        }
        Ok(Observed::new(entries, route))
    }

    async fn read_drops(&self) -> Result<Vec<(String, u64)>, PushError> {
        let mut counts = Vec::new();
        for reasons in Reasons::ALL {
            let Ok(counter) = self.program.info.counter(reasons.counter) else { continue };
            let all = v1::CounterEntry { counter_id: counter.id, ..v1::CounterEntry::default() };
            let all = v1::Entity { entity: Some(v1::entity::Entity::CounterEntry(all)) };
            let read = self.client.read(vec![all]).await.map_err(|source| self.failed(source))?;
            let counted = read.into_iter().filter_map(|entity| match entity.entity {
                Some(v1::entity::Entity::CounterEntry(entry)) => {
                    let number = entry.index.map_or(0, |index| index.index);
                    let packets = entry.data.map_or(0, |data| data.packet_count);
                    Some((usize::try_from(number).ok()?, u64::try_from(packets).unwrap_or(0)))
                }
                _ => None,
            });
            let counted: BTreeMap<usize, u64> = counted.collect();
            let named =
                counted.into_iter().filter_map(|(number, count)| Some((reasons.name(number)?, count)));
            counts.extend(named);
        }
        Ok(counts)
    }

    async fn read_counters(&self) -> Result<Vec<(Entry, u64)>, PushError> {
        let mut found = Vec::new();
        for table in self.program.info.tables().iter().filter(|table| table.direct_counter.is_some()) {
            let entries = self.client.read_table(table, true).await;
            for raw in entries.map_err(|source| self.failed(source))? {
                let entry = self.program.tables.read(&raw).map_err(|source| self.unfit(source))?;
                let packets = table.view(&raw).ok().as_ref().and_then(EntryView::counter).map_or(0, |c| c.0);
                found.extend(entry.map(|entry| (entry, packets)));
            }
        }
        Ok(found)
    }
}

/// Waits for all tasks, whatever becomes of some; the first error wins.
async fn join_all<T: 'static>(mut tasks: JoinSet<Result<T, PushError>>) -> Result<Vec<T>, PushError> {
    let mut results = Vec::new();
    let mut first_error = None;
    while let Some(joined) = tasks.join_next().await {
        match joined.map_err(PushError::from).and_then(|result| result) {
            Ok(result) => results.push(result),
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    first_error.map_or(Ok(results), Err)
}

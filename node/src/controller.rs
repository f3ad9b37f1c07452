//! The controller as a process: a task for each switch, a service for the others, and one task that decides.
//!
//! ```text
//!   memory servers, clients, operators ─► grpc::serve ─┐                      ┌─► Keeper of core-0 ─► P4Runtime
//!                                                      ▼       desired        ├─► Keeper of agg-0-0
//!                           planner ──────────► Driver { Controller } ────────┤        ...
//!                    (tops, counters, plans)           ▲                      └─► Keeper of edge-3-1
//!                                                      ▲ └─── read, settled, lost ────────┤
//!                                            outages   │                                  │
//!                                                      └── Watch { LinkMonitor } ◄─ probes ┘
//! ```

mod answers;
mod driver;
mod insight;
mod keeper;
mod links;
mod pace;
mod planner;
mod state;

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fatbtree_controller::grpc::{ServiceOptions, serve};
use fatbtree_controller::links::{Outages, cables};
use fatbtree_controller::{Budget, FleetOptions, FollowOptions, Placement, Programs};
use fatbtree_topology::Cluster;
use fatbtree_trust::{Door, Refused, Trust};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc, watch};

use crate::NodeError;
use crate::roster::roster_of;
use crate::stop::{Stopper, controller_runtime, listen};
use driver::{Channels, Driver};
use insight::Happened;
use keeper::{Keeper, Reachable};
use links::{Samples, Watch};
use pace::Pace;
use planner::Planner;
use state::StateFolder;

/// What a controller is told.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// The cluster.
    pub cluster: Cluster,
    /// Where it listens.
    pub grpc: String,
    /// Its certificate.
    pub trust: Trust,
    /// Where it tells its metrics.
    pub metrics: Option<String>,
    /// What the switches run.
    pub programs: Programs,
    /// What plans may need.
    pub budget: Budget,
    /// Changes of table entries that are written in a second at most, to all switches together.
    pub writes_per_s: NonZeroU32,
    /// When planning anew is worth it.
    pub follow: FollowOptions,
    /// Where plans are kept for a controller that is started again.
    pub state: Option<PathBuf>,
    /// The highest one controls a switch; by default a later controller has a higher one.
    pub election_id: Option<u64>,
    /// How long a switch may take for an answer.
    pub patience: Duration,
}

/// Inputs that wait; beyond that whoever sends them waits.
const WAITING: usize = 1024;

/// A controller that listens.
pub struct ControllerProcess {
    driver: Driver,
    happened: Arc<Happened>,
    stopper: Stopper,
    told: Arc<Notify>,
    grpc: SocketAddr,
    control: Runtime,
}

impl fmt::Debug for ControllerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerProcess").field("grpc", &self.grpc).finish_non_exhaustive()
    }
}

/// What a controller tells while it runs.
#[derive(Clone, Debug, PartialEq)]
pub enum ControllerNews {
    /// A switch is reached, or is not any more.
    Switch {
        /// Its name.
        name: String,
        /// Why it does not answer; none: it holds what it should.
        trouble: Option<String>,
    },
    /// A memory server is here, or is gone.
    Server {
        /// Its name.
        name: String,
        /// Whether it is here.
        here: bool,
    },
    /// A plan is in force.
    Reloaded {
        /// Its epoch.
        epoch: u8,
        /// Its entries.
        entries: usize,
        /// Entries that were written or deleted.
        changes: usize,
        /// How long the reload took.
        took: Duration,
        /// Why it was made.
        because: String,
    },
    /// A switch or a cable is dead, or is back.
    Outage {
        /// Which: `switch core-0`, `cable core-0 port 1 - agg-1-0 port 2`.
        what: String,
        /// Whether it is down now.
        is_down: bool,
    },
    /// Trees were filled anew: the plan in force was taken out.
    Void,
    /// There is no plan, for this reason.
    Trouble(String),
}

impl fmt::Display for ControllerNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch { name, trouble: None } => write!(f, "switch {name} holds what it should"),
            Self::Switch { name, trouble: Some(reason) } => write!(f, "switch {name} is silent: {reason}"),
            Self::Server { name, here: true } => write!(f, "memory server {name} is here"),
            Self::Server { name, here: false } => write!(f, "memory server {name} is gone"),
            Self::Reloaded { epoch, entries, changes, took, because } => {
                let seconds = took.as_secs_f64();
                write!(
                    f,
                    "epoch {epoch} in force, {entries} entries, {changes} changes in {seconds:.2} s: {because}"
                )
            }
            Self::Outage { what, is_down: true } => write!(f, "{what} is down"),
            Self::Outage { what, is_down: false } => write!(f, "{what} is up again"),
            Self::Void => f.write_str("trees were filled anew: no plan is in force"),
            Self::Trouble(reason) => write!(f, "no plan: {reason}"),
        }
    }
}

impl ControllerProcess {
    /// Listens, and begins to reach for the switches. From now on Ctrl-C and SIGTERM end [`run`](Self::run).
    ///
    /// # Errors
    /// When the address is taken, or the state folder cannot be used.
    pub fn open(options: ControllerOptions) -> Result<Self, NodeError> {
        let ControllerOptions {
            cluster,
            grpc,
            trust,
            metrics,
            programs,
            budget,
            writes_per_s,
            follow,
            state,
            election_id,
            patience,
        } = options;
        let control = controller_runtime()?;
        let told = Arc::new(Notify::new());
        let notified = Arc::clone(&told);
        let stopper = Stopper::new(move || notified.notify_one());
        stopper.at_signals(&control)?;
        let (folder, plans) = state.as_deref().map(StateFolder::open).transpose()?.unzip();
        let listener = listen(&control, &grpc)?;
        let grpc = listener.local_addr().map_err(NodeError::system("asking for the listener's address"))?;
        let connections = programs.connections();
        let cluster = Arc::new(programs.adapt(cluster));
        let mut controller = fatbtree_controller::Controller::new(&cluster, connections, rand::random());
        for (plan, made_of) in plans.unwrap_or_default() {
            controller.restore(plan, made_of);
        }

        let (version, first) = controller.desired();
        let (desired, wanted) = watch::channel((version, Arc::clone(first)));
        let (sync, syncs) = watch::channel(0);
        let (news, switches) = mpsc::channel(WAITING);
        let (inputs, others) = mpsc::channel(WAITING);
        let reachable = Reachable::default();
        let (links, link_news) = mpsc::channel(WAITING);
        let (told_of_outages, outages) = watch::channel(Outages::default());
        let samples = Samples::default();
        let switch_ids = cluster.tree().switches().iter().map(|switch| switch.id);
        let cables = cables(&cluster);
        let (token, samples_of_watch) = (rand::random(), samples.clone());
        let watch = Watch::new(cables, switch_ids, token, link_news, told_of_outages, samples_of_watch);
        control.spawn(watch.watch());
        let mut fleet = FleetOptions::default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        fleet.trust = trust.clone();
        fleet.election_id = election_id.map_or(now, u128::from);
        (fleet.client.answer_timeout, fleet.client.connect_timeout) = (patience, patience);
        let pace = Pace::new(f64::from(writes_per_s.get()));
        for switch in cluster.tree().switches() {
            let keeper = Keeper {
                switch: switch.id,
                cluster: Arc::clone(&cluster),
                programs: programs.clone(),
                options: fleet.clone(),
                pace: pace.clone(),
                desired: wanted.clone(),
                sync: syncs.clone(),
                reachable: reachable.clone(),
                news: news.clone(),
                links: links.clone(),
            };
            control.spawn(keeper.keep());
        }
        let happened = Arc::new(Happened::default());
        let refused = Refused::default();
        let roster = roster_of(&cluster).into();
        let door = Door { listener, trust: trust.clone(), roster, refused: refused.clone() };
        if let Some(address) = &metrics {
            let (inputs, happened) = (inputs.clone(), Arc::clone(&happened));
            crate::metrics::serve(&control, address, move || {
                let (inputs, happened, refused) = (inputs.clone(), Arc::clone(&happened), refused.clone());
                async move {
                    let mut metrics = insight::metrics(&insight::status(&inputs).await?, &happened);
                    metrics.refused(&refused);
                    Some(metrics)
                }
            })?;
        }
        control.spawn(serve(ServiceOptions::default(), door, inputs, std::future::pending()));
        let placement = Placement::of(&cluster);
        let planner = Planner { trust, cluster, placement, programs, budget, reachable };
        let channels = Channels { desired, sync, switches, others, outages, samples };
        let driver = Driver::new(controller, planner, follow, folder, channels);
        Ok(Self { driver, happened, stopper, told, grpc, control })
    }

    /// Where others connect.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Controls until it is told to stop. `tell` is given what happens.
    pub fn run(self, mut tell: impl FnMut(ControllerNews)) {
        let Self { driver, happened, told, control, .. } = self;
        let tell = |news: ControllerNews| {
            happened.note(&news);
            tell(news);
        };
        control.block_on(async {
            tokio::select! {
                () = driver.drive(tell) => {}
                () = told.notified() => {}
            }
        });
        control.shutdown_background();
    }
}

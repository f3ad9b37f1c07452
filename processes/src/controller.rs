//! The controller as a process: a task for each switch, a service for the others, and one task that decides.
//!
//! ```text
//!   memory servers, clients, operators ─► serve ─┐                      ┌─► Keeper of core-0 ─► P4Runtime
//!                                                      ▼       desired        ├─► Keeper of agg-0-0
//!                           planner ──────────► Driver { Primary } ───────────┤        ...
//!                    (tops, counters, plans)           ▲                      └─► Keeper of edge-3-1
//!                                                      ▲ └─── read, settled, lost ────────┤
//!                                            outages   │                                  │
//!                                                      └── Watch { LinkMonitor } ◄─ probes ┘
//! ```
//!
//! All this is a [`term`]'s: it begins when the controller comes to lead, and ends when a switch has a higher bid. In between the process
//! [looks on](candidacy), and its service says which controller is primary.

mod answers;
mod candidacy;
mod driver;
mod insight;
mod keeper;
mod links;
mod planner;
mod state;
mod term;

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use fatbtree_controller::ControllerNews;
use fatbtree_controller::election::{Candidate, Way};
use fatbtree_controller::grpc::{Input, ServiceOptions, Standing, serve};
use fatbtree_controller::{Budget, FleetOptions, FollowOptions, Programs};
use fatbtree_topology::Cluster;
use fatbtree_trust::{Door, Refused, Trust};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc, watch};

use crate::NodeError;
use crate::metrics::Metrics;
use crate::roster::roster_of;
use crate::stop::{Stopper, controller_runtime, listen};
use insight::Happened;
use state::StateFolder;

/// Options of a controller process.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// The cluster.
    pub cluster: Cluster,
    /// Address of its gRPC service.
    pub grpc: String,
    /// Its certificate.
    pub trust: Trust,
    /// Address at which metrics are served.
    pub metrics: Option<String>,
    /// Programs of the switches.
    pub programs: Programs,
    /// Table sizes that plans may use.
    pub budget: Budget,
    /// Changes of table entries that are written in a second at most, to all switches together.
    pub writes_per_s: NonZeroU32,
    /// Gains that make another plan worth its entries.
    pub follow: FollowOptions,
    /// Folder in which plans are kept for a controller that is started again.
    pub state: Option<PathBuf>,
    /// Way to become primary.
    pub way: Way,
    /// Time limit for an answer of a switch.
    pub patience: Duration,
}

/// Maximum number of inputs that wait; further senders wait for room.
const WAITING: usize = 1024;

/// A controller that listens.
pub struct ControllerProcess {
    office: Office,
    way: Way,
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

/// State of a controller through all its terms.
struct Office {
    cluster: Arc<Cluster>,
    trust: Trust,
    programs: Programs,
    budget: Budget,
    writes_per_s: NonZeroU32,
    follow: FollowOptions,
    state: Option<PathBuf>,
    candidate: Candidate,
    fleet: FleetOptions,
    /// Standing of this controller, for the service.
    standing: watch::Sender<Standing>,
    inputs: mpsc::Receiver<Input>,
}

impl ControllerProcess {
    /// Listens, and answers that it is not primary yet. From now on Ctrl-C and SIGTERM end [`run`](Self::run).
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
            way,
            patience,
        } = options;
        let control = controller_runtime()?;
        let told = Arc::new(Notify::new());
        let notified = Arc::clone(&told);
        let stopper = Stopper::new(move || notified.notify_one());
        stopper.at_signals(&control)?;
        state.as_deref().map(StateFolder::open).transpose()?;
        let listener = listen(&control, &grpc)?;
        let grpc = listener.local_addr().map_err(NodeError::system("asking for the listener's address"))?;
        let cluster = Arc::new(programs.adapt(cluster));
        let (inputs, others) = mpsc::channel(WAITING);
        let is_standby = way == Way::StandBy;
        let looks_on = Err("it is looking whether another one is".to_owned());
        let (standing, stands) = watch::channel::<Standing>(looks_on);
        let mut fleet = FleetOptions::default();
        fleet.trust = trust.clone();
        (fleet.client.answer_timeout, fleet.client.connect_timeout) = (patience, patience);
        let happened = Arc::new(Happened::default());
        let refused = Refused::default();
        let roster = roster_of(&cluster).into();
        let door = Door { listener, trust: trust.clone(), roster, refused: refused.clone() };
        if let Some(address) = &metrics {
            let (inputs, happened, stands) = (inputs.clone(), Arc::clone(&happened), stands.clone());
            crate::metrics::serve(&control, address, move || {
                let (inputs, happened, refused) = (inputs.clone(), Arc::clone(&happened), refused.clone());
                let standing = stands.borrow().clone();
                async move {
                    let status = insight::status(&inputs).await;
                    let is_primary = u64::from(status.is_some());
                    let mut metrics =
                        status.map_or_else(Metrics::default, |status| insight::metrics(&status, &happened));
                    metrics.gauge("controller_primary", "1 while this controller is primary", is_primary);
                    metrics.refused(&refused);
                    // A standby does its work while another controller is primary.
                    let reason = standing.err().filter(|_| !is_standby);
                    metrics.unready(reason.map(|reason| format!("this controller is not primary: {reason}")));
                    Some(metrics)
                }
            })?;
        }
        control.spawn(serve(ServiceOptions::default(), door, inputs, stands, std::future::pending()));
        let office = Office {
            cluster,
            trust,
            programs,
            budget,
            writes_per_s,
            follow,
            state,
            candidate: Candidate::new(grpc, rand::random()),
            fleet,
            standing,
            inputs: others,
        };
        Ok(Self { office, way, happened, stopper, told, grpc, control })
    }

    /// Address of its gRPC service.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Stopper that ends the process.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Stands for primary, and controls while it is, until it is told to stop. `tell` is given what happens.
    ///
    /// # Errors
    /// When another controller is primary, and it was told to [start](Way::Start).
    pub fn run(self, mut tell: impl FnMut(ControllerNews)) -> Result<(), NodeError> {
        let Self { mut office, mut way, happened, told, control, .. } = self;
        let mut tell = |news: ControllerNews| {
            happened.note(&news);
            tell(news);
        };
        let ended = control.block_on(async {
            let serving = async {
                loop {
                    let leadership = office.look_on(way, &mut tell).await?;
                    office.lead(leadership, &mut tell).await?;
                    // One that was put out goes on as a standby.
                    way = Way::StandBy;
                }
            };
            tokio::select! {
                ended = serving => ended,
                () = told.notified() => Ok(()),
            }
        });
        control.shutdown_background();
        ended
    }
}

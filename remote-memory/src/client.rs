//! The seam between the client of a structure and what keeps it connected: a process, or a simulation.
//!
//! ```text
//!   process: device, port, sessions over gRPC            StructureClient: a client of trees, SpreadClient
//!   ──────────────────────────────────────────────────────────────────────────────────────────────────
//!   the servers' descriptions, at the start ───────────► open
//!   sessions and connections ──────────────────────────► Kept
//!   completions have come ─────────────────────────────► turn
//!   a server's next session, with its description ─────► believe
//!   reports to the controller ◄───────────────────────── report
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;

use fatbtree_verbs::time::{Duration, Instant};

use crate::config::{Contention, RemoteConfig};
use crate::connection::{ConnectError, ConnectionId};
use crate::info::ServerInfo;
use crate::kept::Kept;
use crate::latencies::OperationLatencies;
use crate::structure::Structure;
use crate::troubles::Troubles;

/// Descriptions of memory servers, by number.
pub type Infos<S> = BTreeMap<u16, ServerInfo<S>>;

/// Options of a client.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ClientConfig {
    /// Queue pairs to each memory server, at least 1.
    pub lanes: u8,
    /// Treatment of contention for locks and for the memory of the card.
    pub contention: Contention,
    /// Time for which operations are tried while a server, or the way to it, does not answer.
    pub patience: Duration,
    /// Time after which the device gives up a queue pair whose peer does not answer.
    pub silence: Duration,
    /// Whether there is a controller, which has switches lead index reads.
    pub is_led: bool,
}

impl Default for ClientConfig {
    /// One queue pair per server, a second of patience, which one silent queue pair takes; no controller.
    fn default() -> Self {
        let RemoteConfig { lanes, patience, contention, .. } = RemoteConfig::default();
        Self { lanes, contention, patience, silence: patience, is_led: false }
    }
}

/// Reasons for which a client cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A server's part is of a structure over other servers.
    #[error(
        "memory server {server} has a part of a {structure} over other memory servers, or of one with other keys than the other servers' parts: \
         use the cluster file with which they were started, or load all of them anew (`fatbtree load --replace`)"
    )]
    Parts {
        /// Name of the structure.
        structure: &'static str,
        /// The server's number.
        server: u16,
    },
    /// Two servers hold structures of different shapes, which one client cannot work on.
    #[error("memory servers {0} and {1} hold structures of different shapes")]
    Shapes(u16, u16),
    /// The server holds a structure of another layout than the one that this client was opened for.
    #[error("memory server {0} has been loaded with a structure of another layout; connect anew")]
    Layout(u16),
    /// The servers do not fit together otherwise.
    #[error(transparent)]
    Apart(Box<dyn Error + Send + Sync>),
    /// The structure cannot be used by this device.
    #[error(transparent)]
    Structure(Box<dyn Error + Send + Sync>),
    /// The connections cannot be.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// What a client makes of the description of a server in a new session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Believed {
    /// It goes with what others have said.
    Fits,
    /// The server holds another structure, or may: in words for a log.
    Another(String),
    /// Others must be asked again: what they said does not go with what a server has said since.
    DoubtOthers(String),
}

/// What a client remembers of a structure, to save round trips.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remembered {
    /// Places of single keys.
    Places,
    /// Inner nodes.
    Nodes,
}

/// Use of what a client remembers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheUse {
    /// Operations that it led to their key.
    pub hits: u64,
    /// Operations for which it had nothing.
    pub misses: u64,
    /// Operations that it led to a wrong place.
    pub stale: u64,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Places or nodes.
    pub entries: u64,
}

/// News of a client for planners since its last report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// A sample of the keys that it was asked for.
    pub keys: Vec<u64>,
    /// Index reads.
    pub index_reads: u64,
    /// Index reads among them that led to a node to which the key belonged no longer.
    pub stale_hints: u64,
    /// Index reads among them that returned the record of their key: the entry of a hot key led there.
    pub hot_keys: u64,
}

/// A counter of a client: its name among metrics, what it counts in words, and its value.
pub type Counted = (&'static str, &'static str, u64);

/// A client of a structure, as a process or a simulation runs it. A clone is the same client.
pub trait StructureClient: Structure + Kept + Clone + 'static {
    /// A server's description of the structure.
    type Info: Send + Copy + 'static;

    /// What a client remembers, if it is [told to](Self::remember).
    const REMEMBERS: &'static [Remembered];

    /// Whether switches lead its reads. Then it [reports](Self::report) what it is asked for, and its connections are
    /// [registered](Self::set_registered).
    const IS_LED: bool = false;

    /// A client of these servers on a device, with no session. A server without a description is away, and [admitted](Self::admit) when it
    /// comes.
    ///
    /// # Errors
    /// When the servers do not fit together.
    fn open(
        verbs: Self::Verbs,
        infos: &Infos<Self::Info>,
        servers: &[u16],
        config: &ClientConfig,
        seed: u64,
    ) -> Result<Self, OpenError>;

    /// Takes what has come by `now`.
    fn turn(&self, now: Instant);

    /// Looks whether a server that was away, in the beginning or meanwhile, can be used as this client was opened, before it is
    /// [believed](Self::believe).
    ///
    /// # Errors
    /// When it cannot. By default all is compared when it is believed.
    fn admit(&self, _info: &ServerInfo<Self::Info>) -> Result<(), OpenError> {
        Ok(())
    }

    /// Takes the description of a server in a new session.
    fn believe(&self, server: u16, infos: &Infos<Self::Info>) -> Believed;

    /// Opens the structure, if it is not open.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn ready(&self) -> impl Future<Output = Result<(), <Self as Structure>::Error>>;

    /// Releases what dropped operations have left.
    fn finish(&self) -> impl Future<Output = ()> + 'static;

    /// Walks over the whole structure and checks it, while nothing changes it. Returns what it finds, in words.
    ///
    /// # Errors
    /// The first fault.
    fn verify(&self) -> impl Future<Output = Result<String, Box<dyn Error + Send + Sync>>>;

    /// Gives so many bytes to what the client remembers of a kind, from now on. A kind that is not among those it
    /// [remembers](Self::REMEMBERS) changes nothing.
    fn remember(&self, kind: Remembered, bytes: u64);

    /// Use of what it remembers of a kind. The default where it remembers nothing.
    fn cache_use(&self, kind: Remembered) -> CacheUse;

    /// Keys that a server was loaded with, if its description tells.
    fn loaded(_info: &Self::Info) -> Option<u64> {
        None
    }

    /// Whether the keys are bytes, as a server's description says. By default they are numbers.
    fn has_byte_keys(_info: &Self::Info) -> bool {
        false
    }

    /// Begins to sample what the controller wants to know.
    fn begin_reports(&self, _keys: usize, _seed: u64) {}

    /// What the client was asked for since the last report.
    fn report(&self) -> Report {
        Report::default()
    }

    /// Lets index reads go over a connection that the controller has registered.
    fn set_registered(&self, _id: ConnectionId) {}

    /// Whether index reads are sent to all memory servers.
    fn is_registered(&self) -> bool {
        false
    }

    /// What has cost its operations time.
    fn troubles(&self) -> Troubles {
        let broken_connections = self.remote().counters().broken_connections;
        Troubles { broken_connections, ..Troubles::default() }
    }

    /// Latencies of its operations.
    fn latencies(&self) -> OperationLatencies;

    /// What the client counts beside its memory.
    fn counted(&self) -> Vec<Counted> {
        Vec::new()
    }
}

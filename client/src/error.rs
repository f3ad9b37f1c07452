//! Errors from connecting and from operations.

use std::path::PathBuf;
use std::time::Duration;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Error from connecting to a cluster, or from an operation.
///
/// After an operation, [`may_have_happened`](Self::may_have_happened) says whether it may be repeated blindly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cluster file cannot be read.
    #[error("reading the cluster file {}", file.display())]
    #[non_exhaustive]
    ReadFile {
        /// Path of the cluster file.
        file: PathBuf,
        /// Error from the system.
        source: std::io::Error,
    },
    /// The cluster file has an error.
    #[error("cluster file {}", file.display())]
    #[non_exhaustive]
    ClusterFile {
        /// Path of the cluster file.
        file: PathBuf,
        /// Line, column and reason.
        source: Source,
    },
    /// The cluster file has no client of the wanted name, or none at all.
    #[error(
        "cluster file {}: expected a [[client]] {}, found {}; add one to the file, or name one of these",
        file.display(),
        wanted.as_ref().map_or("section".to_owned(), |name| format!("with the name {name:?}")),
        if found.is_empty() { "none".to_owned() } else { found.join(", ") }
    )]
    #[non_exhaustive]
    NoClient {
        /// Path of the cluster file.
        file: PathBuf,
        /// The name that was asked for; `None` if any client would do.
        wanted: Option<String>,
        /// Names of the clients in the file.
        found: Vec<String>,
    },
    /// The client cannot connect: a memory server does not answer or refuses, or the host's wire is taken.
    #[error("connecting to the cluster")]
    #[non_exhaustive]
    Connect {
        /// Reason.
        source: Source,
    },
    /// The system has no thread left for the client.
    #[error("starting the client's thread")]
    #[non_exhaustive]
    Thread {
        /// Error from the system.
        source: std::io::Error,
    },
    /// The operation has failed, and has changed nothing.
    #[error("the operation was not carried out")]
    #[non_exhaustive]
    Failed {
        /// Reason.
        source: Source,
    },
    /// The change may have been carried out or not.
    #[error("the change may have been carried out or not; read the key to find out")]
    #[non_exhaustive]
    Unknown {
        /// Reason.
        source: Source,
    },
    /// Another transaction uses an item of this one, or a connection broke under it. It has changed nothing.
    #[error(
        "another transaction was in the way, and nothing has changed; abort the transaction, and begin it anew"
    )]
    #[non_exhaustive]
    Conflict {
        /// Reason.
        source: Source,
    },
    /// The operation has taken longer than the client's time limit.
    #[error(
        "no answer within the time limit of {:?}{}; see whether all memory servers run, or allow more time",
        to_millis(*limit),
        if *may_have_happened { ": the change may have been carried out or not" } else { "" }
    )]
    #[non_exhaustive]
    TimedOut {
        /// The client's time limit, or what was left of it for an attempt at a transaction.
        limit: Duration,
        /// Whether a change may have been carried out.
        may_have_happened: bool,
    },
    /// The client was closed.
    #[error(
        "the client is closed{}; connect again",
        if *may_have_happened { ": the change may have been carried out or not" } else { "" }
    )]
    #[non_exhaustive]
    Closed {
        /// Whether a change may have been carried out.
        may_have_happened: bool,
    },
    /// The client belongs to the process that this one is a fork of.
    #[error(
        "the client was connected by process {process}, and this process is a fork of it, which has none of its threads; connect again here"
    )]
    #[non_exhaustive]
    Forked {
        /// The process that has connected.
        process: u32,
    },
    /// The structure does not have the operation.
    #[error("a {structure} does not have the operation {operation}; use {}", instead_of(operation))]
    #[non_exhaustive]
    NotInStructure {
        /// Name of the structure.
        structure: &'static str,
        /// Name of the operation.
        operation: &'static str,
    },
    /// The protocol of this client does not have the operation.
    #[error(
        "expected a client over Protocol::Rdma for {operation}, found one over Protocol::Query, whose requests do not have this operation"
    )]
    #[non_exhaustive]
    Unsupported {
        /// Name of the operation.
        operation: &'static str,
    },
}

/// A time limit as people read it: what is left of one has nanoseconds.
fn to_millis(limit: Duration) -> Duration {
    Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
        .max(limit.min(Duration::from_millis(1)))
}

/// What a structure without this operation has.
fn instead_of(operation: &str) -> &'static str {
    match operation {
        "begin" => {
            "get, put, insert, update and delete of one key, or load tables of transactions (structure = \"dtx\")"
        }
        "scan" | "scan_backward" => {
            "pairs, or `fatbtree scan` without a range, which gives all pairs in no order"
        }
        "bytes" => {
            "get, put, insert, update and delete of keys that are numbers of 64 bits: it has no others"
        }
        "insert" | "delete" => "get, put and update: its keys are always there",
        _ => "get, put, insert, update and delete",
    }
}

impl Error {
    /// Whether a change that has failed may have been carried out all the same. If not, the change can be repeated without harm.
    pub fn may_have_happened(&self) -> bool {
        match self {
            Self::Unknown { .. } => true,
            Self::TimedOut { may_have_happened, .. } | Self::Closed { may_have_happened } => {
                *may_have_happened
            }
            _ => false,
        }
    }

    pub(crate) fn connect(source: impl Into<Source>) -> Self {
        Self::Connect { source: source.into() }
    }
}

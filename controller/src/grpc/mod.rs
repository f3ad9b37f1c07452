//! Messages of memory servers, clients and operators to a controller, over gRPC.
//!
//! ```text
//!   memory server ── Register: connections come and go ──►┐
//!   client ───────── Report: keys, index reads ──────────►├─ serve() ── Input ──► driver of the Controller
//!          ◄──────── registered ──────────────────────────┤
//!   operator ─────── Ask: Question, answer as JSON ──────►┘
//! ```
//!
//! Everything that a peer sends is checked when it is read, and bounded: streams, bytes of a message, messages that wait.

mod client;
mod service;

use std::net::Ipv4Addr;

use tokio::sync::{mpsc, oneshot};

pub use client::{Client, ClientError, Controllers};
pub use service::{ServiceOptions, Standing, serve};

use crate::operator::{Question, RoomStatus};
use crate::reconcile::{Generation, Registration};

/// The code by which a controller that is not primary refuses.
const NOT_PRIMARY: tonic::Code = tonic::Code::Aborted;

/// Name of the structure whose reads switches lead.
pub const TREE: &str = "blink";

/// Messages and stubs as the proto compiler makes them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
pub(crate) mod proto {
    tonic::include_proto!("fatbtree.controller.v1");
}

/// Something that a memory server has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerNews {
    /// A connection was accepted.
    Opened(Registration),
    /// One is gone.
    Closed {
        /// The client's address on the data path.
        client: Ipv4Addr,
        /// The server's queue pair number.
        queue_pair: u32,
    },
    /// The tree has another root.
    Root(u64),
    /// The tree was filled anew.
    Refilled {
        /// The tree.
        generation: Generation,
        /// Its root.
        root: u64,
        /// First key of the partition, if keys are bytes.
        first_key: Option<Vec<u8>>,
    },
    /// The tree is an empty one that was not meant: the server refuses all clients until it is loaded.
    Lost,
    /// Use of its region.
    Room(RoomStatus),
}

/// A memory server's first words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerHello {
    /// Its partition.
    pub partition: u16,
    /// Name of its structure: switches lead READs of a [tree](TREE) only.
    pub structure: String,
    /// Its tree, or what it has instead.
    pub generation: Generation,
    /// The tree's root.
    pub root: u64,
    /// First key of the partition, if keys are bytes.
    pub first_key: Option<Vec<u8>>,
    /// The tree is an empty one that was not meant.
    pub lost: bool,
    /// All connections.
    pub connections: Vec<Registration>,
}

/// A client's observations since its last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientReport {
    /// A sample of the keys that it was asked for.
    pub keys: Vec<u64>,
    /// Index reads.
    pub index_reads: u64,
    /// Index reads with a stale hint.
    pub stale_hints: u64,
    /// Index reads that the entry of a hot key led to the record of their key.
    pub hot_keys: u64,
}

/// A connection that is registered: its partition, and the server's queue pair.
pub type Registered = (u16, u32);

/// Something that came in.
#[derive(Debug)]
pub enum Input {
    /// A memory server is here.
    ServerJoined {
        /// The number of its stream: the highest one counts.
        stream: u64,
        /// Its message.
        hello: ServerHello,
        /// Way to the number of a former tree of the server; `None` if there was none.
        former: oneshot::Sender<Option<u64>>,
    },
    /// A memory server has news.
    ServerNews {
        /// The number of its stream.
        stream: u64,
        /// Its partition.
        partition: u16,
        /// The change.
        news: ServerNews,
    },
    /// A memory server's stream has ended.
    ServerLeft {
        /// The number of its stream.
        stream: u64,
        /// Its partition.
        partition: u16,
    },
    /// A client is here.
    ClientJoined {
        /// The number of its stream.
        stream: u64,
        /// Its address on the data path.
        address: Ipv4Addr,
        /// Way to the client for connections that are registered.
        registered: mpsc::Sender<Registered>,
    },
    /// A client reports.
    ClientReport {
        /// The number of its stream.
        stream: u64,
        /// The report.
        report: ClientReport,
    },
    /// A client's stream has ended.
    ClientLeft {
        /// The number of its stream.
        stream: u64,
    },
    /// An operator asks.
    Asked {
        /// The question.
        question: Question,
        /// The way back: an answer as JSON, or why there is none.
        reply: oneshot::Sender<Result<String, String>>,
    },
}

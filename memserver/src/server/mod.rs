//! A memory server as a value: what it holds, and what it answers beside the data path.

use std::net::Ipv4Addr;
use std::sync::Arc;

use fatbtree_index::{ConfigError, GlobalAddress, Partition, TreeConfig, WalkError};
use tokio::sync::oneshot;

use crate::chunk::{ChunkAllocator, RegionFull};
use crate::load::{LoadCounts, LoadedTree};
use crate::snapshot::TreeSnapshot;

/// What a server holds and how to reach it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerInfo {
    /// Number, key range, root.
    pub partition: Partition,
    /// Remote key of the region, once it is registered.
    pub rkey: Option<u32>,
    /// Address of the region's first byte.
    pub region_iova: u64,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// The tree's shape.
    pub config: TreeConfig,
    /// Keys, nodes, records.
    pub counts: LoadCounts,
    /// Largest path MTU the server does, bytes.
    pub path_mtu: u32,
}

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Ethernet address.
    pub mac: [u8; 6],
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// Queue pair number, 24 bits.
    pub queue_pair: u32,
    /// First packet sequence number this side sends, 24 bits.
    pub first_psn: u32,
    /// Path MTU this side can do, bytes; in a reply the one agreed.
    pub path_mtu: u32,
}

/// Why a client cannot connect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// A node does not fit in a packet (single-packet rule).
    #[error("connection refused: {0}")]
    NodeTooLarge(#[from] ConfigError),
    /// The region is not registered yet.
    #[error("connection refused: the server's region is not registered yet; try again")]
    NotReady,
    /// The server's NIC refused.
    #[error("connection refused by the server's network card: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
}

/// A counter by name.
pub type Counter = (String, u64);

/// What can be asked of a memory server; each request carries the way back.
#[derive(Debug)]
pub enum Request {
    /// What do you hold?
    Info(oneshot::Sender<ServerInfo>),
    /// The top of the tree.
    Snapshot(oneshot::Sender<Arc<TreeSnapshot>>),
    /// A connection.
    Connect(ConnectCall),
    /// Memory for new nodes or records.
    Allocate {
        /// Bytes wanted.
        bytes: u64,
        /// The way back.
        reply: oneshot::Sender<Result<GlobalAddress, RegionFull>>,
    },
    /// All counters.
    Statistics(StatisticsCall),
}

/// What only the owner, who has the NIC, can answer. Dropping one without an answer tells the client that the server
/// is gone.
#[derive(Debug)]
pub enum OwnerRequest {
    /// Make a queue pair, connect it to the client's, and say how to reach it.
    Connect(ConnectCall),
    /// Add the NIC's counters, and answer.
    Statistics(StatisticsCall),
}

/// A client that wants to connect. `client.path_mtu` is the path MTU to use, already agreed on.
#[derive(Debug)]
pub struct ConnectCall {
    /// The client's end.
    pub client: Endpoint,
    /// The way back.
    pub reply: oneshot::Sender<Result<Endpoint, ConnectError>>,
}

impl ConnectCall {
    /// Answers the client, if it still waits.
    pub fn answer(self, answer: Result<Endpoint, ConnectError>) {
        tell(self.reply, answer);
    }
}

/// Somebody who wants to see the counters.
#[derive(Debug)]
pub struct StatisticsCall {
    /// Counters so far.
    pub counters: Vec<Counter>,
    /// The way back.
    pub reply: oneshot::Sender<Vec<Counter>>,
}

impl StatisticsCall {
    /// Adds the owner's counters and answers.
    pub fn answer(mut self, more: impl IntoIterator<Item = Counter>) {
        self.counters.extend(more);
        tell(self.reply, self.counters);
    }
}

/// A memory server: owned by the data-path thread, knows no socket, clock or NIC.
///
/// **Driving contract.** Take the region with [`take_region`](Self::take_region), register it with
/// `iova = server << 48` and read access, tell the key by [`set_rkey`](Self::set_rkey). From then on drain the
/// [`Mailbox`](crate::Mailbox) whenever there is time, hand each request to [`handle`](Self::handle), and answer what
/// comes back.
#[derive(Debug)]
pub struct MemoryServer {
    info: ServerInfo,
    region: Option<Vec<u8>>,
    chunks: ChunkAllocator,
    snapshot: Arc<TreeSnapshot>,
    requests: u64,
    connects_refused: u64,
}

impl MemoryServer {
    /// A server of `tree` on a NIC that does `path_mtu`.
    ///
    /// # Errors
    /// When a node of the tree does not fit in one packet, or the tree is damaged.
    pub fn new(tree: LoadedTree, path_mtu: u32) -> Result<Self, ServerError> {
        tree.config.check_path_mtu(path_mtu)?;
        let snapshot = Arc::new(tree.snapshot()?);
        let info = ServerInfo {
            partition: tree.partition,
            rkey: None,
            region_iova: GlobalAddress::new(tree.partition.id, 0).raw(),
            region_bytes: tree.region.len() as u64,
            config: tree.config,
            counts: tree.counts,
            path_mtu,
        };
        Ok(Self {
            info,
            region: Some(tree.region),
            chunks: tree.chunks,
            snapshot,
            requests: 0,
            connects_refused: 0,
        })
    }

    /// The region, to be registered; there is only one.
    pub fn take_region(&mut self) -> Option<Vec<u8>> {
        self.region.take()
    }

    /// Tells the remote key under which the region is registered.
    pub fn set_rkey(&mut self, rkey: u32) {
        self.info.rkey = Some(rkey);
    }

    /// What the server holds.
    #[must_use]
    pub fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// The top of the tree as it was loaded.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<TreeSnapshot> {
        &self.snapshot
    }

    /// Answers a request, or gives back what the owner must answer.
    pub fn handle(&mut self, request: Request) -> Option<OwnerRequest> {
        self.requests += 1;
        match request {
            Request::Info(reply) => tell(reply, self.info),
            Request::Snapshot(reply) => tell(reply, Arc::clone(&self.snapshot)),
            Request::Allocate { bytes, reply } => {
                let chunk = self.chunks.allocate(bytes);
                tell(reply, chunk.map(|offset| GlobalAddress::new(self.info.partition.id, offset)));
            }
            Request::Connect(mut call) => match self.agree(call.client.path_mtu) {
                Ok(path_mtu) => {
                    call.client.path_mtu = path_mtu;
                    return Some(OwnerRequest::Connect(call));
                }
                Err(error) => {
                    self.connects_refused += 1;
                    call.answer(Err(error));
                }
            },
            Request::Statistics(mut call) => {
                call.counters.extend([
                    ("requests".to_owned(), self.requests),
                    ("connects_refused".to_owned(), self.connects_refused),
                    ("free_bytes".to_owned(), self.chunks.free_bytes()),
                ]);
                return Some(OwnerRequest::Statistics(call));
            }
        }
        None
    }

    /// The path MTU of a connection, if there can be one.
    fn agree(&self, client: u32) -> Result<u32, ConnectError> {
        let path_mtu = client.min(self.info.path_mtu);
        self.info.config.check_path_mtu(path_mtu)?;
        if self.info.rkey.is_none() {
            return Err(ConnectError::NotReady);
        }
        Ok(path_mtu)
    }
}

/// Answers whoever still waits; that somebody has gone meanwhile is no error of ours.
fn tell<T>(reply: oneshot::Sender<T>, answer: T) {
    let _ = reply.send(answer);
}

/// Why there is no server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServerError {
    /// Single-packet rule.
    #[error("memory server cannot serve this tree: {0}")]
    Config(#[from] ConfigError),
    /// The tree is damaged.
    #[error("memory server cannot read its own tree: {0}")]
    Tree(#[from] WalkError),
}

//! The gRPC service: a thin driver that turns calls into requests and answers into messages.

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Iter, StreamExt};
use tonic::transport::{Channel, Server};
use tonic::{Code, Response, Status};

use fatbtree_index::{
    ConfigError, GlobalAddress, KeyRange, Partition, SuperRoot, SuperRootError, TreeConfig, ValueLayout,
};

use crate::load::LoadCounts;
use crate::mailbox::{Handle, ServerGone};
use crate::server::{ConnectError, Counter, Endpoint, ServerInfo};
use crate::snapshot::{SnapshotNode, TreeSnapshot};

/// Messages and stubs as the proto compiler makes them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod proto {
    tonic::include_proto!("fatbtree.memserver.v1");
}

/// Nodes in one message of a snapshot stream: about 256 KB, far below gRPC's limit of 4 MB.
const NODES_PER_CHUNK: usize = 1024;

/// Serves the requests of `listener` until `stop` is done. All answers come from the data-path thread.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    handle: Handle,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let service = proto::memory_server_server::MemoryServerServer::new(Service { handle });
    Server::builder()
        .add_service(service)
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop)
        .await
}

struct Service {
    handle: Handle,
}

impl From<ServerGone> for Status {
    fn from(gone: ServerGone) -> Self {
        Self::unavailable(gone.to_string())
    }
}

#[tonic::async_trait]
impl proto::memory_server_server::MemoryServer for Service {
    async fn get_info(
        &self,
        _: tonic::Request<proto::GetInfoRequest>,
    ) -> Result<Response<proto::ServerInfo>, Status> {
        Ok(Response::new(self.handle.info().await?.into()))
    }

    type SnapshotStream = Iter<Chunks>;

    async fn snapshot(
        &self,
        _: tonic::Request<proto::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let snapshot = self.handle.snapshot().await?;
        Ok(Response::new(tokio_stream::iter(Chunks { snapshot, at: None })))
    }

    async fn connect_queue_pair(
        &self,
        request: tonic::Request<proto::ConnectRequest>,
    ) -> Result<Response<proto::ConnectReply>, Status> {
        let client = request.into_inner().client.ok_or_else(|| missing("client"))?;
        match self.handle.connect(Endpoint::try_from(client)?).await? {
            Ok(server) => Ok(Response::new(proto::ConnectReply { server: Some(server.into()) })),
            Err(refusal) => {
                let code = match refusal {
                    ConnectError::NotReady => Code::Unavailable,
                    ConnectError::NodeTooLarge(_) => Code::FailedPrecondition,
                    ConnectError::Refused { .. } => Code::Aborted,
                };
                tracing::info!(%refusal, "client refused");
                Err(Status::new(code, refusal.to_string()))
            }
        }
    }

    async fn allocate_chunk(
        &self,
        request: tonic::Request<proto::AllocateChunkRequest>,
    ) -> Result<Response<proto::AllocateChunkReply>, Status> {
        match self.handle.allocate(request.into_inner().bytes).await? {
            Ok(address) => Ok(Response::new(proto::AllocateChunkReply { address: address.raw() })),
            Err(full) => Err(Status::resource_exhausted(full.to_string())),
        }
    }

    async fn get_statistics(
        &self,
        _: tonic::Request<proto::StatisticsRequest>,
    ) -> Result<Response<proto::StatisticsReply>, Status> {
        let counters = self.handle.statistics().await?.into_iter().collect();
        Ok(Response::new(proto::StatisticsReply { counters }))
    }
}

/// The messages of one snapshot, made when they are sent.
struct Chunks {
    snapshot: Arc<TreeSnapshot>,
    /// The next node; none before the header.
    at: Option<usize>,
}

impl Iterator for Chunks {
    type Item = Result<proto::SnapshotChunk, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        let nodes = &self.snapshot.nodes;
        let Some(from) = self.at else {
            let Partition { id, range, root, root_level } = self.snapshot.partition;
            let header = proto::SnapshotHeader {
                partition: id.into(),
                low_key: range.low,
                high_key: range.high,
                root_address: root.raw(),
                root_level: root_level.into(),
                nodes: nodes.len() as u64,
            };
            self.at = Some(0);
            return Some(Ok(proto::SnapshotChunk { header: Some(header), nodes: vec![] }));
        };
        if from >= nodes.len() {
            return None;
        }
        let to = nodes.len().min(from + NODES_PER_CHUNK);
        self.at = Some(to);
        let nodes = nodes[from..to].iter().map(|node| {
            let (pivots, children) = node.children.iter().copied().unzip();
            proto::InternalNode { address: node.address, level: node.level.into(), pivots, children }
        });
        Some(Ok(proto::SnapshotChunk { header: None, nodes: nodes.collect() }))
    }
}

/// Asks a memory server over the network.
#[derive(Clone, Debug)]
pub struct Client {
    stub: proto::memory_server_client::MemoryServerClient<Channel>,
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection.
    #[error("cannot reach memory server at {address}: {source}; is it running?")]
    Unreachable {
        /// Address tried.
        address: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// The server says no.
    #[error("memory server: {} ({:?})", .0.message(), .0.code())]
    Refused(#[from] Status),
    /// The tree's shape in the answer is impossible.
    #[error("memory server describes an impossible tree: {0}")]
    Config(#[from] ConfigError),
    /// The snapshot ended early or does not fit together.
    #[error("snapshot is incomplete: {expected} nodes announced, {found} received; ask again")]
    Incomplete {
        /// Nodes announced; 0 when there was no header.
        expected: u64,
        /// Nodes received.
        found: u64,
    },
}

impl Client {
    /// Connects to `address`, such as `http://127.0.0.1:50051`.
    ///
    /// # Errors
    /// When nobody listens there.
    pub async fn connect(address: &str) -> Result<Self, ClientError> {
        let stub = proto::memory_server_client::MemoryServerClient::connect(address.to_owned())
            .await
            .map_err(|source| ClientError::Unreachable { address: address.to_owned(), source })?;
        Ok(Self { stub })
    }

    /// What the server holds.
    ///
    /// # Errors
    /// When the call fails or the answer makes no sense.
    pub async fn info(&mut self) -> Result<ServerInfo, ClientError> {
        self.stub.get_info(proto::GetInfoRequest {}).await?.into_inner().try_into()
    }

    /// The top of the tree.
    ///
    /// # Errors
    /// When the call fails or the stream breaks off.
    pub async fn snapshot(&mut self) -> Result<TreeSnapshot, ClientError> {
        let mut stream = self.stub.snapshot(proto::SnapshotRequest {}).await?.into_inner();
        let mut header = None;
        let mut nodes = vec![];
        while let Some(chunk) = stream.next().await {
            let chunk = chunk?;
            header = chunk.header.or(header);
            for node in chunk.nodes {
                if node.pivots.len() != node.children.len() || node.pivots.is_empty() {
                    return Err(Status::data_loss("a node has not as many pivots as children").into());
                }
                let level = narrow("level", node.level)?;
                let children = node.pivots.into_iter().zip(node.children).collect();
                nodes.push(SnapshotNode { address: node.address, level, children });
            }
        }
        let found = nodes.len() as u64;
        match header {
            Some(header) if header.nodes == found => {
                let partition = partition(
                    header.partition,
                    header.low_key,
                    header.high_key,
                    header.root_address,
                    header.root_level,
                )?;
                Ok(TreeSnapshot { partition, nodes })
            }
            header => Err(ClientError::Incomplete { expected: header.map_or(0, |h| h.nodes), found }),
        }
    }

    /// Connects the client's queue pair; gives the server's end.
    ///
    /// # Errors
    /// When the server refuses; the message says why.
    pub async fn connect_queue_pair(&mut self, client: Endpoint) -> Result<Endpoint, ClientError> {
        let request = proto::ConnectRequest { client: Some(client.into()) };
        let server = self
            .stub
            .connect_queue_pair(request)
            .await?
            .into_inner()
            .server
            .ok_or_else(|| missing("server"))?;
        Ok(server.try_into()?)
    }

    /// Takes `bytes` of the server's spare memory.
    ///
    /// # Errors
    /// When the region is full.
    pub async fn allocate(&mut self, bytes: u64) -> Result<GlobalAddress, ClientError> {
        let reply = self.stub.allocate_chunk(proto::AllocateChunkRequest { bytes }).await?;
        Ok(GlobalAddress(reply.into_inner().address))
    }

    /// All counters, by name.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn statistics(&mut self) -> Result<Vec<Counter>, ClientError> {
        let reply = self.stub.get_statistics(proto::StatisticsRequest {}).await?;
        let mut counters: Vec<_> = reply.into_inner().counters.into_iter().collect();
        counters.sort();
        Ok(counters)
    }
}

/// The super-root over the partitions of several servers.
///
/// # Errors
/// When they do not cover all keys exactly once.
pub fn super_root<'a>(
    servers: impl IntoIterator<Item = &'a ServerInfo>,
) -> Result<SuperRoot, SuperRootError> {
    SuperRoot::new(servers.into_iter().map(|info| info.partition).collect())
}

impl From<ServerInfo> for proto::ServerInfo {
    fn from(info: ServerInfo) -> Self {
        let ServerInfo { partition, config, counts, .. } = info;
        Self {
            partition: partition.id.into(),
            low_key: partition.range.low,
            high_key: partition.range.high,
            root_address: partition.root.raw(),
            root_level: partition.root_level.into(),
            rkey: info.rkey,
            region_iova: info.region_iova,
            region_bytes: info.region_bytes,
            fan_out: config.fan_out().into(),
            internal_node_bytes: config.internal_bytes(),
            leaf_node_bytes: config.leaf_bytes(),
            inline_value_bytes: match config.values() {
                ValueLayout::Inline(bytes) => bytes.into(),
                ValueLayout::OutOfLine => 0,
            },
            keys: counts.keys,
            leaf_nodes: counts.leaf_nodes,
            internal_nodes: counts.internal_nodes,
            record_bytes: counts.record_bytes,
            path_mtu: info.path_mtu,
        }
    }
}

impl TryFrom<proto::ServerInfo> for ServerInfo {
    type Error = ClientError;

    fn try_from(info: proto::ServerInfo) -> Result<Self, ClientError> {
        let values = match info.inline_value_bytes {
            0 => ValueLayout::OutOfLine,
            bytes => ValueLayout::Inline(narrow("inline_value_bytes", bytes)?),
        };
        let config = TreeConfig::new(narrow("fan_out", info.fan_out)?, info.leaf_node_bytes, values)?;
        if config.internal_bytes() != info.internal_node_bytes {
            let text = format!(
                "internal nodes of {} bytes, {} expected for a fan-out of {}: different versions of this program?",
                info.internal_node_bytes,
                config.internal_bytes(),
                config.fan_out()
            );
            return Err(Status::data_loss(text).into());
        }
        Ok(Self {
            partition: partition(
                info.partition,
                info.low_key,
                info.high_key,
                info.root_address,
                info.root_level,
            )?,
            rkey: info.rkey,
            region_iova: info.region_iova,
            region_bytes: info.region_bytes,
            config,
            counts: LoadCounts {
                keys: info.keys,
                leaf_nodes: info.leaf_nodes,
                internal_nodes: info.internal_nodes,
                record_bytes: info.record_bytes,
            },
            path_mtu: info.path_mtu,
        })
    }
}

impl From<Endpoint> for proto::Endpoint {
    fn from(end: Endpoint) -> Self {
        Self {
            mac: end.mac.to_vec(),
            ip: end.ip.to_bits(),
            queue_pair: end.queue_pair,
            first_psn: end.first_psn,
            path_mtu: end.path_mtu,
        }
    }
}

impl TryFrom<proto::Endpoint> for Endpoint {
    type Error = Status;

    fn try_from(end: proto::Endpoint) -> Result<Self, Status> {
        let mac = <[u8; 6]>::try_from(&end.mac[..]).map_err(|_| {
            Status::invalid_argument(format!("mac: 6 bytes expected, {} found", end.mac.len()))
        })?;
        for (name, value) in [("queue_pair", end.queue_pair), ("first_psn", end.first_psn)] {
            if value >> 24 != 0 {
                return Err(Status::invalid_argument(format!("{name}: {value:#x} has more than 24 bits")));
            }
        }
        if !matches!(end.path_mtu, 256 | 512 | 1024 | 2048 | 4096) {
            let text = format!("path_mtu: {} found, 256, 512, 1024, 2048 or 4096 expected", end.path_mtu);
            return Err(Status::invalid_argument(text));
        }
        Ok(Self {
            mac,
            ip: Ipv4Addr::from_bits(end.ip),
            queue_pair: end.queue_pair,
            first_psn: end.first_psn,
            path_mtu: end.path_mtu,
        })
    }
}

fn missing(field: &str) -> Status {
    Status::invalid_argument(format!("{field}: missing"))
}

fn narrow<T: TryFrom<u32>>(field: &str, value: u32) -> Result<T, Status> {
    T::try_from(value).map_err(|_| Status::invalid_argument(format!("{field}: {value} is too large")))
}

fn partition(id: u32, low: u64, high: Option<u64>, root: u64, root_level: u32) -> Result<Partition, Status> {
    Ok(Partition {
        id: narrow("partition", id)?,
        range: KeyRange { low, high },
        root: GlobalAddress(root),
        root_level: narrow("root_level", root_level)?,
    })
}

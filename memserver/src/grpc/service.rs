//! The service.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use fatbtree_blink::{GlobalAddress, SessionId};
use fatbtree_query::Secret;
use fatbtree_trust::{Connections, Door, OPERATOR, Places};
use fatbtree_verbs::{QueuePairNumber, ReserveError};
use fatbtree_wire::host_of;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Request, Response, Status};

use super::convert::{MessageError, chunk_kind, missing};
use super::loading::{self, Loader, Loading};
use super::{SHORTAGE, proto, stream};
use crate::blink::finder::LocateError;
use crate::blink::snapshots::SnapshotError;
use crate::free_blocks::GivenBack;
use crate::limits::ClientId;
use crate::mailbox::{Handle, ServerGone};
use crate::owners::NoOwner;
use crate::refusal::Refusal;
use crate::session::{Lease, SessionKey};

/// Bounds of what peers can make the service hold. Start from the default and change what you need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceOptions {
    /// Connections at once.
    pub connections: usize,
    /// Connections of one host at once.
    pub connections_per_host: usize,
    /// Calls under way on one connection; others wait.
    pub calls_per_connection: u32,
    /// Bytes of the largest message that is read.
    pub message_bytes: usize,
    /// Snapshots on their way at once.
    pub snapshots: usize,
    /// Snapshots on their way to one host at once.
    pub snapshots_per_host: usize,
    /// Requests to locate keys at once.
    pub locates: usize,
    /// Requests of one host to locate keys at once.
    pub locates_per_host: usize,
    /// Time for which a snapshot is kept for a peer that takes nothing of it.
    pub stall: Duration,
    /// Time limit for an answer of the data path; a snapshot must have been read by then.
    pub answer: Duration,
    /// A connection without a sign of life for twice this long is closed.
    pub keep_alive: Duration,
    /// Time limit of calls under way when the service stops.
    pub grace: Duration,
    /// Secret from which keys for queries are derived. `None`: queries need none.
    pub query_secret: Option<Secret>,
}

/// Most keys for queries that are given at once.
const QUERY_KEYS: u32 = 1024;

impl Default for ServiceOptions {
    /// 512 connections, 128 of each host, 32 calls on each; 16 snapshots, 4 to each host; 64 requests
    /// to locate keys, 16 of each host.
    fn default() -> Self {
        Self {
            connections: 512,
            connections_per_host: 128,
            calls_per_connection: 32,
            message_bytes: 16 << 10,
            snapshots: 16,
            snapshots_per_host: 4,
            locates: 64,
            locates_per_host: 16,
            stall: Duration::from_secs(20),
            answer: Duration::from_secs(10),
            keep_alive: Duration::from_secs(20),
            grace: Duration::from_secs(1),
            query_secret: None,
        }
    }
}

/// Serves the requests of `listener` until `stop` is done. All answers come from the thread that has the mailbox. The server cannot be
/// loaded.
///
/// # Errors
/// When the transport fails.
pub async fn serve(
    door: impl Into<Door<TcpListener>>,
    handle: Handle,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    serve_with(ServiceOptions::default(), None, door, handle, stop).await
}

/// The same with other bounds, and for loaders. Where there are certificates, only the operator loads, and a session is opened by the
/// client that has its address.
///
/// # Errors
/// When the transport fails.
pub async fn serve_with(
    options: ServiceOptions,
    loading: Option<Loading>,
    door: impl Into<Door<TcpListener>>,
    handle: Handle,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let door = door.into();
    let server = door.server()?;
    let bound = Connections { all: options.connections, per_host: options.connections_per_host };
    let (connections, door) = door.open(bound);
    let snapshots = Places::new(options.snapshots, options.snapshots_per_host);
    let locates = Places::new(options.locates, options.locates_per_host);
    let loader = loading.map(|loading| {
        let loader = Loader::new(handle.clone(), loading, options.answer);
        let loader =
            proto::loader_server::LoaderServer::new(loader).max_decoding_message_size(loading::MESSAGE_BYTES);
        let door = door.clone();
        InterceptedService::new(loader, move |request: Request<()>| {
            door.admit(&request, &[OPERATOR]).map(|()| request)
        })
    });
    let service = proto::memory_server_server::MemoryServerServer::new(Service {
        handle,
        options,
        snapshots,
        locates,
        door,
    })
    .max_decoding_message_size(options.message_bytes);
    let (stopping, stopped) = oneshot::channel();
    let serving = server
        .concurrency_limit_per_connection(options.calls_per_connection as usize)
        .max_concurrent_streams(options.calls_per_connection)
        .http2_max_header_list_size(options.message_bytes as u32)
        .http2_keepalive_interval(Some(options.keep_alive))
        .http2_keepalive_timeout(Some(options.keep_alive))
        .add_service(service)
        .add_optional_service(loader)
        .serve_with_incoming_shutdown(connections, async move {
            stop.await;
            let _ = stopping.send(());
        });
    // A peer that keeps its connection does not keep the service.
    let patience = async move {
        match stopped.await {
            Ok(()) => tokio::time::sleep(options.grace).await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        result = serving => result,
        () = patience => Ok(()),
    }
}

struct Service {
    handle: Handle,
    options: ServiceOptions,
    snapshots: Places,
    locates: Places,
    door: Door<()>,
}

impl Service {
    /// Waits for the data path, not for ever.
    async fn answer<T>(&self, answer: impl Future<Output = Result<T, ServerGone>>) -> Result<T, Status> {
        match tokio::time::timeout(self.options.answer, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(gone)) => Err(Status::unavailable(gone.to_string())),
            Err(_) => {
                let after = self.options.answer;
                Err(Status::deadline_exceeded(format!(
                    "the server's data path has not answered in {after:?}: it is busy, or it hangs"
                )))
            }
        }
    }

    /// The same where the server may refuse.
    async fn granted<T>(
        &self,
        answer: impl Future<Output = Result<Result<T, Refusal>, ServerGone>>,
    ) -> Result<T, Status> {
        Ok(self.answer(answer).await??)
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::UnknownSession(_) => Code::Unauthenticated,
            Refusal::TreeLost { .. } => Code::DataLoss,
            Refusal::Undecided { .. } => Code::Unavailable,
            Refusal::UnknownQueuePair { .. } | Refusal::UnknownChunk { .. } => Code::NotFound,
            Refusal::OverBound(_)
            | Refusal::NoChunk(_)
            | Refusal::Reserve(ReserveError::NoRoom(_))
            | Refusal::NoOwner(NoOwner::InUse) => Code::ResourceExhausted,
            Refusal::Endpoint(_) | Refusal::TooManyBlocks(_) => Code::InvalidArgument,
            Refusal::OtherAddress { .. } => Code::PermissionDenied,
            Refusal::PathMtu(_) | Refusal::Published { .. } => Code::FailedPrecondition,
            Refusal::Reserve(ReserveError::Io { .. }) => Code::Internal,
            Refusal::Device(_) | Refusal::NoOwner(NoOwner::Locks(_)) => Code::Aborted,
        };
        tracing::info!(%refusal, "refused");
        let mut metadata = MetadataMap::new();
        metadata.insert(SHORTAGE, MetadataValue::from_static(refusal.shortage().word()));
        Self::with_metadata(code, refusal.to_string(), metadata)
    }
}

impl From<LocateError> for Status {
    fn from(error: LocateError) -> Self {
        let code = match error {
            LocateError::Busy { .. } => Code::ResourceExhausted,
            LocateError::TooMany { .. } => Code::InvalidArgument,
        };
        Status::new(code, error.to_string())
    }
}

impl From<SnapshotError> for Status {
    fn from(error: SnapshotError) -> Self {
        let code = match error {
            SnapshotError::Busy { .. } => Code::ResourceExhausted,
            SnapshotError::Unreadable { .. } => Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}

impl From<MessageError> for Status {
    fn from(error: MessageError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

impl From<Lease> for proto::Lease {
    fn from(lease: Lease) -> Self {
        Self {
            session: lease.session.id.0,
            nanoseconds: lease.duration.as_nanos(),
            owner: lease.owner.map(|owner| owner.number.into()),
        }
    }
}

/// Source address of a call, as the transport reports it.
fn host<T>(request: &Request<T>) -> Result<IpAddr, Status> {
    let peer = request.remote_addr().map(|peer| host_of(peer.ip()));
    peer.ok_or_else(|| Status::unavailable("the connection has ended"))
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl proto::memory_server_server::MemoryServer for Service {
    async fn get_info(&self, _: Request<proto::GetInfoRequest>) -> Reply<proto::ServerInfo> {
        Ok(Response::new(self.answer(self.handle.info()).await?.into()))
    }

    type SnapshotStream = ReceiverStream<Result<proto::SnapshotChunk, Status>>;

    async fn snapshot(&self, request: Request<proto::SnapshotRequest>) -> Reply<Self::SnapshotStream> {
        let place = self.snapshots.take(host(&request)?).ok_or_else(|| {
            Status::resource_exhausted(
                "as many snapshots are on their way as may be; take those, or ask later",
            )
        })?;
        let top = self.answer(self.handle.snapshot()).await??;
        Ok(Response::new(stream::send(top, place, self.options.stall)))
    }

    async fn locate(&self, request: Request<proto::LocateRequest>) -> Reply<proto::LocateReply> {
        let _place = self.locates.take(host(&request)?).ok_or_else(|| {
            Status::resource_exhausted(
                "as many requests to locate keys are under way as may be; wait for those, or ask later",
            )
        })?;
        let places = self.answer(self.handle.locate(request.into_inner().keys)).await??;
        let addresses = places.into_iter().map(|place| place.map_or(0, GlobalAddress::raw)).collect();
        Ok(Response::new(proto::LocateReply { addresses }))
    }

    async fn get_statistics(&self, _: Request<proto::StatisticsRequest>) -> Reply<proto::StatisticsReply> {
        let counters = self.answer(self.handle.statistics()).await?.into_iter().collect();
        Ok(Response::new(proto::StatisticsReply { counters }))
    }

    async fn get_query_keys(
        &self,
        request: Request<proto::QueryKeysRequest>,
    ) -> Reply<proto::QueryKeysReply> {
        let clients = self.door.roster.clients.values().map(String::as_str);
        self.door.admit(&request, &clients.chain([OPERATOR]).collect::<Vec<_>>())?;
        let count = request.get_ref().count;
        if count > QUERY_KEYS {
            let told = format!("expected a count up to {QUERY_KEYS}, found {count}; ask again for more");
            return Err(Status::invalid_argument(told));
        }
        // A client does not choose its number: it may be another client's, and so would be its key. 0 is that
        // of many.
        let key = |secret: Secret| {
            let identity = secret.identity(rand::random_range(1..=u64::MAX));
            proto::QueryKey { client: identity.client, key: identity.key.bytes().to_vec() }
        };
        let keys = self
            .options
            .query_secret
            .map_or_else(Vec::new, |secret| (0..count).map(|_| key(secret)).collect());
        Ok(Response::new(proto::QueryKeysReply { keys }))
    }

    async fn open_session(&self, request: Request<proto::OpenSessionRequest>) -> Reply<proto::Lease> {
        let roce = Ipv4Addr::from_bits(request.get_ref().roce_address);
        self.door.admit_client(&self.door.caller(&request), roce)?;
        let client = ClientId { host: host(&request)?, roce };
        let known = request.get_ref().known_generation;
        Ok(Response::new(self.granted(self.handle.open_session(client, known)).await?.into()))
    }

    async fn renew_session(&self, request: Request<proto::RenewSessionRequest>) -> Reply<proto::Lease> {
        let session = SessionKey { host: host(&request)?, id: SessionId(request.get_ref().session) };
        Ok(Response::new(self.granted(self.handle.renew_session(session)).await?.into()))
    }

    async fn close_session(
        &self,
        request: Request<proto::CloseSessionRequest>,
    ) -> Reply<proto::CloseSessionReply> {
        let session = SessionKey { host: host(&request)?, id: SessionId(request.get_ref().session) };
        self.granted(self.handle.close_session(session)).await?;
        Ok(Response::new(proto::CloseSessionReply {}))
    }

    async fn connect_queue_pair(
        &self,
        request: Request<proto::ConnectRequest>,
    ) -> Reply<proto::ConnectReply> {
        let session = SessionKey { host: host(&request)?, id: SessionId(request.get_ref().session) };
        let proto::ConnectRequest { client, replaces, .. } = request.into_inner();
        let client = client.ok_or_else(|| missing("client"))?.try_into().map_err(Status::from)?;
        let replaces = replaces.map(QueuePairNumber);
        let server = self.granted(self.handle.connect(session, client, replaces)).await?;
        Ok(Response::new(proto::ConnectReply { server: Some(server.into()) }))
    }

    async fn disconnect_queue_pair(
        &self,
        request: Request<proto::DisconnectRequest>,
    ) -> Reply<proto::DisconnectReply> {
        let &proto::DisconnectRequest { session: id, queue_pair } = request.get_ref();
        let session = SessionKey { host: host(&request)?, id: SessionId(id) };
        self.granted(self.handle.disconnect(session, QueuePairNumber(queue_pair))).await?;
        Ok(Response::new(proto::DisconnectReply {}))
    }

    async fn allocate_chunk(
        &self,
        request: Request<proto::AllocateChunkRequest>,
    ) -> Reply<proto::AllocateChunkReply> {
        let &proto::AllocateChunkRequest { session: id, kind, place_bytes } = request.get_ref();
        let session = SessionKey { host: host(&request)?, id: SessionId(id) };
        let grant = self.granted(self.handle.allocate(session, chunk_kind(kind)?, place_bytes)).await?;
        Ok(Response::new(grant.into()))
    }

    async fn give_back(&self, request: Request<proto::GiveBackRequest>) -> Reply<proto::GiveBackReply> {
        let host = host(&request)?;
        let proto::GiveBackRequest { session: id, kind, place_bytes, places } = request.into_inner();
        let (session, kind) = (SessionKey { host, id: SessionId(id) }, chunk_kind(kind)?);
        let places = places.into_iter().map(GlobalAddress).collect();
        let given_back = self.granted(self.handle.give_back(session, kind, place_bytes, places)).await?;
        let GivenBack { kept, known, dropped, refused } = given_back;
        Ok(Response::new(proto::GiveBackReply { kept, known, dropped, refused }))
    }

    async fn publish_chunk(
        &self,
        request: Request<proto::PublishChunkRequest>,
    ) -> Reply<proto::PublishChunkReply> {
        let &proto::PublishChunkRequest { session: id, address } = request.get_ref();
        let session = SessionKey { host: host(&request)?, id: SessionId(id) };
        self.granted(self.handle.publish(session, GlobalAddress(address))).await?;
        Ok(Response::new(proto::PublishChunkReply {}))
    }

    async fn free_chunk(&self, request: Request<proto::FreeChunkRequest>) -> Reply<proto::FreeChunkReply> {
        let &proto::FreeChunkRequest { session: id, address } = request.get_ref();
        let session = SessionKey { host: host(&request)?, id: SessionId(id) };
        self.granted(self.handle.free(session, GlobalAddress(address))).await?;
        Ok(Response::new(proto::FreeChunkReply {}))
    }
}

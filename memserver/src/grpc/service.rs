//! The service.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use fatbtree_trust::{Connections, Door};
use fatbtree_verbs::ReserveError;
use fatbtree_wire::host_of;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

use super::convert::{MessageError, missing};
use super::{Describe, SHORTAGE, proto};
use crate::limits::ClientId;
use crate::mailbox::{Handle, ServerGone};
use crate::moments::{HearError, Statement};
use crate::owners::NoOwner;
use crate::refusal::Refusal;
use crate::tenant::Tenant;

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
    /// Time limit for an answer of the data path.
    pub answer: Duration,
    /// A connection without a sign of life for twice this long is closed.
    pub keep_alive: Duration,
    /// Time limit of calls under way when the service stops.
    pub grace: Duration,
}

impl Default for ServiceOptions {
    /// 8192 connections, 2048 of each host, 32 calls on each.
    fn default() -> Self {
        Self {
            connections: 8192,
            connections_per_host: 2048,
            calls_per_connection: 32,
            message_bytes: 16 << 10,
            answer: Duration::from_secs(10),
            keep_alive: Duration::from_secs(20),
            grace: Duration::from_secs(1),
        }
    }
}

/// Serves the requests that come through `door` until `stop` is done, and `more`: services of the structure itself. All answers come from
/// the thread that has the mailbox. Where there are certificates, a session is opened by the client that has its address.
///
/// # Errors
/// When the transport fails.
pub async fn serve<T>(
    options: ServiceOptions,
    door: impl Into<Door<TcpListener>>,
    handle: Handle<T>,
    more: impl FnOnce(&Door<()>) -> Routes,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error>
where
    T: Tenant<Description: Describe + Send + Sync, Request: Send> + Send + 'static,
{
    let door = door.into();
    let mut server = door.server()?;
    let bound = Connections { all: options.connections, per_host: options.connections_per_host };
    let (connections, door) = door.open(bound);
    let more = more(&door);
    let service = proto::memory_server_server::MemoryServerServer::new(Service { handle, options, door })
        .max_decoding_message_size(options.message_bytes);
    let (stopping, stopped) = oneshot::channel();
    server = server
        .concurrency_limit_per_connection(options.calls_per_connection as usize)
        .max_concurrent_streams(options.calls_per_connection)
        .http2_max_header_list_size(options.message_bytes as u32)
        .http2_keepalive_interval(Some(options.keep_alive))
        .http2_keepalive_timeout(Some(options.keep_alive));
    let serving =
        server.add_routes(more.add_service(service)).serve_with_incoming_shutdown(connections, async move {
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

/// Waits for an answer of the data path, not for ever.
///
/// # Errors
/// When the data path has not answered within `limit`, or is gone.
pub async fn answer_within<A>(
    limit: Duration,
    answer: impl Future<Output = Result<A, ServerGone>>,
) -> Result<A, Status> {
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(gone)) => Err(Status::unavailable(gone.to_string())),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "the server's data path has not answered in {limit:?}: it is busy, or it hangs"
        ))),
    }
}

/// Source address of a call, as the transport reports it.
///
/// # Errors
/// When the connection has ended.
pub fn host<R>(request: &Request<R>) -> Result<IpAddr, Status> {
    let peer = request.remote_addr().map(|peer| host_of(peer.ip()));
    peer.ok_or_else(|| Status::unavailable("the connection has ended"))
}

struct Service<T: Tenant> {
    handle: Handle<T>,
    options: ServiceOptions,
    door: Door<()>,
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::UnknownSession(_) => Code::Unauthenticated,
            Refusal::Lost { .. } | Refusal::Older(_) => Code::DataLoss,
            Refusal::Undecided { .. } => Code::Unavailable,
            Refusal::UnknownQueuePair { .. } => Code::NotFound,
            Refusal::OverBound(_)
            | Refusal::NoChunk(_)
            | Refusal::Reserve(ReserveError::NoRoom(_))
            | Refusal::NoOwner(NoOwner::InUse) => Code::ResourceExhausted,
            Refusal::Endpoint(_) | Refusal::TooManyBlocks(_) | Refusal::NoClass(_) => Code::InvalidArgument,
            Refusal::OtherAddress { .. } => Code::PermissionDenied,
            Refusal::PathMtu(_) => Code::FailedPrecondition,
            Refusal::Reserve(ReserveError::Io { .. }) => Code::Internal,
            Refusal::Device(_) | Refusal::NoOwner(NoOwner::Locks(_)) => Code::Aborted,
        };
        tracing::info!(%refusal, "refused");
        let mut metadata = MetadataMap::new();
        metadata.insert(SHORTAGE, MetadataValue::from_static(refusal.shortage().word()));
        Self::with_metadata(code, refusal.to_string(), metadata)
    }
}

impl From<MessageError> for Status {
    fn from(error: MessageError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

type Reply<A> = Result<Response<A>, Status>;

#[tonic::async_trait]
impl<T> proto::memory_server_server::MemoryServer for Service<T>
where
    T: Tenant<Description: Describe + Send + Sync, Request: Send> + Send + 'static,
{
    async fn get_info(&self, _: Request<proto::GetInfoRequest>) -> Reply<proto::ServerInfo> {
        let info = answer_within(self.options.answer, self.handle.info()).await?;
        Ok(Response::new(info.into()))
    }

    async fn compare(&self, request: Request<proto::CompareRequest>) -> Reply<proto::CompareReply> {
        let proto::CompareRequest { others, heard } = request.into_inner();
        let info = answer_within(self.options.answer, self.handle.info()).await?;
        let moments = Arc::clone(self.handle.moments());
        let own = moments.statement(info.server, info.generation);
        for heard in heard {
            let (by, heard) = heard.try_into()?;
            if let Err(older) = own.agrees(by, &heard) {
                answer_within(self.options.answer, self.handle.found_older(older)).await?;
                return Err(Refusal::Older(older).into());
            }
        }
        let others: Vec<Statement> = others.into_iter().map(Statement::try_from).collect::<Result<_, _>>()?;
        let hear = move || {
            others.iter().try_for_each(|statement| moments.hear(info.server, statement))?;
            Ok(moments.heard())
        };
        let heard = tokio::task::spawn_blocking(hear).await;
        let heard = heard.map_err(|error| Status::internal(error.to_string()))?;
        let heard = heard.map_err(|error: HearError| match error {
            HearError::Older(older) => Status::from(Refusal::Older(older)),
            HearError::Folder(error) => Status::internal(error.to_string()),
        })?;
        let heard = heard.into_iter().map(|(server, heard)| (server, heard).into()).collect();
        Ok(Response::new(proto::CompareReply { own: Some(own.into()), heard }))
    }

    async fn get_statistics(&self, _: Request<proto::StatisticsRequest>) -> Reply<proto::StatisticsReply> {
        let counters = answer_within(self.options.answer, self.handle.statistics()).await?;
        let counters = counters.into_iter().collect();
        Ok(Response::new(proto::StatisticsReply { counters }))
    }

    async fn call(&self, request: Request<proto::Call>) -> Reply<proto::Granted> {
        let roce = Ipv4Addr::from_bits(request.get_ref().roce_address);
        self.door.admit_client(&self.door.caller(&request), roce)?;
        let client = ClientId { host: host(&request)?, roce };
        let call = request.into_inner().asked.ok_or_else(|| missing("asked"))?.try_into()?;
        let granted = answer_within(self.options.answer, self.handle.call(client, call)).await??;
        Ok(Response::new(granted.into()))
    }
}

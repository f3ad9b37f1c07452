//! The services of a tree.

use std::future::Future;
use std::time::Duration;

use fatbtree_blink::GlobalAddress;
use fatbtree_memserver::grpc::proto::loader_server::LoaderServer;
use fatbtree_memserver::grpc::{
    LOAD_MESSAGE_BYTES, LoadService, Replacing, ServiceOptions, answer_within, host,
};
use fatbtree_query::Secret;
use fatbtree_trust::{Door, OPERATOR, Places};
use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Request, Response, Status};

use super::loading::{Bounds, Loading, TreeIncoming};
use super::{proto, stream};
use crate::TreeHandle;
use crate::finder::LocateError;
use crate::snapshots::SnapshotError;
use crate::tenant::TreeRequests as _;

/// Bounds of what peers can make the services hold. Start from the default and change what you need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeServiceOptions {
    /// Bounds of connections and of the calls that every memory server has. A snapshot must have been read within the time for an answer.
    pub service: ServiceOptions,
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
    /// Secret from which keys for queries are derived. `None`: queries need none.
    pub query_secret: Option<Secret>,
    /// Whether the server answers queries: if not, it says so to clients that ask for keys.
    pub answers_queries: bool,
}

/// Most keys for queries that are given at once.
const QUERY_KEYS: u32 = 1024;

impl Default for TreeServiceOptions {
    /// 16 snapshots, 4 to each host; 64 requests to locate keys, 16 of each host.
    fn default() -> Self {
        Self {
            service: ServiceOptions::default(),
            snapshots: 16,
            snapshots_per_host: 4,
            locates: 64,
            locates_per_host: 16,
            stall: Duration::from_secs(20),
            query_secret: None,
            answers_queries: false,
        }
    }
}

impl From<ServiceOptions> for TreeServiceOptions {
    fn from(service: ServiceOptions) -> Self {
        Self { service, ..Self::default() }
    }
}

/// Serves the requests of `listener` until `stop` is done. All answers come from the thread that has the mailbox. The server cannot be
/// loaded.
///
/// # Errors
/// When the transport fails.
pub async fn serve(
    door: impl Into<Door<TcpListener>>,
    handle: TreeHandle,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    serve_with(TreeServiceOptions::default(), None, door, handle, stop).await
}

/// The same with other bounds, and for loaders. Where there are certificates, only the operator loads, and a session is opened by the
/// client that has its address.
///
/// # Errors
/// When the transport fails.
pub async fn serve_with(
    options: TreeServiceOptions,
    loading: Option<Loading>,
    door: impl Into<Door<TcpListener>>,
    handle: TreeHandle,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let TreeServiceOptions { service, .. } = options;
    let asked = handle.clone();
    let services = move |door: &Door<()>| {
        let tree = Service {
            handle: asked.clone(),
            options,
            snapshots: Places::new(options.snapshots, options.snapshots_per_host),
            locates: Places::new(options.locates, options.locates_per_host),
            door: door.clone(),
        };
        let tree = proto::tree_server::TreeServer::new(tree).max_decoding_message_size(service.message_bytes);
        let routes = Routes::new(tree);
        let Some(loading) = loading else { return routes };
        let Loading { storage, region_bytes, spare_bytes, stall } = loading;
        let replacing = Replacing::new(asked, storage, service.answer);
        let bounds = Bounds { region_bytes, spare_bytes };
        let loader = LoadService::<TreeIncoming>::new(replacing, bounds, stall);
        let loader = LoaderServer::new(loader).max_decoding_message_size(LOAD_MESSAGE_BYTES);
        let door = door.clone();
        routes.add_service(InterceptedService::new(loader, move |request: Request<()>| {
            door.admit(&request, &[OPERATOR]).map(|()| request)
        }))
    };
    fatbtree_memserver::grpc::serve(service, door, handle, services, stop).await
}

struct Service {
    handle: TreeHandle,
    options: TreeServiceOptions,
    snapshots: Places,
    locates: Places,
    door: Door<()>,
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

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl proto::tree_server::Tree for Service {
    type SnapshotStream = ReceiverStream<Result<proto::SnapshotChunk, Status>>;

    async fn snapshot(&self, request: Request<proto::SnapshotRequest>) -> Reply<Self::SnapshotStream> {
        let place = self.snapshots.take(host(&request)?).ok_or_else(|| {
            Status::resource_exhausted(
                "as many snapshots are on their way as may be; take those, or ask later",
            )
        })?;
        let top = answer_within(self.options.service.answer, self.handle.snapshot()).await??;
        Ok(Response::new(stream::send(top, place, self.options.stall)))
    }

    async fn locate(&self, request: Request<proto::LocateRequest>) -> Reply<proto::LocateReply> {
        let _place = self.locates.take(host(&request)?).ok_or_else(|| {
            Status::resource_exhausted(
                "as many requests to locate keys are under way as may be; wait for those, or ask later",
            )
        })?;
        let places =
            answer_within(self.options.service.answer, self.handle.locate(request.into_inner().keys))
                .await??;
        let addresses = places.into_iter().map(|place| place.map_or(0, GlobalAddress::raw)).collect();
        Ok(Response::new(proto::LocateReply { addresses }))
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
        if !self.options.answers_queries {
            return Err(Status::failed_precondition(
                "this memory server answers no queries: start it with --serve queries (memserver or up), or use RDMA (without --query)",
            ));
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
}

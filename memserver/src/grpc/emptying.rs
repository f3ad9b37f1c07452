//! The services by which an operator fills a server of a [part](Part), or has it begin anew, and by which other servers ask it.

use std::future::Future;
use std::time::Duration;

use fatbtree_remote_memory::{Origin, ServerInfo};
use fatbtree_trust::{Door, OPERATOR};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status};

use super::installing::Replacing;
use super::loading::{LOAD_MESSAGE_BYTES, LoadService};
use super::part_load::{PartIncoming, PartLoading, of_make};
use super::{Client, ClientError, Describe, ServiceOptions, fellows, proto, serve};
use crate::mailbox::Handle;
use crate::part::{Part, PartOptions, kept, make_in};
use crate::storage::Storage;

/// Time to wait for the next message of a load.
const STALL: Duration = Duration::from_secs(20);

/// What it takes to begin anew.
#[derive(Debug)]
pub struct Emptying<P: Part> {
    /// Storage of the part.
    pub storage: Storage<P::Counts>,
    /// Shape of the structure.
    pub shape: P::Shape,
    /// Bytes for what clients write.
    pub spare_bytes: u64,
    /// Bytes of a chunk of the server.
    pub chunk_bytes: u64,
}

/// Serves the requests that come through `door` until `stop` is done. Where there are certificates, only the operator empties the part, and
/// loads it; and a memory server asks for its own partition what the part leads to.
///
/// # Errors
/// When the transport fails.
pub async fn serve_part<P: Part>(
    options: ServiceOptions,
    emptying: Emptying<P>,
    door: impl Into<Door<TcpListener>>,
    handle: Handle<P>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let Emptying { storage, shape, spare_bytes, chunk_bytes } = emptying;
    let loading = PartLoading { shape, spare_bytes, chunk_bytes };
    let replacing = Replacing::new(handle.clone(), storage, options.answer);
    let fellow = handle.clone();
    let loads = LoadService::<PartIncoming<P>>::new(replacing.clone(), loading, STALL);
    let service = Service { replacing, loading };
    let services = move |door: &Door<()>| {
        let service =
            proto::part_server::PartServer::new(service).max_decoding_message_size(options.message_bytes);
        let loads =
            proto::loader_server::LoaderServer::new(loads).max_decoding_message_size(LOAD_MESSAGE_BYTES);
        let admits =
            |door: Door<()>| move |request: Request<()>| door.admit(&request, &[OPERATOR]).map(|()| request);
        let fellows = fellows::Service { handle: fellow, door: door.clone() };
        let fellows =
            proto::fellow_server::FellowServer::new(fellows).max_decoding_message_size(options.message_bytes);
        Routes::new(InterceptedService::new(service, admits(door.clone())))
            .add_service(InterceptedService::new(loads, admits(door.clone())))
            .add_service(fellows)
    };
    serve(options, door, handle, services, stop).await
}

struct Service<P: Part> {
    replacing: Replacing<P, P::Counts>,
    loading: PartLoading<P::Shape>,
}

#[tonic::async_trait]
impl<P: Part> proto::part_server::Part for Service<P> {
    async fn empty(
        &self,
        request: Request<proto::EmptyRequest>,
    ) -> Result<Response<proto::ServerInfo>, Status> {
        let _turn = self.replacing.turn()?;
        let info = self.replacing.info().await?;
        let wanted = request.get_ref().server;
        if wanted != u32::from(info.server) {
            return Err(Status::failed_precondition(format!(
                "this is memory server {}, not {wanted}",
                info.server
            )));
        }
        let PartLoading { shape, spare_bytes, chunk_bytes } = self.loading;
        let options = PartOptions {
            spare_bytes,
            generation: info.generation.wrapping_add(1),
            origin: Origin::Meant,
            chunk_bytes,
            ..PartOptions::new(info.server, shape)
        };
        let make = move |storage: &mut Storage<P::Counts>| make_in::<P>(storage, &options).map_err(of_make);
        let made = self.replacing.in_storage(make).await?;
        let kept = kept(&made);
        let installed = self.replacing.install(made, kept, |_| async {}).await?;
        Ok(Response::new(installed.into()))
    }
}

/// Has a server begin anew with an empty part of its structure. Returns its new description.
///
/// # Errors
/// See [`ClientError`].
pub async fn empty<S: Describe>(client: &Client, server: u16) -> Result<ServerInfo<S>, ClientError> {
    const CALL: &str = "to empty its part of the structure";
    let mut stub = proto::part_client::PartClient::new(client.channel());
    let request = proto::EmptyRequest { server: server.into() };
    let reply = client.reply(CALL, stub.empty(request)).await?;
    reply.try_into().map_err(|source| client.nonsense(CALL, source))
}

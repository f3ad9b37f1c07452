//! The service by which an operator has a server of a [part](Part) begin anew.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fatbtree_remote_memory::{Origin, ServerInfo};
use fatbtree_trust::{Door, OPERATOR};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status};

use super::{Client, ClientError, Describe, ServiceOptions, answer_within, proto, serve};
use crate::mailbox::{Handle, ServerGone};
use crate::part::{MakeInError, Part, PartOptions, kept, make_in};
use crate::storage::Storage;
use crate::tenant::Loaded;

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

/// Serves the requests that come through `door` until `stop` is done. Where there are certificates, only the operator empties the part.
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
    let service = Service {
        handle: handle.clone(),
        emptying: Arc::new(emptying.into()),
        answer: options.answer,
        one: tokio::sync::Mutex::new(()),
    };
    let services = move |door: &Door<()>| {
        let service =
            proto::part_server::PartServer::new(service).max_decoding_message_size(options.message_bytes);
        let door = door.clone();
        Routes::new(InterceptedService::new(service, move |request: Request<()>| {
            door.admit(&request, &[OPERATOR]).map(|()| request)
        }))
    };
    serve(options, door, handle, services, stop).await
}

struct Service<P: Part> {
    handle: Handle<P>,
    emptying: Arc<Mutex<Emptying<P>>>,
    /// Time limit for an answer of the data path.
    answer: Duration,
    one: tokio::sync::Mutex<()>,
}

#[tonic::async_trait]
impl<P: Part> proto::part_server::Part for Service<P> {
    async fn empty(
        &self,
        request: Request<proto::EmptyRequest>,
    ) -> Result<Response<proto::ServerInfo>, Status> {
        let _turn = self.one.lock().await;
        let info = answer_within(self.answer, self.handle.info()).await?;
        let wanted = request.get_ref().server;
        if wanted != u32::from(info.server) {
            return Err(Status::failed_precondition(format!(
                "this is memory server {}, not {wanted}",
                info.server
            )));
        }
        let (server, generation) = (info.server, info.generation.wrapping_add(1));
        let make = move |emptying: &mut Emptying<P>| {
            let &mut Emptying { ref mut storage, shape, spare_bytes, chunk_bytes } = emptying;
            let options = PartOptions {
                spare_bytes,
                generation,
                origin: Origin::Meant,
                chunk_bytes,
                ..PartOptions::new(server, shape)
            };
            make_in(storage, &options)
        };
        let made = self.with_storage(make).await?;
        let installed = match self.install(made).await {
            Ok(info) => {
                let settle = |emptying: &mut Emptying<P>| {
                    emptying.storage.settle();
                    Ok(())
                };
                self.with_storage(settle).await?;
                info
            }
            Err(refused) => {
                let go_back =
                    |emptying: &mut Emptying<P>| emptying.storage.go_back().map_err(MakeInError::Folder);
                self.with_storage(go_back).await?;
                return Err(refused);
            }
        };
        Ok(Response::new(installed.into()))
    }
}

impl<P: Part> Service<P> {
    /// First it is written down which region is the one, then it is served: as a load of a tree does.
    async fn install(&self, made: Loaded<P>) -> Result<ServerInfo<P::Description>, Status> {
        let stopped = |gone: ServerGone| Status::unavailable(gone.to_string());
        let place = tokio::time::timeout(self.answer, self.handle.install_place()).await;
        let place = place.map_err(|_| {
            Status::deadline_exceeded(
                "the server's data path does not answer: nothing has changed; try again",
            )
        })?;
        let place = place.map_err(stopped)?;
        let keep = move |emptying: &mut Emptying<P>| {
            emptying.storage.keep(kept(&made)).map(|()| made).map_err(MakeInError::Folder)
        };
        let made = self.with_storage(keep).await?;
        let installed = place.install(made).end().await.map_err(stopped)?;
        installed.map_err(|error| Status::failed_precondition(error.to_string()))
    }

    async fn with_storage<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Emptying<P>) -> Result<T, MakeInError<P::MakeError>> + Send + 'static,
    ) -> Result<T, Status> {
        let emptying = Arc::clone(&self.emptying);
        let done = tokio::task::spawn_blocking(move || {
            work(&mut emptying.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let done = done.await.map_err(|error| Status::internal(error.to_string()))?;
        done.map_err(|error| match error {
            MakeInError::Make(error) => Status::invalid_argument(error.to_string()),
            MakeInError::Folder(error) => Status::internal(error.to_string()),
        })
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

//! The table's description on the wire, and the service by which an operator has a server begin anew.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fatbtree_memserver::grpc::{Client, ClientError, Describe, MessageError, ServiceOptions, answer_within};
use fatbtree_memserver::{Handle, Loaded, Origin, ServerGone, ServerInfo};
use fatbtree_remote::HEADER_BYTES;
use fatbtree_trust::{Door, OPERATOR};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status};

use super::kept::TableStorage;
use super::make::{MakeInError, MakeOptions, kept, make_in};
use super::{HashTable, TableInfo};
use crate::layout::Shape;

/// Messages and stubs as the proto compiler makes them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod proto {
    tonic::include_proto!("fatbtree.race.v1");
}

/// The description is the [header](fatbtree_remote::RegionHeader) of a region of the table, but for its length: all of it is there.
impl Describe for TableInfo {
    const STRUCTURE: &'static str = "hash";

    fn encode(&self) -> Vec<u8> {
        self.shape.header(self.directory, 0, 0).to_bytes().into()
    }

    fn decode(_server: u16, description: &[u8]) -> Result<Self, MessageError> {
        let line: Option<&[u8; HEADER_BYTES]> = description.try_into().ok();
        let found = line.and_then(Shape::of_header);
        let (shape, directory) = found.ok_or_else(|| {
            MessageError::structure(
                "the description is no hash table's of this version: do both ends run the same version?",
            )
        })?;
        Ok(Self { shape, directory })
    }
}

/// Options of [`serve`].
#[derive(Debug)]
pub struct Emptying {
    /// Storage of the part.
    pub storage: TableStorage,
    /// Bytes for what clients write.
    pub spare_bytes: u64,
    /// Bytes of a chunk of the server.
    pub chunk_bytes: u64,
}

/// Serves the requests that come through `door` until `stop` is done. Where there are certificates, only the operator empties the table.
///
/// # Errors
/// When the transport fails.
pub async fn serve(
    options: ServiceOptions,
    emptying: Emptying,
    door: impl Into<Door<TcpListener>>,
    handle: Handle<HashTable>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let Emptying { storage, spare_bytes, chunk_bytes } = emptying;
    let service = Service {
        handle: handle.clone(),
        storage: Arc::new(storage.into()),
        spare_bytes,
        chunk_bytes,
        answer: options.answer,
        one: tokio::sync::Mutex::new(()),
    };
    let services = move |door: &Door<()>| {
        let service = proto::hash_table_server::HashTableServer::new(service)
            .max_decoding_message_size(options.message_bytes);
        let door = door.clone();
        Routes::new(InterceptedService::new(service, move |request: Request<()>| {
            door.admit(&request, &[OPERATOR]).map(|()| request)
        }))
    };
    fatbtree_memserver::grpc::serve(options, door, handle, services, stop).await
}

struct Service {
    handle: Handle<HashTable>,
    storage: Arc<Mutex<TableStorage>>,
    spare_bytes: u64,
    chunk_bytes: u64,
    /// Time limit for an answer of the data path.
    answer: Duration,
    one: tokio::sync::Mutex<()>,
}

#[tonic::async_trait]
impl proto::hash_table_server::HashTable for Service {
    async fn empty(
        &self,
        request: Request<proto::EmptyRequest>,
    ) -> Result<Response<fatbtree_memserver::grpc::proto::ServerInfo>, Status> {
        let _turn = self.one.lock().await;
        let info = answer_within(self.answer, self.handle.info()).await?;
        let wanted = request.get_ref().server;
        if wanted != u32::from(info.server) {
            return Err(Status::failed_precondition(format!(
                "this is memory server {}, not {wanted}",
                info.server
            )));
        }
        let options = MakeOptions {
            spare_bytes: self.spare_bytes,
            generation: info.generation.wrapping_add(1),
            origin: Origin::Meant,
            chunk_bytes: self.chunk_bytes,
            ..MakeOptions::new(info.server, info.shape)
        };
        let made = self.in_storage(move |storage| make_in(storage, &options)).await?;
        let installed = match self.install(made).await {
            Ok(info) => {
                let settle = |storage: &mut TableStorage| {
                    storage.settle();
                    Ok(())
                };
                self.in_storage(settle).await?;
                info
            }
            Err(refused) => {
                self.in_storage(|storage| Ok(storage.go_back()?)).await?;
                return Err(refused);
            }
        };
        Ok(Response::new(installed.into()))
    }
}

impl Service {
    /// First it is written down which region is the one, then it is served: as a load of a tree does.
    async fn install(&self, made: Loaded<HashTable>) -> Result<ServerInfo<TableInfo>, Status> {
        let stopped = |gone: ServerGone| Status::unavailable(gone.to_string());
        let place = tokio::time::timeout(self.answer, self.handle.install_place()).await;
        let place = place.map_err(|_| {
            Status::deadline_exceeded(
                "the server's data path does not answer: nothing has changed; try again",
            )
        })?;
        let place = place.map_err(stopped)?;
        let made = self.in_storage(move |storage| Ok(storage.keep(kept(&made)).map(|()| made)?)).await?;
        let installed = place.install(made).end().await.map_err(stopped)?;
        installed.map_err(|error| Status::failed_precondition(error.to_string()))
    }

    async fn in_storage<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut TableStorage) -> Result<T, MakeInError> + Send + 'static,
    ) -> Result<T, Status> {
        let storage = Arc::clone(&self.storage);
        let done = tokio::task::spawn_blocking(move || {
            work(&mut storage.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let done = done.await.map_err(|error| Status::internal(error.to_string()))?;
        done.map_err(|error| match error {
            MakeInError::Make(error) => Status::invalid_argument(error.to_string()),
            MakeInError::Folder(error) => Status::internal(error.to_string()),
        })
    }
}

/// Has a server begin anew with an empty part of its table. Returns its new description.
///
/// # Errors
/// See [`ClientError`].
pub async fn empty(client: &Client, server: u16) -> Result<ServerInfo<TableInfo>, ClientError> {
    const CALL: &str = "to empty its part of the table";
    let mut stub = proto::hash_table_client::HashTableClient::new(client.channel());
    let request = proto::EmptyRequest { server: server.into() };
    let reply = client.reply(CALL, stub.empty(request)).await?;
    reply.try_into().map_err(|source| client.nonsense(CALL, source))
}

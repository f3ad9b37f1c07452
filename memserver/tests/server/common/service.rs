//! The service of a memory server of blocks.

use fatbtree_memserver::grpc::ServiceOptions;
use fatbtree_memserver::{ServerOptions, grpc};
use tonic::service::Routes;

use super::blocks::{Blocks, LoadedBlocks};
use super::served::Served;

pub use super::served::soon;

pub type Service = Served<Blocks>;

pub async fn start(part: LoadedBlocks, server: ServerOptions, service: ServiceOptions) -> Service {
    Served::start(
        part,
        server,
        |request| request,
        |listener, handle, until| {
            grpc::serve(service, listener, handle, |_| Routes::default(), async { drop(until.await) })
        },
    )
    .await
}

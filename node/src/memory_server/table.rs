//! A part of a hash table as the structure of a memory-server process.

use std::future::Future;

use fatbtree_memserver::grpc::ServiceOptions;
use fatbtree_memserver::{Handle, Origin, ServerOptions};
use fatbtree_race::Shape;
use fatbtree_race::host::grpc::{Emptying, serve};
use fatbtree_race::host::{
    HashTable, MakeOptions, TableFolder, TableInfo, TableStorage, kept, make_in, table_in,
};
use fatbtree_trust::Door;
use fatbtree_verbs::{Access, time};
use tokio::net::TcpListener;

use super::structure::{Hosted, Opened, Registered, Site};
use crate::NodeError;
use crate::adapter::Adapter;

/// Source of a server's part of a hash table at its start: empty, or what lies in its data folder. Clients fill it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashSource {
    /// Shape of the table, the same at all of its servers, which are numbered by their partitions.
    pub shape: Shape,
    /// Memory for what will be written, in bytes. It costs nothing until it is used.
    pub spare_bytes: u64,
}

/// Shortest time between two sweeps for blocks that clients have lost.
const RECLAIM: time::Duration = time::Duration::from_secs(30);

impl Hosted for HashSource {
    type Tenant = HashTable;
    type Services = Emptying;

    fn open(self, site: Site<'_>, _: &mut Adapter) -> Result<Opened<HashTable, Emptying>, NodeError> {
        let Self { shape, spare_bytes } = self;
        // Slots are changed by atomics.
        let options = ServerOptions {
            access: Access::ALL,
            undecided_for: site.undecided_for,
            reclaim_every: RECLAIM,
            ..ServerOptions::writable()
        };
        let chunk_bytes = options.chunk_bytes;
        let mut storage = match &site.data {
            None => TableStorage::Memory,
            Some(path) => TableStorage::Folder(TableFolder::open(path, site.owner(), chunk_bytes)?.into()),
        };
        let found = match &storage {
            TableStorage::Folder(folder) => table_in(folder, chunk_bytes)?,
            TableStorage::Memory => None,
        };
        let content = match found {
            Some(found) if found.tenant.info().shape != shape => {
                let (found, expected) = (Box::new(found.tenant.info().shape), Box::new(shape));
                return Err(NodeError::OtherTable { found, expected });
            }
            Some(found) => found,
            None => {
                // No other memory of this server has had it.
                let (generation, origin) = (rand::random(), Origin::Begun);
                let make = MakeOptions {
                    spare_bytes,
                    generation,
                    origin,
                    chunk_bytes,
                    ..MakeOptions::new(site.described.partition, shape)
                };
                let made = make_in(&mut storage, &make)?;
                storage.keep(kept(&made))?;
                made
            }
        };
        Ok(Opened { content, options, services: Emptying { storage, spare_bytes, chunk_bytes } })
    }

    fn serve(
        services: Emptying,
        door: Door<TcpListener>,
        handle: Handle<HashTable>,
    ) -> impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static {
        serve(ServiceOptions::default(), services, door, handle, std::future::pending())
    }

    /// Keys of a table lie anywhere. Its clients' READs name addresses: switches have nothing to lead.
    fn registered(info: &TableInfo) -> Registered {
        Registered { low: 0, root: info.directory.raw(), is_led: false }
    }
}

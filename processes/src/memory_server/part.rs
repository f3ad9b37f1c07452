//! A part of a structure over all memory servers as the structure of a memory-server process.

use std::fmt;
use std::future::Future;

use fatbtree_memserver::grpc::{Describe as _, Emptying, ServiceOptions, serve_part};
use fatbtree_memserver::{
    Handle, Loaded, MakeInError, Origin, Part, PartOptions, ServerOptions, Storage, kept, make_in, part_in,
};
use fatbtree_trust::Door;
use fatbtree_verbs::Access;
use tokio::net::TcpListener;

use super::RECLAIM;
use super::structure::{Hosted, Opened, Registered, Site};
use crate::NodeError;
use crate::adapter::Adapter;

/// Source of a server's part of a structure at its start: empty, or what lies in its data folder. Clients fill it.
pub struct PartSource<P: Part> {
    /// Shape of the structure, the same at all of its servers, which are numbered by their partitions.
    pub shape: P::Shape,
    /// Memory for what will be written, in bytes. It costs nothing until it is used.
    pub spare_bytes: u64,
}

impl<P: Part> fmt::Debug for PartSource<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartSource").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl<P: Part> Clone for PartSource<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Part> Copy for PartSource<P> {}

impl<P: Part> PartialEq for PartSource<P> {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.spare_bytes == other.spare_bytes
    }
}

impl<P: Part> Hosted for PartSource<P> {
    type Tenant = P;
    type Services = Emptying<P>;

    fn open(self, site: Site<'_>, _: &mut Adapter) -> Result<Opened<P, Emptying<P>>, NodeError> {
        let Self { shape, spare_bytes } = self;
        // Entries are changed by atomics.
        let options = ServerOptions {
            access: Access::ALL,
            undecided_for: site.undecided_for,
            reclaim_every: RECLAIM,
            ..ServerOptions::writable()
        };
        let chunk_bytes = options.chunk_bytes;
        let mut storage: Storage<P::Counts> = site.storage(chunk_bytes)?;
        let found: Option<Loaded<P>> = match &storage {
            Storage::Folder(folder) => part_in(folder, chunk_bytes)?,
            Storage::Memory => None,
        };
        let content = match found {
            Some(found) => {
                let [has, expected] = [found.tenant.shape(), shape].map(|shape| shape.to_string());
                if P::shape_of_load(&shape, &has).is_none() {
                    let structure = P::Description::STRUCTURE;
                    return Err(NodeError::OtherShape { structure, found: has, expected });
                }
                found
            }
            None => {
                // No other memory of this server has had it.
                let (generation, origin) = (rand::random(), Origin::Begun);
                let make = PartOptions {
                    spare_bytes,
                    generation,
                    origin,
                    chunk_bytes,
                    ..PartOptions::new(site.described.partition, shape)
                };
                let made = make_in::<P>(&mut storage, &make).map_err(|error| match error {
                    MakeInError::Make(error) => {
                        NodeError::Make { structure: P::Description::STRUCTURE, source: error.into() }
                    }
                    MakeInError::Folder(error) => error.into(),
                })?;
                storage.keep(kept(&made))?;
                made
            }
        };
        let run = storage.run();
        Ok(Opened { content, options, services: Emptying { storage, shape, spare_bytes, chunk_bytes }, run })
    }

    fn serve(
        services: Emptying<P>,
        door: Door<TcpListener>,
        handle: Handle<P>,
    ) -> impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static {
        serve_part(ServiceOptions::default(), services, door, handle, std::future::pending())
    }

    /// Keys lie anywhere, and clients' READs name addresses: switches have nothing to lead.
    fn registered(info: &P::Description) -> Registered {
        Registered { low: 0, first_key: None, root: P::begin(info).raw(), is_led: false }
    }
}

//! The seam between a memory-server process and the structure that it serves.
//!
//! ```text
//!   MemoryServerProcess                                  Hosted: TreeSource, PartSource
//!   port, NIC, gRPC listener, registrar, metrics         what the structure needs beside the memory server
//!   ──────────────────────────────────────────────────────────────────────────────────────────────────
//!   how many threads share the device? ────────────────► threads
//!   content in memory, or from the data folder ────────► open
//!   threads beside the NIC ────────────────────────────► start
//!   gRPC services ─────────────────────────────────────► serve
//!   what the controller is told ───────────────────────► place
//! ```

use std::fmt;
use std::future::Future;
use std::path::PathBuf;

use fatbtree_memserver::grpc::Describe;
use fatbtree_memserver::{
    Counts, Folder, FolderError, FolderOwner, Handle, Keeping, Loaded, MemoryServer, MomentsFile, Seal,
    ServerOptions, Storage, Tenant,
};
use fatbtree_topology::{Host, MemoryServer as Described};
use fatbtree_trust::Door;
use fatbtree_verbs::time;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::queries::Workers;
use crate::NodeError;
use crate::adapter::Adapter;

/// Place of a memory server whose content is opened.
#[derive(Debug)]
pub struct Site<'s> {
    /// Its description in the cluster file.
    pub described: &'s Described,
    /// Its host's addresses.
    pub host: &'s Host,
    /// Folder in which it keeps its content.
    pub data: Option<PathBuf>,
    /// How it keeps its content there.
    pub keeping: Keeping,
    /// Time for which a server that begins empty waits for a controller.
    pub undecided_for: time::Duration,
}

impl Site<'_> {
    /// Opens the data folder, if the server has one.
    pub(super) fn storage<C: Counts>(&self, chunk_bytes: u64) -> Result<Storage<C>, FolderError> {
        Ok(match &self.data {
            None => Storage::Memory,
            Some(path) => {
                let folder = Folder::open_with(path, self.owner(), chunk_bytes, self.keeping.clone())?;
                Storage::Folder(folder.into())
            }
        })
    }

    /// Owner of the data folder.
    fn owner(&self) -> FolderOwner {
        FolderOwner {
            server: self.described.name.clone(),
            partition: self.described.partition,
            address: self.host.ip,
        }
    }
}

/// Content of a memory server, and what goes with it.
#[derive(Debug)]
pub struct Opened<T, S> {
    /// Region and structure.
    pub content: Loaded<T>,
    /// Options of the memory server.
    pub options: ServerOptions,
    /// State of the structure's services.
    pub services: S,
    /// Files of the server's run, if it has a data folder.
    pub run: Option<(MomentsFile, Seal)>,
}

/// Data of a server for the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registered {
    /// First key of the partition.
    pub low: u64,
    /// The same in bytes, if keys are bytes; `low` is its word then.
    pub first_key: Option<Vec<u8>>,
    /// Address of the root.
    pub root: u64,
    /// Whether switches lead index reads: then connections are registered with them.
    pub is_led: bool,
}

/// A structure that a memory-server process can serve.
pub trait Hosted: Sized + 'static {
    /// The structure.
    type Tenant: Tenant<Description: Describe + fmt::Display + Send + Sync, Request: Send> + Send + 'static;
    /// State of its services.
    type Services: Send + 'static;

    /// Threads that share the device.
    fn threads(&self) -> usize {
        1
    }

    /// Opens what the structure needs beside the device, and makes its content or finds it in the data folder.
    ///
    /// # Errors
    /// When the content cannot be made, or is damaged.
    fn open(
        self,
        site: Site<'_>,
        adapter: &mut Adapter,
    ) -> Result<Opened<Self::Tenant, Self::Services>, NodeError>;

    /// Starts threads beside the memory server's, if the structure has any.
    ///
    /// # Errors
    /// When the system gives none.
    fn start(
        _services: &mut Self::Services,
        _control: &Runtime,
        _server: &MemoryServer<Adapter, Self::Tenant>,
        _handle: &Handle<Self::Tenant>,
    ) -> Result<Option<Workers>, NodeError> {
        Ok(None)
    }

    /// Serves gRPC to the end of the process.
    fn serve(
        services: Self::Services,
        door: Door<TcpListener>,
        handle: Handle<Self::Tenant>,
    ) -> impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static;

    /// Data for the controller.
    fn registered(info: &<Self::Tenant as Tenant>::Description) -> Registered;
}

//! The seam between a client process and the structure that its client works on.
//!
//! ```text
//!   ClientProcess                                        StructureClient: fatbtree_blink_client::Client, SpreadClient
//!   device, port, sessions over gRPC, waiting            operations, and what they must know of the servers
//!   ──────────────────────────────────────────────────────────────────────────────────────────────────
//!   the servers' descriptions, at the start ───────────► open
//!   sessions and connections ──────────────────────────► kept
//!   completions have come ─────────────────────────────► turn
//!   a server's next session, with its description ─────► believe
//!   reports to the controller ◄───────────────────────── report
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;

use fatbtree_controller::grpc::ClientReport;
use fatbtree_memserver::ServerInfo;
use fatbtree_memserver::grpc::Describe;
use fatbtree_remote_memory::{ConnectionId, Kept, RemoteMemory, Structure};
use fatbtree_topology::MemoryServer;
use fatbtree_verbs::time::Instant;

use super::ClientOptions;
use crate::NodeError;
use crate::adapter::Adapter;
use crate::metrics::Metrics;

/// Descriptions of memory servers, by partition.
pub type Infos<S> = BTreeMap<u16, ServerInfo<S>>;

/// Others must be asked again: what they said does not go with what a server has said since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DoubtOthers;

/// A client of a structure, as a process runs it. A clone is the same client.
pub trait StructureClient: Structure + Clone + 'static {
    /// A server's description of the structure.
    type Info: Describe + Send + Copy + 'static;
    /// Memory whose sessions are kept.
    type Kept: Kept<Verbs = Adapter>;

    /// A client on a device, with no session. A server without a description is away, and [admitted](Self::admit) when it comes.
    ///
    /// # Errors
    /// When the servers do not fit together.
    fn open(
        adapter: Adapter,
        infos: &Infos<Self::Info>,
        servers: &[MemoryServer],
        options: &ClientOptions,
        seed: u64,
    ) -> Result<Self, NodeError>;

    /// The memory, for its keeper.
    fn kept(&self) -> &Self::Kept;

    /// The memory of all servers.
    fn remote(&self) -> &RemoteMemory<Adapter> {
        self.kept().remote()
    }

    /// Takes what has come by `now`.
    fn turn(&self, now: Instant);

    /// Looks whether a server that was away in the beginning can be used with the others, before it is
    /// [believed](Self::believe).
    ///
    /// # Errors
    /// When it cannot. By default all is compared when it is believed.
    fn admit(&self, _info: &ServerInfo<Self::Info>) -> Result<(), NodeError> {
        Ok(())
    }

    /// Takes the description of a server in a new session.
    ///
    /// # Errors
    /// When it does not go with what others have said.
    fn believe(&self, server: u16, infos: &Infos<Self::Info>) -> Result<(), DoubtOthers>;

    /// Opens the structure, if it is not open.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn ready(&self) -> impl Future<Output = Result<(), Self::Error>>;

    /// Releases what dropped operations have left.
    fn finish(&self) -> impl Future<Output = ()> + 'static;

    /// Walks over the whole structure and checks it, while nothing changes it. Returns what it finds, in words.
    ///
    /// # Errors
    /// The first fault.
    fn verify(&self) -> impl Future<Output = Result<String, Box<dyn Error + Send + Sync>>>;

    /// Begins to sample what the controller wants to know. Says whether there is anything: by default not, and switches have nothing to
    /// lead.
    fn begin_reports(&self, _keys: usize, _seed: u64) -> bool {
        false
    }

    /// What the client was asked for since the last report.
    fn report(&self) -> ClientReport {
        ClientReport::default()
    }

    /// Lets index reads go over a connection that the controller has registered.
    fn set_registered(&self, _id: ConnectionId) {}

    /// Whether index reads are sent to all memory servers.
    fn is_registered(&self) -> bool {
        false
    }

    /// Adds what the client counts beside its memory.
    fn metrics(&self, _metrics: &mut Metrics) {}
}

//! A tree as the structure of a memory-server process.

use std::future::Future;

use fatbtree_blink::{Integrity, KeyRange, Keys, TreeConfig};
use fatbtree_blink_host::grpc::{Loading, TreeServiceOptions, serve_with};
use fatbtree_blink_host::{
    Blink, Load, LoadOptions, LoadedTree, TreeHandle, TreeInfo, TreeServer, TreeStorage, build_in, seeded,
    sort_keys, tree_in,
};
use fatbtree_memserver::ServerOptions;
use fatbtree_query::Secret;
use fatbtree_topology::MemoryServer as Described;
use fatbtree_trust::Door;
use fatbtree_verbs::Device as _;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::RECLAIM;
use super::queries::{Queries, QueryOptions, Workers};
use super::structure::{Hosted, Opened, Registered, Site};
use crate::NodeError;
use crate::adapter::Adapter;

/// Source of a server's tree at its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeSource {
    /// Keys of the server's partition, in any order. Without keys, the tree is empty until it is loaded over gRPC, or clients insert.
    pub keys: Vec<u64>,
    /// Bytes of each value.
    pub value_bytes: u32,
    /// Seed of the values, which follow from it and the key: see [`fatbtree_blink::value`].
    pub seed: u64,
    /// The tree's shape; with checksums, where the device tears lines or the tree lies in a folder.
    pub config: TreeConfig,
    /// Memory for what will be written, in bytes. It costs nothing until it is used.
    pub spare_bytes: u64,
    /// Largest region that a load may give the server, in bytes.
    pub region_bytes: u64,
    /// Options for queries, if the server answers any.
    ///
    /// The tree then has checksums, because worker threads and the NIC do not access cache lines atomically with respect to each other.
    pub queries: Option<QueryOptions>,
}

/// State of a tree's services.
pub struct TreeServices {
    queries: Option<Queries>,
    secret: Option<Secret>,
    answers_queries: bool,
    loading: Loading,
}

impl Hosted for TreeSource {
    type Tenant = Blink;
    type Services = TreeServices;

    fn threads(&self) -> usize {
        self.queries.as_ref().map_or(1, QueryOptions::threads)
    }

    fn open(
        mut self,
        site: Site<'_>,
        adapter: &mut Adapter,
    ) -> Result<Opened<Blink, TreeServices>, NodeError> {
        let queries = self.queries.take();
        let (secret, answers_queries) =
            (queries.as_ref().and_then(|queries| queries.secret), queries.is_some());
        let queries = queries.map(|queries| Queries::open(queries, site.host, adapter)).transpose()?;
        let options = ServerOptions {
            local_clients: queries.is_some(),
            undecided_for: site.undecided_for,
            reclaim_every: RECLAIM,
            ..ServerOptions::writable()
        };
        let mut storage = site.storage(options.chunk_bytes)?;
        let (spare_bytes, region_bytes) = (self.spare_bytes, self.region_bytes);
        // A disk that damages what it keeps is noticed by readers then.
        let on_disk = matches!(storage, TreeStorage::Folder(_));
        let needs_sums = on_disk || queries.is_some() || !adapter.capabilities().line_atomicity;
        let tree = if needs_sums { with_checksums(self)? } else { self };
        let content = first_tree(&mut storage, tree, site.described)?.into();
        let run = storage.run();
        let loading = Loading { storage, region_bytes, spare_bytes, ..Loading::in_memory() };
        Ok(Opened {
            content,
            options,
            services: TreeServices { queries, secret, answers_queries, loading },
            run,
        })
    }

    fn start(
        services: &mut TreeServices,
        control: &Runtime,
        server: &TreeServer<Adapter>,
        handle: &TreeHandle,
    ) -> Result<Option<Workers>, NodeError> {
        match (services.queries.take(), server.local()) {
            (Some(queries), Some(host)) => Ok(Some(queries.start(control, host, server.info(), handle)?)),
            _ => Ok(None),
        }
    }

    fn serve(
        services: TreeServices,
        door: Door<TcpListener>,
        handle: TreeHandle,
    ) -> impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static {
        let TreeServices { secret: query_secret, answers_queries, .. } = services;
        let options = TreeServiceOptions { query_secret, answers_queries, ..TreeServiceOptions::default() };
        serve_with(options, Some(services.loading), door, handle, std::future::pending())
    }

    fn registered(info: &TreeInfo) -> Registered {
        let (low, root) = (info.partition.range.low, info.partition.root.raw());
        let are_bytes = info.config.keys() == Keys::Bytes;
        let first_key = are_bytes.then(|| info.config.code().shortest_key(low));
        Registered { low, first_key, root, is_led: true }
    }
}

/// Source of a new tree with checksums: needed if lines may be torn, or lie on a disk.
fn with_checksums(source: TreeSource) -> Result<TreeSource, NodeError> {
    Ok(TreeSource { config: source.config.protected_by(Integrity::Checksums)?, ..source })
}

/// The tree that a server begins with: the one in its folder, or a new one.
fn first_tree(
    storage: &mut TreeStorage,
    source: TreeSource,
    described: &Described,
) -> Result<LoadedTree, NodeError> {
    if let TreeStorage::Folder(folder) = &*storage
        && let Some(tree) = tree_in(folder)?
    {
        return Ok(tree);
    }
    let TreeSource { mut keys, value_bytes, seed, config, spare_bytes, .. } = source;
    let range = KeyRange { low: described.low, high: described.high.checked_add(1) };
    // No other memory of this server has had it: what the switches know of that is of no use any more.
    let generation = rand::random();
    let options =
        LoadOptions { range, spare_bytes, generation, ..LoadOptions::new(config, described.partition) };
    sort_keys(&mut keys)?;
    let tree = build_in(storage, &options, u64::MAX, Load::Numbers(&keys, &mut seeded(seed, value_bytes)))?;
    storage.keep(tree.kept())?;
    Ok(tree)
}

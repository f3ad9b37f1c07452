//! The controller's part: snapshots, the plan, the push; and the client's connections.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use fatbtree_client::workload::Workload;
use fatbtree_controller::{
    Budget, Connection, Connections, Fleet, FleetOptions, Frequencies, OnProgress, Placement, Plan, Programs,
    PushReport, ReloadSteps, Tree, cluster_base,
};
use fatbtree_index::{RemoteSide, TreeTop};
use fatbtree_memserver::grpc;
use fatbtree_topology::Cluster;

use super::arguments::Settings;
use super::data_path::DataPathThreads;

/// Lookups that the planner sees before the run, drawn from another seed than the run's.
const SAMPLES: u64 = 200_000;

/// The control plane: connections to every switch and memory server.
pub(super) struct Control {
    cluster: Cluster,
    placement: Placement,
    fleet: Fleet,
    servers: Vec<grpc::Client>,
    connections: Connections,
}

/// A plan and how long it took.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) seconds: f64,
}

impl Control {
    /// Connects to everything the cluster file names, loads the P4 program and the routes.
    pub(super) async fn bring_up(cluster: Cluster) -> Result<Self> {
        let fleet = Fleet::connect(&cluster, &Programs::v1model()?, FleetOptions::default()).await?;
        fleet.set_pipeline().await?;
        let placement = Placement::of(&cluster);
        fleet.load_base(&cluster_base(&cluster)).await?;
        let mut servers = Vec::new();
        for server in cluster.servers() {
            let client =
                grpc::Client::connect(&format!("http://{}", server.grpc)).await.with_context(|| {
                    format!("memory server of partition {} at {}", server.partition, server.grpc)
                })?;
            servers.push(client);
        }
        Ok(Self { cluster, placement, fleet, servers, connections: Connections::new() })
    }

    /// Takes the trees' tops and plans the caches for the workload.
    pub(super) async fn plan(&mut self, settings: &Settings) -> Result<Planned> {
        let mut tops: Vec<TreeTop> = Vec::new();
        for server in &mut self.servers {
            tops.push(server.snapshot().await?);
        }
        let mut sampler = Workload::new(&settings.spec, settings.key_map.clone(), settings.seed ^ 0x5a5a)?;
        let sample = (0..SAMPLES).map(|_| Ok(sampler.next_operation()?.key)).collect::<Result<Vec<u64>>>()?;
        let budget =
            Budget { fat_root_ranges: settings.fat_root, set_nodes: settings.set_nodes, ..Budget::bmv2() };
        let started = Instant::now();
        let tree = Tree::new(&tops)?;
        let frequencies = Frequencies::from_keys(&tree, &sample);
        let plan = Plan::new(self.cluster.tree(), &self.placement, &tree, &frequencies, &budget, 1)?;
        Ok(Planned { plan, seconds: started.elapsed().as_secs_f64() })
    }

    /// Loads the plan into the switches.
    pub(super) async fn push(&self, plan: &Plan, progress: OnProgress) -> Result<PushReport> {
        Ok(self.fleet.reload(&ReloadSteps::new(None, plan)?, Some(progress)).await?)
    }

    /// Opens a session with every memory server and keeps it, connects the client to each, and registers each connection at the
    /// client's edge switch.
    pub(super) async fn connect_client(&mut self, data_path: &Arc<DataPathThreads>) -> Result<()> {
        let client_host = self.cluster.clients().first().context("the cluster has no client")?.host;
        for id in data_path.call(|path| path.client().pool().connections())? {
            let server = &mut self.servers[usize::from(id.server)];
            let info = server.info().await?;
            let local = data_path.call(move |path| path.client().pool().open(id))??;
            let session = server.open_session(local.ip).await?;
            tokio::spawn(server.clone().keep_session(session));
            let endpoint = server.connect_queue_pair(session, local, None).await?;
            let rkey = info.tree.rkey;
            let registered = Connection {
                client: client_host,
                partition: id.server,
                dest_qp: endpoint.queue_pair.0,
                rkey,
                root: info.partition.root.raw(),
            };
            let (switch, change) =
                self.connections.register(self.cluster.tree(), &self.placement, registered)?;
            if let Some(change) = change {
                self.fleet.apply(&[(switch, vec![change])].into(), None).await?;
            }
            let side = RemoteSide { endpoint, rkey, registered: true };
            data_path.call(move |path| path.client().pool().connected(id, side))??;
        }
        Ok(())
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

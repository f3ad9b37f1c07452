//! The controller's part: snapshots, plans, reloads; and the client's connections.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use fatbtree_controller::{
    Budget, Connection, Connections, Fleet, FleetOptions, FollowOptions, Follower, Frequencies, HotKeys,
    Located, OnProgress, Placement, Plan, Programs, PushReport, ReloadSteps, Tree, by_partition,
    cluster_base, in_leaves, next_epoch, probe,
};
use fatbtree_index::{IndexCache, RemoteSide, TreeTop};
use fatbtree_memserver::grpc;
use fatbtree_topology::Cluster;
use fatbtree_verbs::Device;

use super::data_path::DataPathThreads;
use super::memory::Porter;

/// The control plane: connections to every switch and memory server, and the plan in force.
pub(super) struct Control {
    cluster: Cluster,
    placement: Placement,
    fleet: Fleet,
    servers: Vec<grpc::Client>,
    connections: Connections,
    budget: Budget,
    in_force: Option<Plan>,
}

/// A plan, how long it took, and what it holds.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) seconds: f64,
    /// Inner nodes of the tree.
    pub(super) inner_nodes: usize,
    /// Those of them that the switches hold.
    pub(super) held_nodes: usize,
    /// Bytes that all inner nodes take in a client's cache.
    pub(super) inner_bytes: u64,
}

impl Control {
    /// Connects to everything the cluster file names, loads the P4 program and the routes. Plans will keep within `budget`.
    pub(super) async fn bring_up(cluster: Cluster, budget: Budget) -> Result<Self> {
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
        let connections = Connections::of(&cluster);
        Ok(Self { cluster, placement, fleet, servers, connections, budget, in_force: None })
    }

    async fn tops(&mut self) -> Result<Vec<TreeTop>> {
        let mut tops = Vec::new();
        for server in &mut self.servers {
            tops.push(server.snapshot().await?);
        }
        Ok(tops)
    }

    /// Where keys lie.
    async fn locate(&mut self, tree: &Tree, keys: &[u64]) -> Result<Vec<Located>> {
        let mut located = Vec::new();
        for (partition, keys) in by_partition(tree, keys) {
            let (first, rest) = probe(&keys);
            let found = self.ask(partition, first).await?;
            match in_leaves(tree, &found, rest) {
                Some(others) => located.extend(others),
                None => located.extend(self.ask(partition, rest).await?),
            }
            located.extend(found);
        }
        Ok(located)
    }

    async fn ask(&mut self, partition: u16, keys: &[u64]) -> Result<Vec<Located>> {
        let places = self.servers[usize::from(partition)].locate(keys).await?;
        Ok(Located::known(keys, places.into_iter().map(|at| Some(at?.raw()))))
    }

    /// Who follows the tree from the plan in force on.
    pub(super) fn follower(&self, options: FollowOptions) -> Result<Follower> {
        let in_force = self.in_force.clone().context("no plan is loaded")?;
        Ok(Follower::new(self.cluster.tree(), &self.placement, in_force, options))
    }

    /// Loads the next plan, if the follower finds it worth its entries. Says how many changes that took, in all switches. Time is
    /// counted from `since` on.
    pub(super) async fn follow(&mut self, follower: &mut Follower, since: Instant) -> Result<usize> {
        let Some(due) = follower.due() else { return Ok(0) };
        tokio::time::sleep(due.saturating_sub(since.elapsed())).await;
        let (tops, counters) = (self.tops().await?, self.fleet.read_counters().await?);
        let tree = Tree::new(&tops)?;
        let located = self.locate(&tree, &follower.hot_candidates(&tree)).await?;
        let Some(next) = follower.replan(since.elapsed(), &tops, counters, &located)? else { return Ok(0) };
        let report = self.fleet.reload(&next.steps, None).await?;
        self.in_force = Some(next.plan.clone());
        follower.loaded(next.plan);
        Ok(report.updates)
    }

    /// Takes the trees' tops and plans the caches. What is known of the visits is what the switches have counted under the plan in
    /// force, and the keys that the client has sampled; at first nothing.
    pub(super) async fn plan(&mut self, sampled: &[u64]) -> Result<Planned> {
        let tops = self.tops().await?;
        let visits = match &self.in_force {
            Some(plan) => plan.visits(self.fleet.read_counters().await?, sampled),
            None => Vec::new(),
        };
        let tree = Tree::new(&tops)?;
        let epoch = self.in_force.as_ref().map_or(1, |plan| next_epoch(plan.epoch()));
        let started = Instant::now();
        let plan = self.plan_of(&tree, &visits, epoch)?;
        let candidates = plan.hot_candidates(&tree, &visits);
        let planned = started.elapsed();
        let located = self.locate(&tree, &candidates).await?;
        let started = Instant::now();
        let room = self.budget.hot_keys;
        let (hot, rest) = HotKeys::choose(&tree, &visits, &located, room, self.in_force.as_ref());
        let plan = if rest.len() < visits.len() { self.plan_of(&tree, &rest, epoch)? } else { plan };
        let plan = plan.with_hot_keys(hot);
        let seconds = (planned + started.elapsed()).as_secs_f64();
        let nodes = tops.iter().flat_map(|top| &top.nodes);
        let inner_bytes = nodes.map(|node| IndexCache::entry_bytes(node.children.len())).sum();
        let (inner_nodes, held_nodes) = (tree.node_count(), plan.held_nodes(&tree));
        Ok(Planned { plan, seconds, inner_nodes, held_nodes, inner_bytes })
    }

    fn plan_of(&self, tree: &Tree, visits: &[(u64, u64)], epoch: u8) -> Result<Plan> {
        let frequencies = Frequencies::from_weighted(tree, visits);
        let topology = self.cluster.tree();
        Ok(Plan::new(topology, &self.placement, tree, &frequencies, &self.budget, epoch)?)
    }

    /// Loads a plan into the switches beside the one in force, and takes that away.
    pub(super) async fn load(&mut self, plan: &Plan, progress: OnProgress) -> Result<PushReport> {
        let steps = ReloadSteps::new(self.in_force.as_ref(), plan)?;
        let report = self.fleet.reload(&steps, Some(progress)).await?;
        self.in_force = Some(plan.clone());
        Ok(report)
    }

    /// Updates that loading a plan takes.
    pub(super) fn updates(&self, plan: &Plan) -> Result<usize> {
        Ok(ReloadSteps::new(self.in_force.as_ref(), plan)?.len())
    }

    /// Opens a session with every memory server and keeps it, connects the client to each, registers each connection at the
    /// client's edge switch, lets the client lock and write, and has memory brought to it.
    pub(super) async fn connect_client(
        &mut self,
        data_path: &Arc<DataPathThreads>,
        porter: Porter,
    ) -> Result<()> {
        let client_host = self.cluster.clients().first().context("the cluster has no client")?.host;
        let mut sessions = Vec::new();
        for id in data_path.call(|path| path.client().pool().connections())? {
            let server = &mut self.servers[usize::from(id.server)];
            let info = server.info().await?;
            let local = data_path.call(move |path| path.client().pool().open(id))??;
            let session = server.open_session(local.ip).await?;
            tokio::spawn(server.clone().keep_session(session));
            sessions.push((server.clone(), session));
            let local_mtu = local.mtu;
            let endpoint = server.connect_queue_pair(session, local, None).await?;
            let rkey = info.tree.rkey;
            let registered = Connection {
                client: client_host,
                partition: id.server,
                dest_qp: endpoint.queue_pair.0,
                rkey,
                root: info.partition.root.raw(),
                mtu: endpoint
                    .mtu
                    .min(local_mtu)
                    .bytes()
                    .try_into()
                    .context("an MTU is 4096 bytes at most")?,
            };
            let (switch, change) =
                self.connections.register(self.cluster.tree(), &self.placement, registered)?;
            if let Some(change) = change {
                self.fleet.apply(&[(switch, vec![change])].into(), None).await?;
            }
            let side = RemoteSide { endpoint, rkey, registered: true };
            data_path.call(move |path| {
                let pool = path.client().pool();
                let masked_atomics = pool.reactor().with(|nic| nic.capabilities().masked_atomics);
                let writer =
                    info.writer(session.owner, masked_atomics).context("the memory server has no locks")?;
                pool.set_writer(id.server, writer)?;
                Ok::<_, anyhow::Error>(pool.connected(id, side)?)
            })??;
        }
        tokio::spawn(porter.serve(sessions));
        Ok(())
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

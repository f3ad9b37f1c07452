//! The controller's part: snapshots, plans, reloads; and the client's connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fatbtree_blink::{IndexCache, TreeTop};
use fatbtree_blink_host::grpc::TreeCalls as _;
use fatbtree_controller::{
    Budget, Controller, Fleet, FleetOptions, FollowOptions, Follower, Frequencies, HotKeys, Keeper, Located,
    OnProgress, Placement, Plan, Programs, PushReport, Tree, by_partition, in_leaves, probe,
};
use fatbtree_memserver::grpc;
use fatbtree_topology::Cluster;
use fatbtree_verbs::time;

use super::data_path::DataPathThreads;
use super::sessions::Carrier;

/// Connections that a first switch has room for; the demo has one for each memory server.
const CONNECTIONS: usize = 1_000;

/// Interval in which the control plane looks whether a connection is up.
const LOOK: Duration = Duration::from_millis(1);

/// The control plane: connections to every switch and memory server, and the active plan.
pub(super) struct Control {
    cluster: Cluster,
    placement: Placement,
    fleet: Fleet,
    servers: Vec<grpc::Client>,
    controller: Controller,
    keepers: Vec<Keeper>,
    budget: Budget,
}

/// A plan, how long it took, and what it holds.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) seconds: f64,
    /// Inner nodes of the tree.
    pub(super) inner_nodes: usize,
    /// Inner nodes that the switches hold.
    pub(super) held_nodes: usize,
    /// Bytes that all inner nodes take in a client's cache.
    pub(super) inner_bytes: u64,
}

impl Control {
    /// Connects to everything the cluster file names, loads the P4 program and the routes. Plans will keep within `budget`.
    pub(super) async fn bring_up(cluster: Cluster, budget: Budget) -> Result<Self> {
        let fleet = Fleet::connect(&cluster, &Programs::v1model()?, FleetOptions::default()).await?;
        let placement = Placement::of(&cluster);
        let (mut controller, mut keepers) = (Controller::new(&cluster, CONNECTIONS, 0), Vec::new());
        fleet.settle(&mut controller, &mut keepers, None).await?;
        let mut servers = Vec::new();
        for server in cluster.servers() {
            let client =
                grpc::Client::connect(&format!("http://{}", server.grpc)).await.with_context(|| {
                    format!("memory server of partition {} at {}", server.partition, server.grpc)
                })?;
            servers.push(client);
        }
        Ok(Self { cluster, placement, fleet, servers, controller, keepers, budget })
    }

    fn active(&self) -> Option<&Plan> {
        self.controller.plan().map(|(loaded, _)| loaded.plan())
    }

    async fn tops(&mut self) -> Result<Vec<TreeTop>> {
        let mut tops = Vec::new();
        for server in &mut self.servers {
            tops.push(server.snapshot().await?);
        }
        Ok(tops)
    }

    /// Places of keys.
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

    /// A follower of the tree from the active plan on.
    pub(super) fn follower(&self, options: FollowOptions) -> Result<Follower> {
        let active = self.active().cloned().context("no plan is loaded")?;
        Ok(Follower::new(self.cluster.tree(), &self.placement, active, options))
    }

    /// Loads the next plan, if the follower finds it worth its entries. Says how many changes that took, in all switches. Time is
    /// counted from `since` on.
    pub(super) async fn follow(&mut self, follower: &mut Follower, since: Instant) -> Result<usize> {
        let now = || time::Instant::ZERO + since.elapsed().into();
        let Some(due) = follower.poll_timeout() else { return Ok(0) };
        tokio::time::sleep((due - now()).into()).await;
        let (tops, counters) = (self.tops().await?, self.fleet.read_counters().await?);
        let tree = Tree::new(&tops)?;
        let located = self.locate(&tree, &follower.hot_candidates(&tree)).await?;
        let Some(next) = follower.replan(now(), &tops, counters, &located)? else { return Ok(0) };
        self.controller.load(next.plan, self.controller.trees())?;
        let report = self.fleet.settle(&mut self.controller, &mut self.keepers, None).await?;
        follower.loaded(self.active().cloned().context("no plan is loaded")?);
        Ok(report.updates)
    }

    /// Takes the trees' tops and plans the caches. Visits are known from the switches' counters under the active plan
    /// and from the keys that the client has sampled. At first there are none.
    pub(super) async fn plan(&mut self, sampled: &[u64]) -> Result<Planned> {
        let tops = self.tops().await?;
        let visits = match self.active() {
            Some(plan) => plan.visits(self.fleet.read_counters().await?, sampled),
            None => Vec::new(),
        };
        let tree = Tree::new(&tops)?;
        let started = Instant::now();
        let plan = self.plan_of(&tree, &visits)?;
        let candidates = plan.hot_candidates(&tree, &visits);
        let planned = started.elapsed();
        let located = self.locate(&tree, &candidates).await?;
        let started = Instant::now();
        let room = self.budget.hot_keys;
        let (hot, rest) = HotKeys::choose(&tree, &visits, &located, room, self.active());
        let plan = if rest.len() < visits.len() { self.plan_of(&tree, &rest)? } else { plan };
        let plan = plan.with_hot_keys(hot);
        let seconds = (planned + started.elapsed()).as_secs_f64();
        let nodes = tops.iter().flat_map(|top| &top.nodes);
        let inner_bytes = nodes.map(|node| IndexCache::entry_bytes(node.children.len())).sum();
        let (inner_nodes, held_nodes) = (tree.node_count(), plan.held_nodes(&tree));
        Ok(Planned { plan, seconds, inner_nodes, held_nodes, inner_bytes })
    }

    fn plan_of(&self, tree: &Tree, visits: &[(u64, u64)]) -> Result<Plan> {
        let frequencies = Frequencies::from_weighted(tree, visits);
        let topology = self.cluster.tree();
        // The controller gives it its epoch.
        Ok(Plan::new(topology, &self.placement, tree, &frequencies, &self.budget, 1)?)
    }

    /// Accepts a plan. Says how many entries loading it changes.
    pub(super) fn begin_load(&mut self, plan: Plan) -> Result<usize> {
        self.controller.load(plan, self.controller.trees())?;
        let (new, ..) = self.controller.reload().context("the reload is not under way")?;
        Ok(new.changes_from(self.controller.plan().map(|(loaded, _)| &**loaded)))
    }

    /// Loads the plan that was accepted into the switches beside the active one, and takes that away.
    pub(super) async fn load(&mut self, progress: OnProgress) -> Result<(Plan, PushReport)> {
        let report = self.fleet.settle(&mut self.controller, &mut self.keepers, Some(progress)).await?;
        Ok((self.active().cloned().context("no plan is loaded")?, report))
    }

    /// Connects the client to every memory server: carries the calls of its session keeper, and registers each queue pair at the client's
    /// edge switch.
    pub(super) async fn connect_client(
        &mut self,
        data_path: &Arc<DataPathThreads>,
        carrier: Carrier,
    ) -> Result<()> {
        let roce = data_path.call(|path| path.client().pool().reactor().with(|nic| nic.config().ip))?;
        tokio::spawn(carrier.serve(self.servers.clone(), roce));
        for id in data_path.call(|path| path.client().pool().connections())? {
            let registration = loop {
                match data_path.call(move |path| path.registration(id))?? {
                    Some(registration) => break registration,
                    None => tokio::time::sleep(LOOK).await,
                }
            };
            self.controller.opened(id.server, registration);
            self.fleet.settle(&mut self.controller, &mut self.keepers, None).await?;
            data_path.call(move |path| path.client().pool().set_registered(id, true))??;
        }
        Ok(())
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

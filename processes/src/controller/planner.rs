//! Making plans: from the trees as they are now, and what is known of the visits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fatbtree_blink::{SuperRoot, TreeTop};
use fatbtree_blink_host::KeyPlaces;
use fatbtree_controller::{
    Budget, Entry, Fleet, Follower, Frequencies, Generations, HotKeys, Loaded, Located, Made, Placement,
    Plan, Programs, PushError, Replanned, Tree, by_partition, in_leaves, probe,
};

use fatbtree_blink_host::grpc::TreeCalls as _;
use fatbtree_memserver::grpc;
use fatbtree_memserver::grpc::Deadlines;
use fatbtree_topology::{Cluster, SwitchId};
use fatbtree_trust::Trust;
use fatbtree_verbs::time::Instant;
use tokio::task::JoinSet;

use super::keeper::Reachable;

/// Time limits for answers of memory servers.
const DEADLINES: Deadlines = Deadlines { connect: Duration::from_secs(2), call: Duration::from_secs(4) };
/// Time between two looks at the switches' counters, when only what is asked for now counts.
const GLANCE: Duration = Duration::from_secs(1);

/// Counters of switches.
pub(super) type Counted = Vec<(SwitchId, Entry, u64)>;

/// Sources of every plan.
#[derive(Clone)]
pub(super) struct Planner {
    pub(super) trust: Trust,
    pub(super) cluster: Arc<Cluster>,
    pub(super) placement: Placement,
    pub(super) programs: Programs,
    pub(super) budget: Budget,
    pub(super) reachable: Reachable,
}

impl Planner {
    /// Trees as the memory servers read them now.
    async fn tops(&self) -> Result<Vec<TreeTop>, String> {
        let mut tasks = JoinSet::new();
        for server in self.cluster.servers() {
            let (name, to) = (server.name.clone(), self.trust.to(&server.grpc, &server.name));
            tasks.spawn(async move {
                let top = async { grpc::Client::connect_with(to, DEADLINES).await?.snapshot().await };
                top.await.map_err(|error| format!("memory server {name}: {error}"))
            });
        }
        let tops: Vec<TreeTop> = tasks.join_all().await.into_iter().collect::<Result<_, String>>()?;
        if let Err(error) = SuperRoot::new(tops.iter().map(|top| top.partition).collect()) {
            return Err(format!(
                "the memory servers' partitions do not fit together: {error}; is a [[memory_server]] missing from the cluster file, or was a \
                 load broken off? `fatbtree load --replace` fills them all"
            ));
        }
        Ok(tops)
    }

    /// Places of keys, as far as memory servers answer in time: an index read without an entry of its own goes the way of all others.
    async fn locate(&self, tree: &Arc<Tree>, keys: &[u64]) -> Vec<Located> {
        let mut tasks = JoinSet::new();
        for (partition, keys) in by_partition(tree, keys) {
            let Some(server) = self.cluster.server(partition) else { continue };
            let (name, to) = (server.name.clone(), self.trust.to(&server.grpc, &server.name));
            let tree = Arc::clone(tree);
            tasks.spawn(async move {
                let located = async {
                    let mut server = grpc::Client::connect_with(to, DEADLINES).await?;
                    let (first, rest) = probe(&keys);
                    let mut found = located(first, server.locate(first).await?);
                    match in_leaves(&tree, &found, rest) {
                        Some(others) => found.extend(others),
                        None => found.extend(located(rest, server.locate(rest).await?)),
                    }
                    Ok::<_, grpc::ClientError>(found)
                };
                located.await.unwrap_or_else(|error| {
                    tracing::warn!(server = name, %error, "no hot keys of this memory server");
                    Vec::new()
                })
            });
        }
        tasks.join_all().await.into_iter().flatten().collect()
    }

    /// Counters of the switches that answer, and the switches that did not answer.
    pub(super) async fn counters(&self) -> (Counted, Vec<SwitchId>) {
        self.read(|fleet| async move { fleet.read_counters().await }).await
    }

    /// Dropped packets by switch and reason, and the switches that did not answer.
    pub(super) async fn drops(&self) -> (BTreeMap<SwitchId, Vec<(String, u64)>>, Vec<SwitchId>) {
        self.read(|fleet| async move { fleet.read_drops().await }).await
    }

    /// Answers of the switches that answer, and the switches that did not.
    async fn read<All, One, Reading>(&self, read: impl Fn(Arc<Fleet>) -> Reading) -> (All, Vec<SwitchId>)
    where
        All: Default + Extend<One::Item>,
        One: IntoIterator + Send + 'static,
        Reading: Future<Output = Result<One, PushError>> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        for (switch, fleet) in self.reachable.all() {
            let reading = read(fleet);
            tasks.spawn(async move { reading.await.map_err(|_| switch) });
        }
        let (mut all, mut silent) = (All::default(), Vec::new());
        for answer in tasks.join_all().await {
            match answer {
                Ok(said) => all.extend(said),
                Err(switch) => silent.push(switch),
            }
        }
        (all, silent)
    }

    /// Present counters of the switches.
    async fn glance(&self) -> Counted {
        let before: BTreeMap<(SwitchId, Entry), u64> = self
            .counters()
            .await
            .0
            .into_iter()
            .map(|(switch, entry, count)| ((switch, entry), count))
            .collect();
        tokio::time::sleep(GLANCE).await;
        let (mut counted, _) = self.counters().await;
        for (switch, entry, count) in &mut counted {
            *count = count.saturating_sub(before.get(&(*switch, *entry)).copied().unwrap_or(0));
        }
        counted
    }

    /// Plans by what the switches have counted since the active plan was loaded, and by sampled keys. `source` is what is known of the
    /// trees before they are read.
    pub(super) async fn plan(
        self,
        active: Option<Arc<Loaded>>,
        keys: Vec<u64>,
        source: Generations,
        epoch: u8,
    ) -> Result<Made, String> {
        let tops = self.tops().await?;
        let counters = match &active {
            Some(_) => self.counters().await.0,
            None => Counted::new(),
        };
        let (planner, old) = (self.clone(), active.clone());
        let (tree, visits, first, candidates) = blocking(move || {
            let tree = Tree::new(&tops).map_err(|error| error.to_string())?;
            let visits = match &old {
                Some(loaded) => loaded.plan().visits(counters, &keys),
                None => keys.iter().map(|key| (*key, 1)).collect(),
            };
            let plan = planner.plan_of(&tree, &visits, epoch, old.as_deref())?;
            let candidates = plan.hot_candidates(&tree, &visits);
            Ok((Arc::new(tree), visits, plan, candidates))
        })
        .await?;
        let located = self.locate(&tree, &candidates).await;
        blocking(move || {
            let old = active.as_ref().map(|loaded| loaded.plan());
            let (hot, rest) = HotKeys::choose(&tree, &visits, &located, self.budget.hot_keys, old);
            let plan = match rest.len() < visits.len() {
                true => self.plan_of(&tree, &rest, epoch, active.as_deref())?,
                false => first,
            };
            let plan = plan.with_hot_keys(hot);
            let cost = plan.cost(&tree, &visits);
            let cost_active = active.map(|loaded| loaded.plan().cost(&tree, &visits));
            Ok(Made { plan, source, cost_active, cost })
        })
        .await
    }

    fn plan_of(
        &self,
        tree: &Tree,
        visits: &[(u64, u64)],
        epoch: u8,
        active: Option<&Loaded>,
    ) -> Result<Plan, String> {
        let frequencies = Frequencies::from_weighted(tree, visits);
        let (topology, placement, old) = (self.cluster.tree(), &self.placement, active.map(Loaded::plan));
        let plan = Plan::following(topology, placement, tree, &frequencies, &self.budget, epoch, old);
        plan.map_err(|error| error.to_string())
    }

    /// Asks the follower whether another plan is worth its entries now.
    pub(super) async fn follow(
        self,
        follower: Follower,
        now: Instant,
    ) -> (Follower, Result<Option<Replanned>, String>) {
        let tops = match self.tops().await {
            Ok(tops) => tops,
            Err(error) => return (follower, Err(error)),
        };
        let kept = follower.clone();
        let candidates = blocking(move || {
            // The follower says what is wrong with trees that are none.
            let found = Tree::new(&tops).ok().map(|tree| (follower.hot_candidates(&tree), Arc::new(tree)));
            Ok((follower, tops, found))
        });
        let (mut follower, tops, found) = match candidates.await {
            Ok(candidates) => candidates,
            Err(error) => return (kept, Err(error)),
        };
        let located = match found {
            Some((candidates, tree)) => self.locate(&tree, &candidates).await,
            None => Vec::new(),
        };
        let counters = self.glance().await;
        let replanned = blocking(move || {
            let replanned =
                follower.replan(now, &tops, counters, &located).map_err(|error| error.to_string());
            Ok((follower, replanned))
        });
        replanned.await.unwrap_or_else(|error: String| (kept, Err(error)))
    }
}

fn located(keys: &[u64], places: KeyPlaces) -> Vec<Located> {
    Located::known(keys, places.into_iter().map(|at| Some(at?.raw())))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(format!("planning: {error}")))
}

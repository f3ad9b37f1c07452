//! The plan: which nodes the switches cache, as a value.
//!
//! [`Plan::new`] makes one from a [`Tree`], [`Frequencies`] and a [`Budget`]. It can be
//! printed ([`Plan::print`]), saved and loaded ([`Plan::to_json`]), turned into typed table entries per switch
//! ([`Plan::entries`]), compared ([`diff`]), and executed in software ([`Plan::resolve`]).

mod budget;
mod cached;
mod choice;
mod counters;
mod diff;
mod difference;
mod entries;
mod execute;
mod fat_root;
mod favour;
mod file;
mod fingerprint;
mod groups;
mod hot;
mod layers;
mod need;
mod network;
mod next;
mod placement;
mod prices;
mod print;
mod ranges;
mod shape;
mod sizes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use fatbtree_blink::LookupBytes;
use fatbtree_topology::{Cluster, HostId, Network, SetGroup, SwitchId};
use serde::{Deserialize, Serialize};

pub use budget::{Budget, MAX_SET_NODES, ROLE_SETS, SETS};
pub(crate) use diff::diff_switch;
pub use diff::{Diff, diff};
pub use execute::{Resolved, WayPoint};
pub use hot::{HotKey, HotKeys, Located, by_partition, in_leaves, probe};
pub use next::NextBlock;
pub use print::{LayerSummary, Summary, SwitchNodes};
pub use ranges::RangeMatch;
pub(crate) use ranges::tcam_rows;
pub use shape::Pivots;
pub(crate) use shape::stride;
pub use sizes::SramBytes;
pub(crate) use sizes::{planned, stage_rows};

use crate::frequency::Frequencies;
use crate::tables::NodeKind;
use crate::tree::Tree;
use budget::SetRoom;
use choice::Choice;
use fat_root::FatRoot;
use groups::Groups;
use ranges::RangeTables;

/// Stages of the fat root: 64-bit keys in 16-bit slices.
pub const STAGES: usize = 4;
const SLICE_BITS: u32 = 16;

/// A plan that cannot be made, or must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The budget itself is impossible.
    #[error("budget: {problem}")]
    Budget {
        /// The problem.
        problem: String,
    },
    /// More is needed than there is.
    #[error(
        "over budget: {table} needs {need}, the limit is {limit}; lower the fat root's ranges, the nodes per set or the hot keys"
    )]
    OverBudget {
        /// Which table, and in what unit.
        table: String,
        /// The need.
        need: usize,
        /// The room, for one epoch.
        limit: usize,
    },
    /// A partition has no place.
    #[error(
        "partition {partition} of the snapshot is on no host; place its memory server in the cluster file"
    )]
    Unplaced {
        /// The partition.
        partition: u16,
    },
    /// The plan was made for another network, or for other partitions.
    #[error(
        "the plan was made for another network: {what}: {plan} in the plan, {here} in the cluster file; make a plan for this one"
    )]
    OtherNetwork {
        /// The difference.
        what: String,
        /// Value in the plan.
        plan: String,
        /// Value in the cluster file.
        here: String,
    },
    /// Epochs are 1 to 255.
    #[error("epoch {found}: expected 1 to 255; 0 stands for an empty switch")]
    Epoch {
        /// The requested value.
        found: u8,
    },
    /// A saved plan does not hold together.
    #[error("saved plan: {problem}; make a new plan instead of editing one")]
    Damaged {
        /// The expected and the found value.
        problem: String,
    },
}

/// Hosts of memory servers, by partition, and of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    servers: BTreeMap<u16, HostId>,
    clients: BTreeSet<HostId>,
}

impl Placement {
    /// The placement of a cluster file.
    pub fn of(cluster: &Cluster) -> Self {
        let servers = cluster.servers().iter().map(|server| (server.partition, server.host));
        servers.collect::<Self>().with_clients(cluster.clients().iter().map(|client| client.host))
    }

    /// Placement with clients on these hosts: their first switches get hot keys.
    #[must_use]
    pub fn with_clients(self, clients: impl IntoIterator<Item = HostId>) -> Self {
        Self { clients: clients.into_iter().collect(), ..self }
    }

    /// The host of a partition's memory server.
    pub fn host(&self, partition: u16) -> Option<HostId> {
        self.servers.get(&partition).copied()
    }

    /// All memory servers, by partition.
    pub fn iter(&self) -> impl Iterator<Item = (u16, HostId)> + '_ {
        self.servers.iter().map(|(partition, host)| (*partition, *host))
    }

    /// The first switches of all clients.
    fn first_hops(&self, topology: &Network) -> Vec<SwitchId> {
        let edges: BTreeSet<SwitchId> = self.clients.iter().map(|host| topology.edge_of(*host).id).collect();
        edges.into_iter().collect()
    }
}

impl FromIterator<(u16, HostId)> for Placement {
    /// Memory servers, and no clients.
    fn from_iter<I: IntoIterator<Item = (u16, HostId)>>(pairs: I) -> Self {
        Self { servers: pairs.into_iter().collect(), clients: BTreeSet::new() }
    }
}

/// The epoch after this one: 1, 2, … 255, 2, 3, …, so that two epochs that follow each other differ in their last bit,
/// which keeps their sub-tables apart.
pub fn next_epoch(epoch: u8) -> u8 {
    if epoch == u8::MAX { 2 } else { epoch + 1 }
}

/// Sub-table id of table `table` of a fat root of this parity, 0 or 1: unique among two fat roots that follow each other, never 0.
fn sub_table(table: u32, parity: u8) -> u16 {
    let id = 2 * (table + 1) + u32::from(parity);
    u16::try_from(id).expect("the budget keeps the number of tables below 2^15")
}

/// A partition as the plan sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedPartition {
    /// Its id.
    pub id: u16,
    /// First key; the first partition's is 0.
    pub low: u64,
    /// Its root when the snapshot was taken.
    pub root: u64,
    /// The address of its memory server's host.
    pub ip: Ipv4Addr,
    /// The node sets on the way down to it, in its order: positions in [`Plan::groups`], ascending.
    pub groups: Vec<u16>,
}

/// One range of the fat root: keys from `low` to the next range's `low`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FatRootRange {
    /// First key.
    pub low: u64,
    /// The child's address.
    pub address: u64,
    /// Its partition.
    pub partition: u16,
    /// Its kind.
    pub kind: NodeKind,
    /// Its level; leaves are 0.
    pub level: u8,
    /// Sampled visits.
    pub weight: u64,
}

/// One child of a cached node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedChild {
    /// First key (for the first child: the node's low fence).
    pub low: u64,
    /// Its address.
    pub address: u64,
}

/// One node in a node set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedNode {
    /// Name of most of its entries in its set.
    pub slot: u16,
    /// Position of its group in [`Plan::groups`]. All switches of the group hold it.
    pub group: u16,
    /// Its partition.
    pub partition: u16,
    /// Its address.
    pub address: u64,
    /// Its level; leaves are 0.
    pub level: u8,
    /// Sampled visits.
    pub weight: u64,
    /// Which part of the keys it is searched by.
    pub pivots: Pivots,
    /// The distance of its children in units of [`STRIDE_BYTES`](crate::tables::run::STRIDE_BYTES); 0 where they are no run.
    pub stride: u8,
    /// 1 to 16 children in key order.
    pub children: Vec<CachedChild>,
}

/// Content of all switches' caches in one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    epoch: u8,
    /// Which of two sets of sub-table ids the fat root has: another one than the fat root that it replaces.
    parity: u8,
    /// The switches that hold the fat root, ascending.
    roots: Vec<SwitchId>,
    /// The node sets of the network, those that packets pass earlier first.
    groups: Vec<SetGroup>,
    /// Partitions in key order.
    partitions: Vec<PlannedPartition>,
    fat_root: Vec<FatRootRange>,
    /// Nodes by group and slot.
    nodes: Vec<CachedNode>,
    /// Hot keys in key order.
    hot: Vec<HotKey>,
    /// Keys that would be hot, but for their records, which had moved since the plan before; in key order.
    restless: Vec<Located>,
    /// The switches that have the hot keys: the first ones of all clients, ascending.
    first_hops: Vec<SwitchId>,
    /// Gain from one more block of memory.
    next: Vec<NextBlock>,
    /// Visits that fat root and node sets were planned for.
    total_weight: u64,
    /// Those of hot keys that are led to records.
    of_records: u64,
    budget: Budget,
    switch_names: Vec<(SwitchId, String)>,
    /// Slot that was given last in this epoch, by group, where that is not the highest one.
    newest_slots: Vec<(u16, u16)>,
    /// The best placement below the same fat root saves at most so many millionths of a round trip more.
    short: u32,
    /// Bytes that lookups read of inner nodes, and of leaves; 0 where that is not known.
    lookup_bytes: LookupBytes,
    // From here on derived from the above.
    tables: RangeTables,
    index: execute::Index,
}

impl Plan {
    /// Plans an epoch (1 to 255; see [`next_epoch`]).
    ///
    /// # Errors
    /// An impossible budget, a partition without a place, or a budget that cannot hold even the super-root.
    pub fn new(
        topology: &Network,
        placement: &Placement,
        tree: &Tree,
        frequencies: &Frequencies,
        budget: &Budget,
        epoch: u8,
    ) -> Result<Self, PlanError> {
        Self::following(topology, placement, tree, frequencies, budget, epoch, None)
    }

    /// The same for switches that hold a plan: what it holds stays where another node would bring hardly more, so that
    /// [less is written](Self::difference_to).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn following(
        topology: &Network,
        placement: &Placement,
        tree: &Tree,
        frequencies: &Frequencies,
        budget: &Budget,
        epoch: u8,
        active: Option<&Plan>,
    ) -> Result<Self, PlanError> {
        budget.validate()?;
        let favour = favour::Favour::of(active, tree);
        if epoch == 0 {
            return Err(PlanError::Epoch { found: epoch });
        }
        let host = |id| placement.host(id).ok_or(PlanError::Unplaced { partition: id });
        let hosts = tree.partitions().iter().map(|partition| host(partition.id));
        let hosts: Vec<HostId> = hosts.collect::<Result<_, _>>()?;
        let groups = Groups::new(topology, hosts.iter().copied());
        let Choice { fat_root: FatRoot { children, tables, .. }, placed, short, .. } =
            choice::choose(tree, frequencies, &favour, &groups, budget)?;
        let partition_id = |index: u16| tree.partitions()[usize::from(index)].id;
        let fat_root = children
            .iter()
            .enumerate()
            .map(|(at, child)| FatRootRange {
                low: child.low,
                address: child.address,
                partition: partition_id(child.partition),
                kind: child.kind(),
                level: child.level,
                weight: frequencies
                    .of_keys(child.low, children.get(at + 1).map_or(u64::MAX, |next| next.low - 1)),
            })
            .collect();
        let nodes = placed
            .iter()
            .map(|place| {
                let node = tree.node(place.node);
                let child = |c: &crate::tree::TreeChild| CachedChild { low: c.low, address: c.address };
                CachedNode {
                    slot: place.slot,
                    group: place.group,
                    partition: partition_id(node.partition),
                    address: node.address,
                    level: node.level,
                    weight: frequencies.of(place.node),
                    pivots: tree.pivots(place.node),
                    stride: tree.stride(place.node),
                    children: tree.children(place.node).iter().map(child).collect(),
                }
            })
            .collect();
        let roots = topology.roots().to_vec();
        let first_hops = placement.first_hops(topology);
        let in_groups = groups.all.iter().flat_map(|group| &group.switches);
        let used: BTreeSet<SwitchId> = in_groups.chain(&first_hops).chain(&roots).copied().collect();
        let partitions = tree
            .partitions()
            .iter()
            .zip(hosts.iter().zip(&groups.of_servers))
            .map(|(p, (host, groups))| PlannedPartition {
                id: p.id,
                low: p.low,
                root: p.root,
                ip: topology.host(*host).ip,
                groups: groups.clone(),
            })
            .collect();
        let mut plan = Self {
            epoch,
            parity: epoch & 1,
            roots,
            partitions,
            fat_root,
            nodes,
            hot: Vec::new(),
            restless: Vec::new(),
            first_hops,
            next: next::of_node_sets(tree, frequencies, &children, &placed, &groups, &budget.target),
            total_weight: frequencies.total(),
            of_records: 0,
            budget: budget.clone(),
            switch_names: used.into_iter().map(|id| (id, topology.switch(id).name())).collect(),
            newest_slots: Vec::new(),
            short,
            lookup_bytes: tree.reads(),
            tables,
            index: execute::Index::default(),
            groups: groups.all,
        };
        plan.index = execute::Index::of(&plan.nodes);
        Ok(plan)
    }

    /// The epoch, 1 to 255.
    pub fn epoch(&self) -> u8 {
        self.epoch
    }

    /// The switches that hold the fat root, ascending.
    pub fn roots(&self) -> &[SwitchId] {
        &self.roots
    }

    /// The node sets of the network, those that packets pass earlier first; all switches of one hold the same there.
    pub fn groups(&self) -> &[SetGroup] {
        &self.groups
    }

    /// Names of node sets, each once, in the order of a packet's way: `core A`, `aggregation A`, …
    pub fn layer_names(&self) -> Vec<String> {
        groups::layers(&self.groups).iter().map(|(role, set)| format!("{role} {set:?}")).collect()
    }

    /// Position of each group among [`layer_names`](Self::layer_names).
    fn layers(&self) -> Vec<usize> {
        let layers = groups::layers(&self.groups);
        let layer = |group: &SetGroup| layers.iter().position(|layer| *layer == (group.role, group.set));
        self.groups.iter().map(|group| layer(group).expect("layers are those of groups")).collect()
    }

    /// Node sets on the longest way.
    pub(crate) fn longest_way(&self) -> usize {
        self.partitions.iter().map(|partition| partition.groups.len()).max().unwrap_or(0)
    }

    /// The group that holds a node.
    pub(crate) fn group_of(&self, node: &CachedNode) -> &SetGroup {
        &self.groups[usize::from(node.group)]
    }

    /// The names of a group's switches.
    fn group_switches(&self, group: u16) -> String {
        self.names(&self.groups[usize::from(group)].switches)
    }

    pub(super) fn names(&self, switches: &[SwitchId]) -> String {
        switches.iter().map(|switch| self.switch_name(*switch)).collect::<Vec<_>>().join(", ")
    }

    /// Partitions in key order.
    pub fn partitions(&self) -> &[PlannedPartition] {
        &self.partitions
    }

    /// Ranges of the fat root, in key order from key 0.
    pub fn fat_root(&self) -> &[FatRootRange] {
        &self.fat_root
    }

    /// Cached nodes by group and slot.
    pub fn nodes(&self) -> &[CachedNode] {
        &self.nodes
    }

    /// The budget it was made for.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Sub-table that lookups of this epoch begin at.
    pub fn root_sub_table(&self) -> u16 {
        sub_table(0, self.parity)
    }

    /// Whether it keeps within a budget (its own always; another one, before it is loaded there).
    ///
    /// # Errors
    /// [`PlanError::OverBudget`] with the first table that is too small.
    pub fn check(&self, budget: &Budget) -> Result<(), PlanError> {
        budget.validate()?;
        budget.check_ranges(self.fat_root.len(), &self.tables, self.budget.range_match)?;
        for nodes in self.nodes.chunk_by(|a, b| a.group == b.group) {
            let group = self.group_of(&nodes[0]);
            let mut taken = SetRoom::default();
            nodes.iter().for_each(|node| taken.add(node.pivots, node.is_regular(), node.children.len()));
            let room = SetRoom::of(budget, group);
            let switches = self.names(&group.switches);
            let over = |what: &str, need: usize, limit: usize| {
                let table = format!("node set {} of {switches} ({what})", group.name());
                if need > limit { Err(PlanError::OverBudget { table, need, limit }) } else { Ok(()) }
            };
            over("nodes", taken.nodes, room.nodes)?;
            over("nodes of whole keys", taken.whole, room.whole)?;
            over("children of irregular nodes", taken.children, room.children)?;
        }
        let roles = self.groups.iter().map(|group| group.role);
        let (need, limit) = (self.hot.len(), budget.hot_keys_in(roles));
        if need > limit && !self.first_hops.is_empty() {
            return Err(PlanError::OverBudget { table: "hot_key (keys)".to_owned(), need, limit });
        }
        Ok(())
    }

    /// The name of a switch that the plan knows.
    pub fn switch_name(&self, switch: SwitchId) -> &str {
        let at = self.switch_names.iter().find(|(id, _)| *id == switch);
        at.map_or("unknown switch", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests;

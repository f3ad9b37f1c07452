//! Whether a saved plan is one for this network.

use fatbtree_topology::{Cluster, SetGroup, SwitchId};

use super::{Placement, Plan, PlanError};

impl Plan {
    /// This plan under another epoch, as a reload needs it: it must be [`next_epoch`](super::next_epoch) of the active one.
    #[must_use]
    pub fn at_epoch(self, epoch: u8) -> Self {
        Self { epoch, parity: epoch & 1, ..self }
    }

    /// Whether it was made for this network and for partitions as this cluster has them. What it says of the trees, where they begin, their
    /// roots and nodes, cannot be seen from here.
    ///
    /// # Errors
    /// [`PlanError::OtherNetwork`] with the first difference.
    pub fn check_network(&self, cluster: &Cluster) -> Result<(), PlanError> {
        let differs = |what: String, plan: String, here: String| PlanError::OtherNetwork { what, plan, here };
        let tree = cluster.tree();
        for (id, name) in &self.switch_names {
            let here = tree.switches().get(id.0 as usize).map_or("none".to_owned(), |found| found.name());
            if here != *name {
                return Err(differs(format!("switch number {}", id.0), name.clone(), here));
            }
        }
        let ours = |switches: &[SwitchId]| -> String {
            let each = switches.iter().map(|id| match self.switch_name(*id) {
                "unknown switch" => format!("switch number {}", id.0),
                name => name.to_owned(),
            });
            each.collect::<Vec<_>>().join(", ")
        };
        let theirs = |switches: &[SwitchId]| -> String {
            switches.iter().map(|id| tree.switch(*id).name()).collect::<Vec<_>>().join(", ")
        };
        if self.roots != tree.roots() {
            let what = "the switches with the fat root".to_owned();
            return Err(differs(what, ours(&self.roots), theirs(tree.roots())));
        }
        let mut planned: Vec<u16> = self.partitions.iter().map(|partition| partition.id).collect();
        let mut here: Vec<u16> = cluster.servers().iter().map(|server| server.partition).collect();
        planned.sort_unstable();
        here.sort_unstable();
        if planned != here {
            let list = |all: &[u16]| all.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
            return Err(differs("partitions".to_owned(), list(&planned), list(&here)));
        }
        let placement = Placement::of(cluster);
        for partition in &self.partitions {
            let Some(host) = placement.host(partition.id) else { continue };
            let ip = tree.host(host).ip;
            if partition.ip != ip {
                let what = format!("the address of the memory server of partition {}", partition.id);
                return Err(differs(what, partition.ip.to_string(), ip.to_string()));
            }
            let here = tree.sets_to(host);
            let planned: Vec<&SetGroup> =
                partition.groups.iter().map(|group| &self.groups[usize::from(*group)]).collect();
            if planned != here.iter().collect::<Vec<_>>() {
                let list = |groups: &[&SetGroup], names: &dyn Fn(&[SwitchId]) -> String| -> String {
                    let each =
                        groups.iter().map(|group| format!("{} in {}", group.name(), names(&group.switches)));
                    each.collect::<Vec<_>>().join("; ")
                };
                let what = format!("switches on the way to partition {}", partition.id);
                let there = list(&here.iter().collect::<Vec<_>>(), &theirs);
                return Err(differs(what, list(&planned, &ours), there));
            }
        }
        let first_hops = placement.first_hops(tree);
        if self.first_hops != first_hops {
            let what = "first switches of clients".to_owned();
            return Err(differs(what, ours(&self.first_hops), theirs(&first_hops)));
        }
        Ok(())
    }
}

//! Whether a saved plan is one for this network.

use fatbtree_topology::{Cluster, SwitchId};

use super::{Placement, Plan, PlanError, homes};

impl Plan {
    /// The same plan under another epoch, as a reload needs it: it must be [`next_epoch`](super::next_epoch) of the one in force.
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
        let core = tree.switch(tree.roots()[0]);
        if self.core != core.id {
            let name = match self.switch_name(self.core) {
                "unknown switch" => format!("switch number {}", self.core.0),
                name => name.to_owned(),
            };
            return Err(differs("the core switch with the fat root".to_owned(), name, core.name()));
        }
        let mut ours: Vec<u16> = self.partitions.iter().map(|partition| partition.id).collect();
        let mut theirs: Vec<u16> = cluster.servers().iter().map(|server| server.partition).collect();
        ours.sort_unstable();
        theirs.sort_unstable();
        if ours != theirs {
            let list = |all: &[u16]| all.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
            return Err(differs("partitions".to_owned(), list(&ours), list(&theirs)));
        }
        let placement = Placement::of(cluster);
        for partition in &self.partitions {
            let Some(host) = placement.host(partition.id) else { continue };
            let ip = tree.host(host).ip;
            if partition.ip != ip {
                let what = format!("the address of the memory server of partition {}", partition.id);
                return Err(differs(what, partition.ip.to_string(), ip.to_string()));
            }
            let here = homes(tree, host);
            if partition.switches != here {
                let names = |switches: &[_]| -> String {
                    let each = switches.iter().map(|id| self.switch_name(*id).to_owned());
                    each.collect::<Vec<_>>().join(", ")
                };
                let what = format!("switches on the way to partition {}", partition.id);
                let there = here.map(|id| tree.switch(id).name()).join(", ");
                return Err(differs(what, names(&partition.switches), there));
            }
        }
        let first_hops = placement.first_hops(tree);
        if self.first_hops != first_hops {
            let names = |switches: &[SwitchId]| -> String {
                let each = switches.iter().map(|id| match self.switch_name(*id) {
                    "unknown switch" => format!("switch number {}", id.0),
                    name => name.to_owned(),
                });
                each.collect::<Vec<_>>().join(", ")
            };
            let there = first_hops.iter().map(|id| tree.switch(*id).name()).collect::<Vec<_>>().join(", ");
            return Err(differs("first switches of clients".to_owned(), names(&self.first_hops), there));
        }
        Ok(())
    }
}

//! The node sets that index packets cross on their way to a host.

use crate::network::{HostId, Network, NodeSet, Role, Switch, SwitchId};

/// One node set on the way, in each of the switches that packets may go through: all of them hold the same there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct SetGroup {
    /// The switches, ascending: those with the fat root, or the aggregation switches of a pod, or the host's own switch.
    pub switches: Vec<SwitchId>,
    /// Their role.
    pub role: Role,
    /// The node set, the same in each of the switches.
    pub set: NodeSet,
}

impl Network {
    /// The node sets that every index packet to `host` crosses, from the fat root on, in this order.
    ///
    /// # Panics
    /// When the id is another network's.
    pub fn sets_to(&self, host: HostId) -> Vec<SetGroup> {
        let edge = self.edge_of(host);
        let mut on_the_way = vec![self.roots().to_vec()];
        if !self.is_root(edge.id) {
            let is_between = |switch: &&Switch| {
                switch.role == Role::Aggregation && switch.pod == edge.pod && self.carries_index(switch.id)
            };
            let between: Vec<SwitchId> =
                self.switches().iter().filter(is_between).map(|switch| switch.id).collect();
            on_the_way.extend((!between.is_empty()).then_some(between));
            on_the_way.push(vec![edge.id]);
        }
        let groups = on_the_way.into_iter().flat_map(|switches| {
            let role = self.switch(switches[0]).role;
            role.sets().iter().map(move |set| SetGroup { switches: switches.clone(), role, set: *set })
        });
        groups.collect()
    }
}

impl SetGroup {
    /// Its name: `core A`, `aggregation B`, `single A`.
    pub fn name(&self) -> String {
        format!("{} {:?}", self.role, self.set)
    }
}

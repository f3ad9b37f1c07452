//! What all switches should hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use fatbtree_topology::{Cluster, SwitchId};

use super::wanted::{Keep, Wanted};
use crate::base::{Base, cluster_base};
use crate::connection::Connections;
use crate::plan::Plan;
use crate::tables::Entry;

/// A plan with its entries.
#[derive(Debug, PartialEq)]
pub struct Loaded {
    plan: Plan,
    entries: BTreeMap<SwitchId, Arc<Vec<Entry>>>,
}

impl Loaded {
    /// Makes the entries.
    pub fn new(plan: Plan) -> Arc<Self> {
        let entries = plan.entries().into_iter().map(|(switch, entries)| (switch, Arc::new(entries)));
        Arc::new(Self { entries: entries.collect(), plan })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Entries in all switches together.
    pub fn len(&self) -> usize {
        self.entries.values().map(|entries| entries.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What packets are led by.
#[derive(Clone, Debug, PartialEq)]
pub enum InForce {
    /// S_c was not read yet: whatever there is stays.
    Unread,
    /// Nothing: index reads end at the roots of their partitions.
    Nothing,
    /// An epoch of which nobody knows the plan any more. It serves until there is another one.
    Unknown(u8),
    /// This plan.
    Plan(Arc<Loaded>),
}

impl InForce {
    /// Its epoch, if there is one.
    pub fn epoch(&self) -> Option<u8> {
        match self {
            Self::Unread | Self::Nothing => None,
            Self::Unknown(epoch) => Some(*epoch),
            Self::Plan(loaded) => Some(loaded.plan.epoch()),
        }
    }

    /// The plan, if it is known.
    pub fn plan(&self) -> Option<&Arc<Loaded>> {
        match self {
            Self::Plan(loaded) => Some(loaded),
            _ => None,
        }
    }
}

/// What all switches should hold, as a value. A reload is three of these, one after another: with the new plan beside the old one; the same
/// with the new one in force; without the old one.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    core: SwitchId,
    base: Arc<BTreeMap<SwitchId, Base>>,
    /// Clients' connections.
    pub connections: Connections,
    /// What packets are led by.
    pub in_force: InForce,
    /// The plan that was in force, or is to be.
    pub beside: Option<Arc<Loaded>>,
}

impl Desired {
    /// Routes, and whatever plan there is.
    pub fn new(cluster: &Cluster) -> Self {
        Self {
            core: cluster.tree().chosen_core().id,
            base: Arc::new(cluster_base(cluster)),
            connections: Connections::new(),
            in_force: InForce::Unread,
            beside: None,
        }
    }

    /// What one switch should hold.
    pub fn wanted(&self, switch: SwitchId) -> Wanted {
        let base = self.base.get(&switch);
        let mut fixed: Vec<Entry> = base.map(|base| base.entries.clone()).unwrap_or_default();
        fixed.extend(self.connections.of_switch(switch));
        fixed.sort();
        let plans = self.in_force.plan().into_iter().chain(&self.beside);
        let plans = plans.filter_map(|loaded| loaded.entries.get(&switch).cloned()).collect();
        let keep = match self.in_force {
            InForce::Unread => Keep::All,
            InForce::Unknown(epoch) => Keep::Epoch(epoch),
            InForce::Nothing | InForce::Plan(_) => Keep::Nothing,
        };
        let base_route = base.map(|base| base.core_route);
        let core_route = match &self.in_force {
            _ if switch != self.core => base_route,
            InForce::Unread | InForce::Unknown(_) => None,
            InForce::Nothing => base_route,
            InForce::Plan(loaded) => Some(loaded.plan.descend()),
        };
        Wanted { fixed, plans, keep, serving: self.in_force.epoch(), core_route }
    }
}

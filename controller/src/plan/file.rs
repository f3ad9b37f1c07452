//! Saving and loading a plan.

use fatbtree_topology::SwitchId;
use serde::{Deserialize, Serialize};

use super::{
    Budget, CachedNode, FatRootRange, LAYERS, Plan, PlanError, PlannedPartition, SLICE_BITS, STAGES, Summary,
    execute, first_id, layer_of, ranges::RangeTables,
};
use crate::tree::MAX_BRANCHES;

/// Version of the file's format.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    /// For people and reports; not read back.
    #[serde(skip_deserializing)]
    summary: Option<Summary>,
    epoch: u8,
    /// As the epoch's last bit, unless it says something else.
    #[serde(default)]
    parity: Option<u8>,
    core: SwitchId,
    total_weight: u64,
    budget: Budget,
    switch_names: Vec<(SwitchId, String)>,
    partitions: Vec<PlannedPartition>,
    fat_root: Vec<FatRootRange>,
    nodes: Vec<CachedNode>,
    #[serde(default)]
    newest_ids: Vec<(u8, SwitchId, u16)>,
}

impl Plan {
    /// The plan as JSON, with its [`Summary`] under `summary`.
    pub fn to_json(&self) -> String {
        let file = File {
            format: FORMAT,
            summary: Some(self.summary()),
            epoch: self.epoch,
            parity: Some(self.parity),
            core: self.core,
            total_weight: self.total_weight,
            budget: self.budget.clone(),
            switch_names: self.switch_names.clone(),
            partitions: self.partitions.clone(),
            fat_root: self.fat_root.clone(),
            nodes: self.nodes.clone(),
            newest_ids: self.newest_ids.clone(),
        };
        serde_json::to_string(&file).expect("numbers, strings and lists always serialise")
    }

    /// Reads what [`Plan::to_json`] wrote, and checks that it holds together and keeps within its budget.
    ///
    /// # Errors
    /// [`PlanError::Damaged`], [`PlanError::OverBudget`].
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let damaged = |problem: String| PlanError::Damaged { problem };
        let file: File = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
        if file.format != FORMAT {
            return Err(damaged(format!("expected format {FORMAT}, found {}", file.format)));
        }
        let lows: Vec<u64> = file.fat_root.iter().map(|range| range.low).collect();
        if lows.first() != Some(&0) || !lows.is_sorted_by(|a, b| a < b) {
            return Err(damaged("expected ranges from key 0 in ascending order".to_owned()));
        }
        if file.fat_root.len() > file.budget.fat_root_ranges {
            let (need, limit) = (file.fat_root.len(), file.budget.fat_root_ranges);
            return Err(PlanError::OverBudget { table: "fat root (ranges)".to_owned(), need, limit });
        }
        file.budget.validate()?;
        let mut plan = Self {
            epoch: file.epoch,
            parity: file.parity.unwrap_or(file.epoch) & 1,
            core: file.core,
            partitions: file.partitions,
            fat_root: file.fat_root,
            nodes: file.nodes,
            total_weight: file.total_weight,
            budget: file.budget,
            switch_names: file.switch_names,
            newest_ids: file.newest_ids,
            tables: RangeTables::build(&lows, SLICE_BITS, STAGES),
            index: execute::Index::default(),
        };
        plan.check_nodes().map_err(damaged)?;
        plan.index = execute::Index::of(&plan);
        plan.check_ids().map_err(damaged)?;
        plan.check(&plan.budget)?;
        Ok(plan)
    }

    fn check_nodes(&self) -> Result<(), String> {
        if self.epoch == 0 {
            return Err("expected an epoch from 1, found 0".to_owned());
        }
        let mut previous = None;
        for node in &self.nodes {
            let place = format!("node {} of {}", node.id, self.switch_name(node.switch));
            let layer = usize::from(node.layer);
            if layer >= LAYERS {
                return Err(format!("{place}: expected a layer from 0 to {}, found {layer}", LAYERS - 1));
            }
            let key = (node.layer, node.switch, node.id);
            let is_in_order = node.id != 0 && layer_of(node.id) == layer && previous < Some(key);
            if !is_in_order {
                let first = first_id(layer);
                return Err(format!(
                    "{place}: expected an id of its layer, from {first} on, ordered by layer, switch and id"
                ));
            }
            previous = Some(key);
            let count = node.children.len();
            if !(1..=MAX_BRANCHES).contains(&count) || !node.children.is_sorted_by(|a, b| a.low < b.low) {
                return Err(format!(
                    "{place}: expected 1 to {MAX_BRANCHES} children in key order, found {count}"
                ));
            }
            let home = self.partitions.iter().find(|p| p.id == node.partition).map(|p| p.switches[layer]);
            if home != Some(node.switch) {
                return Err(format!("{place}: partition {} is not below this switch", node.partition));
            }
        }
        Ok(())
    }

    /// Every id that something points to leads further down the path.
    fn check_ids(&self) -> Result<(), String> {
        let pointers = self.fat_root.iter().map(|r| (r.partition, 0, r.address, r.node_id));
        let children = self.nodes.iter().flat_map(|node| {
            let below = usize::from(node.layer) + 1;
            node.children.iter().map(move |child| (node.partition, below, child.address, child.node_id))
        });
        for (partition, below, address, id) in pointers.chain(children).filter(|(.., id)| *id != 0) {
            let found = self.index.position(&self.nodes, partition, id).map(|at| self.nodes[at].address);
            if found != Some(address) || layer_of(id) < below {
                return Err(format!(
                    "partition {partition}: node id {id} should name the node at {address:#x} further down"
                ));
            }
        }
        Ok(())
    }
}

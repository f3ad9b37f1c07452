//! Saving and loading a plan.

use fatbtree_blink::LookupBytes;
use fatbtree_topology::{SetGroup, SwitchId};
use serde::{Deserialize, Serialize};

use super::{
    Budget, CachedNode, FatRootRange, HotKey, Located, NextBlock, Pivots, Plan, PlanError, PlannedPartition,
    SLICE_BITS, STAGES, Summary, execute, ranges::RangeTables,
};
use crate::tree::MAX_BRANCHES;

/// Version of the file's format.
const FORMAT: u32 = 6;

#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    /// For people and reports; not read back.
    #[serde(skip_deserializing)]
    summary: Option<Summary>,
    epoch: u8,
    /// Parity, if it is not the epoch's last bit.
    #[serde(default)]
    parity: Option<u8>,
    roots: Vec<SwitchId>,
    groups: Vec<SetGroup>,
    total_weight: u64,
    of_records: u64,
    budget: Budget,
    switch_names: Vec<(SwitchId, String)>,
    partitions: Vec<PlannedPartition>,
    fat_root: Vec<FatRootRange>,
    nodes: Vec<CachedNode>,
    hot: Vec<HotKey>,
    restless: Vec<Located>,
    first_hops: Vec<SwitchId>,
    next: Vec<NextBlock>,
    #[serde(default)]
    newest_slots: Vec<(u16, u16)>,
    #[serde(default)]
    short: u32,
    /// Of inner nodes, of leaves.
    lookup_bytes: (u32, u32),
}

impl Plan {
    /// The plan as JSON, with its [`Summary`] under `summary`.
    pub fn to_json(&self) -> String {
        let file = File {
            format: FORMAT,
            summary: Some(self.summary()),
            epoch: self.epoch,
            parity: Some(self.parity),
            roots: self.roots.clone(),
            groups: self.groups.clone(),
            total_weight: self.total_weight,
            of_records: self.of_records,
            budget: self.budget.clone(),
            switch_names: self.switch_names.clone(),
            partitions: self.partitions.clone(),
            fat_root: self.fat_root.clone(),
            nodes: self.nodes.clone(),
            hot: self.hot.clone(),
            restless: self.restless.clone(),
            first_hops: self.first_hops.clone(),
            next: self.next.clone(),
            newest_slots: self.newest_slots.clone(),
            short: self.short,
            lookup_bytes: (self.lookup_bytes.inner, self.lookup_bytes.leaf),
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
        let mut tables = RangeTables::build(&lows, SLICE_BITS, STAGES);
        file.budget.place(&mut tables)?;
        let mut plan = Self {
            epoch: file.epoch,
            parity: file.parity.unwrap_or(file.epoch) & 1,
            roots: file.roots,
            groups: file.groups,
            partitions: file.partitions,
            fat_root: file.fat_root,
            nodes: file.nodes,
            hot: file.hot,
            restless: file.restless,
            first_hops: file.first_hops,
            next: file.next,
            total_weight: file.total_weight,
            of_records: file.of_records,
            budget: file.budget,
            switch_names: file.switch_names,
            newest_slots: file.newest_slots,
            short: file.short,
            lookup_bytes: LookupBytes { inner: file.lookup_bytes.0, leaf: file.lookup_bytes.1 },
            tables,
            index: execute::Index::default(),
        };
        plan.check_nodes().map_err(damaged)?;
        plan.index = execute::Index::of(&plan.nodes);
        plan.check_ways().map_err(damaged)?;
        plan.check_hot_keys().map_err(damaged)?;
        plan.check(&plan.budget)?;
        Ok(plan)
    }

    fn check_nodes(&self) -> Result<(), String> {
        if self.epoch == 0 {
            return Err("expected an epoch from 1, found 0".to_owned());
        }
        let groups = self.groups.len();
        if self.roots.is_empty() || self.groups.iter().any(|group| group.switches.is_empty()) {
            return Err("expected a switch that holds the fat root, and one for each node set".to_owned());
        }
        for partition in &self.partitions {
            let of = &partition.groups;
            if !of.is_sorted_by(|a, b| a < b) || of.iter().any(|group| usize::from(*group) >= groups) {
                let id = partition.id;
                return Err(format!(
                    "partition {id}: expected node sets from 0 to {groups}, in order, found {of:?}"
                ));
            }
        }
        let mut previous = None;
        for node in &self.nodes {
            if usize::from(node.group) >= groups {
                let (address, group) = (node.address, node.group);
                return Err(format!(
                    "node {address:#x}: expected one of {groups} node sets, found number {group}"
                ));
            }
            let place = format!("node {:#x} of {}", node.address, self.group_switches(node.group));
            let key = (node.group, node.slot);
            if previous >= Some(key) {
                return Err(format!("{place}: expected nodes in order of node set and slot, each once"));
            }
            previous = Some(key);
            let count = node.children.len();
            if !(1..=MAX_BRANCHES).contains(&count) || !node.children.is_sorted_by(|a, b| a.low < b.low) {
                return Err(format!(
                    "{place}: expected 1 to {MAX_BRANCHES} children in key order, found {count}"
                ));
            }
            let home = self.partitions.iter().find(|p| p.id == node.partition);
            if home.is_none_or(|home| !home.groups.contains(&node.group)) {
                return Err(format!("{place}: partition {} is not below", node.partition));
            }
        }
        Ok(())
    }

    /// Each is there once, and is led to the server of its partition.
    fn check_hot_keys(&self) -> Result<(), String> {
        if !self.hot.is_sorted_by(|a, b| a.key < b.key) {
            return Err("expected hot keys in ascending order, each once".to_owned());
        }
        for HotKey { key, address, .. } in &self.hot {
            let partition = self.fat_root[self.range_of(*key)].partition;
            if address >> 48 != u64::from(partition) {
                return Err(format!(
                    "hot key {key:#x}: expected it on server {partition}, found {address:#x}"
                ));
            }
        }
        Ok(())
    }

    /// Every node is there once, and what leads to it is further up the path.
    fn check_ways(&self) -> Result<(), String> {
        if self.index.len() < self.nodes.len() {
            return Err("expected each node once, found an address twice".to_owned());
        }
        for node in &self.nodes {
            let below = node.children.iter().filter_map(|child| self.index.position(child.address));
            if let Some(child) = below.map(|at| &self.nodes[at]).find(|child| child.group <= node.group) {
                let (child, parent) = (child.address, node.address);
                return Err(format!(
                    "node {child:#x}: expected it further down than node {parent:#x}, whose child it is"
                ));
            }
            if !node.stride_is_right() {
                return Err(format!("node {:#x}: its children do not lie as its stride says", node.address));
            }
            let pivots = node.children.iter().skip(1).map(|child| child.low);
            // Whether one half is enough depends on keys that are not here, but not for high halves.
            if node.pivots == Pivots::High && Pivots::of(0, u64::MAX, pivots) != Pivots::High {
                return Err(format!("node {:#x}: its pivots have low halves", node.address));
            }
        }
        Ok(())
    }
}

//! The demo's command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use fatbtree_blink::{MAX_INLINE_VALUE, TreeConfig, ValueLayout};
use fatbtree_controller::{Budget, MAX_SET_NODES, Target};
use fatbtree_workload::OperationKind;
use fatbtree_workload::ycsb::{KeyMap, RequestDistribution, WorkloadSpec, builtin};

use crate::controller::TargetName;
use crate::layout::LeavesArgument;
use crate::records::{check_enough, has_values, keys_of};
use crate::{count, room, workload};

/// Node sets on a path through a FatTree.
const LAYERS: u8 = 5;

/// Operations whose way down the tree is walked by switches, beside those that walk it over the network.
///
/// One process: a FatTree of software switches that run the compiled P4 program, memory servers in one pod, a client in
/// another. Loads the servers with more than the switches can hold, lets the client work, plans the caches from what the switches
/// counted meanwhile and the client sampled, and then does the same operations in every way.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree demo                                        40,000,000 keys, 8-byte values, Zipf 0.99, Tofino 1
  fatbtree demo --keys 2000000 --value-size 1000       values behind pointers: one round trip more
  fatbtree demo --keys my-keys.txt --report out.html   your own keys, one per line
  fatbtree demo --keys 100000 --lookups 20000          small and quick: the switches hold every node
  fatbtree demo --workload a                           all ways with a YCSB workload that writes
  fatbtree demo --workload my-workload.properties      a YCSB property file
  fatbtree demo --k 6 --target tofino2                 a larger network, larger switches
  fatbtree demo --leaves buckets                       lookups read 128 bytes of a leaf")]
pub(crate) struct Arguments {
    /// Number of keys; or a file with one key per line; or a file .csv of keys and values, of which the keys are taken.
    #[arg(long, value_name = "COUNT|FILE", default_value = "40000000")]
    keys: Keys,
    /// Bytes of each value; up to 64 are kept in the leaves, longer ones behind a pointer.
    #[arg(long, value_name = "BYTES", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65536))]
    value_size: u32,
    #[command(flatten)]
    leaves: LeavesArgument,
    /// Distribution of keys: zipfian-ranked (over the keys), zipfian (YCSB's scrambled one), uniform, latest,
    /// hotspot, sequential, exponential.
    #[arg(long, value_name = "NAME", default_value = "zipfian-ranked")]
    distribution: String,
    /// Skew of the Zipfian distributions and of latest; 0.99 unless given.
    #[arg(long, value_name = "THETA")]
    theta: Option<f64>,
    /// A YCSB workload: a property file, or the name of a built-in one.
    #[arg(long, value_name = "FILE|NAME", default_value = "c")]
    workload: String,
    /// Operations each way; from twice as many the planner learns.
    #[arg(long, value_name = "COUNT", default_value = "100000", value_parser = count::positive)]
    lookups: u64,
    /// Operations under way at once.
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Target whose compiled tables are the switches' room; two epochs share it.
    #[arg(long, value_enum, default_value_t = TargetName::Tofino1)]
    target: TargetName,
    /// Most ranges of the fat root; fewer where its tables are full before. As many as the target has unless given.
    #[arg(long, value_name = "RANGES")]
    fat_root: Option<usize>,
    /// Most nodes of each node set, where the target has room for more. As many as the target has unless given.
    #[arg(long, value_name = "NODES", value_parser = clap::value_parser!(u32).range(0..=MAX_SET_NODES as i64))]
    layer: Option<u32>,
    /// Node sets in use, in path order: core A, aggregation A and B, edge A and B.
    #[arg(long, value_name = "COUNT", default_value_t = LAYERS, value_parser = clap::value_parser!(u8).range(0..=i64::from(LAYERS)))]
    layers: u8,
    /// Ports per switch of the FatTree; even. All its switches run in this process: 145 of them for 16.
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=16))]
    k: u16,
    /// Memory servers, all in the first pod.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    servers: u16,
    /// Decides keys drawn, values, rkeys, packet sequence numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write a page with tables, round-trip histogram, the emulator's times and the picture of what is cached where.
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Write the plan, to be compared with others.
    #[arg(long, value_name = "FILE")]
    pub(super) plan: Option<PathBuf>,
}

#[derive(Clone, Debug)]
enum Keys {
    Count(u64),
    File(PathBuf),
}

impl FromStr for Keys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match count::parse(text) {
            Some(count) => count.map(Keys::Count),
            None => Ok(Keys::File(text.into())),
        }
    }
}

/// Settings of the demo: the command line, checked.
pub(super) struct Settings {
    pub(super) workload: String,
    pub(super) spec: WorkloadSpec,
    pub(super) key_map: KeyMap,
    pub(super) records: u64,
    /// All keys, ascending.
    pub(super) sorted_keys: Arc<[u64]>,
    pub(super) tree: TreeConfig,
    pub(super) value_size: usize,
    pub(super) lookups: u64,
    pub(super) depth: usize,
    pub(super) target: Target,
    pub(super) budget: Budget,
    pub(super) k: u16,
    pub(super) servers: u16,
    pub(super) seed: u64,
}

impl Arguments {
    /// Reads the files it names and refuses what cannot work, before anything starts.
    pub(super) fn settings(&self) -> Result<Settings> {
        let (records, key_map) = match &self.keys {
            Keys::Count(0) => {
                bail!("--keys 0: a tree without keys answers nothing; ask for at least one per memory server")
            }
            Keys::Count(count) => (*count, None),
            Keys::File(path) => {
                if !path.exists() {
                    bail!("--keys {}: neither a count such as 4711, 1e6 or 2M, nor a file", path.display());
                }
                if has_values(path) {
                    errln!(
                        "{}: the demo takes its keys, and makes values of --value-size bytes",
                        path.display()
                    );
                }
                let file = keys_of(path)?;
                (file.keys().len() as u64, Some(KeyMap::File(file.into())))
            }
        };
        check_enough(records, self.servers.into())?;
        let compiled = room_of(self.target.into());
        let fat_root_ranges = self.fat_root.unwrap_or(compiled.fat_root_ranges);
        if fat_root_ranges < usize::from(self.servers) {
            bail!(
                "--fat-root {fat_root_ranges}: the fat root begins with one range for each of the {} memory servers; give at least as many",
                self.servers
            );
        }
        let mut set_nodes =
            compiled.set_nodes.map(|nodes| self.layer.map_or(nodes, |layer| nodes.min(layer as usize)));
        // A FatTree has no switch that is everything at once.
        set_nodes[usize::from(self.layers)..usize::from(LAYERS)].fill(0);
        let mut properties = workload::properties(&self.workload)?;
        properties.set("recordcount", &records.to_string());
        properties.set("operationcount", &self.lookups.to_string());
        let mut spec = WorkloadSpec::from_properties(&properties)?;
        if spec.proportions.insert > 0.0 && key_map.is_some() {
            bail!(
                "workload {} inserts, and all keys of the file are loaded: use a number of keys",
                self.workload
            );
        }
        // A workload file says how it draws, and so does D; the other built-in ones leave it to the command line.
        if self.is_builtin() && !matches!(spec.distribution, RequestDistribution::Latest { .. }) {
            spec.distribution = self.distribution()?;
        }
        let key_map = key_map.unwrap_or_else(|| KeyMap::from(spec.insert_order));
        room::check(records, 1, self.value_size.into())?;
        let mut sorted_keys: Vec<u64> = (0..records).filter_map(|record| key_map.key(record)).collect();
        sorted_keys.sort_unstable();

        let values = match u8::try_from(self.value_size) {
            Ok(size) if size <= MAX_INLINE_VALUE => ValueLayout::Inline(size),
            _ => ValueLayout::OutOfLine,
        };
        Ok(Settings {
            workload: self.workload.clone(),
            spec,
            key_map,
            records,
            sorted_keys: sorted_keys.into(),
            tree: TreeConfig::new(16, 1024, values)?.with_leaves(self.leaves.kind())?,
            value_size: self.value_size as usize,
            lookups: self.lookups,
            depth: self.depth as usize,
            target: self.target.into(),
            budget: Budget { fat_root_ranges, set_nodes, ..compiled },
            k: self.k,
            servers: self.servers,
            seed: self.seed,
        })
    }

    fn is_builtin(&self) -> bool {
        builtin(&self.workload).is_ok()
    }

    fn distribution(&self) -> Result<RequestDistribution> {
        let mut properties = builtin("c")?;
        properties.set("requestdistribution", &self.distribution);
        if let Some(theta) = self.theta {
            properties.set("zipfianconstant", &theta.to_string());
        }
        Ok(WorkloadSpec::from_properties(&properties)?.distribution)
    }
}

impl Settings {
    /// Operations that the planner learns from, and that warm a client's cache.
    pub(super) fn learning(&self) -> u64 {
        self.lookups.saturating_mul(2)
    }

    /// Target whose room the plan keeps within, in words.
    pub(super) fn describe_target(&self) -> String {
        let chip = match self.target {
            Target::Tofino1 => "Tofino 1",
            Target::Tofino2 => "Tofino 2",
            Target::V1model => "v1model",
        };
        let less = match room_of(self.target) == self.budget {
            true => "",
            false => ", changed by the command line",
        };
        format!("{chip}, two epochs{less}")
    }

    /// A built-in workload over the same keys, and whether it can be done. Keys are drawn as for the main workload, unless it wants
    /// the newest.
    pub(super) fn builtin(&self, name: &str, operations: u64) -> Result<(WorkloadSpec, bool)> {
        let mut properties = builtin(name)?;
        properties.set("recordcount", &self.records.to_string());
        properties.set("operationcount", &operations.to_string());
        let mut spec = WorkloadSpec::from_properties(&properties)?;
        if !matches!(spec.distribution, RequestDistribution::Latest { .. }) {
            spec.distribution = self.spec.distribution;
        }
        let new_keys = spec.proportions.insert == 0.0 || !matches!(self.key_map, KeyMap::File(_));
        Ok((spec, new_keys))
    }
}

/// Room of a target, as far as the software switches have it that stand in for it.
fn room_of(target: Target) -> Budget {
    let compiled = Budget::compiled(target);
    Budget { stage_entries: compiled.stage_entries.min(Budget::bmv2().stage_entries), ..compiled }
}

/// The operations of a workload in words.
pub(super) fn describe_operations(spec: &WorkloadSpec) -> String {
    let weights = spec.proportions.as_array();
    let sum: f64 = weights.iter().sum();
    let parts = OperationKind::ALL.into_iter().zip(weights).filter(|(_, weight)| *weight > 0.0);
    let words =
        parts.map(|(kind, weight)| format!("{:.0} % {}", 100.0 * weight / sum, kind.name().to_lowercase()));
    words.collect::<Vec<_>>().join(", ")
}

/// A distribution in words.
pub(super) fn describe(distribution: &RequestDistribution) -> String {
    match distribution {
        RequestDistribution::Uniform => "keys drawn uniformly".into(),
        RequestDistribution::Zipfian { theta } => {
            format!("keys drawn by YCSB's scrambled Zipfian, theta {theta}")
        }
        RequestDistribution::RankedZipfian { theta } => {
            format!("keys drawn by a Zipfian over the keys, theta {theta}")
        }
        RequestDistribution::Latest { theta } => {
            format!("the newest keys most often, Zipfian of theta {theta}")
        }
        RequestDistribution::Hotspot { data, operations } => {
            format!("{:.0} % of the lookups to {:.0} % of the keys", operations * 100.0, data * 100.0)
        }
        RequestDistribution::Sequential => "keys one after the other".into(),
        RequestDistribution::Exponential { percentile, fraction } => {
            format!(
                "the newest keys most often, {percentile} % of the lookups to {:.0} % of them",
                fraction * 100.0
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_for_any_target_fits_the_software_switches() {
        for target in Target::ALL {
            let (room, held) = (room_of(target), Budget::bmv2());
            assert!(room.stage_entries <= held.stage_entries && room.hot_keys <= held.hot_keys, "{target:?}");
            assert!(
                room.set_nodes.iter().zip(held.set_nodes).all(|(nodes, held)| *nodes <= held),
                "{target:?}"
            );
        }
    }
}

//! The plan for people, and its numbers for reports.

use std::fmt::Write;

use fatbtree_topology::SwitchId;
use serde::{Deserialize, Serialize};

use super::budget::SetRoom;
use super::{Pivots, Plan, STAGES};
use crate::cost::Cost;
use crate::tables::NodeKind;

/// The numbers of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The epoch.
    pub epoch: u8,
    /// Ranges of the fat root.
    pub ranges: usize,
    /// Entries of `fat_root_0` to `fat_root_3`.
    pub stage_entries: [usize; STAGES],
    /// TCAM rows of the same, by nibble-wise range matching.
    pub stage_rows: [usize; STAGES],
    /// Sub-tables of each slice of the key. One may stand in several stages.
    pub sub_tables: [usize; STAGES],
    /// The node sets in path order, those of all switches of a role together.
    pub layers: Vec<LayerSummary>,
    /// Hot keys, in the first switch of each client.
    pub hot_keys: usize,
    /// Share of sampled visits that these lead to their record or leaf at once, 0 to 1.
    pub hot_share: f64,
    /// Table entries in all switches together.
    pub entries: usize,
    /// Levels that the network walks for an average sample that is not led to a record; 1 without samples means the fat root alone.
    pub expected_levels: f64,
    /// Round trips of an average sample from where the network leads it down to its leaf; what is led to a record takes none.
    #[serde(default)]
    pub round_trips: f64,
    /// Bytes of nodes that it reads; 0 where that is not known.
    #[serde(default)]
    pub read_bytes: f64,
    /// Round trips of an average lookup that the best placement below the same fat root saves beyond this one, at most.
    #[serde(default)]
    pub short_of_best: f64,
}

/// The node sets of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerSummary {
    /// Name, such as `aggregation A`.
    pub name: String,
    /// Nodes in all its switches; those that several switches hold count once.
    pub nodes: usize,
    /// Room per switch.
    pub room: usize,
    /// Nodes that are searched by high halves; `low` by low halves, `whole` by whole keys.
    pub high: usize,
    /// See `high`.
    pub low: usize,
    /// See `high`.
    pub whole: usize,
    /// Nodes whose children are a run, which take no entries for them.
    pub regular: usize,
    /// Share of sampled visits that this layer leads one level on, 0 to 1.
    pub share: f64,
    /// The switches that hold any.
    pub switches: Vec<SwitchNodes>,
}

/// Nodes of one node set in one switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwitchNodes {
    /// The switch.
    pub id: SwitchId,
    /// Its name.
    pub name: String,
    /// Nodes in its node set.
    pub nodes: usize,
}

/// A part of all, from 0 to 1; of nothing, 0.
fn part_of(weight: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { weight as f64 / all as f64 }
}

impl Plan {
    /// The numbers of the plan.
    pub fn summary(&self) -> Summary {
        let layer_of = self.layers();
        let mut layers: Vec<LayerSummary> = self
            .layer_names()
            .into_iter()
            .zip(0..)
            .map(|(name, layer)| LayerSummary {
                name,
                nodes: 0,
                room: self
                    .groups
                    .iter()
                    .zip(&layer_of)
                    .find(|(_, of)| **of == layer)
                    .map_or(0, |(group, _)| SetRoom::of(&self.budget, group).nodes),
                high: 0,
                low: 0,
                whole: 0,
                regular: 0,
                share: 0.0,
                switches: Vec::new(),
            })
            .collect();
        let hot = self.hot.iter().fold(0u64, |sum, hot| sum.saturating_add(hot.weight));
        let all = self.all_visits();
        let mut walked = 1.0;
        for nodes in self.nodes.chunk_by(|a, b| a.group == b.group) {
            let layer = &mut layers[layer_of[usize::from(nodes[0].group)]];
            layer.nodes += nodes.len();
            for node in nodes {
                *match node.pivots {
                    Pivots::High => &mut layer.high,
                    Pivots::Low => &mut layer.low,
                    Pivots::Whole => &mut layer.whole,
                } += 1;
                layer.regular += usize::from(node.is_regular());
            }
            let held = |id: &SwitchId| SwitchNodes {
                id: *id,
                name: self.switch_name(*id).to_owned(),
                nodes: nodes.len(),
            };
            layer.switches.extend(self.group_of(&nodes[0]).switches.iter().map(held));
            let weight = nodes.iter().map(|node| node.weight).sum();
            layer.share += part_of(weight, all);
            walked += part_of(weight, self.total_weight);
        }
        let cost = self.own_cost();
        let stage_entries: [usize; STAGES] = self.tables.entries_per_stage();
        Summary {
            epoch: self.epoch,
            ranges: self.fat_root.len(),
            stage_entries,
            stage_rows: self.tables.rows_per_stage(self.budget.range_match),
            sub_tables: self.tables.tables_per_slice(),
            layers,
            hot_keys: self.hot.len(),
            hot_share: part_of(hot, all),
            entries: self.entries().values().map(Vec::len).sum(),
            expected_levels: walked,
            round_trips: cost.round_trips,
            read_bytes: cost.bytes,
            short_of_best: f64::from(self.short) / 1e6,
        }
    }

    /// Cost of an average sample, as the samples were when the plan was made.
    fn own_cost(&self) -> Cost {
        let float = |visits: u64| visits as f64;
        // Each node on the way from the root's level down is read, but those that switches walk.
        let ranges = self.fat_root.iter().map(|range| float(range.weight) * f64::from(range.level));
        let walked: f64 = self.nodes.iter().map(|node| float(node.weight)).sum();
        let to_leaves = self.hot.iter().filter(|hot| hot.kind == NodeKind::Leaf).map(|hot| {
            let (range, resolved) = (&self.fat_root[self.range_of(hot.key)], self.resolve(hot.key));
            float(hot.weight) * (f64::from(range.level) - f64::from(resolved.levels - 1))
        });
        let inner = ranges.sum::<f64>() - walked - to_leaves.sum::<f64>();
        let leaves = float(self.total_weight);
        Cost::of(inner + leaves, leaves, float(self.all_visits()), self.lookup_bytes)
    }

    fn all_visits(&self) -> u64 {
        self.total_weight.saturating_add(self.of_records)
    }

    /// Labels of switches in a drawing: `fat root 600 ranges`, `A: 3600 nodes`.
    pub fn annotations(&self) -> Vec<(SwitchId, Vec<String>)> {
        let summary = self.summary();
        let fat_root = format!("fat root {} ranges", summary.ranges);
        let mut all: Vec<(SwitchId, Vec<String>)> =
            self.roots.iter().map(|root| (*root, vec![fat_root.clone()])).collect();
        for layer in &summary.layers {
            for switch in &layer.switches {
                let set = layer.name.rsplit(' ').next().unwrap_or_default();
                let line = format!("{set}: {} nodes", switch.nodes);
                match all.iter_mut().find(|(id, _)| *id == switch.id) {
                    Some((_, lines)) => lines.push(line),
                    None => all.push((switch.id, vec![line])),
                }
            }
        }
        for switch in self.first_hops.iter().filter(|_| !self.hot.is_empty()) {
            let line = format!("{} hot keys", self.hot.len());
            match all.iter_mut().find(|(id, _)| id == switch) {
                Some((_, lines)) => lines.push(line),
                None => all.push((*switch, vec![line])),
            }
        }
        all
    }

    /// A table of what is where, for people. Ends with a newline.
    pub fn print(&self) -> String {
        let summary = self.summary();
        let mut out = String::new();
        let mut line =
            |text: std::fmt::Arguments<'_>| writeln!(out, "{text}").expect("writing to a String cannot fail");
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(" / ");
        line(format_args!("plan {} of epoch {} for {}", self.fingerprint(), self.epoch, self.budget.target));
        line(format_args!(
            "  fat root in {}: {} of {} ranges, from sub-table {}",
            self.names(&self.roots),
            summary.ranges,
            self.budget.fat_root_ranges,
            self.root_sub_table()
        ));
        line(format_args!(
            "    stages: {} entries (limit {} each), {} TCAM rows; {} sub-tables of the four slices",
            list(&summary.stage_entries),
            self.budget.stage_entries / self.budget.live_epochs,
            list(&summary.stage_rows),
            list(&summary.sub_tables)
        ));
        for layer in &summary.layers {
            line(format_args!(
                "  {:<14} {:>6} nodes, room {} per switch, {:>5.1} % of samples",
                layer.name,
                layer.nodes,
                layer.room,
                100.0 * layer.share
            ));
            if layer.nodes > 0 {
                line(format_args!(
                    "    regular {}, searched by high halves {}, by low halves {}, by whole keys {}",
                    layer.regular, layer.high, layer.low, layer.whole
                ));
            }
            for switch in &layer.switches {
                line(format_args!("    {:<12} {:>6}", switch.name, switch.nodes));
            }
        }
        if !self.hot.is_empty() {
            line(format_args!(
                "  hot keys       {:>6} of {} in the first switch of each client, {:>5.1} % of samples",
                summary.hot_keys,
                self.budget.hot_keys,
                100.0 * summary.hot_share
            ));
            for switch in &self.first_hops {
                line(format_args!("    {:<12} {:>6}", self.switch_name(*switch), summary.hot_keys));
            }
        }
        for next in self.next_blocks() {
            let saves = part_of(next.saves, self.all_visits());
            // What a hot key saves depends on where it lies.
            let bytes = match self.lookup_bytes.inner {
                inner if inner > 0 && !next.switches.is_empty() => {
                    format!(" and {:.1} bytes", saves * f64::from(inner))
                }
                _ => String::new(),
            };
            let switches = match &next.switches[..] {
                [] => "the first switches".to_owned(),
                switches => self.names(switches),
            };
            line(format_args!(
                "  one block of SRAM more for {} in {switches} would save {:.4} round trips a lookup{bytes} ({} more)",
                next.table, saves, next.entries
            ));
        }
        line(format_args!(
            "  {} table entries; the switches walk {:.2} levels for an average sample that is not led to a record",
            summary.entries, summary.expected_levels
        ));
        line(format_args!(
            "  from there down to its leaf an average sample takes {}",
            Cost { round_trips: summary.round_trips, bytes: summary.read_bytes }
        ));
        line(format_args!(
            "  no placement of nodes below this fat root saves more than {:.4} further round trips a lookup",
            summary.short_of_best
        ));
        out
    }
}

//! What the switches have room for.

use serde::{Deserialize, Serialize};

use super::ranges::{RangeMatch, RangeTables};
use super::{LAYERS, PlanError, STAGES};

/// Node ids are `layer * 4096 + slot + 1`: a node set cannot hold more.
pub const MAX_SET_NODES: usize = 4096;

/// Room in the switches. Node and range numbers are per epoch, and the tables behind them hold `live_epochs` of them.
///
/// ```
/// use fatbtree_controller::Budget;
///
/// let budget = Budget::from_toml("fat_root_ranges = 600\nset_nodes = [3600, 3600, 3600, 0, 0]")?;
/// assert_eq!((budget.fat_root_ranges, budget.stage_entries), (600, Budget::bmv2().stage_entries));
/// assert!(Budget::from_toml("set_nodes = [5000, 0, 0, 0, 0]").is_err(), "a set has 4096 node ids");
/// # Ok::<(), fatbtree_controller::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// What this is the budget of; for people.
    pub target: String,
    /// K: ranges of the fat root (paper §III-B; at most 1024 in its implementation).
    pub fat_root_ranges: usize,
    /// Entries of each `fat_root_*` table, all live epochs together.
    pub stage_entries: usize,
    /// TCAM of a stage; `None` where entries are all that counts.
    pub tcam: Option<Tcam>,
    /// How ranges are matched.
    pub range_match: RangeMatch,
    /// Nodes per switch in the node set of each layer: core A, aggregation A and B, edge A and B.
    pub set_nodes: [usize; LAYERS],
    /// Epochs that are in the tables at one time: 2, or 1 where reloads may empty them first.
    pub live_epochs: usize,
}

/// TCAM of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tcam {
    /// Blocks of the stage that a `fat_root_*` table may take.
    pub blocks: usize,
    /// Rows of a block.
    pub rows: usize,
    /// Bits of a row.
    pub bits: u32,
}

/// Key bits of a 16-bit range on Tofino: 8 per nibble.
const RANGE_BITS: u32 = 32;

impl Tcam {
    /// Blocks side by side that an entry needs, for sub-table ids up to `highest`.
    pub fn width(&self, highest: u16) -> usize {
        let id_bits = 16 - highest.leading_zeros();
        (RANGE_BITS + id_bits).div_ceil(self.bits) as usize
    }

    /// Rows of the whole stage, for sub-table ids up to `highest`.
    pub fn stage_rows(&self, highest: u16) -> usize {
        self.blocks / self.width(highest) * self.rows
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::bmv2()
    }
}

impl Budget {
    /// BMv2 and the software switch: the table sizes of the v1model program.
    pub fn bmv2() -> Self {
        Self {
            target: "v1model".to_owned(),
            fat_root_ranges: 1024,
            stage_entries: 8192,
            tcam: None,
            range_match: RangeMatch::Exact,
            set_nodes: [MAX_SET_NODES; LAYERS],
            live_epochs: 2,
        }
    }

    /// Tofino 1: 24 TCAM blocks of 512 rows of 44 bits a stage.
    pub fn tofino1() -> Self {
        Self {
            target: "Tofino 1".to_owned(),
            tcam: Some(Tcam { blocks: 24, rows: 512, bits: 44 }),
            range_match: RangeMatch::OneSided,
            ..Self::bmv2()
        }
    }

    /// What the paper's experiments load (§V-B): 600 ranges and 3600 nodes in each layer; on v1model.
    pub fn paper() -> Self {
        Self { fat_root_ranges: 600, set_nodes: [3600; LAYERS], ..Self::bmv2() }
    }

    /// Reads a budget; what is left out is as in [`Budget::bmv2`].
    ///
    /// # Errors
    /// [`PlanError::Budget`] on an unknown key or an impossible value.
    pub fn from_toml(text: &str) -> Result<Self, PlanError> {
        let budget: Self =
            toml::from_str(text).map_err(|error| PlanError::Budget { problem: error.to_string() })?;
        budget.validate()?;
        Ok(budget)
    }

    /// As [`Budget::from_toml`], from JSON.
    ///
    /// # Errors
    /// [`PlanError::Budget`] on an unknown key or an impossible value.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let budget: Self =
            serde_json::from_str(text).map_err(|error| PlanError::Budget { problem: error.to_string() })?;
        budget.validate()?;
        Ok(budget)
    }

    pub(super) fn validate(&self) -> Result<(), PlanError> {
        let refuse = |problem: String| Err(PlanError::Budget { problem });
        if let Some(nodes) = self.set_nodes.iter().find(|nodes| **nodes > MAX_SET_NODES) {
            return refuse(format!(
                "set_nodes: expected at most {MAX_SET_NODES} nodes a set (their ids end there), found {nodes}"
            ));
        }
        if !(1..=2).contains(&self.live_epochs) {
            return refuse(format!("live_epochs: expected 1 or 2, found {}", self.live_epochs));
        }
        // Ids of an epoch step by two: 2 * (table + 1) + parity.
        let most = usize::from(u16::MAX) / 2 - 2;
        if self.fat_root_ranges.saturating_mul(3) > most {
            let limit = most / 3;
            return refuse(format!(
                "fat_root_ranges: expected at most {limit} (sub-table ids are 16 bits), found {}",
                self.fat_root_ranges
            ));
        }
        if let Some(tcam) = self.tcam.filter(|tcam| tcam.bits == 0) {
            return refuse(format!("tcam.bits: expected a row of at least one bit, found {}", tcam.bits));
        }
        Ok(())
    }

    /// Whether the range tables fit every stage; the error names the first that they do not.
    pub(super) fn check_ranges(
        &self,
        ranges: usize,
        tables: &RangeTables,
        highest_id: u16,
    ) -> Result<(), PlanError> {
        let over = |table: String, need: usize, limit: usize| PlanError::OverBudget { table, need, limit };
        if ranges > self.fat_root_ranges {
            return Err(over("fat root (ranges)".to_owned(), ranges, self.fat_root_ranges));
        }
        let entries: [usize; STAGES] = tables.entries_per_stage();
        let limit = self.stage_entries / self.live_epochs;
        if let Some(stage) = (0..STAGES).find(|stage| entries[*stage] > limit) {
            return Err(over(format!("fat_root_{stage} (entries)"), entries[stage], limit));
        }
        if let Some(tcam) = self.tcam {
            let rows: [usize; STAGES] = tables.rows_per_stage(self.range_match);
            let limit = tcam.stage_rows(highest_id) / self.live_epochs;
            if let Some(stage) = (0..STAGES).find(|stage| rows[*stage] > limit) {
                return Err(over(format!("fat_root_{stage} (TCAM rows)"), rows[stage], limit));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_sub_table_ids_take_two_blocks() {
        let tcam = Budget::tofino1().tcam.unwrap();
        assert_eq!((tcam.width(0x0fff), tcam.stage_rows(0x0fff)), (1, 12_288));
        assert_eq!((tcam.width(0x1000), tcam.stage_rows(0x1000)), (2, 6_144));
        assert_eq!(tcam.width(0), 1);
    }

    #[test]
    fn files_are_read_and_refused() {
        let json = serde_json::to_string(&Budget::tofino1()).unwrap();
        assert_eq!(Budget::from_json(&json).unwrap(), Budget::tofino1());
        let toml = toml::to_string(&Budget::paper()).unwrap();
        assert_eq!(Budget::from_toml(&toml).unwrap(), Budget::paper());
        for bad in [
            "ranges = 3",
            "live_epochs = 0",
            "live_epochs = 3",
            "fat_root_ranges = 20000",
            "set_nodes = [1, 2]",
            "tcam = { blocks = 1, rows = 1, bits = 0 }",
        ] {
            let error = Budget::from_toml(bad).unwrap_err().to_string();
            assert!(error.contains("expected") || error.contains("bits"), "{bad}: {error}");
        }
    }
}

//! Room of the switches.

use std::sync::OnceLock;

use fatbtree_topology::{Network, NodeSet, Role, SetGroup};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::need::Need;
use super::placement::{Full, StageRoom};
use super::ranges::{RangeMatch, RangeTables};
use super::{Pivots, PlanError, STAGES, sizes};
use crate::program::Target;

/// Slots of a node set, for each epoch: it holds no more nodes.
pub const MAX_SET_NODES: usize = 1 << 16;

/// Ids of an epoch step by two: 2 * (table + 1) + parity, in 16 bits.
const MAX_SUB_TABLES: usize = u16::MAX as usize / 2 - 1;

/// Ranges of a fat root, at most: so many need one sub-table or more, and none has more than 2^16 - 1 entries.
pub(super) const MAX_RANGES: usize = MAX_SUB_TABLES;

/// Node sets that there are, of all roles.
pub const SETS: usize = 10;

/// The role and place of each, in the order in which a [`Budget`] has them.
pub const ROLE_SETS: [(Role, NodeSet); SETS] = [
    (Role::Core, NodeSet::A),
    (Role::Aggregation, NodeSet::A),
    (Role::Aggregation, NodeSet::B),
    (Role::Edge, NodeSet::A),
    (Role::Edge, NodeSet::B),
    (Role::Single, NodeSet::A),
    (Role::Single, NodeSet::B),
    (Role::Folded, NodeSet::A),
    (Role::Folded, NodeSet::B),
    (Role::Folded, NodeSet::C),
];

/// Room in the switches. Node and range numbers are per epoch, and the tables after them hold `live_epochs` of them.
///
/// ```
/// use fatbtree_controller::Budget;
///
/// let budget = Budget::from_toml("fat_root_ranges = 600\nset_nodes = [3600, 3600, 3600, 0, 0]")?;
/// assert_eq!((budget.fat_root_ranges, budget.stage_entries), (600, Budget::bmv2().stage_entries));
/// assert!(Budget::from_toml("set_nodes = [70000, 0, 0, 0, 0]").is_err(), "a set has 65,536 slots");
/// # Ok::<(), fatbtree_controller::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Name of the target, for people.
    pub target: String,
    /// K: ranges of the fat root (paper §III-B; at most 1024 in its implementation). Entries and rows may end it before.
    pub fat_root_ranges: usize,
    /// Entries of each `fat_root_*` table, all live epochs together.
    pub stage_entries: usize,
    /// TCAM rows of each `fat_root_*` table, all live epochs together; `None` where entries are all that counts.
    pub stage_rows: Option<[usize; STAGES]>,
    /// Way in which ranges are matched.
    pub range_match: RangeMatch,
    /// Nodes per switch in each node set, by role: core A, aggregation A and B, edge A and B, single A and B, folded A, B and C
    /// ([`ROLE_SETS`]). A file may leave out the last three, or the last five: they are as those of the role before, C as B.
    #[serde(deserialize_with = "per_set")]
    pub set_nodes: [usize; SETS],
    /// Nodes among these that may be searched by [whole keys](super::Pivots::Whole): they have tables of their own.
    #[serde(deserialize_with = "per_set")]
    pub whole_nodes: [usize; SETS],
    /// Children of nodes whose children are no run.
    #[serde(deserialize_with = "per_set")]
    pub children: [usize; SETS],
    /// Hot keys of each first switch: their table holds them once, for all epochs. See [`in_network`](Self::in_network).
    pub hot_keys: usize,
    /// Epochs that are in the tables at one time: 2, or 1 where reloads may empty them first.
    pub live_epochs: usize,
}

/// A number for each node set; those of a switch alone may be left out.
fn per_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[usize; SETS], D::Error> {
    let given = Vec::<usize>::deserialize(deserializer)?;
    match given[..] {
        [core, aggregation_a, aggregation_b, a, b] => {
            Ok([core, aggregation_a, aggregation_b, a, b, a, b, a, b, b])
        }
        [core, aggregation_a, aggregation_b, edge_a, edge_b, a, b] => {
            Ok([core, aggregation_a, aggregation_b, edge_a, edge_b, a, b, a, b, b])
        }
        _ => given.try_into().map_err(|given: Vec<usize>| {
            D::Error::custom(format!(
                "expected 5, 7 or {SETS} numbers, one for each node set, found {}",
                given.len()
            ))
        }),
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::bmv2()
    }
}

impl Budget {
    /// Budget of the compiled programs of a target: table sizes from the P4Info, TCAM rows from the compiler's own
    /// listing. A plan within it is one that the switches take: of a Tofino's hash tables at most nine tenths of the places, for
    /// they do not fill up. A set that a role's program does not have has room for nothing.
    ///
    /// Ranges are as many as entries, rows and sub-table ids allow; the paper's fat root has 1024.
    pub fn compiled(target: Target) -> Self {
        static BUDGETS: [OnceLock<Budget>; Target::ALL.len()] =
            [const { OnceLock::new() }; Target::ALL.len()];
        BUDGETS[target as usize].get_or_init(|| sizes::budget(target)).clone()
    }

    /// BMv2 and the software switch.
    pub fn bmv2() -> Self {
        Self::compiled(Target::V1model)
    }

    /// Budget of the paper's experiments (§V-B): 600 ranges and 3600 nodes in each layer; on v1model.
    pub fn paper() -> Self {
        Self { fat_root_ranges: 600, set_nodes: [3600; SETS], ..Self::bmv2() }
    }

    /// Budget in this network: one of its first switches may be everything at once, and have less room for hot keys.
    #[must_use]
    pub fn in_network(self, network: &Network) -> Self {
        let roles = network.switches().iter().map(|switch| switch.role);
        Self { hot_keys: self.hot_keys_in(roles), ..self }
    }

    /// Hot keys that there is room for in switches of all these roles.
    pub(super) fn hot_keys_in(&self, roles: impl IntoIterator<Item = Role>) -> usize {
        let chip = Target::ALL.into_iter().find(|known| known.name() == self.target).and_then(Target::chip);
        let room = |role| chip.and_then(|chip| sizes::planned(chip, role, "hot_key"));
        roles.into_iter().filter_map(room).fold(self.hot_keys, usize::min)
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

    /// Reads a budget from JSON, as [`Budget::from_toml`] does from TOML.
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
            return refuse(format!("set_nodes: expected at most {MAX_SET_NODES} nodes a set, found {nodes}"));
        }
        if !(1..=2).contains(&self.live_epochs) {
            return refuse(format!("live_epochs: expected 1 or 2, found {}", self.live_epochs));
        }
        if self.fat_root_ranges > MAX_RANGES {
            return refuse(format!(
                "fat_root_ranges: expected at most {MAX_RANGES} (sub-table ids are 16 bits), found {}",
                self.fat_root_ranges
            ));
        }
        Ok(())
    }

    /// Whether range tables as they are placed, and matched, fit every stage; the error names the first that they do not.
    pub(super) fn check_ranges(
        &self,
        ranges: usize,
        tables: &RangeTables,
        range_match: RangeMatch,
    ) -> Result<(), PlanError> {
        let over = |table: String, need: usize, limit: usize| {
            if need > limit { Err(PlanError::OverBudget { table, need, limit }) } else { Ok(()) }
        };
        over("fat root (ranges)".to_owned(), ranges, self.fat_root_ranges)?;
        over("fat root (sub-tables)".to_owned(), tables.tables.len(), MAX_SUB_TABLES)?;
        let StageRoom { entries, rows, .. } = self.stage_room();
        for (stage, need) in tables.entries_per_stage::<STAGES>().into_iter().enumerate() {
            over(format!("fat_root_{stage} (entries)"), need, entries[stage])?;
        }
        let needs = tables.rows_per_stage::<STAGES>(range_match).into_iter().enumerate();
        for ((stage, need), limit) in needs.zip(rows.into_iter().flatten()) {
            over(format!("fat_root_{stage} (TCAM rows)"), need, limit)?;
        }
        Ok(())
    }

    /// Gives the entries of range tables their stages. The error names the first stages that are too small together.
    pub(super) fn place(&self, tables: &mut RangeTables) -> Result<(), PlanError> {
        self.stage_room().place(tables).map_err(|Full { from, to, of_rows, need, limit }| {
            let what = if of_rows { "TCAM rows" } else { "entries" };
            let table = if from == to {
                format!("fat_root_{from} ({what})")
            } else {
                format!("fat_root_{from} to fat_root_{to} ({what})")
            };
            PlanError::OverBudget { table, need, limit }
        })
    }

    /// Whether there is room for it.
    pub(super) fn holds(&self, need: &Need) -> bool {
        need.ranges <= self.fat_root_ranges
            && need.sub_tables() <= MAX_SUB_TABLES
            && self.stage_room().holds(need)
    }

    /// Room of the stages for one epoch.
    fn stage_room(&self) -> StageRoom {
        StageRoom {
            entries: [self.stage_entries / self.live_epochs; STAGES],
            rows: self.stage_rows.map(|rows| rows.map(|rows| rows / self.live_epochs)),
            range_match: self.range_match,
        }
    }

    /// Its share of what it takes the largest share of, when all there is of it is `whole`: of the ranges, or of the entries and rows of
    /// the stages that a slice and those after it have together.
    pub(super) fn largest_share(&self, need: &Need, whole: u64) -> u64 {
        let StageRoom { entries, rows, .. } = self.stage_room();
        let sum = |of: [usize; STAGES], slice: usize| of[slice..].iter().sum::<usize>();
        let from = |slice| {
            let of_rows = rows.map(|rows| (sum(need.rows, slice), sum(rows, slice)));
            std::iter::once((sum(need.entries, slice), sum(entries, slice))).chain(of_rows)
        };
        let all = std::iter::once((need.ranges, self.fat_root_ranges)).chain((0..STAGES).flat_map(from));
        let share = |(need, limit): (usize, usize)| need as u64 * whole / limit.max(1) as u64;
        all.map(share).max().unwrap_or(0)
    }
}

/// Room of a node set in one epoch, or the used part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SetRoom {
    pub(super) nodes: usize,
    pub(super) whole: usize,
    pub(super) children: usize,
}

impl SetRoom {
    pub(super) fn of(budget: &Budget, group: &SetGroup) -> Self {
        let at =
            ROLE_SETS.iter().position(|own| *own == (group.role, group.set)).expect("all sets are there");
        let Budget { set_nodes, whole_nodes, children, .. } = budget;
        Self { nodes: set_nodes[at], whole: whole_nodes[at], children: children[at] }
    }

    /// One more node.
    pub(super) fn add(&mut self, pivots: Pivots, is_run: bool, children: usize) {
        self.nodes += 1;
        self.whole += usize::from(pivots == Pivots::Whole);
        self.children += if is_run { 0 } else { children };
    }

    pub(super) fn is_within(&self, room: &Self) -> bool {
        self.nodes <= room.nodes && self.whole <= room.whole && self.children <= room.children
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_those_of_the_compiled_programs() {
        let v1model = Budget::compiled(Target::V1model);
        assert_eq!(v1model.set_nodes, [MAX_SET_NODES; SETS]);
        assert_eq!((v1model.stage_entries, v1model.stage_rows), (8192, None));
        for target in [Target::Tofino1, Target::Tofino2] {
            let budget = Budget::compiled(target);
            budget.validate().unwrap();
            // The paper has 4096 nodes a set; here in each of two epochs. Ranges are as many as rows are there for.
            assert_eq!(budget.fat_root_ranges, MAX_RANGES);
            let (without, with): (Vec<usize>, Vec<usize>) = (0..SETS).partition(|at| *at == 6);
            assert!(with.iter().all(|at| budget.set_nodes[*at] >= 7_000), "{:?}", budget.set_nodes);
            assert_eq!(budget.set_nodes[without[0]], 0, "one pass of a switch alone has one set");
            assert!(budget.stage_rows.unwrap().iter().all(|rows| *rows >= 6144), "{:?}", budget.stage_rows);
        }
    }

    #[test]
    fn files_are_read_and_refused() {
        let json = serde_json::to_string(&Budget::compiled(Target::Tofino1)).unwrap();
        assert_eq!(Budget::from_json(&json).unwrap(), Budget::compiled(Target::Tofino1));
        let toml = toml::to_string(&Budget::paper()).unwrap();
        assert_eq!(Budget::from_toml(&toml).unwrap(), Budget::paper());
        let of_single = |text: &str| Budget::from_toml(text).unwrap().set_nodes[5..].to_vec();
        assert_eq!(of_single("set_nodes = [1, 2, 3, 4, 5]"), [4, 5, 4, 5, 5], "as those of edge switches");
        assert_eq!(of_single("set_nodes = [1, 2, 3, 4, 5, 6, 7]"), [6, 7, 6, 7, 7]);
        assert_eq!(of_single("set_nodes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"), [6, 7, 8, 9, 10]);
        for bad in [
            "ranges = 3",
            "live_epochs = 0",
            "live_epochs = 3",
            "fat_root_ranges = 32767",
            "set_nodes = [1, 2]",
            "stage_rows = [1, 2]",
        ] {
            let error = Budget::from_toml(bad).unwrap_err().to_string();
            assert!(error.contains("expected") || error.contains("bits"), "{bad}: {error}");
        }
    }
}

//! Which fat root, and which placement below it: of several that are made, the one that walks most levels.
//!
//! ```text
//!   expected visits ─▶ fat root ─▶ placement, every node wanted ─┬─▶ the better of them, and how far it is from the bound
//!                          └─────▶ placement, by prices          ─┘
//! ```
//!
//! The plan without knowledge, by leaves alone, is one of those that are compared. So none that is chosen walks less than that one, for the
//! visits that are known.

use super::fat_root::{self, FatRoot};
use super::favour::Favour;
use super::groups::Groups;
use super::layers::{self, Placed, Sets};
use super::prices::Prices;
use super::{Budget, PlanError};
use crate::frequency::Frequencies;
use crate::tree::{NONE, Tree};

/// A fat root, and the nodes below it.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) fat_root: FatRoot,
    /// Placed nodes by group and slot.
    pub(super) placed: Vec<Placed>,
    /// The best placement below the same fat root saves at most so many millionths of a round trip more.
    pub(super) short: u32,
}

/// Common input of all plans for a tree.
struct Planner<'a> {
    tree: &'a Tree,
    favour: &'a Favour,
    groups: &'a Groups,
    sets: Sets,
}

/// Chooses by what is known of the visits.
pub(super) fn choose(
    tree: &Tree,
    frequencies: &Frequencies,
    favour: &Favour,
    groups: &Groups,
    budget: &Budget,
) -> Result<Choice, PlanError> {
    let planner = Planner { tree, favour, groups, sets: Sets::new(groups, budget) };
    let expected = frequencies.expected();
    let known = planner.below(expected, fat_root::build(tree, expected, favour, budget)?);
    if frequencies.total() == 0 {
        return Ok(known);
    }
    let (none, nothing) = (Favour::default(), Frequencies::none(tree));
    let leaves = nothing.expected();
    let blind = Planner { favour: &none, sets: planner.sets.clone(), ..planner };
    let mut blind = blind.below(leaves, fat_root::build(tree, leaves, &none, budget)?);
    let visits = |choice: &Choice| choice.nodes().map(|node| u128::from(frequencies.of(node))).sum::<u128>();
    let brings = |choice: &Choice| planner.brings(expected, choice);
    if visits(&known) >= visits(&blind) && brings(&known) >= brings(&blind) {
        return Ok(known);
    }
    // It was placed for other visits.
    blind.short = planner.short(expected, &blind);
    Ok(blind)
}

impl Planner<'_> {
    /// The best placement below a fat root.
    fn below(&self, visits: &[f64], fat_root: FatRoot) -> Choice {
        let children = &fat_root.children;
        let place = |wanted: &[bool]| {
            layers::place(self.tree, visits, wanted, self.favour, children, self.groups, &self.sets)
        };
        let brings = |placed: &Vec<Placed>| self.placement_brings(visits, placed);
        let all = place(&vec![true; self.tree.node_count()]);
        let prices = self.prices(visits, children, &all);
        let placed = match prices.is_near(walked(visits, &all)) {
            true => all,
            false => {
                let by_prices = place(&prices.wanted);
                if brings(&by_prices) > brings(&all) { by_prices } else { all }
            }
        };
        Choice { short: self.short_of(visits, &placed, &prices), fat_root, placed }
    }

    fn prices(&self, visits: &[f64], children: &[fat_root::Child], placed: &[Placed]) -> Prices {
        Prices::find(self.tree, visits, children, &self.sets, walked(visits, placed))
    }

    fn short(&self, visits: &[f64], choice: &Choice) -> u32 {
        let prices = self.prices(visits, &choice.fat_root.children, &choice.placed);
        self.short_of(visits, &choice.placed, &prices)
    }

    /// Round trips of a visit that a placement could save at most, in millionths.
    fn short_of(&self, visits: &[f64], placed: &[Placed], prices: &Prices) -> u32 {
        let roots = self.tree.partitions().iter().map(|partition| partition.node);
        let all: f64 = roots.filter(|node| *node != NONE).map(|node| visits[node as usize]).sum();
        let short = (prices.bound - walked(visits, placed)).max(0.0);
        if all > 0.0 { (short / all * 1e6).ceil() as u32 } else { 0 }
    }

    /// Gain of a choice: an eighth more for nodes that stay where they are.
    fn brings(&self, visits: &[f64], choice: &Choice) -> f64 {
        let merged = choice.fat_root.merged.iter();
        let merged: f64 =
            merged.map(|node| Favour::of_held(self.favour.in_fat_root(*node), visits[*node as usize])).sum();
        merged + self.placement_brings(visits, &choice.placed)
    }

    fn placement_brings(&self, visits: &[f64], placed: &[Placed]) -> f64 {
        let brings = |at: &Placed| {
            let set = &self.groups.all[usize::from(at.group)];
            let is_held = self.favour.in_set(set, self.tree.node(at.node).address);
            Favour::of_held(is_held, visits[at.node as usize])
        };
        placed.iter().map(brings).sum()
    }
}

impl Choice {
    /// All nodes that switches hold.
    fn nodes(&self) -> impl Iterator<Item = u32> {
        self.fat_root.merged.iter().copied().chain(self.placed.iter().map(|at| at.node))
    }
}

/// Visits of the nodes that are placed.
fn walked(visits: &[f64], placed: &[Placed]) -> f64 {
    placed.iter().map(|at| visits[at.node as usize]).sum()
}

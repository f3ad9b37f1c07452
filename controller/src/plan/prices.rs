//! Distance of a placement from the best one, and the nodes that are worth a place.
//!
//! The rooms of the node sets are what ties nodes to each other. With a *price* for a place in each set instead of its room, each
//! subtree can be decided for itself, from the bottom up: a node's worth in a set is its visits less the price, and whatever its
//! children are worth in the sets after that one. For any prices, the worth of all subtrees and the price of all room together is at least
//! what the best placement walks (Lagrange): a bound. Prices of sets that too many nodes want rise, others fall, and
//! the bound comes down towards the best placement.

use super::fat_root::Child;
use super::layers::Sets;
use crate::tree::{NONE, Tree};

/// Rounds in which prices change.
const ROUNDS: usize = 16;

/// A placement that is short of its bound by less than this part of it is good enough.
const NEAR: f64 = 0.002;

/// Rounds without a lower bound until prices change by half as much.
const PATIENCE: usize = 3;

/// Prices of places below a fat root.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    /// No placement walks more: expected visits of the nodes in all node sets.
    pub(super) bound: f64,
    /// Whether a node is worth a place, by node.
    pub(super) wanted: Vec<bool>,
}

impl Prices {
    /// Finds prices, until a placement that walks `reached` is near enough.
    pub(super) fn find(tree: &Tree, visits: &[f64], fat_root: &[Child], sets: &Sets, reached: f64) -> Self {
        let mut market = Market::new(tree, visits, fat_root, sets);
        let mut prices = vec![0.0; sets.rooms.len()];
        let mut best = Self { bound: f64::INFINITY, wanted: Vec::new() };
        let (mut step, mut patience) = (1.0, PATIENCE);
        for _ in 0..ROUNDS {
            let (bound, used) = market.ask(&prices);
            if bound < best.bound {
                best = Self { bound, wanted: market.wanted() };
                patience = PATIENCE;
            } else {
                patience -= 1;
                if patience == 0 {
                    (step, patience) = (step / 2.0, PATIENCE);
                }
            }
            if best.is_near(reached) {
                break;
            }
            // Polyak's step: as far as it would take were the bound a plane that falls to what was reached.
            let excess = |(group, used): (usize, &usize)| {
                let room = sets.rooms[group].nodes;
                let excess = *used as f64 / room.max(1) as f64 - 1.0;
                if room == 0 || prices[group] <= 0.0 && excess < 0.0 { 0.0 } else { excess }
            };
            let excess: Vec<f64> = used.iter().enumerate().map(excess).collect();
            let square: f64 = excess.iter().map(|part| part * part).sum();
            if square <= 0.0 {
                break;
            }
            let length = step * (bound - reached).max(0.0) / square;
            for ((price, excess), room) in prices.iter_mut().zip(excess).zip(&sets.rooms) {
                *price = f64::max(0.0, *price + length * excess / room.nodes.max(1) as f64);
            }
        }
        best
    }

    /// Whether a placement that walks so much is good enough.
    pub(super) fn is_near(&self, reached: f64) -> bool {
        self.bound - reached <= NEAR * self.bound
    }
}

/// All nodes and what they are worth at some prices.
struct Market<'a> {
    tree: &'a Tree,
    visits: &'a [f64],
    fat_root: &'a [Child],
    sets: &'a Sets,
    /// Worth of a node's children in the sets after this one, by node and set on its way.
    after: Vec<f64>,
    longest: usize,
    /// First set that a node may be in, by node; `None` where its parent is not placed.
    from: Vec<Option<u8>>,
}

impl<'a> Market<'a> {
    fn new(tree: &'a Tree, visits: &'a [f64], fat_root: &'a [Child], sets: &'a Sets) -> Self {
        let longest = sets.longest();
        let (after, from) = (vec![0.0; tree.node_count() * longest], vec![None; tree.node_count()]);
        Self { tree, visits, fat_root, sets, after, longest, from }
    }

    fn way(&self, node: usize) -> &'a [u16] {
        match self.tree.cacheable(node as u32) {
            true => &self.sets.ways[usize::from(self.tree.node(node as u32).partition)],
            false => &[],
        }
    }

    /// Worth of a node with its subtree in a set.
    fn worth(&self, prices: &[f64], node: usize, way: &[u16], at: usize) -> f64 {
        self.visits[node] - prices[usize::from(way[at])] + self.after[node * self.longest + at]
    }

    /// The bound at these prices, and how many nodes want to be in each set.
    fn ask(&mut self, prices: &[f64]) -> (f64, Vec<usize>) {
        self.after.fill(0.0);
        let (tree, longest) = (self.tree, self.longest);
        // Breadth-first order: children come after their parents.
        for node in (0..tree.node_count()).rev() {
            let way = self.way(node);
            let mut sums = [0.0; MAX_SETS];
            for child in tree.children(node as u32).iter().filter(|child| child.node != NONE) {
                let child = child.node as usize;
                let way = self.way(child);
                let mut best = 0.0;
                for at in (0..way.len()).rev() {
                    sums[at] += best;
                    best = f64::max(best, self.worth(prices, child, way, at));
                }
            }
            self.after[node * longest..][..way.len()].copy_from_slice(&sums[..way.len()]);
        }
        self.from.fill(None);
        let roots = self.fat_root.iter().filter(|child| child.node != NONE);
        roots.for_each(|child| self.from[child.node as usize] = Some(0));
        let mut used = vec![0; self.sets.rooms.len()];
        let rooms = self.sets.rooms.iter().zip(prices);
        let mut bound: f64 = rooms.map(|(room, price)| room.nodes as f64 * price).sum();
        for node in 0..tree.node_count() {
            let Some(from) = self.from[node] else { continue };
            let way = self.way(node);
            let mut best = None;
            for at in usize::from(from)..way.len() {
                let worth = self.worth(prices, node, way, at);
                if worth > best.map_or(0.0, |(_, best)| best) {
                    best = Some((at, worth));
                }
            }
            let Some((at, _)) = best else {
                self.from[node] = None;
                continue;
            };
            let group = usize::from(way[at]);
            used[group] += 1;
            bound += self.visits[node] - prices[group];
            for child in tree.children(node as u32).iter().filter(|child| child.node != NONE) {
                self.from[child.node as usize] = Some(at as u8 + 1);
            }
        }
        (bound, used)
    }

    /// The nodes that wanted a place when prices were asked last.
    fn wanted(&self) -> Vec<bool> {
        self.from.iter().map(Option::is_some).collect()
    }
}

/// Node sets on a way, at most.
const MAX_SETS: usize = super::SETS;

//! Which nodes go into which node set: set by set in path order (paper §III-C, docs/src/formats.md "Planning").
//!
//! The *frontier* is what a packet can still be led to: children of the fat root at first. Each set takes nodes of the frontier up to
//! its room; their children join the frontier; a node passed over may be cached further down. A pod's aggregation switches only
//! see its partitions, an edge switch only its servers', so room is counted per group of switches.
//!
//! A node that waits keeps its subtree waiting: with three sets ahead, the levels below the third are lost. So a set first takes the
//! nodes whose waiting loses most of the nodes that are *wanted* at all ([`Prices`](super::prices::Prices) says which), then those that
//! would lose most by waiting for the set after the next one, and so on; then the most visited ones. A set is left with room
//! only for nodes that do not fit it.

use std::cmp::{Ordering, Reverse};

use super::Budget;
use super::budget::SetRoom;
use super::fat_root::Child;
use super::favour::Favour;
use super::groups::Groups;
use crate::tree::{NONE, Tree};

/// A node and where it is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) node: u32,
    pub(super) group: u16,
    /// Unique in its set.
    pub(super) slot: u16,
}

/// The node sets that have room for nodes.
#[derive(Clone, Debug)]
pub(super) struct Sets {
    /// Room by group.
    pub(super) rooms: Vec<SetRoom>,
    /// Groups with room on a partition's way, in the order of the way, by partition.
    pub(super) ways: Vec<Vec<u16>>,
}

impl Sets {
    pub(super) fn new(groups: &Groups, budget: &Budget) -> Self {
        let rooms: Vec<SetRoom> = groups.all.iter().map(|group| SetRoom::of(budget, group)).collect();
        let has_room = |group: &u16| rooms[usize::from(*group)].nodes > 0;
        let ways = groups.of_servers.iter().map(|way| way.iter().copied().filter(has_room).collect());
        Self { ways: ways.collect(), rooms }
    }

    /// Sets on the longest way.
    pub(super) fn longest(&self) -> usize {
        self.ways.iter().map(Vec::len).max().unwrap_or(0)
    }
}

/// Loss where nodes wait.
struct Waiting {
    /// Expected visits of the wanted nodes so many levels below a node, by node and depth.
    below: Vec<f64>,
    depths: usize,
}

impl Waiting {
    fn new(tree: &Tree, visits: &[f64], wanted: &[bool], depths: usize) -> Self {
        let mut below = vec![0.0; tree.node_count() * depths];
        // Breadth-first order: children come after their parents.
        for node in (0..tree.node_count()).rev().filter(|_| depths > 0) {
            if !tree.cacheable(node as u32) {
                continue;
            }
            if wanted[node] {
                below[node * depths] = visits[node];
            }
            for child in tree.children(node as u32).iter().filter(|child| child.node != NONE) {
                for depth in 1..depths {
                    below[node * depths + depth] += below[child.node as usize * depths + depth - 1];
                }
            }
        }
        Self { below, depths }
    }

    /// With so many sets further on: what is lost if a node waits for the next one, for the one after, …, for ever.
    fn losses(&self, node: u32, sets: usize) -> impl Iterator<Item = f64> {
        let from = node as usize * self.depths;
        self.below[from..=from + sets].iter().rev().copied()
    }
}

/// A node of the frontier before a set.
struct Candidate {
    node: u32,
    /// Sets further on.
    sets: usize,
    is_held: bool,
}

/// Places nodes; the result is ordered by group and slot.
pub(super) fn place(
    tree: &Tree,
    visits: &[f64],
    wanted: &[bool],
    favour: &Favour,
    fat_root: &[Child],
    groups: &Groups,
    sets: &Sets,
) -> Vec<Placed> {
    let waiting = Waiting::new(tree, visits, wanted, sets.longest());
    // The frontier, by partition.
    let mut frontier: Vec<Vec<u32>> = vec![Vec::new(); sets.ways.len()];
    for child in fat_root.iter().filter(|child| child.node != NONE && tree.cacheable(child.node)) {
        frontier[usize::from(child.partition)].push(child.node);
    }
    let mut placed = Vec::new();
    for (group, set) in (0u16..).zip(&groups.all) {
        let mut candidates = Vec::new();
        for (way, nodes) in sets.ways.iter().zip(&mut frontier) {
            if let Some(at) = way.iter().position(|on_the_way| *on_the_way == group) {
                let sets = way.len() - at - 1;
                let is_held = |node: u32| favour.in_set(set, tree.node(node).address);
                let candidate = |node| Candidate { node, sets, is_held: is_held(node) };
                candidates.extend(nodes.drain(..).map(candidate));
            }
        }
        candidates.sort_unstable_by(|a, b| compare(tree, visits, &waiting, a, b).reverse());
        let room = sets.rooms[usize::from(group)];
        let mut taken = SetRoom::default();
        let mut nodes = Vec::new();
        for Candidate { node, .. } in candidates {
            if taken.nodes == room.nodes {
                frontier[usize::from(tree.node(node).partition)].push(node);
                continue;
            }
            let mut with = taken;
            with.add(tree.pivots(node), tree.stride(node) != 0, tree.children(node).len());
            if with.is_within(&room) {
                taken = with;
                nodes.push(node);
            } else {
                frontier[usize::from(tree.node(node).partition)].push(node);
            }
        }
        // Slots in key order, so that equal plans are equal whatever order the queue had.
        nodes.sort_unstable_by_key(|node| (tree.node(*node).partition, tree.node(*node).low, *node));
        for (slot, node) in nodes.into_iter().enumerate() {
            let slot = u16::try_from(slot).expect("the budget keeps nodes within the slots");
            placed.push(Placed { node, group, slot });
            let below = tree.children(node).iter().map(|child| child.node);
            let below = below.filter(|child| *child != NONE && tree.cacheable(*child));
            frontier[usize::from(tree.node(node).partition)].extend(below);
        }
    }
    placed
}

/// The node that a set rather takes is greater.
fn compare(tree: &Tree, visits: &[f64], waiting: &Waiting, a: &Candidate, b: &Candidate) -> Ordering {
    let brings = |at: &Candidate| {
        let (is_held, own) = (at.is_held, visits[at.node as usize]);
        let losses = waiting.losses(at.node, at.sets);
        losses.map(move |lost| Favour::of_held(is_held, lost)).chain([Favour::of_held(is_held, own)])
    };
    // Ways of different lengths: what comes first says what is lost by waiting for one set.
    brings(a)
        .zip(brings(b))
        .map(|(a, b)| a.total_cmp(&b))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
        .then_with(|| a.is_held.cmp(&b.is_held))
        .then_with(|| tree.node(a.node).leaves.cmp(&tree.node(b.node).leaves))
        .then_with(|| Reverse(a.node).cmp(&Reverse(b.node)))
}

//! How often each node is visited, from keys that clients sampled.
//!
//! Samples are sorted once; then every node owns a contiguous run of them, and the walk of *all* samples costs one pass
//! over the tree instead of one root-to-leaf walk each.

use crate::tree::{NONE, Tree, TreeNode};

/// Visits per node of one [`Tree`].
#[derive(Clone, Debug, PartialEq)]
pub struct Frequencies {
    /// Position `n` of the sorted samples begins at weight `runs[n]`; only kept while building.
    nodes: Vec<u64>,
    /// Visits of each node that are to be expected.
    expected: Vec<f64>,
    keys: Vec<u64>,
    /// Weight of all samples before each, and of all.
    before: Vec<u64>,
}

impl Frequencies {
    /// Every sample is one visit. The order of the keys does not matter.
    pub fn from_keys(tree: &Tree, keys: &[u64]) -> Self {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        let before = (0..=keys.len() as u64).collect();
        Self::build(tree, keys, before)
    }

    /// Every `(key, weight)` is `weight` visits; a key may be there several times. Sums saturate at `u64::MAX`.
    pub fn from_weighted(tree: &Tree, samples: &[(u64, u64)]) -> Self {
        let mut samples = samples.to_vec();
        samples.sort_unstable();
        let mut sum = 0u64;
        let mut before = Vec::with_capacity(samples.len() + 1);
        before.push(0);
        before.extend(samples.iter().map(|(_, weight)| {
            sum = sum.saturating_add(*weight);
            sum
        }));
        Self::build(tree, samples.into_iter().map(|(key, _)| key).collect(), before)
    }

    /// No samples: nodes with more leaves below them come first wherever weights are equal, so this is the plan for
    /// uniformly distributed keys.
    pub fn none(tree: &Tree) -> Self {
        Self::from_keys(tree, &[])
    }

    fn build(tree: &Tree, keys: Vec<u64>, before: Vec<u64>) -> Self {
        let mut runs = vec![(0u32, 0u32); tree.node_count()];
        let end_of = |run: &[u64], low: u64| run.partition_point(|key| *key < low);
        let count = |n: usize| u32::try_from(n).expect("fewer than 2^32 samples");
        for partition in tree.partitions().iter().filter(|p| p.node != NONE) {
            let start = end_of(&keys, partition.low);
            let end = keys.partition_point(|key| *key <= partition.high);
            runs[partition.node as usize] = (count(start), count(end));
        }
        // Breadth-first order: a parent's run is known before its children's.
        for n in 0..tree.node_count() {
            let (mut start, end) = runs[n];
            let children = tree.children(n as u32);
            for (at, child) in children.iter().enumerate() {
                let run = &keys[start as usize..end as usize];
                let next = children.get(at + 1).map_or(run.len(), |next| end_of(run, next.low));
                let child_end = start + count(next);
                if child.node != NONE {
                    runs[child.node as usize] = (start, child_end);
                }
                start = child_end;
            }
        }
        let nodes: Vec<u64> =
            runs.iter().map(|(start, end)| before[*end as usize] - before[*start as usize]).collect();
        let expected = expect(tree, &nodes, &runs, (keys.len(), before[keys.len()]));
        Self { nodes, expected, keys, before }
    }

    /// Visits of all samples.
    pub fn total(&self) -> u64 {
        self.before.last().copied().unwrap_or(0)
    }

    /// Visits of a node.
    pub(crate) fn of(&self, node: u32) -> u64 {
        self.nodes[node as usize]
    }

    /// Visits of the keys `low..=high`.
    pub(crate) fn of_keys(&self, low: u64, high: u64) -> u64 {
        let start = self.keys.partition_point(|key| *key < low);
        let end = self.keys.partition_point(|key| *key <= high);
        self.before[end.max(start)] - self.before[start]
    }

    /// Visits of each node that are to be expected, in the unit of the samples: these are a part of all visits, and keys that
    /// none of them has are asked for as well. Without samples, the leaves below each node.
    pub(crate) fn expected(&self) -> &[f64] {
        &self.expected
    }
}

/// Divides the visits of each node among its children as if some more of its samples were spread evenly over its leaves: so many
/// as the samples of all nodes of its level say ([`Evenness`]). Where there are few samples, leaves count; where there are many,
/// samples do.
fn expect(tree: &Tree, visits: &[u64], runs: &[(u32, u32)], (count, total): (usize, u64)) -> Vec<f64> {
    struct Whole {
        expected: f64,
        leaves: f64,
        visits: u64,
        samples: f64,
        even: f64,
    }
    // Visits per leaf. Where there are no samples it is that of the node above: leaves that are alike stay exactly alike.
    let mut of_leaf = vec![0.0; tree.node_count()];
    let share = |whole: &Whole, child: u32, of_leaf: &mut [f64]| {
        let leaves = tree.node(child).leaves as f64;
        of_leaf[child as usize] = if whole.visits == 0 {
            whole.expected / whole.leaves
        } else {
            let seen = visits[child as usize] as f64 / whole.visits as f64;
            let part =
                (whole.samples * seen + whole.even * leaves / whole.leaves) / (whole.samples + whole.even);
            whole.expected * part / leaves
        };
    };
    let roots = tree.partitions().iter();
    let leaves_of = |node: u32| if node == NONE { 1 } else { tree.node(node).leaves };
    let leaves = roots.clone().map(|partition| leaves_of(partition.node)).sum::<u64>() as f64;
    let expected = if total == 0 { leaves } else { total as f64 };
    let all = Whole { expected, leaves, visits: total, samples: count as f64, even: LEAST_EVEN };
    for partition in roots.filter(|partition| partition.node != NONE) {
        share(&all, partition.node, &mut of_leaf);
    }
    let samples_of = |node: usize| {
        let (start, end) = runs[node];
        f64::from(end - start)
    };
    let evenness = Evenness::of(tree, visits, samples_of);
    // Breadth-first order: a parent's visits are known before its children's.
    for node in 0..tree.node_count() {
        let (rate, TreeNode { leaves, level, .. }) = (of_leaf[node], *tree.node(node as u32));
        let (leaves, even) = (leaves as f64, evenness.0[usize::from(level)]);
        let (visits, samples) = (visits[node], samples_of(node));
        let whole = Whole { expected: rate * leaves, leaves, visits, samples, even };
        for child in tree.children(node as u32).iter().filter(|child| child.node != NONE) {
            match whole.visits {
                0 => of_leaf[child.node as usize] = rate,
                _ => share(&whole, child.node, &mut of_leaf),
            }
        }
    }
    (0..).zip(of_leaf).map(|(node, rate)| rate * tree.node(node).leaves as f64).collect()
}

/// One sample spread evenly is the least: no node is without hope.
const LEAST_EVEN: f64 = 1.0;

/// Evenness of visits below the nodes of each level: as many samples as are to be spread evenly beside those of a node.
///
/// Where visits are even by leaves, the samples of a node's `k` children differ from that by chance alone, and Pearson's X² is
/// `k - 1` on average. Where the shares of the children themselves are drawn (from a Dirichlet distribution that is worth `a`
/// samples), it is `k - 1` times `(n + a) / (1 + a)` for `n` samples. Solved for `a` by the sums over a level.
struct Evenness(Vec<f64>);

#[derive(Clone, Copy, Default)]
struct Dispersion {
    /// Sum of X².
    squares: f64,
    /// Sum of `k - 1`.
    freedom: f64,
    /// Sum of `n (k - 1)`.
    samples: f64,
}

impl Evenness {
    fn of(tree: &Tree, visits: &[u64], samples_of: impl Fn(usize) -> f64) -> Self {
        let mut levels = vec![Dispersion::default(); usize::from(u8::MAX) + 1];
        for node in 0..tree.node_count() {
            let samples = samples_of(node);
            if samples < 2.0 {
                continue;
            }
            let known = tree.children(node as u32).iter().filter(|child| child.node != NONE);
            let leaves: u64 = known.clone().map(|child| tree.node(child.node).leaves).sum();
            let seen: u64 = known.clone().map(|child| visits[child.node as usize]).sum();
            let count = known.clone().count();
            if count < 2 || seen == 0 {
                continue;
            }
            let square = |child: u32| {
                let even = samples * tree.node(child).leaves as f64 / leaves as f64;
                let found = samples * visits[child as usize] as f64 / seen as f64;
                (found - even).powi(2) / even
            };
            let level = &mut levels[usize::from(tree.node(node as u32).level)];
            let freedom = (count - 1) as f64;
            level.squares += known.map(|child| square(child.node)).sum::<f64>();
            level.freedom += freedom;
            level.samples += samples * freedom;
        }
        Self(levels.iter().map(Dispersion::even).collect())
    }
}

impl Dispersion {
    /// Samples to be spread evenly.
    fn even(&self) -> f64 {
        let Self { squares, freedom, samples } = *self;
        if freedom == 0.0 {
            return LEAST_EVEN;
        }
        // By chance, the spread of even visits is off by about this: so much unevenness can be there without being seen.
        let chance = (2.0 / freedom).sqrt();
        let (spread, samples) = ((squares / freedom).max(1.0 + chance), samples / freedom);
        let even = (samples - spread) / (spread - 1.0);
        even.max(LEAST_EVEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{arb_tops, naive_path, top};
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;

    /// Two halves of 100 leaves each, below one root.
    fn halves() -> Tree {
        let lows: Vec<u64> = (0..200).map(|leaf| leaf * 10).collect();
        Tree::new(&[top(0, 0, &lows, &[10, 10, 10, 10, 10, 10, 10, 10, 10, 10])]).unwrap()
    }

    #[test]
    fn few_samples_say_little_and_many_say_much() {
        let tree = halves();
        let root = tree.partitions()[0].node;
        let [first, second] = tree.children(root) else { panic!("two halves") };
        let expected = |samples: u64| {
            let keys: Vec<u64> = (0..samples).map(|n| n % 1000).collect();
            let frequencies = Frequencies::from_keys(&tree, &keys);
            [first, second].map(|half| frequencies.expected()[half.node as usize])
        };
        assert_eq!(expected(0), [100.0, 100.0], "as leaves");
        assert_eq!(expected(1), [0.75, 0.25], "one sample of two, as it were");
        let [asked, other] = expected(999);
        assert!((998.0..999.0).contains(&asked) && other > 0.0, "{asked} {other}");
    }

    /// What samples of even visits say of a node by chance is not believed; what they say of uneven ones is.
    #[test]
    fn samples_say_more_where_visits_are_uneven() {
        let lows: Vec<u64> = (0..2000).map(|leaf| leaf * 10).collect();
        let tree = Tree::new(&[top(0, 0, &lows, &[10; 200])]).unwrap();
        // How far the expectation of the level-1 nodes is from even at most.
        let off = |key: &dyn Fn(u64) -> u64| {
            let mut random = ChaCha8Rng::seed_from_u64(0);
            let keys: Vec<u64> = (0..4000).map(|_| key(random.random())).collect();
            let frequencies = Frequencies::from_keys(&tree, &keys);
            let bottom = (0..).zip(tree.nodes()).filter(|(_, node)| node.level == 1);
            let even = keys.len() as f64 * 10.0 / 2000.0;
            bottom.map(|(n, _)| (frequencies.expected()[n] / even - 1.0).abs()).fold(0.0, f64::max)
        };
        let even = off(&|random| random % 20_000);
        let uneven = off(&|random| (random % 20_000) & (random >> 32));
        assert!(even < 0.2 && uneven > 5.0, "{even} {uneven}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn equals_a_walk_per_sample(
            tops in arb_tops(),
            samples in prop::collection::vec((any::<u64>(), 0u64..9), 0..200),
            near in prop::collection::vec((any::<prop::sample::Index>(), 0u64..3), 0..50),
        ) {
            let tree = Tree::new(&tops).unwrap();
            let lows: Vec<u64> = tree.nodes().iter().map(|n| n.low).chain([0]).collect();
            let mut samples = samples;
            samples.extend(near.iter().map(|(at, d)| (at.get(&lows).wrapping_add(*d).wrapping_sub(1), 3)));
            let mut expected = vec![0; tree.node_count()];
            for (key, weight) in &samples {
                for address in naive_path(&tops, *key) {
                    if let Some(n) = tree.nodes().iter().position(|n| n.address == address) {
                        expected[n] += weight;
                    }
                }
            }
            let weighted = Frequencies::from_weighted(&tree, &samples);
            prop_assert_eq!(&weighted.nodes, &expected);
            prop_assert_eq!(weighted.total(), samples.iter().map(|s| s.1).sum::<u64>());
            let keys: Vec<u64> = samples.iter().flat_map(|(key, weight)| vec![*key; *weight as usize]).collect();
            prop_assert_eq!(Frequencies::from_keys(&tree, &keys).nodes, expected);
            // What is expected of a node is divided among its children and leaves, and nothing is lost.
            for (n, node) in (0..).zip(tree.nodes()) {
                let below: f64 = tree.children(n).iter().filter(|c| c.node != NONE).map(|c| weighted.expected[c.node as usize]).sum();
                prop_assert!(below <= weighted.expected[n as usize] * (1.0 + 1e-9), "{:#x}", node.address);
                prop_assert!(weighted.expected[n as usize] > 0.0);
            }
            for pair in lows.windows(2) {
                let (low, high) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
                let sum: u64 = samples.iter().filter(|s| (low..=high).contains(&s.0)).map(|s| s.1).sum();
                prop_assert_eq!(weighted.of_keys(low, high), sum);
            }
        }
    }
}

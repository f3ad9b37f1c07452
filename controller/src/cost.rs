//! What lookups take: round trips, and bytes that memory servers send for them.
//!
//! Both fall together. A level that the switches walk saves a lookup one round trip and the bytes of one inner node, whichever level it is: so a plan
//! that saves the most round trips of those that switches have room for saves the most bytes, too, and the planner weighs round trips alone. What is
//! left is the leaf. How many bytes of it a lookup reads depends on its kind and not on the plan.

use std::collections::HashMap;

use fatbtree_blink::LookupBytes;

use crate::plan::Plan;
use crate::tree::Tree;

/// What an average lookup takes from where the switches lead it down to its leaf.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Round trips.
    pub round_trips: f64,
    /// Bytes of nodes; 0 where the memory servers do not say how large these are.
    pub bytes: f64,
}

impl Cost {
    /// Of lookups that read so many nodes, of which so many are leaves, divided by their number.
    pub(crate) fn of(nodes: f64, leaves: f64, lookups: f64, reads: LookupBytes) -> Self {
        if lookups <= 0.0 {
            return Self::default();
        }
        let bytes = (nodes - leaves) * f64::from(reads.inner) + leaves * f64::from(reads.leaf);
        Self { round_trips: nodes / lookups, bytes: bytes / lookups }
    }
}

/// `1.25 round trips and 414 bytes`, as far as it is known.
impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} round trips", self.round_trips)?;
        if self.bytes > 0.0 { write!(f, " and {:.0} bytes", self.bytes) } else { Ok(()) }
    }
}

impl Plan {
    /// Cost of an average visit from where index reads under this plan end down to the leaf; a stale hint counts as a walk
    /// from the root, and what leads to a record saves all of it. Nothing without visits.
    ///
    /// A hot key that was visited once is taken for one that is not hot: it is hot because of that visit, and says nothing of the next.
    pub fn cost(&self, tree: &Tree, visits: &[(u64, u64)]) -> Cost {
        let (mut nodes, mut leaves, mut all) = (0.0, 0.0, 0.0);
        let mut times: HashMap<u64, u32> = HashMap::new();
        visits.iter().for_each(|(key, _)| *times.entry(*key).or_default() += 1);
        for (key, weight) in visits {
            let weight = *weight as f64;
            let of_key = match self.hot_address(*key).filter(|_| times[key] > 1) {
                Some(address) => u32::from(tree.leads_to(*key, address)),
                None => tree.trips(*key, self.resolve(*key).address),
            };
            nodes += weight * f64::from(of_key);
            leaves += if of_key > 0 { weight } else { 0.0 };
            all += weight;
        }
        Cost::of(nodes, leaves, all, tree.reads())
    }
}

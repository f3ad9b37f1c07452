//! What direct counters say about the next plan.

use std::collections::BTreeMap;

use fatbtree_topology::SwitchId;

use super::{CachedNode, Plan};
use crate::tables::{Entry, child, fat_root};

impl Plan {
    /// Turns counters of this plan's entries into samples for
    /// [`Frequencies::from_weighted`](crate::Frequencies::from_weighted).
    ///
    /// Each entry at which packets stopped descending gives one sample: the first key of that child, with the packets as
    /// its weight. (Entries that led on to a cached node are counted there again, so they give none.) A switch cannot tell
    /// keys *below* such a child apart; mix in keys sampled by clients for that. Entries of other plans are ignored.
    pub fn samples_from_counters(
        &self,
        counters: impl IntoIterator<Item = (SwitchId, Entry, u64)>,
    ) -> Vec<(u64, u64)> {
        let ranges: BTreeMap<u64, u64> =
            self.fat_root.iter().map(|range| (range.address, range.low)).collect();
        let nodes: BTreeMap<(SwitchId, u16), &CachedNode> =
            self.nodes.iter().map(|node| ((node.switch, node.id), node)).collect();
        let mut weights: BTreeMap<u64, u64> = BTreeMap::new();
        for (switch, entry, packets) in counters {
            let stopped_at = match entry {
                Entry::FatRoot(_, fat_root::Action::Land { address, node_id: 0, .. }) => {
                    ranges.get(&address).copied()
                }
                Entry::Child(key, child::Action { node_id: 0, .. }) if key.epoch == self.epoch => nodes
                    .get(&(switch, key.node_id))
                    .and_then(|node| node.children.get(usize::from(key.branch)).map(|child| child.low)),
                _ => None,
            };
            if let Some(low) = stopped_at.filter(|_| packets > 0) {
                let weight = weights.entry(low).or_default();
                *weight = weight.saturating_add(packets);
            }
        }
        weights.into_iter().collect()
    }
}

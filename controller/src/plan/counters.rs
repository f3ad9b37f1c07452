//! What direct counters and sampled keys together say about the next plan.

use std::collections::{BTreeMap, HashMap};

use fatbtree_topology::SwitchId;

use super::{CachedNode, Plan};
use crate::tables::{Entry, child, fat_root};

/// A visit in units that can be divided among samples.
const VISIT: u64 = 1 << 16;

impl Plan {
    /// Visits of keys while this plan was in force, for [`Frequencies::from_weighted`](crate::Frequencies::from_weighted): how
    /// many, the switches have counted, and which keys, the clients have sampled. Only ratios between the visits mean something.
    ///
    /// A switch counts where packets stop descending. (Entries that led on to a cached node are counted there again, so they
    /// give nothing.) It cannot tell keys *below* such a child apart, so the packets are divided evenly among the sampled keys that
    /// end there; where there are none, the first key of the child stands for all of them. A sampled key where nothing was counted
    /// is one visit. Entries of other plans are ignored.
    pub fn visits(
        &self,
        counters: impl IntoIterator<Item = (SwitchId, Entry, u64)>,
        sampled: &[u64],
    ) -> Vec<(u64, u64)> {
        let counted = self.stops(counters);
        let mut samples: HashMap<u64, u64> = HashMap::with_capacity(counted.len());
        let stops: Vec<u64> = sampled.iter().map(|key| self.land(*key).address).collect();
        for stop in &stops {
            *samples.entry(*stop).or_default() += 1;
        }
        let mut visits: Vec<(u64, u64)> = sampled
            .iter()
            .zip(&stops)
            .map(|(key, stop)| {
                let packets = counted.get(stop).map_or(samples[stop], |(_, packets)| *packets);
                (*key, (packets.saturating_mul(VISIT) / samples[stop]).max(1))
            })
            .collect();
        let unsampled = counted.iter().filter(|(stop, _)| !samples.contains_key(stop));
        visits.extend(unsampled.map(|(_, (low, packets))| (*low, packets.saturating_mul(VISIT))));
        visits
    }

    /// Children at which packets stopped descending, by address: the first key, and how many packets.
    fn stops(&self, counters: impl IntoIterator<Item = (SwitchId, Entry, u64)>) -> BTreeMap<u64, (u64, u64)> {
        let ranges: BTreeMap<u64, u64> =
            self.fat_root.iter().map(|range| (range.address, range.low)).collect();
        let nodes: BTreeMap<(SwitchId, u16), &CachedNode> =
            self.nodes.iter().map(|node| ((node.switch, node.id), node)).collect();
        let mut stops: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (switch, entry, packets) in counters {
            let stop = match entry {
                Entry::FatRoot(_, fat_root::Action::Land { address, node_id: 0, .. }) => {
                    ranges.get(&address).map(|low| (address, *low))
                }
                Entry::Child(key, child::Action { node_id: 0, .. }) if key.epoch == self.epoch => nodes
                    .get(&(switch, key.node_id))
                    .and_then(|node| node.children.get(usize::from(key.branch)))
                    .map(|child| (child.address, child.low)),
                _ => None,
            };
            if let Some((address, low)) = stop.filter(|_| packets > 0) {
                let (_, sum) = stops.entry(address).or_insert((low, 0));
                *sum = sum.saturating_add(packets);
            }
        }
        stops
    }
}

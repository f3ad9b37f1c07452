//! Visits from direct counters and sampled keys together, for the next plan.

use std::collections::{BTreeMap, HashMap};

use fatbtree_topology::SwitchId;

use super::Plan;
use crate::tables::{Entry, fat_root};

/// A visit in units that can be divided among samples.
const VISIT: u64 = 1 << 16;

/// End of a packet's descent: a child of the fat root, or a child of a cached node that is not cached itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Stop {
    /// Position in the plan's fat root.
    Range(usize),
    /// Position in the plan's nodes.
    Below(usize),
    /// The key is hot: it went another way, and was not counted.
    Hot,
}

/// Packets of each range of the fat root, and of each node, in all switches that hold it.
struct Packets {
    ranges: Vec<u64>,
    nodes: Vec<u64>,
}

impl Plan {
    /// Visits of keys while this plan was active, for [`Frequencies::from_weighted`](crate::Frequencies::from_weighted): how
    /// many, the switches have counted, and which keys, the clients have sampled. Only ratios between the visits mean something.
    ///
    /// A switch counts the packets that come to a node, so those that stop below it are these less those that come to a cached child. It
    /// cannot tell its other children apart, or keys below them: packets are divided evenly among the sampled keys that stop there; where
    /// there are none, evenly among the children, and the first key of each stands for all of its keys. A sampled key where nothing was
    /// counted is one visit. A sampled hot key, which is not counted, stands for as many as an average one of the other samples. A hot
    /// key that was not sampled is visited less than all others, but is not forgotten. Entries of other plans are ignored.
    pub fn visits(
        &self,
        counters: impl IntoIterator<Item = (SwitchId, Entry, u64)>,
        sampled: &[u64],
    ) -> Vec<(u64, u64)> {
        let counted = self.stops(&self.packets(counters));
        let mut samples: HashMap<Stop, u64> = HashMap::with_capacity(counted.len());
        let stops: Vec<Stop> = sampled.iter().map(|key| self.stop(*key)).collect();
        for stop in &stops {
            *samples.entry(*stop).or_default() += 1;
        }
        let share = |packets: u64, of: u64| packets.saturating_mul(VISIT) / of.max(1);
        let mut visits: Vec<(u64, u64)> = sampled
            .iter()
            .zip(&stops)
            .map(|(key, stop)| {
                let packets = counted.get(stop).map_or(samples[stop], |packets| *packets);
                (*key, share(packets, samples[stop]).max(1))
            })
            .collect();
        for (stop, packets) in counted.iter().filter(|(stop, _)| !samples.contains_key(stop)) {
            match *stop {
                Stop::Range(at) => visits.push((self.fat_root[at].low, share(*packets, 1))),
                Stop::Below(at) => {
                    let is_end = |child: &&super::CachedChild| self.index.position(child.address).is_none();
                    let ends = || self.nodes[at].children.iter().filter(is_end);
                    let count = ends().count() as u64;
                    visits.extend(ends().map(|child| (child.low, share(*packets, count))));
                }
                Stop::Hot => {}
            }
        }
        let is_hot = |stop: &Stop| *stop == Stop::Hot;
        let hot = samples.get(&Stop::Hot).copied().unwrap_or(0);
        let is_other = |at: usize| stops.get(at).is_none_or(|stop| !is_hot(stop));
        let others = visits.iter().enumerate().filter(|(at, _)| is_other(*at));
        let all = others.fold(0u64, |sum, (_, (_, visits))| sum.saturating_add(*visits));
        let of_hot = match stops.len() as u64 - hot {
            0 => all.max(VISIT),
            others => (all / others).max(1),
        };
        for ((_, visits), _) in visits.iter_mut().zip(&stops).filter(|(_, stop)| is_hot(stop)) {
            *visits = of_hot;
        }
        visits.extend(self.hot_keys().iter().map(|hot| (hot.key, 1)));
        visits
    }

    /// Index reads that found a child in each table, the fat root and then the node sets as in [`Plan::layer_names`], and how many of them
    /// went no further.
    pub fn hits_and_stops(
        &self,
        counters: impl IntoIterator<Item = (SwitchId, Entry, u64)>,
    ) -> Vec<(u64, u64)> {
        let packets = self.packets(counters);
        let layers = self.layers();
        let layer = |node: &super::CachedNode| 1 + layers[usize::from(node.group)];
        let mut sums = vec![(0u64, 0u64); 1 + self.layer_names().len()];
        sums[0].0 = packets.ranges.iter().fold(0, |sum, packets| sum.saturating_add(*packets));
        for (node, packets) in self.nodes.iter().zip(&packets.nodes) {
            let (hits, _) = &mut sums[layer(node)];
            *hits = hits.saturating_add(*packets);
        }
        for (stop, packets) in self.stops(&packets) {
            let table = match stop {
                Stop::Range(_) => 0,
                Stop::Below(at) => layer(&self.nodes[at]),
                Stop::Hot => continue,
            };
            let (_, stops) = &mut sums[table];
            *stops = stops.saturating_add(packets);
        }
        sums
    }

    fn packets(&self, counters: impl IntoIterator<Item = (SwitchId, Entry, u64)>) -> Packets {
        let ranges: HashMap<u64, usize> =
            self.fat_root.iter().enumerate().map(|(at, range)| (range.address, at)).collect();
        let mut sums = Packets { ranges: vec![0; self.fat_root.len()], nodes: vec![0; self.nodes.len()] };
        for (switch, entry, packets) in counters {
            let sum = match entry {
                Entry::FatRoot(_, fat_root::Action::Land { address, .. }) => {
                    ranges.get(&address).map(|at| &mut sums.ranges[*at])
                }
                Entry::Coarse(key, _) if key.epoch == self.epoch => {
                    let position = self.index.position(key.address);
                    let is_there =
                        |position: &usize| self.group_of(&self.nodes[*position]).switches.contains(&switch);
                    let position = position.filter(is_there);
                    position.map(|position| &mut sums.nodes[position])
                }
                _ => None,
            };
            if let Some(sum) = sum {
                *sum = sum.saturating_add(packets);
            }
        }
        sums
    }

    /// Packets by the place where they stopped; places where none did are left out.
    fn stops(&self, packets: &Packets) -> BTreeMap<Stop, u64> {
        let cached =
            |address: u64| self.index.position(address).map_or(0, |position| packets.nodes[position]);
        let ranges =
            self.fat_root.iter().zip(&packets.ranges).enumerate().map(|(at, (range, packets))| {
                (Stop::Range(at), packets.saturating_sub(cached(range.address)))
            });
        let nodes = self.nodes.iter().zip(&packets.nodes).enumerate().map(|(at, (node, packets))| {
            let on = node.children.iter().fold(0u64, |on, child| on.saturating_add(cached(child.address)));
            (Stop::Below(at), packets.saturating_sub(on))
        });
        ranges.chain(nodes).filter(|(_, packets)| *packets > 0).collect()
    }

    fn stop(&self, key: u64) -> Stop {
        if self.hot_address(key).is_some() {
            return Stop::Hot;
        }
        self.nodes_of(key).last().map_or_else(|| Stop::Range(self.range_of(key)), Stop::Below)
    }
}

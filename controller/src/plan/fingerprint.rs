//! Which plan is this? A name made of its content.
//!
//! An epoch does not tell: a [difference](Plan::difference_to) is loaded under the epoch that is active, and a plan that comes back by a
//! rollback under another one than before.

use std::net::Ipv4Addr;

use fatbtree_topology::{SetGroup, SwitchId};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{CachedChild, CachedNode, FatRootRange, Plan};
use crate::tables::NodeKind;

/// What of a plan leads index reads. How it is written in switches (epoch, parity, slots) and why it was chosen (weights) is not of it.
#[derive(Serialize)]
struct Leads<'a> {
    roots: &'a [SwitchId],
    groups: &'a [SetGroup],
    partitions: Vec<(u16, u64, Ipv4Addr, &'a [u16])>,
    fat_root: Vec<(u64, u64, u16, NodeKind)>,
    nodes: Vec<(u16, u16, u64, &'a [CachedChild])>,
    hot: Vec<(u64, u64, NodeKind)>,
    first_hops: &'a [SwitchId],
}

impl Plan {
    /// Eight hexadecimal digits, the same for plans that lead all index reads by the same tables, in every epoch; different, but by one
    /// chance in 2³², for all others.
    pub fn fingerprint(&self) -> String {
        let range = |range: &FatRootRange| (range.low, range.address, range.partition, range.kind);
        let mut nodes: Vec<_> = self
            .nodes
            .iter()
            .map(|CachedNode { group, partition, address, children, .. }| {
                (*group, *partition, *address, &children[..])
            })
            .collect();
        nodes.sort_unstable_by_key(|(group, partition, address, _)| (*group, *partition, *address));
        let partitions = self.partitions.iter();
        let leads = Leads {
            roots: &self.roots,
            groups: &self.groups,
            partitions: partitions.map(|it| (it.id, it.low, it.ip, &it.groups[..])).collect(),
            fat_root: self.fat_root.iter().map(range).collect(),
            nodes,
            hot: self.hot.iter().map(|hot| (hot.key, hot.address, hot.kind)).collect(),
            first_hops: &self.first_hops,
        };
        let bytes = serde_json::to_vec(&leads).expect("numbers and lists of them");
        Sha256::digest(&bytes)[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

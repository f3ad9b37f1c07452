//! Events of a memory server with a tree, as text.

use std::fmt;

use fatbtree_blink::Partition;

use super::TreeInfo;
use crate::event::{Event, FirstHop};

/// A line for people: `opened client=10.1.0.2 server=10.0.0.2 queue_pair=17 partition=0 root=64 mtu=1024`, `closed …` with the same words,
/// `root partition=0 root=64`, `tree partition=0 generation=2 low=0 root=64`, or `lost partition=0`. The rkey is not in it: its holder can
/// write to the tree.
impl fmt::Display for Event<TreeInfo> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, hop) = match self {
            Self::Opened(hop) => ("opened", hop),
            Self::Closed(hop) => ("closed", hop),
            Self::NewRoot(TreeInfo { partition: Partition { id, root, .. }, .. }) => {
                return write!(f, "root partition={id} root={}", root.raw());
            }
            Self::Lost { partition } => return write!(f, "lost partition={partition}"),
            Self::NewTree { structure, generation } => {
                let Partition { id, root, range, .. } = structure.partition;
                let (low, root) = (range.low, root.raw());
                return write!(f, "tree partition={id} generation={generation} low={low} root={root}");
            }
        };
        let FirstHop { client, server, queue_pair, partition, rkey: _, root, mtu } = hop;
        let (number, root) = (queue_pair.0, root.raw());
        write!(
            f,
            "{what} client={client} server={server} queue_pair={number} partition={partition} root={root} mtu={mtu}"
        )
    }
}

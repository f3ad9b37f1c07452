//! A key set split over several memory servers.

use fatbtree_index::plain::Regions;
use fatbtree_index::{KeyRange, SuperRoot};

use crate::load::{LoadError, LoadOptions, LoadedTree, bulk_load};
use crate::values::ValueSource;

/// Memory servers 0, 1, ... with contiguous partitions, and the super-root over them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    /// One tree per server, in key order.
    pub trees: Vec<LoadedTree>,
    /// Which key belongs to which.
    pub roots: SuperRoot,
}

impl Cluster {
    /// All regions, to be read without a network.
    #[must_use]
    pub fn memory(&self) -> Regions<'_> {
        Regions::new(self.trees.iter().map(|tree| (tree.partition.id, &tree.region[..])))
    }
}

/// Splits strictly ascending keys into as many contiguous parts of equal count (±1) as there are servers, and loads
/// each. Partition 0 begins at key 0; every other one begins at its first key; the last has no upper end.
/// `options.server` and `options.range` are not used.
///
/// # Errors
/// See [`LoadError`]; every server needs at least one key.
pub fn load_cluster<S: ValueSource>(
    options: &LoadOptions,
    servers: u16,
    keys: &[u64],
    values: &mut S,
) -> Result<Cluster, LoadError> {
    if servers == 0 || keys.len() < usize::from(servers) {
        return Err(LoadError::TooFewKeys { keys: keys.len(), servers });
    }
    let begin = |server: u16| keys.len() * usize::from(server) / usize::from(servers);
    let mut trees = Vec::with_capacity(usize::from(servers));
    for server in 0..servers {
        let (from, to) = (begin(server), begin(server + 1));
        let low = if server == 0 { 0 } else { keys[from] };
        let range = KeyRange { low, high: keys.get(to).copied() };
        if range.is_below(low) {
            // Keys out of order across the border of two partitions; within one, the load notices.
            return Err(LoadError::Unsorted { key: keys[to], position: to });
        }
        trees.push(bulk_load(&LoadOptions { server, range, ..*options }, &keys[from..to], values)?);
    }
    let roots = SuperRoot::new(trees.iter().map(|tree| tree.partition).collect());
    Ok(Cluster { trees, roots: roots.expect("each partition begins where the one before it ends") })
}

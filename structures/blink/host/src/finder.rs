//! Places of keys, for the controller that tells switches of hot keys; found some at a time while clients
//! write.

use std::collections::VecDeque;

use fatbtree_blink::{GlobalAddress, Partition, Regions, Tree, TreeConfig};
use tokio::sync::oneshot;

/// Keys of one request at most.
pub const MAX_LOCATE_KEYS: usize = 1 << 11;

/// Errors from locating keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LocateError {
    /// Enough requests wait already.
    #[error(
        "{waiting} requests to locate keys wait already, as many as may; ask again when some are answered"
    )]
    Busy {
        /// Requests that wait.
        waiting: usize,
    },
    /// Too many keys.
    #[error(
        "{found} keys in one request to locate them, at most {MAX_LOCATE_KEYS} are taken; ask several times"
    )]
    TooMany {
        /// Keys in the request.
        found: usize,
    },
}

/// Places of keys, in the order of the request: the record of each or, where values are in line, its leaf.
/// `None` for keys that are not there, and for records that an index read cannot bring.
pub type KeyPlaces = Vec<Option<GlobalAddress>>;

/// Receiver of the places.
pub(crate) type Waiter = oneshot::Sender<Result<KeyPlaces, LocateError>>;

#[derive(Debug)]
struct Search {
    keys: Vec<u64>,
    found: KeyPlaces,
    waiter: Waiter,
}

/// Requests in the order in which they came.
#[derive(Debug)]
pub(crate) struct Finder {
    searches: VecDeque<Search>,
    /// Requests that may wait.
    bound: usize,
    /// Keys that were looked for.
    pub(crate) looked_for: u64,
    /// Nodes that were read for them.
    pub(crate) nodes: u64,
}

impl Finder {
    pub(crate) fn new(bound: usize) -> Self {
        Self { searches: VecDeque::new(), bound, looked_for: 0, nodes: 0 }
    }

    pub(crate) fn ask(&mut self, keys: Vec<u64>, waiter: Waiter) {
        self.forget_the_gone();
        let (waiting, found) = (self.searches.len(), keys.len());
        // The send fails if the caller has gone; that is harmless.
        if found > MAX_LOCATE_KEYS {
            let _ = waiter.send(Err(LocateError::TooMany { found }));
        } else if waiting >= self.bound {
            let _ = waiter.send(Err(LocateError::Busy { waiting }));
        } else {
            self.searches.push_back(Search { keys, found: Vec::with_capacity(found), waiter });
        }
    }

    /// Reads `budget` nodes, and those that the last key of them takes more; says whether there is more to do.
    pub(crate) fn work(
        &mut self,
        memory: &Regions,
        config: &TreeConfig,
        partition: &Partition,
        budget: usize,
    ) -> bool {
        self.forget_the_gone();
        let Some(search) = self.searches.front_mut() else { return false };
        let tree = Tree::new(memory, config, partition);
        let (before, mut nodes) = (search.found.len(), 0);
        for key in &search.keys[before..] {
            if nodes >= budget {
                break;
            }
            // A key whose nodes cannot be read now is being written.
            search.found.push(tree.place_of(*key, &mut nodes).ok().flatten());
        }
        self.looked_for += (search.found.len() - before) as u64;
        self.nodes += nodes as u64;
        if search.found.len() == search.keys.len()
            && let Some(done) = self.searches.pop_front()
        {
            let _ = done.waiter.send(Ok(done.found));
        }
        !self.searches.is_empty()
    }

    /// Starts anew with another tree: places in the former tree are discarded.
    pub(crate) fn begin_anew(&mut self) {
        self.searches.iter_mut().for_each(|search| search.found.clear());
    }

    /// Removes requests whose caller has gone.
    fn forget_the_gone(&mut self) {
        self.searches.retain(|search| !search.waiter.is_closed());
    }
}

//! Time limit and retry limits of operations.

use fatbtree_verbs::time::Duration;

/// Siblings that one walk down a tree follows, unless told otherwise. A node has more than one that no parent knows only while many
/// clients split it, or after some of them died.
pub(crate) const SIBLINGS: u32 = 32;

/// Time limit and retry limits after which an operation gives up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Times the same bytes are read again in a row because they were torn; then the operation begins again at the root.
    pub torn: u32,
    /// Siblings followed and partners asked since the last start; then the operation begins again at the root.
    pub siblings: u32,
    /// Time for which an operation goes on although each node that it reads is refused. Pauses between
    /// attempts last up to 1 ms.
    pub patience: Duration,
    /// Lost connections after which one operation begins again; at the next loss it fails.
    pub reconnects: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { torn: 8, siblings: SIBLINGS, patience: Duration::from_secs(1), reconnects: 4 }
    }
}

//! Changing the tree: one leaf under its lock, and splits.
//!
//! ```text
//!   locate the leaf          lock + READ            WRITE entry + unlock
//!   index read, or a READ    one doorbell           one doorbell            three round trips;
//!   per level                                       (handed over: no unlock) the lock handed over: no CAS to win
//! ```
//!
//! A change is one of *this* key's leaf: what is written back is the entry. Where there is no room for it, the leaf is [`split`]
//! first, and the change begins again: so a split never says anything that the tree did not say before. The parent learns of the new
//! node afterwards, and until then readers take one step more. A leaf that has become thin is [merged](merge) with a neighbour.
//!
//! **What a write can leave behind.** Cards check a packet whole before they write the first byte of it. A
//! node fits in a packet, so it is written whole or not at all, even if the writer dies. Chains are carried
//! out in order. So a client that dies or loses its connection has executed a prefix of a chain, or all of
//! it. Chains are made such that the tree is right after each operation.
//!
//! **Connections that break.** A chain that ends with the release of the lock is carried out in order: where the lock is not this
//! client's any more when the connection is up again, all of it was carried out; where it is, no other client
//! has changed the node meanwhile, and the chain is posted once more. That holds only if the server has
//! destroyed the broken queue pair before the new one is connected. The caller that connects must ensure
//! this.
//!
//! **Clients that die.** A lock carries its owner, the number of a session. When a session ends, the server destroys its queue pairs
//! and then clears the owner's bit in a table that all clients can read. A client that waits long for a lock
//! looks there, and takes the lock of an owner that is dead. A lease, not an epoch in each lock: 16 bits a
//! lock leave no room for one, and only the server can fence a client that sleeps.

pub(crate) mod leaf;
mod merge;
mod parent;
mod split;
mod whole;

use fatbtree_remote_memory::Change;
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::Duration;

use crate::config::{Keys, MAX_VALUE, ValueLayout};
use crate::descent::Descent;
use crate::operation::{OperationError, Start, Trips, ValueBytes};
use crate::pool::Pool;
use leaf::Outcome;

/// A finished change.
#[derive(Debug)]
pub struct MutationResult {
    /// The key.
    pub key: u64,
    /// Whether the change was carried out. `false` for an insertion of a present key, an update or deletion
    /// of an absent key, or a comparison that finds another value or none. The current value is not returned;
    /// issue a lookup to obtain it.
    pub result: Result<bool, OperationError>,
    /// Its round trips.
    pub trips: Trips,
    /// Time from its first step to its end.
    pub latency: Duration,
}

impl<V: Verbs> Pool<V> {
    /// Changes what is stored for a key. Needs [`set_writer`](Self::set_writer). Where values lie out of line, a compare-and-swap reads the
    /// record under the leaf's lock: a round trip more.
    ///
    /// The change takes effect at one moment between its beginning and its end. If the future is dropped before, it may have taken
    /// effect or not, or take effect later: what it has left unfinished is finished by the next change of this pool.
    pub async fn mutate(&self, key: u64, change: Change<'_>, start: Start) -> MutationResult {
        let mut descent = Descent::new(self, key);
        let (_turn, _ongoing) = (self.compete().await, self.begin());
        let result = self.try_mutate(&mut descent, change, start).await;
        let (trips, latency) = descent.end();
        MutationResult { key, result, trips, latency }
    }

    async fn try_mutate(
        &self,
        descent: &mut Descent<'_, V>,
        change: Change<'_>,
        start: Start,
    ) -> Result<bool, OperationError> {
        self.check_keys(Keys::Numbers)?;
        if let Some(value) = change.value() {
            let expected = match self.config().tree.values() {
                ValueLayout::Inline(bytes) => ValueBytes::Exactly(bytes),
                ValueLayout::OutOfLine | ValueLayout::ByLength(_) => ValueBytes::UpTo(MAX_VALUE),
            };
            let fits = match expected {
                ValueBytes::Exactly(bytes) => value.len() == usize::from(bytes),
                ValueBytes::UpTo(bytes) => value.len() <= bytes as usize,
            };
            if !fits {
                return Err(OperationError::ValueSize { key: descent.key(), found: value.len(), expected });
            }
        }
        self.finish().await;
        let mut start = descent.start_of_change(start);
        let applied = loop {
            let attempt = match descent.begin(start).await {
                Ok(start) => descent.mutate(start, change).await,
                Err(reason) => Err(reason),
            };
            match attempt {
                Ok(Outcome::Done(applied)) => break applied,
                Ok(Outcome::Thin) => {
                    Box::pin(descent.merge_up()).await;
                    break true;
                }
                Ok(Outcome::Split(address)) => start = Start::Node { address, level: 0 },
                Err(reason) => descent.recover(reason).await?,
            }
        };
        descent.tell_untold().await;
        Ok(applied)
    }
}

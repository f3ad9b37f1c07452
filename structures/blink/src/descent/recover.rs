//! Recovery from a failed attempt: another attempt, or the end of the operation.

use fatbtree_remote_memory::{BreakReason, LockError, Shortage, Stop, Trouble, Want};
use fatbtree_verbs::Verbs;

use super::Descent;
use crate::node::NodeFault;
use crate::operation::OperationError;

/// Reasons for which one attempt of an operation failed.
pub(crate) enum Reason {
    /// The bytes that were read are not the expected node: a stale pointer led here.
    Fault(NodeFault),
    /// Something is the matter with the connection.
    Trouble(Trouble),
    /// Another client holds a lock for very long.
    Locked,
    /// Memory is needed on a server before the operation can go on.
    Memory(Want),
    /// The connection broke while the operation wrote, and what became of that cannot be found out any more.
    Unknown(BreakReason),
}

impl Reason {
    /// Whether something may have been written all the same.
    pub(crate) const fn may_be_done(&self) -> bool {
        matches!(self, Self::Trouble(Trouble::Broke(_)) | Self::Unknown(_))
    }
}

impl From<LockError> for Reason {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Trouble(trouble) => Reason::Trouble(trouble),
            LockError::Locked => Reason::Locked,
            LockError::Unknown(reason) => Reason::Unknown(reason),
        }
    }
}

impl From<Trouble> for Reason {
    fn from(trouble: Trouble) -> Self {
        Reason::Trouble(trouble)
    }
}

impl<V: Verbs> Descent<'_, V> {
    /// Prepares the next attempt after one that led nowhere.
    ///
    /// # Errors
    /// When there is none to be made.
    #[cold]
    pub(crate) async fn recover(&mut self, reason: Reason) -> Result<(), OperationError> {
        let key = self.record_key();
        let fault = match reason {
            Reason::Trouble(Trouble::Broke(last)) => {
                self.walks = true;
                self.trips.breaks += 1;
                let breaks = self.trips.breaks;
                if breaks > self.pool.config().limits.reconnects {
                    return Err(OperationError::ConnectionBroke { key, breaks, last });
                }
                self.pool.count(|stats| stats.restarts += 1);
                return Ok(());
            }
            Reason::Trouble(Trouble::Lost(server)) => return Err(OperationError::TreeLost { key, server }),
            Reason::Trouble(trouble) => match Stop::from(trouble) {
                Stop::Failed(error) => return Err(OperationError::Common { key, error }),
                Stop::Refused(error) if !self.has_patience() => {
                    return Err(OperationError::Common { key, error: error.into() });
                }
                Stop::Refused(_) => {
                    self.pool.pause(self.refusals).await;
                    self.refusals += 1;
                    return Ok(());
                }
                // The next attempt is made in the next session.
                Stop::Anew | Stop::Later | Stop::Absent(_) => {
                    self.pool.count(|stats| stats.restarts += 1);
                    self.pool.pause(self.trips.restarts).await;
                    return Ok(());
                }
            },
            Reason::Locked => return Err(OperationError::Locked { key }),
            Reason::Unknown(last) => return Err(OperationError::Unknown { key, last }),
            Reason::Memory(want) => {
                let (server, class) = (want.server, want.class);
                let granted = self.pool.until_memory(want).await;
                return granted.map_err(|why| match why {
                    Shortage::Lost => OperationError::TreeLost { key, server },
                    why => OperationError::NoMemory { key, server, class, why },
                });
            }
            Reason::Fault(fault) => fault,
        };
        if let Some(at) = self.damaged {
            return Err(OperationError::Damaged { key, at, fault });
        }
        if !fault.is_torn() {
            self.count_stale_hint();
        }
        if let Some((child, level)) = self.cached.take() {
            self.pool.tell_cache(|cache| cache.forget(level.saturating_add(1), self.key, child));
            self.pool.count_cache(|stats| stats.stale += 1);
        }
        if !self.has_patience() {
            let (root, restarts) = (self.partition.root, self.trips.restarts);
            return Err(OperationError::GaveUp { key, root, restarts, fault });
        }
        let walked = std::mem::replace(&mut self.walks, true);
        self.trips.restarts += 1;
        self.pool.count(|stats| stats.fallbacks += 1);
        if walked {
            // It began at the root already: perhaps that node is not the root any more, or another client is
            // changing it.
            self.pool.pause(self.trips.restarts).await;
            self.refresh_root().await;
        }
        match &self.layer {
            Some(layer) if self.is_gone => Err(OperationError::NoLayer { key, layer: layer.block().0 }),
            _ => Ok(()),
        }
    }

    /// Whether the operation still tries. Patience runs from the first fault or refusal, so that an earlier wait for a connection does not
    /// count.
    fn has_patience(&mut self) -> bool {
        let now = self.pool.reactor().now();
        now - *self.lost_since.get_or_insert(now) <= self.pool.config().limits.patience
    }

    /// Asks the region's superblock for the root. What goes wrong here goes wrong again in the next attempt, and is told
    /// then.
    pub(crate) async fn refresh_root(&mut self) {
        let (place, len) = self.root_place();
        let Ok(bytes) = self.pool.read(&self.lane, place, len).await else { return };
        let found = match self.check_root_block(&bytes) {
            Ok(found) => found,
            Err(fault) => {
                self.is_gone = self.layer.is_some() && !fault.is_torn();
                return;
            }
        };
        let (root, root_level) = found.root();
        if (root, root_level) != (self.partition.root, self.partition.root_level) {
            self.set_root(root, root_level);
            self.pool.count(|stats| stats.new_roots += 1);
        }
    }

    /// Reads a torn node again after a pause, a limited number of times; any other fault ends the attempt.
    #[cold]
    pub(crate) async fn pause_if_torn(&mut self, fault: NodeFault, torn: &mut u32) -> Result<(), Reason> {
        if !fault.is_torn() || *torn >= self.pool.config().limits.torn {
            return Err(Reason::Fault(fault));
        }
        self.trips.retries += 1;
        self.pool.count(|stats| stats.retries += 1);
        self.pool.pause(*torn).await;
        *torn += 1;
        Ok(())
    }
}

//! Writing under a lock, and giving it back or leaving it to the client's next operation.

use arrayvec::ArrayVec;
use fatbtree_verbs::{Failure, Operation, Verbs};

use super::{LockError, LockGuard, Place};
use crate::chain::Part;
use crate::connection::BreakReason;
use crate::locks::{End, Taken};
use crate::memory::Trouble;
use crate::operation::Lane;

impl<V: Verbs> LockGuard<'_, V> {
    /// Writes parts of one thing and gives the lock back, with one doorbell; or leaves it to the next operation of this client. Where
    /// the connection breaks it finds out what became of that, and goes on.
    ///
    /// # Errors
    /// When the connection or session ends, and the parts were not written, or it is unknown whether they were.
    pub async fn write_back(mut self, parts: &[Part<'_>], lane: &Lane) -> Result<(), LockError> {
        let handed_over = self.may_hand_over();
        let mut breaks = 0;
        loop {
            match self.post(parts, !handed_over, lane).await {
                Ok(()) => break,
                // Seeing our owner number proves nothing here: another operation of this client may have acquired the lock.
                Err(Trouble::Broke(reason)) if self.place == Place::Racing => {
                    return Err(LockError::Unknown(reason));
                }
                Err(Trouble::Broke(reason)) => {
                    breaks += 1;
                    if breaks > self.pool.config().reconnects {
                        return Err(LockError::Unknown(reason));
                    }
                    if self.was_carried_out(handed_over, reason, lane).await? {
                        return Ok(());
                    }
                }
                // Nothing was posted now. The outcome of an earlier post, if there was one, is unknown.
                Err(other) if breaks == 0 => return Err(other.into()),
                Err(_) => return Err(LockError::Unknown(BreakReason::Failed(Failure::Flushed))),
            }
        }
        self.end(handed_over);
        Ok(())
    }

    /// Writes parts of several things, each of which leaves the index right, and gives the lock back. Where the connection breaks, the
    /// first of them are written or all.
    ///
    /// # Errors
    /// When the connection or session ends.
    pub async fn restructure(mut self, parts: &[Part<'_>], lane: &Lane) -> Result<(), LockError> {
        let handed_over = self.may_hand_over();
        self.post(parts, !handed_over, lane).await?;
        self.end(handed_over);
        Ok(())
    }

    /// Writes parts and keeps the lock.
    ///
    /// # Errors
    /// When the connection or session ends.
    pub async fn write(&self, parts: &[Part<'_>], lane: &Lane) -> Result<(), LockError> {
        Ok(self.post(parts, false, lane).await?)
    }

    /// Gives the lock back, or leaves it to the next operation of this client; nothing was changed.
    ///
    /// # Errors
    /// When the connection or session ends.
    pub async fn release(self, lane: &Lane) -> Result<(), LockError> {
        self.restructure(&[], lane).await
    }

    fn end(&mut self, handed_over: bool) {
        self.unfinished = None;
        self.leave(if handed_over { End::HandedOver } else { End::Released });
    }

    /// Whether the next one of this client may have the lock as it is.
    fn may_hand_over(&self) -> bool {
        let may = self.pool.config().locking.hierarchical
            && self.with_locks(|locks| locks.may_hand_over(self.lock)).is_ok_and(|may| may);
        if may {
            self.pool.count(|stats| stats.hand_overs += 1);
        }
        may
    }

    fn release_operation(&self) -> Operation<'static> {
        if self.pool.config().locking.on_chip {
            self.writer.give_back(self.lock)
        } else {
            self.writer.write_back(self.lock)
        }
    }

    /// Writes parts, and gives the lock back if it is to be.
    async fn post(&self, parts: &[Part<'_>], release: bool, lane: &Lane) -> Result<(), Trouble> {
        let unlock = [self.release_operation()];
        self.pool.write_chain(self.path(lane), &self.writer, parts, if release { &unlock } else { &[] }).await
    }

    /// After a break: whether all of the chain was carried out. If not, the lock is this client's still, and the chain can be posted
    /// again.
    async fn was_carried_out(
        &mut self,
        handed_over: bool,
        reason: BreakReason,
        lane: &Lane,
    ) -> Result<bool, LockError> {
        self.pool.until_up(self.path(lane).id).await.map_err(|_| LockError::Unknown(reason))?;
        let mut believed = 0;
        let taken = loop {
            let take = self.writer.take(self.lock, believed);
            // Only in the session of the lock: the table of locks that another one has been given knows nothing of this chain. If the
            // answer to this is lost as well, it can no longer be known whose release is missing.
            let answer = self.pool.chain(self.path(lane), &self.writer, |_| [take]).await;
            let [found] = answer.map_err(|_| LockError::Unknown(reason))?;
            match self.judge(&found, believed)? {
                Taken::Neighbour(found) => believed = found,
                taken => break taken,
            }
        };
        match taken {
            Taken::Before => return Ok(false),
            // It was given back, and is taken once more now. Where it cannot be given back, the next one does it.
            Taken::Now => {
                if self.post(&[], true, lane).await.is_ok() {
                    self.unfinished = None;
                }
            }
            _ => self.unfinished = None,
        }
        if handed_over { Err(LockError::Unknown(reason)) } else { Ok(true) }
    }
}

/// Writes under several locks of one server and releases them, as [`LockGuard::restructure`] does under one.
///
/// # Errors
/// When the connection or session ends.
pub async fn restructure_all<V: Verbs, const N: usize>(
    mut helds: [LockGuard<'_, V>; N],
    parts: &[Part<'_>],
    lane: &Lane,
) -> Result<(), LockError> {
    let Some(first) = helds.first() else { return Ok(()) };
    let (pool, path, writer) = (first.pool, first.path(lane), first.writer);
    let handed_over = helds.each_ref().map(LockGuard::may_hand_over);
    let kept = helds.iter().zip(handed_over).filter(|(_, handed_over)| !handed_over);
    let unlocks: ArrayVec<Operation<'static>, N> = kept.map(|(guard, _)| guard.release_operation()).collect();
    pool.write_chain(path, &writer, parts, &unlocks).await?;
    for (guard, handed_over) in helds.iter_mut().zip(handed_over) {
        guard.end(handed_over);
    }
    Ok(())
}

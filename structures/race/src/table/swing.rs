//! Compare-and-swap of a slot, with an answer also where the connection breaks under it.

use fatbtree_remote_memory::{CommonError, GlobalAddress, Trouble, Writer};
use fatbtree_verbs::Verbs;

use super::{Op, Table};
use crate::error::Stop;
use crate::slot::Slot;

/// Outcome of a compare-and-swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Swung {
    /// The slot was what was expected, and is changed.
    Yes,
    /// The slot was this, and was not changed.
    No(Slot),
}

impl<V: Verbs> Table<V> {
    /// Replaces a slot that is `old` by `new`: a round trip. No word comes twice to a slot, except 0, so a slot that is `new` after a
    /// break was changed, and one that is `old` was not: the broken queue pair is gone by then, and nothing comes late.
    ///
    /// # Errors
    /// [`CommonError::Unknown`] if the connection broke and others have changed the slot since, or the new word is 0.
    pub(super) async fn swing(
        &self,
        at: GlobalAddress,
        old: Slot,
        new: Slot,
        op: &mut Op<'_>,
    ) -> Result<Swung, Stop> {
        self.swing_in(at, old, new, None, op).await
    }

    /// The same in the session of `writer` or not at all: a block is linked in the session in which it was taken. When that has ended, the
    /// server may take it for lost, and give it to others.
    pub(super) async fn swing_in(
        &self,
        at: GlobalAddress,
        old: Slot,
        new: Slot,
        writer: Option<&Writer>,
        op: &mut Op<'_>,
    ) -> Result<Swung, Stop> {
        let swapped = match writer {
            Some(writer) => self.memory.compare_swap_in(&op.lane, writer, at, old.0, new.0).await,
            None => self.memory.compare_swap(&op.lane, at, old.0, new.0).await,
        };
        let reason = match swapped {
            Ok(found) if found == old.0 => return Ok(Swung::Yes),
            Ok(found) => return Ok(Swung::No(Slot(found))),
            Err(Trouble::Broke(reason)) => reason,
            // Nothing was posted.
            Err(trouble) => return Err(trouble.into()),
        };
        let broke = self.memory.reactor().now();
        loop {
            match self.memory.read_word(&op.lane, at).await.map(Slot) {
                Ok(found) if found.thawed() == old => return Ok(Swung::No(found)),
                Ok(found) if found.thawed() == new && !new.is_empty() => return Ok(Swung::Yes),
                Err(Trouble::Broke(_))
                    if self.memory.reactor().now() - broke <= self.memory.config().patience =>
                {
                    self.memory.pause(op.attempts).await;
                }
                Ok(_) | Err(_) => return Err(CommonError::Unknown(reason).into()),
            }
        }
    }
}

//! Chains on several servers at once: one round trip for all of them.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use arrayvec::ArrayVec;
use fatbtree_verbs::{MAX_BATCH, Operation, Output, Verbs};

use super::{RemoteMemory, Trouble};
use crate::checks::Check;
use crate::locks::Writer;
use crate::operation::Lane;

/// Maximum number of chains of one [`RemoteMemory::scatter`]; they lie side by side in its future.
pub const MAX_SHARES: usize = 8;

/// One server's part of a [`RemoteMemory::scatter`].
#[derive(Clone, Copy, Debug)]
pub struct Share<F> {
    /// The server.
    pub server: u16,
    /// Identity under which it is posted.
    pub writer: Writer,
    /// Makes the operations, up to [`MAX_BATCH`], from the rkey of the server's memory.
    pub operations: F,
}

impl<V: Verbs> RemoteMemory<V> {
    /// Posts chains on several servers, each with one doorbell, when all of these connections are up, and waits until all are done. Shares
    /// of one connection are carried out in their order.
    ///
    /// Each is posted in the session of its writer. Each result is that of its share: one connection may break while the others do not.
    ///
    /// # Errors
    /// When nothing was posted.
    ///
    /// # Panics
    /// When there are more than [`MAX_SHARES`].
    pub async fn scatter<'d, F, O>(
        &self,
        lane: &Lane,
        shares: impl IntoIterator<Item = Share<F>>,
    ) -> Result<ArrayVec<Result<ArrayVec<Output, MAX_BATCH>, Trouble>, MAX_SHARES>, Trouble>
    where
        F: FnOnce(u32) -> O,
        O: IntoIterator<Item = Operation<'d>> + Clone + Unpin,
    {
        let shares: ArrayVec<Share<F>, MAX_SHARES> = shares.into_iter().collect();
        // A connection may break, or a session end and the next one begin, while another connection comes up: then all are looked at
        // again. From the last look to the post there is no pause.
        loop {
            for share in &shares {
                self.link_in_session(lane.to(share.server).id, &share.writer).await?;
            }
            let is_present = |share: &Share<F>| {
                let writer = self.writer(share.server);
                writer.is_ok_and(|writer| writer.owner.is(share.writer.owner)) || !Check::Session.on()
            };
            if shares.iter().all(|share| self.link(lane.to(share.server).id).is_ok() && is_present(share)) {
                break;
            }
        }
        let mut under_way = ArrayVec::<_, MAX_SHARES>::new();
        for Share { server, operations, .. } in shares {
            let id = lane.to(server).id;
            let (queue_pair, rkey) = self.link(id)?;
            under_way.push((id, queue_pair, Some(self.reactor.batch(queue_pair, operations(rkey)))));
        }
        let mut results: ArrayVec<_, MAX_SHARES> = under_way.iter().map(|_| Ok(ArrayVec::new())).collect();
        poll_fn(|context| {
            let mut is_pending = false;
            for ((.., batch), result) in under_way.iter_mut().zip(&mut results) {
                let Some(posted) = batch else { continue };
                match Pin::new(posted).poll(context) {
                    Poll::Ready(done) => (*result, *batch) = (done, None),
                    Poll::Pending => is_pending = true,
                }
            }
            if is_pending { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        lane.count(&results);
        let outcome = |(result, (id, queue_pair, _)): (Result<_, _>, &(_, _, _))| {
            result.map_err(|error| self.failed(*id, *queue_pair, error))
        };
        Ok(results.into_iter().zip(&under_way).map(outcome).collect())
    }
}

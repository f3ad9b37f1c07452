//! Memory for a change of a structure, had before anything of the structure is changed.
//!
//! A change of a structure, such as a split, stops other clients in a part of it until it has ended. So what it needs is had first: memory on
//! the server of each new part, and an answer of each server whose memory it reads or writes: a connection may be up whose server has just died.
//! Here a client does not wait for a server that is known to be away, and for others no longer than its patience.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use fatbtree_verbs::Verbs;

use super::RemoteMemory;
use crate::address::GlobalAddress;
use crate::allocator::{Shortage, Want};
use crate::connection::ConnectionId;
use crate::operation::{Lane, Spare};

/// Reasons for which a server gives no memory for a change now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotReserved {
    /// There is no connection with the server, or no session; or the connection broke.
    Away,
    /// The server has no memory, or does not answer.
    Shortage(Shortage),
}

impl<V: Verbs> RemoteMemory<V> {
    /// Whether a connection is up now: what is posted on it need not wait for a server.
    pub fn is_up(&self, id: ConnectionId) -> bool {
        self.link(id).is_ok()
    }

    /// Whether a server answers: it is away, or reads its first word: a round trip.
    pub async fn answers(&self, lane: &Lane, server: u16) -> bool {
        self.is_up(lane.to(server).id) && self.read_word(lane, GlobalAddress::new(server, 0)).await.is_ok()
    }

    /// Takes memory for a change before anything is changed, in the present session with the server, which has answered.
    ///
    /// # Errors
    /// When the server is away, has no memory, or does not say so within [`patience`](crate::RemoteConfig::patience).
    pub async fn reserve(&self, lane: &Lane, want: Want) -> Result<Spare<'_, V>, NotReserved> {
        let mut patience = pin!(self.reactor.sleep(self.config.patience));
        loop {
            if !self.is_up(lane.to(want.server).id) {
                return Err(NotReserved::Away);
            }
            let writer = self.writer(want.server).map_err(|_| NotReserved::Away)?;
            if let Some(spare) = self.take_at_hand(&writer, want) {
                return if self.answers(lane, want.server).await {
                    Ok(spare)
                } else {
                    Err(NotReserved::Away)
                };
            }
            let mut memory = pin!(self.until_memory(want));
            let has = poll_fn(|context| match memory.as_mut().poll(context) {
                Poll::Ready(has) => Poll::Ready(has),
                Poll::Pending => patience.as_mut().poll(context).map(|()| Err(Shortage::Unknown)),
            });
            has.await.map_err(NotReserved::Shortage)?;
        }
    }
}

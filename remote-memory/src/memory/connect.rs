//! Connections: made, given up, made anew.

use std::task::Waker;

use fatbtree_verbs::{Agreed, Broken, Endpoint, Failure, QueuePair, QueuePairNumber, Verbs};

use super::RemoteMemory;
use crate::connection::{ConnectError, ConnectionId, Link, RemoteSide};

impl<V: Verbs> RemoteMemory<V> {
    /// All connections there should be.
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.state.borrow().connections.ids().collect()
    }

    /// Makes a new queue pair for a connection that is not up, and says which endpoint to tell the server.
    ///
    /// # Errors
    /// When there is no such connection, it is up, or the device refuses.
    pub fn open(&self, id: ConnectionId) -> Result<Endpoint, ConnectError> {
        let old = self.state.borrow_mut().connections.close(id)?;
        let (queue_pair, endpoint) = self.reactor.with(|verbs| {
            if let Some(old) = old {
                verbs.destroy(old);
            }
            let queue_pair = verbs.create()?;
            Ok::<_, ConnectError>((queue_pair, verbs.endpoint(queue_pair)?))
        })?;
        self.state.borrow_mut().connections.get_mut(id)?.link = Link::Opening { queue_pair };
        Ok(endpoint)
    }

    /// Completes a connection: the server has been told our endpoint and this is its side. Operations that waited for it go
    /// on.
    ///
    /// # Errors
    /// When [`open`](Self::open) was not called before, or the device refuses the endpoint.
    pub fn connected(&self, id: ConnectionId, remote: RemoteSide) -> Result<Agreed, ConnectError> {
        let Link::Opening { queue_pair } = self.state.borrow_mut().connections.get_mut(id)?.link else {
            return Err(ConnectError::NotOpening { id });
        };
        let agreed = self.reactor.with(|verbs| verbs.connect(queue_pair, &remote.endpoint))?;
        let waiting = {
            let mut state = self.state.borrow_mut();
            let connection = state.connections.get_mut(id)?;
            connection.link = Link::Up { queue_pair, rkey: remote.rkey };
            connection.registered = remote.registered;
            connection.server_end = Some(remote.endpoint.queue_pair);
            std::mem::take(&mut connection.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
        Ok(agreed)
    }

    /// Tells whether the first-hop switch admits index reads on this connection.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn set_registered(&self, id: ConnectionId, registered: bool) -> Result<(), ConnectError> {
        self.state.borrow_mut().connections.get_mut(id)?.registered = registered;
        Ok(())
    }

    /// Whether index reads are sent on this connection: it is up and registered.
    pub fn is_registered(&self, id: ConnectionId) -> bool {
        self.state.borrow_mut().connections.get_mut(id).is_ok_and(|connection| connection.is_registered())
    }

    /// The queue pair of a connection, known from [`open`](Self::open) on.
    pub fn queue_pair(&self, id: ConnectionId) -> Option<QueuePair> {
        self.state.borrow_mut().connections.get_mut(id).ok()?.queue_pair()
    }

    /// The server's end of the queue pair that a connection had last. A request to connect anew names it, and the server destroys it
    /// first: otherwise what was posted on it might be carried out late.
    pub fn replaces(&self, id: ConnectionId) -> Option<QueuePairNumber> {
        self.state.borrow_mut().connections.get_mut(id).ok()?.server_end
    }

    /// Breaks the connections to a server that are up, because their session has ended: nothing that is posted on them is carried out any
    /// more. Operations wait for the next ones.
    pub fn sever(&self, server: u16) {
        let up: Vec<QueuePair> = self.state.borrow().connections.up(server).collect();
        for queue_pair in up {
            self.broke(Broken { queue_pair, failure: Failure::Flushed, index_read: false });
        }
    }

    /// Gives a connection up: operations that use it or wait for it, and all to come, fail until it is opened again.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn abandon(&self, id: ConnectionId) -> Result<(), ConnectError> {
        self.give_up(id, Link::Abandoned)
    }

    /// The same for a connection whose server has lost what its memory held: operations fail with
    /// [`Trouble::Lost`](super::Trouble::Lost).
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn lose(&self, id: ConnectionId) -> Result<(), ConnectError> {
        self.give_up(id, Link::Lost)
    }

    /// Whether a connection was given up because its server has [lost](Self::lose) what its memory held.
    pub fn is_lost(&self, id: ConnectionId) -> bool {
        let mut state = self.state.borrow_mut();
        state.connections.get_mut(id).is_ok_and(|connection| matches!(connection.link, Link::Lost))
    }

    fn give_up(&self, id: ConnectionId, link: Link) -> Result<(), ConnectError> {
        let (old, waiting) = {
            let mut state = self.state.borrow_mut();
            let connection = state.connections.get_mut(id)?;
            let old = connection.queue_pair();
            connection.link = link;
            connection.registered = false;
            (old, std::mem::take(&mut connection.waiting))
        };
        self.destroy(old);
        waiting.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

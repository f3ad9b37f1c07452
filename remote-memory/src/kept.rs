//! Remote memory as a keeper of sessions sees it.

use std::error::Error;

use fatbtree_verbs::Verbs;

use crate::connection::{ConnectError, ConnectionId, RemoteSide};
use crate::locks::Writer;
use crate::memory::RemoteMemory;

/// Remote memory under a keeper of sessions, whatever index lies in it: an index may refuse two steps.
pub trait Kept {
    /// The device.
    type Verbs: Verbs;
    /// Reason for which a step was refused.
    type Refusal: Error + Send + Sync + From<ConnectError> + 'static;

    /// The memory.
    fn remote(&self) -> &RemoteMemory<Self::Verbs>;

    /// Lets operations write to a server's memory, as [`RemoteMemory::set_writer`] does.
    ///
    /// # Errors
    /// Also when the index can only be read.
    fn let_write(&self, server: u16, writer: Writer) -> Result<(), Self::Refusal> {
        Ok(self.remote().set_writer(server, writer)?)
    }

    /// Completes a connection, as [`RemoteMemory::connected`] does.
    ///
    /// # Errors
    /// Also when the index cannot use the queue pair.
    fn join(&self, id: ConnectionId, remote: RemoteSide) -> Result<(), Self::Refusal> {
        self.remote().connected(id, remote)?;
        Ok(())
    }
}

impl<V: Verbs> Kept for RemoteMemory<V> {
    type Verbs = V;
    type Refusal = ConnectError;

    fn remote(&self) -> &Self {
        self
    }
}

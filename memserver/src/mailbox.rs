//! Requests from the control plane to the data-path thread.

use std::sync::Arc;

use fatbtree_index::GlobalAddress;
use tokio::sync::{mpsc, oneshot};

use crate::chunk::RegionFull;
use crate::server::{
    ConnectCall, ConnectError, Counter, Endpoint, MemoryServer, OwnerRequest, Request, ServerInfo,
    StatisticsCall,
};
use crate::snapshot::TreeSnapshot;

/// The data-path thread's end: looking into an empty mailbox is one atomic load, no lock.
#[derive(Debug)]
pub struct Mailbox {
    requests: mpsc::Receiver<Request>,
}

/// The control plane's end.
#[derive(Clone, Debug)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
}

/// A mailbox for up to `capacity` requests; more of them wait outside.
///
/// # Panics
/// When `capacity` is 0.
#[must_use]
pub fn mailbox(capacity: usize) -> (Handle, Mailbox) {
    let (sender, receiver) = mpsc::channel(capacity);
    (Handle { requests: sender }, Mailbox { requests: receiver })
}

impl Mailbox {
    /// The next request, if there is one.
    pub fn take(&mut self) -> Option<Request> {
        self.requests.try_recv().ok()
    }

    /// Lets `server` answer all requests and `owner` those that need the NIC.
    pub fn drain(&mut self, server: &mut MemoryServer, mut owner: impl FnMut(OwnerRequest)) {
        while let Some(request) = self.take() {
            if let Some(request) = server.handle(request) {
                owner(request);
            }
        }
    }
}

/// The memory server does not answer any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory server has stopped: its data path takes no requests any more")]
pub struct ServerGone;

impl Handle {
    /// What the server holds.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn info(&self) -> Result<ServerInfo, ServerGone> {
        self.ask(Request::Info).await
    }

    /// The top of the tree.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn snapshot(&self) -> Result<Arc<TreeSnapshot>, ServerGone> {
        self.ask(Request::Snapshot).await
    }

    /// A connection to the client's queue pair.
    ///
    /// # Errors
    /// When the server is gone; inside, when it refuses.
    pub async fn connect(&self, client: Endpoint) -> Result<Result<Endpoint, ConnectError>, ServerGone> {
        self.ask(|reply| Request::Connect(ConnectCall { client, reply })).await
    }

    /// Memory for new nodes or records.
    ///
    /// # Errors
    /// When the server is gone; inside, when its region is full.
    pub async fn allocate(&self, bytes: u64) -> Result<Result<GlobalAddress, RegionFull>, ServerGone> {
        self.ask(|reply| Request::Allocate { bytes, reply }).await
    }

    /// All counters.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn statistics(&self) -> Result<Vec<Counter>, ServerGone> {
        self.ask(|reply| Request::Statistics(StatisticsCall { counters: vec![], reply })).await
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, ServerGone> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| ServerGone)?;
        answer.await.map_err(|_| ServerGone)
    }
}

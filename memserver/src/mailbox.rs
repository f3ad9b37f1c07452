//! Requests from the control plane to the thread that owns the server.

use std::fmt;
use std::sync::Arc;

use fatbtree_remote_memory::ServerInfo;
use fatbtree_remote_memory::session_keeper::{Call, Denied, Granted, Meaning};
use fatbtree_verbs::Device;
use fatbtree_verbs::time::Instant;
use tokio::sync::{mpsc, oneshot};

use crate::fellows::{Answer, Ask, Unanswered};
use crate::limits::ClientId;
use crate::moments::{Moment, Moments, OlderCopy};
use crate::refusal::Refusal;
use crate::server::{Counter, MemoryServer, RegionBytes, Reply, Request, ServerError};
use crate::tenant::{Loaded, Tenant};

/// The data-path thread's end: looking into an empty mailbox is one atomic load, no lock.
#[derive(Debug)]
pub struct Mailbox<T: Tenant> {
    requests: mpsc::Receiver<Request<T>>,
}

/// The control plane's end.
pub struct Handle<T: Tenant> {
    requests: mpsc::Sender<Request<T>>,
    moments: Arc<Moments>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl<T: Tenant> Clone for Handle<T> {
    fn clone(&self) -> Self {
        let (moments, wake) = (Arc::clone(&self.moments), Arc::clone(&self.wake));
        Self { requests: self.requests.clone(), moments, wake }
    }
}

impl<T: Tenant> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("requests", &self.requests).finish_non_exhaustive()
    }
}

/// A mailbox for up to `capacity` requests, at least one; more of them wait outside.
#[must_use]
pub fn mailbox<T: Tenant>(capacity: usize) -> (Handle<T>, Mailbox<T>) {
    mailbox_with_waker(capacity, || {})
}

/// A mailbox for up to `capacity` requests that calls `wake` whenever there is a new one, for a thread that sleeps.
#[must_use]
pub fn mailbox_with_waker<T: Tenant>(
    capacity: usize,
    wake: impl Fn() + Send + Sync + 'static,
) -> (Handle<T>, Mailbox<T>) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    let moments = Arc::new(Moments::in_memory(Moment(0)));
    (Handle { requests: sender, moments, wake: Arc::new(wake) }, Mailbox { requests: receiver })
}

impl<T: Tenant> Mailbox<T> {
    /// The next request, if there is one.
    pub fn take(&mut self) -> Option<Request<T>> {
        self.requests.try_recv().ok()
    }

    /// Lets `server` answer waiting requests. Requests that come meanwhile may wait for the next call, so
    /// that an endless stream of requests does not keep the data path from its frames.
    pub fn answer<D: Device>(&mut self, now: Instant, server: &mut MemoryServer<D, T>) {
        for _ in 0..self.requests.max_capacity() {
            match self.take() {
                Some(request) => server.handle(now, request),
                None => return,
            }
        }
    }
}

/// The memory server does not answer any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory server has stopped: its data path takes no requests any more")]
pub struct ServerGone;

impl From<ServerGone> for Denied {
    fn from(gone: ServerGone) -> Self {
        Self::new(Meaning::Later, gone)
    }
}

impl<T: Tenant> Handle<T> {
    /// The handle of a server that has begun a run with these moments.
    #[must_use]
    pub fn with_moments(self, moments: Arc<Moments>) -> Self {
        Self { moments, ..self }
    }

    /// Moments of the server, and what it has heard of others.
    #[must_use]
    pub fn moments(&self) -> &Arc<Moments> {
        &self.moments
    }

    /// See [`MemoryServer::found_older`].
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn found_older(&self, older: OlderCopy) -> Result<(), ServerGone> {
        self.ask(|reply| Request::Older { older, reply }).await
    }

    /// Content of the server, and how to reach it.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn info(&self) -> Result<ServerInfo<T::Description>, ServerGone> {
        self.ask(Request::Info).await
    }

    /// All counters.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn statistics(&self) -> Result<Vec<Counter>, ServerGone> {
        self.ask(Request::Statistics).await
    }

    /// Use of the region.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn region_bytes(&self) -> Result<RegionBytes, ServerGone> {
        self.ask(Request::RegionBytes).await
    }

    /// See [`MemoryServer::carry_out`].
    ///
    /// # Errors
    /// As there.
    pub async fn call(
        &self,
        client: ClientId,
        call: Call,
    ) -> Result<Result<Granted<T::Description>, Refusal>, ServerGone> {
        self.ask(|reply| Request::Call { client, call, reply }).await
    }

    /// See [`MemoryServer::heard`].
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn heard(&self, former: Option<u64>) -> Result<bool, ServerGone> {
        self.ask(|reply| Request::Heard { former, reply }).await
    }

    /// Asks for another server of the structure; see [`Request::Ask`].
    ///
    /// # Errors
    /// When the server is gone; inside, when it does not answer.
    pub async fn asked(&self, ask: Ask) -> Result<Result<Answer, Unanswered>, ServerGone> {
        self.ask(|reply| Request::Ask { ask, reply }).await
    }

    /// Brings the answer to a question of the server; see [`Request::Answered`].
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn answered(&self, ask: Ask, answer: Option<Answer>) -> Result<(), ServerGone> {
        self.requests.send(Request::Answered { ask, answer }).await.map_err(|_| ServerGone)?;
        (self.wake)();
        Ok(())
    }

    /// Reserves a place in the mailbox for another structure. One that is put into it reaches the data path.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn install_place(&self) -> Result<InstallPlace<'_, T>, ServerGone> {
        let place = self.requests.reserve().await.map_err(|_| ServerGone)?;
        Ok(InstallPlace { handle: self, place })
    }

    /// Asks the structure itself; `request` names the way back.
    ///
    /// # Errors
    /// When the server is gone, or the structure does not answer the request.
    pub async fn ask_tenant<A>(&self, request: impl FnOnce(Reply<A>) -> T::Request) -> Result<A, ServerGone> {
        self.ask(|reply| Request::Tenant(request(reply))).await
    }

    async fn ask<A>(&self, request: impl FnOnce(Reply<A>) -> Request<T>) -> Result<A, ServerGone> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| ServerGone)?;
        (self.wake)();
        answer.await.map_err(|_| ServerGone)
    }
}

/// A place in a mailbox for another structure.
#[derive(Debug)]
pub struct InstallPlace<'h, T: Tenant> {
    handle: &'h Handle<T>,
    place: mpsc::Permit<'h, Request<T>>,
}

impl<'h, T: Tenant> InstallPlace<'h, T> {
    /// See [`MemoryServer::install`].
    #[must_use]
    pub fn install(self, content: impl Into<Loaded<T>>) -> Installing<'h, T> {
        let Self { handle, place } = self;
        let ((begun, begins), (reply, answer)) = (oneshot::channel(), oneshot::channel());
        place.send(Request::Install { loaded: Box::new(content.into()), begun, reply });
        (handle.wake)();
        Installing { handle, begins, answer }
    }
}

/// A structure that is to be installed, or is being installed. The installation goes on if this is dropped.
#[derive(Debug)]
pub struct Installing<'h, T: Tenant> {
    handle: &'h Handle<T>,
    begins: oneshot::Receiver<()>,
    answer: oneshot::Receiver<Result<ServerInfo<T::Description>, ServerError>>,
}

impl<T: Tenant> Installing<'_, T> {
    /// Returns when the data path has begun. From then on it works, for as long as the device takes to register the memory.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn begun(&mut self) -> Result<(), ServerGone> {
        answered(self.handle, &mut self.begins).await
    }

    /// Returns when the structure is served.
    ///
    /// # Errors
    /// When the server is gone; inside, as [`MemoryServer::install`].
    pub async fn end(mut self) -> Result<Result<ServerInfo<T::Description>, ServerError>, ServerGone> {
        answered(self.handle, &mut self.answer).await
    }
}

/// An answer, or the end of the mailbox: a request that was sent just when that ended is neither answered nor dropped.
async fn answered<T: Tenant, A>(
    handle: &Handle<T>,
    answer: &mut oneshot::Receiver<A>,
) -> Result<A, ServerGone> {
    tokio::select! {
        biased;
        answer = answer => answer.map_err(|_| ServerGone),
        () = handle.requests.closed() => Err(ServerGone),
    }
}

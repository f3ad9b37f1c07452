//! Requests from the control plane to the thread that owns the server.

use std::fmt;
use std::sync::Arc;

use fatbtree_index::{ChunkKind, GlobalAddress, TreeTop};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Device, Endpoint, QueuePairNumber};
use tokio::sync::{mpsc, oneshot};

use crate::info::ServerInfo;
use crate::limits::ClientId;
use crate::load::LoadedTree;
use crate::places::{GivenBack, Supply};
use crate::refusal::Refusal;
use crate::server::{
    Attached, Counter, KeyPlaces, LocateError, MemoryServer, Reply, Request, ServerError, SnapshotError,
};
use crate::session::{Lease, SessionKey};
use crate::session_keeper::{Call, Denied, Granted};

/// The data-path thread's end: looking into an empty mailbox is one atomic load, no lock.
#[derive(Debug)]
pub struct Mailbox {
    requests: mpsc::Receiver<Request>,
}

/// The control plane's end.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("requests", &self.requests).finish_non_exhaustive()
    }
}

/// A mailbox for up to `capacity` requests, at least one; more of them wait outside.
#[must_use]
pub fn mailbox(capacity: usize) -> (Handle, Mailbox) {
    mailbox_with_waker(capacity, || {})
}

/// The same; `wake` is called whenever there is a new request, for a thread that sleeps.
#[must_use]
pub fn mailbox_with_waker(capacity: usize, wake: impl Fn() + Send + Sync + 'static) -> (Handle, Mailbox) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    (Handle { requests: sender, wake: Arc::new(wake) }, Mailbox { requests: receiver })
}

impl Mailbox {
    /// The next request, if there is one.
    pub fn take(&mut self) -> Option<Request> {
        self.requests.try_recv().ok()
    }

    /// Lets `server` answer what is there. Requests that come meanwhile may wait for the next time, so that those who ask
    /// without end do not keep the data path from its frames.
    pub fn answer<D: Device>(&mut self, now: Instant, server: &mut MemoryServer<D>) {
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

type Answer<T> = Result<Result<T, Refusal>, ServerGone>;

/// Every method fails with [`ServerGone`] when the server is gone; inside, with the server's own refusal.
impl Handle {
    /// What the server holds.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn info(&self) -> Result<ServerInfo, ServerGone> {
        self.ask(Request::Info).await
    }

    /// All counters.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn statistics(&self) -> Result<Vec<Counter>, ServerGone> {
        self.ask(Request::Statistics).await
    }

    /// The top of the tree, when it has been read.
    ///
    /// # Errors
    /// When the server is gone; inside, when too many ask or the tree cannot be read.
    pub async fn snapshot(&self) -> Result<Result<Arc<TreeTop>, SnapshotError>, ServerGone> {
        self.ask(Request::Snapshot).await
    }

    /// Where keys lie, when they have been found.
    ///
    /// # Errors
    /// When the server is gone; inside, when too many ask or there are too many keys.
    pub async fn locate(&self, keys: Vec<u64>) -> Result<Result<KeyPlaces, LocateError>, ServerGone> {
        self.ask(|reply| Request::Locate { keys, reply }).await
    }

    /// See [`MemoryServer::open_session_after`].
    ///
    /// # Errors
    /// As there.
    pub async fn open_session(&self, client: ClientId, known: Option<u64>) -> Answer<Lease> {
        self.ask(|reply| Request::Open { client, known, reply }).await
    }

    /// See [`MemoryServer::carry_out`].
    ///
    /// # Errors
    /// As there.
    pub async fn call(&self, client: ClientId, call: Call) -> Result<Granted, Denied> {
        let answer = self.ask(|reply| Request::Call { client, call, reply }).await?;
        answer.map_err(Denied::from)
    }

    /// See [`MemoryServer::heard`].
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn heard(&self, former: Option<u64>) -> Result<bool, ServerGone> {
        self.ask(|reply| Request::Heard { former, reply }).await
    }

    /// See [`MemoryServer::renew_session`].
    ///
    /// # Errors
    /// As there.
    pub async fn renew_session(&self, session: SessionKey) -> Answer<Lease> {
        self.ask(|reply| Request::Renew { session, reply }).await
    }

    /// See [`MemoryServer::close_session`].
    ///
    /// # Errors
    /// As there.
    pub async fn close_session(&self, session: SessionKey) -> Answer<()> {
        self.ask(|reply| Request::Close { session, reply }).await
    }

    /// See [`MemoryServer::connect`].
    ///
    /// # Errors
    /// As there.
    pub async fn connect(
        &self,
        session: SessionKey,
        client: Endpoint,
        replaces: Option<QueuePairNumber>,
    ) -> Answer<Endpoint> {
        self.ask(|reply| Request::Connect { session, client, replaces, reply }).await
    }

    /// See [`MemoryServer::attach`].
    ///
    /// # Errors
    /// As there.
    pub async fn attach(
        &self,
        session: SessionKey,
        client: Endpoint,
        replaces: Option<QueuePairNumber>,
    ) -> Answer<Attached> {
        self.ask(|reply| Request::Attach { session, client, replaces, reply }).await
    }

    /// See [`MemoryServer::disconnect`].
    ///
    /// # Errors
    /// As there.
    pub async fn disconnect(&self, session: SessionKey, queue_pair: QueuePairNumber) -> Answer<()> {
        self.ask(|reply| Request::Disconnect { session, queue_pair, reply }).await
    }

    /// See [`MemoryServer::allocate`].
    ///
    /// # Errors
    /// As there.
    pub async fn allocate(&self, session: SessionKey, kind: ChunkKind, bytes: u32) -> Answer<Supply> {
        self.ask(|reply| Request::Allocate { session, kind, bytes, reply }).await
    }

    /// See [`MemoryServer::give_back`].
    ///
    /// # Errors
    /// As there.
    pub async fn give_back(
        &self,
        session: SessionKey,
        kind: ChunkKind,
        bytes: u32,
        addresses: Vec<GlobalAddress>,
    ) -> Answer<GivenBack> {
        self.ask(|reply| Request::GiveBack { session, kind, bytes, addresses, reply }).await
    }

    /// Reserves a place in the mailbox for a tree. A tree that is put into it reaches the data path.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn install_place(&self) -> Result<InstallPlace<'_>, ServerGone> {
        let place = self.requests.reserve().await.map_err(|_| ServerGone)?;
        Ok(InstallPlace { handle: self, place })
    }

    /// See [`MemoryServer::publish`].
    ///
    /// # Errors
    /// As there.
    pub async fn publish(&self, session: SessionKey, address: GlobalAddress) -> Answer<()> {
        self.ask(|reply| Request::Publish { session, address, reply }).await
    }

    /// See [`MemoryServer::free`].
    ///
    /// # Errors
    /// As there.
    pub async fn free(&self, session: SessionKey, address: GlobalAddress) -> Answer<()> {
        self.ask(|reply| Request::Free { session, address, reply }).await
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, ServerGone> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| ServerGone)?;
        (self.wake)();
        answer.await.map_err(|_| ServerGone)
    }
}

/// A place in a mailbox for a tree.
#[derive(Debug)]
pub struct InstallPlace<'h> {
    handle: &'h Handle,
    place: mpsc::Permit<'h, Request>,
}

impl<'h> InstallPlace<'h> {
    /// See [`MemoryServer::install`].
    #[must_use]
    pub fn install(self, tree: LoadedTree) -> Installing<'h> {
        let Self { handle, place } = self;
        let ((begun, begins), (reply, answer)) = (oneshot::channel(), oneshot::channel());
        place.send(Request::Install { tree: Box::new(tree), begun, reply });
        (handle.wake)();
        Installing { handle, begins, answer }
    }
}

/// A tree that is to be installed, or is being installed. It goes on if this is dropped.
#[derive(Debug)]
pub struct Installing<'h> {
    handle: &'h Handle,
    begins: oneshot::Receiver<()>,
    answer: oneshot::Receiver<Result<ServerInfo, ServerError>>,
}

impl Installing<'_> {
    /// Returns when the data path has begun. From then on it works, for as long as the device takes to register the memory.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn begun(&mut self) -> Result<(), ServerGone> {
        answered(self.handle, &mut self.begins).await
    }

    /// Returns when the tree is served.
    ///
    /// # Errors
    /// When the server is gone; inside, as [`MemoryServer::install`].
    pub async fn end(mut self) -> Result<Result<ServerInfo, ServerError>, ServerGone> {
        answered(self.handle, &mut self.answer).await
    }
}

/// An answer, or the end of the mailbox: a request that was sent just when that ended is neither answered nor dropped.
async fn answered<T>(handle: &Handle, answer: &mut oneshot::Receiver<T>) -> Result<T, ServerGone> {
    tokio::select! {
        biased;
        answer = answer => answer.map_err(|_| ServerGone),
        () = handle.requests.closed() => Err(ServerGone),
    }
}

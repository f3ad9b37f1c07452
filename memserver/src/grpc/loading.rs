//! Loads, at the server's end: a stream of content becomes another region, beside the one that is served, and takes its place.
//!
//! ```text
//!   loader                                server
//!   begin: server, announcement     ────►  within bounds?
//!   content ... content             ────►  kept in memory, or written where it belongs
//!                                   ◄────  building, once in a while
//!   (waits for other servers: wait) ◄────  ready
//!   commit                          ────►  written down (a folder), sessions end, the new region is served
//!                                   ◄────  building, once in a while
//!                                   ◄────  loaded
//! ```
//!
//! Building and committing take as long as they take: the loader's deadline counts from the last sign of life. What the content is, a
//! structure says by [`Incoming`].

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::installing::{InfoOf, Replacing};
use super::proto::load_reply::What as Answer;
use super::proto::load_request::What as Word;
use super::{Describe, proto};
use crate::folder::{Counts, KeptRegion};
use crate::storage::Storage;
use crate::tenant::{Loaded, Tenant};

/// Interval between signs of life.
pub(super) const SIGN: Duration = Duration::from_secs(1);

/// Bytes of the largest message of a load: a value of the largest size, and keys beside it.
pub const LOAD_MESSAGE_BYTES: usize = fatbtree_remote_memory::record::MAX_VALUE as usize + (256 << 10);

/// The region of a load, and its description for the storage.
pub type Built<I> = (Loaded<<I as Incoming>::Tenant>, KeptRegion<<I as Incoming>::Counts>);

/// Content of a load on its way to one server.
pub trait Incoming: Sized + Send + 'static {
    /// The structure.
    type Tenant: Tenant<Description: Describe + Send + Sync, Request: Send> + Send + 'static;
    /// Its counts in a folder.
    type Counts: Counts + Send + 'static;
    /// Bounds, and what else the server knows of its loads.
    type Options: Send + Sync + 'static;

    /// Begins a load that was announced, before anything of it is kept.
    ///
    /// # Errors
    /// When the server does not take it.
    fn begin(
        options: &Self::Options,
        announced: &[u8],
        info: &InfoOf<Self::Tenant>,
        storage: &mut Storage<Self::Counts>,
    ) -> Result<Self, Status>;

    /// Whether all that was announced has come.
    fn is_complete(&self) -> bool;

    /// Takes the next content.
    ///
    /// # Errors
    /// When it is not what was announced.
    fn take(&mut self, content: &[u8]) -> Result<(), Status>;

    /// Makes the region of all content, and checks it.
    ///
    /// # Errors
    /// When the content is no structure, or the storage fails.
    fn build(
        self,
        options: &Self::Options,
        storage: &mut Storage<Self::Counts>,
    ) -> Result<Built<Self>, Status>;
}

/// The service.
pub struct LoadService<I: Incoming> {
    replacing: Replacing<I::Tenant, I::Counts>,
    options: Arc<I::Options>,
    /// Time to wait for the next message of a load.
    stall: Duration,
}

impl<I: Incoming> std::fmt::Debug for LoadService<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadService").field("stall", &self.stall).finish_non_exhaustive()
    }
}

impl<I: Incoming> LoadService<I> {
    /// Loads into the region of a server. A loader that sends nothing for `stall` is given up.
    #[must_use]
    pub fn new(replacing: Replacing<I::Tenant, I::Counts>, options: I::Options, stall: Duration) -> Self {
        Self { replacing, options: options.into(), stall }
    }
}

type Replies = mpsc::Sender<Result<proto::LoadReply, Status>>;

#[tonic::async_trait]
impl<I: Incoming> proto::loader_server::Loader for LoadService<I> {
    type LoadStream = ReceiverStream<Result<proto::LoadReply, Status>>;

    async fn load(
        &self,
        request: Request<Streaming<proto::LoadRequest>>,
    ) -> Result<Response<Self::LoadStream>, Status> {
        let turn = self.replacing.turn()?;
        let (replies, stream) = mpsc::channel(1);
        let job = Job::<I> {
            replacing: self.replacing.clone(),
            options: Arc::clone(&self.options),
            stall: self.stall,
            requests: request.into_inner(),
            replies,
        };
        tokio::spawn(job.run(turn));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// One load.
struct Job<I: Incoming> {
    replacing: Replacing<I::Tenant, I::Counts>,
    options: Arc<I::Options>,
    stall: Duration,
    requests: Streaming<proto::LoadRequest>,
    replies: Replies,
}

impl<I: Incoming> Job<I> {
    /// The next load's turn comes when nothing of this one is left.
    async fn run(mut self, _turn: OwnedSemaphorePermit) {
        if let Err(status) = self.load().await {
            tracing::info!(reason = status.message(), "a load has failed");
            self.replacing.forget().await;
            // A loader that has gone needs no answer.
            let _ = tokio::time::timeout(self.stall, self.replies.send(Err(status))).await;
        }
    }

    async fn load(&mut self) -> Result<(), Status> {
        let Word::Begin(begin) = self.next().await? else {
            return Err(Status::invalid_argument("expected `begin` first"));
        };
        let info = self.replacing.info().await?;
        if begin.server != u32::from(info.server) {
            return Err(Status::failed_precondition(format!(
                "this is memory server {}, not {}",
                info.server, begin.server
            )));
        }
        let options = Arc::clone(&self.options);
        let begun = move |storage: &mut _| I::begin(&options, &begin.announced, &info, storage);
        let mut incoming = self.done(self.replacing.in_storage(begun)).await?;
        while !incoming.is_complete() {
            match self.next().await? {
                Word::Content(content) => incoming.take(&content)?,
                Word::Wait(_) => {}
                _ => return Err(Status::invalid_argument("expected `content` until all of it is there")),
            }
        }
        let options = Arc::clone(&self.options);
        let build = move |storage: &mut _| incoming.build(&options, storage);
        let (loaded, kept) = self.done(self.replacing.in_storage(build)).await?;
        self.say(Answer::Ready(proto::LoadReady {})).await?;
        loop {
            match self.next().await? {
                Word::Wait(_) => {}
                Word::Commit(_) => break,
                _ => {
                    return Err(Status::invalid_argument(
                        "expected `commit` or `wait` when the structure is built",
                    ));
                }
            }
        }
        let late = |status| async {
            let _ = tokio::time::timeout(self.stall, self.replies.send(Err(status))).await;
        };
        // A commit cannot be taken back, so a loader that has gone does not matter.
        let installing = self.replacing.install(loaded, kept, late);
        let (info, _) = self.while_telling(installing).await;
        let _ = self.say(Answer::Loaded(info?.into())).await;
        Ok(())
    }

    /// Waits for work, as long as the loader is there. If it is gone, the work takes memory until it is done.
    async fn done<A>(&self, work: impl Future<Output = Result<A, Status>>) -> Result<A, Status> {
        let (done, is_there) = self.while_telling(work).await;
        is_there.and(done)
    }

    /// Waits for work that takes as long as it takes, and gives the loader a sign of life once in a while. Says whether the loader is still
    /// there; the work is done to its end all the same.
    async fn while_telling<A>(&self, work: impl Future<Output = A>) -> (A, Result<(), Status>) {
        let (mut work, mut is_there) = (pin!(work), Ok(()));
        loop {
            match tokio::time::timeout(SIGN, &mut work).await {
                Ok(done) => return (done, is_there),
                Err(_) if is_there.is_ok() => {
                    is_there = self.say(Answer::Building(proto::LoadBuilding {})).await;
                }
                Err(_) => {}
            }
        }
    }

    /// The next message, within the deadline.
    async fn next(&mut self) -> Result<Word, Status> {
        let stall = self.stall;
        let message = tokio::time::timeout(stall, self.requests.message()).await.map_err(|_| {
            Status::deadline_exceeded(format!(
                "nothing has come in {stall:?}: the load is given up; load again"
            ))
        })?;
        let message = message?.ok_or_else(|| Status::cancelled("the loader has ended before its commit"))?;
        message.what.ok_or_else(|| Status::invalid_argument("a message without content"))
    }

    async fn say(&self, answer: Answer) -> Result<(), Status> {
        let reply = proto::LoadReply { what: Some(answer) };
        match tokio::time::timeout(self.stall, self.replies.send(Ok(reply))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Status::cancelled("the loader is gone")),
            Err(_) => Err(Status::deadline_exceeded("the loader does not read")),
        }
    }
}

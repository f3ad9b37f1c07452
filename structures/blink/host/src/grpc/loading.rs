//! Loads: a stream of keys and values becomes a tree, beside the one that is served, and takes its place.
//!
//! ```text
//!   loader                                server
//!   begin: partition, range, counts ────►  within bounds?
//!   pairs ... pairs                 ────►  kept in memory
//!                                   ◄────  building, once in a while
//!   (waits for other servers: wait) ◄────  ready
//!   commit                          ────►  written down (a folder), sessions end, the new tree is served
//!                                   ◄────  building, once in a while
//!                                   ◄────  loaded
//! ```
//!
//! Building and committing take as long as they take: the loader's deadline counts from the last sign of life.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fatbtree_blink::{KeyRange, MAX_VALUE};
use fatbtree_memserver::grpc::answer_within;
use fatbtree_memserver::{FolderError, Origin, ServerGone};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::proto;
use super::proto::load_reply::What as Answer;
use super::proto::load_request::What as Word;
use crate::kept::{BuildError, TreeStorage, build_in};
use crate::load::{LoadOptions, LoadedTree};
use crate::values::ValueSource;
use crate::{TreeHandle, TreeServerInfo};

/// Bytes of the largest message of a load: a value of the largest size, and keys beside it.
pub(super) const MESSAGE_BYTES: usize = MAX_VALUE as usize + (256 << 10);

/// Interval between signs of life.
pub(super) const SIGN: Duration = Duration::from_secs(1);

/// Bytes of a key with its entry in a leaf and its record, beside its value, at least.
const KEY_BYTES: u64 = 8 + 12 + 8;

/// Options of loading over gRPC.
#[derive(Debug)]
pub struct Loading {
    /// Storage of trees.
    pub storage: TreeStorage,
    /// Bytes of the largest region; a load that needs more is refused. While it is loaded, the server has the former region, the keys and
    /// values that have come, and the new region.
    pub region_bytes: u64,
    /// Memory for what clients will write, in bytes: part of the region.
    pub spare_bytes: u64,
    /// Time to wait for the next message of a load.
    pub stall: Duration,
}

impl Loading {
    /// In memory, regions of up to 64 GiB of which 1 GiB is spare.
    #[must_use]
    pub fn in_memory() -> Self {
        Self {
            storage: TreeStorage::Memory,
            region_bytes: 64 << 30,
            spare_bytes: 1 << 30,
            stall: Duration::from_secs(20),
        }
    }
}

/// The service.
pub(super) struct Loader {
    handle: TreeHandle,
    shared: Arc<Shared>,
    one: Arc<Semaphore>,
}

struct Shared {
    storage: Mutex<TreeStorage>,
    region_bytes: u64,
    spare_bytes: u64,
    stall: Duration,
    /// Time limit for an answer of the data path.
    answer: Duration,
}

impl Loader {
    pub(super) fn new(handle: TreeHandle, loading: Loading, answer: Duration) -> Self {
        let Loading { storage, region_bytes, spare_bytes, stall } = loading;
        let shared = Shared { storage: storage.into(), region_bytes, spare_bytes, stall, answer };
        Self { handle, shared: shared.into(), one: Arc::new(Semaphore::new(1)) }
    }
}

type Replies = mpsc::Sender<Result<proto::LoadReply, Status>>;

#[tonic::async_trait]
impl proto::loader_server::Loader for Loader {
    type LoadStream = ReceiverStream<Result<proto::LoadReply, Status>>;

    async fn load(
        &self,
        request: Request<Streaming<proto::LoadRequest>>,
    ) -> Result<Response<Self::LoadStream>, Status> {
        let turn = Arc::clone(&self.one).try_acquire_owned();
        let turn =
            turn.map_err(|_| Status::aborted("another load is under way; wait for its end, or stop it"))?;
        let (replies, stream) = mpsc::channel(1);
        let job = Job {
            handle: self.handle.clone(),
            shared: Arc::clone(&self.shared),
            requests: request.into_inner(),
            replies,
        };
        tokio::spawn(job.run(turn));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// One load.
struct Job {
    handle: TreeHandle,
    shared: Arc<Shared>,
    requests: Streaming<proto::LoadRequest>,
    replies: Replies,
}

impl Job {
    /// The next load's turn comes when nothing of this one is left.
    async fn run(mut self, _turn: OwnedSemaphorePermit) {
        if let Err(status) = self.load().await {
            tracing::info!(reason = status.message(), "a load has failed");
            let forget = |storage: &mut TreeStorage| {
                storage.forget_others();
                Ok(())
            };
            // The rest of its files is removed now, or when the server is started again.
            let _ = self.in_storage(forget).await;
            // A loader that has gone needs no answer.
            let _ = tokio::time::timeout(self.shared.stall, self.replies.send(Err(status))).await;
        }
    }

    async fn load(&mut self) -> Result<(), Status> {
        let Word::Begin(begin) = self.next().await? else {
            return Err(Status::invalid_argument("expected `begin` first"));
        };
        let info = self.info().await?;
        let options = self.options(&begin, &info)?;
        let pairs = self.receive(&begin, options.range).await?;
        let tree = self.build(options, pairs).await?;
        self.say(Answer::Ready(proto::LoadReady {})).await?;
        loop {
            match self.next().await? {
                Word::Wait(_) => {}
                Word::Commit(_) => break,
                _ => {
                    return Err(Status::invalid_argument(
                        "expected `commit` or `wait` when the tree is built",
                    ));
                }
            }
        }
        // A commit cannot be taken back, so a loader that has gone does not matter.
        let (info, _) = self.while_telling(self.install(tree)).await;
        let _ = self.say(Answer::Loaded(info?.into())).await;
        Ok(())
    }

    /// The next message, within the deadline.
    async fn next(&mut self) -> Result<Word, Status> {
        let stall = self.shared.stall;
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
        match tokio::time::timeout(self.shared.stall, self.replies.send(Ok(reply))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Status::cancelled("the loader is gone")),
            Err(_) => Err(Status::deadline_exceeded("the loader does not read")),
        }
    }

    async fn info(&self) -> Result<TreeServerInfo, Status> {
        answer_within(self.shared.answer, self.handle.info()).await
    }

    /// Checks what is announced, before anything of it is kept.
    fn options(&self, begin: &proto::LoadBegin, info: &TreeServerInfo) -> Result<LoadOptions, Status> {
        let &proto::LoadBegin { partition, low_key: low, high_key: high, keys, value_bytes, empty } = begin;
        let own = info.partition.id;
        if partition != u32::from(own) {
            return Err(Status::failed_precondition(format!("this is partition {own}, not {partition}")));
        }
        if (keys == 0) != empty {
            return Err(Status::invalid_argument(format!(
                "no keys, or an empty tree with {keys}: expected at least one, or an empty tree that is asked for"
            )));
        }
        let Shared { region_bytes, spare_bytes, .. } = *self.shared;
        let least = keys.saturating_mul(KEY_BYTES).saturating_add(value_bytes).saturating_add(spare_bytes);
        if least > region_bytes {
            return Err(Status::resource_exhausted(format!(
                "{keys} keys with values of {value_bytes} bytes together need a region of at least {least} bytes, of which {spare_bytes} are \
                 spare; this server takes up to {region_bytes}: start it with a larger --region-bytes, or split the keys over more servers"
            )));
        }
        let generation = info.generation.wrapping_add(1);
        let range = KeyRange { low, high };
        Ok(LoadOptions { range, spare_bytes, generation, ..LoadOptions::new(info.config, own) })
    }

    /// Takes as many pairs as were announced, and no more.
    async fn receive(&mut self, begin: &proto::LoadBegin, range: KeyRange) -> Result<Pairs, Status> {
        let mut pairs = Pairs::default();
        while (pairs.keys.len() as u64) < begin.keys {
            match self.next().await? {
                Word::Pairs(more) => pairs.take(more, begin, range)?,
                Word::Wait(_) => {}
                _ => return Err(Status::invalid_argument("expected `pairs` until all keys are there")),
            }
        }
        let found = pairs.values.len() as u64;
        if found != begin.value_bytes {
            let expected = begin.value_bytes;
            return Err(Status::invalid_argument(format!(
                "{expected} bytes of values were announced, {found} came"
            )));
        }
        Ok(pairs)
    }

    /// Builds the tree in a thread of its own.
    async fn build(&mut self, options: LoadOptions, mut pairs: Pairs) -> Result<LoadedTree, Status> {
        let shared = Arc::clone(&self.shared);
        let building = tokio::task::spawn_blocking(move || {
            let keys = std::mem::take(&mut pairs.keys);
            let mut values = InOrder { keys: &keys, pairs: &pairs, at: 0 };
            let mut storage = shared.storage.lock().unwrap_or_else(PoisonError::into_inner);
            let built = build_in(&mut storage, &options, shared.region_bytes, &keys, &mut values);
            // A load without keys is meant to leave none.
            built.map(|tree| LoadedTree { origin: Origin::Meant, ..tree })
        });
        // If the loader is gone, the tree takes memory until it is built.
        let (built, is_there) = self.while_telling(building).await;
        is_there?;
        built.map_err(|error| Status::internal(format!("building the tree: {error}")))?.map_err(refuse)
    }

    /// Waits for work that takes as long as it takes, and gives the loader a sign of life once in a while. Says whether the loader is still
    /// there; the work is done to its end all the same.
    async fn while_telling<T>(&self, work: impl Future<Output = T>) -> (T, Result<(), Status>) {
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

    /// First it is written down which tree is the one, then it is served: a server that is killed in between comes back with the new one.
    /// Where it is not served after all, the former one is written down again.
    async fn install(&self, tree: LoadedTree) -> Result<TreeServerInfo, Status> {
        let refused = match self.try_install(tree).await {
            Ok(info) => {
                let settle = |storage: &mut TreeStorage| {
                    storage.settle();
                    Ok(())
                };
                self.in_storage(settle).await?;
                return Ok(info);
            }
            Err(refused) => refused,
        };
        match self.in_storage(TreeStorage::go_back).await {
            Ok(()) => Err(refused),
            Err(error) => {
                let (why, error) = (refused.message(), error.message());
                Err(Status::new(
                    refused.code(),
                    format!(
                        "{why}; the server serves the tree that it had, but a restart would serve the new one, because what was written down \
                         cannot be undone: {error}; mend that, and load again"
                    ),
                ))
            }
        }
    }

    async fn try_install(&self, tree: LoadedTree) -> Result<TreeServerInfo, Status> {
        let stopped = |gone: ServerGone| Status::unavailable(gone.to_string());
        // The place comes before anything is written down: then the tree reaches the data path for sure.
        let place = tokio::time::timeout(self.shared.answer, self.handle.install_place()).await;
        let place = place.map_err(|_| {
            Status::deadline_exceeded(
                "the server's data path does not answer: nothing has changed; load again",
            )
        })?;
        let place = place.map_err(stopped)?;
        let tree = self.in_storage(move |storage| storage.keep(tree.kept()).map(|()| tree)).await?;
        let mut installing = place.install(tree);
        if tokio::time::timeout(self.shared.answer, installing.begun()).await.is_err() {
            // The loader is told now. The load has its turn until the tree is served or refused.
            let late = "the server's data path does not answer: it serves the new tree when it goes on";
            let late = self.replies.send(Err(Status::deadline_exceeded(late)));
            let _ = tokio::time::timeout(self.shared.stall, late).await;
        }
        // Now it works, for as long as the device takes to register the memory.
        let installed = installing.end().await.map_err(stopped)?;
        installed.map_err(|error| Status::failed_precondition(error.to_string()))
    }

    async fn in_storage<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut TreeStorage) -> Result<T, FolderError> + Send + 'static,
    ) -> Result<T, Status> {
        let shared = Arc::clone(&self.shared);
        let done = tokio::task::spawn_blocking(move || {
            work(&mut shared.storage.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let done = done.await.map_err(|error| Status::internal(error.to_string()))?;
        done.map_err(|error| refuse(error.into()))
    }
}

fn refuse(error: BuildError) -> Status {
    match error {
        BuildError::Load(error) => Status::invalid_argument(error.to_string()),
        BuildError::Folder(error) => Status::internal(error.to_string()),
    }
}

/// Keys, and their values one after the other.
#[derive(Default)]
struct Pairs {
    keys: Vec<u64>,
    /// End of each value.
    ends: Vec<u64>,
    values: Vec<u8>,
}

impl Pairs {
    fn take(
        &mut self,
        more: proto::LoadPairs,
        begin: &proto::LoadBegin,
        range: KeyRange,
    ) -> Result<(), Status> {
        let refuse = |reason: String| Err(Status::invalid_argument(reason));
        let proto::LoadPairs { keys, lengths, values } = more;
        if keys.len() != lengths.len() || keys.is_empty() {
            return refuse(format!("{} keys came with {} lengths", keys.len(), lengths.len()));
        }
        let sum: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
        let longest = lengths.iter().max().copied().unwrap_or(0);
        if sum != values.len() as u64 || longest > MAX_VALUE {
            return refuse(format!(
                "values of {} bytes came with lengths of {sum} together, the longest {longest}; up to {MAX_VALUE} are allowed",
                values.len()
            ));
        }
        let (all, bytes) = ((self.keys.len() + keys.len()) as u64, (self.values.len() + values.len()) as u64);
        if all > begin.keys || bytes > begin.value_bytes {
            return refuse(format!(
                "{all} keys with {bytes} bytes of values came, {} with {} were announced",
                begin.keys, begin.value_bytes
            ));
        }
        for &key in &keys {
            if self.keys.last().is_some_and(|&last| last >= key) || !range.contains(key) {
                return refuse(format!("key {key:#x} is not above the one before, or not within {range}"));
            }
            self.keys.push(key);
        }
        let mut end = self.values.len() as u64;
        self.ends.extend(lengths.iter().map(|&length| {
            end += u64::from(length);
            end
        }));
        self.values.extend_from_slice(&values);
        Ok(())
    }
}

/// Values for a bulk load, which asks for them in the order of their keys, twice.
struct InOrder<'p> {
    keys: &'p [u64],
    pairs: &'p Pairs,
    at: usize,
}

impl InOrder<'_> {
    fn value(&mut self, key: u64) -> &[u8] {
        if self.keys.get(self.at) != Some(&key) {
            self.at = match self.keys.get(self.at + 1) {
                Some(&next) if next == key => self.at + 1,
                _ => self.keys.partition_point(|&other| other < key),
            };
        }
        let begin = self.at.checked_sub(1).map_or(0, |before| self.pairs.ends[before]);
        &self.pairs.values[begin as usize..self.pairs.ends[self.at] as usize]
    }
}

impl ValueSource for InOrder<'_> {
    fn length(&mut self, key: u64) -> u32 {
        self.value(key).len() as u32
    }

    fn fill(&mut self, key: u64, out: &mut [u8]) {
        out.copy_from_slice(self.value(key));
    }
}

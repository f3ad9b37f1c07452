//! The loader's side: several servers are filled at once, and serve their new trees at about the same time.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use fatbtree_blink::KeyRange;
use fatbtree_memserver::grpc::{Client, ClientError, MessageError};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::client::start_load;
use super::loading::SIGN;
use super::proto;
use super::proto::load_reply::What as Answer;
use super::proto::load_request::What as Word;
use crate::TreeServerInfo;
use crate::cluster::divide;
use crate::load::LoadError;
use crate::tenant::TreeInfo;

const CALL: &str = "to load keys";

/// Bytes of a message, about.
const PART: usize = 128 << 10;

/// Bytes of a key in a message, about.
const KEY_BYTES: usize = 12;

/// Strictly ascending keys with their values.
pub trait LoadData: Send + Sync {
    /// The keys.
    fn keys(&self) -> &[u64];

    /// Bytes of the value of the key at a position.
    fn length(&self, at: usize) -> u32;

    /// Appends the value of the key at a position: as many bytes as [`length`](Self::length) says.
    fn append(&self, at: usize, to: &mut Vec<u8>);
}

/// Progress of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadProgress {
    /// Further keys that were sent.
    Sent(u64),
    /// Servers that have built their trees.
    Built(usize),
}

/// A load that has failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadServersError {
    /// The keys cannot be divided.
    #[error(transparent)]
    Keys(#[from] LoadError),
    /// A server has failed before any was told to serve its new tree.
    #[error("{source}; all servers serve what they served before")]
    Nothing {
        /// The cause.
        source: ClientError,
    },
    /// Some serve new trees, and not all.
    #[error(
        "{source}; {loaded} of {servers} memory servers serve their new trees, and the others perhaps not: load again, until then clients \
         find no ranges that fit together"
    )]
    Some {
        /// Servers that serve the new keys.
        loaded: usize,
        /// All of them.
        servers: usize,
        /// The cause.
        source: ClientError,
    },
}

/// Divides the keys among servers by their count, in the order in which the servers are given with their partitions' numbers, and fills them
/// all. None serves its new tree before all have built theirs. A loader that ends before that leaves all as they were.
///
/// # Errors
/// See [`LoadServersError`].
pub async fn load_servers(
    servers: Vec<(u16, Client)>,
    data: Arc<dyn LoadData>,
    mut tell: impl FnMut(LoadProgress),
) -> Result<Vec<TreeServerInfo>, LoadServersError> {
    let parts = divide(data.keys(), servers.len() as u16)?;
    let all = parts.len();
    let highs = parts.iter().skip(1).map(|(low, _)| Some(*low)).chain([None]);
    let ranges: Vec<KeyRange> =
        parts.iter().zip(highs).map(|((low, _), high)| KeyRange { low: *low, high }).collect();
    let (said, mut heard) = mpsc::channel(64);
    let (go, going) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for (at, ((number, server), (_, places))) in servers.into_iter().zip(parts).enumerate() {
        let part = Part { number, range: ranges[at], data: Arc::clone(&data), places };
        let (said, going) = (said.clone(), going.clone());
        tasks.spawn(async move { (at, part.load(server, said, going).await) });
    }
    drop((said, going));
    let (mut built, mut infos, mut committed) = (0, vec![None; all], false);
    let mut failed = None;
    loop {
        tokio::select! {
            Some(progress) = heard.recv() => match progress {
                LoadProgress::Sent(_) => tell(progress),
                LoadProgress::Built(_) => {
                    built += 1;
                    tell(LoadProgress::Built(built));
                    if built == all {
                        committed = true;
                        // They wait for it, or have failed, which is told below.
                        let _ = go.send(true);
                    }
                }
            },
            ended = tasks.join_next() => match ended {
                None => break,
                Some(Ok((at, Ok(info)))) => infos[at] = Some(info),
                // Before the commit the others are stopped; afterwards they shall end.
                Some(Ok((_, Err(source)))) if !committed => return Err(LoadServersError::Nothing { source }),
                Some(Ok((_, Err(source)))) => failed = Some(source),
                Some(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
            },
        }
    }
    match failed {
        None => Ok(infos.into_iter().flatten().collect()),
        Some(source) => {
            Err(LoadServersError::Some { loaded: infos.iter().flatten().count(), servers: all, source })
        }
    }
}

/// Has a server begin anew with an empty tree for a range of keys. So it is told that this is meant, where it has lost its tree.
///
/// # Errors
/// When the server refuses or fails; it is as it was then, or has the empty tree already.
pub async fn load_empty(mut server: Client, range: KeyRange) -> Result<TreeServerInfo, ClientError> {
    let number = server.info::<TreeInfo>().await?.server;
    let part = Part { number, range, data: Arc::new(Nothing), places: 0..0 };
    let (said, _heard) = mpsc::channel(1);
    let (_go, going) = watch::channel(true);
    part.load(server, said, going).await
}

struct Nothing;

impl LoadData for Nothing {
    fn keys(&self) -> &[u64] {
        &[]
    }

    fn length(&self, _: usize) -> u32 {
        0
    }

    fn append(&self, _: usize, _: &mut Vec<u8>) {}
}

/// Part of the keys for one server.
struct Part {
    number: u16,
    range: KeyRange,
    data: Arc<dyn LoadData>,
    places: Range<usize>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part")
            .field("number", &self.number)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

impl Part {
    async fn load(
        self,
        server: Client,
        said: mpsc::Sender<LoadProgress>,
        mut going: watch::Receiver<bool>,
    ) -> Result<TreeServerInfo, ClientError> {
        let Self { number, range, data, places } = self;
        let mut load = Load::open(server).await?;
        load.send(Word::Begin(proto::LoadBegin {
            partition: number.into(),
            low_key: range.low,
            high_key: range.high,
            keys: places.len() as u64,
            empty: places.is_empty(),
            value_bytes: places.clone().map(|at| u64::from(data.length(at))).sum(),
        }))
        .await?;
        let mut at = places.start;
        while at < places.end {
            let mut pairs = proto::LoadPairs::default();
            while at < places.end && pairs.values.len() + pairs.keys.len() * KEY_BYTES < PART {
                pairs.keys.push(data.keys()[at]);
                pairs.lengths.push(data.length(at));
                data.append(at, &mut pairs.values);
                at += 1;
            }
            let sent = pairs.keys.len() as u64;
            load.send(Word::Pairs(pairs)).await?;
            // A caller that does not listen is gone, and this task with it.
            let _ = said.send(LoadProgress::Sent(sent)).await;
        }
        match load.answer().await? {
            Answer::Ready(_) => {}
            _ => return Err(load.nonsense()),
        }
        let _ = said.send(LoadProgress::Built(1)).await;
        while !*going.borrow() {
            tokio::select! {
                changed = going.changed() => if changed.is_err() { return Err(load.given_up()) },
                () = tokio::time::sleep(SIGN) => load.send(Word::Wait(proto::LoadWait {})).await?,
            }
        }
        load.send(Word::Commit(proto::LoadCommit {})).await?;
        match load.answer().await? {
            Answer::Loaded(info) => info.try_into().map_err(|source| load.server.nonsense(CALL, source)),
            _ => Err(load.nonsense()),
        }
    }
}

/// A load under way on one server.
struct Load {
    server: Client,
    words: mpsc::Sender<proto::LoadRequest>,
    answers: Streaming<proto::LoadReply>,
}

impl Load {
    async fn open(server: Client) -> Result<Self, ClientError> {
        let (words, stream) = mpsc::channel(2);
        let answers = start_load(&server, CALL, ReceiverStream::new(stream)).await?;
        Ok(Self { server, words, answers })
    }

    async fn send(&mut self, word: Word) -> Result<(), ClientError> {
        let request = proto::LoadRequest { what: Some(word) };
        let patience = self.server.deadlines().call;
        tokio::select! {
            biased;
            sent = tokio::time::timeout(patience, self.words.send(request)) => match sent {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(_)) => {}
                Err(_) => return Err(self.server.late(CALL)),
            },
            // It says something before it is asked: mostly, that it has had enough.
            answer = self.answers.message() => return Err(self.unexpected(answer)),
        }
        // The stream has ended: the server has said why.
        match tokio::time::timeout(patience, self.answers.message()).await {
            Ok(answer) => Err(self.unexpected(answer)),
            Err(_) => Err(self.server.late(CALL)),
        }
    }

    /// The server's answer when it has done its work; signs of life are passed over.
    async fn answer(&mut self) -> Result<Answer, ClientError> {
        let patience = self.server.deadlines().call;
        loop {
            match tokio::time::timeout(patience, self.answers.message()).await {
                Err(_) => return Err(self.server.late(CALL)),
                Ok(Ok(Some(proto::LoadReply { what: Some(Answer::Building(_)) }))) => {}
                Ok(Ok(Some(proto::LoadReply { what: Some(answer) }))) => return Ok(answer),
                Ok(other) => return Err(self.unexpected(other)),
            }
        }
    }

    fn unexpected(&self, answer: Result<Option<proto::LoadReply>, Status>) -> ClientError {
        match answer {
            Err(status) => self.server.refused(CALL, status),
            Ok(_) => self.nonsense(),
        }
    }

    fn nonsense(&self) -> ClientError {
        self.server.nonsense(CALL, MessageError::missing("what"))
    }

    fn given_up(&self) -> ClientError {
        self.server.refused(CALL, Status::cancelled("the load was given up"))
    }
}

//! Loads, at the loader's end: several servers are filled at once, and serve what they have got at about the same time.

use std::fmt;
use std::pin::pin;

use fatbtree_remote_memory::ServerInfo;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::client::{Client, ClientError};
use super::convert::MessageError;
use super::loading::SIGN;
use super::proto::load_reply::What as Answer;
use super::proto::load_request::What as Word;
use super::proto::loader_client::LoaderClient;
use super::{Describe, proto};

const CALL: &str = "to load a structure";

/// Strictly ascending keys with their values.
pub trait LoadData: Send + Sync {
    /// The keys.
    fn keys(&self) -> &[u64];

    /// Bytes of the value of the key at a position.
    fn length(&self, at: usize) -> u32;

    /// Appends the value of the key at a position: as many bytes as [`length`](Self::length) says.
    fn append(&self, at: usize, to: &mut Vec<u8>);
}

/// Keys with their values, in memory. The default has none.
#[derive(Clone, Default, Debug)]
pub struct KeysAndValues {
    keys: Vec<u64>,
    values: Vec<Vec<u8>>,
}

impl FromIterator<(u64, Vec<u8>)> for KeysAndValues {
    fn from_iter<I: IntoIterator<Item = (u64, Vec<u8>)>>(pairs: I) -> Self {
        let (keys, values) = pairs.into_iter().unzip();
        Self { keys, values }
    }
}

impl LoadData for KeysAndValues {
    fn keys(&self) -> &[u64] {
        &self.keys
    }

    fn length(&self, at: usize) -> u32 {
        self.values[at].len() as u32
    }

    fn append(&self, at: usize, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.values[at]);
    }
}

/// Progress of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadProgress {
    /// Further content that was sent: keys, or bytes where the loader lays the structure out.
    Sent(u64),
    /// Servers that have built what they shall serve.
    Built(usize),
}

/// A load that has failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadServersError {
    /// A server has failed before any was told to serve what it has got.
    #[error("{source}; all servers serve what they served before")]
    Nothing {
        /// The cause.
        source: ClientError,
    },
    /// Some serve what was loaded, and not all.
    #[error(
        "{source}; {loaded} of {servers} memory servers serve what was loaded, and the others perhaps not: load again with --replace, until \
         then clients find no parts that fit together"
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

/// What goes to one server.
#[derive(Debug)]
pub struct Content {
    /// Number of the server.
    pub server: u16,
    /// Announcement, as the structure defines it.
    pub announced: Vec<u8>,
    /// The messages, each with how much of the load it is.
    pub messages: mpsc::Receiver<(Vec<u8>, u64)>,
}

/// Fills all servers. None serves what it has got before all have built theirs. A loader that ends before that leaves all as they were.
///
/// # Errors
/// See [`LoadServersError`].
pub async fn load_all<S: Describe + Copy + Send + 'static>(
    parts: Vec<(Client, Content)>,
    mut tell: impl FnMut(LoadProgress),
) -> Result<Vec<ServerInfo<S>>, LoadServersError> {
    let all = parts.len();
    let (said, mut heard) = mpsc::channel(64);
    let (go, going) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for (at, (server, content)) in parts.into_iter().enumerate() {
        let (said, going) = (said.clone(), going.clone());
        tasks.spawn(async move { (at, load_one(server, content, said, going).await) });
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

async fn load_one<S: Describe>(
    client: Client,
    mut content: Content,
    said: mpsc::Sender<LoadProgress>,
    mut going: watch::Receiver<bool>,
) -> Result<ServerInfo<S>, ClientError> {
    let mut load = Load::open(client).await?;
    let announced = std::mem::take(&mut content.announced);
    load.send(Word::Begin(proto::LoadBegin { server: content.server.into(), announced })).await?;
    loop {
        let next = tokio::select! {
            next = content.messages.recv() => next,
            // Other servers' content comes first.
            () = tokio::time::sleep(SIGN) => {
                load.send(Word::Wait(proto::LoadWait {})).await?;
                continue;
            }
        };
        let Some((message, amount)) = next else { break };
        load.send(Word::Content(message)).await?;
        // A caller that does not listen is gone, and this task with it.
        let _ = said.send(LoadProgress::Sent(amount)).await;
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

/// A load under way on one server.
struct Load {
    server: Client,
    words: mpsc::Sender<proto::LoadRequest>,
    answers: Streaming<proto::LoadReply>,
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Load {
    async fn open(server: Client) -> Result<Self, ClientError> {
        let (words, stream) = mpsc::channel(2);
        let mut client = LoaderClient::new(server.channel());
        let answers = server.reply(CALL, client.load(ReceiverStream::new(stream))).await?;
        Ok(Self { server, words, answers })
    }

    async fn send(&mut self, word: Word) -> Result<(), ClientError> {
        let request = proto::LoadRequest { what: Some(word) };
        let (patience, words) = (self.server.deadlines().call, self.words.clone());
        let mut sending = pin!(words.send(request));
        let answer = loop {
            tokio::select! {
                biased;
                sent = tokio::time::timeout(patience, &mut sending) => match sent {
                    Ok(Ok(())) => return Ok(()),
                    // The stream has ended: the server has said why.
                    Ok(Err(_)) => match tokio::time::timeout(patience, self.answers.message()).await {
                        Ok(answer) => break answer,
                        Err(_) => return Err(self.server.late(CALL)),
                    },
                    Err(_) => return Err(self.server.late(CALL)),
                },
                answer = self.answers.message() => match answer {
                    // It takes its time over what it was told before.
                    Ok(Some(proto::LoadReply { what: Some(Answer::Building(_)) })) => {}
                    // It says something before it is asked: mostly, that it has had enough.
                    answer => break answer,
                },
            }
        };
        Err(self.unexpected(answer))
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

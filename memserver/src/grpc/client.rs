//! A client of the service: every call has a deadline, everything that comes back is checked.

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use fatbtree_blink::{ChunkKind, GlobalAddress, Owner, ReturnedBlocks, SessionId, Shortage, TreeTop};
use fatbtree_query::{Identity, Key};
use fatbtree_trust::Peer;
use fatbtree_verbs::{Endpoint, QueuePairNumber};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

use super::convert::{MessageError, grant, missing};
use super::proto::loader_client::LoaderClient;
use super::proto::memory_server_client::MemoryServerClient;
use super::{SHORTAGE, proto};
use crate::blink::finder::{KeyPlaces, MAX_LOCATE_KEYS};
use crate::free_blocks::{GivenBack, Grant};
use crate::info::ServerInfo;
use crate::server::Counter;
use crate::session_keeper::{Call, Denied, Granted, Meaning, Opened};

/// Time limits of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Connecting.
    pub connect: Duration,
    /// A call; each message of a snapshot.
    pub call: Duration,
}

impl Default for Deadlines {
    /// 5 seconds to connect, 15 for a call.
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), call: Duration::from_secs(15) }
    }
}

/// Nodes of the largest snapshot that is believed.
const SNAPSHOT_NODES: u64 = 1 << 24;

/// Keys that are located at a time.
const LOCATE_KEYS: usize = MAX_LOCATE_KEYS / 2;

/// Requests to locate keys that are on their way at once.
const LOCATE_REQUESTS: usize = 8;

/// Renewals of a session within its lease.
const RENEWALS: u32 = 3;

/// Least time to wait for the answer to a renewal, however short the lease: the machine may be busy.
const RENEWAL: Duration = Duration::from_millis(500);

/// Shortest interval between renewals, whatever lease a server grants.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Bytes of the largest message that is read; a snapshot's have about 256 KB.
const MESSAGE_BYTES: usize = 1 << 20;

/// A stream that ends too early, or says something else than it was asked.
pub(super) fn missing_answer() -> MessageError {
    missing("what")
}

/// Asks a memory server over the network. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    stub: MemoryServerClient<Channel>,
    address: String,
    deadlines: Deadlines,
}

/// A session as the client knows it: its name, and how long it lasts after it was opened or renewed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// Its name, which no other session ever has.
    pub id: SessionId,
    /// Time for which the session lasts without renewal.
    pub lease: Duration,
    /// Owner under which it holds locks, for [`ServerInfo::writer`]; `None`: the server has no locks.
    pub owner: Option<Owner>,
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection.
    #[error("cannot reach the memory server at {address}: is it running?")]
    Unreachable {
        /// Address tried.
        address: String,
        /// The cause.
        source: tonic::transport::Error,
    },
    /// No answer.
    #[error("the memory server at {address} has not answered {call} in {after:?}: it is busy, or it hangs")]
    Deadline {
        /// Its address.
        address: String,
        /// The call.
        call: &'static str,
        /// Time waited.
        after: Duration,
    },
    /// The connection broke, or could not be made again.
    #[error("the memory server at {address} was asked {call}, and the connection was lost: is it running?")]
    Lost {
        /// Its address.
        address: String,
        /// The call.
        call: &'static str,
        /// The transport's error.
        source: Status,
    },
    /// The server says no.
    #[error("the memory server at {address} refuses {call}: {} ({:?})", .status.message(), .status.code())]
    Refused {
        /// Its address.
        address: String,
        /// The call.
        call: &'static str,
        /// The server's answer.
        status: Status,
    },
    /// The answer makes no sense.
    #[error("the memory server at {address} answers {call} with something that cannot be")]
    Answer {
        /// Its address.
        address: String,
        /// The call.
        call: &'static str,
        /// The problem.
        source: MessageError,
    },
    /// The snapshot ended early, or does not end.
    #[error(
        "the snapshot of the memory server at {address} has {found} nodes, {expected} were announced; ask again"
    )]
    Incomplete {
        /// Its address.
        address: String,
        /// Nodes announced; 0 when there was no header.
        expected: u64,
        /// Nodes received.
        found: u64,
    },
}

impl From<ClientError> for Denied {
    fn from(error: ClientError) -> Self {
        let meaning = match &error {
            error if error.session_has_ended() => Meaning::Ended,
            error if error.tree_is_lost() => Meaning::TreeLost,
            error if error.is_final() => Meaning::No,
            _ => Meaning::Later,
        };
        Self { meaning, shortage: error.shortage(), error: Arc::new(error) }
    }
}

impl ClientError {
    /// The server's answer, if it refused.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { status, .. } => Some(status.code()),
            _ => None,
        }
    }

    /// Whether the server has lost its tree.
    #[must_use]
    pub fn tree_is_lost(&self) -> bool {
        self.code() == Some(Code::DataLoss)
    }

    /// Reason for which a request for memory got none, if the server has given one.
    #[must_use]
    pub fn shortage(&self) -> Shortage {
        match self {
            Self::Refused { status, .. } => {
                let word = status.metadata().get(SHORTAGE).and_then(|word| word.to_str().ok());
                word.map_or(Shortage::Unknown, Shortage::of_word)
            }
            _ => Shortage::Unknown,
        }
    }

    /// Whether the server says no for good. One that is late itself, because its data path does not answer, or is about to end, may say yes
    /// later; so may one that was not reached.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.code().is_some_and(|code| !matches!(code, Code::DeadlineExceeded | Code::Unavailable))
    }

    /// Whether the session that was named has ended: open another, and connect anew in it.
    #[must_use]
    pub fn session_has_ended(&self) -> bool {
        self.code() == Some(Code::Unauthenticated)
    }
}

impl Client {
    /// Connects to a server, such as `http://127.0.0.1:50051`.
    ///
    /// # Errors
    /// When no server listens there.
    pub async fn connect(to: impl Into<Peer>) -> Result<Self, ClientError> {
        Self::connect_with(to, Deadlines::default()).await
    }

    /// The same with other deadlines.
    ///
    /// # Errors
    /// When no server listens there.
    pub async fn connect_with(to: impl Into<Peer>, deadlines: Deadlines) -> Result<Self, ClientError> {
        let to = to.into();
        let address = to.address();
        let unreachable = |source| ClientError::Unreachable { address: address.to_owned(), source };
        let to_there = to.endpoint().map_err(unreachable)?.connect_timeout(deadlines.connect);
        let deadline = || ClientError::Deadline {
            address: address.to_owned(),
            call: "to connect",
            after: deadlines.connect,
        };
        let channel = tokio::time::timeout(deadlines.connect, to_there.connect())
            .await
            .map_err(|_| deadline())?
            .map_err(unreachable)?;
        let stub = MemoryServerClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES);
        Ok(Self { channel, stub, address: address.to_owned(), deadlines })
    }

    /// Content of the server, and how to reach it.
    ///
    /// # Errors
    /// See [`ClientError`], as for all calls.
    pub async fn info(&mut self) -> Result<ServerInfo, ClientError> {
        const CALL: &str = "for its description";
        let reply = self.call(CALL, |mut stub| async move { stub.get_info(proto::GetInfoRequest {}).await });
        reply.await?.try_into().map_err(|source| self.nonsense(CALL, source))
    }

    /// The top of the tree.
    ///
    /// # Errors
    /// Also when the stream breaks off.
    pub async fn snapshot(&mut self) -> Result<TreeTop, ClientError> {
        const CALL: &str = "for a snapshot";
        let reply = self.call(CALL, |mut stub| async move { stub.snapshot(proto::SnapshotRequest {}).await });
        let mut stream = reply.await?;
        let mut header: Option<proto::SnapshotHeader> = None;
        let mut nodes = vec![];
        loop {
            let message = tokio::time::timeout(self.deadlines.call, stream.next()).await;
            let Some(message) = message.map_err(|_| self.late(CALL))? else { break };
            let chunk = message.map_err(|status| self.refused(CALL, status))?;
            header = header.or(chunk.header);
            let expected = header.map_or(0, |header| header.nodes).min(SNAPSHOT_NODES);
            let found = nodes.len() as u64 + chunk.nodes.len() as u64;
            if found > expected {
                return Err(self.incomplete(expected, found));
            }
            for node in chunk.nodes {
                nodes.push(node.try_into().map_err(|source| self.nonsense(CALL, source))?);
            }
        }
        let found = nodes.len() as u64;
        match header {
            Some(header) if header.nodes == found => {
                let partition = header.try_into().map_err(|source| self.nonsense(CALL, source))?;
                Ok(TreeTop { partition, nodes })
            }
            header => Err(self.incomplete(header.map_or(0, |header| header.nodes), found)),
        }
    }

    /// Places of keys: the record or, where values are in the leaves, the leaf; one for each key, in their
    /// order. `None` for keys that are not there, and for records that an index read cannot bring.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn locate(&mut self, keys: &[u64]) -> Result<KeyPlaces, ClientError> {
        let mut places = KeyPlaces::with_capacity(keys.len());
        // Several requests are on their way at once, so that the server always has one to work at.
        for group in keys.chunks(LOCATE_KEYS * LOCATE_REQUESTS) {
            let mut asked = Vec::with_capacity(LOCATE_REQUESTS);
            for keys in group.chunks(LOCATE_KEYS) {
                let (mut client, keys, count) = (self.clone(), keys.to_vec(), keys.len());
                asked.push((count, tokio::spawn(async move { client.locate_some(keys).await })));
            }
            for (count, answer) in asked {
                // A runtime that ends waits for no answer.
                places.extend(answer.await.unwrap_or_else(|_| Ok(vec![None; count]))?);
            }
        }
        Ok(places)
    }

    async fn locate_some(&mut self, keys: Vec<u64>) -> Result<KeyPlaces, ClientError> {
        const CALL: &str = "to locate keys";
        let expected = keys.len();
        let request = proto::LocateRequest { keys };
        let reply = self.call(CALL, |mut stub| async move { stub.locate(request).await }).await?;
        if reply.addresses.len() != expected {
            let (field, expected, found) = ("addresses", "as many as keys", reply.addresses.len() as u64);
            return Err(self.nonsense(CALL, MessageError::Field { field, expected, found }));
        }
        let place = |address: u64| (address != 0).then_some(GlobalAddress(address));
        Ok(reply.addresses.into_iter().map(place).collect())
    }

    /// All counters, by name.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn statistics(&mut self) -> Result<Vec<Counter>, ClientError> {
        const CALL: &str = "for statistics";
        let ask = |mut stub: MemoryServerClient<Channel>| async move {
            stub.get_statistics(proto::StatisticsRequest {}).await
        };
        let mut counters: Vec<_> = self.call(CALL, ask).await?.counters.into_iter().collect();
        counters.sort();
        Ok(counters)
    }

    /// Numbers and keys for queries, for `count` clients; `None` where queries need no keys. They are good at
    /// all memory servers of the cluster.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn query_keys(&mut self, count: u16) -> Result<Option<Vec<Identity>>, ClientError> {
        const CALL: &str = "for keys of queries";
        let request = proto::QueryKeysRequest { count: count.into() };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.get_query_keys(request).await };
        let keys = self.call(CALL, ask).await?.keys;
        if keys.is_empty() {
            return Ok(None);
        }
        let wrong = |field, expected, found: usize| {
            self.nonsense(CALL, MessageError::Field { field, expected, found: found as u64 })
        };
        if keys.len() != usize::from(count) {
            return Err(wrong("keys", "as many as were asked for", keys.len()));
        }
        let identity = |proto::QueryKey { client, key }| match <[u8; 16]>::try_from(key.as_slice()) {
            Ok(key) => Ok(Identity { client, key: Key::new(key) }),
            Err(_) => Err(wrong("key", "16 bytes", key.len())),
        };
        keys.into_iter().map(identity).collect::<Result<_, _>>().map(Some)
    }

    /// Opens a session for queue pairs at `roce`. Keep it by [`renew_session`](Self::renew_session), or by
    /// [`keep_session`](Self::keep_session) in a task of its own.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn open_session(&mut self, roce: Ipv4Addr) -> Result<Session, ClientError> {
        self.open_session_after(roce, None).await
    }

    /// The same for a client that has known a tree of the server, of this generation, in a session that has ended.
    ///
    /// # Errors
    /// Also when that tree was [lost](ClientError::tree_is_lost).
    pub async fn open_session_after(
        &mut self,
        roce: Ipv4Addr,
        known_generation: Option<u64>,
    ) -> Result<Session, ClientError> {
        let request = proto::OpenSessionRequest { roce_address: roce.to_bits(), known_generation };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.open_session(request).await };
        self.session("to open a session", ask).await
    }

    /// Makes a session last as long as a new one from now on.
    ///
    /// # Errors
    /// Also when it has ended: [`ClientError::session_has_ended`].
    pub async fn renew_session(&mut self, session: SessionId) -> Result<Session, ClientError> {
        let request = proto::RenewSessionRequest { session: session.0 };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.renew_session(request).await };
        self.session("to renew a session", ask).await
    }

    /// Renews a session again and again, and returns when it has ended, with the reason. A server that is out of reach is asked
    /// again until as many renewals have failed as last for the lease. Renewals are counted, not time: a process that was suspended has not
    /// waited.
    pub async fn keep_session(mut self, mut session: Session) -> ClientError {
        const CALL: &str = "to renew a session";
        let mut failed = 0;
        loop {
            // A third of the lease: two renewals may be lost.
            let part = (session.lease / RENEWALS).max(SHORTEST_PAUSE);
            tokio::time::sleep(part).await;
            let patience = part.max(RENEWAL);
            let renewed = tokio::time::timeout(patience, self.renew_session(session.id)).await;
            let late = |_| {
                let (address, call) = (self.address.clone(), CALL);
                Err(ClientError::Deadline { address, call, after: patience })
            };
            match renewed.unwrap_or_else(late) {
                Ok(again) => (session, failed) = (again, 0),
                Err(error) if error.session_has_ended() || failed + 1 >= RENEWALS => return error,
                Err(error) => {
                    failed += 1;
                    tracing::info!(%error, "session not renewed");
                }
            }
        }
    }

    /// Ends a session: the server takes back what was taken in it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn close_session(&mut self, session: SessionId) -> Result<(), ClientError> {
        let request = proto::CloseSessionRequest { session: session.0 };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.close_session(request).await };
        self.call("to close a session", ask).await.map(drop)
    }

    /// Connects the client's queue pair; gives the server's end. `replaces` is the server's queue pair that it replaces, if there was
    /// one: it is destroyed first, so that nothing which was posted on it is carried out any more.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn connect_queue_pair(
        &mut self,
        session: SessionId,
        client: Endpoint,
        replaces: Option<QueuePairNumber>,
    ) -> Result<Endpoint, ClientError> {
        const CALL: &str = "to connect a queue pair";
        let request = proto::ConnectRequest {
            session: session.0,
            client: Some(client.into()),
            replaces: replaces.map(|queue_pair| queue_pair.0),
        };
        let ask =
            |mut stub: MemoryServerClient<Channel>| async move { stub.connect_queue_pair(request).await };
        let server = self.call(CALL, ask).await?.server.ok_or_else(|| missing("server"));
        server.and_then(Endpoint::try_from).map_err(|source| self.nonsense(CALL, source))
    }

    /// Disconnects the server's queue pair.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn disconnect_queue_pair(
        &mut self,
        session: SessionId,
        queue_pair: QueuePairNumber,
    ) -> Result<(), ClientError> {
        let request = proto::DisconnectRequest { session: session.0, queue_pair: queue_pair.0 };
        let ask =
            |mut stub: MemoryServerClient<Channel>| async move { stub.disconnect_queue_pair(request).await };
        self.call("to disconnect a queue pair", ask).await.map(drop)
    }

    /// Takes memory for nodes or records: places that others have given back, or a chunk. `bytes` is the size of a record's place; 0
    /// asks for a chunk.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn allocate(
        &mut self,
        session: SessionId,
        kind: ChunkKind,
        bytes: u32,
    ) -> Result<Grant, ClientError> {
        let number = proto::ChunkKind::from(kind).into();
        let request = proto::AllocateChunkRequest { session: session.0, kind: number, place_bytes: bytes };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.allocate_chunk(request).await };
        self.call("for a chunk", ask).await.map(|reply| grant(kind, reply))
    }

    /// Gives places of freed nodes, or of records of `bytes` each, to others. Whatever the result, they are
    /// not this client's any more.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn give_back(
        &mut self,
        session: SessionId,
        kind: ChunkKind,
        bytes: u32,
        addresses: &[GlobalAddress],
    ) -> Result<GivenBack, ClientError> {
        let request = proto::GiveBackRequest {
            session: session.0,
            kind: proto::ChunkKind::from(kind).into(),
            place_bytes: bytes,
            places: addresses.iter().map(|address| address.raw()).collect(),
        };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.give_back(request).await };
        let proto::GiveBackReply { kept, known, dropped, refused } =
            self.call("to give memory back", ask).await?;
        Ok(GivenBack { kept, known, dropped, refused })
    }

    /// Makes a chunk the tree's, before the first of its nodes or records is linked.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn publish(&mut self, session: SessionId, address: GlobalAddress) -> Result<(), ClientError> {
        let request = proto::PublishChunkRequest { session: session.0, address: address.raw() };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.publish_chunk(request).await };
        self.call("to publish a chunk", ask).await.map(drop)
    }

    /// Memory that is the tree's: what [`allocate`](Self::allocate) gives, and a chunk [published](Self::publish).
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn memory(
        &mut self,
        session: SessionId,
        kind: ChunkKind,
        bytes: u32,
    ) -> Result<Grant, ClientError> {
        let grant = self.allocate(session, kind, bytes).await?;
        if let Grant::Chunk(chunk) = &grant {
            self.publish(session, chunk.address).await?;
        }
        Ok(grant)
    }

    /// Carries a call of a client's [`SessionKeeper`](crate::session_keeper::SessionKeeper). `roce` is the client's address on the data path.
    ///
    /// # Errors
    /// See [`ClientError`]. [`Denied`] says what an error means for the session.
    pub async fn carry(&mut self, roce: Ipv4Addr, call: Call) -> Result<Granted, ClientError> {
        Ok(match call {
            Call::Open { known } => {
                let session = self.open_session_after(roce, known).await?;
                // Another tree or another process ends the session: the description is of the server that has it.
                let info = self.info().await?;
                let Session { id, lease, owner } = self.renew_session(session.id).await?;
                let lease = fatbtree_verbs::time::Duration::from_nanos(lease.as_nanos() as u64);
                Granted::Opened(Box::new(Opened { session: id, lease, owner, info }))
            }
            Call::Renew { session } => self.renew_session(session).await.map(|_| Granted::Done)?,
            Call::Connect { session, local, replaces } => {
                Granted::Connected(self.connect_queue_pair(session, local, replaces).await?)
            }
            Call::Allocate { session, kind, bytes } => {
                Granted::Supplied(self.memory(session, kind, bytes).await?)
            }
            Call::GiveBack(ReturnedBlocks { session, kind, bytes, addresses, .. }) => {
                self.give_back(session, kind, bytes, &addresses).await.map(|_| Granted::Done)?
            }
            Call::Close { session } => self.close_session(session).await.map(|()| Granted::Done)?,
        })
    }

    /// Gives a chunk back that was not published.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn free(&mut self, session: SessionId, address: GlobalAddress) -> Result<(), ClientError> {
        let request = proto::FreeChunkRequest { session: session.0, address: address.raw() };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.free_chunk(request).await };
        self.call("to take a chunk back", ask).await.map(drop)
    }

    pub(super) fn deadlines(&self) -> Deadlines {
        self.deadlines
    }

    pub(super) async fn start_load(
        &self,
        call: &'static str,
        requests: ReceiverStream<proto::LoadRequest>,
    ) -> Result<Streaming<proto::LoadReply>, ClientError> {
        let mut stub = LoaderClient::new(self.channel.clone());
        match tokio::time::timeout(self.deadlines.call, stub.load(requests)).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => Err(self.refused(call, status)),
            Err(_) => Err(self.late(call)),
        }
    }

    async fn call<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        call: &'static str,
        ask: impl FnOnce(MemoryServerClient<Channel>) -> F,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(self.deadlines.call, ask(self.stub.clone())).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => Err(self.refused(call, status)),
            Err(_) => Err(self.late(call)),
        }
    }

    async fn session<F: Future<Output = Result<Response<proto::Lease>, Status>>>(
        &self,
        call: &'static str,
        ask: impl FnOnce(MemoryServerClient<Channel>) -> F,
    ) -> Result<Session, ClientError> {
        self.call(call, ask).await?.try_into().map_err(|source| self.nonsense(call, source))
    }

    pub(super) fn late(&self, call: &'static str) -> ClientError {
        ClientError::Deadline { address: self.address.clone(), call, after: self.deadlines.call }
    }

    /// Distinguishes a refusal from a lost call: a status from the server has no further cause, a transport
    /// error has.
    pub(super) fn refused(&self, call: &'static str, status: Status) -> ClientError {
        let address = self.address.clone();
        match std::error::Error::source(&status) {
            Some(_) => ClientError::Lost { address, call, source: status },
            None => ClientError::Refused { address, call, status },
        }
    }

    pub(super) fn nonsense(&self, call: &'static str, source: MessageError) -> ClientError {
        ClientError::Answer { address: self.address.clone(), call, source }
    }

    fn incomplete(&self, expected: u64, found: u64) -> ClientError {
        ClientError::Incomplete { address: self.address.clone(), expected, found }
    }
}

//! A client of the service: every call has a deadline, everything that comes back is checked.

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use fatbtree_remote_memory::session_keeper::{Call, Denied, Grant, Granted, Meaning, Opened};
use fatbtree_remote_memory::{
    GlobalAddress, Owner, ReturnedBlocks, ServerInfo, SessionId, Shortage, SizeClass,
};
use fatbtree_trust::Peer;
use fatbtree_verbs::{Endpoint, QueuePairNumber};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::convert::{MessageError, grant, missing};
use super::moments::Compared;
use super::proto::memory_server_client::MemoryServerClient;
use super::{Describe, SHORTAGE, proto};
use crate::free_blocks::GivenBack;
use crate::server::Counter;
use crate::session::Told;

/// Time limits of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Connecting.
    pub connect: Duration,
    /// A call; each message of a stream.
    pub call: Duration,
}

impl Default for Deadlines {
    /// 5 seconds to connect, 15 for a call.
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), call: Duration::from_secs(15) }
    }
}

/// Bytes of the largest message that is read.
const MESSAGE_BYTES: usize = 1 << 20;

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
    /// Number of the wait of a sweep that this session holds up; 0: none. See [`Lease::wait`](crate::Lease::wait).
    pub wait: u64,
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
    /// A stream of parts ended early, or does not end.
    #[error(
        "the memory server at {address} was asked {call}: {found} parts came, {expected} were announced; ask again"
    )]
    Incomplete {
        /// Its address.
        address: String,
        /// The call.
        call: &'static str,
        /// Parts announced; 0 when there was no header.
        expected: u64,
        /// Parts received.
        found: u64,
    },
}

impl From<ClientError> for Denied {
    fn from(error: ClientError) -> Self {
        let meaning = match &error {
            error if error.session_has_ended() => Meaning::Ended,
            error if error.has_lost() => Meaning::Lost,
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

    /// Whether the server has lost its structure.
    #[must_use]
    pub fn has_lost(&self) -> bool {
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

    /// Whether the server says no for good, or something that cannot be. One that is late itself, because its data path does not answer, or is about to end, may say yes
    /// later; so may one that was not reached.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Answer { .. })
            || self.code().is_some_and(|code| !matches!(code, Code::DeadlineExceeded | Code::Unavailable))
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

    /// Connects to a server with other deadlines.
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
    pub async fn info<S: Describe>(&mut self) -> Result<ServerInfo<S>, ClientError> {
        const CALL: &str = "for its description";
        let reply = self.call(CALL, |mut stub| async move { stub.get_info(proto::GetInfoRequest {}).await });
        reply.await?.try_into().map_err(|source| self.nonsense(CALL, source))
    }

    /// Moments of the server and of those of which it has heard: see [`exchange`](super::exchange).
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn moments(&mut self) -> Result<Compared, ClientError> {
        self.compare(Vec::new(), Vec::new()).await
    }

    pub(super) async fn compare(
        &mut self,
        others: Vec<proto::Statement>,
        heard: Vec<proto::Heard>,
    ) -> Result<Compared, ClientError> {
        const CALL: &str = "for its moments";
        let request = proto::CompareRequest { others, heard };
        let reply = self.call(CALL, |mut stub| async move { stub.compare(request).await });
        reply.await?.try_into().map_err(|source| self.nonsense(CALL, source))
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

    /// Opens a session for queue pairs at `roce`. Keep it by [`renew_session`](Self::renew_session).
    /// A [`SessionKeeper`](fatbtree_remote_memory::session_keeper::SessionKeeper) does so, over [`carry`](Self::carry).
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn open_session(&mut self, roce: Ipv4Addr) -> Result<Session, ClientError> {
        self.open_session_after(roce, None).await
    }

    /// Opens a session for a client that has known this generation of the server's structure in a session that has ended.
    ///
    /// # Errors
    /// Also when that structure was [lost](ClientError::has_lost).
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
        self.renew_told(session, Told::default()).await
    }

    /// Renews the session of a client that tells something: see
    /// [`MemoryServer::renew_told`](crate::MemoryServer::renew_told).
    ///
    /// # Errors
    /// As of [`renew_session`](Self::renew_session).
    pub async fn renew_told(&mut self, session: SessionId, told: Told) -> Result<Session, ClientError> {
        let Told { settled, keeps } = told;
        let request = proto::RenewSessionRequest { session: session.0, settled, keeps };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.renew_session(request).await };
        self.session("to renew a session", ask).await
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

    /// Has the server bring everything that it has carried out before to its disk:
    /// [`MemoryServer::sync_session`](crate::MemoryServer::sync_session).
    ///
    /// # Errors
    /// Also when the session has ended: [`ClientError::session_has_ended`].
    pub async fn sync_session(&mut self, session: SessionId) -> Result<(), ClientError> {
        let request = proto::SyncSessionRequest { session: session.0 };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.sync_session(request).await };
        self.call("to sync", ask).await.map(drop)
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

    /// Takes memory for blocks: ones that others have given back, or a chunk. `bytes` is the size of a block where its class has several
    /// sizes; 0 asks for a chunk there.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn allocate(
        &mut self,
        session: SessionId,
        class: SizeClass,
        bytes: u32,
    ) -> Result<Grant, ClientError> {
        let request = proto::AllocateChunkRequest {
            session: session.0,
            size_class: Some(class.0.into()),
            place_bytes: bytes,
        };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.allocate_chunk(request).await };
        self.call("for a chunk", ask).await.map(|reply| grant(class, reply))
    }

    /// Gives freed blocks to others. `bytes` is the size of each where their class has several sizes. Whatever the result, they are
    /// not this client's any more.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn give_back(
        &mut self,
        session: SessionId,
        class: SizeClass,
        bytes: u32,
        addresses: &[GlobalAddress],
    ) -> Result<GivenBack, ClientError> {
        self.give_back_settled(session, u64::MAX, class, bytes, addresses).await
    }

    async fn give_back_settled(
        &mut self,
        session: SessionId,
        settled: u64,
        class: SizeClass,
        bytes: u32,
        addresses: &[GlobalAddress],
    ) -> Result<GivenBack, ClientError> {
        let request = proto::GiveBackRequest {
            session: session.0,
            settled,
            size_class: Some(class.0.into()),
            place_bytes: bytes,
            places: addresses.iter().map(|address| address.raw()).collect(),
        };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.give_back(request).await };
        let proto::GiveBackReply { kept, known, dropped, refused } =
            self.call("to give memory back", ask).await?;
        Ok(GivenBack { kept, known, dropped, refused })
    }

    /// Makes a chunk the structure's, before the first of its blocks is linked.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn publish(&mut self, session: SessionId, address: GlobalAddress) -> Result<(), ClientError> {
        let request = proto::PublishChunkRequest { session: session.0, address: address.raw() };
        let ask = |mut stub: MemoryServerClient<Channel>| async move { stub.publish_chunk(request).await };
        self.call("to publish a chunk", ask).await.map(drop)
    }

    /// Takes memory that is the structure's: what [`allocate`](Self::allocate) gives, a chunk [published](Self::publish).
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn memory(
        &mut self,
        session: SessionId,
        class: SizeClass,
        bytes: u32,
    ) -> Result<Grant, ClientError> {
        let grant = self.allocate(session, class, bytes).await?;
        if let Grant::Chunk(chunk) = &grant {
            self.publish(session, chunk.address).await?;
        }
        Ok(grant)
    }

    /// Carries a call of a client's [`SessionKeeper`](fatbtree_remote_memory::session_keeper::SessionKeeper). `roce` is the client's address on the data
    /// path.
    ///
    /// # Errors
    /// See [`ClientError`]. [`Denied`] says what an error means for the session.
    pub async fn carry<S: Describe>(
        &mut self,
        roce: Ipv4Addr,
        call: Call,
    ) -> Result<Granted<S>, ClientError> {
        Ok(match call {
            Call::Open { known } => {
                let session = self.open_session_after(roce, known).await?;
                // Another structure or another process ends the session: the description is of the server that has it.
                let info = self.info().await?;
                let Session { id, lease, owner, .. } = self.renew_session(session.id).await?;
                let lease = fatbtree_verbs::time::Duration::from_nanos(lease.as_nanos() as u64);
                Granted::Opened(Box::new(Opened { session: id, lease, owner, info }))
            }
            Call::Renew { session, settled, keeps } => {
                let Session { wait, .. } = self.renew_told(session, Told { settled, keeps }).await?;
                Granted::Renewed { wait }
            }
            Call::Sync { session } => self.sync_session(session).await.map(|()| Granted::Done)?,
            Call::Connect { session, local, replaces } => {
                Granted::Connected(self.connect_queue_pair(session, local, replaces).await?)
            }
            Call::Allocate { session, class, bytes } => {
                Granted::Supplied(self.memory(session, class, bytes).await?)
            }
            Call::GiveBack { places, settled } => {
                let ReturnedBlocks { session, class, bytes, addresses, .. } = places;
                self.give_back_settled(session, settled, class, bytes, &addresses).await?;
                Granted::Done
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

    // ---- for clients of a structure's own service ----

    /// The connection, for the stub of another service.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Time limits of calls.
    #[must_use]
    pub fn deadlines(&self) -> Deadlines {
        self.deadlines
    }

    /// Waits for the reply to a call, within the deadline.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn reply<T>(
        &self,
        call: &'static str,
        reply: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(self.deadlines.call, reply).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => Err(self.refused(call, status)),
            Err(_) => Err(self.late(call)),
        }
    }

    /// Error of a call without an answer within the deadline.
    #[must_use]
    pub fn late(&self, call: &'static str) -> ClientError {
        ClientError::Deadline { address: self.address.clone(), call, after: self.deadlines.call }
    }

    /// Error of a call that ended with `status`. Distinguishes a refusal from a lost call: a status from the server has no further cause,
    /// a transport error has.
    #[must_use]
    pub fn refused(&self, call: &'static str, status: Status) -> ClientError {
        let address = self.address.clone();
        match std::error::Error::source(&status) {
            Some(_) => ClientError::Lost { address, call, source: status },
            None => ClientError::Refused { address, call, status },
        }
    }

    /// Error of an answer that makes no sense.
    #[must_use]
    pub fn nonsense(&self, call: &'static str, source: MessageError) -> ClientError {
        ClientError::Answer { address: self.address.clone(), call, source }
    }

    /// Error of a stream with another number of parts than was announced.
    #[must_use]
    pub fn incomplete(&self, call: &'static str, expected: u64, found: u64) -> ClientError {
        ClientError::Incomplete { address: self.address.clone(), call, expected, found }
    }

    async fn call<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        call: &'static str,
        ask: impl FnOnce(MemoryServerClient<Channel>) -> F,
    ) -> Result<T, ClientError> {
        self.reply(call, ask(self.stub.clone())).await
    }

    async fn session<F: Future<Output = Result<Response<proto::Lease>, Status>>>(
        &self,
        call: &'static str,
        ask: impl FnOnce(MemoryServerClient<Channel>) -> F,
    ) -> Result<Session, ClientError> {
        self.call(call, ask).await?.try_into().map_err(|source| self.nonsense(call, source))
    }
}

//! A client of the service: every call has a deadline, everything that comes back is checked.

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use fatbtree_remote_memory::session_keeper::{Call, Denied, Granted, Meaning};
use fatbtree_remote_memory::{ServerInfo, Shortage};
use fatbtree_trust::Peer;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::convert::MessageError;
use super::moments::Compared;
use super::proto::memory_server_client::MemoryServerClient;
use super::{Describe, SHORTAGE, proto};
use crate::server::Counter;

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

/// Name of the service, with the version of the protocol.
const SERVICE: &str = proto::memory_server_server::SERVICE_NAME;

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
    /// The server does not know the call.
    #[error(
        "the memory server at {address} does not know {SERVICE}, asked {call}: all roles must be of one release"
    )]
    OtherVersion {
        /// Its address.
        address: String,
        /// The call.
        call: &'static str,
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
        matches!(self, Self::Answer { .. } | Self::OtherVersion { .. })
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
        let reply = self.ask(CALL, |mut stub| async move { stub.get_info(proto::GetInfoRequest {}).await });
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
        let reply = self.ask(CALL, |mut stub| async move { stub.compare(request).await });
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
        let mut counters: Vec<_> = self.ask(CALL, ask).await?.counters.into_iter().collect();
        counters.sort();
        Ok(counters)
    }

    /// Carries a call of a client's [`SessionKeeper`](fatbtree_remote_memory::session_keeper::SessionKeeper). `roce` is the client's
    /// address on the data path.
    ///
    /// # Errors
    /// See [`ClientError`]. [`Denied`] says what an error means for the session.
    pub async fn call<S: Describe>(&mut self, roce: Ipv4Addr, call: Call) -> Result<Granted<S>, ClientError> {
        let purpose = purpose(&call);
        let request = proto::Call { roce_address: roce.to_bits(), asked: Some(call.into()) };
        let reply = self.ask(purpose, |mut stub| async move { stub.call(request).await });
        reply.await?.try_into().map_err(|source| self.nonsense(purpose, source))
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
            None if status.code() == Code::Unimplemented => ClientError::OtherVersion { address, call },
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

    async fn ask<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        call: &'static str,
        ask: impl FnOnce(MemoryServerClient<Channel>) -> F,
    ) -> Result<T, ClientError> {
        self.reply(call, ask(self.stub.clone())).await
    }
}

/// What a call is for, as an error tells it.
fn purpose(call: &Call) -> &'static str {
    match call {
        Call::Open { .. } => "to open a session",
        Call::Renew { .. } => "to renew a session",
        Call::Sync { .. } => "to sync",
        Call::Connect { .. } => "to connect a queue pair",
        Call::Allocate { .. } => "for memory",
        Call::GiveBack { .. } => "to take memory back",
        Call::Close { .. } => "to close a session",
    }
}

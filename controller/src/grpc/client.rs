//! The other end: memory servers, clients and operators.

use std::net::Ipv4Addr;
use std::time::Duration;

use fatbtree_trust::Peer;
use fatbtree_wire::INDEX_HEADER_VERSION;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::proto::controller_client::ControllerClient;
use super::proto::{self, client_message, server_message};
use super::{ClientReport, NOT_PRIMARY, Registered, ServerHello, ServerNews};
use crate::operator::{Question, RoomStatus};
use crate::reconcile::{Generation, Registration};

/// Bytes of the largest answer that is read: a plan.
const ANSWER_BYTES: usize = 64 << 20;
/// Messages that wait for the controller.
const WAITING: usize = 64;
/// A controller without a sign of life for twice this long is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Errors from asking a controller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No connection.
    #[error(
        "cannot reach the controller at {address}: is it running? Start it with `fatbtree controller --cluster FILE`"
    )]
    Unreachable {
        /// Address tried.
        address: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// No answer.
    #[error("the controller at {address} has not answered within {after:?}: it is busy, or it hangs")]
    Deadline {
        /// Its address.
        address: String,
        /// Time waited.
        after: Duration,
    },
    /// The controller is a standby, or looks whether it is to be primary.
    #[error("the controller at {address}: {reason}")]
    NotPrimary {
        /// Its address.
        address: String,
        /// Which one is primary.
        reason: String,
    },
    /// No controller is primary.
    #[error("no controller of this cluster is primary and answers: {0}")]
    NonePrimary(String),
    /// The controller refuses, or the connection was lost.
    #[error("the controller at {address}: {}", .status.message())]
    Refused {
        /// Its address.
        address: String,
        /// Its message.
        status: Box<Status>,
    },
    /// The connection was lost, or the controller shows no sign of life.
    #[error("the controller at {address} does not answer any more: it hangs, or was stopped")]
    Silent {
        /// Its address.
        address: String,
        /// The transport's error.
        source: Box<Status>,
    },
    /// The switches' programs have another index header than the client.
    #[error(
        "the controller at {address} is of another release: its switches' programs have version {found} of the index header, and this client needs \
         version {INDEX_HEADER_VERSION}; update the older of both. Until then lookups begin at the root"
    )]
    OtherHeader {
        /// Its address.
        address: String,
        /// Version there; 0 for one before 4.
        found: u32,
    },
    /// The answer is none to the question.
    #[error("the controller at {address} answers with something else: {source}; is it of the same version?")]
    Answer {
        /// Its address.
        address: String,
        /// The problem.
        source: serde_json::Error,
    },
}

/// All controllers of a cluster, of which one is primary at most.
#[derive(Clone, Debug)]
pub struct Controllers(Vec<Peer>);

impl Controllers {
    /// Those at these addresses, in the order in which they are tried.
    pub fn new(peers: impl IntoIterator<Item = Peer>) -> Self {
        Self(peers.into_iter().collect())
    }

    /// The controllers in turn, without end: for a stream that is opened again and again until a primary takes it. The iterator is empty
    /// if there are no controllers.
    pub fn in_turn(&self) -> impl Iterator<Item = Peer> + use<> {
        self.0.clone().into_iter().cycle()
    }

    /// Asks the primary, and waits for the answer. `connect` is how long a connection may take.
    ///
    /// # Errors
    /// When there is none.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        question: &Question,
        connect: Duration,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let mut failed: Vec<ClientError> = Vec::new();
        for peer in &self.0 {
            let answer =
                async { Client::connect(peer.clone(), connect).await?.ask(question, patience).await };
            match answer.await {
                Err(error) if error.is_of_another() => failed.push(error),
                answer => return answer,
            }
        }
        let all = failed.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Err(failed.pop().filter(|_| self.0.len() == 1).unwrap_or(ClientError::NonePrimary(all)))
    }
}

impl ClientError {
    /// Whether the controller is busy with another request of the kind, and may carry this one out later. Its message says "try again".
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.message().contains("try again"))
    }

    /// Whether another controller may be primary.
    fn is_of_another(&self) -> bool {
        match self {
            // One that is frozen may have lost its place meanwhile.
            Self::Unreachable { .. }
            | Self::Deadline { .. }
            | Self::NotPrimary { .. }
            | Self::Silent { .. } => true,
            Self::Refused { status, .. } => {
                matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal)
            }
            Self::NonePrimary(_) | Self::Answer { .. } | Self::OtherHeader { .. } => false,
        }
    }
}

/// A connection to a controller.
#[derive(Clone, Debug)]
pub struct Client {
    stub: ControllerClient<Channel>,
    address: String,
}

impl Client {
    /// Connects to a controller, such as `127.0.0.1:9690`.
    ///
    /// # Errors
    /// When there is no listener.
    pub async fn connect(to: impl Into<Peer>, patience: Duration) -> Result<Self, ClientError> {
        let to = to.into();
        let address = to.address();
        let unreachable = |source| ClientError::Unreachable { address: address.to_owned(), source };
        let endpoint = to.endpoint().map_err(unreachable)?;
        let endpoint = endpoint
            .connect_timeout(patience)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true);
        let channel = tokio::time::timeout(patience, endpoint.connect()).await;
        let late = |_| ClientError::Deadline { address: address.to_owned(), after: patience };
        let channel = channel.map_err(late)?.map_err(unreachable)?;
        let stub = ControllerClient::new(channel)
            .max_decoding_message_size(ANSWER_BYTES)
            .max_encoding_message_size(ANSWER_BYTES);
        Ok(Self { stub, address: address.to_owned() })
    }

    fn refused(&self, status: Status) -> ClientError {
        if status.code() == NOT_PRIMARY {
            return ClientError::NotPrimary {
                address: self.address.clone(),
                reason: status.message().to_owned(),
            };
        }
        // What the controller says has no cause here: only the transport's own errors have one.
        if std::error::Error::source(&status).is_some() {
            return ClientError::Silent { address: self.address.clone(), source: Box::new(status) };
        }
        ClientError::Refused { address: self.address.clone(), status: Box::new(status) }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// When there is none.
    pub async fn ask<T: DeserializeOwned>(
        &mut self,
        question: &Question,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let json = serde_json::to_string(question).expect("questions always serialise");
        let answer = tokio::time::timeout(patience, self.stub.ask(proto::Question { json })).await;
        let late = |_| ClientError::Deadline { address: self.address.clone(), after: patience };
        let answer = answer.map_err(late)?.map_err(|status| self.refused(status))?;
        serde_json::from_str(&answer.into_inner().json)
            .map_err(|source| ClientError::Answer { address: self.address.clone(), source })
    }

    /// A memory server says that it is here, and tells what changes, until one of them is gone. `known` is told once, when the controller has
    /// heard of the server, which other tree of it was known before, by its number; `None` if none was.
    ///
    /// # Errors
    /// How it has ended.
    pub async fn register(
        &mut self,
        hello: ServerHello,
        news: &mut mpsc::Receiver<ServerNews>,
        known: impl FnOnce(Option<u64>),
    ) -> Result<(), ClientError> {
        let (messages, sent) = mpsc::channel(WAITING);
        let send = |message| proto::ServerMessage { message: Some(message) };
        // There is room for the first.
        let _ = messages.try_send(send(server_message::Message::Hello(hello.into())));
        let replies = self.stub.register(ReceiverStream::new(sent)).await;
        let mut replies = replies.map_err(|status| self.refused(status))?.into_inner();
        let mut known = Some(known);
        loop {
            tokio::select! {
                reply = replies.next() => match reply {
                    // The first one answers the hello.
                    Some(Ok(proto::RegisterReply { former })) => {
                        if let Some(known) = known.take() {
                            known(former);
                        }
                    }
                    Some(Err(status)) => return Err(self.refused(status)),
                    None => return Ok(()),
                },
                next = news.recv() => match next {
                    Some(next) => drop(messages.send(send(next.into())).await),
                    None => return Ok(()),
                },
            }
        }
    }

    /// A client reports, and is told which of its connections are registered, until one of them is gone.
    ///
    /// # Errors
    /// How it has ended.
    pub async fn report(
        &mut self,
        address: Ipv4Addr,
        reports: &mut mpsc::Receiver<ClientReport>,
        mut registered: impl FnMut(Registered),
    ) -> Result<(), ClientError> {
        let (messages, sent) = mpsc::channel(WAITING);
        let send = |message| proto::ClientMessage { message: Some(message) };
        let _ = messages.try_send(send(client_message::Message::Hello(address.to_bits())));
        let told = self.stub.report(ReceiverStream::new(sent)).await;
        let mut told = told.map_err(|status| self.refused(status))?.into_inner();
        loop {
            tokio::select! {
                next = told.next() => match next {
                    Some(Ok(proto::Registered { index_header_version: found, .. }))
                        if found != u32::from(INDEX_HEADER_VERSION) =>
                    {
                        return Err(ClientError::OtherHeader { address: self.address.clone(), found });
                    }
                    Some(Ok(proto::Registered { partition, queue_pair, .. })) => {
                        if let Ok(partition) = u16::try_from(partition) {
                            registered((partition, queue_pair));
                        }
                    }
                    Some(Err(status)) => return Err(self.refused(status)),
                    None => return Ok(()),
                },
                next = reports.recv() => match next {
                    Some(ClientReport { keys, index_reads, stale_hints, hot_keys }) => {
                        let report = proto::Report { keys, index_reads, stale_hints, hot_keys };
                        let _ = messages.send(send(client_message::Message::Report(report))).await;
                    }
                    None => return Ok(()),
                },
            }
        }
    }
}

fn tree(generation: Generation, root: u64, first_key: Option<Vec<u8>>) -> proto::Tree {
    proto::Tree { generation: generation.number, low_key: generation.low, root, first_key }
}

impl From<Registration> for proto::Connection {
    fn from(registration: Registration) -> Self {
        let Registration { client, queue_pair, rkey, root, mtu } = registration;
        Self { client: client.to_bits(), queue_pair, rkey, root, path_mtu: mtu.into() }
    }
}

impl From<ServerHello> for proto::ServerHello {
    fn from(hello: ServerHello) -> Self {
        Self {
            partition: hello.partition.into(),
            tree: Some(tree(hello.generation, hello.root, hello.first_key)),
            connections: hello.connections.into_iter().map(Into::into).collect(),
            lost: hello.lost,
            structure: hello.structure,
        }
    }
}

impl From<ServerNews> for server_message::Message {
    fn from(news: ServerNews) -> Self {
        match news {
            ServerNews::Opened(registration) => Self::Opened(registration.into()),
            ServerNews::Closed { client, queue_pair } => {
                Self::Closed(proto::Closed { client: client.to_bits(), queue_pair })
            }
            ServerNews::Root(root) => Self::Root(root),
            ServerNews::Lost => Self::Lost(proto::Lost {}),
            ServerNews::Room(RoomStatus { live, held, free, lost }) => {
                Self::Room(proto::Room { live, held, free, lost })
            }
            ServerNews::Refilled { generation, root, first_key } => {
                Self::Tree(tree(generation, root, first_key))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use tokio_stream::{Stream, iter, wrappers::TcpListenerStream};
    use tonic::{Request, Response, Streaming};

    use super::super::proto::controller_server::{Controller, ControllerServer};
    use super::*;

    /// A controller that tells of a connection, and of this version of the index header.
    struct Release(u32);

    type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

    #[tonic::async_trait]
    impl Controller for Release {
        type RegisterStream = Replies<proto::RegisterReply>;
        type ReportStream = Replies<proto::Registered>;

        async fn register(
            &self,
            _: Request<Streaming<proto::ServerMessage>>,
        ) -> Result<Response<Self::RegisterStream>, Status> {
            Err(Status::unimplemented("no memory server is here"))
        }

        async fn report(
            &self,
            _: Request<Streaming<proto::ClientMessage>>,
        ) -> Result<Response<Self::ReportStream>, Status> {
            let told = proto::Registered { partition: 3, queue_pair: 17, index_header_version: self.0 };
            Ok(Response::new(Box::pin(iter([Ok(told)]))))
        }

        async fn ask(&self, _: Request<proto::Question>) -> Result<Response<proto::Answer>, Status> {
            Err(Status::unimplemented("no operator is here"))
        }
    }

    /// A client whose index reads say what the switches do not understand posts none.
    #[tokio::test]
    async fn a_controller_of_another_release_is_named_and_registers_nothing() {
        let own = u32::from(INDEX_HEADER_VERSION);
        for version in [0, own - 1, own, own + 1] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let served =
                tonic::transport::Server::builder().add_service(ControllerServer::new(Release(version)));
            let served = tokio::spawn(served.serve_with_incoming(TcpListenerStream::new(listener)));
            let mut client =
                Client::connect(&*format!("http://{address}"), Duration::from_secs(5)).await.unwrap();
            let (_reports, mut waiting) = mpsc::channel(1);
            let mut registered = vec![];
            let told =
                client.report(Ipv4Addr::LOCALHOST, &mut waiting, |connection| registered.push(connection));
            match told.await {
                Ok(()) => assert_eq!((version, &registered[..]), (own, &[(3, 17)][..])),
                Err(error) => {
                    assert!(version != own && registered.is_empty(), "{error}");
                    assert!(
                        error.to_string().contains(&format!("have version {version} of the index header")),
                        "{error}"
                    );
                }
            }
            served.abort();
        }
    }
}

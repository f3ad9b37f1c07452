//! The service: streams become inputs.

use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fatbtree_trust::{CONTROLLER, Connections, Door, OPERATOR};
use fatbtree_wire::INDEX_HEADER_VERSION;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::proto::controller_server::{Controller, ControllerServer};
use super::proto::{self, client_message, server_message};
use super::{ClientReport, Input, NOT_PRIMARY, Registered, ServerHello, ServerNews, TREE};
use crate::operator::RoomStatus;
use crate::reconcile::{Generation, Registration};

/// Bounds of what peers can make the service hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceOptions {
    /// TCP connections at once.
    pub connections: usize,
    /// TCP connections of one host at once.
    pub connections_per_host: usize,
    /// Streams of memory servers and clients at once.
    pub streams: usize,
    /// Questions under way at once.
    pub questions: usize,
    /// Bytes of the largest message that is read: a saved plan.
    pub message_bytes: usize,
    /// Messages to a client that wait for it: as many as it may have connections.
    pub waiting: usize,
    /// A peer without a sign of life for twice this long is gone.
    pub keep_alive: Duration,
    /// Time limit of an answer.
    pub answer: Duration,
}

impl Default for ServiceOptions {
    /// 8,192 connections, 2,048 of each host; 8,192 streams, 16 questions, 64 MiB, 4,096 messages; peers are gone after 4 s, answers come within 2 minutes.
    fn default() -> Self {
        Self {
            connections: 8192,
            connections_per_host: 2048,
            streams: 8192,
            questions: 16,
            message_bytes: 64 << 20,
            waiting: 4096,
            keep_alive: Duration::from_secs(2),
            answer: Duration::from_secs(120),
        }
    }
}

/// Whether the controller is primary: `Err` says which one is, in words that follow "not primary: ". Streams end when it changes.
pub type Standing = Result<(), String>;

/// Serves a controller: what comes in goes to `inputs`, in the order of each stream. Where there are certificates, a memory server
/// registers for its own partition, a client reports for its own address, and only the operator asks. Only a primary is asked;
/// [`ClientError::NotPrimary`](super::ClientError::NotPrimary) says that another controller should be.
///
/// # Errors
/// When the transport fails.
pub async fn serve(
    options: ServiceOptions,
    door: impl Into<Door<TcpListener>>,
    inputs: mpsc::Sender<Input>,
    standing: watch::Receiver<Standing>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let door = door.into();
    let server = door.server()?;
    let bound = Connections { all: options.connections, per_host: options.connections_per_host };
    let (connections, door) = door.open(bound);
    let service = Service {
        inputs,
        standing,
        door,
        options,
        next: AtomicU64::new(0),
        streams: Arc::new(Semaphore::new(options.streams)),
        questions: Arc::new(Semaphore::new(options.questions)),
    };
    server
        .http2_keepalive_interval(Some(options.keep_alive))
        .http2_keepalive_timeout(Some(options.keep_alive))
        .max_concurrent_streams(Some(64))
        .add_service(ControllerServer::new(service).max_decoding_message_size(options.message_bytes))
        .serve_with_incoming_shutdown(connections, stop)
        .await
}

struct Service {
    door: Door<()>,
    inputs: mpsc::Sender<Input>,
    standing: watch::Receiver<Standing>,
    options: ServiceOptions,
    next: AtomicU64,
    streams: Arc<Semaphore>,
    questions: Arc<Semaphore>,
}

fn not_primary(standing: &watch::Receiver<Standing>) -> Status {
    let reason = match &*standing.borrow() {
        Ok(()) => "this controller has just become primary: try again".to_owned(),
        Err(reason) => reason.clone(),
    };
    Status::new(NOT_PRIMARY, format!("not primary: {reason}"))
}

impl Service {
    /// The standing as it is, in which this controller is primary.
    fn primary(&self) -> Result<watch::Receiver<Standing>, Status> {
        let mut standing = self.standing.clone();
        let is_primary = standing.borrow_and_update().is_ok();
        if is_primary { Ok(standing) } else { Err(not_primary(&standing)) }
    }

    fn stream(&self) -> Result<(u64, OwnedSemaphorePermit), Status> {
        let place = Arc::clone(&self.streams).try_acquire_owned();
        let full = |_| {
            Status::resource_exhausted(format!("{} streams are open, as many as may", self.options.streams))
        };
        Ok((self.next.fetch_add(1, Ordering::Relaxed), place.map_err(full)?))
    }
}

fn gone<T>(_: T) -> Status {
    Status::unavailable("the controller is stopping")
}

fn missing(what: &str) -> Status {
    Status::invalid_argument(format!("{what} is missing"))
}

fn number<T: TryFrom<u32>>(what: &str, value: u32) -> Result<T, Status> {
    T::try_from(value).map_err(|_| Status::invalid_argument(format!("{what}: {value} is out of range")))
}

impl From<proto::Connection> for Registration {
    fn from(connection: proto::Connection) -> Self {
        let proto::Connection { client, queue_pair, rkey, root, path_mtu } = connection;
        // What is none is refused where connections are registered.
        let mtu = u16::try_from(path_mtu).unwrap_or_default();
        Self { client: Ipv4Addr::from_bits(client), queue_pair, rkey, root, mtu }
    }
}

fn tree(tree: Option<proto::Tree>) -> Result<(Generation, u64, Option<Vec<u8>>), Status> {
    let tree = tree.ok_or_else(|| missing("tree"))?;
    Ok((Generation { number: tree.generation, low: tree.low_key }, tree.root, tree.first_key))
}

fn hello(message: proto::ServerMessage) -> Result<ServerHello, Status> {
    let Some(server_message::Message::Hello(hello)) = message.message else {
        return Err(missing("hello, which comes first,"));
    };
    let (generation, root, first_key) = tree(hello.tree)?;
    let connections = hello.connections.into_iter().map(Registration::from).collect();
    let (partition, lost) = (number("partition", hello.partition)?, hello.lost);
    let structure = Some(hello.structure).filter(|name| !name.is_empty());
    let structure = structure.unwrap_or_else(|| TREE.to_owned());
    Ok(ServerHello { partition, structure, generation, root, first_key, lost, connections })
}

fn news(message: proto::ServerMessage) -> Result<ServerNews, Status> {
    Ok(match message.message.ok_or_else(|| missing("message"))? {
        server_message::Message::Hello(_) => return Err(Status::invalid_argument("hello comes once")),
        server_message::Message::Opened(connection) => ServerNews::Opened(connection.into()),
        server_message::Message::Closed(proto::Closed { client, queue_pair }) => {
            ServerNews::Closed { client: Ipv4Addr::from_bits(client), queue_pair }
        }
        server_message::Message::Root(root) => ServerNews::Root(root),
        server_message::Message::Lost(_) => ServerNews::Lost,
        server_message::Message::Room(proto::Room { live, held, free, lost }) => {
            ServerNews::Room(RoomStatus { live, held, free, lost })
        }
        server_message::Message::Tree(filled) => {
            let (generation, root, first_key) = tree(Some(filled))?;
            ServerNews::Refilled { generation, root, first_key }
        }
    })
}

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Controller for Service {
    type RegisterStream = Replies<proto::RegisterReply>;
    type ReportStream = Replies<proto::Registered>;

    async fn register(
        &self,
        request: Request<Streaming<proto::ServerMessage>>,
    ) -> Result<Response<Self::RegisterStream>, Status> {
        let mut standing = self.primary()?;
        let (stream, place) = self.stream()?;
        let (door, caller) = (self.door.clone(), self.door.caller(&request));
        let mut messages = request.into_inner();
        let inputs = self.inputs.clone();
        let (replies, back) = mpsc::channel(1);
        tokio::spawn(async move {
            let _place = place;
            let mut partition = None;
            let ended: Result<(), Status> = async {
                loop {
                    let message = tokio::select! {
                        message = messages.message() => message?,
                        _ = standing.changed() => return Err(not_primary(&standing)),
                    };
                    let Some(message) = message else { return Ok(()) };
                    let Some(partition) = partition else {
                        let hello = hello(message)?;
                        door.admit_server(&caller, hello.partition)?;
                        partition = Some(hello.partition);
                        let (former, told) = oneshot::channel();
                        inputs.send(Input::ServerJoined { stream, hello, former }).await.map_err(gone)?;
                        // Without an answer the server must not believe that none was known.
                        let former = told.await.map_err(gone)?;
                        // The first reply has room.
                        let _ = replies.try_send(Ok(proto::RegisterReply { former }));
                        continue;
                    };
                    let input = Input::ServerNews { stream, partition, news: news(message)? };
                    inputs.send(input).await.map_err(gone)?;
                    // One that waits says the same.
                    let _ = replies.try_send(Ok(proto::RegisterReply { former: None }));
                }
            }
            .await;
            if let Err(status) = ended {
                // A caller that is gone needs no reason.
                let _ = replies.send(Err(status)).await;
            }
            if let Some(partition) = partition {
                let _ = inputs.send(Input::ServerLeft { stream, partition }).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(back))))
    }

    async fn report(
        &self,
        request: Request<Streaming<proto::ClientMessage>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let mut standing = self.primary()?;
        let (stream, place) = self.stream()?;
        let caller = self.door.caller(&request);
        let mut messages = request.into_inner();
        let inputs = self.inputs.clone();
        let (registered, told) = mpsc::channel::<Registered>(self.options.waiting);
        let first = messages.message().await?.and_then(|message| message.message);
        let Some(client_message::Message::Hello(address)) = first else {
            return Err(missing("hello, which comes first,"));
        };
        let address = Ipv4Addr::from_bits(address);
        self.door.admit_client(&caller, address)?;
        self.inputs.send(Input::ClientJoined { stream, address, registered }).await.map_err(gone)?;
        tokio::spawn(async move {
            let _place = place;
            loop {
                // When another controller is primary, the client's stream ends: it asks for the other one.
                let message = tokio::select! {
                    message = messages.message() => message,
                    _ = standing.changed() => break,
                };
                let Ok(Some(message)) = message else { break };
                let Some(client_message::Message::Report(report)) = message.message else { break };
                let proto::Report { keys, index_reads, stale_hints, hot_keys } = report;
                let report = ClientReport { keys, index_reads, stale_hints, hot_keys };
                if inputs.send(Input::ClientReport { stream, report }).await.is_err() {
                    return;
                }
            }
            let _ = inputs.send(Input::ClientLeft { stream }).await;
        });
        let told = ReceiverStream::new(told).map(|(partition, queue_pair)| {
            let index_header_version = INDEX_HEADER_VERSION.into();
            Ok(proto::Registered { partition: partition.into(), queue_pair, index_header_version })
        });
        Ok(Response::new(Box::pin(told)))
    }

    async fn ask(&self, request: Request<proto::Question>) -> Result<Response<proto::Answer>, Status> {
        self.door.admit(&request, &[OPERATOR, CONTROLLER])?;
        let standing = self.primary()?;
        let Ok(_place) = self.questions.try_acquire() else {
            let questions = self.options.questions;
            return Err(Status::resource_exhausted(format!("{questions} questions wait, as many as may")));
        };
        let question = serde_json::from_str(&request.into_inner().json)
            .map_err(|error| Status::invalid_argument(format!("question: {error}")))?;
        let (reply, answer) = oneshot::channel();
        self.inputs.send(Input::Asked { question, reply }).await.map_err(gone)?;
        let answer = tokio::time::timeout(self.options.answer, answer).await;
        let answer = answer.map_err(|_| {
            Status::deadline_exceeded(format!("no answer within {} s", self.options.answer.as_secs()))
        })?;
        let answer = answer.map_err(|_| match standing.has_changed() {
            Ok(true) => not_primary(&standing),
            _ => gone(()),
        })?;
        let json = answer.map_err(Status::failed_precondition)?;
        Ok(Response::new(proto::Answer { json }))
    }
}

//! An asynchronous client: session, pipeline, batched writes, reads.
//!
//! This is the driver at the edge; messages and lookups elsewhere in this crate do no I/O.

use std::time::Duration;

use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::config::P4Info;
use crate::entry::EntryError;
use crate::index::{P4InfoIndex, TableInfo};
use crate::p4info::P4InfoError;
use crate::status::{UpdateError, batch_errors};
use crate::v1::{
    self, Entity, TableEntry, Uint128, Update, entity, p4_runtime_client::P4RuntimeClient as Grpc,
    set_forwarding_pipeline_config_request::Action as PipelineAction, stream_message_request,
    stream_message_response,
};

/// Largest message accepted, bytes. A whole switch read back in one message stays far below.
pub const MAX_MESSAGE: usize = 256 << 20;
/// Largest list of headers accepted, bytes: the errors of a batch travel in one header, about 60 bytes an update.
pub const MAX_HEADERS: u32 = 16 << 20;
/// Interval and time-out of the pings by which a switch notices that a controller is frozen, or its machine gone: the session has ended
/// after twice this time. A controller on a busy machine answers later than other peers.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Errors between a controller and a switch.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address of the server is malformed.
    #[error("expected a switch address such as http://127.0.0.1:9559, found `{endpoint}`: {source}")]
    Endpoint {
        /// The given value.
        endpoint: String,
        /// The problem.
        source: tonic::transport::Error,
    },
    /// No server answers at the address.
    #[error("no P4Runtime server at {endpoint}: {source}; is the switch running?")]
    Connect {
        /// Address of the server.
        endpoint: String,
        /// Error from the transport.
        source: tonic::transport::Error,
    },
    /// The server refused a whole request, or the connection broke.
    #[error("{what} on device {device_id}: {}", said(status))]
    Rpc {
        /// The request.
        what: &'static str,
        /// The device.
        device_id: u64,
        /// The server's answer.
        status: Box<Status>,
    },
    /// Some updates were refused; the others are active.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Another controller is primary.
    #[error(
        "device {device_id} has another primary: expected that election id {ours} is the highest, found {}; bid higher, or \
         stop the other controller",
        highest.map_or("none".to_owned(), |highest| highest.to_string())
    )]
    NotPrimary {
        /// The device.
        device_id: u64,
        /// Our bid.
        ours: u128,
        /// The highest bid the switch has seen.
        highest: Option<u128>,
    },
    /// The session's stream ended.
    #[error("device {device_id}: the session ended: {reason}; connect again")]
    SessionEnded {
        /// The device.
        device_id: u64,
        /// The server's message, or the way the connection broke.
        reason: String,
    },
    /// The switch runs no program yet.
    #[error("device {device_id} runs no program yet; set its pipeline first")]
    NoPipeline {
        /// The device.
        device_id: u64,
    },
    /// The switch's P4Info cannot be used.
    #[error("P4Info of the switch: {0}")]
    P4Info(#[from] P4InfoError),
    /// An entry read back does not fit its table.
    #[error("entry read from the switch: {0}")]
    Entry(#[from] EntryError),
}

/// Updates that a switch refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteError {
    /// Number of updates.
    pub total: usize,
    /// The refused ones; `index` counts from the first update of the call.
    pub failed: Vec<UpdateError>,
}

impl std::error::Error for WriteError {}

impl std::fmt::Display for WriteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 3;
        write!(f, "the switch refused {} of {} updates", self.failed.len(), self.total)?;
        for error in self.failed.iter().take(SHOWN) {
            write!(f, "; {error}")?;
        }
        if self.failed.len() > SHOWN {
            write!(f, "; and {} more", self.failed.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// Options for dividing and sending requests.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Updates per Write request.
    pub batch: usize,
    /// Write requests on their way at one time.
    pub in_flight: usize,
    /// Time to wait for a TCP connection.
    pub connect_timeout: Duration,
    /// Time to wait for an answer, or for the next part of one. A frozen switch delays the caller no longer.
    pub answer_timeout: Duration,
    /// Time to wait for a switch that is given a program.
    pub pipeline_timeout: Duration,
    /// Configuration of TLS; `None` for plaintext.
    pub tls: Option<ClientTlsConfig>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            batch: 5000,
            in_flight: 4,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(20),
            pipeline_timeout: Duration::from_secs(120),
            tls: None,
        }
    }
}

/// The controller of the switch, as its last notice said.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mastership {
    /// No notice yet.
    Unknown,
    /// This client may write.
    Primary,
    /// Another client may write; `highest` is its election id.
    Backup {
        /// Highest election id the switch has seen.
        highest: Option<u128>,
    },
    /// No controller may write: the last primary is gone.
    Vacant {
        /// Highest election id the switch has seen.
        highest: Option<u128>,
    },
    /// The stream is gone, and with it any right to write.
    Ended {
        /// The server's message, or the way the connection broke.
        reason: String,
    },
}

/// A connection to one device.
///
/// ```no_run
/// # async fn f(program: &[u8], p4info_text: &str) -> Result<(), Box<dyn std::error::Error>> {
/// use fatbtree_p4runtime::{P4InfoIndex, P4RuntimeClient, entry::insert};
///
/// let info = P4InfoIndex::from_text(p4info_text)?;
/// let mut switch = P4RuntimeClient::connect("http://127.0.0.1:9559", 1).await?;
/// switch.become_primary(1).await?;
/// switch.set_pipeline(info.p4info().clone(), program.to_vec()).await?;
/// let routes = info.table("ipv4_route")?;
/// let (dst, forward) = (routes.field("dst_addr")?, routes.action("forward")?);
/// let route = routes.entry().lpm(dst, 0x0a00_0000, 8).action(forward, &[1]).build()?;
/// switch.write([insert(route)]).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct P4RuntimeClient {
    grpc: Grpc<Channel>,
    device_id: u64,
    options: ClientOptions,
    election_id: Option<u128>,
    session: Option<Session>,
}

impl P4RuntimeClient {
    /// Connects to a server; `http://` may be left out, and `https://` where the options have TLS.
    pub async fn connect(endpoint: &str, device_id: u64) -> Result<Self, ClientError> {
        Self::connect_with(endpoint, device_id, ClientOptions::default()).await
    }

    /// Connects with options.
    pub async fn connect_with(
        endpoint: &str,
        device_id: u64,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let url =
            if endpoint.contains("://") { endpoint.to_owned() } else { format!("{scheme}://{endpoint}") };
        let bad = |source| ClientError::Endpoint { endpoint: endpoint.to_owned(), source };
        let mut channel = Endpoint::from_shared(url).map_err(bad)?;
        if let Some(tls) = &options.tls {
            channel = channel.tls_config(tls.clone()).map_err(bad)?;
        }
        let channel = channel
            .connect_timeout(options.connect_timeout)
            .tcp_nodelay(true)
            // TCP notices that a switch's machine is gone, after minutes, and never that its process is frozen. Sessions
            // that must notice either ask something now and then, and wait `answer_timeout` for the answer. HTTP/2 pings
            // cannot do it: servers built on the C++ library answer frequent ones by closing the connection.
            .tcp_keepalive(Some(Duration::from_secs(15)))
            .initial_stream_window_size(8 << 20)
            .initial_connection_window_size(32 << 20)
            .http2_max_header_list_size(MAX_HEADERS)
            .connect()
            .await
            .map_err(|source| ClientError::Connect { endpoint: endpoint.to_owned(), source })?;
        Ok(Self::from_channel(channel, device_id, options))
    }

    /// Uses a channel made elsewhere (TLS, Unix sockets). Give its endpoint `http2_max_header_list_size`
    /// [`MAX_HEADERS`], or the errors of large batches will not come through.
    pub fn from_channel(channel: Channel, device_id: u64, options: ClientOptions) -> Self {
        let grpc = Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Self { grpc, device_id, options, election_id: None, session: None }
    }

    /// The device behind this client.
    pub fn device_id(&self) -> u64 {
        self.device_id
    }

    /// Bids for control and waits until this client is primary, or another one turns out to be.
    ///
    /// The stream of the session stays open in the background as long as the client lives; call again with a higher
    /// id to take control back.
    pub async fn become_primary(&mut self, election_id: u128) -> Result<(), ClientError> {
        let (device_id, ours) = (self.device_id, election_id);
        // Others are notices from before our bid.
        let counts = |now: &Mastership| match now {
            Mastership::Primary => true,
            Mastership::Backup { highest } => *highest >= Some(ours),
            Mastership::Vacant { highest } => *highest > Some(ours),
            Mastership::Unknown | Mastership::Ended { .. } => false,
        };
        match self.send_bid(election_id, counts).await? {
            Mastership::Backup { highest } | Mastership::Vacant { highest } => {
                Err(ClientError::NotPrimary { device_id, ours, highest })
            }
            _ => Ok(()),
        }
    }

    /// Bids for control and returns the switch's first notice, whichever controller is primary. Later changes come by
    /// [`mastership`](Self::mastership).
    pub async fn bid(&mut self, election_id: u128) -> Result<Mastership, ClientError> {
        self.send_bid(election_id, |now| *now != Mastership::Unknown).await
    }

    /// Bids for control, and waits for the first notice that `counts`.
    async fn send_bid(
        &mut self,
        election_id: u128,
        counts: impl Fn(&Mastership) -> bool,
    ) -> Result<Mastership, ClientError> {
        let bid = v1::StreamMessageRequest {
            update: Some(stream_message_request::Update::Arbitration(v1::MasterArbitrationUpdate {
                device_id: self.device_id,
                election_id: Some(uint128(election_id)),
                ..v1::MasterArbitrationUpdate::default()
            })),
        };
        let device_id = self.device_id;
        let ended = |reason: String| ClientError::SessionEnded { device_id, reason };
        let alive = self.session.take().filter(Session::await_notice);
        let mut session = match alive {
            Some(session) => {
                // If the stream ends just now, the last notice says why.
                let _ = session.requests.send(bid).await;
                session
            }
            None => {
                let open = Session::open(self.grpc.clone(), bid);
                within(self.options.answer_timeout, open)
                    .await
                    .map_err(|status| self.rpc("StreamChannel", status))?
            }
        };
        self.election_id = Some(election_id);
        let outcome = loop {
            let now = session.mastership.borrow_and_update().clone();
            match now {
                Mastership::Ended { reason } => break Err(ended(reason)),
                now if counts(&now) => break Ok(now),
                _ => {}
            }
            let notice = async {
                let changed = session.mastership.changed().await;
                changed.map_err(|_| Status::unavailable("the stream is closed"))
            };
            if let Err(status) = within(self.options.answer_timeout, notice).await {
                break Err(ended(status.message().to_owned()));
            }
        };
        self.session = Some(session);
        outcome
    }

    /// The controller of the switch now; `changed()` on the receiver tells of a demotion. `None` before the first
    /// [`become_primary`](Self::become_primary).
    pub fn mastership(&self) -> Option<watch::Receiver<Mastership>> {
        self.session.as_ref().map(|session| session.mastership.clone())
    }

    /// Waits until this client is not primary any more, and returns the reason.
    pub async fn session_ends(&self) -> ClientError {
        let device_id = self.device_id;
        let ended = |reason: &str| ClientError::SessionEnded { device_id, reason: reason.to_owned() };
        let Some(mut mastership) = self.mastership() else { return ended("there was none yet") };
        let lost = mastership.wait_for(|now| *now != Mastership::Primary).await.map(|now| now.clone());
        match lost {
            Ok(Mastership::Backup { highest } | Mastership::Vacant { highest }) => {
                ClientError::NotPrimary { device_id, ours: self.election_id.unwrap_or_default(), highest }
            }
            Ok(Mastership::Ended { reason }) => ended(&reason),
            Ok(Mastership::Unknown | Mastership::Primary) | Err(_) => ended("the stream is closed"),
        }
    }

    /// Whether the last notice said that this client is primary.
    pub fn is_primary(&self) -> bool {
        self.session.as_ref().is_some_and(|session| *session.mastership.borrow() == Mastership::Primary)
    }

    /// Packets, digests and errors the switch sends on the session's stream. Can be taken once per session; up to 1024
    /// wait for the reader, later ones are dropped.
    pub fn take_messages(&mut self) -> Option<mpsc::Receiver<stream_message_response::Update>> {
        self.session.as_mut().and_then(|session| session.messages.take())
    }

    /// Sends a packet through the switch's CPU port. Errors come back as messages of the stream.
    pub async fn packet_out(&self, packet: v1::PacketOut) -> Result<(), ClientError> {
        let ended =
            |reason: &str| ClientError::SessionEnded { device_id: self.device_id, reason: reason.to_owned() };
        let session = self.session.as_ref().ok_or_else(|| ended("there was none yet"))?;
        let message =
            v1::StreamMessageRequest { update: Some(stream_message_request::Update::Packet(packet)) };
        session.requests.send(message).await.map_err(|_| ended("the stream is closed"))
    }

    /// Loads a program and empties all tables (VERIFY_AND_COMMIT). `device_config` is the BMv2 JSON.
    pub async fn set_pipeline(&self, p4info: P4Info, device_config: Vec<u8>) -> Result<(), ClientError> {
        let config = v1::ForwardingPipelineConfig {
            p4info: Some(p4info),
            p4_device_config: device_config,
            cookie: None,
        };
        self.set_pipeline_with(PipelineAction::VerifyAndCommit, Some(config)).await
    }

    /// Sets the pipeline by any action, such as COMMIT without a config.
    pub async fn set_pipeline_with(
        &self,
        action: PipelineAction,
        config: Option<v1::ForwardingPipelineConfig>,
    ) -> Result<(), ClientError> {
        let request = v1::SetForwardingPipelineConfigRequest {
            device_id: self.device_id,
            election_id: self.election_id.map(uint128),
            action: action.into(),
            config,
            ..v1::SetForwardingPipelineConfigRequest::default()
        };
        let mut grpc = self.grpc.clone();
        within(self.options.pipeline_timeout, grpc.set_forwarding_pipeline_config(request))
            .await
            .map_err(|status| self.rpc("SetForwardingPipelineConfig", status))?;
        Ok(())
    }

    /// The program the switch runs; `None` when it runs none.
    pub async fn pipeline(
        &self,
        parts: v1::get_forwarding_pipeline_config_request::ResponseType,
    ) -> Result<Option<v1::ForwardingPipelineConfig>, ClientError> {
        let request =
            v1::GetForwardingPipelineConfigRequest { device_id: self.device_id, response_type: parts.into() };
        let mut grpc = self.grpc.clone();
        let response =
            within(self.options.answer_timeout, grpc.get_forwarding_pipeline_config(request)).await;
        let response = response.map_err(|status| self.rpc("GetForwardingPipelineConfig", status))?;
        Ok(response.into_inner().config)
    }

    /// The index of the program the switch runs.
    pub async fn p4info(&self) -> Result<P4InfoIndex, ClientError> {
        use v1::get_forwarding_pipeline_config_request::ResponseType;
        let config = self.pipeline(ResponseType::P4infoAndCookie).await?;
        let info = config.and_then(|config| config.p4info);
        Ok(P4InfoIndex::new(info.ok_or(ClientError::NoPipeline { device_id: self.device_id })?)?)
    }

    /// Applies updates, in batches, several at a time. Every update is tried, whatever happens to the others.
    ///
    /// Batches may overtake one another (P4Runtime specification, "Batching and Ordering of Updates"): updates that
    /// depend on each other belong into separate calls.
    pub async fn write(&self, updates: impl IntoIterator<Item = Update>) -> Result<(), ClientError> {
        let mut updates = updates.into_iter();
        let mut running: JoinSet<Sent> = JoinSet::new();
        let mut outcome = WriteOutcome::default();
        let mut start = 0;
        loop {
            let batch: Vec<Update> = updates.by_ref().take(self.options.batch.max(1)).collect();
            if batch.is_empty() {
                break;
            }
            let first = start;
            start += batch.len();
            if running.len() >= self.options.in_flight.max(1) {
                outcome.add(running.join_next().await);
            }
            let request = v1::WriteRequest {
                device_id: self.device_id,
                election_id: self.election_id.map(uint128),
                updates: batch,
                ..v1::WriteRequest::default()
            };
            let mut grpc = self.grpc.clone();
            let limit = self.options.answer_timeout;
            running.spawn(async move { (first, within(limit, grpc.write(request)).await.map(|_| ())) });
        }
        while let Some(done) = running.join_next().await {
            outcome.add(Some(done));
        }
        let WriteOutcome { mut failed, broken } = outcome;
        if let Some(status) = broken {
            return Err(self.rpc("Write", status));
        }
        if failed.is_empty() {
            return Ok(());
        }
        failed.sort_by_key(|error| error.index);
        Err(WriteError { total: start, failed }.into())
    }

    /// Applies one batch as a whole, in the given mode.
    pub async fn write_batch(
        &self,
        updates: Vec<Update>,
        atomicity: v1::write_request::Atomicity,
    ) -> Result<(), ClientError> {
        let total = updates.len();
        let request = v1::WriteRequest {
            device_id: self.device_id,
            election_id: self.election_id.map(uint128),
            updates,
            atomicity: atomicity.into(),
            ..v1::WriteRequest::default()
        };
        let mut grpc = self.grpc.clone();
        match within(self.options.answer_timeout, grpc.write(request)).await {
            Ok(_) => Ok(()),
            Err(status) => Err(match batch_errors(&status) {
                Some(failed) => WriteError { total, failed }.into(),
                None => self.rpc("Write", status),
            }),
        }
    }

    /// Reads entities, as a stream of parts.
    pub async fn read_stream(
        &self,
        entities: Vec<Entity>,
    ) -> Result<Streaming<v1::ReadResponse>, ClientError> {
        let request = v1::ReadRequest { device_id: self.device_id, entities, ..v1::ReadRequest::default() };
        let mut grpc = self.grpc.clone();
        let response = within(self.options.answer_timeout, grpc.read(request)).await;
        let response = response.map_err(|status| self.rpc("Read", status))?;
        Ok(response.into_inner())
    }

    /// Reads entities.
    pub async fn read(&self, entities: Vec<Entity>) -> Result<Vec<Entity>, ClientError> {
        let mut stream = self.read_stream(entities).await?;
        let mut all = Vec::new();
        loop {
            let part = within(self.options.answer_timeout, stream.message()).await;
            match part.map_err(|status| self.rpc("Read", status))? {
                Some(part) => all.extend(part.entities),
                None => return Ok(all),
            }
        }
    }

    /// Reads all entries of a table; with `counters`, their direct counters too.
    pub async fn read_table(
        &self,
        table: &TableInfo,
        counters: bool,
    ) -> Result<Vec<TableEntry>, ClientError> {
        let entities = self.read(vec![table.read_all(counters)]).await?;
        Ok(entities.into_iter().filter_map(table_entry).collect())
    }

    /// Reads a table's default entry.
    pub async fn read_default(&self, table: &TableInfo) -> Result<Option<TableEntry>, ClientError> {
        let entities = self.read(vec![table.read_default()]).await?;
        Ok(entities.into_iter().find_map(table_entry))
    }

    /// The version of the API the server speaks.
    pub async fn capabilities(&self) -> Result<v1::CapabilitiesResponse, ClientError> {
        let mut grpc = self.grpc.clone();
        let request = v1::CapabilitiesRequest { device_id: self.device_id };
        let response = within(self.options.answer_timeout, grpc.capabilities(request)).await;
        let response = response.map_err(|status| self.rpc("Capabilities", status))?;
        Ok(response.into_inner())
    }

    fn rpc(&self, what: &'static str, status: Status) -> ClientError {
        ClientError::Rpc { what, device_id: self.device_id, status: Box::new(status) }
    }
}

/// A status in one line; a status without words has only its code.
fn said(status: &Status) -> String {
    match status.message() {
        "" => status.code().description().to_owned(),
        message => message.lines().map(str::trim).collect::<Vec<_>>().join("; "),
    }
}

/// Returns the answer, or `DEADLINE_EXCEEDED` if it does not come in time.
async fn within<T>(limit: Duration, answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::deadline_exceeded(format!(
            "no answer within {} s; is the switch frozen, or the network cut?",
            limit.as_secs_f64()
        ))),
    }
}

/// A batch that was answered: number of its first update, and the answer.
type Sent = (usize, Result<(), Status>);

/// Outcomes of the batches so far.
#[derive(Default)]
struct WriteOutcome {
    failed: Vec<UpdateError>,
    /// A batch that was refused as a whole.
    broken: Option<Status>,
}

impl WriteOutcome {
    fn add(&mut self, done: Option<Result<Sent, tokio::task::JoinError>>) {
        let (first, result) = match done {
            None => return,
            Some(Ok(sent)) => sent,
            Some(Err(error)) => (0, Err(Status::internal(format!("the task of a batch ended: {error}")))),
        };
        if let Err(status) = result {
            match batch_errors(&status) {
                Some(errors) => self.failed.extend(
                    errors.into_iter().map(|error| UpdateError { index: error.index + first, ..error }),
                ),
                None => self.broken = Some(status),
            }
        }
    }
}

/// The stream of a session and the task that listens to it.
#[derive(Debug)]
struct Session {
    requests: mpsc::Sender<v1::StreamMessageRequest>,
    mastership_tx: watch::Sender<Mastership>,
    mastership: watch::Receiver<Mastership>,
    messages: Option<mpsc::Receiver<stream_message_response::Update>>,
    task: JoinHandle<()>,
}

impl Session {
    async fn open(mut grpc: Grpc<Channel>, bid: v1::StreamMessageRequest) -> Result<Self, Status> {
        let (requests, outbound) = mpsc::channel(64);
        // The bid waits in the channel before the call starts: some servers send no headers before the first message.
        requests.send(bid).await.map_err(|_| Status::internal("the stream's own queue is closed"))?;
        let mut inbound = grpc.stream_channel(ReceiverStream::new(outbound)).await?.into_inner();
        let (mastership_tx, mastership) = watch::channel(Mastership::Unknown);
        let (message_tx, messages) = mpsc::channel(1024);
        let notices = mastership_tx.clone();
        let task = tokio::spawn(async move {
            let reason = loop {
                match inbound.message().await {
                    Ok(Some(v1::StreamMessageResponse { update })) => match update {
                        Some(stream_message_response::Update::Arbitration(notice)) => {
                            notices.send_replace(read_notice(&notice));
                        }
                        // There is no reader, or a slow one: the same as a full queue in a switch.
                        Some(other) => drop(message_tx.try_send(other)),
                        None => {}
                    },
                    Ok(None) => break "the switch closed the stream".to_owned(),
                    Err(status) => break said(&status),
                }
            };
            notices.send_replace(Mastership::Ended { reason });
        });
        Ok(Self { requests, mastership_tx, mastership, messages: Some(messages), task })
    }

    /// Forgets the last notice, so that the next one is news; `false` if the stream has ended and no notice will follow.
    fn await_notice(&self) -> bool {
        self.mastership_tx.send_if_modified(|last| {
            let alive = !matches!(last, Mastership::Ended { .. });
            if alive {
                *last = Mastership::Unknown;
            }
            alive
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn read_notice(notice: &v1::MasterArbitrationUpdate) -> Mastership {
    let highest = notice.election_id.as_ref().map(election_id);
    let code = notice.status.as_ref().map_or(0, |status| status.code);
    match Code::from_i32(code) {
        Code::Ok => Mastership::Primary,
        Code::NotFound => Mastership::Vacant { highest },
        _ => Mastership::Backup { highest },
    }
}

fn table_entry(entity: Entity) -> Option<TableEntry> {
    match entity.entity {
        Some(entity::Entity::TableEntry(entry)) => Some(entry),
        _ => None,
    }
}

/// Election id in the form of the message.
pub fn uint128(value: u128) -> Uint128 {
    Uint128 { high: (value >> 64) as u64, low: value as u64 }
}

/// An election id as a number.
pub fn election_id(value: &Uint128) -> u128 {
    u128::from(value.high) << 64 | u128::from(value.low)
}

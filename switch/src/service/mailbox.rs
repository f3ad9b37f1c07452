//! Messages from the threads that speak gRPC to the one that owns the switch, and back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fatbtree_p4runtime::tonic::Status;
use fatbtree_p4runtime::v1::{
    PacketOut, ReadRequest, ReadResponse, SetForwardingPipelineConfigRequest,
    SetForwardingPipelineConfigResponse, StreamMessageRequest, StreamMessageResponse, stream_message_request,
    stream_message_response,
};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::arbitration::{StreamId, StreamOutput};
use super::config::{Carry, Prepared};
use super::control::{ReadOutcome, Request, Response, Step, StreamEvent, prepare};
use super::read::Reading;
use super::switch::Switch;
use super::write_batch::Write;
use crate::{Output, Pipeline};

/// Requests that wait at one time; further callers wait in their own tasks.
const CAPACITY: usize = 64;

/// Way of a stream's messages to its controller.
pub(super) type Outbound = mpsc::Sender<Result<StreamMessageResponse, Status>>;

/// Messages that wait until a stream's reader takes them; one that lets more come is given up.
pub(super) const OUTBOUND: usize = 256;

/// Places among these that are reserved for messages that a controller must not miss when packets arrive faster than it takes them.
const RESERVED: usize = 64;

/// Streams that are open at one time; another one is refused.
const MAX_STREAMS: usize = 128;

/// Memory that takes long to give back, of a large request or an old program: the asking thread does it.
type Litter = Option<Box<dyn Send>>;

type Answer = (Response, Litter);

/// A read, to go on with; its next part; and how it ended, if that was the last.
type ReadAnswer = (Box<Reading>, ReadResponse, Option<Result<(), Status>>);

/// Parts of an answer that wait for their reader.
const PARTS: usize = 2;

/// Request to set the pipeline, and whether it may be carried out: the number of pipes to prepare.
type MaySet = (Box<SetForwardingPipelineConfigRequest>, Result<usize, Status>);

enum Mail {
    Call(Request, oneshot::Sender<Answer>),
    /// The next part of a read.
    Read(Box<Reading>, oneshot::Sender<ReadAnswer>),
    /// Whether this pipeline may be set, asked before it is compiled.
    MaySet(Box<SetForwardingPipelineConfigRequest>, oneshot::Sender<MaySet>),
    /// Sets the pipeline, after it was compiled.
    Set(Box<(SetForwardingPipelineConfigRequest, Option<Prepared>)>, oneshot::Sender<Answer>),
    /// Answered when it is done.
    Open(StreamId, Outbound, oneshot::Sender<()>),
    /// Answered when it is done.
    Stream(StreamId, StreamMessageRequest, oneshot::Sender<()>),
    /// Wakes an owner that looks at mails only: there are packets.
    Look,
    Closed(StreamId),
}

/// The sending end; clones send to the same switch.
#[derive(Clone)]
pub struct Mailbox {
    mails: mpsc::Sender<Mail>,
    /// Packets, which overtake mails, so that none waits for the end of a large write.
    packets: mpsc::Sender<(StreamId, PacketOut)>,
    shared: Arc<Shared>,
}

/// The receiving end: belongs to the owner of the switch.
///
/// ```
/// use fatbtree_switch::service::{Switch, mailbox};
///
/// let (mailbox, mut inbox) = mailbox();
/// // … hand `mailbox` to `serve` on a tokio runtime …
/// let mut switch = Switch::new(1);
/// for _ in 0..3 {
///     inbox.try_drain(&mut switch); // between packets
/// }
/// # drop(mailbox);
/// ```
pub struct Inbox {
    mails: mpsc::Receiver<Mail>,
    packets: mpsc::Receiver<(StreamId, PacketOut)>,
    shared: Arc<Shared>,
    streams: BTreeMap<StreamId, Outbound>,
    /// Work in progress, and the callers that wait for its end. Mails that come later wait as well.
    under_way: Option<(Work, oneshot::Sender<Answer>)>,
}

/// Work that is done part by part, with packets in between.
enum Work {
    Write(Write),
    Carry(Box<Carry>),
}

struct Shared {
    /// Flag that is set after every mail: the owner looks at this, not at the queue.
    waiting: AtomicBool,
    /// Whether the owner does nothing but wait for mails.
    runs: AtomicBool,
    next_stream: AtomicU64,
    /// Lock that lets one program be compiled at a time.
    compiling: Mutex<()>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("streams", &self.streams.len()).finish_non_exhaustive()
    }
}

/// A mailbox for an owner that looks into it regularly.
pub fn mailbox() -> (Mailbox, Inbox) {
    mailbox_with_waker(|| {})
}

/// A mailbox for an owner that sleeps: `wake` is called after every mail, from any thread.
pub fn mailbox_with_waker(wake: impl Fn() + Send + Sync + 'static) -> (Mailbox, Inbox) {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    let (packet_sender, packets) = mpsc::channel(CAPACITY);
    let shared = Arc::new(Shared {
        waiting: AtomicBool::new(false),
        runs: AtomicBool::new(false),
        next_stream: AtomicU64::new(1),
        compiling: Mutex::new(()),
        wake: Box::new(wake),
    });
    let mailbox = Mailbox { mails: sender, packets: packet_sender, shared: Arc::clone(&shared) };
    (mailbox, Inbox { mails: receiver, packets, shared, streams: BTreeMap::new(), under_way: None })
}

impl Mailbox {
    /// Asks the owner of the switch. Programs are compiled here, and reads are done part by part: packets go on.
    ///
    /// Must be called on a tokio runtime.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the owner is gone.
    pub async fn call(&self, request: Request) -> Result<Response, Status> {
        match request {
            Request::SetPipeline(request) => Ok(Response::SetPipeline(self.set_pipeline(request).await)),
            Request::Read(request) => {
                let (mut answers, mut outcome) =
                    (self.read(request), ReadOutcome { parts: Vec::new(), end: Ok(()) });
                while let Some(answer) = answers.recv().await {
                    match answer {
                        Ok(part) => outcome.parts.push(part),
                        Err(status) => outcome.end = Err(status),
                    }
                }
                Ok(Response::Read(outcome))
            }
            request => {
                let (response, _litter) = self.ask(|reply| Mail::Call(request, reply)).await?;
                Ok(response)
            }
        }
    }

    /// Reads part by part: the next is read when the last has been taken. An error is the last thing that comes.
    pub(super) fn read(&self, request: ReadRequest) -> mpsc::Receiver<Result<ReadResponse, Status>> {
        let (parts, answers) = mpsc::channel(PARTS);
        let mailbox = self.clone();
        tokio::spawn(async move {
            let mut reading = Box::new(Reading::new(request));
            loop {
                let (rest, part, end) = match mailbox.ask(|reply| Mail::Read(reading, reply)).await {
                    Ok(answer) => answer,
                    Err(status) => (Box::default(), ReadResponse::default(), Some(Err(status))),
                };
                reading = rest;
                if !part.entities.is_empty() && parts.send(Ok(part)).await.is_err() {
                    return; // the asker has given up
                }
                match end {
                    None => {}
                    Some(Ok(())) => return,
                    Some(Err(status)) => {
                        let _ = parts.send(Err(status)).await;
                        return;
                    }
                }
            }
        });
        answers
    }

    async fn set_pipeline(
        &self,
        request: Box<SetForwardingPipelineConfigRequest>,
    ) -> Result<SetForwardingPipelineConfigResponse, Status> {
        // Only a controller that may set a program has it compiled here.
        let (mut request, may) = self.ask(|reply| Mail::MaySet(request, reply)).await?;
        let pipes = may?;
        let _one_at_a_time = self.shared.compiling.lock().await;
        let compiled = tokio::task::spawn_blocking(move || {
            let prepared = prepare(&mut request, pipes);
            prepared.map(|prepared| Box::new((*request, prepared)))
        });
        let compiled = compiled.await.map_err(|error| Status::internal(error.to_string()))??;
        match self.ask(|reply| Mail::Set(compiled, reply)).await? {
            (Response::SetPipeline(result), _litter) => result,
            _ => Err(Status::internal("the switch answered another request than the one it was asked")),
        }
    }

    async fn ask<T>(&self, mail: impl FnOnce(oneshot::Sender<T>) -> Mail) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        self.send(mail(reply)).await?;
        answer.await.map_err(|_| gone())
    }

    /// Opens a stream; the caller may send its messages from then on.
    pub(super) async fn open_stream(
        &self,
        outbound: Outbound,
    ) -> Result<(StreamId, oneshot::Receiver<()>), Status> {
        let stream = StreamId(self.shared.next_stream.fetch_add(1, Ordering::Relaxed));
        let (tell, opened) = oneshot::channel();
        self.send(Mail::Open(stream, outbound, tell)).await?;
        Ok((stream, opened))
    }

    /// Passes a message on. Those of one stream keep their order: a packet is passed on when what came before it is done.
    pub(super) async fn stream_message(
        &self,
        stream: StreamId,
        message: StreamMessageRequest,
    ) -> Result<(), Status> {
        match message.update {
            Some(stream_message_request::Update::Packet(packet)) => {
                self.packets.send((stream, packet)).await.map_err(|_| gone())?;
                if self.shared.runs.load(Ordering::SeqCst) {
                    // A full queue is looked at anyway.
                    let _ = self.mails.try_send(Mail::Look);
                }
                self.wake();
                Ok(())
            }
            _ => self.ask(|done| Mail::Stream(stream, message, done)).await,
        }
    }

    pub(super) async fn close_stream(&self, stream: StreamId) -> Result<(), Status> {
        self.send(Mail::Closed(stream)).await
    }

    async fn send(&self, mail: Mail) -> Result<(), Status> {
        self.mails.send(mail).await.map_err(|_| gone())?;
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        // Release: a thread that sees the flag finds the mail in the queue.
        self.shared.waiting.store(true, Ordering::Release);
        (self.shared.wake)();
    }
}

fn gone() -> Status {
    Status::unavailable("the switch behind this server has stopped")
}

impl Inbox {
    /// Updates of a write that are applied in one go: a fifth of a millisecond's work, most of which is touching memory for the first time.
    /// Between two of them the owner forwards packets, and between two parts of a read of about as many entities.
    pub const SLICE: usize = 64;

    /// Answers packets from the primary, and one request, or a part of it of size [`SLICE`](Self::SLICE). Returns the number of mails
    /// looked
    /// at. Costs one relaxed load when nothing is waiting.
    ///
    /// When something is left the owner is woken again.
    #[inline]
    pub fn try_drain(&mut self, switch: &mut Switch) -> usize {
        if !self.is_waiting() {
            return 0;
        }
        self.drain(switch)
    }

    /// Whether there may be something to answer.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    #[cold]
    fn drain(&mut self, switch: &mut Switch) -> usize {
        // Cleared before the queue is emptied: a mail that comes in later sets it again.
        self.shared.waiting.swap(false, Ordering::Acquire);
        let mut handled = self.take_packets(switch);
        let most = handled + CAPACITY;
        while handled < most {
            handled += 1;
            if self.under_way.is_some() {
                self.go_on(switch);
                break;
            }
            match self.mails.try_recv() {
                Ok(mail) => {
                    if self.handle(switch, mail) {
                        break;
                    }
                }
                Err(_) => return handled - 1,
            }
        }
        self.shared.waiting.store(true, Ordering::Relaxed); // there may be more
        (self.shared.wake)();
        handled
    }

    /// Hands the switch the packets that wait; returns their number.
    fn take_packets(&mut self, switch: &mut Switch) -> usize {
        let mut taken = 0;
        while taken < CAPACITY
            && let Ok((stream, packet)) = self.packets.try_recv()
        {
            taken += 1;
            if self.streams.contains_key(&stream) {
                let update = Some(stream_message_request::Update::Packet(packet));
                let message = StreamEvent::Message(StreamMessageRequest { update });
                switch.handle_request(Request::Stream(stream, message));
                self.deliver(switch);
            }
        }
        taken
    }

    fn go_on(&mut self, switch: &mut Switch) {
        match self.under_way.take() {
            Some((Work::Write(mut write), reply)) => {
                let most = if write.may_pause() { Self::SLICE } else { usize::MAX };
                match switch.go_on_writing(&mut write, most) {
                    Some(result) => {
                        let retired = switch.pipeline_mut().map(Pipeline::take_retired);
                        let litter: Litter = Some(Box::new((write.into_request(), retired)));
                        // The asker may have given up: then the answer has no reader.
                        drop(reply.send((Response::Write(result), litter)));
                    }
                    None => self.under_way = Some((Work::Write(write), reply)),
                }
            }
            Some((Work::Carry(carry), reply)) => {
                let step = switch.go_on_carrying(carry);
                self.pipeline_step(step, reply);
            }
            None => {}
        }
        self.deliver(switch);
    }

    /// Answers the caller that sets the pipeline, unless there is more to do.
    fn pipeline_step(&mut self, step: Result<Step, Status>, reply: oneshot::Sender<Answer>) {
        let (result, litter) = match step {
            Ok(Step::Carry(carry)) => {
                self.under_way = Some((Work::Carry(carry), reply));
                return;
            }
            Ok(Step::Done(litter)) => (Ok(SetForwardingPipelineConfigResponse {}), litter),
            Err(status) => (Err(status), Vec::new()),
        };
        drop(reply.send((Response::SetPipeline(result), Some(Box::new(litter)))));
    }

    /// Answers requests until all mailboxes are gone: for an owner that has nothing else to do. Must not be called
    /// from a tokio task.
    ///
    /// Such a switch has no ports: packets from the primary are lost.
    pub fn run(&mut self, switch: &mut Switch) {
        self.shared.runs.store(true, Ordering::SeqCst);
        let mut nowhere = Output::new();
        loop {
            while self.take_packets(switch) > 0 || self.under_way.is_some() {
                switch.handle_packets_out(0, &mut nowhere);
                nowhere.clear();
                self.go_on(switch);
            }
            match self.mails.blocking_recv() {
                Some(mail) => drop(self.handle(switch, mail)),
                None => return,
            }
        }
    }

    /// Sends the switch's messages to streams. [`try_drain`](Self::try_drain) does it after requests. Call it after
    /// [`Switch::handle_request`] was called directly, and after frames were forwarded, which may be for the primary.
    pub fn deliver(&mut self, switch: &mut Switch) {
        while let Some((stream, output)) = switch.poll_stream() {
            match output {
                StreamOutput::Message(message) => {
                    let Some(outbound) = self.streams.get(&stream) else { continue };
                    let is_packet =
                        matches!(message.update, Some(stream_message_response::Update::Packet(_)));
                    if is_packet && outbound.capacity() <= RESERVED {
                        switch.lose_packet_in();
                        continue;
                    }
                    // A closed receiver is a stream that is about to be reported closed.
                    if let Err(mpsc::error::TrySendError::Full(_)) = outbound.try_send(Ok(message)) {
                        self.streams.remove(&stream);
                        switch.handle_request(Request::Stream(stream, StreamEvent::Closed));
                    }
                }
                StreamOutput::Close(status) => {
                    if let Some(outbound) = self.streams.remove(&stream) {
                        let _ = outbound.try_send(Err(status));
                    }
                }
            }
        }
    }

    /// Handles a mail; returns whether that was enough work for one turn, so that packets are next.
    fn handle(&mut self, switch: &mut Switch, mail: Mail) -> bool {
        // The asker may have given up: then the answer has no reader.
        match mail {
            Mail::Call(Request::Write(request), reply) => match switch.begin_write(request) {
                Ok(write) => {
                    self.under_way = Some((Work::Write(write), reply));
                    return false; // its first part is next
                }
                Err(status) => drop(reply.send((Response::Write(Err(status)), None))),
            },
            Mail::Call(request, reply) => drop(reply.send((switch.handle_request(request), None))),
            Mail::Read(mut reading, reply) => {
                let (part, end) = switch.go_on_reading(&mut reading);
                drop(reply.send((reading, part, end)));
            }
            Mail::MaySet(request, reply) => {
                let control = switch.control();
                let may = control.check_set_pipeline(&request).map(|()| control.pipes());
                drop(reply.send((request, may)));
            }
            Mail::Set(mail, reply) => {
                let (request, prepared) = *mail;
                let step = switch.set_prepared(&request, prepared);
                self.pipeline_step(step, reply);
            }
            Mail::Open(_, outbound, _) if self.streams.len() >= MAX_STREAMS => {
                let message = format!("this switch has {MAX_STREAMS} streams open: close another first");
                let _ = outbound.try_send(Err(Status::resource_exhausted(message)));
                return false;
            }
            Mail::Open(stream, outbound, done) => {
                self.streams.insert(stream, outbound);
                let _ = done.send(());
                return false;
            }
            Mail::Stream(stream, message, done) => {
                if self.streams.contains_key(&stream) {
                    switch.handle_request(Request::Stream(stream, StreamEvent::Message(message)));
                }
                let _ = done.send(());
            }
            Mail::Look => return false,
            Mail::Closed(stream) => {
                self.streams.remove(&stream);
                switch.handle_request(Request::Stream(stream, StreamEvent::Closed));
            }
        }
        self.deliver(switch);
        true
    }
}

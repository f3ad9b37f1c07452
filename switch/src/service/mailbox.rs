//! From the threads that speak gRPC to the one that owns the switch, and back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fatbtree_p4runtime::tonic::Status;
use fatbtree_p4runtime::v1::{StreamMessageRequest, StreamMessageResponse, WriteRequest};
use tokio::sync::{mpsc, oneshot};

use super::arbitration::{StreamId, StreamOutput};
use super::control::{Request, Response, StreamEvent};
use super::switch::Switch;
use super::write_batch::Write;

/// Requests that wait at one time; further callers wait in their own tasks.
const CAPACITY: usize = 64;

/// Where a stream's messages go.
pub(super) type Outbound = mpsc::UnboundedSender<Result<StreamMessageResponse, Status>>;

/// An answer, and what is left of the request: whoever asked gives its memory back, which takes long for a large one.
type Answer = (Response, Option<WriteRequest>);

#[derive(Debug)]
enum Mail {
    Call(Request, oneshot::Sender<Answer>),
    Open(StreamId, Outbound),
    Stream(StreamId, StreamMessageRequest),
    Closed(StreamId),
}

/// The sending end; clones send to the same switch.
#[derive(Clone)]
pub struct Mailbox {
    mails: mpsc::Sender<Mail>,
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
    shared: Arc<Shared>,
    streams: BTreeMap<StreamId, Outbound>,
    /// The write that is under way, and who waits for its end. Mails that come later wait as well.
    writing: Option<(Write, oneshot::Sender<Answer>)>,
}

struct Shared {
    /// Set after every mail: the owner looks at this, not at the queue.
    waiting: AtomicBool,
    next_stream: AtomicU64,
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
    let shared = Arc::new(Shared {
        waiting: AtomicBool::new(false),
        next_stream: AtomicU64::new(1),
        wake: Box::new(wake),
    });
    let mailbox = Mailbox { mails: sender, shared: Arc::clone(&shared) };
    (mailbox, Inbox { mails: receiver, shared, streams: BTreeMap::new(), writing: None })
}

impl Mailbox {
    /// Has a request answered by the owner of the switch.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the owner is gone.
    pub async fn call(&self, request: Request) -> Result<Response, Status> {
        let (reply, answer) = oneshot::channel();
        self.send(Mail::Call(request, reply)).await?;
        let (response, _litter) = answer.await.map_err(|_| gone())?;
        Ok(response)
    }

    pub(super) async fn open_stream(&self, outbound: Outbound) -> Result<StreamId, Status> {
        let stream = StreamId(self.shared.next_stream.fetch_add(1, Ordering::Relaxed));
        self.send(Mail::Open(stream, outbound)).await?;
        Ok(stream)
    }

    pub(super) async fn stream_message(
        &self,
        stream: StreamId,
        message: StreamMessageRequest,
    ) -> Result<(), Status> {
        self.send(Mail::Stream(stream, message)).await
    }

    pub(super) async fn close_stream(&self, stream: StreamId) -> Result<(), Status> {
        self.send(Mail::Closed(stream)).await
    }

    async fn send(&self, mail: Mail) -> Result<(), Status> {
        self.mails.send(mail).await.map_err(|_| gone())?;
        // Release: whoever sees the flag finds the mail in the queue.
        self.shared.waiting.store(true, Ordering::Release);
        (self.shared.wake)();
        Ok(())
    }
}

fn gone() -> Status {
    Status::unavailable("the switch behind this server has stopped")
}

impl Inbox {
    /// Updates of a write that are applied in one go: half a millisecond's work or less. Between two of them the owner forwards packets.
    pub const SLICE: usize = 256;

    /// Answers what is waiting, at most a queueful, or until [`SLICE`](Self::SLICE) updates were applied; returns how many requests were
    /// looked at. Costs one relaxed load when nothing is.
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
        let mut handled = 0;
        while handled < CAPACITY {
            handled += 1;
            if self.writing.is_some() {
                self.go_on_writing(switch);
                break;
            }
            match self.mails.try_recv() {
                Ok(mail) => self.handle(switch, mail),
                Err(_) => return handled - 1,
            }
        }
        self.shared.waiting.store(true, Ordering::Relaxed); // there may be more
        (self.shared.wake)();
        handled
    }

    fn go_on_writing(&mut self, switch: &mut Switch) {
        let Some((mut write, reply)) = self.writing.take() else { return };
        let most = if write.may_pause() { Self::SLICE } else { usize::MAX };
        match switch.go_on_writing(&mut write, most) {
            // Whoever asked may have given up: then the answer has no reader.
            Some(result) => drop(reply.send((Response::Write(result), Some(write.into_request())))),
            None => self.writing = Some((write, reply)),
        }
        self.deliver(switch);
    }

    /// Answers requests until all mailboxes are gone: for an owner that has nothing else to do. Must not be called
    /// from a tokio task.
    pub fn run(&mut self, switch: &mut Switch) {
        loop {
            while self.writing.is_some() {
                self.go_on_writing(switch);
            }
            match self.mails.blocking_recv() {
                Some(mail) => self.handle(switch, mail),
                None => return,
            }
        }
    }

    /// Sends out what the switch has to say to streams. [`try_drain`](Self::try_drain) does it after requests; call it
    /// after [`Switch::handle_request`] was called directly.
    pub fn deliver(&mut self, switch: &mut Switch) {
        while let Some((stream, output)) = switch.poll_stream() {
            match output {
                StreamOutput::Message(message) => {
                    if let Some(outbound) = self.streams.get(&stream) {
                        // A closed receiver is a stream that is about to be reported closed.
                        let _ = outbound.send(Ok(message));
                    }
                }
                StreamOutput::Close(status) => {
                    if let Some(outbound) = self.streams.remove(&stream) {
                        let _ = outbound.send(Err(status));
                    }
                }
            }
        }
    }

    fn handle(&mut self, switch: &mut Switch, mail: Mail) {
        match mail {
            Mail::Call(Request::Write(request), reply) => match switch.begin_write(request) {
                Ok(write) => {
                    self.writing = Some((write, reply));
                    return;
                }
                Err(status) => drop(reply.send((Response::Write(Err(status)), None))),
            },
            Mail::Call(request, reply) => {
                // Whoever asked may have given up: then the answer has no reader.
                let _ = reply.send((switch.handle_request(request), None));
            }
            Mail::Open(stream, outbound) => {
                self.streams.insert(stream, outbound);
            }
            Mail::Stream(stream, message) => {
                if self.streams.contains_key(&stream) {
                    switch.handle_request(Request::Stream(stream, StreamEvent::Message(message)));
                }
            }
            Mail::Closed(stream) => {
                self.streams.remove(&stream);
                switch.handle_request(Request::Stream(stream, StreamEvent::Closed));
            }
        }
        self.deliver(switch);
    }
}

//! Messages: what a queue pair gives to the program at the other end, and not to its memory alone.

use crate::buffer::Buffer;
use crate::completion::Failure;
use crate::device::{QueuePair, Verbs};
use crate::error::PostError;
use crate::request::Remote;

/// A message to be posted. Its data are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// SEND: the data lie in what the other side has [posted](Messages::receive) for them.
    Send {
        /// The data.
        data: &'a [u8],
        /// A word beside them.
        immediate: Option<u32>,
    },
    /// RDMA WRITE with immediate: the data lie in memory, and the other side learns that they are there.
    Write {
        /// Place to write to.
        to: Remote,
        /// The data.
        data: &'a [u8],
        /// The word that the other side is told.
        immediate: u32,
    },
}

/// A device that sends and receives messages (IBTA volume 1, sections 9.4.1 and 9.4.3). They take turns with other requests of their queue
/// pair in the order of posting.
///
/// Each message takes one place that the other side has posted. Where there is none, the receiver is *not ready*: the message is sent again
/// after the time that it asks for.
pub trait Messages: Verbs {
    /// Posts a message. It completes as [`Written`](crate::Output::Written) when the other side has it.
    ///
    /// # Errors
    /// See [`PostError`]; then nothing was posted.
    fn send(&mut self, queue_pair: QueuePair, tag: u64, message: Message<'_>) -> Result<(), PostError>;

    /// Posts a place for one message of up to `len` bytes, also on a queue pair that is not connected yet. Messages take places in the order of
    /// posting.
    ///
    /// # Errors
    /// See [`PostError`]; then nothing was posted.
    fn receive(&mut self, queue_pair: QueuePair, tag: u64, len: u32) -> Result<(), PostError>;

    /// The next place that was taken, or that no message takes any more.
    fn poll_received(&mut self) -> Option<Received>;
}

/// A place for a message that is done with.
#[derive(Debug)]
pub struct Received {
    /// Queue pair on which it was posted.
    pub queue_pair: QueuePair,
    /// Tag with which it was posted.
    pub tag: u64,
    /// The message; [`Flushed`](Failure::Flushed) if the queue pair failed or was destroyed before one came, and
    /// [`MessageLength`](Failure::MessageLength) if one came that is longer.
    pub result: Result<ReceivedMessage, Failure>,
}

/// A message that came.
#[derive(Debug)]
pub struct ReceivedMessage {
    /// Data of a SEND; of a WRITE with immediate nothing.
    pub data: Buffer,
    /// Bytes sent or written.
    pub len: u32,
    /// The word beside them.
    pub immediate: Option<u32>,
}

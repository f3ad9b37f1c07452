//! The two traits: a device with memory and queue pairs, and one that also posts requests.

use std::fmt;
use std::sync::Arc;

use crate::access::Access;
use crate::capabilities::Capabilities;
use crate::completion::Completion;
use crate::endpoint::{Agreed, Endpoint};
use crate::error::{ConnectError, DeviceMemoryError, PostError, RegisterError};
use crate::memory::Memory;
use crate::request::WorkRequest;

/// A queue pair of one device. A device never gives the same name out again, so that reports on a destroyed queue
/// pair cannot be taken for its successor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueuePair(pub u64);

impl fmt::Display for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {:#x}", self.0)
    }
}

/// State of a queue pair (IBTA volume 1, section 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairState {
    /// New.
    Reset,
    /// Known to the device, without a peer.
    Init,
    /// Ready to receive: answers requests.
    ReadyToReceive,
    /// Ready to send: takes requests, too.
    ReadyToSend,
    /// Failed: flushed, silent. Destroy it and connect a new one.
    Error,
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueuePairState::Reset => "RESET",
            QueuePairState::Init => "INIT",
            QueuePairState::ReadyToReceive => "RTR",
            QueuePairState::ReadyToSend => "RTS",
            QueuePairState::Error => "ERR",
        })
    }
}

/// A registered region, as known to the peers that may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Key that requests must carry: random, never 0.
    pub rkey: u32,
    /// Address of the region's first byte in requests.
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A network card that speaks RDMA: memory that others may use, and queue pairs. This is all that a memory server needs.
///
/// **Connecting.** Both sides [`create`](Self::create) a queue pair and tell each other its
/// [`endpoint`](Self::endpoint) by any means; then both [`connect`](Self::connect). From then on the passive side
/// answers requests and the active side may post them.
///
/// **Breaking.** A queue pair that fails goes to [`QueuePairState::Error`] and stays there. Everything that was posted on
/// it and is not complete completes as [`Flushed`](crate::Failure::Flushed), and [`poll_broken`](Self::poll_broken) names it
/// once. Other queue pairs are not affected.
///
/// **Reconnecting** is destroying the queue pair and connecting a new one, on both sides.
pub trait Device {
    /// Capabilities of the device.
    fn capabilities(&self) -> Capabilities;

    /// Lets remote queue pairs use `memory`, whose first byte they address as `iova`, under a random rkey. Owner and
    /// device share the memory. An `iova` that is a multiple of 4096 suits every device: kernels map whole pages.
    ///
    /// # Errors
    /// When the addresses do not exist or the driver refuses.
    fn register(&mut self, memory: &Arc<Memory>, iova: u64, access: Access) -> Result<Region, RegisterError>;

    /// Lets remote queue pairs use `len` bytes on the device itself, zeroed, whose first byte they address as `iova`. Cards
    /// that number their own memory from 0 do so here as well: what counts is the region that is returned.
    ///
    /// # Errors
    /// When the device has fewer; see [`Capabilities::device_memory`].
    fn register_device_memory(
        &mut self,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Region, RegisterError>;

    /// Copies bytes of a region on the device out, for its owner; others may change them meanwhile. The call is slow:
    /// it waits for a copy over the bus.
    ///
    /// # Errors
    /// When there is no such region on the device, or the bytes are not all there; then nothing is copied.
    fn read_device_memory(&self, rkey: u32, offset: u64, into: &mut [u8]) -> Result<(), DeviceMemoryError>;

    /// Memory of a region, if this process's own processors execute the operations on it, as in a software NIC. Other
    /// threads may then use it [locally](crate::local), and atomics of both are atomic with each other. `None` if a
    /// card executes the operations.
    fn shared_memory(&self, _rkey: u32) -> Option<Arc<Memory>> {
        None
    }

    /// Deregisters a region: requests that name it from now on are refused.
    fn deregister(&mut self, rkey: u32);

    /// Creates a queue pair.
    ///
    /// # Errors
    /// When the device can have no more of them.
    fn create(&mut self) -> Result<QueuePair, ConnectError>;

    /// Data of a queue pair that the other side needs.
    ///
    /// # Errors
    /// When there is none.
    fn endpoint(&self, queue_pair: QueuePair) -> Result<Endpoint, ConnectError>;

    /// Connects a new queue pair to `remote`, up to RTS.
    ///
    /// # Errors
    /// When the queue pair is not new, or `remote` cannot be right.
    fn connect(&mut self, queue_pair: QueuePair, remote: &Endpoint) -> Result<Agreed, ConnectError>;

    /// State of a queue pair; `None` if there is none.
    fn state(&self, queue_pair: QueuePair) -> Option<QueuePairState>;

    /// Destroys a queue pair. Signalled requests on it that have not completed complete as
    /// [`Flushed`](crate::Failure::Flushed); nothing is written into their buffers any more.
    fn destroy(&mut self, queue_pair: QueuePair);

    /// The next queue pair that has gone to the error state since the last call; each is reported once.
    fn poll_broken(&mut self) -> Option<QueuePair>;
}

/// A device that posts requests.
///
/// Nothing here waits. Each signalled request of a chain that was accepted completes exactly once; an unsignalled one
/// completes only when it fails. Per queue pair completions come in the order of posting.
///
/// **Ordering.** The responder carries out the requests of a queue pair in the order of posting: a READ or an atomic sees
/// every earlier WRITE and atomic, a WRITE lands after earlier ones. One thing is not promised, as in all of RDMA: a
/// READ may still see WRITEs and atomics that were posted after it (IBTA volume 1, section 9.5, table 79). Wait for its
/// completion where that matters.
pub trait Verbs: Device {
    /// Posts a chain on one queue pair with one doorbell: all of it or nothing.
    ///
    /// # Errors
    /// See [`PostError`]; then nothing was posted, and no completion will come.
    fn post(&mut self, queue_pair: QueuePair, chain: &[WorkRequest<'_>]) -> Result<(), PostError>;

    /// The next completion.
    fn poll(&mut self) -> Option<Completion>;
}

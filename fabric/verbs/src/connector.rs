//! Connecting queue pairs by RDMA's Communication Manager, as `rdma_connect` and `rdma_accept` do.

use std::fmt;
use std::net::Ipv4Addr;

use crate::device::{Device, QueuePair};
use crate::endpoint::{Agreed, Endpoint};
use crate::error::ConnectError;

/// A connection as a device's Communication Manager knows it. A device never gives the same name out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection(pub u64);

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

/// Place of a service that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// MAC address of its device, or of the router on the way.
    pub mac: [u8; 6],
    /// Address of its device.
    pub ip: Ipv4Addr,
    /// Its port, as programs of librdmacm name it.
    pub port: u16,
}

/// A device whose queue pairs can be connected by the Communication Manager (IBTA volume 1, chapter 12). Nothing here waits.
///
/// ```text
///   active side                                passive side
///     request ───────── REQ ──────────────►    Requested
///                                              accept, or reject
///   Established ◄────── REP ───────────────
///               ─────── RTU ──────────────►    Established
///     disconnect ────── DREQ ─────────────►    Disconnected
///   Disconnected ◄───── DREP ──────────────
/// ```
///
/// Each connection ends with one event: [`Rejected`](ConnectionEvent::Rejected), [`TimedOut`](ConnectionEvent::TimedOut) or
/// [`Disconnected`](ConnectionEvent::Disconnected). The queue pair stays its owner's, which destroys it then. A queue pair that fails, as
/// [`poll_broken`](Device::poll_broken) tells, does not end its connection: disconnect it.
pub trait Connector: Device {
    /// Bytes of private data that a request can carry.
    const REQUEST_BYTES: usize = 56;

    /// Bytes of private data that an acceptance can carry.
    const ACCEPT_BYTES: usize = 196;

    /// Bytes of private data that a rejection can carry.
    const REJECT_BYTES: usize = 148;

    /// Takes requests for a port from now on. What comes for other ports is rejected.
    fn listen(&mut self, port: u16);

    /// Asks for a connection of a new queue pair.
    ///
    /// # Errors
    /// When the queue pair is not new, there are too many connections, or the private data are too long.
    fn request(
        &mut self,
        queue_pair: QueuePair,
        to: &Service,
        private: &[u8],
    ) -> Result<Connection, ConnectError>;

    /// Accepts a connection that was [requested](ConnectionEvent::Requested) with a new queue pair, which answers requests from now on.
    ///
    /// # Errors
    /// When the queue pair is not new, the connection is not one that waits for this, as after a time-out, or the private data are too long.
    fn accept(
        &mut self,
        connection: Connection,
        queue_pair: QueuePair,
        private: &[u8],
    ) -> Result<Agreed, ConnectError>;

    /// Rejects a connection that was requested. No event follows.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    fn reject(&mut self, connection: Connection, private: &[u8]) -> Result<(), ConnectError>;

    /// Ends a connection in any state. One that has ended already is left alone.
    fn disconnect(&mut self, connection: Connection);

    /// The next event.
    fn poll_connection(&mut self) -> Option<(Connection, ConnectionEvent)>;
}

/// News of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// Another side asks for it: accept or reject it. One that is left alone for long times out.
    Requested {
        /// Port that is asked for.
        port: u16,
        /// The other side. Its PSN is the one with which this side begins.
        from: Endpoint,
        /// Its private data, with what fills them up.
        private: Vec<u8>,
    },
    /// It is there: both sides may send.
    Established {
        /// Terms of both sides.
        agreed: Agreed,
        /// Private data of the acceptance, with what fills them up; at the passive side nothing.
        private: Vec<u8>,
    },
    /// The other side has rejected it, or given it up.
    Rejected {
        /// Reason (IBTA volume 1, table 109): 28 is the program's own.
        reason: u16,
        /// Private data of the rejection, with what fills them up.
        private: Vec<u8>,
    },
    /// No answer came.
    TimedOut,
    /// One of the sides has ended it.
    Disconnected,
}

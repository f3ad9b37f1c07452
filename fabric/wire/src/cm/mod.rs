//! Messages of the Communication Manager, by which queue pairs find each other: management datagrams of 256 bytes between the queue pairs 1
//! of two ports (IBTA volume 1, chapter 12; RoCEv2 carries them as all other packets).
//!
//! ```text
//!   active side                                     passive side
//!     REQ  service, queue pair, PSN to begin with, path, private data  ─►
//!     ◄─  REP  queue pair, PSN to begin with, private data        (or REJ with a reason; MRA: it takes a while)
//!     RTU  ─►                                       both ends may send
//!     ...
//!     DREQ ─►    ◄─ DREP                            from either side
//!
//!   datagram   | LRH-less headers, BTH, DETH (source queue pair 1) | MAD header 24 | message 232 | ICRC |
//! ```
//!
//! [`Mad`] is a datagram, [`Message`] what it says. [`Addresses`] stands at the beginning of the private data of a request that `rdma_connect` of
//! librdmacm has made, and [`service_id`] is the service that its port stands for.
//!
//! ```
//! use fatbtree_wire::cm::{Ids, Mad, Message, ReadyToUse};
//! let ids = Ids { local: 7, remote: 9 };
//! let mad = Mad { transaction: 1, message: Message::ReadyToUse(ReadyToUse { ids, private: [0; 224] }) };
//! assert_eq!(Mad::parse(&mad.to_bytes()), Ok(mad));
//! ```

mod addresses;
mod fields;
mod message;

pub use addresses::{Addresses, service_id};
pub use message::{
    Disconnect, DisconnectReply, Ids, Mad, MadError, Message, MessageReceipt, Path, ReadyToUse, Reason,
    Reject, Reply, Request, What,
};

/// Queue pair of management datagrams on every port.
pub const MANAGEMENT_QUEUE_PAIR: u32 = 1;

/// Queue key of all queue pairs 1 (IBTA volume 1, section 10.2.5).
pub const MANAGEMENT_QUEUE_KEY: u32 = 0x8001_0000;

/// Bytes of a management datagram.
pub const MAD_BYTES: usize = 256;

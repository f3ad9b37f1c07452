//! The query protocol: operations on keys over UDP, for clients without RDMA (client-server mode).
//!
//! A request names a key. On its way the switches may fill in the address of a node that the key is below, and the partition, just as
//! they do for an index read; the memory server's processor begins there. An address that is stale, forged or 0 costs the server a walk from
//! its root, never a wrong answer.
//!
//! A request must sometimes come to the very server that it is sent to: one that follows a redirect, an open, or one of a client that wants
//! no help. Then its destination port is [`DIRECT_QUERY_UDP_PORT`], on which switches lead nothing.
//!
//! Requests and responses are one UDP datagram for each part of their payload, and have one header, 72 bytes directly after UDP
//! (destination port [`QUERY_UDP_PORT`] or [`DIRECT_QUERY_UDP_PORT`] in requests; responses come from the first). Big endian:
//!
//! ```text
//! byte 0              16        24   25       26..28      28      32       40           48          56      60       64    72
//! | index header (16) | address | op | status | execution | limit | client | request id | range end | total | offset | tag | part …
//! ```
//!
//! | field | in a request | in a response |
//! |---|---|---|
//! | index header | the key and a path (0 to 63, for the way to a fat root); the rest is 0 at the client, and what switches make of it | as the server got it; of a redirect, the partition that has the key |
//! | address | 0 at the client, a node for the key from the switches on | the same where the server began there; 0 where it began at its root |
//! | op | [`Op`], with [`BYTES`] where the key is bytes | the same, with [`RESPONSE`] |
//! | status | 0 | [`Status`] |
//! | execution | 0 | with the next field a number that the parts of one payload share, and those of no other: a read that was sent twice may have two answers, of one server or of two. It counts up from one drawn at random |
//! | limit | of a scan: the most records | the rest of that number |
//! | client | drawn at random, or given to the client with its key; 0 where it only reads short values | the same |
//! | request id | counts up; one that is sent again has the id it had | the same |
//! | range end | of a scan: the last key | of a scan: the key to go on from, or 0; of [`Status::NotOpen`]: the cookie |
//! | total | bytes of the whole payload | the same |
//! | offset | where this part of it begins | the same |
//! | tag | keyed tag, see below; 0 without a key | the same |
//!
//! The payload of a put or update is the value, of a get's response the value, of a scan's response [records]; all others have none.
//! Where keys are [bytes], the header has a word of eight of them and the payload the key: before the value, or where there is none.
//! Releases without such keys take the operation's byte for none and drop the request.
//!
//! UDP's checksum covers all of it, and switches keep it right when they change something. One without a checksum passes them as it is. They
//! may also send a request to another memory server than the client did, the one that has the key; it answers with its own address.
//!
//! # At most once
//!
//! A server remembers the outcomes of a client's last [`WINDOW`] requests by their ids, and a client has no more of them under way at
//! a time. So a write that comes twice, because its response was lost or the network made two of it, is carried out once and
//! answered twice; one that is older than all that are remembered is not carried out.
//!
//! A client that writes opens first. A server that does not know a client answers a write with [`Status::NotOpen`] and a cookie.
//! Returning it with [`Op::Open`] proves that the client receives packets at its address; with it goes the lowest id that may be
//! carried out from now on. A server that has forgotten its clients makes another cookie, so neither old opens nor old writes of
//! theirs are taken for new ones.
//!
//! # One packet for one
//!
//! Source addresses can be forged. Therefore a client that has not opened is sent no more than one packet for each of its own: a get
//! whose value is longer is answered with [`Status::NotOpen`], and so is every scan, before any work is done for it.
//!
//! # Keys
//!
//! Where a server wants it, each datagram bears a tag: SipHash-2-4 (64 bits) with the client's key, over
//! [the header](QueryHeader::signed) and the part. Servers make a client's key of a secret that they share and of the client's
//! number, and hand both out over their control channel. A request with a wrong tag is answered with [`Status::NoKey`], whose tag is 0.
//! Without having opened a client with a key is answered nothing else: a request that an attacker sends again from another address
//! brings no answer there. The tag of a request leaves out what switches may change: the index header but for the key, and the address.

pub mod bytes;
mod header;
mod op;
mod parts;
pub mod records;

pub use header::{Query, QueryError, QueryHeader};
pub use op::{BYTES, Op, RESPONSE, Status};
pub use parts::{Assembly, PartError, datagram, parts};

/// UDP port of memory servers that answer queries.
pub const QUERY_UDP_PORT: u16 = 4793;

/// UDP port of memory servers for requests that switches pass on as they are.
pub const DIRECT_QUERY_UDP_PORT: u16 = 4794;

/// Partition in the index header of a request that switches passed on without knowing the place of its key. It went
/// to the server that the client sent it to.
pub const ANY_PARTITION: u16 = u16::MAX;

/// Number of requests of a client that a server remembers, and that a client may have in progress.
pub const WINDOW: u64 = 64;

/// Longest payload in bytes. Servers have limits of their own, which are lower.
pub const MAX_PAYLOAD: u32 = 1 << 24;

//! The two ends of the [query protocol](fatbtree_wire::query), without sockets, threads or a clock.
//!
//! ```text
//!            Requester (client)                                          Responder (memory server)
//!  ask() ──▶ windows, retries, redirects ── poll_transmit() ─▶ handle() ─▶ parts, known clients, outcomes ──▶ Request ─▶ worker
//!  poll_answer() ◀── parts ◀─────────────────── handle() ◀─ poll_transmit() ◀─────────────── finish(ticket, Outcome) ◀──┘
//! ```
//!
//! * [`Requester`]: sends again what is not answered, follows redirects, opens with servers that do not know it, and puts long answers
//!   together. It reports the outcome of each request, and [`Answer::Unknown`] for a write whose outcome is unknown.
//! * [`Responder`]: hands each request to its owner once, remembers what became of the writes, and answers one that comes again from
//!   memory. What one host may have in it is [bounded](ResponderOptions).
//! * [`Secret`], [`Key`]: of servers that answer only clients with keys. Both ends then believe only datagrams with a right tag.
//!
//! Time is an [`Instant`](fatbtree_verbs::time::Instant), which never goes back. Randomness is a seed.
//!
//! # Example
//!
//! ```
//! use fatbtree_query::{Answer, Ask, Outcome, Requester, RequesterOptions, Responder, ResponderOptions};
//! use fatbtree_verbs::time::Instant;
//!
//! let now = Instant::ZERO;
//! let mut client = Requester::new(RequesterOptions::default(), 1);
//! let mut server = Responder::new(ResponderOptions::default(), 2);
//! let from = "10.0.0.2:40000".parse()?;
//! let id = client.ask(now, Ask::put(7, b"seven".to_vec())).expect("its window is empty");
//! // The server does not know the client: it is told to open, opens, and sends the write again.
//! let mut written = Vec::new();
//! while client.poll_answer().is_none_or(|(answered, answer)| (answered, answer) != (id, Answer::Written)) {
//!     while let Some(datagram) = client.poll_transmit() {
//!         if let Some(request) = server.handle(now, from, &datagram.bytes) {
//!             written.push((request.key, request.value.clone()));
//!             server.finish(request.ticket, Outcome::Done);
//!         }
//!     }
//!     while let Some(datagram) = server.poll_transmit() {
//!         client.handle(now, &datagram.bytes);
//!     }
//! }
//! assert_eq!(written, [(7, b"seven".to_vec())]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checks;
mod cookie;
mod hosts;
mod key;
mod known;
mod requester;
mod responder;

pub use checks::Check;
pub use key::{Identity, Key, Secret};
pub use requester::{Answer, Ask, Requester, RequesterOptions, RequesterStats, ToServer};
pub use responder::{
    BytesKey, Outcome, Request, Responder, ResponderOptions, ResponderStats, SCAN_RECORDS, Ticket, ToClient,
};

/// Bytes of a payload that fit one packet of 1500 bytes, after the headers of IPv4, UDP and the protocol.
pub const PART: usize = 1500 - 20 - 8 - fatbtree_wire::query::QueryHeader::LEN;

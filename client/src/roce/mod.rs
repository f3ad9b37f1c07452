//! The RoCE client: lookups over one-sided READs, several at once, on a software NIC.
//!
//! ```text
//!            submit(key, mode)                                    poll_event
//!                  │                                                  ▲
//!  ┌───────────────▼──────────────────── RoceClient ──────────────────┴──────────┐
//!  │  SuperRoot: key ─▶ partition        slots: Lookup, Lookup, … (depth)        │
//!  │                                        │  ▲                                 │
//!  │                            read, index │  │ bytes, still in the NIC's buffer │
//!  │  Connection (partition, lane) …  ┌─────▼──┴───┐                             │
//!  │                                  │    Nic     │ queue pair per connection   │
//!  └──────────────────────────────────┴──▲──────┬──┴─────────────────────────────┘
//!                            handle_frame │      │ poll_transmit
//! ```
//!
//! **Index reads.** A lookup of [`Mode::Index`] begins with a READ whose address is the key and whose rkey is
//! 0. A registered connection's first-hop switch admits and rewrites it. On an unregistered one the server
//! would refuse it and the queue pair would fail, so there the lookup walks ordinarily.
//!
//! **Broken connections.** Any failed read breaks its queue pair (IBTA vol. 1 §10.3.1: a requester error
//! moves the queue pair to the error state, and all that follows is flushed). The client reports
//! [`Event::ConnectionBroken`] once, keeps the lookups, and begins each again with ordinary READs when the
//! owner has connected a new queue pair. That covers the index read that is lost, and retried after the
//! switches were reloaded, and so asks a strict server for another address under the same PSN (design §9): it
//! is one more broken connection. What breaks under one lookup more than [`ClientConfig::max_restarts`] times
//! ends in a [`Failure`] that says so.

mod client;
mod config;
mod connection;
mod error;
mod event;
mod slot;
mod stats;
mod verbs;

pub use client::{CheckValue, RoceClient, SeededValues};
pub use config::{ClientConfig, ClientConfigError, Mode};
pub use connection::{ConnectionId, RemoteSide};
pub use error::{ConnectError, SubmitError};
pub use event::{Answer, BreakReason, Done, Event, Failure};
pub use stats::ClientStats;

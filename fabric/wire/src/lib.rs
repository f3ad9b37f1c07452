//! Packet formats of Fat-B+Tree, and nothing else: no sockets, no state, no clock.
//!
//! ```text
//!             0        14        34     42                    54
//! RoCEv2      | Ethernet | IPv4    | UDP  | BTH                 | RETH, AETH, … | payload | pad | ICRC |
//!                                  dst 4791
//!             0        14        34     42           58         70
//! in flight   | Ethernet | IPv4    | UDP  | index hdr | BTH       | RETH                        | ICRC |
//!                        marked    dst 4792
//! ```
//!
//! - [`Frame::parse`] gives a checked view of a RoCEv2 frame (UDP destination [`ROCE_UDP_PORT`]) or of an index
//!   read in flight between the first and the last switch ([`INDEX_UDP_PORT`]). [`ParseError`] names the header,
//!   the field, what was expected and what was found.
//! - [`HeaderTemplate`] emits frames of one connection into a reused buffer, ICRC included. A payload that lies elsewhere
//!   than in a slice is [appended in place](HeaderTemplate::emit_with), so that it is copied once.
//! - [`icrc`] has the invariant CRC in full, and by difference as switches mend it.
//! - [`hops`] is the reference model, in software, of what the switches do to an index read.
//! - [`UdpFrame`] is a frame with any other UDP datagram.
//! - [`cm`] has the messages of the Communication Manager, by which queue pairs find each other.
//! - [`query`] is the protocol of clients without RDMA: operations on keys, over UDP.
//!
//! Ethernet, IPv4 and UDP are read and written by `etherparse`; each InfiniBand header has a file of its own. Layouts
//! follow the InfiniBand Architecture Specification volume 1, chapter 9, and its annex A17 (RoCEv2); the two masked atomics,
//! which it does not have, are in the range it leaves to manufacturers (see [`Opcode`]).
//!
//! # Panics
//!
//! No function that takes received bytes panics, for any bytes; property tests check this.
//!
//! # Example
//!
//! ```
//! use fatbtree_wire::{Bth, Extension, Flow, Frame, HeaderTemplate, Opcode, Reth};
//! use std::net::Ipv4Addr;
//!
//! let template = HeaderTemplate::new(&Flow {
//!     source_mac: [2, 0, 0, 0, 0, 1],
//!     destination_mac: [2, 0, 0, 0, 0, 2],
//!     source_ip: Ipv4Addr::new(10, 0, 0, 1),
//!     destination_ip: Ipv4Addr::new(10, 0, 0, 2),
//!     source_port: 0xc121,
//!     ..Flow::default()
//! });
//! let bth = Bth { ack_request: true, ..Bth::new(Opcode::RC_RDMA_READ_REQUEST, 0x11, 0xe926ca) };
//! let reth = Reth { va: 0x5565_5d29_c000, rkey: 0x2dd, length: 1024 };
//!
//! let mut frame = Vec::new();
//! template.emit(&mut frame, 7, &bth, &Extension::Reth(reth), &[]);
//! assert_eq!(frame.len(), 74);
//!
//! let parsed = Frame::parse(&frame)?;
//! assert_eq!(parsed.bth.opcode.to_string(), "RC RDMA READ Request");
//! assert_eq!(parsed.extension, Extension::Reth(reth));
//! assert_eq!(parsed.icrc, parsed.expected_icrc());
//! # Ok::<(), fatbtree_wire::ParseError>(())
//! ```

mod aeth;
mod atomic_ack_eth;
mod atomic_eth;
mod atomic_mask_eth;
mod bth;
pub mod cm;
mod deth;
mod emit;
mod error;
mod extension;
mod frame;
pub mod hops;
mod host;
pub mod icrc;
mod index;
mod opcode;
mod prefix;
pub mod query;
mod reth;
mod udp_frame;

pub use aeth::{Aeth, NakCode, Syndrome, SyndromeKind};
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use atomic_mask_eth::AtomicMaskEth;
pub use bth::{Bth, DEFAULT_PKEY};
pub use deth::Deth;
pub use emit::{Flow, HeaderTemplate};
pub use error::{Expected, Header, ParseError};
pub use extension::{Extension, ExtensionLayout};
pub use frame::{Ethernet, Frame, IN_FLIGHT, Ipv4, Udp};
pub use host::host_of;
pub use index::{INDEX_HEADER_VERSION, IndexFlags, IndexHeader};
pub use opcode::Opcode;
pub use reth::Reth;
pub use udp_frame::UdpFrame;

/// UDP destination port of RoCEv2 (annex A17, assigned by IANA).
pub const ROCE_UDP_PORT: u16 = 4791;

/// UDP destination port of index reads in flight between the first and the last hop, unless the cluster file names
/// another one. A [mark in IPv4](IN_FLIGHT) says that an [`IndexHeader`] follows. The port keeps these packets from
/// programs that look at RoCE.
pub const INDEX_UDP_PORT: u16 = 4792;

/// Bytes of the Ethernet II header.
pub const ETHERNET_LEN: usize = 14;

/// Bytes of the IPv4 header; RoCEv2 has no IPv4 options.
pub const IPV4_LEN: usize = 20;

/// Bytes of the UDP header.
pub const UDP_LEN: usize = 8;

/// Bytes in front of the base transport header (or the index header).
pub const PREFIX_LEN: usize = ETHERNET_LEN + IPV4_LEN + UDP_LEN;

/// Bytes of the invariant CRC at the end of every RoCEv2 frame.
pub const ICRC_LEN: usize = 4;

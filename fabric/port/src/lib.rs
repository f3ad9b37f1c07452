//! Ports through which frames enter and leave a process in batches, for NICs and switches alike.
//!
//! ```text
//!    a thread                              a port                       the network
//!  ┌────────────────────┐ receive(batch) ┌──────────┐  recvmmsg
//!  │ switch pipeline or │◄───────────────│ UdpPort  │◄─────────  a datagram is an Ethernet frame      udp:LOCAL,REMOTE
//!  │ NIC, sans-IO       │ send(frames)   │PacketPort│  sendmmsg
//!  │                    │───────────────►│ PairPort │─────────►  an interface, or another thread      packet:IFACE
//!  │                    │                │ DpdkPort │◄────────►  a DPDK device                        dpdk:DEVICE
//!  └───────▲────────────┘                └────┬─────┘
//!          │ Waiter::wait: sleeps             │ fd()
//!          │ until there is something ◄───────┘
//!          └───────────── Waker::wake ◄── control plane, from any thread
//! ```
//!
//! * [`Port`]: the trait. [`UdpPort`], [`SharedUdpPort`], [`PacketPort`] and [`pair`] are its kinds; [`PortSpec`] is their name in files, [`Wire`] what several
//!   threads send by.
//! * [`Batch`]: frames that came together, in memory that is used again: nothing is allocated for a frame.
//! * Trains: UDP frames of one length that leave together are one message, which goes through the kernel once and is cut where it arrives
//!   (`UDP_SEGMENT`, `UDP_GRO`): by the kernel for a receiver that knows nothing of it. The way through the kernel is most of a frame's
//!   price (`cargo bench -p fatbtree-port`).
//! * DPDK devices (cargo feature `dpdk`, crate `fatbtree_dpdk`): received frames stay where the device has put them, sent ones are written
//!   there once. They are [polled](Port::is_polled).
//! * [`Lanes`]: UDP datagrams for a protocol above, by sockets of the system ([`Datagrams`]) or by frames ([`FrameDatagrams`]).
//! * [`Waiter`], [`Waker`]: sleep until there is something.
//! * [`Counters`]: every queue is bounded, and what is lost is counted.
//!
//! System calls are made through `nix`: the only well-kept crate with `recvmmsg` and `sendmmsg` behind a safe surface (`rustix` has no
//! `recvmmsg`; `socket2` and `mio` take a datagram at a time; `quinn-udp` is bound to QUIC's uses).
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use fatbtree_port::{Batch, Port, Waiter, pair};
//!
//! let (mut here, there) = pair(64)?;
//! assert_eq!(here.send(&[b"one frame", b"and another"]), 2);
//!
//! let mut ports: Vec<Box<dyn Port>> = vec![Box::new(there)];
//! let (waiter, mut ready) = (Waiter::new()?, Vec::new());
//! waiter.wait(&ports, Some(Duration::from_secs(1)), &mut ready);
//! assert_eq!(ready, [true]);
//!
//! let mut batch = Batch::new(); // made once
//! assert_eq!(ports[0].receive(&mut batch), 2);
//! assert_eq!(batch.iter().next(), Some(&b"one frame"[..]));
//! # Ok::<(), fatbtree_port::OpenError>(())
//! ```

mod batch;
mod counters;
mod datagrams;
#[cfg(feature = "dpdk")]
mod dpdk;
mod error;
mod frame_datagrams;
mod lanes;
mod multi;
mod packet;
mod pair;
mod shared;
mod spec;
mod udp;
mod wait;

use std::os::fd::BorrowedFd;

pub use batch::{BATCH, Batch, LONGEST_FRAME};
pub use counters::Counters;
pub use datagrams::{DatagramCounts, Datagrams, share_address};
#[cfg(feature = "dpdk")]
pub use dpdk::DpdkPort;
pub use error::OpenError;
pub use frame_datagrams::{FrameDatagrams, MacAddress};
pub use lanes::Lanes;
pub use nix::errno::Errno;
pub use packet::PacketPort;
pub use pair::{PairPort, pair};
pub use shared::{Clients, SharedUdpPort};
pub use spec::{PortSpec, Wire};
pub use udp::UdpPort;
pub use wait::{Waiter, Waker};

/// One end of a wire that carries Ethernet frames, without their checksums. A port never blocks, and belongs to one
/// thread.
///
/// Nothing that happens on the wire is an error for the owner. A peer that is not up, an interface that is down or a
/// frame that is too long is counted, and frames are lost.
pub trait Port {
    /// Replaces the content of `batch` by received frames, as many as there is room for, and returns their number. If
    /// the batch is [full](Batch::is_full) there may be more.
    fn receive(&mut self, batch: &mut Batch) -> usize;

    /// Sends frames in their order and returns the number taken. If fewer than all are taken, there is no room now:
    /// the owner keeps the others and tries again, or drops and counts them.
    fn send(&mut self, frames: &[&[u8]]) -> usize;

    /// File descriptor that is readable when frames have arrived, for [`Waiter::wait`]. Always readable for a port
    /// that cannot tell.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether the port gives no notice of frames, and must be polled.
    fn is_polled(&self) -> bool {
        false
    }

    /// Counts of received, sent and lost frames. May make a system call: not for use with every frame.
    fn counters(&self) -> Counters;

    /// Error for which frames last [`failed`](Counters::failed).
    fn last_error(&self) -> Option<Errno>;
}

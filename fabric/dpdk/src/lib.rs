//! Ethernet frames through DPDK: cards that a process drives by itself, and the virtual devices that DPDK has beside them.
//!
//! ```text
//!        ports of NICs and switches (fatbtree_port)
//!   ───────────────────────────────────────────────────────────────
//!    Burst    frames where the device has put them: nothing is copied
//!    Device   queues; a thread sends and receives by one of its own
//!    Eal      started once a process, with the arguments that DPDK users know
//!        │
//!    shim.c   the inline functions and structures of DPDK's headers, as plain ones
//!   ──────────────────── libdpdk ──────────────────────────────────
//!    mlx5, ice …      net_memif, net_af_packet, net_tap, net_ring, net_pcap
//! ```
//!
//! Everything is behind the cargo feature `dpdk`; without it this crate is empty and needs nothing. With it, building needs a C compiler,
//! pkg-config and DPDK 22.11 or later with its headers (Debian: `apt-get install gcc libc6-dev pkg-config libdpdk-dev`).
//!
//! * Threads are the caller's, not the EAL's. A thread that receives or sends takes a place in the EAL (caches of memory are by these), and,
//!   where the arguments name cores (`-l 2-5`), a core: the first thread the first of them, and so on.
//! * A received frame stays where the device has put it until its `Burst` is cleared. A frame that is sent is written into the device's
//!   memory once.
//! * No thread sleeps: a device has no file descriptor, and is polled.
//!
//! The crate `dpdk-sys` is bound to DPDK 18.05, and has not been maintained since; that is why there is a shim.
//!
//! # Example
//!
//! A device that hands back what is sent: rings in memory. It needs no hardware, no huge pages and no rights.
//!
#![cfg_attr(feature = "dpdk", doc = "```")]
#![cfg_attr(not(feature = "dpdk"), doc = "```text")]
//! use fatbtree_dpdk::{Burst, Device, Eal};
//!
//! let eal = Eal::start("--no-huge -m 128")?;
//! let device = Device::open(eal, "net_ring0", 1)?;
//! assert_eq!(device.send(0, &[&[7; 60], &[8; 1500]]).taken, 2);
//!
//! let mut burst = Burst::new();
//! device.receive(0, &mut burst);
//! assert_eq!(burst.iter().map(<[u8]>::len).collect::<Vec<_>>(), [60, 1500]);
//! # Ok::<(), fatbtree_dpdk::DpdkError>(())
//! ```

#[cfg(feature = "dpdk")]
mod burst;
#[cfg(feature = "dpdk")]
mod device;
#[cfg(feature = "dpdk")]
mod eal;
#[cfg(feature = "dpdk")]
mod error;
#[cfg(feature = "dpdk")]
mod ffi;

#[cfg(feature = "dpdk")]
pub use burst::{BURST, Burst};
#[cfg(feature = "dpdk")]
pub use device::{Device, LONGEST_FRAME, Losses, Sent};
#[cfg(feature = "dpdk")]
pub use eal::{ARGUMENTS, Eal};
#[cfg(feature = "dpdk")]
pub use error::DpdkError;

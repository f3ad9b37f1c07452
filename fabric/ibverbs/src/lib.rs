//! libibverbs as an implementation of the verbs seam (`fatbtree_verbs::{Device, Verbs}`): the RDMA cards of a Linux machine,
//! and its soft RoCE (`rdma_rxe`). A memory server or a client is given a device of this crate as it is given a software NIC.
//!
//! ```text
//!        trees, clients, memory servers
//!   ───────────── verbs: Device, Verbs ─────────────
//!    RdmaDevice   names, rights, buffers, the order of completions
//!        │
//!    sys          owners of what libibverbs gives out: each given back once, kept as long as it is needed
//!        │
//!    shim.c       the inline functions and structures of <infiniband/verbs.h>, as plain ones
//!   ──────────────────── libibverbs ────────────────
//!    mlx5 …        rxe  ── kernel ──  eth0
//! ```
//!
//! Everything is behind the cargo feature `ibverbs`; without it this crate is empty and needs nothing. With it, building needs a
//! C compiler and rdma-core 33 or later with its headers (Debian: `apt-get install gcc libc6-dev libibverbs-dev`), and
//! running needs the provider of the card (`ibverbs-providers`).
//!
//! # Example
//!
//! A memory server on soft RoCE, with one client. Endpoints go to the other side and back by any means: here by `exchange`.
//!
#![cfg_attr(feature = "ibverbs", doc = "```")]
#![cfg_attr(not(feature = "ibverbs"), doc = "```text")]
//! use fatbtree_ibverbs::{Config, RdmaDevice};
//! use fatbtree_verbs::{Access, Device, Endpoint, Memory, Region};
//!
//! fn serve(exchange: impl Fn(Endpoint, Region) -> Endpoint) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut device = RdmaDevice::open("rxe0", &Config::default())?;
//!     let memory = Memory::shared(1 << 30)?;
//!     let region = device.register(&memory, 3 << 48, Access::ALL)?; // server 3, from offset 0
//!
//!     let queue_pair = device.create()?;
//!     let client = exchange(device.endpoint(queue_pair)?, region);
//!     device.connect(queue_pair, &client)?;
//!     // The card answers from here on, until the client goes or does what it may not.
//!     while device.poll_broken() != Some(queue_pair) {
//!         std::thread::sleep(std::time::Duration::from_millis(10));
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Why neither of the crates for libibverbs
//!
//! | needed here | `ibverbs` 0.9.2 | `sideway` 0.4.3 | shim |
//! |---|---|---|---|
//! | READ, WRITE, CAS, FAA with address and key given, key 0 too | no: SEND and RECEIVE only | yes | yes |
//! | a chain with one doorbell | no: one request a call | yes; basic queue pairs allocate for each | yes, on the stack |
//! | unsignalled, inline | no: always signalled, no inline data | yes | yes |
//! | both PSNs, MTU, READs of both sides, time-out given | our own PSN is always 0 | yes | yes |
//! | memory that we have mapped | no: a `Vec` of its own | yes | yes |
//! | … under addresses of our choice (`ibv_reg_mr_iova`) | no | no | yes |
//! | asynchronous events | no | no | yes |
//! | device memory (`ibv_alloc_dm`) | no | no | yes |
//! | to build | CMake, libclang, a copy of rdma-core | CMake, libclang | a C compiler, libibverbs-dev |
//! | to run | libibverbs | libibverbs, found at run time | libibverbs |
//! | licence | MIT or Apache-2.0 | MPL-2.0 | ours |
//!
//! Remote addresses of this system are `server << 48 | offset`, so the sixth line is not to be done without, and neither crate
//! has it. Their `-sys` crates have most of what is missing, but then nothing of the crates above them is used, and libclang is still
//! needed to read a header of which this crate takes two dozen functions. `sideway` is the one to look at again: when it registers
//! memory under a given address and hands out events, it can take the place of `sys` and the shim.
//!
//! # What soft RoCE does
//!
//! Seen on Linux 6.1, in the interop lab, which runs the conformance suite between two machines:
//!
//! * A queue pair that fails makes **no asynchronous event**. Each queue pair therefore has a receive without room, which ends
//!   when the queue pair fails for any reason; cards that make events are heard as well.
//! * **Seven retries are without end.** `Config::retries` goes to six.
//! * READs outstanding are rounded **up** to a power of two, beyond what the other side has agreed to: we round down first.
//! * Completions of a queue pair that was destroyed **stay in the completion queue**. They are recognised by their names, and
//!   discarded.
//! * An address for others must lie at the same place in its page as the memory does (this is so of every device): a multiple of
//!   4096.
//! * No masked atomics, no device memory, at most 32,767 entries in a completion queue.
//! * It copies with `memcpy`, word by word at best: a reader can see half of a line.
//!
//! # Sleeping
//!
//! An owner without other work calls `RdmaDevice::arm`, and sleeps until one of `RdmaDevice::fds` is readable. Both
//! completion queues report through one channel: requests that end, and queue pairs that fail. Polling for some
//! microseconds before that is the caller's choice: an interrupt and waking a sleeper take longer than a READ in a
//! rack.
//!
//! # Roles on soft RoCE
//!
//! `fatbtree bench` and `fatbtree memserver` with `--nic ibverbs:rxe0` run in the lab, in a guest, against roles with software NICs. As the
//! side that answers, soft RoCE drops a READ that comes again to another address, as after a reload: the queue pair fails, and the
//! client connects anew. Without masked atomics locks are taken by a plain compare-and-swap of the word, and without device memory they
//! lie in the host's. Memory is pinned when it is registered, touched or not. Linux (from 6.5 on) does not pin files of a disk: a memory server
//! with `--data` keeps them in a file system in memory then.
//!
//! # Lookups on a memory server
//!
//! `examples/verbs_lab` is, in its role `lookup`, a database client over this crate: it opens a session with a memory server over
//! gRPC, connects two queue pairs, and looks keys up by ordinary READs and by index reads. In the lab, soft RoCE asks our
//! software NIC through a FatTree of five switches that rewrite the index reads. Seen there, of soft RoCE as the side that asks:
//!
//! * A READ with an rkey of index reads is posted and sent like any other, with the key where the address is, and sent again as such.
//! * The answer of a READ that the switches lead elsewhere when it is sent again, after a reload, is taken. (As the side
//!   that answers, soft RoCE drops such a READ.)
//! * An index read that no switch rewrites is refused, and completes as remote access error; what was posted after it is flushed. The
//!   client names the connection unregistered, makes it anew, and walks.
//!
//! # Whole lines
//!
//! `Capabilities::line_atomicity` is a promise that trees rely on, and no standard makes it: PCI Express says how an access may be
//! cut, not what a processor does to the memory meanwhile. It is made here for ConnectX cards (driver `mlx5_core`) on x86-64,
//! where DMA takes part in cache coherence by lines; FaRM (NSDI 2014) builds on that. Devices of software are never trusted, nor
//! unknown cards. For a card that is known to keep lines whole, set `Config::line_atomicity`. A WRITE that does not
//! begin on a line may be cut within a line, where one packet ends and the next begins: the promise is for what lies in one
//! packet.
//!
//! # Not here
//!
//! Masked atomics of ConnectX, which only vendors' extensions post; on-demand paging; RDMA CM. Device memory and asynchronous
//! events are written by the manual of libibverbs, and have not been seen on a card.

#[cfg(feature = "ibverbs")]
mod config;
#[cfg(feature = "ibverbs")]
mod device;
#[cfg(feature = "ibverbs")]
mod error;
#[cfg(feature = "ibverbs")]
mod ffi;
#[cfg(feature = "ibverbs")]
mod host;
#[cfg(feature = "ibverbs")]
mod queue;
#[cfg(feature = "ibverbs")]
mod sys;
#[cfg(feature = "ibverbs")]
mod table;

#[cfg(feature = "ibverbs")]
pub use config::{Config, Doorbells};
#[cfg(feature = "ibverbs")]
pub use device::{RdmaContext, RdmaDevice};
#[cfg(feature = "ibverbs")]
pub use error::OpenError;

//! A port on a DPDK device: a card that the process drives by itself, or a virtual device.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fatbtree_dpdk::{Device, Eal};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::batch::Batch;
use crate::counters::Counters;
use crate::{OpenError, Port};

/// Empty polls before yielding the CPU.
const IDLE: u32 = 64;

/// Empty polls before the link is checked.
const MEND: u32 = 1 << 10;

/// Queues of a DPDK device that one thread uses. Received frames are not copied; sent frames are written into the
/// device's memory once.
///
/// The port is [polled](Port::is_polled): the device gives no notice of received frames.
pub struct DpdkPort {
    device: Arc<Device>,
    always: Arc<EventFd>,
    /// Receive queues of this port; it sends on the queue `sends`.
    receives: Vec<usize>,
    sends: usize,
    /// Whether this port reports the device's own counters; only one port of a device does.
    tells: bool,
    /// Empty polls since the last frame.
    idle: u32,
    counters: Counters,
}

impl std::fmt::Debug for DpdkPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DpdkPort({}, queues {:?} and {})", self.device.name(), self.receives, self.sends)
    }
}

impl DpdkPort {
    /// Opens a device for one thread. Starts the EAL with the arguments in the environment variable `FATBTREE_EAL`,
    /// unless it has been started.
    ///
    /// # Errors
    /// When the EAL does not start, or there is no such device.
    pub fn open(device: &str) -> Result<Self, OpenError> {
        DpdkWire::open(device, 1)?.port(0)
    }

    /// Whether there is a peer at the other end.
    pub fn is_up(&self) -> bool {
        self.device.is_up()
    }
}

impl Port for DpdkPort {
    fn receive(&mut self, batch: &mut Batch) -> usize {
        let burst = batch.burst();
        for queue in &self.receives {
            self.counters.too_long += self.device.receive(*queue, burst);
            if burst.is_full() {
                break;
            }
        }
        let came = burst.len();
        if came > 0 {
            self.idle = 0;
            // Not always the same queue first.
            if self.receives.len() > 1 {
                self.receives.rotate_left(1);
            }
        } else {
            self.idle = self.idle.wrapping_add(1);
            if self.idle >= IDLE {
                std::thread::yield_now();
            }
            if self.idle.is_multiple_of(MEND) {
                self.device.mend();
            }
        }
        self.counters.received += came as u64;
        came
    }

    fn send(&mut self, frames: &[&[u8]]) -> usize {
        let sent = self.device.send(self.sends, frames);
        self.counters.too_long += sent.too_long;
        self.counters.no_peer += sent.no_peer;
        self.counters.sent += sent.taken as u64 - sent.too_long - sent.no_peer;
        sent.taken
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.always.as_fd()
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn counters(&self) -> Counters {
        if !self.tells {
            return self.counters;
        }
        let losses = self.device.losses();
        Counters { queue_full: losses.missed, failed: losses.bad + losses.not_sent, ..self.counters }
    }

    fn last_error(&self) -> Option<Errno> {
        None
    }
}

/// An open device, for several threads.
#[derive(Debug)]
pub(crate) struct DpdkWire {
    device: Arc<Device>,
    threads: usize,
    /// Event that is always readable.
    always: Arc<EventFd>,
}

impl DpdkWire {
    pub(crate) fn open(device: &str, threads: usize) -> Result<Self, OpenError> {
        let device = Arc::new(Device::open(Eal::of_environment()?, device, threads)?);
        let always = EventFd::from_value_and_flags(1, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let always = Arc::new(always.map_err(|error| OpenError::Descriptor(error.into()))?);
        Ok(Self { device, threads: threads.max(1), always })
    }

    pub(crate) fn queues(&self) -> usize {
        self.device.queues()
    }

    /// Port of a thread. Any thread may receive from a device that has one queue.
    pub(crate) fn port(&self, thread: usize) -> Result<DpdkPort, OpenError> {
        let is_mine = |queue: &usize| self.queues() == 1 || queue % self.threads == thread;
        Ok(DpdkPort {
            device: Arc::clone(&self.device),
            always: Arc::clone(&self.always),
            receives: (0..self.queues()).filter(is_mine).collect(),
            sends: thread % self.device.send_queues(),
            tells: thread == 0,
            idle: 0,
            counters: Counters::default(),
        })
    }
}

//! Waits until a port or another thread has something.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use smallvec::SmallVec;

use crate::{OpenError, Port};

/// Number of places up to which a wait allocates nothing: enough for a switch of up to 16 ports.
const MANY: usize = 17;

/// Wakes the thread that [waits](Waiter::wait), from any other. Clones wake the same thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Alarm>);

#[derive(Debug)]
struct Alarm {
    event: EventFd,
    /// Whether a wake-up is pending or about to be; further ones add nothing.
    ringing: AtomicBool,
}

impl Waker {
    /// Ends the thread's current or next wait at once.
    pub fn wake(&self) {
        if !self.0.ringing.swap(true, Ordering::AcqRel) {
            let _rings_already = self.0.event.write(1);
        }
    }
}

/// Waiting for ports and for other threads, on behalf of one thread.
///
/// A wait sleeps at once. Polling for some microseconds first was tried. With more threads than processors, it takes
/// a tenth of these from the threads that it waits for, and makes batches smaller. Otherwise it saves a tenth of a
/// hop.
#[derive(Debug)]
pub struct Waiter {
    alarm: Waker,
    /// Number of waits with polled ports.
    looks: Cell<u32>,
}

/// Number of waits with polled ports after which the other ports are looked at: that takes a system call.
const LOOKS: u32 = 8;

impl Waiter {
    /// A waiter for one thread.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn new() -> Result<Self, OpenError> {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|error| OpenError::Descriptor(error.into()))?;
        Ok(Self {
            alarm: Waker(Arc::new(Alarm { event, ringing: AtomicBool::new(false) })),
            looks: Cell::new(0),
        })
    }

    /// A handle that ends a wait.
    pub fn waker(&self) -> Waker {
        self.alarm.clone()
    }

    /// Waits until a port has frames, a thread [wakes](Waker::wake) it, or `patience` is over; without patience for
    /// ever. Sets `ready` to whether each of the ports has something, in their order.
    ///
    /// A patience of zero only looks. A signal ends the wait as well. With a [polled](Port::is_polled) port among
    /// them the wait never sleeps: such a port may have something at any time.
    pub fn wait(&self, ports: &[Box<dyn Port>], patience: Option<Duration>, ready: &mut Vec<bool>) {
        if ports.iter().any(|port| port.is_polled()) {
            self.looks.set(self.looks.get().wrapping_add(1));
            if !self.looks.get().is_multiple_of(LOOKS) || ports.iter().all(|port| port.is_polled()) {
                ready.clear();
                ready.extend(ports.iter().map(|port| port.is_polled()));
                self.hear();
                return;
            }
        }
        self.wait_for(ports.iter().map(|port| port.fd()), patience, ready);
    }

    /// Waits in the same way for any readable descriptors, such as those of an RDMA card's completions.
    pub fn wait_for<'f>(
        &self,
        readable: impl Iterator<Item = BorrowedFd<'f>>,
        patience: Option<Duration>,
        ready: &mut Vec<bool>,
    ) {
        let mut places: SmallVec<[PollFd<'_>; MANY]> = SmallVec::new();
        places.extend(readable.map(|place| PollFd::new(place, PollFlags::POLLIN)));
        let count = places.len();
        places.push(PollFd::new(self.alarm.0.event.as_fd(), PollFlags::POLLIN));
        // A signal ends it: the caller looks for what it means.
        if let Err(Errno::EINTR) = ppoll(&mut places, patience.map(Into::into), None) {
            ready.clear();
            ready.resize(count, true);
            return;
        }
        ready.clear();
        ready.extend(places.iter().take(count).map(|place| place.any().unwrap_or(true)));
        if places[count].any().unwrap_or(true) {
            self.silence();
        }
    }

    /// Takes notice of a [wake](Waker::wake), with a system call only if there is one.
    fn hear(&self) {
        if self.alarm.0.ringing.load(Ordering::Acquire) {
            self.silence();
        }
    }

    fn silence(&self) {
        let _already_read = self.alarm.0.event.read();
        // After it is read: a thread that wakes in between finds it ringing, and we are awake.
        self.alarm.0.ringing.store(false, Ordering::Release);
    }
}

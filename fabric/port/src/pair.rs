//! Two ports of one process, wired to each other.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::batch::Batch;
use crate::counters::Counters;
use crate::{OpenError, Port};

/// One end of a wire inside a process. The ends may be in different threads.
pub struct PairPort {
    /// Queue of frames to the other end; their buffers come back through `empty`.
    outgoing: rtrb::Producer<Vec<u8>>,
    incoming: rtrb::Consumer<Vec<u8>>,
    empty: rtrb::Consumer<Vec<u8>>,
    returned: rtrb::Producer<Vec<u8>>,
    /// Events that are readable while frames may be waiting here, and at the other end (`there`).
    here: Arc<EventFd>,
    there: Arc<EventFd>,
    counters: Counters,
}

impl std::fmt::Debug for PairPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PairPort").field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// Creates two ports that are wired to each other. At most `queue` frames wait in each direction; beyond that a
/// sender finds no room.
///
/// # Errors
/// When the process has no file descriptors left.
pub fn pair(queue: usize) -> Result<(PairPort, PairPort), OpenError> {
    let event = || {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).map(Arc::new);
        event.map_err(|error| OpenError::Descriptor(error.into()))
    };
    let (one, other) = (event()?, event()?);
    let ((to_other, from_one), (to_one, from_other)) =
        (rtrb::RingBuffer::new(queue), rtrb::RingBuffer::new(queue));
    let ((back_to_one, empty_one), (back_to_other, empty_other)) =
        (rtrb::RingBuffer::new(queue), rtrb::RingBuffer::new(queue));
    let end = |outgoing, incoming, empty, returned, here: &Arc<EventFd>, there: &Arc<EventFd>| PairPort {
        outgoing,
        incoming,
        empty,
        returned,
        here: Arc::clone(here),
        there: Arc::clone(there),
        counters: Counters::default(),
    };
    Ok((
        end(to_other, from_other, empty_one, back_to_other, &one, &other),
        end(to_one, from_one, empty_other, back_to_one, &other, &one),
    ))
}

impl Port for PairPort {
    fn receive(&mut self, batch: &mut Batch) -> usize {
        batch.clear();
        // Before the queue is looked at: a frame that comes later makes it readable again.
        let _nothing_there = self.here.read();
        while !batch.is_full()
            && let Ok(frame) = self.incoming.pop()
        {
            if batch.push(&frame) {
                self.counters.received += 1;
            } else {
                self.counters.too_long += 1;
            }
            // Full only if the other end is gone: then it is not needed.
            let _ = self.returned.push(frame);
        }
        if self.incoming.slots() > 0 {
            let _more_is_there = self.here.write(1);
        }
        batch.len()
    }

    fn send(&mut self, frames: &[&[u8]]) -> usize {
        if self.outgoing.is_abandoned() {
            self.counters.no_peer += frames.len() as u64;
            return frames.len();
        }
        let room = self.outgoing.slots().min(frames.len());
        for frame in &frames[..room] {
            let mut buffer = self.empty.pop().unwrap_or_default();
            buffer.clear();
            buffer.extend_from_slice(frame);
            // There was room, and no other thread sends.
            let _ = self.outgoing.push(buffer);
        }
        self.counters.sent += room as u64;
        if room > 0 {
            let _readable_already = self.there.write(1);
        }
        room
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.here.as_fd()
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn last_error(&self) -> Option<Errno> {
        None
    }
}

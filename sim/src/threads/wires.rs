//! Wires between threads: rings of frames.

use fatbtree_soft_nic::Nic;
use fatbtree_verbs::time::Instant;

/// Most frames on their way in one direction. Further ones are lost, as on any link.
const FRAMES: usize = 1024;

/// One end of the wires between two threads. The receiver of a frame sends its buffer back, to be used again.
pub(super) struct Port {
    to: rtrb::Producer<Vec<u8>>,
    from: rtrb::Consumer<Vec<u8>>,
    /// Buffers that come back, and those that go back.
    spare: rtrb::Consumer<Vec<u8>>,
    used: rtrb::Producer<Vec<u8>>,
}

/// Creates wires between two threads, and returns both ends.
pub(super) fn wires() -> (Port, Port) {
    let ring = || rtrb::RingBuffer::new(FRAMES);
    let ((to_there, from_here), (to_here, from_there)) = (ring(), ring());
    let ((used_there, spare_here), (used_here, spare_there)) = (ring(), ring());
    let port = |to, from, spare, used| Port { to, from, spare, used };
    (port(to_there, from_there, spare_here, used_here), port(to_here, from_here, spare_there, used_there))
}

impl Port {
    /// Hands all frames that have come to a NIC. Says whether there were any.
    pub(super) fn receive(&mut self, nic: &mut Nic, now: Instant) -> bool {
        let mut any = false;
        while let Ok(frame) = self.from.pop() {
            nic.handle_frame(now, &frame);
            // Where it finds no room it is dropped.
            let _ = self.used.push(frame);
            any = true;
        }
        any
    }

    /// Sends a frame, or loses it, and leaves another buffer.
    pub(super) fn send(&mut self, frame: &mut Vec<u8>) {
        let next = self.spare.pop().unwrap_or_default();
        let _ = self.to.push(std::mem::replace(frame, next));
    }
}

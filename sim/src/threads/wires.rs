//! Wires between threads: rings of frames.

use fatbtree_nic::Nic;
use fatbtree_verbs::time::Instant;

/// Frames on their way in one direction. What finds no room is lost, as on any link.
const FRAMES: usize = 1024;

/// One end of the wires between two threads. Frames go back and forth in the same buffers.
pub(super) struct Port {
    to: rtrb::Producer<Vec<u8>>,
    from: rtrb::Consumer<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

/// Both ends.
pub(super) fn wires() -> (Port, Port) {
    let (to_there, from_here) = rtrb::RingBuffer::new(FRAMES);
    let (to_here, from_there) = rtrb::RingBuffer::new(FRAMES);
    let port = |to, from| Port { to, from, spare: Vec::new() };
    (port(to_there, from_there), port(to_here, from_here))
}

impl Port {
    /// Hands all frames that have come to a NIC. Says whether there were any.
    pub(super) fn receive(&mut self, nic: &mut Nic, now: Instant) -> bool {
        let mut any = false;
        while let Ok(frame) = self.from.pop() {
            nic.handle_frame(now, &frame);
            self.spare.push(frame);
            any = true;
        }
        any
    }

    /// An empty buffer.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps a buffer for later.
    pub(super) fn keep(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    /// Sends a frame, or loses it.
    pub(super) fn send(&mut self, frame: Vec<u8>) {
        if let Err(rtrb::PushError::Full(frame)) = self.to.push(frame) {
            self.spare.push(frame);
        }
    }
}

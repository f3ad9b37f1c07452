//! Frames that were received together, in buffers that are used again.

use std::fmt;
use std::ops::Range;

/// Number of frames in a batch, and in one system call. A batch may hold some more if the last ones arrived as a
/// train.
pub const BATCH: usize = 64;

/// Length of the longest received frame in bytes, without its checksum: a jumbo frame. Longer ones are dropped and
/// counted.
pub const LONGEST_FRAME: usize = 9_216;

/// Longest message that may be a train of frames, in bytes.
pub(crate) const MESSAGE: usize = 1 << 16;

/// Memory for [`BATCH`] frames of up to [`LONGEST_FRAME`] bytes, or for more that arrived in trains. A batch is
/// created once and reused.
pub struct Batch {
    bytes: Box<[u8]>,
    /// Position of each frame in `bytes`.
    frames: Vec<Range<usize>>,
    /// End of the bytes that belong to frames or were skipped.
    used: usize,
    /// Frames that stay in a device's memory; they come before the others.
    #[cfg(feature = "dpdk")]
    burst: fatbtree_dpdk::Burst,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("frames", &self.frames).finish_non_exhaustive()
    }
}

impl Batch {
    /// Creates an empty batch. Its memory is zeroed pages, so that unused pages cost nothing.
    pub fn new() -> Self {
        // The last train begins before there are as many frames as in a batch, and has at most 128.
        let frames = Vec::with_capacity(4 * BATCH);
        Self {
            bytes: vec![0; BATCH * LONGEST_FRAME].into(),
            frames,
            used: 0,
            #[cfg(feature = "dpdk")]
            burst: fatbtree_dpdk::Burst::new(),
        }
    }

    /// Number of frames in the batch.
    pub fn len(&self) -> usize {
        self.elsewhere() + self.frames.len()
    }

    /// Number of frames that stay in a device's memory.
    #[cfg(feature = "dpdk")]
    fn elsewhere(&self) -> usize {
        self.burst.len()
    }

    #[cfg(not(feature = "dpdk"))]
    fn elsewhere(&self) -> usize {
        0
    }

    /// Whether the batch contains no frames.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the batch has no room for another frame: more may be waiting at their source.
    pub fn is_full(&self) -> bool {
        self.len() >= BATCH
    }

    /// Removes all frames and keeps the memory.
    pub fn clear(&mut self) {
        #[cfg(feature = "dpdk")]
        self.burst.clear();
        self.frames.clear();
        self.used = 0;
    }

    /// Empties the batch and returns room for frames that stay in a device's memory.
    #[cfg(feature = "dpdk")]
    pub(crate) fn burst(&mut self) -> &mut fatbtree_dpdk::Burst {
        self.clear();
        &mut self.burst
    }

    /// Frames in order of arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|number| self.frame(number))
    }

    #[inline]
    fn frame(&self, number: usize) -> &[u8] {
        #[cfg(feature = "dpdk")]
        if number < self.burst.len() {
            return self.burst.frame(number);
        }
        &self.bytes[self.frames[number - self.elsewhere()].clone()]
    }

    /// Adds a copy of a frame. Returns false, and adds nothing, if the batch is full or the frame too long.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        if self.is_full() || frame.len() > LONGEST_FRAME {
            return false;
        }
        let place = self.used..self.used + frame.len();
        self.bytes[place.clone()].copy_from_slice(frame);
        self.used = place.end;
        self.frames.push(place);
        true
    }

    /// Empties the batch and returns all places of single frames, for a system call to write into. Then call
    /// [`keep`](Self::keep) with the lengths.
    pub(crate) fn places(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.clear();
        self.bytes.chunks_exact_mut(LONGEST_FRAME)
    }

    /// Adds the first places as frames of these lengths; a frame of `None` is left out.
    pub(crate) fn keep(&mut self, lengths: impl Iterator<Item = Option<usize>>) {
        for (place, length) in lengths.take(BATCH).enumerate() {
            let Some(length) = length else { continue };
            let from = place * LONGEST_FRAME;
            self.frames.push(from..from + length);
            self.used = from + LONGEST_FRAME;
        }
    }

    /// Room for a message of any length, unless the batch is full. Then call [`keep_train`](Self::keep_train) with
    /// the length.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        let full = self.is_full();
        self.bytes.get_mut(self.used..self.used + MESSAGE).filter(|_| !full)
    }

    /// Adds a message of `length` bytes as consecutive frames of `frame` bytes, of which the last may be shorter.
    /// Returns the number of frames that are too long and left out.
    pub(crate) fn keep_train(&mut self, length: usize, frame: usize) -> usize {
        let (end, mut too_long) = (self.used + length, 0);
        loop {
            let place = self.used..end.min(self.used + frame);
            self.used = place.end;
            if place.len() > LONGEST_FRAME {
                too_long += 1;
            } else {
                self.frames.push(place);
            }
            // An empty message is an empty frame.
            if self.used == end || frame == 0 {
                return too_long;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_are_left_out_leave_no_gap() {
        let mut batch = Batch::new();
        for (n, place) in batch.places().enumerate().take(4) {
            place[..3].fill(n as u8);
        }
        batch.keep([Some(3), None, Some(2), Some(1)].into_iter());
        assert_eq!(batch.iter().collect::<Vec<_>>(), [&[0u8, 0, 0][..], &[2, 2], &[3]]);
        batch.clear();
        assert!(batch.is_empty() && batch.iter().next().is_none());
    }

    #[test]
    fn what_has_no_room_is_refused() {
        let mut batch = Batch::new();
        assert!(!batch.push(&[0; LONGEST_FRAME + 1]));
        for _ in 0..BATCH {
            assert!(batch.push(&[7; 60]));
        }
        assert!(batch.is_full() && !batch.push(&[7; 60]));
    }

    #[test]
    fn trains_are_frames() {
        let mut batch = Batch::new();
        batch.room().unwrap()[..7].copy_from_slice(b"abcdefg");
        assert_eq!(batch.keep_train(7, 3), 0);
        batch.room().unwrap()[..2].copy_from_slice(b"hi");
        assert_eq!(batch.keep_train(2, 2), 0);
        assert_eq!(batch.keep_train(0, 0), 0);
        assert_eq!(batch.keep_train(LONGEST_FRAME + 1, LONGEST_FRAME + 1), 1);
        assert_eq!(batch.iter().collect::<Vec<_>>(), [&b"abc"[..], b"def", b"g", b"hi", b""]);
        // Until a whole message has no room, or there are enough frames.
        while let Some(room) = batch.room() {
            assert_eq!(room.len(), MESSAGE);
            batch.keep_train(MESSAGE, 9_000);
        }
        assert!(batch.is_full() && batch.len() < BATCH + 8);
    }
}

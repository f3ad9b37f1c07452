//! Frames that were received together, in buffers that are used again.

use std::fmt;

/// Frames in a batch at most: one system call brings or takes so many.
pub const BATCH: usize = 64;

/// Bytes of the longest frame that is received, without its checksum: a jumbo frame. Longer ones are dropped and counted.
pub const LONGEST_FRAME: usize = 9_216;

/// Room for [`BATCH`] frames of up to [`LONGEST_FRAME`] bytes. Made once, it is filled again and again.
pub struct Batch {
    bytes: Box<[u8]>,
    /// Where frame n ends in its place; frames behind `count` mean nothing.
    lengths: [usize; BATCH],
    count: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("lengths", &&self.lengths[..self.count]).finish_non_exhaustive()
    }
}

impl Batch {
    /// An empty batch. Its memory is zeroed pages: what is never used costs nothing.
    pub fn new() -> Self {
        Self { bytes: vec![0; BATCH * LONGEST_FRAME].into(), lengths: [0; BATCH], count: 0 }
    }

    /// Frames in it.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there is no room for another: more may be waiting where these came from.
    pub fn is_full(&self) -> bool {
        self.count == BATCH
    }

    /// Forgets the frames, keeps the memory.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// The frames, in the order in which they came.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let places = self.bytes.chunks_exact(LONGEST_FRAME);
        places.zip(&self.lengths[..self.count]).map(|(place, &length)| &place[..length])
    }

    /// Adds a copy of a frame. Says no, and adds nothing, when the batch is full or the frame too long.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        if self.is_full() || frame.len() > LONGEST_FRAME {
            return false;
        }
        let at = self.count * LONGEST_FRAME;
        self.bytes[at..at + frame.len()].copy_from_slice(frame);
        self.lengths[self.count] = frame.len();
        self.count += 1;
        true
    }

    /// All places, for a system call to write into; afterwards [`keep`](Self::keep) says what is there.
    pub(crate) fn places(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.count = 0;
        self.bytes.chunks_exact_mut(LONGEST_FRAME)
    }

    /// Takes the first places as frames of these lengths; a frame of `None` is left out.
    pub(crate) fn keep(&mut self, lengths: impl Iterator<Item = Option<usize>>) {
        for (place, length) in lengths.take(BATCH).enumerate() {
            let Some(length) = length else { continue };
            if place != self.count {
                // One before it was left out, which is rare.
                let from = place * LONGEST_FRAME;
                self.bytes.copy_within(from..from + length, self.count * LONGEST_FRAME);
            }
            self.lengths[self.count] = length;
            self.count += 1;
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
}

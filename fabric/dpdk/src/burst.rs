//! Received frames that stay where a device has put them.
#![allow(unsafe_code, reason = "calls of the shim, and reading of mbufs")]

use std::ffi::c_uint;
use std::fmt;

use crate::ffi;

/// Maximum number of frames in a [`Burst`], and in one call of a driver.
pub const BURST: usize = ffi::BURST;

/// Frames that were received together. They stay in the memory that the device wrote them to, and nothing is copied.
/// The memory is given back when the burst is [cleared](Self::clear) or dropped.
pub struct Burst(Vec<ffi::RawFrame>);

// SAFETY: a received mbuf belongs to its receiver, in any thread, and any thread may give it back.
unsafe impl Send for Burst {}
// SAFETY: with a shared burst, frames can only be read.
unsafe impl Sync for Burst {}

impl Default for Burst {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(<[u8]>::len)).finish()
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Burst {
    /// Creates an empty burst.
    pub fn new() -> Self {
        Self(Vec::with_capacity(BURST))
    }

    /// Number of frames in the burst.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the burst contains no frames.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the burst has no room for another frame.
    pub fn is_full(&self) -> bool {
        self.0.len() == BURST
    }

    /// The frame with this number.
    ///
    /// # Panics
    /// When there are not so many.
    #[inline]
    pub fn frame(&self, number: usize) -> &[u8] {
        let frame = &self.0[number];
        // SAFETY: the mbuf is ours until it is freed, for which `self` must be borrowed mutably; it has so many bytes there. The device
        // has written them, and neither the device nor a thread writes them any more.
        unsafe { std::slice::from_raw_parts(frame.data, frame.length) }
    }

    /// Frames in order of arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|number| self.frame(number))
    }

    /// Removes all frames and gives their memory back.
    #[inline]
    pub fn clear(&mut self) {
        if !self.0.is_empty() {
            // SAFETY: these are mbufs that were received, at most BURST, and each is in no other place than here, from where it is taken.
            unsafe { ffi::fatbtree_dpdk_free(self.0.as_ptr(), self.0.len() as c_uint) };
            self.0.clear();
        }
    }

    /// Adds the frames that wait in a queue. Returns the number of frames dropped for their length.
    ///
    /// # Safety
    /// The device has started and has this receive queue, from which no other thread receives now.
    #[inline]
    pub(crate) unsafe fn receive(&mut self, port: u16, queue: u16, longest: usize) -> u64 {
        let (len, mut too_long) = (self.0.len(), 0);
        let room = self.0.spare_capacity_mut();
        let places = room.len().min(BURST - len) as c_uint;
        let start = room.as_mut_ptr().cast::<ffi::RawFrame>();
        // SAFETY: there is room for so many frames at `start`, and of the queue the caller says what must be.
        let came =
            unsafe { ffi::fatbtree_dpdk_receive(port, queue, start, places, longest, &raw mut too_long) };
        // SAFETY: so many more were written, within the vector's capacity.
        unsafe { self.0.set_len(len + came as usize) };
        u64::from(too_long)
    }
}

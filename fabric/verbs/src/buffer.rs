//! Registered buffers, into which READs deliver their bytes.
#![allow(unsafe_code, reason = "buffers are parts of one mapping; each block says why it is sound")]

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

use crate::stack::IndexStack;

/// Bytes of the largest buffers that devices have by default, so of the longest READ or WRITE. A record of the longest value fits in: see
/// `MAX_VALUE` of `fatbtree-remote-memory`.
pub const LARGEST_BUFFER: u32 = (1 << 20) + (4 << 10);

/// Buffers of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferClass {
    /// Number of buffers.
    pub count: u32,
    /// Size of each in bytes; rounded up to whole lines of 64.
    pub bytes: u32,
}

/// A fixed number of buffers in one stretch of memory, registered with a device as a whole. Taking a buffer and
/// giving it back allocates nothing and locks nothing. The buffer given back last is taken first, because it is still
/// in the processor's cache. Pages of buffers that are never needed at once are never touched.
///
/// ```
/// use fatbtree_verbs::{BufferClass, BufferPool};
///
/// let pool = BufferPool::new(&[BufferClass { count: 2, bytes: 64 }])?;
/// let mut one = pool.take(10).unwrap();
/// one.extend(b"hello");
/// let two = pool.take(64).unwrap();
/// assert!(pool.take(1).is_none(), "both are out");
/// drop(two);
/// assert!(pool.take(1).is_some());
/// assert_eq!(&*one, b"hello");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

struct Shared {
    map: MmapRaw,
    /// Classes by size, the smallest first.
    classes: Box<[Class]>,
}

struct Class {
    bytes: u32,
    /// Start of the first buffer; the others follow.
    start: usize,
    free: IndexStack,
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = |class: &Class| (class.bytes, class.free.count(), class.free.capacity());
        f.debug_struct("BufferPool")
            .field("bytes_free_count", &self.shared.classes.iter().map(free).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl BufferPool {
    /// A pool with these classes of buffers; classes of no buffers or no bytes are left out.
    ///
    /// # Errors
    /// When the operating system does not give so much memory.
    pub fn new(classes: &[BufferClass]) -> io::Result<Self> {
        let mut classes: Vec<_> =
            classes.iter().filter(|class| class.count > 0 && class.bytes > 0).copied().collect();
        classes.sort_by_key(|class| class.bytes);
        let size = |class: &BufferClass| (class.bytes as usize).next_multiple_of(64);
        let total = classes.iter().map(|class| size(class).saturating_mul(class.count as usize));
        let total = total.fold(0, usize::saturating_add);
        let map = MmapMut::map_anon(total.max(1))?;
        let mut start = 0;
        let classes = classes.iter().map(|class| {
            let free = IndexStack::full(class.count);
            let class = Class { bytes: size(class) as u32, start, free };
            start += class.bytes as usize * class.free.capacity();
            class
        });
        let classes = classes.collect();
        Ok(Self { shared: Arc::new(Shared { map: map.into(), classes }) })
    }

    /// Takes an empty buffer with room for `len` bytes: the smallest one that is free.
    #[inline]
    #[must_use]
    pub fn take(&self, len: u64) -> Option<Buffer> {
        let classes = self.shared.classes.iter().enumerate();
        for (number, class) in classes.filter(|(_, class)| u64::from(class.bytes) >= len) {
            if let Some(index) = class.free.pop() {
                let shared = Arc::clone(&self.shared);
                return Some(Buffer { shared, class: number as u32, index, len: 0 });
            }
        }
        None
    }

    /// Size of the largest buffer in bytes.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.shared.classes.last().map_or(0, |class| u64::from(class.bytes))
    }

    /// Number of buffers that are free now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.shared.classes.iter().map(|class| class.free.count()).sum()
    }

    /// Address and length of all buffers together, for drivers that register them.
    #[must_use]
    pub fn as_raw(&self) -> (*mut u8, usize) {
        (self.shared.map.as_mut_ptr(), self.shared.map.len())
    }
}

/// A registered buffer with the bytes that were read. It goes back to its pool when it is dropped.
pub struct Buffer {
    shared: Arc<Shared>,
    class: u32,
    /// Index of the buffer in its class.
    index: u32,
    len: usize,
}

impl Buffer {
    #[inline]
    fn class(&self) -> &Class {
        &self.shared.classes[self.class as usize]
    }

    /// Number of bytes for which the buffer has room.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.class().bytes as usize
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// When there is no room for them: the taker of a buffer says how many bytes it is for.
    #[inline]
    pub fn extend(&mut self, bytes: &[u8]) {
        let from = self.len;
        self.resize(from + bytes.len());
        self.as_mut_slice()[from..].copy_from_slice(bytes);
    }

    /// Sets the number of bytes that the buffer shows; new ones are left over from an earlier use.
    ///
    /// # Panics
    /// When there is no room for them.
    #[inline]
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes into a buffer of {}", self.capacity());
        self.len = len;
    }

    /// Content of the buffer, to write.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; `&mut self` says that there is no other reference.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) }
    }

    /// The address of the first byte in this process, for drivers that let a device write there.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        let class = self.class();
        self.shared.map.as_mut_ptr().wrapping_add(class.start + class.bytes as usize * self.index as usize)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `index` came from the stack of free buffers, so the `capacity()` bytes from there are inside of the mapping,
        // initialised by the operating system, and belong to this buffer alone until it is dropped; `len` is at most
        // `capacity()`. The mapping lives as long as `shared`.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.len, self.capacity())
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        self.class().free.push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_fits_and_none_twice() {
        let class = |count, bytes| BufferClass { count, bytes };
        let pool = BufferPool::new(&[class(1, 4096), class(2, 100), class(0, 7)]).unwrap();
        assert_eq!((pool.largest(), pool.free()), (4096, 3));
        let mut out: Vec<Buffer> = [1, 128, 128].iter().map(|&len| pool.take(len).unwrap()).collect();
        assert_eq!(out.iter().map(Buffer::capacity).collect::<Vec<_>>(), [128, 128, 4096]);
        assert!(pool.take(1).is_none() && pool.take(5000).is_none());
        for (mark, buffer) in (1..).zip(&mut out) {
            buffer.resize(buffer.capacity());
            buffer.as_mut_slice().fill(mark);
        }
        for (mark, buffer) in (1..).zip(&out) {
            assert!(buffer.iter().all(|&byte| byte == mark), "buffers overlap");
        }
        drop(out);
        assert_eq!(pool.free(), 3);
    }

    #[test]
    fn what_was_given_back_last_is_taken_first() {
        let pool = BufferPool::new(&[BufferClass { count: 100, bytes: 64 }]).unwrap();
        let held: Vec<Buffer> = (0..3).map(|_| pool.take(1).unwrap()).collect();
        let mut places: Vec<*mut u8> = held.iter().map(Buffer::as_ptr).collect();
        drop(held);
        places.reverse();
        let again: Vec<Buffer> = (0..3).map(|_| pool.take(1).unwrap()).collect();
        assert_eq!(again.iter().map(Buffer::as_ptr).collect::<Vec<_>>(), places);
    }

    #[test]
    fn a_buffer_outlives_the_handle_of_its_pool_and_may_go_to_another_thread() {
        let mut buffer = BufferPool::new(&[BufferClass { count: 1, bytes: 8 }]).unwrap().take(8).unwrap();
        let read = std::thread::spawn(move || {
            buffer.extend(b"8 bytes!");
            buffer.to_vec()
        });
        assert_eq!(read.join().unwrap(), b"8 bytes!");
    }

    #[test]
    #[should_panic(expected = "65 bytes into a buffer of 64")]
    fn more_than_it_holds() {
        let pool = BufferPool::new(&[BufferClass { count: 1, bytes: 8 }]).unwrap();
        pool.take(8).unwrap().resize(65);
    }
}

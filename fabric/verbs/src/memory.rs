//! Memory that its owner and a network card share.
#![allow(unsafe_code, reason = "memory mapping; each block says why it is sound")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

use crate::journal::{Journal, JournalError};
use crate::room::{ReserveError, Room};

/// Bytes of a word, the unit of each read and write.
const WORD: usize = 8;

/// Zeroed memory, mapped from the operating system, that threads read and write at the same time.
///
/// Every access is made of whole words of 8 bytes, each read or written at once (relaxed atomics). So a reader never meets
/// undefined behaviour, but it may see some words from before a write and some from after it: trees keep versions or
/// checksums for that. A device that is driven by one thread makes each of its accesses whole.
///
/// A thread that reads what another thread has written afterwards, or changes it by [`update`](Self::update), also sees everything that thread
/// has written before. So a lock that lies in such memory protects other such memory.
///
/// ```
/// use fatbtree_verbs::Memory;
///
/// let memory = Memory::anonymous(4096)?;
/// memory.write(10, b"hello").unwrap();
/// let mut bytes = [0; 7];
/// memory.read(9, &mut bytes).unwrap();
/// assert_eq!(&bytes, b"\0hello\0");
/// assert!(memory.read(4090, &mut bytes).is_err(), "beyond the end");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Memory {
    map: MmapRaw,
    len: u64,
    /// File of the memory, and the number of its bytes that have room on the disk; those after them are zeros.
    room: Option<Box<Room>>,
    /// Journal of all changes, and the memory's number in it.
    journal: OnceLock<(Arc<Journal>, u8)>,
}

/// An access that reaches beyond the memory, or an atomic that is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{len} bytes at offset {offset:#x} are not inside of {size} bytes of memory, or not aligned for an atomic"
)]
pub struct OutOfBounds {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Size of the memory in bytes.
    pub size: u64,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Memory {
    /// Maps `len` bytes of zeros. Pages come from the operating system when they are first touched.
    ///
    /// # Errors
    /// When the operating system does not give so many.
    pub fn anonymous(len: u64) -> io::Result<Self> {
        let words =
            len.checked_next_multiple_of(WORD as u64).and_then(|len| usize::try_from(len.max(8)).ok());
        let map = MmapMut::map_anon(words.ok_or(io::ErrorKind::OutOfMemory)?)?;
        Ok(Self { map: map.into(), len, room: None, journal: OnceLock::new() })
    }

    /// Maps the first `len` bytes of the file at `path`. Written bytes are in the file even if the process is killed;
    /// the operating system or [`sync`](Self::sync) brings them to the disk. The file must not be made shorter
    /// meanwhile: an access beyond its end would end the process.
    ///
    /// The file may be shorter than `len`. Before it is [reserved](Self::reserve), all of it reads as zeros, and
    /// nothing can be written. A write to a mapped file that finds no room on the disk would end the process, too.
    ///
    /// # Errors
    /// When the file cannot be mapped for reading and writing.
    pub fn file(path: &Path, file: File, len: u64) -> io::Result<Self> {
        let words = len.checked_next_multiple_of(WORD as u64).filter(|&len| isize::try_from(len).is_ok());
        let words = words.ok_or(io::ErrorKind::OutOfMemory)?.max(8);
        let map = MmapOptions::new().len(words as usize).map_raw(&file)?;
        Ok(Self { map, len, room: Some(Room::new(path, file).into()), journal: OnceLock::new() })
    }

    /// Reserves room on the disk for the first `bytes` bytes, if the memory lies in a file, which then has at least
    /// this length. These bytes can be written from now on, however full the disk is later. File systems that write
    /// everything to a new place (btrfs, ZFS) promise this for the first write only.
    ///
    /// # Errors
    /// When the disk is full, or fails; what had its room before still has it.
    pub fn reserve(&self, bytes: u64) -> Result<(), ReserveError> {
        let Some(room) = &self.room else { return Ok(()) };
        let (bytes, before) = (bytes.min(self.len), room.bytes());
        room.reserve(bytes)?;
        if let Some((journal, memory)) = self.journal.get()
            && bytes > before
        {
            journal.reserved(*memory, bytes);
        }
        Ok(())
    }

    /// Has a journal note all changes from now on. The memory's file changes only when the journal is [applied](Journal::apply) to it.
    /// `memory`: number of the file among the journal's targets. Everything that was written before must be [synced](Self::sync),
    /// and nothing else may use the memory meanwhile.
    ///
    /// Writes of up to [`Journal::WHOLE_WRITE`] bytes are whole then: a process that is killed, or a machine that fails, leaves all of one
    /// or nothing of it. What is written takes memory of the process, which the operating system cannot give to others.
    ///
    /// # Errors
    /// When the operating system does not map the file anew.
    ///
    /// # Panics
    /// When the memory does not lie in a file, or has a journal already.
    pub fn journalled(&self, journal: &Arc<Journal>, memory: u8) -> io::Result<()> {
        let room = self.room.as_ref().expect("only memory in a file has a journal");
        let address = NonZeroUsize::new(self.map.as_mut_ptr().addr());
        let len = NonZeroUsize::new(self.map.len()).expect("no mapping is empty");
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED;
        // SAFETY: the range is this mapping's, which `self` owns until it is dropped. The new one has the same bytes, those of the
        // file, and replaces the old one at once, so that all that is said of the mapping stays true. A write that another thread
        // makes meanwhile would be lost or not, as with any writes at the same time.
        let mapped = unsafe {
            mmap(address, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags, room.file(), 0)
        };
        let mapped = mapped.map_err(io::Error::from)?;
        debug_assert_eq!(mapped, NonNull::new(self.map.as_mut_ptr()).expect("a mapping").cast());
        let is_first = self.journal.set((Arc::clone(journal), memory)).is_ok();
        assert!(is_first, "a memory has one journal");
        Ok(())
    }

    /// Journal of the memory.
    #[must_use]
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get().map(|(journal, _)| journal)
    }

    /// Hands all changes to the operating system, and waits for the disk, as the pace of the [journal](Self::journalled) demands. What was
    /// written before may be acknowledged then. Without a journal there is nothing to do.
    ///
    /// # Errors
    /// When the disk has failed: see [`Journal::commit`].
    #[inline]
    pub fn commit(&self) -> Result<(), JournalError> {
        self.journal.get().map_or(Ok(()), |(journal, _)| journal.commit())
    }

    /// Brings the memory to its file on the disk, and waits until it is there; with a journal, all of the journal's memories.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn sync(&self) -> io::Result<()> {
        match (self.journal.get(), &self.room) {
            (Some((journal, _)), _) => journal.checkpoint().map_err(io::Error::other),
            // The system call writes what was changed by the mapping, too.
            (None, Some(room)) => room.file().sync_all(),
            (None, None) => Ok(()),
        }
    }

    /// Anonymous memory, ready to be shared with a device.
    ///
    /// # Errors
    /// As [`anonymous`](Self::anonymous).
    pub fn shared(len: u64) -> io::Result<Arc<Self>> {
        Self::anonymous(len).map(Arc::new)
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the memory has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All writable bytes, for loading while the memory has no other user.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let len = self.there(0, self.len as usize);
        // SAFETY: the mapping is at least `len` bytes, initialised by the operating system, and lives as long as `self`;
        // `&mut self` says that no other reference to any of it exists.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr(), len) }
    }

    /// The address of the first byte in this process, for drivers that register the memory.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// When they are not all there; then nothing is copied.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let at = self.range(offset, into.len())?;
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and `take_out` puts nothing but initialised bytes there.
        let into = unsafe { &mut *(std::ptr::from_mut(into) as *mut [MaybeUninit<u8>]) };
        self.take_out(at, into);
        Ok(())
    }

    /// Copies `len` bytes out, to the end of `to`; what is new there is not zeroed first.
    ///
    /// # Errors
    /// When they are not all there; then nothing is copied.
    #[inline]
    pub fn append(&self, offset: u64, len: usize, to: &mut Vec<u8>) -> Result<(), OutOfBounds> {
        let at = self.range(offset, len)?;
        to.reserve(len);
        self.take_out(at, &mut to.spare_capacity_mut()[..len]);
        // SAFETY: there is room for `len` more bytes, and `take_out` has initialised them all.
        unsafe { to.set_len(to.len() + len) };
        Ok(())
    }

    /// Number of bytes, of `len` from `at` on, that are in memory or have their room on the disk.
    #[inline]
    fn there(&self, at: usize, len: usize) -> usize {
        let Some(room) = &self.room else { return len };
        (room.bytes() as usize).saturating_sub(at).min(len)
    }

    /// Initialises all of `into` with the bytes from `at` on, which must be inside. Bytes without room on the disk
    /// are zeros and are not touched: in some file systems (tmpfs) even a read takes room.
    #[inline]
    fn take_out(&self, at: usize, into: &mut [MaybeUninit<u8>]) {
        let (into, behind) = into.split_at_mut(self.there(at, into.len()));
        self.copy_out(at, into);
        behind.fill(MaybeUninit::new(0));
    }

    /// Copies the bytes from `at` on, which must be there, and initialises all of `into`.
    #[inline]
    fn copy_out(&self, at: usize, mut into: &mut [MaybeUninit<u8>]) {
        let (mut word, lead) = (at / WORD, at % WORD);
        let words = self.words();
        if lead != 0 {
            let bytes = words[word].load(Ordering::Relaxed).to_ne_bytes();
            let take = (WORD - lead).min(into.len());
            let (head, rest) = into.split_at_mut(take);
            write_all(head, &bytes[lead..lead + take]);
            (into, word) = (rest, word + 1);
        }
        let (whole, tail) = into.as_chunks_mut::<WORD>();
        let count = whole.len();
        for (to, from) in whole.iter_mut().zip(&words[word..word + count]) {
            *to = from.load(Ordering::Relaxed).to_ne_bytes().map(MaybeUninit::new);
        }
        if !tail.is_empty() {
            let bytes = words[word + count].load(Ordering::Relaxed).to_ne_bytes();
            write_all(tail, &bytes[..tail.len()]);
        }
        // Pairs with the fence of the writer of what was read. On x86-64 neither is an instruction.
        fence(Ordering::Acquire);
    }

    /// Copies bytes in. Bytes beside them in the same words stay as other threads write them.
    ///
    /// # Errors
    /// When they are not all there, or have no [room](Self::reserve); then nothing is written.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let at = self.writable(offset, bytes.len())?;
        match self.journal.get() {
            None => self.copy_in(at, bytes),
            Some((journal, memory)) => {
                for (part, bytes) in bytes.chunks(Journal::WHOLE_WRITE).enumerate() {
                    let at = at + part * Journal::WHOLE_WRITE;
                    journal.write(*memory, at as u64, bytes, || self.copy_in(at, bytes));
                }
            }
        }
        Ok(())
    }

    /// Copies bytes to `at`, where there is room for them.
    #[inline]
    fn copy_in(&self, at: usize, mut bytes: &[u8]) {
        fence(Ordering::Release);
        let (mut word, lead) = (at / WORD, at % WORD);
        let words = self.words();
        if lead != 0 {
            let (head, rest) = bytes.split_at((WORD - lead).min(bytes.len()));
            write_part(&words[word], lead, head);
            (bytes, word) = (rest, word + 1);
        }
        let (whole, tail) = bytes.as_chunks::<WORD>();
        for (from, to) in whole.iter().zip(&words[word..word + whole.len()]) {
            to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
        if !tail.is_empty() {
            write_part(&words[word + whole.len()], 0, tail);
        }
    }

    /// Changes 64 bits atomically, little endian as on the hosts that share the memory; returns the value before.
    ///
    /// # Errors
    /// When they are not all there, or `offset` is not a multiple of 8.
    pub fn update(&self, offset: u64, new: impl Fn(u64) -> u64) -> Result<u64, OutOfBounds> {
        let range = self.writable(offset, WORD)?;
        if !range.is_multiple_of(WORD) {
            return Err(OutOfBounds { offset, len: WORD as u64, size: self.len });
        }
        let change = |found: u64| Some(new(u64::from_le(found)).to_le());
        let word = &self.words()[range / WORD];
        let update = || {
            let (Ok(found) | Err(found)) = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
            u64::from_le(found)
        };
        let Some((journal, memory)) = self.journal.get() else { return Ok(update()) };
        Ok(journal.update(*memory, offset, || {
            let found = update();
            let now = new(found);
            (found, (now != found).then(|| now.to_le_bytes()))
        }))
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping begins on a page, is a multiple of 8 bytes long, is initialised by the operating system and
        // lives as long as `self`. All shared access to it is by these atomics.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU64>(), self.map.len() / WORD) }
    }

    /// Converts the offset to an index, if `len` bytes from there are inside and have their room.
    #[inline]
    fn writable(&self, offset: u64, len: usize) -> Result<usize, OutOfBounds> {
        let at = self.range(offset, len)?;
        match self.there(at, len) == len {
            true => Ok(at),
            false => {
                Err(OutOfBounds { offset, len: len as u64, size: self.there(0, self.len as usize) as u64 })
            }
        }
    }

    /// Converts the offset to an index, if `len` bytes from there are inside.
    #[inline]
    fn range(&self, offset: u64, len: usize) -> Result<usize, OutOfBounds> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(offset as usize),
            _ => Err(OutOfBounds { offset, len: len as u64, size: self.len }),
        }
    }
}

/// Initialises `to` with `bytes`, which has the same length.
#[inline]
fn write_all(to: &mut [MaybeUninit<u8>], bytes: &[u8]) {
    debug_assert_eq!(to.len(), bytes.len());
    for (to, &byte) in to.iter_mut().zip(bytes) {
        to.write(byte);
    }
}

/// Writes some bytes of a word, and leaves the others to concurrent writers.
fn write_part(word: &AtomicU64, at: usize, part: &[u8]) {
    let change = |found: u64| {
        let mut bytes = found.to_ne_bytes();
        bytes[at..at + part.len()].copy_from_slice(part);
        Some(u64::from_ne_bytes(bytes))
    };
    let (Ok(_) | Err(_)) = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reads_what_was_written_and_nothing_beside_it(
            writes in prop::collection::vec((0u64..100, prop::collection::vec(any::<u8>(), 0..50)), 1..20),
            from in 0u64..110,
            len in 0usize..50,
        ) {
            let memory = Memory::anonymous(100).unwrap();
            let mut model = [0u8; 100];
            for (offset, bytes) in writes {
                let end = offset as usize + bytes.len();
                let fits = end <= 100;
                prop_assert_eq!(memory.write(offset, &bytes).is_ok(), fits);
                if fits {
                    model[offset as usize..end].copy_from_slice(&bytes);
                }
            }
            let mut found = vec![0; len];
            let expected = model.get(from as usize..from as usize + len);
            prop_assert_eq!(memory.read(from, &mut found).is_ok(), expected.is_some());
            let mut appended = vec![7; 3];
            prop_assert_eq!(memory.append(from, len, &mut appended).is_ok(), expected.is_some());
            prop_assert_eq!(&appended[..3], &[7; 3]);
            prop_assert_eq!(&appended[3..], expected.unwrap_or(&[]));
            if let Some(expected) = expected {
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn atomics_are_aligned_bounded_and_little_endian() {
        let mut memory = Memory::anonymous(20).unwrap();
        assert_eq!(memory.update(8, |x| x + 0x0102), Ok(0));
        assert_eq!(memory.update(8, |x| x), Ok(0x0102));
        assert_eq!(memory.as_mut_slice()[8..10], [2, 1]);
        for offset in [4, 16, u64::MAX - 3] {
            assert!(memory.update(offset, |x| x).is_err(), "{offset}");
        }
        let text = memory.read(u64::MAX, &mut [0; 2]).unwrap_err().to_string();
        assert!(text.contains("not inside of 20 bytes"), "{text}");
    }

    #[test]
    fn neighbours_in_a_word_do_not_disturb_each_other() {
        let memory = Memory::shared(8).unwrap();
        std::thread::scope(|scope| {
            for (offset, byte) in [(0, 1u8), (3, 2)] {
                let memory = &memory;
                scope.spawn(move || {
                    let mut found = [0; 3];
                    for _ in 0..10_000 {
                        memory.write(offset, &[byte; 3]).unwrap();
                        memory.read(offset, &mut found).unwrap();
                        assert_eq!(found, [byte; 3]);
                    }
                });
            }
        });
    }
}

//! The journal of a region: every change of its memories in order, in a file, before the memories' own files change.
//!
//! ```text
//!   Memory::write, update ──► memory (private to the process)                readers see it at once
//!            └── record ────► buffer ──commit──► journal's file ──sync──► disk
//!                                                    │ half full: sealed, synced
//!                                                    └─apply──► memories' files ──sync──► half is free again
//! ```
//!
//! The file has two halves of a fixed size, with all of their room on the disk from the beginning. So nothing is created, renamed, removed or
//! made longer while a server runs, and a full disk does not stop a journal. One half is written; the other is free, or sealed and being
//! applied. When both are full, the thread that writes waits until one is applied.
//!
//! **Order.** A memory and its record change under one lock. So two writes of the same word stand in the journal in the order in which they
//! were done, and a write that depends on another one stands after it. What is replayed is always the first part of what was done.
//!
//! **Start.** Batches are replayed in order of their numbers, from the first one that was not applied to the first one that is missing or fails
//! its checksum. Replaying again does no harm. Each start leaves out 2⁴⁰ numbers, so that what an earlier start left in the file is never
//! taken for its own.
//!
//! **Notes.** Each batch says which ones were on the disk when it was written. So a start tells a batch that was damaged on the disk from one
//! that a power failure has torn: the former is refused, the latter ends the replay. A sync that no change follows writes a batch without a
//! change, the note: otherwise nothing would say that the last changes before a pause were on the disk.
//!
//! **Rules that make it right.** Each has a test that fails without it.
//! 1. A half is synced before any of it is applied: else files of memories would be ahead of the journal.
//! 2. Files of memories are synced before the half's header says that it was applied.
//! 3. The header is synced before the half is written again. So of two headers one is always whole, and a half whose records are still needed
//!    is never overwritten.
//! 4. The first batch after a sync begins in a sector of its own: a write that a power failure tears destroys nothing that was synced.
//! 5. A failed sync is final: the next one may succeed without having written what the failed one lost. The journal refuses all that follows.
//!
//! **Pace.** [`commit`](Journal::commit) hands all records to the operating system: what is acknowledged after it survives the process.
//! [`Pace`] decides when they survive the machine. At [`Pace::Every`], a thread syncs twice in each interval, and a commit waits while the
//! oldest change that is not on the disk is older than the interval. So a disk that is too slow makes the server slow, and what a failure
//! may take stays within the interval and the time of one sync.
//!
//! **Why a log.** Compared were a snapshot beside the file (writes all changed pages at each sync: at 1 s and random keys 4 KiB for each
//! changed 100 bytes, and twice the room), and pages with copies (a page is copied before its first write after each sync, and the order of
//! pages needs a log of its own). A log writes what has changed, twice, and its cost does not depend on the interval.
//!
//! **Cost**, in processor time of all threads for a write of 100 bytes at a random place, by the example `journal_cost` on a busy virtual machine
//! with two processors and ext4 (one run, so read them as orders of magnitude; reads take no lock and are not in it):
//!
//! | | a write a commit | 32 writes a commit |
//! |---|---|---|
//! | mapped file, no journal (an RDMA card) | 0.2 µs | 0.2 µs |
//! | mapped file and one slot for the write under way, as before (measured once, no longer in the example) | 0.9 µs | – |
//! | `--sync never` | 7.2 µs | 2.6 µs |
//! | `--sync 1` | 6.9 µs | 2.9 µs |
//! | `--sync 0` | 240 µs, and 15 ms of the disk | 16 µs, and 1.4 ms of the disk |
//!
//! Two system calls make the difference: one a commit, and one a write when the half is applied, by another thread.

mod batch;
mod disk;
mod lossy;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use batch::{BATCH_HEAD, BatchHead, Header, RECORD_HEAD, Record, Records, SECTOR};

use crate::room::ReserveError;
use crate::time::{Duration, Instant};

pub use disk::{Disk, OsDisk};
pub use lossy::{Cut, LossyDisk};

/// Largest size of a batch. A thread whose record finds no room in it writes the batch first.
const LARGEST_BATCH: usize = 256 << 10;

/// Numbers that a start leaves out, and the distance to which numbers of the former start may reach after its last batch.
const START: u64 = 1 << 40;
const STRAY: u64 = 1 << 32;

/// Time at which changes reach the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pace {
    /// Before each commit returns.
    Each,
    /// At this interval: what was committed longer ago is on the disk.
    Every(Duration),
    /// When the operating system likes, or at a stop. What is on the disk can be started from, too, but may be old.
    #[default]
    Never,
}

/// A file of a memory, to which records are applied.
#[derive(Debug)]
pub struct Target {
    /// Its path, for errors.
    pub path: PathBuf,
    /// The file.
    pub file: File,
    /// Largest size of the memory in bytes.
    pub len: u64,
}

/// A journal that cannot go on. Nothing that is done from now on reaches the disk.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{}: {what}: {reason}; what was acknowledged since the last sync may not be on the disk, so the server stops: look at the disk, then start \
     the server again", .path.display()
)]
pub struct JournalError {
    /// The file.
    pub path: PathBuf,
    /// The attempted action.
    pub what: &'static str,
    /// The operating system's error.
    pub reason: String,
}

/// A journal that is not what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JournalDamage {
    /// Its length.
    #[error("it has {found} bytes, which no journal has")]
    Length {
        /// Bytes of the file.
        found: u64,
    },
    /// Neither half has a header.
    #[error("neither of its halves has a header of generation {generation} with the right checksum")]
    Headers {
        /// Generation of the region.
        generation: u64,
    },
    /// A batch is missing that was on the disk.
    #[error(
        "batch {missing} was on the disk when batch {found} was written, and is not there or fails its checksum"
    )]
    Missing {
        /// Number of the batch.
        missing: u64,
        /// Number of a later one.
        found: u64,
    },
    /// A record with the right checksum that no program has written.
    #[error("a record in it is none, or belongs to another region")]
    Record,
}

/// Errors from opening a journal.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is damaged.
    #[error(transparent)]
    Damaged(#[from] JournalDamage),
    /// The disk has no room for what is replayed.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// The file system.
    #[error("{}: {what}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Work of a journal so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JournalCounts {
    /// Bytes that were written to the journal.
    pub bytes: u64,
    /// Batches among them.
    pub batches: u64,
    /// Syncs of the journal.
    pub syncs: u64,
    /// Time of all of these, in microseconds.
    pub sync_micros: u64,
    /// Halves that were applied.
    pub applied: u64,
    /// Commits that waited for the disk because a change was older than the interval, or for a half.
    pub waits: u64,
    /// Age of the oldest change that is not on the disk, in microseconds.
    pub unsynced_micros: u64,
}

/// Journal of the memories of a region. Any number of threads use it.
#[derive(Debug)]
pub struct Journal {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: File,
    targets: Vec<Target>,
    generation: u64,
    half_bytes: u64,
    pace: Pace,
    /// The next batch. Held while a memory and its record change.
    tail: Mutex<Vec<u8>>,
    /// The batch that is being written. Held by the thread that writes it, so that batches are written in order.
    leaving: Mutex<Vec<u8>>,
    place: Mutex<Place>,
    /// Held by the thread that applies a half.
    applying: Mutex<()>,
    /// Held by the thread that syncs the journal.
    syncing: Mutex<()>,
    /// Number of the first batch that may not be on the disk.
    synced: AtomicU64,
    failed: OnceLock<JournalError>,
    /// Rings when a half is sealed, and when the journal is closed. It belongs to `place`.
    bell: Condvar,
    counts: Counts,
}

/// Place of the next batch.
#[derive(Debug)]
struct Place {
    half: u64,
    /// Offset in the half.
    at: u64,
    /// Its number.
    next: u64,
    /// Number of the half's first batch.
    first: u64,
    /// Number of the last note. It needs no sync.
    noted: Option<u64>,
    /// The other half, while it is not applied.
    sealed: Option<Sealed>,
    /// Time of the first batch that no sync has begun for.
    since: Option<Instant>,
    /// Time of the first batch for which a sync is under way.
    syncing_since: Option<Instant>,
    /// Whether threads that wait shall end.
    is_closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sealed {
    half: u64,
    first: u64,
    next: u64,
}

#[derive(Debug, Default)]
struct Counts {
    bytes: AtomicU64,
    batches: AtomicU64,
    syncs: AtomicU64,
    sync_micros: AtomicU64,
    applied: AtomicU64,
    waits: AtomicU64,
}

impl Place {
    /// Whether the last batch is a note.
    fn is_noted(&self) -> bool {
        self.noted.is_some_and(|note| note + 1 == self.next)
    }
}

/// Locks a mutex, also after a panic: what it holds is changed in single steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Largest write that a journal keeps whole, in bytes: larger than any packet's.
    pub const WHOLE_WRITE: usize = 64 << 10;

    /// Smallest size of a half, in bytes.
    pub const SMALLEST_HALF: u64 = 512 << 10;

    /// Largest size of a half, in bytes.
    pub const LARGEST_HALF: u64 = 16 << 20;

    /// Size of a half for a region of `region` bytes on a disk with `free` bytes: a sixteenth of the region, and at most a 64th of the room.
    #[must_use]
    pub fn half_for(region: u64, free: u64) -> u64 {
        let half = (region / 16).min(free / 64).clamp(Self::SMALLEST_HALF, Self::LARGEST_HALF);
        half.next_multiple_of(SECTOR)
    }

    /// Writes an empty journal to a new file at `path`, for the region of a generation, and brings it to the disk.
    ///
    /// # Errors
    /// When the disk is full, or fails.
    pub fn create(disk: &dyn Disk, path: &Path, half_bytes: u64, generation: u64) -> Result<(), OpenError> {
        let failed = |what| move |source| OpenError::Io { path: path.to_owned(), what, source };
        let file = disk.open(path, true).map_err(failed("making it"))?;
        disk.reserve(path, &file, 0, 2 * half_bytes)?;
        let header = Header { half_bytes, generation, applied: START }.encode();
        for half in [0, half_bytes] {
            disk.write(path, &file, half, &header).map_err(failed("writing it"))?;
        }
        disk.sync(path, &file).map_err(failed("syncing it"))
    }

    /// Opens a journal, and brings the files of its memories to the state that it holds. Memories are numbered in the order of `targets`.
    ///
    /// # Errors
    /// When the journal is damaged, or the disk is full, or fails.
    pub fn open(
        disk: &Arc<dyn Disk>,
        path: &Path,
        generation: u64,
        targets: Vec<Target>,
        pace: Pace,
    ) -> Result<Arc<Self>, OpenError> {
        let failed = |what| move |source| OpenError::Io { path: path.to_owned(), what, source };
        let file = disk.open(path, false).map_err(failed("opening it"))?;
        let found = file.metadata().map_err(failed("asking for its length"))?.len();
        let half_bytes = found / 2;
        let can_be = Self::SMALLEST_HALF..=Self::LARGEST_HALF;
        if found % (2 * SECTOR) != 0 || !can_be.contains(&half_bytes) {
            return Err(JournalDamage::Length { found }.into());
        }
        let mut applied = None;
        for half in [0, half_bytes] {
            let mut sector = [0; SECTOR as usize];
            file.read_exact_at(&mut sector, half).map_err(failed("reading it"))?;
            let header = Header::decode(&sector).filter(|header| {
                let Header { half_bytes: half, generation: of, .. } = *header;
                (half, of) == (half_bytes, generation)
            });
            applied = applied.max(header.map(|header| header.applied));
        }
        let applied = applied.ok_or(JournalDamage::Headers { generation })?;
        let mut journal = Self {
            disk: Arc::clone(disk),
            path: path.to_owned(),
            file,
            targets,
            generation,
            half_bytes,
            pace,
            tail: Mutex::new(empty_batch()),
            leaving: Mutex::new(empty_batch()),
            place: Mutex::new(Place {
                half: 0,
                at: SECTOR,
                next: applied,
                first: applied,
                noted: None,
                sealed: None,
                since: None,
                syncing_since: None,
                is_closed: false,
            }),
            applying: Mutex::new(()),
            syncing: Mutex::new(()),
            synced: AtomicU64::new(applied),
            failed: OnceLock::new(),
            bell: Condvar::new(),
            counts: Counts::default(),
        };
        let end = journal.recover(applied)?;
        let place = journal.place.get_mut().unwrap_or_else(PoisonError::into_inner);
        (place.first, place.next) = (end, end);
        journal.synced.store(end, Ordering::Relaxed);
        Ok(Arc::new(journal))
    }

    /// Replays all batches from number `applied` on. Returns the number of the next batch.
    fn recover(&self, applied: u64) -> Result<u64, OpenError> {
        let mut chain = Chain { half: 0, at: SECTOR, next: applied, records: Vec::new() };
        let mut is_touched = false;
        // The chain of one half goes on at the beginning of the other one.
        for _ in 0..2 {
            for half in 0..2 {
                (chain.half, chain.at) = (half, SECTOR);
                while chain.read_next(self).map_err(self.reading())? {
                    is_touched = true;
                    for record in Records(&chain.records) {
                        self.carry_out(record?, true)?;
                    }
                }
            }
        }
        self.nothing_is_missing(chain.next)?;
        if is_touched {
            for target in &self.targets {
                let synced = self.disk.sync(&target.path, &target.file);
                synced.map_err(|source| OpenError::Io {
                    path: target.path.clone(),
                    what: "syncing it",
                    source,
                })?;
            }
        }
        let next = ((chain.next + STRAY) / START + 1) * START;
        for half in 0..2 {
            self.say_applied(half, next).map_err(|(what, source)| OpenError::Io {
                path: self.path.clone(),
                what,
                source,
            })?;
        }
        Ok(next)
    }

    /// Checks that no batch from number `end` on was on the disk: each batch says which ones were when it was written.
    fn nothing_is_missing(&self, end: u64) -> Result<(), OpenError> {
        let mut records = Vec::new();
        for half in 0..2 {
            for at in (SECTOR..self.half_bytes).step_by(SECTOR as usize) {
                let head = self.head(half, at).map_err(self.reading())?;
                let Some(BatchHead { number, synced, .. }) = head else { continue };
                if synced > end
                    && (end + 1..end + STRAY).contains(&number)
                    && self.batch(half, at, number, &mut records).map_err(self.reading())?
                {
                    return Err(JournalDamage::Missing { missing: end, found: number }.into());
                }
            }
        }
        Ok(())
    }

    fn reading(&self) -> impl FnOnce(io::Error) -> OpenError {
        |source| OpenError::Io { path: self.path.clone(), what: "reading it", source }
    }

    /// Writes the header of a half, and brings it to the disk.
    fn say_applied(&self, half: u64, applied: u64) -> Result<(), (&'static str, io::Error)> {
        let header = Header { half_bytes: self.half_bytes, generation: self.generation, applied };
        let written = self.disk.write(&self.path, &self.file, half * self.half_bytes, &header.encode());
        written.map_err(|error| ("writing a header", error))?;
        self.disk.sync(&self.path, &self.file).map_err(|error| ("syncing a header", error))
    }

    /// Applies a record to its memory's file.
    fn carry_out(&self, record: Record<'_>, is_start: bool) -> Result<(), OpenError> {
        let (Record::Write { memory, .. } | Record::Room { memory, .. }) = record;
        let target = self.targets.get(usize::from(memory)).ok_or(JournalDamage::Record)?;
        let Target { path, file, len } = target;
        match record {
            Record::Write { offset, bytes, .. } => {
                if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > *len) {
                    return Err(JournalDamage::Record.into());
                }
                let written = self.disk.write(path, file, offset, bytes);
                written.map_err(|source| OpenError::Io { path: path.clone(), what: "writing it", source })
            }
            Record::Room { bytes, .. } if bytes > *len => Err(JournalDamage::Record.into()),
            // While the server runs it was reserved before the record was written.
            Record::Room { bytes, .. } if is_start => Ok(self.disk.reserve(path, file, 0, bytes)?),
            Record::Room { .. } => Ok(()),
        }
    }

    /// Head of the batch at `at`, if there may be one.
    fn head(&self, half: u64, at: u64) -> io::Result<Option<BatchHead>> {
        if at + BATCH_HEAD as u64 > self.half_bytes {
            return Ok(None);
        }
        let mut bytes = [0; BATCH_HEAD];
        self.file.read_exact_at(&mut bytes, half * self.half_bytes + at)?;
        let head = BatchHead::decode(&bytes);
        let fits = at + BATCH_HEAD as u64 + u64::from(head.len) <= self.half_bytes;
        Ok((fits && head.len > 0).then_some(head))
    }

    /// Reads the records of the batch at `at`. Returns whether it is the one of this number, and whole.
    fn batch(&self, half: u64, at: u64, number: u64, records: &mut Vec<u8>) -> io::Result<bool> {
        let Some(head) = self.head(half, at)?.filter(|head| head.number == number) else { return Ok(false) };
        records.resize(head.len as usize, 0);
        self.file.read_exact_at(records, half * self.half_bytes + at + BATCH_HEAD as u64)?;
        Ok(head.is_of(self.generation, records))
    }

    // ---- changes of memories ----

    /// Calls `change`, which writes `bytes` at `offset` of a memory, and appends a record of it. The bytes are at most
    /// [`WHOLE_WRITE`](Self::WHOLE_WRITE).
    #[inline]
    pub(crate) fn write(&self, memory: u8, offset: u64, bytes: &[u8], change: impl FnOnce()) {
        let mut tail = self.tail(bytes.len());
        change();
        batch::append(&mut tail, Record::Write { memory, offset, bytes });
    }

    /// Calls `change`, which changes a word of a memory and returns what was there, with what is there now if that is another value.
    pub(crate) fn update(
        &self,
        memory: u8,
        offset: u64,
        change: impl FnOnce() -> (u64, Option<[u8; 8]>),
    ) -> u64 {
        let mut tail = self.tail(8);
        let (found, new) = change();
        if let Some(bytes) = new {
            batch::append(&mut tail, Record::Write { memory, offset, bytes: &bytes });
        }
        found
    }

    /// Appends a record of reserved room.
    pub(crate) fn reserved(&self, memory: u8, bytes: u64) {
        batch::append(&mut self.tail(0), Record::Room { memory, bytes });
    }

    /// The next batch, with room for a record of so many bytes.
    #[inline]
    fn tail(&self, bytes: usize) -> MutexGuard<'_, Vec<u8>> {
        debug_assert!(bytes <= Self::WHOLE_WRITE);
        loop {
            let mut tail = lock(&self.tail);
            if tail.len() + RECORD_HEAD + bytes <= LARGEST_BATCH {
                return tail;
            }
            if self.failed.get().is_some() {
                tail.truncate(BATCH_HEAD);
                return tail;
            }
            drop(tail);
            // An error is kept, and found by the next commit.
            let _ = self.flush();
        }
    }

    // ---- the file ----

    /// Hands all records to the operating system, and waits for the disk as the [pace](Pace) demands. What was done before may be
    /// acknowledged then.
    ///
    /// # Errors
    /// When the disk has failed; then nothing may be acknowledged any more.
    pub fn commit(&self) -> Result<(), JournalError> {
        self.flush()?;
        match self.pace {
            Pace::Never => Ok(()),
            Pace::Each => self.sync(),
            Pace::Every(interval) => {
                match self.oldest().is_some_and(|since| self.disk.now() > since + interval) {
                    true => {
                        self.counts.waits.fetch_add(1, Ordering::Relaxed);
                        self.sync()
                    }
                    false => Ok(()),
                }
            }
        }
    }

    /// Time of the oldest change that is not on the disk.
    fn oldest(&self) -> Option<Instant> {
        let place = lock(&self.place);
        place.syncing_since.or(place.since)
    }

    fn flush(&self) -> Result<(), JournalError> {
        let mut leaving = lock(&self.leaving);
        self.flush_into(&mut leaving)
    }

    fn flush_into(&self, leaving: &mut Vec<u8>) -> Result<(), JournalError> {
        {
            let mut tail = lock(&self.tail);
            if tail.len() == BATCH_HEAD {
                return self.check();
            }
            std::mem::swap(&mut *tail, leaving);
        }
        let written = self.write_batch(leaving);
        leaving.truncate(BATCH_HEAD);
        written
    }

    fn write_batch(&self, batch: &mut [u8]) -> Result<(), JournalError> {
        self.check()?;
        let mut place = lock(&self.place);
        if place.at + batch.len() as u64 > self.half_bytes {
            place = self.turn(place)?;
        }
        self.put(&mut place, batch)?;
        if place.since.is_none() {
            place.since = Some(self.disk.now());
        }
        Ok(())
    }

    /// Writes a batch at its place.
    fn put(&self, place: &mut Place, batch: &mut [u8]) -> Result<(), JournalError> {
        batch::seal(batch, self.generation, place.next, self.synced.load(Ordering::Relaxed));
        let written = self.disk.write(&self.path, &self.file, place.half * self.half_bytes + place.at, batch);
        written.map_err(|error| self.fail("writing it", &error))?;
        place.at += batch.len() as u64;
        place.next += 1;
        self.counts.bytes.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.counts.batches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Seals the half that is written, and goes on in the other one, when that is applied. The caller holds `leaving`.
    fn turn<'j>(&'j self, mut place: MutexGuard<'j, Place>) -> Result<MutexGuard<'j, Place>, JournalError> {
        while place.sealed.is_some() {
            drop(place);
            self.counts.waits.fetch_add(1, Ordering::Relaxed);
            self.apply()?;
            place = lock(&self.place);
        }
        let Place { half, first, next, .. } = *place;
        place.sealed = Some(Sealed { half, first, next });
        (place.half, place.at, place.first) = (1 - half, SECTOR, next);
        self.bell.notify_all();
        Ok(place)
    }

    /// Brings everything that was committed before to the disk, and waits until it is there. Threads that wait together share a sync.
    ///
    /// # Errors
    /// When the disk has failed, now or before.
    pub fn sync(&self) -> Result<(), JournalError> {
        let target = {
            let place = lock(&self.place);
            place.next - u64::from(place.is_noted())
        };
        match self.sync_to(target)? {
            true => self.note(),
            false => Ok(()),
        }
    }

    /// Writes a batch without a change, which says what was synced. The caller holds no lock: with one of a sync, it would wait for a thread
    /// that writes and waits for that sync.
    fn note(&self) -> Result<(), JournalError> {
        let mut batch = Vec::with_capacity(BATCH_HEAD + RECORD_HEAD);
        batch.resize(BATCH_HEAD, 0);
        batch::append(&mut batch, Record::Write { memory: 0, offset: 0, bytes: &[] });
        let _writer = lock(&self.leaving);
        let mut place = lock(&self.place);
        let synced = self.synced.load(Ordering::Relaxed);
        // The next change has said it already. A half is not sealed for a note.
        if place.next != synced || place.at + batch.len() as u64 > self.half_bytes {
            return Ok(());
        }
        place.noted = Some(place.next);
        self.put(&mut place, &mut batch)
    }

    /// Syncs all batches before number `target`. Returns whether any of them was not synced before.
    fn sync_to(&self, target: u64) -> Result<bool, JournalError> {
        let _one = lock(&self.syncing);
        self.check()?;
        if self.synced.load(Ordering::Relaxed) >= target {
            return Ok(false);
        }
        let (began, target) = (self.disk.now(), self.begin_sync());
        self.disk.sync(&self.path, &self.file).map_err(|error| self.fail("syncing it", &error))?;
        lock(&self.place).syncing_since = None;
        self.synced.store(target, Ordering::Relaxed);
        self.counts.syncs.fetch_add(1, Ordering::Relaxed);
        let took = (self.disk.now() - began).as_nanos() / 1_000;
        self.counts.sync_micros.fetch_add(took, Ordering::Relaxed);
        Ok(true)
    }

    /// Lets the next batch begin in a sector that the sync does not write. Returns the number of that batch.
    fn begin_sync(&self) -> u64 {
        let mut place = lock(&self.place);
        place.at = place.at.next_multiple_of(SECTOR);
        place.syncing_since = place.since.take();
        place.next
    }

    /// Brings a sealed half into the files of the memories, if there is one. Returns whether there was one.
    ///
    /// # Errors
    /// When the disk has failed, now or before.
    pub fn apply(&self) -> Result<bool, JournalError> {
        let _one = lock(&self.applying);
        let Some(Sealed { half, first, next }) = lock(&self.place).sealed else { return Ok(false) };
        self.check()?;
        self.sync_to(next)?;
        let mut chain = Chain { half, at: SECTOR, next: first, records: Vec::new() };
        while chain.next < next {
            let is_there = chain.read_next(self).map_err(|error| self.fail("reading it", &error))?;
            if !is_there {
                return Err(self.fail("reading it", &"a batch is not what was written"));
            }
            for record in Records(&chain.records) {
                let carried_out =
                    record.map_err(OpenError::from).and_then(|record| self.carry_out(record, false));
                carried_out.map_err(|error| self.fail("applying it", &error))?;
            }
        }
        for Target { path, file, .. } in &self.targets {
            self.disk.sync(path, file).map_err(|error| self.fail("syncing a memory's file", &error))?;
        }
        self.say_applied(half, next).map_err(|(what, error)| self.fail(what, &error))?;
        lock(&self.place).sealed = None;
        self.counts.applied.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Brings everything into the files of the memories: for a server that stops.
    ///
    /// # Errors
    /// When the disk has failed, now or before.
    pub fn checkpoint(&self) -> Result<(), JournalError> {
        let mut leaving = lock(&self.leaving);
        self.flush_into(&mut leaving)?;
        let place = lock(&self.place);
        if place.first < place.next {
            drop(self.turn(place)?);
        } else {
            drop(place);
        }
        self.apply().map(drop)
    }

    // ---- threads ----

    /// Waits until a half is sealed. Returns whether one is; otherwise the journal is closed.
    pub fn wait_for_sealed(&self) -> bool {
        let mut place = lock(&self.place);
        while !place.is_closed && place.sealed.is_none() {
            place = self.bell.wait(place).unwrap_or_else(PoisonError::into_inner);
        }
        !place.is_closed
    }

    /// Waits for a time. Returns whether the journal is still open.
    pub fn pause(&self, time: Duration) -> bool {
        let waited = self.bell.wait_timeout_while(lock(&self.place), time.into(), |place| !place.is_closed);
        let (place, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !place.is_closed
    }

    /// Ends threads that [wait](Self::wait_for_sealed). The journal can still be written: then its writers apply it.
    pub fn close(&self) {
        lock(&self.place).is_closed = true;
        self.bell.notify_all();
    }

    // ---- getters ----

    /// Time at which changes reach the disk.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Work so far.
    #[must_use]
    pub fn counts(&self) -> JournalCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let age = self.oldest().map_or(Duration::ZERO, |since| self.disk.now() - since);
        JournalCounts {
            bytes: get(&self.counts.bytes),
            batches: get(&self.counts.batches),
            syncs: get(&self.counts.syncs),
            sync_micros: get(&self.counts.sync_micros),
            applied: get(&self.counts.applied),
            waits: get(&self.counts.waits),
            unsynced_micros: age.as_nanos() / 1_000,
        }
    }

    /// The disk's failure, if it has failed.
    ///
    /// # Errors
    /// As it was told first.
    pub fn check(&self) -> Result<(), JournalError> {
        self.failed.get().map_or(Ok(()), |failed| Err(failed.clone()))
    }

    fn fail(&self, what: &'static str, reason: &dyn std::fmt::Display) -> JournalError {
        let path = self.path.clone();
        self.failed.get_or_init(|| JournalError { path, what, reason: reason.to_string() }).clone()
    }
}

impl Drop for Journal {
    /// Records of a process that ends in order are not lost.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

fn empty_batch() -> Vec<u8> {
    let mut batch = Vec::with_capacity(LARGEST_BATCH);
    batch.resize(BATCH_HEAD, 0);
    batch
}

/// Batches of a half, in order.
struct Chain {
    half: u64,
    at: u64,
    next: u64,
    records: Vec<u8>,
}

impl Chain {
    /// Reads the next batch. Returns whether there is one: it follows the former one at once, or in the next sector.
    fn read_next(&mut self, journal: &Journal) -> io::Result<bool> {
        for at in [self.at, self.at.next_multiple_of(SECTOR)] {
            if journal.batch(self.half, at, self.next, &mut self.records)? {
                self.at = at + (BATCH_HEAD + self.records.len()) as u64;
                self.next += 1;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

//! Owners: by what number each session has locks, and which of them live.
//!
//! ```text
//!   table of owners, registered READ only: a bit for each number
//!   ┌──────────┬──────────┬───                 lives(o) = word o / 64, bit o % 64
//!   │ 0 ... 63 │ 64 ..127 │ ...  8,192 bytes
//!   └──────────┴──────────┴───
//!     set before the session's lease is given out ... cleared after all its queue pairs were destroyed
//!   ┌──────────┬──────────┬───
//!   │ name of 0│ name of 1│ ...  524,288 bytes: the session that has the number, or 0
//!   └──────────┴──────────┴───
//! ```
//!
//! From the moment that a bit is clear nothing that the owner has posted is written any more, so a client
//! that finds one of its locks takes it over.
//!
//! Numbers go round. One that was used before may still stand in a lock that no client has taken since; so
//! when the numbers have gone round, the lock table is read once, and those that are in it, or live, are
//! passed over in the next round. A number that is neither cannot come back into the table: a dead owner
//! writes nothing, and others write their own.

use std::sync::Arc;

use fatbtree_remote_memory::{OWNER_NAMES, SessionId};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Access, Device, DeviceMemoryError, Memory, Region, RegisterError};

/// Bytes of the bits in the table of owners; after them lie the names.
const BITS_BYTES: u64 = OWNER_NAMES;

/// Bytes of the table of owners: a bit and a name of 8 bytes for each number.
const OWNERS_BYTES: u64 = BITS_BYTES + (1 << 16) * 8;

const WORDS: usize = 1 << 10;
const FIRST: u32 = 1;
const LAST: u32 = u16::MAX as u32;

/// Bytes of the lock table that are read at once.
const BLOCK: usize = 4096;

/// A bit for each number.
type Numbers = [u64; WORDS];

/// Memory of the locks.
#[derive(Debug)]
pub(crate) enum Locks {
    /// On the device.
    OnDevice(Region),
    /// In ordinary memory.
    Here(Arc<Memory>),
}

/// The numbers of a server with locks.
pub(crate) struct Owners {
    table: Arc<Memory>,
    pub(crate) region: Region,
    locks: Locks,
    next: u32,
    /// Numbers that this round passes over, beside living owners.
    passed_over: Box<Numbers>,
    /// Time at which the table was read and no number was free: it is not read again for every request.
    none_since: Option<Instant>,
    living: u32,
    rounds: u64,
}

/// Errors from assigning a number.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoOwner {
    /// All are in use.
    #[error(
        "all 65,535 owners of locks are in use: sessions have them, or locks that dead sessions have left; ask again when sessions have \
         ended or locks were taken over"
    )]
    InUse,
    /// The locks were not read.
    #[error("cannot find out which owners of locks are in use: {0}")]
    Locks(#[from] DeviceMemoryError),
}

impl Owners {
    pub(crate) fn new<D: Device>(device: &mut D, locks: Locks) -> Result<Self, RegisterError> {
        let table = Memory::shared(OWNERS_BYTES)
            .map_err(|error| RegisterError::Driver { len: OWNERS_BYTES, reason: error.to_string() })?;
        let region = device.register(&table, 0, Access::READ)?;
        Ok(Self {
            table,
            region,
            locks,
            next: FIRST,
            passed_over: Box::new([0; WORDS]),
            none_since: None,
            living: 0,
            rounds: 0,
        })
    }

    /// A number that no session has and no lock carries, for `session`. It lives from now on. Where none is free, the lock
    /// table is not read again before `pause` is over.
    pub(crate) fn begin<D: Device>(
        &mut self,
        session: SessionId,
        device: &D,
        now: Instant,
        pause: Duration,
    ) -> Result<u16, NoOwner> {
        if self.none_since.is_some_and(|since| now - since < pause) {
            return Err(NoOwner::InUse);
        }
        let number = match self.find() {
            Some(number) => number,
            None => {
                self.passed_over = self.in_use(device)?;
                (self.next, self.rounds) = (FIRST, self.rounds + 1);
                let found = self.find();
                self.none_since = if found.is_none() { Some(now) } else { None };
                found.ok_or(NoOwner::InUse)?
            }
        };
        self.next = u32::from(number) + 1;
        self.living += 1;
        self.name(number, session.0);
        self.change(number, |word, bit| word | bit);
        Ok(number)
    }

    /// Ends a number's life: after its owner's queue pairs were destroyed.
    pub(crate) fn end(&mut self, number: u16) {
        self.living -= 1;
        self.name(number, 0);
        self.change(number, |word, bit| word & !bit);
    }

    /// Numbers that live, and how often they have gone round.
    pub(crate) fn counts(&self) -> (u32, u64) {
        (self.living, self.rounds)
    }

    fn find(&self) -> Option<u16> {
        let lives = self.living();
        let is_free = |number: &u16| {
            let (word, bit) = place(*number);
            (self.passed_over[word] | lives[word]) & bit == 0
        };
        (self.next..=LAST).filter_map(|number| u16::try_from(number).ok()).find(is_free)
    }

    fn living(&self) -> Box<Numbers> {
        let mut bytes = [0; BITS_BYTES as usize];
        self.table.read(0, &mut bytes).expect("the table has so many bytes");
        let (words, _) = bytes.as_chunks::<8>();
        Box::new(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
    }

    /// Numbers that live or stand in a lock.
    fn in_use<D: Device>(&self, device: &D) -> Result<Box<Numbers>, NoOwner> {
        let mut found = self.living();
        let bytes = match &self.locks {
            Locks::OnDevice(region) => region.len,
            Locks::Here(memory) => memory.len(),
        };
        let mut block = [0; BLOCK];
        for at in (0..bytes).step_by(BLOCK) {
            let block = &mut block[..(bytes - at).min(BLOCK as u64) as usize];
            match &self.locks {
                Locks::OnDevice(region) => device.read_device_memory(region.rkey, at, block)?,
                Locks::Here(memory) => memory.read(at, block).map_err(DeviceMemoryError::from)?,
            }
            for lock in block.as_chunks::<2>().0 {
                let (word, bit) = place(u16::from_le_bytes(*lock));
                found[word] |= bit;
            }
        }
        Ok(found)
    }

    fn name(&self, number: u16, name: u64) {
        self.table
            .update(OWNER_NAMES + u64::from(number) * 8, |_| name)
            .expect("the table has a name for each number");
    }

    fn change(&self, number: u16, change: impl Fn(u64, u64) -> u64) {
        let (word, bit) = place(number);
        self.table
            .update(word as u64 * 8, |found| change(found, bit))
            .expect("the table has a bit for each number");
    }
}

fn place(number: u16) -> (usize, u64) {
    (usize::from(number / 64), 1 << (number % 64))
}

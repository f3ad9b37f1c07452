//! Records: values kept out of line.
//!
//! ```text
//! offset  0, 2 bytes  mark: twice the version and one, its low 16 bits, where an entry of the index leads here; 0 otherwise
//! offset  2, 2 bytes  magic 0xfb7c: a record; a node has its own there, so what an index read has brought is told apart
//! offset  4, 4 bytes  version
//! offset  8, 8 bytes  key, so that a reader holding a stale address detects the mismatch
//! offset 16, 4 bytes  length n of the value
//! offset 20, 4 bytes  CRC-32 of bytes 2 to 20 and of the value: of all but the mark
//! offset 24, n bytes  value
//! ```
//!
//! 24 bytes beside the value, so that a value of 1000 bytes and its record fit in one packet of 1024.
//! Larger records are read by an ordinary READ of several packets: only *index* reads must fit in one.
//!
//! Two ways lead to a record. An **entry** of the index (in a leaf, in a bucket) is the authority: a reader that comes
//! by one checks key, checksum and version, and takes no notice of the mark. A **switch** may know where the records of hot keys are, and
//! is not told when they change: a reader that is led by one checks key, checksum and mark.
//!
//! # By an entry
//!
//! A record is written before the entry that points to it and never changed in place. The checksum guards against a
//! record that is freed and written anew during a read: whatever mixture of old and new such a reader gets
//! is noticed, wherever old ends and new begins. Memory that was a record is used again for records only, and a record begins
//! where one began before.
//!
//! An entry says which *version* of the memory its record is: each record that is written to a place has another one than the
//! one before. Without it, a lookup that has read the address in an entry, and sleeps, could find a new record of the same key there:
//! a value that no entry leads to yet, while a later lookup still finds the value before. (The version has 11 bits: a lookup that
//! sleeps while its place is written 2048 times, and wakes between the record and its entry, is not told.)
//!
//! # By a switch
//!
//! A record that an update or a deletion has left behind is whole still, and a new one is whole before its entry is written. The
//! mark tells such records from the one that counts. A writer that changes a key has the lock of its entry, and writes one after the other,
//! with one doorbell:
//!
//! ```text
//!              update                       insertion             deletion
//!   WRITE      new record, mark 0           record, mark 0
//!   WRITE      old record's mark: 0                               record's mark: 0
//!   WRITE      entry                        entry                 entry
//!   WRITE      new record's mark: version   record's mark
//!              release of the lock          release               release
//! ```
//!
//! Where a record has the mark of its version, the entry of its key leads to it, at every moment: the mark comes after the entry,
//! and goes before the entry does. The next writer begins when the lock is released, so when all that is above is done; or, when a
//! writer has died, when its queue pairs are gone and nothing of it can come any more.
//!
//! A reader that is led here takes the value of a record *R* if the checksum is right and the mark is that of the version that it
//! has read. Then all bytes but the mark are those of *R*: no other WRITE to this place has the same version, and a mixture has a
//! wrong checksum. The mark was read at some moment of the lookup, before or after the other bytes, and only the WRITE that
//! publishes *R* writes it (of another record here the version would be another one, and 0 is no record's). So at that moment *R* was
//! marked, the entry led to it, and its value was the key's. That moment is where the lookup takes effect. It does not matter
//! in which order the lines were read, how long it took, or how often the place was written before and after, for whatever keys.
//! (The mark has 15 bits of the version, an entry 11: as above, a reader that sleeps while its place is written 2048 times is not
//! told.)
//!
//! A writer that dies between two WRITEs leaves a record without its mark, never a mark without its entry. Readers led to such
//! a record go one step more, until the key is written again. The same holds where a chain is posted once more after a broken
//! connection: it begins with mark 0 again.
//!
//! Where a record lies on another server than the entry, its mark is taken away with a WRITE of its own, which is waited for, before
//! the chain is posted. If the lock is lost meanwhile that WRITE may come late: it can only take a mark away.
//!
//! # Places
//!
//! Places for records have few sizes ([`place_bytes`]), so that what one record leaves another one can use.

use fatbtree_verbs::LARGEST_BUFFER;

use crate::address::GlobalAddress;
use crate::checks::Check;

/// Bytes before the value.
pub const RECORD_HEAD: usize = 24;

/// Bytes of the longest value that a structure keeps in a record. Each device has buffers for its record.
pub const MAX_VALUE: u32 = 1 << 20;
const _: () = assert!(record_bytes(MAX_VALUE) <= LARGEST_BUFFER && MAX_VALUE < 1 << LENGTH_BITS);

/// Stands where a node has its magic.
pub const RECORD_MAGIC: u16 = 0xfb7c;

/// Bytes of the mark, with which a record begins.
pub const MARK_BYTES: usize = 2;

/// The mark of a record to which no entry leads: not yet, or no more.
pub const UNPUBLISHED: [u8; MARK_BYTES] = [0; MARK_BYTES];

/// The mark of a record of this version to which an entry leads.
#[must_use]
pub const fn published(version: u32) -> [u8; MARK_BYTES] {
    ((version << 1 | 1) as u16).to_le_bytes()
}

/// Records begin at multiples of this many bytes.
pub const RECORD_ALIGN: u64 = 8;

const VERSION: usize = MARK_BYTES + 2;
const KEY: usize = VERSION + 4;
const LENGTH: usize = KEY + 8;
const SUM: usize = LENGTH + 4;
const _: () = assert!(SUM + 4 == RECORD_HEAD);

/// Bits of an entry that hold the length of a value; the other 11 of 32 hold the record's version.
const LENGTH_BITS: u32 = 21;

/// Pointer from an entry to its record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordPointer {
    /// Start address of the record.
    pub address: GlobalAddress,
    /// Bytes of the value, up to [`MAX_VALUE`]; the record has more, see [`record_bytes`].
    pub length: u32,
    /// The record's version, of which the low 11 bits count.
    pub version: u32,
}

impl RecordPointer {
    /// Bytes of it in an entry.
    pub const BYTES: usize = 12;

    /// Bytes in an entry: address, then length and version in 32 bits.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let rest = self.version << LENGTH_BITS | self.length;
        bytes[..8].copy_from_slice(&self.address.raw().to_le_bytes());
        bytes[8..].copy_from_slice(&rest.to_le_bytes());
        bytes
    }

    /// Reads it.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, r0, r1, r2, r3] = *bytes;
        let rest = u32::from_le_bytes([r0, r1, r2, r3]);
        Self {
            address: GlobalAddress(u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7])),
            length: rest & ((1 << LENGTH_BITS) - 1),
            version: rest >> LENGTH_BITS,
        }
    }

    /// Whether a record of this version is meant.
    #[must_use]
    pub const fn is_version(&self, version: u32) -> bool {
        (self.version ^ version) << LENGTH_BITS == 0
    }
}

/// Reasons for which bytes are not the record that was meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordFault {
    /// Fewer bytes than the record has.
    #[error("record of {expected} bytes expected, {found} bytes read")]
    Short {
        /// Bytes read.
        found: usize,
        /// Bytes of the record.
        expected: usize,
    },
    /// The record was written while it was read.
    #[error("torn read: the record does not match its checksum")]
    Torn,
    /// The record belongs to another key: the entry that led here is stale.
    #[error("record of key {found:#x} where a record of key {expected:#x} was expected")]
    Key {
        /// Key in the record.
        found: u64,
        /// Key looked for.
        expected: u64,
    },
    /// The place has another record of the key now: the entry that led here is stale.
    #[error("record of version {found} where version {expected} was expected")]
    Version {
        /// The record's version.
        found: u32,
        /// The entry's version, 11 bits.
        expected: u32,
    },
    /// The switches have led to a record that no entry leads to, or not yet, or no more.
    #[error("record of version {version} is not the one that its entry leads to")]
    Unpublished {
        /// The record's version.
        version: u32,
    },
}

impl RecordFault {
    /// Whether reading the same bytes again may help: the record was written while it was read.
    #[must_use]
    pub const fn is_torn(&self) -> bool {
        matches!(self, Self::Torn)
    }
}

/// Bytes of a place for a record whose value has `length` bytes: a multiple of 8, at least 32, with three significant bits. So at most
/// a fifth of it is empty, and there are four sizes between a power of two and the next.
#[must_use]
pub const fn place_bytes(length: u32) -> u32 {
    const LEAST: u32 = 32;
    let bytes = record_bytes(length);
    if bytes <= LEAST {
        return LEAST;
    }
    let step = 1 << ((bytes - 1).ilog2() - 2);
    bytes.next_multiple_of(if step > 8 { step } else { 8 })
}

/// Bytes of a record whose value has `length` bytes: what a READ of it asks for. Saturates at 4 GiB.
#[must_use]
pub const fn record_bytes(length: u32) -> u32 {
    length.saturating_add(RECORD_HEAD as u32)
}

/// Header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHead {
    mark: [u8; MARK_BYTES],
    magic: u16,
    version: u32,
    key: u64,
    length: u32,
    sum: u32,
}

impl RecordHead {
    /// Reads it.
    #[inline]
    #[must_use]
    pub fn parse(head: &[u8; RECORD_HEAD]) -> Self {
        let [m0, m1, g0, g1, v0, v1, v2, v3, k0, k1, k2, k3, k4, k5, k6, k7, l0, l1, l2, l3, s0, s1, s2, s3] =
            *head;
        Self {
            mark: [m0, m1],
            magic: u16::from_le_bytes([g0, g1]),
            version: u32::from_le_bytes([v0, v1, v2, v3]),
            key: u64::from_le_bytes([k0, k1, k2, k3, k4, k5, k6, k7]),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            sum: u32::from_le_bytes([s0, s1, s2, s3]),
        }
    }

    /// Key of the record.
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.key
    }

    /// Version of the record.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Bytes of the value.
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Version and checksum: another number after each writing of a place.
    #[must_use]
    pub const fn stamp(&self) -> u64 {
        (self.version as u64) << 32 | self.sum as u64
    }

    /// Whether a switch may lead readers here: it is the record that its key's entry names, and is marked so.
    #[must_use]
    pub fn is_published(&self, key: u64, pointer: RecordPointer) -> bool {
        let is_it = self.magic == RECORD_MAGIC && self.key == key && self.length == pointer.length;
        is_it && pointer.is_version(self.version) && self.mark == published(self.version)
    }
}

/// Writes a record over all of `bytes`, with a mark: [`UNPUBLISHED`] or [`published`]; `fill` writes the value.
///
/// # Panics
/// When `bytes` has no room for the head, or 4 GiB or more.
#[inline]
pub fn write_record(
    bytes: &mut [u8],
    key: u64,
    version: u32,
    mark: [u8; MARK_BYTES],
    fill: impl FnOnce(&mut [u8]),
) {
    let (head, value) = bytes.split_first_chunk_mut::<RECORD_HEAD>().expect("a record has at least its head");
    let length = u32::try_from(value.len()).expect("values have less than 4 GiB");
    head[..MARK_BYTES].copy_from_slice(&mark);
    head[MARK_BYTES..VERSION].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
    head[VERSION..KEY].copy_from_slice(&version.to_le_bytes());
    head[KEY..LENGTH].copy_from_slice(&key.to_le_bytes());
    head[LENGTH..SUM].copy_from_slice(&length.to_le_bytes());
    fill(value);
    let sum = sum(head, value);
    head[SUM..].copy_from_slice(&sum.to_le_bytes());
}

/// The version of a record that is written over `memory`, of which nothing else is known: one more than what is found there.
#[must_use]
pub fn next_record_version(memory: &[u8]) -> u32 {
    let found = memory.get(VERSION..).and_then(|bytes| bytes.first_chunk::<4>());
    found.map_or(1, |bytes| u32::from_le_bytes(*bytes).wrapping_add(1))
}

/// Checks a record that was read where its entry said, and gives out its value.
///
/// # Errors
/// When it is another key's, is cut short, has another length or version, or was written meanwhile.
#[inline]
pub fn read_record(bytes: &[u8], key: u64, pointer: RecordPointer) -> Result<&[u8], RecordFault> {
    // A record of another length does not match: the sum is taken over as many bytes as the entry says.
    let (found, value) = checked(bytes, key, |_| pointer.length)?;
    if !pointer.is_version(found.version) && Check::RecordVersion.on() {
        return Err(RecordFault::Version { found: found.version, expected: pointer.version });
    }
    Ok(value)
}

/// Whether a record begins here, or what is left of one: so an index read's answer is told from a node.
#[inline]
#[must_use]
pub fn is_record(bytes: &[u8]) -> bool {
    let magic = bytes.get(MARK_BYTES..).and_then(|bytes| bytes.first_chunk::<2>());
    magic.is_some_and(|magic| u16::from_le_bytes(*magic) == RECORD_MAGIC)
}

/// Checks a record to which the switches have led, and gives out its value. `bytes` may hold more.
///
/// # Errors
/// When it is another key's, is longer than what was read, was written meanwhile, or no entry leads to it.
#[inline]
pub fn read_hinted(bytes: &[u8], key: u64) -> Result<&[u8], RecordFault> {
    let (found, value) = checked(bytes, key, |head| head.length)?;
    if found.mark != published(found.version) && Check::Published.on() {
        return Err(RecordFault::Unpublished { version: found.version });
    }
    Ok(value)
}

/// Checks key and checksum.
#[inline]
fn checked(
    bytes: &[u8],
    key: u64,
    length: impl FnOnce(&RecordHead) -> u32,
) -> Result<(RecordHead, &[u8]), RecordFault> {
    let short = |expected| RecordFault::Short { found: bytes.len(), expected };
    let (head, value) = bytes.split_first_chunk::<RECORD_HEAD>().ok_or_else(|| short(RECORD_HEAD))?;
    let found = RecordHead::parse(head);
    let length = length(&found);
    let value = value.get(..length as usize).ok_or_else(|| short(record_bytes(length) as usize))?;
    if found.key != key && Check::RecordKey.on() {
        return Err(RecordFault::Key { found: found.key, expected: key });
    }
    if found.sum != sum(head, value) && Check::RecordChecksum.on() {
        return Err(RecordFault::Torn);
    }
    Ok((found, value))
}

fn sum(head: &[u8; RECORD_HEAD], value: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head[MARK_BYTES..SUM]);
    hasher.update(value);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(length: u32, version: u32) -> RecordPointer {
        RecordPointer { address: GlobalAddress::new(1, 64), length, version }
    }

    #[test]
    fn pointers_are_read_as_they_were_written() {
        for (length, version) in [(0, 0), (1 << 20, 2047), (1000, 77)] {
            let written = pointer(length, version);
            assert_eq!(RecordPointer::from_bytes(&written.to_bytes()), written);
            assert!(written.is_version(version + 2048) && !written.is_version(version + 1));
        }
        let golden = [64, 0, 0, 0, 0, 0, 1, 0, 3, 0, 0x40, 0];
        assert_eq!(pointer(3, 2).to_bytes(), golden);
    }

    #[test]
    fn places_have_few_sizes_and_little_is_empty() {
        let mut sizes = std::collections::BTreeSet::new();
        for length in 0..=1 << 20 {
            let (bytes, place) = (record_bytes(length), place_bytes(length));
            assert!(place >= bytes && place.is_multiple_of(RECORD_ALIGN as u32), "{length}");
            assert!(place == 32 || place * 4 <= bytes * 5 || place - bytes < 8, "{length}: {place}");
            sizes.insert(place);
        }
        assert!(sizes.len() < 64, "{}", sizes.len());
        assert_eq!((place_bytes(0), place_bytes(1000), place_bytes(13)), (32, 1024, 40));
    }

    #[test]
    fn golden_bytes_and_every_fault() {
        let mut bytes = [0; 27];
        write_record(&mut bytes, 0x0102, 0x0a0b, published(0x0a0b), |value| value.copy_from_slice(b"abc"));
        assert_eq!(bytes[..8], *b"\x17\x14\x7c\xfb\x0b\x0a\0\0");
        assert_eq!(bytes[8..20], *b"\x02\x01\0\0\0\0\0\0\x03\0\0\0");
        assert_eq!(bytes[24..], *b"abc");
        assert_eq!(read_record(&bytes, 0x0102, pointer(3, 0x0a0b)), Ok(&b"abc"[..]));
        assert_eq!(
            read_record(&bytes, 7, pointer(3, 0x0a0b)),
            Err(RecordFault::Key { found: 0x0102, expected: 7 })
        );
        assert_eq!(
            read_record(&bytes[..26], 0x0102, pointer(3, 0x0a0b)),
            Err(RecordFault::Short { found: 26, expected: 27 })
        );
        let other = RecordFault::Version { found: 0x0a0b, expected: 0x0a0c };
        assert_eq!(read_record(&bytes, 0x0102, pointer(3, 0x0a0c)), Err(other));
        for bit in 0..27 * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let by_entry = read_record(&bytes, 0x0102, pointer(3, 0x0a0b));
            match by_entry {
                Ok(value) => assert!(bit < 16 && *value == *b"abc", "bit {bit}: the mark says nothing here"),
                Err(fault) => assert_eq!(fault.is_torn(), !(64..128).contains(&bit), "bit {bit}: {fault}"),
            }
            assert!(read_hinted(&bytes, 0x0102).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        // A shorter record of the same key, after whose end old bytes follow.
        let mut longer = [0; 34];
        write_record(&mut longer[..27], 1, 1, UNPUBLISHED, |value| value.fill(7));
        assert!(read_record(&longer, 1, pointer(10, 1)).is_err());
    }

    /// Without an entry's word for it: the record says itself how long it is, and that an entry leads to it.
    #[test]
    fn switches_may_lead_to_published_records_only() {
        for version in [0, 1, 0x7fff, 0x8000, 0xffff, 0x0001_0000, u32::MAX] {
            let mut bytes = [0xee; 64];
            write_record(&mut bytes[..27], 5, version, UNPUBLISHED, |value| value.copy_from_slice(b"abc"));
            assert!(is_record(&bytes));
            assert_eq!(read_hinted(&bytes, 5), Err(RecordFault::Unpublished { version }));
            for other in [version.wrapping_sub(1), version.wrapping_add(1), !version] {
                bytes[..MARK_BYTES].copy_from_slice(&published(other));
                assert_eq!(
                    read_hinted(&bytes, 5),
                    Err(RecordFault::Unpublished { version }),
                    "{version} {other}"
                );
            }
            bytes[..MARK_BYTES].copy_from_slice(&published(version));
            assert_eq!(read_hinted(&bytes, 5), Ok(&b"abc"[..]));
            assert_eq!(read_hinted(&bytes, 6), Err(RecordFault::Key { found: 5, expected: 6 }));
            assert_eq!(read_hinted(&bytes[..26], 5), Err(RecordFault::Short { found: 26, expected: 27 }));
            assert!(read_hinted(&bytes[..23], 5).is_err() && !is_record(&bytes[..3]));
        }
        assert!(!is_record(&[0; 64]));
    }

    /// Old head, new middle, old tail: what versions at both ends would let pass.
    #[test]
    fn a_new_middle_in_an_old_record_is_noticed() {
        let record = |version, byte| {
            let mut bytes = [0; 200];
            write_record(&mut bytes, 9, version, published(version), |value| value.fill(byte));
            bytes
        };
        let (mut old, new) = (record(1, 0xaa), record(2, 0xbb));
        old[64..128].copy_from_slice(&new[64..128]);
        assert_eq!(read_record(&old, 9, pointer(176, 1)), Err(RecordFault::Torn));
    }

    #[test]
    fn thousand_byte_value_fits_one_packet() {
        assert!(record_bytes(1000) <= 1024);
    }
}

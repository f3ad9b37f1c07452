//! Bytes of a journal: headers of its halves, batches, and the records in them.
//!
//! ```text
//!   header   magic 8 | half's bytes 8 | generation 8 | applied 8 | CRC-32 of these 4          alone in its first sector
//!   batch    number 8 | synced 8 | bytes of records 4 | CRC-32 4 | records
//!   record   memory 1, kind 1, offset 6 | bytes 4 | bytes of a write
//! ```
//!
//! All numbers are little endian. The checksum of a batch begins with the region's generation and covers number, length and records, so that
//! another region's batch is none.

use super::JournalDamage;

/// Bytes of a sector: no write touches a sector that holds what was synced before.
pub(super) const SECTOR: u64 = 4096;

const MAGIC: [u8; 8] = *b"FBTjrnl1";
const HEADER_BYTES: usize = 36;

/// Bytes before the records of a batch.
pub(super) const BATCH_HEAD: usize = 24;
/// Bytes before the bytes of a record.
pub(super) const RECORD_HEAD: usize = 12;

/// Header of a half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) half_bytes: u64,
    pub(super) generation: u64,
    /// Number of the first batch that may not be in the memories' files.
    pub(super) applied: u64,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; SECTOR as usize] {
        let mut sector = [0; SECTOR as usize];
        sector[..8].copy_from_slice(&MAGIC);
        sector[8..16].copy_from_slice(&self.half_bytes.to_le_bytes());
        sector[16..24].copy_from_slice(&self.generation.to_le_bytes());
        sector[24..32].copy_from_slice(&self.applied.to_le_bytes());
        let sum = crc32fast::hash(&sector[..32]);
        sector[32..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
        sector
    }

    /// `None` if the bytes are none that were written.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        let is_whole = bytes[..8] == MAGIC && u32_at(bytes, 32) == crc32fast::hash(&bytes[..32]);
        is_whole.then(|| Self {
            half_bytes: u64_at(bytes, 8),
            generation: u64_at(bytes, 16),
            applied: u64_at(bytes, 24),
        })
    }
}

/// What a batch says before its records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BatchHead {
    pub(super) number: u64,
    /// Batches before this one were on the disk when this one was written.
    pub(super) synced: u64,
    /// Bytes of its records.
    pub(super) len: u32,
    pub(super) sum: u32,
}

impl BatchHead {
    pub(super) fn decode(bytes: &[u8; BATCH_HEAD]) -> Self {
        Self {
            number: u64_at(bytes, 0),
            synced: u64_at(bytes, 8),
            len: u32_at(bytes, 16),
            sum: u32_at(bytes, 20),
        }
    }

    /// Whether these records are the batch's.
    pub(super) fn is_of(&self, generation: u64, records: &[u8]) -> bool {
        self.sum == sum(generation, self.number, self.synced, records)
    }
}

/// Writes the head of a batch before its records; `batch` begins with room for it.
pub(super) fn seal(batch: &mut [u8], generation: u64, number: u64, synced: u64) {
    let (head, records) = batch.split_at_mut(BATCH_HEAD);
    head[..8].copy_from_slice(&number.to_le_bytes());
    head[8..16].copy_from_slice(&synced.to_le_bytes());
    head[16..20].copy_from_slice(&(records.len() as u32).to_le_bytes());
    head[20..].copy_from_slice(&sum(generation, number, synced, records).to_le_bytes());
}

fn sum(generation: u64, number: u64, synced: u64, records: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for word in [generation, number, synced, records.len() as u64] {
        hasher.update(&word.to_le_bytes());
    }
    hasher.update(records);
    hasher.finalize()
}

/// A change of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Record<'b> {
    /// Bytes that were written.
    Write { memory: u8, offset: u64, bytes: &'b [u8] },
    /// The file has at least so many bytes, all with room on the disk.
    Room { memory: u8, bytes: u64 },
}

const WRITE: u8 = 0;
const ROOM: u8 = 1;

/// Appends a record.
pub(super) fn append(to: &mut Vec<u8>, record: Record<'_>) {
    let (memory, kind, offset, bytes) = match record {
        Record::Write { memory, offset, bytes } => (memory, WRITE, offset, bytes),
        Record::Room { memory, bytes } => (memory, ROOM, bytes, &[][..]),
    };
    let place = u64::from(memory) << 56 | u64::from(kind) << 48 | offset;
    to.extend_from_slice(&place.to_le_bytes());
    to.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    to.extend_from_slice(bytes);
}

/// Records of a batch whose checksum is right.
pub(super) struct Records<'b>(pub(super) &'b [u8]);

impl<'b> Iterator for Records<'b> {
    type Item = Result<Record<'b>, JournalDamage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.0);
        let Some((head, rest)) = rest.split_at_checked(RECORD_HEAD) else {
            return Some(Err(JournalDamage::Record));
        };
        let (place, len) = (u64_at(head, 0), u32_at(head, 8) as usize);
        let Some((bytes, rest)) = rest.split_at_checked(len) else { return Some(Err(JournalDamage::Record)) };
        self.0 = rest;
        let (memory, offset) = ((place >> 56) as u8, place & ((1 << 48) - 1));
        Some(match (place >> 48) as u8 {
            WRITE => Ok(Record::Write { memory, offset, bytes }),
            ROOM => Ok(Record::Room { memory, bytes: offset }),
            _ => Err(JournalDamage::Record),
        })
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

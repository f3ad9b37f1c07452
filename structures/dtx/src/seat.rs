//! Seats: where a coordinator says what it is, and the log of its transaction.
//!
//! ```text
//!   0    claim       word of the coordinator that has the seat, or 0; changed by compare-and-swap
//!   16   roster      word │ CRC-32 │ for each server: session 8, owner 2, seat 2
//!   r    log         sequence number, or 0 │ CRC-32 │ entries │ an entry for each item
//! ```
//!
//! A coordinator has a seat on each server, for one transaction at a time. The roster is written once, when the seats are claimed. It says
//! under which session the coordinator writes to each server, so other clients can find out where it is dead. The log is the transaction's
//! undo log: what each item was before. It lies on each server with a replica of such an item. Its checksum covers the coordinator's word, so
//! what a seat's former coordinator has logged is no log of the next one.

use arrayvec::ArrayVec;
use fatbtree_remote_memory::{Owner, SessionId, word_at};

use crate::item::{Presence, write_body};
use crate::layout::{MAX_SERVERS, MAX_WRITES, Place, Shape};
use crate::word::Word;

/// Offset of the roster in a seat.
pub(crate) const ROSTER: u64 = 16;

const ROSTER_HEAD: usize = 16;
const MEMBER: usize = 16;
/// Offset in a log of its checksum and the length of its entries. They stay when the log is closed.
pub(crate) const LOG_SUM: u64 = 8;

/// Bytes of a log before its entries: sequence, checksum, bytes of the entries.
pub(crate) const LOG_HEAD: usize = 16;
const ENTRY_HEAD: usize = 24;
/// Stands for the head of a node where a slot's number is expected.
const NODE: u8 = u8::MAX;

/// Layout of a seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SeatLayout {
    pub(crate) servers: u8,
    pub(crate) writes: u8,
    pub(crate) value_bytes: u16,
}

impl SeatLayout {
    /// Offset of the log in a seat.
    pub(crate) const fn log(self) -> u64 {
        let roster = ROSTER + (ROSTER_HEAD + self.servers as usize * MEMBER) as u64;
        roster.next_multiple_of(64)
    }

    /// Bytes of a seat, a multiple of 64.
    pub(crate) const fn bytes(self) -> u64 {
        let entry = (ENTRY_HEAD as u64 + self.value_bytes as u64).next_multiple_of(8);
        (self.log() + LOG_HEAD as u64 + self.writes as u64 * entry).next_multiple_of(64)
    }
}

/// A coordinator on one server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    pub(crate) owner: Owner,
    pub(crate) seat: u16,
}

impl Member {
    pub(crate) const fn word(self) -> Word {
        Word::new(self.owner, self.seat)
    }
}

/// A coordinator: its session, owner number and seat on each server, by position.
pub(crate) type Roster = ArrayVec<Member, MAX_SERVERS>;

/// Appends the roster of a coordinator for its seat with this word.
pub(crate) fn write_roster(to: &mut Vec<u8>, word: Word, roster: &[Member]) {
    let begin = to.len();
    to.extend_from_slice(&word.raw().to_le_bytes());
    to.extend_from_slice(&[0; 8]);
    for Member { owner, seat } in roster {
        to.extend_from_slice(&owner.session.0.to_le_bytes());
        to.extend_from_slice(&owner.number.to_le_bytes());
        to.extend_from_slice(&seat.to_le_bytes());
        to.extend_from_slice(&[0; 4]);
    }
    let sum = crc32fast::hash(&to[begin..]);
    to[begin + 8..begin + 12].copy_from_slice(&sum.to_le_bytes());
}

/// A seat as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    /// The coordinator that has the seat: its own, or one that recovers the transaction of the log.
    pub(crate) claim: Option<Word>,
    /// The coordinator that has written the roster, with its word here.
    pub(crate) roster: Option<(Word, Roster)>,
    /// The log, if it is open.
    pub(crate) log: Option<Log>,
}

impl Seat {
    /// Reads the bytes of a seat, whatever they are.
    pub(crate) fn parse(bytes: &[u8], shape: &Shape) -> Self {
        let layout = shape.seat_layout();
        let roster = parse_roster(bytes.get(ROSTER as usize..).unwrap_or_default(), layout.servers);
        let log = bytes.get(layout.log() as usize..).unwrap_or_default();
        let log = roster.as_ref().and_then(|(word, _)| Log::parse(log, *word, shape));
        Self { claim: Word::of(word_at(bytes, 0)), roster, log }
    }

    /// Whether the coordinator of this word has, or had, the seat, and its transaction is logged here.
    pub(crate) fn is_open_for(&self, word: Word) -> bool {
        self.is_of(word) && self.log.is_some()
    }

    /// Whether the last roster is that of the coordinator of this word.
    pub(crate) fn is_of(&self, word: Word) -> bool {
        self.roster.as_ref().is_some_and(|(of, _)| *of == word)
    }
}

fn parse_roster(bytes: &[u8], servers: u8) -> Option<(Word, Roster)> {
    let bytes = bytes.get(..ROSTER_HEAD + usize::from(servers) * MEMBER)?;
    let of = Word::of(word_at(bytes, 0))?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..8]);
    hasher.update(&[0; 8]);
    hasher.update(&bytes[ROSTER_HEAD..]);
    if word_at(bytes, 8) != u64::from(hasher.finalize()) {
        return None;
    }
    let member = |bytes: &[u8]| {
        let numbers = word_at(bytes, 8);
        let owner = Owner { session: SessionId(word_at(bytes, 0)), number: numbers as u16 };
        Member { owner, seat: (numbers >> 16) as u16 }
    };
    Some((of, bytes[ROSTER_HEAD..].chunks_exact(MEMBER).map(member).collect()))
}

/// Number of a transaction, whose low bits are in the [versions](crate::item::next_version) that it writes.
pub(crate) fn transaction_number(roster: &[Member], sequence: u64) -> u64 {
    let first = roster.first().map_or(0, |first| first.owner.session.0 ^ u64::from(first.seat) << 48);
    fatbtree_remote_memory::mix(first ^ sequence)
}

/// What an item was before a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Before {
    pub(crate) place: Place,
    pub(crate) version: u64,
    pub(crate) key: u64,
    pub(crate) presence: Presence,
}

/// Appends an entry of a log.
pub(crate) fn write_entry(to: &mut Vec<u8>, before: &Before, value: &[u8]) {
    let Before { place, version, key, presence } = *before;
    let presence = match presence {
        Presence::Free => 0,
        Presence::Present => 1,
        Presence::Deleted => 2,
    };
    to.extend_from_slice(&[place.table, place.slot.unwrap_or(NODE), presence, 0]);
    to.extend_from_slice(&place.node.to_le_bytes());
    to.extend_from_slice(&version.to_le_bytes());
    to.extend_from_slice(&key.to_le_bytes());
    to.extend_from_slice(value);
    to.resize(to.len().next_multiple_of(8), 0);
}

/// Appends the head of a log, with the checksum of its entries for the coordinator with this word.
pub(crate) fn write_log_head(to: &mut Vec<u8>, sequence: u64, word: Word, entries: &[u8]) {
    to.extend_from_slice(&sequence.to_le_bytes());
    to.extend_from_slice(&log_sum(sequence, word, entries).to_le_bytes());
    to.extend_from_slice(&(entries.len() as u32).to_le_bytes());
}

fn log_sum(sequence: u64, word: Word, entries: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&sequence.to_le_bytes());
    hasher.update(&word.raw().to_le_bytes());
    hasher.update(entries);
    hasher.finalize()
}

/// The undo log of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Log {
    /// Number of the transaction among its coordinator's.
    pub(crate) sequence: u64,
    pub(crate) entries: ArrayVec<Before, { MAX_WRITES as usize }>,
    /// Body of each item as it was, one after the other.
    pub(crate) bodies: Vec<u8>,
}

impl Log {
    /// Reads an open log. `None` if it is closed, or was not written to its end: then its coordinator has not written any item.
    fn parse(bytes: &[u8], of: Word, shape: &Shape) -> Option<Self> {
        let (sequence, numbers) = (word_at(bytes, 0), word_at(bytes, 8));
        let entries = bytes.get(LOG_HEAD..)?.get(..(numbers >> 32) as usize)?;
        if sequence == 0 || numbers as u32 != log_sum(sequence, of, entries) {
            return None;
        }
        let mut log = Self { sequence, entries: ArrayVec::new(), bodies: Vec::new() };
        let mut rest = entries;
        while !rest.is_empty() {
            let presence = match rest.get(2)? {
                0 => Presence::Free,
                1 => Presence::Present,
                _ => Presence::Deleted,
            };
            let slot = (rest[1] != NODE).then_some(rest[1]);
            let place = Place { table: rest[0], node: (word_at(rest, 0) >> 32) as u32, slot };
            let table = shape.tables().get(usize::from(place.table))?;
            if place.node >= table.nodes || slot.is_some_and(|slot| slot >= table.slots) {
                return None;
            }
            let before = Before { place, version: word_at(rest, 8), key: word_at(rest, 16), presence };
            let value = rest.get(ENTRY_HEAD..)?.get(..shape.value_bytes_at(place))?;
            write_body(&mut log.bodies, before.version, before.key, presence, value);
            log.entries.try_push(before).ok()?;
            rest = rest.get((ENTRY_HEAD + value.len()).next_multiple_of(8)..)?;
        }
        Some(log)
    }

    /// Each item's place and body before the transaction.
    pub(crate) fn bodies<'l>(&'l self, shape: &'l Shape) -> impl Iterator<Item = (&'l Before, &'l [u8])> {
        let mut rest = &self.bodies[..];
        self.entries.iter().map(move |before| {
            let bytes = crate::item::BODY_HEAD + shape.value_bytes_at(before.place);
            let (body, behind) = rest.split_at(bytes);
            rest = behind;
            (before, body)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::TableShape;

    fn member(number: u16) -> Member {
        Member { owner: Owner { session: SessionId(u64::from(number) << 40 | 77), number }, seat: number % 4 }
    }

    proptest! {
        #[test]
        fn a_seat_is_read_as_it_was_written_and_every_bit_matters(
            numbers in prop::collection::vec(1..u16::MAX, 3),
            written in prop::collection::vec((0..5_u32, 0..4_u8, 1..u64::MAX, any::<u64>()), 1..8),
            bit: prop::sample::Index,
        ) {
            let table = TableShape { nodes: 5, value_bytes: 12, slots: 3 };
            let shape = Shape::new(&[table; 2], 0b111, 1).unwrap();
            let layout = shape.seat_layout();
            let roster: Roster = numbers.iter().map(|&number| member(number)).collect();
            let word = roster[1].word();
            let (mut entries, mut expected) = (Vec::new(), Vec::new());
            for (node, slot, version, key) in written {
                let place = Place { table: 1, node, slot: (slot < 3).then_some(slot) };
                let before = Before { place, version, key, presence: Presence::Present };
                write_entry(&mut entries, &before, &[7; 12][..shape.value_bytes_at(place)]);
                expected.push(before);
            }
            let mut bytes = word.raw().to_le_bytes().to_vec();
            bytes.resize(ROSTER as usize, 0);
            write_roster(&mut bytes, word, &roster);
            bytes.resize(layout.log() as usize, 0);
            let log_at = bytes.len();
            write_log_head(&mut bytes, 5, word, &entries);
            bytes.extend_from_slice(&entries);
            prop_assert!(bytes.len() as u64 <= layout.bytes());
            let seat = Seat::parse(&bytes, &shape);
            prop_assert_eq!((seat.claim, &seat.roster), (Some(word), &Some((word, roster.clone()))));
            prop_assert!(seat.is_open_for(word));
            let log = seat.log.unwrap();
            prop_assert_eq!(&log.entries[..], &expected[..]);
            for (before, body) in log.bodies(&shape) {
                let item = [&[0; BODY_OF_LOCK][..], body].concat();
                let head = crate::item::Head::parse(&item, shape.value_bytes_at(before.place));
                prop_assert!(head.is_whole && head.version == before.version && head.key == before.key);
            }
            // The log of the seat's former coordinator is none of its present one.
            let mut other = bytes.clone();
            other.truncate(ROSTER as usize);
            write_roster(&mut other, roster[2].word(), &roster);
            let written = other.len();
            other.extend_from_slice(&bytes[written..]);
            let other = Seat::parse(&other, &shape);
            prop_assert!(other.is_of(roster[2].word()) && other.log.is_none());
            // A log that was written in part, or closed, is none.
            let at = log_at * 8 + bit.index((bytes.len() - log_at) * 8);
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert_eq!(Seat::parse(&bytes, &shape).log, None);
            bytes[20] ^= 1;
            prop_assert_eq!(Seat::parse(&bytes, &shape).roster, None);
        }
    }

    const BODY_OF_LOCK: usize = crate::item::BODY;

    #[test]
    fn zeros_are_a_free_seat() {
        let shape = Shape::new(&[TableShape { nodes: 1, value_bytes: 8, slots: 1 }], 1, 0).unwrap();
        let seat = Seat::parse(&[0; 500], &shape);
        assert!(seat.claim.is_none() && seat.roster.is_none() && seat.log.is_none());
    }
}

//! The code of keys: what makes the eight bytes of a key that the first layer has of it.

use std::fmt;
use std::sync::{Mutex, PoisonError};

mod choose;
mod model;

use super::key::{Spelled, WORD, least_key};
use fatbtree_remote_memory::byte_keys::MAX_KEY_BYTES;
use model::{Model, Walk};

/// How keys of bytes become words of the first layer, which switches lead: in their order, and with so much of each key as eight bytes can
/// have.
///
/// Without a code, a word is the first eight bytes of the key. A load chooses a code from its own keys, for all servers; it stays until the
/// next load. It is an arithmetic code (Witten, Neal and Cleary 1987) whose model knows what usually follows two bytes: of
/// `https://www.`, which all keys begin with, nothing is left in the word, and a letter that can be guessed takes a fraction of a bit. So a
/// word has 40 bytes of a URL, and tells it from others. Codes of whole bits for each letter or group of letters, as HOPE (SIGMOD 2020) has them,
/// were tried, and borders at equal distances among the keys: at equal size of the description, both leave many more URLs alike.
///
/// ```text
///   key        h    t    t    p    s   …   a      p       p      l    e     …
///   bits     0.01 0.01 0.01 0.01 0.01     4.1    2.9     1.2    0.9  0.3         for example, until 64 bits are full
/// ```
///
/// **Order.** Each byte divides what is left of the range of words among all 256 bytes, in their order, and none gets nothing. So
/// the words of two keys are in the order of the keys, of keys that no load had as well. Keys that share a word lie in a layer below its
/// entry, which begins behind the bytes that all possible keys of this word have in common.
///
/// **Form.** A description of the model, up to [`MOST`](Self::MOST) bytes, which is what regions, descriptions of servers and answers to
/// queries carry:
///
/// ```text
///   row      bits 0-1: bytes of the context, 0 to 2; bits 2-4: logarithm of the width of bytes that are not listed
///            number of listed bytes, less one
///            context: last byte, byte before it
///            of each listed byte: byte, weight
///   rows     strictly ascending in length and bytes of their contexts; listed bytes strictly ascending
/// ```
///
/// Two zeros stand before the key's first byte. A byte has the row of the longest context that the model has. The width of a row is 2¹⁶; what
/// bytes without weights leave of it is divided by weights.
///
/// A process keeps each model that it has seen, so that a code is copied as a number is. A load chooses one model, so they are few;
/// [`MOST_KNOWN`](Self::MOST_KNOWN) is a bound for what hostile peers can make a process keep.
#[derive(Clone, Copy, Default)]
pub struct KeyCode(Option<&'static Model>);

/// A description that is none of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// It is longer than any.
    #[error(
        "expected the code of a tree's keys in at most {} bytes, found {found}; load the tree again",
        KeyCode::MOST
    )]
    Long {
        /// Its bytes.
        found: usize,
    },
    /// A row is cut, out of order, or has what no row has.
    #[error("the row at byte {at} of a code of keys is damaged; load the tree again")]
    Row {
        /// Where it begins.
        at: usize,
    },
    /// This process has seen too many.
    #[error(
        "this process has met {} codes of keys, as many as it may keep; start it again",
        KeyCode::MOST_KNOWN
    )]
    Many,
}

/// All models that this process has seen.
static KNOWN: Mutex<Vec<&'static Model>> = Mutex::new(Vec::new());

impl KeyCode {
    /// Bytes of the longest description.
    pub const MOST: usize = Self::AREA - 8;

    /// Bytes of a region that it has.
    pub const AREA: usize = 4096;

    /// Models that a process keeps.
    pub const MOST_KNOWN: usize = 4096;

    /// A word is the first eight bytes of a key.
    pub const NONE: Self = Self(None);

    /// The code with this description.
    ///
    /// # Errors
    /// See [`CodeError`].
    pub fn new(description: &[u8]) -> Result<Self, CodeError> {
        if description.is_empty() {
            return Ok(Self::NONE);
        }
        if description.len() > Self::MOST {
            return Err(CodeError::Long { found: description.len() });
        }
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = known.iter().find(|model| model.description() == description) {
            return Ok(Self(Some(model)));
        }
        let model = Model::parse(description).map_err(|at| CodeError::Row { at })?;
        if known.len() >= Self::MOST_KNOWN {
            return Err(CodeError::Many);
        }
        let model: &'static Model = Box::leak(Box::new(model));
        known.push(model);
        Ok(Self(Some(model)))
    }

    /// What a load of these keys chooses, which are sorted: [`NONE`](Self::NONE) where no code is better, and in a process that has met too many.
    pub fn of_sorted<'k>(count: usize, key: impl Fn(usize) -> &'k [u8]) -> Self {
        Self::new(&choose::of_sorted(count, key, Self::MOST)).unwrap_or(Self::NONE)
    }

    /// The description; nothing, if a word is the first eight bytes.
    #[must_use]
    pub fn description(&self) -> &'static [u8] {
        self.0.map_or(&[], Model::description)
    }

    /// The word of a key in the first layer: what an index read carries, and what partitions are of.
    #[must_use]
    pub fn word(&self, key: &[u8]) -> u64 {
        self.word_of(&Spelled::of(key))
    }

    pub(super) fn word_of(&self, key: &Spelled<'_>) -> u64 {
        let Some(model) = self.0 else { return key.word(0) };
        let mut walk = Walk::BEGIN;
        for &byte in key.bytes() {
            if walk.is_done() {
                break;
            }
            walk = model.step(walk, byte);
        }
        walk.word()
    }

    /// What all keys of this word begin with, as layers spell it.
    pub(super) fn common(&self, word: u64) -> impl Iterator<Item = u8> + use<> {
        let plain = self.0.is_none().then(|| word.to_be_bytes()).into_iter().flatten();
        let coded = self.0.into_iter().flat_map(move |model| {
            let mut walk = Walk::BEGIN;
            std::iter::from_fn(move || {
                let byte = (!walk.is_done()).then(|| model.byte_at(walk, word))?;
                walk = model.step(walk, byte);
                walk.has_all_of(word).then_some(byte)
            })
        });
        plain.chain(coded)
    }

    /// Whether a key has ended within what all keys of its word begin with.
    pub(super) fn has_all_of(&self, key: &Spelled<'_>, word: u64) -> bool {
        let Some(model) = self.0 else { return key.has_ended(WORD) };
        let mut walk = Walk::BEGIN;
        key.bytes().iter().all(|&byte| {
            let is_within = !walk.is_done();
            walk = model.step(walk, byte);
            is_within && walk.has_all_of(word)
        })
    }

    /// The least key whose [word](Self::word) is at least this one: what a border between partitions is in bytes. If there is no such key:
    /// one that is greater than all keys that a tree can have.
    ///
    /// ```
    /// use fatbtree_blink::layers::KeyCode;
    /// assert_eq!(KeyCode::NONE.least_key(0x61_00_80_00_00_00_00_00), b"a\0", "which is spelled 61 00 ff");
    /// ```
    #[must_use]
    pub fn least_key(&self, word: u64) -> Vec<u8> {
        self.first_key(word, |_| false)
    }

    /// The same border for people: the shortest of the keys with this word, if there are any. There may be lesser ones with the same word, which
    /// are longer.
    ///
    /// ```
    /// use fatbtree_blink::layers::KeyCode;
    /// let keys: Vec<_> = (1000..9999).map(|number| format!("user:{number}")).collect();
    /// let code = KeyCode::of_sorted(keys.len(), |at| keys[at].as_bytes());
    /// let word = code.word(b"user:4711");
    /// assert_eq!(code.shortest_key(word), b"user:4711");
    /// assert!(code.least_key(word).starts_with(b"user:4710"), "which is longer, and before it");
    /// ```
    #[must_use]
    pub fn shortest_key(&self, word: u64) -> Vec<u8> {
        // What begins with the next byte has the word as well, or a greater one.
        self.first_key(word, |walk| !walk.has_all_of(word))
    }

    fn first_key(&self, word: u64, is_behind: impl Fn(&Walk) -> bool) -> Vec<u8> {
        let Some(model) = self.0 else { return least_key(&word.to_be_bytes()) };
        let (mut walk, mut spelled) = (Walk::BEGIN, Vec::new());
        while !walk.begins_at(word) {
            if walk.is_done() || is_behind(&walk) {
                // What begins so has lesser words, or is passed over; what begins with the next byte has not.
                while spelled.pop_if(|byte| *byte == u8::MAX).is_some() {}
                match spelled.last_mut() {
                    Some(byte) => *byte += 1,
                    None => return vec![u8::MAX; MAX_KEY_BYTES + 1],
                }
                break;
            }
            let byte = model.byte_at(walk, word);
            walk = model.step(walk, byte);
            spelled.push(byte);
        }
        least_key(&spelled)
    }

    /// What a region has of it, behind its superblock: CRC-32 of the rest, number of bytes, two zeros, description, zeros.
    #[must_use]
    pub fn to_area(&self) -> Vec<u8> {
        let description = self.description();
        let mut area = vec![0; Self::AREA];
        area[4..6].copy_from_slice(&(description.len() as u16).to_le_bytes());
        area[8..8 + description.len()].copy_from_slice(description);
        let sum = crc32fast::hash(&area[4..]);
        area[..4].copy_from_slice(&sum.to_le_bytes());
        area
    }

    /// Reads what a region has of it. `None` if it has been damaged.
    #[must_use]
    pub fn parse_area(area: &[u8; Self::AREA]) -> Option<Self> {
        let (sum, rest) = area.split_first_chunk()?;
        let length = u16::from_le_bytes([area[4], area[5]]);
        let description = area[8..].get(..length.into())?;
        (u32::from_le_bytes(*sum) == crc32fast::hash(rest)).then(|| Self::new(description).ok())?
    }
}

impl PartialEq for KeyCode {
    fn eq(&self, other: &Self) -> bool {
        // Equal ones are known once.
        self.0.map(std::ptr::from_ref) == other.0.map(std::ptr::from_ref)
    }
}

impl Eq for KeyCode {}

impl fmt::Debug for KeyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let description = self.description();
        write!(f, "KeyCode({} bytes, {:08x})", description.len(), crc32fast::hash(description))
    }
}

#[cfg(test)]
mod tests;

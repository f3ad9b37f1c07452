//! Table contents: one structure per kind of key, chosen when the program is loaded.
//!
//! ```text
//! key fields                      structure          lookup
//! all exact, <= 256 bits          exact::Exact       one hash
//! exact*, one LPM                 lpm::Lpm           one hash per prefix length in use
//! exact*, one range               range::Ranges      one hash, then a binary search
//! anything else                   scan::Scan         by priority; one-word keys in a tight loop
//! ```

pub(crate) mod contents;
pub(crate) mod exact;
pub(crate) mod lpm;
pub(crate) mod range;
mod records;
pub(crate) mod row;
pub(crate) mod scan;
pub(crate) mod store;

/// No row: the answer of a lookup that misses.
pub(crate) const NONE: u32 = u32::MAX;

/// Place of one key field in the slots, and in the packed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KeyPart {
    pub(crate) slot: u16,
    pub(crate) width: u16,
    /// Bit position in the packed key.
    pub(crate) shift: u8,
}

/// All bits of a field of this width.
pub(crate) fn ones(width: u16) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

/// Words of the longest packed key.
pub(crate) const KEY_WORDS: usize = 4;

/// A packed key, the low word first.
pub(crate) type Key = [u64; KEY_WORDS];

/// Lays fields side by side in a [`Key`], the first one highest. `None` if they do not fit.
pub(crate) fn pack_parts(fields: &[(u16, u16)]) -> Option<Box<[KeyPart]>> {
    let total: u32 = fields.iter().map(|&(_, width)| u32::from(width)).sum();
    if total > KEY_WORDS as u32 * u64::BITS {
        return None;
    }
    let mut left = total;
    let parts = fields.iter().map(|&(slot, width)| {
        left -= u32::from(width);
        KeyPart { slot, width, shift: left as u8 }
    });
    Some(parts.collect())
}

/// Words of a packed key, 1 to [`KEY_WORDS`].
pub(crate) fn key_words(parts: &[KeyPart]) -> usize {
    let width: u32 = parts.iter().map(|p| u32::from(p.width)).sum();
    width.div_ceil(u64::BITS).max(1) as usize
}

/// Packs values (one per part, each within its width) into as many words as they need, at least.
#[inline]
pub(crate) fn pack<const WORDS: usize>(parts: &[KeyPart], values: impl Iterator<Item = u64>) -> [u64; WORDS] {
    let mut key = [0; WORDS];
    for (part, value) in parts.iter().zip(values) {
        let (word, shift) = (usize::from(part.shift / 64), part.shift % 64);
        key[word] |= value << shift;
        // What the word has no room for.
        if let (Some(next), 1..) = (key.get_mut(word + 1), shift) {
            *next |= value >> (64 - shift);
        }
    }
    key
}

/// One part's value.
pub(crate) fn unpack(part: &KeyPart, key: &Key) -> u64 {
    let (word, shift) = (usize::from(part.shift / 64), part.shift % 64);
    let next = key.get(word + 1).map_or(0, |next| next.checked_shl(64 - u32::from(shift)).unwrap_or(0));
    (key[word] >> shift | next) & ones(part.width)
}

/// Packs the packet's values.
#[inline]
pub(crate) fn pack_slots<const WORDS: usize>(parts: &[KeyPart], slots: &crate::code::Words) -> [u64; WORDS] {
    pack(parts, parts.iter().map(|part| slots[usize::from(part.slot)]))
}

/// Packs a key of at most 64 bits.
#[inline]
pub(crate) fn pack64(parts: &[KeyPart], slots: &crate::code::Words) -> u64 {
    let mut key = 0;
    for part in parts {
        key |= slots[usize::from(part.slot)] << (part.shift & 63);
    }
    key
}

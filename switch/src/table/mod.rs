//! Table contents: one structure per kind of key, chosen when the program is loaded.
//!
//! ```text
//! key fields                      structure          lookup
//! all exact, <= 128 bits          exact::Exact       one hash
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

/// Where one key field lies in the slots, and where in the packed key.
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

/// Lays fields side by side in a key of at most 128 bits, the first one highest. `None` if they do not fit.
pub(crate) fn pack_parts(fields: &[(u16, u16)]) -> Option<Box<[KeyPart]>> {
    let total: u32 = fields.iter().map(|&(_, width)| u32::from(width)).sum();
    if total > 128 {
        return None;
    }
    let mut left = total;
    let parts = fields.iter().map(|&(slot, width)| {
        left -= u32::from(width);
        KeyPart { slot, width, shift: left as u8 }
    });
    Some(parts.collect())
}

/// Total width of a packed key in bits.
pub(crate) fn packed_width(parts: &[KeyPart]) -> u32 {
    parts.iter().map(|p| u32::from(p.width)).sum()
}

/// Packs values (one per part, each within its width).
pub(crate) fn pack(parts: &[KeyPart], values: impl Iterator<Item = u64>) -> u128 {
    parts.iter().zip(values).fold(0, |key, (part, value)| key | (u128::from(value) << part.shift))
}

/// Packs the packet's values, for keys of at most 64 bits.
#[inline]
pub(crate) fn pack64(parts: &[KeyPart], slots: &crate::code::Words) -> u64 {
    let mut key = 0;
    for part in parts {
        key |= slots[usize::from(part.slot)] << (part.shift & 63);
    }
    key
}

/// Packs the packet's values.
#[inline]
pub(crate) fn pack128(parts: &[KeyPart], slots: &crate::code::Words) -> u128 {
    let mut key = 0;
    for part in parts {
        key |= u128::from(slots[usize::from(part.slot)]) << (part.shift & 127);
    }
    key
}

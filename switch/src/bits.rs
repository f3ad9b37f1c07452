//! Bits: fields in frames, shifts and clamps with P4's meaning.

use crate::code::FieldAt;
use crate::table::ones;

/// The low `width` bits, 1 to 64.
#[inline(always)]
pub(crate) fn low_bits(value: u64, width: u8) -> u64 {
    let unused = 64 - u32::from(width);
    (value << (unused & 63)) >> (unused & 63)
}

/// Maps a random number to `0..=span`.
pub(crate) fn scale(random: u64, span: u64) -> u64 {
    match span.checked_add(1) {
        Some(count) => ((u128::from(random) * u128::from(count)) >> 64) as u64,
        None => random,
    }
}

pub(crate) fn shift_left(value: u64, by: u64) -> u64 {
    if by < 64 { value << by } else { 0 }
}

pub(crate) fn shift_right(value: u64, by: u64) -> u64 {
    if by < 64 { value >> by } else { 0 }
}

pub(crate) fn clamp(value: i64, width: u16, signed: bool) -> u64 {
    let value = i128::from(value);
    let (low, high) = match signed {
        true => (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1),
        false => (0, i128::from(ones(width))),
    };
    value.clamp(low, high) as u64
}

/// Reads `width` bits at bit `first` of `bytes`, which must reach that far: near the end of the frame, or spread
/// over nine bytes.
pub(crate) fn load(bytes: &[u8], first: usize, width: u16) -> u64 {
    let (at, skip) = (first / 8, first as u32 % 8);
    let count = (skip + u32::from(width)).div_ceil(8) as usize;
    let word = bytes[at..at + count].iter().fold(0u128, |word, &byte| word << 8 | u128::from(byte));
    (word >> (count as u32 * 8 - skip - u32::from(width))) as u64 & ones(width)
}

/// Reads a field's bits. `bytes` begins with its header and may go on after it.
#[inline]
pub(crate) fn load_field(bytes: &[u8], field: FieldAt) -> u64 {
    match bytes.get(field.byte as usize..).and_then(<[u8]>::first_chunk::<8>) {
        Some(word) if field.skip + field.width <= 64 => {
            (u64::from_be_bytes(*word) << (field.skip & 7)) >> ((64 - field.width) & 63)
        }
        _ => load(bytes, field.byte as usize * 8 + usize::from(field.skip), field.width.into()),
    }
}

/// Writes a field's bits. `bytes` begins with its header and may go on after it.
#[inline]
pub(crate) fn store(bytes: &mut [u8], field: FieldAt, value: u64) {
    let at = field.byte as usize;
    let (skip, width) = (u32::from(field.skip), u32::from(field.width));
    if let Some(place) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<8>)
        && skip + width <= 64
    {
        let unused = 64 - skip - width;
        let mask = ones(width as u16) << unused;
        let word = (u64::from_be_bytes(*place) & !mask) | (value << unused & mask);
        *place = word.to_be_bytes();
        return;
    }
    let count = (skip + width).div_ceil(8) as usize;
    let unused = count as u32 * 8 - skip - width;
    let mask = u128::from(ones(width as u16)) << unused;
    let place = &mut bytes[at..at + count];
    let word = place.iter().fold(0u128, |word, &byte| word << 8 | u128::from(byte));
    let word = (word & !mask) | (u128::from(value) << unused & mask);
    place.copy_from_slice(&word.to_be_bytes()[16 - count..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with reading and writing bit by bit, as the definition has it.
        #[test]
        fn fields_are_read_and_written_in_place(
            bytes in prop::collection::vec(any::<u8>(), 9..24),
            first in 0..64u32,
            width in 1..=64u16,
            value in any::<u64>(),
        ) {
            let end = first + u32::from(width);
            prop_assume!(end as usize <= bytes.len() * 8);
            let bit = |bytes: &[u8], at: u32| u64::from(bytes[at as usize / 8] >> (7 - at % 8) & 1);
            let expected = (first..end).fold(0, |v, at| v << 1 | bit(&bytes, at));
            prop_assert_eq!(load(&bytes, first as usize, width), expected);
            prop_assert_eq!(load_field(&bytes, FieldAt::new(0, first, width)), expected);

            let mut written = bytes.clone();
            store(&mut written, FieldAt::new(0, first, width), value & ones(width));
            for at in 0..bytes.len() as u32 * 8 {
                let expected = if (first..end).contains(&at) { value >> (end - 1 - at) & 1 } else { bit(&bytes, at) };
                prop_assert_eq!(bit(&written, at), expected, "bit {}", at);
            }
        }
    }

    #[test]
    fn random_numbers_stay_in_their_span() {
        assert_eq!(scale(u64::MAX, 9), 9);
        assert_eq!(scale(0, 9), 0);
        assert_eq!(scale(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn clamping_keeps_to_the_width() {
        assert_eq!(clamp(300, 8, false), 255);
        assert_eq!(clamp(-3, 8, false), 0);
        assert_eq!(clamp(-300, 8, true) as i64, -128);
        assert_eq!(clamp(300, 8, true), 127);
    }
}
